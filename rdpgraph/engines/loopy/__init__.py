"""Loopy belief propagation: messages on flat edge arrays, one file per idea."""
