"""Structured Gaussian processes: Bayesian taggers by variational inference.

The tagger is `StructuredGP`; the other names are its parts. Nothing of them is loaded before it is
asked for.
"""

from rdpgraph.gp.covariances import Covariance, DiagonalCovariance, FullCovariance
from rdpgraph.gp.entropy import EntropyBound, JensenBound, PairwiseBound
from rdpgraph.gp.estimators import GradientEstimator, Reparameterised, ScoreFunction
from rdpgraph.gp.features import Features, Products
from rdpgraph.gp.graphs import GraphLikelihood
from rdpgraph.gp.kernels import RBF, Kernel, Linear, Matern, Product, Sum
from rdpgraph.gp.labelling import Labelling, Pieces
from rdpgraph.gp.likelihoods import ChainLikelihood, Likelihood, PiecewisePseudoLikelihood
from rdpgraph.gp.posterior import Functions, Gaussians, VariationalPosterior
from rdpgraph.gp.saga import SAGA
from rdpgraph.gp.tagger import StructuredGP
from rdpgraph.gp.training import Training

__all__ = [
    "RBF",
    "SAGA",
    "ChainLikelihood",
    "Covariance",
    "DiagonalCovariance",
    "EntropyBound",
    "Features",
    "FullCovariance",
    "Functions",
    "Gaussians",
    "GradientEstimator",
    "GraphLikelihood",
    "JensenBound",
    "Kernel",
    "Labelling",
    "Likelihood",
    "Linear",
    "Matern",
    "PairwiseBound",
    "Pieces",
    "PiecewisePseudoLikelihood",
    "Product",
    "Products",
    "Reparameterised",
    "ScoreFunction",
    "StructuredGP",
    "Sum",
    "Training",
    "VariationalPosterior",
]
