"""Shared by every room: caches, types, shapes, numbers as arguments, copies for other processes."""
