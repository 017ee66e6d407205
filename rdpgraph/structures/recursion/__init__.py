"""Recursions as tapes of log-linear steps, from which every answer is derived."""
