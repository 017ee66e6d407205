"""Bounds of log Z, where scores of -1e9 to -1e300 stand for absence beside ordinary ones."""

import numpy as np
import torch

import rdpgraph as rg
from tests.fuzz import compare
from tests.fuzz.compare import holds


def case(rng: np.random.Generator) -> int:
    """One model between the bounds of mini-buckets, near their estimate, below that of messages."""
    count, states, arity = (int(rng.integers(*ends)) for ends in ((4, 9), (2, 4), (2, 4)))
    low = -(10.0 ** float(rng.choice([9, 10, 12, 17, 30, 100, 300])))
    spread, share = 10 ** rng.uniform(-1, 2), rng.uniform(0, 0.4)
    variables = [rg.Variable(f"x{number}", states) for number in range(count)]
    scopes = [rng.permutation(count)[:arity] for _ in range(int(rng.integers(count, 3 * count)))]
    scopes += [np.array([number]) for number in range(count)]
    scores, factors = np.zeros((states,) * count), list[rg.Factor]()
    for scope in map(np.sort, scopes):
        shape = (states,) * len(scope)
        values = rng.normal(size=shape) * spread
        values = np.where(rng.random(shape) < share, low, values)
        scores += values.reshape([states if v in scope else 1 for v in range(count)])
        table = rg.Table(torch.from_numpy(values))
        factors.append(rg.Factor([variables[v] for v in scope], table))
    graph, log_z = rg.FactorGraph(factors), float(compare.log_sum(scores.reshape(1, -1))[0])
    slack = 1e-6 * (1 + abs(log_z))
    small = rg.MiniBuckets(memory=float(10 ** rng.uniform(2, 4)), seconds=0.01)
    posterior = rg.infer(graph, scheduler=small)
    bounds = posterior.bounds()
    holds(f"a lower bound {bounds.lower} of {log_z}", float(bounds.lower) <= log_z + slack)
    holds(f"an upper bound {bounds.upper} of {log_z}", float(bounds.upper) >= log_z - slack)
    if posterior.status.converged:
        reach = max(0.5, 10 * float(posterior.standard_error)) + slack
        off = abs(float(posterior.log_partition) - log_z)
        holds(f"an estimate {posterior.log_partition} of {log_z}", off < reach)
    counted = float(rg.infer(graph, scheduler=rg.Counting(seconds=20.0)).log_partition)
    holds(f"a count {counted} of {log_z}", abs(counted - log_z) < slack)
    messages = rg.Loopy(counting=rg.loopy.TreeReweighted(), sweeps=50, damping=0.3)
    found = rg.infer(graph, scheduler=messages)
    if found.status.bound == "upper":
        above = float(found.log_partition) >= log_z - 1e-2 * (1 + abs(log_z))
        holds(f"an upper bound {found.log_partition} of {log_z}", above)
    return 1
