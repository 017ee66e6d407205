"""Transitions and emissions that are functions of covariates: modules of torch, in EM."""

import copy
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import LBFGS

from rdpgraph._core.arguments import typed
from rdpgraph._core.numbers import is_whole
from rdpgraph.errors import EvidenceError, ModelError, UnsupportedError
from rdpgraph.learn.ascent import TRUST, GuardedLoss
from rdpgraph.learn.emissions import Emission
from rdpgraph.learn.parameters import Parameter, require_table
from rdpgraph.learn.sequences import PaddedBatch
from rdpgraph.logspace.logmatrix import safe_log

_SPREAD = 0.3
"""The standard deviation of what is added to weights for another start."""


@dataclass(frozen=True, eq=False)
class _Fitted(Parameter):
    """A module whose weights are maximised by gradient for rows that are kept, and their counts.

    The module is a copy in float64. Weights that require no gradient stay as they are.

    Attributes:
        module: called with rows of covariates, and of what was observed.
        inner: the most steps of L-BFGS in each maximisation. Each raises the expected
            log-likelihood, so that EM climbs with few of them too.
        weights: those that are fitted, by name; None: the module's own.
    """

    module: nn.Module
    inner: int = field(default=10, kw_only=True)
    weights: dict[str, Tensor] | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        given: Any = self.module
        if not isinstance(given, nn.Module):
            raise ModelError(
                f"{type(self).__name__} needs a torch.nn.Module; got {type(given).__name__}."
            )
        if not is_whole(self.inner, 1):
            raise ModelError(f"{type(self).__name__} needs inner steps, at least 1.")
        if self.weights is None:
            module = copy.deepcopy(given).double()
            object.__setattr__(self, "module", module)
            free = {n: w.detach().clone() for n, w in module.named_parameters() if w.requires_grad}
            object.__setattr__(self, "weights", free)

    @property
    def learned(self) -> nn.Module:
        """A copy of the module with the weights that were fitted."""
        module = copy.deepcopy(self.module)
        module.load_state_dict(self._weights, strict=False)
        return module

    @property
    def _weights(self) -> dict[str, Tensor]:
        assert self.weights is not None
        return self.weights

    def _called(self, *inputs: Tensor) -> Tensor:
        return functional_call(self.module, self._weights, inputs)

    @abstractmethod
    def log_values(self, *kept: Tensor) -> Tensor:
        """(rows, ...) log-values of rows that were kept, in the shape of their counts."""

    def free(self) -> tuple[Tensor, ...]:
        return tuple(self._weights.values())

    def at(self, free: Sequence[Tensor]) -> Self:
        return replace(self, weights=dict(zip(self._weights, free, strict=True)))

    def drawn(self, generator: torch.Generator) -> Self:
        """The weights with normal noise added."""
        noisy: list[Tensor] = []
        for weight in self.free():
            noise = torch.randn(weight.shape, generator=generator, device=generator.device)
            noisy.append(weight + _SPREAD * noise.to(weight))
        return self.at(noisy)

    def maximised(self, statistics: tuple[Tensor, ...]) -> Self:
        counts, *kept = statistics
        # Rows without counts, as those of other batches, say nothing.
        used = (counts.flatten(1).abs().sum(1) > 0).nonzero()[:, 0]
        if not len(used) or not any(weight.numel() for weight in self.free()):
            return self
        counts, kept = counts[used], [part[used] for part in kept]
        mass = float(counts.sum())
        leaves = [part.detach().clone().requires_grad_() for part in self.free()]

        def evaluate() -> float:
            with torch.enable_grad():
                values = self.at(leaves).log_values(*kept)
                loss = -torch.where(counts > 0, counts * values, 0.0).sum() / mass
                loss.backward()
            return float(loss.detach())

        loss = GuardedLoss(leaves, evaluate, trust=TRUST)
        loss.step(LBFGS(leaves, max_iter=self.inner, line_search_fn="strong_wolfe"))
        loss.return_to_best()
        return self.at([leaf.detach() for leaf in leaves])


def _kept(rows: PaddedBatch, *parts: Tensor) -> tuple[Tensor, ...]:
    """Parts (B, T, ...) of a batch at the places of their steps among all, 0 elsewhere."""
    lengths, places = rows["lengths"], rows["places"]
    steps = torch.arange(parts[0].shape[1], device=lengths.device)
    within = steps < lengths.unsqueeze(1)
    to = (places[:, :1] + steps)[within]
    made: list[Tensor] = []
    for part in parts:
        whole = part.new_zeros(int(places[0, 1]), *part.shape[2:])
        made.append(whole.index_copy(0, to, part.detach()[within]))
    return tuple(made)


def covariates_of(rows: PaddedBatch, owner: str) -> Tensor:
    """(B, T, k) covariates, 0 beyond the ends."""
    if "covariates" not in rows:
        raise ModelError(
            f"{owner} is a function of covariates, and there are none: name their columns of X, "
            "as covariates=[1, 2]."
        )
    return rows["covariates"]


@dataclass(frozen=True, eq=False)
class DrivenTransition(_Fitted):
    """Transitions into a step that are a function of its covariates.

    Args:
        module: gives scores (rows, states, states), [from, to], of covariates (rows, k); their
            softmax over the last dim is the probability of each state after another. Scores of
            -inf are transitions that are impossible.
        states: their number.
    """

    states: int = field(default=0, kw_only=True)

    def value(self, rows: PaddedBatch) -> Tensor:
        """(B, T - 1, states, states) log-probabilities."""
        given = covariates_of(rows, "The transition")[:, 1:]
        flat = given.flatten(0, 1)
        square = (self.states, self.states)
        if not len(flat):
            return flat.new_zeros(*given.shape[:2], *square)
        return self.log_values(flat).reshape(*given.shape[:2], *square)

    def log_values(self, *kept: Tensor) -> Tensor:
        covariates = kept[0]
        scores: object = self._called(covariates)
        wanted = (len(covariates), self.states, self.states)
        if not isinstance(scores, Tensor) or scores.shape != wanted:
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ModelError(
                f"The module of a transition gives scores (rows, states, states), {wanted} for "
                f"covariates {tuple(covariates.shape)}; got {got}."
            )
        return scores.log_softmax(-1)

    def statistics(self, rows: PaddedBatch, counts: Tensor) -> tuple[Tensor, ...]:
        # A transition has the place of the step into which it leads.
        covariates = rows["covariates"]
        padded = torch.cat([torch.zeros_like(counts[:, :1]), counts], 1)
        if not counts.shape[1]:
            padded = counts.new_zeros(*covariates.shape[:2], self.states, self.states)
        return _kept(rows, padded, covariates)


@dataclass(frozen=True, eq=False)
class Driven(_Fitted, Emission):
    """An emission whose log-likelihoods are a function of what was observed and of covariates.

    So regressions with hidden states: a linear model, or logits, for each state. A step of which
    any column is missing counts for nothing.

    Args:
        module: gives log-likelihoods (rows, states), nats, of observed columns (rows, columns) and
            covariates (rows, k). Its weights are where the fit starts from: give states different
            ones, as random ones are. For samples it has a method `sample(states, covariates,
            generator)`, which gives (rows, columns).
        inner: the most steps of L-BFGS in each maximisation.

    Example:
        >>> class Line(torch.nn.Module):
        ...     def __init__(self, states):
        ...         super().__init__()
        ...         self.slope = torch.nn.Parameter(torch.linspace(-1.0, 1.0, states))
        ...     def forward(self, observed, covariates):
        ...         means = covariates[:, :1] * self.slope
        ...         return torch.distributions.Normal(means, 1.0).log_prob(observed)
        >>> Driven(Line(2)).size
        2
    """

    @property
    def given(self) -> bool:
        return True

    @property
    def size(self) -> int:
        return sum(weight.numel() for weight in self._weights.values())

    @property
    def kept(self) -> int:
        return 3

    def log_prob(self, observed: Tensor) -> Tensor:
        raise UnsupportedError(
            "Driven has log-likelihoods of observations with their covariates alone; ask the "
            "model, as by structure(X)."
        )

    def sample(
        self, states: Tensor, generator: torch.Generator | None = None,
        covariates: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        draw: Any = getattr(self.learned, "sample", None)
        if draw is None or covariates is None:
            raise UnsupportedError(
                "Driven draws observations by a method sample(states, covariates, generator) of "
                "its module, given covariates; there is none."
            )
        with torch.no_grad():
            return draw(states, covariates, generator)

    def blank(self, states: int, observed: Tensor) -> Self:
        require_table("The log-likelihoods of Driven", (len(observed), states), "take fewer states")
        return self

    def started(self, states: int, observed: Tensor, generator: torch.Generator) -> Self:
        del states, observed, generator
        return self

    def value(self, rows: PaddedBatch) -> Tensor:
        observed = rows["observed"]
        covariates = covariates_of(rows, "The emission").flatten(0, 1)
        values = self.log_values(observed.flatten(0, 1), covariates)
        if values.numel() and not float(values.detach().amax()) < math.inf:
            raise EvidenceError(
                "The module of Driven gave a log-likelihood of +inf, or NaN; it must be below +inf."
            )
        return values.reshape(*observed.shape[:2], values.shape[-1])

    def log_values(self, *kept: Tensor) -> Tensor:
        observed, covariates = kept
        missing = observed.isnan().any(1, keepdim=True)
        values: object = self._called(observed.nan_to_num(0.0), covariates)
        if not isinstance(values, Tensor) or values.ndim != 2 or len(values) != len(observed):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ModelError(
                f"The module of Driven gives log-likelihoods (rows, states) for {len(observed)} "
                f"rows; got {got}."
            )
        return torch.where(missing, 0.0, values)

    def statistics(self, rows: PaddedBatch, counts: Tensor) -> tuple[Tensor, ...]:
        observed = rows["observed"]
        missing = observed.isnan().any(2, keepdim=True)
        seen = torch.where(missing, 0.0, observed)
        return _kept(rows, torch.where(missing, 0.0, counts), seen, rows["covariates"])


class Rates(nn.Module):
    """Transitions after irregular times: exponentials of a matrix of rates times elapsed times.

    For `HMM(..., transition=Rates(states), covariates=[column])`, where the column of a step has
    the time since the step before. Its rates are fitted with the rest.

    Args:
        states: their number.
        allowed: (states, states) bools, [from, to]: jumps that are possible; None: all. The
            diagonal is ignored. ``allowed=left_to_right(states).exp() > 0`` forbids to go back.
        column: the place of the elapsed time among the covariates, from 0. Its unit is free; rates
            are per that unit.
        rate: of each jump, to start from.

    Raises:
        ModelError: a table of another shape, or a rate that is not above 0.

    Example:
        >>> rates = Rates(2, rate=0.5)
        >>> rates.matrix()
        tensor([[-0.5000,  0.5000],
                [ 0.5000, -0.5000]], grad_fn=...)
        >>> rates(torch.tensor([[0.0], [100.0]])).exp()  # after no time, and after long
        tensor([[[1.0000, 0.0000],
                 [0.0000, 1.0000]],
        <BLANKLINE>
                [[0.5000, 0.5000],
                 [0.5000, 0.5000]]], grad_fn=...)
    """

    allowed: Tensor
    reached: Tensor

    @typed(states="[1, inf)", column="[0, inf)", rate="(0, inf)")
    def __init__(
        self, states: int, *, allowed: Tensor | None = None, column: int = 0, rate: float = 0.1
    ) -> None:
        super().__init__()
        square = (states, states)
        given = torch.ones(square, dtype=torch.bool) if allowed is None else allowed
        if tuple(given.shape) != square or given.dtype != torch.bool:
            raise ModelError(
                f"Rates of {states} states need allowed jumps, bools {square}; got "
                f"{tuple(given.shape)} of {given.dtype}."
            )
        given = given & ~torch.eye(states, dtype=torch.bool, device=given.device)
        # States that can be reached in any number of jumps: others have a probability of 0.
        reached = given | torch.eye(states, dtype=torch.bool, device=given.device)
        for _ in range(max(1, (states - 1).bit_length())):
            reached = (reached.double() @ reached.double()) > 0
        self.column = column
        self.register_buffer("allowed", given)
        self.register_buffer("reached", reached)
        self.log_rates = nn.Parameter(torch.full((int(given.sum()),), math.log(rate)))

    def matrix(self) -> Tensor:
        """(states, states) rates of jumps, [from, to]; each row sums to zero."""
        jumps = torch.zeros(self.allowed.shape, dtype=self.log_rates.dtype)
        jumps = jumps.to(self.log_rates.device).masked_scatter(self.allowed, self.log_rates.exp())
        return jumps - torch.diag(jumps.sum(1))

    def forward(self, covariates: Tensor) -> Tensor:
        """(rows, states, states) log-probabilities after the elapsed times of rows (rows, k)."""
        times = covariates[:, self.column].to(self.log_rates.dtype)
        if times.numel() and not bool((times >= 0).all()):
            raise EvidenceError(
                f"Rates need elapsed times of at least 0; got {float(times.min()):g}."
            )
        each, which = times.unique(return_inverse=True)
        chances = torch.linalg.matrix_exp(self.matrix() * each[:, None, None])
        # Rounding leaves numbers about 1e-17 where a jump has no time or no way.
        possible = self.reached & ((each[:, None, None] > 0) | torch.eye(len(self.reached)).bool())
        chances = torch.where(possible, chances.clamp(min=0.0), 0.0)
        return safe_log(chances)[which]
