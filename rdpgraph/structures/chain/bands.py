"""Chains whose transitions are bands beside low rank, by a recurrence in O(T N (D + r)).

With the values b along the bands at offsets o, and the factors l and r of the rest,

    c[t, k] = sum_m a[t-1, m] l[t-1, m, k],
    a[t, n] = (sum_o a[t-1, n-o] b_o[t-1, n-o] + sum_k c[t, k] r[t-1, n, k]) u[t, n].

A pair of states within a band is linked in two ways, by the band and by the rest, whose sum is its
value. For maxima the band holds that sum: it is above the way by the rest, which never wins.
"""

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.types import Lengths, LogZ, Paths, Unary
from rdpgraph.logspace.gradients import is_transformed
from rdpgraph.model.potentials.operators import Banded
from rdpgraph.recurrences import declaration, executor
from rdpgraph.recurrences.program import Program
from rdpgraph.recurrences.recurrence import Bound
from rdpgraph.structures.chain.steps import OperatorSteps, Steps

_PARTS = ("band", "left", "right")
"""The names of a `Banded`'s tensors in the rules."""


def serves(unary: Unary, steps: Tensor | Steps, *, maxima: bool = False) -> bool:
    """Return whether compiled code answers for these chains, or for their best sequences."""
    if not isinstance(steps, OperatorSteps) or not isinstance(steps.potential, Banded):
        return False
    potential = steps.potential
    fits = len(potential.offsets) <= tuning.MOST_OFFSETS and potential.dtype == unary.dtype
    there = unary.is_cpu and unary.numel() > 0 and executor.LIBRARY.available(unary.dtype)
    return fits and there and not is_transformed() and (potential.maximises or not maxima)


def log_partition(unary: Unary, steps: Tensor | Steps, lengths: Lengths) -> LogZ:
    """Log Z of each item, (B,), as `recursion.log_partition`; all derivatives exist."""
    return _bound(unary, steps, lengths, maxima=False).log_partition()


def best_states(unary: Unary, steps: Tensor | Steps, lengths: Lengths) -> Paths:
    """The states (B, T) of one best sequence of each item, as `decode.best_states`."""
    return _bound(unary, steps, lengths, maxima=True).states_of("unary", None, None)[0][0]


def max_marginals(unary: Unary, steps: Tensor | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) as `decode.max_marginals`, without gradient; by sums in float64."""
    assert isinstance(steps, OperatorSteps)
    wide = OperatorSteps(steps.potential.replaced([part.double() for part in steps.sides]))
    bound = _bound(unary.double(), wide, lengths, maxima=True)
    return bound.max_marginals()["unary"].to(unary)


def draw(
    unary: Unary, steps: Tensor | Steps, lengths: Lengths, count: int,
    generator: torch.Generator | None,
) -> Paths:  # fmt: skip
    """Independent exact draws (count, B, T), as `paths.draw`."""
    return _bound(unary, steps, lengths, maxima=False).states_of("unary", count, generator)[0]


def _bound(unary: Unary, steps: Tensor | Steps, lengths: Lengths, *, maxima: bool) -> Bound:
    assert isinstance(steps, OperatorSteps)
    potential = steps.potential
    assert isinstance(potential, Banded)
    tensors = potential.tensors
    if maxima and potential.rest is not None:
        tensors = (potential.largest, *tensors[1:])
    given, kinds = dict[str, Tensor](), list[tuple[str, bool, bool]]()
    for name, part in zip(_PARTS, tensors, strict=False):
        # A part that is the same for all states is read once a step; one with a gradient has an
        # entry for each state.
        alike = part.stride(-2) == 0 and not part.requires_grad
        kinds.append((name, part.ndim > 2, alike))
        given[name] = part.select(-2, 0) if alike else part
    program = _program(potential.offsets, tuple(kinds))
    return Bound(program, {"unary": unary, "lengths": lengths, **given}, checked=True)


def _program(offsets: tuple[int, ...], kinds: tuple[tuple[str, bool, bool], ...]) -> Program:
    """The rules for some offsets.

    Of each part its name, whether it has an entry for each step, and whether it has one for all
    states.
    """
    steps, alike = ({kind[0]: kind[place] for kind in kinds} for place in (1, 2))

    def read(name: str, state: str, last: str) -> str:
        before = ["t-1"] if steps[name] else []
        return f"{name}[{', '.join([*before, *([] if alike[name] else [state]), last])}]"

    rules = ["a[0, n] += unary[0, n]"]
    for place, offset in enumerate(offsets):
        before = f"n-{offset}" if offset > 0 else f"n+{-offset}" if offset else "n"
        band = read("band", before, str(place))
        rules.append(f"a[t, n] += a[t-1, {before}] * {band} * unary[t, n]")
    if len(kinds) > 1:
        rules.append(f"c[t, k] += a[t-1, m] * {read('left', 'm', 'k')}")
        rules.append(f"a[t, n] += c[t, k] * {read('right', 'n', 'k')} * unary[t, n]")
    rules.append("goal += a[lengths-1, n]")
    inputs = [("unary", declaration.Input("T N"))]
    for name, *_ in kinds:
        dims = [*(["T-1"] if steps[name] else []), *([] if alike[name] else ["N"])]
        last = str(len(offsets)) if name == "band" else "K"
        inputs.append((name, declaration.Input(" ".join([*dims, last]))))
    lengths = ("lengths", declaration.Lengths("T"))
    return declaration.program_of("Chain", (*inputs, lengths), "\n".join(rules))
