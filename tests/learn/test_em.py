"""EM against textbook updates by enumeration: networks with gaps, grammars, ties, weights."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.learn import EM, Probabilities

A, B, C = rg.Variable("a", 2), rg.Variable("b", 3), rg.Variable("c", 2)


def generated(seed=0):
    return torch.Generator().manual_seed(seed)


def table(*shape, seed=0):
    return torch.rand(shape, generator=generated(seed), dtype=torch.float64).log().log_softmax(-1)


def start(**options):
    shapes = {"a": (2,), "b": (2, 3), "c": (3, 2)}
    tables = {name: table(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
    return {name: Probabilities(values, **options) for name, values in tables.items()}


def network(values, rows):
    """The chain a -> b -> c, a row of it observed in each row."""
    scopes = {"a": A, "b": (A, B), "c": (B, C)}
    graph = rg.FactorGraph([rg.Factor(scopes[n], rg.Table(t)) for n, t in values.items()])
    return graph.condition(dict(zip("abc", rows.T, strict=True)))


def rows_with_gaps(count=30, seed=0):
    generator = generated(seed)
    sizes = torch.tensor([2, 3, 2])
    rows = (torch.rand(count, 3, generator=generator) * sizes).long()
    return rows.masked_fill(torch.rand(rows.shape, generator=generator) < 0.3, -1)


def counted(parameters, rows, weights=None):
    """Expected counts and log-likelihood, by enumerating what each row may be."""
    p = {name: own.log_values.exp() for name, own in parameters.items()}
    counts = {name: torch.zeros_like(values) for name, values in p.items()}
    total = 0.0
    for index, row in enumerate(rows.tolist()):
        weight = 1.0 if weights is None else float(weights[index])
        ways = [
            (x, float(p["a"][x[0]] * p["b"][x[:2]] * p["c"][x[1:]]))
            for x in itertools.product(range(2), range(3), range(2))
            if all(r in (-1, s) for r, s in zip(row, x, strict=True))
        ]
        mass = sum(value for _, value in ways)
        total += weight * math.log(mass)
        for x, value in ways:
            for name, at in (("a", x[0]), ("b", x[:2]), ("c", x[1:])):
                counts[name][at] += weight * value / mass
    return counts, total


def same(fit, expected):
    for name, values in expected.items():
        torch.testing.assert_close(fit.parameters[name].log_values.exp(), values)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_step_is_that_of_the_textbook(weighted):
    rows = rows_with_gaps()
    weights = torch.rand(len(rows), generator=generated(), dtype=torch.float64)
    weights = weights if weighted else None
    counts, total = counted(start(), rows, weights)
    fit = EM(network, start(), limit=1).fit(rows, weights)
    assert fit.history[0] == pytest.approx(total)
    same(fit, {name: own / own.sum(-1, keepdim=True) for name, own in counts.items()})


def test_a_prior_adds_pseudo_counts():
    rows = rows_with_gaps()
    counts, total = counted(start(), rows)
    fit = EM(network, start(prior=0.7), limit=1).fit(rows)
    same(fit, {n: (own + 0.7) / (own + 0.7).sum(-1, keepdim=True) for n, own in counts.items()})
    prior = sum(0.7 * own.log_values.sum() for own in start().values())
    assert fit.history[0] == pytest.approx(total + float(prior))


def test_complete_rows_are_counted():
    rows = torch.tensor([[0, 0, 1], [0, 2, 1], [1, 2, 0], [0, 0, 0]])
    fit = EM(network, start()).fit(rows)
    same(fit, {"a": torch.tensor([0.75, 0.25], dtype=torch.float64)})
    expected = torch.tensor([[2 / 3, 0, 1 / 3], [0, 0, 1]], dtype=torch.float64)
    same(fit, {"b": expected})
    unused = start()["c"].log_values[1].exp()
    torch.testing.assert_close(fit.parameters["c"].log_values[1].exp(), unused)
    assert fit.status.converged
    assert fit.status.exact


@pytest.mark.parametrize("options", [{}, {"hard": True}, {"batch_size": 11}])
def test_the_history_never_falls(options):
    fit = EM(network, start(prior=0.1), tolerance=1e-9, limit=12, **options).fit(rows_with_gaps())
    assert fit.steps > 2
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(fit.history))
    assert fit.log_likelihood < fit.history[-1] + 100


def test_batches_equal_the_whole():
    rows = rows_with_gaps()
    whole = EM(network, start(), limit=3).fit(rows)
    for other in (
        EM(network, start(), limit=3, batch_size=4).fit(rows),
        EM(network, start(), limit=3).fit([rows[:11], rows[11:]]),
        EM(lambda v, r: network(v, r["x"]), start(), limit=3, batch_size=4).fit({"x": rows}),
    ):
        same(other, {name: own.log_values.exp() for name, own in whole.parameters.items()})
        assert other.history == pytest.approx(whole.history)


def test_the_model_sees_no_more_rows_than_a_batch_has():
    seen = []

    def watched(values, rows):
        seen.append(len(rows))
        return network(values, rows)

    EM(watched, start(), limit=1, batch_size=12).fit(rows_with_gaps())
    assert seen == [12, 12, 6] * 2


def test_a_weight_is_a_row_that_stands_there_repeatedly():
    rows = rows_with_gaps(8)
    weights = torch.arange(8)
    whole = EM(network, start(), limit=3).fit(rows.repeat_interleave(weights, 0))
    other = EM(network, start(), limit=3).fit(rows, weights)
    assert other.history == pytest.approx(whole.history)


def test_a_fit_goes_on_from_another():
    rows = rows_with_gaps()
    whole = EM(network, start(), limit=6, tolerance=0).fit(rows)
    half = EM(network, start(), limit=3, tolerance=0).fit(rows)
    rest = EM(network, start(), limit=3, tolerance=0).fit(rows, start=half)
    assert rest.history == pytest.approx(whole.history)


def test_hard_counts_are_of_the_best_configuration():
    rows = torch.tensor([[-1, 1, -1], [0, -1, 1]])
    first = start()
    fit = EM(network, first, limit=1, hard=True).fit(rows)
    best = [
        max(
            float(sum((first["a"].log_values[x], first["b"].log_values[x, y],
                       first["c"].log_values[y, z])))
            for x, y, z in itertools.product(range(2), range(3), range(2))
            if all(r in (-1, s) for r, s in zip(row, (x, y, z), strict=True))
        )
        for row in rows.tolist()
    ]  # fmt: skip
    assert fit.history[0] == pytest.approx(sum(best))
    assert set(fit.parameters["a"].log_values.exp().tolist()) <= {0.0, 0.5, 1.0}


def test_stepwise_updates_come_to_the_same_likelihood():
    rows = rows_with_gaps(200)
    whole = EM(network, start(prior=0.1), limit=40).fit(rows)
    steps = EM(network, start(prior=0.1), limit=10, stepwise=0.7, batch_size=50)
    fit = steps.fit(rows, generator=generated())
    assert fit.history[-1] == pytest.approx(whole.history[-1], rel=2e-3)


def test_stepwise_updates_weigh_batches_by_powers_of_their_number():
    """The k-th batch, from 0, has the weight (k + 2)^-0.7 (Liang and Klein 2009)."""
    seen = rg.Variable("seen", 4)

    def observed(values, rows):
        graph = rg.FactorGraph([rg.Factor((seen,), rg.Table(values["seen"]))])
        return graph.condition({"seen": rows})

    prior, rows = 0.5, torch.arange(4)
    parameters = {"seen": Probabilities(table(4), prior=prior)}
    em = EM(observed, parameters, limit=1, stepwise=0.7, batch_size=1)
    fit = em.fit(rows, generator=generated())
    shares = [1.0]
    for number in range(1, 4):
        weight = (number + 2) ** -0.7
        shares = [share * (1 - weight) for share in shares] + [weight]
    expected = (4 * torch.tensor(shares) + prior) / (4 + 4 * prior)
    found = fit.parameters["seen"].log_values.exp()
    torch.testing.assert_close(found.sort().values.float(), expected.sort().values)


def test_estimates_are_said_to_be_such():
    def ring(values, rows):
        pairs = [(A, B), (B, C), (C, A)]
        tables = [values["b"], values["c"], values["a"].expand(2, 2).T]
        factors = [rg.Factor(s, rg.Table(t)) for s, t in zip(pairs, tables, strict=True)]
        return rg.FactorGraph(factors).condition(dict(zip("abc", rows.T, strict=True)))

    fit = EM(ring, start(), limit=2, scheduler=rg.Loopy()).fit(rows_with_gaps())
    assert not fit.status.exact
    assert "estimated" in fit.status.remedy
    assert EM(ring, start(), limit=2).fit(rows_with_gaps()).status.exact


def test_further_starts_find_a_better_maximum():
    hidden = {"a": Probabilities(table(2)), "c": Probabilities(table(2, 2, seed=1))}

    def mixture(values, rows):
        scopes = [A, *((A, rg.Variable(f"x{i}", 2)) for i in range(3))]
        tables = [values["a"], *[values["c"]] * 3]
        pairs = zip(scopes, tables, strict=True)
        graph = rg.FactorGraph([rg.Factor(s, rg.Table(t)) for s, t in pairs])
        return graph.condition({f"x{i}": rows[:, i] for i in range(3)})

    rows = torch.tensor([[0, 0, 0]] * 5 + [[1, 1, 1]] * 5 + [[0, 1, 0]])
    one = EM(mixture, hidden).fit(rows)
    many = EM(mixture, hidden, starts=4).fit(rows, generator=generated())
    assert many.history[-1] >= one.history[-1]


def test_fixed_entries_and_hard_zeros_stay():
    values = torch.tensor([[0.2, 0.3, 0.5], [0.5, 0.5, 0.0]], dtype=torch.float64).log()
    fixed = torch.tensor([[True, False, False], [False, False, False]])
    own = Probabilities(values, fixed=fixed, prior=0.3)
    counts = torch.tensor([[9.0, 1.0, 3.0], [1.0, 3.0, 5.0]], dtype=torch.float64)
    for made in (own.maximised((counts,)), own.drawn(generated()), own.at(own.free())):
        p = made.log_values.exp()
        torch.testing.assert_close(p.sum(-1), torch.ones(2, dtype=torch.float64))
        assert p[0, 0].item() == pytest.approx(0.2)
        assert p[1, 2].item() == 0
    p = own.maximised((counts,)).log_values.exp()
    assert p[0].tolist() == pytest.approx([0.2, 0.8 * 1.3 / 4.6, 0.8 * 3.3 / 4.6])


def test_inside_outside_of_a_grammar():
    """Rules in one normalisation with words: expected uses by enumerating the trees."""
    text = torch.tensor([[0, 1, 0], [1, 1, 0]])
    first = Probabilities(table(2, 6, seed=3))  # 2 x 2 pairs, then 2 words

    def model(values, rows):
        rules, words = values["A"][:, :4].reshape(2, 2, 2), values["A"][:, 4:]
        place = torch.arange(3)
        unary = torch.zeros(len(rows), 3, 3, 2, dtype=torch.float64)
        unary[:, 0, 2, 1] = -math.inf  # the sentence is symbol 0
        unary = unary.index_put((torch.arange(len(rows))[:, None], place, place), words.T[rows])
        return rg.Hypertree(unary, rg.trees.DenseRules(rules))

    def inside(i, j, symbol, words, p):
        """All trees, as pairs of a probability and the entries used."""
        if i == j:
            return [(p[symbol, 4 + words[i]], [(symbol, 4 + words[i])])]
        return [
            (p[symbol, 2 * left + right] * a * b, [(symbol, 2 * left + right), *one, *two])
            for k in range(i, j)
            for left, right in itertools.product(range(2), repeat=2)
            for a, one in inside(i, k, left, words, p)
            for b, two in inside(k + 1, j, right, words, p)
        ]

    p, counts, total = first.log_values.exp(), torch.zeros(2, 6, dtype=torch.float64), 0.0
    for words in text.tolist():
        trees = inside(0, 2, 0, words, p)
        mass = sum(value for value, _ in trees)
        total += float(mass.log())
        for value, used in trees:
            for at in used:
                counts[at] += value / mass
    fit = EM(model, {"A": first}, limit=1).fit(text)
    assert fit.history[0] == pytest.approx(total)
    same(fit, {"A": counts / counts.sum(-1, keepdim=True)})


def test_bad_input_is_told_in_one_line():
    rows = rows_with_gaps()
    impossible = start() | {"a": Probabilities(torch.tensor([1.0, 0.0]).double().log())}
    rows[17] = torch.tensor([1, 0, 0])
    rows[:17, 0] = 0
    with pytest.raises(rg.errors.ImpossibleEvidenceError, match="row 17 of the data"):
        EM(network, impossible, batch_size=5).fit(rows)

    def forgetful(values, rows):
        return rg.FactorGraph([rg.Factor(A, rg.Table(values["a"]))]).condition({A: rows[:, 0]})

    with pytest.raises(rg.errors.ModelError, match="'b': the table has lost all mass"):
        EM(forgetful, start()).fit(rows)
    for wrong, message in (
        ({"tolerance": -1}, "tolerance"), ({"limit": -1}, "limit"), ({"starts": 0}, "starts"),
        ({"batch_size": 0}, "batch_size"), ({"stepwise": 0.2}, "stepwise"),
    ):  # fmt: skip
        with pytest.raises(rg.errors.ModelError, match=message):
            EM(network, start(), **wrong)
    with pytest.raises(rg.errors.ModelError, match=r"need \(30,\); got \(2,\)"):
        EM(network, start()).fit(rows, torch.ones(2))
    with pytest.raises(rg.errors.ModelError, match="sum to 2, not to one"):
        Probabilities(torch.zeros(2))
    with pytest.raises(rg.errors.ModelError, match="an iterator can be read only once"):
        EM(network, start()).fit(part for part in [rows])
    with pytest.raises(rg.errors.ModelError, match="with a leading dim of rows"):
        EM(network, start()).fit(3)
    with pytest.raises(rg.errors.ModelError, match="got 2 batches, weights for 1"):
        EM(network, start()).fit([rows, rows], [torch.ones(30)])
    with pytest.raises(rg.errors.ModelError, match="got 0 batches"):
        EM(network, start()).fit([])
    with pytest.raises(rg.errors.ModelError, match="same number of rows"):
        EM(network, start()).fit((rows, rows[:2]))
