"""Chains whose transitions are applied without a table of all pairs of states, by recurrences.

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
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.types import Lengths, LogZ, Paths, Unary
from rdpgraph.logspace.gradients import is_transformed
from rdpgraph.model.potentials.operators import Banded, Monarch
from rdpgraph.recurrences import declaration, executor
from rdpgraph.recurrences.bound import Bound
from rdpgraph.recurrences.program import Program
from rdpgraph.structures.chain import logs
from rdpgraph.structures.chain.factors import inside, masked
from rdpgraph.structures.chain.rules import rows_made
from rdpgraph.structures.chain.steps import OperatorSteps, Steps

_PARTS = ("band", "left", "right")
"""The names of a `Banded`'s tensors in the rules."""


def serves(unary: Unary, steps: Tensor | Steps, *, maxima: bool = False) -> bool:
    """Return whether compiled code answers for these chains, or for their best sequences."""
    if not isinstance(steps, OperatorSteps):
        return False
    potential = steps.potential
    fits = isinstance(potential, Banded | Monarch) and potential.dtype == unary.dtype
    fits = fits and (potential.maximises or not maxima)
    there = unary.is_cpu and unary.numel() > 0 and executor.LIBRARY.available(unary.dtype)
    return fits and there and not is_transformed()


def log_partition(unary: Unary, steps: Tensor | Steps, lengths: Lengths) -> LogZ:
    """Log Z of each item, (B,), as `recursion.log_partition`; all derivatives exist."""
    return _bound(unary, steps, lengths, maxima=False).log_partition()


def best_states(unary: Unary, steps: Tensor | Steps, lengths: Lengths) -> Paths:
    """The states (B, T) of one best sequence of each item, as `decode.best_states`."""
    bound = _bound(unary, steps, lengths, maxima=True)
    if is_banded(steps):
        return bound.states_of("unary", None, None)[0][0]
    return _states_read(bound.entries_of("unary", None, None)[0], unary, bound, 1)[0]


def k_best(unary: Unary, steps: Tensor | Steps, lengths: Lengths, k: int) -> Paths | None:
    """The states (k, B, T) of the k best sequences, as `decode.k_best`, by sums in float64.

    None for bands beside low rank, as a pair of states within a band is linked in two ways.
    """
    assert isinstance(steps, OperatorSteps)
    if not steps.potential.additive:
        return None
    wide = OperatorSteps(steps.potential.replaced([part.double() for part in steps.sides]))
    bound = _bound(unary.double(), wide, lengths, maxima=True)
    if is_banded(steps):
        return bound.k_best_states_of("unary", k)[0]
    return _states_read(bound.k_best_entries_of("unary", k)[0], unary, bound, k)


def max_marginals(unary: Unary, steps: Tensor | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) as `decode.max_marginals`, without gradient; by sums in float64."""
    assert isinstance(steps, OperatorSteps)
    wide = OperatorSteps(steps.potential.replaced([part.double() for part in steps.sides]))
    bound = _bound(unary.double(), wide, lengths, maxima=True)
    return bound.max_marginals("unary")["unary"].reshape(unary.shape).to(unary)


def draw(
    unary: Unary, steps: Tensor | Steps, lengths: Lengths, count: int,
    generator: torch.Generator | None,
) -> Paths:  # fmt: skip
    """Independent exact draws (count, B, T), as `paths.draw`."""
    bound = _bound(unary, steps, lengths, maxima=False)
    if is_banded(steps):
        return bound.states_of("unary", count, generator)[0]
    return _states_read(bound.entries_of("unary", count, generator)[0], unary, bound, count)


def forward(unary: Unary, steps: Tensor | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) the forward messages of bands, up to a constant in each row; differentiable."""
    total = unary.shape[1]
    given = _given(steps, maxima=False)
    assert isinstance(given.potential, Banded)
    potential, rest = given.potential, given.potential.rest
    # The rules write a row as a whole: states that no offset leads to have a term of -inf.
    absent = (
        []
        if rest or given.sources is not None
        else [unary.new_full((1, unary.shape[2]), -math.inf)]
    )
    inputs = [masked(unary, lengths), *given.by_item(), *absent]
    whole = torch.full((len(unary),), total, device=unary.device)

    def again(unary: Tensor, *inputs: Tensor) -> Tensor:
        # What is the same for all states has no gradient, and is taken as it was given.
        parts = [
            one if alike else part.reshape(one.shape)
            for one, part, alike in zip(given.tensors, inputs, given.alike, strict=False)
        ]
        if given.sources is not None:  # bands are given by the states that they lead to
            backwards = Banded(parts[0], [-offset for offset in potential.offsets])
            parts[0] = backwards.turned().log_values
        return logs.forward(unary, OperatorSteps(potential.replaced(parts)), whole)

    sizes = {"T": total, "N": unary.shape[2], **({"K": rest.rank} if rest else {})}
    if given.sources is not None:
        sizes["D"] = len(potential.offsets)
    program = _bands(given.offsets, given.kinds, written=True)
    tracked = torch.is_grad_enabled() and any(part.requires_grad for part in inputs)
    up = executor.run_up(program, inputs, {"lengths": total}, sizes, best=False, keep=tracked)
    rows = rows_made(up, "a", again, inputs)
    return torch.where(inside(lengths, total).unsqueeze(2), rows, -math.inf)


def is_banded(steps: Tensor | Steps) -> bool:
    """Return whether the transitions are bands, beside a rest or not."""
    return isinstance(steps, OperatorSteps) and isinstance(steps.potential, Banded)


def _states_read(
    entries: tuple[Tensor, Tensor, Tensor], unary: Unary, bound: Bound, count: int
) -> Paths:
    """(count, B, T) the states that sequences use, of which each is a block and a place in it."""
    row, site, place = entries
    batch, total, _ = unary.shape
    blocks, width = bound.sizes["A"], bound.sizes["B"]
    states = torch.full((count * batch, total), -1, device=row.device)
    states[row, site // blocks] = site % blocks * width + place
    return states.unflatten(0, (count, batch))


def _bound(unary: Unary, steps: Tensor | Steps, lengths: Lengths, *, maxima: bool) -> Bound:
    assert isinstance(steps, OperatorSteps)
    potential = steps.potential
    if isinstance(potential, Monarch):
        return _bound_blocks(unary, potential, lengths)
    own = _given(steps, maxima=maxima)
    program = _bands(own.offsets, own.kinds)
    parts: dict[str, Tensor] = dict(zip(_PARTS, own.parts, strict=False))
    if own.sources is not None:
        parts["sources"] = own.sources
    return Bound(program, {"unary": unary, "lengths": lengths, **parts}, checked=True)


def _bound_blocks(unary: Unary, potential: Monarch, lengths: Lengths) -> Bound:
    left, right = potential.tensors
    (_, width, count), after = left.shape, right.shape[2]
    # Blocks before a step and after it are cut alike: one of them has so many of the smaller ones.
    small = math.gcd(width, after)
    before, after = width // small, after // small
    if before * after > 1:
        left = left.reshape(-1, small, count)
        right = right.unflatten(2, (after, small)).transpose(1, 2).flatten(0, 1)
        right = right.repeat_interleave(before, 1)
    given = {"unary": unary.unflatten(2, left.shape[:2]), "left": left, "right": right}
    given["into"] = torch.arange(count, device="cpu").repeat_interleave(after)
    return Bound(_blocks(), {**given, "lengths": lengths}, checked=True)


@dataclass(frozen=True, eq=False)
class _BandParameters:
    """The parameters of bands as their rules read them."""

    potential: Banded
    tensors: Sequence[Tensor]  # those of the potential; bands by the states after where these vary
    parts: Sequence[Tensor]  # those that are the same for all states without their dim of states
    each: Sequence[bool]  # for each parameter, whether every step has its own
    alike: Sequence[bool]  # and whether it is the same for all states
    sources: Tensor | None  # (N, D) states before each one; None where rules are written out

    @property
    def offsets(self) -> tuple[int, ...] | None:
        """Those that rules are written out for; None where states are looked up."""
        return self.potential.offsets if self.sources is None else None

    @property
    def kinds(self) -> tuple[tuple[str, bool, bool], ...]:
        """What `_bands` is told of each part."""
        return tuple(zip(_PARTS, self.each, self.alike, strict=False))

    def by_item(self) -> list[Tensor]:
        """The parts with a dim of items, of size 1 where all items share one, in order."""
        pairs = zip(self.parts, self.each, strict=True)
        parts = [part if every else part.unsqueeze(0) for part, every in pairs]
        return parts if self.sources is None else [*parts, self.sources.unsqueeze(0)]


def _given(steps: Tensor | Steps, *, maxima: bool) -> _BandParameters:
    assert isinstance(steps, OperatorSteps)
    potential = steps.potential
    assert isinstance(potential, Banded)
    tensors, sources = potential.tensors, None
    if maxima and potential.rest is not None:
        tensors = (potential.largest, *tensors[1:])
    if len(potential.offsets) > tuning.MOST_OFFSETS:
        # Values that lead to each state, and -inf where there is no state before.
        tensors = (potential.replaced(tensors).turned().log_values, *tensors[1:])
        states = torch.arange(potential.shape[-1], device="cpu").unsqueeze(1)
        sources = states - torch.tensor(potential.offsets, device="cpu")
        sources = sources.clamp(0, len(states) - 1)
    # A part that is the same for all states is read once a step; one with a gradient has an entry
    # for each state.
    alike = [part.stride(-2) == 0 and not part.requires_grad for part in tensors]
    pairs = zip(tensors, alike, strict=True)
    parts = [part.select(-2, 0) if one else part for part, one in pairs]
    each = [part.ndim > 2 for part in tensors]
    return _BandParameters(potential, tensors, parts, each, alike, sources)


@functools.cache
def _blocks() -> Program:
    """The rules of products of blocks."""
    declared = (
        ("unary", declaration.Input("T A B")),
        ("left", declaration.Input("A B K")),
        ("right", declaration.Input("A A B")),
        ("into", declaration.Input("A", whole=True)),
        ("lengths", declaration.Lengths("T")),
    )
    rules = """
        a[0, i, b] += unary[0, i, b]
        c[t, i, k] += a[t-1, i, b] * left[i, b, k]
        a[t, q, d] += c[t, i, into[q]] * right[q, i, d] * unary[t, q, d]
        goal       += a[lengths-1, i, b]
    """
    return declaration.program_of("Chain", declared, rules)


def _bands(
    offsets: tuple[int, ...] | None, kinds: tuple[tuple[str, bool, bool], ...], *,
    written: bool = False,
) -> Program:  # fmt: skip
    """The rules for some offsets.

    Args:
        offsets: of the bands; None where the states before each one are looked up.
        kinds: of each part its name, whether it has an entry for each step, and whether it has one
            for all states.
        written: whether a term, ``absent``, is added to states that no offset may lead to.
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
    if len(kinds) > 1:
        rules.append(f"c[t, k] += a[t-1, m] * {read('left', 'm', 'k')}")
        rules.append(f"a[t, n] += c[t, k] * {read('right', 'n', 'k')} * unary[t, n]")
    absent = written and offsets is not None and len(kinds) == 1
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
    lengths = ("lengths", declaration.Lengths("T"))
    return declaration.program_of("Chain", (*inputs, lengths), "\n".join(rules))
