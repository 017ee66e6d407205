"""Matchings: pairs of rows and columns, one-to-one."""
