"""Answers about the values of observables, the cost of them, and the syndromes asked about."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import EvidenceError
from rdpgraph.model.potentials.table import as_states


@dataclass(frozen=True)
class ParityCost:
    """The cost of exact answers about a parity model, before any is asked for.

    Attributes:
        open_checks: how many checks are open at once, at most.
        work: the multiply-adds of log P(s, l) for a shot.
        memory: the bytes of its tables for a shot.
        order: the checks in the order in which they are closed.
        undetectable: the errors that flip an observable and no check: nothing is seen of them.
    """

    open_checks: int
    work: float
    memory: float
    order: tuple[int, ...] = field(repr=False)
    undetectable: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class KeptCosets:
    """The probabilities of cosets from some of a sweep's states: bounds, or unbiased estimates.

    Attributes:
        log_cosets: (*batch, 2^observables) nats. A lower bound on log P(s, l), or the logarithm of
            an unbiased estimate of P(s, l).
        bound: ``"lower"`` where nothing is sampled; else empty.
        standard_error: (*batch, 2^observables) of P(s, l) relative to the estimate; None for less
            than two replicates.
    """

    log_cosets: Tensor
    bound: str
    standard_error: Tensor | None = None

    @property
    def log_partition(self) -> Tensor:
        """(*batch,) the same of log P(s)."""
        return self.log_cosets.logsumexp(-1)

    @property
    def probabilities(self) -> Tensor:
        """(*batch, 2^observables) P(l | s), no bound and biased; uniform if none is left."""
        return normalised(self.log_cosets)


def normalised(logs: Tensor) -> Tensor:
    """Chances by log-masses; uniform where all are -inf."""
    peak = logs.detach().amax(-1, keepdim=True)
    return torch.where(peak > -math.inf, logs, 0.0).softmax(-1)


def checked_syndrome(given: Any, checks: int, *, erased: bool = True) -> Tensor:
    """Syndromes (*batch, checks) of 0 and 1, and -1 if some may be erased, as int8.

    Raises:
        EvidenceError: anything else.
    """
    if getattr(given, "dtype", None) in (torch.bool, "bool"):
        given = torch.as_tensor(given).to(torch.int8)
    syndrome = as_states("A syndrome", given)
    if syndrome.is_floating_point() or not syndrome.ndim or syndrome.shape[-1] != checks:
        raise EvidenceError(
            f"ParityModel of {checks} checks needs integer syndromes (*batch, {checks}); got "
            f"{syndrome.dtype} of shape {tuple(syndrome.shape)}."
        )
    if not bool(((syndrome >= -int(erased)) & (syndrome <= 1)).all()):
        also = ", and -1 where a check is erased" if erased else "; erased checks are not taken"
        raise EvidenceError(f"A syndrome is of 0 and 1{also}.")
    return syndrome.to(torch.int8)
