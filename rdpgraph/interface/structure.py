"""Structures: model types with special recursions, and the registry that recognises them."""

import importlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from rdpgraph._core.compiler import Opaque
from rdpgraph._core.notebook import panel, picture
from rdpgraph._core.numbers import lowest
from rdpgraph._core.portable import field_names, in_full_precision, tensors_in
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.logspace.gradients import by_autograd, expectations
from rdpgraph.model.graph import FactorGraph

if TYPE_CHECKING:
    from rdpgraph.interface.masks import Masks
    from rdpgraph.interface.sites import Sites

_WIDTH = 120  # characters shown of a value that is no tensor


def summary(value: Any) -> str:
    """The `repr` of a dataclass, with tensors as ``float32(3, 5, 2)``."""
    if isinstance(value, Tensor):
        shape = ", ".join(map(str, value.shape)) + ("," if value.ndim == 1 else "")
        dtype = str(value.dtype).removeprefix("torch.")
        place = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{dtype}({shape}){place}"
    if is_dataclass(value) and not isinstance(value, type):
        shown = [field.name for field in fields(value) if field.repr]
        parts = [f"{name}={summary(getattr(value, name))}" for name in shown]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, tuple | list) and value:
        first = summary(value[0])
        more = f", {len(value) - 1} more" if len(value) > 1 else ""
        return f"[{first}{more}]"
    text = repr(value)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


def _widened(settle: Callable[..., None] | None) -> Callable[..., None]:
    """A `__post_init__` that takes tensors of half precision as float32.

    Fields are converted before the class's own ``settle``, which compares fields and computes from
    them, and again after it, as it may have made tensors of arrays.
    """

    def widen(owner: Any, settled: Sequence[Any]) -> list[Any]:
        made: list[Any] = []
        for name, known in zip(field_names(type(owner)), settled, strict=True):
            given = full = getattr(owner, name)
            if given is not known and (full := in_full_precision(given)) is not given:
                object.__setattr__(owner, name, full)
            made.append(full)
        return made

    # The name is that of the method it becomes: `is_declared_by_user` looks through constructors.
    def __post_init__(self: Any, *initial: Any) -> None:
        settled = widen(self, [None] * len(field_names(type(self))))
        if settle is not None:
            settle(self, *map(in_full_precision, initial))
            widen(self, settled)

    return __post_init__


@dataclass(frozen=True, eq=False)
class Structure(Opaque, ABC):
    """A model type with a special recursion.

    It is declared by a user, or recognised in a graph by the registry. Sites are its variables in a
    fixed shape: `unary`, a field of the dataclass, holds a log-potential for every state of every
    site, (*batch, *sites, states), so that the default marginals are the gradient of log Z in it. A
    site that a batch item lacks has marginals of zero and the state -1; `factor_graph` holds it in
    state 0.

    Only `log_partition` must be implemented. Every other answer has a default; None leaves it to
    the general engine, on the `factor_graph`, if there is one. An overridden answer handles
    impossible items: marginals and entropy are zero, and a mode or sample raises
    `ImpossibleEvidenceError`.

    `rdpgraph.testing.check_structure` compares an implementation with its `factor_graph`, or with
    its `score` of every configuration. It takes batch items apart: a further tensor field with
    batch dims says how many dims follow them, as in ``field(metadata={"dims": 2})``.

    Fields of half precision become float32, and so do all answers: see `in_full_precision`.
    """

    unary: Tensor

    optional_sites: ClassVar[bool] = False
    """True if variables of `factor_graph` have one more state, the last, for an unused site."""

    least_use: ClassVar[int] = 0
    """The least state of a site that is used in a configuration."""

    why_no_graph: ClassVar[str] = ""
    """The reason why there is no `factor_graph`, as a clause, for the error that says so."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A dataclass keeps a __repr__ that the class defines; the generated one prints all tensors.
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = cls.__repr__
        made: Any = cls.__dict__.get("__post_init__")
        if made is not None or not hasattr(cls, "__post_init__"):
            setattr(cls, "__post_init__", _widened(made))  # noqa: B010

    def __repr__(self) -> str:
        return summary(self)

    def _repr_html_(self) -> str:
        """A summary, and the sites of the first item, where they are few."""
        shape = tuple(self.states_shape[len(self.batch_shape) :])
        if math.prod(shape) > 200:
            return panel(summary(self))
        sites = list(itertools.product(*map(range, shape)))
        names = {site: site[0] if len(site) == 1 else site for site in sites}
        places = {names[site]: self.place(site) for site in sites}
        pairs = self.joined(dict.fromkeys(sites, 0)) if len(shape) == 1 else ()
        return panel(
            summary(self),
            picture(
                {site: place for site, place in places.items() if place is not None},
                [(names[one], names[other]) for one, other in pairs],
            ),
        )

    @abstractmethod
    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats, differentiable in every potential."""

    def factor_graph(self) -> FactorGraph:
        """The same model as a general graph, its sites in one `VariableArray` named ``"site"``.

        Raises:
            UnsupportedError: this structure has no general form.
        """
        why = f", because {self.why_no_graph}" if self.why_no_graph else ""
        raise UnsupportedError(
            f"{type(self).__name__} has no factor graph{why}; ask the structure itself, as in "
            "infer(structure)."
        )

    def score(self, states: Tensor, /) -> Tensor:
        """(*lead, *batch) the score (nats) of configurations (*lead, *batch, *sites).

        -inf for what is no configuration. `check_structure` enumerates it if there is no graph.

        Raises:
            UnsupportedError: not implemented for this structure.
        """
        raise UnsupportedError(
            f"{type(self).__name__} does not score configurations; implement score()."
        )

    def log_prob(self, configuration: Any) -> Tensor:
        """(*lead, *batch) the log-probabilities (nats) of configurations, differentiable.

        The score less log Z; -inf where nothing is possible.

        Args:
            configuration: as for `score`.

        Raises:
            EvidenceError: as for `score`.
            UnsupportedError: this structure does not score configurations.
        """
        log_z, score = self.log_partition(), self.score(configuration)
        if lowest(log_z.detach()) > -math.inf:
            return score - log_z
        alive = log_z.detach() > -math.inf
        return torch.where(alive, score - torch.where(alive, log_z, 0.0), -math.inf)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The dims before the sites; the default computes log Z for its shape."""
        with torch.no_grad():
            return tuple(self.log_partition().shape)

    @property
    def states_shape(self) -> tuple[int, ...]:
        """(*batch, *sites): the shape of a configuration's states."""
        return tuple(self.unary.shape[:-1])

    def configuration(self, states: Tensor) -> Any:
        """The result of `mode` and `sample` made from states (*lead, *batch, *sites).

        Default: the states themselves. Estimators make their results by it.
        """
        return states

    def site_states(self, configuration: Any) -> Tensor:
        """(*lead, *batch, *sites) the states that `configuration` was made from."""
        return configuration

    def variable_states(self, configuration: Any) -> Tensor:
        """(*lead, *batch, *variables) the states of the variables of `factor_graph`.

        Default: those of the sites, with 0, or the last state, for a site in no state.
        """
        states = self.site_states(configuration)
        absent = self.unary.shape[-1] if self.optional_sites else 0
        return torch.where(states < 0, absent, states)

    def variable_values(self, values: Tensor, *, best: bool) -> Tensor:
        """(*batch, *variables, states) marginals of the variables from those of the sites.

        Args:
            values: (*batch, *sites, states) marginals, or max-marginals.
            best: whether they are max-marginals.
        """
        return values

    def uses(self, states: Tensor) -> Tensor:
        """(*lead, *batch, *sites, states) how often each state is used; marginals are the means.

        Given states (*lead, *batch, *sites) of configurations. Default: 0 or 1.
        """
        every = torch.arange(self.unary.shape[-1], device=states.device)
        return (states.unsqueeze(-1) == every).long()

    def place(self, site: tuple[int, ...]) -> tuple[float, float] | None:
        """The position where a site is drawn, by default on a line or in a grid; None: hidden."""
        return (float(sum(site[-1:])), -float(sum(site[:-1])))

    def joined(self, used: Mapping[tuple[int, ...], int]) -> list[tuple[Any, Any]]:
        """Return the pairs of sites that a configuration joins, for pictures.

        The default joins each used site with the next one.

        Args:
            used: the sites that it uses, in order, and their states.
        """
        return list(zip([*used], [*used][1:], strict=False))

    def listed(self) -> Tensor | None:
        """(C, *sites) all configurations of one item, possible or not, or None.

        `check_structure` scores them if there is no graph; None: all combinations of the sites'
        states and of no state.
        """
        return None

    @classmethod
    def recognise(cls, graph: FactorGraph) -> "Match | None":
        """The structure equal to a graph, or None, the default.

        Called for every graph, so it should reject others early.
        """
        return None

    @by_autograd
    def marginals(self) -> Tensor:
        """(*batch, *sites, states) probabilities: the gradient of log Z in the unary potentials.

        Differentiable if anything in the structure is.
        """
        log_z, (gradient,) = expectations(
            lambda unary: self.with_unary(unary).log_partition(),
            [self.unary],
            tracked=is_tracked(self),
        )
        return gradient.to(log_z.dtype)

    def entropy(self) -> Tensor | None:
        """(*batch,) nats, or None."""
        return None

    def entropy_over(self, log_base: Tensor) -> Tensor | None:
        """(*batch,) the entropy relative to a base measure, nats; None: there is no short cut.

        It is the entropy plus the expectation of the base's log-values, which estimators ask for
        states with weights. Where it is None they compute both terms.

        Args:
            log_base: (*batch, *sites, states), no gradient; where -inf, nothing is possible.
        """
        return None

    def max_marginals(self) -> Tensor | None:
        """(*batch, *sites, states) the largest score with each state (nats), or None."""
        return None

    def mode(self) -> Tensor | None:
        """(*batch, *sites) one most probable configuration, or None.

        Raises:
            ImpossibleEvidenceError: an item has none.
        """
        return None

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor | None:
        """(count, *batch, *sites) independent draws, or None.

        Raises:
            ImpossibleEvidenceError: an item has none.
        """
        return None

    def rsample(
        self, count: int, *, temperature: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """(count, *batch, *sites, states) relaxed one-hot draws, differentiable.

        Raises:
            UnsupportedError: this structure has none.
        """
        raise UnsupportedError(
            f"{type(self).__name__} has no relaxed samples; use sample(count), without gradient."
        )

    def work(self) -> float:
        """The multiply-adds of log Z, for the plan; 0.0 if unknown."""
        return 0.0

    def width(self) -> float | None:
        """The bits of its largest table, for the plan; None: that of two sites."""
        return None

    def with_unary(self, unary: Tensor) -> Self:
        """The same structure with other unary potentials."""
        return replace(self, unary=unary)

    def masks(self) -> "Masks":
        """The yes-or-no questions that `RandomizedPruning` masks the structure by.

        Raises:
            UnsupportedError: this structure has no masks.
        """
        raise UnsupportedError(
            f"{type(self).__name__} has no masks, which RandomizedPruning needs; Chain, "
            "SemiMarkov, Hypertree, Bitext and MixedBitext have, and so has a FactorGraph."
        )

    def site_places(self) -> Tensor | None:
        """(*sites, states) the index in a row of `unary` of each state of `sites`; -1: none.

        None: `unary` is by site. Otherwise, as with hyperedges, configurations count the uses of
        each entry, in `unary`'s shape.
        """
        return None

    def sites(self) -> "Sites | None":
        """Sites that estimators choose states of, and the structure on those; None: not supported.

        Example:
            >>> def sites(self):
            ...     return rg.extend.Sites(
            ...         self.unary, restrict=self.restrict, graph=self.factor_graph)
        """
        return None


@dataclass(frozen=True, eq=False)
class Match:
    """A recognised structure, or many of one shape that share no variables.

    Attributes:
        structure: the instance; many are one with further batch dims, (*batch, *many, *sites).
        numbers: (*many, *variables) the graph's number of each variable of the structure's
            `factor_graph`, usually one for each site; -1: none.
        states: (S,) for each state of a variable in the graph its number in the structure; None:
            the same.
    """

    structure: Structure
    numbers: Tensor
    states: Tensor | None = None


def is_tracked(value: object) -> bool:
    """Return whether a tensor, or one within a dataclass or tuple, requires a gradient."""
    return any(part.requires_grad for part in tensors_in(value))


@dataclass(frozen=True)
class BuiltInStructure:
    """A structure of the library in the registry, which is imported when a graph may be one.

    Attributes:
        place: the class, as "package.module:Class".
        may_be: a cheap test of a graph; False where `Structure.recognise` would return None.
    """

    place: str
    may_be: Callable[[FactorGraph], bool]

    def load(self) -> type[Structure]:
        """The class, imported by now."""
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(module), name)


class Registry:
    """The structures that graphs are matched against, in order of registration."""

    def __init__(self) -> None:
        self._known: dict[str, type[Structure] | BuiltInStructure] = {}
        self.has_own = False
        """True if a user has registered a structure, which is asked about every graph."""

    def add(self, structure: type[Structure]) -> None:
        """Register a structure.

        Raises:
            ModelError: it is no class of structures, or one of that name is registered already.
        """
        if not (isinstance(structure, type) and issubclass(structure, Structure)):
            raise ModelError(f"register needs a subclass of Structure; got {structure!r:.80}.")
        name = structure.__name__
        if name in self._known:
            raise ModelError(
                f"A structure named {name!r} is registered already; give yours another name."
            )
        self._known[name] = structure
        self.has_own = True

    def add_named(self, place: str, may_be: Callable[[FactorGraph], bool]) -> None:
        """Register a structure of the library by the place of its class (`BuiltInStructure`)."""
        self._known[place.partition(":")[2]] = BuiltInStructure(place, may_be)

    def remove(self, structure: type[Structure]) -> None:
        """Take a structure out again.

        Raises:
            ModelError: it is not registered.
        """
        name = getattr(structure, "__name__", repr(structure))
        known = self._known.get(name)
        if (known.load() if isinstance(known, BuiltInStructure) else known) is not structure:
            raise ModelError(f"There is no structure {name!r:.80} to remove: it is not registered.")
        del self._known[name]
        self.has_own = not all(isinstance(each, BuiltInStructure) for each in self._known.values())

    @property
    def known(self) -> Mapping[str, type[Any]]:
        """The registered structures by name; those that are not imported yet are imported."""
        return {
            name: each.load() if isinstance(each, BuiltInStructure) else each
            for name, each in self._known.items()
        }

    def recognise(self, graph: FactorGraph) -> Match | None:
        """Return the match of the first structure that recognises a graph; None if none does.

        Structures are asked in the order of their registration.
        """
        kept = _RECOGNISED.get()
        if kept is not None and kept and kept[0][0] is graph:
            return kept[0][1]
        match = None
        for each in self._known.values():
            if isinstance(each, BuiltInStructure):
                match = each.load().recognise(graph) if each.may_be(graph) else None
            else:
                match = each.recognise(graph)
            if match is not None:
                break
        if kept is not None:
            kept[:] = [(graph, match)]
        return match

    def remembering(self) -> "_Remembering":
        """Within this, a graph that was the last to be recognised is not recognised again.

        What was recognised is forgotten at the end, because tables may be written to.
        """
        return _Remembering()


class _Remembering:
    """The context of `Registry.remembering`."""

    def __enter__(self) -> None:
        self._token = _RECOGNISED.set([])

    def __exit__(self, *failure: object) -> None:
        _RECOGNISED.reset(self._token)


_RECOGNISED: ContextVar[list[tuple[FactorGraph, Match | None]] | None] = ContextVar(
    "recognised", default=None
)


REGISTRY = Registry()
