"""Tables without gradients are swept by compiled code, and with gradients by torch: they agree."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from tests.engines.loopy.helpers import (
    SCHEDULES,
    assert_same_run,
    grid,
    grid_tables,
    loopy,
    same,
    seeded,
)

SIZES = [(3, 3), (5, 2), (9, 9), (17, 8), (3, 20), (40, 12)]
"""States of variables of two kinds: few and many, and both at the ends of a table."""


def ladder(sizes, *, count=21, batch=(), dtype=torch.float64, scale=1.0, zeros=0.0, kind="own"):
    """Tables of a graph with cycles: two rows of variables, each row joined to the other.

    Tables are of a ``kind``: "own" of each factor, "shared" by all of them, or "some" tables that
    factors have in turn.
    """
    generator = seeded(0)

    def drawn(count, *shape):
        lead = {"own": (count,), "shared": (1,), "some": (3,)}[kind]
        values = torch.randn(*batch, *lead, *shape, generator=generator, dtype=torch.float64)
        gone = torch.rand(values.shape, generator=generator) < zeros
        values = (values * scale).masked_fill(gone, -math.inf)
        if kind == "some":
            values = values[..., torch.arange(count) % 3, :, :]
        return values.to(dtype)

    first, second = sizes
    own = torch.randn(*batch, count, first, generator=generator, dtype=torch.float64).to(dtype)
    pairs = (count, first, second), (count - 1, second, first), (count - 1, first, first)
    return [own, *(drawn(*shape) for shape in pairs)]


def declared(tables, sizes):
    """The graph of `ladder`, and its variables; as it is swept by torch where tables record."""
    count, first, second = tables[0].shape[-2], *sizes
    x, y = rg.VariableArray("x", (count,), first), rg.VariableArray("y", (count,), second)
    scopes = (x,), (x, y), (y[:-1], x[1:]), (x[:-1], x[1:])
    blocks = [
        rg.FactorBlock(scope, rg.Table(table)) for scope, table in zip(scopes, tables, strict=True)
    ]
    return rg.FactorGraph(blocks), x, y


def assert_paths_agree(sizes, *, tolerance=1e-10, name="flooding", draw=None, **options):
    """Sweeps of compiled code and those of torch give the same messages, log Z and residuals."""
    tables = ladder(sizes, **(draw or {}))
    options = {"sweeps": 5, "tolerance": 0.0} | options
    answers = []
    for records in (False, True):
        given = [table.clone().requires_grad_(records) for table in tables]
        graph, x, y = declared(given, sizes)
        posterior = loopy(graph, name, gradient=rg.loopy.Unrolled(), **options)
        answers.append((posterior, x, y))
    (ours, x, y), (theirs, *others) = answers
    assert not ours.log_partition.requires_grad
    assert theirs.log_partition.requires_grad
    pairs, best = zip((x, y), others, strict=True), options.get("temperature") == 0.0
    assert_same_run(ours, theirs, pairs, tolerance=tolerance, best=best)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sizes", SIZES)
def test_sums_and_maxima(sizes, temperature):
    assert_paths_agree(sizes, temperature=temperature)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("kind", ["own", "shared", "some"])
def test_every_schedule(name, kind):
    for sizes in SIZES[1:4]:
        assert_paths_agree(sizes, name=name, draw={"kind": kind})


@pytest.mark.parametrize("name", ["flooding", "ordered"])
@pytest.mark.parametrize(
    "options",
    [
        {"damping": 0.3},
        {"damping": rg.loopy.ProbabilityDamping(0.4)},
        {"counting": rg.loopy.Fractional(0.6)},
        {"counting": rg.loopy.TreeReweighted(), "damping": 0.2},
        {"temperature": 0.4},
        {"temperature": 0.0, "counting": rg.loopy.Fractional(1.7), "damping": 0.5},
    ],
)
def test_dampings_temperatures_and_counting_numbers(name, options):
    for sizes, kind in (((5, 2), "own"), ((9, 12), "shared"), ((20, 3), "own")):
        assert_paths_agree(sizes, name=name, draw={"kind": kind}, **options)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["own", "shared"])
def test_hard_zeros(kind, temperature):
    """Rows with hard zeros of their own: no state is dropped, and messages vanish."""
    for sizes in ((2, 2), (4, 5), (9, 12)):
        draw = {"kind": kind, "batch": (3,), "zeros": 0.3}
        assert_paths_agree(sizes, draw=draw, temperature=temperature, damping=0.2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranges_that_no_product_of_values_spans(dtype):
    """Log-values of some hundred nats, with hard zeros among them: sums are taken in logs."""
    tolerance = 1e-10 if dtype == torch.float64 else 1e-3
    for sizes, zeros in itertools.product(((4, 3), (9, 12)), (0.0, 0.2)):
        draw = {"scale": 500.0, "dtype": dtype, "zeros": zeros, "batch": (2,)}
        assert_paths_agree(sizes, draw=draw, tolerance=tolerance, sweeps=2)


def test_single_precision():
    for sizes, temperature in itertools.product(SIZES, (0.0, 1.0)):
        draw = {"dtype": torch.float32}
        assert_paths_agree(sizes, draw=draw, temperature=temperature, tolerance=1e-4)


def test_a_chain_of_many_states_is_exact():
    """Messages on a chain give the sums over all its configurations, which matrices multiply."""
    x = rg.VariableArray("x", (4,), 33)
    for scale in (1.0, 300.0):
        logs = scale * torch.randn(3, 33, 33, generator=seeded(0), dtype=torch.float64)
        posterior = loopy(rg.FactorGraph([rg.FactorBlock((x[:-1], x[1:]), rg.Table(logs))]))
        joint = logs[0][:, :, None, None] + logs[1][:, :, None] + logs[2]
        same(posterior.log_partition, joint.flatten().logsumexp(0))
        same(posterior.marginal(x[1]), joint.movedim(1, 0).flatten(1).logsumexp(1).softmax(0))


def test_tables_of_three_variables_without_logical_factors():
    x = rg.VariableArray("x", (30,), 3)
    logs = torch.randn(28, 3, 3, 3, generator=seeded(0), dtype=torch.float64)
    answers = []
    for records in (False, True):
        table = rg.Table(logs.clone().requires_grad_(records))
        graph = rg.FactorGraph([rg.FactorBlock((x[:-2], x[1:-1], x[2:]), table)])
        posterior = loopy(graph, sweeps=4, gradient=rg.loopy.Unrolled())
        answers.append((posterior.log_partition, posterior.marginal(x)))
    for one, other in zip(*answers, strict=True):
        same(one, other, 1e-10)


@pytest.mark.parametrize("size", [3, 12])
def test_rows_are_what_each_is_by_itself(size):
    tables = grid_tables(0, 5, 5, size, (0.2, 0.5, 0.9))
    tables[2].unsqueeze_(0)
    for name in ("flooding", "sequential", "residual"):
        options = {"name": name, "sweeps": 7, "tolerance": 1e-9}
        whole = loopy(grid(*tables)[1], **options)
        for row in range(3):
            parts = [table[min(row, len(table) - 1)] for table in tables]
            alone = loopy(grid(*parts)[1], **options)
            same(whole.log_partition[row], alone.log_partition, 1e-13)


def test_threads_change_nothing():
    """Threads share the factors of one item, or have items of their own."""
    before = torch.get_num_threads()
    graphs = [
        grid(*grid_tables(0, side, side, size, 0.5, batch))[1]
        for side, size, batch in ((36, 7, ()), (14, 50, ()), (18, 9, (3,)))
    ]
    for name in ("flooding", "sequential"):
        answers = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            try:
                posteriors = [loopy(graph, name, sweeps=3) for graph in graphs]
                answers.append([(p.log_partition, p.status.trace) for p in posteriors])
            finally:
                torch.set_num_threads(before)
        for (log_z, trace), (other, again) in zip(*answers, strict=True):
            assert torch.equal(log_z, other)
            assert trace == again


def test_gradients_through_a_fixed_point_of_compiled_sweeps():
    """Implicit gradients, at messages that compiled sweeps pass, are those through every sweep."""
    tables = ladder((9, 3), count=5, scale=0.3)
    found = []
    for gradient in (rg.loopy.Implicit(), rg.loopy.Unrolled()):
        given = [table.clone().requires_grad_() for table in tables]
        graph, x, _ = declared(given, (9, 3))
        posterior = loopy(graph, gradient=gradient)
        weights = torch.randn(5, 9, generator=seeded(1), dtype=torch.float64)
        found.append(torch.autograd.grad((posterior.marginal(x) * weights).sum(), given))
    for one, other in zip(*found, strict=True):
        same(one, other, 1e-5)
