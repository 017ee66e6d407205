"""Learning: parameters of any graph or structure, fitted to data with gaps.

Here belong `EM`, which fits any model that is a function of named parameters, the parameters, and
estimators of usual models in the manners of scikit-learn.
"""

from rdpgraph.learn.em import EM, Fit, Step
from rdpgraph.learn.families import BDeu
from rdpgraph.learn.gradient import fit_by_gradient, standard_errors
from rdpgraph.learn.network import BayesianNetwork
from rdpgraph.learn.parameters import Parameter, Probabilities

__all__ = [
    "EM",
    "BDeu",
    "BayesianNetwork",
    "Fit",
    "Parameter",
    "Probabilities",
    "Step",
    "fit_by_gradient",
    "standard_errors",
]
