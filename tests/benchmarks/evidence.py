"""Evidence that changes in a loop: a 100 x 100 grid, one pixel or a third of them at a time.

    python tests/benchmarks/evidence.py [--repeats 30]

CPU milliseconds, the least of the repeats, on one thread: of `condition` alone, and of `condition`
with the reduction of the model and the plan that `infer` makes. Run it in two checkouts to compare.
"""

import argparse
import time

import torch

import rdpgraph as rg


def least(call, repeats):
    call()
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        call()
        best = min(best, time.process_time() - begin)
    return 1e3 * best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--side", type=int, default=100)
    options = parser.parse_args()
    repeats, side = options.repeats, options.side
    torch.set_num_threads(1)
    pixels = rg.VariableArray("pixel", (side, side), 2)
    coupling = rg.Table(torch.tensor([[0.5, -0.5], [-0.5, 0.5]]))
    unary = torch.randn(side, side, 2, generator=torch.Generator().manual_seed(0))
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((pixels[:, :-1], pixels[:, 1:]), coupling),
            rg.FactorBlock((pixels[:-1], pixels[1:]), coupling),
            rg.FactorBlock((pixels,), rg.Table(unary)),
        ]
    )
    third = torch.full((side, side), -1)
    third[::3] = 1
    seen = [(row, column) for row in range(0, side, 3) for column in range(side)]
    loopy = rg.Loopy(sweeps=20)
    cases = {
        "one pixel": {pixels[3, 4]: 1},
        "a third, as a tensor": {pixels: third},
        "a third, one by one": {pixels[at]: 1 for at in seen},
        "a third, by name": {f"pixel[{row}, {column}]": 1 for row, column in seen},
    }
    for name, evidence in cases.items():
        alone = least(lambda e=evidence: graph.condition(e), repeats)
        planned = least(lambda e=evidence: rg.infer(graph.condition(e), scheduler=loopy), repeats)
        print(f"{name:22} condition {alone:8.2f} ms   with infer's plan {planned:8.2f} ms")


if __name__ == "__main__":
    main()
