"""Answers about all states of a model from its solution on a few of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._cache import cached_property, differentiable_property
from rdpgraph.engines.solution import Solution
from rdpgraph.engines.status import Status
from rdpgraph.engines.structured import StructureSolution
from rdpgraph.errors import ImpossibleEvidenceError, UnsupportedError
from rdpgraph.estimate.graph_view import view_of
from rdpgraph.estimate.layout import Layout
from rdpgraph.estimate.problem import Model, Supports
from rdpgraph.estimate.replicates import Replicates, draws_before, repaired, taken, unweighted
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.overlay import with_joint
from rdpgraph.model.semiring import soft_scatter
from rdpgraph.model.structure import Structure
from rdpgraph.model.support import Support
from rdpgraph.structures.relaxation import perturbed_graph


@dataclass(frozen=True, eq=False)
class Restriction:
    """The lift from some states of each variable to all of them, and from replicates to their mean.

    A state with a log-weight stands for others too, or is masked by -inf; a replicate is one choice
    of states, and the mean is that of Z. Draws that depend on each other, as those of a Markov
    chain, are averaged with equal weights (``equal``), and have no Z then.

    Attributes:
        original: the model as declared.
        supports: (replicates, *batch, *shape, kept) for each variable or array of a graph, in its
            order; None where all states are kept. A structure has one, over its sites.
        solve: gives the posterior of a restricted model; what `Estimator.prepare` was given.
        replicates: how many choices of states there are.
        exact: whether all states are kept as they are.
        bound: ``"lower"`` where exact inference on what is kept bounds log Z below; else empty.
        equal: whether replicates that are possible have equal weights, and not those of their Z.
        restrict: the original on supports of this kind; None: by its sites, asked for again.
    """

    original: Model
    supports: tuple[Support | None, ...]
    solve: Callable[[Model], Any] = field(repr=False)
    replicates: int = field(default=1, kw_only=True)
    exact: bool = field(default=False, kw_only=True)
    bound: str = field(default="", kw_only=True)
    equal: bool = field(default=False, kw_only=True)
    restrict: Callable[[Supports], Model] | None = field(default=None, repr=False, kw_only=True)

    @differentiable_property
    def model(self) -> Model:
        """The model on the states kept, replicates its first batch dim: what is to be solved."""
        restrict = self.restrict or view_of(self.original, None).restrict
        return restrict(self.supports)

    @cached_property
    def layout(self) -> Layout:
        """Where the kept states stand."""
        return Layout(self.original, self.supports, self.replicates)

    def part(self, chosen: range) -> "Restriction":
        """The same of some of the replicates, which stand side by side."""
        lead, which = 1 + len(self.original.batch_shape), slice(chosen.start, chosen.stop)
        supports = [
            support
            if support is None or support.states.ndim <= lead + len(shape)  # of all replicates
            else Support(support.states[which], support.log_weights[which])
            for support, (shape, _) in zip(self.supports, self.layout.entries, strict=True)
        ]
        return replace(self, supports=tuple(supports), replicates=len(chosen))

    def solved(self) -> Solution:
        """The solution of the model on the states kept."""
        return self.solve(self.model).solution

    def __call__(self, solution: Solution) -> "KeptSolution":
        """What the solution of `model` says of the original."""
        return KeptSolution(self, solution)


@dataclass(frozen=True, eq=False)
class KeptSolution(Solution):
    """Answers about all states from the solution on those that were kept.

    What a state not kept has is probability zero. Marginals, expectations and samples are those
    of the replicates together, each in proportion to its Z; so all of them are ratios of
    estimates: consistent, and biased. The entropy is that of Fu, Cunningham and Lapata 2022,
    algorithm 3, on any model: log Z less the expected score without the log-weights.

    Attributes:
        kept: which states they are.
        inner: the solution of the model on those, (replicates, *batch).
    """

    kept: Restriction
    inner: Solution

    @differentiable_property
    def replicates(self) -> Replicates:
        """The estimates of Z."""
        return Replicates(self._split(self.inner.log_partition()), self.kept.equal)

    @property
    def _layout(self) -> Layout:
        return self.kept.layout

    def _split(self, values: Tensor) -> Tensor:
        """(replicates, B, ...) of (replicates * B, ...)."""
        return values.unflatten(0, (self.kept.replicates, self._layout.batch))

    def _merged(self, values: Tensor) -> Tensor:
        """(B, replicates * S') in the order of `_places`."""
        return values.transpose(0, 1).flatten(1)

    @property
    def _places(self) -> Tensor:
        return self._merged(self._layout.places)

    @differentiable_property
    def _marginals(self) -> Tensor:
        """(replicates, B, S') probabilities of the kept states."""
        return self._split(self.inner.variable_marginals())

    def status(self) -> Status:
        """That of the engine, and what the replicates say."""
        own, kept = self.inner.status(), self.kept
        exact = own.exact and kept.exact
        known = kept.replicates > 1 and not kept.equal and self._layout.batch > 0
        error, size = self.replicates.standard_error, self.replicates.effective_sample_size
        return replace(
            own,
            exact=exact,
            biased=not exact,
            bound=kept.bound if own.exact and not exact else own.bound if kept.exact else "",
            standard_error=float(error.amax()) if known else None,
            effective_sample_size=float(size.amin()) if known else None,
        )

    def log_partition(self) -> Tensor:
        """(B,) the log of the mean of the replicates' Z.

        Raises:
            UnsupportedError: replicates of equal weights, which estimate no Z.
        """
        return self.replicates.log_partition

    def log_partitions(self) -> Tensor:
        """(replicates, B)."""
        return self.replicates.log_partitions

    def _spread(self, values: Tensor) -> Tensor:
        """(B, S) of weighted values (replicates, B, S') of the kept states; else zero."""
        empty = values.new_zeros(self._layout.batch, self._layout.num_states)
        return empty.scatter_add(1, self._places, self._merged(values))

    def potentials(self) -> list[Tensor]:
        """Of each replicate a structure's on all states, weights added; -inf: not kept."""
        structure, states = self.kept.original, self._layout.num_states
        assert isinstance(structure, Structure)
        rows = torch.arange(self._layout.batch, device=structure.unary.device).unsqueeze(1) * states
        logs = [
            soft_scatter(weights.flatten(), (places + rows).flatten(), len(rows) * states)
            for weights, places in zip(self._layout.log_weights, self._layout.places, strict=True)
        ]
        return [structure.unary + own.reshape(structure.unary.shape) for own in logs]

    def variable_marginals(self) -> Tensor:
        """(B, S), zero where a state was not kept."""
        return self._spread(self._marginals * self.replicates.weights.unsqueeze(-1))

    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes), zero where a state was not kept; as large as the whole block's tables."""
        graph, restricted = self.kept.original, self.kept.model
        assert isinstance(graph, FactorGraph)
        assert isinstance(restricted, FactorGraph)
        wanted, batch = graph.blocks[block], self._layout.batch
        row_of = {number: row for row, number in enumerate(wanted.declared.tolist())}
        cells = math.prod(wanted.sizes)
        total: Tensor | None = None
        for number, part in enumerate(restricted.blocks):
            rows = [row_of.get(declared, -1) for declared in part.declared.tolist()]
            if not rows or rows[0] < 0:
                continue
            values = self._split(self.inner.factor_marginals(number)).flatten(3)
            values = self.replicates.weights.reshape(-1, batch, 1, 1) * values
            if total is None:
                total = values.new_zeros(batch, wanted.count * cells)
            place = torch.tensor(rows, device=values.device).reshape(1, 1, -1, 1)
            for slot, size in enumerate(wanted.sizes):
                states = self._layout.of(part.scopes[:, slot])
                place = (place.unsqueeze(-1) * size + states.unsqueeze(-2)).flatten(3)
            index = place.expand(values.shape).transpose(0, 1).flatten(1)
            total = total.scatter_add(1, index, values.transpose(0, 1).flatten(1))
        assert total is not None
        return total.reshape(batch, wanted.count, *wanted.sizes)

    def joint(self, numbers: Tensor, solve: Callable[[FactorGraph], Solution]) -> Tensor:
        """(B, *sizes) on the states kept."""
        graph = self.kept.original
        assert isinstance(graph, FactorGraph)
        graph = with_joint(graph, numbers, graph.num_factors)
        wider = replace(self.kept, original=graph, restrict=None)
        assert isinstance(wider.model, FactorGraph)
        return wider(solve(wider.model)).factor_marginals(len(graph.blocks) - 1).squeeze(1)

    def expected_score(self) -> Tensor:
        """(B,) of the potentials alone: the log-weights shape the distribution, not the score."""
        score = self._split(self.inner.expected_score())
        return self.replicates.mean(score - self._expected_weight)

    @property
    def _expected_weight(self) -> Tensor:
        """(replicates, B) the expectation of the summed log-weights."""
        weights = self._layout.log_weights
        if not self._weighted:
            return weights.new_zeros(weights.shape[:2])
        marginals = self._marginals
        return (torch.where(marginals > 0, weights, 0.0) * marginals).sum(-1)

    @property
    def _weighted(self) -> bool:
        """Whether any state stands for others too."""
        weights = self._layout.log_weights
        return bool(((weights != 0) & (weights > -math.inf)).any())

    def entropy(self) -> Tensor:
        """(B,) log Z less the expected score; of one replicate log Z cancels, and is not needed."""
        if self.kept.replicates > 1:
            return super().entropy()
        if self._weighted and isinstance(self.inner, StructureSolution):
            given = self.inner.entropy_over(self._layout.log_weights[0])
            if given is not None:
                return given
        return self._split(self.inner.entropy())[0] + self._expected_weight[0]

    @differentiable_property
    def _unweighted(self) -> Solution:
        """The solution on the same states, each counted as it is."""
        return replace(self.kept, supports=unweighted(self.kept.supports)).solved()

    @differentiable_property
    def _possible(self) -> "KeptSolution":
        """The same with every replicate possible; for those that were, the same states.

        Raises:
            ImpossibleEvidenceError: an item has no possible replicate.
        """
        possible = self.replicates.possible
        if bool(possible.all()):
            return self
        if not bool(possible.any(0).all()):
            raise ImpossibleEvidenceError(
                "There are no samples and no mode: on the states kept nothing is possible in at "
                "least one item; keep more of them, or change the model."
            )
        batch = (self.kept.replicates, *self.kept.original.batch_shape)
        supports = repaired(self.kept.supports, possible.reshape(batch))
        kept = replace(self.kept, supports=supports)
        return kept(kept.solved())

    def max_marginals(self) -> Tensor:
        """(B, S) over configurations of kept states: -inf where a state was not kept."""
        values = self._split(self._unweighted.max_marginals())
        empty = values.new_full((self._layout.batch, self._layout.num_states), -math.inf)
        return empty.scatter_reduce(1, self._places, self._merged(values), "amax")

    def mode(self) -> Tensor:
        """(B, V) the best configuration of states kept together in one replicate."""
        other = self._possible
        best = self._split(other._unweighted.max_marginals())
        best = torch.nn.functional.pad(best, (0, 1), value=-math.inf)  # of no variables, too
        modes = self._split(other._unweighted.mode()).unsqueeze(0)
        return other._original(modes, best.amax(-1).argmax(0).unsqueeze(0))[0]

    def possible(self) -> Tensor:
        """(B,) whether a replicate is."""
        return self.replicates.possible.any(0)

    def mode_is_consistent(self) -> Tensor:
        """(B,) False unless all states were kept: a state left out may be better."""
        if self.kept.exact:
            return self._split(self._unweighted.mode_is_consistent()).all(0)
        return torch.zeros(self._layout.batch, dtype=torch.bool)

    def mode_is_optimal(self) -> Tensor:
        """(B,) False unless all states were kept."""
        if self.kept.exact:
            return self._split(self._unweighted.mode_is_optimal()).all(0)
        return torch.zeros(self._layout.batch, dtype=torch.bool)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) draws: a replicate in proportion to its Z, then a configuration of it."""
        chosen, other = self.replicates.choose(count, generator), self._possible
        most = int(draws_before(chosen).amax()) + 1 if chosen.numel() else 0
        drawn = other.inner.sample(most, generator)
        return other._original(
            drawn.unflatten(1, (self.kept.replicates, self._layout.batch)), chosen
        )

    def rsample(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        """(B, S) of a replicate drawn in proportion to its Z; zero where a state was not kept."""
        places, weights = self._relaxed(temperature, generator, lambda layout: layout.places)
        empty = weights.new_zeros(self._layout.batch, self._layout.num_states)
        return empty.scatter_add(1, places, weights)

    def rsample_kept(
        self, temperature: float, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """`rsample` on the kept states alone: which they are, and their weights, (B, S') each."""
        return self._relaxed(temperature, generator, lambda layout: layout.states)

    def _relaxed(
        self,
        temperature: float,
        generator: torch.Generator | None,
        read: Callable[[Layout], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """What the layout says of the states of one replicate, and relaxed weights of those.

        Of a chain by Fu, Cunningham and Lapata 2022, algorithm 4, with the weights that it leaves
        out; of a graph by a stochastic softmax.
        """
        chosen, other = self.replicates.choose(1, generator), self._possible
        model = other.kept.model
        if isinstance(model, FactorGraph):
            perturbed = other.kept.solve(perturbed_graph(model, temperature, generator)).solution
            drawn = other._split(perturbed.variable_marginals())
        else:
            drawn = other._split(other.inner.rsample(temperature, generator))
        places = read(other._layout)
        index = chosen.to(places.device).unsqueeze(-1)
        return places.take_along_dim(index, 0)[0], drawn.take_along_dim(index, 0)[0]

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """Not available.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "Marginal MAP over sampled states has no estimate here; use estimator=Exact()."
        )

    def _original(self, states: Tensor, chosen: Tensor) -> Tensor:
        """(n, B, V) states by kept-state numbers (many, replicates, B, V), of replicates chosen.

        -1, of a site that is not used, stays. Of a structure whose potentials are not by site,
        (n, B, S) numbers of uses.
        """
        kept, layout = self._layout.states, self._layout
        starts = layout.starts(torch.arange(states.shape[-1])).to(kept.device)
        states, chosen = taken(states.to(kept.device), chosen), chosen.to(kept.device)
        batch = torch.arange(layout.batch, device=kept.device).reshape(1, -1, 1)
        drawn = kept[chosen.unsqueeze(-1), batch, states.clamp(min=0) + starts]
        return layout.used(torch.where(states < 0, states, drawn))
