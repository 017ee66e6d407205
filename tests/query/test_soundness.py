"""Degenerate models, and tables that no longer hold what they were declared with."""

import math
from pathlib import Path

import pytest
import torch

import rdpgraph as rg
from tests.questions import QUESTIONS

X, Y = rg.Variable("x", 2), rg.Variable("y", 3)
ROW = rg.VariableArray("r", (3,), 2)
ESTIMATE = rg.Randomized.default(keep=2, replicates=3)
SCHEDULERS = [rg.Auto(), rg.Contraction(), rg.Loopy(sweeps=50), rg.JoinGraph()]


def drawn():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("constant", [None, 1.5, [0.5, -math.inf]])
@pytest.mark.parametrize("estimator", [None, ESTIMATE])
def test_graphs_without_variables(constant, estimator):
    factors = [] if constant is None else [rg.Factor((), rg.Table(torch.tensor(constant)))]
    posterior = rg.infer(rg.FactorGraph(factors), estimator=estimator, generator=drawn())
    expected = torch.tensor(0.0 if constant is None else constant)
    assert torch.equal(posterior.log_partition, expected)
    assert torch.equal(posterior.entropy(), torch.zeros_like(expected))
    assert posterior.marginals() == posterior.max_marginals() == {}
    if bool((expected > -math.inf).all()):
        assert posterior.mode() == posterior.sample(3) == {}
    else:
        with pytest.raises(rg.errors.ImpossibleEvidenceError, match="There is no mode"):
            posterior.mode()


@pytest.mark.parametrize("shape", [(0, 0, 3), (2, 0, 0, 3)])
def test_trees_over_no_words(shape):
    tree = rg.Hypertree(torch.zeros(shape))
    for estimator in (None, ESTIMATE):
        posterior = rg.infer(tree, estimator=estimator, generator=drawn())
        assert torch.equal(posterior.entropy(), torch.zeros(shape[:-3]))
    best = tree.k_best(2)
    assert torch.equal(best.scores[0], tree.log_partition())
    assert bool((best.scores[1] == -math.inf).all())
    some = rg.Hypertree(torch.randn(2, 3, 3, 2, generator=drawn()), lengths=[0, 3])
    scores = some.k_best(2).scores
    assert scores[:, 0].tolist() == [0.0, -math.inf]
    torch.testing.assert_close(scores[:, 1], rg.Hypertree(some.unary[1]).k_best(2).scores)


def declared(bad, where):
    """A graph, one entry of whose tables is written over afterwards."""
    unary, pair, rows = torch.zeros(2), torch.randn(2, 3, generator=drawn()), torch.zeros(3, 2)
    graph = rg.FactorGraph(
        [
            rg.Factor((X,), rg.Table(unary)),
            rg.Factor((X, Y), rg.Table(pair)),
            rg.FactorBlock((ROW,), rg.Table(rows)),
        ]
    )
    {"x": unary, "y": pair[1], "r[1]": rows[1]}[where][1] = bad
    return graph


@pytest.mark.cover(2)
@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["x", "y", "r[1]"])
def test_what_is_no_number_is_told_by_the_factor_that_holds_it(scheduler, bad, where):
    for name, ask in QUESTIONS.items():
        posterior = rg.infer(declared(bad, where), scheduler=scheduler)
        with pytest.raises(rg.errors.ModelError, match="NaN" if bad != bad else r"\+inf") as error:
            ask(posterior)
        assert f"'{where}'" in str(error.value), name
        assert "\n" not in str(error.value)
    for model in (declared(bad, where).condition({Y: 1}), declared(bad, where).condition({Y: [1]})):
        with pytest.raises(rg.errors.ModelError):
            _ = rg.infer(model, scheduler=scheduler).log_partition
    with pytest.raises(rg.errors.ModelError):
        rg.infer(declared(bad, where), estimator=rg.Randomized.default(keep=1), generator=drawn())


@pytest.mark.parametrize("field", ["unary", "transition"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_structures_say_which_field_holds_no_number(field, bad):
    draws = {
        "sample": lambda p: p.sample(2),
        "rsample": lambda p: p.rsample(temperature=0.5),
        "rsample_kept": lambda p: p.rsample_kept(temperature=0.5),
    }
    for name, ask in {**QUESTIONS, **draws}.items():
        chain = rg.Chain(torch.zeros(2, 4, 3), torch.zeros(3, 3))
        getattr(chain, field)[1, 1] = bad
        told = f"The {field} of Chain holds|Chain's {field} needs .* got"
        with pytest.raises(rg.errors.ModelError, match=told):
            ask(rg.infer(chain))
        assert name


def test_an_optimizer_may_change_tables_in_place():
    values = torch.zeros(2, requires_grad=True)
    graph = rg.FactorGraph([rg.Factor((X,), rg.Table(values))])
    with torch.no_grad():
        values[1] = 3.0
    torch.testing.assert_close(rg.infer(graph).log_partition, values.logsumexp(0))


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda s: type(s).__name__)
def test_log_values_that_add_up_beyond_their_type(scheduler):
    huge = rg.Table(torch.tensor([3e38, 0.0]))
    twice = [rg.Factor((X,), huge), rg.Factor((X,), huge), rg.Factor((Y,), rg.Table([0.0] * 3))]
    models = [rg.FactorGraph(twice), rg.FactorGraph([rg.Factor((), rg.Table(3e38))] * 2)]
    for model in models:
        with pytest.raises(rg.errors.ModelError, match="add up"):
            _ = rg.infer(model, scheduler=scheduler).log_partition
        wide = rg.infer(model.to(torch.float64), scheduler=scheduler).log_partition
        assert abs(float(wide) / 6e38 - 1) < 1e-5
    with pytest.raises(rg.errors.ModelError, match="add up"):
        rg.infer(models[0], scheduler=scheduler).max_marginals()
    # Far below the others they are nothing, and no error.
    low = rg.Table(torch.tensor([-3e38, 0.0]))
    faint = rg.infer(rg.FactorGraph([rg.Factor((X,), low)] * 2), scheduler=scheduler)
    assert float(faint.log_partition) == 0.0
    assert faint.mode()[X] == 1


def test_a_chain_that_adds_up_beyond_its_type():
    with pytest.raises(rg.errors.ModelError, match="add up"):
        _ = rg.infer(rg.Chain([[3e38, 0.0]] * 3, torch.zeros(2, 2))).log_partition


def test_an_impossible_model_is_no_error():
    nothing = rg.Table(torch.full((2,), -math.inf))
    posterior = rg.infer(rg.FactorGraph([rg.Factor((X,), nothing)]))
    assert posterior.log_partition == -math.inf
    assert not bool(posterior.marginal(X).any())
    assert bool((posterior.max_marginals()[X] == -math.inf).all())


@pytest.mark.parametrize(
    "make",
    [
        lambda: rg.Variable("v", 2**40),
        lambda: rg.VariableArray("v", (2**40, 2**40), 2),
        lambda: rg.VariableArray("v", (2**20, 2**20), 2),
        lambda: rg.VariableArray("v", (2.5,), 2),
        lambda: rg.VariableArray("v", None, 2),
        lambda: rg.Variable("v", 2.5),
        lambda: rg.Variable("v", None),
        lambda: rg.Sparse([[0, 1]], [0.0], (2**70, 2)),
        lambda: rg.Variable("v", 3).index_of(1.5),
        lambda: rg.Variable("v", 3).index_of(None),
        lambda: rg.infer(rg.FactorGraph([], [X])).sample(2.5),
        lambda: rg.infer(rg.FactorGraph([], [X])).sample(2, 7),
    ],
)
def test_sizes_that_cannot_be_meant(make):
    with pytest.raises((rg.errors.ModelError, rg.errors.EvidenceError)) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits of Linux")
@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda s: type(s).__name__)
def test_more_states_than_the_machine_holds_are_refused_first(scheduler, monkeypatch):
    resource = pytest.importorskip("resource")
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (held + 10**9,) * 2)  # ulimit -v
    big = rg.FactorGraph([], [rg.Variable("v", 2**31), rg.Variable("w", 2)])
    with pytest.raises(rg.errors.BudgetError, match="states of this graph would take"):
        rg.infer(big, scheduler=scheduler)
    with pytest.raises(rg.errors.BudgetError, match="variables of this graph"):
        rg.infer(rg.FactorGraph([], [rg.VariableArray("v", (2**31,), 2)]), scheduler=scheduler)
    # What evidence settles takes no room.
    posterior = rg.infer(big.condition({"v": 2**31 - 1}), scheduler=scheduler)
    assert abs(float(posterior.log_partition) - math.log(2)) < 1e-6
    with pytest.raises(rg.errors.BudgetError, match="Marginals would take"):
        posterior.marginals()


def test_a_joint_beside_a_factor_too_wide_to_be_written_out():
    many = rg.VariableArray("b", (40,), 2)
    parity = rg.FactorGraph([rg.Factor(tuple(many[i] for i in range(40)), rg.Xor(40))])
    posterior = rg.infer(parity)
    torch.testing.assert_close(posterior.joint([many[0], many[39]]), torch.full((2, 2), 0.25))
    with pytest.raises(rg.errors.BudgetError, match="would take"):
        posterior.factor_marginal([many[0], many[39]])


@pytest.mark.parametrize("estimator", [None, ESTIMATE])
@pytest.mark.parametrize("model", [rg.Chain([[0.5, 1.0]] * 3, torch.zeros(2, 2)), None])
def test_a_generator_may_stand_second_everywhere(model, estimator):
    model = model or rg.FactorGraph([rg.Factor((X, Y), rg.Table(torch.zeros(2, 3)))])
    posterior = rg.infer(model, estimator=estimator, generator=drawn())
    answers = [posterior.sample(20, drawn()), posterior.sample(count=20, generator=drawn())]
    if isinstance(model, rg.Chain):
        assert torch.equal(*answers)
        assert torch.equal(model.sample(20, drawn()), model.sample(20, generator=drawn()))
    else:
        assert all(torch.equal(answers[0][key], answers[1][key]) for key in (X, Y))
