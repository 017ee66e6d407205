"""Recurrences: dynamic programs declared as inputs and rules, and answered for all sizes."""
