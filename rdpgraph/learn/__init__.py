"""Learning: parameters of any graph or structure, fitted to data with gaps.

`EM`, which fits any model that is a function of named parameters, the parameters, and estimators of
usual models in the manner of scikit-learn.
"""

from rdpgraph.learn.bayesian_network import BayesianNetwork
from rdpgraph.learn.compound import Mixture, Product
from rdpgraph.learn.covariates import Driven, Rates
from rdpgraph.learn.densities import Density, Durations
from rdpgraph.learn.dynamic import DynamicBayesianNetwork
from rdpgraph.learn.em import EM, Fit, Step
from rdpgraph.learn.emissions import Bernoulli, Categorical, Emission, Poisson
from rdpgraph.learn.families import BDeu
from rdpgraph.learn.gaussian import Gaussian
from rdpgraph.learn.gradient import fit_by_gradient, standard_errors
from rdpgraph.learn.hidden import HiddenStates, held_out
from rdpgraph.learn.markov import HMM, HSMM, left_to_right
from rdpgraph.learn.parameters import NoisyMax, Parameter, Probabilities
from rdpgraph.learn.saved import load, save
from rdpgraph.learn.tagger import SequenceTagger, read_conll

__all__ = [
    "EM",
    "HMM",
    "HSMM",
    "BDeu",
    "BayesianNetwork",
    "Bernoulli",
    "Categorical",
    "Density",
    "Driven",
    "Durations",
    "DynamicBayesianNetwork",
    "Emission",
    "Fit",
    "Gaussian",
    "HiddenStates",
    "Mixture",
    "NoisyMax",
    "Parameter",
    "Poisson",
    "Probabilities",
    "Product",
    "Rates",
    "SequenceTagger",
    "Step",
    "fit_by_gradient",
    "held_out",
    "left_to_right",
    "load",
    "read_conll",
    "save",
    "standard_errors",
]
