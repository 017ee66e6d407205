"""Reference answers of UAI 2014 and 2022 that cannot belong to their files, without this library.

    python tests/benchmarks/errata.py [--only NAME ...]

Reads the files with a parser of its own and plain NumPy. Prints an upper bound of log10 Z (the
largest value of each factor times the number of configurations), then log10 Z or a lower bound by
`contracted`, in an order found by cotengra. For rus it prints a lower bound, the sum of some
configurations, by `heaviest`, and log10 Z between two bounds by `enumerated`.
"""

import argparse
import gzip
import json
import math
import pathlib
import sys

import numpy as np

DATA = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"
MODELS = {
    "relational_3": "uai2014", "relational_5": "uai2014", "sat-grid-pbl-0010.cnf": "uai2014",
    "linkage_15": "uai2014", "or_chain_128.fg": "uai2022", "or_chain_140.fg": "uai2022",
    "rus_20_40_3_3": "uai2022", "rus_20_40_4_2": "uai2022", "rus_20_40_5_1": "uai2022",
    "rus_20_40_5_3": "uai2022",
}  # fmt: skip
Scope = tuple[int, ...]


def words(path: pathlib.Path) -> list[str]:
    """The tokens of a file."""
    return (gzip.open(path, "rt") if path.suffix == ".gz" else path.open()).read().split()


def model_of(name: str) -> tuple[list[int], list[Scope], list[np.ndarray], float]:
    """Sizes, scopes and tables of a model under its evidence, and the reference."""
    folder = DATA / MODELS[name] / "PR"
    path = folder / f"{name}.uai.gz"
    tokens = iter(words(path if path.exists() else folder.parent / "MAR" / path.name)[1:])
    sizes = [int(next(tokens)) for _ in range(int(next(tokens)))]
    full = [[int(next(tokens)) for _ in range(int(next(tokens)))] for _ in range(int(next(tokens)))]
    values = [int(x) for x in words(folder / f"{name}.uai.evid")]
    pairs = values[1:] if len(values) == 1 + 2 * values[0] else values[2:]  # a number of rows first
    seen = dict(zip(pairs[::2], pairs[1::2], strict=True))
    tables = []
    for scope in full:
        table = np.array([float(next(tokens)) for _ in range(int(next(tokens)))])
        at = tuple(seen.get(v, slice(None)) for v in scope)
        tables.append(table.reshape([sizes[v] for v in scope])[at])
    scopes = [tuple(v for v in scope if v not in seen) for scope in full]
    sizes = [1 if v in seen else size for v, size in enumerate(sizes)]
    if MODELS[name] == "uai2022":
        return sizes, scopes, tables, json.loads((folder / "scores.json").read_text())[name]["best"]
    return sizes, scopes, tables, float(words(folder / f"{name}.uai.PR.gz")[-1])


def contracted(
    sizes: list[int], scopes: list[Scope], tables: list[np.ndarray], enough: float
) -> tuple[float, bool]:
    """Log Z by pairwise sums and products; each table is scaled to a largest value of one.

    Where that takes too long, a sum over some states of some variables, of more than ``enough``: a
    lower bound. Returns whether it is all of Z, too.
    """
    import cotengra

    log_scale, merged = 0.0, {}
    for scope, table in sorted(zip(scopes, tables, strict=True), key=lambda pair: -len(pair[0])):
        log_scale += math.log(table.max())
        into = next((other for other in merged if set(scope) <= set(other)), scope)
        order = sorted(range(len(scope)), key=lambda axis: into.index(scope[axis]))
        shape = [sizes[v] if v in scope else 1 for v in into]
        scaled = (table / table.max()).transpose(order).reshape(shape) * merged.get(into, 1.0)
        log_scale += math.log(scaled.max())
        merged[into] = scaled / scaled.max()
    inputs = [tuple(map(cotengra.get_symbol, scope)) for scope in merged]
    letters = {cotengra.get_symbol(v): size for v, size in enumerate(sizes)}
    search = cotengra.RandomGreedyOptimizer(max_repeats=32, parallel=False, seed=0)
    tree = search.search(inputs, (), letters)
    for seed in range(8):
        if tree.contraction_cost() < 2**30:
            break
        tree = tree.simulated_anneal(tstart=0.5 if seed else 2, numiter=30, seed=seed)
        tree = tree.subtree_reconfigure()
    print(f"  widest table 2**{tree.contraction_width():.0f}, {tree.contraction_cost():.1g} steps")
    whole = tree.contraction_cost() < 2**34
    tree.slice_(target_size=2**26)
    log_sum, arrays = -math.inf, list(merged.values())
    for number in range(tree.nslices):
        value, exponent = tree.contract_slice(arrays, number, strip_exponent=True)
        if float(value) > 0:
            log_part = math.log(float(value)) + float(exponent) * math.log(10)
            log_sum = float(np.logaddexp(log_sum, log_scale + log_part))
        if not whole and log_sum > enough:
            return log_sum, number + 1 == tree.nslices
    return log_sum, True


def in_pairs(
    sizes: list[int], scopes: list[Scope], tables: list[np.ndarray]
) -> tuple[float, np.ndarray, np.ndarray]:
    """Log-values of no variable, of each one (count, 2), and of each pair (count, count, 2, 2)."""
    count = len(sizes)
    constant, single, pair = 0.0, np.zeros((count, 2)), np.zeros((count, count, 2, 2))
    for scope, table in zip(scopes, tables, strict=True):
        with np.errstate(divide="ignore"):
            log_table = np.log(table)
        if len(scope) == 2:
            pair[scope] += log_table
            pair[scope[::-1]] += log_table.T
        elif scope:
            single[scope[0]] += log_table
        else:
            constant += float(log_table)
    return constant, single, pair


def heaviest(sizes: list[int], scopes: list[Scope], tables: list[np.ndarray], most: int) -> float:
    """Log of a sum of some configurations of binary variables in pairs, a lower bound of log Z.

    Variables are set one after the other. Of the partial configurations the best `most` go on, by
    the score with each later variable summed alone.
    """
    constant, single, pair = in_pairs(sizes, scopes, tables)
    left = [v for v, size in enumerate(sizes) if size == 2]
    best = pair.max(axis=(2, 3))
    log_scores, fields = np.array([constant]), single[None]
    while left:
        v = left[int(best[np.ix_(left, left)].sum(axis=1).argmax())]
        left.remove(v)
        log_scores = np.concatenate([log_scores + fields[:, v, x] for x in range(2)])
        fields = np.concatenate([fields + pair[v, :, x] for x in range(2)])
        later = fields[:, left]
        bounds = log_scores + np.logaddexp(later[..., 0], later[..., 1]).sum(axis=1)
        order = np.argsort(-bounds)[:most]
        log_scores, fields = log_scores[order], fields[order]
    return float(np.logaddexp.reduce(log_scores))


def enumerated(
    sizes: list[int], scopes: list[Scope], tables: list[np.ndarray], log_least: float
) -> tuple[float, float]:
    """Bounds of log Z of binary variables in pairs, where Z is at least exp(log_least).

    Variables of which no two share a factor are summed one by one for each configuration of the
    others. These are set one after the other, all configurations side by side; what has a bound
    below e^-30 of Z, by the largest value of each pair of later variables, is added to the upper
    bound and left.
    """
    constant, single, pair = in_pairs(sizes, scopes, tables)
    pair = np.maximum(pair, -1e5)  # differences of zeros; e^-1e5 is none
    near = [
        {v for scope in scopes if u in scope for v in scope if v != u} for u in range(len(sizes))
    ]
    every, summed = [v for v, size in enumerate(sizes) if size == 2], []
    for v in sorted(every, key=lambda v: len(near[v])):
        if not near[v].intersection(summed):
            summed.append(v)
    left = [v for v in every if v not in summed]
    spread = np.ptp(pair, axis=(2, 3)).sum(1)
    log_scores, fields, log_lost = np.array([constant]), single[None], -math.inf
    while left:
        v = max(left, key=lambda v: spread[v])
        left.remove(v)
        log_scores = np.concatenate([log_scores + fields[:, v, x] for x in range(2)])
        fields = np.concatenate([fields + pair[v, :, x] for x in range(2)])
        bounds = log_scores.copy()
        for place, u in enumerate([*left, *summed]):
            later = (
                pair[u, left[place + 1 :] if place < len(left) else left].max(axis=2).sum(axis=0)
            )
            bounds += np.logaddexp(fields[:, u, 0] + later[0], fields[:, u, 1] + later[1])
        kept = bounds > log_least - 30
        log_lost = np.logaddexp(log_lost, np.logaddexp.reduce(bounds[~kept], initial=-math.inf))
        log_scores, fields, bounds = log_scores[kept], fields[kept], bounds[kept]
    log_sum = np.logaddexp.reduce(bounds)
    return float(log_sum), float(np.logaddexp(log_sum, log_lost))


def main() -> None:
    """Print for each model the reference, bounds, and log10 Z where it can be summed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of names")
    parser.add_argument("--rows", type=int, default=500, help="configurations kept for rus")
    options = parser.parse_args()
    if not DATA.exists():
        sys.exit("tests/benchmarks/errata.py needs ../shared/data, which is absent")
    for name in (name for name in MODELS if name.startswith(tuple(options.only))):
        sizes, scopes, tables, reference = model_of(name)
        if not all(table.any() for table in tables):
            place = next(number for number, table in enumerate(tables) if not table.any())
            print(f"{name}: factor {place}, over {len(scopes[place])} variables, is zero: so is Z")
            continue
        log_peaks = math.fsum([math.log(table.max()) for table in tables] + [*map(math.log, sizes)])
        print(f"{name}: reference {reference}, below {log_peaks / math.log(10):.4f}", flush=True)
        if name.startswith("rus"):
            log_least = heaviest(sizes, scopes, tables, options.rows)
            least = math.floor(1000 * log_least / math.log(10)) / 1000  # rounded down: a bound
            print(f"  log10 Z at least {least}", flush=True)
            low, high = (x / math.log(10) for x in enumerated(sizes, scopes, tables, log_least))
            print(f"  log10 Z from {low:.9f} to {high:.9f}", flush=True)
        elif name != "relational_5":  # its bound is enough
            log_z, whole = contracted(sizes, scopes, tables, reference * math.log(10))
            least = "" if whole else "at least "
            print(f"  log10 Z {least}{log_z / math.log(10):.6f}", flush=True)


if __name__ == "__main__":
    main()
