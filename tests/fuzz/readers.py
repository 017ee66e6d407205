"""Minimal readers of the files, one character after the other: what they accept, and as what.

They are slack where the library may be strict: whatever it accepts, they must accept, as the same.
"""

import json
import math
import re
from dataclasses import dataclass
from itertools import product
from xml.dom import minidom

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Refused(Exception):
    """A text that is no such file."""


@dataclass
class Model:
    """Sizes of variables by name, and factors as scopes with their values, row by row."""

    sizes: dict[str, int]
    states: dict[str, tuple[str, ...]]
    factors: list[tuple[tuple[str, ...], list[float]]]
    constant: float = 0.0


def number(word: str) -> float:
    """A finite decimal number."""
    if not NUMBER.fullmatch(word) or not math.isfinite(float(word)):
        raise Refused(f"{word!r} is not a number")
    return float(word)


def whole(word: str) -> int:
    """A whole number >= 0, however it is written."""
    value = number(word)
    if value < 0 or value != int(value):
        raise Refused(f"{word!r} is no whole number")
    return int(value)


def plain_words(text: str) -> list[str]:
    """The words of a file of numbers without its comments."""
    words: list[str] = []
    for line in text.split("\n"):
        for mark in ("#", "//"):
            line = line.split(mark)[0]
        stripped = line.lstrip(" \t")
        if stripped == "c" or stripped[:2] in ("c ", "c\t", "c\r"):
            continue
        words += line.split()
    return words


class Words:
    """Words that are taken one by one."""

    def __init__(self, words: list[str]) -> None:
        self.left = list(reversed(words))

    def take(self) -> str:
        """The next one."""
        if not self.left:
            raise Refused("the end")
        return self.left.pop()


def uai(text: str) -> Model:
    """A model in UAI format."""
    words = Words(plain_words(text))
    if words.take().upper() not in ("MARKOV", "BAYES"):
        raise Refused("no heading")
    sizes = [whole(words.take()) for _ in range(whole(words.take()))]
    if min(sizes, default=1) < 1:
        raise Refused("no states")
    scopes: list[list[int]] = []
    for _ in range(whole(words.take())):
        scope = [whole(words.take()) for _ in range(whole(words.take()))]
        if len(set(scope)) < len(scope) or max(scope, default=-1) >= len(sizes):
            raise Refused("a scope")
        scopes.append(scope)
    model = Model({str(n): size for n, size in enumerate(sizes)}, {}, [])
    for scope in scopes:
        count = math.prod(sizes[n] for n in scope)
        if whole(words.take()) != count:
            raise Refused("another table")
        values = [number(words.take()) for _ in range(count)]
        if min(values) < 0:
            raise Refused("a negative value")
        if scope:
            model.factors.append((tuple(map(str, scope)), values))
        else:
            model.constant += math.log(values[0]) if values[0] else -math.inf
    if words.left:
        raise Refused("more words")
    return model


def evidence(text: str) -> list[dict[str, int]]:
    """Rows of evidence, in either dialect."""
    words = plain_words(text)
    if not words:
        return [{}]
    values = [number(word) for word in words]
    count = whole(words[0])
    rest = Words(words)
    if len(values) == 1 + 2 * count:
        return [_row(rest)]
    rest.take()
    rows = [_row(rest) for _ in range(count)]
    if rest.left:
        raise Refused("more words")
    return rows


def _row(words: Words) -> dict[str, int]:
    row: dict[str, int] = {}
    for _ in range(whole(words.take())):
        name, state = str(whole(words.take())), whole(words.take())
        if row.setdefault(name, state) != state:
            raise Refused("two states")
    return row


def grammar(text: str) -> dict[tuple[str, ...], float]:
    """Rules (parent, left, right) and (parent, word) with their weights."""
    rules: dict[tuple[str, ...], float] = {}
    for line in re.split(r"\r\n|\r|\n", text):
        words: list[str] = []
        quoted: list[bool] = []
        at = 0
        while at < len(line):
            if line[at].isspace():
                at += 1
            elif line[at] == "#":
                break
            elif line[at] in "\"'":
                end = line.find(line[at], at + 1)
                if end < 0:
                    raise Refused("an open quote")
                words.append(line[at + 1 : end])
                quoted.append(True)
                at = end + 1
            else:
                end = at
                while end < len(line) and not line[end].isspace() and line[end] not in "\"'#":
                    end += 1
                words.append(line[at:end])
                quoted.append(False)
                at = end
        if not words:
            continue
        if len(words) < 4 or any(quoted[:3]) or words[2] != "->":
            raise Refused("no rule")
        kinds = quoted[3:]
        if kinds not in ([True], [False, False]) or "" in words:
            raise Refused("no rule")
        weight = number(words[0])
        # A word in quotes is no symbol of that name.
        parts = [f'"{words[3]}'] if kinds == [True] else words[3:]
        key = (words[1], *parts)
        if weight < 0 or key in rules:
            raise Refused("a weight, or a rule twice")
        rules[key] = weight
    parents = {key[0] for key in rules}
    if not rules or any(part not in parents for key in rules if len(key) == 3 for part in key[1:]):
        raise Refused("a symbol without rules")
    return rules


BIF_WORDS = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|("[^"\n]*"|[^\s{}()\[\]|,;"]+|[{}()\[\]|,;"])""", re.DOTALL
)

CLOSED = re.compile(r"/\*.*\*/", re.DOTALL)
BIF_MARKS = frozenset('{}()|,;"')


def bif(text: str) -> Model:
    """A Bayesian network; factors over (child, parents...)."""
    found = list(BIF_WORDS.finditer(text))
    if any(match[0].startswith("/*") and not CLOSED.fullmatch(match[0]) for match in found):
        raise Refused("an open comment")
    words = Words([match[1] for match in found if match[1]])
    if not words.left:
        raise Refused("nothing")
    model = Model({}, {}, [])
    blocks: list[tuple[list[str], list[list[str]]]] = []
    while words.left:
        kind = words.take()
        if kind == "property":
            _until(words, ";")
        elif kind == "network":
            if any(word in BIF_MARKS for word in _until(words, "{")):
                raise Refused("a network's name")
            if "{" in _until(words, "}"):
                raise Refused("a network without an end")
        elif kind == "variable":
            name = _name(words.take())
            if name in model.sizes:
                raise Refused("twice")
            names = _states(words)
            model.sizes[name], model.states[name] = len(names), tuple(names)
        elif kind == "probability":
            head = _until(words, "{")
            if head[:1] != ["("] or head[-1:] != [")"]:
                raise Refused("no scope")
            scope = [_name(word) for word in head[1:-1] if word not in (",", "|")]
            blocks.append((scope, _statements(_until(words, "}"))))
        else:
            raise Refused("no block")
    for scope, statements in blocks:
        model.factors.append((tuple(scope), _conditional(model, scope, statements)))
    if {scope[0] for scope, _ in model.factors} != set(model.sizes):
        raise Refused("variables without a block")
    return model


def _until(words: Words, end: str) -> list[str]:
    found: list[str] = []
    while (word := words.take()) != end:
        found.append(word)
    return found


def _name(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == '"' else word


def _states(words: Words) -> list[str]:
    """Text between the braces of a variable's block."""
    if words.take() != "{":
        raise Refused("no brace")
    names: list[str] | None = None
    while (word := words.take()) != "}":
        if word == "property":
            _until(words, ";")
        elif word == "type" and names is None:
            if [words.take() for _ in range(2)] != ["discrete", "["]:
                raise Refused("no type")
            count = whole(_name(words.take()))
            if [words.take() for _ in range(2)] != ["]", "{"]:
                raise Refused("no list")
            names = _several(_until(words, "}"), count)
            if words.left and words.left[-1] == ";":
                words.take()
        else:
            raise Refused("no property")
    if names is None or not names or len(set(names)) < len(names):
        raise Refused("no names")
    return names


def _several(words: list[str], count: int) -> list[str]:
    """Names apart by commas or spaces; those with spaces where commas alone give the count."""
    each = [_name(word) for word in words if word != ","]
    if len(each) == count:
        return each
    groups: list[list[str]] = [[]]
    for word in words:
        if word == ",":
            groups.append([])
        else:
            groups[-1].append(_name(word))
    joined = [" ".join(group) for group in groups if group]
    if len(joined) != count:
        raise Refused("another number of names")
    return joined


def _statements(words: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for word in words:
        if word == ";":
            found.append([])
        else:
            found[-1].append(word)
    return [statement for statement in found if statement]


def _conditional(model: Model, scope: list[str], statements: list[list[str]]) -> list[float]:
    if not scope or len(set(scope)) < len(scope) or any(name not in model.sizes for name in scope):
        raise Refused("a scope")
    child, parents = scope[0], scope[1:]
    size, rows = model.sizes[child], math.prod(model.sizes[name] for name in parents)
    table: list[list[float] | None] = [None] * rows
    default: list[float] | None = None
    for statement in statements:
        if statement[0] == "(":
            close = statement.index(")") if ")" in statement else len(statement)
            names = _several(statement[1:close], len(parents))
            row = 0
            for name, state in zip(parents, names, strict=True):
                if state not in model.states[name]:
                    raise Refused("a state")
                row = row * model.sizes[name] + model.states[name].index(state)
            table[row] = _values(statement[close + 1 :], size)
        elif statement[0] == "default":
            default = _values(statement[1:], size)
        elif statement[0] == "table":
            values = _values(statement[1:], size * rows)
            return values
        elif statement[0] != "property":
            raise Refused("a statement")
    found = [default if row is None else row for row in table]
    if any(row is None for row in found):
        raise Refused("a row that lacks")
    return [row[state] for state in range(size) for row in found if row is not None]


def _values(words: list[str], count: int) -> list[float]:
    values = [number(word) for word in words if word != ","]
    if len(values) != count or min(values) < 0:
        raise Refused("other values")
    return values


@dataclass
class Costs:
    """Sizes of variables, their names, and factors as scopes with their log-values."""

    sizes: list[int]
    names: list[str]
    factors: list[tuple[list[str], list[float]]]


def wcsp(text: str) -> Costs:
    """A cost function network of whole costs."""
    words = Words(text.split())
    words.take()
    count, _, functions, bound = (_integer(words.take()) for _ in range(4))
    sizes = [_integer(words.take()) for _ in range(count)]
    factors: list[tuple[list[str], list[float]]] = []
    for _ in range(functions):
        scope = [_integer(words.take()) for _ in range(_integer(words.take()))]
        if any(not 0 <= n < count for n in scope):
            raise Refused("a scope")
        default = _integer(words.take())
        table: dict[tuple[int, ...], int] = {}
        for _ in range(_integer(words.take())):
            place = tuple(_integer(words.take()) for _ in scope)
            if place in table or any(s >= sizes[n] for n, s in zip(scope, place, strict=True)):
                raise Refused("a tuple")
            table[place] = _integer(words.take())
        places = product(*(range(sizes[n]) for n in scope))
        costs = [table.get(place, default) for place in places]
        logs = [-math.inf if cost >= bound else -float(cost) for cost in costs]
        factors.append(([str(n) for n in scope], logs))
    if words.left:
        raise Refused("more words")
    return Costs(sizes, [str(n) for n in range(count)], factors)


def _integer(word: str) -> int:
    if not re.fullmatch("-?[0-9]+", word) or int(word) < 0:
        raise Refused(f"{word!r} is no whole number")
    return int(word)


def cfn(text: str) -> Costs:
    """A cost function network in JSON."""
    whole = json.loads(text)
    bound = whole["problem"]["mustbe"]
    sign, limit = {"<": 1.0, ">": -1.0}[bound[0]], number(bound[1:])
    names = list(whole["variables"])
    given = list(whole["variables"].values())
    states = [list(map(str, range(s))) if isinstance(s, int) else s for s in given]
    factors: list[tuple[list[str], list[float]]] = []
    functions = whole["functions"]
    for function in functions.values() if isinstance(functions, dict) else functions:
        scope = [n if isinstance(n, int) else names.index(n) for n in function["scope"]]
        costs = function["costs"]
        if "defaultcost" in function:
            table: dict[tuple[int, ...], float] = {}
            for at in range(0, len(costs), len(scope) + 1):
                row = costs[at : at + len(scope) + 1]
                place = tuple(
                    s if isinstance(s, int) else states[n].index(s)
                    for n, s in zip(scope, row[:-1], strict=True)
                )
                table[place] = row[-1]
            places = product(*(range(len(states[n])) for n in scope))
            costs = [table.get(place, function["defaultcost"]) for place in places]
        if len(costs) != math.prod(len(states[n]) for n in scope):
            raise Refused("a table")
        logs = [-math.inf if sign * c >= sign * limit else -sign * float(c) for c in costs]
        factors.append(([names[n] for n in scope], logs))
    return Costs([len(each) for each in states], names, factors)


def xmlbif(text: str) -> Model:
    """A Bayesian network in XML; factors over (parents..., child)."""
    model = Model({}, {}, [])

    def texts(element: minidom.Element, tag: str) -> list[str]:
        every = (n for n in element.childNodes if getattr(n, "tagName", "") == tag)
        return [
            "".join(part.data for part in each.childNodes if hasattr(part, "data")).strip()
            for each in every
        ]

    root = minidom.parseString(text).documentElement
    for variable in root.getElementsByTagName("VARIABLE"):
        (name,), states = texts(variable, "NAME"), texts(variable, "OUTCOME")
        model.sizes[name], model.states[name] = len(states), tuple(states)
    for given in root.getElementsByTagName("DEFINITION"):
        scope = (*texts(given, "GIVEN"), *texts(given, "FOR"))
        values = [number(word) for word in texts(given, "TABLE")[0].split()]
        if len(values) != math.prod(model.sizes[name] for name in scope) or min(values) < 0:
            raise Refused("other values")
        model.factors.append((scope, values))
    return model


def xdsl(text: str) -> Model:
    """A Bayesian network of GeNIe: tables, and nodes that are functions of their parents."""
    model = Model({}, {}, [])

    def words(node: minidom.Element, tag: str) -> list[str]:
        every = [n for n in node.childNodes if getattr(n, "tagName", "") == tag]
        parts = every[0].childNodes if every else ()
        return "".join(part.data for part in parts if hasattr(part, "data")).split()

    (nodes,) = minidom.parseString(text).documentElement.getElementsByTagName("nodes")
    elements = [node for node in nodes.childNodes if isinstance(node, minidom.Element)]
    for node in elements:
        states = [each.getAttribute("id") for each in node.getElementsByTagName("state")]
        name = node.getAttribute("id").strip()
        model.sizes[name], model.states[name] = len(states), tuple(s.strip() for s in states)
    for node in elements:
        name = node.getAttribute("id").strip()
        scope, states = (*words(node, "parents"), name), model.states[name]
        if node.tagName == "cpt":
            values = [number(word) for word in words(node, "probabilities")]
        else:
            given = words(node, "resultingstates")
            values = [float(state == result) for result in given for state in states]
        if len(values) != math.prod(model.sizes[each] for each in scope) or min(values) < 0:
            raise Refused("other values")
        model.factors.append((scope, values))
    return model
