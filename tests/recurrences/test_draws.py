"""Draws of several derivations together: as probable as derivations are, few or many of them."""

import pytest
import torch

import rdpgraph as rg
from tests.structures.declared.models import Segments, Spans, draw


def chain_of_steps(states: int) -> rg.Chain:
    """A chain with a table of its own for each step."""
    return rg.Chain(draw(2, 4, states), draw(2, 3, states, states))


MODELS = {
    "segments": lambda: Segments(draw(2, 4, 3, 2), draw(2, 2), torch.tensor([4, 2])),
    "trees": lambda: Spans(draw(2, 4, 4, 2), draw(2, 2, 2), torch.tensor([4, 3])),
    # Pairs of more than kTerms labels and splits: labels are drawn first, and then the split.
    "trees of many labels": lambda: Spans(
        2 * draw(2, 4, 4, 7), 2 * draw(7, 7, 7), torch.tensor([4, 3])
    ),
    "tables of steps": lambda: chain_of_steps(3),
}


@pytest.mark.parametrize("count", [8, 64])
@pytest.mark.parametrize("name", MODELS)
def test_means_over_draws_are_marginals(name: str, count: int) -> None:
    model, generator = MODELS[name](), torch.Generator().manual_seed(0)
    calls = 1024 // count
    drawn = torch.cat([model.sample(count, generator) for _ in range(calls)])
    assert bool((model.score(drawn) > -torch.inf).all())
    marginals = model.marginals()
    states = torch.arange(marginals.shape[-1])
    means = (drawn.unsqueeze(-1) == states).double().mean(0)
    error = (marginals * (1 - marginals) / len(drawn)).sqrt()
    assert bool(((means - marginals).abs() <= 5 * error + 1e-3).all())


@pytest.mark.parametrize("name", MODELS)
def test_hard_zeros_are_never_drawn(name: str) -> None:
    model = MODELS[name]()
    unary = model.unary.clone()
    unary[..., 0] = -torch.inf
    drawn = model.with_unary(unary).sample(64, torch.Generator().manual_seed(1))
    assert bool((drawn != 0).all())
