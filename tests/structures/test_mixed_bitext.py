"""Bitexts of mixed rules: every tree of small sentences, by trying all sets of parts."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph.errors import ModelError
from rdpgraph.testing import check_masks
from tests.structures.mixed_trees import trees

SIZES = list(itertools.product(range(1, 4), repeat=2))


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def tensors(p, q, *batch):
    unary = draw(*batch, p + 1, p + 1, q + 1, q + 1, 1)
    words = draw(*batch, p, q, seed=1), draw(*batch, p, seed=2), draw(*batch, q, seed=3)
    return (unary, *words, draw(10, seed=4))


def bitext(p, q, *batch, **lengths):
    *words, rules = tensors(p, q, *batch)
    return rg.MixedBitext(*words, rules=rules, **lengths)


# Pairs of three words each have thousands of trees, which take most of the time.
SHORT = [pytest.param(p, q, marks=[pytest.mark.long] * (p + q > 5)) for p, q in SIZES]


@pytest.mark.parametrize(("p", "q"), SHORT)
def test_every_tree(p, q):
    model, own = bitext(p, q), tensors(p, q)
    listed = list(trees(0, p, 0, q))
    assert len({frozenset(tree.bispans) for tree in listed}) == len(listed)
    scores = torch.tensor([tree.score(*own) for tree in listed], dtype=torch.float64)
    log_z, chances = scores.logsumexp(0), scores.softmax(0).tolist()
    assert_close(model.log_partition(), log_z)
    assert_close(model.entropy(), log_z - (scores.softmax(0) * scores).sum())
    pairs, bispans = torch.zeros(p, q), torch.zeros(p + 1, p + 1, q + 1, q + 1)
    kinds = torch.zeros(10)
    for tree, chance in zip(listed, chances, strict=True):
        for link in tree.links:
            pairs[link] += chance
        for bispan in tree.bispans:
            bispans[bispan] += chance
        for kind in tree.kinds:
            kinds[kind] += chance
    assert_close(model.pair_marginals(), pairs, check_dtype=False)
    assert_close(model.bispan_marginals(), bispans, check_dtype=False)
    none = torch.zeros(1, p, q, dtype=torch.bool)
    counts = model.masks().masked(none, none).expected().counts["orders"][0]
    assert_close(counts, kinds, check_dtype=False)
    best = model.k_best(min(len(listed), 5)).scores
    assert_close(best, scores.sort(descending=True).values[: len(best)])


@pytest.mark.long
@pytest.mark.parametrize("what", ["unary", "pairs", "source", "target", "rules"])
def test_what_is_impossible_is_in_no_tree(what):
    own = dict(zip(("unary", "pairs", "source", "target", "rules"), tensors(2, 2), strict=True))
    gone = torch.rand(own[what].shape, generator=torch.Generator().manual_seed(9)) < 0.3
    own[what] = own[what].masked_fill(gone, -math.inf)
    model = rg.MixedBitext(**own)
    scores = torch.tensor([tree.score(*own.values()) for tree in trees(0, 2, 0, 2)])
    assert_close(model.log_partition(), scores.logsumexp(0), check_dtype=False)
    assert not bool(model.pair_marginals().isnan().any())
    check_masks(model)


@pytest.mark.long
def test_a_batch_is_its_items():
    p, q = torch.tensor([3, 1, 2, 0, 0]), torch.tensor([2, 3, 1, 0, 2])
    whole = bitext(3, 3, 5, source_lengths=p, target_lengths=q)
    none = torch.zeros(1, 5, 3, 3, dtype=torch.bool)
    masked = whole.masks().masked(none, none)
    assert whole.log_partition()[3] == 0
    assert whole.log_partition()[4] == -math.inf
    assert_close(masked.log_partition[0], whole.log_partition())
    assert_close(masked.expected().answers[0], whole.pair_marginals())
    for item in range(3):
        rows, columns = int(p[item]), int(q[item])
        one = rg.MixedBitext(
            whole.unary[item, : rows + 1, : rows + 1, : columns + 1, : columns + 1],
            whole.pairs[item, :rows, :columns], whole.source[item, :rows],
            whole.target[item, :columns], rules=whole.rules,
        )  # fmt: skip
        assert_close(one.log_partition(), whole.log_partition()[item])
        pairs = whole.pair_marginals()[item]
        assert_close(pairs[:rows, :columns], one.pair_marginals())
        assert_close(pairs.sum(), one.pair_marginals().sum())


def test_no_items():
    model = bitext(2, 2, 0)
    assert model.log_partition().shape == model.entropy().shape == (0,)
    assert model.marginals().shape == model.unary.shape == (0, 3, 3, 3, 3, 1)
    assert model.k_best(2).scores.shape == (2, 0)


@pytest.mark.parametrize(("p", "q"), [(5, 4), (4, 6)])
def test_lists_without_a_mask_are_the_recursion(p, q):
    model = bitext(p, q)
    none = torch.zeros(1, p, q, dtype=torch.bool)
    masked = model.masks().masked(none, none)
    assert_close(masked.log_partition[0], model.log_partition())
    assert_close(masked.expected().answers[0], model.pair_marginals())


@pytest.mark.long
def test_gradients():
    *words, rules = tensors(2, 2)
    leaves = [own.requires_grad_() for own in (*words, rules)]
    torch.autograd.gradcheck(
        lambda *own: rg.MixedBitext(*own[:4], rules=own[4]).log_partition(), leaves, fast_mode=True
    )
    model = rg.MixedBitext(*leaves[:4], rules=leaves[4])

    def pairs(own):
        return rg.MixedBitext.words(own, *leaves[2:4], rules=leaves[4]).pair_marginals()

    torch.autograd.gradcheck(pairs, (leaves[1],), fast_mode=True)
    (counts,) = torch.autograd.grad(model.log_partition(), leaves[4])
    none = torch.zeros(1, 2, 2, dtype=torch.bool)
    assert_close(model.masks().masked(none, none).expected().counts["orders"][0], counts)


def test_links_leave_few_rules():
    model = bitext(6, 6)
    none, held = torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    held[0, range(0, 6, 2), range(0, 6, 2)] = True
    masks = model.masks()
    assert masks.masked(held, none).work < masks.masked(none, none).work / 12


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"unary": torch.zeros(3, 3, 3, 3, 2)}, r"unary \(3, 3, 3, 3, 1\)"),
        ({"unary": torch.zeros(3)}, "unary"),
        ({"pairs": torch.zeros(2, 3)}, r"pairs \(2, 2\)"),
        ({"source": torch.zeros(3)}, "source"),
        ({"target": torch.full((2,), math.nan)}, "NaN"),
        ({"rules": torch.zeros(9)}, r"rules \(10,\)"),
        ({"source_lengths": torch.tensor(3)}, "source_lengths|length"),
    ],
)
def test_bad_input_is_one_line(change, says):
    given = dict(zip(("unary", "pairs", "source", "target", "rules"), tensors(2, 2), strict=True))
    with pytest.raises(ModelError, match=says) as caught:
        rg.MixedBitext(**{**given, **change})
    assert "\n" not in str(caught.value)
