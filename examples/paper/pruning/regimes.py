"""Random masks beside tic-tac-toe pruning, at equal operations: when each is better.

    python examples/paper/pruning/regimes.py FOLDER [--sizes 12 20 30] [--temperatures 1 3]
        [--told 10000 500 0] [--train 10000] [--output FOLDER] [--small]

FOLDER holds multi30k. The model is a `Bitext` of two parts, of captions joined to so many words a
side, with the word scores of Model 1, trained by EM, over a temperature: below 1 the posterior is
sharper, above it flatter. What prunes is told another Model 1, trained on fewer pairs, or with 0
one whose words are shuffled and which knows nothing: its tables are the merits of tic-tac-toe
pruning, its links the likely questions of masks at random. A third curve has masks at random whose
likely questions are the best partners by the word scores of the model itself, which need nobody.

Operations are bispans and ways to join two, summed over all sweeps; a merit is one. They are in
proportion to time where charts are large, and leave out what a small chart costs beside. Errors are
squared distances of expected alignments from the exact ones, at the most operations within a share.
Above 30 words, where exact ones take much memory, one mask at 50 nats by the merits of the model's
own tables is in their place; how far it is from that at 40 nats is printed.
Prints a line for each model and a table, and draws ``regimes.png``. What has been found is kept in
the output folder, and a run goes on from there.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, product
from math import comb
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
import torch
from bitext import model_with
from model1 import Lexicon, Pair, read_pairs
from shown import COLORS, show, timed
from tictactoe import allowed, merits
from torch import Tensor

import rdpgraph as rg
from rdpgraph.pruning import Given, Masked, masks_of, sweeps_of

THRESHOLDS = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 12.0, 15.0, 20.0, 30.0, 50.0)
STOPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BUDGETS = (0.01, 0.03, 0.1, 0.3)
EXACT = 30  # words, up to which the full recursion is run
NEARLY = (40.0, 50.0)  # nats, of masks that stand for it above
CHAINS = 8  # of masks by links of its own, whose first four sweeps are told apart
MOST = 6e6  # operations of one mask, for memory's sake
MOST_SECONDS = 10.0  # of one chain of masks
WAYS = {"tic-tac-toe": "o-", "masks, links told": "s-", "masks, links of its own": "^-"}

Point = list[float]
"""Operations over those of the full recursion, squared error, and seconds."""


def full(p: int, q: int) -> int:
    """The ways of the full recursion to join two bispans: straight and inverted, about."""
    return 2 * comb(p + 3, 3) * comb(q + 3, 3)


def within(model: rg.Bitext, merit: Tensor, threshold: float) -> Masked:
    """The model without bispans whose merit is further than that below the best."""
    narrow = rg.Bitext(
        model.unary, model.straight, model.inverted, leaves=model.leaves,
        allowed=allowed(merit, threshold),
    )  # fmt: skip
    none = torch.zeros(1, *(size - 1 for size in merit.shape[::2]), dtype=torch.bool)
    return masks_of(narrow, rg.infer).masked(none, none)


def exact_of(model: rg.Bitext, tables: list[Tensor], size: int) -> Tensor:
    """Expected alignments; of long sentences by one mask, which leaves next to nothing out."""
    if size <= EXACT:
        return model.pair_marginals()
    merit = merits(*tables)
    less, more = (within(model, merit, nats).expected().answers[0] for nats in NEARLY)
    print(
        f"masks at {NEARLY[0]:g} and {NEARLY[1]:g} nats: {(more - less).square().sum():.1g} apart"
    )
    return more


def by_merits(model: rg.Bitext, tables: tuple[Tensor, Tensor], exact: Tensor) -> Iterator[Point]:
    """One mask for each threshold, as long as it is small; its merits are in all seconds."""
    merit, first = timed(lambda: merits(*tables))
    p, q = exact.shape
    spans = comb(p + 1, 2) * comb(q + 1, 2)
    for threshold in THRESHOLDS:
        masked, made = timed(partial(within, model, merit, threshold))
        if masked.work > MOST:
            return
        found, seconds = timed(lambda own=masked: own.expected().answers[0])
        error = float((found - exact).square().sum())
        yield [(spans + masked.work) / full(p, q), error, first + made + seconds]


def at_random(
    model: rg.Bitext, likely: Tensor, exact: Tensor, most: float, seed: int = 0
) -> Iterator[Point]:
    """One chain, until a share of the full recursion's operations, 10 s or 512 sweeps."""
    if not bool(likely.any()):
        yield [1.0, 0.0, 0.0]  # without a mask a sweep is the full recursion
        return
    generator, posterior, done, spent = torch.Generator().manual_seed(seed), None, 0, 0.0
    for stop in STOPS:
        estimator = rg.RandomizedPruning(
            stop - done, warm_up=0, likely=Given(likely), resume=posterior
        )
        posterior, seconds = timed(
            lambda e=estimator: rg.infer(model, estimator=e, generator=generator)
        )
        sweeps = sweeps_of(posterior)
        done, spent = stop, spent + seconds
        share = sweeps.run.work / full(*exact.shape)
        yield [share, float((sweeps.answers - exact).square().sum()), spent]
        if share > most or spent > MOST_SECONDS:
            return


def joined(pairs: list[Pair], size: int) -> Pair:
    """Two sentences of so many words, of several captions one after the other."""
    source, target = ([word for pair in pairs for word in pair[side]][:size] for side in (0, 1))
    return source, target


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])


def record(
    pair: Pair,
    scores: tuple[Tensor, Tensor, Tensor],
    tables: list[Tensor],
    told: dict[str, tuple[Lexicon, Pair]],
    most: float,
) -> dict[str, Any]:
    """All that is found of one model."""
    model = model_with(scores, mixed=False)
    assert isinstance(model, rg.Bitext)
    exact, seconds = timed(lambda: exact_of(model, tables, len(pair[0])))
    linked = exact.clamp(1e-12, 1 - 1e-12)
    entropy = -(linked * linked.log() + (1 - linked) * (1 - linked).log()).sum() / len(pair[0])
    found: dict[str, Any] = {"entropy": float(entropy), "seconds": seconds, "told": {}}
    masks = masks_of(model, rg.infer)
    likely = masks.guess(masks.open())
    own = list(at_random(model, likely, exact, most))
    found["chains"] = [
        list(islice(at_random(model, likely, exact, most, seed), 3)) for seed in range(CHAINS)
    ]
    for name, (lexicon, seen) in told.items():
        found["told"][name] = {
            "correlation": correlation(lexicon.posteriors(seen), exact),
            "tic-tac-toe": list(by_merits(model, lexicon.tables(seen), exact)),
            "masks, links told": list(at_random(model, lexicon.links(seen), exact, most)),
            "masks, links of its own": own,
        }
    return found


def latest(points: list[Point], budget: float) -> str:
    """The error at the most operations within a budget; a dash where the first has more."""
    within = [(share, error) for share, error, _ in points if share <= budget]
    return f"{max(within)[1]:.2g}" if within else "-"


def report(found: dict[str, dict[str, Any]], sizes: list[int], picture: Path) -> None:
    rows = [
        [
            *name.split(), f"{one['entropy']:.2f}", told, f"{own['correlation']:.2f}",
            *(" ".join(latest(own[way], budget) for way in WAYS) for budget in BUDGETS),
        ]
        for name, one in found.items()
        for told, own in one["told"].items()
    ]  # fmt: skip
    heads = ["words", "tau", "entropy", "told", "corr", *(f"at {share:.0%}" for share in BUDGETS)]
    show(f"squared error at a share of the operations: {', '.join(WAYS)}", heads, rows)
    for name, one in found.items():
        for sweeps, points in zip(STOPS, zip(*one["chains"], strict=False), strict=False):
            shares, errors, _ = zip(*points, strict=True)
            print(f"{name}: {len(points)} chains, links of its own, {sweeps} sweeps, "
                  f"{median(shares):.2%}: {median(errors):.2g}, {min(errors):.2g} to "
                  f"{max(errors):.2g}")  # fmt: skip
    chosen = [(n, one) for n, one in found.items() if n.split()[0] == str(sizes[-1])]
    names = list(chosen[0][1]["told"])
    figure, grid = plt.subplots(
        len(chosen), len(names), figsize=(3.3 * len(names), 2.9 * len(chosen)),
        sharex=True, sharey="row", squeeze=False,
    )  # fmt: skip
    for line, (name, one) in zip(grid, chosen, strict=True):
        for axes, told in zip(line, names, strict=True):
            own = one["told"][told]
            for (way, style), color in zip(WAYS.items(), COLORS[1::-1] + COLORS[2:], strict=False):
                shares, errors, _ = zip(*own[way], strict=True)
                errors = [max(error, 1e-6) for error in errors]
                axes.loglog(shares, errors, style, color=color, label=way, markersize=4)
            axes.set_title(
                f"temperature {name.split()[1]}; {told}, corr. {own['correlation']:.2f}", fontsize=8
            )
            axes.tick_params(labelsize=7)
    for axes in grid[-1]:
        axes.set_xlabel("operations / full recursion", fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("squared error", fontsize=8)
    grid[0, 0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(picture, dpi=90)
    plt.close(figure)
    print(f"\n{picture}")


def kept(store: Path, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Content of the cache file, computed and written if it is not there."""
    file = store / f"{name.replace(' ', '-')}.json"
    if not file.exists():
        file.with_suffix(".part").write_text(json.dumps(make()))
        file.with_suffix(".part").replace(file)
    return json.loads(file.read_text())


def main() -> None:
    asked = argparse.ArgumentParser(description="Masks at random and tic-tac-toe pruning.")
    asked.add_argument("folder", type=Path)
    asked.add_argument("--sizes", type=int, nargs="*", default=[12, 20, 30])
    asked.add_argument("--temperatures", type=float, nargs="*", default=[1.0, 3.0])
    asked.add_argument("--told", type=int, nargs="*", default=[10000, 500, 0])
    asked.add_argument("--train", type=int, default=10000)
    asked.add_argument("--small", action="store_true")
    asked.add_argument("--output", type=Path, default=Path("build/pruning"))
    given = asked.parse_args()
    if given.small:
        given.sizes, given.temperatures, given.told = [5], [1.0], [2, 0]
    torch.set_num_threads(1)
    pairs = read_pairs(given.folder, most=given.train)
    lexicon = Lexicon.trained(pairs)
    aligners = {many: Lexicon.trained(pairs, first=many) for many in given.told if many}
    order = random.Random(0)
    order.shuffle(pairs)
    store = given.output / f"regimes-{given.train}-{'-'.join(map(str, given.told))}"
    store.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Any]] = {}
    for size, temperature in product(given.sizes, given.temperatures):
        source, target = pair = joined(pairs, size)
        told = {f"{many} pairs": (aligners[many], pair) for many in given.told if many}
        if 0 in given.told:
            mixed = random.Random(1).sample(target, len(target))
            told["shuffled"] = lexicon, (source, mixed)
        both, one, other = lexicon.scores(pair)
        scores = both / temperature, one / temperature, other / temperature
        tables = [table ** (1 / temperature) for table in lexicon.tables(pair)]
        name = f"{size} {temperature:g}"
        make = partial(record, pair, scores, tables, told, 0.3)
        found[name], spent = timed(partial(kept, store, name, make))
        print(f"{size} x {size} words, temperature {temperature:g}: {spent:.0f} s", flush=True)
    report(found, given.sizes, given.output / "regimes.png")


if __name__ == "__main__":
    main()
