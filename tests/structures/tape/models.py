"""Chains, segments and trees laid out on tapes, as a user would; and the library's own."""

from dataclasses import dataclass, field

import torch

import rdpgraph as rg


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Tags(rg.extend.Recursion):
    """A chain."""

    transition: object
    lengths: torch.Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    def recursion(self, tape):
        (steps,) = tape.site_shape
        ends, state = [tape.one], None
        for t in range(steps):
            site = tape.sites[t]
            state = tape.total((site, tape.link(state, self.transition, to=site))) if t else site
            ends.append(tape.sum(state))
        return tape.choose(ends, tape.lengths(self.lengths, steps))


@dataclass(frozen=True, eq=False)
class Segments(rg.extend.Recursion):
    """A semi-Markov chain: sites are segments, [last position, duration]."""

    transition: object
    lengths: torch.Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    site_dims = 2

    def recursion(self, tape):
        steps, durations = tape.site_shape
        ends, ending = [tape.one], []
        for t in range(steps):
            ways = []
            for d in range(min(durations, t + 1)):
                site = tape.sites[t, d]
                if d < t:
                    entering = tape.link(ending[t - d - 1], self.transition, to=site)
                    site = tape.total((site, entering))
                ways.append(site)
            ending.append(tape.merge(*ways))
            ends.append(tape.sum(ending[-1]))
        return tape.choose(ends, tape.lengths(self.lengths, steps))


@dataclass(frozen=True, eq=False)
class Spans(rg.extend.Recursion):
    """Binary trees: sites are spans, [first word, last word]."""

    rules: rg.trees.Rules
    lengths: torch.Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    site_dims = 2

    def recursion(self, tape):
        words, _ = tape.site_shape
        rows, ends, starts = [], [tape.one], torch.zeros(1, dtype=torch.long)
        for width in range(words):
            first = torch.arange(words - width)
            row = tape.sites[first, first + width]
            if width:
                split = torch.arange(width).unsqueeze(1)
                left = tape.view(rows, starts[:width].unsqueeze(1) + first)
                right = starts[:width].flip(0).unsqueeze(1) + first + split + 1
                whole = tape.join(left, tape.view(rows, right), self.rules, to=row)
                row = tape.total((row, whole))
            rows.append(row)
            starts = torch.cat([starts, starts[-1:] + words - width])
            ends.append(tape.total(tape.view(tape.sum(row), torch.tensor([0]))))
        return tape.choose(ends, tape.lengths(self.lengths, words))


LENGTHS = torch.tensor([4, 2, 0, 1])
TRANSITIONS = {
    "table": draw(3, 3, seed=1),
    "hard": draw(3, 3, seed=1).masked_fill(torch.eye(3) > 0, -torch.inf),
    "low rank": rg.LowRank(draw(3, 2, seed=2), draw(3, 2, seed=3)),
    "embeddings": rg.Bilinear(draw(3, 2, seed=4), draw(3, 2, seed=5)),
}
RULES = {
    "dense": rg.trees.DenseRules(draw(2, 2, 2, seed=1)),
    "low rank": rg.trees.LowRankRules(*(draw(2, 3, seed=seed) for seed in (2, 3, 4))),
    "factorised": rg.trees.FactorisedRules(draw(2, 2, 3, seed=5), draw(2, 2, 3, seed=6)),
    "none": rg.trees.NoRules(),
}


def pairs():
    """(name, structure on a tape, the library's) with unequal lengths in the batch, 0 and 1 too."""
    for name, transition in TRANSITIONS.items():
        unary = draw(4, 4, 3, seed=7)
        theirs = rg.Chain(unary, transition, lengths=LENGTHS)
        yield f"chain, {name}", Tags(unary, transition, lengths=LENGTHS), theirs
        unary = draw(4, 4, 3, 3, seed=8)
        theirs = rg.SemiMarkov(unary, transition, lengths=LENGTHS)
        yield f"segments, {name}", Segments(unary, transition, lengths=LENGTHS), theirs
    for name, rules in RULES.items():
        unary = draw(4, 4, 4, 2, seed=9)
        theirs = rg.Hypertree(unary, rules, lengths=LENGTHS)
        yield f"spans, {name}", Spans(unary, rules, lengths=LENGTHS), theirs


PAIRS = {name: (ours, theirs) for name, ours, theirs in pairs()}
