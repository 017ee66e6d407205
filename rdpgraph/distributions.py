"""Distributions over sequences of states with the interface of `torch.distributions`.

Subclasses of `torch.distributions.Distribution` by structures: `log_prob`, `sample`, `entropy` and
KL divergences.
"""

import math
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, constraints
from torch.distributions.kl import register_kl

from rdpgraph._core.arguments import typed
from rdpgraph._core.masked import filled, is_masked, present
from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph._core.types import broadcast_shapes
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.model.potentials.table import as_values
from rdpgraph.model.soundness import require_possible
from rdpgraph.structures.chain.model import Chain

__all__ = ["HMM", "LinearChain", "StateSequences"]

_EMPTY = torch.Size()


class _BelowInfinity(constraints.Constraint):
    """Matrices of log-values below +inf, which may have no rows."""

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        return (value < math.inf).all(-1).all(-1)


_BELOW_INFINITY = _BelowInfinity()


class StateSequences(constraints.Constraint):
    """Sequences of states 0 to ``states - 1``; states beyond an item's length are free.

    Args:
        states: number of states.
        lengths: (*batch,) steps of each item; None where all are whole.
    """

    is_discrete = True
    event_dim = 1

    @typed(states="[1, inf)")
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
    """Distribution over sequences, p(z) = exp(sum_t u_t(z_t) + sum_{t<T} f_t(z_t, z_{t+1})) / Z.

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
        transition: (states, states) log-potentials, [from, to], for all steps, or (*batch,
            steps - 1, states, states) for each; any other that `Chain` takes.
        lengths: (*batch,) steps of each item; default all.
        temperature: of `rsample`, above zero: nearer to zero is nearer to one-hot.
        validate_args: as for every distribution of torch.

    Raises:
        ModelError: shapes that do not fit, a potential that is NaN or +inf, or a temperature that
            is not positive.
        ValueError: (`log_prob`) validation is on, and a state is out of range.
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
        """Return a most probable sequence of each item, (*batch, steps).

        States beyond the length are -1. Where several sequences are equally probable, it is one of
        them.
        """
        return self.chain.mode()

    def log_prob(self, value: Tensor) -> Tensor:
        """(*lead, *batch) log-probabilities in nats of sequences (*lead, *batch, steps)."""
        value = present("LinearChain's log_prob", value, EvidenceError)
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
        """(*sample_shape, *batch, steps) exact draws, without gradient; 3 stands for ``(3,)``."""
        shape = _size(sample_shape)
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
        shape = _size(sample_shape)
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


def _size(sample_shape: Any) -> torch.Size:
    """The dims of draws, given as a tuple, or as their number."""
    try:
        size = torch.Size((sample_shape,) if is_whole(sample_shape) else sample_shape)
    except TypeError:
        size = torch.Size((-1,))
    if min(size, default=0) < 0:
        raise ModelError(
            "sample takes a number of draws, as 3, or their shape, as (3, 2); got "
            f"{sample_shape!r:.80}."
        )
    return size


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


class _LogSimplex(constraints.Constraint):
    """Vectors of log-probabilities that sum to one."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return value.logsumexp(-1).abs() < 1e-4


_LOG_SIMPLEX = _LogSimplex()


class HMM(Distribution):
    """Distribution of observed sequences, p(x) = sum_z p(z_1) prod_t p(z_t+1 | z_t) p(x_t | z_t).

    Its batch_shape is (*batch,) and its event_shape (length,): an event is a sequence of symbols.
    `posterior` is the distribution of the hidden states given one, and `filter` that of the last
    state. The entropy of the observations and their mode have no tractable form, and are not
    implemented.

    Example:
        >>> import torch
        >>> from rdpgraph.distributions import HMM
        >>> start = torch.tensor([0.5, 0.5]).log()
        >>> transition = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
        >>> emission = torch.tensor([[0.8, 0.2], [0.3, 0.7]]).log()
        >>> hmm = HMM(start, transition, emission, length=3)
        >>> seen = torch.tensor([0, 0, 1])
        >>> hmm.log_prob(seen).exp()
        tensor(0.1091)
        >>> hmm.posterior(seen).mode
        tensor([0, 0, 0])
        >>> hmm.filter(seen).probs
        tensor([0.5045, 0.4955])

    Args:
        start: (*batch, states) log-probabilities of the first state.
        transition: (states, states) log-probabilities [from, to].
        emission: (states, symbols) log-probabilities of what a state shows.
        length: number of steps.
        validate_args: as for every distribution of torch.

    Raises:
        ModelError: shapes that do not fit.
        ValueError: validation is on, and probabilities do not sum to one.
    """

    arg_constraints = {  # noqa: RUF012  # pyright: ignore
        "start": _LOG_SIMPLEX,
        "transition": constraints.independent(_LOG_SIMPLEX, 1),
        "emission": constraints.independent(_LOG_SIMPLEX, 1),
    }

    def __init__(
        self,
        start: Tensor,
        transition: Tensor,
        emission: Tensor,
        *,
        length: int,
        validate_args: bool | None = None,
    ) -> None:
        start, transition, emission = (
            as_values(f"HMM's {name}", given)
            for name, given in (
                ("start", start), ("transition", transition), ("emission", emission),
            )
        )  # fmt: skip
        # The number of states is that of the start.
        states = start.shape[-1] if start.dim() else 0
        if not states or transition.shape != (states, states):
            raise ModelError(
                f"An HMM needs start (*batch, states) and transition (states, states); "
                f"got {tuple(start.shape)} and {tuple(transition.shape)}."
            )
        if emission.dim() != 2 or emission.shape[0] != states:
            raise ModelError(
                f"An HMM of {states} states needs emission ({states}, symbols); "
                f"got {tuple(emission.shape)}."
            )
        if not is_whole(length):
            raise ModelError(f"An HMM needs a length of 0 or more; got {length!r:.80}.")
        self.start, self.transition, self.emission = start, transition, emission
        super().__init__(start.shape[:-1], torch.Size([int(length)]), validate_args)

    @property
    def support(self) -> StateSequences:  # pyright: ignore
        """Sequences of symbols; some may still be of probability zero."""
        return StateSequences(self.emission.shape[-1])

    def posterior(self, observations: Tensor) -> LinearChain:
        """Distribution of the hidden states given observations (*lead, *batch, length).

        A symbol of -1, or one that is masked, is missing and says nothing; where all are missing
        this is the prior. O(T N) memory; its answers take O(T N^2) operations.
        """
        if is_masked(observations):
            observations = torch.as_tensor(filled(observations, -1))
        if self._validate_args:
            self._validate_sample(observations.where(observations != -1, 0))
        lead = broadcast_shapes(observations.shape[:-1], self.batch_shape)
        seen = observations.long().expand(*lead, -1)
        unary = self.emission.t()[seen.clamp(min=0)].where((seen >= 0).unsqueeze(-1), 0)
        first = unary[..., :1, :] + self.start.unsqueeze(-2)
        unary = torch.cat([first, unary[..., 1:, :]], -2)
        return LinearChain(unary, self.transition, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """(*lead, *batch) log-likelihoods in nats, differentiable; symbols of -1 are summed out."""
        return self.posterior(value).chain.log_partition()

    def filter(self, observations: Tensor) -> Categorical:
        """Return the distribution of the last state given all observations, (*lead, *batch).

        Raises:
            ModelError: the length is zero.
            ImpossibleEvidenceError: observations of probability zero.
        """
        if not self.event_shape[0]:
            raise ModelError("An HMM of length 0 has no last state to filter; give it a length.")
        last = self.posterior(observations).chain.filtered()[..., -1, :]
        require_possible("There is no last state", last.sum(-1) > 0)
        return Categorical(last, validate_args=False)

    def sample(
        self, sample_shape: Any = _EMPTY, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(*sample_shape, *batch, length) observations; hidden states are drawn first.

        With T steps, N states and V symbols, O(T N^2) operations once, for the chain of states,
        then O(T N) operations and O(T V) memory for each draw.
        """
        missing = torch.full((*self.batch_shape, *self.event_shape), -1, device=self.start.device)
        states = self.posterior(missing).sample(sample_shape, generator=generator)
        chances = self.emission.detach().exp()[states.flatten()]
        return torch.multinomial(chances, 1, generator=generator).reshape(states.shape)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """The same distribution with its batch dims expanded; no memory is taken."""
        new: Any = self._get_checked_instance(HMM, _instance)
        start = self.start.expand(*batch_shape, self.start.shape[-1])
        HMM.__init__(
            new, start, self.transition, self.emission,
            length=self.event_shape[0], validate_args=False,
        )  # fmt: skip
        new._validate_args = self._validate_args
        return new
