"""Marginals of a tree of large variables beside the gradient of log Z: seconds and memory.

    python tests/benchmarks/trees.py --states 4000

A binary tree of variables whose neighbours share one bilinear potential. The gradient of log Z in
the unary potentials is their marginals, by one pass back; each answer runs in a process of its own.
Memory is the growth of the process's peak; seconds are those of the processor. The last line is the
time and the memory of `Posterior.marginal` relative to those of the gradient, and the memory that
the plan says.
"""

import argparse
import resource
import subprocess
import sys
import time

import torch

import rdpgraph as rg

ANSWERS = "gradient", "marginal", "entropy", "max_marginals"


def tree(count: int, states: int, unary: torch.Tensor) -> rg.FactorGraph:
    """The model: variable (i - 1) / 2 is the parent of variable i."""
    generator, x = torch.Generator().manual_seed(1), rg.VariableArray("x", (count,), states)
    vectors, child = 0.3 * torch.randn(states, 16, generator=generator), torch.arange(1, count)
    pairs = rg.FactorBlock((x[(child - 1) // 2], x[child]), rg.Bilinear(vectors, vectors))
    return rg.FactorGraph([rg.FactorBlock((x,), rg.Table(unary)), pairs])


def answer(name: str, count: int, states: int) -> tuple[float, float]:
    """Seconds of an answer, and the megabytes by which it raises the peak."""
    unary = torch.randn(count, states, generator=torch.Generator().manual_seed(0))
    if name == "gradient":
        unary.requires_grad_()
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    posterior = rg.infer(tree(count, states, unary))
    if name == "gradient":
        torch.autograd.grad(posterior.log_partition, unary)
    elif name == "marginal":
        posterior.marginal("x")
    else:
        getattr(posterior, name)()
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return seconds, peak / 1024


def main() -> None:
    """A line for each answer, then the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variables", type=int, default=31)
    parser.add_argument("--states", type=int, default=4000)
    parser.add_argument("--answer", choices=ANSWERS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.answer:
        print(*answer(options.answer, options.variables, options.states))
        return
    taken: dict[str, tuple[float, float]] = {}
    for name in ANSWERS:
        sizes = ["--variables", str(options.variables), "--states", str(options.states)]
        command = [sys.executable, __file__, *sizes, "--answer", name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        seconds, megabytes = map(float, printed.split())
        taken[name] = seconds, megabytes
        print(f"{name:14} {seconds:7.3f} s {megabytes:8.1f} MB")
    plan = rg.explain(tree(options.variables, options.states, torch.zeros(1, options.states)))
    time_ratio, memory_ratio = (
        ours / max(theirs, 1e-9)
        for ours, theirs in zip(taken["marginal"], taken["gradient"], strict=True)
    )
    print(
        f"marginal / gradient: {time_ratio:.2f} of the time, {memory_ratio:.2f} of the memory; "
        f"planned {plan.stored_bytes / 2**20:.1f} MB"
    )


if __name__ == "__main__":
    main()
