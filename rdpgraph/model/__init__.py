"""Declarations of the user: variables, potentials, factors, graphs, and evidence."""
