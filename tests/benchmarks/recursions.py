"""Structures of every kind, and some that a user declares beside them.

    python tests/benchmarks/recursions.py [--seconds 0.5] [--only WORD] [--spread 1]

One process, one thread, float32, normal log-potentials of that spread in nats; milliseconds of CPU
time, the least of calls made in turns: log Z, log Z and its gradient, the mode, ten draws, the
entropy, ten relaxed draws, the ten best with scores, and gradients through the marginals, the
entropy and a relaxed draw.
``own`` is the same model as a `Recurrence` of a user, as docs/extending.md writes it; ratios are
its time over that of ours. Fails where the two disagree.
"""

import argparse
import time
from collections.abc import Callable

import torch

import rdpgraph as rg
from rdpgraph import Input

CHAINS = [(1, 32, 8), (4, 64, 8), (4, 64, 32), (4, 64, 128), (16, 256, 32)]  # items, steps, states
STEPS = [(4, 64, 32), (16, 100, 32)]  # likewise, with a transition for each step of each item
SEGMENTS = [(4, 60, 8, 16), (4, 60, 8, 64)]  # items, steps, durations, labels
GRAMMARS = [(4, 8, 3), (4, 20, 10)]  # items, words, symbols
TREES = (4, 20)  # items, words
BITEXT = (8, 8)  # words of either side
FRAMES, LABELS, BATCH, CLASSES = 200, 50, 16, 40

HEADS = [
    "log Z", "gradient", "mode", "draws", "entropy", "relaxed", "k best",
    "through marginals", "through entropy", "through relaxed",
]  # fmt: skip

Make = Callable[..., rg.extend.Structure]


class Tags(rg.Recurrence):
    """A chain of a user's own."""

    unary, transition = Input("T N"), Input("N N")
    rules = """
        a[0, n] += unary[0, n]
        a[t, n] += a[t-1, m] * transition[m, n] * unary[t, n]
        goal    += a[T-1, n]
    """


class Steps(rg.Recurrence):
    """A chain of a user's own with a transition for each step."""

    unary, transition = Input("T N"), Input("T-1 N N")
    rules = """
        a[0, n] += unary[0, n]
        a[t, n] += a[t-1, m] * transition[t-1, m, n] * unary[t, n]
        goal    += a[T-1, n]
    """


class Segments(rg.Recurrence):
    """A semi-Markov chain of a user's own."""

    unary, transition = Input("T D N"), Input("N N")
    rules = """
        a[t, n] += unary[t, t, n]
        a[t, n] += a[t-d-1, m] * transition[m, n] * unary[t, d, n]
        goal    += a[T-1, n]
    """


def rows(spread: float) -> dict[str, tuple[list[torch.Tensor], Make, Make | None]]:
    """Leaves, results of the library, and a hand-written equivalent, for each name."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
        return [spread * torch.randn(shape, generator=generator) for shape in shapes]

    def named(name: str, size: tuple[int, ...]) -> str:
        return f"{name} {' x '.join(map(str, size))}"

    found: dict[str, tuple[list[torch.Tensor], Make, Make | None]] = {}
    for size in CHAINS:
        found[named("chain", size)] = drawn(size, (size[-1],) * 2), rg.Chain, Tags
    for items, steps, states in STEPS:
        leaves = drawn((items, steps, states), (items, steps - 1, states, states))
        found[named("steps", (items, steps, states))] = leaves, rg.Chain, Steps
    for size in SEGMENTS:
        leaves = drawn(size, (size[-1],) * 2)
        found[named("segments", size)] = leaves, rg.SemiMarkov, Segments
    for items, words, symbols in GRAMMARS:
        leaves = drawn((items, words, words, symbols), (symbols,) * 3)
        found[named("grammar", (items, words, symbols))] = (
            leaves, lambda unary, rules: rg.Hypertree(unary, rg.trees.DenseRules(rules)), None,
        )  # fmt: skip
    items, words = TREES
    found[named("projective trees", TREES)] = (
        drawn((items, words, words + 1)), rg.ProjectiveDependencies, None,
    )  # fmt: skip
    source, target = BITEXT
    alone = torch.zeros(source), torch.zeros(target)
    found[named("bitext", BITEXT)] = (
        drawn(BITEXT), lambda pairs: rg.Bitext.words(pairs, *alone), None,
    )  # fmt: skip
    targets = torch.randint(1, CLASSES, (BATCH, LABELS), generator=generator)
    sizes = torch.full((BATCH,), FRAMES), torch.full((BATCH,), LABELS)
    found[named("alignment", (BATCH, FRAMES, LABELS))] = (
        [part.log_softmax(-1) for part in drawn((FRAMES, BATCH, CLASSES))],
        lambda log_probs: rg.Alignment.ctc(log_probs, targets, *sizes), None,
    )  # fmt: skip
    return found


def questions(make: Make, leaves: list[torch.Tensor]) -> list[Callable[[], torch.Tensor]]:
    """Questions that `HEADS` names; the structure is made anew for each."""
    watched = [leaf.clone().requires_grad_() for leaf in leaves]

    def gradient(value: torch.Tensor) -> torch.Tensor:
        torch.autograd.grad(value.square().sum(), watched, allow_unused=True)
        return value.detach()

    generator = torch.Generator().manual_seed(0)

    def relaxed(count: int, leaves: list[torch.Tensor]) -> torch.Tensor:
        return make(*leaves).rsample(count, temperature=0.5, generator=generator)

    return [
        lambda: make(*leaves).log_partition(),
        lambda: gradient(make(*watched).log_partition()),
        lambda: make(*leaves).mode(),
        lambda: make(*leaves).sample(10, generator),
        lambda: make(*leaves).entropy(),
        lambda: relaxed(10, leaves),
        lambda: make(*leaves).k_best(10).scores,
        lambda: gradient(make(*watched).marginals()),
        lambda: gradient(make(*watched).entropy()),
        lambda: gradient(relaxed(1, watched)),
    ]


def least(works: list[Callable], seconds: float) -> list[float]:
    """The least milliseconds of each, called in turns."""
    best, until = [float("inf")] * len(works), time.process_time() + seconds * len(works)
    for turn in range(10**9):
        if turn > 2 and time.process_time() > until:
            break
        for place, work in enumerate(works):
            start = time.process_time_ns()
            work()
            best[place] = min(best[place], (time.process_time_ns() - start) / 1e6)
    return best


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", default="", help="a word of the names of the rows")
    parser.add_argument("--spread", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = HEADS + [f"{own}{head}" for head in HEADS for own in ("own ", "ratio of ")]
    print(f"| | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    for name, (leaves, make, own) in rows(options.spread).items():
        if options.only not in name:
            continue
        ours = questions(make, leaves)
        theirs = [] if own is None else questions(own, leaves)
        for work, other in [(ours[place], theirs[place]) for place in (0, 4, 6) if theirs]:
            torch.testing.assert_close(other(), work(), rtol=1e-4, atol=1e-3)
        times = least([*ours, *theirs], options.seconds)
        pairs = zip(times[len(ours) :], times, strict=False)
        cells = times[: len(ours)] + [cell for other, one in pairs for cell in (other, other / one)]
        shown = [f"{cell:.2f}" for cell in cells] + ["-"] * (len(heads) - len(cells))
        print(f"| {name} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
