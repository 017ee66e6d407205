"""Small models whose evidence is found by quadrature."""

import itertools
import math

import numpy as np
import torch

from rdpgraph.gp import RBF, Features, Functions, Labelling, VariationalPosterior
from rdpgraph.gp.inducing import Basis
from rdpgraph.gp.training import EvidenceLowerBound

F64 = torch.float64


def normal_nodes(count, dimensions):
    """Nodes (n, dimensions) and weights of expectations under N(0, I)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    weights = weights / math.sqrt(2 * math.pi)
    grid = np.array(list(itertools.product(nodes, repeat=dimensions)))
    total = np.array([math.prod(one) for one in itertools.product(weights, repeat=dimensions)])
    return torch.tensor(grid), torch.tensor(total)


def posterior(points, *, labels=2, seed=0, pairwise_scale=1.0, spread=0.5, **options):
    """A variational posterior with parameters drawn at random."""
    options = {"components": 1, **options}
    found = VariationalPosterior(
        labels, points, pairwise_scale=pairwise_scale, scale=0.7, **options
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter += spread * torch.randn(parameter.shape, dtype=F64, generator=generator)
    return found


def basis(points, kernel=None, nugget=0.01, columns=2, seed=0):
    """Inducing points drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(points, columns, dtype=F64, generator=generator)
    return basis_of(Features(rows), kernel or RBF(1.2, 2.0), nugget)


def basis_of(features, kernel, nugget):
    """Inducing points at given features."""
    return Basis([features], [kernel], nugget)


def basis_by_label(features, kernels, nugget):
    """Inducing points and a kernel of each label."""
    return Basis(features, kernels, nugget)


def objective(q, known, likelihood, estimator):
    """The evidence lower bound of sequences in groups."""
    return EvidenceLowerBound(q, known, likelihood, estimator)


def sequences(*lengths, columns=2, labels=2, seed=1):
    """Features and states of sequences, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(length, columns, dtype=F64, generator=generator) for length in lengths]
    states = [torch.randint(labels, (length,), generator=generator) for length in lengths]
    return [Features(one) for one in rows], states


def group_of(known, *lengths, labels=2):
    """Sequences drawn at random as a group."""
    features, states = sequences(*lengths, labels=labels)
    return known.group(list(range(len(lengths))), features, states, None)


def functions(q, known, group, component=0):
    return Functions(q, known.conditional(group), component)


__all__ = [
    "Labelling", "basis", "basis_by_label", "basis_of", "functions", "group_of", "normal_nodes",
    "objective", "posterior", "sequences",
]  # fmt: skip
