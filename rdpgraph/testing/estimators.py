"""Checks of estimators: answers about the model as declared, and on a few states of each site."""

import copy
import math
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.numbers import ROUNDING
from rdpgraph.errors import ImpossibleEvidenceError, UnsupportedError
from rdpgraph.estimate.estimator import Estimator, Model
from rdpgraph.estimate.proposals import Local
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.selections import Top, TopSystematic
from rdpgraph.infer import explain, infer
from rdpgraph.interface.structure import Structure
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.model.factor import FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.plan.plan import Plan
from rdpgraph.query.structured import StructuredPosterior
from rdpgraph.testing.enumeration import (
    NUMBERS,
    QUESTIONS,
    Enumeration,
    agree,
    agree_on_average,
    alike,
    close,
    seeded,
    tensors_of,
    truth_of,
)


def check_estimator(estimator: Estimator, model: Model, *, draws: int = 0) -> None:
    """Check an estimator on a small model that exact inference answers.

    The posterior and its answers have the types and shapes that they have without it; marginals are
    probabilities, modes and samples possible configurations. Where the `Status` says exact, all
    agree with exact inference, and log Z is bounded where it says so. A generator of one seed gives
    one answer; posteriors pickle and deep-copy, and log Z has a gradient, which is the marginals
    where it is exact. Answers that raise `UnsupportedError` are skipped.

    Args:
        estimator: the estimator.
        model: a small graph or structure of float64, possible in every item; no evidence.
        draws: for an estimator whose Z is unbiased, the number of runs whose mean is compared
            with Z, by their standard error; 0: none.

    Raises:
        AssertionError: a property that does not hold.

    Example:
        >>> import torch
        >>> import rdpgraph as rg
        >>> chain = rg.Chain(torch.randn(4, 3).double(), torch.randn(3, 3).double())
        >>> check_estimator(rg.Randomized.default(keep=2, replicates=4), chain, draws=100)
    """
    name = type(estimator).__name__
    truth, estimated = infer(model), _run(estimator, model, 1)
    plan: Any = explain(model, estimator=estimator, generator=seeded(1))
    agree(type(estimated) is type(truth), f"infer with {name} gives a {type(truth).__name__}")
    agree(isinstance(plan, Plan), f"explain with {name} gives a Plan")
    _check_asked(name, model, estimated, truth)
    _check_worth(name, model, estimated, truth)
    others = {
        "run again from one seed": _run(estimator, model, 1),
        "pickled": pickle.loads(pickle.dumps(estimated)),
        "copied": copy.deepcopy(estimated),
    }
    for ask in QUESTIONS.values():
        for what, other in others.items():
            with suppress(UnsupportedError):
                one, two = map(tensors_of, (ask(estimated), ask(other)))
                for mine, theirs in zip(one, two, strict=True):
                    close(theirs, mine, f"an answer of {name} {what}")
    _check_gradient(name, estimator, model)
    if draws:
        logs = [_run(estimator, model, seed).log_partition.detach() for seed in range(draws)]
        ratios = (torch.stack(logs) - truth.log_partition).exp()
        agree_on_average(ratios, f"Z with {name} is right on average")


def _run(estimator: Estimator, model: Model, seed: int) -> Any:
    return infer(model, estimator=estimator, generator=seeded(seed))


def _check_asked(name: str, model: Model, estimated: Any, truth: Any) -> None:
    for what, ask in QUESTIONS.items():
        with suppress(UnsupportedError):
            alike(ask(estimated), ask(truth), f"{what} with {name}")
    for mine, theirs in zip(
        tensors_of(estimated.marginals()), tensors_of(truth.marginals()), strict=True
    ):
        agree(bool((mine >= 0).all()), f"marginals with {name} are not negative")
        if isinstance(model, FactorGraph):
            close(mine.sum(-1), theirs.sum(-1), f"the sum of marginals with {name}")
    for what in ("mode()", "sample()"):
        with suppress(UnsupportedError):
            possible = bool((model.score(QUESTIONS[what](estimated)) > -math.inf).all())
            agree(possible, f"{what} with {name} is possible")


def _check_worth(name: str, model: Model, estimated: Any, truth: Any) -> None:
    status = estimated.status
    agree(status.exact or status.biased, f"log Z with {name} is exact, or said to be biased")
    if status.exact:
        for what, ask in NUMBERS.items():
            for mine, theirs in zip(
                tensors_of(ask(estimated)), tensors_of(ask(truth)), strict=True
            ):
                close(mine, theirs, f"{what} with {name}, which its status says is exact,")
        best = model.score(truth.mode())
        close(model.score(estimated.mode()), best, f"the score of the mode with {name}")
        if isinstance(model, FactorGraph):
            above = estimated.mode_bound() >= best.detach().double().cpu() - ROUNDING
            agree(bool(above.all()), f"no score exceeds mode_bound() with {name}")
    above = {"upper": 1.0, "lower": -1.0}.get(status.bound)
    if above is not None:
        gap = above * (estimated.log_partition - truth.log_partition)
        agree(bool((gap > -1e-9).all()), f"log Z with {name} is a bound, {status.bound}")
    if isinstance(model, FactorGraph):
        with suppress(UnsupportedError):
            lower, upper = estimated.bounds()
            log_z = truth.log_partition
            inside = (lower - ROUNDING <= log_z) & (log_z <= upper + ROUNDING)
            agree(bool(inside.all()), f"log Z lies within bounds() with {name}")


def _check_gradient(name: str, estimator: Estimator, model: Model) -> None:
    if isinstance(model, Structure):
        leaf = model.unary.detach().requires_grad_()
        asked: Model = model.with_unary(leaf)
    else:
        entry = next(iter(model.variables))
        zeros = torch.zeros(*entry.shape, entry.size, dtype=model.dtype, device=model.device)
        leaf = zeros.requires_grad_()
        slot = entry if entry.shape else [entry]
        asked = model.with_factors(FactorBlock((slot,), Table(leaf if entry.shape else leaf[None])))
    estimated = _run(estimator, asked, 1)
    try:
        log_z = estimated.log_partition
    except UnsupportedError:
        return
    (gradient,) = torch.autograd.grad(log_z.sum(), leaf)
    agree(bool(gradient.isfinite().all()), f"the gradient of log Z with {name} is finite")
    if estimated.status.exact:
        first = tensors_of(estimated.marginals())[0]
        expected = first.reshape(-1, *gradient.shape).sum(0)
        close(gradient, expected, f"the gradient of log Z with {name}, beside the marginals,")


_ESTIMATORS = {
    "Top": Randomized(Local(), Top(2)),
    "Randomized": Randomized(Local(), TopSystematic(1, 1), replicates=3),
    "Randomized on all states": Randomized(Local(), TopSystematic(1.0, 0.5), replicates=2),
}


def check_on_few(structure: Structure) -> None:
    """Check answers on a few states of each site against enumeration, for several estimators.

    Every question is asked with `Randomized` estimators, one of which keeps the likeliest states
    alone. Answers must have the types and shapes of exact ones, and be those of the configurations
    of kept states, with their weights. The structure is small enough to enumerate, every item
    possible; it offers `sites`.
    """
    full = infer(structure)
    assert isinstance(full, StructuredPosterior)
    truth = truth_of(structure)
    sites = full.marginals().detach().sum(-1, keepdim=True) > 0
    # In a graph, a site that an item lacks is held in a state.
    present = torch.ones_like(sites) if truth.graph is None else sites
    expected = dict[str, Any]()
    for what, ask in _ASKED.items():
        with suppress(UnsupportedError):
            expected[what] = ask(full)
    for name, estimator in _ESTIMATORS.items():
        few = infer(structure, estimator=estimator, generator=seeded())
        assert isinstance(few, StructuredPosterior)
        answers = _check_types(name, few, expected)
        _check_few(name, few, answers, truth, present)


def _log_weights(truth: Enumeration, present: Tensor, few: StructuredPosterior) -> Tensor:
    """(replicates, C, *batch) of the states of each configuration, summed; -inf: not kept."""
    return _summed(truth, *_totals(truth, _of_states(truth, present, few)))


def _of_states(truth: Enumeration, present: Tensor, few: StructuredPosterior) -> Tensor:
    """Return the log-weights (replicates, B, sites, states) of all states, -inf if not kept."""
    structure, support = truth.structure, few.supports
    shape, batch = structure.unary.shape, truth.scores.ndim - 1
    places = structure.site_places()
    states = shape[-1] if places is None else places.shape[-1]
    same = support.states.unsqueeze(-1) == torch.arange(states, device=support.states.device)
    logs = torch.where(same, support.log_weights.unsqueeze(-1), -math.inf).logsumexp(-2)
    logs = logs.expand(len(logs), *shape[:batch], *logs.shape[batch + 1 :])
    if places is not None:
        flat = places.flatten()
        by_place = logs.new_full((*logs.shape[: batch + 1], shape[-1]), -math.inf)
        logs = by_place.index_copy(-1, flat[flat >= 0], logs.flatten(batch + 1)[..., flat >= 0])
    logs = torch.where(present, logs, 0.0)
    return logs.reshape(len(logs), shape[:batch].numel(), *truth.uses.shape[1:])


def _totals(truth: Enumeration, logs: Tensor, site: int | None = None) -> tuple[Tensor, Tensor]:
    """Sums of finite weights, and how many are -inf, of all sites or one; (replicates, B, C)."""
    uses = truth.uses
    if site is not None:
        logs, uses = logs[:, :, site : site + 1], uses[:, site : site + 1]
    flat, absent = uses.to(logs).flatten(1).T, logs == -math.inf
    return torch.where(absent, 0.0, logs).flatten(2) @ flat, absent.to(logs).flatten(2) @ flat


def _summed(truth: Enumeration, total: Tensor, absent: Tensor) -> Tensor:
    """(replicates, C, *batch) log-weights; -inf where some state is absent."""
    return torch.where(absent > 0, -math.inf, total).mT.reshape(-1, *truth.scores.shape)


def _of_all_states(truth: Enumeration, present: Tensor, few: StructuredPosterior) -> Tensor:
    """(*batch, *sites, states) marginals at all states, given those kept at the other sites.

    The mean of replicates in proportion to their Z, in each of which the site is in a state as
    often as on the kept states alone.
    """
    unary = truth.structure.unary
    uses = truth.uses.to(truth.scores)  # (C, sites, states)
    weights = _of_states(truth, present, few)
    every, missing = _totals(truth, weights)
    logs = truth.scores + _summed(truth, every, missing)
    chances = logs.logsumexp(1).softmax(0).reshape(len(logs), -1, 1)  # (replicates, B, 1)
    # How often each site is used on the kept states, (replicates, B, sites).
    used = [_chances(truth, kept) @ uses.sum(-1) for kept in logs]
    mean = unary.new_zeros(chances.shape[1], *uses.shape[1:])
    for site in range(uses.shape[1]):
        # All states of the site itself count as kept, with weight one.
        own, own_missing = _totals(truth, weights, site)
        others = truth.scores + _summed(truth, every - own, missing - own_missing)
        for chance, count, given in zip(chances, used, others, strict=True):
            masses = _chances(truth, given) @ uses[:, site]
            often = count[:, site, None]
            shares = torch.where(often > 0, masses / masses.sum(-1, keepdim=True) * often, 0.0)
            mean[:, site] += torch.where(chance > 0, shares * chance, 0.0)
    return torch.where(present, mean.reshape(unary.shape), 0.0)


def _chances(truth: Enumeration, scores: Tensor) -> Tensor:
    """(B, C) the probabilities of configurations of scores (C, *batch)."""
    return replace(truth, scores=scores).probabilities.reshape(len(scores), -1).T


def _two_sites(structure: Structure) -> list[tuple[int, ...]]:
    sites = structure.factor_graph().variables[0].shape
    if 0 in sites:
        raise UnsupportedError("There are no sites.")
    first = (0,) * len(sites)
    return [first, (*first[:-1], sites[-1] - 1)] if sites and sites[-1] > 1 else [first]


_ASKED: dict[str, Callable[[StructuredPosterior], Any]] = QUESTIONS | {
    "joint()": lambda posterior: posterior.joint(_two_sites(posterior.structure))
}


def _check_types(name: str, few: StructuredPosterior, expected: dict[str, Any]) -> dict[str, Any]:
    """Check that each answer has the type and shape that it has without the estimator.

    Returns the answers, without those that an impossible item does not have.
    """
    answers = dict[str, Any]()
    for what, known in expected.items():
        try:
            answers[what] = _ASKED[what](few)
        except ImpossibleEvidenceError:
            agree(bool((few.log_partition == -math.inf).any()), f"{what} with {name} answers")
            continue
        except UnsupportedError as error:
            raise AssertionError(f"{what} has no answer with {name}: {error}") from None
        alike(answers[what], known, f"{what} with {name}")
    return answers


def _check_few(
    name: str,
    few: StructuredPosterior,
    answers: dict[str, Any],
    truth: Enumeration,
    present: Tensor,
) -> None:
    """Check answers against the configurations of kept states; `present`: (*batch, *sites, 1)."""
    structure, weights = few.structure, _log_weights(truth, present, few)
    logs = truth.scores + weights
    log_zs = logs.logsumexp(1)
    log_z = log_zs.logsumexp(0) - math.log(len(weights))
    weighted = replace(truth, scores=logs.logsumexp(0))
    kept = torch.where((weights > -math.inf).any(0), truth.scores, -math.inf)
    unweighted = replace(truth, scores=kept)
    chances = weighted.probabilities
    mean = (chances * torch.where(chances > 0, truth.scores, 0.0)).sum(0)
    marginals = torch.where(present, weighted.marginals, 0.0)
    best = torch.where(present, unweighted.max_marginals, -math.inf)
    sites = structure.sites()
    read = marginals
    whole = sites is None or sites.every or structure.site_places() is not None
    if not whole and not few.status.exact:
        read = _of_all_states(truth, present, few)
    for what, got, expected in (
        ("log_partition", few.log_partition, log_z),
        ("log_partitions", few.log_partitions, log_zs),
        ("marginals()", answers["marginals()"], read),
        ("entropy()", answers["entropy()"], finite(log_z) - mean),
        ("max_marginals()", answers["max_marginals()"], best),
    ):
        close(got, expected, f"{what} with {name}")
    with suppress(UnsupportedError):
        sites = _two_sites(structure)
        shape = structure.states_shape[len(structure.batch_shape) :]
        if structure.factor_graph().variables[0].shape == shape:
            joint = answers["joint()"]
            first = marginals[(..., *sites[0], slice(None))]
            held = present[(..., *sites[0], slice(None))].squeeze(-1)
            total = joint.flatten(first.ndim).sum(-1) if len(sites) > 1 else joint
            total = total[..., : first.shape[-1]]  # the last state may stand for absence
            close(total[held], first[held], f"joint() with {name}, summed over one site,")
    if not bool((log_z > -math.inf).all()):
        return
    mode = structure.site_states(answers["mode()"])
    close(truth.score(mode), unweighted.maximum, f"the score of mode() with {name}")
    drawn = structure.uses(structure.site_states(answers["sample()"]))
    agree(not bool(drawn[:, marginals == 0].any()), f"samples with {name} are of states kept")
    if "rsample()" in answers:
        relaxed = answers["rsample()"]
        spared = relaxed[marginals == 0]
        close(spared, torch.zeros_like(spared), f"rsample() with {name} of states not kept")
