"""Exact inference by contraction, whole, in slices or as a circuit."""
