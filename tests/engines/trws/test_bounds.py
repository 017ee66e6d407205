"""Bounds on log Z and on modes that are finite at any size, against enumeration."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force
from tests.cases import first_short

DOUBLE = torch.float64


Tables = list[tuple[tuple[rg.Variable, ...], torch.Tensor]]


def random_tables(
    seed: int, *, zeros: bool = False, batch: int = 0, arity: int = 2, scale: float = 2.0
) -> Tables:
    """Seven variables of two to four states, with cycles; variables of a table in any order."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, 5, (7,), generator=generator).tolist()
    x = [rg.Variable(f"x{number}", size) for number, size in enumerate(sizes)]
    scopes = [(one,) for one in x]
    for _ in range(11):
        numbers = torch.randperm(7, generator=generator)[:arity].tolist()
        scopes.append(tuple(x[number] for number in numbers))
    tables: Tables = []
    for scope in scopes:
        shape = (*([batch] if batch else []), *(one.size for one in scope))
        logs = scale * torch.randn(shape, generator=generator, dtype=DOUBLE)
        lost = torch.rand(shape, generator=generator) < 0.25 * zeros
        lost[(..., *[0] * len(scope))] = False  # one configuration is possible
        tables.append((scope, logs.masked_fill(lost, -math.inf)))
    return tables


def graph_from(tables: Tables) -> rg.FactorGraph:
    return rg.FactorGraph(rg.Factor(scope, rg.Table.from_logs(logs)) for scope, logs in tables)


def graph_of(kind: str, seed: int) -> rg.FactorGraph:
    tables = random_tables(
        seed,
        zeros=kind == "zeros",
        batch=2 * (kind == "batch"),
        arity=3 if kind == "larger" else 2,
        scale=1e9 if kind == "wide" else 2.0,
    )
    graph = graph_from(tables)
    if kind == "evidence":
        return graph.condition({"x0": torch.tensor([0, 1]), "x3": torch.tensor([1, -1])})
    return graph


SCHEDULERS = {
    "loopy": rg.Loopy(sweeps=30),
    "maxima": rg.Loopy(temperature=0.0, sweeps=30),
    "tempered": rg.Loopy(temperature=0.5, sweeps=30),
    "reweighted": rg.Loopy(counting=rg.loopy.TreeReweighted(), damping=0.5, sweeps=100),
    "join graph": rg.JoinGraph(memory=800.0, seconds=0.2),
    "search": rg.Search(seconds=0.1),
    "mini-buckets": rg.MiniBuckets(seconds=0.1, memory=2000.0, draws=50),
    "auto": rg.Auto(memory=200.0, seconds=0.2),
}
KINDS = ["soft", "zeros", "batch", "evidence", "larger", "wide"]


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("kind", KINDS)
def test_bounds_of_every_route_hold_and_are_finite(name, kind):
    scheduler = SCHEDULERS[name]
    graph = graph_of(kind, seed=1)
    truth = brute_force(graph)
    log_z, best = truth.log_partition, truth.maximum
    if isinstance(scheduler, rg.Loopy) and scheduler.temperature != 1.0:
        t = scheduler.temperature
        log_z = t * (truth.scores / t).logsumexp(0).reshape(best.shape) if t else best
    slack = 1e-12 * best.abs() + 1e-9
    posterior = rg.infer(graph, scheduler=scheduler)
    assert posterior.plan.route not in ("contraction", "structure")

    def hold(*, known: bool) -> None:
        lower, upper = posterior.bounds()
        assert bool(((lower > -math.inf) | (not known)).all())
        assert bool((lower <= log_z + slack).all())
        assert bool(((upper < math.inf) & (upper >= log_z - slack)).all())

    hold(known=kind != "zeros")
    if name == "mini-buckets":
        return
    score = graph.score({**posterior.mode()})
    bound = posterior.mode_bound()
    assert bool((bound >= best - slack).all())
    assert bool(bound.isfinite().all())
    assert bool((~posterior.mode_is_optimal() | (score >= best - 1e-6 * best.abs())).all())
    hold(known=True)
    assert bool((posterior.bounds().lower >= score - slack).all())


def cancelling(seed: int) -> rg.FactorGraph:
    """Tables in float32 of large values of either sign, some of which are constants."""
    generator = torch.Generator().manual_seed(seed)
    tables = [
        (scope, logs + 1e6 * torch.randn((), generator=generator, dtype=DOUBLE))
        for scope, logs in random_tables(seed)
    ]
    graph = graph_from([(scope, logs.float()) for scope, logs in tables])
    return graph.condition({"x0": 1, "x1": 0, "x2": 1})


def single(kind: str, seed: int) -> rg.FactorGraph:
    """A graph in float32."""
    if kind == "cancelling":
        return cancelling(seed)
    scale = 1e6 if kind == "wide" else 2.0
    return graph_from([(scope, logs.float()) for scope, logs in random_tables(seed, scale=scale)])


@pytest.mark.parametrize("name", ["loopy", "reweighted"])
@pytest.mark.parametrize("kind", ["soft", "cancelling", "wide"])
def test_bounds_are_certain_in_float32(name, kind):
    for seed in (0, 4):
        graph = single(kind, seed)
        truth = brute_force(graph.to(torch.float64))
        rounding = 1e-13 * truth.scores.abs().max() + 1e-12  # of the truth
        posterior = rg.infer(graph, scheduler=SCHEDULERS[name])
        lower, upper = posterior.bounds()
        if bool(lower < upper):  # equal ends are log Z, up to the rounding of float32
            assert float(lower) <= float(truth.log_partition + rounding)
            assert float(upper) >= float(truth.log_partition - rounding)
        else:
            assert posterior.status.exact
        assert float(posterior.mode_bound()) >= float(truth.maximum - rounding)


def test_bounds_hold_where_observed_factors_cancel():
    free = grid(3, 3, attraction=None, seed=5).to(torch.float32)
    generator = torch.Generator().manual_seed(0)
    seen = rg.VariableArray("seen", (500,), 2)
    logs = 1e5 * torch.randn(500, 2, generator=generator)
    block = rg.FactorBlock((seen,), rg.Table.from_logs(logs))
    graph = rg.FactorGraph([*free.factors(), block]).condition({seen: torch.ones(500).long()})
    truth, constant = brute_force(free.to(torch.float64)), math.fsum(logs[:, 1].tolist())
    log_z, best = float(truth.log_partition) + constant, float(truth.maximum) + constant
    rounding = 1e-9  # of a sum of a million in float64
    for scheduler in (rg.Loopy(), rg.MiniBuckets(memory=3000.0, draws=50, seconds=1.0)):
        posterior = rg.infer(graph, scheduler=scheduler)
        lower, upper = posterior.bounds()
        assert float(lower) - rounding <= log_z <= float(upper) + rounding
        if scheduler == rg.Loopy():
            assert float(posterior.mode_bound()) >= best - rounding


def test_a_mode_that_meets_its_bound_up_to_rounding_is_bounded_by_that():
    # Scores differ by less than rounding, relative to the large constant in each of them.
    generator = torch.Generator().manual_seed(0)
    x = rg.VariableArray("x", (12, 12), 2)
    fields = 100 + 1e-6 * torch.randn(12, 12, 2, generator=generator, dtype=DOUBLE)
    ties = rg.Table.from_logs(2e-6 * torch.randn(2, 2, generator=generator, dtype=DOUBLE))
    graph = rg.FactorGraph([
        rg.FactorBlock((x,), rg.Table.from_logs(fields)),
        rg.FactorBlock((x[1:], x[:-1]), ties),
        rg.FactorBlock((x[:, :-1], x[:, 1:]), ties),
    ])  # fmt: skip
    best = float(graph.score({**rg.infer(graph, scheduler=rg.Contraction()).mode()}))
    posterior = rg.infer(graph, scheduler=rg.Auto(memory=2e4))
    assert posterior.plan.route != "contraction"
    assert bool(posterior.mode_is_optimal())
    assert float(posterior.mode_bound()) >= best - 1e-11


@pytest.mark.parametrize("scheduler", [rg.Search(seconds=0.2), rg.Auto(memory=2e4, seconds=0.3)])
def test_a_mode_that_is_called_optimal_is_so_beside_a_large_score(scheduler):
    # Weak couplings of either sign, whose relaxation is not tight, beside fields of 1e5 in all.
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = rg.VariableArray("x", (7, 7), 3)
        fields = 1e5 / 49 + 0.002 * torch.randn(7, 7, 3, generator=generator, dtype=DOUBLE)
        ties = 0.01 * torch.randn(2, 6, 7, 3, 3, generator=generator, dtype=DOUBLE)
        graph = rg.FactorGraph([
            rg.FactorBlock((x,), rg.Table.from_logs(fields)),
            rg.FactorBlock((x[1:], x[:-1]), rg.Table.from_logs(ties[0])),
            rg.FactorBlock((x[:, 1:], x[:, :-1]), rg.Table.from_logs(ties[1].transpose(0, 1))),
        ])  # fmt: skip
        best = float(graph.score({**rg.infer(graph, scheduler=rg.Contraction()).mode()}))
        posterior = rg.infer(graph, scheduler=scheduler)
        found = float(graph.score({**posterior.mode()}))
        assert found == pytest.approx(best, rel=1e-12) or not bool(posterior.mode_is_optimal())
        assert best - 1e-6 <= float(posterior.mode_bound())


def grid(rows: int, columns: int, *, attraction: float | None, seed: int = 0, states: int = 2):
    """Random fields, and couplings that are all alike, or of random size and sign (None)."""
    generator = torch.Generator().manual_seed(seed)
    x = rg.VariableArray("x", (rows, columns), states)
    fields = torch.randn(rows, columns, states, generator=generator, dtype=DOUBLE)
    same = torch.eye(states, dtype=DOUBLE)

    def ties(*shape: int) -> rg.Table:
        if attraction is not None:
            return rg.Table.from_logs(attraction * same)
        return rg.Table.from_logs(torch.randn(*shape, 1, 1, generator=generator) * 2 * same)

    return rg.FactorGraph([
        rg.FactorBlock((x,), rg.Table.from_logs(fields)),
        rg.FactorBlock((x[1:], x[:-1]), ties(rows - 1, columns)),
        rg.FactorBlock((x[:, :-1], x[:, 1:]), ties(rows, columns - 1)),
    ])  # fmt: skip


def tree(count: int, seed: int, *, zeros: bool = False) -> rg.FactorGraph:
    """Pairs along a random tree, whose variables are numbered at random."""
    generator = torch.Generator().manual_seed(seed)
    number = torch.randperm(count, generator=generator).tolist()
    x = rg.VariableArray("x", (count,), 3)
    factors = [rg.FactorBlock((x,), rg.Table.from_logs(torch.randn(count, 3, generator=generator)))]
    for child in range(1, count):
        parent = int(torch.randint(child, (), generator=generator))
        logs = torch.randn(3, 3, generator=generator, dtype=DOUBLE)
        lost = (torch.rand(3, 3, generator=generator) < 0.3 * zeros) & ~torch.eye(3).bool()
        factors.append(
            rg.Factor(
                (x[number[child]], x[number[parent]]),
                rg.Table.from_logs(logs.masked_fill(lost, -math.inf)),
            )
        )
    return rg.FactorGraph(factors)


@pytest.mark.parametrize("zeros", [False, True])
def test_the_bound_of_a_tree_is_its_best_score(zeros):
    graph = tree(60, seed=3, zeros=zeros)
    best = rg.infer(graph, scheduler=rg.Contraction()).mode_bound()
    posterior = rg.infer(graph, scheduler=rg.Search(seconds=1.0))
    torch.testing.assert_close(posterior.mode_bound(), best, rtol=1e-6, atol=1e-6)
    assert bool(posterior.mode_is_optimal())
    assert posterior.solution.status().exact


@pytest.mark.parametrize("scheduler", [rg.Auto(memory=1e4, seconds=1.0), rg.Search(seconds=2.0)])
def test_gaps_of_attractive_grids_close(scheduler):
    graph = grid(10, 30, attraction=1.0)
    best = rg.infer(graph, scheduler=rg.Contraction()).mode_bound()
    posterior = rg.infer(graph, scheduler=scheduler)
    score = graph.score({**posterior.mode()})
    torch.testing.assert_close(score, best, rtol=1e-9, atol=0.0)
    assert bool(posterior.mode_is_optimal())
    torch.testing.assert_close(posterior.mode_bound(), best, rtol=1e-6, atol=0.0)
    assert posterior.plan.route != "contraction"


@pytest.mark.parametrize("attraction", first_short([None, 1.0], 1))
def test_a_mode_is_never_below_that_of_messages_and_bounded(attraction):
    graph = grid(14, 14, attraction=attraction, states=3)
    posterior = rg.infer(graph, scheduler=rg.Auto(memory=1e5, seconds=0.6))
    assert posterior.plan.route not in ("contraction", "structure")
    score, bound = graph.score({**posterior.mode()}), posterior.mode_bound()
    for counting in (rg.loopy.Bethe(), rg.loopy.TreeReweighted()):
        other = rg.infer(graph, scheduler=rg.Loopy(counting=counting, damping=0.3, sweeps=200))
        assert float(score) >= float(graph.score({**other.mode()})) - 1e-9
        assert float(other.mode_bound()) >= float(score) - 1e-9
    assert float(score) - 1e-9 <= float(bound) < math.inf
    lower, upper = posterior.bounds()
    assert float(score) <= float(lower) < float(upper) < math.inf


@pytest.mark.parametrize("kind", ["soft", "zeros", "evidence", "wide"])
def test_compiled_sweeps_and_those_in_numpy_bound_alike(kind, monkeypatch):
    graph = graph_of(kind, seed=5)

    def answers() -> list[torch.Tensor]:
        posterior = rg.infer(graph, scheduler=rg.Loopy(sweeps=20))
        return [*posterior.bounds(), posterior.mode_bound()]

    compiled = answers()
    monkeypatch.setattr("rdpgraph.native.library.available", lambda *_: False)
    for one, other in zip(answers(), compiled, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("dtype", first_short([torch.float32, torch.float64], 1))
def test_bounds_of_large_graphs_agree_with_those_given_evidence(dtype):
    # Z is the sum of Z given each state of a variable, whatever the size of the graph.
    graph = grid(60, 60, attraction=None, seed=2).to(dtype)
    by = rg.Loopy(sweeps=5, seconds=0.4)

    def bounds(graph: rg.FactorGraph) -> rg.answers.Bounds:
        return rg.infer(graph, scheduler=by).bounds()

    whole = bounds(graph)
    parts = [bounds(graph.condition({"x[30, 30]": state})) for state in range(2)]
    lower, upper = (torch.stack(ends).logsumexp(0) for ends in zip(*parts, strict=True))
    assert float(lower) <= float(whole.upper)
    assert float(whole.lower) <= float(upper)
    for part in parts:
        assert float(part.lower) <= float(whole.upper)
        assert -math.inf < float(part.lower) < float(part.upper) < math.inf
    # What is conditioned on everything is a score.
    mode = rg.infer(graph, scheduler=by).mode()
    assert float(graph.to(DOUBLE).score({**mode})) <= float(whole.upper)


def test_bounds_of_a_batch_are_those_of_its_items():
    tables = random_tables(2, batch=3)
    together = rg.infer(graph_from(tables), scheduler=rg.Loopy(sweeps=20))
    for item in range(3):
        graph = graph_from([(scope, logs[item]) for scope, logs in tables])
        alone = rg.infer(graph, scheduler=rg.Loopy(sweeps=20))
        for one, other in zip(together.bounds(), alone.bounds(), strict=True):
            torch.testing.assert_close(one[item], other)
        torch.testing.assert_close(together.mode_bound()[item], alone.mode_bound())


def test_models_too_large_for_messages_have_bounds_by_their_factors(monkeypatch):
    graph = graph_of("soft", seed=4)
    truth = brute_force(graph)
    monkeypatch.setattr("rdpgraph._core.tuning.SWEPT_PAIR_BYTES", 1e12)
    posterior = rg.infer(graph, scheduler=rg.Loopy(sweeps=20))
    lower, upper = posterior.bounds()
    assert -math.inf < float(lower) <= float(truth.log_partition) <= float(upper) < math.inf
    assert float(truth.maximum) <= float(posterior.mode_bound()) < math.inf


@pytest.mark.parametrize("name", ["loopy", "maxima", "tempered", "search", "auto"])
def test_what_is_known_to_be_impossible_is_bounded_by_minus_infinity(name):
    x = rg.VariableArray("x", (3,), 2)
    same = rg.Table.from_logs(torch.zeros(2, 2).masked_fill(~torch.eye(2).bool(), -math.inf))
    first, second = (rg.Table.from_logs(torch.tensor(s)) for s in ([0, -math.inf], [-math.inf, 0]))
    pairs = [rg.Factor((x[i], x[j]), same) for i, j in ((0, 1), (1, 2), (2, 0))]
    graph = rg.FactorGraph([rg.Factor((x[0],), first), rg.Factor((x[1],), second), *pairs])
    assert rg.infer(graph, scheduler=SCHEDULERS[name]).bounds() == (-math.inf, -math.inf)


def test_nothing_possible_is_bounded_by_minus_infinity():
    x = rg.VariableArray("x", (3,), 2)
    differ = rg.Table.from_logs(torch.tensor([[-math.inf, 0.0], [0.0, -math.inf]]))
    pairs = [rg.Factor((x[i], x[j]), differ) for i, j in ((0, 1), (1, 2), (2, 0))]
    lower, upper = rg.infer(rg.FactorGraph(pairs), scheduler=rg.Loopy(sweeps=20)).bounds()
    assert float(lower) == -math.inf
    assert float(upper) <= 3 * math.log(2.0)
