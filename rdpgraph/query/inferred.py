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
    """How a model was solved, its log Z, and how good the answers are.

    Batch items in which no configuration is possible have log Z -inf, with gradients of zero. Their
    marginals, joints and entropy are zeros, with a warning, and their max-marginals -inf. Modes and
    draws of such a batch are refused with `ImpossibleEvidenceError`, which names these items.

    A posterior is that of the tensors as they were: log Z and marginals that were asked for stay
    after a write to one of them, and other questions are refused with `ModelError`.

    Attributes:
        planned: the plan, or what makes it.
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
        return panel(f"{self!r}\n{self.plan}")  # what is known without an answer

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
        """The solution, unless what it would read is no longer what it has read."""
        for part, seen, version in vars(self).get("_versions", ()):  # a copy has none
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
        """True, or an error: the model's log-values are read, once, if log Z is not finite."""
        with suppress(UnsupportedError):  # draws of equal weights have no log Z
            if not bool(self.solution.log_partition().detach().isfinite().all()):
                refuse_unsound(self._declared)
        return True

    @cached_property
    def _told(self) -> bool:
        """True, after a warning if items have zeros because nothing is possible in them."""
        _ = self._sound
        with suppress(BudgetError, UnsupportedError):
            if not torch.compiler.is_compiling() and not bool(self.solution.possible().all()):
                warnings.warn(_ZEROS, stacklevel=2)
        return True

    def _with_word(self, values: Tensor) -> Tensor:
        """The numbers (B, ...) of items as they are, after a word on zeros throughout an item."""
        each = values.detach().flatten(1) if values.ndim > 1 else values.detach().unsqueeze(1)
        if values.numel() and not bool((each != 0).any(1).all()):
            _ = self._told
        return values

    @property
    def plan(self) -> Plan:
        """How the model, or what an estimator made of it, is solved."""
        return self.planned if isinstance(self.planned, Plan) else self.planned()

    @property
    def status(self) -> Status:
        """Whether the answers are exact, converged or biased, and how sure they are.

        Messages that were not sent before are sent for it. It is about the answers so far: where
        the time ended the search for a mode, it says so from then on.
        """
        return self.solution.status()

    @property
    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats: the log-mass of the evidence; -inf where it is impossible.

        The log of the mean Z of replicates, where there are any: unbiased for Z where the engine is
        exact, and too low on average for log Z.

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

        It says nothing of the error of message passing.
        """
        deviation = self.replicates.standard_error
        known = self._answers.log_partition_errors()
        if known is not None:
            deviation = known.reshape(self.batch_shape).to(deviation)
        return torch.zeros_like(deviation) if self.status.exact else deviation

    @property
    def effective_sample_size(self) -> Tensor:
        """(*batch,) how many equal replicates they are worth; 0 where Z is 0."""
        return self.replicates.effective_sample_size
