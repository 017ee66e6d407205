"""Values of a tape's steps that a program does not store: readers compute them, or have them."""

from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from rdpgraph._core.cache import cached_property
from rdpgraph.structures.recursion.links import Table
from rdpgraph.structures.recursion.step import Step
from rdpgraph.structures.recursion.steps import (
    LabelsAsPlaces,
    Leaf,
    Linked,
    Pairs,
    Relabelled,
    Total,
)
from rdpgraph.structures.recursion.values import View


@dataclass(frozen=True, eq=False)
class Stored:
    """The steps whose values are not stored, by what their readers do."""

    fused: set[int]  # pairs: links by tables sum them
    products: set[int]  # products over labels: links multiply
    copies: set[int]  # labels as they are: read where these lie
    listed: set[int]  # labels that sums read by lists
    split: set[int]  # sites of which other steps copy some states
    # Steps of some states of sites: the numbers of these, the first state and how many.
    sites: dict[int, tuple[Sequence[int], int, int]]

    @cached_property
    def nowhere(self) -> frozenset[int]:
        """All steps whose values are not stored."""
        return frozenset(self.fused | self.products | self.copies | self.listed | self.split)


def stored(steps: Sequence[Step], states: int) -> Stored:
    """The values of a tape's steps that are stored, given K ``states`` of each site."""
    kinds = defaultdict[type[Step], list[tuple[int, Any]]](list)
    views = [step.reads for step in steps]
    for number, step in enumerate(steps):
        kinds[type(step)].append((number, step))
    readers = Counter(value.number for each in views for view in each for value in view.pool)
    linked = [(step.x.number, step.link) for _, step in kinds[Linked]]
    by_table = [(x, id(link.source)) for x, link in linked if isinstance(link, Table)]
    # A table's links are all of pairs that nothing else reads, or none is.
    plain = {
        owner for x, owner in by_table if not isinstance(steps[x], Pairs) or readers[x] > 1
    }  # fmt: skip
    apart = {
        value.number
        for step, each in zip(steps, views, strict=True)
        if type(step) is not Linked or not isinstance(step.link, Table | None)
        for view in each
        for value in view.pool
    }
    products = {
        number
        for number, step in kinds[Total]
        if readers[number] and number not in apart and _is_product(step)
    }
    sites: dict[int, tuple[Sequence[int], int, int]] = {
        number: (step.sites.tolist(), 0, states)
        for number, step in kinds[Leaf]
        if step.sites is not None
    }
    labelled: dict[int, tuple[Relabelled, list[int]]] = {
        number: (step, step.which.tolist())
        for number, step in kinds[Relabelled]
        if step.which.ndim == 1
    }
    ranges = {
        number: (sites[step.x.number][0], which[0], len(which))
        for number, (step, which) in labelled.items()
        if step.x.number in sites and which == [*range(which[0], which[0] + len(which))]
    }
    counts = Counter(labelled[number][0].x.number for number in ranges)
    split = {x for x, count in counts.items() if count == readers[x]}
    sites.update((n, part) for n, part in ranges.items() if labelled[n][0].x.number in split)
    movers = (Linked, Relabelled, LabelsAsPlaces)
    read = {step.x.number for kind in movers for _, step in kinds[kind]}
    copies = {
        number
        for number, (step, which) in labelled.items()
        if readers[number] and number not in read and number not in sites
        and step.places == step.x.places and which == [*range(step.x.width)]
    }  # fmt: skip
    # As many labels as there are, at least, of values that are stored.
    lists = {
        number: id(step.which)
        for number, (step, which) in labelled.items()
        if step.places == step.x.places and len(which) >= step.x.width
        and number not in copies and number not in sites and step.x.number not in copies
    }  # fmt: skip
    listed = _for_sums(lists, steps, views, products)
    fused = {x for x, owner in by_table if owner not in plain}
    return Stored(fused, products, copies, listed, split, sites)


def _is_product(step: Total) -> bool:
    """Return whether a sum is one product over labels."""
    alone = len(step.ways) == step.alternatives == 1
    return alone and max(view.width for view in step.ways[0]) > 1


def _for_sums(
    lists: dict[int, int], steps: Sequence[Step], views: Sequence[Sequence[View]],
    products: Set[int],
) -> set[int]:  # fmt: skip
    """Steps of listed labels that sums alone read, beside others of the same list."""
    kept = dict(lists)
    pools = [
        (view.numbers, isinstance(step, Total) and number not in products and view.width > 1)
        for number, step in enumerate(steps if kept else ())
        for view in views[number]
        if not kept.keys().isdisjoint(view.numbers)
    ]
    count = None
    while count != len(kept):
        count = len(kept)
        for pool, fits in pools:
            if not fits or len({kept.get(number) for number in pool}) > 1:
                for number in pool:
                    kept.pop(number, None)
    return set(kept)
