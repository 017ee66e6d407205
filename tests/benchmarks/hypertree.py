"""Hypertrees beside torch-struct and synjax.

    python tests/benchmarks/hypertree.py [--torch-struct PYTHON] [--synjax PYTHON] [--threads COUNT]

Each PYTHON is the interpreter of an environment with that library (or the variables
HYPERTREE_TORCH_STRUCT and HYPERTREE_SYNJAX); one that is not there is left out, and a line says so.

    python3.11 -m venv one
    one/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    one/bin/pip install git+https://github.com/harvardnlp/pytorch-struct
    python3.11 -m venv two
    two/bin/pip install jax==0.4.30 jaxlib==0.4.30 'numpy<2' 'scipy<1.14' equinox==0.11.4 \\
        jaxtyping typeguard==2.13.3 numba absl-py
    two/bin/pip install --no-deps git+https://github.com/google-deepmind/synjax

One run is log Z and its gradients in all log-potentials of a probabilistic grammar (terms, rules,
root), float32: B = 4 sentences of n = 20 words, with one set of rules for each sentence, as the
others take them, and with one set for all, which they copy. Each library runs in a process of its
own; milliseconds are the best of the runs (and rounds), compilation not counted, memory is the
growth of the largest resident set from before the first run. torch-struct runs with one thread and
with all, whichever is faster; ours with ``--threads``, synjax with all.

The last table is of scale: rules of rank 64 (TN-PCFG's form) over 1,000 nonterminals, n = 40.
Fails where the libraries disagree.
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
SIZES = ((10, 20), (30, 60), (60, 120))  # nonterminals, preterminals
LARGE = (4, 40, 1000, 2000, 64)  # batch, words, nonterminals, preterminals, rank
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
    """The same with rules as log-factors."""
    batch, words, nonterminals, preterminals, rank = LARGE
    random = np.random.default_rng(0)
    children = nonterminals + preterminals
    return {
        "terms": log_softmax(random.standard_normal((batch, words, preterminals)), (2,)),
        "root": log_softmax(random.standard_normal((batch, nonterminals)), (1,)),
        "parent": log_softmax(random.standard_normal((nonterminals, rank)), (1,)),
        "left": log_softmax(random.standard_normal((children, rank)), (0,)),
        "right": log_softmax(random.standard_normal((children, rank)), (0,)),
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
    from rdpgraph import Hypertree
    from rdpgraph.trees import LowRankRules

    if "parent" in parts:
        return by_torch(
            lambda terms, root, *factors: Hypertree.pcfg(
                root, LowRankRules(*factors), terms
            ).log_partition(),
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


def synjax_run(parts: dict[str, np.ndarray]) -> Run:
    import jax
    import synjax

    def log_partition(terms, rules, root):
        wide = jax.numpy.broadcast_to(rules, (BATCH, *rules.shape[1:]))
        grammar = synjax.GeneralizedPCFG(preterminal_scores=terms, root=root, rule=wide)
        return grammar.log_partition()

    leaves = [jax.numpy.asarray(part) for part in parts.values()]
    gradients = jax.jit(
        jax.grad(lambda *values: (lambda z: (z.sum(), z))(log_partition(*values)),
                 argnums=(0, 1, 2), has_aux=True)
    )  # fmt: skip

    def run() -> tuple:
        found, log_z = jax.block_until_ready(gradients(*leaves))
        return log_z, *found

    return run


RUNS = {"rdpgraph": our_run, "torch-struct": struct_run, "synjax": synjax_run}
MODULES = {"torch-struct": "torch_struct", "synjax": "synjax"}


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
    parts = dict(np.load(source))
    run = RUNS[name](parts)
    if name != "synjax":
        import torch

        torch.set_num_threads(threads or torch.get_num_threads())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, answer = seconds_of(run)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if name == "torch-struct":
        torch.set_num_threads(1)
        seconds = min(seconds, seconds_of(run)[0])
    arrays = {part: np.asarray(a) for part, a in zip(("log_z", *parts), answer, strict=True)}
    np.savez(target, **arrays)
    print(json.dumps({"seconds": seconds, "megabytes": peak / 1e3}))


class Bench:
    """Runs libraries in their processes, where they are installed."""

    def __init__(self, options: argparse.Namespace, folder: pathlib.Path) -> None:
        self.threads, self.rounds, self.folder = options.threads, options.rounds, folder
        self.pythons = {"rdpgraph": sys.executable}
        for name, module in MODULES.items():
            python = getattr(options, module)
            find = f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"
            if python and subprocess.run([python, "-c", find], check=False).returncode == 0:
                self.pythons[name] = python
            else:
                print(f"{name} is not installed, and is left out")

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


def gaps(name: str, theirs: dict, ours: dict) -> dict[str, float]:
    """Largest differences, relative to the largest of each part.

    synjax normalises rules and root itself, which changes their gradients.
    """
    parts = ("log_z", "terms") if name == "synjax" else TOLERANCES
    return {
        part: float(np.abs(theirs[part] - ours[part]).max() / np.abs(ours[part]).max())
        for part in parts
    }


def sizes(bench: Bench) -> list[str]:
    """The table of grammars; what disagrees."""
    wrong: list[str] = []
    print(f"Value and gradients of log Z, {BATCH} sentences of {WORDS} words")
    titles = "".join(f"{name:>13s} {'MB':>7s} {'ratio':>6s}" for name in MODULES)
    print(f"{'NT':>4s} {'T':>4s} {'rules':>7s} {'ours, ms':>9s} {'MB':>7s} {titles}")
    for nonterminals, preterminals in SIZES:
        for shared in (False, True):
            parts = grammar(nonterminals, preterminals, shared=shared)
            ours = bench.run("rdpgraph", parts)
            if ours is None:
                sys.exit("rdpgraph failed")
            row = f"{nonterminals:>4d} {preterminals:>4d} {'shared' if shared else 'each':>7s} "
            row += f"{1e3 * ours[0]['seconds']:>9.1f} {ours[0]['megabytes']:>7.0f} "
            for name in MODULES:
                theirs = bench.run(name, parts)
                if theirs is None:
                    row += f"{'-':>13s} {'-':>7s} {'-':>6s}"
                    continue
                ratio = theirs[0]["seconds"] / ours[0]["seconds"]
                row += f"{1e3 * theirs[0]['seconds']:>13.1f} {theirs[0]['megabytes']:>7.0f} "
                row += f"{ratio:>6.1f}"
                for part, gap in gaps(name, theirs[1], ours[1]).items():
                    if not gap <= TOLERANCES[part]:
                        wrong.append(f"{name}, NT {nonterminals}: {part} {gap:.1e}")
            print(row, flush=True)
    return wrong


def main() -> None:
    """All tables; fails where the peer disagrees."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, module in MODULES.items():
        default = os.environ.get(f"HYPERTREE_{module.upper()}")
        parser.add_argument(f"--{name}", dest=module, metavar="PYTHON", default=default)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(options, pathlib.Path(name))
        wrong = sizes(bench)
        batch, words, nonterminals, preterminals, rank = LARGE
        found = bench.run("rdpgraph", low_rank())
        if found is None:
            sys.exit("rdpgraph failed")
        print(f"\nRules of rank {rank}, {nonterminals:,} nonterminals and {preterminals:,} "
              f"preterminals, {batch} sentences of {words} words")  # fmt: skip
        print(f"{found[0]['seconds']:.2f} s, {found[0]['megabytes']:.0f} MB")
    if wrong:
        sys.exit("Disagree with ours: " + "; ".join(wrong))


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(*sys.argv[2:5], int(sys.argv[5]))
    else:
        main()
