"""Values that steps of a tape make, over places and labels; views of them; sites."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property, remembered
from rdpgraph.errors import ModelError


@dataclass(frozen=True, eq=False)
class Labels:
    """The meaning of a value's columns; two values agree if they hold the same object."""

    # (P,) the numbers of the sites whose states they are; None: of no site, as ranks, which always
    # agree.
    sites: Tensor | None = None
    states: Tensor | None = None  # (B, P, K) the states, where not all are kept


@dataclass(frozen=True, eq=False)
class Value:
    """The value of a step: for each item, place and label the log-sum of its derivations.

    Attributes:
        number: of the step.
        places: P.
        width: K, the number of labels; 1 where nothing is distinguished.
        labels: their meaning.
    """

    number: int
    places: int
    width: int
    labels: Labels = field(default_factory=Labels)


@dataclass(frozen=True, eq=False)
class View:
    """Places of earlier values for each place of a new one: (B, M, P, K).

    Attributes:
        pool: values of one width, their places concatenated.
        index: (M, P) or (B, M, P) places in the pool, the M alternatives of each place; the
            size of the pool stands for none, -inf. None: all places of the pool, in order.
        as_alternatives: whether, without an index, all places are the alternatives of one.
        parts: M > 1, where the labels of one place are those of M alternatives in turn.
        size: the number of places of the pool.
        ways: M, the number of alternatives of each place.
        places: P, the number of places.
        width: K, the number of labels.
        varies: whether each item has places of its own.
    """

    pool: tuple[Value, ...]
    index: Tensor | None = None
    as_alternatives: bool = field(default=False, kw_only=True)
    parts: int = field(default=1, kw_only=True)
    size: int = field(init=False, repr=False)
    ways: int = field(init=False, repr=False)
    places: int = field(init=False, repr=False)
    width: int = field(init=False, repr=False)
    varies: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size, width = sum([value.places for value in self.pool]), 0
        if self.pool:
            width = self.pool[0].width // self.parts
        if self.index is None:
            ways, places, varies = self.parts, size, False
            if self.as_alternatives:
                ways, places = size, 1
        else:
            shape = self.index.shape
            ways, places, varies = self.parts * shape[-2], shape[-1], len(shape) > 2
        vars(self).update(size=size, ways=ways, places=places, width=width, varies=varies)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The steps whose values are in the pool."""
        return tuple([value.number for value in self.pool])

    @property
    def flat(self) -> "View":
        """The alternatives of all places as M P places."""
        if self.index is None:
            return View(self.pool)
        return View(self.pool, self.index.flatten(-2).unsqueeze(-2))

    @property
    def whole(self) -> bool:
        """Return whether the view is all of one value."""
        return self.index is None and len(self.pool) == 1

    @property
    def labels(self) -> Labels:
        """The meaning of the columns; with M > 1, as if there were M P places."""
        first = self.pool[0].labels
        return first if self.whole or first.sites is None else Labels(self.sites, self.states)

    @cached_property
    def sites(self) -> Tensor | None:
        """(M P,) or (B, M P) the sites of `labels`."""
        first = self.pool[0].labels.sites
        if self.whole or first is None:
            return first
        parts = [_sites(value) for value in self.pool]
        sites = torch.cat(parts) if len(parts) > 1 else parts[0]
        if self.index is None:
            return sites
        return sites[self.index.clamp(max=len(sites) - 1).flatten(-2)]

    @property
    def states(self) -> Tensor | None:
        """(B, M P, K) the states of `labels`, if not all are kept."""
        if self.whole or self.pool[0].labels.states is None:
            return self.pool[0].labels.states
        states = torch.cat([_states(value) for value in self.pool], 1)
        if self.index is None:
            return states
        flat = self.index.clamp(max=states.shape[1] - 1).flatten(-2)
        if flat.ndim == 1:
            return states.index_select(1, flat)
        item = torch.arange(states.shape[0], device=flat.device).unsqueeze(1)
        return states[item, flat]

    def number(self, ways: Tensor, item: Tensor, place: Tensor) -> Tensor:
        """(Q,) places in the pool of alternatives of places of items."""
        if self.index is None:
            return (
                (ways if self.as_alternatives else place)
                if self.size > 1
                else torch.zeros_like(place)
            )
        many, places = self.index.shape[-2:]
        place = place if places > 1 else torch.zeros_like(place)
        ways = ways if many > 1 else torch.zeros_like(ways)
        if self.index.ndim == 2:
            return self.index[ways, place]
        return self.index[item if len(self.index) > 1 else item * 0, ways, place]

    def label(self, ways: Tensor, label: Tensor) -> Tensor:
        """The labels in the pool of labels of alternatives."""
        label = label if self.width > 1 else label * 0
        return label + ways * self.width if self.parts > 1 else label


def _sites(value: Value) -> Tensor:
    assert value.labels.sites is not None
    return value.labels.sites.expand(value.places)


def _states(value: Value) -> Tensor:
    assert value.labels.states is not None
    return value.labels.states


Given = Value | View
Way = Given | tuple[Given, ...]


def as_view(given: Given) -> View:
    """A value as a view of all of it; `ModelError` for anything else."""
    if isinstance(given, View):
        return given
    if not isinstance(given, Value):
        raise ModelError(
            "Steps of a tape take its values, and views of them; got "
            f"{type(given).__name__}. Tape.leaf makes a value of a tensor."
        )
    return View((given,))


def mapped(view: View, step: Callable[[Value], Value]) -> View:
    """The same places of the values that a step makes of each value."""
    pool = tuple([step(value) for value in view.pool])
    return replace(view, pool=pool)


def some_places(pool: Value | View | Sequence[Value], index: Tensor) -> View:
    """Places of one or more values, concatenated; see `Tape.view`.

    Raises:
        ModelError: a view, values of different widths, or a missing place.
    """
    values = (pool,) if isinstance(pool, Value) else () if isinstance(pool, View) else tuple(pool)
    if isinstance(pool, View) or not all(isinstance(value, Value) for value in values):
        raise ModelError(
            "Tape.view needs values: tape.total(view) makes one of alternatives over the same "
            "labels, and tape.merge(view) over the states of different sites."
        )
    if len({value.width for value in values}) != 1:
        raise ModelError("Tape.view needs values with equally many labels; sum them out first.")
    if index.ndim not in (1, 2, 3) or index.dtype not in (torch.int64, torch.int32):
        raise ModelError(
            "Tape.view needs numbers of places, (P,), (M, P) or (B, M, P); got a tensor of "
            f"{index.dtype} and shape {tuple(index.shape)}."
        )
    index = index.unsqueeze(0) if index.ndim == 1 else index
    size = sum(value.places for value in values)
    # Checking on a GPU would wait for it.
    if index.numel() and not index.is_cuda and bool((index >= size).any()):
        raise ModelError(f"Tape.view of {size} places has no place {int(index.max())}.")
    return View(values, torch.where(index < 0, size, index))


def one_of_each(values: tuple[Value, ...], which: Tensor | None) -> View:
    """Places as the alternatives of one; see `Tape.as_alternatives`."""
    if not values or not all(isinstance(value, Value) for value in values):
        raise ModelError(
            "Tape.as_alternatives needs values, one at least; tape.total(view) makes one."
        )
    sizes = [value.places for value in values]
    if which is None or max(sizes) == 1:
        return View(values, as_alternatives=True)
    starts = torch.tensor([0, *accumulate(sizes[:-1])], device=which.device)
    index = starts + which.clamp(max=torch.tensor(sizes, device=which.device) - 1)
    return View(values, index.unsqueeze(1))


def mixed_states(views: Sequence[View]) -> Tensor:
    """(B, P, all labels) the states of the labels of views with alternatives, concatenated."""
    parts: list[Tensor] = []
    for view in views:
        states = view.states
        assert states is not None
        if view.places > 1:
            states = states.unflatten(1, (view.ways, -1)).transpose(1, 2)
        labels = math.prod(states.shape[1:]) // view.places
        parts.append(states.reshape(states.shape[0], view.places, labels))
    return torch.cat(parts, 2) if len(parts) > 1 else parts[0]


def agreed(views: Sequence[View]) -> Labels:
    """The common labels of a sum; `ModelError` for those of different sites."""
    owned = [view for view in views if view.pool[0].labels.sites is not None]
    if not owned:
        return Labels()
    one = next((view for view in owned if view.ways == 1), owned[0])
    labels = _of_one_site(one)
    if labels is None or not all(_agree(one, labels, view) for view in owned):
        raise ModelError(
            "Tape.total needs alternatives over the same labels; these are the states of different "
            "sites. Link them to one site first, or merge them."
        )
    if any(view.width > 1 and view.pool[0].labels.sites is None for view in views):
        raise ModelError(
            "Tape.total needs alternatives over the same labels; these are the states of a site, "
            "and numbers of no site, whose order an estimator would not follow. "
            "Tape.lookup(values, to=site) gives a number for each state, and "
            "Tape.link(x, potential, to=site) a value over the states of that site."
        )
    return labels


def _agree(one: View, labels: Labels, other: View) -> bool:
    """Return whether another view has the states of the same sites as the labels of a view."""
    if one is other or (one.whole and other.whole and one.labels is other.labels):
        return True
    second = _of_one_site(other)
    if second is None:
        return False
    assert labels.sites is not None
    assert second.sites is not None
    return torch.equal(labels.sites, second.sites) and bool((labels.sites >= 0).all())


def _of_one_site(view: View) -> Labels | None:
    """The labels of a view; None if the alternatives of a place are of different sites."""
    if view.ways == 1:
        return view.labels
    if view.parts > 1 or view.sites is None:
        return None
    if view.index is None:  # all places of the pool are the alternatives of one
        sites = view.sites.expand(view.ways).reshape(1, -1, 1)
        present = torch.ones_like(sites, dtype=torch.bool)
    else:
        sites = view.sites.reshape(-1, view.ways, view.places)
        present = (view.index < view.size).reshape(sites.shape)
    first = present.int().argmax(1, keepdim=True)
    found = sites.gather(1, first)
    if bool(((sites != found) & present).any()) or bool((found != found[:1]).any()):
        return None
    states = view.states
    if states is not None:
        if states.shape[1] == 1 < view.ways * view.places:
            states = states.expand(-1, view.ways * view.places, -1)
        at = (first * view.places + torch.arange(view.places, device=first.device)).squeeze(1)
        item = torch.arange(len(states), device=at.device).unsqueeze(1)
        states = states[item, at]
    return Labels(found[0, 0], states)


@dataclass(frozen=True, eq=False)
class Sites:
    """The sites of a tape; indexing gives the values of their potentials.

    Attributes:
        numbers: (*sites) their numbers, row by row.
        states: (B, all, K) the states kept of each; None: all.
        make: the value for given labels.
    """

    numbers: Tensor
    states: Tensor | None
    make: Callable[[Labels], Value]

    def __getitem__(self, index: Any) -> Value:
        """The potentials of some sites, one place for each, in the order of the index.

        Raises:
            ModelError: there are no such sites.
        """
        try:
            return self.leaf(self.numbers[index].reshape(-1))
        except (IndexError, TypeError) as error:
            shape = tuple(self.numbers.shape)
            raise ModelError(
                f"Tape.sites of shape {shape} has no {index!r:.80}: {error}."
            ) from None

    def leaf(self, numbers: Tensor) -> Value:
        """The potentials of the sites with some numbers, (P,)."""
        return self.make(self.labels(numbers))

    def labels(self, numbers: Tensor) -> Labels:
        """The labels of that value, for links that lead to them."""
        kept = self.states
        return Labels(numbers, None if kept is None else kept.index_select(1, numbers))


def numbered(
    unary: Tensor, states: Tensor | None, batch: int, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor | None, int]:
    """(*sites) the numbers of sites, (B, all, K) the states kept, if any, and K."""
    count, width = math.prod(shape), unary.shape[-1]
    if states is not None:
        states = states.expand(unary.shape).reshape(batch, count, width)
    return torch.arange(count, device=unary.device).reshape(shape), states, width


def listed_places(
    pool: Sequence[tuple[int, int]], index: Tensor | None
) -> "list[int] | np.ndarray[Any, np.dtype[np.int32]]":
    """The number and place of (n,) places, or of all, among those of values (number, places).

    A place beyond them is none, (-1, 0).
    """
    many, size = [count for _, count in pool], sum([count for _, count in pool])
    if max(size, 0 if index is None else len(index)) <= tuning.POOL_PLACES:
        known = [(number, place) for number, count in [*pool, (-1, 1)] for place in range(count)]
        pairs = known[:-1] if index is None else [known[place] for place in index.tolist()]
        return list(chain.from_iterable(pairs))
    value, place = _places_of((*many, 1))
    rows = np.arange(size) if index is None else index.cpu().numpy()
    pairs = np.empty(2 * len(rows), np.int32)
    pairs[::2] = np.array([*[number for number, _ in pool], -1])[value[rows]]
    pairs[1::2] = place[rows]
    return pairs


@remembered(64)
def _places_of(many: tuple[int, ...]) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """The value of each place of values in turn, and the place there."""
    value = np.repeat(np.arange(len(many)), many)
    return value, (np.arange(len(value)) - np.repeat(np.cumsum(many) - many, many)).astype(np.int32)
