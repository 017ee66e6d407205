"""Differential fuzzing: random models and files against what plain loops say of them.

``python -m tests.fuzz --seconds 60``; outside the default run of pytest, as the benchmarks are.
"""
