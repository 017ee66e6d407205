"""Milliseconds of CPU that a small network takes, beside pyAgrum.

    python tests/benchmarks/small.py [NAME ...] [--repeats N] [--against CHECKOUT]

For each bnlearn network (from the pgmpy wheel; examples/asia.bif is here) three calls, one thread:
``first`` plans and gives all marginals with nothing remembered, ``next`` conditions on new evidence
of variables seen before and gives all marginals, ``gradient`` is log Z and its gradient in all
tables. pyAgrum's LazyPropagation does the first two. The least CPU time over interleaved repeats,
and the ratio of pyAgrum's to ours; with ``--against`` also that of another checkout of ours.
"""

import argparse
import gzip
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

NAMES = ("asia", "alarm", "hailfinder")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def ours(path: str) -> dict[str, Callable[[], object]]:
    """The calls of this library."""
    import torch

    import rdpgraph as rg
    from rdpgraph.engines.exact import batched_steps, buckets
    from rdpgraph.plan import planner

    torch.set_num_threads(1)
    graph = rg.read(path)
    by_contraction = rg.Contraction(memory=6e9)
    leaves = [f.potential.log_values.clone().requires_grad_() for f in graph.factors()]
    scopes = [f.variables for f in graph.factors()]
    seen = list(graph.variables)[:: max(1, len(graph.variables) // 3)]
    turn = [0]

    def first() -> object:
        for cache in (planner._plans, planner._easy):
            cache._values.clear()
        batched_steps.compiled.cache_clear()
        buckets.shaped.cache_clear()
        return rg.infer(graph, scheduler=by_contraction).marginals()

    def after() -> object:
        turn[0] += 1
        names = [range(v.states) if isinstance(v.states, int) else v.states for v in seen[:3]]
        states = {
            v: of[(turn[0] + n) % v.size]
            for n, (v, of) in enumerate(zip(seen[:3], names, strict=True))
        }
        return rg.infer(graph.condition(states), scheduler=by_contraction).marginals()

    def gradient() -> object:
        tables = zip(scopes, leaves, strict=True)
        model = rg.FactorGraph([rg.Factor(scope, rg.Table(table)) for scope, table in tables])
        log_z = rg.infer(model, scheduler=by_contraction).log_partition
        return torch.autograd.grad(log_z, leaves)

    return {"first": first, "next": after, "gradient": gradient}


def theirs(path: str) -> dict[str, Callable[[], object]]:
    """The calls of pyAgrum."""
    import pyagrum as gum

    gum.setNumberOfThreads(1)
    network = gum.loadBN(path)
    nodes = list(network.nodes())
    sizes = {node: network.variable(node).domainSize() for node in nodes}
    kept = gum.LazyPropagation(network)
    seen = nodes[:: max(1, len(nodes) // 3)]
    turn = [0]

    def first() -> object:
        engine = gum.LazyPropagation(network)
        engine.makeInference()
        return [engine.posterior(node).toarray() for node in nodes]

    def after() -> object:
        turn[0] += 1
        kept.setEvidence({node: (turn[0] + n) % sizes[node] for n, node in enumerate(seen[:3])})
        kept.makeInference()
        return [kept.posterior(node).toarray() for node in nodes]

    return {"first": first, "next": after}


def measured(path: str, repeats: int) -> dict[str, float]:
    """The least milliseconds of CPU of every call, interleaved."""
    sides = {"ours": ours(path)}
    if importlib.util.find_spec("pyagrum") is not None and "--alone" not in sys.argv:
        sides["pyAgrum"] = theirs(path)
    calls = {f"{side} {name}": call for side, own in sides.items() for name, call in own.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(repeats + 2):
        for name, call in calls.items():
            begin = time.process_time()
            call()
            if number > 1:
                found[name].append(1e3 * (time.process_time() - begin))
    return {name: min(times) for name, times in found.items()}


def child(checkout: pathlib.Path, path: str, repeats: int) -> dict[str, float]:
    """The same by a checkout and its benchmark, in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = f"{checkout}{os.pathsep}{before}"
    script = checkout / pathlib.Path(__file__).resolve().relative_to(ROOT)
    arguments = [sys.executable, str(script), "--child", path, str(repeats)]
    if checkout != ROOT:
        arguments.append("--alone")
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def network_file(name: str, scratch: str) -> str:
    """Path of the network of a name, as plain BIF."""
    own = ROOT / "examples" / f"{name}.bif"
    if own.exists():
        return str(own)
    spec = importlib.util.find_spec("pgmpy")
    if spec is None or spec.origin is None:
        sys.exit("tests/benchmarks/small.py needs the networks in the pgmpy wheel")
    packed = pathlib.Path(spec.origin).parent / "utils" / "example_models" / f"{name}.bif.gz"
    plain = pathlib.Path(scratch) / f"{name}.bif"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    return str(plain)


def main() -> None:
    """Print a line for each network and call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=pathlib.Path)
    options = parser.parse_args()
    sides = [ROOT] if options.against is None else [ROOT, options.against.resolve()]
    print(f"{'network':12s} {'call':9s} {'ours':>7s} {'pyAgrum':>8s} {'ratio':>6s} {'before':>7s}")
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.names:
            path = network_file(name, scratch)
            rounds = [
                [child(side, path, options.repeats) for side in sides]
                for _ in range(options.rounds)
            ]
            best = [
                {key: min(each[place][key] for each in rounds) for key in rounds[0][place]}
                for place in range(len(sides))
            ]
            for call in ("first", "next", "gradient"):
                mine, peer = best[0][f"ours {call}"], best[0].get(f"pyAgrum {call}")
                shown = f"{peer:8.2f} {peer / mine:6.2f}" if peer else f"{'-':>8s} {'-':>6s}"
                before = f"{best[1][f'ours {call}']:7.2f}" if len(best) > 1 else ""
                print(f"{name:12s} {call:9s} {mine:7.2f} {shown} {before}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] == "--child":
        print(json.dumps(measured(sys.argv[2], int(sys.argv[3]))))
    else:
        main()
