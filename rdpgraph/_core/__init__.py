"""Caches, types, shapes, numbers, and copies for other processes, which every room uses."""
