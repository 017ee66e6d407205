"""Relaxed samples of graphs: marginals of the perturbed model, whatever the route."""

import itertools

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from tests.routes import ROUTES, embedded, evidence, inferred, logical, ring, seeded, weights

RELAXED = [
    name
    for name in ROUTES
    if name
    not in {
        "chain", "chain of low rank", "semi-Markov", "hypertree", "projective", "non-projective",
        "derivations", "randomized chain", "randomized chain of low rank",
        "randomized semi-Markov", "randomized hypertree", "random features of a chain",
    }
]  # fmt: skip


def enumerated(graph, temperature, noise):
    """The marginals of the perturbed graph by its configurations; noise (S,) or (B, S)."""
    sizes = graph.domain.sizes.tolist()
    grid = torch.tensor(list(itertools.product(*map(range, sizes))))
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    places = grid + torch.tensor(starts)
    columns, values = 0, {}
    for entry in graph.variables:
        count = torch.Size(entry.shape).numel()
        part = grid[:, columns : columns + count]
        values[entry] = part.reshape(-1, *(1,) * len(graph.batch_shape), *entry.shape).expand(
            -1, *graph.batch_shape, *entry.shape
        )
        columns += count
    scores = graph.score(values).detach() + noise[..., places].sum(-1).movedim(-1, 0)
    chance = (scores / temperature).softmax(0)
    uses = torch.zeros(len(grid), sum(sizes), dtype=chance.dtype).scatter_(1, places, 1.0)
    return torch.tensordot(chance, uses, ([0], [0]))


def flat(answers):
    return torch.cat([part.flatten(part.ndim - 1 - len(key.shape)) for key, part in
                      answers.items()], -1)  # fmt: skip


def noise_of(graph, seed):
    """The noise of a draw, up to a constant of each variable: that of a model without scores."""
    tables = [
        rg.FactorBlock((entry,), rg.Table(torch.zeros(*graph.batch_shape, entry.size).double()))
        if entry.shape
        else rg.Factor((entry,), rg.Table(torch.zeros(*graph.batch_shape, entry.size).double()))
        for entry in graph.variables
    ]
    free = rg.FactorGraph(tables, variables=graph.variables)
    return flat(rg.infer(free).rsample(temperature=1.0, generator=seeded(seed))).log()


@pytest.mark.parametrize("model", [ring, logical, evidence])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_it_is_the_marginals_of_the_perturbed_model(model, temperature):
    graph = model(weights().detach())
    drawn = rg.infer(graph).rsample(temperature=temperature, generator=seeded(3))
    noise = noise_of(graph, 3)
    if graph.observed is None:
        assert_close(flat(drawn), enumerated(graph, temperature, noise))
        return
    for item, row in enumerate(graph.observed.reshape(-1, graph.num_variables).tolist()):
        names = [entry.name for entry in graph.variables]
        seen = {name: state for name, state in zip(names, row, strict=True) if state >= 0}
        bare = rg.FactorGraph.from_blocks(graph.domain, graph.blocks)
        expected = enumerated(bare, temperature, _with(bare, noise[item], seen))
        assert_close(flat(drawn)[item], expected)


@pytest.mark.parametrize("temperature", [0.3, 3.0])
def test_messages_through_a_cardinality_have_the_temperature(temperature):
    x = rg.VariableArray("x", (20,), 2)
    scores = rg.Table(torch.randn(20, 2, generator=seeded(1), dtype=torch.float64))
    few = rg.Cardinality(20, at_most=4, dtype=torch.float64)
    graph = rg.FactorGraph(
        [rg.FactorBlock((x,), scores), rg.Factor(tuple(x[i] for i in range(20)), few)]
    )
    drawn, exact = (
        rg.infer(graph, scheduler).rsample(temperature=temperature, generator=seeded(3))[x]
        for scheduler in (rg.Loopy(tolerance=1e-12), rg.Contraction())
    )
    assert_close(drawn, exact)


def _with(graph, noise, seen):
    """The noise, and -inf at states that evidence excludes."""
    noise = noise.clone()
    for number, entry in enumerate(graph.variables):
        if entry.name in seen:
            start = int(graph.domain.sizes[:number].sum())
            keep = start + seen[entry.name]
            for place in range(start, start + entry.size):
                if place != keep:
                    noise[place] = -torch.inf
    return noise


@pytest.mark.long
@pytest.mark.parametrize("route", RELAXED)
def test_every_route_has_weights_that_sum_to_one_with_a_gradient(route):
    w = weights()
    posterior = inferred(route, ROUTES[route][0](w))
    for temperature in (0.05, 1.0):
        drawn = posterior.rsample(temperature=temperature, generator=seeded(1))
        again = posterior.rsample(temperature=temperature, generator=seeded(1))
        marginals = posterior.marginals()
        for key, values in drawn.items():
            assert values.shape == marginals[key].shape
            assert_close(values.sum(-1), torch.ones_like(values.sum(-1)))
            assert_close(values, again[key])
    values = flat(posterior.rsample(temperature=1.0, generator=seeded(1)))
    assert values.requires_grad == flat(marginals).requires_grad
    if not values.requires_grad:  # beliefs of clusters have no gradient
        return
    (gradient,) = torch.autograd.grad(values.square().sum(), w)
    assert bool(gradient.isfinite().all())
    assert bool(gradient.any())


@pytest.mark.parametrize("route", ["buckets", "contraction of logical factors", "forest",
                                   "recognised chain", "randomized graph"])  # fmt: skip
def test_towards_temperature_0_it_is_the_perturbed_mode(route):
    w = weights().detach()
    graph = ROUTES[route][0](w)
    posterior = inferred(route, graph)
    drawn = posterior.rsample(temperature=1e-3, generator=seeded(2))
    for values in drawn.values():
        assert_close(values.amax(-1), torch.ones_like(values.amax(-1)), atol=1e-4, rtol=0.0)
    states = {key: values.argmax(-1) for key, values in drawn.items()}
    assert bool((graph.score(states) > -torch.inf).all())
    if posterior.solved is not graph:
        return
    noise = noise_of(graph, 2)
    counts = [entry.size * torch.Size(entry.shape).numel() for entry in graph.variables]
    unary = [
        rg.FactorBlock((entry,), rg.Table(part.reshape(*entry.shape, entry.size)))
        if entry.shape
        else rg.Factor((entry,), rg.Table(part))
        for entry, part in zip(graph.variables, noise.split(counts), strict=True)
    ]
    mode = rg.infer(graph.with_factors(*unary)).mode()
    for key, found in states.items():
        assert torch.equal(found, mode[key])


@pytest.mark.parametrize("route", ["buckets", "contraction", "loopy", "low-rank graph", "kept"])
def test_its_gradient_is_right(route):
    # States that are chosen without a look at the potentials, as the choice has no gradient.
    some = rg.Randomized(rg.randomized.Uniform(), rg.randomized.TopSystematic(1, 2))

    def drawn(w):
        if route == "kept":
            posterior = rg.infer(embedded(w), estimator=some, generator=seeded(7))
        else:
            posterior = inferred(route, ROUTES[route][0](w))
        return flat(posterior.rsample(temperature=0.7, generator=seeded(4)))[..., :6]

    w = weights()
    direction = torch.randn(w.shape, generator=seeded(8), dtype=w.dtype)
    (found,) = torch.autograd.grad(drawn(w).square().sum(), w)
    step = 1e-5
    with torch.no_grad():
        ends = [drawn(w + sign * step * direction).square().sum() for sign in (1, -1)]
    slope = (ends[0] - ends[1]) / (2 * step)
    assert_close((found * direction).sum(), slope, rtol=1e-4, atol=1e-7)


@pytest.mark.long
def test_of_independent_variables_the_cold_draw_is_an_exact_one():
    x = rg.VariableArray("x", (20_000,), 3)
    log_p = torch.tensor([0.2, 0.3, 0.5]).log()
    graph = rg.FactorGraph([rg.FactorBlock((x,), rg.Table(log_p))])
    drawn = rg.infer(graph).rsample(temperature=0.01, generator=seeded())[x].argmax(-1)
    found = torch.bincount(drawn, minlength=3) / 20_000
    assert_close(found, log_p.exp(), atol=0.02, rtol=0.0)


def test_a_draw_of_the_impossible_and_one_without_warmth_are_refused():
    graph = ring(weights().detach())
    with pytest.raises(rg.errors.ModelError, match="temperature above 0"):
        rg.infer(graph).rsample(temperature=0.0)
    with pytest.raises(rg.errors.ImpossibleEvidenceError, match="no relaxed sample"):
        rg.infer(graph.condition({"c": 2})).rsample(temperature=1.0)
