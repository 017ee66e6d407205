"""The structures of the library beside their recurrences: same answers at random sizes."""

import math
import random

import pytest
import torch

import rdpgraph as rg
from tests.recurrences import written
from tests.recurrences.cases import logs

close = torch.testing.assert_close


def ctc_recurrence(log_probs, targets, frames, labels):
    """`written.Ctc` of the arguments of torch's loss: blanks around all labels, class 0."""
    spelt = torch.zeros(len(targets), 2 * targets.shape[1] + 1, dtype=torch.long)
    spelt[:, 1::2] = targets
    skips = torch.full(spelt.shape, -math.inf, dtype=log_probs.dtype)
    own = (spelt[:, 2:] != 0) & (spelt[:, 2:] != spelt[:, :-2])
    skips[:, 2:] = torch.where(own, 0.0, -math.inf)
    return written.Ctc(log_probs.transpose(0, 1), spelt, skips, frames, 2 * labels + 1)


def cases(name, seed):
    """A recurrence, the library's structure, and the tensors that both were made of."""
    g, draw = torch.Generator().manual_seed(seed), random.Random(seed)
    hard = draw.choice([0.0, 0.2])
    batch, steps, states = draw.randint(1, 4), draw.randint(1, 9), draw.randint(1, 6)

    def r(*shape):
        return logs(g, *shape, hard=hard)

    def upto(most, least=0):
        return torch.randint(least, most + 1, (batch,), generator=g)

    lengths = upto(steps)
    if name == "Chain":
        parts = [r(batch, steps, states), r(states, states)]
        return (
            lambda u, w: written.Chain(u, w, lengths),
            lambda u, w: rg.Chain(u, w, lengths=lengths),
            parts,
        )
    if name == "Steps":
        parts = [r(batch, steps + 1, states), r(batch, steps, states, states)]
        made = lambda u, w: written.Steps(u, w, lengths)  # noqa: E731
        return made, lambda u, w: rg.Chain(u, w, lengths=lengths), parts
    if name == "Segments":
        parts = [r(batch, steps, draw.randint(1, 4), states), r(states, states)]
        made = lambda u, w: written.Segments(u, w, lengths)  # noqa: E731
        return made, lambda u, w: rg.SemiMarkov(u, w, lengths=lengths), parts
    if name == "Alignment":
        first, second = upto(steps), upto(states)
        return (
            lambda u: written.Alignment(u, first, second),
            lambda u: rg.Alignment(u, first_lengths=first, second_lengths=second),
            [r(batch, steps + 1, states + 1, 3)],
        )
    if name == "Trees":
        steps, own = min(steps, 6), lengths.clamp(max=min(steps, 6))
        parts = [r(batch, steps, steps, states), r(states, states, states)]
        return (
            lambda u, w: written.Trees(u, w, own),
            lambda u, w: rg.Hypertree(u, rg.trees.DenseRules(w), lengths=own),
            parts,
        )
    if name == "Pcfg":
        words = draw.randint(1, 3)
        own = torch.randint(2, 6, (batch,), generator=g)
        return (
            lambda root, rules, terms: written.Pcfg.of(root, rules, terms, own),
            lambda root, rules, terms: rg.Hypertree.pcfg(
                root, rg.trees.DenseRules(rules), terms, lengths=own
            ),
            [r(states), r(states, states + words, states + words), r(batch, 5, words)],
        )
    assert name == "Projective"
    steps, own = min(steps, 6), lengths.clamp(max=min(steps, 6))
    return (
        lambda u: written.Projective(u, own),
        lambda u: rg.ProjectiveDependencies(u, lengths=own),
        [r(batch, steps, steps + 1)],
    )


NAMES = ["Chain", "Steps", "Segments", "Alignment", "Trees", "Pcfg", "Projective"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_the_structure(name, seed, dtype):
    ours, theirs, parts = cases(name, seed)
    parts = [part.to(dtype).requires_grad_() for part in parts]
    recurrence, structure = ours(*parts), theirs(*parts)
    tolerance = {torch.float64: {}, torch.float32: {"rtol": 2e-5, "atol": 2e-5}}[dtype]
    log_z, wanted = recurrence.log_partition(), structure.log_partition()
    close(log_z, wanted, **tolerance)
    possible = (wanted > -math.inf).to(dtype)
    gradients = [
        torch.autograd.grad(value, parts, possible, materialize_grads=True, allow_unused=True)
        for value in (log_z, wanted)
    ]
    for one, other in zip(*gradients, strict=True):
        close(one, other, **tolerance)
    close(recurrence.entropy(), structure.entropy(), **tolerance)
    best = recurrence.best_score()
    assert torch.equal(best > -math.inf, possible > 0)
    if bool(possible.all()):
        close(best, structure.score(structure.mode()).detach(), **tolerance)


@pytest.mark.parametrize("seed", range(3))
def test_ctc_is_that_of_torch(seed):
    g = torch.Generator().manual_seed(seed)
    raw = logs(g, 12, 3, 5).requires_grad_()
    targets = torch.randint(1, 5, (3, 4), generator=g)
    frames, labels = torch.tensor([12, 9, 10]), torch.randint(1, 5, (3,), generator=g)
    arguments = targets, frames, labels
    ours = ctc_recurrence(raw.log_softmax(-1), *arguments).log_partition()
    theirs = -torch.nn.functional.ctc_loss(raw.log_softmax(-1), *arguments, reduction="none")
    close(ours, theirs)
    close(*(torch.autograd.grad(value.sum(), raw)[0] for value in (ours, theirs)))


def test_low_rank_chains_are_those_of_the_structure():
    g = torch.Generator().manual_seed(0)
    parts = [logs(g, 3, 5, 4), logs(g, 4, 2), logs(g, 4, 2)]
    sites, left, right = (part.requires_grad_() for part in parts)
    ours = written.LowRankChain(sites, left, right.mT).log_partition()
    theirs = rg.Chain(sites, rg.LowRank(left, right)).log_partition()
    close(ours, theirs)
    for one, other in zip(
        *(torch.autograd.grad(value.sum(), parts) for value in (ours, theirs)), strict=True
    ):
        close(one, other)


def test_float32_keeps_its_digits_over_ten_thousand_steps():
    g = torch.Generator().manual_seed(0)
    sites, transition = logs(g, 1, 10_000, 4), logs(g, 4, 4)
    exact = rg.Chain(sites, transition)
    single = written.Chain(sites.float(), transition.float())
    close(single.log_partition().double(), exact.log_partition(), rtol=1e-6, atol=0)
    marginals = single.marginals()["sites"].double()
    # Rounding adds up as a random walk: about the square root of the steps, times 1.2e-7.
    close(marginals, exact.marginals(), rtol=0, atol=3e-5)
    (best,) = single.best_score().double()
    close(best, exact.score(exact.mode())[0], rtol=1e-6, atol=0)
