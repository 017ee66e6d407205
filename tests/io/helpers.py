"""Random graphs, and a comparison of graphs, for the tests of the io room."""

import itertools
import math
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import strategies as st

from rdpgraph import Factor, FactorGraph, Table, Variable
from rdpgraph.errors import BudgetError, FileFormatError
from rdpgraph.extend import FORMATS


def of_format(suffix: str) -> tuple[Callable[..., FactorGraph], Callable[..., str]]:
    """The parser and the writer of a file format, by the public registry."""
    found = FORMATS.find(f"m{suffix}")
    assert found is not None
    assert found.text is not None
    return found.parse, found.text


def same_graph(left: FactorGraph, right: FactorGraph, *, names: bool = True) -> None:
    """Assert that two graphs hold the same variables and, scope by scope, the same tables."""

    def variables(graph):
        found = [graph.domain.variable(n) for n in range(graph.num_variables)]
        return [(v.name if names else n, v.size) for n, v in enumerate(found)]

    def factors(graph):
        number = {graph.domain.variable(n).name: n for n in range(graph.num_variables)}
        rows = [([number[v.name] for v in f.variables], f.potential) for f in graph.factors()]
        return sorted(rows, key=lambda row: row[0])

    assert variables(left) == variables(right)
    assert left.num_factors == right.num_factors
    for (scope, table), (other, expected) in zip(factors(left), factors(right), strict=True):
        assert scope == other
        torch.testing.assert_close(
            table.log_values, expected.log_values, rtol=1e-12, atol=1e-12, check_dtype=False
        )


def refused(parse: Callable[[], object], *fragments: str) -> str:
    """Assert a `FileFormatError` of one line that holds each fragment."""
    with pytest.raises(FileFormatError) as caught:
        parse()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    for fragment in fragments:
        assert fragment in message, message
    return message


def assignments(graph: FactorGraph) -> Iterator[dict[str, int]]:
    """Every assignment of a small graph."""
    variables = [graph.domain.variable(n) for n in range(graph.num_variables)]
    for states in itertools.product(*(range(v.size) for v in variables)):
        yield {v.name: s for v, s in zip(variables, states, strict=True)}


values = st.one_of(
    st.just(0.0), st.floats(1e-300, 1e300), st.floats(0.01, 10.0), st.integers(0, 3).map(float)
)


@st.composite
def graphs(draw, *, most_slots: int = 3, most_factors: int = 6, named: bool = False):
    """A graph of up to five variables and a few factors; scopes and shapes at random."""
    names = st.text("ab c(|;é0", min_size=1, max_size=4)
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    labels = [str(n) for n in range(len(sizes))]
    if named:
        labels = draw(st.lists(names, min_size=len(sizes), max_size=len(sizes), unique=True))
    variables = [Variable(label, size) for label, size in zip(labels, sizes, strict=True)]
    factors = []
    constant = False
    for _ in range(draw(st.integers(0, most_factors))):
        scope = draw(st.permutations(variables))[: draw(st.integers(0, most_slots))]
        if not scope and constant:
            continue  # constants are merged in a file
        constant = constant or not scope
        shape = [v.size for v in scope]
        count = math.prod(shape)
        drawn = draw(st.lists(values, min_size=count, max_size=count))
        table = torch.tensor(drawn, dtype=torch.float64).log().reshape(shape)
        factors.append(Factor(tuple(scope), Table(table)))
    return FactorGraph(factors, variables=variables)


@st.composite
def networks(draw):
    """A Bayesian network with odd names; its factors are over (child, *parents)."""
    text = st.text('ab c(|;é,{}/*"'.replace('"', ""), min_size=1, max_size=4)
    count = draw(st.integers(1, 4))
    labels = draw(st.lists(text, min_size=count, max_size=count, unique=True))
    variables, factors = [], []
    for label in labels:
        states = draw(st.lists(text, min_size=1, max_size=3, unique=True))
        child = Variable(label, tuple(states))
        parents = draw(st.permutations(variables))[: draw(st.integers(0, 2))]
        shape = [child.size, *(p.size for p in parents)]
        cells = math.prod(shape)
        weights = draw(st.lists(st.floats(0.01, 1), min_size=cells, max_size=cells))
        table = torch.tensor(weights, dtype=torch.float64).reshape(shape)
        factors.append(Factor((child, *parents), Table((table / table.sum(0)).log())))
        variables.append(child)
    order = draw(st.permutations(variables))
    return FactorGraph(factors, variables=order)


def peak(work: Callable[[], object]) -> tuple[int, Exception | None]:
    """Peak memory of some work over that of before, in bytes, and the error it raised."""
    raised = None
    tracemalloc.start()
    try:
        work()
    except (FileFormatError, BudgetError) as error:
        raised = error
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found, raised


PIECES = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from(list("0123456789.-+eE \n{}()[]|,;\"'#/*_")),
    st.sampled_from(
        ["1e9", "1e999", "-1", "nan", "inf", "999999999999", "0", "/*", "//", "\x00", "default",
         "table", "variable", "property", "probability", "9" * 5000, "٣", "1_0"]
    ),
)  # fmt: skip


def mutated(data, text: str) -> str:
    """A text with a few stretches replaced, deleted or doubled."""
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        stop = min(len(text), start + data.draw(st.integers(0, 12)))
        middle = data.draw(st.one_of(PIECES, st.just(""), st.just(text[start:stop] * 2)))
        text = text[:start] + middle + text[stop:]
    return text


def cuts(text: str) -> Iterator[str]:
    """Every beginning and end of a text, and the text without one character."""
    for at in range(len(text)):
        yield from (text[:at], text[at:], text[:at] + text[at + 1 :])


def accepted_or_refused(parse: Callable[[], object]) -> None:
    """Assert that a text is parsed, or refused by a `FileFormatError` of one line."""
    message = "nothing to refuse"
    try:
        parse()
    except FileFormatError as error:
        message = str(error)
    assert len(message.splitlines()) == 1
    assert len(message) < 600
