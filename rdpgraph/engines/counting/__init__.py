"""Weighted model counts: networks as clauses, a counter in a separate process, circuits."""
