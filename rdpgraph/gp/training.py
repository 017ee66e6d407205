"""Maximise the evidence lower bound; SAGA, an optimiser over items."""

import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rdpgraph._core.arguments import require_fields, typed
from rdpgraph._core.progress import Progress, goes_on
from rdpgraph.errors import ModelError
from rdpgraph.gp.estimators import GradientEstimator
from rdpgraph.gp.inducing import Basis, PaddedGroup
from rdpgraph.gp.likelihoods import Likelihood
from rdpgraph.gp.posterior import Functions, VariationalPosterior
from rdpgraph.plan.clock import stopped


class SAGA(Optimizer):
    """Stochastic gradient descent on an average of items, with a variance that vanishes.

    A step along g_i - old g_i + the average of all old ones, where g_i is the gradient of the item
    in ``.grad`` and old ones come from a table. It converges at a constant learning rate, where
    SGD does not. Items not yet seen are left out of the average. The table takes items times the
    memory of the parameters.

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
        items: the number of items.
        lr: the learning rate, for instance 1 / (3 L) for items of L-Lipschitz gradients.

    Raises:
        ModelError: no items, or a rate that is not positive.
    """

    @typed(items="[1, inf)", lr="(0, inf)")
    def __init__(self, params: Iterable[Any], *, items: int, lr: float) -> None:
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
        if not state["seen"][item]:  # no earlier gradient of the item
            state["seen"][item] = True
            state["sum"] += gradient
            old.copy_(gradient)
            return state["sum"] / state["seen"].sum()
        direction = gradient - old + state["sum"] / state["seen"].sum()
        state["sum"] += gradient - old
        old.copy_(gradient)
        return direction


@dataclass(frozen=True, eq=False)
class EvidenceLowerBound:
    """The evidence lower bound of sequences in groups."""

    posterior: VariationalPosterior
    basis: Basis
    likelihood: Likelihood
    estimator: GradientEstimator

    def expected(
        self,
        group: PaddedGroup,
        generator: torch.Generator | None,
        roots: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """() nats: the expected log-likelihood of a group, summed over its sequences (equation 20).

        ``roots`` are the basis's, where gradients should reach the hyperparameters.
        """
        given = self.basis.reused(group, roots)
        weights = self.posterior.weights()
        total = weights.new_zeros(())
        for component in range(self.posterior.components):
            functions = Functions(self.posterior, given, component)
            each = self.estimator.expected(self.likelihood, group.labels, functions, generator)
            total = total + weights[component] * each.sum()
        return total


_ADAM = partial(torch.optim.Adam, lr=0.1)


@dataclass(frozen=True)
class Training:
    """Steps of an optimiser of torch.

    An optimiser that evaluates the bound several times in a step, as ``torch.optim.LBFGS`` does,
    has the same samples in all evaluations of all steps: it maximises the bound as these estimate
    it, which must be that of all sequences. Gradients of `Reparameterised` are those of that
    estimate; those of `ScoreFunction` are not, and a line search may find no step along them.

    Args:
        steps: the number of steps.
        optimiser: called with the parameters; default ``functools.partial(torch.optim.Adam,
            lr=0.1)``. A ``functools.partial`` of `SAGA` is also given ``items``, the number of
            groups of sequences that are visited in turn.
        sequences: in a step; None for all of them. They are grouped by length, and the groups are
            visited in random order.
        decay: lower the learning rate to zero, linearly over the second half.
        kernel_every: update the hyperparameters of the kernels in one of so many steps, which costs
            O(M^3 + N M^2) for the covariances; 0: never. Kernels that are ``fixed()`` have none.
        seconds: no step begins after so many, by the clock; None for no limit.
        progress: called with a `Progress` after each step, its value the estimate of the bound.

    Raises:
        ModelError: steps or sequences below 1, kernel_every below 0 or above the steps; in
            training, sequences or kernel_every above 1 with an optimiser that evaluates several
            times.
    """

    steps: int = 100
    optimiser: Callable[..., Optimizer] = _ADAM
    sequences: int | None = None
    decay: bool = True
    kernel_every: int = 0
    seconds: float | None = None
    progress: Callable[[Progress], object] | None = None

    def __post_init__(self) -> None:
        whole = "[1, inf)"
        require_fields(self, steps=whole, sequences=whole, kernel_every="[0, inf)")
        if self.kernel_every > self.steps:
            raise ModelError(
                f"Training of {self.steps} steps never updates a kernel with "
                f"kernel_every={self.kernel_every}; give at most {self.steps}, or 0 for never."
            )

    def run(
        self,
        objective: EvidenceLowerBound,
        groups: list[PaddedGroup],
        generator: torch.Generator | None,
    ) -> list[float]:
        """Maximise the bound; its estimates, one for each step."""
        parameters = [one for one in objective.posterior.parameters() if one.requires_grad]
        kernels = torch.nn.ModuleList(objective.basis.kernels)
        kernel = [one for one in kernels.parameters() if one.requires_grad]
        learned = kernel if self.kernel_every else []
        # SAGA keeps a gradient of each group. Who evaluates again needs the same draws.
        saga = isinstance(self.optimiser, partial) and self.optimiser.func is SAGA
        items = {"items": len(groups) if self.sequences else 1} if saga else {}
        optimiser = self.optimiser([*parameters, *learned], **items)
        again = self._evaluates_again(optimiser)
        if again and generator is None:
            generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        drawn = generator.get_state() if again and generator is not None else None
        rates = [group["lr"] for group in optimiser.param_groups]
        bounds: list[float] = []
        order: list[int] = []
        begun = time.monotonic()
        for step in range(self.steps):
            if self.seconds is not None and time.monotonic() - begun > self.seconds:
                break
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                # The rate is constant in the first half and goes to zero in the second.
                left = 1 - step / self.steps
                group["lr"] = rate * (min(1.0, 2 * left) if self.decay else 1.0)
            moving = bool(learned) and step % self.kernel_every == self.kernel_every - 1
            # A stochastic step takes one group, each once in a random order.
            if self.sequences is not None and not order:
                device = "cpu" if generator is None else generator.device
                order = torch.randperm(len(groups), generator=generator, device=device).tolist()
            item = order.pop() if order else None
            evaluate = partial(
                _loss, optimiser, objective, groups, item, generator, moving=moving, drawn=drawn
            )
            try:
                bounds.append(-_stepped(optimiser, evaluate, item, again=again))
            except ModelError as error:
                if not step:
                    raise
                raise ModelError(
                    f"Training diverged at step {step + 1}: {error} Use a smaller learning rate."
                ) from None
            if moving:
                objective.basis.forget()
            told = Progress("steps", step + 1, bounds[-1], time.monotonic() - begun)
            if not goes_on(self.progress, told) or stopped():
                break
        return bounds

    def _evaluates_again(self, optimiser: Optimizer) -> bool:
        """Return whether a step needs a closure; refuse what would change between evaluations."""
        closure = inspect.signature(optimiser.step).parameters.get("closure")
        if closure is None or closure.default is not inspect.Parameter.empty:
            return False
        name = type(optimiser).__name__
        if self.sequences is not None or self.kernel_every > 1:
            raise ModelError(
                f"{name} evaluates the bound of all sequences several times in each step: leave "
                f"out sequences={self.sequences}, and give kernel_every of 0 or 1; got "
                f"{self.kernel_every}."
            )
        return True


def _stepped(
    optimiser: Optimizer, evaluate: Callable[[], float], item: int | None, *, again: bool
) -> float:
    """Take a step, and return the loss before it; ``again``: it evaluates that itself."""
    losses: list[float] = []
    step: Any = optimiser.step

    def closure() -> Any:
        losses.append(evaluate())
        return losses[-1]

    if again:
        step(closure)
    else:
        closure()
        step(**({"item": item or 0} if isinstance(optimiser, SAGA) else {}))
    return losses[0]


def _loss(
    optimiser: Optimizer,
    objective: EvidenceLowerBound,
    groups: list[PaddedGroup],
    item: int | None,
    generator: torch.Generator | None,
    *,
    moving: bool,
    drawn: Tensor | None,
) -> float:
    """Minus the bound, with its gradients in the parameters; ``drawn`` begins the samples again."""
    if drawn is not None and generator is not None:
        generator.set_state(drawn)
    optimiser.zero_grad(set_to_none=True)
    return -_bound(objective, groups, item, generator, moving=moving)


def _bound(
    objective: EvidenceLowerBound,
    groups: list[PaddedGroup],
    item: int | None,
    generator: torch.Generator | None,
    *,
    moving: bool,
) -> float:
    """The bound, of all groups or estimated from one; gradients of its negative add up.

    Backward runs group by group to save memory.
    """
    roots = objective.basis.roots() if moving else None
    chosen = groups if item is None else [groups[item]]
    divergence = objective.posterior.divergence()
    divergence.backward()
    total = -divergence.item()
    for left, group in zip(range(len(chosen) - 1, -1, -1), chosen, strict=True):
        expected = objective.expected(group, generator, roots) * (len(groups) / len(chosen))
        (-expected).backward(retain_graph=moving and left > 0)
        total += expected.item()
    return total
