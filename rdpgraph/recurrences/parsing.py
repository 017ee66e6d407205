"""Rules as text: ``a[t, n] += a[t - 1, m] * transition[m, n] * sites[t, n]``.

The text is Python's syntax of subscripts, products and sums, so Python's own parser reads it. Text
was chosen over operators of Python objects because a recurrence then reads as its mathematics do:
nothing is declared but the inputs, and every message can repeat the rule as it was written.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from textwrap import dedent

from rdpgraph.errors import ModelError
from rdpgraph.recurrences.affine import Affine
from rdpgraph.recurrences.program import Lookup, Read, Row

_CONDITION = re.compile(r"\bif\b")
_COMPARISONS: dict[type[ast.cmpop], Callable[[Affine, Affine], list[Affine]]] = {
    # Forms that are at least 0 where `left < right` holds, and so on.
    ast.Lt: lambda left, right: [right - left - 1],
    ast.LtE: lambda left, right: [right - left],
    ast.Gt: lambda left, right: [left - right - 1],
    ast.GtE: lambda left, right: [left - right],
    ast.Eq: lambda left, right: [left - right, right - left],
}
EXAMPLE = "a[t, n] += a[t - 1, m] * transition[m, n]"
ROWS = "rows[v] <= e < rows[v + 1]"


@dataclass(frozen=True)
class Line:
    """A rule as it is written: one alternative of its sum.

    Attributes:
        table: the name on its left side, with an index.
        factors: what is multiplied.
        conditions: forms that are at least 0 where it holds.
        text: the whole rule, for messages.
        rows: of lists, that variables go through.
    """

    table: str
    index: tuple[Affine, ...]
    factors: tuple[Read, ...]
    conditions: tuple[Affine, ...]
    text: str
    rows: tuple[Row, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """All names in its indices and conditions."""
        forms = (*self.index, *self.factors, *self.conditions, *self.rows)
        return frozenset[str]().union(*(form.names for form in forms))


@dataclass(frozen=True)
class _ParsedSum:
    """A sum in parentheses, one list of factors for each of its alternatives."""

    alternatives: tuple[tuple["Read | _ParsedSum", ...], ...]

    @property
    def names(self) -> frozenset[str]:
        parts = (part.names for way in self.alternatives for part in way)
        return frozenset[str]().union(*parts)


def parse(owner: str, text: str) -> list[Line]:
    """The rules of a text, one for each line and alternative.

    A line without ``+=`` continues the one before it; what follows ``#`` is a comment. A sum within
    a product becomes a table of its own, so that what it is multiplied by is multiplied once.

    Args:
        owner: the name of the class, for messages.
        text: the rules.

    Raises:
        ModelError: a rule that is not understood; the message repeats it.
    """
    lines: list[Line] = []
    for rule in _joined(text):
        parser = _Parser(owner, rule)
        lines += parser.lines(len(lines))
    if not lines:
        raise ModelError(f"{owner}: rules are a text of one rule a line, such as {EXAMPLE}.")
    return lines


def _joined(text: str) -> Iterator[str]:
    """The rules, each in one line."""
    rules: list[str] = []
    for raw in dedent(text).splitlines():
        line = " ".join(raw.partition("#")[0].split())
        if not line:
            continue
        if rules and "=" not in _CONDITION.split(line)[0].replace("==", ""):
            rules[-1] += f" {line}"
        else:
            rules.append(line)
    yield from rules


class _Parser:
    def __init__(self, owner: str, rule: str) -> None:
        self.owner, self.rule = owner, rule

    def error(self, why: str) -> ModelError:
        return ModelError(f"{self.owner}: {why}, in {self.rule}")

    def lines(self, first: int) -> list[Line]:
        """The alternatives of the rule, and those of the tables that its inner sums become."""
        body, *condition = _CONDITION.split(self.rule, maxsplit=1)
        statement = self._parsed(body)
        if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Add):
            raise self.error(f"a rule adds to a table, as {EXAMPLE} does")
        target = self._read(statement.target)
        if any(isinstance(at, Lookup) for at in target.index):
            raise self.error(
                f"{target} is written to a place that is data; go through what is written to each "
                f"place, sorted, by rows of a list, as {target.array}[v] += ... if {ROWS}"
            )
        index = tuple(at for at in target.index if isinstance(at, Affine))
        conditions, rows = self._conditions(condition[0]) if condition else ((), ())
        made: list[Line] = []
        for way in self._sum(statement.value):
            factors = [part for part in way if isinstance(part, Read)]
            inner = [part for part in way if isinstance(part, _ParsedSum)]
            # Conditions on what an inner sum alone has hold there.
            outer, lists = conditions, rows
            for part in inner:
                kept = frozenset[str]().union(
                    *(at.names for at in index),
                    *(other.names for other in way if other is not part),
                )
                name = f"{target.array}_sum{first + len(made)}"
                made += self._table_of(name, part, kept, conditions, rows)
                factors.append(Read(name, made[-1].index))
                alone = {*filter(is_variable, part.names - kept)}
                outer = tuple(at for at in outer if not at.names & alone)
                lists = tuple(row for row in lists if not row.names & alone)
            made.append(Line(target.array, index, tuple(factors), outer, self.rule, lists))
        return made

    def _table_of(
        self, name: str, inner: _ParsedSum, kept: frozenset[str], conditions: tuple[Affine, ...],
        rows: tuple[Row, ...],
    ) -> list[Line]:  # fmt: skip
        """Rules of a table for a sum in parentheses, over the variables that others have, too."""
        # What conditions relate to that which is summed here, and conditions on nothing else.
        alone = {*filter(is_variable, inner.names - kept)}
        own = inner.names.union(*(at.names for at in (*conditions, *rows) if at.names & alone))
        variables = [name for name in sorted(own & kept) if not is_size(name)]
        conditions = tuple(at for at in conditions if {*filter(is_variable, at.names)} <= own)
        rows = tuple(row for row in rows if row.names <= own)
        index = tuple(map(Affine.of, variables))
        lines: list[Line] = []
        for way in inner.alternatives:
            if any(isinstance(part, _ParsedSum) for part in way):
                raise self.error("a sum within a sum within a product; write a rule for the inner")
            factors = tuple(part for part in way if isinstance(part, Read))
            lines.append(Line(name, index, factors, conditions, self.rule, rows))
        return lines

    def _parsed(self, text: str) -> ast.stmt:
        try:
            (statement,) = ast.parse(text.strip()).body
        except (SyntaxError, ValueError):
            raise self.error(f"this is not the form of a rule, such as {EXAMPLE}") from None
        return statement

    def _conditions(self, text: str) -> tuple[tuple[Affine, ...], tuple[Row, ...]]:
        """Forms that are at least 0 where comparisons hold, joined by ``and`` or commas; rows."""
        statement = self._parsed(text)
        found = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(found, ast.BoolOp) and isinstance(found.op, ast.And):
            each = found.values
        else:
            each = found.elts if isinstance(found, ast.Tuple) else [found]
        forms: list[Affine] = []
        rows: list[Row] = []
        for one in each:
            if not isinstance(one, ast.Compare):
                raise self.error("a condition compares indices, as in `if i < j and j <= T`")
            sides = [one.left, *one.comparators]
            if any(isinstance(side, ast.Subscript) for side in sides):
                rows.append(self._row(one))
                continue
            for left, kind, right in zip(sides, one.ops, sides[1:], strict=False):
                compare = _COMPARISONS.get(type(kind))
                if compare is None:
                    raise self.error("indices are compared by <, <=, >, >= and ==")
                forms += compare(self._affine(left), self._affine(right))
        return tuple(forms), tuple(rows)

    def _row(self, condition: ast.Compare) -> Row:
        """The row of a list: ``rows[v] <= e < rows[v + 1]``."""
        low, variable, high = [condition.left, *condition.comparators, None, None][:3]
        kinds = [type(kind) for kind in condition.ops]
        if kinds == [ast.LtE, ast.Lt] and isinstance(variable, ast.Name):
            ends = [self._read(at) for at in (low, high) if isinstance(at, ast.Subscript)]
            at = [one.index[0] for one in ends if len(one.index) == 1]
            if len(at) == 2 and ends[0].array == ends[1].array:
                begin, end = at
                if isinstance(begin, Affine) and isinstance(end, Affine) and end == begin + 1:
                    return Row(variable.id, ends[0].array, begin)
        raise self.error(
            f"data are compared only as the ends of a row of a list, `{ROWS}`; a rule that does "
            "not hold for all cells goes through rows that are empty for the others"
        )

    def _sum(self, node: ast.expr) -> list[tuple[Read | _ParsedSum, ...]]:
        """An expression as alternatives, each a product of factors."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return [*self._sum(node.left), *self._sum(node.right)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = [self._sum(node.left), self._sum(node.right)]
            parts = [side[0] if len(side) == 1 else (_ParsedSum(tuple(side)),) for side in sides]
            return [(*parts[0], *parts[1])]
        if isinstance(node, ast.Constant) and node.value == 1 and node.value is not True:
            return [()]
        if isinstance(node, ast.Subscript | ast.Name):
            return [(self._read(node),)]
        raise self.error(
            f"`{ast.unparse(node)}` is no entry such as sites[t, n], no product, no sum and not 1"
        )

    def _read(self, node: ast.expr) -> Read:
        if isinstance(node, ast.Name):
            return Read(node.id, ())
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            raise self.error(f"`{ast.unparse(node)}` is no entry such as sites[t, n]")
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return Read(node.value.id, tuple(self._index(part) for part in parts))

    def _index(self, node: ast.expr) -> Affine | Lookup:
        if isinstance(node, ast.Subscript):
            read = self._read(node)
            if any(isinstance(at, Lookup) for at in read.index):
                raise self.error(f"`{ast.unparse(node)}` looks up an index of an index")
            return Lookup(read.array, tuple(at for at in read.index if isinstance(at, Affine)))
        return self._affine(node)

    def _affine(self, node: ast.expr) -> Affine:
        """An index: sums and differences of names and numbers, and multiples by numbers."""
        if isinstance(node, ast.Name):
            return Affine.of(node.id)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return Affine.of(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._affine(node.operand)
        if isinstance(node, ast.BinOp):
            left, right = self._affine(node.left), self._affine(node.right)
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Sub):
                return left - right
            if isinstance(node.op, ast.Mult) and not (left.terms and right.terms):
                return right * left.constant if not left.terms else left * right.constant
        raise self.error(
            f"the index `{ast.unparse(node)}` is no sum of names and whole numbers, as t - d - 1 is"
        )


def is_size(name: str) -> bool:
    """Return whether a name is that of a size: sizes begin with a capital letter."""
    return name[:1].isupper()


def is_variable(name: str) -> bool:
    """Return whether a name is that of no size."""
    return not is_size(name)
