"""Mutual information by enumeration, on every route."""

import contextlib
import itertools
import math

import pytest
import torch

import rdpgraph as rg
from tests import routes


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


ESTIMATES = ["randomized graph", "randomized ring", "randomized loopy", "loopy, redrawn",
             "randomized recognised chain", "low-rank graph", "random features"]  # fmt: skip


@pytest.mark.parametrize("route", ESTIMATES)
def test_estimates_have_the_information_of_their_own_joints(route):
    posterior = routes.posterior(route, routes.weights().detach())
    one, *others = [posterior.graph.domain.variable(number).name for number in range(3)]
    found = posterior.information_about(one)
    flat = torch.cat([part.reshape(*posterior.batch_shape, -1) for part in found.values()], -1)
    for number, other in enumerate(others, 1):
        pair = posterior.mutual_information(one, other)
        torch.testing.assert_close(flat[..., number], pair, rtol=1e-4, atol=1e-6)
        with contextlib.suppress(rg.errors.UnsupportedError):  # messages have those of factors
            joint = posterior.joint([one, other])
            apart = joint.sum(-1, keepdim=True) * joint.sum(-2, keepdim=True)
            wanted = torch.special.xlogy(joint, joint / apart.clamp(min=1e-300)).sum((-1, -2))
            close = "loopy" in route  # at a tolerance of messages, which differ given a state
            torch.testing.assert_close(
                pair, wanted, rtol=0.2 if close else 1e-7, atol=1e-3 if close else 1e-10
            )
    exact = route == "low-rank graph"
    assert posterior.status_of("information_about").exact == exact
    if exact:
        model = posterior.graph
        torch.testing.assert_close(flat[1], enumerated(model, one, others[0]))


@pytest.mark.parametrize("scheduler", [rg.Auto(), rg.Loopy()])
def test_an_estimate_that_keeps_all_states_is_exact(scheduler):
    model = routes.tree(routes.fixed(64))
    every = rg.Randomized.default(keep=3)
    posterior = rg.infer(model, scheduler=scheduler, estimator=every)
    wanted = enumerated(model, "x[1]", "x[2]")  # which no factor holds together
    about = posterior.information_about("x[1]")["x"]
    torch.testing.assert_close(about[2], wanted, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(posterior.mutual_information("x[1]", "x[2]"), about[2])


def small(route):
    """A structure whose configurations are few."""
    if route == "hypertree":
        return rg.Hypertree(routes.fixed(2, 2, 2), rg.trees.DenseRules(routes.fixed(2, 2, 2)))
    if route == "matching":
        return rg.Matching(routes.fixed(2, 3))
    return routes.declared(route, routes.weights().detach())


STRUCTURES = ["chain", "chain of low rank", "matching", "semi-Markov", "hypertree", "projective",
              "non-projective"]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("route", STRUCTURES)
def test_structures_by_enumeration(route):
    structure = small(route)
    posterior, model = rg.infer(structure), structure.factor_graph()
    (sites,) = model.variables
    first, *rest = itertools.product(*map(range, sites.shape))
    found = posterior.information_about(first)
    assert found.shape == sites.shape
    for site in rest[:3]:
        wanted = enumerated(model, sites[first].name, sites[site].name)
        torch.testing.assert_close(found[site], wanted)
        torch.testing.assert_close(posterior.mutual_information(first, site), wanted)
    assert posterior.status_of("mutual_information").exact
    chances = posterior.joint([first])
    torch.testing.assert_close(found[first], -torch.special.xlogy(chances, chances).sum())


@pytest.mark.parametrize("route", ["chain", "hypertree", "semi-Markov"])
def test_structures_by_estimates_have_that_of_their_joints(route):
    posterior = rg.infer(small(route), generator=routes.seeded(7), **routes.piloted())
    (sites,) = posterior.structure.factor_graph().variables
    first, *rest = itertools.product(*map(range, sites.shape))
    found = posterior.information_about(first)
    for site in rest[:2]:
        joint = posterior.joint([first, site])
        apart = joint.sum(-1, keepdim=True) * joint.sum(-2, keepdim=True)
        wanted = torch.special.xlogy(joint, joint / apart.clamp(min=1e-300)).sum()
        torch.testing.assert_close(found[site], wanted)
        torch.testing.assert_close(posterior.mutual_information(first, site), wanted)
    exact = posterior.status_of("marginals").exact
    assert posterior.status_of("information_about").exact == exact


def test_a_structure_without_a_factor_graph_by_enumeration():
    """Cells of an alignment, which may be in no state, by the scores of all configurations."""
    structure = rg.Alignment(routes.fixed(2, 2, 3))
    every = torch.tensor(list(itertools.product(range(-1, 3), repeat=4))).reshape(-1, 2, 2)
    chances = structure.score(every).softmax(0)
    posterior = rg.infer(structure)
    found = posterior.information_about((0, 1))
    for site in ((0, 0), (1, 0), (1, 1)):
        joint = torch.zeros(16, dtype=torch.float64)
        pairs = 4 * every[:, 0, 1] + every[:, *site] + 5
        joint = joint.index_add(0, pairs, chances).reshape(4, 4)
        apart = joint.sum(0, keepdim=True) * joint.sum(1, keepdim=True)
        wanted = torch.special.xlogy(joint, joint / apart.clamp(min=1e-300)).sum()
        assert (wanted > 1e-3) == (site != (0, 0))  # where every path begins
        torch.testing.assert_close(found[site], wanted)
        torch.testing.assert_close(posterior.mutual_information((0, 1), site), wanted)
    assert posterior.status_of("information_about").exact
    with pytest.raises(rg.errors.ModelError, match="twice"):
        posterior.mutual_information((0, 1), (0, 1))


@pytest.mark.filterwarnings("ignore:No configuration")
def test_gradients_and_batches_of_a_structure_without_a_factor_graph():
    scores = routes.fixed(3, 2, 2, 3)
    scores[1, 0, 1, 0] = -math.inf
    scores[2] = -math.inf  # nothing is possible
    found = rg.infer(rg.Alignment(scores)).information_about((0, 1))
    assert found.shape == (3, 2, 2)
    assert (found[2] == 0).all()
    alone = rg.infer(rg.Alignment(scores[1])).information_about((0, 1))
    torch.testing.assert_close(found[1], alone)

    def information(unary):
        return rg.infer(rg.Alignment(unary)).mutual_information((0, 0), (1, 1))

    assert torch.autograd.gradcheck(information, (routes.fixed(2, 2, 3).requires_grad_(),))


def test_sites_that_are_used_several_times_have_none():
    with pytest.raises(rg.errors.UnsupportedError, match="several times"):
        rg.infer(routes.derivations(routes.fixed(8))).information_about(0)


def test_random_features_of_a_structure_go_by_its_factor_graph():
    """The advice of the error works."""
    structure = routes.declared("random features of a chain", routes.weights().detach())
    with pytest.raises(rg.errors.UnsupportedError, match="factor_graph"):
        rg.infer(structure, **routes.by_features()).mutual_information(0, 1)
    model = structure.factor_graph()
    posterior = rg.infer(model, **routes.by_features(), generator=routes.seeded())
    assert posterior.mutual_information("site[0]", "site[1]") >= 0
    assert not posterior.status_of("mutual_information").exact


def test_what_is_approximate_given_a_state_is_said_to_be():
    class UntilObserved(rg.Auto):
        """Exact for the model as declared, by messages once a variable is observed."""

        def plan(self, graph):
            return (rg.Contraction() if graph.observed is None else rg.Loopy()).plan(graph)

    posterior = rg.infer(routes.grid(routes.fixed(64)), scheduler=UntilObserved())
    assert posterior.status.exact
    with pytest.warns(UserWarning, match="given a state"):
        posterior.mutual_information("x[0, 0]", "x[3, 3]")
    for answer in ("mutual_information", "information_about"):
        assert not posterior.status_of(answer).exact
    assert posterior.status_of("marginals").exact


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
