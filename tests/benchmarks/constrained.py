"""Seconds a word, and memory, of hidden Markov models of low rank that an automaton constrains.

python tests/benchmarks/constrained.py [--states 32768] [--rank 256] [--words 50000] [--length 32]
"""

import argparse
import resource
import statistics
import time

import torch

import rdpgraph as rg

PHRASES, PHRASE = 7, 8
"""Number of phrases, and of words in each: an automaton of 50 states where there are 7 of 8."""


def factors(rows, columns, rank, generator):
    """Log-probabilities of low rank, of softmaxes as unlike as those of trained models."""
    sides = (2 * torch.randn(size, rank, generator=generator) for size in (rows, columns))
    return rg.LowRank.normalised(*sides)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, size in (("states", 32768), ("rank", 256), ("words", 50000), ("length", 32)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    states, words, rank = options.states, options.words, options.rank
    start = torch.randn(states, generator=generator).log_softmax(0)
    follows = factors(states, states, rank, generator)
    shows = factors(states, words, rank, generator)
    phrases = torch.randint(words, (PHRASES, PHRASE), generator=generator).tolist()
    some = rg.nn.Pattern.containing(phrases, words)
    kinds = {"one of the phrases": some, "none of them": ~some}
    print(f"{states} states, rank {rank}, {words} words, {options.length} to come")
    print("| constraint | states | prepared (s) | batch | a word (ms) | of one core (ms) | MB |")
    print("|---|---|---|---|---|---|---|")
    for name, pattern in kinds.items():
        length = options.length
        model = rg.nn.ConstrainedHMM(start, follows, shows, pattern.automaton(length))
        begun = time.perf_counter()
        model.log_partition()
        prepared = time.perf_counter() - begun
        for batch in options.batch:
            prefix, spans, used = model.begin(batch), [], []
            for _ in range(length):
                begun, own = time.perf_counter(), time.process_time()
                met = model.log_met(prefix)
                word = met.add(torch.randn(met.shape, generator=generator)).argmax(1)
                prefix = model.advance(prefix, word)
                spans.append(time.perf_counter() - begun)
                used.append(time.process_time() - own)
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"| {name} | {len(pattern.accepted)} | {prepared:.1f} | {batch} | "
                f"{1000 * statistics.median(spans):.1f} | {1000 * statistics.median(used):.1f} | "
                f"{most:.0f} |"
            )  # fmt: skip


if __name__ == "__main__":
    main()
