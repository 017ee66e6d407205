"""Chains whose transitions are applied without a table of all pairs of states, by recurrences.

Bands beside low rank cost O(T N (D + r)). With the values b along the bands at offsets o, and the
factors l and r of the rest,

    c[t, k] = sum_m a[t-1, m] l[t-1, m, k],
    a[t, n] = (sum_o a[t-1, n-o] b_o[t-1, n-o] + sum_k c[t, k] r[t-1, n, k]) u[t, n].

A pair of states within a band is linked in two ways, by the band and by the rest, whose sum is its
value. For maxima the band holds that sum: it is above the way by the rest, which never wins.

Products of blocks cost O(T N sqrt(N)). A state is a block i and a place b in it, so the states of a
step are A sites of B states, of which a sequence uses one: with the factors l and r,

    c[t, i, k] = sum_b a[t-1, i, b] l[i, b, k],
    a[t, k, d] = sum_i c[t, i, k] r[k, i, d] u[t, k, d].
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
from rdpgraph.recurrences.program import Program
from rdpgraph.recurrences.recurrence import Bound
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
    fits = False
    if isinstance(potential, Banded):
        fits = len(potential.offsets) <= tuning.MOST_OFFSETS
    elif isinstance(potential, Monarch):
        # States before a step and those after it are the same blocks only where these are square.
        fits = len(potential.log_left) == len(potential.log_right)
    fits = fits and potential.dtype == unary.dtype and (potential.maximises or not maxima)
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
    absent = [] if rest else [unary.new_full((1, unary.shape[2]), -math.inf)]
    inputs = [masked(unary, lengths), *given.by_item(), *absent]
    whole = torch.full((len(unary),), total, device=unary.device)

    def again(unary: Tensor, *inputs: Tensor) -> Tensor:
        # What is the same for all states has no gradient, and is taken as it was given.
        parts = [
            one if alike else part.reshape(one.shape)
            for one, part, alike in zip(potential.tensors, inputs, given.alike, strict=False)
        ]
        return logs.forward(unary, OperatorSteps(potential.replaced(parts)), whole)

    sizes = {"T": total, "N": unary.shape[2], **({"K": rest.rank} if rest else {})}
    program = _bands(potential.offsets, given.kinds, written=True)
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
        left, right = potential.tensors
        given = {"unary": unary.unflatten(2, left.shape[:2]), "left": left, "right": right}
        return Bound(_blocks(), {**given, "lengths": lengths}, checked=True)
    own = _given(steps, maxima=maxima)
    assert isinstance(potential, Banded)
    program = _bands(potential.offsets, own.kinds)
    parts = dict(zip(_PARTS, own.parts, strict=False))
    return Bound(program, {"unary": unary, "lengths": lengths, **parts}, checked=True)


@dataclass(frozen=True, eq=False)
class _BandParameters:
    """The parameters of bands as their rules read them."""

    potential: Banded
    parts: Sequence[Tensor]  # those that are the same for all states without their dim of states
    each: Sequence[bool]  # for each parameter, whether every step has its own
    alike: Sequence[bool]  # and whether it is the same for all states

    @property
    def kinds(self) -> tuple[tuple[str, bool, bool], ...]:
        """What `_bands` is told of each part."""
        return tuple(zip(_PARTS, self.each, self.alike, strict=False))

    def by_item(self) -> list[Tensor]:
        """The parts with a dim of items, of size 1 where all items share one."""
        pairs = zip(self.parts, self.each, strict=True)
        return [part if every else part.unsqueeze(0) for part, every in pairs]


def _given(steps: Tensor | Steps, *, maxima: bool) -> _BandParameters:
    assert isinstance(steps, OperatorSteps)
    potential = steps.potential
    assert isinstance(potential, Banded)
    tensors = potential.tensors
    if maxima and potential.rest is not None:
        tensors = (potential.largest, *tensors[1:])
    # A part that is the same for all states is read once a step; one with a gradient has an entry
    # for each state.
    alike = [part.stride(-2) == 0 and not part.requires_grad for part in tensors]
    pairs = zip(tensors, alike, strict=True)
    parts = [part.select(-2, 0) if one else part for part, one in pairs]
    return _BandParameters(potential, parts, [part.ndim > 2 for part in tensors], alike)


@functools.cache
def _blocks() -> Program:
    """The rules of products of blocks."""
    declared = (
        ("unary", declaration.Input("T A B")),
        ("left", declaration.Input("A B A")),
        ("right", declaration.Input("A A B")),
        ("lengths", declaration.Lengths("T")),
    )
    rules = """
        a[0, i, b] += unary[0, i, b]
        c[t, i, k] += a[t-1, i, b] * left[i, b, k]
        a[t, k, d] += c[t, i, k] * right[k, i, d] * unary[t, k, d]
        goal       += a[lengths-1, i, b]
    """
    return declaration.program_of("Chain", declared, rules)


def _bands(
    offsets: tuple[int, ...], kinds: tuple[tuple[str, bool, bool], ...], *, written: bool = False
) -> Program:
    """The rules for some offsets.

    Args:
        offsets: of the bands.
        kinds: of each part its name, whether it has an entry for each step, and whether it has one
            for all states.
        written: whether a term, ``absent``, is added to states that no offset may lead to.
    """
    steps, alike = ({kind[0]: kind[place] for kind in kinds} for place in (1, 2))

    def read(name: str, state: str, last: str) -> str:
        before = ["t-1"] if steps[name] else []
        return f"{name}[{', '.join([*before, *([] if alike[name] else [state]), last])}]"

    # A rule for each band: state n is reached from n - offset.
    rules = ["a[0, n] += unary[0, n]"]
    for place, offset in enumerate(offsets):
        before = f"n-{offset}" if offset > 0 else f"n+{-offset}" if offset else "n"
        band = read("band", before, str(place))
        rules.append(f"a[t, n] += a[t-1, {before}] * {band} * unary[t, n]")
    # The rest goes by its ranks.
    if len(kinds) > 1:
        rules.append(f"c[t, k] += a[t-1, m] * {read('left', 'm', 'k')}")
        rules.append(f"a[t, n] += c[t, k] * {read('right', 'n', 'k')} * unary[t, n]")
    elif written:
        rules.append("a[t, n] += absent[n] if t < T")
    rules.append("goal += a[lengths-1, n]")
    inputs = [("unary", declaration.Input("T N"))]
    for name, *_ in kinds:
        dims = [*(["T-1"] if steps[name] else []), *([] if alike[name] else ["N"])]
        last = str(len(offsets)) if name == "band" else "K"
        inputs.append((name, declaration.Input(" ".join([*dims, last]))))
    if written and len(kinds) == 1:
        inputs.append(("absent", declaration.Input("N")))
    lengths = ("lengths", declaration.Lengths("T"))
    return declaration.program_of("Chain", (*inputs, lengths), "\n".join(rules))
