"""Answers about all states of a model from its solution on a few of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.engines.recognised import StructureSolution
from rdpgraph.engines.solution import OF_MODES, Solution, Status, prefix_method
from rdpgraph.errors import ImpossibleEvidenceError, ModelError, UnsupportedError
from rdpgraph.estimate.all_states import all_state_marginals
from rdpgraph.estimate.estimator import KeptLayout, Model, Supports, restricted
from rdpgraph.estimate.local_mass import local_lower_bound
from rdpgraph.estimate.replicates import Joined, Replicates, draws_before, joined_estimate, taken
from rdpgraph.interface.sites import free_variables
from rdpgraph.interface.structure import Structure
from rdpgraph.logspace.logmatrix import soft_scatter
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.restriction import expanded, observed_supports
from rdpgraph.model.rewrites import opened, with_joint
from rdpgraph.model.soundness import items_named
from rdpgraph.structures.draws import perturbed_graph


@dataclass(frozen=True, eq=False)
class Restriction:
    """Lift from some states of each variable to all of them, and from replicates to their mean.

    A state with a log-weight stands for others too, or is masked by -inf; a replicate is one choice
    of states, and the mean is that of Z. Draws that depend on each other, as those of a Markov
    chain, are averaged with equal weights (``equal``), and have no Z then. A variable or array that
    is observed keeps the states observed, whatever its support; evidence on a part of an array, or
    in some rows only, is written as a factor.

    Attributes:
        original: the model as declared.
        supports: (replicates, *batch, *shape, kept) for each variable or array of a graph, in its
            order; None where all states are kept. A structure has one, over its sites.
        solve: gives the posterior of a restricted model; what `Estimator.prepare` was given.
        replicates: number of choices of states.
        exact: all states are kept with weight one.
        bound: ``"lower"`` if exact inference on the kept states bounds log Z below; else empty.
        equal: possible replicates have equal weights, and not those of their Z.
        groups: the group of each replicate, as for `Replicates`; empty: none is known.
    """

    original: Model
    supports: Supports
    solve: Callable[[Model], Any] = field(repr=False)
    replicates: int = field(default=1, kw_only=True)
    exact: bool = field(default=False, kw_only=True)
    bound: str = field(default="", kw_only=True)
    equal: bool = field(default=False, kw_only=True)
    groups: tuple[int, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.original, FactorGraph):
            return
        graph = opened(self.original)
        if len(self.supports) != len(graph.variables):
            raise ModelError(
                f"Restriction needs {len(graph.variables)} supports, one or None for each variable "
                f"or array, in their order; got {len(self.supports)}."
            )
        like = torch.zeros((), dtype=graph.dtype, device="cpu")
        observed = observed_supports(graph.domain, graph.observed, like)
        supports = [observed.get(place, given) for place, given in enumerate(self.supports)]
        lead = (self.replicates, *graph.batch_shape)
        selected = {
            place: expanded(repr(entry.name), support, (*lead, *entry.shape))
            for place, (entry, support) in enumerate(zip(graph.variables, supports, strict=True))
            if support is not None and place not in observed
        }
        if selected:  # one of them at least has a dim of the replicates
            place = next(iter(selected))
            supports[place] = selected[place]
        else:
            object.__setattr__(self, "replicates", 1)
            object.__setattr__(self, "groups", ())
            object.__setattr__(self, "exact", True)
        object.__setattr__(self, "original", graph)
        object.__setattr__(self, "supports", tuple(supports))

    @differentiable_property
    def model(self) -> Model:
        """Model on the kept states, replicates its first batch dim: the one to solve."""
        given = isinstance(self.original, FactorGraph) or self.supports == (None,)
        return restricted(self.original, self.supports if given else self.layout.expanded)

    @cached_property
    def layout(self) -> KeptLayout:
        """Positions of the kept states among all states."""
        return KeptLayout(self.original, self.supports, self.replicates)

    def solved(self) -> Solution:
        """Solution of the model on the kept states."""
        return self.solve(self.model).solution

    def unweighted(self) -> "Restriction":
        """Restriction to the same states, each with weight one; those of -inf stay masked."""
        supports = (support and support.unweighted() for support in self.supports)
        return replace(self, supports=tuple(supports))

    def of_replicates(self, source: Tensor) -> "Restriction":
        """Restriction with copies of the replicates.

        Args:
            source: (n,) or (n, B), for each new one, and each item, the number of the old one.
        """
        batch = self.original.batch_shape
        one_source = source.ndim == 1 and bool(self.groups)
        groups = tuple(self.groups[n] for n in source.tolist()) if one_source else ()
        source = source.reshape(len(source), *(batch if source.ndim > 1 else (1,) * len(batch)))

        def copied(values: Tensor) -> Tensor:
            index = source.reshape(*source.shape, *(1,) * (values.ndim - source.ndim))
            return values.take_along_dim(index.to(values.device), 0)

        pairs = zip(self.supports, self.layout.expanded, strict=True)
        supports = tuple(given and full.map(copied) for given, full in pairs)
        return replace(self, supports=supports, replicates=len(source), groups=groups)

    def __call__(self, solution: Solution) -> "RestrictedSolution":
        return RestrictedSolution(self, solution)


@dataclass(frozen=True, eq=False)
class RestrictedSolution(Solution):
    """Answers about all states from the solution on those that were kept.

    Marginals are read at all states where `all_state_marginals` gives them; in all other answers a
    state that was not kept has probability zero. Marginals, expectations and samples are those of
    the replicates together, each in proportion to its Z; so all of them are ratios of estimates:
    consistent, and biased. The entropy is that of Fu, Cunningham and Lapata 2022, algorithm 3, on
    any model: log Z less the expected score without the log-weights.
    """

    restriction: Restriction  # the kept states
    inner: Solution  # the solution of the model on those, (replicates, *batch)

    @differentiable_property
    def replicates(self) -> Replicates:
        """Estimates of Z, one for each choice of states."""
        logs, restriction = self._split(self.inner.log_partition()), self.restriction
        return Replicates(logs, restriction.equal, groups=restriction.groups)

    @property
    def _layout(self) -> KeptLayout:
        return self.restriction.layout

    def _split(self, values: Tensor) -> Tensor:
        """(replicates, B, ...) from (replicates * B, ...)."""
        return values.unflatten(0, (self.restriction.replicates, self._layout.batch))

    def _scattered(self, values: Tensor, places: Tensor, *, largest: bool = False) -> Tensor:
        """(B, S) sums of (replicates, B, S') values by place, else zero; or maxima, else -inf."""
        places, values = (part.transpose(0, 1).flatten(1) for part in (places, values))
        shape = (self._layout.batch, self._layout.num_states)
        if largest:
            return values.new_full(shape, -math.inf).scatter_reduce(1, places, values, "amax")
        return values.new_zeros(shape).scatter_add(1, places, values)

    @differentiable_property
    def _marginals(self) -> Tensor:
        """(replicates, B, S') probabilities of the kept states."""
        return self._split(self.inner.variable_marginals())

    def engine_status(self, answer: str = "log_partition") -> Status:
        """Status of an answer by the engine, with the bias of the choice of states."""
        maxima = answer == "max_marginals" or answer in OF_MODES
        engine = (self._unweighted if maxima else self.inner).status_of(answer)
        restriction = self.restriction
        exact = engine.exact and restriction.exact
        bound = engine.bound if restriction.exact else restriction.bound if engine.exact else ""
        # The engine speaks of the model on the states kept: exact there is not exact here.
        made = bool(engine.remedy) and not restriction.exact
        remedy = f"in the model on the states kept: {engine.remedy}" if made else engine.remedy
        status = replace(engine, exact=exact, biased=not exact, bound=bound, remedy=remedy)
        return status if restriction.exact else prefix_method("randomized", status)

    def status(self) -> Status:
        """Status of the engine, with the bias and the error that the replicates show.

        Converged: the replicates agree, and their states taken together have no more mass.
        """
        return self.status_of_sums()

    def status_of(self, answer: str) -> Status:
        """Status of one answer, with the same error of log Z."""
        return self._judged.described(self.engine_status(answer))

    @property
    def shows_errors(self) -> bool:
        """True if replicates can show their error: not that of bounds, nor that of messages."""
        return self.inner.status_of("log_partition").exact and not self.engine_status().bound

    def log_partition_errors(self) -> Tensor | None:
        return self._judged.errors

    @differentiable_property
    def _judged(self) -> Replicates:
        """Estimates of Z, with what is known of their errors."""
        if self.engine_status().exact or self.replicates.equal:
            return self.replicates
        if self.shows_errors:
            return self.replicates.compared(self.joined)
        unknown = torch.full_like(self.replicates.log_partition.detach(), math.inf)
        return replace(self.replicates, errors=unknown)

    def interval(self, confidence: float) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): ends by Student's t; infinite where bounds prove them wrong."""
        if self.engine_status().exact or self.restriction.bound or self.restriction.equal:
            return super().interval(confidence)
        return self._judged.interval(confidence)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): the mass of states that several replicates keep is a lower bound."""
        return self.joined.bounds or super().bounds()

    @cached_property
    def joined(self) -> Joined:
        """What the states of several replicates say together, where replicates show errors."""
        logs, restriction = self.replicates.log_partitions, self.restriction
        sure = self.engine_status().exact or self.replicates.equal or not self.shows_errors
        if sure or len(logs) == 1:
            return Joined()
        pairs = zip(restriction.supports, restriction.layout.expanded, strict=True)
        supports = tuple(given and full for given, full in pairs)
        model, few = restriction.original, restriction.model
        joined = joined_estimate(model, few, supports, logs, restriction.solve)
        known = joined.bounds is not None and bool((joined.bounds[0] == joined.bounds[1]).all())
        return joined if known else joined.at_least(self._local_bound(supports))

    def _local_bound(self, supports: Supports) -> Tensor | None:
        """(B,) the mass around a few configurations; None of a structure that is not a graph."""
        model = self.restriction.original
        if isinstance(model, Structure):
            sites = model.sites()
            if sites is None or (sites.links is None and sites.graph is None):
                return None
            model = opened(model.factor_graph())
        return local_lower_bound(model, supports)

    def log_partition(self) -> Tensor:
        return self.replicates.log_partition

    def log_partitions(self) -> Tensor:
        self.replicates.require_estimates()
        return self.replicates.log_partitions

    def on_all(self) -> list[Structure]:
        """Return for each replicate a structure over all states that stands for the kept ones.

        Its unary potentials have the log-weights of the kept states added, and are -inf at states
        that were not kept.
        """
        structure, layout = self.restriction.original, self._layout
        assert isinstance(structure, Structure)
        size = layout.batch * layout.num_states
        rows = torch.arange(layout.batch, device=structure.unary.device).unsqueeze(1)
        places = (layout.places + rows * layout.num_states).flatten(1)
        logs = map(soft_scatter, layout.selected.log_weights.flatten(1), places, repeat(size))
        unary = structure.unary
        return [structure.with_unary(unary + added.reshape(unary.shape)) for added in logs]

    @differentiable_property
    def _of_all_states(self) -> Tensor | None:
        """(replicates, B, S) probabilities of all states given those kept elsewhere, or None."""
        restriction = self.restriction
        if restriction.exact or restriction.equal:
            return None
        return all_state_marginals(self._layout, restriction.model, self.inner, restriction.solve)

    def variable_marginals(self) -> Tensor:
        """(B, S), read at all states by `all_state_marginals`.

        Where that has no answer, zero at the states that were not kept.
        """
        every, graph = self._of_all_states, self.restriction.original
        if every is not None and not isinstance(graph, FactorGraph):
            return self.replicates.mean(every)
        weighted = self._marginals * self.replicates.weights.unsqueeze(-1)
        kept = self._scattered(weighted, self._layout.places)
        if every is None or not isinstance(graph, FactorGraph):
            return kept
        free = free_variables(graph).repeat_interleave(graph.domain.sizes).to(kept.device)
        return torch.where(free, self.replicates.mean(every), kept)

    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes), zero where a state was not kept; as large as the whole block's tables."""
        graph, restricted = self.restriction.original, self.restriction.model
        assert isinstance(graph, FactorGraph)
        assert isinstance(restricted, FactorGraph)
        wanted, batch = graph.blocks[block], self._layout.batch
        row_of = {number: row for row, number in enumerate(wanted.declared.tolist())}
        shape = (batch, wanted.count * math.prod(wanted.sizes))
        total = torch.zeros(shape, dtype=graph.dtype, device=graph.device)
        for number, part in enumerate(restricted.blocks):
            rows = [row_of.get(declared, -1) for declared in part.declared.tolist()]
            if not rows or rows[0] < 0:
                continue
            values = self._split(self.inner.factor_marginals(number)).flatten(3)
            values = self.replicates.weights.reshape(-1, batch, 1, 1) * values
            place = torch.tensor(rows, device=values.device).reshape(1, 1, -1, 1)
            for slot, size in enumerate(wanted.sizes):
                states = self._layout.of(part.scopes[:, slot])
                place = (place.unsqueeze(-1) * size + states.unsqueeze(-2)).flatten(3)
            index = place.expand(values.shape).transpose(0, 1).flatten(1)
            total = total.scatter_add(1, index, values.transpose(0, 1).flatten(1).to(total))
        return total.reshape(batch, wanted.count, *wanted.sizes)

    def joint(self, numbers: Tensor, solve: Callable[[FactorGraph], Solution]) -> Tensor:
        graph = self.restriction.original
        assert isinstance(graph, FactorGraph)
        graph = with_joint(graph, numbers, graph.num_factors)
        wider = replace(self.restriction, original=graph)
        assert isinstance(wider.model, FactorGraph)
        return wider(solve(wider.model)).factor_marginals(len(graph.blocks) - 1).squeeze(1)

    def joints(self, number: int) -> Tensor | None:
        """(B, K, S): those of the replicates together, zero where a state was not kept.

        By conditioning the model on the states kept; None of a structure, whose sites need not be
        the variables of a graph.
        """
        restriction, layout = self.restriction, self._layout
        if not isinstance(restriction.model, FactorGraph):
            return None
        joint = self._split(restriction.solve(restriction.model)._joints(number))
        joint = self.replicates.weights.reshape(-1, layout.batch, 1, 1) * joint
        # Kept states lie at their places among all states, of this variable and of the others.
        own = layout.of(torch.tensor([number], device="cpu"))[:, :, 0].unsqueeze(-1)
        place = own * layout.num_states + layout.places.unsqueeze(-2)
        size = int(layout.domain.sizes[number])
        total = joint.new_zeros(layout.batch, size * layout.num_states)
        index, values = (part.transpose(0, 1).flatten(1) for part in (place, joint))
        return total.scatter_add(1, index, values).unflatten(1, (size, layout.num_states))

    def expected_score(self) -> Tensor:
        """(B,) of the potentials alone: the log-weights shape the distribution, not the score."""
        score = self._split(self.inner.expected_score())
        return self.replicates.mean(score - self._expected_weight)

    @property
    def _expected_weight(self) -> Tensor:
        """(replicates, B) expectation of the summed log-weights."""
        weights = self._layout.selected.log_weights
        if not self._weighted:
            return weights.new_zeros(weights.shape[:2])
        marginals = self._marginals
        return (torch.where(marginals > 0, weights, 0.0) * marginals).sum(-1)

    @property
    def _weighted(self) -> bool:
        """True if a state stands for others too."""
        weights = self._layout.selected.log_weights
        return bool(((weights != 0) & (weights > -math.inf)).any())

    def entropy(self) -> Tensor:
        """(B,) log Z less the expected score; with one replicate log Z cancels."""
        if self.restriction.replicates > 1:
            return super().entropy()
        if self._weighted and isinstance(self.inner, StructureSolution):
            given = self.inner.entropy_over(self._layout.selected.log_weights[0])
            if given is not None:
                return given
        return self._split(self.inner.entropy())[0] + self._expected_weight[0]

    @differentiable_property
    def _unweighted(self) -> Solution:
        """Solution on the same states, each with weight one."""
        return self.restriction.unweighted().solved()

    @property
    def _possible(self) -> "RestrictedSolution":
        """This solution with impossible replicates replaced by possible ones, if any is."""
        return self._replaced or self

    @differentiable_property
    def _replaced(self) -> "RestrictedSolution | None":
        """None for this solution itself, which would never be freed if it held itself."""
        possible = self.replicates.possible
        if bool(possible.all()):
            return None
        if not bool(possible.any(0).all()):
            items = items_named(~possible.any(0))
            raise ImpossibleEvidenceError(
                "There are no samples and no mode: no configuration is possible with the states "
                f"that were kept in {items}; keep more states, or change the model."
            )
        each = torch.arange(len(possible), device=possible.device).unsqueeze(-1)
        source = torch.where(possible, each, possible.long().argmax(0))
        restriction = self.restriction.of_replicates(source)
        return restriction(restriction.solved())

    def max_marginals(self) -> Tensor:
        """(B, S) over configurations of kept states: -inf where a state was not kept."""
        values = self._split(self._unweighted.max_marginals())
        return self._scattered(values, self._layout.places, largest=True)

    def mode(self) -> Tensor:
        """(B, V) best configuration of states kept together in one replicate."""
        other = self._possible
        best = self._split(other._unweighted.max_marginals())
        best = torch.nn.functional.pad(best, (0, 1), value=-math.inf)  # of no variables, too
        chosen = best.amax(-1).argmax(0).unsqueeze(0)
        modes = self._split(other._unweighted.possible_mode())
        return other._layout.original(modes.take_along_dim(chosen.unsqueeze(-1), 0), chosen)[0]

    def possible(self) -> Tensor:
        return self.replicates.possible.any(0)

    def mode_is_consistent(self) -> Tensor:
        """(B,) False unless all states were kept: a state left out may be better."""
        return self._if_exact(lambda solution: solution.mode_is_consistent())

    def mode_is_optimal(self) -> Tensor:
        return self._if_exact(lambda solution: solution.mode_is_optimal())

    def _if_exact(self, proof: Callable[[Solution], Tensor]) -> Tensor:
        if not self.restriction.exact:
            return torch.zeros(self._layout.batch, dtype=torch.bool, device="cpu")
        return self._split(proof(self._unweighted)).all(0)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) draws: a replicate in proportion to its Z, then a configuration of it."""
        chosen, other = self.replicates.choose(count, generator), self._possible
        most = int(draws_before(chosen).amax()) + 1 if chosen.numel() else 0
        drawn = other.inner.sample(most, generator)
        drawn = drawn.unflatten(1, (self.restriction.replicates, self._layout.batch))
        return other._layout.original(taken(drawn, chosen.to(drawn.device)), chosen)

    def rsample(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        """(B, S) of a replicate drawn in proportion to its Z; zero where a state was not kept."""
        layout, chosen, weights = self._relaxed(temperature, generator)
        return self._scattered(weights, layout.places.take_along_dim(chosen, 0))

    def rsample_kept(
        self, temperature: float, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Relaxed draw on the kept states alone: their numbers and weights, (B, S') each."""
        layout, chosen, weights = self._relaxed(temperature, generator)
        return layout.selected.states.take_along_dim(chosen, 0)[0], weights[0]

    def _relaxed(
        self, temperature: float, generator: torch.Generator | None
    ) -> tuple[KeptLayout, Tensor, Tensor]:
        """States of all replicates, (1, B, 1) the replicate drawn, and its relaxed draw (1, B, S').

        By Fu, Cunningham and Lapata 2022, algorithm 4, for a chain, with the weights that it leaves
        out; by a stochastic softmax for a graph.
        """
        chosen, other = self.replicates.choose(1, generator).unsqueeze(-1), self._possible
        model = other.restriction.model
        if isinstance(model, FactorGraph):
            perturbed = perturbed_graph(model, temperature, generator)
            drawn = other.restriction.solve(perturbed).solution.variable_marginals()
        else:
            drawn = other.inner.rsample(temperature, generator)
        chosen = chosen.to(drawn.device)
        return other._layout, chosen, other._split(drawn).take_along_dim(chosen, 0)

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """Refuse: marginal modes are not available."""
        raise UnsupportedError(
            "Marginal MAP over sampled states has no estimate here; use estimator=Exact()."
        )
