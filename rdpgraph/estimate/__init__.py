"""Rewrites of a model into one that is cheaper to solve."""
