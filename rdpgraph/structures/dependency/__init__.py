"""Dependency trees: every word has a head, another word or the root."""
