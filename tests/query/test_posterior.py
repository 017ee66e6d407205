"""Questions to a posterior beyond what enumeration on random graphs covers."""

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force


def grid():
    generator = torch.Generator().manual_seed(0)
    pixels = rg.VariableArray("p", (3, 4), 2)
    tables = torch.randn(3, 3, 2, 2, generator=generator, dtype=torch.float64)
    across = rg.FactorBlock((pixels[:, :-1], pixels[:, 1:]), rg.Table(tables))
    down = rg.FactorBlock((pixels[:-1], pixels[1:]), rg.Table(tables[0, 0]))
    return pixels, across, down, rg.FactorGraph([across, down])


def test_a_block_s_joint_marginals_come_at_once():
    pixels, across, down, graph = grid()
    posterior, truth = rg.infer(graph), brute_force(graph)
    found = posterior.factor_marginal(across)
    assert found.shape == (3, 3, 2, 2)
    for row in range(3):
        for column in range(3):
            pair = (pixels[row, column], pixels[row, column + 1])
            assert torch.allclose(found[row, column], truth.joint(pair))
    assert torch.allclose(
        posterior.factor_marginal(down)[1, 2], truth.joint((pixels[1, 2], pixels[2, 2]))
    )
    with pytest.raises(rg.errors.ModelError, match="No factor has all of"):
        posterior.factor_marginal((pixels[0, 0], pixels[2, 2]))
    with pytest.raises(rg.errors.ModelError, match="named twice"):
        posterior.factor_marginal((pixels[0, 0], pixels[0, 0]))


def test_array_answers_have_the_array_s_shape():
    pixels, _, _, graph = grid()
    rows = graph.condition({pixels[0, 0]: torch.tensor([0, 1, -1])})
    posterior = rg.infer(rows)
    assert posterior.marginal(pixels).shape == (3, 3, 4, 2)
    assert posterior.marginal(pixels[1:, ::2]).shape == (3, 2, 2, 2)
    assert posterior.mode()[pixels].shape == (3, 3, 4)
    assert posterior.mode()[pixels][:2, 0, 0].tolist() == [0, 1]
    assert posterior.sample(5)[pixels].shape == (5, 3, 3, 4)
    assert posterior.max_marginals()[pixels].shape == (3, 3, 4, 2)
    best = posterior.marginal_mode([pixels[0], "p[2, 3]"])
    assert best[pixels[0]].shape == (3, 4)
    assert best[pixels[2, 3]].shape == (3,)


def test_the_same_generator_gives_the_same_draws():
    pixels, _, _, graph = grid()
    posterior = rg.infer(graph)
    first, second = (
        posterior.sample(50, generator=torch.Generator().manual_seed(7))[pixels] for _ in range(2)
    )
    assert torch.equal(first, second)


def test_second_answers_do_not_run_again():
    _, _, _, graph = grid()
    posterior = rg.infer(graph)
    assert posterior.log_partition.data_ptr() == posterior.log_partition.data_ptr()
    assert posterior.status == rg.Status(exact=True)


def test_arguments_are_checked():
    with pytest.raises(rg.errors.ModelError, match=r"FactorGraph or a Structure.*rg\.read"):
        rg.infer("model.uai")
    with pytest.raises(rg.errors.ModelError, match="memory as a number above 0"):
        rg.infer(grid()[3], scheduler=rg.Contraction(memory=-1))
    with pytest.raises(rg.errors.EvidenceError, match="count of draws"):
        rg.infer(grid()[3]).sample(-1)


@pytest.mark.parametrize("ask", [rg.infer, rg.explain])
@pytest.mark.parametrize("name", ["scheduler", "estimator", "generator"])
def test_choices_that_are_none_are_refused_by_name(ask, name):
    graph = rg.FactorGraph([rg.Factor((rg.Variable("x", 2),), rg.Table([0.0, 0.0]))])
    with pytest.raises(rg.errors.ModelError, match=f"{ask.__name__} needs an? {name} as.*'fast'"):
        ask(graph, **{name: "fast"})


def test_evidence_of_infer_is_that_of_condition():
    rain, wet = rg.Variable("rain", ("no", "yes")), rg.Variable("wet", ("no", "yes"))
    graph = rg.FactorGraph.bayesian_network(
        [(rain, (), [0.8, 0.2]), (wet, (rain,), [[0.9, 0.1], [0.2, 0.8]])]
    )
    for seen in ({"wet": "yes"}, {wet: ["yes", None]}, [{"rain": "no"}, {}], {}):
        given = graph.condition(seen)
        for options in ({}, {"scheduler": rg.Loopy()}, {"estimator": rg.Exact()}):
            posterior, expected = (
                rg.infer(graph, evidence=seen, **options),
                rg.infer(given, **options),
            )
            assert torch.equal(posterior.log_partition, expected.log_partition)
            assert torch.equal(posterior.marginal(rain), expected.marginal(rain))
            assert rg.explain(graph, evidence=seen, **options) == rg.explain(given, **options)
    # Evidence on a graph that has some is added to it.
    both = rg.infer(graph.condition({"wet": "yes"}), evidence={"rain": "no"})
    assert float(both.log_partition.exp()) == pytest.approx(0.8 * 0.1)
    with pytest.raises(rg.errors.EvidenceError, match="no state 'snow'"):
        rg.infer(graph, evidence={"rain": "snow"})
    for ask in (rg.infer, rg.explain):
        with pytest.raises(rg.errors.ModelError, match="evidence is given as evidence="):
            ask(graph, {"wet": "yes"})


@pytest.mark.parametrize("ask", [rg.infer, rg.explain])
def test_evidence_on_a_structure_is_refused_and_its_graph_takes_it(ask):
    chain = rg.Chain(torch.zeros(3, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    with pytest.raises(rg.errors.ModelError, match=r"factor_graph\(\), evidence="):
        ask(chain, evidence={"site[0]": 1})
    ask(chain.factor_graph(), evidence={"site[0]": 1})
