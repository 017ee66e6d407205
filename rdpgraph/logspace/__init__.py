"""Arithmetic of log-values: sums at a temperature, products of matrices, gradients."""
