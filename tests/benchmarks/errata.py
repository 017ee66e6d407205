"""Reference answers of UAI 2014 that cannot belong to their files, shown without this library.

    python tests/benchmarks/errata.py

Reads the files with a parser of its own and plain NumPy. For relational models: no log Z exceeds
the sum of the largest log-values of all factors and the logarithm of the number of configurations,
and each component of few variables is enumerated. For sat-grid: a factor without variables is zero.
"""

import gzip
import math
import pathlib
import sys
from collections import Counter

import numpy as np

DATA = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data" / "uai2014"
MODELS = ("relational_3.uai", "relational_5.uai", "sat-grid-pbl-0010.cnf.uai")
MOST = 2**12


def numbers_of(path: pathlib.Path) -> list[str]:
    """The tokens of a file."""
    with gzip.open(path, "rt") as file:
        return file.read().split()


def model_of(name: str) -> tuple[list[int], list[list[int]], list[np.ndarray]]:
    """Sizes, scopes and tables of a UAI file."""
    path = DATA / "PR" / f"{name}.gz"
    tokens = iter(numbers_of(path if path.exists() else DATA / "MAR" / f"{name}.gz")[1:])
    sizes = [int(next(tokens)) for _ in range(int(next(tokens)))]
    scopes = [
        [int(next(tokens)) for _ in range(int(next(tokens)))] for _ in range(int(next(tokens)))
    ]
    tables = []
    for scope in scopes:
        values = [float(next(tokens)) for _ in range(int(next(tokens)))]
        tables.append(np.array(values).reshape([sizes[v] for v in scope]))
    return sizes, scopes, tables


def observed(name: str) -> dict[int, int]:
    """The evidence of a model."""
    values = [int(x) for x in (DATA / "PR" / f"{name}.evid").read_text().split()]
    pairs = values[1:] if len(values) == 1 + 2 * values[0] else values[2:]  # a number of rows first
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def components(count: int, scopes: list[list[int]]) -> list[list[int]]:
    """Variables that factors connect."""
    parent = list(range(count))

    def root(v: int) -> int:
        while parent[v] != v:
            v = parent[v]
        return v

    for scope in scopes:
        for v in scope[1:]:
            parent[root(v)] = root(scope[0])
    parts: dict[int, list[int]] = {}
    for v in range(count):
        parts.setdefault(root(v), []).append(v)
    return list(parts.values())


def enumerated(
    part: list[int], sizes: list[int], scopes: list[list[int]], tables: list[np.ndarray]
) -> float:
    """Log Z of a component by all of its configurations."""
    grid = np.indices([sizes[v] for v in part]).reshape(len(part), -1)
    place = {v: number for number, v in enumerate(part)}
    scores = np.zeros(grid.shape[1])
    for scope, table in zip(scopes, tables, strict=True):
        if scope and scope[0] in place:
            with np.errstate(divide="ignore"):
                scores += np.log(table[tuple(grid[place[v]] for v in scope)])
    top = scores.max()
    return float(top + np.log(np.exp(scores - top).sum()))


def main() -> None:
    """Print for each model the reference, a bound, and log Z where it can be enumerated."""
    if not DATA.exists():
        sys.exit("tests/benchmarks/errata.py needs ../shared/data/uai2014, which is absent")
    for name in MODELS:
        sizes, scopes, tables = model_of(name)
        seen = observed(name)
        for number, (scope, table) in enumerate(zip(scopes, tables, strict=True)):
            at = tuple(seen.get(v, slice(None)) for v in scope)
            tables[number] = table[at]
            scopes[number] = [v for v in scope if v not in seen]
        free = [v for v in range(len(sizes)) if v not in seen]
        reference = numbers_of(DATA / "PR" / f"{name}.PR.gz")[-1]
        zero = [number for number, table in enumerate(tables) if not table.any()]
        peaks = math.fsum(math.log(table.max()) for table in tables if table.any())
        bound = (peaks + math.fsum(math.log(sizes[v]) for v in free)) / math.log(10)
        parts = [part for part in components(len(sizes), scopes) if part[0] not in seen]
        print(f"{name}: reference {reference}, upper bound {bound:.4f} (log10)")
        print(f"  components of {dict(Counter(map(len, parts)))} variables; zero factors {zero}")
        if zero and not scopes[zero[0]]:
            print(f"  factor {zero[0]} over {len(scopes[zero[0]])} variables is zero: Z is zero")
        elif all(math.prod(sizes[v] for v in part) <= MOST for part in parts):
            constant = math.fsum(
                math.log(float(t)) for s, t in zip(scopes, tables, strict=True) if not s
            )
            total = constant + math.fsum(enumerated(p, sizes, scopes, tables) for p in parts)
            print(f"  enumerated {total / math.log(10):.6f} (log10)")


if __name__ == "__main__":
    main()
