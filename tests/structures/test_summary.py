"""The `repr` of structures and their posteriors: a line, whatever their size."""

from dataclasses import dataclass, field

import pytest
import torch

import rdpgraph as rg
from rdpgraph.extend import Structure


def structures():
    zeros = torch.zeros
    low = rg.LowRank(zeros(50, 2), zeros(50, 2))
    heads, tails = torch.tensor([0, 1, 2, 2]), torch.tensor([[-1, -1], [-1, -1], [0, 1], [1, 1]])
    return {
        "chain": rg.Chain(zeros(3, 200, 50), zeros(50, 50), lengths=[200, 0, 5]),
        "chain of a potential": rg.Chain(zeros(200, 50), low),
        "segments": rg.SemiMarkov.from_unary(zeros(90, 20), zeros(20, 20), zeros(5, 20)),
        "dependencies": rg.ProjectiveDependencies(zeros(4, 30, 31)),
        "hidden Markov models": rg.LowRankHMM(zeros(50), low, zeros(50, 300)),
        "trees": rg.Hypertree(zeros(9, 9, 1)),
        "derivations": rg.Derivations(zeros(4), heads, tails, nodes=3),
    }


@pytest.mark.parametrize("name", structures())
def test_structures_are_shown_in_a_line(name):
    structure = structures()[name]
    assert "\n" not in repr(structure)
    assert len(repr(structure)) < 300
    assert type(structure).__name__ in repr(structure)
    assert "float32(" in repr(structure)


def test_posteriors_of_structures_are_shown_in_a_line():
    chain = structures()["chain"]
    estimator = rg.Randomized.default(keep=5)
    generator = torch.Generator().manual_seed(0)
    for posterior in (rg.infer(chain), rg.infer(chain, estimator=estimator, generator=generator)):
        assert repr(chain) in repr(posterior)
        assert "\n" not in repr(posterior)
        assert len(repr(posterior)) < 1000


def test_a_users_structure_is_shown_alike_unless_it_says_otherwise():
    @dataclass(frozen=True, eq=False)
    class Plain(Structure):
        def log_partition(self):
            return self.unary.logsumexp(-1).sum(-1)

        def factor_graph(self):
            raise NotImplementedError

    class Named(Plain):
        def __repr__(self):
            return "mine"

    @dataclass(frozen=True, eq=False)
    class Heir(Named):
        extra: int = 0

    unary = torch.zeros(7, 2, dtype=torch.float64)
    assert repr(Plain(unary)) == f"{Plain.__name__}(unary=float64(7, 2))"
    assert repr(Heir(unary)) == "mine"


def test_fields_are_shown_in_few_words():
    @dataclass(frozen=True, eq=False, repr=False)
    class Wide(Structure):
        tables: list = field(default_factory=list)
        name: str = ""
        more: object = None

        def log_partition(self):
            return self.unary.logsumexp(-1).sum(-1)

        def factor_graph(self):
            raise NotImplementedError

    shown = repr(Wide(torch.zeros(7, 2), [torch.zeros(2, 1)] * 4, "x" * 1000))
    assert "float32(7, 2)" in shown
    assert "[float32(2, 1), 3 more]" in shown
    assert "None" in shown
    assert len(shown) < 300
