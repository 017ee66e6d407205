"""Structured Gaussian processes: Bayesian taggers by variational inference.

The tagger is `StructuredGP`; the other names are its parts.
"""

from rdpgraph.gp.estimators import GradientEstimator, Reparameterised, ScoreFunction
from rdpgraph.gp.kernels import RBF, Features, Kernel, Linear, Matern, Product, Products, Sum
from rdpgraph.gp.likelihoods import (
    ChainLikelihood,
    GraphLikelihood,
    Labelling,
    Likelihood,
    Pieces,
    PiecewisePseudoLikelihood,
)
from rdpgraph.gp.posterior import (
    Covariance,
    DiagonalCovariance,
    EntropyBound,
    FullCovariance,
    Functions,
    Gaussians,
    JensenBound,
    PairwiseBound,
    VariationalPosterior,
)
from rdpgraph.gp.tagger import StructuredGP
from rdpgraph.gp.training import SAGA, Training

__all__ = [
    "RBF", "SAGA", "ChainLikelihood", "Covariance", "DiagonalCovariance", "EntropyBound",
    "Features", "FullCovariance", "Functions", "Gaussians", "GradientEstimator",
    "GraphLikelihood", "JensenBound", "Kernel", "Labelling", "Likelihood", "Linear", "Matern",
    "PairwiseBound", "Pieces", "PiecewisePseudoLikelihood", "Product", "Products",
    "Reparameterised", "ScoreFunction", "StructuredGP", "Sum", "Training",
    "VariationalPosterior",
]  # fmt: skip
