"""Models of pgmpy and pyAgrum as ours and back: the same answers as theirs."""

import math

import pytest
import torch

import rdpgraph as rg

pytestmark = pytest.mark.long  # pgmpy takes seconds to import


def network():
    rain = rg.Variable("rain", ("no", "yes"))
    lawn, wet = rg.Variable("lawn", 2), rg.Variable("wet", ("dry", "damp", "wet"))
    return rg.FactorGraph.bayesian_network(
        [
            (wet, (lawn, rain), torch.tensor([[[8, 1, 1], [1, 2, 1.0]], [[0, 3, 1], [0, 0, 1]]])
             / torch.tensor([[[10], [4.0]], [[4], [1]]])),
            (rain, (), [0.8, 0.2]),
            (lawn, (rain,), [[0.6, 0.4], [0.99, 0.01]]),
        ]
    )  # fmt: skip


def markov():
    """Two factors over one pair in both orders, a constant, a variable without a factor."""
    x, y, z, free = (
        rg.Variable(name, size) for name, size in zip("xyzf", (2, 3, 2, 2), strict=True)
    )
    source = torch.Generator().manual_seed(0)
    scopes = [(x, y), (y, x), (z, y, x), ()]
    factors = [
        rg.Factor(scope, rg.Table(torch.randn([v.size for v in scope], generator=source).double()))
        for scope in scopes
    ]
    return rg.FactorGraph(factors, variables=[x, y, z, free])


MODELS = {"network": network, "markov": markov}
PEERS = {"pgmpy": (rg.to_pgmpy, rg.from_pgmpy), "pyagrum": (rg.to_pyagrum, rg.from_pyagrum)}


def same(one, other):
    names = {variable.name for variable in one.variables}
    assert names == {variable.name for variable in other.variables}
    left, right = rg.infer(one), rg.infer(other)
    torch.testing.assert_close(left.log_partition.double(), right.log_partition.double())
    for name in names:
        torch.testing.assert_close(left.marginal(name).double(), right.marginal(name).double())


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("model", MODELS)
def test_there_and_back(peer, model):
    pytest.importorskip(peer)
    there, back = PEERS[peer]
    graph = MODELS[model]()
    again = back(there(graph))
    same(graph, again)
    same(graph, back(there(again)))


@pytest.mark.parametrize("peer", PEERS)
def test_a_constant_stays_where_no_factor_has_a_variable(peer):
    pytest.importorskip(peer)
    there, back = PEERS[peer]
    two = rg.Factor((), rg.Table(torch.tensor(2.0, dtype=torch.float64)))
    graph = rg.FactorGraph([two], variables=[rg.Variable("x", 3)])
    log_z = rg.infer(back(there(graph))).log_partition
    assert float(log_z) == pytest.approx(2.0 + math.log(3))
    with pytest.raises(rg.errors.UnsupportedError, match="no place"):
        there(rg.FactorGraph([two]))


@pytest.mark.parametrize("power", [-400.0, 400.0])
def test_products_out_of_range_are_refused(power):
    pytest.importorskip("pyagrum")
    x = rg.Variable("x", 2)
    table = rg.Table(torch.tensor([power, 0.0], dtype=torch.float64))
    with pytest.raises(rg.errors.UnsupportedError, match="out of range"):
        rg.to_pyagrum(rg.FactorGraph([rg.Factor(x, table), rg.Factor(x, table)]))


def test_pgmpy_has_the_same_marginals_and_states():
    pytest.importorskip("pgmpy")
    from pgmpy.inference import VariableElimination

    graph = network()
    model = rg.to_pgmpy(graph)
    assert model.check_model()
    asked = VariableElimination(model).query(["rain"], evidence={"wet": "damp"})
    expected = rg.infer(graph.condition({"wet": "damp"})).marginal("rain")
    torch.testing.assert_close(torch.as_tensor(asked.values), expected.double())
    assert rg.from_pgmpy(model)["wet"].states == ("dry", "damp", "wet")
    assert rg.to_pgmpy(markov()).check_model()


def test_a_factor_graph_of_pgmpy():
    pytest.importorskip("pgmpy")
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.models import FactorGraph

    phi = DiscreteFactor(["a", "b"], [2, 3], range(6))
    theirs = FactorGraph()
    theirs.add_nodes_from(["a", "b"])
    theirs.add_factors(phi)
    theirs.add_nodes_from([phi])
    theirs.add_edges_from([("a", phi), ("b", phi)])
    graph = rg.from_pgmpy(theirs)
    torch.testing.assert_close(rg.infer(graph).log_partition.exp(), torch.tensor(15.0).double())


def test_pyagrum_has_the_same_marginals_and_states():
    gum = pytest.importorskip("pyagrum")
    graph = network()
    engine = gum.LazyPropagation(rg.to_pyagrum(graph))
    engine.setEvidence({"wet": "damp"})
    asked = torch.from_numpy(engine.posterior("rain").toarray())
    expected = rg.infer(graph.condition({"wet": "damp"})).marginal("rain")
    torch.testing.assert_close(asked, expected.double())
    theirs = gum.fastBN("a{x|y}->b[3]<-c[4]->a")
    ours = rg.infer(rg.from_pyagrum(theirs))
    engine = gum.LazyPropagation(theirs)
    for name in "abc":
        asked = torch.from_numpy(engine.posterior(name).toarray())
        torch.testing.assert_close(asked, ours.marginal(name))


def test_a_network_without_all_tables_is_refused_in_a_line():
    pytest.importorskip("pgmpy")
    from pgmpy.models import DiscreteBayesianNetwork

    with pytest.raises(rg.errors.ModelError, match="'a' needs a table"):
        rg.from_pgmpy(DiscreteBayesianNetwork([("a", "b")]))


@pytest.mark.parametrize("peer", PEERS)
def test_other_objects_are_refused_in_a_line(peer):
    there, back = PEERS[peer]
    for ask in (there, back):
        with pytest.raises(rg.errors.ModelError) as caught:
            ask(3)
        assert "\n" not in str(caught.value)


def test_an_hmm_of_pomegranate_is_a_chain_of_its_arrays():
    pytest.importorskip("pomegranate")
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import DenseHMM

    emissions = [Categorical([[0.5, 0.3, 0.2]]), Categorical([[0.1, 0.1, 0.8]])]
    rows = [[0.8, 0.1], [0.3, 0.6]]
    theirs = DenseHMM(emissions, edges=rows, starts=[0.6, 0.4], ends=[0.1, 0.1])
    symbols = torch.tensor([[0, 2, 2, 1], [1, 1, 0, 2]])
    seen = [each.log_probability(symbols.reshape(-1, 1)) for each in theirs.distributions]
    unary = torch.stack(seen, -1).reshape(2, 4, 2)
    chain = rg.Chain.crf(unary, theirs.edges, start=theirs.starts, end=theirs.ends)
    expected = theirs.log_probability(symbols.unsqueeze(-1))
    torch.testing.assert_close(chain.log_partition(), expected)
