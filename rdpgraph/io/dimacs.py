"""Clauses of literals in DIMACS files, with the weights of the model counting competitions."""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.errors import UnsupportedError
from rdpgraph.io.tables import refuse_several
from rdpgraph.io.text import Bytes, fail, shown
from rdpgraph.io.tokens import MOST_UNLISTED
from rdpgraph.model.block import Block, in_order, no_factors
from rdpgraph.model.domain import Domain
from rdpgraph.model.factor import Factor
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.names import CompactVariables, Decimals
from rdpgraph.model.potentials.automaton import Automaton
from rdpgraph.model.potentials.sparse import Projection
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import Variable

_MOST_CLAUSES = 10**6  # written to a file


def parse_dimacs(data: Bytes, *, source: str, dtype: torch.dtype = torch.float64) -> FactorGraph:
    """A graph of the variables 1, 2, ... (states false and true) and a factor for each clause.

    Weights (``c p weight 3 0.25 0``, a fraction too) are factors of one variable; both literals of
    a variable have one, or none has. A clause of more than six literals is an automaton. Where
    ``c p show`` leaves variables out, the others alone are in the graph, and one factor says
    whether those left out can satisfy all clauses.

    Args:
        data: the content, unpacked.
        source: the file's name, for messages.
        dtype: of the log-values.

    Raises:
        FileFormatError: with the line that does not fit.
    """
    count = announced = -1
    weights: dict[int, float] = {}
    shown_variables: set[int] | None = None  # without c p show all are shown
    clauses: list[list[int]] = []
    clause: list[int] = []
    most = max(MOST_UNLISTED, len(data))
    for number, line in enumerate(bytes(data).split(b"\n"), 1):
        words = line.decode(errors="replace").split()
        place = f"{source}, line {number}"
        if words[:2] == ["c", "p"] and words[2:3] in (["weight"], ["show"]):
            if words[-1] != "0":
                fail(place, f"expected 0 at the end of the line; got {shown(words[-1])}.")
            if words[2] == "show":
                shown_variables = shown_variables or set()
                shown_variables.update(abs(x) for x in _literals(words[3:-1], count, place))
                continue
            if len(words) != 6:
                fail(place, f"expected c p weight LITERAL NUMBER 0; got {shown(line.decode())}.")
            (literal,) = _literals(words[3:4], count, place)
            weights[literal] = _weight(words[4], place)
        elif not words or words[0].startswith("c"):
            continue
        elif words[0] == "p":
            sizes = [int(word) if word.isdigit() and len(word) < 12 else -1 for word in words[2:]]
            if count >= 0 or words[1:2] != ["cnf"] or len(sizes) != 2 or min(sizes) < 0:
                fail(
                    place, f"expected p cnf VARIABLES CLAUSES, once; got {shown(' '.join(words))}."
                )
            count, announced = sizes
            if not count <= most:
                fail(place, f"expected at most {most:,} variables in a file of this length.")
        elif words[0] == "%":
            break
        else:
            for literal in _literals(words, count, place, zero=True):
                if literal:
                    clause.append(literal)
                else:
                    clauses.append(clause)
                    clause = []
    if count < 0:
        fail(source, "expected a line p cnf VARIABLES CLAUSES; there is none.")
    if clause or len(clauses) != announced:
        ended = ", and one more that does not end in 0" if clause else ""
        fail(source, f"expected {announced:,} clauses; got {len(clauses):,}{ended}.")
    lacking = next((x for x in weights if -x not in weights), None)
    if lacking is not None:
        fail(source, f"expected a weight for {-lacking} too, as {lacking} has one.")
    if shown_variables is not None and len(shown_variables) < count:
        return _projected(sorted(shown_variables), clauses, weights, source, dtype)
    return _graph(count, clauses, weights, dtype)


def _literals(words: list[str], count: int, place: str, *, zero: bool = False) -> list[int]:
    literals: list[int] = []
    for word in words:
        if not word.removeprefix("-").isdecimal() or not word.isascii() or len(word) > 11:
            fail(place, f"expected a literal; got {shown(word)}.")
        literals.append(int(word))
        if abs(literals[-1]) > count or not (zero or literals[-1]):
            if count < 0:
                fail(place, "expected the line p cnf VARIABLES CLAUSES first.")
            fail(place, f"expected literals of the variables 1 to {count:,}; got {shown(word)}.")
    return literals


def _weight(word: str, place: str) -> float:
    """The log of a weight."""
    mantissa, _, tens = word.lower().partition("e")
    try:
        value = Fraction(mantissa) if len(word) < 400 else Fraction(-1)
        shift = int(tens or 0) if len(tens) < 8 else 0
    except (ValueError, ZeroDivisionError):
        value, shift = Fraction(-1), 0
    if value < 0:
        fail(place, f"expected a weight of at least 0, as 0.25; got {shown(word)}.")
    if not value:
        return -math.inf
    exact = float(value) if not tens else float(word) if abs(shift) < 290 else 0.0
    if 1e-300 < exact < math.inf:
        return math.log(exact)
    return math.log(value.numerator) - math.log(value.denominator) + shift * math.log(10.0)


def _graph(
    count: int, clauses: list[list[int]], weights: dict[int, float], dtype: torch.dtype
) -> FactorGraph:
    # Clauses of one shape become one block. Literals stand with the negative ones first, so that
    # the number of these tells the table; a clause with x and not x always holds.
    by_shape: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
    for number, clause in enumerate(clauses):
        literals = sorted(set(clause), key=lambda x: (x > 0, abs(x)))
        if any(-x in literals for x in literals):
            continue
        negative = sum(x < 0 for x in literals)
        shape = len(literals), negative if len(literals) > tuning.TABLED_CLAUSE else -1
        by_shape.setdefault(shape, []).append((number, literals))
    blocks: list[Block] = []
    for (arity, negative), members in by_shape.items():
        scopes = torch.tensor([[abs(x) - 1 for x in row] for _, row in members]).long()
        scopes = scopes.reshape(len(members), arity)
        declared, shape, rows = torch.tensor([number for number, _ in members]), (), None
        # A clause forbids one row: all variables at the values that make its literals false. The
        # tables for 0 to arity negative literals are shared.
        if negative < 0:
            tables = torch.zeros(arity + 1, *(2,) * arity, dtype=dtype)
            for signs in range(arity + 1):
                tables[(signs, *[1] * signs, *[0] * (arity - signs))] = -math.inf
            rows = torch.tensor([sum(x < 0 for x in row) for _, row in members])
            shape = (arity + 1,)
            potential = Table.checked(tables)
        else:
            # Wide clauses get a potential whose size is linear in their length.
            potential = _long_clause(arity, negative, dtype)
        blocks.append(Block(scopes, potential, shape, rows, declared))
    # Weights of literals are unary factors, declared after all clauses.
    if weights:
        numbers = sorted({abs(x) for x in weights})
        values = torch.tensor([[weights[-x], weights[x]] for x in numbers], dtype=dtype)
        scopes = torch.tensor(numbers).unsqueeze(1) - 1
        declared = len(clauses) + torch.arange(len(numbers))
        blocks.append(Block(scopes, Table.checked(values), (len(numbers),), None, declared))
    names = CompactVariables(Decimals(range(1, count + 1)), np.full(count, 2, np.int64))
    blocks = blocks or [no_factors(dtype)]
    return FactorGraph.from_blocks(Domain(names.made()), blocks)


def _projected(
    shown_variables: list[int], clauses: list[list[int]], weights: dict[int, float], source: str,
    dtype: torch.dtype,
) -> FactorGraph:  # fmt: skip
    numbers = {x: place for place, x in enumerate(shown_variables, 1)}
    for x, weight in weights.items():
        if weight and abs(x) not in numbers:
            fail(
                source,
                f"expected weights of the variables in c p show; {abs(x)} has one: show it, "
                "or leave its weight out.",
            )
    variables = {x: Variable(str(x), 2) for x in shown_variables}
    # Shown variables have the first numbers; clauses that hold in any case are left out.
    rows = [
        tuple((1 if x > 0 else -1) * numbers.setdefault(abs(x), len(numbers) + 1) for x in clause)
        for clause in map(dict.fromkeys, clauses)
        if not any(-x in clause for x in clause)
    ]
    projection = Projection(tuple(rows), len(variables), torch.zeros((), dtype=dtype))
    factors = [Factor([*variables.values()], projection)]
    factors += [
        Factor(variable, Table(torch.tensor([weights[-x], weights[x]], dtype=dtype)))
        for x, variable in variables.items()
        if x in weights
    ]
    return FactorGraph(factors)


def _long_clause(arity: int, negative: int, dtype: torch.dtype) -> Automaton:
    """A clause whose negative literals come first: states count them, then hold or not."""
    steps = [[negative + 1, place + 1] for place in range(negative)]
    steps += [[negative, negative + 1], [negative + 1, negative + 1]]
    accept = torch.zeros(negative + 2, dtype=dtype)
    accept[: negative + 1] = -math.inf
    return Automaton(torch.tensor(steps), accept, arity)


def format_dimacs(graph: FactorGraph) -> str:
    """The text of a graph of binary variables: factors are clauses, or weights of one variable.

    Every impossible configuration of a factor is a clause. Weights are written only where there are
    any, and all factors that are no constraints must be over one variable. Variables that are
    projected out, of which a model counts whether some values fit and not how many, come last, and
    ``c p show`` leaves them out.

    Raises:
        UnsupportedError: evidence, batches, variables of other sizes, or values that are no clause.
    """
    clauses, count, weights, weighted = clauses_of(graph)
    head = [f"p cnf {count} {len(clauses)}"]
    if count > graph.num_variables:
        head.append(" ".join(map(str, ("c p show", *range(1, graph.num_variables + 1), 0))))
    for v in weighted.nonzero().flatten().tolist():
        for literal, weight in ((v + 1, weights[v, 1]), (-v - 1, weights[v, 0])):
            head.append(f"c p weight {literal} {_decimal(float(weight))} 0")
    if bool(weighted.any()):
        head.insert(0, "c t pwmc" if count > graph.num_variables else "c t wmc")
    return "\n".join([*head, *(" ".join(map(str, (*clause, 0))) for clause in clauses)]) + "\n"


def clauses_of(graph: FactorGraph) -> tuple[list[tuple[int, ...]], int, Tensor, Tensor]:
    """Clauses, the number of variables, log-weights (V, 2), and the variables (V,) that have any.

    Numbers above V are the hidden variables of projections.

    Raises:
        UnsupportedError: as `format_dimacs`.
    """
    sizes = graph.domain.sizes
    if bool((sizes != 2).any()):
        name = graph.domain.variable(int((sizes != 2).nonzero()[0])).name
        raise UnsupportedError(
            f"DIMACS needs variables of two states; {name!r} has another number of them."
        )
    clauses, count = list[tuple[int, ...]](), graph.num_variables
    # Every impossible configuration is a clause; factors of one variable are its weights.
    weights = torch.zeros(graph.num_variables, 2, dtype=torch.float64)
    weighted = torch.zeros(graph.num_variables, dtype=torch.bool)
    refuse_several(graph)
    for place, row in in_order(graph.blocks):
        block = graph.blocks[place]
        numbers, potential = block.scopes[row].tolist(), block.potential
        if isinstance(potential, Projection):
            placed, hidden = potential.placed([v + 1 for v in numbers], count)
            clauses, count = [*clauses, *placed], count + hidden
            continue
        if isinstance(potential, Automaton) and len(numbers) > tuning.TABLED_CLAUSE:
            chosen = block.select(torch.tensor([row], device="cpu"))
            assert isinstance(chosen, Automaton)
            values, cells = chosen.log_accept.flatten(), _rejected(chosen)
        else:
            values = block.table(row)
            cells = iter((values == -math.inf).nonzero().tolist())
        values = values.detach().double().cpu()
        if bool(((values == 0.0) | (values == -math.inf)).all()):
            for cell in cells:
                pairs = zip(numbers, cell, strict=True)
                clauses.append(tuple(-v - 1 if s else v + 1 for v, s in pairs))
                if len(clauses) > _MOST_CLAUSES:
                    raise UnsupportedError(
                        "DIMACS needs a clause for each impossible configuration, and this graph "
                        f"has more than {_MOST_CLAUSES:,} of these. Write a UAI file."
                    )
        elif len(numbers) == 1:
            weights[numbers[0]] += values
            weighted[numbers[0]] = True
        else:
            names = [graph.domain.variable(number).name for number in numbers]
            raise UnsupportedError(
                "DIMACS has weights of single variables only; the factor over "
                f"{names} has values other than 1 and 0. Write a UAI file."
            )
    return clauses, count, weights, weighted


def _rejected(automaton: Automaton) -> Iterator[list[int]]:
    """The states of all slots that an automaton does not accept."""
    steps, arity = automaton.transitions.tolist(), automaton.arity
    open_ends = [(automaton.log_accept == -math.inf).flatten().tolist()]
    for _ in range(arity):
        open_ends.append([any(open_ends[-1][after] for after in row) for row in steps])
    stack: list[tuple[int, list[int]]] = [(0, [])] if open_ends[arity][0] else []
    while stack:
        place, word = stack.pop()
        if len(word) == arity:
            yield word
            continue
        left = open_ends[arity - len(word) - 1]
        stack += [(after, [*word, s]) for s, after in enumerate(steps[place]) if left[after]]


def _decimal(log_weight: float) -> str:
    """A decimal whose log is a log-weight, or nearly where its digits run out."""
    if log_weight == -math.inf:
        return "0"
    value = math.exp(log_weight) if abs(log_weight) < 700.0 else 0.0
    if not value:
        tens = math.floor(log_weight / math.log(10.0))
        return f"{math.exp(log_weight - tens * math.log(10.0))!r}e{tens}"
    nearby = value, math.nextafter(value, 0.0), math.nextafter(value, math.inf)
    return repr(next((other for other in nearby if math.log(other) == log_weight), value))
