"""Groups of replicates, each with a run of the proposal of its own, and what they show together."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph.errors import ModelError
from rdpgraph.randomized import Local, Pilot, Selection, Top, TopSystematic, Uniform
from rdpgraph.testing import brute_force
from tests.estimate.enumeration import Script, outcomes
from tests.estimate.models import draw, seeded


def star(states=3, of_hub=3, leaves=2):
    """One variable joined to others, with potentials that differ from state to state."""
    hub, leaf = rg.Variable("hub", of_hub), rg.VariableArray("leaf", (leaves,), states)
    return rg.FactorGraph(
        [
            rg.Factor((hub,), rg.Table(draw(of_hub, seed=1))),
            rg.FactorBlock((leaf, hub), rg.Table(draw(leaves, states, of_hub))),
        ]
    )


class Recorded(Selection):
    """A selection that keeps the best state and records the scores of every call."""

    def __init__(self):
        self.seen = []

    def select(self, log_q, generator=None):
        self.seen.append(log_q)
        return Top(1).select(log_q, generator)


@pytest.mark.parametrize("replicates", [1, 3, 4, 6, 16])
def test_each_group_of_replicates_has_a_pilot_of_its_own(replicates):
    recorded = Recorded()
    pilot = Pilot(Uniform(), TopSystematic(0, 1))
    estimator = rg.Randomized(pilot, recorded, replicates=replicates)
    rg.infer(star(8, 8), estimator=estimator, generator=seeded())
    seen = [tuple(scores.flatten().tolist()) for scores in recorded.seen]
    sizes = [len(list(alike)) for _, alike in itertools.groupby(seen)]
    assert sum(sizes) == replicates
    assert len(sizes) == len(set(seen)) == (4 if replicates >= 4 else 1)
    assert max(sizes) - min(sizes) <= 1


def test_z_is_unbiased_with_a_pilot_for_each_group():
    """Every draw of each group, given its pilot, by its probability: the mean of each is Z.

    So replicates are uncorrelated, whether they share a pilot or not, and their mean is unbiased.
    """
    graph, recorded = star(leaves=1), Recorded()
    pilot = Pilot(Uniform(), TopSystematic(0, 1))
    rg.infer(graph, estimator=rg.Randomized(pilot, recorded, replicates=4), generator=seeded())
    supports, chances = [], []
    for scores in recorded.seen:
        rows = [outcomes(TopSystematic(1, 1), row) for row in scores.flatten(0, -2)]
        joint = list(itertools.product(*rows))
        for outcome in joint:
            states = torch.stack([support.states for _, support in outcome])
            weights = torch.stack([support.log_weights for _, support in outcome])
            supports.append(rg.extend.Support(states, weights))
        chances.append([math.prod(chance for chance, _ in outcome) for outcome in joint])
    everything = rg.Randomized(pilot, Script(supports), replicates=len(supports))
    posterior = rg.infer(graph, estimator=everything, generator=seeded())
    of_groups = posterior.log_partitions.split([len(part) for part in chances])
    for logs, part in zip(of_groups, chances, strict=True):
        mean = (torch.tensor(part).double().log() + logs).logsumexp(0)
        assert_close(mean, brute_force(graph).log_partition)


def test_intervals_cover_groups_that_disagree():
    within = 0.02 * draw(16)
    groups = (0,) * 4 + (1,) * 4 + (2,) * 4 + (3,) * 4
    agree = rg.answers.Replicates(within, groups=groups)
    assert float(agree.standard_error) == float(rg.answers.Replicates(within).standard_error)
    apart = within.clone()
    apart[8:12] -= 0.4
    told = rg.answers.Replicates(apart, groups=groups)
    untold = rg.answers.Replicates(apart)
    assert float(told.effective_sample_size) > 0.8 * 16
    low, high = told.interval(0.95)
    for part in apart.split(4):
        assert low <= part.logsumexp(0) - math.log(4) <= high
    assert float(told.standard_error) > 2 * float(untold.standard_error)


def test_errors_of_groups_are_those_of_each_item_alone():
    logs = 0.1 * draw(12, 3)
    logs[4:8, 1] -= 3.0
    groups = (0,) * 4 + (1,) * 4 + (2,) * 4
    both = rg.answers.Replicates(logs, groups=groups).standard_error
    alone = [rg.answers.Replicates(part, groups=groups).standard_error for part in logs.unbind(1)]
    assert_close(both, torch.stack(alone))
    assert float(both[1]) > 1.0 > float(both[0])


def sharp_grid(states=60, scale=0.8, dims=8, seed=2):
    """A square of three by three variables whose configurations of one state matter most."""
    x = rg.VariableArray("x", (3, 3), states)
    generator = seeded(seed)
    embeddings = scale * torch.randn(states, dims, generator=generator, dtype=torch.float64)
    own = torch.randn(3, 3, states, generator=generator, dtype=torch.float64)
    near = rg.Bilinear(embeddings, embeddings)
    return rg.FactorGraph(
        [
            rg.FactorBlock((x,), rg.Table(own)),
            rg.FactorBlock((x[:, :-1], x[:, 1:]), near),
            rg.FactorBlock((x[:-1], x[1:]), near),
        ]
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pilots_that_miss_the_largest_mode_are_not_sure(seed):
    """With one pilot for all, each replicate is 5.7 nats too low, and they agree to 0.1."""
    graph = sharp_grid()
    exact = float(rg.infer(graph).log_partition)
    estimator = rg.Randomized.piloted(keep=8, replicates=16)
    posterior = rg.infer(graph, estimator=estimator, generator=seeded(seed))
    low, high = posterior.replicates.interval(0.95)
    assert not posterior.status.converged
    assert low <= exact <= high
    assert posterior.replicates.bounds[0] <= exact + 1e-9


def bounded(model, monkeypatch, tail=1):
    """Lower bounds of a model that counts as too large to be solved whole."""
    monkeypatch.setattr("rdpgraph._core.tuning.LITTLE_WORK", 0.0)
    estimator = rg.Randomized(Uniform(), TopSystematic(1, tail), replicates=16)
    posterior = rg.infer(model, estimator=estimator, generator=seeded())
    least, most = posterior.replicates.bounds
    assert bool((most == math.inf).all())
    return least


def diagonal(states):
    """Pairs that are likely in the same state only."""
    return rg.Table(6.0 * (torch.eye(states, dtype=torch.float64) - 1.0))


def triples(states=12):
    """Factors over three variables in a loop, some of whose states are impossible."""
    x = rg.VariableArray("x", (4,), states)
    tables = 2.0 * draw(4, states, states, states)
    tables = torch.where(draw(4, states, states, states, seed=1) < -0.5, -math.inf, tables)
    scope = (x, x[[1, 2, 3, 0]], x[[2, 3, 0, 1]])
    return rg.FactorGraph([rg.FactorBlock(scope, rg.Table.from_logs(tables))])


def batch_of_grids(states=20):
    """Two grids of two by two, and a variable of three states that joins two of theirs."""
    x, a = rg.VariableArray("x", (2, 2), states), rg.Variable("a", 3)
    pairs = 2.0 * draw(2, 1, states, states)
    return rg.FactorGraph(
        [
            rg.FactorBlock((x,), rg.Table(draw(2, 2, 2, states, seed=1))),
            rg.FactorBlock((x[1:], x[:-1]), rg.Table(pairs.unsqueeze(1))),
            rg.FactorBlock((x[:, 1:], x[:, :-1]), rg.Table(pairs.unsqueeze(1).mT)),
            rg.Factor((a, x[0, 0], x[0, 1]), rg.Table(draw(3, states, states, seed=2))),
        ]
    )


def chains_of_lengths(states=30):
    """Two chains, one of them shorter."""
    lengths = torch.tensor([5, 3])
    return rg.Chain(draw(2, 5, states), 2.0 * draw(states, states, seed=1), lengths=lengths)


def conditioned(graph):
    """A graph with one of its variables observed."""
    (x, *_) = graph.variables
    return graph.condition({x[1] if len(x.shape) == 1 else x[1, 0]: 2})


@pytest.mark.parametrize(
    "model",
    [
        star(40, 20), triples(), conditioned(triples()), batch_of_grids(),
        conditioned(batch_of_grids()), chains_of_lengths(), chains_of_lengths().factor_graph(),
    ],
    ids=["star", "triples", "evidence", "grids", "evidence of grids", "chains", "graph of chains"],
)  # fmt: skip
def test_the_mass_around_configurations_bounds_log_z(model, monkeypatch):
    least = bounded(model, monkeypatch)
    exact = rg.infer(model).log_partition
    assert least.shape == exact.shape
    assert bool((least <= exact + 1e-9).all())
    assert bool((least > exact - 8.0).all())  # of e^10 to e^16 configurations


def test_sums_over_the_leaves_of_a_star_are_all_of_z(monkeypatch):
    """Each state of the hub begins a configuration, and the leaves are summed over given it."""
    graph = star(200, 15)
    exact = rg.infer(graph).log_partition
    assert_close(bounded(graph, monkeypatch, tail=4), exact)


def test_configurations_find_states_that_no_replicate_keeps_together(monkeypatch):
    """Four of 200 states are kept of each step: 16 modes are found, of which hardly any is kept."""
    chain = rg.Chain(torch.zeros(6, 200, dtype=torch.float64), diagonal(200))
    for model in (chain, chain.factor_graph()):
        assert bool(bounded(model, monkeypatch, tail=3) >= math.log(16.0) - 1e-9)
    estimator = rg.Randomized(Uniform(), TopSystematic(1, 3), replicates=16)
    assert not rg.infer(chain, estimator=estimator, generator=seeded()).status.converged


class Best(Selection):
    """The two best states, of all replicates and of all batch items the same ones."""

    def select(self, log_q, generator=None):
        return Top(2).select(log_q, generator)


def test_bounds_of_a_batch_are_those_of_its_items(monkeypatch):
    monkeypatch.setattr("rdpgraph._core.tuning.LITTLE_WORK", 0.0)  # too large to solve
    both = rg.Chain(draw(2, 4, 200), 2.0 * draw(200, 200, seed=1))
    estimator = rg.Randomized(Local(), Best(), replicates=16)
    least, _ = rg.infer(both, estimator=estimator, generator=seeded()).replicates.bounds
    for item in range(2):
        one = rg.Chain(both.unary[item], both.transition)
        alone, _ = rg.infer(one, estimator=estimator, generator=seeded()).replicates.bounds
        assert_close(alone, least[item])


def test_weights_that_are_not_numbers_are_refused_by_the_name_of_their_selection():
    class Broken(Selection):
        def select(self, log_q, generator=None):
            support = Top(2).select(log_q, generator)
            return rg.extend.Support(support.states, support.log_weights * math.nan)

    model = rg.Chain(draw(4, 20), draw(20, 20, seed=1))
    for one in (model, model.factor_graph()):
        with pytest.raises(ModelError, match="Broken's choice needs log-values below"):
            rg.infer(one, estimator=rg.Randomized(Local(), Broken()))
