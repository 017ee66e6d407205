"""Models and comparisons that the tests of loopy belief propagation share."""

import random
from dataclasses import dataclass

import pytest
import torch

import rdpgraph as rg

SCHEDULES = ("flooding", "sequential", "ordered", "residual", "random")


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def randn(seed, *shape):
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def same(got, expected, tolerance=1e-8):
    """Equal up to a relative and absolute tolerance, infinities exactly; dims may broadcast."""
    expected = torch.as_tensor(expected)
    got, expected = torch.broadcast_tensors(got.detach(), expected.detach())
    torch.testing.assert_close(
        got.to(expected), expected.clone(), rtol=tolerance, atol=tolerance, equal_nan=False
    )


def schedule(name, count):
    """A fresh schedule for a graph of ``count`` variables."""
    if name == "ordered":
        return rg.loopy.Sequential(torch.randperm(count, generator=seeded(0)))
    if name == "random":
        return rg.loopy.RandomSubsets(0.3, seeded(1))
    if name == "residual":
        return rg.loopy.Residual(0.2)  # few blocks a sweep, for speed
    return {"flooding": rg.loopy.Flooding, "sequential": rg.loopy.Sequential}[name]()


def loopy(graph, name="flooding", **options):
    """The posterior by a named schedule, run to rounding error unless told otherwise."""
    options = {"tolerance": 1e-12, "sweeps": 5000} | options
    scheduler = rg.Loopy(schedule=schedule(name, graph.num_variables), **options)
    return rg.infer(graph, scheduler=scheduler)


def assert_same_run(ours, theirs, pairs, *, tolerance, best=False):
    """Two posteriors have one log Z, one answer for each pair of variables, and one trace."""
    same(ours.log_partition, theirs.log_partition, tolerance)
    for one, other in pairs:
        if best:  # rounding decides between states that tie
            same(ours.max_marginals()[one], theirs.max_marginals()[other], tolerance)
        else:
            same(ours.marginal(one), theirs.marginal(other), tolerance)
    # Rounding decides after which sweep nothing changes any more, and between equal residuals.
    for one, other in zip(ours.status.trace, theirs.status.trace, strict=False):
        assert one == pytest.approx(other, rel=1e3 * tolerance, abs=1e3 * tolerance)


def grid(across, down, unary):
    """A grid of variables; tables lead with the batch, then rows and columns."""
    *_, rows, columns, states = unary.shape
    pixels = rg.VariableArray("pixel", (rows, columns), states)
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((pixels[:, :-1], pixels[:, 1:]), rg.Table(across)),
            rg.FactorBlock((pixels[:-1], pixels[1:]), rg.Table(down)),
            rg.FactorBlock((pixels,), rg.Table(unary)),
        ]
    )
    return pixels, graph


def grid_tables(seed, rows, columns, states, coupling, batch=()):
    """Random tables for `grid`; a coupling may be one number for each batch item."""
    scale = torch.as_tensor(coupling, dtype=torch.float64)
    scale = scale.reshape(*scale.shape, 1, 1, 1, 1)
    across = randn(seed, *batch, rows, columns - 1, states, states) * scale
    down = randn(seed + 1, *batch, rows - 1, columns, states, states) * scale
    return across, down, randn(seed + 2, *batch, rows, columns, states)


def random_grid(seed, rows, columns, states=2, coupling=0.5, batch=()):
    return grid(*grid_tables(seed, rows, columns, states, coupling, batch))


def ising(couplings_across, couplings_down, fields):
    """A binary grid of J x y + h x over states -1 and 1."""
    spin = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    pair = torch.outer(spin, spin)
    return grid(
        couplings_across[..., None, None] * pair,
        couplings_down[..., None, None] * pair,
        fields[..., None] * spin,
    )


@dataclass
class Drawn:
    """A random graph, with the factors it was made of."""

    graph: rg.FactorGraph
    factors: list[rg.Factor]


def random_tree(seed, *, batch=(), zeros=0.0, scale=1.0, evidence="none", whole_numbers=False):
    """A forest of factors of one to four variables of 2-4 states; up to 2,000 configurations."""
    chance, generator = random.Random(seed), seeded(seed)
    variables, factors = [], []
    shared = {}

    def add(scope):
        shape = tuple(v.size for v in scope)
        if shape in shared and chance.random() < 0.3:
            factors.append(rg.Factor(scope, shared[shape]))
            return
        lead = batch if chance.random() < 0.5 else ()
        values = torch.randn([*lead, *shape], generator=generator, dtype=torch.float64) * scale
        values = values.round() if whole_numbers else values
        gone = torch.rand(values.shape, generator=generator) < zeros
        shared[shape] = rg.Table(values.masked_fill(gone, -torch.inf))
        factors.append(rg.Factor(scope, shared[shape]))

    cells = 1
    for _ in range(chance.randint(1, 5)):
        scope = [chance.choice(variables)] if variables and chance.random() < 0.85 else []
        for _ in range(chance.randint(1, 3)):
            size = chance.randint(2, 4)
            if cells * size > 2000:
                break
            cells *= size
            variables.append(rg.Variable(f"v{len(variables)}", size))
            scope.append(variables[-1])
        if len(scope) > 1:
            chance.shuffle(scope)
            add(tuple(scope))
    for variable in variables:
        if chance.random() < 0.5:
            add((variable,))
    if not factors:
        factors.append(rg.Factor((), rg.Table(torch.ones((), dtype=torch.float64))))
    graph = rg.FactorGraph(factors, variables=variables)
    seen = chance.sample(variables, min(2, len(variables)))
    if evidence == "hard":
        graph = graph.condition({seen[0]: chance.randrange(seen[0].size)})
    elif evidence == "rows":
        rows = batch or (3,)
        graph = graph.condition(
            {v: torch.randint(-1, v.size, rows, generator=generator) for v in seen}
        )
    return Drawn(graph, factors)


def mixed_shapes():
    """Variables and scopes of a loopy graph of factors of one to four variables."""
    variables = [rg.Variable(f"x{i}", size) for i, size in enumerate((2, 3, 4, 2, 3))]
    scopes = [(0,), (2,), (0, 1), (1, 2), (2, 0), (1, 3, 4), (0, 3, 4), (4, 2, 1, 0)]
    return [tuple(variables[i] for i in scope) for scope in scopes]


def mixed_tables(seed, coupling=0.5, batch=()):
    shapes = [tuple(v.size for v in scope) for scope in mixed_shapes()]
    return [randn(seed + n, *batch, *shape) * coupling for n, shape in enumerate(shapes)]


def mixed(tables):
    """The loopy graph of `mixed_shapes` with these tables, batch dims in front."""
    pairs = zip(mixed_shapes(), tables, strict=True)
    return rg.FactorGraph([rg.Factor(scope, rg.Table(table)) for scope, table in pairs])


def message_odds(posterior):
    """The messages of a posterior, each shifted to a maximum of zero."""
    return [m - m.amax(1, keepdim=True) for m in posterior.solution.outcome.messages]


def differences(make, tables, ask, **options):
    """The gradient of ``ask`` of a posterior in all tables, by central differences in one batch."""
    step = 1e-4
    count = sum(table.numel() for table in tables)
    steps = torch.cat([torch.eye(count), -torch.eye(count)]).to(tables[0]) * step
    parts = steps.split([table.numel() for table in tables], 1)
    moved = [t + p.reshape(-1, *t.shape) for t, p in zip(tables, parts, strict=True)]
    values = ask(loopy(make(*moved), **{"tolerance": 1e-13} | options)).detach()
    slopes = (values[:count] - values[count:]) / (2 * step)
    return slopes.split([table.numel() for table in tables])
