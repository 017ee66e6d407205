"""Rates of errors learned from syndromes alone, with standard errors."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rdpgraph._core import tuning
from rdpgraph._core.arguments import typed
from rdpgraph._core.progress import Progress, goes_on
from rdpgraph.decoding.cosets import CosetDecoder
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.plan import clock
from rdpgraph.structures.parity import sweeps
from rdpgraph.structures.parity.kept import kept_cosets
from rdpgraph.structures.parity.model import ParityModel
from rdpgraph.structures.parity.sweeps import checked_syndrome


@dataclass(frozen=True, eq=False)
class LearnedRates:
    """Rates of maximum likelihood.

    Attributes:
        rates: (groups,) the probability that an odd number of a group's errors happens; for tied
            errors that of each.
        standard_errors: (groups,) by the empirical information; +inf where that does not tell a
            rate, as where shots are few.
        groups: the errors of each. Errors that flip the same checks cannot be told apart and form
            one group, unless they are tied.
        log_likelihood: (shots,) mean log P(s), nats.
    """

    rates: Tensor
    standard_errors: Tensor
    groups: tuple[tuple[int, ...], ...]
    log_likelihood: float


@typed(steps="[1, inf)", keep="[1, inf)")
def learn_rates(
    model: ParityModel,
    syndromes: Any,
    *,
    tied: Sequence[int] | None = None,
    keep: int | None = None,
    steps: int = 60,
    progress: Callable[[Progress], object] | None = None,
) -> LearnedRates:
    """Rates of maximum likelihood by L-BFGS, starting at the model's.

    Args:
        model: without a batch; its rates are above 0 and below 1.
        syndromes: (shots, checks), -1 where a check is erased.
        tied: (errors,) a label for each error; those of one label have one rate.
        keep: the number of states kept, as for `ParityModel.kept`, where exact sweeps do not fit; a
            lower bound on the likelihood is then maximised. None: exact.
        steps: of L-BFGS, at most.
        progress: called with a `Progress` after every gradient, of which a step takes a few. Where
            it ends the work, or Ctrl-C does, the rates are the best so far.

    Raises:
        ModelError: rates of 0 or 1, ties of the wrong length, or fewer than one step or kept state.
        EvidenceError: syndromes of another length.

    Example:
        >>> bits, draw = [[1, 1, 0], [0, 1, 1]], torch.Generator().manual_seed(0)
        >>> shots = torch.rand(4000, 3, generator=draw) < torch.tensor([0.05, 0.2, 0.1])
        >>> syndromes = (shots.long() @ torch.tensor(bits).T) % 2
        >>> start = ParityModel.from_rates(bits, [0.1, 0.1, 0.1])
        >>> learned = learn_rates(start, syndromes)
        >>> ((learned.rates - torch.tensor([0.05, 0.2, 0.1])).abs() < 0.04).all()
        tensor(True)
    """
    odds = (model.unary[..., 1] - model.unary[..., 0]).detach().double()
    total = len(model.checks.columns)
    if not total or tuple(odds.shape) != (total,) or not bool(odds.isfinite().all()):
        raise ModelError(
            "learn_rates needs a ParityModel without batch dims, of one error at least and rates "
            f"above 0 and below 1; got {model!r:.80}."
        )
    if tied is not None and len(tied) != total:
        raise ModelError(
            f"learn_rates needs one tie for each of {total} errors, or None; got {len(tied)}."
        )
    tied = tied.tolist() if isinstance(tied, Tensor) else tied  # elements of tensors are not equal
    parities = model.checks.part(range(total), range(model.checks.num_checks), ())
    groups: dict[Any, list[int]] = {}
    for at, (checks, _) in enumerate(parities.columns):
        groups.setdefault(checks if tied is None else tied[at], []).append(at)
    if tied is None:
        parities, rounds = parities.merged(observables=False)
        weights = sweeps.linear(model.unary.detach().unsqueeze(0), rounds)[0][0].log()
        odds = weights[:, 1] - weights[:, 0]
    label = torch.zeros(len(parities.columns), dtype=torch.long)
    if tied is None:
        label = torch.arange(len(groups))
    else:
        for number, row in enumerate(groups.values()):
            label[row] = number
    if keep is not None:
        CosetDecoder(model, keep)  # refuses what cannot be
    start = torch.zeros(len(groups), dtype=torch.float64).index_add_(0, label, odds)
    values = (start / label.bincount(minlength=len(groups))).requires_grad_()
    given = checked_syndrome(syndromes, parities.num_checks)[None].flatten(0, -2)
    if not given.numel():
        raise EvidenceError(f"learn_rates needs shots with checks; got {tuple(given.shape)}.")
    rows, counts = given.unique(dim=0, return_counts=True)
    parts = (each.split(tuning.PIECE // 2) for each in (rows, counts))
    pieces = list(zip(*parts, strict=True))

    def logs(each: Tensor, part: Tensor) -> Tensor:
        odds = each[..., label]
        unary = torch.stack([functional.logsigmoid(-odds), functional.logsigmoid(odds)], -1)
        unary = unary if unary.ndim == 3 else unary.unsqueeze(0)
        if keep is None:
            return sweeps.log_cosets(parities, unary, part, observables=False)[:, 0]
        return soft_sum(kept_cosets(parities, unary, part, keep, 1, -1)[0][0], -1)

    begun, number, best = monotonic(), 0, (inf, values.detach())

    def loss() -> Tensor:
        nonlocal number, best
        optimiser.zero_grad()
        value = values.new_zeros(())
        for part, count in pieces:
            piece = -(logs(values, part) * count).sum() / len(given)
            piece.backward()
            value += piece.detach()
        number += 1
        if float(value) < best[0]:
            best = float(value), values.detach().clone()
        step = Progress("rates", number, -float(value), monotonic() - begun)
        if not goes_on(progress, step) or clock.stopped():
            raise StopIteration
        return value

    optimiser = torch.optim.LBFGS(
        [values], max_iter=steps, tolerance_grad=1e-7, line_search_fn="strong_wolfe"
    )
    with suppress(StopIteration):
        optimiser.step(loss)  # pyright: ignore[reportArgumentType]
    likelihood, values = -best[0], best[1]
    information = torch.zeros(len(groups), len(groups), dtype=torch.float64)
    for part, count in pieces:
        each = values.detach().expand(len(part), -1).clone().requires_grad_()
        (score,) = torch.autograd.grad(logs(each, part).sum(), each)
        information += (score * count.unsqueeze(1)).T @ score
    rates = values.detach().sigmoid()
    scale = information.diagonal().sqrt().clamp(min=1e-9)
    told, directions = torch.linalg.eigh(information / scale.outer(scale))
    sure = told > 1e-9
    covariance = (directions[:, sure].square() / told[sure]).sum(1) / scale.square()
    covariance[directions[:, ~sure].square().sum(1) > 1e-9] = torch.inf
    errors = covariance.sqrt() * rates * (1 - rates)
    return LearnedRates(rates, errors, tuple(map(tuple, groups.values())), likelihood)
