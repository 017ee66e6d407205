"""Parameters that are fitted to data, tables of probabilities among them, and batches of data."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core import tuning
from rdpgraph._core.masked import present
from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.logspace.logmatrix import safe_log
from rdpgraph.plan.plan import require_room

_TOLERANCE = 1e-3
"""Tolerance of the sums of given probabilities."""


class Parameter(ABC):
    """A quantity that `EM` fits: a tensor for the model, maximised from its counts.

    The counts are the gradient of the log-likelihood in that tensor: expected numbers of uses,
    where the tensor holds log-values that the model adds up.
    """

    @abstractmethod
    def value(self, rows: Any) -> Tensor:
        """The tensor for a batch of rows: a log-table, or log-likelihoods of rows by states."""

    def statistics(self, rows: Any, counts: Tensor) -> tuple[Tensor, ...]:
        """Sufficient statistics of a batch, which add up over batches; default: the counts.

        Args:
            rows: the batch.
            counts: of the shape of `value`: the gradient of the weighted log-likelihood in it.
        """
        del rows
        return (counts,)

    @abstractmethod
    def maximised(self, statistics: tuple[Tensor, ...]) -> Self:
        """The parameter that maximises the expected log-likelihood plus the log-prior.

        Raises:
            ModelError: there is none, as where a table or a state has lost all mass.
        """

    @property
    def size(self) -> int:
        """The number of free parameters, which `aic` and `bic` count; default: all of `free`."""
        return sum(tensor.numel() for tensor in self.free())

    def log_prior(self) -> Tensor:
        """() the log-density of the prior here, up to a constant (nats); differentiable."""
        return torch.zeros((), dtype=torch.float64)

    def drawn(self, generator: torch.Generator) -> Self:
        """A random value of the parameter, for another start; default: this one."""
        del generator
        return self

    def free(self) -> tuple[Tensor, ...]:
        """Tensors without constraints that gradients may change.

        Raises:
            UnsupportedError: there are none, and EM alone fits the parameter.
        """
        raise UnsupportedError(
            f"{type(self).__name__} has no unconstrained tensors (free and at), which fitting by "
            "gradient and standard errors need; EM(...).fit needs none."
        )

    def at(self, free: Sequence[Tensor]) -> Self:
        """The parameter that such tensors stand for; differentiable in them.

        Raises:
            UnsupportedError: as for `free`.
        """
        raise UnsupportedError(f"{type(self).__name__} has no unconstrained tensors.")

    def estimates(self) -> tuple[Tensor, ...]:
        """Return quantities that standard errors are asked of, differentiable in those of `at`."""
        return self.free()


@dataclass(frozen=True, eq=False)
class Probabilities(Parameter):
    """A log-table that is normalised over some dims.

    Entries of -inf stay: they are impossible. A slice that no row uses keeps its values. A
    parameter that a model uses in several places is tied: the counts of all places add up.

    Args:
        log_values: the logarithms of the probabilities at the start (nats).
        over: the dim, or dims, that are normalised together.
        prior: pseudo-counts that are added to the counts, one for all or of a shape that
            broadcasts: a Dirichlet distribution of concentrations 1 + prior, whose mode is taken.
        fixed: entries that stay as they are, as bools of a shape that broadcasts; True: all.

    Raises:
        ModelError: values that do not sum to one, a dim that there is not, a negative prior.

    Example:
        >>> counts = torch.tensor([[3.0, 1.0], [0.0, 0.0]])
        >>> start = Probabilities(torch.full((2, 2), 0.5).log(), prior=1.0)
        >>> start.maximised((counts,)).log_values.exp()
        tensor([[0.6667, 0.3333],
                [0.5000, 0.5000]])
    """

    log_values: Tensor
    over: int | tuple[int, ...] = -1
    prior: Tensor | float = 0.0
    fixed: Tensor | bool = False

    def __post_init__(self) -> None:
        for name in ("log_values", "prior", "fixed"):
            given = present(f"The {name} of Probabilities", getattr(self, name))
            object.__setattr__(self, name, given)
        values: object = self.log_values
        if not isinstance(values, Tensor) or not values.is_floating_point():
            raise ModelError(f"Probabilities need a floating tensor of log-values; got {values!r}.")
        dims = self._dims
        # The table, and the dims over which it is normalised.
        if not all(is_whole(dim, -values.ndim) and dim < values.ndim for dim in dims):
            raise ModelError(
                "Probabilities can be normalised over dims of their table only, which has "
                f"{values.ndim}; got {self.over!r}."
            )
        # The pseudo-counts, and what is held fixed.
        if not (isinstance(self.prior, Tensor) or is_real(self.prior)):
            raise ModelError(f"A prior must be a number of pseudo-counts; got {self.prior!r:.80}.")
        for name, given in (("prior", self.prior), ("fixed", self.fixed)):
            try:
                torch.as_tensor(given, device=values.device).expand(values.shape)
            except RuntimeError:
                raise ModelError(
                    f"A {name} must broadcast to the shape of its table, {tuple(values.shape)}; "
                    f"got {tuple(torch.as_tensor(given).shape)}."
                ) from None
        prior = torch.as_tensor(self.prior)
        if not bool(((prior >= 0) & (prior < torch.inf)).all()):
            raise ModelError(
                "A prior must be a finite number of pseudo-counts, at least 0; got "
                f"{self.prior!r:.80}."
            )
        # Rows are probabilities, or all zero.
        sums = values.detach().exp().sum(dims)
        off = ~((sums - 1).abs() <= _TOLERANCE) & (sums != 0)
        if bool(off.any()):
            raise ModelError(
                f"Log-values over dims {dims} are those of probabilities that sum to "
                f"{float(sums[off][0]):.6g}, not to one; take .log() of probabilities, log_softmax "
                "of scores."
            )

    @property
    def _dims(self) -> tuple[int, ...]:
        return self.over if isinstance(self.over, tuple) else (self.over,)

    @property
    def moves(self) -> Tensor:
        """Entries that are fitted, as bools of the table's shape."""
        values = self.log_values.detach()
        fixed = torch.as_tensor(self.fixed, device=values.device)
        return (values > -torch.inf) & ~fixed.expand(values.shape)

    @property
    def size(self) -> int:
        """The number of free parameters."""
        return int((self.moves.sum(self._dims) - 1).clamp(min=0).sum())

    def _pseudo(self, moves: Tensor) -> Tensor:
        return torch.where(moves, torch.as_tensor(self.prior).to(self.log_values), 0.0)

    def _left(self, moves: Tensor) -> Tensor:
        """The probability of each slice that fixed entries leave, the dims kept."""
        held = torch.where(moves, 0.0, self.log_values.detach().exp())
        return (1.0 - held.sum(self._dims, keepdim=True)).clamp(min=0.0)

    def value(self, rows: Any) -> Tensor:
        """The log-table; the rows are ignored."""
        del rows
        return self.log_values

    def maximised(self, statistics: tuple[Tensor, ...]) -> "Probabilities":
        """Counts plus prior, normalised.

        Raises:
            ModelError: no entry has a count or a prior.
        """
        moves = self.moves
        counts = torch.where(moves, statistics[0].clamp(min=0.0) + self._pseudo(moves), 0.0)
        totals = counts.sum(self._dims, keepdim=True)
        if bool(moves.any()) and not bool((totals > 0).any()):
            raise ModelError(
                "the table has lost all mass: no row of the data uses an entry of it. Give a "
                "prior, or fix the table."
            )
        shares = self._left(moves) * counts / torch.where(totals > 0, totals, 1.0)
        return replace(
            self, log_values=torch.where(moves & (totals > 0), shares.log(), self.log_values)
        )

    def log_prior(self) -> Tensor:
        """() the sum of the pseudo-counts times the log-probabilities."""
        pseudo = self._pseudo(self.moves)
        return (pseudo * torch.where(pseudo > 0, self.log_values, 0.0)).sum()

    def drawn(self, generator: torch.Generator) -> "Probabilities":
        """Free entries drawn uniformly from their simplex."""
        moves = self.moves
        draws = torch.rand(moves.shape, generator=generator, device=generator.device)
        draws = torch.where(moves, -(1.0 - draws).log().to(self.log_values) + 1e-3, 0.0)
        totals = draws.sum(self._dims, keepdim=True)
        shares = self._left(moves) * draws / torch.where(totals > 0, totals, 1.0)
        return replace(self, log_values=torch.where(moves, shares.log(), self.log_values))

    def free(self) -> tuple[Tensor, ...]:
        """(n,) the log-values of free entries; a constant in a slice changes nothing."""
        return (self.log_values.detach()[self.moves],)

    def at(self, free: Sequence[Tensor]) -> "Probabilities":
        """The table of such log-values, normalised."""
        moves = self.moves
        scores = torch.zeros_like(self.log_values, dtype=free[0].dtype)
        scores = scores.masked_scatter(moves, free[0])
        sums = torch.where(moves, scores, -torch.inf)
        # The logsumexp of an empty slice would make gradients NaN.
        some = moves.any(self._dims[0], keepdim=True)
        for dim in self._dims[1:]:
            some = some.any(dim, keepdim=True)
        sums = torch.where(some, sums, 0.0).logsumexp(self._dims, keepdim=True)
        logs = scores - sums + self._left(moves).log()
        return replace(self, log_values=torch.where(moves, logs, self.log_values.detach()))

    def estimates(self) -> tuple[Tensor, ...]:
        """The table of probabilities."""
        return (self.log_values.exp(),)


@dataclass(frozen=True, eq=False)
class NoisyMax(Probabilities):
    """A noisy-MAX table: parents cause states independently, and the last of these is observed.

    It is noisy-OR where the variable has two states. A parent in its first state causes the first
    one; a leak is a further cause, always on. What is fitted are the probabilities of the states
    that are caused, (1 + the sum of sizes - 1, states): a row for the leak, then one for each state
    of each parent but the first. Diez 1993, "Parameter adjustment in Bayes networks".

    Attributes:
        sizes: numbers of states of the parents.
    """

    sizes: tuple[int, ...] = ()

    def value(self, rows: Any) -> Tensor:
        """The log-table (*parents, states).

        Raises:
            BudgetError: it would not fit into the memory.
        """
        parents = len(self.sizes)
        require_table(
            f"The noisy-MAX table of {parents} parents",
            (*self.sizes, self.log_values.shape[-1]),
            "take fewer parents, or fewer states of each",
        )
        parts = self.log_values.exp().split([1, *(size - 1 for size in self.sizes)])
        table = parts[0][0]
        for share in parts[1:]:
            share = torch.cat([torch.eye(1, share.shape[1]).to(share), share])
            below = pad(table.cumsum(-1)[..., :-1], (1, 0)).unsqueeze(-2)
            table = table.unsqueeze(-2) * share.cumsum(-1) + below * share
        return safe_log(table)

    def statistics(self, rows: Any, counts: Tensor) -> tuple[Tensor, ...]:
        """The expected counts of the states that are caused: a gradient, like all counts."""
        with torch.enable_grad():
            leaf = self.log_values.detach().requires_grad_()
            table = replace(self, log_values=leaf).value(rows)
            total = torch.where(counts > 0, counts * table, 0.0).sum()
            return torch.autograd.grad(total, leaf)


def require_table(
    what: str, sizes: Sequence[int], remedy: str, *, each: float = tuning.FITTED_ENTRY
) -> None:
    """Raise `BudgetError` where a table of so many entries would not fit into the memory.

    Args:
        what: the table, in words, such as "The transition of HMM".
        sizes: of its dims.
        remedy: what to ask for instead.
        each: bytes for an entry.
    """
    entries = math.prod(sizes)
    # Equal sizes that follow each other are a power.
    groups = [(size, len(list(run))) for size, run in groupby(sizes)]
    shape = " x ".join(f"{size:,}" + (f"^{count}" if count > 1 else "") for size, count in groups)
    shape = "" if shape == f"{entries:,}" else f"{shape} = "
    require_room(each * entries, f"{what} has {shape}{entries:,} entries and", remedy=remedy)


Rows = Any
"""A tensor with a leading dim of rows, or a tuple or dictionary of them."""


def tensors_of(rows: Rows) -> list[Tensor]:
    """The tensors of a batch."""
    if isinstance(rows, Tensor):
        return [present("Data to fit", rows)]
    if isinstance(rows, tuple | list):
        return [tensor for part in rows for tensor in tensors_of(part)]
    if isinstance(rows, dict):
        return [tensor for part in rows.values() for tensor in tensors_of(part)]
    raise ModelError(
        "Data to fit must be tensors with a leading dim of rows, in tuples and dictionaries, or an "
        f"iterable of such batches; got {type(rows).__name__}."
    )


def count_of(rows: Rows) -> int:
    """The number of rows, which all tensors share."""
    counts = {tensor.shape[0] if tensor.ndim else 0 for tensor in tensors_of(rows)}
    if len(counts) != 1 or 0 in counts:
        raise ModelError(
            "All tensors of the data need the same number of rows, at least one, as their leading "
            f"dim; got {sorted(counts)}."
        )
    return counts.pop()


def rows_at(rows: Rows, places: Tensor | slice) -> Rows:
    """Rows at some places, of every tensor of the data."""
    if isinstance(rows, Tensor):
        return rows[places]
    if isinstance(rows, dict):
        return {name: rows_at(part, places) for name, part in rows.items()}
    return tuple(rows_at(part, places) for part in rows)


def _check_weights(weights: Tensor) -> None:
    """Refuse weights that are negative or not finite, or all zero."""
    wrong = weights[~((weights >= 0) & (weights < torch.inf))]
    if len(wrong):
        raise ModelError(
            f"Weights of rows must be finite numbers of at least 0; got {float(wrong[0]):g}."
        )
    if not bool((weights > 0).any()):
        raise ModelError("Weights of rows are all zero; there is nothing to fit.")


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of data for each step: row numbers, rows, weights or None.

    ``data`` are ``count`` rows, or an iterable of batches if that is None; a ``generator`` shuffles
    the rows of each pass.
    """

    data: Any
    weights: Any
    size: int | None
    generator: torch.Generator | None
    count: int | None

    @staticmethod
    def of(data: Any, weights: Any, size: int | None, generator: Any = None) -> "Batches":
        """Batches of data and weights as given by users; refuses weights that do not fit."""
        # `count` is the number of rows of data that are one batch; None for several batches.
        count = count_of(data) if isinstance(data, Tensor | tuple | dict) else None
        if count is None and not isinstance(data, Iterable):
            tensors_of(data)
        # Refuse what cannot be read again, and lists that do not fit together.
        if isinstance(data, Iterator):
            raise ModelError(
                "Every step reads all batches, and an iterator can be read only once. Give a list "
                "of batches or a DataLoader."
            )
        batches = len(data) if count is None and isinstance(data, Sized) else None
        if batches == 0 or (batches and isinstance(weights, list) and len(weights) != batches):
            with_weights = "" if weights is None else f", weights for {len(weights)}"
            raise ModelError(
                f"EM needs a batch of rows or more, and weights of each or none; got {batches} "
                f"batches{with_weights}."
            )
        if weights is None:
            return Batches(data, weights, size, generator, count)
        if count is None and isinstance(weights, list):
            # Weights batch by batch are checked together: their sum must be positive, that of a
            # batch not.
            each = [torch.as_tensor(present("Weights of rows", w)) for w in weights]
            _check_weights(torch.cat([part.reshape(-1) for part in each]))
            return Batches(data, each, size, generator, count)
        weights = torch.as_tensor(present("Weights of rows", weights))
        if count is None or weights.shape != (count,):
            wanted = f"({count},)" if count else "a list, one tensor for each batch"
            raise ModelError(f"Weights of rows need {wanted}; got {tuple(weights.shape)}.")
        _check_weights(weights)
        return Batches(data, weights, size, generator, count)

    def weight(self) -> float:
        """The total weight of all rows."""
        if self.weights is not None:
            return sum(float(part.sum()) for part in self.weights)
        return float(sum(map(count_of, self.data)) if self.count is None else self.count)

    def __iter__(self) -> Iterator[tuple[Tensor, Rows, Tensor | None]]:
        if self.count is None:
            first = 0
            for number, rows in enumerate(self.data):
                count = count_of(rows)
                chosen = None if self.weights is None else self.weights[number]
                yield torch.arange(first, first + count), rows, chosen
                first += count
            return
        order, size = torch.arange(self.count), self.size or self.count
        if self.generator is not None:
            order = torch.randperm(self.count, generator=self.generator)
        for first in range(0, self.count, size):
            at = order[first : first + size]
            # A slice is a view, without a copy.
            places = at if self.generator is not None else slice(first, first + len(at))
            yield at, rows_at(self.data, places), None if self.weights is None else self.weights[at]
