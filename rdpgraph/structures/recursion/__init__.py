"""Recursions as tapes of log-linear steps, and every question about them asked once."""
