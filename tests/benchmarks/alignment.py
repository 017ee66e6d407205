"""Alignments beside torch's CTC, and bitexts: log Z and its gradient, in ms of one core.

    python tests/benchmarks/alignment.py [--repeats 10]

CTC: T = 200 frames, U = 50 labels, B = 16 items, 40 classes. Bitexts: 10 and 12 words, every pair
and null possible. Times are the least of the repeats, ours and torch's in turn. Fails where the two
disagree.
"""

import argparse
import time
from collections.abc import Callable

import torch

import rdpgraph as rg

FRAMES, LABELS, BATCH, CLASSES = 200, 50, 16, 40


def run(log_z: Callable[[], torch.Tensor], inputs: torch.Tensor) -> tuple:
    """Seconds forwards and backwards, and the value."""
    start = time.process_time()
    value = log_z()
    middle = time.process_time()
    torch.autograd.grad(value.sum(), inputs)
    return middle - start, time.process_time() - middle, value.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(FRAMES, BATCH, CLASSES, generator=generator)
    log_probs = logits.log_softmax(-1).requires_grad_()
    targets = torch.randint(1, CLASSES, (BATCH, LABELS), generator=generator)
    sizes = torch.full((BATCH,), FRAMES), torch.full((BATCH,), LABELS)
    words = torch.randn(10, 12, generator=generator).requires_grad_()
    alone = torch.zeros(10), torch.zeros(12)
    rows = {
        "CTC, torch": (
            lambda: -torch.nn.functional.ctc_loss(log_probs, targets, *sizes, reduction="none"),
            log_probs,
        ),
        "CTC, Alignment": (
            lambda: rg.Alignment.ctc(log_probs, targets, *sizes).log_partition(), log_probs,
        ),
        "Bitext, 10 x 12 words": (
            lambda: rg.Bitext.words(words, *alone).log_partition(), words,
        ),
        "Bitext in normal form": (
            lambda: rg.Bitext.words(words, *alone, normal_form=True).log_partition(), words,
        ),
    }  # fmt: skip
    found = {name: [] for name in rows}
    for _ in range(repeats):
        for name, row in rows.items():
            found[name].append(run(*row))
    print("| | forwards | backwards |\n|---|---|---|")
    for name, times in found.items():
        forwards, backwards = (1e3 * min(part[side] for part in times) for side in (0, 1))
        print(f"| {name} | {forwards:.1f} | {backwards:.1f} |")
    ours, theirs = (sum(min(part[:2] for part in found[name])) for name in list(rows)[1::-1])
    print(f"\nAlignment takes {ours / theirs:.1f} times as long as torch's CTC.")
    torch.testing.assert_close(found["CTC, torch"][0][2], found["CTC, Alignment"][0][2])


if __name__ == "__main__":
    main()
