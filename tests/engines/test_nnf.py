"""Circuits written as text: deterministic, decomposable, smooth, with the models of clauses."""

import itertools
import random

import pytest

import rdpgraph as rg
from rdpgraph.errors import UnsupportedError


def clauses_of(seed: int) -> tuple[int, list[list[int]]]:
    """Random clauses of up to three literals, some without a model."""
    rng = random.Random(seed)
    count = rng.randint(1, 7)
    sizes = [min(count, rng.randint(1, 3)) for _ in range(rng.randint(1, 3 * count))]
    return count, [[rng.choice((-x, x)) for x in rng.sample(range(1, count + 1), n)] for n in sizes]


def models_of(lines: list[str]) -> tuple[set[frozenset[int]], frozenset[int]]:
    """The models of the last node as sets of literals, and its variables; checks every node."""
    nodes: list[tuple[set[frozenset[int]], frozenset[int]]] = []
    for kind, *numbers in (line.split() for line in lines):
        values = [int(number) for number in numbers]
        if kind == "L":
            nodes.append(({frozenset(values)}, frozenset(map(abs, values))))
        elif kind == "A":
            assert values[0] == len(values) - 1
            models, scope = {frozenset[int]()}, frozenset[int]()
            for own, variables in (nodes[child] for child in values[1:]):
                assert not scope & variables  # decomposable
                scope |= variables
                models = {one | other for one in models for other in own}
            nodes.append((models, scope))
        else:
            assert kind == "O"
            assert values[1] == len(values) - 2
            parts = [nodes[child] for child in values[2:]]
            assert len({variables for _, variables in parts}) <= 1  # smooth
            models = set[frozenset[int]]().union(*(own for own, _ in parts))
            assert len(models) == sum(len(own) for own, _ in parts)  # deterministic
            nodes.append((models, parts[0][1] if parts else frozenset()))
    return nodes[-1]


@pytest.mark.parametrize("seed", range(30))
def test_the_models_of_the_text_are_those_of_the_clauses(seed, tmp_path):
    count, clauses = clauses_of(seed)
    text = [f"p cnf {count} {len(clauses)}", *(" ".join(map(str, [*c, 0])) for c in clauses)]
    (tmp_path / "some.cnf").write_text("\n".join(text))
    rg.write(rg.read(tmp_path / "some.cnf"), tmp_path / "some.nnf")
    head, *lines = (tmp_path / "some.nnf").read_text().splitlines()
    ends = {"L": 2, "A": 2, "O": 3}
    edges = sum(len(line.split()) - ends[line[0]] for line in lines)
    assert head == f"nnf {len(lines)} {edges} {count}"
    expected = {
        frozenset(signs)
        for signs in itertools.product(*((-x, x) for x in range(1, count + 1)))
        if all(set(clause) & {*signs} for clause in clauses)
    }
    models, scope = models_of(lines)
    assert models == expected
    assert not expected or scope == {*range(1, count + 1)}


def test_circuits_are_written_alone(tmp_path):
    x = rg.Variable("x", 3)
    with pytest.raises(UnsupportedError, match="two states; 'x' has another number"):
        rg.write(rg.FactorGraph([rg.Factor(x, rg.Table([0.0, 1.0, 2.0]))]), tmp_path / "x.nnf")
    (tmp_path / "x.nnf").write_text("nnf 1 0 1\nL 1\n")
    with pytest.raises(
        UnsupportedError, match=r"can be written but not read; read the clauses \(.cnf\)"
    ):
        rg.read(tmp_path / "x.nnf")
