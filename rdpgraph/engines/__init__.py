"""Solvers of models: contraction, messages, search, mini-buckets, counting, structures."""
