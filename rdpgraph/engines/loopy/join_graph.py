"""Join-graph propagation: loopy belief propagation between clusters of factors."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.engines.configurations import likeliest
from rdpgraph.engines.loopy.clusters import JoinLayout, laid_out
from rdpgraph.engines.loopy.network_equations import without_floors
from rdpgraph.engines.loopy.propagation import Implicit, Limits, Outcome, Sweep, propagate
from rdpgraph.engines.loopy.schedules import Damping, LogDamping, ProbabilityDamping, Schedule
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import factor_tables, state_table
from rdpgraph.engines.solution import Solution, Status, Supplemented
from rdpgraph.engines.trws.bounding import Bounding
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance
from rdpgraph.plan.joingraph import ClusterGraph


@dataclass(frozen=True, eq=False)
class JoinedSolution(Supplemented):
    """Approximate answers by iterative join-graph propagation.

    The method is that of Mateescu, Kask, Gogate and Dechter (2010). Messages are in float64. Log Z
    is the free energy of the join graph.
    """

    network: Network  # the reduced model
    graph: ClusterGraph  # its clusters; tensor t of the plan is factor t of the groups, in order
    sweeps: int  # at most, up and down
    tolerance: float  # on the largest change of a message, as values scaled to a maximum of one
    allowance: Allowance  # seconds for all answers; messages take seven tenths of it at most
    damping: Damping  # from the second sweep on; its share is raised where the residual stalls
    schedule: Schedule | None  # order of updates; None: up and down the order of the clusters
    gradient: Implicit  # how gradients reach the potentials through the messages
    general: Callable[[], Solution] = field(repr=False)  # solves for modes and max-marginals
    # called after every sweep
    progress: Callable[[Sweep], None] | None = field(default=None, metadata={"elsewhere": None})

    @cached_property
    def _layout(self) -> JoinLayout:
        with torch.enable_grad():  # wherever it is first asked for
            return laid_out(self.network, self.graph)

    @property
    def _outcome(self) -> Outcome:
        """The final messages, with gradients where they are recorded."""
        if torch.is_grad_enabled() and self._layout.equations.records:
            return self._recorded
        return self._plain

    @cached_property
    def _plain(self) -> Outcome:
        with torch.no_grad(), self.allowance.spending():
            return self._propagated()

    @cached_property
    def _recorded(self) -> Outcome:
        outcome = self._plain
        with self.allowance.spending():
            attached = self.gradient.attached(
                self._layout.equations, outcome.messages, self.allowance.left()
            )
        return replace(outcome, messages=attached)

    def _propagated(self) -> Outcome:
        begin, left = clock.now(), self.allowance.left()
        equations, layout = self._layout.equations, self._layout
        for kernel in layout.kernels:
            kernel.prepare()
        # To read the answers off takes as long as some more times to make the tables.
        reading = effort.CLUSTERS_READ * (clock.now() - begin)
        sent = min(effort.CLUSTERS_SENT * left, left - reading)
        deadline = begin + max(sent, effort.CLUSTERS_LEAST * left)
        schedule = self.schedule or layout.schedule
        damping = LogDamping(0.0)
        outcome: Outcome | None = None
        trace, updates = list[float](), 0
        while True:
            limits = Limits(
                schedule,
                damping,
                min(effort.CLUSTERS_PATIENCE if trace else 1, self.sweeps - len(trace)),
                self.tolerance,
                max(deadline - clock.now(), 0.0),
                None if self.progress is None else partial(self._told, len(trace), updates),
            )
            start = equations.flat_messages() if outcome is None else outcome.messages
            outcome = propagate(equations, start, limits)
            before = trace[-1] if trace else math.inf
            trace += outcome.trace
            updates += outcome.updates
            done = bool(outcome.converged.all()) or len(trace) >= self.sweeps
            done |= len(outcome.trace) < limits.sweeps  # the time is over, or progress ended it
            if done or clock.now() > deadline:
                break
            if len(trace) == 1:
                damping = self.damping
            elif trace[-1] > 0.3 * before and isinstance(damping, LogDamping | ProbabilityDamping):
                most = effort.CLUSTERS_DAMPING
                if damping.share >= most and trace[-1] > effort.CLUSTERS_HOPELESS:
                    break
                damping = replace(damping, share=min(damping.share + 0.2, most))
        return replace(outcome, trace=tuple(trace), updates=updates)

    def _told(self, sweeps: int, updates: int, sweep: Sweep) -> None:
        assert self.progress is not None
        number, all_updates = sweeps + sweep.number, updates + sweep.updates
        self.progress(replace(sweep, number=number, updates=all_updates))

    def status(self) -> Status:
        outcome = self._plain
        converged = bool(outcome.converged.all())
        if not converged:
            remedy = "the join graph's messages have not converged: allow more time, or damp them"
        else:
            remedy = "approximate: more memory or time allows larger clusters"
        return Status(
            exact=False,  # not even of a junction tree: its modes are not
            converged=converged,
            biased=True,
            iterations=len(outcome.trace),
            residual=float(outcome.residual.amax()) if len(outcome.residual) else 0.0,
            trace=outcome.trace,
            method="join graph",
            route="join graph",
            remedy=remedy,
        )

    def log_partition(self) -> Tensor:
        return self._log_partition

    @differentiable_property
    def _log_partition(self) -> Tensor:
        network = self.network
        if network.impossible:
            return network.log_zero
        total = self._layout.equations.log_partition(self._plain.messages)
        total = without_floors(total, network, self._layout.equations.lowest)
        return (total + network.constant).to(network.constant)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return (B,) lower bounds on log Z by likely states and the mode, and (B,) upper bounds.

        The upper bounds have messages of their own.
        """
        ends, known = super().bounds(), tuple[Tensor, ...]()
        if not self.network.impossible:
            known = likeliest(self, self.network.graph), self.possible_mode()
        with self.allowance.spending(), torch.no_grad():
            seconds = self.allowance.left(effort.LOOPY_REPAIR)
            return self._bounding.within(1.0, known, seconds, ends)

    @cached_property
    def _bounding(self) -> Bounding:
        return Bounding(self.network, eliminating=True)

    @differentiable_property
    def _beliefs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Beliefs (B, k) of variables, from their smallest clusters, and (B, *sizes) of tensors."""
        graph, layout = self.graph, self._layout
        incoming = layout.equations.incoming(self._outcome.messages)
        smallest: dict[int, float] = {}
        of_variables = [torch.zeros(0, device="cpu") for _ in graph.sizes]
        of_tensors: list[Tensor] = [torch.zeros(0, device="cpu")] * sum(map(len, graph.tensors))
        for number, (kernel, members) in enumerate(
            zip(layout.kernels, layout.members, strict=True)
        ):
            beliefs = kernel.beliefs(layout.equations.at(number, incoming))
            size = math.prod(kernel.sizes)
            for row, cluster in enumerate(members):
                scope, belief = graph.scopes[cluster], beliefs[:, row]
                for tensor in graph.tensors[cluster]:
                    of_tensors[tensor] = _marginal(belief, scope, layout.scopes[tensor])
                for variable in scope:
                    if size < smallest.get(variable, math.inf):
                        smallest[variable] = size
                        of_variables[variable] = _marginal(belief, scope, (variable,))
        return of_variables, of_tensors

    def variable_marginals(self) -> Tensor:
        if self.network.impossible:
            return state_table(self.network, None, 0.0, 0.0)
        beliefs = [belief.expand(self.network.batch, -1) for belief in self._beliefs[0]]
        values = torch.cat([*beliefs, self.network.constant.new_zeros(self.network.batch, 0)], 1)
        return self._of_possible(state_table(self.network, values, 0.0, 1.0))

    def _of_group(self, group: int) -> Tensor:
        first = sum(len(earlier.scopes) for earlier in self.network.groups[:group])
        beliefs = self._beliefs[1][first : first + len(self.network.groups[group].scopes)]
        batch = max(len(belief) for belief in beliefs)
        return torch.stack([belief.expand(batch, *belief.shape[1:]) for belief in beliefs], 1)

    def factor_marginals(self, block: int) -> Tensor:
        def beliefs(group: int, rows: Tensor) -> Tensor:
            values = self._of_group(group)
            return values[:, rows.to(values.device)]

        return self._of_possible(factor_tables(self.network, block, beliefs))

    def expected_score(self) -> Tensor:
        network = self.network
        total = network.constant.expand(network.batch).double()
        if network.impossible:
            return torch.zeros_like(total).to(network.constant)
        for number, group in enumerate(network.groups):
            belief = self._of_group(number)
            logs = torch.where(belief > 0, group.each().double(), 0.0)
            total = total + (belief * logs).flatten(1).sum(1)
        return self._of_possible(total).to(network.constant)


def _marginal(joint: Tensor, scope: Sequence[int], kept: Sequence[int]) -> Tensor:
    """Return the (B, *sizes of ``kept``) marginal of a joint over an ascending scope."""
    gone = [dim + 1 for dim, v in enumerate(scope) if v not in kept]
    summed = joint.sum(gone) if gone else joint
    ranks = sorted(kept)
    return summed.permute(0, *(ranks.index(v) + 1 for v in kept))
