"""Bitexts: every tree of small sentences by plain recursion, and every alignment in normal form."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph.testing import check_structure
from tests.estimate.enumeration import expectation

SIZES = list(itertools.product(range(5), repeat=2))


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def trees(unary, straight, inverted, leaves, p, q):
    """Scores of all trees over p and q words of each state, by trying every split."""
    states, known = unary.shape[-1], {}

    def scores(i, k, j, l):  # noqa: E741
        if (i, k, j, l) in known:
            return known[i, k, j, l]
        found = [[own] for own in unary[i, k, j, l].tolist()]
        found[: states - leaves] = [[] for _ in range(states - leaves)]
        for m, n in itertools.product(range(i, k + 1), range(j, l + 1)):
            orders = [(straight, (i, m, j, n), (m, k, n, l))]
            if i < m < k and j < n < l:
                orders.append((inverted, (i, m, n, l), (m, k, j, n)))
            for rules, left, right in orders:
                if {(i, k, j, l), (i, i, j, j), (k, k, l, l)} & {left, right}:
                    continue
                if left[0] == left[1] and left[2] == left[3]:
                    continue
                if right[0] == right[1] and right[2] == right[3]:
                    continue
                for a, b, c in itertools.product(
                    range(states - leaves), range(states), range(states)
                ):
                    more = float(unary[i, k, j, l, a] + rules[a, b, c])
                    if more > -math.inf:
                        found[a] += [
                            more + first + second
                            for first in scores(*left)[b]
                            for second in scores(*right)[c]
                        ]
        known[i, k, j, l] = [[own for own in row if own > -math.inf] for row in found]
        return known[i, k, j, l]

    return scores(0, p, 0, q)


@pytest.mark.long
@pytest.mark.parametrize(("p", "q"), SIZES)
def test_every_tree(p, q):
    lexical = torch.rand(p + 1, p + 1, q + 1, q + 1, generator=torch.Generator().manual_seed(p + q))
    words = rg.Bitext.words(
        draw(p, q), draw(p, seed=1), draw(q, seed=2), straight=0.3, inverted=-0.2
    )
    unary = words.unary
    # Some phrases.
    unary[..., 1] = torch.where(lexical < 0.05, draw(*lexical.shape, seed=3), unary[..., 1])
    model = rg.Bitext(unary, words.straight, words.inverted, leaves=3)
    if (p, q) == (0, 0):
        assert model.log_partition() == 0
        return
    tables = [rules.log_rule for rules in (words.straight, words.inverted)]
    found = [score for own in trees(unary, *tables, 3, p, q) for score in own]
    scores = torch.tensor(sorted(found, reverse=True), dtype=torch.float64)
    log_z = scores.logsumexp(0) if len(scores) else torch.tensor(-math.inf, dtype=torch.float64)
    assert_close(model.log_partition(), log_z)
    if len(scores):
        assert_close(model.k_best(3).scores[: len(scores)], scores[:3])
        assert_close(model.score(model.mode()), scores[0])


def separable(links):
    """Number of inverted nodes of the trees over a permutation; None if it has no tree."""
    if len(links) <= 1:
        return 0
    for cut in range(1, len(links)):
        left, right = links[:cut], links[cut:]
        for turned, order in ((0, max(left) < min(right)), (1, min(left) > max(right))):
            if order:
                parts = separable(left), separable(right)
                return None if None in parts else sum(parts) + turned
    return None


def alignments(p, q):
    """Every set of pairs of words that a tree may have, and its number of inverted nodes."""
    for size in range(min(p, q) + 1):
        for source in itertools.combinations(range(p), size):
            for target in itertools.permutations(range(q), size):
                turned = separable(target)
                if turned is not None:
                    yield tuple(zip(source, target, strict=True)), turned


@pytest.mark.parametrize(("p", "q"), SIZES[1:])
def test_the_normal_form_has_every_alignment_once(p, q):
    pairs, source, target = draw(p, q), draw(p, seed=1), draw(q, seed=2)
    model = rg.Bitext.words(pairs, source, target, straight=0.3, inverted=-0.2, normal_form=True)
    scores, marginals = [], torch.zeros(p, q, dtype=torch.float64)
    listed = list(alignments(p, q))
    for links, turned in listed:
        alone = p + q - 2 * len(links)
        free = [i for i in range(p) if i not in {i for i, _ in links}]
        score = sum(float(pairs[link]) for link in links) + float(source[free].sum())
        score += sum(float(target[j]) for j in range(q) if j not in {j for _, j in links})
        scores.append(score + 0.3 * (len(links) + alone - 1 - turned) - 0.2 * turned)
    scores = torch.tensor(scores, dtype=torch.float64)
    assert_close(model.log_partition(), scores.logsumexp(0))
    for (links, _), chance in zip(listed, scores.softmax(0), strict=True):
        for link in links:
            marginals[link] += chance
    assert_close(model.pair_marginals(), marginals)
    free = rg.Bitext.words(pairs, source, target, straight=0.3, inverted=-0.2)
    assert_close(free.k_best(1).scores, scores.amax().unsqueeze(0))


def batch(**options):
    p, q = torch.tensor([2, 3, 0, 1, 0]), torch.tensor([3, 1, 2, 0, 0])
    pairs, source, target = draw(5, 3, 3), draw(5, 3, seed=1), draw(5, 3, seed=2)
    model = rg.Bitext.words(
        pairs, source, target, source_lengths=p, target_lengths=q, inverted=-0.5, **options
    )
    ones = [
        rg.Bitext.words(
            pairs[n, : p[n], : q[n]], source[n, : p[n]], target[n, : q[n]], inverted=-0.5, **options
        )
        for n in range(5)
    ]
    return model, ones


@pytest.mark.parametrize("normal_form", [False, True])
def test_a_batch_is_its_items(normal_form):
    model, ones = batch(normal_form=normal_form)
    pairs = model.pair_marginals()
    for item, one in enumerate(ones):
        assert_close(model.log_partition()[item], one.log_partition())
        assert_close(model.entropy()[item], one.entropy())
        p, q = one.unary.shape[0] - 1, one.unary.shape[2] - 1
        assert_close(pairs[item, :p, :q], one.pair_marginals())
        assert float(pairs[item].sum()) == pytest.approx(float(one.pair_marginals().sum()))


@pytest.mark.long
def test_conformance():
    check_structure(rg.Bitext.words(draw(2, 1, 1), draw(2, 1), draw(2, 1)))
    rules = [rg.trees.DenseRules(draw(3, 3, 3, seed=seed)) for seed in (1, 2)]
    check_structure(rg.Bitext(draw(2, 2, 2, 2, 3), *rules, root=draw(3)))
    low = [rg.trees.LowRankRules(*(draw(3, 2, seed=seed + n) for n in range(3))) for seed in (1, 5)]
    check_structure(rg.Bitext(draw(2, 2, 2, 2, 3), *low, leaves=2))
    check_structure(rg.Bitext(draw(2, 2, 2, 2, 2), leaves=1))


def test_low_rank_rules_and_their_tables():
    low = [rg.trees.LowRankRules(*(draw(3, 2, seed=seed + n) for n in range(3))) for seed in (1, 5)]
    dense = [rg.trees.DenseRules(rules.table(3, 3)) for rules in low]
    unary = draw(4, 4, 3, 3, 3)
    one, other = rg.Bitext(unary, *low), rg.Bitext(unary, *dense)
    for question in ("log_partition", "marginals", "entropy", "max_marginals"):
        assert_close(getattr(one, question)(), getattr(other, question)())


def test_what_is_not_allowed_is_left_out():
    words = rg.Bitext.words(draw(3, 3), draw(3, seed=1), draw(3, seed=2))
    allowed = torch.rand(4, 4, 4, 4, generator=torch.Generator().manual_seed(0)) < 0.7
    allowed[0, 3, 0, 3] = True
    some = rg.Bitext(words.unary, words.straight, words.inverted, leaves=3, allowed=allowed)
    mask = torch.where(allowed.unsqueeze(-1), words.unary, -math.inf)
    same = rg.Bitext(mask, words.straight, words.inverted, leaves=3)
    assert_close(some.log_partition(), same.log_partition())
    assert_close(some.marginals(), same.marginals())
    assert some.work() < same.work()


def test_bispans_are_listed_again_where_others_are_allowed():
    """Splits are remembered by what is allowed, also where a mask is changed in place."""
    words = rg.Bitext.words(draw(2, 2), draw(2, seed=1), draw(2, seed=2))
    allowed = torch.ones(3, 3, 3, 3, dtype=torch.bool)
    seen = []
    for left_out in (None, (0, 1, 0, 1), (1, 2, 0, 1), None):
        allowed[:] = True
        if left_out is not None:
            allowed[left_out] = False
        some = rg.Bitext(words.unary, words.straight, words.inverted, leaves=3, allowed=allowed)
        mask = torch.where(allowed.unsqueeze(-1), words.unary, -math.inf)
        same = rg.Bitext(mask, words.straight, words.inverted, leaves=3)
        assert_close(some.log_partition(), same.log_partition())
        assert_close(some.max_marginals(), same.max_marginals())
        seen.append(float(some.log_partition()))
    assert len({*seen}) == 3
    assert seen[0] == seen[-1]


def test_estimates_are_unbiased():
    rules = [rg.trees.DenseRules(draw(3, 3, 3, seed=seed)) for seed in (1, 2)]
    unary = draw(2, 2, 2, 2, 3)
    unary[0, 1, 1, 1] = unary[1, 1, 0, 1] = -math.inf
    model = rg.Bitext(unary, *rules)
    mean, count = expectation(model, rg.randomized.Local(), rg.randomized.TopTail(1, 1))
    assert count > 1
    assert_close(mean, model.log_partition())


def test_what_does_not_fit_is_refused():
    with pytest.raises(rg.errors.ModelError, match="Bitext needs unary"):
        rg.Bitext(torch.zeros(2, 3, 2, 2, 1))
    with pytest.raises(rg.errors.ModelError, match="leaves"):
        rg.Bitext(torch.zeros(2, 2, 2, 2, 1), leaves=2)
    with pytest.raises(rg.errors.ModelError, match="rules"):
        rg.Bitext(torch.zeros(2, 2, 2, 2, 1), rg.trees.DenseRules(torch.zeros(2, 2, 2)))
    with pytest.raises(rg.errors.ModelError, match="lengths"):
        rg.Bitext(torch.zeros(1, 2, 2, 2, 2, 1), source_lengths=torch.tensor([2]))
