"""Weighted model counts: networks as clauses, a counter in a process of its own, circuits."""
