"""Matchings against enumeration, permanents, assignment problems, and graphs of constraints."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import rdpgraph as rg

sparse = pytest.importorskip("scipy.sparse")
assignment = pytest.importorskip("scipy.optimize").linear_sum_assignment


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def gated(rows, columns, width, seed=0):
    """Log-odds of pairs near the diagonal; -inf for others."""
    odds = draw(rows, columns, seed=seed)
    apart = (torch.arange(rows).unsqueeze(1) * columns // rows - torch.arange(columns)).abs()
    return torch.where(apart <= width, odds, -math.inf)


def every_matching(odds, *, every_row=False, every_column=False):
    """All matchings of a matrix as (count, rows, columns), and their scores."""
    rows, columns = odds.shape
    found = []
    for partners in itertools.product(range(-1, columns), repeat=rows):
        used = [one for one in partners if one >= 0]
        if len(set(used)) < len(used) or (every_row and len(used) < rows):
            continue
        if every_column and len(used) < columns:
            continue
        states = torch.zeros(rows, columns, dtype=torch.long)
        for row, column in enumerate(partners):
            if column >= 0:
                states[row, column] = 1
        found.append(states)
    states = torch.stack(found)
    return states, torch.where(states > 0, odds, 0.0).sum((-2, -1))


@pytest.mark.parametrize("every_row", [False, True])
@pytest.mark.parametrize("every_column", [False, True])
def test_every_answer_by_enumeration(every_row, every_column):
    odds = draw(4, 4, seed=3)
    odds[0, 1] = odds[2, 2] = -math.inf
    states, scores = every_matching(odds, every_row=every_row, every_column=every_column)
    model = rg.Matching(odds, every_row=every_row, every_column=every_column)
    log_z = scores.logsumexp(0)
    torch.testing.assert_close(model.log_partition(), log_z)
    chances = (scores - log_z).exp()
    marginals = torch.einsum("c,crk->rk", chances, states.double())
    torch.testing.assert_close(model.marginals()[..., 1], marginals)
    seen = torch.where(chances > 0, chances * chances.clamp(min=1e-300).log(), 0.0)
    torch.testing.assert_close(model.entropy(), -seen.sum())
    torch.testing.assert_close(model.score(states), scores)
    best = model.k_best(7)
    torch.testing.assert_close(best.scores, scores.sort(descending=True).values[:7])
    assert len(best.states.unique(dim=0)) == 7
    assert torch.equal(model.mode(), best.states[0])
    best_of = torch.empty(4, 4, 2, dtype=torch.float64)
    for pair in itertools.product(range(4), repeat=2):
        for state in (0, 1):
            there = scores[states[:, *pair] == state]
            best_of[*pair, state] = there.max() if len(there) else -math.inf
    torch.testing.assert_close(model.max_marginals(), best_of)


def test_log_z_of_a_square_matrix_is_the_log_of_its_permanent():
    weights = draw(6, 6).exp()
    permanent = sum(
        weights[range(6), list(order)].prod() for order in itertools.permutations(range(6))
    )
    model = rg.Matching(weights.log(), every_row=True)
    torch.testing.assert_close(model.log_partition().exp(), permanent)


@pytest.mark.parametrize(("rows", "columns", "width"), [(30, 34, 2), (40, 40, 1)])
def test_wide_matrices_of_narrow_bands_equal_contraction(rows, columns, width):
    model = rg.Matching(gated(rows, columns, width))
    assert model.cost().open <= 2 * width + 2
    general = rg.infer(model.factor_graph(), scheduler=rg.Contraction())
    torch.testing.assert_close(model.log_partition(), general.log_partition)


def test_a_hub_of_rows_and_a_hub_of_columns_stay_narrow():
    """A row of 40 columns, a column of 40 rows: each is decided on when all others are."""
    star = [(0, column) for column in range(40)] + [(row, 40) for row in range(1, 41)]
    star += [(row, row - 1) for row in range(1, 41)]
    odds = draw(len(star))
    model = rg.Matching(odds, pairs=star)
    assert model.cost().open <= 5
    general = rg.infer(model.factor_graph(), scheduler=rg.Contraction())
    torch.testing.assert_close(model.log_partition(), general.log_partition)


@pytest.mark.parametrize("required", [[], [3], [3, 5]])
def test_a_row_of_many_columns_of_its_own(required):
    """More columns than a number has bits; of those that are required one can be met."""
    odds = draw(1, 100)
    every = torch.isin(torch.arange(100), torch.tensor(required, dtype=torch.long))
    model = rg.Matching(odds, every_column=every)
    weights = torch.cat([torch.zeros(1, dtype=torch.float64), odds[0]])
    wanted = [weights.logsumexp(0), odds[0, 3], torch.tensor(-math.inf).double()][len(required)]
    torch.testing.assert_close(model.log_partition(), wanted)
    across = rg.Matching(odds.mT, every_row=every)
    torch.testing.assert_close(across.log_partition(), wanted)
    if not required:
        chances = (weights - wanted).exp()[1:]
        torch.testing.assert_close(model.marginals()[0, :, 1], chances)
        assert model.mode()[0].argmax() == odds[0].argmax()


def test_components_are_products():
    first, second = draw(3, 3), draw(2, 3, seed=1)
    both = torch.full((5, 6), -math.inf, dtype=torch.float64)
    both[:3, :3], both[3:, 3:] = first, second
    model = rg.Matching(both)
    assert model.cost().components == 2
    parts = rg.Matching(first), rg.Matching(second)
    torch.testing.assert_close(model.log_partition(), sum(part.log_partition() for part in parts))
    torch.testing.assert_close(model.marginals()[:3, :3], parts[0].marginals())
    scores = [part.k_best(12).scores for part in parts]
    sums = (scores[0].unsqueeze(1) + scores[1]).flatten().sort(descending=True).values
    torch.testing.assert_close(model.k_best(12).scores, sums[:12])


def test_batches_equal_single_items_gated_in_other_places():
    odds = torch.stack([gated(6, 7, 1), gated(6, 7, 2, seed=1), torch.full((6, 7), -math.inf)])
    model = rg.Matching(odds)
    generator = torch.Generator().manual_seed(0)
    assert (model.score(model.sample(50, generator)) > -math.inf).all()
    for item, one in enumerate(odds):
        single = rg.Matching(one)
        for ask in ("log_partition", "marginals", "max_marginals", "entropy", "mode"):
            torch.testing.assert_close(getattr(model, ask)()[item], getattr(single, ask)())
        torch.testing.assert_close(model.k_best(4).scores[:, item], single.k_best(4).scores)


def test_a_batch_of_no_items_has_answers_of_no_items():
    model = rg.Matching(torch.zeros(0, 2, 3))
    assert model.log_partition().shape == (0,)
    assert model.marginals().shape == model.max_marginals().shape == (0, 2, 3, 2)
    assert model.mode().shape == (0, 2, 3)
    assert model.partners(model.mode()).shape == (0, 2)
    assert model.k_best(2).scores.shape == (2, 0)


def test_a_sparse_matrix_stays_as_it_is():
    given = sparse.coo_matrix(([1.0, 2.0], ([0, 0], [0, 0])))
    assert rg.Matching(given).log_partition() == torch.tensor([0.0, 3.0]).double().logsumexp(0)
    assert given.nnz == 2


def test_sparse_matrices_and_lists_of_pairs_equal_the_dense_matrix():
    dense = gated(8, 9, 1)
    rows, columns = (dense > -math.inf).nonzero(as_tuple=True)
    odds = dense[rows, columns]
    wanted = rg.Matching(dense)
    scipy = sparse.coo_matrix((odds.numpy(), (rows.numpy(), columns.numpy())), shape=(8, 9))
    of_torch = torch.where(dense > -math.inf, dense, 0.0).to_sparse()
    listed = torch.stack([rows, columns], 1)
    for model in (
        rg.Matching(scipy), rg.Matching(of_torch),
        rg.Matching(odds, pairs=listed, shape=(8, 9)),
    ):  # fmt: skip
        assert model.unary.shape == (len(odds), 2)
        torch.testing.assert_close(model.log_partition(), wanted.log_partition())
        torch.testing.assert_close(model.marginals(), wanted.marginals()[rows, columns])
        partners = model.partners(model.mode())
        assert torch.equal(partners, wanted.partners(wanted.mode()))


@pytest.mark.parametrize("seed", range(4))
def test_modes_are_those_of_scipy_also_where_no_sum_fits(seed):
    odds = draw(40, 45, seed=seed)
    model = rg.Matching(odds, every_row=seed % 2 == 1)
    row, column = assignment(
        np.where(odds > 0, odds, 0.0) if seed % 2 == 0 else odds, maximize=True
    )
    best = odds[row, column].clamp(min=0.0 if seed % 2 == 0 else -math.inf).sum()
    torch.testing.assert_close(model.score(model.mode()), best)
    few = model.k_best(3)
    torch.testing.assert_close(few.scores[0], best)
    assert (few.scores.diff() <= 0).all()
    torch.testing.assert_close(rg.infer(model).mode(), model.mode())


def test_sums_that_do_not_fit_name_a_way_out_that_is_a_lower_bound():
    wide = rg.Matching(draw(18, 20))
    for ask in (
        wide.log_partition, wide.marginals, wide.entropy, wide.max_marginals,
        lambda: wide.sample(2), lambda: rg.infer(wide).log_partition,
    ):  # fmt: skip
        with pytest.raises(rg.errors.BudgetError, match=r"factor_graph.*Loopy.*lower bound"):
            ask()
    messages = rg.infer(wide.factor_graph(), scheduler=rg.Loopy())
    assert messages.status.converged
    assert messages.log_partition > wide.score(wide.mode())


@pytest.mark.parametrize("seed", range(6))
def test_the_log_z_of_converged_messages_is_a_lower_bound(seed):
    model = rg.Matching(2.0 * draw(4, 5, seed=seed), every_row=seed % 2 == 0)
    messages = rg.infer(model.factor_graph(), scheduler=rg.Loopy(sweeps=2000))
    assert messages.status.converged
    assert messages.log_partition <= model.log_partition() + 1e-6


@pytest.mark.parametrize("exactly", [False, True])
def test_graphs_of_constraints_are_recognised(exactly):
    """Tracks that may be missed: a variable of its own in the constraint of each row."""
    odds = draw(3, 4)
    pairs, missed = rg.VariableArray("pair", (3, 4), 2), rg.VariableArray("missed", (3,), 2)
    zero = torch.zeros(3, 4, dtype=torch.float64)
    absent = torch.full((3,), -math.inf if exactly else 0.0, dtype=torch.float64)
    graph = rg.FactorGraph([
        rg.FactorBlock((pairs,), rg.Table(torch.stack([zero, odds], -1))),
        rg.FactorBlock((missed,), rg.Table(torch.stack([torch.zeros_like(absent), absent], -1))),
        *(rg.Factor([*pairs[row], missed[row]], rg.ExactlyOne(5)) for row in range(3)),
        *(rg.Factor([*pairs[:, column]], rg.AtMostOne(3)) for column in range(4)),
    ])  # fmt: skip
    assert "Matching" in rg.explain(graph).why
    posterior = rg.infer(graph)
    model = rg.Matching(odds, every_row=exactly)
    torch.testing.assert_close(posterior.log_partition, model.log_partition())
    torch.testing.assert_close(posterior.marginal(pairs), model.marginals())
    general = rg.infer(graph, evidence={pairs[0, 1]: 1}, scheduler=rg.Contraction())
    given = rg.infer(graph, evidence={pairs[0, 1]: 1})
    torch.testing.assert_close(given.log_partition, general.log_partition)
    torch.testing.assert_close(given.marginal(missed), general.marginal(missed))


def test_graphs_that_are_no_matchings_are_left_to_others():
    x, y, z = (rg.Variable(name, 2) for name in "xyz")
    for factors in (
        [((x, y), rg.AtMostOne(2)), ((y, z), rg.AtMostOne(2)), ((z, x), rg.AtMostOne(2))],  # odd
        [((x, y), rg.AtMostOne(2)), ((y, z), rg.Or(2))],
        [((x, y), rg.AtMostOne(2)), ((y, z), rg.AtMostOne(2)), ((y, x), rg.ExactlyOne(2)),
         ((y, z), rg.ExactlyOne(2))],
    ):  # fmt: skip
        graph = rg.FactorGraph([rg.Factor(scope, potential) for scope, potential in factors])
        assert rg.Matching.recognise(graph) is None
        rows = torch.tensor(list(itertools.product(range(2), repeat=3)))
        assert rg.infer(graph).log_partition.isfinite() == any(
            all(potential.table(2)[tuple(states["xyz".index(v.name)] for v in scope)] == 0
                for scope, potential in factors)
            for states in rows.tolist()
        )  # fmt: skip


def test_a_pair_that_has_to_be_matched_beats_better_ones_beside_it():
    """Two pairs of one row and column, and another pair of the row; the first must be matched."""
    unary = torch.tensor([[-math.inf, -4.0], [-6.0, -3.0], [0.0, 9.0]], dtype=torch.float64)
    model = rg.Matching(unary=unary, pairs=[[0, 0], [0, 0], [0, 1]])
    best = model.k_best(3)
    assert best.states[0].tolist() == model.mode().tolist() == [1, 0, 0]
    assert best.scores.tolist() == [-10.0, -math.inf, -math.inf]


def test_gradients_flow_to_log_odds_twice():
    odds = draw(3, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rg.Matching(x).log_partition(), (odds,))
    assert torch.autograd.gradgradcheck(
        lambda x: rg.Matching(x, every_row=True).log_partition(), (odds,)
    )


def test_large_batches_are_summed_in_parts_with_gradients():
    """130 items of 9 x 9: more log-values than are held together."""
    odds = draw(130, 9, 9).requires_grad_()
    assert rg.Matching(odds).cost().work > 2**22
    log_z = rg.Matching(odds).log_partition()
    (whole,) = torch.autograd.grad(log_z.sum(), odds)
    for item in (0, 129):
        single = rg.Matching(odds[item])
        torch.testing.assert_close(log_z[item], single.log_partition())
        torch.testing.assert_close(whole[item], single.marginals()[..., 1])


def test_single_precision_keeps_its_digits():
    odds = gated(30, 30, 2)
    model, exact = rg.Matching(odds.float()), rg.Matching(odds.float().double())
    assert model.log_partition().dtype == torch.float32
    torch.testing.assert_close(
        model.log_partition().double(), exact.log_partition(), rtol=1e-6, atol=1e-5
    )
    torch.testing.assert_close(model.marginals().double(), exact.marginals(), rtol=1e-5, atol=1e-6)


def test_draws_have_the_frequencies_of_matchings():
    odds = draw(2, 2)
    states, scores = every_matching(odds)
    drawn = rg.Matching(odds).sample(4000, torch.Generator().manual_seed(0))
    same = (drawn.unsqueeze(1) == states).all((-2, -1))
    assert same.any(1).all()
    chances = scores.softmax(0)
    off = (same.double().mean(0) - chances).abs()
    assert (off < 5 * (chances * (1 - chances) / 4000).sqrt()).all()


@pytest.mark.parametrize("low", [-1e12, -1e100])
def test_finite_scores_that_stand_for_absence(low):
    odds = draw(3, 3)
    odds[0, 0] = -math.inf
    forced = torch.stack([torch.zeros(3, 3), odds], -1)
    forced[1, 2, 0] = -math.inf
    wanted, stand = rg.Matching(unary=forced), rg.Matching(unary=forced.clamp(min=low))
    torch.testing.assert_close(stand.log_partition(), wanted.log_partition())
    torch.testing.assert_close(stand.marginals(), wanted.marginals())
    assert wanted.mode()[1, 2] == stand.mode()[1, 2] == wanted.k_best(1).states[0, 1, 2] == 1


def test_nothing_to_match_and_nothing_possible():
    empty = rg.Matching(torch.zeros(0, 3))
    assert empty.log_partition() == 0
    assert empty.k_best(2).scores.tolist() == [0.0, -math.inf]
    assert empty.partners(empty.mode()).shape == (0,)
    lonely = rg.Matching(torch.full((2, 2), -math.inf))
    assert lonely.log_partition() == 0
    assert lonely.partners(lonely.mode()).tolist() == [-1, -1]
    for model in (
        rg.Matching(torch.zeros(0, 3), every_column=True),
        rg.Matching(torch.full((2, 2), -math.inf), every_row=True),
        rg.Matching(torch.zeros(2, 1), every_row=True),
    ):
        assert model.log_partition() == -math.inf
        assert not model.marginals().any()
        assert model.entropy() == 0
        assert (model.k_best(2).scores == -math.inf).all()
        for ask in (model.mode, lambda model=model: model.sample(1)):
            with pytest.raises(rg.errors.ImpossibleEvidenceError):
                ask()


WRONG = {
    "a vector": lambda: rg.Matching(torch.zeros(3)),
    "NaN": lambda: rg.Matching(torch.tensor([[math.nan]])),
    "+inf": lambda: rg.Matching(torch.tensor([[math.inf]])),
    "nothing": lambda: rg.Matching(),
    "both": lambda: rg.Matching(torch.zeros(2, 2), unary=torch.zeros(2, 2, 2)),
    "a pair out of range": lambda: rg.Matching([0.0], pairs=[[0, 2]], shape=(1, 2)),
    "pairs of three": lambda: rg.Matching([0.0], pairs=[[0, 2, 1]]),
    "other log-odds": lambda: rg.Matching([0.0, 1.0, 2.0], pairs=[[0, 0], [0, 1]]),
    "a shape beside a matrix": lambda: rg.Matching(torch.zeros(2, 2), shape=(3, 3)),
    "a shape below 0": lambda: rg.Matching([], pairs=torch.zeros(0, 2).long(), shape=(-1, 2)),
    "no shape": lambda: rg.Matching([0.0], pairs=[[0, 0]], shape=3),
    "flags of other rows": lambda: rg.Matching(torch.zeros(2, 2), every_row=[True]),
    "no flags": lambda: rg.Matching(torch.zeros(2, 2), every_row="yes"),
    "unary of a vector": lambda: rg.Matching(unary=torch.zeros(2, 2)),
    "k of 0": lambda: rg.Matching(torch.zeros(2, 2)).k_best(0),
    "states of others": lambda: rg.Matching(torch.zeros(2, 2)).score(torch.zeros(2)),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_named_in_a_line(name):
    with pytest.raises(rg.errors.RdpgraphError) as caught:
        WRONG[name]()
    assert "\n" not in str(caught.value)
    assert "Matching" in str(caught.value)


@pytest.mark.long
def test_sweeps_answer_without_scipy():
    code = (
        "import sys; sys.modules['scipy'] = sys.modules['scipy.optimize'] = None\n"
        "import torch, rdpgraph as rg\n"
        "model = rg.Matching(torch.eye(3))\n"
        "assert model.partners(model.mode()).tolist() == [0, 1, 2]\n"
        "try: model.k_best(2)\n"
        "except rg.errors.UnsupportedError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install scipy" in run.stdout


def test_a_sparse_matrix_of_many_records_is_answered_by_components():
    """20,000 records of each file, in about 11,000 components of few shapes."""
    rng = np.random.default_rng(0)
    count = 20_000
    pairs = np.concatenate([
        np.stack([np.arange(count)] * 2, 1)[::2], rng.integers(0, count, (3_000, 2))
    ])  # fmt: skip
    pairs = np.unique(pairs, axis=0)
    odds = torch.from_numpy(rng.normal(size=len(pairs)))
    model = rg.Matching(odds, pairs=pairs, shape=(count, count))
    assert model.cost().open <= 3
    assert model.cost().work < 50 * len(pairs)
    marginals = model.marginals()[:, 1]
    rows = torch.zeros(count, dtype=torch.double).index_add(
        0, torch.from_numpy(pairs[:, 0]), marginals
    )
    assert rows.max() <= 1 + 1e-9
    assert (
        model.score(model.mode())
        >= model.score(model.sample(1, torch.Generator().manual_seed(0)))[0]
    )


@pytest.mark.parametrize("every_row", [False, torch.tensor([True, False])])
def test_divergences_are_sums_over_matchings(every_row):
    odds = draw(2, 2, 3)
    odds[0, 1, 0] = -math.inf
    other = draw(2, 2, 3, seed=1)
    other[1, 0, 2] = -math.inf  # which the second item allows here
    one, two = (rg.Matching(given, every_row=every_row) for given in (odds, other))
    states = torch.cartesian_prod(*[torch.arange(2)] * 6).reshape(-1, 2, 3)
    states = states.unsqueeze(1).expand(-1, 2, -1, -1)
    log_p, log_q = one.log_prob(states), two.log_prob(states)
    terms = torch.where(log_p > -math.inf, log_p.exp() * (log_p - log_q), 0.0)
    found = one.kl_divergence(two)
    torch.testing.assert_close(found, terms.sum(0))
    assert found[1] == math.inf
    crossed = torch.where(log_p > -math.inf, log_p.exp() * -log_q, 0.0).sum(0)
    torch.testing.assert_close(one.cross_entropy(two), crossed)
    torch.testing.assert_close(one.kl_divergence(one), torch.zeros(2).double())
    with pytest.raises(rg.errors.ModelError, match="another of its pairs"):
        one.kl_divergence(rg.Matching(other, every_column=True))
    with pytest.raises(rg.errors.ModelError, match="got str"):
        one.cross_entropy("this")


def test_relaxed_matchings_become_the_best_of_noisy_ones():
    odds = draw(3, 4).requires_grad_()
    model = rg.Matching(odds)
    generator = torch.Generator().manual_seed(0)
    relaxed = model.rsample(5, temperature=0.5, generator=generator)
    torch.testing.assert_close(relaxed.sum(-1), torch.ones(5, 3, 4).double())
    assert bool((relaxed[..., 1].sum(-1) < 1 + 1e-9).all())
    assert bool((relaxed[..., 1].sum(-2) < 1 + 1e-9).all())
    (slope,) = torch.autograd.grad((relaxed * draw(5, 3, 4, 2)).sum(), odds)
    assert bool(slope.isfinite().all())
    assert float(slope.abs().max()) > 0
    cold = model.rsample(5, temperature=1e-3, generator=generator.manual_seed(0))
    hard = cold[..., 1].round().long()
    assert float((cold[..., 1] - hard).abs().max()) < 1e-6
    assert bool((model.score(hard) > -math.inf).all())
