"""Random Bayesian networks beyond enumeration, against pyAgrum's lazy propagation."""

import importlib.util
import math
from typing import Any

import numpy as np
import torch

import rdpgraph as rg
from tests.fuzz.compare import Skipped, close


def missing() -> str:
    """Why this kind cannot run, or nothing."""
    return "" if importlib.util.find_spec("pyagrum") else "pyagrum is not installed"


def case(rng: np.random.Generator) -> int:
    """One network of up to 40 variables, and one row of evidence."""
    import pyagrum

    count = int(rng.integers(5, 41))
    sizes = [int(n) for n in rng.integers(2, 5, size=count)]
    zeros = float(rng.choice([0.0, 0.1, 0.3]))
    network: Any = pyagrum.BayesNet()
    for number, size in enumerate(sizes):
        network.add(pyagrum.LabelizedVariable(f"x{number}", "", size))
    variables = [rg.Variable(f"x{number}", size) for number, size in enumerate(sizes)]
    factors: list[rg.Factor] = []
    for number, size in enumerate(sizes):
        near = range(max(0, number - 8), number)
        parents = [int(n) for n in rng.permutation(list(near))[: int(rng.integers(0, 4))]]
        table = rng.random((*(sizes[n] for n in parents), size)) + 0.01
        table = np.where(rng.random(table.shape) < zeros, 0.0, table)
        table[..., 0] += table.sum(-1) == 0
        table /= table.sum(-1, keepdims=True)
        for parent in parents:
            network.addArc(f"x{parent}", f"x{number}")
        names = [f"x{n}" for n in (*parents, number)]
        own = network.cpt(f"x{number}")
        order = [names.index(name) for name in reversed(own.names)]
        own[:] = np.ascontiguousarray(table.transpose(order))
        scope = tuple(variables[n] for n in (*parents, number))
        factors.append(rg.Factor(scope, rg.Table.from_probabilities(torch.tensor(table))))
    seen = rng.random(count) < rng.choice([0.0, 0.1, 0.3])
    evidence = {f"x{n}": int(rng.integers(sizes[n])) for n in range(count) if seen[n]}
    lazy = pyagrum.LazyPropagation(network)
    lazy.setEvidence(evidence)
    posterior = rg.infer(rg.FactorGraph(factors).condition(evidence))
    if not math.isfinite(float(posterior.log_partition)):
        raise Skipped("evidence of probability zero")
    lazy.makeInference()
    mass = np.array(math.log(lazy.evidenceProbability()))
    close("log_partition, pyagrum's", posterior.log_partition, mass, 1e-8)
    for number in range(count):
        theirs = np.asarray(lazy.posterior(f"x{number}").toarray())
        close(
            f"the marginal of x{number}, pyagrum's", posterior.marginal(f"x{number}"), theirs, 1e-8
        )
    return 1
