"""Derivations: the trees of a hypergraph."""
