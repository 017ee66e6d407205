"""Compact charts: recursions that visit only what a mask keeps."""
