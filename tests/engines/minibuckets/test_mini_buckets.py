"""Bounds by mini-buckets and estimates by populations, against enumeration."""

import itertools
import math
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
import torch

import rdpgraph as rg
from rdpgraph._core import tuning
from rdpgraph.engines.elimination import log_sum
from rdpgraph.engines.elimination_bounds import bounded
from rdpgraph.engines.minibuckets import estimate, population
from rdpgraph.engines.minibuckets.population import Grown, grown, thinned
from rdpgraph.engines.reduction.network import reduce_graph
from rdpgraph.engines.reduction.tables import Stack, Tables, tables_of
from rdpgraph.engines.trws.bound import log_power_sum
from rdpgraph.errors import BudgetError, ModelError, UnsupportedError
from rdpgraph.estimate.proposals import log_likely
from rdpgraph.plan import clock
from rdpgraph.testing import brute_force

DOUBLE = torch.float64
SIZES = (2, 3, 2, 2, 3)


def random_graph(seed: int, *, zeros: float = 0.0, batch: tuple[int, ...] = ()) -> rg.FactorGraph:
    """Five variables with many pairs and triples; one configuration is always possible."""
    rng, generator = Random(seed), torch.Generator().manual_seed(seed)
    variables = [rg.Variable(f"x{i}", size) for i, size in enumerate(SIZES)]
    truth = [rng.randrange(size) for size in SIZES]
    factors = []
    for arity in (1, 1, 2, 2, 2, 2, 2, 3):
        places = rng.sample(range(len(SIZES)), arity)
        shape = (*batch, *(SIZES[i] for i in places))
        values = 2 * torch.randn(shape, generator=generator, dtype=DOUBLE)
        struck = torch.rand(shape, generator=generator) < zeros
        struck[(..., *(truth[i] for i in places))] = False
        table = rg.Table(values.masked_fill(struck, -math.inf))
        factors.append(rg.Factor([variables[i] for i in places], table))
    return rg.FactorGraph(factors, variables=variables)


def shuffled(seed: int, count: int) -> list[int]:
    order = list(range(count))
    Random(seed).shuffle(order)
    return order


def random_tables(seed: int, *, zeros: float) -> Tables:
    """Four to six variables of two or three states, as many triples and more pairs."""
    rng = np.random.default_rng(seed)
    sizes = tuple(rng.integers(2, 4, rng.integers(4, 7)).tolist())
    truth = [rng.integers(size) for size in sizes]
    stacks = []
    for arity in (1, 2, 2, 2, 2, 2, 3, 3):
        scope = np.sort(rng.choice(len(sizes), arity, replace=False))
        values = 2 * rng.standard_normal([1, *(sizes[v] for v in scope)])
        struck = rng.random(values.shape) < zeros
        struck[(0, *(truth[v] for v in scope))] = False
        stacks.append(Stack(scope[None], np.where(struck, -math.inf, values)))
    return Tables(sizes, tuple(stacks), 0.0)


def scores(tables: Tables) -> np.ndarray:
    """Scores of every configuration, a dim for each variable."""
    total = np.zeros(tables.sizes)
    for stack in tables.stacks:
        scope = stack.scopes[0].tolist()
        shape = [size if v in scope else 1 for v, size in enumerate(tables.sizes)]
        total = total + stack.values[0].reshape(shape)
    return total


def test_no_best_score_of_random_models_is_above_its_bound():
    """Bounds of modes, and of marginal modes, whose sums come first."""
    for seed in range(120):
        tables = random_tables(seed, zeros=0.3 * (seed % 2))
        every = scores(tables)
        order = shuffled(seed, len(tables.sizes))
        summed = order[: seed % 3]
        masses = np.logaddexp.reduce(every, axis=tuple(summed)) if summed else every
        best = float(masses.max())
        most = frozenset(order[len(summed) :])
        for cells in ((1, 6)[seed % 2], 1e6):
            above = bounded(tables, order, cells=cells, maximised=most)
            assert above.bound >= best - 1e-9
        assert above.exact
        assert above.bound == pytest.approx(best, abs=1e-9)


def test_log_z_of_random_models_lies_between_the_bounds():
    for seed in range(120):
        zeros = 0.3 * (seed % 2)
        tables = random_tables(seed, zeros=zeros)
        log_z = float(log_sum(scores(tables).reshape(-1), 0))
        order = shuffled(seed, len(tables.sizes))
        cells = (1, 6, 1e6)[seed % 3]
        above = bounded(tables, order, cells=cells)
        assert above.bound >= log_z - 1e-9
        if cells == 1e6:
            assert above.exact
        if above.exact:
            assert above.bound == pytest.approx(log_z, abs=1e-9)
        if not zeros:
            below = bounded(tables, order, cells=cells, lower=True)
            assert below.bound <= log_z + 1e-9
        run = grown(above, 3, np.random.default_rng(seed))
        assert run.lower <= log_z + 1e-9
        assert run.log_partition <= above.bound + 1e-9
        if run.exact:
            assert run.log_partition == pytest.approx(log_z, abs=1e-9)
            assert run.lower == pytest.approx(log_z, abs=1e-9)
        everyone = grown(above, 10**6, np.random.default_rng(seed))
        assert everyone.exact
        assert everyone.log_partition == pytest.approx(log_z, abs=1e-9)


def pieces(weights: np.ndarray, count: int, forced: int = -1) -> list[tuple[float, float]]:
    """Points in the pieces of [0, 1) in which `thinned` gives one outcome, and their lengths."""

    def outcome(point: float) -> tuple[int, ...]:
        return tuple(thinned(weights, count, point, forced)[0].tolist())

    fine = [(place + 0.5) / 1024 for place in range(1024)]
    runs = [(list(points), kept) for kept, points in itertools.groupby(fine, outcome)]
    cuts = [0.0]
    for (before, kept), (after, _) in itertools.pairwise(runs):
        left, right = before[-1], after[0]
        for _ in range(50):
            middle = 0.5 * (left + right)
            left, right = (middle, right) if outcome(middle) == kept else (left, middle)
        cuts.append(right)
    cuts.append(1.0)
    return [(0.5 * (a + b), b - a) for a, b in itertools.pairwise(cuts)]


@pytest.mark.parametrize("seed", range(3))
def test_members_that_stay_have_the_expected_weights_of_all(seed):
    rng = np.random.default_rng(seed)
    weights = 2 * rng.standard_normal(9)
    for count in (1, 3, 8):
        mean = np.zeros(len(weights))
        for point, length in pieces(weights, count):
            kept, lifted = thinned(weights, count, point)
            assert len(kept) <= count
            np.add.at(mean, kept, length * np.exp(lifted))
        np.testing.assert_allclose(mean, np.exp(weights), rtol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 3, 8])
def test_what_stays_with_a_member_is_what_stays_given_that_it_does(count):
    weights = 2 * np.random.default_rng(0).standard_normal(9)
    chances: dict[tuple[int, ...], float] = {}
    for point, length in pieces(weights, count):
        kept = tuple(sorted(thinned(weights, count, point)[0].tolist()))
        chances[kept] = chances.get(kept, 0.0) + length
    for one in range(len(weights)):
        given: dict[tuple[int, ...], float] = {}
        for point, length in pieces(weights, count, one):
            kept, lifted = thinned(weights, count, point, one)
            key = tuple(sorted(kept.tolist()))
            given[key] = given.get(key, 0.0) + length
            stays = math.exp(weights[one] - lifted[list(kept).index(one)])
        wanted = {kept: p / stays for kept, p in chances.items() if one in kept}
        for kept in wanted.keys() | given.keys():
            assert given.get(kept, 0.0) == pytest.approx(wanted.get(kept, 0.0), abs=1e-6)


class Scripted:
    """Randomness that is a list of points, asked for one after the other."""

    def __init__(self, points: list[float]) -> None:
        self.points = list(points)

    def random(self) -> float:
        return self.points.pop(0)


def mean_of_draws(passed, monkeypatch, *, power: float = 1.0, count: int = 2, **options) -> float:
    """Mean of a power of estimates of Z by small populations, over all their randomness."""
    asked: list[tuple[np.ndarray, int, int]] = []

    def noted(weights, count, point, forced):
        asked.append((weights, count, forced))
        return thinned(weights, count, point, forced)

    monkeypatch.setattr(population, "thinned", noted)

    def mean(points: list[float]) -> float:
        """Over what is drawn after the points that are given."""
        asked.clear()
        run = grown(passed, count, Scripted([*points, *[0.5] * 20]), **options)
        if len(asked) == len(points):
            return math.exp(power * run.log_partition)
        choice = asked[len(points)]
        return sum(length * mean([*points, point]) for point, length in pieces(*choice))

    return mean([])


@pytest.mark.parametrize("pinned", [0, 1, 3])
def test_the_mean_over_all_draws_is_z_whatever_is_pinned(pinned, monkeypatch):
    tables = random_tables(1, zeros=0.3)
    log_z = float(log_sum(scores(tables).reshape(-1), 0))
    passed = bounded(tables, shuffled(1, len(tables.sizes)), cells=4)
    pins = np.random.default_rng(0).integers(0, tables.sizes, (pinned, len(tables.sizes)))
    mean = mean_of_draws(passed, monkeypatch, pins=pins)
    assert mean == pytest.approx(math.exp(log_z), rel=1e-6)


@pytest.mark.long
def test_populations_led_by_draws_come_to_the_second_moment_over_z(monkeypatch):
    """Populations led by a draw of the model itself estimate the second moment over Z."""
    scopes = np.array(list(itertools.combinations(range(4), 2)))
    values = 2 * np.random.default_rng(3).standard_normal((6, 2, 2))
    tables = Tables((2,) * 4, (Stack(scopes, values),), 40.0)
    every = [np.array(x) for x in itertools.product(range(2), repeat=4)]
    weights = np.exp([tables.score(x) for x in every])
    passed = bounded(tables, [0, 1, 2, 3], cells=4)
    second = mean_of_draws(passed, monkeypatch, power=2.0, count=1)
    led = [mean_of_draws(passed, monkeypatch, forced=x, count=1) for x in every]
    assert weights @ led == pytest.approx(second, rel=1e-6)
    assert second > 1.02 * weights.sum() ** 2


@pytest.mark.parametrize("proposed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_mean_over_all_draws_of_a_population_is_z(seed, proposed, monkeypatch):
    tables = random_tables(seed, zeros=0.4)
    log_z = float(log_sum(scores(tables).reshape(-1), 0))
    passed = bounded(tables, shuffled(seed, len(tables.sizes)), cells=4)
    rng = np.random.default_rng(seed)
    likely = [np.log(rng.dirichlet(np.ones(size))) for size in tables.sizes] if proposed else []
    for own in likely[::2]:
        own[0] = -math.inf  # what a proposal leaves out is drawn by weight
    mean = mean_of_draws(passed, monkeypatch, likely=likely)
    assert mean == pytest.approx(math.exp(log_z), rel=1e-6)


@dataclass(frozen=True)
class Sharpened(rg.randomized.Proposal):
    """One of one's own."""

    def log_scores(self, sites):
        return 2 * sites.unary


PROPOSALS = [
    rg.randomized.Uniform(),
    rg.randomized.Local(),
    rg.randomized.Landmark(),
    rg.randomized.LocalGlobal(),
    rg.randomized.Oracle(),  # beliefs of loopy messages
    rg.randomized.Pilot(),
    Sharpened(),
]


def test_a_proposal_that_knows_of_no_possible_state_says_nothing():
    class Silent(rg.randomized.Proposal):
        def log_scores(self, sites):
            return torch.full_like(sites.unary, -math.inf)

    network = reduce_graph(random_graph(0))
    [likely] = log_likely(Silent(), network, solve=None, generator=None)
    for own, size in zip(likely, network.sizes, strict=True):
        assert np.exp(own) == pytest.approx(np.full(size, 1.0 / size))


@pytest.mark.parametrize("proposal", PROPOSALS, ids=lambda proposal: type(proposal).__name__)
def test_estimates_are_unbiased_whatever_the_proposal(proposal, monkeypatch):
    graph = random_graph(3, zeros=0.3, batch=(2,))
    network = reduce_graph(graph)
    solve = rg.MiniBuckets(seconds=5.0)._messages
    likely = log_likely(proposal, network, solve=solve, generator=None)
    truth = brute_force(graph).log_partition
    for item in range(2):
        tables = tables_of(network, item, zeros=True)
        passed = bounded(tables, shuffled(item, len(tables.sizes)), cells=2)
        mean = mean_of_draws(passed, monkeypatch, likely=likely[item])
        log_mean = math.log(mean) + float(network.constant.expand(2)[item])
        assert log_mean == pytest.approx(float(truth[item]), rel=1e-6)
        for own, size in zip(likely[item], network.sizes, strict=True):
            assert np.exp(own).sum() == pytest.approx(1.0)
            assert own.shape == (size,)


@pytest.mark.long
def test_answers_by_a_proposal_are_within_their_error_bars(monkeypatch):
    monkeypatch.setattr(tuning, "MEMBER_VARIABLE", 0.05)
    inside = 0
    for seed in range(10):
        graph = random_graph(seed)
        scheduler = rg.MiniBuckets(20.0, 500.0, 48, proposal=PROPOSALS[seed % len(PROPOSALS)])
        posterior = rg.infer(graph, scheduler=scheduler)
        truth = brute_force(graph).log_partition.item()
        error = posterior.status.standard_error
        inside += abs(float(posterior.log_partition) - truth) <= 1.645 * error + 1e-6
        assert all(float(p.sum()) == pytest.approx(1.0) for p in posterior.marginals().values())
    assert inside >= 8

    class Lost(rg.randomized.Proposal):
        def log_scores(self, sites):
            return sites.unary * math.nan

    with pytest.raises(ModelError, match="Lost gives scores that are NaN"):
        rg.infer(random_graph(0), scheduler=rg.MiniBuckets(5.0, proposal=Lost())).bounds()


@pytest.mark.long
def test_answers_are_within_their_error_bars(monkeypatch):
    monkeypatch.setattr(tuning, "MEMBER_VARIABLE", 0.05)
    inside = 0
    for seed in range(20):
        graph = random_graph(seed, zeros=0.3 * (seed % 2))
        truth = brute_force(graph).log_partition.item()
        scheduler = rg.MiniBuckets(seconds=20.0, memory=500.0, draws=48)
        posterior = rg.infer(graph, scheduler=scheduler)
        error = posterior.status.standard_error
        assert error is not None
        inside += abs(float(posterior.log_partition) - truth) <= 1.645 * error + 1e-6
        assert not posterior.status.exact
        assert posterior.status.biased
        lower, upper = posterior.bounds()
        assert float(lower) - 1e-9 <= truth <= float(upper) + 1e-9
        assert float(lower) - 1e-9 <= float(posterior.log_partition) <= float(upper) + 1e-9
    assert inside >= 16  # of 20; nine of ten are expected


@pytest.mark.parametrize("seed", range(4))
def test_all_configurations_give_exact_answers(seed):
    graph = random_graph(seed, zeros=0.3 * (seed % 2))
    truth = brute_force(graph)
    posterior = rg.infer(graph, scheduler=rg.MiniBuckets(seconds=20.0, memory=1e6))
    torch.testing.assert_close(posterior.log_partition, truth.log_partition.reshape(()))
    for bound in posterior.bounds():
        torch.testing.assert_close(bound, truth.log_partition.reshape(()))
    exact = rg.infer(graph)
    for variable, values in posterior.marginals().items():
        torch.testing.assert_close(values, exact.marginal(variable))
    torch.testing.assert_close(posterior.entropy(), exact.entropy())


def test_marginals_of_few_configurations_are_probabilities(monkeypatch):
    monkeypatch.setattr(tuning, "MEMBER_VARIABLE", 0.05)
    monkeypatch.setattr(tuning, "MEMBER_STEP", 1.0)
    graph = random_graph(1)
    exact = rg.infer(graph)
    posterior = rg.infer(graph, scheduler=rg.MiniBuckets(seconds=20.0, memory=500.0, draws=400))
    for variable, values in posterior.marginals().items():
        assert float(values.sum()) == pytest.approx(1.0)
        torch.testing.assert_close(values, exact.marginal(variable), atol=0.1, rtol=0)


def test_what_nothing_was_observed_of_takes_no_tables():
    """A network of conditional probabilities whose sums are one, whatever its width."""
    rng = torch.Generator().manual_seed(0)
    places = [rg.Variable(f"x{i}", 2) for i in range(30)]
    factors = [rg.Factor([places[0]], rg.Table(torch.tensor([0.3, 0.7]).log()))]
    for i in range(1, 30):
        parents = [places[j] for j in Random(i).sample(range(i), min(i, 3))]
        values = torch.rand([2] * (len(parents) + 1), generator=rng)
        table = (values / values.sum(-1, keepdim=True)).log()
        factors.append(rg.Factor([*parents, places[i]], rg.Table(table)))
    posterior = rg.infer(rg.FactorGraph(factors), scheduler=rg.MiniBuckets(5.0, memory=2e5))
    assert float(posterior.log_partition) == pytest.approx(0.0, abs=1e-4)
    assert posterior.status.standard_error == 0.0


@pytest.mark.long
def test_a_batch_is_its_items():
    graph = random_graph(3, zeros=0.2, batch=(3,))
    scheduler = rg.MiniBuckets(seconds=60.0, memory=500.0, draws=500)
    together = rg.infer(graph, scheduler=scheduler)
    network = reduce_graph(graph)
    assert network.batch == 3
    for item in range(3):
        blocks = [
            rg.Factor(factor.variables, rg.Table(factor.potential.log_values[item]))
            for factor in graph.factors()
        ]
        alone = rg.infer(rg.FactorGraph(blocks, variables=graph.variables), scheduler=scheduler)
        truth = brute_force(rg.FactorGraph(blocks, variables=graph.variables))
        lower, upper = (bound[item] for bound in together.bounds())
        assert lower <= truth.log_partition + 1e-9
        assert truth.log_partition <= upper + 1e-9
        error = (together.log_partition[item] - alone.log_partition).abs()
        assert error <= 1e-9 + 5 * (together.status.standard_error + alone.status.standard_error)


def test_every_posterior_says_what_bounds_it_knows():
    graph = random_graph(1)
    log_z = brute_force(graph).log_partition.item()
    exact = rg.infer(graph).bounds()
    assert float(exact.lower) == float(exact.upper) == pytest.approx(log_z)
    convex = rg.Loopy(counting=rg.loopy.TreeReweighted(), sweeps=5000, damping=0.5)
    plain = rg.Loopy(sweeps=5000, damping=0.5)
    for scheduler in (convex, plain):
        lower, upper = rg.infer(graph, scheduler=scheduler).bounds()
        assert -math.inf < float(lower) <= log_z + 1e-6
        assert log_z - 1e-6 <= float(upper) < math.inf


def test_draws_that_are_all_impossible_are_an_error(monkeypatch):
    nothing = Grown(-math.inf, -math.inf, False, (), np.zeros(0))
    monkeypatch.setattr(estimate, "grown", lambda *_, **__: nothing)
    monkeypatch.setattr(estimate, "annealed", lambda *_, **__: None)
    scheduler = rg.MiniBuckets(seconds=0.5, memory=100.0, draws=7)
    with pytest.raises(BudgetError, match="No configuration that was drawn is possible"):
        _ = rg.infer(random_graph(0, zeros=0.3), scheduler=scheduler).log_partition


def test_a_population_that_does_not_end_in_time_is_none(monkeypatch):
    tables = random_tables(0, zeros=0.0)
    passed = bounded(tables, shuffled(0, len(tables.sizes)), cells=4)
    assert grown(passed, 4, np.random.default_rng(0), deadline=clock.now() - 1.0) is None
    assert grown(passed, 4, np.random.default_rng(0), deadline=clock.now() + 99.0) is not None
    monkeypatch.setattr(estimate, "grown", lambda *_, **__: None)
    graph = random_graph(0)
    posterior = rg.infer(graph, scheduler=rg.MiniBuckets(seconds=0.5, memory=100.0))
    with pytest.raises(BudgetError, match="none was drawn in time"):
        _ = posterior.log_partition
    lower, upper = posterior.bounds()
    truth = brute_force(graph).log_partition.item()
    assert float(lower) <= truth + 1e-9 <= float(upper) + 2e-9
    assert posterior.status.standard_error == math.inf


def triples(seed: int, count: int, scale: float) -> rg.FactorGraph:
    """Variables of three states, and three times for every two of them a triple of any."""
    rng = np.random.default_rng(seed)
    x = rg.VariableArray("x", (count,), 3)
    factors = []
    for _ in range(3 * count // 2):
        values = torch.from_numpy(rng.normal(0.0, scale, (3, 3, 3)))
        places = rng.choice(count, 3, replace=False).tolist()
        factors.append(rg.Factor([x[v] for v in places], rg.Table(values)))
    return rg.FactorGraph(factors)


@pytest.mark.long
def test_estimates_that_differ_much_are_not_called_converged():
    scheduler = rg.MiniBuckets(seconds=9.0, memory=1e4, draws=8)
    statuses = [rg.infer(triples(0, 30, 2.0), scheduler=scheduler).status]
    assert not any(status.converged for status in statuses)
    assert all("more seconds" in status.remedy for status in statuses)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(0, 6, 2))
def test_no_estimate_is_sure_and_wrong_where_a_few_configurations_are_nearly_all(seed):
    """Populations led by loose bounds all miss the same then, and agree."""
    graph = triples(seed, 14, 5.0 * 2**seed)
    exact = float(rg.infer(graph, scheduler=rg.Contraction()).log_partition)
    posterior = rg.infer(graph, scheduler=rg.MiniBuckets(seconds=9.0, memory=1e4, draws=160))
    lower, upper = posterior.bounds()
    assert float(upper - lower) > 20.0  # these say next to nothing
    assert posterior.status.converged
    assert 0.0 < posterior.status.standard_error < 0.1
    assert abs(float(posterior.log_partition) - exact) <= 5 * posterior.status.standard_error


@pytest.mark.parametrize("seed", [4, 5])
def test_what_nothing_confirms_is_known_by_its_bounds_alone(seed):
    graph = triples(seed, 11, 6.0)
    exact = float(rg.infer(graph, scheduler=rg.Contraction()).log_partition)
    with clock.counted(clock.Counter()):
        posterior = rg.infer(graph, scheduler=rg.MiniBuckets(seconds=0.05, memory=2000.0))
        error, (lower, upper) = float(posterior.standard_error), posterior.bounds()
    assert not posterior.status.converged
    assert posterior.status.standard_error == pytest.approx(error)
    log_z = float(posterior.log_partition)
    assert error >= max(log_z - float(lower), float(upper) - log_z) - 1e-4
    assert abs(log_z - exact) <= error
    low, high = posterior.replicates.interval(0.95)
    assert float(low) <= exact <= float(high)


@pytest.mark.parametrize("height", [0.0, 1e3, -1e8])
def test_log_sums_at_any_temperature_are_rounded_upwards(height):
    """Against more digits, and by no more than a few roundings of numbers of this size."""
    draw = np.random.default_rng(0)
    for states in (1, 3, 1000):
        values = height + draw.normal(size=(200, states))
        values[::7, 0] = -np.inf
        temperatures = draw.uniform(0.1, 2.0, size=200)
        more, by = values.astype(np.longdouble), temperatures.astype(np.longdouble)[:, None]
        peak = np.where(more.max(1) > -np.inf, more.max(1), 0)[:, None]
        with np.errstate(divide="ignore"):
            sums = by * np.log(np.exp((more - peak) / by).sum(1, keepdims=True))
            expected = (peak + sums)[:, 0]
            found = log_power_sum(values, temperatures)
        alive = expected > -np.inf
        assert (found[~alive] == -np.inf).all()
        assert (found[alive] >= expected[alive]).all()
        size = 1.0 + np.abs(expected[alive]) + temperatures[alive] * states
        assert (found[alive] - expected[alive] <= 1e-13 * size).all()
        still = log_power_sum(values, np.zeros(200))
        assert (still == values.max(1)).all()


def test_progress_is_told_in_seconds_since_the_start(hands):
    """The clock stands still unless it is moved, as it is with each report."""
    seen = []

    def progress(step):
        seen.append(step)
        hands.time += 0.1

    x = rg.VariableArray("x", (5, 5), 2)
    tables = [rg.Table(torch.tensor(t).double()) for t in ([[0.5, -1], [0, 1]], [[0, 1], [0.3, 0]])]
    pairs = (x[:, 1:], x[:, :-1]), (x[1:], x[:-1])
    graph = rg.FactorGraph(
        [rg.FactorBlock(pair, table) for pair, table in zip(pairs, tables, strict=True)]
    )
    scheduler = rg.MiniBuckets(seconds=5.0, memory=500.0, draws=48, progress=progress)
    found = rg.infer(graph, scheduler=scheduler).log_partition
    assert seen
    assert [step.number for step in seen] == list(range(1, len(seen) + 1))
    assert [step.seconds for step in seen] == pytest.approx([0.1 * n for n in range(len(seen))])
    assert float(found) == pytest.approx(seen[-1].value, abs=2.0)


def test_other_questions_are_refused():
    posterior = rg.infer(random_graph(0), scheduler=rg.MiniBuckets(seconds=1.0, draws=10))
    with pytest.raises(UnsupportedError, match=r"not a mode.*Search"):
        posterior.mode()
    with pytest.raises(UnsupportedError, match="not independent draws"):
        posterior.sample(1)
    with pytest.raises(ModelError, match="draws as a whole number of at least 1"):
        rg.MiniBuckets(draws=0)
