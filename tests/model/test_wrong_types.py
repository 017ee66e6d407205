"""Arguments of the wrong kind, refused in one line by what they were given to."""

import math

import numpy as np
import pytest
import torch

import rdpgraph as rg

A, B = (rg.Variable(name, 2) for name in "ab")
LAMPS = rg.VariableArray("lamp", (3,), 2)
FLAT = rg.Table(torch.zeros(2))
GRAPH = rg.FactorGraph([rg.Factor((A, B), rg.Table(torch.zeros(2, 2)))])
CHAIN = rg.Chain(torch.zeros(3, 2), torch.zeros(2, 2))
STRUCTURES = (
    CHAIN,
    rg.SemiMarkov(torch.zeros(3, 2, 2), torch.zeros(2, 2)),
    rg.Hypertree(torch.zeros(3, 3, 2)),
    rg.ProjectiveDependencies(torch.zeros(3, 4)),
    rg.NonProjectiveDependencies(torch.zeros(3, 4)),
    rg.Derivations(torch.zeros(1), [0], [[-1]], nodes=1),
    rg.Alignment.pairwise(torch.zeros(2, 2), torch.zeros(()), torch.zeros(())),
)
PAIRS, GAPS = torch.zeros(3, 2), torch.zeros(3)
WRONG = {
    "factors of one": lambda: rg.FactorGraph(rg.Factor((A,), FLAT)),
    "no factors": lambda: rg.FactorGraph(None),
    "a variable by its name": lambda: rg.FactorGraph([], ["a"]),
    "one variable": lambda: rg.FactorGraph([], A),
    "a factor the other way round": lambda: rg.Factor(FLAT, (A,)),
    "a factor of None": lambda: rg.Factor(None, FLAT),
    "a block of None": lambda: rg.FactorBlock(None, FLAT),
    "a block of numbers": lambda: rg.FactorBlock((3,), FLAT),
    "states in no order": lambda: rg.Variable("x", {"u", "v"}),
    "a budget in words": lambda: rg.Auto(memory="1GB"),
    "no memory": lambda: rg.Auto(memory=-1),
    "no seconds": lambda: rg.Contraction(seconds=0),
    "seconds that are no number": lambda: rg.Contraction(seconds=math.nan),
    "clusters in words": lambda: rg.JoinGraph("1GB"),
    "a schedule in words": lambda: rg.Loopy(schedule="flooding"),
    "a class of schedules": lambda: rg.Loopy(schedule=rg.loopy.Flooding),
    "counting in words": lambda: rg.Loopy(counting="bethe"),
    "a gradient in words": lambda: rg.Loopy(gradient="implicit"),
    "damping in words": lambda: rg.Loopy(damping="half"),
    "half a sweep": lambda: rg.Loopy(sweeps=2.5),
    "seconds that are over": lambda: rg.Loopy(seconds=-1),
    "progress that is not called": lambda: rg.Loopy(progress=3),
    "a start of a graph": lambda: rg.Loopy(start=GRAPH),
    "a schedule of clusters in words": lambda: rg.JoinGraph(schedule="flooding"),
    "a search in words": lambda: rg.Search(seconds="1m"),
    "a proposal in words": lambda: rg.MiniBuckets(proposal="local"),
    "draws in parts": lambda: rg.MiniBuckets(draws=2.5),
    "one sweep": lambda: rg.Redrawn(rg.Randomized.default(keep=2), at=5),
    "sweeps in words": lambda: rg.Redrawn(rg.Randomized.default(keep=2), at=("five",)),
    "states drawn again of nothing": lambda: rg.Redrawn("randomized"),
    "a share in words": lambda: rg.Redrawn(rg.Randomized.default(keep=2), share="half"),
    "half a sweep of pruning": lambda: rg.RandomizedPruning(2.5),
    "pruning without end": lambda: rg.RandomizedPruning(2, seconds="1m"),
    "what is likely in words": lambda: rg.RandomizedPruning(2, likely=0.5),
    "what is selected in words": lambda: rg.RandomizedPruning(2, selected="all"),
    "features in words": lambda: rg.LowRankFactors("many"),
    "half a feature": lambda: rg.RandomFeatures(5, 2.5),
    "features from a seed": lambda: rg.RandomFeatures(5, 2, generator=4),
    "landmarks in parts": lambda: rg.randomized.Landmark(2.5),
    "no landmarks": lambda: rg.randomized.Global(0),
    "landmarks in words": lambda: rg.randomized.SoftmaxGlobal("many"),
    "a low-rank pilot's share in words": lambda: rg.randomized.LowRankPilot(share="most"),
    "a share of messages in words": lambda: rg.loopy.Residual("most"),
    "a share of questions in words": lambda: rg.pruning.Alternating("most"),
    "an order of one variable": lambda: (
        rg.infer(GRAPH, scheduler=rg.Loopy(schedule=rg.loopy.Sequential([0]))).log_partition
    ),
    "no slots, twice": lambda: rg.Sparse(torch.zeros(2, 0).long(), torch.zeros(2), ()),
    "half a true slot": lambda: rg.Cardinality(3, at_least=1.5),
    "a control variate for messages": lambda: rg.controlled(
        GRAPH, GRAPH, estimator=rg.Exact(), solve=rg.infer
    ),
    "a pilot on nothing": lambda: rg.randomized.Pilot(base=-1),
    "a pilot's share in words": lambda: rg.randomized.Pilot(share="most"),
    "a mixture of one": lambda: rg.randomized.Mixture(rg.randomized.Local(), 1.0),
    "a mixture of words": lambda: rg.randomized.Mixture(("local",), (1.0,)),
    "a defensive share in words": lambda: rg.Randomized(
        rg.randomized.Local(), rg.randomized.Top(2), defensive="none"
    ),
    "a support that is a state": lambda: GRAPH.restrict({A: 1}),
    "trees in words": lambda: rg.loopy.TreeReweighted("many"),
    "a counting number in words": lambda: rg.loopy.Fractional("one"),
    "iterations below none": lambda: rg.loopy.Implicit(iterations=-1),
    "confidence in words": lambda: rg.infer(GRAPH).bounds(confidence="high"),
    "a temperature in words": lambda: rg.infer(GRAPH).rsample(temperature="low"),
    "no temperature": lambda: STRUCTURES[1].rsample(1, temperature=None),
    "states in floats": lambda: GRAPH.score_states(torch.zeros(2)),
    "states of some": lambda: GRAPH.score_states(torch.zeros(1, dtype=torch.long)),
    "states that are not there": lambda: GRAPH.score_states([0, 5]),
    "many states that are not there": lambda: GRAPH.score_states(torch.full((5000, 2), 2)),
    "one site": lambda: rg.infer(CHAIN).joint(1),
    "kept states in floats": lambda: CHAIN.restrict(torch.zeros(3, 1), torch.zeros(3, 1)),
    "half a node": lambda: rg.Derivations(torch.zeros(1), [0], [[-1]], nodes=1.5),
    "gaps that do not fit": lambda: rg.Alignment.pairwise(PAIRS, GAPS, GAPS),
    "words that do not fit": lambda: rg.Bitext.words(PAIRS, GAPS[:2], GAPS[:2]),
    "a transition as a table": lambda: rg.LowRankHMM(GAPS, torch.zeros(3, 3), PAIRS),
    "a grammar in words": lambda: rg.Hypertree.parses('1.0 S -> "a"', [["a"]]),
    "tags in parts": lambda: rg.nn.CRF(2.5),
    "constraints as a tensor": lambda: rg.nn.CRF(2, constraints=torch.ones(2, 2)),
    "a file of a structure": lambda: rg.write(CHAIN, "chain.uai"),
    "a file the other way round": lambda: rg.write("graph.uai", GRAPH),
    "no graph": lambda: rg.to_networkx(None),
    "no networkx graph": lambda: rg.from_networkx(None),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_of_the_wrong_kind_is_refused(what):
    with pytest.raises(rg.errors.RdpgraphError) as refused:
        WRONG[what]()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: type(structure).__name__)
def test_counts_of_structures_are_whole_numbers(structure):
    for count in (-1, 2.5, True, "2", None):
        with pytest.raises(rg.errors.ModelError, match="whole"):
            structure.sample(count)
        with pytest.raises(rg.errors.ModelError, match="whole"):
            structure.k_best(count)
    if structure is not CHAIN:  # the types of what it calls are checked in tests
        with pytest.raises(rg.errors.ModelError, match=r"torch\.Generator"):
            structure.sample(1, 0)
    two = np.int64(2)
    torch.testing.assert_close(structure.k_best(two).scores, structure.k_best(2).scores)
    assert structure.log_prob(structure.sample(two)).shape == (2,)


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: type(structure).__name__)
def test_more_draws_than_fit_are_refused_before_they_are_made(structure):
    for ask in (structure.k_best, structure.sample, rg.infer(structure).sample):
        with pytest.raises(rg.errors.BudgetError, match="1,000,000,000,000"):
            ask(10**12)
    with pytest.raises(rg.errors.BudgetError, match="1,000,000,000,000 draws"):
        structure.rsample(10**12, temperature=1.0)
    with pytest.raises(rg.errors.BudgetError, match="1,000,000,000,000 draws"):
        rg.infer(GRAPH).sample(10**12)


def test_counts_of_posteriors_may_be_numpys():
    for model in (GRAPH, CHAIN):
        posterior = rg.infer(model)
        states = posterior.sample(np.int64(2))
        assert len(states[A] if model is GRAPH else states) == 2


def test_views_in_reverse_are_refused_by_name():
    with pytest.raises(IndexError, match="VariableArray 'lamp'"):
        LAMPS[::-1]
    assert [variable.name for variable in LAMPS[[2, 0]]] == ["lamp[2]", "lamp[0]"]


def test_state_names_of_numpy_become_strings():
    names = rg.Variable("x", np.array(["u", "v"])).states
    assert [type(name) for name in names] == [str, str]


def test_gaps_may_be_numbers_and_lists():
    match = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    given = rg.Alignment.pairwise(match.tolist(), -1.0, np.full(3, -2.0))
    same = rg.Alignment.pairwise(match, torch.tensor(-1.0), torch.full((3,), -2.0))
    torch.testing.assert_close(given.log_partition(), same.log_partition())


def test_labels_and_lengths_may_be_lists():
    frames = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    given = rg.Alignment.ctc(frames, [[1, 2], [2, 2]], [4, 3], [2, 1])
    same = rg.Alignment.ctc(frames, *map(torch.tensor, ([[1, 2], [2, 2]], [4, 3], [2, 1])))
    torch.testing.assert_close(given.log_partition(), same.log_partition())
