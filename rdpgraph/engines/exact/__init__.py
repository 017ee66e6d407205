"""Exact inference by contraction, whole or in slices, and by compiled buckets."""
