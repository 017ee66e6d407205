"""A posterior is that of the tensors as they were: what it was asked stays, the rest is refused."""

import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import ModelError
from tests.questions import QUESTIONS


def graph() -> tuple[torch.Tensor, rg.FactorGraph]:
    """A cycle of four, and the table of its pairs."""
    table = torch.randn(2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = rg.VariableArray("x", (4,), 2)
    others = x[torch.tensor([1, 2, 3, 0])]
    return table, rg.FactorGraph([rg.FactorBlock((x, others), rg.Table(table))])


def chain() -> tuple[torch.Tensor, rg.Chain]:
    unary = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return unary, rg.Chain(unary, torch.eye(3, dtype=torch.float64))


CHOICES = {
    "buckets": (graph, {}),
    "contraction": (graph, {"scheduler": rg.Contraction()}),
    "loopy": (graph, {"scheduler": rg.Loopy()}),
    "join": (graph, {"scheduler": rg.JoinGraph()}),
    "search": (graph, {"scheduler": rg.Search(seconds=0.1)}),
    "estimates": (graph, {"scheduler": rg.MiniBuckets(seconds=0.1)}),
    "structure": (chain, {}),
    "kept states": (chain, {"estimator": rg.Randomized.default(keep=2)}),
}


@pytest.mark.parametrize("name", CHOICES)
def test_questions_after_a_write_are_refused(name):
    make, choices = CHOICES[name]
    for write in (lambda own: own.mul_(-1.0), lambda own: setattr(own, "data", -own)):
        tensor, model = make()
        posterior = rg.infer(model, **choices)
        QUESTIONS["mode" if name == "search" else "log_partition"](posterior)
        write(tensor)
        for question in set(QUESTIONS) - {"log_partition"}:
            with pytest.raises(ModelError, match="changed in place"):
                QUESTIONS[question](posterior)


@pytest.mark.parametrize("name", ["contraction", "loopy", "structure", "kept states"])
def test_answers_of_before_a_write_stay(name):
    make, choices = CHOICES[name]
    tensor, model = make()
    posterior = rg.infer(model, **choices)
    before = [QUESTIONS[question](posterior) for question in ("log_partition", "marginals")]
    tensor.add_(torch.arange(tensor.numel()).reshape(tensor.shape))
    after = [QUESTIONS[question](posterior) for question in ("log_partition", "marginals")]
    torch.testing.assert_close(after, before, atol=0, rtol=0)
    assert not torch.equal(rg.infer(model, **choices).log_partition, before[0])
