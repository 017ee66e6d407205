"""Places of a source file that can be changed: operators, comparisons, constants, statements."""

import ast
import random
from collections.abc import Callable, Iterator

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
DROPPED = ast.Assign | ast.AugAssign | ast.Expr | ast.Raise


def mutated(source: str, draw: random.Random) -> tuple[str, str]:
    """A source changed at one place, and a line that says where and how; empty if it has none."""
    tree = ast.parse(source)
    places = list(changes(tree))
    if not places:
        return "", ""
    node, change = draw.choice(places)
    before = ast.unparse(node)
    change()
    after = ast.unparse(ast.fix_missing_locations(tree))
    named = "dropped" if isinstance(node, ast.stmt) else f"now {ast.unparse(node)}"
    return after, f"{node.lineno}: {before} ({named})"


def changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, Callable[[], object]]]:
    """Places in a file, each with a function that changes the tree there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
            other = COMPARED[type(node.ops[0])]()
            yield node, lambda node=node, other=other: node.ops.__setitem__(0, other)
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in COMPUTED:
            if not _annotates(node):
                other = COMPUTED[type(node.op)]()
                yield node, lambda node=node, other=other: setattr(node, "op", other)
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            value = not node.value if isinstance(node.value, bool) else node.value + 1
            yield node, lambda node=node, value=value: setattr(node, "value", value)
        elif isinstance(node, ast.FunctionDef):
            for place, statement in enumerate(node.body):
                if isinstance(statement, DROPPED) and not _documents(statement):
                    body = node.body
                    yield statement, lambda body=body, at=place: body.__setitem__(at, ast.Pass())


def _annotates(node: ast.BinOp | ast.BoolOp) -> bool:
    """True if an operator joins names of units or types in text."""
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) else node.values
    return any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides)


def _documents(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
