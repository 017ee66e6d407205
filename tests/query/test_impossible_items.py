"""Batches some of whose items are impossible: one rule for every engine and structure."""

import itertools
import math
import warnings

import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import BudgetError, ImpossibleEvidenceError
from rdpgraph.testing import brute_force

INF = math.inf
SCHEDULERS = {
    "contraction": rg.Contraction(),
    "auto": rg.Auto(),
    "little": rg.Auto(memory=2000.0, seconds=0.3),
    "loopy": rg.Loopy(),
    "join": rg.JoinGraph(),
    "search": rg.Search(seconds=2.0),
}


def grid(first: torch.Tensor) -> tuple[list[rg.Variable], rg.FactorGraph]:
    """A cycle of four, batched by the table of its first pair."""
    generator = torch.Generator().manual_seed(0)
    x = [rg.Variable(f"x{i}", 2) for i in range(4)]
    tables = [torch.randn(2, 2, generator=generator, dtype=torch.float64) for _ in range(3)]
    pairs = [(x[i], x[i + 1]) for i in range(3)]
    factors = [rg.Factor(pair, rg.Table(own)) for pair, own in zip(pairs, tables, strict=True)]
    return x, rg.FactorGraph([*factors, rg.Factor((x[0], x[3]), rg.Table(first))])


def of_tables() -> tuple[list[rg.Variable], rg.FactorGraph]:
    """The table of items 1 and 4 allows nothing."""
    table = torch.zeros(5, 2, 2, dtype=torch.float64)
    table[:, 1, 0] = -1.0
    table[1] = table[4] = -INF
    return grid(table)


def of_evidence() -> tuple[list[rg.Variable], rg.FactorGraph]:
    """Items 1 and 4 observe a pair of states that is impossible, so that nothing is left to ask."""
    x, graph = grid(torch.tensor([[0.0, 1.0], [0.0, -INF]], dtype=torch.float64))
    return x, graph.condition({x[0]: [0, 1, 1, 0, 1], x[3]: [0, 1, 0, 1, 1]})


def of_cycles() -> tuple[list[rg.Variable], rg.FactorGraph]:
    """Items 1 and 4 are a cycle of three that two colours do not colour, which no message tells."""
    x = [rg.Variable(f"x{i}", 2) for i in range(3)]
    differ = torch.zeros(5, 2, 2, dtype=torch.float64)
    differ[1] = differ[4] = torch.tensor([[-INF, 0.0], [0.0, -INF]])
    table = rg.Table(differ)
    likes = rg.Factor((x[0],), rg.Table(torch.tensor([0.0, 1.0], dtype=torch.float64)))
    return x, rg.FactorGraph([rg.Factor(p, table) for p in itertools.combinations(x, 2)] + [likes])


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("model", [of_tables, of_evidence, of_cycles])
def test_modes_and_draws_name_the_items_that_are_impossible(model, name):
    x, graph = model()
    impossible = (brute_force(graph).log_partition == -INF).nonzero().flatten().tolist()
    assert impossible == [1, 4]
    posterior = rg.infer(graph, scheduler=SCHEDULERS[name])
    asked = {
        "mode": posterior.mode,
        "mode_is_optimal": posterior.mode_is_optimal,
        "mode_bound": posterior.mode_bound,
    }
    if name not in ("loopy", "join"):
        asked["marginal_mode"] = lambda: posterior.marginal_mode([x[0], x[1]])
    if name in ("contraction", "auto"):
        asked["sample"] = lambda: posterior.sample(2)
    for ask in asked.values():
        with pytest.raises(ImpossibleEvidenceError, match=r"in 2 of 5 batch items \(1, 4\); leave"):
            ask()


@pytest.mark.parametrize("name", ["contraction", "auto", "loopy", "join"])
@pytest.mark.parametrize("model", [of_tables, of_evidence])
def test_marginals_of_impossible_items_are_zeros_with_a_warning(model, name):
    x, graph = model()
    truth, posterior = brute_force(graph), rg.infer(graph, scheduler=SCHEDULERS[name])
    with pytest.warns(UserWarning, match="No configuration is possible"):
        marginals = posterior.marginals()
    lost = truth.log_partition == -INF
    torch.testing.assert_close(posterior.log_partition == -INF, lost)
    for variable in x:
        assert bool((marginals[variable][lost] == 0).all())
        assert bool((marginals[variable][~lost].sum(-1) - 1 < 1e-9).all())
    assert bool((posterior.max_marginals()[x[0]][lost] == -INF).all())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was said
        assert bool((posterior.entropy()[lost] == 0).all())
    possible = rg.infer(graph.condition({}), scheduler=SCHEDULERS[name])
    with pytest.warns(UserWarning, match="No configuration is possible"):
        possible.entropy()


@pytest.mark.parametrize("model", [of_tables, of_evidence, of_cycles])
def test_estimates_of_the_other_items_are_theirs(model):
    x, graph = model()
    truth = brute_force(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        posterior = rg.infer(graph, scheduler=rg.MiniBuckets(seconds=0.1, memory=1e6))
        torch.testing.assert_close(posterior.log_partition, truth.log_partition, atol=0.1, rtol=0)
        bounds = posterior.bounds()
    lost = truth.log_partition == -INF
    assert bool((bounds.upper[lost] == -INF).all())
    with pytest.warns(UserWarning, match="No configuration is possible"):
        marginals = posterior.marginals()
    for variable in x:
        torch.testing.assert_close(marginals[variable].sum(-1), (~lost).double())
    assert bool((posterior.entropy()[lost] == 0).all())


def test_estimates_name_the_items_that_nothing_was_drawn_for():
    x = [rg.Variable(f"x{i}", 3) for i in range(8)]
    differ = torch.zeros(3, 3, 3)
    differ[1] = torch.where(torch.eye(3) > 0, -INF, 0.0)  # three colours for eight that all differ
    pairs = [rg.Factor(pair, rg.Table(differ)) for pair in itertools.combinations(x, 2)]
    posterior = rg.infer(rg.FactorGraph(pairs), scheduler=rg.MiniBuckets(seconds=0.1, memory=500.0))
    for ask in (lambda: posterior.log_partition, posterior.marginals):
        with pytest.raises(BudgetError, match=r"possible in 1 of 3 batch items \(1\), .* raise"):
            ask()


def test_certain_answers_are_no_cause_for_a_warning():
    x, graph = grid(torch.zeros(2, 2, dtype=torch.float64))
    posterior = rg.infer(graph.condition(dict.fromkeys(x, 0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert abs(posterior.entropy()) < 1e-9
        assert posterior.marginal(x[0]).tolist() == [1, 0]
        assert posterior.joint(x[:2]).sum() == 1


def test_gradients_of_the_other_items_are_theirs():
    table = torch.randn(5, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    table[1] = -INF
    table.requires_grad_()
    together = rg.infer(grid(table)[1]).log_partition
    (gradient,) = torch.autograd.grad(together[together > -INF].sum(), table)
    assert bool((gradient[1] == 0).all())
    for item in (0, 2, 3, 4):
        own = rg.infer(grid(table[item])[1]).log_partition
        torch.testing.assert_close(torch.autograd.grad(own, table)[0][item], gradient[item])


def chain(unary: torch.Tensor) -> rg.Chain:
    return rg.Chain(unary, torch.zeros(2, 2))


def spans(unary: torch.Tensor) -> rg.SemiMarkov:
    return rg.SemiMarkov(unary.unsqueeze(-2), torch.zeros(2, 2))


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
@pytest.mark.parametrize("make", [chain, spans])
def test_structures_name_them_too(make, batch):
    unary = torch.zeros(*batch, 4, 2)
    unary[..., 2, 1, :] = -INF
    posterior = rg.infer(make(unary))
    named = r"\(2\)" if len(batch) == 1 else r"\(\(0, 2\), \(1, 2\)\)"
    for ask in (posterior.mode, lambda: posterior.sample(1), make(unary).mode):
        with pytest.raises(ImpossibleEvidenceError, match=f"batch items {named}; leave"):
            ask()
    with pytest.warns(UserWarning, match="No configuration is possible"):
        assert bool((posterior.marginals().reshape(*batch, -1)[..., 2, :] == 0).all())


def checks() -> torch.Tensor:
    """(144, 4) bits."""
    generator = torch.Generator().manual_seed(3)
    order = [torch.randperm(192, generator=generator) for _ in range(3)]
    return torch.cat(order).reshape(-1, 4)


def words(flips: torch.Tensor) -> tuple[rg.VariableArray, rg.FactorGraph]:
    """Received words of a random parity-check code, 192 bits and 144 checks of 4."""
    order = checks()
    bits = rg.VariableArray("bit", (192,), 2)
    odds = 1.0 - 2.0 * flips.double()
    parities = rg.FactorBlock(tuple(bits[order[:, slot]] for slot in range(4)), rg.Xor(4, parity=0))
    channel = rg.FactorBlock((bits,), rg.Table(torch.stack([odds, -odds], -1)))
    return bits, rg.FactorGraph([channel, parities])


def test_words_that_are_not_decoded_come_with_their_violations(ticking):
    generator = torch.Generator().manual_seed(0)
    flips = torch.rand(6, 192, generator=generator) < torch.tensor([0.0, 0.5] * 3).unsqueeze(1)
    bits, graph = words(flips)
    posterior = rg.infer(graph, scheduler=rg.Loopy(sweeps=20))
    ticking()  # no search is begun
    with pytest.warns(UserWarning, match="FactorGraph.violations"):
        mode = posterior.mode()
    violations = graph.violations(mode)
    parities = mode[bits][:, checks()].sum(-1) % 2
    torch.testing.assert_close(violations, parities.sum(-1))
    torch.testing.assert_close(violations == 0, graph.score(mode) > -INF)
    assert violations[::2].tolist() == [0, 0, 0]
    assert int(violations.sum()) > 0
    assert "no possible mode was found in" in posterior.status_of("mode").remedy
    assert not bool(posterior.mode_is_optimal()[violations > 0].any())


def test_violations_are_the_factors_that_allow_nothing():
    x, graph = of_tables()
    graph = graph.condition({x[2]: 1})
    every = torch.tensor(list(itertools.product(range(2), repeat=4))).unsqueeze(1)
    assignment = dict(zip(x, every.unbind(-1), strict=True))
    counts = graph.violations(assignment)
    clash = (every[..., 2] != 1).long()
    expected = clash + torch.tensor([0, 1, 0, 0, 1])
    assert counts.dtype == torch.int64
    torch.testing.assert_close(counts, expected)
    torch.testing.assert_close(counts > 0, graph.score(assignment) == -INF)


def test_a_search_names_the_items_that_it_found_nothing_for(ticking):
    x, graph = of_cycles()
    ticking()  # no move is begun
    with pytest.raises(BudgetError, match=r"found in .* of 5 batch items .* raise the time"):
        rg.infer(graph, scheduler=rg.Search(seconds=1.0)).mode()
    assert len(x) == 3


ROUTES = {
    "auto": rg.Auto(),
    "contraction": rg.Contraction(),
    "path": rg.Contraction(optimize="greedy"),
    "loopy": rg.Loopy(),
    "join": rg.JoinGraph(),
    "counting": rg.Counting(),
    "mini-buckets": rg.MiniBuckets(),
}


@pytest.mark.filterwarnings("ignore:No configuration is possible")
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("scope", [0, 1])
@pytest.mark.parametrize("name", ROUTES)
def test_gradients_of_impossible_models_are_zeros(name, scope, rows):
    x, y = rg.Variable("x", 3), rg.Variable("y", 2)
    values = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    never = rg.Table(torch.full((3,) * scope, -INF, dtype=torch.float64))
    graph = rg.FactorGraph([rg.Factor((x, y), rg.Table(values)), rg.Factor((x,) * scope, never)])
    graph = graph.condition({y: torch.tensor([0, 1, -1])}) if rows else graph
    posterior = rg.infer(graph, scheduler=ROUTES[name])
    assert bool((posterior.log_partition == -INF).all())
    (gradient,) = torch.autograd.grad(posterior.log_partition.sum(), values)
    assert not bool(gradient.any())
    assert not any(bool(each.any()) for each in posterior.marginals().values())
