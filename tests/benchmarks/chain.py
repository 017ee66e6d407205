"""Chains beside dynamax, hmmlearn, pytorch-crf, torch-struct and pomegranate.

    python tests/benchmarks/chain.py [--dynamax PYTHON] [--peers PYTHON] [--threads COUNT]
        [--batch 4 64] [--states 32 128 512 2048] [--rounds 1] [--memory 16e9] [--no-scale]
    python tests/benchmarks/chain.py --device cuda [--batch 4 64] [--states 512 2048 8192 16384]

PYTHON are interpreters of environments with the peers (or DYNAMAX_PYTHON, CHAIN_PEERS_PYTHON):

    python3.11 -m venv dynamax
    dynamax/bin/pip install dynamax==1.0.3 jax==0.10.2 jaxlib==0.10.2
    python3.11 -m venv peers
    peers/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    peers/bin/pip install hmmlearn==0.3.3 pytorch-crf==0.7.2 pomegranate==1.1.2 torch-struct==0.5

A peer that is not installed is left out of the tables; "-" is one skipped at that size: its memory
would go over ``--memory`` bytes, it took over 20 s at the size before, or it failed.

One run is log Z and its gradient in the unary and the transition log-potentials, of B chains of 64
steps with one shared transition; standard normal unaries, a random transition with normalised
rows, float32. Each library runs in a process of its own, one right after the other at each size;
compilation and what can be built once is left out. Seconds are the best of the runs (and rounds);
memory is the growth of the largest resident set from before the first run. Peers are at their best:

- dynamax: ``value_and_grad`` of ``vmap(hmm_filter)`` or, up to 128 states, its smoother with
  expected transitions, whichever is faster.
- hmmlearn: scaled forward-backward in C++, float64, without the expected transitions.
- pytorch-crf: its normaliser alone and autograd; torch-struct: ``LinearChainCRF.partition`` and
  autograd (PyPI's 0.5 and the repository have the same recursion).
- pomegranate: ``DenseHMM.forward`` and autograd or, up to 128 states, ``forward_backward``.
- The torch ones with one thread and with all, whichever is faster; ours with ``--threads``.

The last table is of scale: 10,000 steps, 512 states, one chain.

With ``--device`` the table is of ours alone, on that device: with the compiled kernel, if it is the
CPU, and in torch; and the fraction that the first reaches of the rate of ``torch.mm``, measured on
the spot, on the products of a step, (B, N) by (N, N), and on square ones, (N, N) by (N, N). A run
has three products for each step: forwards, backwards, and for the gradient in the transition.
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

STEPS = 64
LONG = (10_000, 512)  # steps, states of the table of scale
SLOW = 20.0  # seconds after which larger sizes are skipped
TOLERANCES = {"log_z": 1e-4, "unary": 1e-3, "transition": 5e-3}
TORCH = ("pytorch-crf", "torch-struct", "pomegranate")
MODULES = {
    "rdpgraph": "rdpgraph",
    "dynamax": "dynamax",
    "hmmlearn": "hmmlearn",
    "pytorch-crf": "torchcrf",
    "torch-struct": "torch_struct",
    "pomegranate": "pomegranate",
}
Run = Callable[[], tuple]  # log Z, gradient of the unaries, of the transition (or None)


def potentials(batch: int, steps: int, states: int) -> tuple[np.ndarray, np.ndarray]:
    """Unaries (batch, steps, states) and a row-normalised transition (states, states), logs."""
    random = np.random.default_rng(0)
    unary = random.standard_normal((batch, steps, states)).astype(np.float32)
    transition = random.standard_normal((states, states))
    transition -= np.log(np.exp(transition).sum(1, keepdims=True))
    return unary, transition.astype(np.float32)


def predicted(name: str, batch: int, steps: int, states: int) -> float:
    """Bytes of the largest tensors that a run keeps; 0 where they are small."""
    if name == "pytorch-crf":
        return 4.4 * batch * steps * states**2
    if name == "torch-struct":  # the first of its merges keeps tensors over three states
        return 16.0 * batch * (steps / 2) * states**3
    return 0.0


def by_torch(log_partition: Callable, unary, transition) -> Run:
    """Value and gradient of a function of two leaves."""

    def run() -> tuple:
        unary.grad = transition.grad = None
        log_z = log_partition(unary, transition)
        log_z.sum().backward()
        return log_z.detach(), unary.grad, transition.grad

    return run


def leaves(unary: np.ndarray, transition: np.ndarray) -> list:
    import torch

    return [torch.from_numpy(part).requires_grad_() for part in (unary, transition)]


def rdpgraph_run(unary: np.ndarray, transition: np.ndarray) -> list[Run]:
    import rdpgraph as rg

    return [by_torch(lambda u, a: rg.Chain(u, a).log_partition(), *leaves(unary, transition))]


def dynamax_run(unary: np.ndarray, transition: np.ndarray) -> list[Run]:
    import jax
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import inference

    states = unary.shape[-1]
    start, u, a = jnp.ones(states), jnp.asarray(unary), jnp.asarray(transition)

    def total(u, a):
        matrix = jnp.exp(a)
        each = jax.vmap(lambda row: inference.hmm_filter(start, matrix, row).marginal_loglik)
        log_z = each(u)
        return log_z.sum(), log_z

    @jax.jit
    def smoother(u, a):
        matrix = jnp.exp(a)
        found = jax.vmap(lambda row: inference.hmm_smoother(start, matrix, row))(u)
        return found.marginal_loglik, found.smoothed_probs, found.trans_probs.sum(0)

    value_and_grad = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))

    def by_gradient() -> tuple:
        (_, log_z), gradients = jax.block_until_ready(value_and_grad(u, a))
        return log_z, *gradients

    def by_smoother() -> tuple:
        return jax.block_until_ready(smoother(u, a))

    return [by_gradient, by_smoother] if states <= 128 else [by_gradient]


def hmmlearn_run(unary: np.ndarray, transition: np.ndarray) -> list[Run]:
    from hmmlearn import _hmmc

    start = np.ones(unary.shape[-1])
    rows, matrix = unary.astype(np.float64), np.exp(transition.astype(np.float64))

    def run() -> tuple:
        values, gradients = [], []
        for row in rows:
            top = row.max(1, keepdims=True)
            weights = np.exp(row - top)
            log_z, forward, scaling = _hmmc.forward_scaling(start, matrix, weights)
            backward = _hmmc.backward_scaling(start, matrix, weights, scaling)
            product = forward * backward
            gradients.append(product / product.sum(1, keepdims=True))
            values.append(log_z + top.sum())
        return np.array(values), np.array(gradients), None

    return [run]


def crf_run(unary: np.ndarray, transition: np.ndarray) -> list[Run]:
    import torch
    import torchcrf

    u, a = leaves(unary, transition)
    model = torchcrf.CRF(unary.shape[-1], batch_first=True)
    for ends in (model.start_transitions, model.end_transitions):
        ends.requires_grad_(False).zero_()
    model.transitions = torch.nn.Parameter(a.detach())
    mask = torch.ones(unary.shape[1], unary.shape[0], dtype=torch.bool)

    def log_partition(unary, _):
        return model._compute_normalizer(unary.transpose(0, 1), mask)

    return [by_torch(log_partition, u, model.transitions)]


def struct_run(unary: np.ndarray, transition: np.ndarray) -> list[Run]:
    import torch
    import torch_struct

    torch.distributions.Distribution.set_default_validate_args(False)

    def log_partition(unary, transition):  # its potentials are [to, from]
        pairs = transition.T + unary[:, 1:, :, None]
        first = pairs[:, :1] + unary[:, :1, None, :]
        return torch_struct.LinearChainCRF(torch.cat([first, pairs[:, 1:]], 1)).partition

    return [by_torch(log_partition, *leaves(unary, transition))]


def pomegranate_run(unary: np.ndarray, transition: np.ndarray) -> list[Run]:
    import torch
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import DenseHMM

    u, a = leaves(unary, transition)
    states = unary.shape[-1]
    uniform = torch.full((states,), 1.0 / states)
    emissions = [Categorical([[0.5, 0.5]]) for _ in range(states)]
    model = DenseHMM(emissions, edges=torch.exp(a.detach()), starts=uniform, ends=uniform)
    model.starts.zero_()
    model.ends.zero_()
    model.edges.requires_grad_(True)

    def log_partition(unary, _):
        return torch.logsumexp(model.forward(emissions=unary)[:, -1] + model.ends, dim=1)

    @torch.no_grad()
    def forward_backward() -> tuple:
        counts, log_states, _, _, log_z = model.forward_backward(emissions=u)
        return log_z, torch.exp(log_states), counts.sum(0)

    by_gradient = by_torch(log_partition, u, model.edges)
    return [by_gradient, forward_backward] if states <= 128 else [by_gradient]


RUNS = {
    "rdpgraph": rdpgraph_run,
    "dynamax": dynamax_run,
    "hmmlearn": hmmlearn_run,
    "pytorch-crf": crf_run,
    "torch-struct": struct_run,
    "pomegranate": pomegranate_run,
}


def seconds_of(run: Run) -> tuple[float, tuple]:
    """Best time within a second, at least of one run after the first, and the answer."""
    start = time.perf_counter()
    answer = run()
    best = time.perf_counter() - start
    if best > SLOW:
        return best, answer
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < 1.0:
        start = time.perf_counter()
        answer = run()
        best = min(best, time.perf_counter() - start)
    return best, answer


def child(name: str, source: str, target: str, threads: int) -> None:
    """Time one library on the potentials in a file, write its answer; in a process of its own."""
    unary, transition = np.load(source).values()
    runs = RUNS[name](unary, transition)
    if threads:
        import torch

        torch.set_num_threads(threads)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = [seconds_of(run) for run in runs]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    seconds, answer = min(found, key=lambda pair: pair[0])
    if name in TORCH and seconds < SLOW:
        import torch

        torch.set_num_threads(1)
        seconds = min(seconds, *(seconds_of(run)[0] for run in runs))
    parts = ("log_z", "unary", "transition")
    arrays = {part: np.asarray(a) for part, a in zip(parts, answer, strict=True) if a is not None}
    np.savez(target, **arrays)
    print(json.dumps({"seconds": seconds, "megabytes": peak / 1e3}))


class Bench:
    """Runs libraries in their processes, where they are installed."""

    def __init__(self, options: argparse.Namespace, folder: pathlib.Path) -> None:
        self.threads, self.memory, self.folder = options.threads, options.memory, folder
        given = {"rdpgraph": sys.executable, "dynamax": options.dynamax}
        self.pythons: dict[str, str] = {}
        for name, module in MODULES.items():
            python = given.get(name, options.peers)
            if python and self._imports(python, module):
                self.pythons[name] = python

    @staticmethod
    def _imports(python: str, module: str) -> bool:
        find = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
        return subprocess.run([python, "-c", find], check=False).returncode == 0

    def run(self, name: str, parts: tuple[np.ndarray, np.ndarray]) -> tuple[dict, dict] | None:
        """Seconds and megabytes, and the answer; None where it failed."""
        batch, steps, states = parts[0].shape
        if predicted(name, batch, steps, states) > self.memory:
            return None
        source, target = self.folder / "potentials.npz", self.folder / "answer.npz"
        np.savez(source, *parts)
        threads = self.threads if name == "rdpgraph" else 0
        command = [self.pythons[name], __file__, "--child", name]
        command += [str(source), str(target), str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
            message = f"{name} failed ({done.returncode}): {reason}"
            if name == "rdpgraph":
                sys.exit(message)
            print(message, file=sys.stderr)
            return None
        answer = {key: value.astype(np.float64) for key, value in np.load(target).items()}
        return json.loads(done.stdout.strip().splitlines()[-1]), answer


def gaps(theirs: dict, ours: dict) -> dict[str, float]:
    """Largest differences: log Z relative, gradients as they are or relative to the largest."""
    differ = {"log_z": np.abs(theirs["log_z"] / ours["log_z"] - 1.0).max()}
    differ["unary"] = np.abs(theirs["unary"] - ours["unary"]).max()
    if "transition" in theirs:
        largest = np.abs(ours["transition"]).max()
        differ["transition"] = np.abs(theirs["transition"] - ours["transition"]).max() / largest
    return {part: float(gap) for part, gap in differ.items()}


def sizes(bench: Bench, options: argparse.Namespace) -> list[str]:
    """The tables of time and memory; what disagrees."""
    names, wrong, memory = list(bench.pythons), [], []
    head = f"{'B':>4s} {'N':>5s} " + " ".join(f"{name:>12s}" for name in names)
    print("Value and gradient of log Z, 64 steps, milliseconds")
    print(f"{head} {'dynamax/ours':>13s}  differ by: log Z, unary, transition", flush=True)
    for batch in options.batch:
        slow: set[str] = set()
        for states in sorted(options.states):
            parts = potentials(batch, STEPS, states)
            best: dict[str, dict] = {}
            worst = dict.fromkeys(TOLERANCES, 0.0)
            for _ in range(options.rounds):
                ours: dict = {}
                for name in names:
                    if name in slow or (found := bench.run(name, parts)) is None:
                        continue
                    cost, answer = found
                    if name not in best or cost["seconds"] < best[name]["seconds"]:
                        best[name] = cost
                    ours = ours or answer
                    for part, gap in gaps(answer, ours).items():
                        worst[part] = max(worst[part], gap)
                        if not gap <= TOLERANCES[part]:
                            wrong.append(f"{name}, B = {batch}, N = {states}: {part} {gap:.1e}")
            slow |= {name for name in names if name not in best or best[name]["seconds"] > SLOW}
            row = f"{batch:>4d} {states:>5d} "
            cells = [f"{1e3 * best[n]['seconds']:.2f}" if n in best else "-" for n in names]
            ratio = "-"
            if "dynamax" in best:
                ratio = f"{best['dynamax']['seconds'] / best['rdpgraph']['seconds']:.2f}"
            differ = ", ".join(f"{gap:.0e}" for gap in worst.values())
            print(f"{row}{' '.join(f'{c:>12s}' for c in cells)} {ratio:>13s}  {differ}", flush=True)
            cells = [f"{best[n]['megabytes']:.1f}" if n in best else "-" for n in names]
            memory.append(row + " ".join(f"{cell:>12s}" for cell in cells))
    print("\nThe same, peak memory, megabytes\n" + "\n".join([head, *memory]), flush=True)
    return wrong


def scale(bench: Bench) -> None:
    """One long chain in float32, beside float64."""
    steps, states = LONG
    print(f"\nOne chain of {steps:,} steps and {states} states, value and gradient")
    print(f"{'':>12s} {'seconds':>8s} {'peak MB':>8s}  differ from float64 by: nats a step, unary")
    parts = potentials(1, steps, states)
    double = bench.run("rdpgraph", (parts[0].astype(np.float64), parts[1].astype(np.float64)))
    assert double
    for name in ("rdpgraph", "dynamax"):
        if name in bench.pythons and (found := bench.run(name, parts)):
            cost, answer = found
            nats = abs(float(answer["log_z"][0] - double[1]["log_z"][0])) / steps
            unary = np.abs(answer["unary"] - double[1]["unary"]).max()
            row = f"{name:>12s} {cost['seconds']:>8.2f} {cost['megabytes']:>8.1f}"
            print(f"{row}  {nats:.1e}, {unary:.0e}", flush=True)


def in_torch(run: Run) -> Run:
    """The same without kernels of our own."""
    from rdpgraph.recurrences.executor import LIBRARY

    def plain() -> tuple:
        available = LIBRARY.available
        try:
            LIBRARY.available = lambda *_: False
            return run()
        finally:
            LIBRARY.available = available

    return plain


def on_device(name: str, batches: list[int], counts: list[int]) -> None:
    """The table of one device."""
    import torch

    import rdpgraph as rg
    from rdpgraph.recurrences.executor import LIBRARY

    device = torch.device(name)
    cuda = device.type == "cuda"
    print(torch.cuda.get_device_name(device) if cuda else f"{device.type} - {LIBRARY.status}")

    def seconds(work: Callable) -> float:
        def finished() -> tuple:
            answer = work()
            if cuda:
                torch.cuda.synchronize(device)
            return answer

        finished()  # what is built, is built now
        return seconds_of(finished)[0]

    print(f"Value and gradient of log Z, {STEPS} steps, float32")
    print(f"{'B':>4s} {'N':>6s} {'ms':>10s} {'in torch':>10s} {'of mm':>7s} {'of square':>10s}")
    for batch in batches:
        for count in sorted(counts):
            generator = torch.Generator(device).manual_seed(0)
            options = {"generator": generator, "device": device}
            unary = torch.randn(batch, STEPS, count, **options).requires_grad_()
            transition = torch.randn(count, count, **options).log_softmax(1).requires_grad_()
            run = by_torch(lambda u, a: rg.Chain(u, a).log_partition(), unary, transition)
            ours, plain = seconds(run), seconds(in_torch(run))
            row, matrix = unary.detach()[:, 0], transition.detach()
            thin = seconds(lambda row=row, matrix=matrix: row @ matrix) / batch
            square = seconds(lambda matrix=matrix: matrix @ matrix) / count
            least = 3 * batch * (STEPS - 1)  # rows to be multiplied by a matrix
            print(
                f"{batch:>4d} {count:>6d} {1e3 * ours:>10.2f} {1e3 * plain:>10.2f} "
                f"{least * thin / ours:>7.2f} {least * square / ours:>10.2f}",
                flush=True,
            )


def main() -> None:
    """All tables; fails where a peer disagrees."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dynamax", default=os.environ.get("DYNAMAX_PYTHON"))
    parser.add_argument("--peers", default=os.environ.get("CHAIN_PEERS_PYTHON"))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--states", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--memory", type=float, default=16e9)
    parser.add_argument("--no-scale", action="store_true")
    parser.add_argument("--device")
    options = parser.parse_args()
    if options.device:
        on_device(options.device, options.batch, options.states or [512, 2048, 8192, 16384])
        return
    options.states = options.states or [32, 128, 512, 2048]
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(options, pathlib.Path(name))
        wrong = sizes(bench, options)
        if not options.no_scale:
            scale(bench)
    if wrong:
        sys.exit("Disagree with ours: " + "; ".join(wrong))


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(*sys.argv[2:5], int(sys.argv[5]))
    else:
        main()
