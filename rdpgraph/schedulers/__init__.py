"""Schedulers: how a factor graph is solved."""

from rdpgraph.schedulers.auto import Auto
from rdpgraph.schedulers.contraction import Contraction, require_fit, solve_exactly
from rdpgraph.schedulers.counting import Counting
from rdpgraph.schedulers.loopy import JoinGraph, Loopy
from rdpgraph.schedulers.minibuckets import MiniBuckets
from rdpgraph.schedulers.scheduler import Scheduler
from rdpgraph.schedulers.search import Search

__all__ = [
    "Auto",
    "Contraction",
    "Counting",
    "JoinGraph",
    "Loopy",
    "MiniBuckets",
    "Scheduler",
    "Search",
    "require_fit",
    "solve_exactly",
]
