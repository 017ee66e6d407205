"""Randomized pruning of the parses of one sentence by a grammar of hundreds of symbols.

    python examples/paper/pruning/monolingual.py [--sentences 40] [--symbols 20] [--splits 12]
        [--shortest 8] [--longest 30] [--output FOLDER] [--small]

The grammar is made at random: every symbol of a coarse one is split into twelve, and of the rules
of split symbols some are kept; sentences are drawn from it. Beside randomized pruning, whose likely
spans are those of the coarse grammar, stand two masks by the posterior of the coarse grammar, at
six thresholds each: of spans, and coarse-to-fine, of coarse symbols of spans. Prints, and draws as
``monolingual.png``, what figure 4 of the paper has of bitexts, by the length of sentences; the
seconds of the coarse grammar are in those of all that needs it.

Bias is the squared distance of expected spans and uses of rules from the exact ones, averaged over
sentences. What has been found of each sentence is kept in the output folder, and a run goes on from
there.
"""

import argparse
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from figure4 import Record, kept, report
from shown import timed
from torch import Tensor

import rdpgraph as rg
from rdpgraph.pruning import LikelyBy, masks_of, sweeps_of

STOPS = (1, 2, 4, 8)
THRESHOLDS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
LIKELY = 0.5
CHAINS = 4
BINS = (10, 15, 20, 25, 30, 40)


def coarse_of(symbol: str) -> str:
    return symbol.split("-")[0]


def grammar_text(symbols: int, splits: int, words: int, seed: int) -> str:
    """A grammar of one start symbol, phrases, and tags, which alone have words."""
    draw = random.Random(seed)
    phrases = [f"P{n}" for n in range(symbols // 2)]
    tags = [f"T{n}" for n in range(symbols - len(phrases))]
    lines: list[str] = []
    for number, parent in enumerate(["S", *phrases]):
        # Phrases lead to later ones more often than back, so that sentences end.
        later = phrases[number:] + tags * 2
        pairs = {(draw.choice(later), draw.choice(later)) for _ in range(10)}
        pairs |= {(draw.choice(phrases), draw.choice(tags)), (draw.choice(tags), draw.choice(tags))}
        for split in range(1 if parent == "S" else splits):
            for left, right in sorted(pairs):
                for _ in range(6):
                    one, other = (f"{side}-{draw.randrange(splits)}" for side in (left, right))
                    lines.append(f"{draw.expovariate(1.0):.6f} {parent}-{split} -> {one} {other}")
    # Sentences of any length: a phrase, and another sentence.
    lines += [f"2.0 S-0 -> P{n}-{split} S-0" for n in (0, 1) for split in range(splits)]
    for tag in tags:
        own = draw.sample(range(words), words // 2)
        lines += [
            f'{draw.expovariate(1.0) ** 3:.6f} {tag}-{split} -> "w{word}"'
            for split in range(splits)
            for word in own
        ]
    seen = {line.split(" ", 1)[1]: line for line in lines}
    return "\n".join(seen.values())


class Sentences:
    """Draws sentences from a grammar, whose weights are normalised for each symbol."""

    def __init__(self, grammar: rg.trees.Grammar, seed: int) -> None:
        self.words, self.draw = grammar.words, random.Random(seed)
        self.options: dict[int, tuple[list[tuple[int, ...]], list[float]]] = {}
        for rows, logs in (
            (grammar.rules, grammar.log_weights),
            (grammar.word_rules, grammar.log_word_weights),
        ):
            for (symbol, *right), log in zip(rows.tolist(), logs.exp().tolist(), strict=True):
                sides, weights = self.options.setdefault(symbol, ([], []))
                sides.append(tuple(right))
                weights.append(log)

    def one(self, shortest: int, longest: int) -> list[str]:
        """A sentence of so many words."""
        while True:
            words, waiting = [], [0]
            while waiting and len(words) + len(waiting) <= longest:
                right = self.draw.choices(*self.options[waiting.pop()])[0]
                if len(right) == 1:
                    words.append(self.words[right[0]])
                else:
                    waiting += reversed(right)
            if not waiting and len(words) >= shortest:
                return words


@dataclass(frozen=True)
class Case:
    """A sentence with its exact answers.

    Attributes:
        model: its parses.
        coarse: those by the coarse grammar.
        exact: the expectations.
        seconds: that they took.
    """

    model: rg.Hypertree
    coarse: rg.Hypertree
    exact: Tensor
    seconds: float


def statistics(answers: Tensor, counts: dict[str, Tensor]) -> Tensor:
    return torch.cat([answers.flatten(), counts["rules"].flatten()])


def within(model: rg.Hypertree, forbidden: Tensor | None = None) -> Tensor:
    masks = masks_of(model, rg.infer)
    none = torch.zeros(1, 1, *masks.questions, dtype=torch.bool)
    expected = masks.masked(none, none if forbidden is None else forbidden[None]).expected()
    return statistics(expected.answers[0], {"rules": expected.counts["rules"][0]})


def case_of(grammar: rg.trees.Grammar, sentence: list[str]) -> Case:
    model = rg.Hypertree.parses(grammar, [sentence])
    coarse = rg.Hypertree.parses(grammar.coarsened(coarse_of), [sentence])
    exact, seconds = timed(lambda: within(model))
    return Case(model, coarse, exact, seconds)


def distance(found: Tensor, case: Case) -> float:
    return float((found - case.exact).square().sum())


def curve(case: Case, seed: int, stops: tuple[int, ...]) -> list[tuple[float, float, float]]:
    """Sweeps, seconds and bias of randomized pruning, at several stops of one run."""
    generator = torch.Generator().manual_seed(seed)
    points, posterior, done, spent = [], None, 0, 0.0
    for stop in stops:
        estimator = rg.RandomizedPruning(
            stop - done, chains=CHAINS, warm_up=0, likely=LikelyBy(case.coarse, above=LIKELY),
            resume=posterior,
        )  # fmt: skip
        posterior, seconds = timed(
            lambda e=estimator: rg.infer(case.model, estimator=e, generator=generator)
        )
        done, spent = stop, spent + seconds
        sweeps = sweeps_of(posterior)
        points.append(
            (stop * CHAINS, spent, distance(statistics(sweeps.answers, sweeps.counts), case))
        )
    return points


def spans(case: Case, threshold: float) -> Tensor:
    """The expectations with the spans alone that the coarse grammar finds likelier than that."""
    return within(case.model, case.coarse.span_marginals() < threshold)


def symbols(stands: Tensor, case: Case, threshold: float) -> Tensor:
    """Coarse-to-fine: with the symbols of spans alone whose coarse ones are likelier than that."""
    kept = (case.coarse.marginals() >= threshold)[..., stands]
    return within(case.model.with_unary(torch.where(kept, case.model.unary, -torch.inf)))


def record(case: Case, stands: Tensor, seed: int, stops: tuple[int, ...]) -> Record:
    masks: dict[str, list[list[Any]]] = {}
    for name, run in (("spans", spans), ("coarse-to-fine", partial(symbols, stands))):
        for setting in THRESHOLDS:
            found, seconds = timed(partial(run, case, setting))
            masks.setdefault(name, []).append([f"{setting:g}", seconds, distance(found, case)])
    return Record(case.model.unary.shape[-2], case.seconds, curve(case, seed, stops), masks)


def main() -> None:
    asked = argparse.ArgumentParser(description="Randomized pruning of parses.")
    asked.add_argument("--sentences", type=int, default=40)
    asked.add_argument("--symbols", type=int, default=20)
    asked.add_argument("--splits", type=int, default=12)
    asked.add_argument("--shortest", type=int, default=8)
    asked.add_argument("--longest", type=int, default=30)
    asked.add_argument("--small", action="store_true")
    asked.add_argument("--output", type=Path, default=Path("build/pruning"))
    given = asked.parse_args()
    torch.set_num_threads(1)
    count, splits = (2, 3) if given.small else (given.sentences, given.splits)
    longest = given.shortest if given.small else given.longest
    stops = STOPS[:2] if given.small else STOPS
    grammar = rg.trees.parse_grammar(grammar_text(given.symbols, splits, 40, 0))
    print(
        f"{len(grammar.symbols)} symbols, {len(grammar.rules):,} rules, "
        f"{len(grammar.word_rules):,} of words"
    )
    coarse = grammar.coarsened(coarse_of)
    stands = torch.tensor([coarse.symbols.index(coarse_of(own)) for own in grammar.symbols])
    draw = Sentences(grammar, 0)
    room = max(longest - given.shortest, 1)
    sentences = [draw.one(given.shortest + number * 7 % room, longest) for number in range(count)]

    def made(number: int) -> Record:
        return record(case_of(grammar, sentences[number]), stands, number, stops)

    name = f"monolingual-{len(grammar.rules)}-{given.shortest}-{longest}.jsonl"
    found = kept(given.output / name, count, made)
    report(found, given.output / "monolingual.png", chains=CHAINS, bins=BINS, over="words")


if __name__ == "__main__":
    main()
