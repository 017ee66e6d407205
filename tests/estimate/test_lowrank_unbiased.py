"""E[Z^] = Z with low-rank potentials, look-ahead and control variates, by enumeration of draws."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.extend import Support
from rdpgraph.randomized import Landmark, Local, Threshold, TopSystematic, TopTail
from tests.estimate.enumeration import Recorder, Script, expectation, outcomes

WIDE = torch.float64
STATES = 4
EDGES = {"chain": [(0, 1), (1, 2)], "star": [(0, 1), (0, 2)], "loop": [(0, 1), (1, 2), (2, 0)]}
SELECTIONS = [TopTail(1, 2), TopSystematic(1, 2), Threshold(2)]


def drawn(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=WIDE)


def low_rank():
    return rg.LowRank(drawn(STATES, 2, seed=1), drawn(STATES, 2, seed=2))


def bilinear():
    return rg.Bilinear(drawn(STATES, 2, seed=1, scale=0.6), drawn(STATES, 2, seed=2, scale=0.6))


def graph(kind, potential):
    sites = rg.VariableArray("x", (3,), STATES)
    ends = torch.tensor(EDGES[kind]).T
    pairs = rg.FactorBlock((sites[ends[0]], sites[ends[1]]), potential)
    return rg.FactorGraph([rg.FactorBlock((sites,), rg.Table(drawn(3, STATES))), pairs])


def model(kind, potential):
    if kind == "structure":
        return rg.Chain(drawn(3, STATES), potential)
    return graph(kind, potential)


def exact(made):
    return rg.infer(made).log_partition


@pytest.mark.cover(2)
@pytest.mark.parametrize("kind", [*EDGES, "structure"])
@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
@pytest.mark.parametrize("proposal", [Local(), Landmark(2), rg.randomized.LowRankPilot()], ids=repr)
def test_few_states_with_low_rank_potentials(kind, selection, proposal):
    made = model(kind, low_rank())
    estimate, number = expectation(made, proposal, selection)
    assert number >= 8
    assert abs(math.expm1(float(estimate - exact(made)))) < 1e-12


@pytest.mark.parametrize("kind", [*EDGES, "structure"])
@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
def test_a_poor_look_ahead_is_no_bias(kind, selection):
    """Two random features: far from the model, and still every state is weighted as it should."""
    made = model(kind, bilinear())
    estimate, _ = expectation(made, rg.randomized.LowRankPilot(2), selection)
    assert abs(math.expm1(float(estimate - exact(made)))) < 1e-12


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
@pytest.mark.parametrize("coefficient", [1.0, 20.0])
def test_a_surrogate_is_no_bias(selection, coefficient):
    """Any surrogate leaves the mean; taken too often, it leaves draws below zero."""
    chain = rg.Chain(drawn(3, STATES), bilinear())
    few = rg.LowRankFactors(2, shared=True)
    generator = torch.Generator().manual_seed(1)
    surrogate = few.prepare(chain, solve=rg.infer, generator=generator).model
    recorder = Recorder()
    rg.infer(chain, estimator=rg.Randomized(Local(), recorder))
    (log_q,) = recorder.seen
    rows = [outcomes(selection, row) for row in log_q.flatten(0, -2)]
    grid = torch.cartesian_prod(*(torch.arange(len(row)) for row in rows)).tolist()
    joint = [[row[n] for row, n in zip(rows, numbers, strict=True)] for numbers in grid]
    chances = [math.prod(chance for chance, _ in row) for row in joint]
    supports = [
        Support(
            torch.stack([kept.states for _, kept in row]).reshape(*log_q.shape[:-1], -1),
            torch.stack([kept.log_weights for _, kept in row]).reshape(*log_q.shape[:-1], -1),
        )
        for row in joint
    ]
    estimator = rg.Randomized(Local(), Script(supports), replicates=len(joint))
    found = rg.controlled(
        chain, surrogate, estimator=estimator, solve=rg.infer, coefficient=coefficient
    )
    singles = [
        rg.answers.ControlledEstimate(
            found.log_plain[n : n + 1], found.log_control[n : n + 1], found.log_surrogate,
            found.coefficient,
        )
        for n in range(len(joint))
    ]  # fmt: skip
    mean = sum(
        chance * float(one.sign * one.log_absolute.exp())
        for chance, one in zip(chances, singles, strict=True)
    )
    truth = float(exact(chain).exp())
    assert mean == pytest.approx(truth, rel=1e-12)
    floored = sum(
        chance * float(one.log_partition.exp())
        for chance, one in zip(chances, singles, strict=True)
    )
    below = any(float(one.sign) <= 0 for one in singles)
    assert below == (coefficient == 20.0)
    # The log of an estimate that is not positive is another's: that is what biases it, upwards.
    assert floored > truth * (1 + 1e-6) if below else floored == pytest.approx(truth, rel=1e-12)


def test_some_controlled_estimates_are_below_zero_and_are_told():
    found = rg.answers.ControlledEstimate(
        torch.tensor([[0.0], [1.0]]).log(), torch.tensor([[3.0], [1.0]]).log(),
        torch.tensor([1.0]).log(), 1.0,
    )  # fmt: skip
    assert float(found.sign * found.log_absolute.exp()) == pytest.approx(-0.5)
    assert float(found.log_partition.exp()) == pytest.approx(0.5)
