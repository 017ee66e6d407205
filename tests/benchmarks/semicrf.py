"""A SemiCRF on one long sequence: seconds and the memory of the process.

``python tests/benchmarks/semicrf.py``: 100,000 steps, 24 tags, durations up to 100.
"""

import argparse
import resource
from time import perf_counter

import torch

from rdpgraph import Segmentation
from rdpgraph.nn import SemiCRF


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--tags", type=int, default=24)
    parser.add_argument("--durations", type=int, default=100)
    options = parser.parse_args()
    source = torch.Generator().manual_seed(0)
    crf = SemiCRF(options.tags, options.durations)
    emissions = torch.randn(1, options.steps, options.tags, generator=source, requires_grad=True)
    places = torch.arange(options.steps).unsqueeze(0)
    lasting = (options.durations + 1) // 2
    whole = Segmentation(places // lasting % options.tags, places % lasting == 0)
    start = perf_counter()
    loss = -crf(emissions, whole)
    middle = perf_counter()
    loss.backward()
    back = perf_counter()
    crf.decode(emissions)
    print(f"loss {middle - start:.1f} s, gradient {back - middle:.1f} s", end=", ")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"decode {perf_counter() - back:.1f} s; {peak:.0f} MB")


if __name__ == "__main__":
    main()
