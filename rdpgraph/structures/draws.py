"""Choices among alternatives: maxima, the k best, draws by noise, and relaxed ones."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.masked import present
from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph.errors import ModelError
from rdpgraph.model.graph import FactorGraph

Pick = Callable[[Tensor], Tensor]
"""Chooses an entry of each row of log-values (Q, M), as (Q,)."""


@dataclass(frozen=True, eq=False)
class KBestConfigurations:
    """The configurations of largest score, best first.

    Attributes:
        states: (k, *batch, *sites), -1 at unused sites, and throughout where there are fewer.
        scores: (k, *batch) nats, of the derivations, unnormalised; -inf where there are fewer.
    """

    states: Tensor
    scores: Tensor


def checked_count(count: int, shape: Sequence[int] = ()) -> int:
    """A valid number of draws of a shape; else `ModelError`, or `BudgetError` if too large."""
    if not is_whole(count):
        raise ModelError(f"Samples need a count of draws, a whole number >= 0; got {count!r:.80}.")
    from rdpgraph.plan.plan import require_room  # chains are declared without plans

    require_room(8.0 * count * math.prod(shape), f"{count:,} draws")
    return int(count)


def checked_best(name: str, k: int, shape: Sequence[int]) -> int:
    """Return k if it is valid for the k best of a shape.

    It raises `ModelError` if k is no whole number above 0, and `BudgetError` if the answer would
    not fit.
    """
    if not is_whole(k, 1):
        raise ModelError(f"{name}.k_best needs a whole k >= 1; got {k!r:.80}.")
    from rdpgraph.plan.plan import require_room

    require_room(8.0 * k * math.prod(shape), f"The {k:,} best of {name}")
    return int(k)


def largest(logs: Tensor) -> Tensor:
    """The index of the first maximum of each row."""
    return logs.argmax(1)


def require_generator(generator: object) -> None:
    """Require a `torch.Generator` or None; else `ModelError`."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ModelError(f"Samples need a torch.Generator, or none; got {generator!r:.80}.")


def drawn(generator: torch.Generator | None) -> Pick:
    """Return a function that draws a column of each row of log-weights (n, m).

    Columns are drawn in proportion to the exponentials.
    """
    require_generator(generator)

    def pick(logs: Tensor) -> Tensor:
        if logs.shape[1] > tuning.NOISY_ALTERNATIVES:
            return column((logs - logs.amax(1, keepdim=True)).double().exp(), generator)
        return (logs + gumbel(logs.shape, logs.double(), generator)).argmax(1)

    return pick


def gumbel(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard Gumbel noise, finite, in the type and on the device of a tensor.

    Made from doubles, so that a state of mass 1e-8 is drawn too.
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
    """Draw a column of each row of weights (n, m), in proportion to them; return (n,).

    A column of weight zero is never drawn.
    """
    sums = weights.cumsum(-1)
    target = uniform((len(weights),), sums.device, generator, sums.dtype) * sums[:, -1]
    index = (sums <= target.unsqueeze(1)).sum(1)
    return index.clamp_(max=sums.shape[1] - 1)


def checked_temperature(temperature: float) -> None:
    """Check that a temperature is positive and finite."""
    if not is_real(temperature) or not 0 < temperature < math.inf:
        raise ModelError(
            f"Relaxed samples need a temperature above 0, and finite; got {temperature!r:.80}. "
            "Exact draws, which are what it becomes at 0, are given by sample(count)."
        )


def perturbed(
    unary: Tensor, count: int, temperature: float, generator: torch.Generator | None
) -> Tensor:
    """(count, *shape) potentials with Gumbel noise.

    Their marginals at a temperature are a stochastic softmax (Paulus et al. 2020,
    arXiv:2006.08063).
    """
    checked_temperature(temperature)
    return unary + gumbel((checked_count(count, unary.shape), *unary.shape), unary, generator)


def perturbed_graph(
    graph: FactorGraph, temperature: float, generator: torch.Generator | None
) -> FactorGraph:
    """A graph with Gumbel noise at each state, at a temperature, for a stochastic softmax."""
    checked_temperature(temperature)
    like = torch.zeros((), dtype=graph.dtype, device=graph.device)
    noise = gumbel((*graph.batch_shape, graph.domain.total_states), like, generator)
    from rdpgraph.model.rewrites import tempered

    return tempered(graph, temperature, noise)


def straight_through(relaxed: Tensor) -> Tensor:
    """Return one-hot vectors of the argmax, which pass their gradients on to ``relaxed``.

    Vectors of zeros, as those beyond a length, stay zeros. The gradient is that of the relaxed
    vectors, so it is biased for what is computed from the hard ones (Bengio, Leonard and Courville
    2013, arXiv:1308.3432; Jang, Gu and Poole 2017, arXiv:1611.01144, section 2.2).

    Args:
        relaxed: (..., N) non-negative weights.

    Example:
        >>> straight_through(torch.tensor([[0.2, 0.7, 0.1], [0.0, 0.0, 0.0]]))
        tensor([[0., 1., 0.],
                [0., 0., 0.]])
    """
    relaxed = present("straight_through's weights", relaxed)
    if not isinstance(relaxed, Tensor) or not relaxed.is_floating_point():
        raise ModelError(f"straight_through needs a floating tensor (..., N); got {relaxed!r:.80}.")
    return _Hard.apply(relaxed)  # pyright: ignore[reportReturnType]


class _Hard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, relaxed: Tensor) -> Tensor:  # noqa: ARG004
        hard = torch.zeros_like(relaxed)
        if relaxed.numel() == 0:
            return hard
        peak, place = relaxed.max(-1, keepdim=True)
        return hard.scatter_(-1, place, (peak > 0).to(relaxed))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return gradients[0]
