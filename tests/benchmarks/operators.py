"""Seconds and memory of chains of 10^5 states with bands, a diagonal beside low rank, and blocks.

OMP_NUM_THREADS=1 python tests/benchmarks/operators.py [--width 316] [--steps 20] [--only blocks]
"""

import argparse
import resource
import time

import torch

import rdpgraph as rg


def transitions(width, generator):
    """Transitions of width^2 states, by name."""
    states = width**2

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    return {
        "a band of 5": lambda: rg.Banded.normalised(draw(states, 5), (-2, -1, 0, 1, 2)),
        "a diagonal and rank 16": lambda: rg.Banded.normalised(
            draw(states, 1), (0,), rg.LowRank(draw(states, 16), draw(states, 16))
        ),
        "blocks": lambda: rg.Monarch.normalised(draw(width, width, width), draw(*3 * (width,))),
    }


QUESTIONS = {
    "log Z": lambda chain: chain.log_partition(),
    "and gradients": lambda chain: chain.log_partition().backward(),
    "marginals": lambda chain: chain.marginals(),
    "ten samples": lambda chain: chain.sample(10, torch.Generator().manual_seed(0)),
    "entropy": lambda chain: chain.entropy(),
    "mode": lambda chain: chain.mode(),
    "max-marginals": lambda chain: chain.max_marginals(),
    "3 best": lambda chain: chain.k_best(3),
}
SHORT = ("entropy", "mode", "max-marginals", "3 best")
"""Questions that form N^2 values where the log-values are sums: not asked of 10^5 states."""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=316)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    print(f"{options.width**2:,} states, {options.steps} steps; seconds of CPU")
    print(f"| transition | {' | '.join(QUESTIONS)} | MB so far |")
    print(f"|---|{'---|' * len(QUESTIONS)}---|")
    for name, make in transitions(options.width, generator).items():
        if options.only not in name:
            continue
        transition, cells = make(), []
        unary = torch.randn(options.steps, options.width**2, generator=generator)
        for asked, ask in QUESTIONS.items():
            if asked in SHORT and not transition.additive and options.width > 64:
                cells.append("")
                continue
            learned = asked == "and gradients"
            tensors = [part.detach().requires_grad_(learned) for part in transition.tensors]
            chain = rg.Chain(unary, transition.replaced(tensors))
            begun = time.process_time()
            ask(chain)
            cells.append(f"{time.process_time() - begun:.1f}")
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"| {name} | {' | '.join(cells)} | {most:.0f} |", flush=True)


if __name__ == "__main__":
    main()
