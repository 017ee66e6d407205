"""Estimates of a graph that is recognised as a structure are those of the structure."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import UnsupportedError
from rdpgraph.pruning import sweeps_of
from rdpgraph.randomized import (
    Landmark,
    Local,
    LocalGlobal,
    Mixture,
    Pilot,
    Threshold,
    Top,
    TopSystematic,
    TopTail,
    Uniform,
)
from rdpgraph.testing import check_estimator

SEED = 3


def made(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def holed(values: torch.Tensor) -> torch.Tensor:
    return values.masked_fill(values > 1.5, -math.inf)


STRUCTURES = {
    "spans": lambda: rg.Hypertree(made(3, 3, 4), rg.trees.DenseRules(made(4, 4, 4))),
    "spans, zeros": lambda: rg.Hypertree(holed(made(3, 3, 4)), rg.trees.DenseRules(made(4, 4, 4))),
    "spans, batch": lambda: rg.Hypertree(made(2, 3, 3, 4), rg.trees.DenseRules(made(4, 4, 4))),
    "heads": lambda: rg.ProjectiveDependencies.from_arcs(made(4, 4)),
    "heads that cross": lambda: rg.NonProjectiveDependencies.from_arcs(made(2, 4, 4)),
}
SELECTION = TopSystematic(1, 2)
ESTIMATORS = {
    "default": rg.Randomized.default(keep=3, replicates=8),
    "piloted": rg.Randomized.piloted(keep=3, replicates=8),
    "uniform": rg.Randomized(Uniform(), SELECTION, replicates=4),
    "local": rg.Randomized(Local(), TopTail(1, 2)),
    "local and global": rg.Randomized(LocalGlobal(), Threshold(3), replicates=4),
    "landmark": rg.Randomized(Landmark(2), SELECTION),
    "pilot": rg.Randomized(Pilot(selection=TopTail(1, 1)), SELECTION),
    "mixture": rg.Randomized(Mixture((Local(), Uniform()), (2.0, 1.0)), SELECTION),
    "top": rg.Randomized(Local(), Top(3)),
    "pruning": rg.RandomizedPruning(10, chains=2),
}


def asked(model, estimator):
    return rg.infer(model, estimator=estimator, generator=torch.Generator().manual_seed(SEED))


@pytest.mark.parametrize("kind", STRUCTURES)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_graph_is_estimated_as_the_structure_that_it_is(kind, name):
    structure, estimator = STRUCTURES[kind](), ESTIMATORS[name]
    graph = structure.factor_graph()
    try:
        theirs = asked(structure, estimator)
    except UnsupportedError:  # trees of heads have no masks, and their graphs have
        if not graph.batch_shape:
            assert bool(asked(graph, estimator).marginal("site").isfinite().all())
        return
    ours = asked(graph, estimator)
    marginals = structure.variable_values(theirs.marginals(), best=False)
    assert ours.plan.why == theirs.plan.why
    torch.testing.assert_close(
        ours.marginal("site"), marginals.reshape(ours.marginal("site").shape)
    )
    if name == "pruning":
        return
    torch.testing.assert_close(ours.log_partition, theirs.log_partition)
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.log_partitions, theirs.log_partitions)
    assert ours.status.exact == theirs.status.exact
    mode = structure.variable_states(theirs.mode())
    assert torch.equal(ours.mode()["site"], mode)
    drawn = ours.sample(20, generator=torch.Generator().manual_seed(SEED))
    score = graph.score({"site": drawn["site"]}) if isinstance(drawn, dict) else graph.score(drawn)
    assert bool((score > -math.inf).all())


def segments() -> rg.SemiMarkov:
    return rg.SemiMarkov(made(4, 2, 4), made(4, 4))


@pytest.mark.parametrize("name", ["default", "local", "uniform"])
def test_segments_in_a_graph_are_estimated_without_bias(name):
    """Their scores are known up to those that labels share with transitions, so draws differ."""
    check_estimator(ESTIMATORS[name], segments().factor_graph(), draws=20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_segments_are_recognised_where_their_scores_cancel(dtype):
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(5, 3, 8, generator=generator, dtype=dtype)
        transition = torch.randn(8, 8, generator=generator, dtype=dtype)
        graph = rg.SemiMarkov(scores, transition).factor_graph()
        assert "SemiMarkov" in rg.explain(graph).why


def test_the_top_labels_of_segments_have_a_configuration_in_the_graph():
    graph, exact = segments().factor_graph(), segments().log_partition()
    bound = asked(graph, ESTIMATORS["top"])
    assert bool(bound.log_partition.isfinite())
    assert bool(bound.log_partition <= exact)
    assert bound.status.bound == "lower"


def test_evidence_is_kept_by_the_estimate():
    structure = STRUCTURES["spans"]()
    graph = structure.factor_graph()
    seen = graph.condition({graph["site"][0, 1]: 2})
    exact, estimate = rg.infer(seen), asked(seen, rg.Randomized.default(keep=1.0))
    torch.testing.assert_close(estimate.log_partition, exact.log_partition)
    few = asked(seen, ESTIMATORS["default"])
    torch.testing.assert_close(few.marginal(graph["site"][0, 1])[2].item(), 1.0)


def test_marginals_of_factors_of_one_variable_are_those_of_the_variables():
    graph = STRUCTURES["spans"]().factor_graph()
    posterior = asked(graph, ESTIMATORS["default"])
    site = graph["site"]
    torch.testing.assert_close(
        posterior.factor_marginal([site[0, 1]]), posterior.marginal(site[0, 1])
    )


def test_pruning_of_a_graph_goes_on_and_shows_its_sweeps():
    graph = STRUCTURES["spans"]().factor_graph()
    first = asked(graph, rg.RandomizedPruning(10, chains=2))
    second = asked(graph, rg.RandomizedPruning(10, chains=2, resume=first))
    assert sweeps_of(second).status().iterations > sweeps_of(first).status().iterations


def test_a_scheduler_by_name_keeps_to_the_graph():
    graph = STRUCTURES["heads"]().factor_graph()
    posterior = rg.infer(
        graph, rg.Contraction(), estimator=rg.Randomized.default(keep=1.0)
    )  # of all states, by contraction
    assert posterior.plan.route != "structure"
    torch.testing.assert_close(posterior.log_partition, STRUCTURES["heads"]().log_partition())


def test_a_bitext_says_why_it_has_no_graph():
    bitext = rg.Bitext.words(made(2, 2), made(2), made(2), inverted=-1.0)
    with pytest.raises(UnsupportedError, match=r"spans of two sentences.*infer\(structure\)"):
        bitext.factor_graph()
    assert bool(rg.infer(bitext).log_partition.isfinite())
