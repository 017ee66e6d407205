"""The posterior of a factor graph solved on a few states of each variable."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rdpgraph._cache import cached_property, differentiable_property
from rdpgraph.engines.solution import Solution
from rdpgraph.engines.status import Status
from rdpgraph.errors import UnsupportedError
from rdpgraph.estimate.exact import Kept, Supports
from rdpgraph.estimate.layout import Layout
from rdpgraph.model.graph import FactorGraph
from rdpgraph.query.posterior import Posterior
from rdpgraph.query.replicates import Replicates, repaired, taken, turns, unweighted
from rdpgraph.query.unheld import with_joint


@dataclass(frozen=True, eq=False)
class EstimatedSolution(Solution):
    """Answers about all states from the solution on those that were kept.

    What a state not kept has is probability zero. Marginals, expectations and samples are those
    of the replicates together, each in proportion to its Z; so all of them are ratios of
    estimates: consistent, and biased.

    Attributes:
        graph: the model as declared.
        restricted: the model on the states kept, (replicates, *batch).
        inner: its solution.
        kept: which states they are.
        exact: whether all states were kept.
        solve: solves another restricted model.
    """

    graph: FactorGraph
    restricted: FactorGraph
    inner: Solution
    kept: Kept
    exact: bool
    solve: Callable[[FactorGraph], Solution]

    @differentiable_property
    def replicates(self) -> Replicates:
        """The estimates of Z."""
        flat = self.inner.log_partition().reshape(self.kept.replicates, self._batch)
        return Replicates(flat)

    @cached_property
    def layout(self) -> Layout:
        """Where the kept states stand."""
        return Layout(self.graph, self.kept)

    @property
    def _batch(self) -> int:
        return self.layout.batch

    def _merged(self, values: Tensor) -> Tensor:
        """(B, replicates * S') in the order of `_places`."""
        return values.transpose(0, 1).flatten(1)

    @property
    def _places(self) -> Tensor:
        return self._merged(self.layout.places)

    @differentiable_property
    def _marginals(self) -> Tensor:
        """(replicates, B, S') probabilities of the kept states."""
        flat = self.inner.variable_marginals()
        return flat.reshape(self.kept.replicates, self._batch, -1)

    def status(self) -> Status:
        """That of the engine, and what the replicates say."""
        own = self.inner.status()
        many = self.replicates.count > 1
        exact = own.exact and self.exact
        error, size = self.replicates.standard_error, self.replicates.effective_sample_size
        return replace(
            own,
            exact=exact,
            biased=not exact,
            bound=self.kept.bound if own.exact and not exact else own.bound if self.exact else "",
            standard_error=float(error.amax()) if many and len(error) else None,
            effective_sample_size=float(size.amin()) if many and len(size) else None,
        )

    def log_partition(self) -> Tensor:
        """(B,) the log of the mean of the replicates' Z."""
        return self.replicates.log_partition

    def variable_marginals(self) -> Tensor:
        """(B, S), zero where a state was not kept."""
        values = self._marginals * self.replicates.weights.unsqueeze(-1)
        empty = values.new_zeros(self._batch, self.layout.num_states)
        return empty.scatter_add(1, self._places, self._merged(values))

    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes), zero where a state was not kept; as large as the whole block's tables."""
        wanted = self.graph.blocks[block]
        row_of = {number: row for row, number in enumerate(wanted.declared.tolist())}
        cells = math.prod(wanted.sizes)
        total: Tensor | None = None
        for number, part in enumerate(self.restricted.blocks):
            rows = [row_of.get(declared, -1) for declared in part.declared.tolist()]
            if not rows or rows[0] < 0:
                continue
            values = self.inner.factor_marginals(number)
            values = values.reshape(self.kept.replicates, self._batch, len(rows), -1)
            values = self.replicates.weights.reshape(-1, self._batch, 1, 1) * values
            if total is None:
                total = values.new_zeros(self._batch, wanted.count * cells)
            place = torch.tensor(rows, device=values.device).reshape(1, 1, -1, 1)
            for slot, size in enumerate(wanted.sizes):
                states = self.layout.of(part.scopes[:, slot])
                place = (place.unsqueeze(-1) * size + states.unsqueeze(-2)).flatten(3)
            index = place.expand(values.shape).transpose(0, 1).flatten(1)
            total = total.scatter_add(1, index, values.transpose(0, 1).flatten(1))
        assert total is not None
        return total.reshape(self._batch, wanted.count, *wanted.sizes)

    def expected_score(self) -> Tensor:
        """(B,) of the potentials alone: the log-weights shape the distribution, not the score."""
        weights = self.layout.log_weights
        weighed = torch.where(self._marginals > 0, weights, 0.0) * self._marginals
        flat = self.inner.expected_score().reshape(self.kept.replicates, self._batch)
        return self.replicates.mean(flat - weighed.sum(-1))

    @differentiable_property
    def _unweighted(self) -> Solution:
        """The solution on the same states, each counted as it is."""
        return self._solved(unweighted(self.kept.supports))[1]

    def _solved(self, supports: Supports) -> tuple[FactorGraph, Solution]:
        graph = self.kept.restrict(supports)
        assert isinstance(graph, FactorGraph)
        return graph, self.solve(graph)

    @differentiable_property
    def _possible(self) -> "EstimatedSolution":
        """The same with every replicate possible; for those that were, the same states."""
        possible = self.replicates.log_partitions.detach() > -math.inf
        if bool(possible.all()):
            return self
        batch = (self.kept.replicates, *self.graph.batch_shape)
        kept = replace(self.kept, supports=repaired(self.kept.supports, possible.reshape(batch)))
        restricted, inner = self._solved(kept.supports)
        return replace(self, kept=kept, restricted=restricted, inner=inner)

    def max_marginals(self) -> Tensor:
        """(B, S) over configurations of kept states: -inf where a state was not kept."""
        flat = self._unweighted.max_marginals()
        values = flat.reshape(self.kept.replicates, self._batch, -1)
        empty = values.new_full((self._batch, self.layout.num_states), -math.inf)
        return empty.scatter_reduce(1, self._places, self._merged(values), "amax")

    def mode(self) -> Tensor:
        """(B, V) the best configuration of states kept together in one replicate."""
        other = self._possible
        best = other._unweighted.max_marginals().reshape(self.kept.replicates, self._batch, -1)
        modes = other._unweighted.mode().reshape(self.kept.replicates, self._batch, -1)
        best = torch.nn.functional.pad(best, (0, 1), value=-math.inf)  # of no variables, too
        chosen = best.amax(-1).argmax(0)
        return other._original(modes.unsqueeze(0), chosen.unsqueeze(0))[0]

    def mode_is_consistent(self) -> Tensor:
        """(B,) False unless all states were kept: a state left out may be better."""
        if self.exact:
            flat = self._unweighted.mode_is_consistent()
            return flat.reshape(self.kept.replicates, self._batch).all(0)
        return torch.zeros(self._batch, dtype=torch.bool)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) draws: a replicate in proportion to its Z, then a configuration of it."""
        chosen, other = self.replicates.choose(count, generator), self._possible
        most = int(turns(chosen).amax()) + 1 if chosen.numel() else 0
        drawn = other.inner.sample(most, generator)
        drawn = drawn.reshape(most, self.kept.replicates, self._batch, self.graph.num_variables)
        return other._original(drawn, chosen)

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """Not available.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "Marginal MAP over sampled states has no estimate here; use estimator=Exact()."
        )

    def _original(self, states: Tensor, chosen: Tensor) -> Tensor:
        """(n, B, V) states by kept-state numbers (many, replicates, B, V), of replicates chosen."""
        kept = self.layout.states
        starts = self.layout.starts(torch.arange(self.graph.num_variables))
        places = (states.to(kept.device) + starts.to(kept.device)).clamp(min=0)
        chosen = chosen.to(kept.device)
        batch = torch.arange(self._batch, device=kept.device).reshape(1, -1, 1)
        return kept[chosen.unsqueeze(-1), batch, taken(places, chosen)]


@dataclass(frozen=True, eq=False, repr=False)
class EstimatedPosterior(Posterior):
    """A posterior over all states from an estimate on a few of them.

    Z is unbiased where the engine is exact; log Z is too low on average, and what is a ratio of
    estimates (marginals, entropy, samples) is biased and consistent. A state that was not kept
    has probability zero. The entropy is that of Fu, Cunningham and Lapata 2022, algorithm 3, on
    any graph: log Z less the expected score without the log-weights.
    """

    solution: EstimatedSolution = field(repr=False)

    def _unheld(self, numbers: Tensor, solve: Callable[[FactorGraph], Solution]) -> Tensor:
        """On the states kept."""
        own = self.solution
        place = self.graph.num_factors + own.restricted.num_factors  # no other factor has it
        graph = with_joint(self.graph, numbers, place)
        restricted = with_joint(own.restricted, numbers, place)
        wider = replace(own, graph=graph, restricted=restricted, inner=solve(restricted))
        return wider.factor_marginals(len(graph.blocks) - 1)

    @cached_property
    def status(self) -> Status:
        """Whether the answers are exact, converged, biased, and how sure; runs what iterates."""
        return self.solution.status()

    @property
    def log_partitions(self) -> Tensor:
        """(replicates, *batch) log Z of each replicate, nats."""
        flat = self.solution.replicates.log_partitions
        return flat.reshape(-1, *self.graph.batch_shape)

    @property
    def standard_error(self) -> Tensor:
        """(*batch,) of log Z over the replicates, nats; +inf with one replicate."""
        return self.solution.replicates.standard_error.reshape(self.graph.batch_shape)

    @property
    def effective_sample_size(self) -> Tensor:
        """(*batch,) how many equal replicates they are worth."""
        return self.solution.replicates.effective_sample_size.reshape(self.graph.batch_shape)
