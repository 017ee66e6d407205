"""Estimators of one's own, each in under 30 lines outside the package."""

import copy
import inspect
import itertools
import math
import pickle
from dataclasses import dataclass, replace

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force, check_estimator


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


@dataclass(frozen=True)
class Switched(rg.extend.Estimator):
    """Adds variables: a pair of two states as a factor for each value of a switch of its own.

    ``f(x, y) = sum_s [s = x] f(s, y)``: exact, and each factor that remains is of one variable
    and a switch.
    """

    def prepare(self, model, *, solve, generator):
        blocks, switches = [], []
        for number, block in enumerate(model.blocks):
            if block.arity != 2:
                blocks.append(rg.FactorBlock(slots(model, block), block.potential))
                continue
            switch = rg.VariableArray(f"switch {number}", (block.count,), block.sizes[0])
            first, second = slots(model, block)
            same = torch.eye(block.sizes[0], dtype=model.dtype).log()
            blocks.append(rg.FactorBlock((first, switch), rg.Table(same)))
            blocks.append(rg.FactorBlock((switch, second), block.potential))
            switches.append(switch)
        bigger = rg.FactorGraph(blocks, variables=[*model.variables, *switches])
        return rg.extend.Problem(bigger, rg.extend.AddedVariables(model, bigger, solve))


def slots(model, block):
    return tuple([model.domain.variable(n) for n in column.tolist()] for column in block.scopes.T)


@dataclass(frozen=True)
class Masked(rg.extend.Estimator):
    """Averages dependent draws: Gibbs over masks that leave two states, one of them the sample's.

    Each sweep draws a configuration given the mask, and then a mask given the configuration: a
    chain whose mean marginals are those of the model in the end, and which has no Z.
    """

    sweeps: int

    def prepare(self, model, *, solve, generator):
        (entry,) = model.variables
        every, now = torch.arange(entry.size), torch.zeros(entry.shape, dtype=torch.long)
        masks = []
        for _ in range(self.sweeps):
            other = torch.randint(1, entry.size, entry.shape, generator=generator)
            kept = torch.stack([now, (now + other) % entry.size], -1)
            open_ = (kept.unsqueeze(-1) == every).any(-2)
            masks.append(torch.where(open_, 0.0, -math.inf).to(model.dtype))
            lift = self._lift(model, torch.stack(masks[-1:]), solve)
            now = solve(lift.model).sample(1, generator)[entry][0, 0]
        lift = self._lift(model, torch.stack(masks), solve)
        return rg.extend.Problem(lift.model, lift)

    def _lift(self, model, masks, solve):
        every = torch.arange(masks.shape[-1]).expand(masks.shape)
        support = (rg.extend.Support(every, masks),)
        return rg.extend.Restriction(model, support, solve, replicates=len(masks), equal=True)


@dataclass(frozen=True)
class Reweighted(rg.extend.Estimator):
    """An estimator that only reweights: each state twice or not at all. Z is right on average."""

    replicates: int = 2

    def prepare(self, model, *, solve, generator):
        supports = []
        for entry in model.variables:
            shape = (self.replicates, *entry.shape, entry.size)
            heads = torch.rand(shape, generator=generator) < 0.5
            weights = torch.where(heads, math.log(2), -math.inf).to(model.dtype)
            supports.append(rg.extend.Support(torch.arange(entry.size).expand(shape), weights))
        lift = rg.extend.Restriction(model, tuple(supports), solve, replicates=self.replicates)
        return rg.extend.Problem(lift.model, lift)


@dataclass(frozen=True)
class Flattened(rg.extend.Estimator):
    """Changes the factors alone: those of p to the power 1 / t, and a bound on log Z above."""

    t: float

    def prepare(self, model, *, solve, generator):
        blocks = [rg.FactorBlock(slots(model, b), rg.Table(b.select().table(b.arity) / self.t))
                  for b in model.blocks]  # fmt: skip
        graph = rg.FactorGraph(blocks, variables=model.variables)
        return rg.extend.Problem(graph, rg.extend.Inexact)


def ring(states=3):
    x = rg.VariableArray("x", (3,), states)
    pairs = rg.FactorBlock((x, x[[1, 2, 0]]), rg.Table(drawn(3, states, states)))
    return rg.FactorGraph([rg.FactorBlock((x,), rg.Table(drawn(3, states, seed=1))), pairs])


OWN = {
    "adds variables": Switched(),
    "averages dependent draws": Masked(5),
    "only reweights": Reweighted(),
    "changes factors": Flattened(2.0),
}


@pytest.mark.parametrize("name", OWN)
def test_the_check_holds(name):
    check_estimator(OWN[name], ring())


FEW = rg.Randomized(rg.randomized.Local(), rg.randomized.TopTail(1, 1), replicates=2)
SHIPPED = {
    "exact": (rg.Exact(), 0),
    "randomized": (FEW, 100),
    "truncated": (rg.Randomized(rg.randomized.Local(), rg.randomized.Top(2)), 0),
    "all states": (rg.Randomized(rg.randomized.Local(), rg.randomized.Top(3)), 3),
    "random features": (rg.LowRankFactors(64), 100),
    "reweighted": (Reweighted(), 100),
}


def embedded():
    x, pair = rg.VariableArray("x", (3,), 3), rg.Bilinear(drawn(3, 2) / 2, drawn(3, 2) / 2)
    pairs = rg.FactorBlock((x[:-1], x[1:]), pair)
    return rg.FactorGraph([rg.FactorBlock((x,), rg.Table(drawn(3, 3, seed=1))), pairs])


MODELS = {
    "graph": embedded,
    "chain": lambda: rg.Chain(drawn(2, 4, 3), rg.Bilinear(drawn(3, 2) / 2, drawn(3, 2) / 2)),
    "segments": lambda: rg.SemiMarkov(drawn(3, 2, 3), drawn(3, 3), lengths=torch.tensor(2)),
}


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", SHIPPED)
def test_the_check_holds_for_those_that_are_shipped(name, model):
    estimator, draws = SHIPPED[name]
    if model == "graph" or name != "reweighted":
        check_estimator(estimator, MODELS[model](), draws=draws)


@dataclass(frozen=True)
class Truncated(rg.extend.Estimator):
    """Keeps the first two states of all, and says that this is exact."""

    weight: float = 0.0
    exact: bool = True

    def prepare(self, model, *, solve, generator):
        (entry,) = model.variables
        states = torch.arange(2).expand(1, *entry.shape, 2)
        support = rg.extend.Support(states, torch.full(states.shape, self.weight).to(model.dtype))
        lift = rg.extend.Restriction(model, (support,), solve, exact=self.exact, bound="lower")
        return rg.extend.Problem(lift.model, lift)


@pytest.mark.parametrize(
    ("estimator", "draws", "message"),
    [
        (Truncated(), 0, "log_partition with Truncated, which its status says is exact"),
        (Truncated(exact=False), 3, "right on average"),
        (Truncated(weight=5.0, exact=False), 0, "is a bound, lower"),
    ],
)
def test_what_does_not_hold_is_said(estimator, draws, message):
    with pytest.raises(AssertionError, match=message):
        check_estimator(estimator, ring(), draws=draws)


@pytest.mark.parametrize("name", OWN)
def test_each_takes_under_thirty_lines(name):
    assert len(inspect.getsource(type(OWN[name])).splitlines()) <= 30


@pytest.mark.parametrize("name", OWN)
def test_types_and_plans_are_those_of_any_estimator(name):
    model = ring()
    plain, own = rg.infer(model), rg.infer(model, estimator=OWN[name], generator=seeded())
    assert type(own) is type(plain)
    assert type(own.marginals()) is type(plain.marginals())
    explained = rg.explain(model, estimator=OWN[name], generator=seeded())
    assert type(explained) is type(rg.explain(model))
    for made in (pickle.loads(pickle.dumps(own)), copy.deepcopy(own)):
        torch.testing.assert_close(made.marginal("x"), own.marginal("x").detach())


def test_switches_are_summed_out():
    model = ring(2)
    truth, found = brute_force(model), rg.infer(model, estimator=Switched())
    assert found.status.exact
    x = model.variables[0]
    torch.testing.assert_close(found.log_partition, truth.log_partition)
    torch.testing.assert_close(found.entropy(), truth.entropy)
    torch.testing.assert_close(found.joint([x[0], x[2]]), truth.joint((x[0], x[2])))
    torch.testing.assert_close(found.factor_marginal([x[0], x[1]]), truth.joint((x[0], x[1])))
    torch.testing.assert_close(model.score(found.mode()), truth.maximum)
    assert found.sample(7, seeded())["x"].shape == (7, 3)


def test_masks_are_averaged_with_equal_weights():
    model = ring()
    found = rg.infer(model, estimator=Masked(4), generator=seeded())
    x, kept = model.variables[0], found.solution.restriction.supports[0]
    each = [
        rg.infer(model.with_factors(rg.FactorBlock((x,), rg.Table(mask)))).marginal(x)
        for mask in kept.log_weights
    ]
    torch.testing.assert_close(found.marginal(x), torch.stack(each).mean(0))
    for name in ("log_partition", "log_partitions", "standard_error", "effective_sample_size"):
        with pytest.raises(rg.errors.UnsupportedError, match="no log Z"):
            getattr(found, name)
    with pytest.raises(rg.errors.UnsupportedError, match="no log Z"):
        found.entropy()
    assert found.status.biased
    assert found.status.standard_error is None
    assert bool((model.score(found.mode()) > -math.inf).all())
    share = torch.nn.functional.one_hot(found.sample(4000, seeded(1))["x"], 3).double().mean(0)
    torch.testing.assert_close(share, found.marginal(x), rtol=0.0, atol=0.05)


@pytest.mark.long
def test_the_chain_of_masks_finds_the_marginals():
    model = ring()
    found = rg.infer(model, estimator=Masked(100), generator=seeded())
    expected = rg.infer(model).marginal("x")
    torch.testing.assert_close(found.marginal("x"), expected, rtol=0.0, atol=0.1)


def test_reweighted_z_is_right_on_average():
    """Over all the coins there are: every state of two variables counts twice or not at all."""
    a, b = rg.Variable("a", 2), rg.Variable("b", 2)
    model = rg.FactorGraph([rg.Factor((a, b), rg.Table(drawn(2, 2)))])
    total = torch.zeros((), dtype=torch.float64)
    for coins in itertools.product((0.0, 2.0), repeat=4):
        weights = torch.tensor(coins, dtype=torch.float64).log().reshape(2, 1, 2)
        states = torch.arange(2).expand(1, 2)
        supports = tuple(rg.extend.Support(states, own) for own in weights)
        lift = rg.extend.Restriction(model, supports, rg.infer)
        total += lift(rg.infer(lift.model).solution).log_partition().exp().sum() / 16
    torch.testing.assert_close(total, rg.infer(model).log_partition.exp())


def test_changed_factors_are_not_passed_off_as_exact():
    model = ring()
    found = rg.infer(model, estimator=Flattened(2.0))
    assert not found.status.exact
    cold = rg.infer(
        model, scheduler=rg.Contraction(), estimator=replace(OWN["changes factors"], t=1.0)
    )
    torch.testing.assert_close(cold.log_partition, rg.infer(model).log_partition)
    x = model.variables[0]
    tables = [rg.Table(block.select().table(block.arity) / 2) for block in model.blocks]
    flat = rg.FactorGraph([rg.FactorBlock(slots(model, b), t)
                           for b, t in zip(model.blocks, tables, strict=True)])  # fmt: skip
    expected = brute_force(flat).joint((x[0], x[2]))
    torch.testing.assert_close(found.joint([x[0], x[2]]), expected)


def test_what_is_observed_keeps_its_state_whatever_its_support():
    model = ring().condition({"x": [0, 1, 2]})
    exact, found = rg.infer(model), rg.infer(model, estimator=Reweighted(), generator=seeded())
    assert found.status.exact
    torch.testing.assert_close(found.log_partition, exact.log_partition)
    torch.testing.assert_close(found.marginal("x"), exact.marginal("x"))
    torch.testing.assert_close(found.sample(2, seeded())["x"], exact.sample(2, seeded())["x"])


def test_evidence_on_a_part_stands_beside_supports_of_the_whole():
    model = ring().condition({"x[0]": 1})
    exact = rg.infer(model)
    found = rg.infer(model, estimator=Reweighted(300), generator=seeded())
    torch.testing.assert_close(found.marginal("x[0]"), exact.marginal("x[0]"))
    error = (found.log_partition - exact.log_partition).abs()
    assert float(error) < 5 * float(found.standard_error)


class Doubted(rg.extend.Lifted):
    """A lift that says its own status alone, of all answers."""

    def status(self):
        return rg.Status(exact=False, biased=True)


@dataclass(frozen=True)
class Doubting(rg.extend.Estimator):
    """The model itself, which is not believed."""

    def prepare(self, model, *, solve, generator):
        return rg.extend.Problem(model, Doubted)


def test_a_status_of_ones_own_is_that_of_every_answer():
    posterior = rg.infer(ring(), estimator=Doubting())
    for name in ("log_partition", "marginals", "entropy", "max_marginals"):
        assert not posterior.status_of(name).exact
    assert float(posterior.standard_error) == math.inf  # of what is not exact nothing is known
