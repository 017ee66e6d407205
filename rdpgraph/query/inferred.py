"""Answers that every posterior gives, of a graph and of a structure alike."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph._core.compiler import Opaque
from rdpgraph._core.notebook import panel
from rdpgraph._core.portable import Portable, tensors_in
from rdpgraph.engines.solution import Solution, Status
from rdpgraph.errors import BudgetError, ModelError, UnsupportedError
from rdpgraph.estimate.estimator import Model
from rdpgraph.estimate.replicates import Replicates
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.soundness import refuse_unsound
from rdpgraph.plan.plan import Plan

_ZEROS = (
    "No configuration is possible in this model, or in some of its batch items: log Z is -inf "
    "there, and marginals and entropy are zeros that say nothing."
)


@dataclass(frozen=True, eq=False)
class Inferred(Portable, Opaque, ABC):
    """Base of posteriors: the plan, log Z, and the quality of the answers.

    Batch items in which no configuration is possible have log Z -inf, with gradients of zero. Their
    marginals, joints and entropy are zeros, with a warning, and their max-marginals -inf. Modes and
    draws of such a batch are refused with `ImpossibleEvidenceError`, which names these items.

    A posterior is that of the tensors at the time: after a write to one of them log Z and marginals
    already computed stay, and other questions are refused with `ModelError`.

    Attributes:
        planned: the plan, or a function that makes it.
        solution: the answers in numbers, about the model as declared.
    """

    planned: Plan | Callable[[], Plan] = field(repr=False)
    solution: Solution = field(repr=False)

    def __post_init__(self) -> None:
        model: Any = self._declared
        read = (model.blocks, model.observed) if isinstance(model, FactorGraph) else model
        parts = [part for part in tensors_in(read) if not part.is_inference()]
        vars(self)["_versions"] = [(part, part.detach(), part._version) for part in parts]

    def _repr_html_(self) -> str:
        return panel(f"{self!r}\n{self.plan}")  # without computing an answer

    @property
    @abstractmethod
    def batch_shape(self) -> tuple[int, ...]:
        """The batch dims of the model."""

    @property
    @abstractmethod
    def _declared(self) -> Model:
        """The model as declared."""

    @property
    def _answers(self) -> Solution:
        """The solution, unless a tensor that it reads has changed."""
        for part, seen, version in vars(self).get("_versions", ()):  # copies have no versions
            if part._version != version or not seen.is_set_to(part):
                raise ModelError(
                    "A tensor of this model was changed in place, as by an optimizer, after its "
                    "posterior was made: ask infer(model) for another one, or ask this one before."
                )
        return self.solution

    @differentiable_property
    def _log_z(self) -> Tensor:
        _ = self._sound
        return self._answers.log_partition()

    @cached_property
    def _sound(self) -> bool:
        """True, or an error: reads the model's log-values, once, if log Z is not finite."""
        with suppress(UnsupportedError):  # some estimates have no log Z
            if not bool(self.solution.log_partition().detach().isfinite().all()):
                refuse_unsound(self._declared)
        return True

    @cached_property
    def _told(self) -> bool:
        """True, after a warning if items are impossible and have zeros."""
        _ = self._sound
        with suppress(BudgetError, UnsupportedError):
            if not torch.compiler.is_compiling() and not bool(self.solution.possible().all()):
                warnings.warn(_ZEROS, stacklevel=2)
        return True

    def _with_word(self, values: Tensor) -> Tensor:
        """The numbers (B, ...) unchanged, after a warning about items that are all zero."""
        each = values.detach().flatten(1) if values.ndim > 1 else values.detach().unsqueeze(1)
        if values.numel() and not bool((each != 0).any(1).all()):
            _ = self._told
        return values

    @property
    def plan(self) -> Plan:
        """The plan of the model, or of what an estimator made of it."""
        return self.planned if isinstance(self.planned, Plan) else self.planned()

    @property
    def status(self) -> Status:
        """The exactness, convergence and bias of the answers so far.

        Messages are run for it if they have not been. If time ends a search for a mode, later
        statuses say so.
        """
        return self.solution.status()

    @property
    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats: the log-mass of the evidence; -inf where it is impossible.

        With replicates the log of their mean Z: unbiased for Z where the engine is exact, and too
        low on average for log Z.

        Raises:
            ModelError: NaN or +inf was written into a table, or its values overflow their type.
        """
        return self._log_z.reshape(self.batch_shape)

    @property
    def replicates(self) -> Replicates:
        """The estimates of Z behind the answers: one, if no estimator made more."""
        return Replicates(self._answers.log_partitions().reshape(-1, *self.batch_shape))

    @property
    def log_partitions(self) -> Tensor:
        """(replicates, *batch) log Z of each replicate, nats."""
        return self.replicates.log_partitions

    @property
    def standard_error(self) -> Tensor:
        """(*batch,) of log Z over the replicates, nats; +inf with one; 0 where `status` is exact.

        The error of message passing is not included.
        """
        deviation = self.replicates.standard_error
        known = self._answers.log_partition_errors()
        if known is not None:
            deviation = known.reshape(self.batch_shape).to(deviation)
        return torch.zeros_like(deviation) if self.status.exact else deviation

    @property
    def effective_sample_size(self) -> Tensor:
        """(*batch,) the number of equal replicates with the same variance; 0 where Z is 0."""
        return self.replicates.effective_sample_size
