"""Posteriors and their answers."""
