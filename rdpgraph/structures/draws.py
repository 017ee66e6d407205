"""Choosing among alternatives: the largest, or a draw by Gumbel noise or by running sums."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rdpgraph._numbers import is_whole
from rdpgraph.errors import ModelError
from rdpgraph.plan.budget import require_room

Pick = Callable[[Tensor], Tensor]
"""Chooses an entry of each row of log-values (Q, M), as (Q,)."""
Noise = Callable[[int, int], Tensor]
"""Noise of so many steps, of which the one with a number is the last: (steps, ...), it first."""

_MANY = 256  # alternatives from which on one number for all of them takes less time than noise


def checked_count(count: int, shape: Sequence[int] = ()) -> int:
    """How many draws of so many numbers each, if that can be.

    Raises:
        ModelError: a number below 0, or none.
        BudgetError: they would not fit.
    """
    if not is_whole(count):
        raise ModelError(f"Samples need a count of draws, a whole number >= 0; got {count!r:.80}.")
    require_room(8.0 * count * math.prod(shape), f"{count:,} draws")
    return int(count)


def checked_best(name: str, k: int, shape: Sequence[int]) -> int:
    """How many of the best, of so many numbers each, if that can be.

    Raises:
        ModelError: a number below 1, or none.
        BudgetError: they would not fit.
    """
    if not is_whole(k, 1):
        raise ModelError(f"{name}.k_best needs a whole k >= 1; got {k!r:.80}.")
    require_room(8.0 * k * math.prod(shape), f"The {k:,} best of {name}")
    return int(k)


def largest(logs: Tensor) -> Tensor:
    """The first of the largest entries."""
    return logs.argmax(1)


def require_generator(generator: object) -> None:
    """What draws come from is a generator, or none.

    Raises:
        ModelError: something else.
    """
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ModelError(f"Samples need a torch.Generator, or none; got {generator!r:.80}.")


def drawn(generator: torch.Generator | None) -> Pick:
    """A draw in proportion to the exponentials."""
    require_generator(generator)

    def pick(logs: Tensor) -> Tensor:
        if logs.shape[1] > _MANY:
            return column((logs - logs.amax(1, keepdim=True)).double().exp(), generator)
        return (logs + gumbel(logs.shape, logs.double(), generator)).argmax(1)

    return pick


def gumbel(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard Gumbel noise, finite, in the type and on the device of a tensor.

    From doubles, so that what has a mass of 1e-8 is drawn too.
    """
    numbers = uniform(shape, like.device, generator).clamp_(min=2.0**-54)
    return -(-numbers.log_()).log_().to(like)


def uniform(
    shape: Sequence[int],
    device: torch.device,
    generator: torch.Generator | None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Numbers in [0, 1) on a device, drawn where the generator is."""
    require_generator(generator)
    source = device if generator is None else generator.device
    return torch.rand(shape, generator=generator, dtype=dtype, device=source).to(device)


def column(weights: Tensor, generator: torch.Generator | None) -> Tensor:
    """(n,) a column of each row of weights (n, m), none of weight zero."""
    sums = weights.cumsum(-1)
    target = uniform((len(weights),), sums.device, generator, sums.dtype) * sums[:, -1]
    index = (sums <= target.unsqueeze(1)).sum(1)
    return index.clamp_(max=sums.shape[1] - 1)


def drawn_between(
    sums: Tensor, start: Tensor, stop: Tensor, generator: torch.Generator | None
) -> Tensor:
    """(n,) a place from each start on, before its stop, drawn by running sums of weights."""
    low = torch.where(start > 0, sums[start - 1], 0.0)
    target = low + uniform(low.shape, low.device, generator, low.dtype) * (sums[stop - 1] - low)
    place = torch.searchsorted(sums, target, right=True)
    return torch.minimum(torch.maximum(place, start), stop - 1)
