"""A linear chain as a distribution of torch's kind."""

import math
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.kl import register_kl

from rdpgraph._numbers import is_real
from rdpgraph._shapes import broadcast_shapes
from rdpgraph.errors import ModelError
from rdpgraph.structures.chain.model import Chain

_EMPTY = torch.Size()
_BELOW_INFINITY = constraints.independent(constraints.less_than(math.inf), 2)


class StateSequences(constraints.Constraint):
    """Sequences of states 0 to ``states - 1``; what stands beyond an item's length is free.

    Args:
        states: number of states.
        lengths: (*batch,) steps of each item; None where all are whole.
    """

    is_discrete = True
    event_dim = 1

    def __init__(self, states: int, lengths: Tensor | None = None) -> None:
        self.states = states
        self.lengths = lengths
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """(*lead, *batch) whether each sequence is one."""
        good = (value % 1 == 0) & (value >= 0) & (value < self.states)
        if self.lengths is not None:
            steps = torch.arange(value.shape[-1], device=value.device)
            good = good | (steps >= self.lengths.unsqueeze(-1))
        return good.all(-1)

    def __repr__(self) -> str:
        return f"StateSequences(states={self.states})"


class LinearChain(Distribution):
    """Distribution over sequences of states, p(z) = exp(sum_t u_t(z_t) + phi_t(z_t, z_t+1)) / Z.

    Its batch_shape is (*batch,) and its event_shape (steps,). `chain` is the `Chain` it stands on,
    for log Z, marginals, the k best sequences and the rest. log_prob, entropy, the KL divergence
    and `rsample` are differentiable in unary and transition.

    Steps beyond an item's length are no part of its event: draws hold -1 there (relaxed draws 0),
    and log_prob reads nothing there.

    Example:
        >>> import torch
        >>> from rdpgraph.distributions import LinearChain
        >>> agree = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> chain = LinearChain(torch.zeros(3, 2), agree)
        >>> chain.log_prob(torch.tensor([0, 0, 0]))
        tensor(-1.3197)
        >>> chain.event_shape, chain.rsample((5,)).shape
        (torch.Size([3]), torch.Size([5, 3, 2]))

    Args:
        unary: (*batch, steps, states) log-potentials in nats; -inf forbids.
        transition: log-potentials [from, to], of a shape that `Chain` takes.
        lengths: (*batch,) steps of each item; default all.
        temperature: of `rsample`, above zero: nearer to zero is nearer to one-hot.
        validate_args: as for every distribution of torch.

    Raises:
        ModelError: shapes that do not fit, or a temperature that is not positive.
        ValueError: validation is on, and a potential is NaN or +inf.
    """

    has_rsample = True

    def __init__(
        self,
        unary: Tensor,
        transition: Any,
        *,
        lengths: Tensor | None = None,
        temperature: float = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        if not is_real(temperature) or not temperature > 0:
            raise ModelError(
                f"The temperature of relaxed draws must be positive; got {temperature!r:.80}."
            )
        self.chain = Chain(unary, transition, lengths=lengths)
        self.unary = unary = self.chain.unary
        self.transition = self.chain.transition
        self.temperature = temperature
        super().__init__(unary.shape[:-2], unary.shape[-2:-1], validate_args)

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:  # pyright: ignore
        """Log-potentials below +inf; a `Potential` as transition is not looked at."""
        names = ("unary", "transition")
        return {name: _BELOW_INFINITY for name in names if isinstance(getattr(self, name), Tensor)}

    @property
    def support(self) -> StateSequences:  # pyright: ignore
        """Sequences of states; some may still be of probability zero."""
        return StateSequences(self.unary.shape[-1], self.chain.lengths)

    @property
    def mode(self) -> Tensor:
        """(*batch, steps) one most probable sequence."""
        return self.chain.mode()

    def log_prob(self, value: Tensor) -> Tensor:
        """(*lead, *batch) log-probabilities in nats of sequences (*lead, *batch, steps)."""
        if self._validate_args:
            self._validate_sample(value)
        lead = broadcast_shapes(value.shape[:-1], self.batch_shape)
        return self.chain.log_prob(value.long().expand(*lead, -1))

    def entropy(self) -> Tensor:
        """(*batch,) entropies in nats."""
        return self.chain.entropy()

    def sample(
        self, sample_shape: Any = _EMPTY, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(*sample_shape, *batch, steps) exact draws, without gradient."""
        shape = torch.Size(sample_shape)
        with torch.no_grad():
            draws = self.chain.sample(shape.numel(), generator)
        return draws.reshape(*shape, *draws.shape[1:])

    def rsample(
        self, sample_shape: Any = _EMPTY, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(*sample_shape, *batch, steps, states) relaxed one-hot draws, with gradient.

        These are not of the support's shape: log_prob does not take them. Their argmax is an exact
        draw; `rdpgraph.straight_through` makes them one-hot and keeps the gradient.
        """
        shape = torch.Size(sample_shape)
        draws = self.chain.rsample(shape.numel(), temperature=self.temperature, generator=generator)
        return draws.reshape(*shape, *draws.shape[1:])

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """The same distribution with its batch dims expanded; no memory is taken."""
        new: Any = self._get_checked_instance(LinearChain, _instance)
        unary = self.unary.expand(*batch_shape, *self.unary.shape[-2:])
        lengths = self.chain.lengths
        LinearChain.__init__(
            new, unary, self.transition,
            lengths=None if lengths is None else lengths.expand(batch_shape),
            temperature=self.temperature, validate_args=False,
        )  # fmt: skip
        new._validate_args = self._validate_args
        return new


@register_kl(LinearChain, LinearChain)
def _kl_divergence(left: LinearChain, right: LinearChain) -> Tensor:  # pyright: ignore
    """(*batch,) KL(left || right) in nats; +inf where right forbids what left allows."""
    if left.event_shape != right.event_shape:
        raise ModelError(
            f"A KL divergence needs chains of the same number of steps; got "
            f"{left.event_shape[0]} and {right.event_shape[0]}."
        )
    batch = broadcast_shapes(left.batch_shape, right.batch_shape)
    return left.expand(batch).chain.kl_divergence(right.expand(batch).chain)
