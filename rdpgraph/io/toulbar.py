"""The formats of toulbar2, cost function networks: ``wcsp`` and ``cfn``."""

import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from rdpgraph._core import tuning
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.io.tables import all_variables, factor_tables
from rdpgraph.io.text import Bytes, decoded, fail, shown
from rdpgraph.io.tokens import MOST_BY_DEFAULT, MOST_UNLISTED, is_number
from rdpgraph.model.block import no_factors
from rdpgraph.model.factor import Factor
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import States, Variable

Costs = NDArray[np.float64]


class _Model:
    """Variables and tables of costs as they are read; log-values are minus costs.

    A cost that reaches the bound is impossible. The bound on the sum of costs is dropped, as it is
    no factor.
    """

    def __init__(self, source: str) -> None:
        self.source, self.bound, self.sign = source, math.inf, 1.0
        self.variables: list[Variable] = []
        self.numbers: dict[str, int] = {}
        self.factors: list[tuple[tuple[Variable, ...], Costs]] = []
        self.cells = 0

    def fail(self, expected: str, got: object) -> NoReturn:
        fail(self.source, f"expected {expected}; got {shown(str(got))}.")

    def number(self, given: object, what: str) -> float:
        """Check a finite number, which may be in quotes, as toulbar2 writes some."""
        value = math.nan
        if isinstance(given, str) and given.isascii() and is_number(given):
            return float(given)
        if isinstance(given, int | float) and not isinstance(given, bool):
            try:
                value = float(given)
            except OverflowError:
                value = math.inf
        if not math.isfinite(value):
            self.fail(what, given)
        return value

    def whole(self, given: object, most: int, what: str, least: int = 0) -> int:
        """Check an integer from the least to the most, which may be in quotes."""
        if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 20:
            given = int(given)
        if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
            self.fail(what, given)
        return given

    def declare(self, name: str, states: States) -> None:
        try:
            self.variables.append(Variable(name, states))
        except ModelError as error:
            fail(self.source, str(error))
        self.numbers[name] = len(self.numbers)

    def scope(self, numbers: Sequence[int]) -> tuple[Variable, ...]:
        if len(numbers) > tuning.MOST_DIMS or len(set(numbers)) < len(numbers):
            self.fail(f"up to {tuning.MOST_DIMS} variables that differ in a scope", list(numbers))
        return tuple(self.variables[number] for number in numbers)

    def blank(self, scope: tuple[Variable, ...], default: float) -> Costs:
        """A table filled with one cost."""
        shape = [variable.size for variable in scope]
        self.cells += math.prod(shape)
        if self.cells > MOST_BY_DEFAULT:
            self.fail(
                f"lists of exceptions that stand for up to {MOST_BY_DEFAULT} costs", self.cells
            )
        return np.full(shape, default)

    def graph(self, dtype: torch.dtype) -> FactorGraph:
        factors: list[Factor] = []
        for scope, costs in self.factors:
            logs = torch.from_numpy(np.where(costs >= self.bound, -np.inf, -costs))
            factors.append(Factor(scope, Table.from_logs(logs.to(dtype))))
        try:
            graph = FactorGraph(factors, variables=self.variables)
        except ModelError as error:
            fail(self.source, str(error))
        blocks = graph.blocks or (no_factors(dtype),)
        return FactorGraph.from_blocks(graph.domain, blocks)


def parse_wcsp(
    text: str | Bytes, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> FactorGraph:
    """The model of a wcsp file's text, variables named "0", "1", ...: log-values are minus costs.

    A cost that reaches the file's upper bound is impossible; the bound on the sum of costs is
    dropped. Global and shared cost functions are refused.
    """
    words = decoded(text).split()[::-1]
    model = _Model(source)

    def take(what: str, most: int, least: int = 0) -> int:
        word = words.pop() if words else "the end"
        digits = word.removeprefix("-")
        fits = digits.isascii() and digits.isdigit() and len(digits) < 20
        return model.whole(int(word) if fits else word, most, what, least)

    if not words:
        model.fail("the name of the problem", "the end")
    # The head: name, variables, largest domain, functions, upper bound; then the domains.
    words.pop()
    most = 2**63 - 1
    count = take("the number of variables", len(words))
    take("the size of the largest domain", MOST_UNLISTED)
    functions = take("the number of cost functions", len(words))
    model.bound = take("the upper bound", most, 1)
    for number in range(count):
        model.declare(str(number), take("the size of a domain, listed", MOST_UNLISTED, 1))
    for _ in range(functions):
        arity = take("the arity of a cost function, not shared", tuning.MOST_DIMS)
        scope = model.scope([take("a variable", count - 1) for _ in range(arity)])
        # A function has a default cost, and tuples with costs of their own.
        costs = model.blank(scope, take("a default cost, of no global function", most))
        seen: set[tuple[int, ...]] = set()
        for _ in range(take("a number of tuples", len(words) // (arity + 1) + 1)):
            place = tuple(take(f"a state of {v.name!r}", v.size - 1) for v in scope)
            if place in seen:
                model.fail("tuples that differ", place)
            seen.add(place)
            costs[place] = take("a cost", most)
        model.factors.append((scope, costs))
    if words:
        model.fail("the end", words[-1])
    return model.graph(dtype)


def format_wcsp(graph: FactorGraph) -> str:
    """The text of a model in the wcsp format; costs, minus log-values, must be integers >= 0."""
    variables = all_variables(graph)
    number = {variable.name: place for place, variable in enumerate(variables)}
    parts = list(factor_tables(graph))
    # The upper bound is above every sum of costs that are possible.
    bound = 1.0
    for scope, logs in parts:
        finite = -logs[np.isfinite(logs)].astype(np.float64)
        if not ((finite >= 0) & (finite == np.round(finite))).all():
            raise UnsupportedError(
                f"Factor over {[v.name for v in scope]} has log-values that are not minus whole "
                "costs, as wcsp needs them. Write a .cfn file."
            )
        bound += float(finite.max(initial=0.0))
    if bound > 2.0**53:
        raise UnsupportedError("The costs of a wcsp file sum to at most 2^53. Write a .cfn file.")
    sizes = [variable.size for variable in variables]
    lines = [f"model {len(sizes)} {max(sizes, default=0)} {len(parts)} {int(bound)}"]
    lines.append(" ".join(map(str, sizes)))
    for scope, logs in parts:
        costs = np.where(np.isfinite(logs), -logs.astype(np.float64), bound)
        # The more frequent of the bound and zero is the default, so that few tuples are listed.
        default = bound if (costs == bound).mean() > 0.5 else 0.0
        tuples = np.argwhere(costs != default).tolist() if scope else []
        default = default if scope else float(costs)
        lines.append(
            " ".join(
                map(str, [len(scope), *(number[v.name] for v in scope), int(default), len(tuples)])
            )
        )
        lines += [" ".join(map(str, [*place, int(costs[tuple(place)])])) for place in tuples]
    return "\n".join(lines) + "\n"


def parse_cfn(
    text: str | Bytes, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> FactorGraph:
    """The model of a cfn file's text (JSON): log-values are minus costs, plus with a bound ``>``.

    A cost that reaches the bound of ``mustbe`` is impossible; the bound on the sum is dropped.
    Global functions, shared tables and toulbar2's extensions of JSON are refused.
    """
    text = decoded(text)
    model = _Model(source)

    # JSON allows a name twice, and NaN; both are refused.
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) < len(items):
            model.fail("names that differ", [name for name, _ in items][:9])
        return result

    def refuse(word: str) -> NoReturn:
        model.fail("finite numbers", word)

    try:
        whole: Any = json.loads(text, object_pairs_hook=pairs, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        fail(source, f"expected JSON; {str(error).splitlines()[0]:.200}.")
    problem, given, functions = (
        whole.get(key) if isinstance(whole, dict) else None
        for key in ("problem", "variables", "functions")
    )
    if not (isinstance(problem, dict) and isinstance(given, dict)):
        model.fail('objects "problem" and "variables"', type(whole).__name__)
    # The bound says whether costs are minimised, and which are infinite: it is read before any
    # cost.
    _read_bound(model, problem.get("mustbe"))
    for name, states in given.items():
        if isinstance(states, list) and states and all(isinstance(s, str) for s in states):
            model.declare(name, tuple(states))
        else:
            model.declare(name, model.whole(states, MOST_UNLISTED, f"states of {name!r}", 1))
    if not isinstance(functions, dict | list):
        model.fail('an object "functions"', functions)
    for function in functions.values() if isinstance(functions, dict) else functions:
        if not isinstance(function, dict) or not set(function) <= {"scope", "costs", "defaultcost"}:
            model.fail("functions of scope, costs and maybe defaultcost", function)
        _read_function(model, function)
    return model.graph(dtype)


def _read_bound(model: _Model, given: object) -> None:
    sign, bound = (given[:1], given[1:]) if isinstance(given, str) else ("", "")
    if sign not in ("<", ">") or not bound.isascii() or not is_number(bound):
        model.fail('a bound "mustbe" as "<12.5"', given)
    model.sign = 1.0 if sign == "<" else -1.0
    model.bound = model.sign * float(bound)


def _read_function(model: _Model, function: dict[str, Any]) -> None:
    names, costs = function.get("scope"), function.get("costs")
    if not isinstance(names, list) or not isinstance(costs, list):
        model.fail("lists as scope and costs of a function", function)
    places = [
        model.numbers.get(name, -1)
        if isinstance(name, str)
        else model.whole(name, len(model.numbers) - 1, "a variable")
        for name in names
    ]
    if -1 in places:
        model.fail("a declared variable", names)
    scope = model.scope(places)
    # Without a default there is a cost for each joint state, in order.
    if "defaultcost" not in function:
        size = math.prod(variable.size for variable in scope)
        if len(costs) != size:
            model.fail(f"{size} costs over {names}", len(costs))
        values = np.array([model.sign * model.number(cost, "a cost") for cost in costs])
        model.factors.append((scope, values.reshape([variable.size for variable in scope])))
        return
    # With one, rows of states and a cost are exceptions to it.
    default = model.sign * model.number(function["defaultcost"], "a default cost")
    table = model.blank(scope, default)
    width = len(scope) + 1
    if len(costs) % width:
        model.fail(f"costs over {names} in rows of {width}", len(costs))
    seen: set[tuple[int, ...]] = set()
    for at in range(0, len(costs), width):
        *states, cost = costs[at : at + width]
        place = tuple(_state(model, v, s) for v, s in zip(scope, states, strict=True))
        if place in seen:
            model.fail("tuples that differ", place)
        seen.add(place)
        table[place] = model.sign * model.number(cost, "a cost")
    model.factors.append((scope, table))


def _state(model: _Model, variable: Variable, given: object) -> int:
    names = variable.states
    if isinstance(given, str) and not isinstance(names, int) and given in names:
        return names.index(given)
    return model.whole(given, variable.size - 1, f"a state of {variable.name!r}")


def format_cfn(graph: FactorGraph) -> str:
    """The text of a model in the cfn format: costs are minus log-values, in full."""
    variables = all_variables(graph)
    parts = [(scope, -logs.astype(np.float64)) for scope, logs in factor_tables(graph)]
    finite = [costs[np.isfinite(costs)] for _, costs in parts]
    bound = 1.0 + 2.0 * sum(float(np.abs(costs).max(initial=0.0)) for costs in finite)
    if math.isinf(bound):
        raise UnsupportedError("The costs of a cfn file sum to at most 8e307; subtract constants.")
    # toulbar2 computes with as many digits as the bound has.
    shown_bound = f"{bound:.9f}"
    functions = {
        f"F{place}": {
            "scope": [variable.name for variable in scope],
            "costs": np.where(np.isfinite(costs), costs, float(shown_bound)).ravel().tolist(),
        }
        for place, (scope, costs) in enumerate(parts)
    }
    whole = {
        "problem": {"name": "model", "mustbe": f"<{shown_bound}"},
        "variables": {
            v.name: v.size if isinstance(v.states, int) else [str(state) for state in v.states]
            for v in variables
        },
        "functions": functions,
    }
    text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
    return text.replace("\x7f", "\\u007f")  # the one control character that json leaves
