"""Random files, then mutated: the same as a minimal reader says, or refused in one line."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import rdpgraph as rg
from rdpgraph.io.bif import parse_bif
from rdpgraph.io.evidence import parse_evidence
from rdpgraph.io.toulbar import parse_cfn, parse_wcsp
from rdpgraph.io.uai import parse_uai
from rdpgraph.io.xml import parse_xdsl, parse_xmlbif
from tests.fuzz import readers
from tests.fuzz.compare import holds

PIECES = [
    *"0123456789.-+eE \n{}()[]|,;\"'#/*_\tcé", "1e9", "1e999", "1e-999", "-1", "nan", "inf",
    "999999999999", "0", "/*", "*/", "//", "\x00", "default", "table", "variable", "property",
    "probability", "9" * 400, "٣", "1_0", " 1 ", "1.0", "->", "S", "\r\n", "\x0c", "\x1c", "\x85",
    "\u2028", "0x1", "+1", "1.", ".5", "c ", "\nc", "MARKOV", "BAYES", "network", "type",
]  # fmt: skip
MOST_MESSAGE = 600


def case(rng: np.random.Generator) -> int:
    """One text, whole and then mutated four times."""
    kind = str(rng.choice(list(KINDS)))
    write, parse, read, same = KINDS[kind]
    text = write(rng)
    holds(f"a whole {kind} file is accepted", _accepted(kind, text, parse, read, same))
    for _ in range(4):
        changed = text
        for _ in range(int(rng.integers(1, 4))):
            changed = _mutated(rng, changed)
        _accepted(kind, changed, parse, read, same)
    return 5


def _accepted(
    kind: str, text: str, parse: Callable[[str], Any], read: Any, same: Callable[[Any, Any], bool]
) -> bool:
    """True if the library takes a text; then the minimal reader must, with the same content."""
    try:
        found = parse(text)
    except rg.errors.RdpgraphError as error:
        message = str(error)
        one_line = len(message.splitlines()) == 1 and len(message) < MOST_MESSAGE
        holds(f"{kind} {text!r} is refused in a line: {message!r}", one_line)
        return False
    except Exception as error:
        raise AssertionError(f"{kind} {text!r} ends in {type(error).__name__}: {error}") from error
    try:
        wanted = read(text)
    except readers.Refused as error:
        raise AssertionError(f"{kind} {text!r} is accepted in spite of {error}") from None
    holds(f"{kind} {text!r} is read as {wanted}; got {found}", same(found, wanted))
    return True


def _mutated(rng: np.random.Generator, text: str) -> str:
    start = int(rng.integers(len(text) + 1))
    stop = min(len(text), start + int(rng.integers(13)))
    kind = rng.random()
    middle = "" if kind < 0.3 else text[start:stop] * 2
    if kind > 0.5:
        middle = PIECES[int(rng.integers(len(PIECES)))]
    if kind > 0.9:
        other = int(rng.integers(len(text) + 1))
        middle = text[other : other + 10]
    return text[:start] + middle + text[stop:]


def _number(rng: np.random.Generator) -> str:
    value = 0.0 if rng.random() < 0.2 else float(rng.random() * 10.0 ** rng.integers(-3, 3))
    forms = [repr(value), f"{value:.3g}", f"{value:e}", f"+{value:.4f}", f"{value:.2E}"]
    return forms[int(rng.integers(len(forms)))]


def _uai(rng: np.random.Generator) -> str:
    sizes = [int(n) for n in rng.integers(1, 4, size=int(rng.integers(0, 4)))]
    scopes = [
        [int(n) for n in rng.permutation(len(sizes))[: int(rng.integers(0, len(sizes) + 1))]]
        for _ in range(int(rng.integers(0, 4)))
    ]
    words = [str(rng.choice(["MARKOV", "BAYES", "markov"])), str(len(sizes)), *map(str, sizes)]
    words.append(str(len(scopes)))
    for scope in scopes:
        words += [str(len(scope)), *map(str, scope)]
    for scope in scopes:
        count = math.prod(sizes[n] for n in scope)
        words += [str(count), *(_number(rng) for _ in range(count))]
    return _spaced(rng, words)


def _evidence(rng: np.random.Generator) -> str:
    def row() -> list[str]:
        names = rng.permutation(6)[: int(rng.integers(0, 4))]
        return [str(len(names)), *(f"{n} {rng.integers(3)}" for n in names)]

    if rng.random() < 0.5:
        return _spaced(rng, " ".join(row()).split())
    rows = [row() for _ in range(int(rng.integers(0, 4)))]
    words = " ".join([str(len(rows)), *(w for r in rows for w in r)]).split()
    # As many words as one row of the other dialect would have: that is what it is taken for.
    return _spaced(rng, ["0"] if len(words) == 1 + 2 * len(rows) else words)


def _spaced(rng: np.random.Generator, words: list[str]) -> str:
    gaps = [" ", " ", "\n", "\t", "  ", "\n\n", " # no 1\n", " // 2\n", "\r\n", "\nc 3\n"]
    return "".join(word + gaps[int(rng.integers(len(gaps)))] for word in words)


def _grammar(rng: np.random.Generator) -> str:
    symbols = ["S", "NP", "V-P", "->", "x.y"][: int(rng.integers(1, 6))]
    lines: dict[str, None] = {}
    for symbol in symbols:
        lines[f'{symbol} -> "w{rng.integers(3)}"'] = None
    for _ in range(int(rng.integers(0, 5))):
        parent, left, right = (str(rng.choice(symbols)) for _ in range(3))
        lines[f"{parent}  ->\t{left} {right}"] = None
    written = [f"{_number(rng)} {line}" for line in lines]
    ends = ["\n", "  # a comment\n", "\n\n", "\r\n"]
    return "".join(line + ends[int(rng.integers(len(ends)))] for line in written)


def _bif(rng: np.random.Generator) -> str:
    names = ["a", '"b c"', "d-1", "e"][: int(rng.integers(1, 5))]
    sizes = {name: int(rng.integers(1, 4)) for name in names}
    states = {name: [f"s{n}" for n in range(size)] for name, size in sizes.items()}
    parts = ["network x { property p = 1; }\n"] if rng.random() < 0.7 else []
    for name in names:
        listed = ", ".join(states[name])
        parts.append(f"variable {name} {{ type discrete [ {sizes[name]} ] {{ {listed} }}; }}\n")
    for place, name in enumerate(names):
        parents = [other for other in names[:place] if rng.random() < 0.5]
        head = f"{name} | {', '.join(parents)}" if parents else name
        rows = math.prod(sizes[parent] for parent in parents)
        tables = [_row(rng, sizes[name]) for _ in range(rows)]
        if rng.random() < 0.4 or not parents:
            flat = [row[state] for state in range(sizes[name]) for row in tables]
            body = f"table {', '.join(flat)};"
        else:
            lines = [
                f"({', '.join(label)}) {', '.join(tables[row])};"
                for row, label in enumerate(_labels([states[parent] for parent in parents]))
            ]
            if rng.random() < 0.3:
                lines[-1] = f"default {', '.join(tables[-1])};"
            body = "\n  ".join(lines)
        parts.append(f"probability ( {head} ) {{\n  {body}\n}}\n")
    tails = ["", "// a comment\n", "/* and\nanother */", "\n"]
    return "".join(part + tails[int(rng.integers(len(tails)))] for part in parts)


def _row(rng: np.random.Generator, size: int) -> list[str]:
    weights = rng.integers(0, 5, size=size) + np.eye(size, dtype=int)[0]
    return [f"{value:.4f}" for value in weights / weights.sum()]


def _labels(states: list[list[str]]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [()]
    for names in states:
        found = [(*label, name) for label in found for name in names]
    return found


def _same_model(graph: rg.FactorGraph, model: readers.Model) -> bool:
    sizes = {variable.name: variable.size for variable in graph.variables}
    if sizes != model.sizes or graph.dtype != torch.float64:
        return graph.num_factors == 0 and sizes == model.sizes
    for variable in graph.variables:
        if model.states and variable.states != model.states[variable.name]:
            return False
    constant, factors = 0.0, []
    for factor in graph.factors():
        values = factor.potential.table(len(factor.variables)).double().numpy()
        if factor.variables:
            factors.append((tuple(v.name for v in factor.variables), values.reshape(-1)))
        else:
            constant += float(values)
    wanted = [(scope, np.array(values)) for scope, values in model.factors]
    order = [scope for scope, _ in sorted(factors, key=lambda item: str(item[0]))]
    if order != [scope for scope, _ in sorted(wanted, key=lambda item: str(item[0]))]:
        return False
    # Blocks of like factors may come in another order; scopes may repeat, in the file's order.
    for scope in dict.fromkeys(order):
        ours = [values for own, values in factors if own == scope]
        theirs = [values for own, values in wanted if own == scope]
        with np.errstate(divide="ignore"):
            same = [
                np.allclose(a, np.log(b), rtol=1e-12, atol=1e-12)
                for a, b in zip(ours, theirs, strict=True)
            ]
        if not all(same):
            return False
    return constant == model.constant or abs(constant - model.constant) < 1e-9


def _same_grammar(found: rg.trees.Grammar, rules: dict[tuple[str, ...], float]) -> bool:
    if set(found.symbols) != {key[0] for key in rules}:
        return False
    number = {name: place for place, name in enumerate(found.symbols)}
    table = torch.full_like(found.log_rules, -math.inf)
    words = torch.full_like(found.log_words, -math.inf)
    for key, weight in rules.items():
        log = math.log(weight) if weight else -math.inf
        if len(key) == 3:
            table[number[key[0]], number[key[1]], number[key[2]]] = log
        else:
            words[number[key[0]], found.words.index(key[1][1:])] = log
    return all(
        torch.allclose(a.exp(), b.exp(), rtol=1e-12, atol=0)
        for a, b in ((found.log_rules, table), (found.log_words, words))
    )


def _costs(rng: np.random.Generator, cost: Callable[[], str]) -> Any:
    """Sizes, and functions as scopes, a default cost and some tuples with their costs."""
    sizes = [int(n) for n in rng.integers(1, 4, size=int(rng.integers(0, 4)))]
    functions: list[tuple[list[int], str, dict[tuple[int, ...], str]]] = []
    for _ in range(int(rng.integers(0, 4))):
        scope = [
            int(n) for n in rng.permutation(len(sizes))[: int(rng.integers(0, len(sizes) + 1))]
        ]
        places = np.ndindex(*(sizes[n] for n in scope))
        listed = {place: cost() for place in places if rng.random() < 0.5}
        functions.append((scope, cost(), listed))
    return sizes, functions


def _wcsp(rng: np.random.Generator) -> str:
    sizes, functions = _costs(rng, lambda: str(rng.integers(8)))
    words = ["name", len(sizes), max(sizes, default=0), len(functions), rng.integers(1, 9), *sizes]
    for scope, default, listed in functions:
        words += [len(scope), *scope, default, len(listed)]
        for place, cost in listed.items():
            words += [*place, cost]
    gaps = [" ", "\n", "\t", "  "]
    return "".join(f"{word}{gaps[int(rng.integers(4))]}" for word in words)


def _cfn(rng: np.random.Generator) -> str:
    sizes, functions = _costs(rng, lambda: f"{rng.normal():.3g}")
    variables: dict[str, Any] = {
        f"v {n}": size if rng.random() < 0.5 else [f"s{k}" for k in range(size)]
        for n, size in enumerate(sizes)
    }
    written: list[Any] = []
    for scope, default, listed in functions:
        dims = [sizes[n] for n in scope]
        names = [n if rng.random() < 0.5 else f"v {n}" for n in scope]
        rows = [
            [
                k if isinstance(variables[f"v {n}"], int) or rng.random() < 0.5 else f"s{k}"
                for n, k in zip(scope, place, strict=True)
            ]
            + [float(cost)]
            for place, cost in listed.items()
        ]
        dense = [float(listed.get(place, default)) for place in np.ndindex(*dims)]
        sparse = {"defaultcost": float(default), "costs": [each for row in rows for each in row]}
        written.append({"scope": names, **(sparse if rng.random() < 0.5 else {"costs": dense})})
    bound = f"{rng.choice(['<', '>'])}{rng.normal():.3f}"
    listed = written if rng.random() < 0.5 else {f"f{n}": f for n, f in enumerate(written)}
    whole = {"problem": {"name": "x", "mustbe": bound}, "variables": variables, "functions": listed}
    return json.dumps(whole, indent=int(rng.integers(0, 3)))


def _xmlbif(rng: np.random.Generator) -> str:
    names = ["a", "b &amp; c", "d-1", "e"][: int(rng.integers(1, 5))]
    sizes = {name: int(rng.integers(1, 4)) for name in names}
    parts = ['<?xml version="1.0"?>\n<!-- no -->\n' if rng.random() < 0.5 else ""]
    parts.append("<BIF VERSION='0.3'><NETWORK><NAME>x</NAME><PROPERTY>p</PROPERTY>\n")
    for name in names:
        states = "".join(f"<OUTCOME>s{n}</OUTCOME>" for n in range(sizes[name]))
        parts.append(f"<VARIABLE TYPE='nature'><NAME> {name}</NAME>{states}</VARIABLE>\n")
    for place in rng.permutation(len(names)).tolist():
        parents = [p for p in rng.permutation(place).tolist() if rng.random() < 0.6]
        given = "".join(f"<GIVEN>{names[p]}</GIVEN>" for p in parents)
        count = sizes[names[place]] * math.prod(sizes[names[p]] for p in parents)
        table = _spaced_plainly(rng, [_number(rng) for _ in range(count)])
        parts.append(f"<DEFINITION>{given}<FOR>{names[place]}</FOR><TABLE>{table}</TABLE>")
        parts.append("</DEFINITION>\n")
    return "".join([*parts, "</NETWORK></BIF>"])


def _xdsl(rng: np.random.Generator) -> str:
    names = ["a", "b&amp;c", "d-1", "e"][: int(rng.integers(1, 5))]
    sizes = {name: int(rng.integers(1, 4)) for name in names}
    parts = ["<smile version='1.0' id='x'><properties/><nodes>\n"]
    for place in rng.permutation(len(names)).tolist():
        name, parents = names[place], [n for n in names[:place] if rng.random() < 0.6]
        kind = "cpt" if rng.random() < 0.6 else "deterministic"
        parts.append(f'<{kind} id="{name}">')
        parts += [f'<state id="s{n}" />' for n in range(sizes[name])]
        parts.append(f"<parents>{' '.join(parents)}</parents>" if parents else "")
        count = math.prod(sizes[parent] for parent in parents)
        if kind == "cpt":
            numbers = _spaced_plainly(rng, [_number(rng) for _ in range(count * sizes[name])])
            parts.append(f"<probabilities>{numbers}</probabilities>")
        else:
            results = [f"s{rng.integers(sizes[name])}" for _ in range(count)]
            parts.append(f"<resultingstates>{_spaced_plainly(rng, results)}</resultingstates>")
        parts.append(f"<property id='p'>q</property></{kind}>\n")
    return "".join([*parts, "</nodes><extensions><genie/></extensions></smile>"])


def _spaced_plainly(rng: np.random.Generator, words: list[str]) -> str:
    return "".join(word + [" ", "\n", "\t "][int(rng.integers(3))] for word in words)


def _same_logs(found: rg.FactorGraph, wanted: readers.Costs) -> bool:
    names = [variable.name for variable in found.variables]
    if [v.size for v in found.variables] != wanted.sizes or names != wanted.names:
        return False
    got = list(found.factors())
    if len(got) != len(wanted.factors):
        return False
    for factor, (scope, logs) in zip(got, wanted.factors, strict=True):
        table = factor.potential.table(len(scope)).reshape(-1)
        expected = torch.tensor(logs, dtype=torch.float64)
        if [v.name for v in factor.variables] != scope or not torch.equal(table, expected):
            return False
    return True


KINDS: dict[str, Any] = {
    "UAI": (_uai, parse_uai, readers.uai, _same_model),
    "BIF": (_bif, parse_bif, readers.bif, _same_model),
    "XMLBIF": (_xmlbif, parse_xmlbif, readers.xmlbif, _same_model),
    "XDSL": (_xdsl, parse_xdsl, readers.xdsl, _same_model),
    "wcsp": (_wcsp, parse_wcsp, readers.wcsp, _same_logs),
    "cfn": (_cfn, parse_cfn, readers.cfn, _same_logs),
    "evidence": (_evidence, parse_evidence, readers.evidence, lambda a, b: a == b),
    "grammar": (_grammar, rg.trees.parse_grammar, readers.grammar, _same_grammar),
}
