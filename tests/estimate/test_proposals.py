"""Proposals, and the choices that come with the estimator."""

from dataclasses import dataclass

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Bilinear, Randomized
from rdpgraph.randomized import (
    Global,
    Landmark,
    Local,
    LocalGlobal,
    Mixture,
    Oracle,
    Pilot,
    Proposal,
    SoftmaxGlobal,
    Threshold,
    Top,
    Uniform,
)
from tests.estimate.models import draw, estimate, mixed, seeded


@dataclass(frozen=True)
class Sharpened(Proposal):
    power: float

    def log_scores(self, sites):
        return self.power * sites.unary


def test_a_proposal_of_one_s_own():
    graph = mixed()
    sharp = estimate(graph, Sharpened(3.0), Top(3))
    assert torch.equal(sharp.log_partition, estimate(graph, Local(), Top(3)).log_partition)
    nested = Mixture((LocalGlobal(Sharpened(2.0)), Pilot(Sharpened(0.5))), (1.0, 1.0))
    assert bool(estimate(graph, nested).log_partition.isfinite())


@pytest.mark.long
def test_scores_are_what_their_names_say():
    seen = {}

    @dataclass(frozen=True)
    class Spy(Proposal):
        inner: Proposal

        def scores_of(self, setting):
            every = self.inner.scores_of(setting)
            seen.update((s.states, own) for s, own in zip(setting.groups, every, strict=True))
            return every

    left, right = draw(4, 2), draw(4, 2, seed=1)
    xs = rg.VariableArray("x", (3,), 4)
    unary = draw(3, 4, seed=2)
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((xs,), rg.Table(unary)),
            rg.FactorBlock((xs[:-1], xs[1:]), Bilinear(left, right)),
        ]
    )

    def scores(proposal):
        estimate(graph, Spy(proposal), Top(2), defensive=0.0)
        return seen[4]

    norms = torch.stack([left, right]).abs().sum(-1)
    norms = torch.stack([norms[0], norms.mean(0), norms[1]])
    assert torch.allclose(scores(Local()), unary)
    assert torch.allclose(scores(Global()).exp(), norms)
    assert torch.allclose(scores(SoftmaxGlobal()), norms)
    literal = unary.softmax(-1) / 2 + norms / norms.sum(-1, keepdim=True) / 2
    assert torch.allclose(scores(LocalGlobal()).exp(), literal)
    released = unary.softmax(-1) / 2 + norms.softmax(-1) / 2
    assert torch.allclose(scores(LocalGlobal(SoftmaxGlobal())).exp(), released)
    assert torch.allclose(scores(Oracle()).exp(), rg.infer(graph).marginal(xs))
    # Enough landmarks stand for all neighbours.
    table = (left @ right.T).exp()
    mean = torch.stack(
        [table.mean(1).log(), (table.mean(0) * table.mean(1)).log(), table.mean(0).log()]
    )
    assert torch.allclose(scores(Landmark(4_000)), unary + mean, atol=0.1)


@pytest.mark.long
def test_a_pilot_on_all_states_knows_the_marginals():
    """Probes have a weight so small that what they meet is hardly changed."""
    graph = mixed()
    oracle = estimate(graph, Oracle(), Threshold(2), replicates=300)
    pilot = estimate(graph, Pilot(Uniform(), Top(6), share=0.999), Threshold(2), replicates=300)
    assert float(pilot.standard_error) < 1.2 * float(oracle.standard_error) + 1e-3


@pytest.mark.parametrize("keep", [1, 3, 5, 0.5, 1.0])
def test_the_default_keeps_what_it_is_told(keep):
    xs = rg.VariableArray("x", (2,), 5)
    graph = rg.FactorGraph([rg.FactorBlock((xs,), rg.Table(draw(2, 5)))])
    posterior = rg.infer(graph, estimator=Randomized.default(keep=keep), generator=seeded())
    count = {0.5: 2}.get(keep, 5 if keep == 1.0 and isinstance(keep, float) else keep)
    assert posterior.solution.restriction.supports[0].kept == count
    assert posterior.status.exact == (count == 5)
    with pytest.raises(rg.errors.ModelError, match="keep"):
        Randomized.default(keep=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Randomized(Local(), Top(1), replicates=0), "replicates"),
        (lambda: Randomized(Local(), Top(1), defensive=1.0), "defensive"),
        (lambda: Mixture((), ()), "Mixture"),
        (lambda: Mixture((Local(),), (0.0,)), "number above 0"),
        (lambda: Mixture((Local(),), (1.0, 2.0)), "1 proposals"),
        (lambda: Landmark(0), "Landmark"),
        (lambda: Pilot(share=1.0), "Pilot"),
        (lambda: Pilot(most=1), "most"),
    ],
)
def test_arguments_are_checked(make, message):
    with pytest.raises(rg.errors.ModelError, match=message):
        make()
