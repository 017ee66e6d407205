"""Relaxed one-hot vectors made hard, their gradient kept."""

from typing import Any

import torch
from torch import Tensor


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
