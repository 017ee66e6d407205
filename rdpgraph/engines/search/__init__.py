"""Modes where exact inference does not fit: large neighbourhoods, each of them solved exactly."""
