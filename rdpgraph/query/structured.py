"""The posterior of a structure that was declared as one."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from rdpgraph._cache import cached_property, differentiable_property
from rdpgraph._portable import Portable
from rdpgraph.engines.status import Status
from rdpgraph.errors import ModelError
from rdpgraph.model.domain import Entry, Named
from rdpgraph.model.soundness import refuse_unsound_fields, tensors_of
from rdpgraph.model.structure import Structure
from rdpgraph.model.summary import summary
from rdpgraph.model.variable import VariableArray
from rdpgraph.plan.plan import Plan
from rdpgraph.query.answers import checked_draws
from rdpgraph.query.posterior import Posterior


@dataclass(frozen=True, eq=False)
class StructuredPosterior(Portable):
    """The distribution over a structure's sites; tensors in its own shape instead of dictionaries.

    The structure answers; what it has no answer to is asked of the same model as a general graph.
    Sites that a batch item lacks have marginals zero, where the structure answers, and state -1.
    Pickled or deep-copied, it computes its answers anew, without gradients.

    Attributes:
        structure: the model.
        plan: how it is solved.
        status: whether the answers are exact.
        general: the posterior of its `factor_graph`.
    """

    structure: Structure
    plan: Plan
    status: Status
    general: "Lazy" = field(repr=False)

    def __repr__(self) -> str:
        return f"StructuredPosterior({summary(self.structure)}, {self.plan.why})"

    @differentiable_property
    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats.

        Raises:
            ModelError: NaN or +inf was written into a field, or its values overflow their type.
        """
        found = self.structure.log_partition()
        if not torch.compiler.is_compiling() and not bool(found.detach().isfinite().all()):
            refuse_unsound_fields(self.structure)
        return found

    @differentiable_property
    def _marginals(self) -> Tensor:
        self._require_numbers()
        return self.structure.marginals()

    def _require_numbers(self) -> None:
        """Refuse fields that hold none, read once: recursions for maxima would pass over a NaN."""
        _ = self._numbers

    @cached_property
    def _numbers(self) -> bool:
        if not torch.compiler.is_compiling():
            given = [getattr(self.structure, part.name) for part in fields(self.structure)]
            if any(p.numel() and not bool(p.amax() < math.inf) for p in tensors_of(given)):
                refuse_unsound_fields(self.structure)
        return True

    def marginals(self) -> Tensor:
        """(*batch, *sites, states) probabilities."""
        return self._marginals

    def joint(self, sites: Iterable[int | tuple[int, ...]]) -> Tensor:
        """(*batch, *sizes) the joint probabilities of a few sites, given by their positions.

        By the general engine, exactly, as `Posterior.joint`: one more site multiplies the cost by
        the number of its states. A site that an item lacks is in state 0 there.

        Args:
            sites: for a chain steps, as ``[0, 3]``; else tuples, as ``[(0, 1), (2, 2)]``.

        Raises:
            ModelError: no site, one named twice, or one that the structure does not have.
            BudgetError: the joint does not fit.
        """
        general = self.general()
        (entry,) = general.graph.variables
        found: list[Named] = []
        for site in sites:
            try:
                item = entry[site] if isinstance(entry, VariableArray) else entry
            except IndexError as error:
                raise ModelError(f"There is no site {site!r}. {error}") from None
            found.append(item)
        return general.joint(found)

    def entropy(self) -> Tensor:
        """(*batch,) entropy in nats; 0 where log Z is -inf."""
        self._require_numbers()
        own = self.structure.entropy()
        return self.general().entropy() if own is None else own

    def max_marginals(self) -> Tensor:
        """(*batch, *sites, states) the largest score with each state (nats, unnormalised)."""
        self._require_numbers()
        own = self.structure.max_marginals()
        return _only(self.general().max_marginals()) if own is None else own

    def mode(self) -> Any:
        """One most probable configuration: states (*batch, *sites), or what the structure has.

        A `SemiMarkov` has a `Segmentation`.

        Raises:
            ImpossibleEvidenceError: an item has none.
        """
        self._require_numbers()
        own = self.structure.mode()
        return _only(self.general().mode()) if own is None else own

    def sample(self, count: int, generator: torch.Generator | None = None) -> Any:
        """Independent draws: states (count, *batch, *sites), or what the structure's mode has.

        Raises:
            ImpossibleEvidenceError: an item has no configuration.
        """
        checked_draws(count, generator)
        self._require_numbers()
        own = self.structure.sample(count, generator)
        if own is None:
            return _only(self.general().sample(count, generator=generator))
        return own

    def rsample(self, *, temperature: float, generator: torch.Generator | None = None) -> Tensor:
        """(*batch, *sites, states): one relaxed one-hot draw, differentiable in the potentials.

        Raises:
            UnsupportedError: the structure has none.
        """
        return self.structure.rsample(1, temperature=temperature, generator=generator)[0]


@dataclass(frozen=True, eq=False)
class Lazy:
    """The general posterior of a structure, solved when first asked for."""

    solve: Callable[[], object]

    @differentiable_property
    def _posterior(self) -> Posterior:
        answer = self.solve()
        assert isinstance(answer, Posterior)
        return answer

    def __call__(self) -> Posterior:
        """The posterior."""
        return self._posterior


def _only(answers: dict[Entry, Tensor]) -> Tensor:
    (value,) = answers.values()
    return value
