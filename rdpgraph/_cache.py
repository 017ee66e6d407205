"""Answers that are computed once."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Value = TypeVar("Value")


class differentiable_property(Generic[Value]):
    """A cached property of tensors that may be differentiated.

    One that was computed without gradients is computed again where they are wanted: what a sample
    under ``torch.no_grad()`` left behind does not cut the graph of a later answer.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.keys = f"{name} with gradient", f"{name} without"

    def __get__(self, instance: Any, owner: type | None = None) -> Value:
        if instance is None:
            return self  # pyright: ignore[reportReturnType]
        kept, (tracked, untracked) = instance.__dict__, self.keys
        if tracked in kept:
            return kept[tracked]
        if torch.is_grad_enabled():
            kept[tracked] = self.compute(instance)
            kept.pop(untracked, None)
            return kept[tracked]
        if untracked not in kept:
            kept[untracked] = self.compute(instance)
        return kept[untracked]
