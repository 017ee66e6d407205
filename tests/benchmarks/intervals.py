"""Validity of bounds and coverage of 90% intervals, on competition models of known answers.

    python tests/benchmarks/intervals.py --task PR --seconds 5 [--data uai2022 uai2014] [--seeds 3]
    python tests/benchmarks/intervals.py --task MPE --seconds 5
    python tests/benchmarks/intervals.py --task MMAP --seconds 5

PR: log Z is known of models that exact inference fits in ``--reference-memory``. Each is then
answered by `Auto` with so much less memory that exact inference does not fit, and by its estimate
with other seeds. A row says how far the answer and the ends of its intervals are from log Z, in
nats, and whether an interval misses it. MPE and MMAP: what solvers of the competition found, known
to one decimal of log10, is at most the optimum, so that no bound may lie below it, nor what is
called optimal. Needs the models in ``../shared/data``.
"""

import argparse
import json
import math
import pathlib
import sys
from collections.abc import Iterator

import torch

import rdpgraph as rg
from rdpgraph.errors import RdpgraphError
from rdpgraph.io.evidence import read_evidence, read_query

DATA = pathlib.Path(__file__).resolve().parents[2].parent / "shared" / "data"
CONFIDENCE = 0.9
NORMAL = 1.645
"""Standard errors to either side that hold nine of ten normal draws."""
LEAST = 1e6
"""The smallest memory that models are answered with; those that are exact in it are left out."""
DECIMAL = 0.06 * math.log(10)
"""Largest error of a listed answer of the competition, nats."""


def graph_of(data: str, task: str, name: str) -> rg.FactorGraph:
    """The model with its evidence."""
    folder = DATA / data / task
    files = [folder / f"{name}.uai.gz", folder / f"{name}.gz", DATA / data / "MAR" / f"{name}.gz"]
    graph = rg.read(next(path for path in files if path.exists()))
    for evidence in (folder / f"{name}.uai.evid", folder / f"{name}.evid"):
        if evidence.exists():
            graph = graph.condition(read_evidence(evidence)[0])
    return graph


def names_of(data: str, task: str) -> list[str]:
    """Names of the models of a competition."""
    folder = DATA / data / task
    if data == "uai2022":
        return sorted(json.loads((folder / "scores.json").read_text()))
    return sorted(path.name.removesuffix(f".{task}.gz") for path in folder.glob(f"*.{task}.gz"))


class References:
    """log Z of models by exact inference, kept in a file; None where it does not fit."""

    def __init__(self, path: pathlib.Path | None, memory: float, seconds: float) -> None:
        self.path, self.budget = path, (memory, seconds)
        self.known = json.loads(path.read_text()) if path and path.exists() else {}

    def of(self, key: str, graph: rg.FactorGraph) -> tuple[float, float] | None:
        """log Z and the bytes that it took."""
        if key not in self.known:
            exact = rg.Contraction(*self.budget)
            plan = rg.explain(graph, scheduler=exact)
            value = None
            if plan.fits:
                try:
                    log_z = float(rg.infer(graph, scheduler=exact).log_partition)
                    value = (log_z, plan.peak_bytes) if math.isfinite(log_z) else None
                except RdpgraphError as error:
                    print(f"# {key}: {error}"[:150], flush=True)
            self.known[key] = value
            if self.path:
                self.path.write_text(json.dumps(self.known))
        return self.known[key]


def answers(
    graph: rg.FactorGraph, peak: float, options: argparse.Namespace
) -> Iterator[tuple[str, rg.Posterior]]:
    """Answers of `Auto` beyond exact inference, then of its estimate with other seeds."""
    memory = max(peak / 10, LEAST)
    while True:
        posterior = rg.infer(graph, scheduler=rg.Auto(memory, options.seconds))
        _ = posterior.log_partition
        if not posterior.status.exact:
            break
        if memory <= LEAST:
            return
        memory = max(memory / 10, LEAST)
    yield "auto", posterior
    for seed in range(1, options.seeds):
        generator = torch.Generator().manual_seed(seed)
        scheduler = rg.MiniBuckets(options.seconds, memory, generator=generator)
        yield f"seed {seed}", rg.infer(graph, scheduler=scheduler)


def intervals(options: argparse.Namespace) -> None:
    """Rows and totals for log Z."""
    references = References(options.references, options.reference_memory, options.reference_seconds)
    count = settled = crossed = outside = likely = normal = believed = 0
    for data in options.data:
        for name in names_of(data, "PR"):
            if options.only and not name.startswith(tuple(options.only)):
                continue
            graph = graph_of(data, "PR", name)
            known = references.of(f"{data}/{name}", graph)
            for way, posterior in () if known is None else answers(graph, known[1], options):
                truth = known[0]
                try:
                    log_z = float(posterior.log_partition)
                except RdpgraphError as error:
                    print(f"{name:22} {way:7} no answer: {error}"[:110], flush=True)
                    continue
                slack = 1e-6 + 1e-9 * abs(truth)
                sure = tuple(float(end) for end in posterior.bounds())
                ends = tuple(float(end) for end in posterior.bounds(confidence=CONFIDENCE))
                status = posterior.status
                error = status.standard_error
                marks = [sure[0] - slack > truth or sure[1] + slack < truth]
                marks.append(ends[0] - slack > truth or ends[1] + slack < truth)
                reliable = error is not None and status.converged
                miss = reliable and abs(log_z - truth) > NORMAL * error + slack
                count += 1
                crossed += marks[0]
                likely += marks[1]
                settled += sure[1] - sure[0] < slack
                believed += reliable
                normal += miss
                outside += not sure[0] - slack <= log_z <= sure[1] + slack
                flags = "".join(flag for flag, on in zip("XCN", [*marks, miss], strict=True) if on)
                bar = f"+- {error or 0.0:<8.2g}{'' if reliable else '?':1}"
                off = [f"{end - truth:+9.3g}" for end in (*ends, *sure)]
                print(
                    f"{name:22} {way:7} {log_z - truth:+10.2g} {bar} 90% {off[0]} {off[1]}"
                    f"  sure {off[2]} {off[3]} {flags}",
                    flush=True,
                )
    print(
        f"{count} answers, {settled} of them exact by their bounds; bounds crossed: {crossed}; "
        f"answers outside their bounds: {outside}; 90% intervals that hold log Z: {count - likely} "
        f"of {count}; within {NORMAL} standard errors: {believed - normal} of {believed} with an "
        "error that is said to be reliable"
    )


def bounds(options: argparse.Namespace) -> None:
    """Rows and totals for modes and marginal modes."""
    count = crossed = wrong = optimal = 0
    folder = DATA / "uai2022" / options.task
    sheets = json.loads((folder / "scores.json").read_text())
    for name in names_of("uai2022", options.task):
        if options.only and not name.startswith(tuple(options.only)):
            continue
        graph = graph_of("uai2022", options.task, name)
        best = sheets[name]["best"] * math.log(10)
        posterior = rg.infer(graph, scheduler=rg.Auto(options.memory, options.seconds))
        try:
            if options.task == "MPE":
                score = float(graph.score({**posterior.mode()}))
                bound, sure = float(posterior.mode_bound()), bool(posterior.mode_is_optimal())
            else:
                query = read_query(folder / f"{name}.uai.query")
                mode = posterior.marginal_mode(query)
                score, bound, sure = float(mode.score), float(mode.bound), bool(mode.optimal)
        except RdpgraphError as error:
            print(f"{name:28} no answer: {error}"[:110], flush=True)
            continue
        marks = (bound < max(best - DECIMAL, score - 1e-6), sure and score < best - DECIMAL)
        count, crossed, wrong = count + 1, crossed + marks[0], wrong + marks[1]
        optimal += sure
        flags = "".join(flag for flag, on in zip("XO", marks, strict=True) if on)
        off = f"ours {score - best:+10.3f}  bound {bound - best:+10.3f}"
        proof = "optimal" if sure else ""
        print(f"{name:28} listed {best:12.3f}  {off}  {proof} {flags}", flush=True)
    print(f"{count} answers, {optimal} proved; bounds crossed: {crossed}; wrong proofs: {wrong}")


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=["PR", "MPE", "MMAP"], default="PR")
    parser.add_argument("--data", nargs="+", default=["uai2022", "uai2014"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--memory", type=float, default=4e9, help="of modes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--reference-memory", type=float, default=1e10)
    parser.add_argument("--reference-seconds", type=float, default=60.0)
    parser.add_argument("--references", type=pathlib.Path, help="a file that keeps them")
    options = parser.parse_args()
    if not DATA.exists():
        sys.exit("tests/benchmarks/intervals.py needs ../shared/data, which is absent")
    torch.set_num_threads(1)
    (intervals if options.task == "PR" else bounds)(options)


if __name__ == "__main__":
    main()
