"""Alignments: distributions over the monotone paths through two sequences."""
