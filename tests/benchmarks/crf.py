"""The CRF layer beside pytorch-crf's: decoding, the log-likelihood and its gradient.

    python tests/benchmarks/crf.py [--seconds 0.5] [--large] [--torch | --beside]

One process, one thread, float32, the same parameters; milliseconds of CPU time, the least of many
calls made in turns. Ratios are pytorch-crf's time over ours: below 1 we are slower. Where there is
a mask, half of the items are shorter. Samples and k best have no counterpart there. ``--large``
adds 64 x 512 x 200, whose gradient pytorch-crf needs 5 GB for and is left out; ``--torch`` shows
what is left without a compiled kernel, and ``--beside`` that and the kernel in turns.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable

import torch
import torchcrf

from rdpgraph.nn import CRF
from rdpgraph.recurrences.executor import LIBRARY

SIZES = [
    (1, 10, 5), (1, 30, 9), (1, 100, 9), (8, 30, 9), (32, 50, 9), (4, 64, 32), (64, 128, 50),
    (1, 512, 200), (16, 100, 200),
]  # fmt: skip
MOST = 2**28  # products of the steps of what is differentiated in pytorch-crf


def least(works: list[Callable], seconds: float) -> list[float]:
    """The least milliseconds of each, called in turns."""
    best = [float("inf")] * len(works)
    until = time.perf_counter() + seconds * len(works)
    for turn in range(10**9):
        if turn > 2 and time.perf_counter() > until:
            break
        for place, work in enumerate(works):
            start = time.process_time_ns()
            work()
            best[place] = min(best[place], (time.process_time_ns() - start) / 1e6)
    return best


def training(layer, emissions: torch.Tensor, tags: torch.Tensor, mask: torch.Tensor) -> Callable:
    """A step without an optimizer."""

    def step() -> None:
        layer.zero_grad()
        layer(emissions.detach().requires_grad_(), tags, mask).backward()

    return step


def measured(batch: int, steps: int, count: int, seconds: float) -> list[float]:
    """A row of the table; fails where the layers decode differently."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    emissions = torch.randn(batch, steps, count, generator=generator)
    tags = torch.randint(count, (batch, steps), generator=generator)
    lengths = torch.randint(1, steps + 1, (batch,), generator=generator)
    lengths[::2] = steps
    mask = torch.arange(steps) < lengths.unsqueeze(1)
    ours, theirs = CRF(count, batch_first=True), torchcrf.CRF(count, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    row: list[float] = []
    with torch.no_grad():
        if ours.decode(emissions, mask) != theirs.decode(emissions, mask):
            sys.exit(f"Decoded differently at {batch} x {steps} x {count}.")
        for given in (None, mask):
            works = [
                lambda g=given: ours.decode(emissions, g),
                lambda g=given: theirs.decode(emissions, g),
            ]
            own, other = least(works, seconds)
            row += [own, other, other / own]
    train = [training(layer, emissions, tags, mask) for layer in (ours, theirs)]
    if batch * steps * count**2 < MOST:
        own, other = least(train, seconds)
        row += [own, other, other / own]
    else:
        row += [*least(train[:1], seconds), float("nan"), float("nan")]
    chain = ours.chain(emissions, mask)
    with torch.no_grad():
        return row + least([lambda: chain.sample(10, generator), lambda: chain.k_best(5)], seconds)


def beside(batch: int, steps: int, count: int, seconds: float) -> list[float]:
    """Milliseconds by the kernel and without it, and their ratio, of five questions."""
    generator = torch.Generator().manual_seed(0)
    emissions = torch.randn(batch, steps, count, generator=generator)
    tags = torch.randint(count, (batch, steps), generator=generator)
    layer = CRF(count, batch_first=True)
    layer.transitions.data = torch.randn(count, count, generator=generator)
    with torch.no_grad():
        chain = layer.chain(emissions)
    works = [
        lambda: layer.chain(emissions.detach()).log_partition().detach(),
        training(layer, emissions, tags, torch.ones(batch, steps, dtype=torch.bool)),
        lambda: layer.decode(emissions),
        lambda: chain.sample(10, generator),
        lambda: chain.k_best(5).states,
    ]
    compiled, row = LIBRARY.available, list[float]()

    def routed(work: Callable, *, kernel: bool) -> Callable:
        def run() -> None:
            LIBRARY.available = compiled if kernel else lambda *_: False
            work()

        return run

    for work in works:
        own, other = least([routed(work, kernel=True), routed(work, kernel=False)], seconds)
        row += [own, other, other / own]
    LIBRARY.available = compiled
    return row


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--beside", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.torch:
        LIBRARY.available = lambda *_: False
    print("in torch alone" if options.torch else LIBRARY.status)
    compared = [head for name in ("decode", "masked", "grad") for head in (name, "crf", "ratio")]
    heads = [*compared, "10 draws", "5 best"]
    if options.beside:
        asked = ("log Z", "grad", "decode", "10 draws", "5 best")
        heads = [head for name in asked for head in (name, "torch", "ratio")]
        SIZES.insert(3, (1, 300, 9))
        SIZES.insert(4, (1, 1000, 9))
    print(f"{'B':>3s} {'T':>4s} {'N':>4s} " + " ".join(f"{head:>8s}" for head in heads))
    for size in SIZES + [(64, 512, 200)] * options.large:
        row = (beside if options.beside else measured)(*size, options.seconds)
        cells = " ".join(f"{value:>8.3f}" if value < 100 else f"{value:>8.0f}" for value in row)
        print("{:>3d} {:>4d} {:>4d}".format(*size), cells, flush=True)


if __name__ == "__main__":
    main()
