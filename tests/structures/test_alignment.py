"""Alignments: every path by enumeration, and what torch and plain loops say of special ones."""

import itertools
import math

import pytest
import torch
from torch.nn.functional import ctc_loss
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph.testing import check_structure
from tests.estimate.enumeration import expectation

GAPS = ((1, 1), (1, 0), (0, 1))


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def paths(unary, moves, transition, first, second, *, local):
    """[(score, {cell: state})] of one item, by trying every move."""
    found = [(0.0, {})] if local else []

    def walk(cell, state, score, path):
        if (cell == (first, second) and not local) or (local and path):
            found.append((score, path))
        for number, move in enumerate(moves):
            to = (cell[0] + move[0], cell[1] + move[1])
            if to[0] <= first and to[1] <= second:
                more = float(unary[(*to, number)])
                if state is not None and transition is not None:
                    more += float(transition[state, number])
                walk(to, number, score + more, {**path, to: number})

    every = itertools.product(range(first + 1), range(second + 1))
    for start in every if local else [(0, 0)]:
        walk(start, None, 0.0, {})
    return found


def answers(found, shape):
    """log Z, marginals and max-marginals of listed paths."""
    scores = torch.tensor([score for score, _ in found], dtype=torch.float64)
    log_z = scores.logsumexp(0)
    marginals = torch.zeros(shape, dtype=torch.float64)
    best = torch.full(shape, -math.inf, dtype=torch.float64)
    for score, path in found:
        for cell, state in path.items():
            marginals[(*cell, state)] += (score - log_z).exp()
            best[(*cell, state)] = max(best[(*cell, state)], score)
    return log_z, marginals, best


CASES = {
    "global": (GAPS, None, False),
    "affine": (GAPS, draw(3, 3, seed=3), False),
    "local": (GAPS, None, True),
    "local, affine": (GAPS, draw(3, 3, seed=3), True),
    "rows": (((1, 0), (1, 1), (1, 2)), None, False),
    "columns": (((0, 1), (2, 1)), draw(2, 2, seed=3), False),
    "two kinds of match": (((1, 1), (1, 1), (0, 1), (1, 0)), draw(4, 4, seed=3), False),
    "by ranks": (GAPS, rg.LowRank(draw(3, 2, seed=3), draw(3, 2, seed=4)), False),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [(2, 3), (3, 1)])
def test_every_path(name, sizes):
    moves, transition, local = CASES[name]
    first, second = torch.tensor([sizes[0], 1, 0]), torch.tensor([sizes[1], 1, 1])
    unary = draw(3, sizes[0] + 1, sizes[1] + 1, len(moves))
    model = rg.Alignment(
        unary, moves, transition, local=local, first_lengths=first, second_lengths=second
    )
    table = transition.table(2) if isinstance(transition, rg.extend.Potential) else transition
    log_z, marginals, best = model.log_partition(), model.marginals(), model.max_marginals()
    k_best = model.k_best(4)
    for item in range(3):
        found = paths(unary[item], moves, table, int(first[item]), int(second[item]), local=local)
        if not found:
            assert log_z[item] == -math.inf
            continue
        wanted = answers(found, unary.shape[1:])
        for got, expected in zip((log_z, marginals, best), wanted, strict=True):
            assert_close(got[item], expected)
        scores = sorted((score for score, _ in found), reverse=True)[:4]
        scores += [-math.inf] * (4 - len(scores))
        assert_close(k_best.scores[:, item], torch.tensor(scores, dtype=torch.float64))
        for score, path in found[:5]:
            states = torch.full(unary.shape[1:-1], -1)
            for cell, state in path.items():
                states[cell] = state
            assert float(model.score(states.expand(3, -1, -1))[item]) == pytest.approx(score)


@pytest.mark.long
@pytest.mark.parametrize("name", ["global", "affine", "local", "columns"])
def test_conformance(name):
    moves, transition, local = CASES[name]
    model = rg.Alignment(
        draw(2, 3, 2, len(moves)), moves, transition, local=local,
        first_lengths=None if name == "columns" else torch.tensor([2, 1]),
        second_lengths=torch.tensor([1, 1]),
    )  # fmt: skip
    check_structure(model)


def test_estimates_are_unbiased():
    model = rg.Alignment(draw(2, 2, 3), transition=draw(3, 3, seed=1))
    mean, _ = expectation(model, rg.randomized.Local(), rg.randomized.TopTail(1, 1))
    assert_close(mean, model.log_partition())


def test_pairwise_scores():
    match, deletion, insertion = draw(2, 2, 3), draw(2, 1, seed=1), draw(2, 3, 3, seed=2)
    model = rg.Alignment.pairwise(match, deletion, insertion)
    for item in range(2):
        unary = torch.full((3, 4, 3), -math.inf, dtype=torch.float64)
        unary[1:, 1:, 0] = match[item]
        unary[1:, :, 1] = deletion
        unary[:, 1:, 2] = insertion[item]
        found = paths(unary, GAPS, None, 2, 3, local=False)
        log_z, marginals, _ = answers(found, unary.shape)
        assert_close(model.log_partition()[item], log_z)
        assert_close(model.pair_marginals()[item], marginals[1:, 1:, 0])


def ctc_inputs(dtype):
    """Repeats, empty targets, no frames, and an item too short for its target."""
    logits = draw(12, 7, 5).to(dtype).requires_grad_()
    targets = torch.tensor(
        [
            [1, 1, 2, 3],
            [1, 2, 3, 4],
            [4, 4, 4, 4],
            [1, 0, 0, 0],
            [2, 2, 2, 2],
            [3, 3, 1, 1],
            [2, 1, 0, 0],
        ]
    )
    frames, sizes = torch.tensor([12, 8, 7, 3, 5, 0, 0]), torch.tensor([4, 3, 4, 0, 4, 0, 2])
    return logits, targets, frames, sizes


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("blank", [0, 4])
def test_ctc_is_that_of_torch(dtype, tolerance, blank):
    logits, targets, frames, sizes = ctc_inputs(dtype)
    targets = torch.where(targets == blank, 2, targets)
    log_probs = logits.log_softmax(-1)
    model = rg.Alignment.ctc(log_probs, targets, frames, sizes, blank=blank)
    flat = torch.cat([row[:size] for row, size in zip(targets, sizes, strict=True)])
    joined = rg.Alignment.ctc(log_probs, flat, frames, sizes, blank=blank)
    theirs = ctc_loss(log_probs, targets, frames, sizes, blank=blank, reduction="none")
    assert bool((theirs == math.inf).any())
    assert_close(-model.log_partition(), theirs, rtol=tolerance, atol=tolerance)
    assert_close(joined.log_partition(), model.log_partition())
    finite = ctc_loss(
        log_probs, targets, frames, sizes, blank=blank, reduction="none", zero_infinity=True
    )
    weights = torch.arange(1.0, 8.0).to(dtype)
    (wanted,) = torch.autograd.grad((weights * finite).sum(), logits, retain_graph=True)
    ours = torch.where(theirs < math.inf, -model.log_partition(), 0.0)
    (found,) = torch.autograd.grad((weights * ours).sum(), logits)
    assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("blank", [0, 2])
def test_targets_with_the_blank_are_refused(blank):
    """Also those in one row; beyond their lengths targets may hold anything, as those of torch."""
    log_probs = draw(6, 2, 4).log_softmax(-1)
    targets, frames, sizes = torch.tensor([[1, 3, 1], [3, 1, 1]]), [6, 5], [3, 2]
    wrong = targets.clone()
    wrong[1, 1] = blank
    for given in (wrong, torch.cat([wrong[0], wrong[1, :2]])):
        told = rf"other than the blank, {blank}; item 1 has it at 1"
        with pytest.raises(rg.errors.ModelError, match=told) as error:
            rg.Alignment.ctc(log_probs, given, frames, sizes, blank=blank)
        assert "\n" not in str(error.value)
    for padding in (blank, -100, 99):
        targets[1, 2] = padding
        found = rg.Alignment.ctc(log_probs, targets, frames, sizes, blank=blank).log_partition()
        theirs = ctc_loss(
            log_probs, targets.clamp(0, 3), torch.tensor(frames), torch.tensor(sizes), blank=blank,
            reduction="none",
        )  # fmt: skip
        assert_close(found, -theirs)


def test_the_best_ctc_path_spells_the_target():
    logits, targets, frames, sizes = ctc_inputs(torch.float64)
    keep = torch.tensor([0, 1, 2, 3])
    targets, frames, sizes = targets[keep], frames[keep], sizes[keep]
    model = rg.Alignment.ctc(logits.detach()[:, keep].log_softmax(-1), targets, frames, sizes)
    for path in (model.mode(), *model.sample(3, torch.Generator().manual_seed(0))):
        for item, (frame, size) in enumerate(zip(frames.tolist(), sizes.tolist(), strict=True)):
            places = [int((row >= 0).nonzero()) for row in path[item, 1 : frame + 1]]
            labels = [place // 2 - 1 if place % 2 == 0 else None for place in places]
            spelt = [label for label, _ in itertools.groupby(labels) if label is not None]
            assert spelt == list(range(size))


def test_soft_dtw_is_its_definition():
    costs, gamma = draw(4, 5).square(), 0.7
    unary = torch.nn.functional.pad(-costs / gamma, (1, 0, 1, 0), value=-math.inf)
    model = rg.Alignment(unary.unsqueeze(-1).expand(-1, -1, 3))
    table = torch.full((5, 6), math.inf, dtype=torch.float64)
    table[0, 0] = 0.0
    for i, j in itertools.product(range(1, 5), range(1, 6)):
        before = torch.stack([table[i - 1, j - 1], table[i - 1, j], table[i, j - 1]])
        table[i, j] = costs[i - 1, j - 1] - gamma * (-before / gamma).logsumexp(0)
    assert_close(-gamma * model.log_partition(), table[-1, -1])


@pytest.mark.parametrize(("one", "other"), [("kitten", "sitting"), ("", "abc"), ("abc", "abc")])
def test_the_edit_distance_is_its_definition(one, other):
    table = [[max(i, j) for j in range(len(other) + 1)] for i in range(len(one) + 1)]
    for i, j in itertools.product(range(1, len(one) + 1), range(1, len(other) + 1)):
        change = one[i - 1] != other[j - 1]
        table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + change)
    match = torch.tensor([[-float(a != b) for b in other] for a in one]).reshape(
        len(one), len(other)
    )
    model = rg.Alignment.pairwise(match, torch.tensor(-1.0), torch.tensor(-1.0))
    assert float(model.k_best(1).scores[0]) == -table[-1][-1]


def test_what_does_not_fit_is_refused():
    with pytest.raises(rg.errors.ModelError, match="a move of each"):
        rg.Alignment(torch.zeros(3, 3, 2))
    with pytest.raises(rg.errors.ModelError, match="advance in a sequence"):
        rg.Alignment(torch.zeros(3, 3, 1), ((0, 0),))
    with pytest.raises(rg.errors.ModelError, match="transition"):
        rg.Alignment(torch.zeros(3, 3, 3), transition=torch.zeros(2, 2))
    with pytest.raises(rg.errors.ModelError, match="lengths 0 to 2"):
        rg.Alignment(torch.zeros(1, 3, 3, 3), first_lengths=torch.tensor([3]))
    logits, targets, frames, sizes = ctc_inputs(torch.float64)
    with pytest.raises(rg.errors.ModelError, match="12 frames"):
        rg.Alignment.ctc(logits, targets, frames + 1, sizes)
    with pytest.raises(rg.errors.ModelError, match="targets 0 to 4"):
        rg.Alignment.ctc(logits, targets + 1, frames, sizes)
    for wrong in (targets[:1], targets[0], targets.flatten()[: int(sizes.sum()) - 1]):
        with pytest.raises(rg.errors.ModelError, match="in turn"):
            rg.Alignment.ctc(logits, wrong, frames, sizes)


@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (7, 20), (20, 1)])
@pytest.mark.parametrize(
    "moves",
    [
        ((1, 0), (1, 1), (1, 2)),
        ((1, 0), (2, 1), (1, 1), (1, 1)),
        ((0, 1), (3, 2)),
        ((1, 3), (2, 0)),
        ((1, 1), (1, 0), (0, 1)),
        ((0, 2), (1, 2), (1, 0)),
    ],
)
def test_rows_columns_and_diagonals_as_by_torch(moves, shape, by_torch):
    unary = draw(3, *shape, len(moves)).requires_grad_()
    generator = torch.Generator().manual_seed(2)
    sizes = [torch.randint(size, (3,), generator=generator) for size in shape]
    weights = draw(3, *shape, len(moves), seed=1)

    def asked():
        grid = rg.Alignment(unary, moves, first_lengths=sizes[0], second_lengths=sizes[1])
        log_z = grid.log_partition()
        possible = (log_z > -math.inf).double()
        (first,) = torch.autograd.grad(
            torch.where(possible > 0, log_z, 0.0).sum(), unary, create_graph=True
        )
        second = torch.zeros_like(unary)
        if first.requires_grad:  # else there is one path at most, and the gradient is constant
            (second,) = torch.autograd.grad((first * weights).sum(), unary)
        entropy = (grid.entropy() * possible).sum()
        best = grid.max_marginals()
        return log_z, first, second, entropy, best, grid.k_best(2).scores

    for ours, theirs in zip(asked(), by_torch(asked), strict=True):
        assert_close(ours, theirs)


def test_rules_of_ones_own():
    """A class that adds a rule: an empty path besides those of the grid."""

    class Free(rg.Alignment):
        def written(self):
            declared, rules = super().written()
            return declared, f"{rules} + 1"

    unary, moves = draw(9, 4, 2), ((1, 0), (1, 1))
    ours = rg.Alignment(unary, moves).log_partition()
    assert_close(Free(unary, moves).log_partition(), torch.logaddexp(ours, torch.zeros_like(ours)))
