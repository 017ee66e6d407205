"""Answers to the UAI-2014 competition models, scored against the reference answers.

    python tests/benchmarks/uai.py --task MAR --method auto --seconds 60 --memory 4e9 [--only NAME]

Methods: auto and exact; loopy is plain belief propagation (residual updates; sequential where they
are not done in a third of the time, then damped); join is join-graph propagation with 10 MB of
clusters, or what --memory says, where exact inference is never tried.

Each model runs in a process of its own on one core, planning included in its time limit. Prints a
row per model and a table per family; needs the models in ``../shared/data/uai2014``.
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
CHILD = "--child"


def answer(
    task: str, model: str, evidence: str, output: str, memory: float, seconds: float, method: str
) -> None:
    """Solve one model and write its result file; runs in the child process."""
    import torch

    import rdpgraph as rg
    from rdpgraph.io.evidence import format_mar, format_pr, read_evidence

    torch.set_num_threads(1)
    start = time.perf_counter()
    graph = rg.read(model)
    if os.path.exists(evidence):
        for row in read_evidence(evidence)[:1]:
            graph = graph.condition(row)
    reading = time.perf_counter() - start
    left = seconds - reading - 5.0
    schedulers: dict[str, list[rg.extend.Scheduler]] = {
        "exact": [rg.Contraction(memory=memory, seconds=seconds)],
        "auto": [rg.Auto(memory=memory, seconds=left)],
        "join": [rg.JoinGraph(memory=memory, seconds=left)],
        "loopy": [
            rg.Loopy(schedule=rg.loopy.Residual(), seconds=left / 3),
            rg.Loopy(schedule=rg.loopy.Sequential(), seconds=left / 3),
            rg.Loopy(schedule=rg.loopy.Sequential(), damping=0.5, sweeps=100_000, seconds=left / 3),
        ],
    }
    first, *others = schedulers[method]
    posterior = rg.infer(graph, scheduler=first)
    planning = time.perf_counter() - start - reading
    for other in others:
        if posterior.status.converged:
            break
        posterior = rg.infer(graph, scheduler=other)
    if task == "PR":
        text = format_pr(float(posterior.log_partition) / 2.302585092994046)
    else:
        text = format_mar([values.tolist() for values in posterior.marginals().values()])
    running = time.perf_counter() - start - reading - planning
    pathlib.Path(output).write_text(text)
    plan = posterior.plan
    row = {
        "read": reading, "plan": planning, "run": running, "width": plan.width, "flops": plan.flops,
        "stored": plan.stored_bytes, "predicted": plan.seconds, "slices": plan.num_slices,
        "route": plan.route, "converged": posterior.status.converged,
        "sweeps": posterior.status.iterations or 0,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }  # fmt: skip
    print(json.dumps(row))


def solve(
    task: str, name: str, folder: pathlib.Path, options: argparse.Namespace
) -> dict[str, object]:
    """Run one model in a child process under its limits."""
    data = SHARED / "data" / "uai2014"
    model = data / task / f"{name}.gz"
    if not model.exists():
        model = data / "MAR" / f"{name}.gz"
    arguments = [
        sys.executable, __file__, CHILD, task, str(model), str(data / task / f"{name}.evid"),
        str(folder / f"{name}.{task}"), str(options.memory), str(options.seconds),
        options.method,
    ]  # fmt: skip
    limit = int(options.memory * 1.25 + 1.5e9)

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=options.seconds + 5, env=environment,
            preexec_fn=limits, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"total": time.perf_counter() - start, "error": "time limit"}
    total = time.perf_counter() - start
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"total": total, "error": lines[-1][:160]}
    return {"total": total, **json.loads(done.stdout.strip().splitlines()[-1])}


def main() -> None:
    """Run all models of a task and score them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=["MAR", "PR"], default="MAR")
    parser.add_argument("--method", choices=["auto", "exact", "loopy", "join"], default="auto")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--memory", type=float, default=4e9)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    if not SHARED.exists():
        sys.exit("tests/benchmarks/uai.py needs ../shared/data/uai2014, which is absent")
    references = sorted((SHARED / "data" / "uai2014" / options.task).glob(f"*.{options.task}.gz"))
    names = [path.name.removesuffix(f".{options.task}.gz") for path in references]
    if options.only:
        names = [name for name in names if any(name.startswith(part) for part in options.only)]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            row = solve(options.task, name, pathlib.Path(folder), options)
            shown = " ".join(
                f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}"
                for key, value in row.items()
            )
            print(f"{name:28s} {shown}", flush=True)
        scorer = SHARED / "tools" / "score_uai.py"
        subprocess.run([sys.executable, str(scorer), folder, "--task", options.task], check=False)


if __name__ == "__main__":
    if CHILD in sys.argv:
        task, model, evidence, output, memory, seconds, method = sys.argv[2:]
        answer(task, model, evidence, output, float(memory), float(seconds), method)
    else:
        main()
