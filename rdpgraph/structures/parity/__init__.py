"""Parity models: independent bits, of which parities are observed."""
