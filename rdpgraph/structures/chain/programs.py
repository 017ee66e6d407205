"""Programs of chains for the compiled machine, made of arrays: a tape of as many steps is slow."""

import numpy as np
import torch

from rdpgraph._core import tuning
from rdpgraph._core.cache import remembered
from rdpgraph.structures.recursion.links import Table
from rdpgraph.structures.recursion.program import CHAIN_KINDS, FIELDS, Program, Slot
from rdpgraph.structures.recursion.steps import Leaf
from rdpgraph.structures.recursion.values import View

_SITES, _GIVEN, _TOTAL, _LINKED, _SUMMED, _PRODUCT = CHAIN_KINDS


def _is_short(total: int, widths: tuple[int, ...], each: tuple[int, ...], *, ragged: bool) -> bool:
    del widths, each, ragged
    return total <= tuning.SHORT_STEPS


def _is_long(total: int, widths: tuple[int, ...], each: tuple[int, ...], *, ragged: bool) -> bool:
    del widths, each, ragged
    return tuning.SHORT_STEPS < total <= tuning.CHAIN_STEPS


@remembered(tuning.CHAIN_PROGRAMS, where=_is_long)
@remembered(tuning.SHORT_PROGRAMS, where=_is_short)
def chain_program(
    total: int, widths: tuple[int, ...], each: tuple[int, ...], *, ragged: bool
) -> Program:
    """The program that a tape of the same steps is lowered to.

    From site to site there is a link by each table, and the product with the next site.

    Args:
        total: sites, at least 2.
        widths: labels after each table; after the last the states, at least 2.
        each: for each table, 1 if every step has one, else 0.
        ragged: whether the last site of an item, and the link to it, are given; zeros lead to the
            first.
    """
    tables, links, states = len(widths), total - 1, widths[-1]
    hop, end, step = tables + 1, 2 + links * (tables + 1), np.arange(links)
    last = end + (2 if ragged else 0)  # the number of the goal
    values, steps = np.zeros((last + 1, 6), np.int64), np.zeros((last + 1, FIELDS), np.int64)
    values[:, 1], values[:, 3], steps[:, 1] = 1, -1, np.arange(last + 1)
    values[0, 1], values[:2, 2], values[:2, 5] = total, states, total * states
    steps[:2, 0], steps[1, 2] = _SITES, total
    made, lowered = values[2:end].reshape(links, hop, 6), steps[2:end].reshape(links, hop, FIELDS)
    starts = np.cumsum([total * states, *widths])
    made[:, :, 0] = starts + sum(widths) * step[:, None]
    made[:, :, 2] = made[:, :, 5] = [*widths, states]
    rows, work, before, after = dict[int, tuple[int, int, int, int]](), states, 0, 0
    for number, width in enumerate(widths):
        made[:, number, 3] = step * tables + number
        ends = before + links * widths[number - 1], after + links * width
        rows[number + 1] = before, ends[0], after, ends[1]
        lowered[:, number, 3], lowered[:, number, 8:10] = number + 1, (before, after)
        lowered[:, number, 10], lowered[:, number, 11] = step * each[number], step
        work += links * widths[number - 1] * width
        before, after = ends
    lowered[:, :-1, 0], lowered[:, :-1, 12] = _LINKED, links
    lowered[:, :-1, 2] = lowered[:, :-1, 1] - 1
    # Lists of each product: the place of the site, that of the link, and the two factors.
    start, ways = total + 1 + 20 * step, np.zeros((links, 20), np.int64)
    ways[:, 1], ways[:, 2] = step + 1, lowered[:, -2, 1]
    ways[:, 4:] = [1, 2, total, 0, 1, 1, states, -1, 0, 1, 0, 1, 1, states, -1, 0]
    ways[:, 7], ways[:, 14] = start, start + 2
    lowered[:, -1, 0], lowered[:, -1, 2], lowered[:, -1, 3:5] = _PRODUCT, start + 4, 1
    index, products = [np.arange(total), [0], ways.ravel()], [*range(1 + hop, end, hop)]
    if ragged:
        # The last product is stored as it may be a site's without a link: the goal is of others.
        at, size = total + 1 + 20 * links, 2 * total
        places = np.zeros((2, total, 2), np.int64)
        places[0, :, 1], places[1, 0, 0], places[1, 1:, 0] = np.arange(total), end, ways[:, 2]
        one, two = ([total, at + n, 1, 1, states, tables + 2 + n // size, 0] for n in (0, size))
        index += [places.ravel(), [1, 2, *one, *two]]
        values[end - 1, 3], steps[end - 1, 0] = links * tables, _TOTAL
        values[end:, 0] = starts[-1] + sum(widths) * (links - 1) + states
        values[end + 1 :, 0] += states
        values[end:last, 2] = values[end:last, 5] = states
        steps[end, 0], steps[end, 2] = _GIVEN, tables + 1
        steps[end + 1, 0], steps[end + 1, 2], steps[end + 1, 3:5] = _PRODUCT, at + 2 * size, 1
        products[-1] = end + 1
    else:
        values[end, 0] = starts[-1] + sum(widths) * (links - 1)
    values[last, 2] = values[last, 5] = 1
    steps[last, 0], steps[last, 2] = _SUMMED, last - 1
    if tables == 1 and not each[0] and links > tuning.SERIES_LINKS:  # as `mark_series` does
        one, two = steps[2 + hop], steps[end - hop]
        one[4:8], two[4] = (links - 1, states, states, 2), 1 - links
        one[13] = two[13] = hop
    none = torch.zeros(1, 1, 1, 1, device="cpu")
    given: list[Slot] = [Leaf(none), View(()), View(())] if ragged else []
    return Program(
        values=torch.from_numpy(values),
        steps=torch.from_numpy(steps),
        index=torch.from_numpy(np.concatenate(index).astype(np.int32)),
        size=int(values[last, 0]) + 1,
        levels=links * tables + (2 if ragged else 1),
        levelled=True,
        slots=[*[Table(none, none)] * tables, *given],
        rows=rows,
        pairs=frozenset(),
        places={slot + 1: [(1, n * one) for n in range(links)] for slot, one in enumerate(each)},
        leaves={tables + 1: end} if ragged else {},
        unstored=frozenset(products),
        work=float(work + links * states + states * ragged),
    )
