"""All marginals of the bnlearn networks, exact, beside pyAgrum.

    python tests/benchmarks/bnlearn.py [--only NAME ...] [--limit SECONDS] [--rows COUNT]

The networks come as BIF inside the pgmpy wheel. Each runs twice in processes of its own: here
(reading, planning and inference timed apart) and in pyAgrum's LazyPropagation under a time limit.
The ratio is pyAgrum's inference time over ours with planning included.

With ``--rows`` these are the marginals of all variables in each of so many rows that are drawn from
the network, with half of the entries hidden: ours in batches, pyAgrum's in a loop over rows, which
ends at the time limit. CPU milliseconds for a row, and the ratio.
"""

import argparse
import gzip
import importlib.util
import json
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

MEMORY = 2e9  # bytes of a batch of rows


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


def drawn(path: str, count: int):
    """A network, and rows of it in which half of the entries are NaN."""
    import torch

    import rdpgraph as rg

    torch.set_num_threads(1)
    graph = rg.read(path)
    generator = torch.Generator().manual_seed(0)
    rows = rg.infer(graph).sample(count, generator).to_frame().astype(object)
    return graph, rows.mask((torch.rand(rows.shape, generator=generator) < 0.5).numpy())


def our_rows(path: str, count: int, limit: float) -> dict[str, object]:
    """CPU seconds of a row of ours; batches are halved until one fits in memory."""
    import rdpgraph as rg

    graph, rows = drawn(path, count)
    scheduler, size = rg.Contraction(memory=MEMORY), count
    start = time.process_time()
    while size > 1 and not rg.explain(graph.condition(rows[:size]), scheduler=scheduler).fits:
        size //= 2
    done, worst = 0, 0.0
    while done < count and (not done or time.process_time() - start < limit):
        posterior = rg.infer(graph.condition(rows[done : done + size]), scheduler=scheduler)
        marginals = posterior.marginals()
        off = max(float((own.sum(-1) - 1).abs().max()) for own in marginals.values())
        worst, done = max(worst, off), min(done + size, count)
    if not done:
        sys.exit("no row fits")
    each = (time.process_time() - start) / done
    return {"each": each, "rows": done, "batch": size, "normalised_to": worst}


def their_rows(path: str, count: int, limit: float) -> dict[str, object]:
    """CPU seconds of a row of pyAgrum's."""
    import pyagrum as gum

    _, rows = drawn(path, count)
    gum.setNumberOfThreads(1)
    network = gum.loadBN(path)
    engine = gum.LazyPropagation(network)
    start, done = time.process_time(), 0
    for row in rows.to_dict("records"):
        engine.setEvidence({name: str(own) for name, own in row.items() if own == own})  # no NaN
        engine.makeInference()
        for node in network.nodes():
            engine.posterior(node)
        done += 1
        if time.process_time() - start > limit:
            break
    return {"each": (time.process_time() - start) / done, "rows": done}


def plainly(text: str) -> str:
    """BIF whose states are identifiers: pyAgrum reads none of child's 12+, <5 and Asy/Patch."""
    names = r"(?<=[\s,({])(?!\d*\.\d)\w*[-+<>=/.][^\s,)]*"
    return re.sub(names, lambda name: "s" + re.sub(r"\W", "_", name[0]), text)


def child(which: str, path: str, limit: float, *rest: object) -> dict[str, object]:
    """Run one side in a process of its own."""
    arguments = [sys.executable, __file__, f"--{which}", path, *map(str, rest)]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not finished in {limit:.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1][:90]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def of_rows(name: str, path: str, count: int, limit: float) -> None:
    """Print CPU milliseconds of a row, of both, and how many rows each did."""
    us, them = (child(f"{who}-rows", path, 600, count, limit) for who in ("our", "their"))
    texts = [
        str(own["error"])[:40] if "error" in own
        else f"{1e3 * float(own['each']):9.3f} ms of {own['rows']:6} rows"  # type: ignore[arg-type]
        for own in (us, them)
    ]  # fmt: skip
    both = "each" in us and "each" in them
    ratio = f"{them['each'] / us['each']:6.2f}" if both else "-"  # type: ignore[operator]
    print(f"{name:12s} {texts[0]:28s} pyAgrum {texts[1]:28s} ratio {ratio}", flush=True)


def main() -> None:
    """Print both, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--rows", type=int, help="so many rows, half of whose entries are hidden")
    options = parser.parse_args()
    spec = importlib.util.find_spec("pgmpy")
    if spec is None or spec.origin is None:
        sys.exit(
            "tests/benchmarks/bnlearn.py needs the networks in the pgmpy wheel: pip install pgmpy"
        )
    folder = pathlib.Path(spec.origin).parent / "utils" / "example_models"
    peer = importlib.util.find_spec("pyagrum") is not None
    heading = (
        f"{'network':12s} {'vars':>5s} {'read':>6s} {'plan':>7s} {'run':>7s} {'again':>7s}"
        f" {'width':>6s} {'MB':>6s} {'pyAgrum':>10s} {'ratio':>7s}"
    )
    print(f"{options.rows} rows, half hidden" if options.rows else heading)
    with tempfile.TemporaryDirectory() as scratch:
        for packed in sorted(folder.glob("*.bif.gz"), key=lambda path: path.stat().st_size):
            name = packed.name.removesuffix(".bif.gz")
            if options.only and name not in options.only:
                continue
            plain = pathlib.Path(scratch) / f"{name}.bif"
            text = gzip.decompress(packed.read_bytes()).decode()
            plain.write_text(plainly(text) if name == "child" else text)
            if options.rows:
                of_rows(name, str(plain), options.rows, options.limit)
                continue
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
    if len(sys.argv) == 5 and sys.argv[1] in ("--our-rows", "--their-rows"):
        side = {"--our-rows": our_rows, "--their-rows": their_rows}[sys.argv[1]]
        print(json.dumps(side(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
    elif len(sys.argv) == 3 and sys.argv[1] in ("--ours", "--theirs"):
        print(json.dumps({"--ours": ours, "--theirs": theirs}[sys.argv[1]](sys.argv[2])))
    else:
        main()
