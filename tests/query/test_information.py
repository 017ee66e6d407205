"""Mutual information by enumeration, on every route."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from tests.query import routes


def graph(seed=0):
    """Two loops, a hard zero, and a variable apart."""
    a, b, c, d = (rg.Variable(name, size) for name, size in zip("abcd", (2, 3, 2, 4), strict=True))
    tables = [
        routes.fixed(*sizes, seed=seed + at) for at, sizes in enumerate([(2, 3), (3, 2), (2, 2)])
    ]
    tables[0][1, 2] = -math.inf
    scopes = [(a, b), (b, c), (c, a)]
    factors = [
        rg.Factor(scope, rg.Table(table)) for scope, table in zip(scopes, tables, strict=True)
    ]
    return rg.FactorGraph([*factors, rg.Factor((d,), rg.Table(routes.fixed(4)))])


def enumerated(model, one, other):
    """The mutual information from the sum over all configurations."""
    sizes = model.domain.sizes.tolist()
    names = [model.domain.variable(number).name for number in range(len(sizes))]
    joint = torch.zeros(*sizes, dtype=torch.float64)
    for states in itertools.product(*map(range, sizes)):
        joint[states] = model.score(dict(zip(names, map(torch.tensor, states), strict=True))).exp()
    places = names.index(one), names.index(other)
    rest = [at for at in range(len(sizes)) if at not in places]
    joint = joint.sum(rest) if rest else joint
    joint = joint / joint.sum()
    apart = joint.sum(0, keepdim=True) * joint.sum(1, keepdim=True)
    return torch.where(joint > 0, joint * (joint.clamp(min=1e-300) / apart).log(), 0.0).sum()


@pytest.mark.parametrize(
    "scheduler", [rg.Auto(), rg.Contraction(), rg.JoinGraph(), rg.MiniBuckets(12.0)]
)
@pytest.mark.parametrize("pair", ["ab", "bc", "ad", "cb"])
def test_pairs_by_enumeration(scheduler, pair):
    model = graph()
    found = rg.infer(model, scheduler=scheduler).mutual_information(*pair)
    torch.testing.assert_close(found, enumerated(model, *pair))


def test_information_of_all_at_once_is_that_of_pairs_and_of_itself_the_entropy():
    model = graph()
    posterior = rg.infer(model)
    found = posterior.information_about("b")
    for name in "acd":
        torch.testing.assert_close(found[name], posterior.mutual_information(name, "b"))
    chances = posterior.marginal("b")
    torch.testing.assert_close(found["b"], -(chances * chances.log()).sum())
    assert found.ranked()[0][0] == "b"
    assert [nats for _, nats in found.ranked()] == sorted(map(float, found.values()), reverse=True)


@pytest.mark.parametrize("scheduler", [rg.Auto(), rg.Loopy()])
def test_members_of_arrays_on_trees(scheduler):
    x = rg.VariableArray("x", (2, 3), 2)
    pair = rg.Table(routes.fixed(2, 2))
    edges = [rg.Factor((x[0, at], x[0, at + 1]), pair) for at in range(2)]
    model = rg.FactorGraph([*edges, rg.FactorBlock((x[0], x[1]), pair)])
    posterior = rg.infer(model, scheduler=scheduler)
    found = posterior.information_about(x[0, 0])
    assert found[x].shape == (2, 3)
    far = enumerated(model, "x[0, 0]", "x[1, 2]")
    torch.testing.assert_close(found[x][1, 2], far, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        posterior.mutual_information(x[0, 0], "x[1, 2]"), far, rtol=1e-4, atol=1e-6
    )


def test_recognised_chains_and_structures():
    chain = routes.chain(routes.fixed(64))
    wanted = enumerated(chain.factor_graph(), "site[0]", "site[2]")
    for model, pair in ((chain, (0, 2)), (chain.factor_graph(), ("site[0]", "site[2]"))):
        torch.testing.assert_close(rg.infer(model).mutual_information(*pair), wanted)


def test_rows_of_evidence_equal_single_rows():
    rows = torch.tensor([[-1, 2], [0, -1], [1, 1], [-1, -1]])
    batch = rg.infer(graph(), evidence={"a": rows[:, 0], "d": rows[:, 1]})
    about, pair = batch.information_about("a"), batch.mutual_information("a", "c")
    for at, (a, d) in enumerate(rows.tolist()):
        seen = {name: state for name, state in (("a", a), ("d", d)) if state >= 0}
        single = rg.infer(graph(), evidence=seen)
        torch.testing.assert_close(pair[at], single.mutual_information("a", "c"))
        for name in "bcd":
            torch.testing.assert_close(about[name][at], single.information_about("a")[name])
    assert (about["a"][1:3] == 0).all()  # observed
    with pytest.raises(rg.errors.ModelError, match="one item"):
        about.ranked()


def test_conditional_on_evidence():
    """Given b the others of the loop still tell about each other; given both, nothing is left."""
    model = graph()
    given = rg.infer(model, evidence={"b": 0})
    torch.testing.assert_close(
        given.mutual_information("a", "c"),
        enumerated(model.with_factors(rg.Factor((rg.Variable("b", 3),), rg.Table(
            torch.tensor([0.0, -math.inf, -math.inf], dtype=torch.float64)
        ))), "a", "c"),
    )  # fmt: skip
    assert rg.infer(model, evidence={"a": 0, "b": 0}).mutual_information("a", "c") == 0


@pytest.mark.filterwarnings("ignore:No configuration")
def test_impossible_items_have_zeros_and_no_nan():
    posterior = rg.infer(graph(), evidence={"a": torch.tensor([1, 0]), "b": torch.tensor([2, -1])})
    found = posterior.mutual_information("b", "c")
    assert found[0] == 0
    assert found[1] > 0


def test_gradients_with_hard_zeros():
    table = routes.fixed(2, 3)
    hard = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -math.inf]], dtype=torch.float64)
    x, y = rg.Variable("x", 2), rg.Variable("y", 3)

    def information(table):
        model = rg.FactorGraph([rg.Factor((x, y), rg.Table(table + hard))])
        return rg.infer(model).mutual_information(x, y)

    assert torch.autograd.gradcheck(information, (table.requires_grad_(),))


def test_messages_give_numbers_that_are_not_negative():
    model = routes.grid(routes.fixed(64))
    found = rg.infer(model, scheduler=rg.Loopy()).information_about("x[0, 0]")
    assert (found["x"] >= 0).all()
    assert found["x"].argmax() == 0
    posterior = rg.infer(model, scheduler=rg.Loopy())
    assert not posterior.status_of("mutual_information").exact


def test_an_estimate_that_keeps_all_states_is_exact():
    model = routes.tree(routes.fixed(64))
    every = rg.Randomized.default(keep=3)
    found = rg.infer(model, estimator=every).mutual_information("x[0]", "x[2]")
    torch.testing.assert_close(found, rg.infer(model).mutual_information("x[0]", "x[2]"))
    with pytest.raises(rg.errors.UnsupportedError, match="mutual_information"):
        rg.infer(model, estimator=every).information_about("x[0]")


def test_mistakes_are_named():
    posterior = rg.infer(graph())
    for ask in (
        lambda: posterior.mutual_information("a", "a"),
        lambda: posterior.mutual_information("a", "nobody"),
        lambda: posterior.information_about("nobody"),
        lambda: rg.infer(routes.tree(routes.fixed(64))).information_about("x"),
    ):
        with pytest.raises(rg.errors.ModelError):
            ask()
