"""Schedulers: how a factor graph is solved. Each is imported from its own file."""
