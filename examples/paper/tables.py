"""Tables 2 to 5 of the paper in one command: ours, the paper's figure and the ratio of both.

    python examples/paper/tables.py [--tables log-z entropy hypertrees bias proposals vae]
        [--states 2000 10000] [--set] [--seeds 3] [--repeats 100] [--store FILE] [--kept] [--quick]

Rows are printed as Markdown when they are complete. What has been found is kept in the store, a
line for each estimator on each model, so that a run that was ended goes on from there; --kept
prints what is there and computes nothing. Begin another store after a change to the library.

A cell is the mean of ours over the seeds; after the slash stands the paper's figure, and in
parentheses ours over it. Rows of this library's own estimators have no figure in the paper: in
parentheses stands how many times less their error is than that of the paper's setting with as many
states, on the same models. A second part compares the rows of a table, ours and the paper's.

"Top" rows of the paper are of 500 and 1,000 states whatever the number of all. At 2,000 states the
paper's potentials came from a trained network and are not public, so that its figures are of other
potentials; with --set ours have the entropies that its kinds have, about. The paper does not say
how many states were kept for Table 4: here it is 10%. Table 5 trains models, as table5.py does.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import hypertree
import matplotlib as mpl
import matplotlib.pyplot as plt
import table5
import torch
from measure import (
    STORE,
    Ask,
    Embedded,
    Found,
    Missing,
    Problem,
    cases,
    default,
    entropy,
    kept,
    log_z,
    mean,
    paper,
    parsed,
    parser_of,
    piloted,
    repeated,
    top,
    truth_of,
)
from potentials import KINDS, NATS, Case
from torch import Tensor

import rdpgraph as rg

Figures = dict[str, tuple[float, ...]]

# By question and number of states, the paper's figures for dense, intermediate and long-tail.
SQUARED_ERRORS: dict[tuple[str, int], Figures] = {
    ("log-z", 2000): {
        "Top, 500": (3.874, 1.015, 0.162),
        "Top, 1,000": (0.990, 0.251, 0.031),
        "the paper's setting, 1%": (0.146, 0.066, 0.076),
        "the paper's setting, 10%": (0.067, 0.033, 0.055),
        "the paper's setting, 20%": (0.046, 0.020, 0.026),
    },
    ("log-z", 10_000): {
        "Top, 500": (6.395, 6.995, 6.381),
        "Top, 1,000": (2.134, 2.013, 1.647),
        "the paper's setting, 1%": (0.078, 0.616, 0.734),
        "the paper's setting, 10%": (0.024, 0.031, 0.024),
        "the paper's setting, 20%": (0.004, 0.003, 0.003),
    },
    ("entropy", 2000): {
        "Top, 500": (443.7, 84.35, 8.011),
        "Top, 1,000": (131.8, 22.100, 1.816),
        "the paper's setting, 1%": (5.925, 1.989, 0.691),
        "the paper's setting, 10%": (2.116, 1.298, 0.316),
        "the paper's setting, 20%": (1.326, 0.730, 0.207),
    },
    ("entropy", 10_000): {
        "Top, 500": (227.36, 171.97, 141.91),
        "Top, 1,000": (85.063, 59.877, 46.853),
        "the paper's setting, 1%": (6.450, 6.379, 4.150),
        "the paper's setting, 10%": (0.513, 1.539, 0.275),
        "the paper's setting, 20%": (0.144, 0.080, 0.068),
    },
    ("hypertrees", 2000): {
        "Top, 500": (36.127, 27.435, 21.78),
        "Top, 1,000": (2.842, 2.404, 2.047),
        "the paper's setting, 1%": (26.331, 37.669, 48.863),
        "the paper's setting, 10%": (1.193, 1.530, 1.384),
        "the paper's setting, 20%": (0.445, 0.544, 0.599),
    },
    ("hypertrees", 10_000): {
        "Top, 500": (78.632, 63.762, 43.556),
        "Top, 1,000": (35.929, 26.677, 17.099),
        "the paper's setting, 1%": (3.376, 5.012, 7.256),
        "the paper's setting, 10%": (0.299, 0.447, 0.576),
        "the paper's setting, 20%": (0.148, 0.246, 0.294),
    },
}
# Table 3, of 2,000 states: bias and variance of dense, then of long-tail.
BIASES: Figures = {
    "Top, 500": (-1.968, 0.0, -0.403, 0.0),
    "Top, 1,000": (-0.995, 0.0, -0.177, 0.0),
    "the paper's setting, 1%": (-0.066, 0.141, -0.050, 0.074),
    "the paper's setting, 10%": (-0.030, 0.066, -0.027, 0.054),
    "the paper's setting, 20%": (-0.013, 0.046, -0.003, 0.026),
}
# Table 4, of 2,000 states.
PROPOSALS: Figures = {
    "uniform": (0.655, 11.05, 0.160),
    "local": (2.908, 9.171, 0.481),
    "global": (0.453, 0.096, 0.100),
    "local and global, its code": (0.028, 0.017, 0.022),
}
SHARES = (0.01, 0.1, 0.2)
OWN = {"default": default, "with a pilot": piloted}
COLORS = {
    "Top": "#9aa5ae", "the paper's setting": "#c8553d", "default": "#5b9bd5",
    "with a pilot": "#1d4e79",
}  # fmt: skip
PAPERS, BASE = "the paper's setting", "the paper's setting, 10%"

Make = Callable[[Any], rg.Randomized]
Measure = Callable[[Found], float]


def squared_error(found: Found) -> float:
    return found.mse


def bias(found: Found) -> float:
    return found.bias


def variance(found: Found) -> float:
    return found.variance


def written(value: float) -> str:
    """Three digits; large numbers whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@dataclass(frozen=True)
class Table:
    """One table of the paper.

    Attributes:
        title: what is measured.
        models: by the name of a column, the models of its seeds.
        rows: by name, the estimator of a model.
        measures: of the errors of an estimator; a column of the models has one for each.
        ask: the question.
        printed: the paper's figures of a row, in the order of the columns.
        base: the row that others are compared with.
        less: the row that a row of our own is compared with.
        key: what tells its rows from those of the same name in a store.
        picture: the file of a picture of it.
    """

    title: str
    models: Mapping[str, Sequence[Problem]]
    rows: dict[str, Make]
    measures: tuple[Measure, ...] = (squared_error,)
    ask: Ask = log_z
    printed: Figures = field(default_factory=Figures)
    base: str = BASE
    less: dict[str, str] = field(default_factory=dict[str, str])
    key: str = ""
    picture: Path | None = None

    def results(self, name: str, repeats: int) -> list[float | None]:
        """The mean over the seeds for each column of a row; None where nothing has been found."""
        results = list[float | None]()
        for models in self.models.values():
            found: list[Found] = []
            for one in models:
                with suppress(Missing):
                    found.append(self.found(one, name, repeats))
            results += [
                mean([measure(each) for each in found]) if found else None
                for measure in self.measures
            ]
        return results

    def found(self, one: Problem, name: str, repeats: int) -> Found:
        """The errors of one estimator on one model."""
        truth, _ = truth_of(one, self.ask)
        return repeated(
            one, truth, self.rows[name](one), repeats, name=self.key + name, ask=self.ask
        )

    def lines(self, repeats: int) -> Iterator[str]:
        """The table in Markdown, and the table of the ratios of its rows."""
        names = [
            f"{name}, {measure.__name__}" if len(self.measures) > 1 else name
            for name in self.models
            for measure in self.measures
        ]
        head = f"| | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}"
        yield f"\n{self.title}\n\n{head}"
        every: dict[str, list[float | None]] = {}
        for name in self.rows:
            every[name] = self.results(name, repeats)
            cells = [self.cell(every, name, column) for column in range(len(names))]
            yield f"| {name} | {' | '.join(cells)} |"
        if squared_error in self.measures and self.base in self.printed:
            yield f"\nErrors as multiples of that of {self.base}\n\n{head}"
            for name in self.printed:
                if name in every and name != self.base:
                    cells = [self.multiple(every, name, column) for column in range(len(names))]
                    yield f"| {name} | {' | '.join(cells)} |"

    def cell(self, every: dict[str, list[float | None]], name: str, column: int) -> str:
        """Ours, and what it is compared with."""
        ours = every[name][column]
        if ours is None:
            return "-"
        text, theirs = written(ours), self.figure(name, column)
        if theirs is not None:
            ratio = f" ({written(ours / theirs)})" if ours and theirs else ""
            return f"{text} / {theirs:g}{ratio}"
        of = every[self.less[name]][column] if self.less.get(name) in every else None
        if of and ours and squared_error in self.measures:
            times = f"{written(of / ours)}x less" if of > ours else f"{written(ours / of)}x more"
            return f"{text} ({times})"
        return text

    def multiple(self, every: dict[str, list[float | None]], name: str, column: int) -> str:
        """The row over the base: ours / the paper's."""
        ours, of = every[name][column], every[self.base][column]
        theirs, of_theirs = self.figure(name, column), self.figure(self.base, column)
        one = written(ours / of) if ours is not None and of else "-"
        other = written(theirs / of_theirs) if theirs is not None and of_theirs else "-"
        return f"{one} / {other}"

    def figure(self, name: str, column: int) -> float | None:
        """The paper's figure of a cell."""
        figures = self.printed.get(name, ())
        return figures[column] if column < len(figures) else None


def estimators(states: int, tops: Sequence[float], *, trees: bool = False) -> dict[str, Make]:
    """The rows of tables 2 and 3."""
    best, setting = (hypertree.top, hypertree.paper) if trees else (top, paper)
    rows: dict[str, Make] = {
        f"Top, {keep:,}": partial(best, keep=keep) for keep in (500, 1000) if keep < states
    }
    shares = [share for share in tops if f"Top, {kept(share, states):,}" not in rows]
    rows |= {f"Top, {share:.0%}": partial(best, keep=kept(share, states)) for share in shares}
    for name, make in {PAPERS: setting, **OWN}.items():
        rows |= {
            f"{name}, {share:.0%}": partial(make, keep=kept(share, states)) for share in SHARES
        }
    return rows


def over_papers() -> dict[str, str]:
    """The row of the paper's setting with as many states, by rows of our own."""
    return {f"{name}, {s:.0%}": f"{PAPERS}, {s:.0%}" for name in OWN for s in SHARES}


def proposals(norms: Tensor) -> dict[str, rg.randomized.Proposal]:
    """Those of table 4, and ours, given the norms of the embeddings of the states."""
    released = Embedded(norms)
    return {
        "uniform": rg.randomized.Uniform(),
        "local": rg.randomized.Local(),
        "global": released,
        "local and global, its code": rg.randomized.LocalGlobal(released),
        "local and global, as printed": rg.randomized.LocalGlobal(rg.randomized.Global()),
        "landmarks": rg.randomized.Landmark(),
        "the default's": rg.Randomized.default(keep=2).proposal,
        "a pilot's": rg.randomized.Pilot(),
    }


def with_proposal(one: Case, name: str, selection: rg.randomized.Selection) -> rg.Randomized:
    """The estimator of table 4."""
    return rg.Randomized(proposals(one.norms)[name], selection, defensive=0.0)


def tables_of_proposals(
    states: int, models: dict[str, Sequence[Case]], told: str
) -> Iterator[Table]:
    """Table 4: the paper's selection, and half the likeliest beside a systematic sample."""
    keep, less = kept(0.1, states), "local and global, its code"
    names = list(proposals(torch.ones(states)))
    paired = rg.randomized.TopSystematic(keep // 2, keep - keep // 2)
    for title, selection in (
        (f"{keep - 1} likeliest and one draw", rg.randomized.TopTail(keep - 1, 1)),
        ("half the likeliest and half drawn", paired),
    ):
        rows: dict[str, Make] = {
            name: partial(with_proposal, name=name, selection=selection) for name in names
        }
        papers = title.startswith(str(keep - 1))
        yield Table(
            f"Table 4, squared error of log Z, {keep} of {told}: {title}", models, rows,
            printed=PROPOSALS if papers else {}, base=less, key=f"{title}, ",
            less=dict.fromkeys(names, less) if papers else {},
        )  # fmt: skip


def tables_of(chosen: argparse.Namespace, states: int) -> Iterator[Table]:
    """The tables that are asked for, of one number of states."""
    seeds, asked = chosen.seeds, chosen.tables
    told = f"{states:,} states, {seeds} seeds, {chosen.repeats} runs"

    def chains(kinds: Sequence[str]) -> dict[str, Sequence[Case]]:
        return {
            f"{kind}, {NATS[kind]:g} nats" if chosen.set else kind: cases(
                kind, states, seeds, nats=NATS[kind] if chosen.set else None
            )
            for kind in kinds
        }

    for name, ask in (("log-z", log_z), ("entropy", entropy)):
        if name in asked:
            # The entropy of half of 10,000 states takes five gigabytes.
            tops = (0.1, 0.2, 0.5) if ask is log_z or states <= 2000 else (0.2,)
            yield Table(
                f"Table 2, squared error of {'log Z' if ask is log_z else 'the entropy'}, {told}",
                chains(chosen.kinds), estimators(states, tops), ask=ask,
                printed=SQUARED_ERRORS.get((name, states), {}), less=over_papers(),
            )  # fmt: skip
    if "hypertrees" in asked and not chosen.set:
        kinds = [*chosen.kinds, *hypertree.RULES]
        models = {
            kind: [hypertree.case(kind, states=states, seed=seed) for seed in range(seeds)]
            for kind in kinds
        }
        yield Table(
            f"Table 2, squared error of log Z of hypertrees, {told}", models,
            estimators(states, (0.01, 0.1, 0.2), trees=True),
            printed=SQUARED_ERRORS.get(("hypertrees", states), {}), less=over_papers(),
            picture=chosen.output / f"hypertrees-{states}.png",
        )  # fmt: skip
    if "bias" in asked and states <= 2000:
        kinds = [kind for kind in ("dense", "long-tail") if kind in chosen.kinds]
        yield Table(
            f"Table 3, bias and variance of log Z, {told}", chains(kinds),
            estimators(states, (0.2, 0.5)), (bias, variance),
            printed=BIASES if states == 2000 and len(kinds) == 2 else {},
        )  # fmt: skip
    if "proposals" in asked and states <= 2000:
        yield from tables_of_proposals(states, chains(chosen.kinds), told)


def main() -> None:
    parser = parser_of("Tables 2 to 5 of Fu, Cunningham and Lapata 2022.")
    every = ("log-z", "entropy", "hypertrees", "bias", "proposals", "vae")
    parser.add_argument("--tables", nargs="*", default=list(every), choices=every)
    parser.add_argument("--set", action="store_true", help=f"chains of entropies {NATS} nats")
    parser.add_argument("--kept", action="store_true", help="print the store, compute nothing")
    parser.add_argument("--text", type=Path, help="of table 5, one sentence a line")
    chosen = parsed(parser)
    mpl.use("Agg")
    chosen.kinds = [kind for kind in KINDS if kind in chosen.kinds]
    STORE.computes = not chosen.kept
    for states in chosen.states:
        for table in tables_of(chosen, states):
            for line in table.lines(chosen.repeats):
                print(line, flush=True)
            if table.picture is not None:
                draw(table, chosen.repeats, table.picture)
    if "vae" in chosen.tables and not chosen.set:
        print("\nTable 5, negative log-likelihood of a sentence in nats\n")
        trained_models(chosen)


def draw(table: Table, repeats: int, path: Path) -> None:
    """Draw the squared errors of a table's models for the shares of the states kept."""
    rows = {
        name: [table.results(f"{name}, {share:.0%}", repeats) for share in SHARES]
        for name in COLORS
    }
    figure, panels = plt.subplots(1, len(table.models), figsize=(20, 3.5), squeeze=False)
    for column, (axes, kind) in enumerate(zip(panels[0], table.models, strict=True)):
        for name, results in rows.items():
            errors = [math.nan if one[column] is None else one[column] for one in results]
            shares = [100 * share for share in SHARES]
            axes.loglog(shares, errors, "o-", color=COLORS[name], label=name)
        axes.set(title=kind, xlabel="% of the states kept")
    panels[0][0].set_ylabel("squared error of log Z (nats²)")
    panels[0][-1].legend(fontsize=8, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"\nThe picture is {path}")


def trained_models(chosen: argparse.Namespace) -> None:
    """Table 5, with its checkpoints beside the store: 100 states, and 2,000 with one seed."""
    folder = (chosen.store or Path("build/paper/tables.jsonl")).parent / "table5"
    if chosen.kept:
        for file in sorted(folder.glob("table5-*.md")):
            print(file.read_text())
        return
    tiny: dict[str, Any] = {"hidden": 8, "dimension": 4, "samples": 2, "counted": 4, "held": 4}
    tiny |= {"steps": 2, "every": 1, "least": 1, "tokens": 60, "keep": 0.5}
    options: dict[str, Any] = tiny if chosen.quick else {"every": 250}
    for states, seeds in ((8, 1),) if chosen.quick else ((100, 3), (2000, 1)):
        table5.main(folder, chosen.text, states, seeds=seeds, **options)


if __name__ == "__main__":
    main()
