"""Recurrences: dynamic programs declared as inputs and rules, and answered for all sizes."""

from rdpgraph.recurrences.recurrence import Input, Lengths, Recurrence

__all__ = ["Input", "Lengths", "Recurrence"]
