"""Potentials: the log-values of factors, as tables, lists, ranks, features and automata."""
