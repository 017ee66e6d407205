"""Weighted mini-buckets: bounds of log Z, and importance sampling by their messages."""
