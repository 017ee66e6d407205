"""Training on batches of changing lengths, in ms of one core a step: log Z and its gradient.

    python tests/benchmarks/lengths.py [--steps 200] [--only WORD]

Each step has 16 items of random lengths in tensors of random sizes: T of 50 to 200 and U of 10 to
50 for CTC and alignments, 20 to 100 steps of chains and segments (8 durations, 10 labels), 5 to 25
words of trees, 5 to 20 of a grammar of 10 symbols and 5 preterminals. ``one`` is the least of steps
of one shape, of the mean size; ``first`` and ``last`` are means over a quarter of all steps.
``new / seen`` is the median ratio of a step to one of the same sizes and other numbers after it.
"""

import argparse
import time
from collections.abc import Callable

import torch

import rdpgraph as rg
from rdpgraph import Input, Lengths

BATCH, CLASSES, DURATIONS, LABELS, SYMBOLS, PRETERMINALS = 16, 40, 8, 10, 10, 5
FRAMES, TARGETS, STEPS, WORDS, SHORT = (50, 200), (10, 50), (20, 100), (5, 25), (5, 20)


class Tags(rg.Recurrence):
    """A chain of a user's own."""

    unary, transition, lengths = Input("T N"), Input("N N"), Lengths("T")
    rules = """
        a[0, n] += unary[0, n]
        a[t, n] += a[t-1, m] * transition[m, n] * unary[t, n]
        goal    += a[lengths-1, n]
    """


class Segments(rg.Recurrence):
    """A semi-Markov chain of a user's own, as docs/extending.md writes it."""

    unary, transition, lengths = Input("T D N"), Input("N N"), Lengths("T")
    rules = """
        a[t, n] += unary[t, t, n]
        a[t, n] += a[t-d-1, m] * transition[m, n] * unary[t, d, n]
        goal    += a[lengths-1, n]
    """


Make = Callable[..., tuple[Callable[[], rg.extend.Structure], torch.Tensor]]


def rows(generator: torch.Generator) -> dict[str, tuple[Make, tuple[tuple[int, int], ...]]]:
    """A structure of given sizes with its leaf, and the least and largest sizes, for each name."""

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    def lengths(most: int) -> torch.Tensor:
        return torch.randint((most + 1) // 2, most + 1, (BATCH,), generator=generator)

    transition, root = drawn(LABELS, LABELS), drawn(SYMBOLS)
    rules = rg.trees.DenseRules(drawn(SYMBOLS, *[SYMBOLS + PRETERMINALS] * 2))

    def ctc(frames: int, most: int):
        log_probs = drawn(frames, BATCH, CLASSES).log_softmax(-1).detach().requires_grad_()
        targets = torch.randint(1, CLASSES, (BATCH, most), generator=generator)
        first, second = lengths(frames), lengths(most)
        second = torch.minimum(second, first // 2)
        return lambda: rg.Alignment.ctc(log_probs, targets, first, second), log_probs

    def alignment(first: int, second: int):
        match, delete = drawn(BATCH, first, second), drawn(BATCH, first, second + 1)
        insert, sizes = drawn(BATCH, first + 1, second), (lengths(first), lengths(second))
        named = dict(zip(("first_lengths", "second_lengths"), sizes, strict=True))
        return lambda: rg.Alignment.pairwise(match, delete, insert, **named), match

    def linked(make: Callable[..., rg.extend.Structure], *shape: int) -> Make:
        def made(steps: int):
            unary, sizes = drawn(BATCH, steps, *shape), lengths(steps)
            return lambda: make(unary, transition, lengths=sizes), unary

        return made

    def trees(words: int):
        arcs, sizes = drawn(BATCH, words, words + 1), lengths(words)
        return lambda: rg.ProjectiveDependencies(arcs, lengths=sizes), arcs

    def grammar(words: int):
        terms, sizes = drawn(BATCH, words, PRETERMINALS), lengths(words)
        return lambda: rg.Hypertree.pcfg(root, rules, terms, lengths=sizes), terms

    return {
        "CTC": (ctc, (FRAMES, TARGETS)),
        "alignment": (alignment, (FRAMES, TARGETS)),
        "chain": (linked(rg.Chain, LABELS), (STEPS,)),
        "own chain": (linked(Tags, LABELS), (STEPS,)),
        "semi-Markov": (linked(rg.SemiMarkov, DURATIONS, LABELS), (STEPS,)),
        "own segments": (linked(Segments, DURATIONS, LABELS), (STEPS,)),
        "projective trees": (trees, (WORDS,)),
        "grammar": (grammar, (SHORT,)),
    }


def seconds(make: Make, sizes: list[int]) -> float:
    """CPU time of a step."""
    structure, leaf = make(*sizes)
    start = time.process_time()
    log_z = structure().log_partition()
    torch.autograd.grad(log_z.sum(), leaf)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    quarter = -(-options.steps // 4)
    print("| | one | first | last | median | new / seen |\n|---|---|---|---|---|---|")
    for name, (make, limits) in rows(generator).items():
        if options.only not in name:
            continue
        times, again = [], []
        for _ in range(options.steps):
            sizes = [int(torch.randint(a, b + 1, (), generator=generator)) for a, b in limits]
            times.append(seconds(make, sizes))
            again.append(seconds(make, sizes))
        one = min(seconds(make, [sum(pair) // 2 for pair in limits]) for _ in range(10))
        means = [sum(part) / quarter for part in (times[:quarter], times[-quarter:])]
        found = one, *means, sorted(times)[len(times) // 2]
        ratios = sorted(new / seen for new, seen in zip(times, again, strict=True))
        cells = [f"{1e3 * part:.1f}" for part in found] + [f"{ratios[len(ratios) // 2]:.2f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
