"""Pairwise potentials of low rank, or from embeddings of the states."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph._core.cache import differentiable_property
from rdpgraph._core.numbers import are_finite, flushed
from rdpgraph._core.types import ArrayLike, broadcast_shapes
from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.logspace.gradients import is_transformed
from rdpgraph.logspace.logmatrix import LogMatrix, log_products, soft_sum
from rdpgraph.model.potentials.potential import Stored, message_lead, select_lead
from rdpgraph.model.potentials.table import as_values, checked_log_table, is_every, settle


@dataclass(frozen=True, eq=False)
class Bilinear(Stored):
    """A pairwise potential: the inner product of the embeddings of two states (nats).

    ``log value(i, j) = left[i] . right[j]``: Fu, Cunningham and Lapata 2022, eq. 31. On m states
    of one slot and n of the other it costs O(m n d), without a table of all states in either
    direction; so it serves estimators that keep a few of a million states.

    Args:
        left: (*lead, N, d) embeddings of the first slot's states; leading dims are batch dims or
            factors of a block. Gradients flow to it.
        right: (*lead, M, d) those of the second slot's; the leads broadcast.

    Raises:
        ModelError: not floating, not finite, or the shapes do not fit each other.

    Example:
        >>> states = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> Bilinear(states, states).table(2).tolist()
        [[1.0, 1.0], [1.0, 2.0]]
    """

    left: Tensor
    right: Tensor
    stored = "left"

    if TYPE_CHECKING:  # accepted types, converted to those of the fields

        def __init__(self, left: ArrayLike, right: ArrayLike) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "left", "right")
        for name, values in (("left", self.left), ("right", self.right)):
            checked = as_values(f"Bilinear's {name}", values)
            if checked.ndim < 2:
                raise ModelError(
                    f"Bilinear needs floating embeddings (..., states, d); {name} is "
                    f"{tuple(values.shape)}."
                )
            if not are_finite(values.detach()):
                raise ModelError(
                    f"Bilinear needs finite embeddings; {name} holds an infinity or NaN. Hard "
                    "zeros belong into a separate factor, such as a Sparse or a unary Table."
                )
        _require_pair("Bilinear", "embeddings of one length", self.left, self.right)

    @property
    def shape(self) -> tuple[int, ...]:
        lead = broadcast_shapes(self.left.shape[:-2], self.right.shape[:-2])
        return (*lead, self.left.shape[-2], self.right.shape[-2])

    def table(self, arity: int) -> Tensor:
        return _inner_products(self.left, self.right)

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states: O(grid d) time, O(grid + states d) memory."""
        first, second = states
        return _inner_products(rows_of(self.left, first), rows_of(self.right, second))

    def select(self, block: tuple[int, ...], rows: Tensor | None, arity: int) -> "Bilinear":
        chosen = (
            select_lead(values, trailing=2, block=block, rows=rows)
            for values in (self.left, self.right)
        )
        return Bilinear(*chosen)

    def norms(self, slot: int) -> Tensor:
        """(*lead, states) L1 norms of the embeddings of a slot's states, without gradient."""
        return (self.left, self.right)[slot].detach().abs().sum(-1)


def _inner_products(left: Tensor, right: Tensor) -> Tensor:
    """(*lead, m, n) the inner products of rows, whose gradient loses its subnormal numbers.

    The gradient is multiplied by both sides. It holds probabilities of pairs of states, of which
    sharp models have many below the normal numbers, and the products would take many times longer.
    """
    values = left @ right.mT
    if not values.requires_grad or not values.is_cpu or torch.compiler.is_compiling():
        return values
    if not is_transformed(values):
        # Where nothing depends on the values, the gradient is None.
        values.register_hook(lambda above: None if above is None else flushed(above))
    return values


def _require_pair(name: str, what: str, left: Tensor, right: Tensor, *, least: int = 0) -> None:
    """Refuse (..., N, d) and (..., M, d) that do not fit each other."""
    shapes = tuple(left.shape), tuple(right.shape)
    if shapes[0][-1] != shapes[1][-1] or shapes[0][-1] < least:
        raise ModelError(f"{name} needs {what}; got {shapes}.")
    if (left.dtype, left.device) != (right.dtype, right.device):
        kind = what.partition(" ")[0]
        raise ModelError(f"{name} needs {kind} of one dtype, on one device.")
    try:
        broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
    except RuntimeError:
        raise ModelError(f"{name} needs leading dims that broadcast; got {shapes}.") from None


def rows_of(embeddings: Tensor, states: Tensor) -> Tensor:
    """(*lead, m, d) the embeddings of some states, the leads of both broadcast."""
    states, lead = states.to(embeddings.device), embeddings.shape[:-2]
    if lead.numel() == 1:
        embeddings, lead = embeddings.reshape(embeddings.shape[-2:]), ()
    if is_every(states, embeddings.shape[-2]):
        return embeddings
    index: list[Tensor] = []
    for dim, size in enumerate(lead):
        # Not expanded: the gradient of an expanded tensor would be as large as the result.
        places = torch.arange(size, device=embeddings.device)
        index.append(places.reshape(-1, *(1,) * (len(lead) - dim)))
    return embeddings[(*index, states)]


@dataclass(frozen=True, eq=False)
class LowRank(Stored):
    """A pairwise potential: the inner product of non-negative factors of two states.

    ``value(i, j) = sum_k exp(log_left[i, k] + log_right[j, k])``. Sum-product messages cost
    O((N + M) r), and a `Chain` with such a transition O(T N r); `LowRankFactors` makes k a
    variable, for contraction on any graph. Maxima over states are taken over all N M values,
    formed in blocks.

    Args:
        log_left: (*lead, N, r) logs of the factors of the first slot's states (nats); -inf is a
            factor of zero. Leading dims are batch dims or factors of a block. Gradients flow to
            it.
        log_right: (*lead, M, r) those of the second slot's; the leads broadcast.

    Raises:
        ModelError: not floating, NaN or +inf, or the shapes do not fit each other.

    Source: Chiu, Deng and Rush 2021, "Low-rank constraints for fast inference in structured
    models" (arXiv:2201.02715).

    Example:
        >>> factors = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> LowRank(factors.log(), factors.log()).table(2).exp()
        tensor([[1., 1.],
                [1., 2.]])
    """

    log_left: Tensor
    log_right: Tensor
    stored = "log_left"

    if TYPE_CHECKING:  # accepted types, converted to those of the fields

        def __init__(self, log_left: ArrayLike, log_right: ArrayLike) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "log_left", "log_right")
        for name, values in (("log_left", self.log_left), ("log_right", self.log_right)):
            checked_log_table(f"LowRank's {name}", values)
            if values.ndim < 2:
                raise ModelError(
                    f"LowRank needs log-factors (..., states, r); {name} is {tuple(values.shape)}."
                )
        what = "log-factors of one rank, at least 1"
        _require_pair("LowRank", what, self.log_left, self.log_right, least=1)

    @classmethod
    def normalised(cls, log_left: Tensor, log_right: Tensor) -> "LowRank":
        """The log-probabilities of the second state given the first: each row sums to one.

        ``p(j | i) = sum_k p(k | i) p(j | k)`` in proportion to the values given, row by row:
        ``value(i, j) / sum_j value(i, j)``. Exact, in O((N + M) r). Both factors are themselves
        log-probabilities. Chiu 2021, "Random Fourier features for scaling MRFs", eq. 6.

        Args:
            log_left: (*lead, N, r) log-factors, as for the class.
            log_right: (*lead, M, r).

        Raises:
            ModelError: as for the class, or a row without a possible state.
        """
        plain = cls(log_left, log_right)
        columns = soft_sum(plain.log_right, -2).unsqueeze(-2)  # s of eq. 6
        alive = columns > -math.inf
        shift = torch.where(alive, columns, 0.0)
        left = torch.where(alive, plain.log_left + shift, -math.inf)
        rows = soft_sum(left, -1).unsqueeze(-1)
        if not bool((rows.detach() > -math.inf).all()):
            raise ModelError("LowRank.normalised needs a possible second state for every first.")
        return cls(left - rows, torch.where(alive, plain.log_right - shift, -math.inf))

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """The log-factors of both slots."""
        return self.log_left, self.log_right

    def replaced(self, tensors: Sequence[Tensor]) -> "LowRank":
        """The same with other log-factors."""
        return LowRank(*tensors)

    def turned(self) -> "LowRank":
        """The same with both slots exchanged."""
        return LowRank(self.log_right, self.log_left)

    def sums(self, rows: Tensor) -> Tensor:
        """``logsumexp_i(rows_i + value_ij)``, (*lead, N) as (*lead, M), in O((N + M) r)."""
        return _through(self.log_left, self.log_right, rows)

    @differentiable_property
    def from_ranks(self) -> LogMatrix:
        """(*lead, N, r) the factors of the first slot, for products with logs of ranks."""
        return LogMatrix.of(self.log_left)

    @property
    def rank(self) -> int:
        """The number of terms, r."""
        return self.log_left.shape[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        lead = broadcast_shapes(self.log_left.shape[:-2], self.log_right.shape[:-2])
        return (*lead, self.log_left.shape[-2], self.log_right.shape[-2])

    def table(self, arity: int) -> Tensor:
        """The log-values (*lead, N, M), in O(N M r).

        Raises:
            BudgetError: more than 2^30 of them.
        """
        entries = math.prod(self.shape)
        if entries > tuning.MOST_DENSE:
            raise BudgetError(
                f"LowRank of shape {self.shape} has {entries:,} values, and at most "
                f"{tuning.MOST_DENSE:,} are written out; the estimator LowRankFactors() needs no "
                "table for log Z, marginals and samples, and randomized estimators need only the "
                "values of a few states."
            )
        return log_products(self.log_left, self.log_right)

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states: O(grid r) time, O(grid + states r) memory."""
        kept = self.rows(states[0], states[1])
        return log_products(kept.log_left, kept.log_right)

    def rows(self, first: Tensor, second: Tensor) -> "LowRank":
        """The potential on some states: (*lead, m) and (*lead, n), leads broadcast."""
        return LowRank(rows_of(self.log_left, first), rows_of(self.log_right, second))

    def select(self, block: tuple[int, ...], rows: Tensor | None, arity: int) -> "LowRank":
        chosen = (
            select_lead(values, trailing=2, block=block, rows=rows)
            for values in (self.log_left, self.log_right)
        )
        return LowRank(*chosen)

    def messages(
        self, incoming: Sequence[Tensor], *, temperature: float | Tensor = 1.0
    ) -> tuple[Tensor, ...]:
        """Log-messages to both slots; at temperature 1.0 in O((N + M) r) and exact.

        At any other temperature, 0 included, all N M values are formed, in blocks that the
        gradient recomputes. Arguments, result and errors as for `Potential.messages`.
        """
        lead = message_lead(self, incoming, temperature)
        first, second = incoming
        left, right = self.log_left, self.log_right
        if not isinstance(temperature, Tensor) and temperature == 1.0:
            messages = (_through(right, left, second), _through(left, right, first))
        else:
            messages = (
                _reduced(left, right, second, temperature),
                _reduced(right, left, first, temperature),
            )
        return tuple(values.expand(*lead, -1) for values in messages)


def _through(source: Tensor, target: Tensor, message: Tensor) -> Tensor:
    """(*lead, N) messages from (*lead, M), by way of the rank."""
    ranks = LogMatrix.of(source.mT).times(message.unsqueeze(-2))
    return LogMatrix.of(target).times(ranks).squeeze(-2)


def _reduced(
    target: Tensor, source: Tensor, message: Tensor, temperature: float | Tensor
) -> Tensor:
    """``temperature * logsumexp_j((values_ij + message_j) / temperature)``, in blocks of rows."""
    if isinstance(temperature, Tensor):
        temperature = temperature.reshape(*temperature.shape, 1, 1)
    lead = broadcast_shapes(target.shape[:-2], source.shape[:-2], message.shape[:-1])
    width = tuning.per_block(math.prod(lead) * source.shape[-2], tuning.BLOCK)
    matrix = LogMatrix.of(source)

    def part(block: Tensor, arriving: Tensor) -> Tensor:
        return soft_sum(matrix.times(block) + arriving.unsqueeze(-2), -1, temperature)

    blocks = target.split(width, -2)
    if len(blocks) == 1:
        return part(target, message)
    again: Callable[..., Tensor] = part
    if torch.is_grad_enabled():
        again = partial(checkpoint, part, use_reentrant=False)  # pyright: ignore
    return torch.cat([again(block, message) for block in blocks], -1)
