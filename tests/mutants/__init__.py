"""Mutation testing: changes at random places of the package, and whether tests notice them.

``python -m tests.mutants --count 200 --seed 0``; outside the default run of pytest, as fuzzing is.
"""
