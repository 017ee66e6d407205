"""Checks of structures and of masks, against enumeration."""

import math
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.numbers import ROUNDING
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.estimate.estimator import Model
from rdpgraph.estimate.pruning.estimator import masks_of
from rdpgraph.infer import infer
from rdpgraph.interface.structure import Structure
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.query.structured import StructuredPosterior
from rdpgraph.structures.grammar.rules import Rules
from rdpgraph.testing.enumeration import (
    QUESTIONS,
    SIGMAS,
    Enumeration,
    agree,
    close,
    seeded,
    truth_of,
)
from rdpgraph.testing.estimators import check_on_few

_CERTAIN = 1e-12
"""Tolerance of probabilities of use that count as 0 or 1; noise raises small ones by a thousand."""


def check_structure(structure: Structure) -> None:
    """Check a structure against brute force: on its `factor_graph`, or by its `score` if none.

    log Z, marginals, max-marginals, entropy, the mode, samples' support and means, relaxed
    samples, log-probabilities, the k best, cross-entropy and KL if any, both derivatives of log Z
    in `unary`, hard zeros in it, every batch item alone, its `sites` with all states in another
    order, every answer of `Randomized` on a few of them, its masks if any, and, if its class
    recognises the graph, the structure recognised.

    Args:
        structure: small enough to enumerate, every item possible; float64.
    """
    # Every answer against enumeration.
    truth = truth_of(structure)
    log_z = structure.log_partition()
    close(log_z, truth.log_partition, "log_partition()")
    posterior = infer(structure)
    assert isinstance(posterior, StructuredPosterior)
    _check_answers(posterior, truth)
    _check_relaxed(posterior, truth)
    _check_log_prob(structure, truth)
    if hasattr(structure, "k_best"):
        _check_best(structure, truth)
    if hasattr(structure, "cross_entropy"):
        _check_comparisons(structure, truth)
    _check_curvature(structure, truth)
    _check_numbers(structure)

    # The gradient of log Z, by finite differences.
    unary = structure.unary.detach().clone().requires_grad_()
    if unary.dtype == torch.float64 and bool(unary.isfinite().all()):
        agree(
            torch.autograd.gradcheck(
                lambda u: structure.with_unary(u).log_partition(), (unary,), fast_mode=True
            ),
            "the gradient of log Z in unary",
        )
    # Hard zeros: neither answers nor gradients are NaN.
    hard = structure.unary.detach().clone()
    hard[..., 0] = -math.inf
    hard.requires_grad_()
    hard_z = structure.with_unary(hard).log_partition()
    (gradient,) = torch.autograd.grad(hard_z.sum(), hard)
    agree(not bool(hard_z.isnan().any()), "no NaN in log Z with hard zeros")
    agree(not bool(gradient.isnan().any()), "no NaN in the gradient with hard zeros")
    forbidden = truth_of(structure.with_unary(hard.detach()))
    close(hard_z, forbidden.log_partition, "log Z with hard zeros")

    # A batch is its items.
    for item in range(log_z.shape[0] if log_z.ndim else 0):
        one = _item(structure, item, log_z.ndim)
        close(one.log_partition(), log_z[item], f"batch item {item} alone")
    # Estimators rely on sites, pruning on masks, and graphs on recognition, where there are such.
    sites = structure.sites()
    if sites is not None:
        states = torch.arange(sites.states, device=unary.device).flip(0)
        states = states.expand(sites.unary.shape)
        same = sites.restrict(states, torch.zeros_like(sites.unary))
        close(same.log_partition(), log_z, "log Z of sites() on all states in another order")
        check_on_few(structure)
    if type(structure).masks is not Structure.masks:
        check_masks(structure)
    if truth.graph is not None:
        match = type(structure).recognise(truth.graph)
        if match is not None:
            close(match.structure.log_partition(), log_z, "what recognise() gives")


def _check_numbers(structure: Structure) -> None:
    """Check that NaN written into a field afterwards is refused by every question."""
    if not bool(structure.marginals().any()):
        return  # no site is used
    for name, ask in QUESTIONS.items():
        broken = structure.with_unary(structure.unary.detach().clone())
        broken.unary.fill_(math.nan)
        try:
            ask(infer(broken))
        except (ModelError, UnsupportedError):
            continue
        raise AssertionError(f"{name} answers of a structure whose unary potentials are NaN")


def _check_answers(posterior: StructuredPosterior, truth: Enumeration) -> None:
    """Check every answer, in the shape of the sites."""
    shape = posterior.structure.unary.shape
    structure = posterior.structure
    mode = structure.site_states(posterior.mode())
    agree(structure.uses(mode).shape == shape, "mode() has the shape of unary without states")
    close(truth.score(mode), truth.maximum, "the score of mode()")
    # In a graph, a site that an item lacks is held in a state.
    fixed = truth.graph is not None
    present = (mode >= 0).unsqueeze(-1) if fixed else mode.new_ones((), dtype=torch.bool)
    marginals, best = posterior.marginals(), posterior.max_marginals()
    for what, values, expected, absent in (
        ("marginals()", marginals, truth.marginals, 0.0),
        ("max_marginals()", best, truth.max_marginals, -math.inf),
    ):
        agree(values.shape == shape, f"{what} have the shape of unary")
        close(values, torch.where(present, expected, absent), what)
    close(posterior.entropy(), truth.entropy, "entropy()")
    base = torch.linspace(-1.0, 1.0, shape.numel()).reshape(shape).to(marginals)
    over = structure.entropy_over(base)
    if over is not None:
        mean = (torch.where(present, truth.marginals, 0.0) * base).flatten(over.ndim).sum(-1)
        close(over, truth.entropy + mean, "entropy_over()")
    drawn = posterior.sample(8, generator=seeded())
    drawn = structure.site_states(drawn)
    again = structure.site_states(structure.configuration(drawn))
    agree(torch.equal(again, drawn), "site_states() gives what configuration() is made from")
    agree(drawn.shape == (8, *mode.shape), "sample(8) has shape (8, *batch, *sites)")
    if fixed:
        agree(bool(((drawn < 0) == (mode < 0)).all()), "samples have the sites that the mode has")
    agree(bool((truth.score(drawn) > -math.inf).all()), "samples are possible")
    many = structure.site_states(posterior.sample(_DRAWS, generator=seeded()))
    off = (structure.uses(many).double().mean(0) - marginals.double()).abs()
    spread = SIGMAS * (truth.most.unsqueeze(-1) * marginals.double() / _DRAWS).sqrt()
    agree(bool((off <= spread + _RARE / _DRAWS).all()), "means of samples are the marginals")


def _check_relaxed(posterior: StructuredPosterior, truth: Enumeration) -> None:
    """Check relaxed draws: weights that sum to one, or to zero where there is no site."""
    structure = posterior.structure
    if type(structure).rsample is Structure.rsample:
        return
    drawn = structure.rsample(4, temperature=0.7, generator=seeded()).detach()
    agree(drawn.shape == (4, *structure.unary.shape), "rsample(4) has shape (4, *unary.shape)")
    agree(bool((drawn >= 0).all()), "rsample() has weights >= 0")
    total = drawn.sum(-1)
    agree(
        bool((total < truth.most + ROUNDING).all()),
        "the weights of rsample() sum to the uses of a site at most",
    )
    used = posterior.marginals().detach().sum(-1)
    # Sites that are used sometimes have weights between 0 and 1.
    sure = (used - used.round()).abs() < _CERTAIN
    close(total, torch.where(sure, used.round(), total), "the sum of the weights of rsample()")


def _item(structure: Structure, item: int, batch: int) -> Structure:
    """A batch item of a structure, tensors with annotated dims cut as well."""
    changed: dict[str, Any] = {"unary": structure.unary[item]}
    for field in fields(structure):
        value, dims = getattr(structure, field.name), field.metadata.get("dims")
        if isinstance(value, Structure) and value.batch_shape == structure.batch_shape:
            changed[field.name] = _item(value, item, batch)
        if isinstance(value, Rules) and len(value.batch_shape) == batch:
            parts = [part[item if len(part) > 1 else 0] for part in value.parts]
            changed[field.name] = value.with_parts(parts)
        if dims == "unary":
            dims = structure.unary.ndim - batch
        if dims is not None:
            changed[field.name] = _cut(value, item, dims + batch)
    return replace(structure, **changed)


def _cut(value: Any, item: int, dims: int) -> Any:
    """The item of a tensor of so many dims, or of a potential made of such tensors."""
    if isinstance(value, Potential) and is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return replace(value, **{name: _cut(part, item, dims) for name, part in parts.items()})
    if isinstance(value, Tensor) and value.ndim == dims:
        return value[item if len(value) > 1 else 0]
    return value


_DRAWS, _RARE = 1000, 10
"""Number of draws for their means, and the most of a state that is next to impossible."""

_BEST = 5
"""Number of best configurations to check."""


def _check_log_prob(structure: Structure, truth: Enumeration) -> None:
    for what, configuration in (
        ("the mode", structure.mode()),
        ("samples", structure.sample(4, seeded())),
    ):
        if configuration is None:
            continue
        with suppress(UnsupportedError):
            scores = truth.score(structure.site_states(configuration))
            chances = structure.log_prob(configuration)
            close(chances, scores - truth.log_partition, f"log_prob() of {what}")


def _check_best(structure: Any, truth: Enumeration) -> None:
    """Check that the k best are the best, in order, and distinct."""
    best = structure.k_best(_BEST)
    expected = truth.scores.sort(0, descending=True).values[:_BEST]
    missing = expected.new_full((_BEST - len(expected), *expected.shape[1:]), -math.inf)
    close(best.scores, torch.cat([expected, missing]), f"the scores of k_best({_BEST})")
    there = (best.scores > -math.inf).reshape(_BEST, -1)
    count = int(there.all(1).sum())
    states = structure.site_states(_first(getattr(best, fields(best)[0].name), count))
    again = truth.score(states)
    close(again, best.scores[:count], f"the scores of the configurations of k_best({_BEST})")
    if structure.listed() is None:  # listed configurations may have several derivations
        sites = states.shape[again.ndim :].numel()
        for item in states.reshape(count, -1, sites).unbind(1) if sites else ():
            agree(len(item.unique(dim=0)) == count, "k_best() gives no configuration twice")


def _first(configurations: Any, count: int) -> Any:
    """The first configurations of `k_best`, tensors or a dataclass of them."""
    if isinstance(configurations, Tensor):
        return configurations[:count]
    parts = {name: part[:count] for name, part in vars(configurations).items()}
    return replace(configurations, **parts)


def _check_comparisons(structure: Any, truth: Enumeration) -> None:
    """Check cross-entropy and KL with a structure of scaled potentials, hard zeros unchanged."""
    other = structure.with_unary(structure.unary.detach() * 0.5)
    change = torch.where(structure.unary > -math.inf, other.unary - structure.unary, 0.0).detach()
    uses = truth.uses.flatten(1).to(change)
    batch = truth.scores.shape[1:]
    log_q = truth.scores + (uses @ change.reshape(batch.numel(), -1).mT).reshape(-1, *batch)
    log_q = log_q - log_q.logsumexp(0)
    chances = truth.probabilities
    nats = -torch.where(chances > 0, chances * log_q, 0.0).sum(0)
    close(structure.cross_entropy(other), nats, "cross_entropy()")
    if hasattr(structure, "kl_divergence"):
        close(structure.kl_divergence(other), nats - truth.entropy, "kl_divergence()")


def _check_curvature(structure: Structure, truth: Enumeration) -> None:
    """Check that a second derivative of log Z is a covariance of uses."""
    unary = structure.unary.detach().requires_grad_()
    if not unary.numel():
        return
    along = torch.linspace(-1.0, 1.0, unary.numel()).reshape(unary.shape).to(unary)
    log_z = structure.with_unary(unary).log_partition()
    (gradient,) = torch.autograd.grad(log_z.sum(), unary, create_graph=True)
    curvature = torch.zeros_like(unary)
    if gradient.requires_grad:  # else the gradient is constant
        (curvature,) = torch.autograd.grad((gradient * along).sum(), unary)
    batch = truth.scores.shape[1:]
    uses, chances = truth.uses.flatten(1).to(unary), truth.probabilities
    rate = uses @ along.reshape(batch.numel(), -1).mT
    weights = chances.reshape(len(uses), -1)
    rate = weights * (rate - (weights * rate).sum(0))
    close(curvature, (rate.mT @ uses).reshape(unary.shape), "the second derivative of log Z")


_MOST = 12
"""Number of questions checked for yes and no."""


def check_masks(model: Model) -> None:
    """Check the masks of a model against the model itself.

    A mask fixes the answers to some yes-or-no questions about the configuration (`Masks`). Without
    a mask log Z, marginals and the expected score are the model's. For every question Z within the
    mask of yes and Z within that of no add up to Z, and their shares are the expected answers; also
    where the mask already holds some answers of a drawn configuration. Draws agree with their
    masks.

    Args:
        model: small, of float64, every item possible.
    """
    masks, generator = masks_of(model, infer), seeded()
    # Without an answer held, a mask is the model.
    none = torch.zeros(1, *masks.batch_shape, *masks.questions, dtype=torch.bool)
    unmasked = masks.masked(none, none)
    exact = infer(model)
    close(unmasked.log_partition[0], exact.log_partition.double(), "log Z without a mask")
    averages = unmasked.expected()
    if isinstance(model, Structure):
        marginals = model.marginals().double()
        dense = torch.zeros_like(marginals.flatten())
        dense.index_add_(0, averages.places, averages.chances)
        close(dense, marginals.flatten(), "marginals without a mask")
        if model.entropy() is not None:
            score = exact.log_partition - exact.entropy()
            close(averages.score[0], score.double(), "the expected score without a mask")
    # Then with some answers of a draw held: draws keep them,
    drawn = unmasked.draw(generator).answers
    asked = masks.open().expand_as(none)
    for held in (none, asked & (torch.rand(none.shape, generator=generator) < 0.4)):
        required, forbidden = held & drawn, held & ~drawn
        within = masks.masked(required, forbidden)
        base, answers = within.log_partition, within.expected().answers
        again = within.draw(generator).answers
        same = bool((again[held] == drawn[held]).all())
        agree(same, "draws from a mask keep the answers held")
        # and for a sample of the free questions yes and no divide Z as the expected answers say.
        free = (asked & ~held).reshape(base.numel(), masks.questions_count)
        places = free.any(0).nonzero()[:, 0]
        order = torch.randperm(len(places), generator=generator)[:_MOST]
        for place in places[order].tolist():
            question = torch.zeros(masks.questions_count, dtype=torch.bool)
            question[place] = True
            question = question.reshape(masks.questions) & asked & ~held
            yes = masks.masked(required | question, forbidden).log_partition
            no = masks.masked(required, forbidden | question).log_partition
            there = question.flatten(base.ndim).any(-1)
            total = torch.where(there, torch.logaddexp(yes, no), base)
            close(total, base, "the masses of a yes and a no add up to Z")
            share = torch.where(question, answers, 0.0).flatten(base.ndim).sum(-1)
            alive = there & (base > -math.inf)
            expected = torch.where(alive, (yes - base).exp(), 0.0)
            close(expected, torch.where(alive, share, 0.0), "the expected answer to a question")
