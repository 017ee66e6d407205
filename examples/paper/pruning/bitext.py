"""Randomized pruning of word alignments: figure 4 of the paper, on English and German captions.

    python examples/paper/pruning/bitext.py FOLDER [--mixed] [--pairs 200] [--least 1] [--most 130]
        [--train 10000] [--aligner 500] [--long 1493] [--square 30] [--output FOLDER] [--small]

FOLDER holds multi30k. Model 1 is trained on all pairs by EM; its tables are the word scores of a
`Bitext`, of two parts, or with --mixed of a `MixedBitext`, the paper's grammar; its links in both
directions are the likely questions. With --aligner what prunes, links and merits, is made of
another Model 1, trained on the first so many pairs. Prints, and draws as ``bitext.png`` or
``mixed.png``, (a, b) the seconds of the full recursion and of a sweep by the product of the
lengths, (c) the bias in half of the exact time, and (d) bias against time, beside tic-tac-toe
pruning and one mask by Model 1, of pairs whose product of lengths is in a range; with --long the
time of a sweep over that many pairs of a product below 1,000, and with --square the times of both
on a pair of that many words each. Seconds of one processor.

What has been found of each pair is kept in the output folder, and a run goes on from there.

Bias is the squared distance of expected alignments and numbers of rules of each kind from the exact
ones, summed over these and averaged over sentence pairs.
"""

import argparse
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from figure4 import Record, kept, report
from model1 import Lexicon, Pair, read_pairs
from shown import timed
from tictactoe import allowed, merits
from torch import Tensor

import rdpgraph as rg
from rdpgraph.pruning import Given, Masks, masks_of, sweeps_of

STOPS = (1, 2, 4, 8)
TIGHT = (2.0, 5.0, 10.0, 15.0, 20.0, 30.0)
CERTAIN = (0.9, 0.7, 0.5, 0.3, 0.1, 0.03)
CHAINS = 8
STRAIGHT, INVERTED = -0.2, -1.2

Model = rg.Bitext | rg.MixedBitext


@dataclass(frozen=True)
class Case:
    """A sentence pair with its exact answers.

    Attributes:
        pair: the words.
        model: its bitext.
        aligner: what prunes.
        exact: the expectations.
        work: operations of the recursion on lists without a mask.
        seconds: of the recursion on lists without a mask; of a `Bitext` that is quicker than its
            marginals by size.
    """

    pair: Pair
    model: Model
    aligner: Lexicon
    exact: Tensor
    work: int
    seconds: float


def model_of(lexicon: Lexicon, pair: Pair, *, mixed: bool) -> Model:
    return model_with(lexicon.scores(pair), mixed=mixed)


def model_with(scores: tuple[Tensor, Tensor, Tensor], *, mixed: bool) -> Model:
    if not mixed:
        return rg.Bitext.words(*scores, straight=STRAIGHT, inverted=INVERTED)
    # One part as a straight step; three as two steps, inverted ones but of the first order.
    rules = [0.0, STRAIGHT, STRAIGHT, INVERTED, 2 * STRAIGHT, *[STRAIGHT + INVERTED] * 5]
    return rg.MixedBitext.words(*scores, rules=torch.tensor(rules).to(scores[0]))


def statistics(answers: Tensor, counts: dict[str, Tensor]) -> Tensor:
    return torch.cat([answers.flatten(), counts["orders"].flatten()])


def unmasked(masks: Masks, required: Tensor | None = None) -> tuple[Tensor, int]:
    """The expectations within one mask, and the places and ways to join them that it leaves."""
    none = torch.zeros(1, *masks.questions, dtype=torch.bool)
    masked = masks.masked(none if required is None else required.unsqueeze(0), none)
    expected = masked.expected()
    return statistics(expected.answers[0], {"orders": expected.counts["orders"][0]}), masked.work


def case_of(lexicon: Lexicon, aligner: Lexicon, pair: Pair, *, mixed: bool) -> Case:
    model = model_of(lexicon, pair, mixed=mixed)
    (exact, work), seconds = timed(lambda: unmasked(masks_of(model, rg.infer)))
    return Case(pair, model, aligner, exact, work, seconds)


def curve(case: Case, seed: int, stops: tuple[int, ...]) -> list[tuple[float, ...]]:
    """Sweeps, seconds, bias and operations of randomized pruning, at several stops of one run."""
    generator = torch.Generator().manual_seed(seed)
    points, posterior, done, spent = [], None, 0, 0.0
    for stop in stops:
        estimator = rg.RandomizedPruning(
            stop - done, chains=CHAINS, warm_up=0, likely=Given(case.aligner.links(case.pair)),
            resume=posterior,
        )  # fmt: skip
        posterior, seconds = timed(
            lambda e=estimator: rg.infer(case.model, estimator=e, generator=generator)
        )
        done, spent = stop, spent + seconds
        sweeps = sweeps_of(posterior)
        found = statistics(sweeps.answers, sweeps.counts)
        points.append((stop * CHAINS, spent, distance(found, case), sweeps.run.work))
    return points


def distance(found: Tensor, case: Case) -> float:
    return float((found - case.exact).square().sum())


def tictactoe(case: Case, threshold: float) -> tuple[Tensor, int]:
    """The expectations within one mask of bispans, and its operations."""
    model = case.model
    mask = allowed(merits(*case.aligner.tables(case.pair)), threshold)
    if isinstance(model, rg.MixedBitext):
        narrow = model.with_unary(torch.where(mask.unsqueeze(-1), model.unary, -torch.inf))
    else:
        narrow = rg.Bitext(
            model.unary, model.straight, model.inverted, leaves=model.leaves, allowed=mask
        )
    return unmasked(masks_of(narrow, rg.infer))


def one_mask(case: Case, certain: float) -> tuple[Tensor, int]:
    """The expectations where pairs of words that Model 1 is sure of are required."""
    return unmasked(masks_of(case.model, rg.infer), case.aligner.posteriors(case.pair) > certain)


def record(case: Case, seed: int, *, small: bool) -> Record:
    pair, stops = case.pair, STOPS[:2] if small else STOPS
    masks: dict[str, list[list[Any]]] = {}
    for name, run, settings in (("tic-tac-toe", tictactoe, TIGHT), ("one mask", one_mask, CERTAIN)):
        for setting in settings:
            (found, work), seconds = timed(partial(run, case, setting))
            point = [f"{setting:g}", seconds, distance(found, case), work]
            masks.setdefault(name, []).append(point)
    sweeps, size = curve(case, seed, stops), len(pair[0]) * len(pair[1])
    return Record(size, case.seconds, sweeps, masks, case.work)


def pass_over(lexicon: Lexicon, pairs: list[Pair], seed: int, *, mixed: bool) -> None:
    """One sweep of one chain over long pairs, models and start included."""
    generator = torch.Generator().manual_seed(seed)

    def run() -> None:
        for pair in pairs:
            estimator = rg.RandomizedPruning(1, warm_up=0, likely=Given(lexicon.links(pair)))
            rg.infer(model_of(lexicon, pair, mixed=mixed), estimator=estimator, generator=generator)

    _, seconds = timed(run)
    print(f"\none sweep over {len(pairs):,} pairs of a product below 1,000: {seconds:.0f} s")


def square(lexicon: Lexicon, pairs: list[Pair], size: int, *, mixed: bool) -> None:
    """The full recursion and a sweep on two sentences of so many words, joined of several pairs."""
    source, target = (
        [word for pair in pairs[:20] for word in pair[side]][:size] for side in (0, 1)
    )
    pair = source, target
    likely = torch.eye(size, dtype=torch.bool)
    scores, *alone = lexicon.scores(pair)
    model = model_with((scores + 12.0 * likely, *alone), mixed=mixed)
    print(f"\np q = {size * size}", flush=True)
    sweeps, work = list[float](), 0.0
    for chains in (1, CHAINS, 4 * CHAINS):
        estimator = rg.RandomizedPruning(10, warm_up=0, likely=Given(likely), chains=chains)
        generator = torch.Generator().manual_seed(0)
        run = partial(rg.infer, model, estimator=estimator, generator=generator)
        posterior, seconds = timed(run)
        sweeps.append(seconds / 10 / chains)
        work = sweeps_of(posterior).run.work / 10 / chains
        print(f"a sweep of each of {chains} chains takes {1e3 * sweeps[-1]:.1f} ms", flush=True)
    whole = partial(unmasked, masks_of(model, rg.infer)) if mixed else model.marginals
    found, full = timed(whole)
    print(f"the full recursion {full:.2f} s, {full / sweeps[0]:.0f} times that of one chain")
    if isinstance(found, tuple):  # with the operations of the recursion on lists
        print(f"operations: {found[1]:,}, {found[1] / work:.0f} times those of a sweep")


def main() -> None:
    asked = argparse.ArgumentParser(description="Randomized pruning of word alignments.")
    asked.add_argument("folder", type=Path)
    asked.add_argument("--mixed", action="store_true", help="rules that mix words and three parts")
    asked.add_argument("--pairs", type=int, default=200)
    asked.add_argument("--small", action="store_true")
    asked.add_argument("--long", type=int, default=0)
    asked.add_argument("--least", type=int, default=1)
    asked.add_argument("--most", type=int, default=130)
    asked.add_argument("--square", type=int, default=0)
    asked.add_argument("--train", type=int, help="the first so many pairs; default: all")
    asked.add_argument("--aligner", type=int, help="what prunes is trained on; default: all pairs")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--output", type=Path, default=Path("build/pruning"))
    given = asked.parse_args()
    torch.set_num_threads(1)
    pairs = read_pairs(given.folder, most=given.train)
    lexicon, seconds = timed(lambda: Lexicon.trained(pairs))
    print(f"Model 1, both ways, on {len(pairs):,} pairs: {seconds:.0f} s", flush=True)
    aligner = Lexicon.trained(pairs, first=given.aligner) if given.aligner else lexicon
    random.Random(given.seed).shuffle(pairs)
    count = min(given.pairs, 4) if given.small else given.pairs
    if count:
        chosen = [p for p in pairs if given.least <= len(p[0]) * len(p[1]) <= given.most][:count]
        name = "mixed" if given.mixed else "bitext"
        name += f"-{given.aligner}" if given.aligner else ""
        settings = f"{len(pairs)}-{given.least}-{given.most}-{given.seed}"
        store = given.output / f"{name}-{settings}.jsonl"

        def made(number: int) -> Record:
            case = case_of(lexicon, aligner, chosen[number], mixed=given.mixed)
            return record(case, number, small=given.small)

        found = kept(store, len(chosen), made)
        report(found, given.output / f"{name}.png", chains=CHAINS)
    if given.long:
        long = [pair for pair in pairs if len(pair[0]) * len(pair[1]) < 1000][: given.long]
        pass_over(lexicon, long, given.seed, mixed=given.mixed)
    if given.square:
        square(lexicon, pairs, given.square, mixed=given.mixed)


if __name__ == "__main__":
    main()
