"""Answers of a posterior, of a graph or a structure: by variable, with names and views too."""

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph._core.compiler import Opaque
from rdpgraph._core.notebook import bars, escape, panel, table
from rdpgraph._core.numbers import is_whole
from rdpgraph._core.portable import Portable, tensors_in
from rdpgraph._core.shards import are_same_values
from rdpgraph.engines.solution import Solution, Status
from rdpgraph.errors import (
    BudgetError,
    EvidenceError,
    ModelError,
    UnknownVariableError,
    UnsupportedError,
)
from rdpgraph.estimate.estimator import Model
from rdpgraph.logspace.gradients import possible_alone
from rdpgraph.model.domain import Domain, Entry, Named
from rdpgraph.model.frames import Labels, frame_of_joint, frame_of_states, frame_of_values
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import Variable, names_of
from rdpgraph.plan.plan import Plan, require_room

if TYPE_CHECKING:
    from rdpgraph.estimate.replicates import Replicates


class Answers(dict[Entry, Tensor]):
    """A tensor (*lead, *shape, ...) for every variable and array.

    A dictionary by `Variable` and `VariableArray`. A name, a member of an array or a view of one is
    a key too: ``answers["lung"]``, ``answers["pixel[0, 1]"]``, ``answers[pixels[1:]]``.
    """

    trailing = 0
    """Number of dims after those of an array: 1 where there is a number for each state."""

    def __init__(
        self, values: Mapping[Entry, Tensor], domain: Domain, labels: Labels | None = None
    ) -> None:
        super().__init__(values)
        self.domain, self.labels = domain, labels

    @classmethod
    def split(cls, flat: Tensor, graph: FactorGraph, *lead: int) -> Self:
        """The answers in a flat tensor (..., V) or (..., S) over all variables of a graph.

        ``lead`` are the dims before those of the batch.
        """
        domain = graph.domain
        shapes = [
            (*entry.shape, entry.size) if cls.trailing else entry.shape for entry in domain.entries
        ]
        flat = flat.reshape([*lead, *graph.batch_shape, flat.shape[-1]])
        # Outputs that are views for autograd take twice as long.
        split = flat.split_with_sizes if flat.requires_grad else flat.unsafe_split_with_sizes
        parts = split(list(map(math.prod, shapes)), -1)
        values = {
            entry: part if len(shape) == 1 else part.reshape([*flat.shape[:-1], *shape])
            for entry, part, shape in zip(domain.entries, parts, shapes, strict=True)
        }
        return cls(values, domain, graph.labels)

    if TYPE_CHECKING:

        def __getitem__(self, key: Named) -> Tensor: ...

    def __missing__(self, item: Named) -> Tensor:
        wanted = self.domain.numbers(item)
        entry = self.domain.entries[self.domain.place(item)]
        for key, value in self.items():
            array = self.domain.entries[self.domain.place(key)]
            if entry.name not in (key.name, array.name):
                continue
            held = self.domain.numbers(key)
            if torch.equal(held, wanted):
                return value
            if not bool(torch.isin(wanted, held).all()):
                continue
            ordered, order = held.reshape(-1).sort()
            places = order[torch.searchsorted(ordered, wanted)]
            lead = value.ndim - self.trailing - held.ndim
            flat = value.flatten(lead, lead + held.ndim - 1) if held.ndim else value.unsqueeze(lead)
            values = flat.index_select(lead, places.reshape(-1).to(flat.device))
            return values.unflatten(lead, wanted.shape) if wanted.ndim else values.squeeze(lead)
        name = item if isinstance(item, str) else item.name
        known = ", ".join(repr(key.name) for key in list(self)[:5])
        raise UnknownVariableError(f"These answers have no variable {name!r}; they have {known}.")

    def __contains__(self, item: object) -> bool:
        if super().__contains__(item):
            return True
        try:
            self.__missing__(item)  # pyright: ignore[reportArgumentType]
        except ModelError:
            return False
        return True

    def get(self, key: Any, default: Any = None) -> Any:
        """The answer for a variable, an array or a name; the default where there is none."""
        try:
            return self[key] if self.domain.knows(key) else default
        except UnknownVariableError:  # of the graph, but not among these answers
            return default

    def __reduce__(self) -> Any:
        return type(self), (dict(self), self.domain), self.__dict__

    def _repr_html_(self) -> str:
        """Rows with the state of an entry, a bar for each state, or the shape of its numbers."""
        rows: list[tuple[str, str]] = []
        for key, value in self.items():
            states = names_of(key.states) if isinstance(key, Variable) else ()
            html = f"numbers of shape {tuple(value.shape)}"
            if states and value.ndim == self.trailing:
                numbers = value.detach().reshape(-1).tolist()
                html = bars(numbers, states) if self.trailing else escape(str(states[numbers[0]]))
            rows.append((key.name, html))
        return table(type(self).__name__, rows)


class Information(Answers):
    """The mutual information of a variable with every variable, (*lead, *shape) nats."""

    def ranked(self) -> list[tuple[str, float]]:
        """Names of variables, members of arrays too, and their nats, the largest first.

        Raises:
            ModelError: batch items, each of which has an order of its own.
        """
        found: list[tuple[str, float]] = []
        for key, value in self.items():
            names = self.domain.numbers(key).reshape(-1).tolist()
            if value.numel() != len(names):
                raise ModelError(
                    "ranked needs one item; these answers have a batch of them: infer one row of "
                    "evidence, or sort the numbers of each."
                )
            pairs = zip(names, value.detach().reshape(-1).tolist(), strict=True)
            found += [(self.domain.variable(number).name, nats) for number, nats in pairs]
        return sorted(found, key=lambda pair: -pair[1])


class Assignment(Answers):
    """A state index for every variable: (*lead, *shape) int64.

    `FactorGraph.state_names` gives their names.

    Attributes:
        score: (*batch,) for a marginal mode, the log of its mass (nats, float64), unnormalised, the
            other variables summed; a lower bound where that sum does not fit. Else None.
        bound: (*batch,) for a marginal mode, an upper bound on all scores; else None.
        optimal: (*batch,) for a marginal mode, True where it is proved to be the best; else None.
    """

    score: Tensor | None = None
    bound: Tensor | None = None
    optimal: Tensor | None = None

    def to_frame(self) -> Any:
        """A pandas DataFrame: a row for each configuration, a column for each variable.

        Each member of an array is a column, such as ``"pixel[0, 1]"``. Named states are
        categories, others numbers. Leading dims (draws, batch) are one index level each. Evidence
        from a DataFrame gives its index to the batch, and its columns come first.
        `FactorGraph.condition` and `score` accept the frame.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        return frame_of_states(self, self.domain, self.labels)


class StateValues(Answers):
    """A number for every state of every variable: (*lead, *shape, states)."""

    trailing = 1

    def to_frame(self) -> Any:
        """A pandas DataFrame: a row for each variable and state, the index both of their names.

        One column ``"value"``; for a batch a column for each item, named by the index of the
        DataFrame that was the evidence.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        return frame_of_values(self, self.domain, self.labels)


class JointTable(Tensor):
    """The joint probabilities of a few variables: a tensor (*batch, *sizes), and its frame.

    Results of operations on it are plain tensors.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore
    scope: tuple[Variable, ...]
    labels: Labels | None

    @staticmethod
    def of(values: Tensor, scope: Iterable[Variable], labels: Labels | None) -> "JointTable":
        """A tensor with its variables."""
        joint = values.as_subclass(JointTable)
        joint.scope, joint.labels = tuple(scope), labels
        return joint

    def to_frame(self) -> Any:
        """A pandas DataFrame: a row for each joint state, with an index level for each variable.

        One column ``"value"``; for a batch a column for each item, named by the index of the
        DataFrame that was the evidence.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        return frame_of_joint(self, self.scope, self.labels)

    def __deepcopy__(self, memo: dict[int, Any]) -> "JointTable":
        return JointTable.of(copy.deepcopy(self.as_subclass(Tensor), memo), self.scope, self.labels)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return repr(self.as_subclass(Tensor))


class Bounds(NamedTuple):
    """Two tensors (*batch,) between which a number lies for certain."""

    lower: Tensor
    upper: Tensor


def checked_draws(count: int, generator: object, shape: Sequence[int]) -> int:
    """Check a count of draws and a generator, and that the draws fit into memory."""
    if not is_whole(count):
        raise EvidenceError(
            f"sample needs a count of draws, a whole number >= 0; got {count!r:.80}."
        )
    if generator is not None and not isinstance(generator, torch.Generator):
        raise EvidenceError(f"sample needs a torch.Generator, or none; got {generator!r:.80}.")
    require_room(8.0 * count * math.prod(shape), f"{count:,} draws")
    return int(count)


def information_of(joint: Tensor, owner: Tensor, count: int) -> Tensor:
    """(B, count) the mutual information of one variable with each of several, nats.

    The relative entropy of each joint from the product of its own two marginals. So it is not
    below zero where the joints are approximate and differ in their marginals, either.

    Args:
        joint: (B, K, S) the joints of the K states of the one with all states of the others.
        owner: (S,) the place among the others of the variable that has each of the states.
        count: the number of others.
    """
    rows = joint.new_zeros(*joint.shape[:2], count).index_add(2, owner, joint)
    apart = joint.sum(1, keepdim=True) * rows[..., owner]
    # Its terms are p log(p / q), zero where p is, without NaN in gradients.
    there = joint > 0
    ratio = torch.where(there, joint, 1.0) / torch.where(there, apart, 1.0)
    terms = torch.where(there, joint * ratio.log(), 0.0).sum(1)
    nats = joint.new_zeros(len(joint), count).index_add(1, owner, terms)
    return nats.clamp(min=0)  # rounding leaves -1e-17


_ANSWERS = {
    "log_partition": "log_partition", "bounds": "log_partition",
    "marginals": "variable_marginals", "marginal": "variable_marginals",
    "rsample": "variable_marginals", "factor_marginal": "factor_marginals",
    "joint": "factor_marginals", "mutual_information": "variable_marginals",
    "information_about": "variable_marginals", "entropy": "entropy",
    "max_marginals": "max_marginals", "mode": "mode", "sample": "sample",
}  # fmt: skip
"""Answers that have a status, and the question of `Solution` that stands for each."""

_EXACT_ROUTES = ("forest", "contraction", "structure")

_ZEROS = (
    "No configuration is possible in this model, or in some of its batch items: log Z is -inf "
    "there, and the zeros in place of marginals and entropy have no meaning."
)


@dataclass(frozen=True, eq=False)
class Inferred(Portable, Opaque, ABC):
    """Base of posteriors: the plan, log Z, and the quality of the answers.

    Batch items in which no configuration is possible have log Z -inf, with gradients of zero. Their
    marginals, joints and entropy are zeros, with a warning, and their max-marginals -inf. Modes and
    draws of such a batch are refused with `ImpossibleEvidenceError`, which names these items.

    A posterior belongs to the values that the tensors had when it was made: after a write to one of
    them log Z and marginals already computed stay, and other questions are refused with
    `ModelError`.

    Attributes:
        planned: the plan, or a function that makes it.
        solution: the answers in numbers, about the model as declared.
    """

    planned: Plan | Callable[[], Plan] = field(repr=False)
    solution: Solution = field(repr=False)

    def __reduce__(self) -> Any:
        # A plan that is made late is made of this model: the copy has no gradients, which decide
        # what it would plan.
        make, given, contents = super().__reduce__()
        return make, given, contents | {"planned": self.plan}

    def __post_init__(self) -> None:
        model: Any = self._declared
        blocks = model.blocks if isinstance(model, FactorGraph) else ()
        rest = tensors_in(model) if not isinstance(model, FactorGraph) else ()
        if isinstance(model, FactorGraph) and model.observed is not None:
            rest = (model.observed,)
        versions: list[tuple[Tensor, Tensor, int]] = []
        for block in blocks:
            versions += [(part, part.data, part._version) for part in block.watched]
            if block.copied:
                versions += [(part, part, was) for part, was in block.copied]
        for part in rest:
            if not part.is_inference():
                versions.append((part, part.data, part._version))
        vars(self)["_versions"] = versions

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
    @abstractmethod
    def _is_rewritten(self) -> bool:
        """True if an estimator made another model, which was solved in its place."""

    @property
    def _answers(self) -> Solution:
        """The solution, unless a tensor that it reads has changed."""
        for part, seen, version in vars(self).get("_versions", ()):  # copies have no versions
            if part._version != version or not are_same_values(seen, part):
                raise ModelError(
                    "A tensor of this model was changed in place, as by an optimizer, after its "
                    "posterior was made: ask infer(model) for another one, or ask this one before."
                )
        return self.solution

    @differentiable_property
    def _log_z(self) -> Tensor:
        if self._are_finite:
            return self._answers.log_partition()
        watched = (part for part, *_ in vars(self).get("_versions", ()))
        return possible_alone(self._answers.log_partition(), watched)

    @cached_property
    def _are_finite(self) -> bool:
        """Return whether log Z is finite in all items; an error where it is not from bad values.

        The model's log-values are read, once, if log Z is not finite. False too for an estimate
        that has no log Z.
        """
        with suppress(UnsupportedError):
            # The sum is not finite if any of them is not.
            if math.isfinite(self.solution.log_partition().detach().sum()):
                return True
            from rdpgraph.model.soundness import refuse_unsound

            refuse_unsound(self._declared)
        return False

    @cached_property
    def _told(self) -> bool:
        """True, after a warning if items are impossible and have zeros."""
        _ = self._are_finite
        with suppress(BudgetError, UnsupportedError):
            if not torch.compiler.is_compiling() and not bool(self.solution.possible().all()):
                warnings.warn(_ZEROS, stacklevel=2)
        return True

    def _with_word(self, values: Tensor) -> Tensor:
        """The numbers (B, ...) unchanged, after a warning about items that are all zero."""
        each = values.detach().flatten(1) if values.ndim > 1 else values.detach().unsqueeze(1)
        if values.numel() and not float(each.amax(1).amin()) > 0:
            _ = self._told
        return values

    def _warn_if_apart(self, name: str) -> None:
        """Warn of an answer that is approximate where the plan, and so `status`, is exact."""
        planned = self.planned  # not `plan`: that of a small graph, always exact, is made late
        exact = isinstance(planned, Plan) and planned.route in _EXACT_ROUTES
        if self._is_rewritten or not exact:
            return
        if torch.compiler.is_compiling() or self._answers.status_of(name).exact:
            return
        if self._answers.status_of("log_partition").exact:
            asked = next(answer for answer, known in _ANSWERS.items() if known == name)
            warnings.warn(
                f"{asked} is approximate here: exact inference does not fit for it, though it fits "
                f"for log Z. status_of({asked!r}) says more.",
                stacklevel=3,
            )

    @property
    def plan(self) -> Plan:
        """The plan of the model, or of what an estimator made of it."""
        return self.planned if isinstance(self.planned, Plan) else self.planned()

    @property
    def status(self) -> Status:
        """The exactness, convergence and bias of log Z and marginals, whatever was asked before.

        Both are computed for it, as far as that is needed to tell. `status_of` gives the status of
        any other answer, which may have been found in another way.
        """
        return self.solution.status()

    def status_of(self, answer: str) -> Status:
        """The exactness, convergence and bias of one answer.

        The answer, or one like it, is computed for it, as far as that is needed to tell. Of modes
        and marginal modes there are proofs: a mode is exact where `Posterior.mode_is_optimal` is
        True for every item, and a marginal mode has ``score``, ``bound`` and ``optimal``.

        Args:
            answer: the name of its method or property, such as ``"entropy"``.

        Raises:
            ModelError: there is no status of such an answer.

        Example:
            >>> import torch
            >>> import rdpgraph as rg
            >>> x = rg.VariableArray("x", (3,), 2)
            >>> graph = rg.FactorGraph([rg.FactorBlock((x[1:], x[:-1]), rg.Table(torch.eye(2)))])
            >>> rg.infer(graph).status_of("max_marginals").exact
            True
        """
        name = _ANSWERS.get(answer) if isinstance(answer, str) else None
        if name is None:
            raise ModelError(
                f"status_of needs the name of an answer, one of {', '.join(_ANSWERS)}; got "
                f"{answer!r:.80}."
            )
        return self._status_of(name)

    def _status_of(self, name: str) -> Status:
        return self._answers.status_of(name)

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
    def replicates(self) -> "Replicates":
        """The estimates of Z behind the answers: one, if no estimator made more."""
        from rdpgraph.estimate.replicates import Replicates

        logs = self.log_partitions
        if self._answers.status_of("log_partition").exact:
            return Replicates(logs, errors=torch.zeros_like(logs[0].detach()))
        errors = self._answers.log_partition_errors()
        if errors is None:
            return Replicates(logs)
        known = (errors, *self._answers.bounds())
        error, least, most = (values.reshape(self.batch_shape).to(logs) for values in known)
        return Replicates(logs, errors=error, bounds=(least, most))

    @property
    def log_partitions(self) -> Tensor:
        """(replicates, *batch) log Z of each replicate, nats."""
        logs = self._answers.log_partitions()
        return logs.reshape(len(logs), *self.batch_shape)

    @property
    def standard_error(self) -> Tensor:
        """(*batch,) of log Z, nats; 0 where log Z is exact, +inf where it is not known.

        Not known are the errors of message passing and of bounds, those of fewer than four
        replicates, and those of replicates that do not differ. Where nothing confirms an estimate
        of `MiniBuckets`, it is the distance to the farther bound.
        """
        return self.replicates.standard_error

    @property
    def effective_sample_size(self) -> Tensor:
        """(*batch,) the number of equal replicates with the same variance; 0 where Z is 0."""
        from rdpgraph.estimate.replicates import Replicates

        return Replicates(self.log_partitions).effective_sample_size
