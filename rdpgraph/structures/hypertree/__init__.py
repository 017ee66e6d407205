"""Hypertrees: trees over the spans of a sequence, dependency trees, and derivations."""
