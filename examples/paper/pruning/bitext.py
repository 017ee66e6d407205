"""Randomized pruning of word alignments: figure 4 of the paper, on English and German captions.

    python examples/paper/pruning/bitext.py FOLDER [--pairs 200] [--least 1] [--most 130]
        [--train 10000] [--long 1493] [--square 30] [--small]

FOLDER holds multi30k. Model 1 is trained on all pairs by EM; its tables are the word scores of a
`Bitext`, and its links in both directions are the likely questions. Prints (a, b) the seconds of
the full recursion and of a sweep by the product of the lengths, (c) the bias in half of the exact
time, and (d) bias against time, beside tic-tac-toe pruning and one mask by Model 1, of pairs whose
product of lengths is in a range; with --long the time of a sweep over that many pairs of a product
below 1,000, and with --square the times of both on a pair of that many words each. Seconds of one
processor.

Bias is the squared distance of expected alignments and numbers of straight and inverted
constituents from the exact ones, summed over these and averaged over sentence pairs.
"""

import argparse
import random
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import torch
from model1 import Lexicon, Pair, read_pairs
from tictactoe import allowed, merits
from torch import Tensor

import rdpgraph as rg
from rdpgraph.pruning import Given, Masks, masks_of, sweeps_of

BINS = (20, 50, 80, 110, 130, 200, 300, 400, 500)
STOPS = (1, 2, 4, 8)
TIGHT = (2.0, 5.0, 10.0, 15.0, 20.0, 30.0)
CERTAIN = (0.9, 0.7, 0.5, 0.3, 0.1, 0.03)
CHAINS = 8


@dataclass(frozen=True)
class Case:
    """A sentence pair with its exact answers.

    Attributes:
        pair: the words.
        model: its bitext.
        exact: the expectations, and the seconds that they took.
        seconds: of the recursion on lists without a mask, quicker than `Bitext.marginals`.
    """

    pair: Pair
    model: rg.Bitext
    exact: Tensor
    seconds: float

    @property
    def product(self) -> int:
        return len(self.pair[0]) * len(self.pair[1])


def model_of(lexicon: Lexicon, pair: Pair) -> rg.Bitext:
    return rg.Bitext.words(*lexicon.scores(pair), straight=-0.2, inverted=-1.2)


def statistics(answers: Tensor, counts: dict[str, Tensor]) -> Tensor:
    return torch.cat([answers.flatten(), counts["orders"].flatten()])


def unmasked(masks: Masks, required: Tensor | None = None) -> Tensor:
    none = torch.zeros(1, *masks.questions, dtype=torch.bool)
    expected = masks.masked(none if required is None else required.unsqueeze(0), none).expected()
    return statistics(expected.answers[0], {"orders": expected.counts["orders"][0]})


def timed(make):
    start = process_time()
    made = make()
    return made, process_time() - start


def case_of(lexicon: Lexicon, pair: Pair) -> Case:
    model = model_of(lexicon, pair)
    exact, compact = timed(lambda: unmasked(masks_of(model, rg.infer)))
    return Case(pair, model, exact, compact)


def curve(
    lexicon: Lexicon, case: Case, seed: int, stops: tuple[int, ...]
) -> list[tuple[int, float, float]]:
    """Sweeps, seconds and bias of randomized pruning, at several stops of one run."""
    generator = torch.Generator().manual_seed(seed)
    points, posterior, done, spent = [], None, 0, 0.0
    for stop in stops:
        estimator = rg.RandomizedPruning(
            stop - done, chains=CHAINS, warm_up=0, likely=Given(lexicon.links(case.pair)),
            resume=posterior,
        )  # fmt: skip
        posterior, seconds = timed(
            lambda e=estimator: rg.infer(case.model, estimator=e, generator=generator)
        )
        done, spent = stop, spent + seconds
        sweeps = sweeps_of(posterior)
        found = statistics(sweeps.answers, sweeps.counts)
        points.append((stop, spent, float((found - case.exact).square().sum())))
    return points


def tictactoe(lexicon: Lexicon, case: Case, threshold: float) -> tuple[float, float]:
    """Seconds and bias of one mask of bispans."""

    def run() -> Tensor:
        model = case.model
        mask = allowed(merits(*lexicon.tables(case.pair)), threshold)
        narrow = rg.Bitext(
            model.unary, model.straight, model.inverted, leaves=model.leaves, allowed=mask
        )
        return unmasked(masks_of(narrow, rg.infer))

    found, seconds = timed(run)
    return seconds, float((found - case.exact).square().sum())


def one_mask(lexicon: Lexicon, case: Case, certain: float) -> tuple[float, float]:
    """Seconds and bias where pairs of words that Model 1 is sure of are required."""

    def run() -> Tensor:
        posteriors = lexicon.posteriors(case.pair)
        return unmasked(masks_of(case.model, rg.infer), posteriors > certain)

    found, seconds = timed(run)
    return seconds, float((found - case.exact).square().sum())


def show(title: str, heads: list[str], rows: list[list[str]]) -> None:
    print(f"\n{title}")
    for row in [heads, *rows]:
        print("  ".join(f"{cell:>11}" for cell in row))


def mean(values: list[float]) -> float:
    return sum(values) / max(len(values), 1)


def figures(lexicon: Lexicon, cases: list[Case], stops: tuple[int, ...]) -> None:
    curves = [curve(lexicon, case, seed, stops) for seed, case in enumerate(cases)]
    rows = []
    for low, high in zip((0, *BINS), BINS, strict=False):
        chosen = [n for n, case in enumerate(cases) if low < case.product <= high]
        if not chosen:
            continue
        exact = mean([cases[n].seconds for n in chosen])
        sweep = mean([(curves[n][-1][1] - curves[n][0][1]) / (stops[-1] - 1) for n in chosen])
        half, ran = [], []
        for n in chosen:
            within = [p for p in curves[n] if p[1] <= cases[n].seconds / 2] or curves[n][:1]
            half.append(within[-1][2])
            ran.append(float(within[-1][0] * CHAINS))
        rows.append(
            [
                f"{low + 1}-{high}",
                str(len(chosen)),
                f"{1e3 * exact:.1f}",
                f"{1e3 * sweep / CHAINS:.2f}",
                f"{exact / sweep * CHAINS:.0f}",
                f"{mean([curves[n][0][2] for n in chosen]):.3f}",
                f"{mean(half):.4f}",
                f"{mean(ran):.0f}",
            ]
        )
    heads = [
        "p q",
        "pairs",
        "exact ms",
        "sweep ms",
        "ratio",
        "bias at 1",
        "at half",
        "sweeps",
    ]
    show(f"a, b, c: by the product of the lengths; {CHAINS} chains at once", heads, rows)
    rows = [["exact", "", f"{1e3 * mean([case.seconds for case in cases]):.1f}", "0"]]
    for place, stop in enumerate(stops):
        seconds = mean([points[place][1] for points in curves])
        bias = mean([points[place][2] for points in curves])
        rows.append(["masks", str(stop * CHAINS), f"{1e3 * seconds:.1f}", f"{bias:.4f}"])
    for name, run, settings in (("tic-tac-toe", tictactoe, TIGHT), ("one mask", one_mask, CERTAIN)):
        for setting in settings:
            found = [run(lexicon, case, setting) for case in cases]
            seconds, bias = (mean([point[side] for point in found]) for side in (0, 1))
            rows.append([name, f"{setting:g}", f"{1e3 * seconds:.1f}", f"{bias:.4f}"])
    show("d: bias against time", ["", "setting", "ms a pair", "bias"], rows)


def pass_over(lexicon: Lexicon, pairs: list[Pair], seed: int) -> None:
    """One sweep of one chain over long pairs, models and start included."""
    generator = torch.Generator().manual_seed(seed)

    def run() -> None:
        for pair in pairs:
            estimator = rg.RandomizedPruning(1, warm_up=0, likely=Given(lexicon.links(pair)))
            rg.infer(model_of(lexicon, pair), estimator=estimator, generator=generator)

    _, seconds = timed(run)
    print(f"\none sweep over {len(pairs):,} pairs of a product below 1,000: {seconds:.0f} s")


def square(lexicon: Lexicon, pairs: list[Pair], size: int) -> None:
    """The full recursion and a sweep on two sentences of so many words, joined of several pairs."""
    source, target = (
        [word for pair in pairs[:20] for word in pair[side]][:size] for side in (0, 1)
    )
    pair = source, target
    likely = torch.eye(size, dtype=torch.bool)
    scores, *alone = lexicon.scores(pair)
    model = rg.Bitext.words(scores + 12.0 * likely, *alone, straight=-0.2, inverted=-1.2)
    estimator = rg.RandomizedPruning(10, warm_up=0, likely=Given(likely))
    generator = torch.Generator().manual_seed(0)
    _, sweep = timed(lambda: rg.infer(model, estimator=estimator, generator=generator))
    print(f"\np q = {size * size}: a sweep takes {1e2 * sweep:.1f} ms", flush=True)
    _, full = timed(model.marginals)
    print(f"the full recursion {full:.1f} s, {10 * full / sweep:.0f} times that")


def main() -> None:
    asked = argparse.ArgumentParser(description="Randomized pruning of word alignments.")
    asked.add_argument("folder", type=Path)
    asked.add_argument("--pairs", type=int, default=200)
    asked.add_argument("--small", action="store_true")
    asked.add_argument("--long", type=int, default=0)
    asked.add_argument("--least", type=int, default=1)
    asked.add_argument("--most", type=int, default=130)
    asked.add_argument("--square", type=int, default=0)
    asked.add_argument("--train", type=int, help="the first so many pairs; default: all")
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    torch.set_num_threads(1)
    pairs = read_pairs(given.folder, most=given.train)
    lexicon, seconds = timed(lambda: Lexicon.trained(pairs))
    print(f"Model 1, both ways, on {len(pairs):,} pairs: {seconds:.0f} s")
    random.Random(given.seed).shuffle(pairs)
    count = min(given.pairs, 4) if given.small else given.pairs
    asked_for = [p for p in pairs if given.least <= len(p[0]) * len(p[1]) <= given.most]
    stops = STOPS[:2] if given.small else STOPS
    if count:
        figures(lexicon, [case_of(lexicon, pair) for pair in asked_for[:count]], stops)
    if given.long:
        long = [pair for pair in pairs if len(pair[0]) * len(pair[1]) < 1000][: given.long]
        pass_over(lexicon, long, given.seed)
    if given.square:
        square(lexicon, pairs, given.square)


if __name__ == "__main__":
    main()
