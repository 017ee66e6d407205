"""The posterior of a structure solved on a few states of each site."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from rdpgraph._cache import cached_property, differentiable_property
from rdpgraph._portable import Portable
from rdpgraph.engines.status import Status
from rdpgraph.errors import ImpossibleEvidenceError, UnsupportedError
from rdpgraph.estimate.exact import Kept, Model
from rdpgraph.model.structure import Structure
from rdpgraph.model.summary import summary
from rdpgraph.model.support import Support
from rdpgraph.plan.plan import Plan
from rdpgraph.query.answers import checked_draws
from rdpgraph.query.replicates import Replicates, repaired, taken, turns, unweighted
from rdpgraph.query.structured import StructuredPosterior


@dataclass(frozen=True, eq=False)
class EstimatedStructuredPosterior(Portable):
    """The distribution over all states of a structure's sites, from an estimate on a few of them.

    Z is unbiased; log Z is too low on average, and what is a ratio of estimates (marginals,
    entropy, samples) is biased and consistent. A state that was not kept has probability zero.
    Pickled or deep-copied, it keeps the states chosen, and has no gradients.

    Attributes:
        kept: the structure as declared, and which states were kept.
        inner: the posterior of the structure on those, (replicates, *batch).
        solve: the posterior of another restricted structure.
    """

    kept: Kept
    inner: StructuredPosterior
    solve: Callable[[Model], StructuredPosterior] = field(repr=False)

    def __repr__(self) -> str:
        return f"EstimatedStructuredPosterior({summary(self.structure)}, solved as {self.inner!r})"

    @differentiable_property
    def replicates(self) -> Replicates:
        """The estimates of Z."""
        return Replicates(self.inner.log_partition)

    @property
    def structure(self) -> Structure:
        """The structure as declared."""
        assert isinstance(self.kept.original, Structure)
        return self.kept.original

    @property
    def plan(self) -> Plan:
        """How it is solved."""
        return self.inner.plan

    @cached_property
    def status(self) -> Status:
        """Whether the answers are exact, and how sure."""
        own = self.inner.status
        many = self.replicates.count > 1 and self.log_partition.numel() > 0
        return replace(
            own,
            biased=not own.exact,
            bound="" if own.exact else self.kept.bound,
            standard_error=float(self.standard_error.amax()) if many else None,
            effective_sample_size=float(self.effective_sample_size.amin()) if many else None,
        )

    @property
    def log_partition(self) -> Tensor:
        """(*batch,) the log of the mean Z of the replicates, nats; too low on average."""
        return self.replicates.log_partition

    @property
    def log_partitions(self) -> Tensor:
        """(replicates, *batch) log Z of each replicate, nats."""
        return self.replicates.log_partitions

    @property
    def standard_error(self) -> Tensor:
        """(*batch,) of log Z over the replicates, nats; +inf with one replicate."""
        return self.replicates.standard_error

    @property
    def effective_sample_size(self) -> Tensor:
        """(*batch,) how many equal replicates they are worth."""
        return self.replicates.effective_sample_size

    @property
    def supports(self) -> Support:
        """(replicates, *batch, *sites, kept) the states kept and their log-weights."""
        (support,) = self.kept.supports
        assert support is not None
        return support

    @differentiable_property
    def _marginals(self) -> Tensor:
        return self.inner.marginals()

    def marginals(self) -> Tensor:
        """(*batch, *sites, states) probabilities, zero where a state was not kept."""
        return self.replicates.mean_over_states(
            self._marginals, self.supports.states, self.structure.unary.shape[-1]
        )

    def joint(self, sites: object) -> NoReturn:
        """Not available.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "Joints of sites on sampled states have no estimate here; use estimator=Exact(), or "
            "infer(structure.factor_graph(), estimator=...).joint(...)."
        )

    def entropy(self) -> Tensor:
        """(*batch,) entropy in nats; 0 where log Z is -inf.

        Log Z less the expected score without the log-weights, which shape the distribution and
        are no part of the score: Fu, Cunningham and Lapata 2022, algorithm 3.
        """
        log_z = self.inner.log_partition
        possible = log_z.detach() > -math.inf
        score = torch.where(possible, log_z, 0.0) - self.inner.entropy()
        marginals = self._marginals
        weights = torch.where(marginals > 0, self.supports.log_weights, 0.0)
        weighed = (weights * marginals).flatten(log_z.ndim).sum(-1)
        total = self.log_partition
        alive = total.detach() > -math.inf
        expected = self.replicates.mean(score - weighed)
        return torch.where(alive, torch.where(alive, total, 0.0) - expected, 0.0)

    @differentiable_property
    def _possible(self) -> "EstimatedStructuredPosterior":
        """The same with every replicate possible; for those that were, the same states.

        Raises:
            ImpossibleEvidenceError: an item has no possible replicate.
        """
        possible = self.inner.log_partition.detach() > -math.inf
        if not bool(possible.any(0).all()):
            raise ImpossibleEvidenceError(
                "There are no samples and no mode: on the states kept nothing is possible in at "
                "least one item; keep more of them, or mend the model."
            )
        if bool(possible.all()):
            return self
        kept = replace(self.kept, supports=repaired(self.kept.supports, possible))
        return replace(self, kept=kept, inner=self.solve(kept.restrict(kept.supports)))

    @differentiable_property
    def _unweighted(self) -> StructuredPosterior:
        return self.solve(self.kept.restrict(unweighted(self.kept.supports)))

    def max_marginals(self) -> Tensor:
        """(*batch, *sites, states) over sequences of kept states; -inf where one was not kept."""
        values, states = self._unweighted.max_marginals(), self.supports.states
        whole = (*values.shape[:-1], self.structure.unary.shape[-1])
        empty = values.new_full(whole, -math.inf)
        return empty.scatter_reduce(-1, states.expand(values.shape), values, "amax").amax(0)

    def mode(self) -> Any:
        """(*batch, *sites) the best configuration of states kept together in one replicate.

        Of the type that the structure's own mode has.

        Raises:
            ImpossibleEvidenceError: an item has none.
        """
        other = self._possible
        modes = other._unweighted.mode()
        best = other._unweighted.max_marginals().flatten(other.inner.log_partition.ndim)
        best = torch.nn.functional.pad(best, (0, 1), value=-math.inf)  # of no sites, too
        states = other._original(modes.unsqueeze(0), best.amax(-1).argmax(0).unsqueeze(0))[0]
        return self.structure.configuration(states)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Any:
        """(count, *batch, *sites) draws: a replicate in proportion to its Z, then a draw of it.

        Of the type that the structure's own draws have.

        Raises:
            ImpossibleEvidenceError: an item has none.
        """
        checked_draws(count, generator)
        other = self._possible
        chosen = self.replicates.choose(count, generator)
        most = int(turns(chosen).amax()) + 1 if chosen.numel() else 0
        states = other._original(other.inner.sample(most, generator=generator), chosen)
        return self.structure.configuration(states)

    def rsample(self, *, temperature: float, generator: torch.Generator | None = None) -> Tensor:
        """(*batch, *sites, states): one relaxed one-hot draw, zero where a state was not kept.

        From one replicate, drawn in proportion to its Z; differentiable in the potentials of its
        states. Fu, Cunningham and Lapata 2022, algorithm 4, with the weights that it leaves out.

        Raises:
            ImpossibleEvidenceError: an item has none.
            UnsupportedError: the structure has no relaxed samples.
        """
        other = self._possible
        chosen = self.replicates.choose(1, generator)
        drawn = other.inner.rsample(temperature=temperature, generator=generator)
        values = _at(drawn, chosen)[0]
        states = _at(other.supports.states.expand(drawn.shape), chosen)[0]
        empty = values.new_zeros(*values.shape[:-1], self.structure.unary.shape[-1])
        return empty.scatter_add(-1, states, values)

    def _original(self, states: Tensor, chosen: Tensor) -> Tensor:
        """(n, *batch, *sites) from numbers (many, replicates, *batch, *sites); -1 stays."""
        kept = self.supports.states.unsqueeze(0)
        found = kept.expand(*states.shape, -1).gather(-1, states.clamp(min=0).unsqueeze(-1))
        return taken(torch.where(states < 0, states, found.squeeze(-1)), chosen)


def _at(values: Tensor, chosen: Tensor) -> Tensor:
    """(n, *batch, ...): of (replicates, *batch, ...) values those of the replicates chosen."""
    index = chosen.reshape(*chosen.shape, *(1,) * (values.ndim - chosen.ndim))
    return values.take_along_dim(index, 0)
