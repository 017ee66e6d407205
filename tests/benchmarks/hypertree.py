"""Hypertrees beside torch-struct.

    python tests/benchmarks/hypertree.py [--peers PYTHON] [--threads COUNT] [--rounds 1]

PYTHON is the interpreter of an environment with the repository's torch-struct (or
HYPERTREE_PEERS_PYTHON):

    python3.11 -m venv peers
    peers/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    peers/bin/pip install git+https://github.com/harvardnlp/pytorch-struct

If it is not installed its column is empty. One run is log Z and its gradients in all
log-potentials of a probabilistic grammar (terms, rules, root), float32: B = 4 sentences of n = 20
words, with one set of rules for each sentence, as torch-struct takes them, and with one set for
all, which it copies. Each library runs in a process of its own; seconds are the best of the runs
(and rounds), memory is the growth of the largest resident set from before the first run. torch-
struct runs with one thread and with all, whichever is quicker; ours with ``--threads``.

The last table is of scale: rules of rank 64 (TN-PCFG's form) over 1,000 states, n = 40, B = 4.
Fails where the two disagree.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

BATCH, WORDS = 4, 20
SIZES = ((10, 20), (30, 60))  # nonterminals, preterminals
LARGE = (4, 40, 1000, 64)  # batch, words, states, rank
TOLERANCES = {"log_z": 1e-4, "terms": 1e-3, "rules": 1e-3, "root": 1e-3}
Run = Callable[[], tuple]


def log_softmax(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    top = values.max(axes, keepdims=True)
    logs = values - top
    return (logs - np.log(np.exp(logs).sum(axes, keepdims=True))).astype(np.float32)


def grammar(nonterminals: int, preterminals: int, *, shared: bool) -> dict[str, np.ndarray]:
    """Log-probabilities of a random grammar and of random words."""
    random = np.random.default_rng(0)
    children = nonterminals + preterminals
    rules = random.standard_normal((1 if shared else BATCH, nonterminals, children, children))
    return {
        "terms": log_softmax(random.standard_normal((BATCH, WORDS, preterminals)), (2,)),
        "rules": log_softmax(rules, (2, 3)),
        "root": log_softmax(random.standard_normal((BATCH, nonterminals)), (1,)),
    }


def low_rank() -> dict[str, np.ndarray]:
    """Log-potentials of spans and log-factors of rules."""
    batch, words, states, rank = LARGE
    random = np.random.default_rng(0)
    shapes = {
        "unary": (batch, words, words, states),
        "parent": (states, rank),
        "left": (states, rank),
        "right": (states, rank),
    }
    return {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }


def by_torch(log_partition: Callable, *leaves) -> Run:
    """Value and gradients of a function of leaves."""

    def run() -> tuple:
        for leaf in leaves:
            leaf.grad = None
        log_z = log_partition(*leaves)
        log_z.sum().backward()
        return log_z.detach(), *(leaf.grad for leaf in leaves)

    return run


def leaves_of(parts: dict[str, np.ndarray]) -> list:
    import torch

    return [torch.from_numpy(part).requires_grad_() for part in parts.values()]


def our_run(parts: dict[str, np.ndarray]) -> Run:
    from rdpgraph.structures.hypertree.model import Hypertree
    from rdpgraph.structures.hypertree.rules import LowRankRules

    if "unary" in parts:
        return by_torch(
            lambda unary, *factors: Hypertree(unary, LowRankRules(*factors)).log_partition(),
            *leaves_of(parts),
        )
    return by_torch(
        lambda terms, rules, root: Hypertree.pcfg(root, rules, terms).log_partition(),
        *leaves_of(parts),
    )


def struct_run(parts: dict[str, np.ndarray]) -> Run:
    import torch
    import torch_struct

    torch.distributions.Distribution.set_default_validate_args(False)

    def log_partition(terms, rules, root):
        return torch_struct.SentCFG((terms, rules.expand(BATCH, -1, -1, -1), root)).partition

    return by_torch(log_partition, *leaves_of(parts))


RUNS = {"rdpgraph": our_run, "torch-struct": struct_run}


def seconds_of(run: Run) -> tuple[float, tuple]:
    """Best time within two seconds, at least of one run after the first, and the answer."""
    answer = run()
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < 2.0:
        start = time.perf_counter()
        answer = run()
        best = min(best, time.perf_counter() - start)
    return best, answer


def child(name: str, source: str, target: str, threads: int) -> None:
    """Time one library on the potentials in a file, write its answer; in a process of its own."""
    import torch

    parts = dict(np.load(source))
    run = RUNS[name](parts)
    if threads:
        torch.set_num_threads(threads)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, answer = seconds_of(run)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if name == "torch-struct":
        torch.set_num_threads(1)
        seconds = min(seconds, seconds_of(run)[0])
    arrays = {part: a.numpy() for part, a in zip(("log_z", *parts), answer, strict=True)}
    np.savez(target, **arrays)
    print(json.dumps({"seconds": seconds, "megabytes": peak / 1e3}))


class Bench:
    """Runs libraries in their processes, where they are installed."""

    def __init__(self, options: argparse.Namespace, folder: pathlib.Path) -> None:
        self.threads, self.rounds, self.folder = options.threads, options.rounds, folder
        self.pythons = {"rdpgraph": sys.executable}
        find = "import importlib.util as u, sys; sys.exit(u.find_spec('torch_struct') is None)"
        peers = options.peers
        if peers and subprocess.run([peers, "-c", find], check=False).returncode == 0:
            self.pythons["torch-struct"] = peers

    def run(self, name: str, parts: dict[str, np.ndarray]) -> tuple[dict, dict] | None:
        """The best of the rounds, and the answer; None where it is not installed or failed."""
        if name not in self.pythons:
            return None
        source, target = self.folder / "potentials.npz", self.folder / "answer.npz"
        np.savez(source, **parts)
        command = [self.pythons[name], __file__, "--child", name, str(source), str(target)]
        command.append(str(self.threads if name == "rdpgraph" else 0))
        costs: list[dict] = []
        for _ in range(self.rounds):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
                print(f"{name} failed ({done.returncode}): {reason}", file=sys.stderr)
                return None
            costs.append(json.loads(done.stdout.strip().splitlines()[-1]))
        answer = {key: value.astype(np.float64) for key, value in np.load(target).items()}
        return min(costs, key=lambda cost: cost["seconds"]), answer


def gaps(theirs: dict, ours: dict) -> dict[str, float]:
    """Largest differences, relative to the largest of each part."""
    return {
        part: float(np.abs(theirs[part] - ours[part]).max() / np.abs(ours[part]).max())
        for part in TOLERANCES
    }


def sizes(bench: Bench) -> list[str]:
    """The table of grammars; what disagrees."""
    wrong: list[str] = []
    print(f"Value and gradients of log Z, {BATCH} sentences of {WORDS} words")
    print(f"{'NT':>4s} {'T':>4s} {'rules':>7s} {'ours, ms':>9s} {'MB':>7s} "
          f"{'torch-struct':>13s} {'MB':>7s} {'ratio':>6s}")  # fmt: skip
    for nonterminals, preterminals in SIZES:
        for shared in (False, True):
            parts = grammar(nonterminals, preterminals, shared=shared)
            ours = bench.run("rdpgraph", parts)
            if ours is None:
                sys.exit("rdpgraph failed")
            row = f"{nonterminals:>4d} {preterminals:>4d} {'shared' if shared else 'each':>7s} "
            row += f"{1e3 * ours[0]['seconds']:>9.1f} {ours[0]['megabytes']:>7.1f} "
            theirs = bench.run("torch-struct", parts)
            if theirs is not None:
                ratio = theirs[0]["seconds"] / ours[0]["seconds"]
                row += f"{1e3 * theirs[0]['seconds']:>13.1f} {theirs[0]['megabytes']:>7.1f} "
                row += f"{ratio:>6.1f}"
                for part, gap in gaps(theirs[1], ours[1]).items():
                    if not gap <= TOLERANCES[part]:
                        wrong.append(f"NT {nonterminals}: {part} {gap:.1e}")
            print(row, flush=True)
    return wrong


def main() -> None:
    """All tables; fails where the peer disagrees."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", default=os.environ.get("HYPERTREE_PEERS_PYTHON"))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(options, pathlib.Path(name))
        wrong = sizes(bench)
        batch, words, states, rank = LARGE
        found = bench.run("rdpgraph", low_rank())
        if found is None:
            sys.exit("rdpgraph failed")
        print(f"\nRules of rank {rank} over {states:,} states, {batch} sentences of {words} words")
        print(f"{found[0]['seconds']:.2f} s, {found[0]['megabytes']:.0f} MB")
    if wrong:
        sys.exit("Disagree with ours: " + "; ".join(wrong))


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(*sys.argv[2:5], int(sys.argv[5]))
    else:
        main()
