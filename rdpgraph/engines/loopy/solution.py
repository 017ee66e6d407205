"""Answers of loopy belief propagation."""

import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.cache import cached_property, differentiable_property, ordinarily
from rdpgraph._core.numbers import ROUNDING
from rdpgraph.engines.configurations import Searched, likeliest, scored_in_graph
from rdpgraph.engines.loopy.arithmetic import rescaled, take
from rdpgraph.engines.loopy.compiled import log_partition
from rdpgraph.engines.loopy.decoding import DecodedModes, are_possible, decode
from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.high_order import HighOrderKernel, is_logical
from rdpgraph.engines.loopy.network_equations import (
    Bethe,
    CountingNumbers,
    edges_in,
    equations_of,
    message_groups,
    without_floors,
)
from rdpgraph.engines.loopy.propagation import Gradient, Limits, Outcome
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import factor_tables, full_states, variable_table
from rdpgraph.engines.scores import score_range
from rdpgraph.engines.solution import Approximation, Status, meets
from rdpgraph.engines.trws.bounding import Bounding
from rdpgraph.errors import UnsupportedError
from rdpgraph.model.soundness import items_named
from rdpgraph.plan.clock import Allowance, Counter, counted
from rdpgraph.plan.orders import forest_order
from rdpgraph.plan.tree import Topology

_FAR = 1e10
"""Nats from which on a finite log-value leaves others no digits in sums by counting numbers."""


@dataclass(frozen=True, eq=False)
class LoopySolution(Approximation):
    """Approximate answers by message passing, exact where the factor graph has no cycle."""

    network: Network  # the reduced model
    counting: CountingNumbers  # its counting numbers
    temperature: float  # 1 sums, 0 maximises
    limits: Limits  # schedule, damping and when to stop
    gradient: Gradient  # how gradients pass the messages
    allowance: Allowance | None = None  # seconds for all answers, or None
    start: Messages | None = field(default=None, repr=False)  # initial messages; None: uniform
    share: float = 1.0  # part of the remaining time that the messages may take
    # adds the other parts' terms to the equations, if the network is a part of a model
    among: Callable[[Equations], Equations] | None = field(default=None, repr=False)

    @cached_property
    def edges(self) -> Edges:
        """The index of the messages."""
        return edges_in(self.network).to(self.network.constant.device)

    @cached_property
    def equations(self) -> Equations:
        """The equations of message passing in the network."""
        with torch.enable_grad():  # wherever it is first asked for
            equations = equations_of(self.network, self.edges, self.counting, self.temperature)
        if self.among is not None:
            return self.among(equations)
        return equations if equations.bounded else replace(equations, forest=self.network_is_forest)

    @property
    def outcome(self) -> Outcome:
        """The final messages, computed when they are first used, with gradients or without."""
        if torch.is_grad_enabled() and self.equations.records:
            return self._recorded
        return self.__dict__.get("_recorded") or self._plain

    @cached_property
    def _recorded(self) -> Outcome:
        # In counted time as long as messages without gradients have, if they came before.
        return self._ended(self._at_first)

    @cached_property
    def _plain(self) -> Outcome:
        _ = self._at_first
        with torch.no_grad():
            return self._ended(self.allowance)

    @cached_property
    def _at_first(self) -> Allowance | None:
        """The seconds that the first messages have."""
        return None if self.allowance is None else self.allowance.for_one_answer()

    def _ended(self, allowance: Allowance | None) -> Outcome:
        with _spent(allowance):
            start = self.equations.flat_messages() if self.start is None else self.start
        with _spent(allowance):
            limits = self._limits_of(self.share, allowance)
            return self.gradient.run(self.equations, start, limits)

    def _limits_of(self, share: float, allowance: Allowance | None) -> Limits:
        """Return limits with a share of the seconds left, and a tolerance for exact messages."""
        limits = replace(self.limits, settling=self._settling)
        if self._is_exact:
            limits = replace(limits, tolerance=min(limits.tolerance, self._exact_tolerance))
        if allowance is None:
            return limits
        return replace(limits, seconds=allowance.left(share))

    @cached_property
    def _settling(self) -> bool:
        """True if the messages of logical factors on cycles are damped from some sweep on."""
        cycles = self.among is not None or not self.network_is_forest
        return self.limits.settling and is_logical(self.network.graph) and cycles

    @property
    def _is_exact(self) -> bool:
        """True if messages that no longer change give exact sums or maxima."""
        plain = isinstance(self.counting, Bethe) and self.among is None
        return plain and self.temperature in (0.0, 1.0) and self.network_is_forest

    @property
    def _exact_tolerance(self) -> float:
        """The change of messages on a forest that is rounding; later changes along it add up."""
        least = 8.0 * torch.finfo(self.network.constant.dtype).eps
        return max(ROUNDING / max(self.edges.count, 1), least)

    def status(self) -> Status:
        """Return convergence, the number of sweeps, and what else to try."""
        # At temperature 0 log Z is that of no model.
        return self._status(exact=self._is_exact and self.temperature == 1)

    def status_of(self, answer: str) -> Status:
        """Return the status of sums or maxima; that of a mode does without a proof."""
        if answer == "max_marginals":
            return self.maximal._status(exact=self.maximal._is_exact)
        if answer != "mode":
            return self.status()
        status, remedies = self._modal._status(exact=self._modal._is_exact), list[str]()
        repaired = self._repaired
        if not bool(repaired.found.all()):
            items = items_named(~repaired.found)
            remedies.append(f"no possible mode was found in {items}: allow more time")
        if self.decoded.cut:
            remedies.append(
                "the time ended the search for a mode before all ties were broken: allow more time"
            )
        return replace(status, remedy="; ".join(filter(None, (*remedies, status.remedy))))

    def _status(self, *, exact: bool) -> Status:
        """Return the status of these messages; ``exact`` if their fixed point is the answer."""
        outcome = self.outcome
        contradiction = bool(self._contradicted.any())
        converged = bool(outcome.converged.all()) and not contradiction and not self._outweighed
        exact = exact and converged
        # The remedy is that of the first of these that holds.
        remedy = ""
        if contradiction:
            remedy = (
                "the messages contradict each other, as if nothing were possible: damp them "
                "(damping=0.8), or use counting=TreeReweighted() or JoinGraph()"
            )
        elif self._outweighed:
            remedy = (
                "a few log-values of 1e10 and more leave the others no digits when counting "
                "numbers multiply them: write -inf where something is impossible"
            )
        elif not converged:
            remedy = (
                "the messages have not converged: allow more sweeps, damp them "
                f"(damping={0.8 if self._settling else 0.5}), or use another schedule, such as "
                "Residual()"
            )
        elif not exact:
            remedy = (
                "approximate: JoinGraph() is better where its clusters fit, and Contraction() is "
                "exact where its tables do"
            )
        # Messages that did not settle were damped unasked, which the remedy says first.
        if self._settling and len(outcome.trace) > effort.UNDAMPED_SWEEPS:
            remedy = f"damped by 0.5 from sweep {effort.UNDAMPED_SWEEPS + 1} on; {remedy}"
        return Status(
            exact=exact,
            converged=converged,
            biased=not exact,
            iterations=len(outcome.trace),
            residual=float(outcome.residual.amax()) if len(outcome.residual) else 0.0,
            trace=outcome.trace,
            method="loopy",
            route="loopy",
            bound="upper" if converged and self.counting.bounds_above and not exact else "",
            remedy=remedy,
        )

    @cached_property
    def _outweighed(self) -> bool:
        """True if a few large log-values leave others no digits in sums by counting numbers."""
        tables = [group.log_tables.detach() for group in self.network.groups]
        return not isinstance(self.counting, Bethe) and any(
            bool(((table.abs() > _FAR) & table.isfinite()).any()) for table in tables
        )

    @cached_property
    def _contradicted(self) -> Tensor:
        """(B,) True where hard constraints drove every state of some variable out of range."""
        equations = self.equations
        gone = torch.zeros(equations.batch, dtype=torch.bool, device=equations.unary_device)
        if equations.bounded:
            return gone
        with torch.no_grad():
            for belief in equations.beliefs(self.outcome.messages):
                peak = belief.amax(1)
                gone |= ((peak < 0.5 * equations.lowest) & (peak > -math.inf)).any(1)
        return gone

    @cached_property
    def network_is_forest(self) -> bool:
        """True if the factor graph has no cycle."""
        edges, count = self.edges, len(self.network.counts)
        if edges.count - sum(edges.factors) >= max(count, 1):
            return False  # more links than a forest has room for
        topology = Topology(tuple(filter(None, edges.listed_scopes())), self.network.sizes)
        return forest_order(topology) is not None

    def log_partition(self) -> Tensor:
        """Return the (B,) approximation of log Z by Bethe or other counting numbers.

        At temperature t it is that of t log Z.
        """
        return self._log_partition

    @differentiable_property
    def _log_partition(self) -> Tensor:
        network = self.network
        if network.impossible:
            return network.log_zero
        outcome = self.outcome
        total = outcome.log_partitions
        if total is None:
            messages = self.gradient.for_log_partition(outcome.messages)
            total = log_partition(self.equations, messages)
        boundary, constant = self.equations.boundary, network.constant
        if boundary is not None:
            constant = boundary.total(constant)
        elif not self.equations.bounded:
            total = without_floors(total, network, self.equations.lowest)
        return (total + constant).to(network.constant)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return (B,) and (B,) bounds on log Z, by these messages or others that pass for it."""
        ends = super().bounds()
        if self.among is not None or not bool((ends[0] < ends[1]).any()):
            return ends
        # Log Z by tree-reweighted messages is a bound at a fixed point alone, which messages reach
        # up to a tolerance. The bounds below hold of any messages.
        ends = tuple(torch.full_like(end, math.inf) for end in ends)
        ends = -ends[0], ends[1]
        known: tuple[Tensor, ...] = ()
        if not self.network.impossible:
            known = likeliest(self, self.network.graph), self.possible_mode()
        with self._bounding_seconds() as seconds, torch.no_grad():
            return self._bounding.within(self.temperature, known, seconds, ends)

    @cached_property
    def _bounding(self) -> Bounding:
        return Bounding(self.network, eliminating=True)

    @contextmanager
    def _bounding_seconds(self) -> Generator[float]:
        """Return the seconds for bounds: of the allowance, or counted where there is no limit."""
        if self.allowance is not None:
            with self.allowance.spending():
                yield self.allowance.left(effort.LOOPY_REPAIR)
        else:
            with counted(Counter()):
                yield effort.IMPROVING_SECONDS

    def possible(self) -> Tensor:
        # Where log-values are finite and moderate, log Z is finite, and need not be computed.
        network = self.network
        extents = [end for group in network.groups for end in group.extent]
        finite = not network.impossible and not network.high_order and self.among is None
        finite = finite and bool((network.constant.detach().abs() < _FAR).all())
        if finite and all(abs(end) < _FAR for end in extents):
            return torch.ones(network.batch, dtype=torch.bool, device=network.constant.device)
        return super().possible()

    def variable_marginals(self) -> Tensor:
        if self.network.impossible:
            return variable_table(self.network, [], 0.0, 0.0)
        beliefs = self.equations.normalised_beliefs(self.outcome.messages)
        return self._of_possible(self._of_variables(beliefs, 0.0, 1.0))

    def _of_variables(
        self, values: tuple[Tensor, ...], empty: float, settled: Tensor | float
    ) -> Tensor:
        parts = [
            (c.variables.cpu(), value.transpose(1, 2))
            for c, value in zip(self.edges.classes, values, strict=True)
        ]
        return variable_table(self.network, parts, empty, settled)

    def check_factor_marginals(self, block: int) -> None:
        """Raise an error for large tables of potentials that compute messages themselves."""
        for kernel in self.equations.kernels:
            if isinstance(kernel, HighOrderKernel) and kernel.block.number == block:
                kernel.check_table()

    def factor_marginals(self, block: int) -> Tensor:
        kernels = message_groups(self.network)

        def beliefs(group: int, rows: Tensor) -> Tensor:
            messages = self.outcome.messages
            if group in kernels:
                values = self.equations.factor_beliefs(kernels.index(group), messages)
                return values[:, rows.to(values.device)]
            scopes = self.network.groups[group].scopes[rows, 0]
            home = int(self.edges.home[scopes[0]])
            belief = self.equations.normalised_beliefs(messages)[home]
            return take(belief, self.edges.local[scopes]).transpose(1, 2)

        high_order = [each.number for each in self.network.high_order]
        if block in high_order:
            number = len(kernels) + high_order.index(block)
            values = self.equations.factor_beliefs(number, self.outcome.messages)
        else:
            values = factor_tables(self.network, block, beliefs)
        return self._of_possible(values)

    def expected_score(self) -> Tensor:
        return ordinarily(self._expected_score)  # some kernels' are gradients

    def _expected_score(self) -> Tensor:
        network, equations = self.network, self.equations
        if network.impossible:
            return torch.zeros_like(network.constant).expand(network.batch)
        messages = self.outcome.messages
        total = network.constant.expand(network.batch).double()
        for belief, unary in zip(
            equations.normalised_beliefs(messages), equations.unary, strict=True
        ):
            logs = torch.where(belief > 0, unary, 0.0)
            total = total + (belief * logs).flatten(1).sum(1).double()
        for number in range(len(equations.kernels)):
            total = total + equations.expected_log_value(number, messages).double()
        return self._of_possible(total).to(network.constant)

    def entropy(self) -> Tensor:
        """Return the (B,) entropy of the tempered distribution.

        Raises:
            UnsupportedError: at temperature 0.
        """
        if self.temperature == 0:
            raise UnsupportedError(
                "At temperature 0 there is no entropy; use a small temperature, such as 0.01."
            )
        return super().entropy() / self.temperature

    @cached_property
    def maximal(self) -> "LoopySolution":
        """The solution of the same model at temperature 0."""
        if self.temperature == 0:
            return self
        return self._beside(temperature=0.0, start=None, share=effort.LOOPY_MAXIMA)

    def _beside(self, **changes: Any) -> "LoopySolution":
        """Return a solution of the same network with some changes; it shares the edges."""
        other = replace(self, **changes)
        vars(other).update(edges=self.edges, network_is_forest=self.network_is_forest)
        return other

    @cached_property
    def _modal(self) -> "LoopySolution":
        """The maxima that give a mode.

        Those of logical factors end when its states are possible and no longer change.
        """
        other = self.maximal
        if not other._settling:
            return other
        limits = other.limits
        sweeps = min(limits.sweeps, max(effort.MODE_SWEEPS, limits.sweeps // 5))
        return other._beside(limits=replace(limits, possible=are_possible, sweeps=sweeps))

    def max_marginals(self) -> Tensor:
        """Return the (B, S) max-beliefs, whose maxima are the approximate score of the mode."""
        other = self.maximal
        total = other.log_partition()
        if self.network.impossible:
            return variable_table(self.network, [], -math.inf, 0.0)
        beliefs = other.equations.beliefs(other.outcome.messages)
        alive = (total > -math.inf).reshape(-1, 1, 1)
        safe = torch.where(alive, total.reshape(-1, 1, 1), 0.0)
        raised = tuple(
            torch.where(alive, rescaled(belief, vanishing=True)[0] + safe, -math.inf)
            for belief in beliefs
        )
        return self._of_variables(raised, -math.inf, total)

    @cached_property
    def decoded(self) -> DecodedModes:
        """The configurations that are decoded from the max-beliefs."""
        other, outcome = self._modal, self._modal.outcome
        with torch.no_grad(), _spent(self.allowance):
            limits = self._limits_of(effort.LOOPY_DECODING, self.allowance)
            return decode(other.equations, outcome, limits)

    def mode(self) -> Tensor:
        """Return the (B, V) decoded configurations, which need not be consistent."""
        return full_states(self.network, self.decoded.states.unsqueeze(0))[0]

    @cached_property
    def _repaired(self) -> Searched:
        states = self.mode()
        # Without a limit the search is as long on every machine.
        allowance, left = self.allowance, effort.REPAIR_SECONDS
        with counted(Counter()) if allowance is None else allowance.spending():
            given = scored_in_graph(self.network.graph, states)
            if bool(given.found.all()):
                return given
            if allowance is not None:
                left = allowance.left(effort.LOOPY_REPAIR)
            # The search is a ring of its own, which is loaded when it is needed.
            try:
                search = import_module("rdpgraph.engines.search.solution")
            except ModuleNotFoundError:
                return given.warned()
            graph = self.network.graph
            return search.possible_modes(graph, states, left).warned()

    def possible_mode(self) -> Tensor:
        """Return the (B, V) decoded configurations, which a search repairs if impossible."""
        return self._repaired.states

    def mode_exists(self) -> Tensor:
        """Return (B,) bools by max-product, and by sums only if that finds none possible."""
        known = self._modal.log_partition().detach().isfinite()
        return known if bool(known.all()) else known | self.possible()

    def mode_is_possible(self) -> Tensor:
        """Return (B,) bools, for which a possible configuration is searched too."""
        return self.mode_exists().cpu() & self._repaired.exists

    def mode_is_consistent(self) -> Tensor:
        return self.decoded.consistent

    def mode_is_optimal(self) -> Tensor:
        """Return (B,) True where the mode is proved to be optimal.

        Proofs are consistency on a tree, and a bound that the mode reaches. Pairwise models are
        bounded for this purpose, by messages of their own. In others, consistency with
        tree-reweighted messages is a proof too: it holds up to the tolerance of the comparison.
        """
        known = self.decoded.consistent & self.network_is_forest
        if bool(known.all()):
            return known
        if self._bounding.is_pairwise:
            return known | meets(self._mode_scores[0], self._ceilings)
        bounding = self.counting.bounds_above and not self._outweighed
        return self.decoded.consistent & bounding

    def mode_bound(self) -> Tensor:
        """Return (B,) upper bounds by tree-reweighted messages or the largest log-values.

        It is the score itself where the mode is optimal on a tree. Elsewhere a mode that is optimal
        meets its bound up to rounding alone.
        """
        known = (self.decoded.consistent & self.network_is_forest).cpu()
        if bool(known.all()):
            return self._mode_scores[1]
        return torch.where(known, self._mode_scores[1], self._ceilings)

    @cached_property
    def _mode_scores(self) -> tuple[Tensor, Tensor]:
        return score_range(self.network.graph, self.mode())

    @cached_property
    def _ceilings(self) -> Tensor:
        """(B,) upper bounds on all scores, by messages that pass for this purpose alone."""
        with self._bounding_seconds() as seconds:
            return replace(self._bounding).maxima(seconds).bounds


def _spent(allowance: Allowance | None) -> AbstractContextManager[None]:
    return nullcontext() if allowance is None else allowance.spending()
