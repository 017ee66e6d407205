"""Modes where exact inference does not fit, by large neighbourhoods solved exactly."""
