"""Every question on every route of a graph, against the sum over all configurations."""

import contextlib
import warnings

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force
from tests.questions import QUESTIONS, seeded
from tests.routes import ROUTES, Twice, declared, inferred, weights

DOUBLE = torch.float64


def chain_with_zeros(w):
    """A chain that hard zeros define, with rows of evidence on some of its variables."""
    hard = torch.where(
        torch.eye(3, dtype=torch.bool).roll(1, 0), -torch.inf, w[20:29].reshape(3, 3)
    )
    x = rg.VariableArray("x", (5,), 3)
    blocks = [rg.FactorBlock((x,), rg.Table(w[:15].reshape(5, 3)))]
    blocks.append(rg.FactorBlock((x[:-1], x[1:]), rg.Table(hard)))
    seen = torch.tensor([[-1, 1, -1, -1, -1], [-1, -1, -1, 2, -1], [0, -1, -1, -1, 1]])
    return rg.FactorGraph(blocks).condition({x: seen})


def chain_left(w):
    """A chain whose first variable is observed, which leaves a shorter one and a constant."""
    x = rg.VariableArray("x", (5,), 3)
    unary = rg.FactorBlock((x,), rg.Table(w[:15].reshape(5, 3)))
    pairs = rg.FactorBlock((x[:-1], x[1:]), rg.Table(w[20:29].reshape(3, 3)))
    return rg.FactorGraph([unary, pairs]).condition({x[0]: torch.tensor([0, 2, 1])})


def chain_of_two_sizes(w):
    """A chain with hard zeros and evidence whose variables differ in states."""
    a, b, c, d = (rg.Variable(name, size) for name, size in zip("abcd", (3, 2, 3, 2), strict=True))
    hard = w[6:12].reshape(2, 3).masked_fill(torch.eye(2, 3, dtype=torch.bool), -torch.inf)
    tables = {(a, b): w[:6].reshape(3, 2), (b, c): hard, (c, d): w[12:18].reshape(3, 2)}
    graph = rg.FactorGraph([rg.Factor(scope, rg.Table(table)) for scope, table in tables.items()])
    return graph.condition({d: torch.tensor([0, 1, -1])})


def cycles_with_zeros(w):
    """A cycle of pairs with hard zeros, rows of evidence, and a factor of all variables."""
    x = rg.VariableArray("x", (6,), 2)
    order = torch.arange(6)
    pairs = rg.FactorBlock((x[order], x[(order + 1) % 6]), rg.Table(w[:24].reshape(6, 2, 2)))
    some = rg.Factor(tuple(x[i] for i in range(6)), rg.Cardinality(6, at_least=2, at_most=4))
    return rg.FactorGraph([pairs, some]).condition({x[0]: torch.tensor([0, 1, -1])})


GRAPHS = [
    name
    for name, (build, _) in ROUTES.items()
    if name != "portfolio" and isinstance(build(weights().detach()), rg.FactorGraph)
]
MORE = {
    "recognised chain with evidence": (chain_with_zeros, {}),
    "recognised chain left by evidence": (chain_left, {}),
    "chain of two sizes with evidence": (chain_of_two_sizes, {}),
    "slices of rows": (cycles_with_zeros, {"scheduler": rg.Contraction(memory=1500.0)}),
    "cycles": (cycles_with_zeros, {}),
    "search": (cycles_with_zeros, {"scheduler": rg.Search(seconds=1.0)}),
    "mini-buckets": (cycles_with_zeros, {"scheduler": rg.MiniBuckets(seconds=1.0)}),
    "counting": (cycles_with_zeros, {"scheduler": rg.Counting()}),
    "messages of cycles": (cycles_with_zeros, {"scheduler": rg.Loopy(damping=0.3)}),
    "clusters of cycles": (cycles_with_zeros, {"scheduler": rg.JoinGraph(memory=400.0)}),
    "portfolio of cycles": (cycles_with_zeros, {"scheduler": rg.Auto(memory=300.0, seconds=1.0)}),
}


def made(route):
    if route in MORE:
        build, options = MORE[route]
        graph = build(weights().detach())
        return graph, rg.infer(graph, generator=seeded(7), **options)
    graph = declared(route, weights().detach())
    return graph, inferred(route, graph)


def close(found, expected):
    torch.testing.assert_close(found.to(expected), expected.expand_as(found), rtol=1e-6, atol=1e-8)


def answers_of(posterior):
    """What a route answers, and whether it says that this is exact."""
    found = {}
    for name, ask in QUESTIONS.items():
        with contextlib.suppress(rg.errors.UnsupportedError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[name] = ask(posterior), posterior.status_of(name).exact
    return found


@pytest.fixture(scope="module", params=[*GRAPHS, *MORE])
def answered(request):
    """A graph and its posterior by each route, what is true, and the answers."""
    graph, posterior = made(request.param)
    return graph, posterior, brute_force(graph), answers_of(posterior)


def test_what_a_route_calls_exact_is_the_sum_over_everything(answered):
    graph, posterior, truth, answers = answered
    singles = [graph.domain.variable(number) for number in range(graph.num_variables)]
    alone = {
        "log_partition": truth.log_partition, "entropy": truth.entropy,
    }  # fmt: skip
    each = {"marginals": lambda one: truth.joint((one,)), "max_marginals": truth.max_marginal}
    for name in alone.keys() & answers:
        found, exact = answers[name]
        if exact:
            close(found, alone[name])
    if answers.get("entropy", (None, False))[1]:
        known = torch.where(truth.probabilities > 0, truth.scores, 0.0)
        close(posterior.solution.expected_score(), (truth.probabilities * known).sum(0))
    for name in each.keys() & answers:
        found, exact = answers[name]
        for one in singles if exact else ():
            close(found[one], each[name](one))
        if name == "marginals":  # approximate ones are distributions, too
            assert all(bool(((part.sum(-1) - 1).abs() < 1e-6).all()) for part in found.values())
    if "marginals" in answers and posterior.status_of("factor_marginal").exact:
        for factor in graph.factors():
            if len(factor.variables) == 2:
                close(posterior.factor_marginal(factor.variables), truth.joint(factor.variables))


def test_bounds_hold_and_modes_and_draws_are_possible(answered):
    (graph, posterior, truth, answers), slack = answered, 1e-6
    if "log_partition" in answers and posterior.status.bound is None:
        lower, upper = posterior.bounds()
        assert bool((lower <= truth.log_partition + slack).all())
        assert bool((truth.log_partition <= upper + slack).all())
    if "mode" in answers:
        score = graph.score(answers["mode"][0])
        assert bool((score > -torch.inf).all())
        assert bool((truth.maximum <= posterior.mode_bound() + slack).all())
        best = answers["mode"][1] | posterior.mode_is_optimal()
        close(torch.where(best, score, truth.maximum), truth.maximum)
    if "sample" in answers:
        assert bool((graph.score(answers["sample"][0]) > -torch.inf).all())


# Features chosen at random define another model, whose masses these are.
@pytest.mark.parametrize("route", sorted({*GRAPHS, *MORE} - {"random features"}))
def test_the_best_states_of_some_variables_have_the_mass_and_bound_told(route):
    graph, posterior = made(route)
    truth, batch = brute_force(graph), len(graph.batch_shape)
    some = [graph.domain.variable(number) for number in (0, graph.num_variables - 1)]
    masses = truth.log_joint(tuple(some)).flatten(batch)
    try:
        found = posterior.marginal_mode(some)
    except (rg.errors.UnsupportedError, rg.errors.BudgetError):
        return
    place = found[some[0]] * some[1].size + found[some[1]]
    own = masses.gather(-1, place.unsqueeze(-1)).squeeze(-1)
    close(found.score, own)
    best = masses.amax(-1)
    assert bool((found.bound >= best - 1e-6).all())
    close(torch.where(found.optimal, own, best), best)


@pytest.mark.parametrize("route", ["cycles", "portfolio of cycles"])
def test_the_status_of_several_answers_names_what_gave_each(route):
    _, posterior = made(route)
    each = {name: posterior.status_of(name) for name in ("log_partition", "marginals")}
    told, methods = posterior.status, {one.method for one in each.values()}
    assert told.exact == all(one.exact for one in each.values())
    assert told.converged == all(one.converged for one in each.values())
    if len(methods) == 1:
        assert (told.method, told.route) == (*methods, each["marginals"].route)
    else:
        assert told.method == told.route
        assert all(one.method in told.method for one in each.values())


@pytest.mark.parametrize("seconds", [1e-9, 1e-4])
def test_a_search_without_time_has_a_possible_configuration(seconds):
    graph, _ = made("cycles")
    truth = brute_force(graph)
    posterior = rg.infer(graph, rg.Search(seconds=seconds))
    score = graph.score(posterior.mode())
    assert bool(((score > -torch.inf) & (score <= truth.maximum + 1e-9)).all())
    assert bool((posterior.mode_bound() >= truth.maximum - 1e-9).all())
    some = list(graph.variables[0][:3])
    found = posterior.marginal_mode(some)
    assert bool((found.score <= truth.log_joint(tuple(some)).flatten(1).amax(1) + 1e-6).all())


def test_a_search_knows_the_log_z_of_what_is_impossible():
    x = rg.Variable("x", 2)
    for dtype in (torch.float32, torch.float64):
        never = torch.full((3, 2), -torch.inf, dtype=dtype)
        graph = rg.FactorGraph([rg.Factor(x, rg.Table(never))])
        found = rg.infer(graph, rg.Search()).log_partition
        assert found.dtype == dtype
        assert found.tolist() == [-torch.inf] * 3


def embedded_in_zeros(w):
    """A cycle of embeddings and logical factors, with evidence and impossible states."""
    x, y = rg.VariableArray("x", (4,), 5), rg.VariableArray("y", (6,), 2)
    unary = (
        w[:20].reshape(4, 5).masked_fill(torch.arange(5) == torch.arange(4)[:, None], -torch.inf)
    )
    pair = rg.Bilinear(w[20:30].reshape(5, 2), w[30:40].reshape(5, 2))
    tie = rg.Table(w[40:50].reshape(5, 2))
    logical, z = (rg.Or(6), rg.Cardinality(6, at_most=4)), rg.Variable("z", 2)
    only = torch.tensor([0.0, -torch.inf], dtype=DOUBLE)
    around = ([x[0], x[1], x[2], x[3]], [x[1], x[2], x[3], x[0]])
    graph = rg.FactorGraph([
        rg.FactorBlock((x,), rg.Table(unary)), rg.FactorBlock(around, pair),
        *(rg.Factor(tuple(y[i] for i in range(6)), kind) for kind in logical),
        rg.FactorBlock((x[:3], y[1:4]), tie),
        rg.FactorBlock((y,), rg.Table(w[50:62].reshape(6, 2))),
        rg.Factor((x[0], z), tie), rg.Factor(z, rg.Table(only)),
    ])  # fmt: skip
    return graph.condition({x[3]: torch.tensor([0, -1]), y[1]: 1})


@pytest.mark.parametrize("at", [(), (1,), (2, 3)])
@pytest.mark.parametrize("selection", [Twice(), rg.randomized.Top(4)], ids=repr)
def test_messages_over_all_states_drawn_again_are_those_of_all_states(selection, at):
    """Messages are interpolated from all possible states to all, for each draw and for beliefs."""
    graph, exactly = embedded_in_zeros(weights().detach()), rg.Loopy(tolerance=1e-12)
    estimator = rg.Randomized(rg.randomized.Local(), selection, replicates=1)
    whole = rg.infer(graph, exactly)
    estimator = rg.Redrawn(estimator, at=at)
    found = rg.infer(graph, exactly, estimator=estimator, generator=seeded())
    close(found.log_partition, whole.log_partition)
    for entry, marginal in whole.marginals().items():
        close(found.marginal(entry), marginal)
