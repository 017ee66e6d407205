"""A small object of every recurrence in `written`, of all lengths and some hard zeros."""

import math

import torch

from rdpgraph.recurrences import executor
from tests.recurrences import written


def logs(generator, *shape, hard=0.0):
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    zeros = torch.rand(*shape, generator=generator) < hard
    return values.masked_fill(zeros, -math.inf)


def is_compiled(recurrence):
    """Return whether compiled code has stages for a recurrence."""
    return executor.executable_of(recurrence.program) is not None


def small(name, hard=0.0, seed=0):
    """An object of a recurrence with a batch of three; ``hard`` is the share of zeros."""
    g = torch.Generator().manual_seed(seed)

    def r(*shape):
        return logs(g, *shape, hard=hard)

    def whole(most, *shape):
        return torch.randint(most, shape, generator=g)

    lengths = torch.tensor([3, 1, 0])
    return {
        "Chain": lambda: written.Chain(r(3, 3, 2), r(2, 2), lengths),
        "Steps": lambda: written.Steps(r(3, 3, 2), r(3, 2, 2, 2), lengths),
        "LowRankChain": lambda: written.LowRankChain(r(3, 3, 2), r(2, 2), r(2, 2), lengths),
        "BackwardChain": lambda: written.BackwardChain(r(3, 3, 2), r(2, 2)),
        "Segments": lambda: written.Segments(r(3, 3, 2, 2), r(2, 2), lengths),
        "Alignment": lambda: written.Alignment(
            r(3, 3, 3, 3), torch.tensor([2, 1, 0]), torch.tensor([2, 0, 0])
        ),
        "Ctc": lambda: written.Ctc(
            r(3, 3, 3), whole(3, 3, 4), r(3, 4), torch.tensor([3, 2, 1]), torch.tensor([4, 3, 1])
        ),
        "Trees": lambda: written.Trees(r(3, 3, 3, 2), r(2, 2, 2), lengths),
        "Pcfg": lambda: written.Pcfg.of(r(2), r(2, 4, 4), r(3, 3, 2), torch.tensor([3, 2, 0])),
        "LowRankTrees": lambda: written.LowRankTrees(
            r(3, 3, 3, 2), r(2, 2), r(2, 2), r(2, 2), lengths
        ),
        "WordLabels": lambda: written.WordLabels(
            r(3, 3, 3, 3), r(1, 3, 3), torch.tensor([3, 2, 0])
        ),
        "ListedTrees": lambda: written.ListedTrees(
            r(3, 3, 3, 2), r(3), lengths, whole(2, 3), whole(2, 3, 3), whole(3, 3, 2, 2)
        ),
        "GroupedTrees": lambda: written.GroupedTrees(
            r(3, 3, 3, 2), r(3), lengths, whole(2, 3), whole(2, 3, 3), whole(3, 3, 2, 2)
        ),
        "Projective": lambda: written.Projective(r(3, 3, 4), lengths),
        "Bitext": lambda: written.Bitext(r(3, 2, 2), r(3, 2), r(3, 2)),
        "Tagged": lambda: written.Tagged(r(2), r(2, 2), r(2, 3), whole(3, 3, 3), lengths),
        "KeptChain": lambda: written.KeptChain(r(3, 3, 2), r(4, 4), whole(4, 3, 3, 2), lengths),
        "KeptSegments": lambda: written.KeptSegments(
            r(3, 3, 2, 2), r(3, 3), whole(3, 3, 3, 2, 2), lengths
        ),
        "KeptTrees": lambda: written.KeptTrees(
            r(3, 3, 3, 2), r(3, 3, 3), lengths, whole(3, 3, 3, 3, 2)
        ),
        "KeptSites": lambda: written.KeptSites(
            r(3, 3, 3), r(2, 3), r(2, 3, 3), whole(3, 3, 3, 2), whole(2, 3, 3), whole(2, 3), lengths
        ),
        "Kinds": lambda: written.Kinds(r(3, 3, 2), r(3, 2, 2), lengths, whole(3, 3, 3)),
        "Cells": lambda: written.Cells(r(3, 3), whole(3, 3, 2, 3)),
        "Brackets": lambda: written.Brackets(r(3, 2, 2, 2), r(2, 2, 2), r(2, 2, 2)),
        "Factorial": lambda: written.Factorial(r(2, 2), r(2, 2), r(3, 3, 2, 2)),
        "Together": lambda: written.Together(r(2, 2), r(2, 2), r(3, 2, 2, 2)),
        "Trigrams": lambda: written.Trigrams(r(3, 4, 2), r(2, 2), r(2, 2, 2), lengths),
        "Automaton": lambda: written.Automaton(r(3, 3, 2), r(2, 2), r(3, 2, 3), lengths),
        "Joined": lambda: written.Joined(r(3, 3, 2, 2), r(2, 2)),
        "Uneven": lambda: written.Uneven(r(3, 3, 4), r(2)),
        "Apart": lambda: written.Apart(
            r(3, 3, 2), r(3, 2, 3), torch.tensor([3, 0, 2]), torch.tensor([2, 0, 1])
        ),
        "Paths": lambda: written.Paths(r(3, 2, 3, 2), r(2, 2)),
        "Earlier": lambda: written.Earlier(r(3, 3, 2), r(3, 2, 2), r(2, 3, 2), lengths),
        "Durations": lambda: written.Durations(r(3, 4, 2), r(2, 2, 2), r(3, 2, 4), lengths + 1),
        "Nested": lambda: written.Nested(r(3, 3, 2), r(3, 3, 2), r(2, 2), lengths),
        "Hypergraph": lambda: written.Hypergraph(
            r(3, 7),
            torch.tensor([0, 0, 2, 3, 5, 7]),
            torch.tensor([[0, 0], [0, 0], [0, 1], [2, 1], [1, 1], [3, 0], [2, 3]]),
        ),
        "Forest": lambda: written.Forest(
            r(3, 4, 2),
            torch.tensor([0, 0, 0, 1, 3]),
            torch.tensor([[0, 1], [2, 0], [1, 1]]),
            r(2, 2, 2),
            r(3, 3),
        ),
        # Items that have lists of their own.
        "Hypergraphs": lambda: written.Hypergraph(
            r(3, 4),
            torch.tensor([[0, 0, 2, 4], [0, 0, 0, 3], [0, 0, 1, 2]]),
            torch.tensor(
                [
                    [[0, 0], [0, 0], [0, 1], [1, 1]],
                    [[0, 0], [1, 0], [0, 1], [0, 0]],
                    [[0, 0], [1, 0], [0, 0], [0, 0]],
                ]
            ),
        ),
        "Forests": lambda: written.Forest(
            r(3, 4, 2),
            torch.tensor([[0, 0, 0, 1, 3], [0, 0, 1, 1, 2], [0, 0, 0, 0, 0]]),
            torch.tensor(
                [[[0, 1], [2, 0], [1, 1]], [[0, 0], [1, 1], [0, 0]], [[0, 0], [0, 0], [0, 0]]]
            ),
            r(2, 2, 2),
            r(3, 3),
        ),
        "Lattices": lambda: written.Lattice(
            r(5),
            r(2),
            r(3, 2, 2),
            torch.tensor([[0, 0, 1, 3, 5], [0, 0, 0, 2, 4], [0, 0, 3, 4, 5]]),
            torch.tensor([[0, 1, 0, 2, 1], [0, 0, 0, 2, 0], [0, 0, 0, 1, 2]]),
            whole(2, 3, 5),
            r(3, 2, 2),
            torch.tensor([4, 4, 3]),
        ),
        "Lattice": lambda: written.Lattice(
            r(3, 5),
            r(2),
            r(2, 2),
            torch.tensor([0, 0, 1, 3, 5]),
            torch.tensor([0, 1, 0, 2, 1]),
            whole(2, 3, 5),
            r(3, 2, 2),
            torch.tensor([4, 2, 0]),
        ),
        "Kept": lambda: written.Kept(
            r(3, 3, 2), torch.minimum(whole(4, 3, 3, 2, 2), torch.arange(3).view(3, 1, 1))
        ),
        "Binaries": lambda: written.Binary(
            r(3, 3, 2),
            r(3),
            torch.tensor([[0, 2, 3], [0, 0, 3], [0, 1, 1]]),
            torch.tensor([0, 1, 0]),
            torch.tensor([1, 1, 0]),
            lengths,
        ),
        "Binary": lambda: written.Binary(
            r(3, 3, 2),
            r(3),
            torch.tensor([0, 2, 3]),
            torch.tensor([0, 1, 0]),
            torch.tensor([1, 1, 0]),
            lengths,
        ),
    }[name]()


NAMES = (
    "Chain", "Steps", "LowRankChain", "BackwardChain", "Segments", "Alignment", "Ctc", "Trees",
    "Pcfg", "LowRankTrees", "Projective", "Bitext", "Tagged", "KeptChain", "KeptSegments",
    "KeptTrees", "KeptSites", "Kinds", "Cells", "Brackets", "Factorial", "Together",
    "Trigrams", "Automaton", "Joined", "Uneven", "Apart", "Paths",
    "Earlier", "Durations", "Nested", "Hypergraph", "Forest", "Lattice", "Kept", "Binary",
    "Hypergraphs", "Forests", "Lattices", "Binaries",
    "WordLabels", "ListedTrees", "GroupedTrees",
)  # fmt: skip
