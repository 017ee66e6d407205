"""Structures written as factors, in any order and with evidence, against enumeration."""

import numpy as np
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force
from tests.fuzz import structures
from tests.fuzz.compare import Skipped, close, named

MOST = 20_000  # configurations

KINDS = (
    structures._chain, structures._segments, structures._segments, structures._tree,
    structures._dependencies,
)  # fmt: skip


def case(rng: np.random.Generator) -> int:
    """One structure as a graph; how many items it has."""
    draws = structures._Draws.of(rng)
    structure = KINDS[int(rng.integers(len(KINDS)))](draws)
    try:
        graph = structure.factor_graph()
    except rg.errors.RdpgraphError as error:
        raise Skipped(f"no graph: {type(error).__name__}") from None
    if (
        0 in draws.batch
        or not graph.num_variables
        or int(np.prod(graph.domain.sizes.tolist())) > MOST
    ):
        raise Skipped("no items or sites, or too many configurations")
    graph = shuffled(graph, rng)
    if rng.random() < 0.5:
        some = [v for v in graph.variables if rng.random() < 0.3]
        lead = graph.batch_shape or ((2,) if rng.random() < 0.3 else ())
        gaps = rng.random(lead) < rng.choice([0.0, 0.5, 1.0])
        seen = {v: torch.tensor(np.where(gaps, -1, rng.integers(v.size, size=lead))) for v in some}
        graph = graph.condition(seen) if seen else graph
    truth, name = brute_force(graph), f"{type(structure).__name__} as a graph"
    posterior = rg.infer(graph)
    wanted = truth.log_partition
    close(f"log_partition of {name}", posterior.log_partition, wanted.numpy(), 1e-8, 30)
    if bool((wanted == -torch.inf).any()):
        named(posterior.mode, wanted)
        return wanted.numel()
    for variable in graph.variables:
        own = truth.joint((variable,)).numpy()
        close(f"a marginal of {name}", posterior.marginal(variable), own, 1e-8)
    best = graph.score(posterior.mode())
    close(f"the score of the mode of {name}", best, truth.maximum.numpy(), 1e-8, 30)
    drawn = posterior.sample(3, generator=torch.Generator().manual_seed(int(rng.integers(2**31))))
    if not bool((graph.score(drawn) > -torch.inf).all()):
        raise AssertionError(f"{name} has an impossible sample")
    return wanted.numel()


def shuffled(graph: rg.FactorGraph, rng: np.random.Generator) -> rg.FactorGraph:
    """The same model over single variables, with variables and factors in another order."""
    names = rng.permutation(graph.num_variables).tolist()
    sizes = graph.domain.sizes.tolist()
    fresh = [rg.Variable(f"v{name}", size) for name, size in zip(names, sizes, strict=True)]
    factors = list[rg.Factor]()
    for factor in graph.factors():
        scope = [fresh[int(graph.domain.numbers(variable))] for variable in factor.variables]
        joint = len(scope) > 2  # one potential of them all, which its own block has
        factors.append(rg.Factor(scope, graph.blocks[-1].potential if joint else factor.potential))
    order = rng.permutation(len(factors)).tolist()
    listed = [fresh[k] for k in rng.permutation(len(fresh)).tolist()]
    return rg.FactorGraph([factors[k] for k in order], variables=listed)
