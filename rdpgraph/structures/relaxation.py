"""Relaxed samples: noise at a temperature, and one-hot vectors made hard with their gradient."""

import math
from typing import Any

import torch
from torch import Tensor

from rdpgraph._numbers import is_real
from rdpgraph.errors import ModelError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.tempered import tempered
from rdpgraph.structures.draws import checked_count, gumbel


def checked_temperature(temperature: float) -> None:
    """Above 0, and finite."""
    if not is_real(temperature) or not 0 < temperature < math.inf:
        raise ModelError(
            f"Relaxed samples need a temperature above 0, and finite; got {temperature!r:.80}. "
            "Exact draws, which are what it becomes at 0, are given by sample(count)."
        )


def perturbed(
    unary: Tensor,
    lengths: Tensor | None,
    *,
    count: int,
    temperature: float,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor | None]:
    """(count, *shape) potentials with Gumbel noise, at a temperature, and the lengths for them.

    What remains of a stochastic softmax (Paulus et al. 2020, arXiv:2006.08063) are the marginals.

    Raises:
        ModelError: a temperature that is not above 0.
    """
    checked_temperature(temperature)
    noise = gumbel((checked_count(count, unary.shape), *unary.shape), unary, generator)
    many = None if lengths is None else lengths.expand(count, *lengths.shape)
    return (unary + noise) / temperature, many


def perturbed_graph(
    graph: FactorGraph, temperature: float, generator: torch.Generator | None
) -> FactorGraph:
    """A graph with Gumbel noise at each state of each variable, at a temperature.

    Its marginals are a stochastic softmax, one for each batch item.

    Raises:
        ModelError: a temperature that is not above 0.
    """
    checked_temperature(temperature)
    like = torch.zeros((), dtype=graph.dtype, device=graph.device)
    noise = gumbel((*graph.batch_shape, graph.domain.total_states), like, generator)
    return tempered(graph, temperature, noise)


def straight_through(relaxed: Tensor) -> Tensor:
    """One-hot vectors of the argmax forwards, the gradient of ``relaxed`` backwards.

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
    if not isinstance(relaxed, Tensor):
        raise ModelError(f"straight_through needs a tensor (..., N); got {relaxed!r:.80}.")
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
