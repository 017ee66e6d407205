"""Hypertrees against all of their trees, for every kind of rules."""

import math
from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import rdpgraph as rg
from rdpgraph import Hypertree
from rdpgraph.trees import DenseRules, LowRankRules, NoRules, SparseRules, Trees
from tests.structures.hypertree.enumeration import (
    KINDS,
    counts,
    entropy_of,
    normal,
    rules_of,
    scores_of,
    trees,
)

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def hypertree(kind, total=4, states=3, *, preterminals=0, batch=(), lengths=None, hard=False):
    unary = normal(*batch, total, total, states)
    rules = rules_of(kind, states - preterminals, states)
    if hard:
        unary = unary.masked_fill(normal(*unary.shape, seed=9) > 1.0, -math.inf)
        parts = [
            part.masked_fill(normal(*part.shape, seed=8) > 1.2, -math.inf) for part in rules.parts
        ]
        rules = rules.with_parts(parts)
    root = normal(states - preterminals, seed=3)
    if lengths is not None:
        lengths = torch.tensor(lengths)
    return Hypertree(unary, rules, root=root, preterminals=preterminals, lengths=lengths)


CASES = [
    (kind, preterminals, hard)
    for kind in KINDS
    for preterminals in (0, 1)
    for hard in (False, True)
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "preterminals", "hard"), CASES)
@pytest.mark.parametrize("total", [1, 2, 3])
def test_every_answer_is_that_of_all_trees(kind, preterminals, hard, total):
    model = hypertree(kind, total, preterminals=preterminals, hard=hard)
    every, scores = scores_of(model)
    log_z = scores.logsumexp(0) if len(scores) else torch.tensor(-math.inf)
    torch.testing.assert_close(model.log_partition(), log_z.double(), **CLOSE)
    if log_z == -math.inf:
        assert not model.marginals().any()
        assert not model.entropy().any()
        for ask in (model.mode, lambda: model.sample(2), model.mbr):
            with pytest.raises(rg.errors.ImpossibleEvidenceError):
                ask()
        return
    torch.testing.assert_close(model.score(every), scores, **CLOSE)
    chances = scores.softmax(0)
    expected = counts(every, chances, 3)
    torch.testing.assert_close(model.marginals(), expected, **CLOSE)
    torch.testing.assert_close(model.span_marginals(), expected.sum(-1), **CLOSE)
    torch.testing.assert_close(model.entropy(), entropy_of(scores), **CLOSE)
    torch.testing.assert_close(model.score(model.mode()), scores.max(), **CLOSE)
    hot = torch.nn.functional.one_hot(every.clamp(min=0), 3).bool() & (every >= 0).unsqueeze(-1)
    through = torch.where(hot, scores.reshape(-1, 1, 1, 1), -math.inf).amax(0)
    torch.testing.assert_close(model.max_marginals(), through, **CLOSE)
    best = model.k_best(7)
    top = scores.sort(descending=True).values[:7]
    possible = int((top > -math.inf).sum())
    torch.testing.assert_close(best.scores[:possible], top[:possible], **CLOSE)
    assert bool((best.scores[possible:] == -math.inf).all())
    assert (
        len({tuple(tree.flatten().tolist()) for tree in best.trees.states[:possible]}) == possible
    )
    found = expected.amax(-1)
    shaped = (every >= 0).unique(dim=0)
    values = (shaped * found).flatten(1).sum(1)
    mine = model.mbr().states
    torch.testing.assert_close(((mine >= 0) * found).sum(), values.max(), **CLOSE)
    drawn = model.sample(20, torch.Generator().manual_seed(0))
    assert bool((model.log_prob(drawn) > -math.inf).all())
    for some in (model.viterbi(), best.trees, rg.trees.Trees(drawn)):
        for ask in (model.score, model.log_prob):
            torch.testing.assert_close(ask(some), ask(some.states), rtol=0, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preterminals", [0, 1])
def test_four_words_and_two_states(kind, preterminals):
    model = hypertree(kind, 4, 2 + preterminals, preterminals=preterminals)
    every, scores = scores_of(model)
    torch.testing.assert_close(model.log_partition(), scores.logsumexp(0), **CLOSE)
    expected = counts(every, scores.softmax(0), 2 + preterminals)
    torch.testing.assert_close(model.marginals(), expected, **CLOSE)


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preterminals", [0, 1])
def test_a_batch_is_its_items(kind, preterminals):
    lengths = [4, 0, 1, 3, 2]
    model = hypertree(kind, 4, preterminals=preterminals, batch=(5,), lengths=lengths)
    rules = rules_of(kind, 3 - preterminals, 3, batch=() if kind == "none" else (5,))
    root = normal(5, 3 - preterminals, seed=4)
    for whole in (model, replace(model, rules=rules, root=root)):
        log_z, marginals, entropy = whole.log_partition(), whole.marginals(), whole.entropy()
        used = whole.rule_marginals()
        for item, length in enumerate(lengths):
            own = whole.root if whole.root.ndim == 1 else whole.root[item]
            alone = Hypertree(
                whole.unary[item, :length, :length],
                whole.rules if whole is model else rules.with_parts([p[item] for p in rules.parts]),
                root=own, preterminals=preterminals,
            )  # fmt: skip
            torch.testing.assert_close(log_z[item], alone.log_partition(), **CLOSE)
            torch.testing.assert_close(
                marginals[item, :length, :length], alone.marginals(), **CLOSE
            )
            assert not marginals[item, length:].any()
            assert not marginals[item, :, length:].any()
            torch.testing.assert_close(entropy[item], alone.entropy(), **CLOSE)
            for mine, single in zip(used, alone.rule_marginals(), strict=True):
                torch.testing.assert_close(mine[item], single, **CLOSE)
            if length > 1 or (length == 1 and not preterminals):
                possible = alone.mode()
                torch.testing.assert_close(
                    alone.k_best(2).scores[0], alone.score(possible), **CLOSE
                )


def test_dims_of_a_batch_are_kept():
    model = hypertree("dense", 3, batch=(2, 1), lengths=[[3], [2]])
    assert model.log_partition().shape == (2, 1)
    assert model.marginals().shape == (2, 1, 3, 3, 3)
    assert model.mode().shape == (2, 1, 3, 3)
    assert model.sample(5).shape == (5, 2, 1, 3, 3)
    assert model.k_best(4).trees.states.shape == (4, 2, 1, 3, 3)
    assert model.mbr().lead == (2, 1)
    assert model.rule_marginals()[0].shape == (2, 1, 3, 3, 3)
    assert Hypertree(torch.zeros(0, 3, 3, 2)).log_partition().shape == (0,)
    assert Hypertree(torch.zeros(2, 0, 0, 2)).log_partition().tolist() == [0.0, 0.0]
    posterior = rg.infer(model)
    assert posterior.mode().shape == (2, 1, 3, 3)
    torch.testing.assert_close(posterior.entropy(), model.entropy())
    assert posterior.max_marginals().shape == (2, 1, 3, 3, 3)
    again = rg.infer(model.factor_graph())
    torch.testing.assert_close(again.log_partition, model.log_partition())


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preterminals", [0, 1])
def test_gradients_of_first_and_second_order(kind, preterminals):
    states = 2 + preterminals
    model = hypertree(kind, 3, states, batch=(2,), lengths=[3, 2], preterminals=preterminals)
    inputs = [model.unary, *model.rules.parts, model.root]
    inputs = tuple(part.clone().requires_grad_() for part in inputs)

    def log_z(unary, *rest):
        rules = model.rules.with_parts(rest[:-1])
        return replace(model, unary=unary, rules=rules, root=rest[-1]).log_partition()

    assert gradcheck(log_z, inputs, fast_mode=True)
    assert gradgradcheck(log_z, inputs, fast_mode=True)

    def entropy(unary, *rest):
        rules = model.rules.with_parts(rest[:-1])
        return replace(model, unary=unary, rules=rules, root=rest[-1]).entropy()

    assert gradcheck(entropy, inputs, fast_mode=True)


@pytest.mark.parametrize(("kind", "preterminals", "hard"), CASES)
def test_hard_zeros_have_no_gradient_and_no_nan(kind, preterminals, hard):
    model = hypertree(kind, 4, preterminals=preterminals, hard=hard)
    inputs = [part.clone().requires_grad_() for part in (model.unary, *model.rules.parts)]
    rules = model.rules.with_parts(inputs[1:])
    other = replace(model, unary=inputs[0], rules=rules)
    log_z = other.log_partition()
    first = torch.autograd.grad(log_z, inputs, create_graph=True)
    for part, gradient in zip(inputs, first, strict=True):
        assert not gradient[part == -math.inf].any()
        assert not gradient.isnan().any()
    second = torch.autograd.grad(sum((g**2).sum() for g in first), inputs)
    assert not any(gradient.isnan().any() for gradient in second)


@pytest.mark.parametrize("kind", ["dense", "low rank", "factorised"])
def test_rule_marginals_are_the_expected_uses(kind):
    model = hypertree(kind, 3)
    every, scores = scores_of(model)
    chances = scores.softmax(0)
    uses = torch.zeros(3, 3, 3, dtype=torch.float64)
    for tree, chance in zip(every, chances, strict=True):
        spans = {(i, j): int(tree[i, j]) for i, j in (tree >= 0).nonzero().tolist()}
        for (i, j), state in spans.items():
            for m in range(i, j):
                if (i, m) in spans and (m + 1, j) in spans:
                    uses[state, spans[i, m], spans[m + 1, j]] += chance
    table = DenseRules(model.rules.table(3, 3))
    torch.testing.assert_close(replace(model, rules=table).rule_marginals()[0], uses, **CLOSE)
    parts = tuple(part.clone().requires_grad_() for part in model.rules.parts)
    expected = torch.autograd.grad((model.rules.with_parts(parts).table(3, 3) * uses).sum(), parts)
    for mine, theirs in zip(model.rule_marginals(), expected, strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


def test_without_rules_none_are_used():
    assert rg.Hypertree(torch.zeros(2, 2, 2, requires_grad=True)).rule_marginals() == ()


@pytest.mark.cover(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", [30.0, 300.0, 3000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranges_that_underflow_are_as_exact(kind, spread, dtype):
    """A state of tiny inside value that the root asks for; both fallbacks are met."""
    model = hypertree(kind, 4, 2)
    parts = [(spread * part).to(dtype) for part in model.rules.parts]
    root = torch.tensor([0.0, -math.inf], dtype=dtype)
    unary = (spread * model.unary).to(dtype)
    unary[0, 3, 0] -= 3 * spread
    model = Hypertree(unary, model.rules.with_parts(parts), root=root)
    double = Hypertree(
        unary.double(), model.rules.with_parts([p.double() for p in parts]), root=root.double()
    )
    every, scores = scores_of(double)
    unit = 1e-13 if dtype == torch.float64 else 1e-5
    allowed = {"rtol": unit, "atol": unit * spread}
    log_z = model.log_partition().double()
    torch.testing.assert_close(log_z, scores.logsumexp(0), **allowed)
    expected = counts(every, scores.softmax(0), 2)
    allowed = 10 * unit * spread
    torch.testing.assert_close(model.marginals().double(), expected, rtol=allowed, atol=allowed)
    assert bool((model.log_prob(model.sample(5)) > -math.inf).all())


@pytest.mark.parametrize("preterminals", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_probabilities_of_their_trees(kind, preterminals):
    """Chi-square at a level of 1e-4."""
    states = 2 + preterminals
    model = hypertree(kind, 3, states, preterminals=preterminals)
    every, scores = scores_of(model)
    number = {tuple(tree.flatten().tolist()): place for place, tree in enumerate(every)}
    count = 5_000
    drawn = model.sample(count, torch.Generator().manual_seed(1))
    found = torch.zeros(len(every), dtype=torch.float64)
    for tree in drawn.flatten(1).tolist():
        found[number[tuple(tree)]] += 1
    expected = scores.softmax(0) * count
    common = expected >= 5
    rest = torch.stack([found[~common].sum(), expected[~common].sum()])
    statistic = ((found - expected) ** 2 / expected)[common].sum()
    freedom = int(common.sum()) - 1
    if rest[1] >= 1:
        statistic = statistic + (rest[0] - rest[1]) ** 2 / rest[1]
        freedom += 1
    half = torch.tensor(freedom / 2, dtype=torch.float64)
    assert float(torch.special.gammaincc(half, statistic / 2)) > 1e-4


@pytest.mark.parametrize("spread", [1.0, 1e3])
@pytest.mark.parametrize("preterminals", [0, 20])
def test_draws_of_large_grammars_use_spans_as_often_as_their_marginals_say(preterminals, spread):
    lengths = [20, 20, 20, 17, 16, 9, 2, 2]
    model = hypertree("dense", 20, 30, preterminals=preterminals, batch=(8,), lengths=lengths)
    model = model.with_unary(model.unary * spread)
    count, chances = 500, model.marginals()
    drawn = model.sample(count, torch.Generator().manual_seed(3))
    often = torch.zeros(8, 20, 20, 31).double()
    often.scatter_add_(3, drawn.movedim(0, 3) + 1, torch.ones(8, 20, 20, count).double())
    often = often[..., 1:] / count
    # Six standard deviations, and a few draws of what is rare among 100,000 entries.
    assert bool(((often - chances).abs() <= 6 * (chances / count).sqrt() + 3 / count).all())


@pytest.mark.long
@pytest.mark.cover(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other_kind", ["dense", "none"])
@pytest.mark.parametrize("preterminals", [0, 1])
@pytest.mark.parametrize("hard", [False, True])
def test_cross_entropies_are_those_of_all_trees(kind, other_kind, preterminals, hard):
    lengths = [3, 3, 3, 2, 1, 0]
    one, other = (
        hypertree(k, 3, preterminals=preterminals, batch=(6,), lengths=lengths)
        for k in (kind, other_kind)
    )
    other = other.with_unary(normal(6, 3, 3, 3, seed=2))
    if hard:
        barred = normal(6, 3, 3, 3, seed=7) > 1.0
        one = one.with_unary(one.unary.masked_fill(barred, -math.inf))
        barred[1] |= normal(3, 3, 3, seed=8) > 1.0
        other = other.with_unary(other.unary.masked_fill(barred, -math.inf))
        if other_kind == "dense":
            table = other.rules.log_rule.expand(6, -1, -1, -1).clone()
            table[2, 0, 1] = -math.inf
            other = replace(other, rules=DenseRules(table))
    found, divergence, entropy = (
        one.cross_entropy(other), one.kl_divergence(other), one.entropy(),
    )  # fmt: skip
    for item in range(6):
        _, own = scores_of(one, (item,))
        _, others = scores_of(other, (item,))
        chances = own.softmax(0) if len(own) else own
        expected = torch.where(chances > 0, -chances * others.log_softmax(0), 0.0).sum()
        if not bool((own > -math.inf).any()):
            expected = torch.zeros(())
        expected = torch.where(expected.isnan(), math.inf, expected).double()
        torch.testing.assert_close(found[item], expected, **CLOSE)
        torch.testing.assert_close(divergence[item], expected - entropy[item], **CLOSE)
    assert not hard or bool((found[1:3] == math.inf).any())
    with pytest.raises(rg.errors.ModelError, match="compared"):
        one.cross_entropy(hypertree(kind, 4, preterminals=preterminals, batch=(6,)))


def test_cross_entropies_have_gradients():
    def asked(unary, table, other):
        one = Hypertree(unary, DenseRules(table))
        return one.kl_divergence(Hypertree(other, DenseRules(table.flip(0))))

    given = (normal(3, 3, 2), normal(2, 2, 2), normal(3, 3, 2, seed=1))
    assert gradcheck(asked, [part.requires_grad_() for part in given], fast_mode=True)


def test_same_seed_same_draws():
    model = hypertree("dense", 4)
    first, second = (model.sample(5, torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_relaxed_trees_become_trees(kind):
    model = hypertree(kind, 4)
    generator = torch.Generator().manual_seed(0)
    cold = model.rsample(6, temperature=1e-4, generator=generator)
    assert cold.shape == (6, 4, 4, 3)
    torch.testing.assert_close(cold.round(), cold, rtol=0, atol=1e-3)
    states = torch.where(cold.sum(-1) > 0.5, cold.argmax(-1), -1)
    assert bool((model.score(states) > -math.inf).all())
    unary = model.unary.clone().requires_grad_()
    warm = replace(model, unary=unary).rsample(2, temperature=1.0)
    (gradient,) = torch.autograd.grad((warm**2).sum(), unary)
    assert bool(gradient.isfinite().all())
    assert bool(gradient.any())
    with pytest.raises(rg.errors.ModelError, match="temperature"):
        model.rsample(1, temperature=0.0)


@pytest.mark.long
def test_a_grammar_in_the_shapes_of_torch_struct():
    terms, root = normal(2, 4, 3).log_softmax(-1), normal(2, 2, seed=2).log_softmax(-1)
    rules = normal(1, 2, 5, 5, seed=3).flatten(2).log_softmax(-1).unflatten(2, (5, 5))
    lengths = torch.tensor([4, 2])
    model = Hypertree.pcfg(root, rules, terms, lengths=lengths)
    for item in range(2):
        _, scores = scores_of(model, item)
        torch.testing.assert_close(model.log_partition()[item], scores.logsumexp(0), **CLOSE)
    inputs = tuple(part.requires_grad_() for part in (root, rules, terms))
    assert gradcheck(
        lambda r, a, t: Hypertree.pcfg(r, a, t, lengths=lengths).log_partition(),
        inputs,
        fast_mode=True,
    )
    with pytest.raises(rg.errors.ModelError, match="children"):
        Hypertree.pcfg(root, rules, terms[..., :2])


def test_sentences_of_a_grammar_have_probabilities_that_sum_to_one():
    """All sentences of three words, weighted by the chance that a sentence has three words."""
    rules = torch.full((1, 2, 2), -math.inf, dtype=torch.float64)
    rules[0, 0, 1], rules[0, 1, 1] = math.log(0.25), math.log(0.75)
    emission = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    words = torch.cartesian_prod(*[torch.arange(2)] * 3)
    terms = emission[words].unsqueeze(-1)
    model = Hypertree.pcfg(torch.zeros(1, dtype=torch.float64), rules, terms)
    total = model.log_partition().logsumexp(0).exp()
    torch.testing.assert_close(total, torch.tensor(0.25 * 0.75, dtype=torch.float64))


def test_scores_of_spans_alone():
    scores = normal(5, 5)
    model = Hypertree.span_scores(scores)
    expected = torch.stack([scores[tree >= 0].sum() for tree in trees(5, 5, 1)])
    torch.testing.assert_close(model.log_partition(), expected.logsumexp(0), **CLOSE)
    assert len(expected) == 14


def test_low_rank_is_dense_written_out():
    model = hypertree("low rank", 6, 4, batch=(2,))
    dense = replace(model, rules=DenseRules(model.rules.table(4, 4)))
    torch.testing.assert_close(model.log_partition(), dense.log_partition(), **CLOSE)
    torch.testing.assert_close(model.marginals(), dense.marginals(), **CLOSE)


def test_trees_in_brackets():
    states = torch.full((3, 3), -1)
    for first, last, state in [(0, 2, 0), (0, 1, 1), (0, 0, 2), (1, 1, 3), (2, 2, 1)]:
        states[first, last] = state
    tree = Trees(states)
    names = ["S", "NP", "Det", "N"]
    assert tree.bracketed(["the", "(dog", "barks"], names) == (
        "(S (NP (Det the) (N -LRB-dog)) (NP barks))"
    )
    assert tree.spans() == [(0, 2, 0), (0, 1, 1), (0, 0, 2), (1, 1, 3), (2, 2, 1)]
    assert Trees(torch.full((0, 0), -1)).bracketed([]) == "()"
    many = Trees(states.expand(2, 3, 3))
    assert many[1].bracketed("abc") == "(0 (1 (2 a) (3 b)) (1 c))"
    for wrong in (
        lambda: many.spans(),
        lambda: tree.bracketed("ab"),
        lambda: tree.bracketed("abc", "S"),
    ):
        with pytest.raises(rg.errors.EvidenceError):
            wrong()
    states = states.clone()
    states[0, 1] = -1
    with pytest.raises(rg.errors.EvidenceError, match="not a tree"):
        Trees(states).bracketed("abc")


def test_what_is_no_tree_has_no_score():
    model = hypertree("dense", 4)
    tree = model.mode()
    broken = tree.clone()
    broken[0, 3] = -1
    assert model.score(broken) == -math.inf
    crossing = torch.full((4, 4), 0)
    assert model.score(crossing) == -math.inf
    with pytest.raises(rg.errors.EvidenceError, match="state"):
        model.score(tree.masked_fill(tree >= 0, 3))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Hypertree(torch.zeros(3, 4, 2)), "T, T, N"),
        (lambda: Hypertree(torch.zeros(3, 3, 2), DenseRules(torch.zeros(3, 3, 3))), "parents"),
        (lambda: Hypertree(torch.zeros(3, 3, 2), root=torch.zeros(3)), "root"),
        (lambda: Hypertree(torch.zeros(3, 3, 2), lengths=torch.tensor(4)), "lengths"),
        (lambda: Hypertree(torch.zeros(3, 3, 2), preterminals=2), "preterminals"),
        (lambda: Hypertree(torch.full((3, 3, 2), math.nan)), "NaN"),
        (lambda: DenseRules(torch.zeros(3, 2, 2)), "DenseRules"),
        (lambda: LowRankRules(torch.zeros(2, 3), torch.zeros(2, 2), torch.zeros(2, 3)), "LowRank"),
        (lambda: rules_of("factorised", 2, 1), "Factorised"),
    ],
)
def test_wrong_models_are_refused(make, words):
    with pytest.raises(rg.errors.ModelError, match=words):
        make()


def test_rules_too_large_to_write_out_are_refused_in_a_line():
    model = Hypertree(torch.zeros(2, 2, 2000), LowRankRules(*[torch.zeros(2000, 1)] * 3))
    assert model.log_partition().isfinite()
    for ask in (model.mode, model.entropy):
        with pytest.raises(rg.errors.BudgetError, match="written out"):
            ask()
    assert model.mbr().spans()


def test_no_rules_take_any_number_of_states():
    model = Hypertree(torch.zeros(3, 3, 2), NoRules())
    torch.testing.assert_close(model.log_partition().exp(), torch.tensor(2.0 * 2**5))


def test_parses_of_a_grammar_in_a_text():
    grammar = rg.trees.parse_grammar('0.4 S -> S S\n0.1 S -> S T\n0.5 S -> "a"\n1 T -> "b"')
    model = Hypertree.parses(grammar, ["a", "aaa", "aba", "ba", ""])
    weights = [0.5, 2 * 0.4**2 * 0.5**3, 0.1 * 0.4 * 0.5**2, 0.0, 0.0]
    expected = torch.tensor(weights, dtype=torch.float64)
    torch.testing.assert_close(model.log_partition().exp(), expected)
    assert Hypertree.parses(grammar, [""]).log_partition().item() == -math.inf  # it has no tree
    with pytest.raises(rg.errors.EvidenceError, match="'c'"):
        Hypertree.parses(grammar, ["abc"])
    with pytest.raises(rg.errors.ModelError, match="one sentence"):
        Hypertree.parses(grammar, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_forbids_spans(kind):
    model = hypertree(kind, 4, preterminals=1, batch=(2,))
    allowed = torch.ones(4, 4, dtype=torch.bool)
    allowed[0, 1] = allowed[1, 3] = False
    masked = model.masked(allowed)
    every, scores = scores_of(model, (0,))
    kept = ~((every >= 0) & ~allowed).flatten(1).any(1)
    assert bool(kept.any())
    assert not bool(kept.all())
    torch.testing.assert_close(masked.log_partition()[0], scores[kept].logsumexp(0), **CLOSE)
    assert not masked.marginals()[:, ~allowed].any()
    for wrong in (allowed.long(), allowed[:3]):
        with pytest.raises(rg.errors.ModelError, match="masked"):
            model.masked(wrong)


def test_answers_through_infer():
    model = hypertree("dense", 4, batch=(2,), lengths=[4, 1])
    posterior = rg.infer(model)
    assert posterior.status.exact
    assert not posterior.status.biased
    torch.testing.assert_close(posterior.log_partition, model.log_partition())
    torch.testing.assert_close(posterior.marginals(), model.marginals())
    torch.testing.assert_close(posterior.entropy(), model.entropy())
    assert torch.equal(posterior.mode(), model.mode())
    drawn = posterior.sample(3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn, model.sample(3, torch.Generator().manual_seed(0)))
    soft = posterior.rsample(temperature=0.5, generator=torch.Generator().manual_seed(0))
    other = model.rsample(1, temperature=0.5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(soft, other[0])


@pytest.mark.parametrize("kind", KINDS)
def test_no_items(kind):
    model = Hypertree(torch.zeros(0, 3, 3, 4), rules_of(kind, 4, 4))
    assert model.sample(2).shape == (2, 0, 3, 3)
    assert model.log_partition().shape == model.entropy().shape == (0,)
    assert model.kl_divergence(model).shape == (0,)
    for estimator in (rg.Randomized.default(keep=2), rg.Randomized.piloted(keep=2, replicates=2)):
        found = rg.infer(model, estimator=estimator)
        assert found.marginals().shape == (0, 3, 3, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_of_an_estimate_has_its_work(kind):
    model = Hypertree(torch.zeros(6, 6, 50), rules_of(kind, 50, 50))
    few, more = (
        rg.explain(model, estimator=rg.Randomized.default(keep=keep)).flops for keep in (5, 10)
    )
    assert 0 < few < more


def test_a_span_is_joined_to_the_least_one_around_it():
    """Both parts of every span of a tree, and nothing else."""
    used = dict.fromkeys([(0, 2), (0, 1), (0, 0), (1, 1), (2, 2)], 0)
    pairs = hypertree("none", 3).joined(used)
    whole, part = (0, 2), (0, 1)
    assert sorted(pairs) == [(part, (0, 0)), (part, (1, 1)), (whole, part), (whole, (2, 2))]


@pytest.mark.parametrize("seed", [0, 1, 2])  # each with other rules, in as long a list
def test_a_list_of_many_rules_of_a_parent_is_its_table(seed):
    states, draw = 20, torch.Generator().manual_seed(seed)
    pairs = torch.cartesian_prod(torch.arange(6), torch.arange(6))
    left, right = pairs[torch.randperm(36, generator=draw)].mT
    triples = torch.stack([torch.tensor([0] * 22 + [1, 2] * 7), left, right], 1)
    triples = triples[torch.randperm(36, generator=draw)]
    unary = normal(2, 5, 5, states, seed=seed)
    listed, other = (
        SparseRules(triples, normal(2, 36, seed=seed + at), parents=states) for at in (1, 2)
    )
    few, also = Hypertree(unary, listed), Hypertree(-unary, other)
    table, another = (
        replace(trees, rules=DenseRules(trees.rules.table(states, states))) for trees in (few, also)
    )
    for ask in (
        Hypertree.log_partition,
        Hypertree.marginals,
        Hypertree.max_marginals,
        Hypertree.entropy,
        lambda trees: trees.k_best(9).scores,
    ):
        torch.testing.assert_close(ask(few), ask(table))
    torch.testing.assert_close(few.kl_divergence(also), table.kl_divergence(another))
    (uses,) = few.rule_marginals()
    torch.testing.assert_close(uses.sum(-1), torch.full((2,), 4.0, dtype=uses.dtype))
