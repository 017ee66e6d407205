"""Contraction paths of other libraries give the same answers, and ours are paths for them."""

import random

import numpy as np
import opt_einsum
import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import ModelError
from rdpgraph.extend import contraction_path


def graph_of(seed: int) -> rg.FactorGraph:
    """Random tables over up to three of eight variables, some apart from the others."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    x = [rg.Variable(f"x{number}", rng.randint(2, 3)) for number in range(8)]
    scopes = [rng.sample(x, rng.randint(1, 3)) for _ in range(9)]
    shapes = [[variable.size for variable in scope] for scope in scopes]
    tables = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    pairs = zip(scopes, tables, strict=True)
    return rg.FactorGraph([rg.Factor(scope, rg.Table(table)) for scope, table in pairs])


def reversed_path(inputs, output, size_dict, memory_limit=None):
    """The last two tensors first."""
    return [(left, left + 1) for left in reversed(range(len(inputs) - 1))]


def cotengra_paths():
    cotengra = pytest.importorskip("cotengra")
    return cotengra.RandomGreedyOptimizer(max_repeats=4, parallel=False)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "optimize",
    ["greedy", "random-greedy", "dp", reversed_path, opt_einsum.RandomGreedy, cotengra_paths],
)
def test_answers_are_those_of_any_order(optimize, seed):
    if optimize in (opt_einsum.RandomGreedy, cotengra_paths):
        optimize = optimize()
    graph, scheduler = graph_of(seed), rg.Contraction(optimize=optimize)
    posterior, expected = rg.infer(graph, scheduler=scheduler), rg.infer(graph)
    torch.testing.assert_close(posterior.log_partition, expected.log_partition)
    for variable in graph.variables:
        torch.testing.assert_close(posterior.marginal(variable), expected.marginal(variable))
    assert "optimize" in rg.explain(graph, scheduler=scheduler).why
    some = list(graph.variables)[:3]
    assert posterior.marginal_mode(some) == expected.marginal_mode(some)


def test_one_tensor_needs_no_path():
    graph = rg.FactorGraph([rg.Factor((rg.Variable("x", 3),), rg.Table(torch.zeros(3)))])
    found = rg.infer(graph, scheduler=rg.Contraction(optimize="random-greedy"))
    torch.testing.assert_close(found.log_partition.exp(), torch.tensor(3.0))


def test_the_order_is_the_one_given():
    """A chain from both ends inwards is cheap; from the middle outwards tables grow."""
    x = [rg.Variable(f"x{number}", 3) for number in range(7)]
    table = rg.Table(torch.zeros(3, 3))
    graph = rg.FactorGraph([rg.Factor((x[i], x[i + 1]), table) for i in range(6)])

    def outwards(inputs, output, size_dict, memory_limit=None):
        return [(2, 3), (1, 4), (1, 3), (0, 2), (0, 1)]

    costs = [
        rg.explain(graph, scheduler=rg.Contraction(optimize=optimize)).flops
        for optimize in (reversed_path, outwards)
    ]
    assert costs[0] < costs[1]


@pytest.mark.parametrize("seed", range(20))
def test_paths_give_the_sums_that_numpy_gives(seed):
    """Random products of tensors: with results, indices of several tensors, scalars, and parts."""
    rng, draws = random.Random(seed), np.random.default_rng(seed)
    sizes = {letter: rng.randint(1, 3) for letter in "abcdefg"}
    inputs = ["".join(rng.sample("abcdefg", rng.randint(0, 3))) for _ in range(rng.randint(1, 7))]
    used = sorted({letter for indices in inputs for letter in indices})
    output = "".join(rng.sample(used, min(len(used), rng.randint(0, 2))))
    arrays = [draws.normal(size=[sizes[letter] for letter in indices]) for indices in inputs]
    equation = f"{','.join(inputs)}->{output}"
    pairs = contraction_path(list(map(frozenset, inputs)), frozenset(output), sizes)
    result = opt_einsum.contract(equation, *arrays, optimize=pairs)
    np.testing.assert_allclose(result, np.einsum(equation, *arrays), atol=1e-12)
    assert len(pairs) == max(len(inputs) - 1, 1)


def test_a_name_for_opt_einsum(monkeypatch):
    monkeypatch.setattr(opt_einsum.paths, "_PATH_OPTIONS", {**opt_einsum.paths._PATH_OPTIONS})
    opt_einsum.paths.register_path_fn("rdpgraph", contraction_path)
    matrices = np.random.default_rng(0).normal(size=(4, 3, 3))
    chain = opt_einsum.contract("ab,bc,cd,de->ae", *matrices, optimize="rdpgraph")
    np.testing.assert_allclose(chain, np.linalg.multi_dot(list(matrices)))
    graph = graph_of(0)
    own = rg.infer(graph, scheduler=rg.Contraction(optimize="rdpgraph")).log_partition
    torch.testing.assert_close(own, rg.infer(graph).log_partition)


def test_what_is_no_path_is_refused():
    with pytest.raises(ModelError, match=r"name of opt_einsum, such as .*got 'fastest'"):
        rg.Contraction(optimize="fastest")
    scheduler = rg.Contraction(optimize=lambda *_: [(0, 99)])
    with pytest.raises(ModelError, match="gave no path"):
        rg.infer(graph_of(0), scheduler=scheduler)
