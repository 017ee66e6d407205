"""Chains as recurrences: by tables of pairs of states, ranks, bands or products of blocks.

    a[0, n] = u[0, n],    a[t, n] = sum_m a[t-1, m] w[m, n] u[t, n],

and with ranks the sum over m goes by way of half[t, k] = sum_m a[t-1, m] left[m, k].

Bands beside low rank cost O(T N (D + r)). With the values b along the bands at offsets o, and the
factors l and r of the rest,

    c[t, k] = sum_m a[t-1, m] l[t-1, m, k],
    a[t, n] = (sum_o a[t-1, n-o] b_o[t-1, n-o] + sum_k c[t, k] r[t-1, n, k]) u[t, n].

A pair of states within a band is linked in two ways, by the band and by the rest, whose sum is its
value. For maxima the band holds that sum: it is above the way by the rest, which never wins. A rule
is written out for each of a few offsets; those of many are data, m = n - o, by which states are
looked up.

Products of blocks cost O(T N sqrt(N)). With square blocks a state is a block i and a place b in it,
so the states of a step are A sites of B states, of which a sequence uses one: with the factors l
and r,

    c[t, i, k] = sum_b a[t-1, i, b] l[i, b, k],
    a[t, k, d] = sum_i c[t, i, k] r[k, i, d] u[t, k, d].

Before and after a step oblong blocks are of different sizes. Both kinds are cut into blocks of the
greatest common divisor of the sizes, of which i goes through those before a step and k through
those after it; the rows of c are still those of the blocks as they were given.
"""

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import remembered
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.operators import Banded, Monarch
from rdpgraph.recurrences import declaration
from rdpgraph.recurrences.bound import Bound
from rdpgraph.recurrences.program import Program
from rdpgraph.structures.chain.parts import AnyChain

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_LENGTHS = "lengths"
_PARTS = ("band", "left", "right")
"""The names of a `Banded`'s tensors in the rules."""


def bound(
    parts: AnyChain, *, maxima: bool = False, apart: bool = False, alike: bool = True
) -> Bound:
    """The recurrence of some chains, whose sites are the input ``unary`` and sums the table ``a``.

    Args:
        parts: the chains.
        maxima: whether each sequence is to be one best derivation; not for ranks.
        apart: whether a table ``into`` has the sums of a step without its unary potentials; of
            tables and ranks.
        alike: whether values of bands that are the same for all states may be read once a step.
    """
    link = parts.transition
    if isinstance(link, Tensor):
        return _bound_tables(parts, (link,), apart=apart)
    if isinstance(link, LowRank):
        return _bound_tables(parts, (link.log_left, link.log_right.mT), apart=apart)
    if isinstance(link, Monarch):
        return _bound_blocks(parts, link)
    assert isinstance(link, Banded)
    return _bound_bands(parts, link, maxima=maxima, alike=alike)


def _ends(parts: AnyChain) -> Tensor | None:
    """The lengths; None where all are full."""
    full = min(parts.lengths.tolist(), default=0) == parts.unary.shape[1]
    return None if full else parts.lengths


# ---- tables and ranks ----


@remembered(64)
def write_program(each: tuple[bool, ...], *, apart: bool = False) -> Program:
    """The recurrence of chains by one table, or by two of ranks.

    Args:
        each: for each table, whether every step has one.
        apart: see `bound`.
    """
    declared: dict[str, declaration.Input | declaration.Lengths] = {
        "unary": declaration.Input("T N")
    }
    # A table for each step has an index of the step, in its size and where it is read.
    steps = ["T-1 " if one else "" for one in each]
    at = ["t-1, " if one else "" for one in each]
    rules = ["a[0, n] += unary[0, n]"]
    into = (
        "into[t, n] += {}\na[t, n] += into[t, n] * unary[t, n]"
        if apart
        else "a[t, n] += {} * unary[t, n]"
    )
    if len(each) == 1:
        declared["transition"] = declaration.Input(f"{steps[0]}N N")
        rules.append(into.format(f"a[t-1, m] * transition[{at[0]}m, n]"))
    else:
        declared["left"] = declaration.Input(f"{steps[0]}N K")
        declared["right"] = declaration.Input(f"{steps[1]}K N")
        rules.append(f"half[t, k] += a[t-1, m] * left[{at[0]}m, k]")
        rules.append(into.format(f"half[t, k] * right[{at[1]}k, n]"))
    declared[_LENGTHS] = declaration.Lengths("T")
    rules.append("goal += a[lengths-1, n]")
    return declaration.program_of("Chain", tuple(declared.items()), "\n".join(rules))


def _bound_tables(parts: AnyChain, tables: Sequence[Tensor], *, apart: bool) -> Bound:
    total = parts.unary.shape[1]
    # Tables of one step, (B, 1, N, N), are those of all steps of an item.
    each = [table.ndim > 2 and (table.shape[1] != 1 or total == 2) for table in tables]
    if not total:  # without steps there is no table, and none is read
        each, tables = [False] * len(tables), [x.new_zeros(x.shape[-2:]) for x in tables]
    links = [
        table if every or table.ndim == 2 else table.reshape(-1, *table.shape[-2:])
        for table, every in zip(tables, each, strict=True)
    ]
    program = write_program(tuple(each), apart=apart)
    pairs = zip(program.inputs, [parts.unary, *links], strict=True)
    given: dict[str, Any] = {array.name: values for array, values in pairs}
    return Bound.settled(program, {**given, _LENGTHS: _ends(parts)})


def log_partition_in_parts(unary: Tensor, transition: "DTensor", lengths: Tensor | None) -> Tensor:
    """(*batch,) log Z of chains (*batch, T, N) where each process has a part of the transition."""
    if not unary.numel():
        return unary.sum((-2, -1))
    given = {"unary": unary, "transition": transition, _LENGTHS: lengths}
    return Bound(write_program((transition.ndim > 2,)), given).log_partition()


# ---- products of blocks ----


@functools.cache
def _blocks() -> Program:
    """The rules of products of blocks."""
    declared = (
        ("unary", declaration.Input("T A B")),
        ("left", declaration.Input("A B K")),
        ("right", declaration.Input("A A B")),
        ("into", declaration.Input("A", whole=True)),
        (_LENGTHS, declaration.Lengths("T")),
    )
    rules = """
        a[0, i, b] += unary[0, i, b]
        c[t, i, k] += a[t-1, i, b] * left[i, b, k]
        a[t, q, d] += c[t, i, into[q]] * right[q, i, d] * unary[t, q, d]
        goal       += a[lengths-1, i, b]
    """
    return declaration.program_of("Chain", declared, rules)


def _bound_blocks(parts: AnyChain, potential: Monarch) -> Bound:
    left, right = potential.tensors
    (_, width, count), after = left.shape, right.shape[2]
    # Blocks before a step and after it are cut alike: one of them has so many of the smaller ones.
    small = math.gcd(width, after)
    before, after = width // small, after // small
    if before * after > 1:
        left = left.reshape(-1, small, count)
        right = right.unflatten(2, (after, small)).transpose(1, 2).flatten(0, 1)
        right = right.repeat_interleave(before, 1)
    given = {"unary": parts.unary.unflatten(2, left.shape[:2]), "left": left, "right": right}
    given["into"] = torch.arange(count, device=left.device).repeat_interleave(after)
    return Bound(_blocks(), {**given, _LENGTHS: _ends(parts)}, checked=True)


# ---- bands ----


def _bound_bands(parts: AnyChain, potential: Banded, *, maxima: bool, alike: bool) -> Bound:
    tensors, offsets, sources = potential.tensors, potential.offsets, None
    if maxima and potential.rest is not None:
        tensors = (potential.largest, *tensors[1:])
    if len(offsets) > tuning.MOST_OFFSETS:
        # Values that lead to each state, and -inf where there is no state before.
        tensors = (potential.replaced(tensors).turned().log_values, *tensors[1:])
        states = torch.arange(potential.shape[-1], device=potential.device).unsqueeze(1)
        sources = states - torch.tensor(offsets, device=potential.device)
        sources, offsets = sources.clamp(0, len(states) - 1), None
    # A part that is the same for all states is read once a step, without their dim; one with a
    # gradient has an entry for each state.
    same = [alike and part.stride(-2) == 0 and not part.requires_grad for part in tensors]
    named = [*zip(_PARTS, tensors, same, strict=False)]
    given = {name: part.select(-2, 0) if one else part for name, part, one in named}
    if sources is not None:
        given["sources"] = sources
    elif len(tensors) == 1:  # there may be states that no offset leads to
        given["absent"] = parts.unary.new_full(parts.unary.shape[2:], -math.inf)
    program = _bands(offsets, tuple((name, part.ndim > 2, one) for name, part, one in named))
    given = {**given, "unary": parts.unary, _LENGTHS: _ends(parts)}
    return Bound(program, given, checked=True)


@remembered(64)
def _bands(offsets: tuple[int, ...] | None, kinds: tuple[tuple[str, bool, bool], ...]) -> Program:
    """The rules for some offsets.

    States that no offset may lead to have a term, ``absent``, so that steps are written as a whole.

    Args:
        offsets: of the bands; None where the states before each one are looked up.
        kinds: of each part its name, whether it has an entry for each step, and whether it has one
            for all states.
    """
    steps, alike = ({kind[0]: kind[place] for kind in kinds} for place in (1, 2))

    def read(name: str, state: str, last: str) -> str:
        before = ["t-1"] if steps[name] else []
        return f"{name}[{', '.join([*before, *([] if alike[name] else [state]), last])}]"

    # A rule for each band, or one for all: state n is reached from n - offset.
    rules = ["a[0, n] += unary[0, n]"]
    if offsets is None:
        band = read("band", "n", "d")
        rules.append(f"a[t, n] += a[t-1, sources[n, d]] * {band} * unary[t, n]")
    for place, offset in enumerate(offsets or ()):
        before = f"n-{offset}" if offset > 0 else f"n+{-offset}" if offset else "n"
        band = read("band", before, str(place))
        rules.append(f"a[t, n] += a[t-1, {before}] * {band} * unary[t, n]")
    # The rest goes by its ranks.
    absent = offsets is not None and len(kinds) == 1
    if len(kinds) > 1:
        rules.append(f"c[t, k] += a[t-1, m] * {read('left', 'm', 'k')}")
        rules.append(f"a[t, n] += c[t, k] * {read('right', 'n', 'k')} * unary[t, n]")
    if absent:
        rules.append("a[t, n] += absent[n] if t < T")
    rules.append("goal += a[lengths-1, n]")
    inputs = [("unary", declaration.Input("T N"))]
    for name, *_ in kinds:
        dims = [*(["T-1"] if steps[name] else []), *([] if alike[name] else ["N"])]
        last = ("D" if offsets is None else str(len(offsets))) if name == "band" else "K"
        inputs.append((name, declaration.Input(" ".join([*dims, last]))))
    if offsets is None:
        inputs.append(("sources", declaration.Input("N D", whole=True)))
    if absent:
        inputs.append(("absent", declaration.Input("N")))
    return declaration.program_of(
        "Chain", (*inputs, (_LENGTHS, declaration.Lengths("T"))), "\n".join(rules)
    )
