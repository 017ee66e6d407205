"""E[Z^] = Z, by enumeration of every draw."""

import math
from dataclasses import dataclass

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Bilinear
from rdpgraph.extend import Support
from rdpgraph.randomized import (
    Global,
    Inversion,
    Landmark,
    Local,
    LocalGlobal,
    Mixture,
    Oracle,
    Pilot,
    SoftmaxGlobal,
    Threshold,
    TopSystematic,
    TopTail,
    Uniform,
)
from rdpgraph.testing import brute_force
from tests.estimate.enumeration import expectation, outcomes

EDGES = {
    "chain": [(0, 1), (1, 2)],
    "star": [(0, 1), (0, 2)],
    "tree": [(0, 1), (1, 2), (1, 3)],
    "loop": [(0, 1), (1, 2), (2, 0)],
}
SELECTIONS = [TopTail(1, 2), TopTail(2, 1), TopSystematic(1, 2), Threshold(2)]
PROPOSALS = [
    Uniform(),
    Local(),
    Global(),
    SoftmaxGlobal(),
    LocalGlobal(),
    LocalGlobal(SoftmaxGlobal()),
    Landmark(2),
    Pilot(selection=TopTail(1, 1)),
    Mixture((Local(), Uniform()), (2.0, 1.0)),
    Oracle(),
]


def small(kind, *, states=4, tables=False):
    generator = torch.Generator().manual_seed(len(kind))
    edges = EDGES[kind]
    variables = [rg.Variable(f"x{n}", states) for n in range(1 + max(max(e) for e in edges))]

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    factors = [rg.Factor((v,), rg.Table(2 * draw(states))) for v in variables]
    for a, b in edges:
        pair = (
            rg.Table(draw(states, states)) if tables else Bilinear(draw(states, 2), draw(states, 2))
        )
        factors.append(rg.Factor((variables[a], variables[b]), pair))
    return rg.FactorGraph(factors)


def name(value):
    return repr(value).replace("Size", "")


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", EDGES)
@pytest.mark.parametrize("selection", SELECTIONS, ids=name)
@pytest.mark.parametrize("proposal", PROPOSALS, ids=name)
def test_the_expectation_of_z_is_z(kind, selection, proposal):
    graph = small(kind, tables=isinstance(proposal, Landmark))
    truth = brute_force(graph).log_partition
    estimate, number = expectation(graph, proposal, selection)
    assert number >= 8
    assert abs(math.expm1(float(estimate - truth))) < 1e-12


@pytest.mark.long
def test_no_top_at_all():
    graph = small("chain")
    truth = brute_force(graph).log_partition
    estimate, _ = expectation(graph, Local(), TopTail(0, 2))
    assert abs(math.expm1(float(estimate - truth))) < 1e-12


@pytest.mark.parametrize("selection", SELECTIONS, ids=name)
def test_hard_zeros_and_a_proposal_left_as_it_is(selection):
    graph = small("loop", tables=True)
    hard = torch.tensor([0.0, -math.inf, 0.0, 0.0], dtype=torch.float64)
    graph = graph.with_factors(rg.Factor((graph.variables[1],), rg.Table(hard)))
    truth = brute_force(graph).log_partition
    estimate, _ = expectation(graph, Local(), selection, defensive=0.0)
    assert abs(math.expm1(float(estimate - truth))) < 1e-12


class Refilled(TopTail):
    """Leaves a mass of 1e-7 at states that are kept already, so that they are drawn again."""

    def choose(self, log_q, uniforms):
        first = log_q.topk(self.top).indices
        q = log_q.softmax(-1).scatter(-1, first, 1e-7)
        q = q / q.sum()
        heights = q.cumsum(-1)
        picks = torch.searchsorted(heights, uniforms * heights[-1], right=True)
        picks = picks.clamp(max=log_q.shape[-1] - 1)
        weights = -(self.tail * q[picks]).log()
        return Support(torch.cat([first, picks]), torch.cat([torch.zeros(self.top), weights]))


class WithoutReplacement(TopTail):
    """Draws no state twice, weighted as if it could."""

    def choose(self, log_q, uniforms):
        first = log_q.topk(self.top).indices
        q = log_q.softmax(-1).scatter(-1, first, 0.0)
        q = q / q.sum()
        left, picks = q.clone(), []
        for number in uniforms:
            heights = left.cumsum(-1)
            pick = int(torch.searchsorted(heights, number * heights[-1], right=True))
            picks.append(pick)
            left[pick] = 0.0
        weights = -(self.tail * q[picks]).log()
        return Support(
            torch.cat([first, torch.tensor(picks)]), torch.cat([torch.zeros(self.top), weights])
        )


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("wrong", [Refilled(1, 2), WithoutReplacement(1, 2)], ids=name)
@pytest.mark.parametrize("kind", EDGES)
def test_the_enumeration_catches_what_is_wrong(wrong, kind):
    graph = small(kind)
    truth = brute_force(graph).log_partition
    estimate, _ = expectation(graph, Local(), wrong)
    assert abs(math.expm1(float(estimate - truth))) > 1e-3


@dataclass(frozen=True)
class Drawn(Inversion):
    """One uniform number that is ignored: the same outcome always."""

    def num_uniforms(self, states):
        return 1

    def choose(self, log_q, uniforms):
        return Support(torch.arange(2), torch.zeros(2, dtype=torch.float64))


def test_the_enumeration_finds_narrow_outcomes():
    ((chance, _),) = outcomes(Drawn(), torch.zeros(4))
    assert chance == 1.0
    log_q = torch.tensor([0.5, 0.5 - 1e-9, 1e-9], dtype=torch.float64).log()
    found = {s.states.item(): chance for chance, s in outcomes(TopTail(0, 1), log_q)}
    assert set(found) == {0, 1, 2}
    assert found[2] == pytest.approx(1e-9, rel=1e-6)


@pytest.mark.parametrize("selection", SELECTIONS, ids=name)
@pytest.mark.parametrize("seed", [0, 3])
def test_every_state_is_worth_one_on_average(selection, seed):
    generator = torch.Generator().manual_seed(seed)
    log_q = 3 * torch.randn(5, generator=generator, dtype=torch.float64)
    log_q[seed % 5] = -math.inf if seed < 3 else 0.0
    worth = torch.zeros(5, dtype=torch.float64)
    for chance, support in outcomes(selection, log_q):
        worth = worth.index_add(0, support.states, chance * support.log_weights.exp())
    assert torch.allclose(worth, (log_q > -math.inf).double(), atol=1e-12)
