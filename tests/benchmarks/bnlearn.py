"""All marginals of the bnlearn networks, exact, beside pyAgrum.

    python tests/benchmarks/bnlearn.py [--only NAME ...] [--limit SECONDS]

The networks come as BIF inside the pgmpy wheel. Each runs twice in processes of its own: here
(reading, planning and inference timed apart) and in pyAgrum's LazyPropagation under a time limit.
The ratio is pyAgrum's inference time over ours with planning included.
"""

import argparse
import gzip
import importlib.util
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time


def ours(path: str) -> dict[str, object]:
    """Times of this library, in the child process."""
    import torch

    import rdpgraph as rg

    torch.set_num_threads(1)
    start = time.perf_counter()
    graph = rg.read(path)
    read = time.perf_counter()
    posterior = rg.infer(graph, scheduler=rg.Contraction(memory=6e9, seconds=60))
    planned = time.perf_counter()
    marginals = posterior.marginals()
    solved = time.perf_counter()
    again = rg.infer(graph, scheduler=rg.Contraction(memory=6e9, seconds=60))
    replanned = time.perf_counter()
    again.marginals()
    end = time.perf_counter()
    worst = max(abs(float(values.sum()) - 1) for values in marginals.values())
    return {
        "variables": graph.num_variables, "read": read - start, "plan": planned - read,
        "run": solved - planned, "again": end - solved, "replan": replanned - solved,
        "width": posterior.plan.width, "normalised_to": worst,
        "log_z": float(posterior.log_partition),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "check": [values.tolist() for values in list(marginals.values())[:20]],
    }  # fmt: skip


def theirs(path: str) -> dict[str, object]:
    """Times of pyAgrum, in the child process."""
    import pyagrum as gum

    gum.setNumberOfThreads(1)
    start = time.perf_counter()
    network = gum.loadBN(path)
    read = time.perf_counter()
    engine = gum.LazyPropagation(network)
    engine.makeInference()
    marginals = {
        network.variable(node).name(): engine.posterior(node).tolist() for node in network.nodes()
    }
    return {"read": read - start, "run": time.perf_counter() - read, "marginals": len(marginals)}


def child(which: str, path: str, limit: float) -> dict[str, object]:
    """Run one side in a process of its own."""
    arguments = [sys.executable, __file__, f"--{which}", path]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not finished in {limit:.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1][:90]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Print both, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--limit", type=float, default=60.0)
    options = parser.parse_args()
    spec = importlib.util.find_spec("pgmpy")
    if spec is None or spec.origin is None:
        sys.exit(
            "tests/benchmarks/bnlearn.py needs the networks in the pgmpy wheel: pip install pgmpy"
        )
    folder = pathlib.Path(spec.origin).parent / "utils" / "example_models"
    peer = importlib.util.find_spec("pyagrum") is not None
    print(
        f"{'network':12s} {'vars':>5s} {'read':>6s} {'plan':>7s} {'run':>7s} {'again':>7s}"
        f" {'width':>6s} {'MB':>6s} {'pyAgrum':>10s} {'ratio':>7s}"
    )
    with tempfile.TemporaryDirectory() as scratch:
        for packed in sorted(folder.glob("*.bif.gz"), key=lambda path: path.stat().st_size):
            name = packed.name.removesuffix(".bif.gz")
            if options.only and name not in options.only:
                continue
            plain = pathlib.Path(scratch) / f"{name}.bif"
            plain.write_bytes(gzip.decompress(packed.read_bytes()))
            us = child("ours", str(plain), 300)
            them = (
                child("theirs", str(plain), options.limit) if peer else {"error": "not installed"}
            )
            if "error" in us:
                print(f"{name:12s} {us['error']}", flush=True)
                continue
            time_of_theirs = them.get("run")
            both = float(us["plan"]) + float(us["run"])  # type: ignore[arg-type]
            shown = (
                f"{time_of_theirs:.3f}"
                if isinstance(time_of_theirs, float)
                else str(them["error"])[:24]
            )
            ratio = f"{time_of_theirs / both:.2f}" if isinstance(time_of_theirs, float) else "-"
            print(
                f"{name:12s} {us['variables']:5d} {us['read']:6.2f} {us['plan']:7.3f}"
                f" {us['run']:7.3f} {us['again']:7.3f} {us['width']:6.1f} {us['peak_mb']:6.0f}"
                f" {shown:>10s} {ratio:>7s}",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("--ours", "--theirs"):
        print(json.dumps({"--ours": ours, "--theirs": theirs}[sys.argv[1]](sys.argv[2])))
    else:
        main()
