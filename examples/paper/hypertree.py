"""Table 2 of the paper, hypertrees: the squared error of log Z, and of trees that have rules.

    python examples/paper/hypertree.py [--small] [--states 2000] [--seeds 5] [--repeats 100]

The paper's potentials are those of its released code. No rules join the states of spans, and
as scores are scaled to one range span by span, all spans have the same: a sum over states for each
span, to the power of their number. Beside them are trees whose rules have rank 16: log-factors are
normal, of deviation 1 or 2, and every span has scores of its own. The paper's setting is a uniform
proposal, K / 2 states of the largest score and as many draws. Each cell is our mean over the
seeds and, after the slash, the paper's; draws ``hypertree.png``.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from measure import Found, arguments, kept, mean, row
from torch import Tensor

import rdpgraph as rg

WORDS = {2000: 15, 10_000: 5}
DIM = {2000: 100, 10_000: 50}
STEPS = {"dense": 0, "intermediate": 30, "long-tail": 50}  # of training
RULES = {"rules": 1.0, "sharp rules": 2.0}  # deviation of the log-factors
RANK, RANGE = 16, 10.0
SHARES = (0.01, 0.1, 0.2)
# The paper's rows, for dense, intermediate, long-tail.
PRINTED: dict[int, dict[str, tuple[float, float, float]]] = {
    2000: {
        "Top 500": (36.127, 27.435, 21.78),
        "Top 1000": (2.842, 2.404, 2.047),
        "paper's 1%": (26.331, 37.669, 48.863),
        "paper's 10%": (1.193, 1.530, 1.384),
        "paper's 20%": (0.445, 0.544, 0.599),
    },
    10_000: {
        "Top 500": (78.632, 63.762, 43.556),
        "Top 1000": (35.929, 26.677, 17.099),
        "paper's 1%": (3.376, 5.012, 7.256),
        "paper's 10%": (0.299, 0.447, 0.576),
        "paper's 20%": (0.148, 0.246, 0.294),
    },
}


def spread(scores: Tensor) -> Tensor:
    """Every row scaled to a range of ten nats."""
    low, high = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
    return (scores - low) * (RANGE / (high - low))


def degenerate(kind: str, *, states: int, words: int, seed: int) -> rg.Hypertree:
    """The released code's: what it adds to a state's score from the words is scaled away."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.rand(states, DIM.get(states, 50), generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([embeddings], lr=1e-4)
    for _ in range(STEPS[kind]):
        loss = torch.distributions.Categorical(logits=spread(embeddings.sum(1))).entropy()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return rg.Hypertree(spread(embeddings.detach().sum(1)).expand(words, words, states))


def ruled(kind: str, *, states: int, words: int, seed: int) -> rg.Hypertree:
    """Scores of spans by the embeddings of their ends, and random rules of low rank."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(states, 50, generator=generator)
    ends = torch.randn(2, words, 50, generator=generator)
    scores = (ends[0].unsqueeze(1) + ends[1]) @ embeddings.mT
    factors = (RULES[kind] * torch.randn(states, RANK, generator=generator) for _ in range(3))
    return rg.Hypertree(spread(scores), rg.trees.LowRankRules(*factors))


def tree(kind: str, *, states: int, seed: int) -> rg.Hypertree:
    make = ruled if kind in RULES else degenerate
    return make(kind, states=states, words=WORDS.get(states, 6), seed=seed)


@dataclass(frozen=True)
class Row:
    """One line of the table: an estimator that keeps some states."""

    name: str
    make: Callable[[int], rg.Randomized]
    keep: int


def paper(keep: int) -> rg.Randomized:
    half = keep // 2
    return rg.Randomized(
        rg.randomized.Uniform(), rg.randomized.TopTail(half, keep - half), defensive=0.0
    )


def top(keep: int) -> rg.Randomized:
    return rg.Randomized(rg.randomized.Local(), rg.randomized.Top(keep), defensive=0.0)


def default(keep: int) -> rg.Randomized:
    return rg.Randomized.default(keep=keep)


def piloted(keep: int) -> rg.Randomized:
    return rg.Randomized.piloted(keep=keep)


NAMED = (("paper's", paper), ("default", default), ("with pilot", piloted))
COLORS = {"Top": "#9aa5ae", "paper's": "#c8553d", "default": "#5b9bd5", "with pilot": "#1d4e79"}


def rows_of(states: int) -> list[Row]:
    rows = [Row(f"Top {keep}", top, keep) for keep in (500, 1000) if keep < states]
    rows += [Row(f"Top {share:.0%}", top, kept(share, states)) for share in (*SHARES, 0.5)]
    for name, make in NAMED:
        rows += [Row(f"{name} {share:.0%}", make, kept(share, states)) for share in SHARES]
    return rows


def repeated(model: rg.Hypertree, truth: float, estimator: rg.Randomized, repeats: int) -> Found:
    """Repeated answers of an estimator; one answer if it is deterministic."""
    generator = torch.Generator().manual_seed(1)
    repeats = 1 if isinstance(estimator.selection, rg.randomized.Top) else repeats
    start = time.perf_counter()
    answers = [
        rg.infer(model, estimator=estimator, generator=generator).log_partition.double()
        for _ in range(repeats)
    ]
    spent = (time.perf_counter() - start) * 1e3 / repeats
    return Found(torch.stack(answers) - truth, spent)


def table(states: int, kinds: list[str], seeds: int, repeats: int) -> dict[tuple[str, str], float]:
    """Prints the squared errors; gives them by row and kind."""
    rows = rows_of(states)
    errors: dict[tuple[str, str], list[float]] = {}
    times: dict[str, list[float]] = {line.name: [] for line in rows}
    for kind in kinds:
        for seed in range(seeds):
            model = tree(kind, states=states, seed=seed)
            truth = float(model.log_partition().double())
            for line in rows:
                found = repeated(model, truth, line.make(line.keep), repeats)
                errors.setdefault((line.name, kind), []).append(found.mse)
                times[line.name].append(found.milliseconds)
    words = WORDS.get(states, 6)
    print(f"\n{words} words, {states:,} states, {seeds} seeds, {repeats} runs; ours / the paper's")
    row("", kinds)
    result = {place: mean(values) for place, values in errors.items()}
    printed = PRINTED.get(states, {})
    for line in rows:
        cells: list[str] = []
        for kind in kinds:
            theirs = printed.get(line.name) if kind in STEPS else None
            shown = f" / {theirs[list(STEPS).index(kind)]:g}" if theirs else ""
            cells.append(f"{result[line.name, kind]:.3g}{shown}")
        row(f"{line.name} ({mean(times[line.name]):.0f} ms)", cells)
    for name, _ in NAMED[1:]:
        for share in SHARES:
            pairs = [(f"paper's {share:.0%}", kind) for kind in kinds]
            gains = [result[pair] / result[f"{name} {share:.0%}", pair[1]] for pair in pairs]
            row(f"paper's over {name} {share:.0%}", [f"{gain:.0f}x" for gain in gains])
    return result


if __name__ == "__main__":
    chosen = arguments("Table 2 of Fu, Cunningham and Lapata 2022, hypertrees.")
    kinds = [*chosen.kinds, *RULES]
    size = (4 * len(kinds), 3.5 * len(chosen.states))
    figure, grid = plt.subplots(len(chosen.states), len(kinds), figsize=size, squeeze=False)
    for line, states in zip(grid, chosen.states, strict=True):
        found = table(states, kinds, chosen.seeds, chosen.repeats)
        for axes, kind in zip(line, kinds, strict=True):
            for name, color in COLORS.items():
                shown = [found[f"{name} {share:.0%}", kind] for share in SHARES]
                axes.loglog([100 * share for share in SHARES], shown, "o-", color=color, label=name)
            axes.set(title=f"{kind}, {states:,} states", xlabel="% of the states kept")
        line[0].set_ylabel("squared error of log Z (nats²)")
    grid[0][-1].legend()
    figure.tight_layout()
    figure.savefig(chosen.output / "hypertree.png", dpi=120)
    print(f"\nThe picture is {chosen.output / 'hypertree.png'}")
