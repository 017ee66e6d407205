"""Conformance suite for potentials, structures, proposals, selections and estimators.

Each check raises an ``AssertionError`` that says what does not hold.
"""

from rdpgraph.testing.enumeration import BruteForce, brute_force
from rdpgraph.testing.estimators import check_estimator
from rdpgraph.testing.potentials import check_potential
from rdpgraph.testing.selections import check_proposal, check_selection
from rdpgraph.testing.structures import check_masks, check_structure

__all__ = [
    "BruteForce",
    "brute_force",
    "check_estimator",
    "check_masks",
    "check_potential",
    "check_proposal",
    "check_selection",
    "check_structure",
]
