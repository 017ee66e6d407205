"""Clauses in DIMACS files: read as graphs, written, and told apart from what is none."""

import itertools
import math
import random
from pathlib import Path

import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import FileFormatError, UnsupportedError
from tests.io.helpers import of_format

parse_dimacs, format_dimacs = of_format(".cnf")


def of(text: str) -> rg.FactorGraph:
    return parse_dimacs(text.encode(), source="m.cnf")


def random_text(seed: int) -> tuple[str, float]:
    """A weighted file, and the sum of its models by enumeration."""
    rng = random.Random(seed)
    count = rng.randint(1, 9)
    clauses = [
        [rng.choice([1, -1]) * rng.randint(1, count) for _ in range(rng.choice([1, 2, 3, 9]))]
        for _ in range(rng.randint(0, 8))
    ]
    weights = {
        s * x: rng.choice([0.0, rng.random(), 3.0]) for x in range(1, count + 1) for s in (1, -1)
    }
    lines = ["c a comment", f"p cnf {count} {len(clauses)}"]
    if seed % 2:
        lines += [f"c p weight {x} {weight!r} 0" for x, weight in weights.items()]
    lines += [" ".join(map(str, [*clause, 0])) for clause in clauses]
    total = 0.0
    for signs in itertools.product((1, -1), repeat=count):
        holds = {sign * x for x, sign in enumerate(signs, 1)}
        if all(holds & set(clause) for clause in clauses):
            total += math.prod(weights[x] for x in holds) if seed % 2 else 1.0
    return "\n".join(lines), total


@pytest.mark.filterwarnings("ignore:No configuration")
@pytest.mark.parametrize("seed", range(30))
def test_files_sum_to_the_weights_of_their_models(seed: int) -> None:
    text, total = random_text(seed)
    graph = of(text)
    log_z = rg.infer(graph).log_partition
    assert log_z.exp().item() == pytest.approx(total, rel=1e-12)
    written = format_dimacs(graph)
    assert format_dimacs(of(written)) == written
    torch.testing.assert_close(rg.infer(of(written)).log_partition, log_z, rtol=1e-15, atol=1e-15)


def test_long_clauses_of_both_signs_have_no_tables() -> None:
    signs = [(-1) ** (x // 3) * x for x in range(1, 41)]
    graph = of(f"p cnf 40 1\n{' '.join(map(str, signs))} 0\n")
    (block,) = graph.blocks
    assert isinstance(block.potential, rg.Automaton)
    states = torch.tensor([[int(x < 0) for x in signs], [0] * 40])
    assert graph.score_states(states).tolist() == [-math.inf, 0.0]
    assert sorted(map(int, format_dimacs(graph).split()[4:-1])) == sorted(signs)


def test_clauses_over_several_lines_and_fractions_are_read() -> None:
    graph = of("p cnf 2 1\n1\n 2\n0\nc p weight 1 1/3 0\nc p weight -1 2e-400 0\n%\n0\n")
    table = next(f.potential.table(1) for f in graph.factors() if len(f.variables) == 1)
    logs = [math.log(2.0) - 400 * math.log(10.0), -math.log(3.0)]
    expected = torch.tensor(logs, dtype=torch.float64)
    torch.testing.assert_close(table, expected)
    again = [
        f.potential.table(1) for f in of(format_dimacs(graph)).factors() if len(f.variables) == 1
    ]
    torch.testing.assert_close(again[0], expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2 0", "line 1: expected the line p cnf"),
        ("p cnf 2", r"line 1: expected p cnf VARIABLES CLAUSES, once; got 'p cnf 2'"),
        ("p cnf 2 1\n1 3 0", "line 2: expected literals of the variables 1 to 2; got '3'"),
        ("p cnf 2 1\nx1 2 0", "line 2: expected a literal; got 'x1'"),
        ("p cnf 2 2\n1 2 0", "expected 2 clauses; got 1"),
        ("p cnf 2 1\n1 2", "got 0, and one more that does not end in 0"),
        ("p cnf 99999999 0", "at most 1,048,576 variables"),
        (
            "p cnf 2 0\nc p weight 1 -3 0",
            "line 2: expected a weight of at least 0, as 0.25; got '-3'",
        ),
        ("p cnf 2 0\nc p weight 1 0.5 0", "expected a weight for -1 too"),
        ("p cnf 2 0\nc p weight 1 0.5", "line 2: expected 0 at the end"),
        ("c nothing", "there is none"),
        (
            "p cnf 2 0\nc p show 1 0\nc p weight 2 3 0\nc p weight -2 1 0",
            "weights of the variables in c p show; 2 has one",
        ),
    ],
)
def test_bad_files_are_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as error:
        of(text)
    assert "\n" not in str(error.value)


def test_hidden_variables_are_not_in_the_graph() -> None:
    assert of("p cnf 2 0\nc p show 1 2 0").num_variables == 2
    # If none is shown, the formula counts once where it is satisfiable.
    for clauses, log_count in ([], 0.0), (["1 2 0"], 0.0), (["1 0", "-1 0"], -math.inf):
        hidden = of("\n".join([f"p cnf 2 {len(clauses)}", "c p show 0", *clauses]))
        assert hidden.num_variables == 0
        assert rg.infer(hidden).log_partition.item() == log_count
        assert rg.infer(of(format_dimacs(hidden))).log_partition.item() == log_count
    assert [v.name for v in of("p cnf 3 1\nc p show 2 0\n1 3 0").variables] == ["2"]


def test_other_models_are_not_written() -> None:
    x, y = rg.Variable("x", 2), rg.Variable("y", 3)
    soft = rg.FactorGraph([rg.Factor((x, rg.Variable("z", 2)), rg.Table(torch.ones(2, 2)))])
    with pytest.raises(UnsupportedError, match=r"factor over \['x', 'z'\]"):
        format_dimacs(soft)
    with pytest.raises(UnsupportedError, match="'y' has another number"):
        format_dimacs(rg.FactorGraph([rg.Factor((y,), rg.Table(torch.zeros(3)))]))


def test_read_and_write_know_the_name(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("c first\np cnf 3 1\n1 -2 3 0\n")
    rg.write(rg.read(tmp_path / "m"), tmp_path / "m.cnf.gz")
    assert rg.infer(rg.read(tmp_path / "m.cnf.gz")).log_partition.exp().item() == pytest.approx(7.0)
