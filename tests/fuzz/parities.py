"""Random parity models against all of their errors, written out."""

import math

import numpy as np
import torch

import rdpgraph as rg
from rdpgraph.testing import check_structure
from tests.fuzz.compare import close, holds, named


def case(rng: np.random.Generator) -> int:
    """One model; how many shots."""
    model = drawn(rng)
    checked(model)
    return math.prod(model.batch_shape)


def drawn(rng: np.random.Generator) -> rg.ParityModel:
    """Errors that flip few checks: equal ones, some that flip none, rates of zero and one."""
    checks, errors, seen = rng.integers(0, 6), rng.integers(1, 9), rng.integers(0, 3)
    density = rng.choice([0.2, 0.5])
    matrix, observables = (
        (rng.random((rows, errors)) < density) * rng.integers(1, 4, (rows, errors))
        for rows in (checks, seen)
    )
    if errors > 2 and rng.random() < 0.4:
        matrix[:, 0], observables[:, 0] = matrix[:, 1], observables[:, 1]
    batch = [(), (1,), (3,), (2, 2), (0,)][rng.integers(5)]
    own = batch if rng.random() < 0.4 else ()
    rates = rng.random((*own, errors)) ** rng.choice([1, 4])
    rates = np.where(rng.random(rates.shape) < 0.1, rng.integers(0, 2, rates.shape), rates)
    syndrome = rng.integers(-1 if rng.random() < 0.5 else 0, 2, (*batch, checks))
    return rg.ParityModel.from_rates(
        matrix, torch.tensor(rates), observables=observables,
        syndrome=None if rng.random() < 0.1 else syndrome,
    )  # fmt: skip


def enumerated(model: rg.ParityModel) -> tuple[torch.Tensor, torch.Tensor]:
    """(2^errors, errors) all errors, and (2^errors, *batch) their scores."""
    total = len(model.checks.columns)
    every = torch.tensor(np.indices((2,) * total).reshape(total, -1).T)
    rows = every.reshape(len(every), *(1,) * len(model.batch_shape), total)
    return every, model.score(rows.expand(len(every), *model.states_shape))


def checked(model: rg.ParityModel) -> None:
    """Every question, and the kept states, by the scores of all errors."""
    every, scores = enumerated(model)
    plain = _plain_scores(model, every)
    close("score", scores, plain.numpy(), 1e-9)
    log_z = scores.logsumexp(0)
    holds("log P(s)", torch.allclose(model.log_partition(), log_z, atol=1e-9))
    chances = (scores - torch.where(log_z > -math.inf, log_z, 0.0)).exp()
    marginals = torch.einsum("c...,ce->...e", chances, every.double())
    close("P(e | s)", model.marginals()[..., 1], marginals.numpy(), 1e-9)
    entropy = -torch.where(chances > 0, chances * chances.clamp(min=1e-300).log(), 0.0).sum(0)
    close("entropy", model.entropy(), entropy.numpy(), 1e-9)
    number = (model.syndrome_of(every)[1] * 2 ** torch.arange(model.checks.num_observables)).sum(-1)
    cosets = torch.stack(
        [
            scores[number == at].logsumexp(0) if bool((number == at).any()) else log_z - math.inf
            for at in range(2**model.checks.num_observables)
        ],
        -1,
    )
    cosets = torch.where(cosets.isnan(), -math.inf, cosets)
    found = model.log_cosets()
    holds("log P(s, l)", torch.allclose(found, cosets, atol=1e-9))
    kept = model.kept(1 << len(model.checks.columns))
    holds("log P(s, l) of all states", torch.allclose(kept.log_cosets, cosets, atol=1e-9))
    unary = model.unary.clone().requires_grad_()
    mass = model.with_unary(unary).kept(1 << len(model.checks.columns)).log_partition
    (grads,) = torch.autograd.grad(mass[mass > -math.inf].sum(), unary)
    close("P(e | s) of all states", grads[..., 1], marginals.numpy(), 1e-9)
    if not log_z.numel():
        return
    best = model.k_best(6)
    order = scores.sort(dim=0, descending=True).values[:6]
    missing = order.new_full((6 - len(order), *order.shape[1:]), -math.inf)
    close("k best scores", best.scores, torch.cat([order, missing]).numpy(), 1e-9)
    sets = best.states.reshape(6, -1, best.states.shape[-1]).unbind(1)
    alive = (best.scores > -math.inf).reshape(6, -1).unbind(1)
    for rows, there in zip(sets, alive, strict=True):
        holds("k best are distinct", len(rows[there].unique(dim=0)) == int(there.sum()))
    if bool((log_z > -math.inf).all()):
        best = model.score(model.mode())
        close("the score of the mode", best, scores.amax(0).numpy(), 1e-9)
        draws = model.sample(20, torch.Generator().manual_seed(0))
        holds("draws are possible", bool((model.score(draws) > -math.inf).all()))
        if len(model.checks.columns) < 5:
            check_structure(model)
    else:
        named(model.mode, log_z)
        general = rg.infer(model.factor_graph(), scheduler=rg.Contraction()).log_partition
        holds("log P(s) of the graph", torch.allclose(general, log_z, atol=1e-9))


def _plain_scores(model: rg.ParityModel, every: torch.Tensor) -> torch.Tensor:
    """Scores by loops over errors and checks."""
    rows = []
    for errors in every.tolist():
        flipped = [0] * model.checks.num_checks
        total = torch.zeros(model.batch_shape, dtype=torch.float64)
        for at, happened in enumerate(errors):
            total = total + model.unary[..., at, happened]
            for check in model.checks.columns[at][0]:
                flipped[check] ^= happened
        if model.syndrome is not None:
            seen = model.syndrome.expand(*model.batch_shape, len(flipped))
            wrong = (seen >= 0) & (seen != torch.tensor(flipped, dtype=torch.int8))
            total = torch.where(wrong.any(-1), -math.inf, total)
        rows.append(total)
    return torch.stack(rows)
