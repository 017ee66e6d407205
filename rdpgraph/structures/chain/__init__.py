"""Chains: sequences of variables, each tied to the next."""
