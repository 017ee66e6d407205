"""Random models with strange names, written and read again: the same model, or one line."""

import importlib.util
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rdpgraph as rg
from rdpgraph.errors import UnsupportedError
from tests.fuzz.compare import holds

STRANGE = [
    "a b", "it's", 'say "x"', "é", "日本", "<tag>", "a&b", "a&amp;b", "]]>", "{", "}", "a|b", "a,b",
    "a;b", "//x", "/*x*/", "#", "%", "-1", "1e5", "nan", "None", "x\\y", "a=b", "(a)", "table", "p",
    "probability", "variable", "\u00a0z", "z\u2028z", "z\x85z", "tab\tx", "\U0001f600", "true",
    "00", "+1", "*", "?", " lead", "trail ", "\x07bell", "\x7f", "\ud800", "x[0]", "State0",
    "\n", "\\",
]  # fmt: skip


def case(rng: np.random.Generator) -> int:
    """One model through one door, twice."""
    kinds = list(DOORS)
    name, kind = kinds[int(rng.integers(len(kinds)))]
    there, back, exact_names = DOORS[name, kind]
    graph = _graph(rng, kind)
    try:
        first = back(there(graph))
    except UnsupportedError as error:
        holds(f"{name} refuses in a line", "\n" not in str(error))
        return 1
    holds(f"{name} there and back", _same(graph, first, names=exact_names))
    holds(f"{name} twice", _same(first, back(there(first)), names=True))
    return 1


def _graph(rng: np.random.Generator, kind: str) -> rg.FactorGraph:
    strange = float(rng.choice([0.0, 0.2, 0.6]))

    def names(count: int) -> tuple[str, ...]:
        odd = iter(rng.permutation(len(STRANGE)).tolist())
        return tuple(
            STRANGE[next(odd)] if rng.random() < strange else f"v{n}" for n in range(count)
        )

    sizes = [int(rng.choice([1, 2, 2, 3, 4])) for _ in range(int(rng.integers(1, 6)))]
    variables = [
        rg.Variable(name, size if rng.random() < 0.3 else names(size))
        for name, size in zip(names(len(sizes)), sizes, strict=True)
    ]
    factors: list[rg.Factor] = []
    for place in range(len(sizes)) if kind == "bayes" else range(int(rng.integers(0, 6))):
        most = min(place, 2) if kind == "bayes" else min(3, len(sizes))
        others = rng.permutation(place if kind == "bayes" else len(sizes))
        scope = [variables[n] for n in others[: int(rng.integers(0, most + 1))]]
        scope += [variables[place]] if kind == "bayes" else []
        shape = [v.size for v in scope]
        if kind == "costs":
            logs = -rng.integers(0, 50, shape).astype(float)
        else:
            logs = rng.normal(size=shape) * rng.choice([0.01, 1.0, 30.0])
        logs = np.where(rng.random(shape) < 0.2, -math.inf, logs)
        table = torch.as_tensor(logs, dtype=torch.float64)
        if kind == "bayes":
            table = torch.where(table.amax(-1, keepdim=True) == -math.inf, 0.0, table)
            table = torch.log_softmax(table, -1)
        factors.append(rg.Factor(tuple(scope), rg.Table.from_logs(table)))
    return rg.FactorGraph([factors[n] for n in rng.permutation(len(factors))], variables=variables)


def _same(one: rg.FactorGraph, other: rg.FactorGraph, *, names: bool) -> bool:
    """Test if graphs have equal scores; without names, by the places of variables."""
    left, right = list(one.variables), list(other.variables)
    order = [v.name for v in right]
    if not names:
        order = [v.name for v in left]
    elif sorted(order) != sorted(v.name for v in left):
        return False
    pairs = [(v, right[order.index(v.name)]) for v in left]
    if any(v.size != w.size for v, w in pairs) or (
        names and any(list(map(str, v.states)) != list(map(str, w.states)) for v, w in pairs
                      if not isinstance(v.states, int))
    ):  # fmt: skip
        return False
    scores = _scores(one), _scores(other).permute([order.index(v.name) for v in left])
    return bool(torch.isclose(*scores, rtol=1e-9, atol=1e-9).all())


def _scores(graph: rg.FactorGraph) -> torch.Tensor:
    """The log-score of every configuration, a dim for each variable."""
    place = {variable.name: number for number, variable in enumerate(graph.variables)}
    total = torch.zeros([v.size for v in graph.variables], dtype=torch.float64)
    for factor in graph.factors():
        dims = [place[v.name] for v in factor.variables]
        table = factor.potential.table(len(dims)).double()
        table = table.permute(sorted(range(len(dims)), key=lambda at, dims=dims: dims[at]))
        shape = [v.size if n in dims else 1 for n, v in enumerate(graph.variables)]
        total = total + table.reshape(shape)
    return total


def _file(suffix: str) -> tuple[Callable[[rg.FactorGraph], Path], Callable[[Path], rg.FactorGraph]]:
    path = Path(tempfile.gettempdir()) / f"rdpgraph-doors-{os.getpid()}{suffix}"

    def there(graph: rg.FactorGraph) -> Path:
        rg.write(graph, path)
        return path

    def back(path: Path) -> rg.FactorGraph:
        graph = rg.read(path)
        path.unlink()
        return graph

    return there, back


DOORS: dict[tuple[str, str], tuple[Callable[[rg.FactorGraph], Any], Any, bool]] = {
    **{(form, "bayes"): (*_file(form), form != ".uai")
       for form in (".bif", ".xmlbif", ".xdsl", ".uai", ".cfn")},
    (".uai", "any"): (*_file(".uai"), False),
    (".cfn", "any"): (*_file(".cfn"), True),
    (".wcsp", "costs"): (*_file(".wcsp"), False),
}  # fmt: skip
for _kind in ("bayes", "any"):
    if importlib.util.find_spec("pgmpy"):
        DOORS["pgmpy", _kind] = rg.to_pgmpy, rg.from_pgmpy, True
    if importlib.util.find_spec("pyagrum"):
        DOORS["pyagrum", _kind] = rg.to_pyagrum, rg.from_pyagrum, True
