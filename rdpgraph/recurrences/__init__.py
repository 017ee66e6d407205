"""Recurrences: dynamic programs declared as inputs and rules, and answered for all sizes."""

from rdpgraph.recurrences.declaration import Input, Lengths

__all__ = ["Input", "Lengths"]
