"""Projected counts: each assignment of the shown variables that extends to a model counts once."""

import itertools
import math
import random
from functools import partial

import pytest
import torch

import rdpgraph as rg
from rdpgraph.engines.counting.counter import log_count
from rdpgraph.engines.counting.encoding import encoded
from rdpgraph.io.dimacs import format_dimacs, parse_dimacs
from rdpgraph.model.potentials.sparse import Projection
from rdpgraph.schedulers.counting import network_of_clauses
from rdpgraph.testing import check_potential

SEEDS = range(24)


def random_file(seed: int) -> tuple[rg.FactorGraph, torch.Tensor]:
    """A file that shows some of its variables, and its log-weights by enumeration, (2, ..., 2)."""
    rng = random.Random(seed)
    count = rng.randint(2, 8)
    clauses = [
        [rng.choice([1, -1]) * rng.randint(1, count) for _ in range(rng.choice([1, 2, 3, 3, 9]))]
        for _ in range(rng.randint(0, 10))
    ]
    kept = sorted(rng.sample(range(1, count + 1), rng.randint(1, count - 1)))
    weights = {s * x: rng.choice([0.0, rng.random(), 3.0]) for x in kept for s in (1, -1)}
    lines = ["c t pwmc", f"p cnf {count} {len(clauses)}"]
    lines.append(" ".join(map(str, ("c p show", *kept, 0))))
    lines += [f"c p weight {x} {w!r} 0" for x, w in weights.items() if seed % 2]
    lines += [" ".join(map(str, [*clause, 0])) for clause in clauses]
    expected = torch.zeros((2,) * len(kept), dtype=torch.float64)
    for signs in itertools.product((-1, 1), repeat=count):
        holds = {s * x for x, s in enumerate(signs, 1)}
        if all(holds & set(clause) for clause in clauses):
            cell = tuple(int(x in holds) for x in kept)
            factors = (weights[x] for x in holds if abs(x) in kept)
            expected[cell] = math.prod(factors) if seed % 2 else 1.0
    return parse_dimacs("\n".join(lines).encode(), source="m.cnf"), expected.log()


@pytest.mark.filterwarnings("ignore:No configuration")
@pytest.mark.parametrize("seed", SEEDS)
def test_projected_files_are_answered_as_by_enumeration(seed: int) -> None:
    graph, expected = random_file(seed)
    total = expected.flatten().logsumexp(0)
    close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6, check_dtype=False)
    again = parse_dimacs(format_dimacs(graph).encode(), source="m.cnf")
    for model, scheduler in ((graph, rg.Auto()), (graph, rg.Contraction()), (again, rg.Auto())):
        posterior = rg.infer(model, scheduler)
        close(posterior.log_partition, total)
        for slot, variable in enumerate(model.variables):
            others = [d for d in range(expected.ndim) if d != slot]
            by_state = expected.logsumexp(others) if others else expected
            shares = (by_state - total).exp().nan_to_num(0.0)
            close(posterior.marginal(variable), shares)
        if total > -math.inf:
            close(model.score(posterior.mode()), expected.amax())


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_rows_of_evidence_are_projected_each(seed: int) -> None:
    graph, expected = random_file(seed)
    rows = torch.randint(-1, 2, (4, expected.ndim), generator=torch.Generator().manual_seed(seed))
    given = [
        expected[tuple(slice(None) if s < 0 else s for s in row)].flatten().logsumexp(0)
        for row in rows.tolist()
    ]
    batch = graph.condition(dict(zip(graph.variables, rows.T, strict=True)))
    torch.testing.assert_close(rg.infer(batch).log_partition, torch.stack(given))
    for row, log_z in zip(rows.tolist(), given, strict=True):
        seen = {v: s for v, s in zip(graph.variables, row, strict=True) if s >= 0}
        torch.testing.assert_close(rg.infer(graph.condition(seen)).log_partition, log_z)


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_the_counter_alone_projects(seed: int) -> None:
    pytest.importorskip("pyganak")
    graph, expected = random_file(seed)
    network = network_of_clauses(graph, 1.0)
    if not network.impossible:
        log_z = log_count(encoded(network), "pyganak", seconds=60.0, memory=1e9)
        assert math.exp(log_z) == pytest.approx(float(expected.exp().sum()), rel=1e-12)


def test_a_projection_onto_many_variables_has_no_table() -> None:
    pairs = [f"{x} {x + 100} 0" for x in range(1, 101)]
    text = "\n".join(["p cnf 200 100", "c p show " + " ".join(map(str, range(1, 101))) + " 0"])
    graph = parse_dimacs("\n".join([text, *pairs]).encode(), source="m.cnf")
    posterior = rg.infer(graph)
    assert float(posterior.log_partition) == pytest.approx(100 * math.log(2.0), rel=1e-12)
    assert graph.score(posterior.mode()) == 0.0
    with pytest.raises(rg.errors.UnsupportedError, match="projection onto 100 variables"):
        rg.infer(graph, rg.Contraction())


def test_projections_are_beside_other_factors() -> None:
    graph, expected = random_file(6)
    x, y = graph.variables[0], rg.Variable("y", 3)
    values = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    more = rg.infer(graph.with_factors(rg.Factor((x, y), rg.Table(values))))
    by_state = expected.reshape(2, -1).logsumexp(1) + values.logsumexp(1)
    torch.testing.assert_close(more.log_partition, by_state.logsumexp(0))
    torch.testing.assert_close(more.marginal(x), by_state.softmax(0))


def test_a_projection_says_what_its_clauses_allow() -> None:
    clauses = ((1, 3), (-3, 4), (-4, 2), (-1, -2))
    check_potential(Projection(clauses, 2, torch.zeros((), dtype=torch.float64)), 2)
