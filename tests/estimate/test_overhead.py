"""What an estimate costs beside its own arithmetic: calls, and work that replicates share."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Bilinear, Randomized
from rdpgraph.extend import Support
from rdpgraph.randomized import Mixture, Proposal, Threshold, TopSystematic, TopTail
from tests.calls import calls_of
from tests.estimate.models import draw, seeded


@pytest.mark.parametrize("potential", ["table", "embeddings"])
def test_an_estimate_of_a_chain_writes_no_graph_and_takes_few_calls(potential):
    embeddings = draw(50, 3)
    transition = draw(50, 50) if potential == "table" else Bilinear(embeddings, embeddings)
    chain = rg.Chain(draw(6, 50, seed=1), transition)
    estimator = Randomized.default(keep=5)
    files = calls_of(lambda: rg.infer(chain, estimator=estimator, generator=seeded()).log_partition)
    assert "model/graph.py" not in files
    assert sum(files.values()) - files["torch"] < 650


@pytest.mark.parametrize("selection", [TopSystematic(2, 3), Threshold(5), TopTail(2, 3)], ids=repr)
def test_replicates_are_single_choices_by_one_stream_of_numbers(selection):
    log_q = 3 * draw(4, 3, 20)
    log_q[0, 0, 5:] = -math.inf
    log_q[1] = torch.linspace(0, 3, 20)  # smooth: in the order of the states
    log_q[2, 0, 1:] -= 3000.0  # far below: relative to its own largest
    together = selection.select_each(log_q, 6, seeded(1))
    generator = seeded(1)
    for states, log_weights in zip(together.states, together.log_weights, strict=True):
        alone = selection.select(log_q, generator)
        assert torch.equal(states, alone.states)
        assert torch.equal(log_weights, alone.log_weights)


class Twice(Threshold):
    """Keeps every state twice, with half of its weight."""

    def choose(self, log_q, uniforms):
        once = super().choose(log_q, uniforms)
        halved = Support(once.states, once.log_weights - math.log(2))
        return Support.joined([halved, halved])


def test_a_choice_of_a_subclass_is_made_for_every_replicate():
    log_q = draw(3, 9)
    support = Twice(4).select_each(log_q, 2, seeded())
    assert support.states.shape == (2, 3, 8)
    assert torch.equal(support.states[..., :4], support.states[..., 4:])


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("kind", ["table", "steps", "embeddings"])
def test_the_factors_around_the_steps_of_a_chain_are_those_of_its_graph(kind, batch):
    embeddings = draw(8, 2)
    transition = {
        "table": draw(8, 8),
        "steps": draw(*batch, 4, 8, 8),
        "embeddings": Bilinear(embeddings, embeddings),
    }[kind]
    chain = rg.Chain(draw(*batch, 5, 8), transition)
    (of_graph,) = (
        rg.extend.Sites(chain.unary, restrict=chain.restrict, graph=chain.factor_graph, generator=g)
        for g in [seeded(3)]
    )
    of_chain = rg.extend.Sites(
        chain.unary, restrict=chain.restrict, links=chain.sites().links, generator=seeded(3)
    )
    assert torch.allclose(of_chain.mean_values(7), of_graph.mean_values(7))
    norms = of_chain.norms(), of_graph.norms()
    assert (norms[0] is None) == (kind != "embeddings")
    assert norms[0] is norms[1] is None or torch.allclose(*norms)


class Scored(Proposal):
    """Scores that are given."""

    def __init__(self, scores):
        self.scores = scores

    def log_scores(self, sites):
        return self.scores


@pytest.mark.parametrize("reach", [1.0, 50.0, 3000.0])
def test_mixtures_of_scores_of_any_range(reach):
    """The log of a weighted sum of probabilities, also of those that underflow."""
    parts = [reach * draw(3, 9).float(), reach * draw(3, 9, seed=1).float()]
    parts[0][0, 2] = parts[1][0, 2] = -math.inf
    parts[0][1] = -math.inf
    found = Mixture(tuple(map(Scored, parts)), (1.0, 3.0)).log_scores(None)
    logs = [
        torch.where(part.isneginf(), -math.inf, part.double().log_softmax(-1)) for part in parts
    ]
    expected = torch.logaddexp(logs[0] + math.log(0.25), logs[1] + math.log(0.75))
    # Scores of thousands of nats have three digits behind the point in float32.
    assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-5 + 1e-6 * reach)


@pytest.mark.parametrize("rows", [[4], [1, 1, 5], list(range(6))])
@pytest.mark.parametrize("columns", [[2, 0], list(range(7)), list(range(6, -1, -1))])
def test_rows_and_columns_of_a_table_and_their_gradient(rows, columns):
    values = draw(6, 7).requires_grad_()
    states = torch.tensor(rows), torch.tensor(columns)
    found = rg.Table(values).evaluate(states)
    expected = values[states[0].unsqueeze(1), states[1]]
    assert torch.equal(found, expected)
    weights = draw(*expected.shape, seed=1)
    slopes = [torch.autograd.grad((part * weights).sum(), values)[0] for part in (found, expected)]
    assert torch.allclose(*slopes)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_embeddings_that_are_not_finite_are_refused(wrong):
    values = draw(4, 3)
    values[2, 1] = wrong
    with pytest.raises(rg.errors.ModelError, match="finite embeddings"):
        Bilinear(values, draw(4, 3))
