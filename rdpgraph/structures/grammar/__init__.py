"""Hypertrees: distributions over the binary trees of sequences."""
