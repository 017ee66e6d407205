"""SAGA: steps along the gradient of one item, corrected by what all items' were when last seen."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rdpgraph._numbers import is_real, is_whole
from rdpgraph.errors import ModelError


class SAGA(Optimizer):
    """Descent on an average of items, one at a time, with a variance that vanishes.

    A step along g_i - old g_i + the average of all old ones, where g_i is the gradient of the item
    in ``.grad`` and old ones come from a table. It converges at a constant learning rate, where
    SGD does not. Until an item is seen its entry is zero and no part of the average. The table
    holds a copy of the parameters for every item: items times their size in memory.

    Defazio, Bach and Lacoste-Julien 2014, "SAGA: a fast incremental gradient method", equation 1.

    Example:
        >>> position = torch.nn.Parameter(torch.tensor(0.0))
        >>> optimiser = SAGA([position], items=2, lr=0.3)
        >>> for step in range(100):
        ...     optimiser.zero_grad()
        ...     (position - (1.0, 3.0)[step % 2]).square().backward()
        ...     optimiser.step(item=step % 2)
        >>> position.detach()
        tensor(2.)

    Args:
        params: parameters, or groups of them.
        items: how many there are.
        lr: the learning rate, for instance 1 / (3 L) for items of L-Lipschitz gradients.

    Raises:
        ModelError: no items, or a rate that is not positive.
    """

    def __init__(self, params: Iterable[Any], *, items: int, lr: float) -> None:
        if not is_whole(items, 1) or not is_real(lr) or not lr > 0:
            raise ModelError(
                f"SAGA needs items and a rate above 0; got items={items!r}, lr={lr!r}."
            )
        super().__init__(params, {"lr": lr})
        self.items = items

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], Tensor] | None = None, *, item: int = 0
    ) -> Tensor | None:
        """Move along the gradient in ``.grad``, that of one item.

        Args:
            closure: computes the gradient, and returns the loss.
            item: whose gradient it is, from 0.

        Raises:
            ModelError: an item out of range.
        """
        if not 0 <= item < self.items:
            raise ModelError(f"SAGA over {self.items} items got the gradient of item {item}.")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * self._direction(parameter, item))
        return loss

    def _direction(self, parameter: Tensor, item: int) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["table"] = parameter.new_zeros(self.items, *parameter.shape)
            state["sum"] = torch.zeros_like(parameter)
            state["seen"] = torch.zeros(self.items, dtype=torch.bool, device=parameter.device)
        gradient, old = parameter.grad, state["table"][item]
        assert gradient is not None
        if not state["seen"][item]:  # an item's first gradient has nothing to be compared with
            state["seen"][item] = True
            state["sum"] += gradient
            old.copy_(gradient)
            return state["sum"] / state["seen"].sum()
        direction = gradient - old + state["sum"] / state["seen"].sum()
        state["sum"] += gradient - old
        old.copy_(gradient)
        return direction
