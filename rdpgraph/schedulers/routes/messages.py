"""The route of messages between single factors, which always bids."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rdpgraph._core import effort
from rdpgraph.engines.loopy.network_equations import Bethe, CountingNumbers, Fractional
from rdpgraph.engines.loopy.schedules import Flooding, RandomSubsets
from rdpgraph.engines.portfolio import FirstConverged
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.plan import Budget, Plan
from rdpgraph.schedulers.loopy import ForMessages, Loopy
from rdpgraph.schedulers.route import Others, Route, Settings, Task
from rdpgraph.schedulers.scheduler import is_constraints_alone


class MessagesRoute(Route):
    """Loopy messages with more and more damping, until some converge."""

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """For all questions but draws and marginal modes, at any size."""
        if question.name in ("sample", "marginal_mode"):
            return None
        why = "messages between single factors, until they converge or the time ends"
        plan = task.once("plan of messages", lambda: self.plan(task, None, why))
        return Bid(Exactness.MESSAGES, plan.seconds, plan.stored_bytes, why)

    def run(self, task: Task, bid: Bid) -> Solution:
        return self.run_with(task, bid, None)

    def run_with(self, task: Task, bid: Bid, others: Others | None) -> Solution:
        """The first messages that converge; others that stand by are tried before damped ones."""
        hard, messages = task.network.possible is not None, _for_messages(task)
        tries = tuple(
            partial(_attempt, messages, task.given, each) for each in (_HARD if hard else _SOFT)
        )
        before = () if others is None else (partial(_by, others),)
        plainly = partial(_plainly, messages, task.given)
        return FirstConverged(
            (*before, *tries), tries[0], task.network, task.allowance, plainly, first_share(task),
            task.remedy,
        )  # fmt: skip

    def plan(self, task: Task, bid: Bid | None, why: str) -> Plan:
        return _for_messages(task).plan(why, task.allowance.seconds)


def first_share(task: Task) -> float:
    """The part of the time for plain messages before others; most end in less."""
    network, timed = task.network, task.counter is None
    if network.possible is None:
        return float(timed and task.allowance.left() < 2.0 * task.run_seconds)
    return 1.0 if timed and is_constraints_alone(network) else effort.PLAIN_WITH_ZEROS


def _for_messages(task: Task) -> ForMessages:
    return task.once("for messages", lambda: ForMessages(task.network, task.memory))


def _by(others: Others, _: float) -> Solution:
    return others(0.0)


def _plainly(messages: ForMessages, given: Settings, left: float | None) -> Solution:
    return Loopy(seconds=left, progress=given.progress).solution(messages.network)


@dataclass(frozen=True)
class _Try:
    """Settings of a run of loopy propagation, and its part of the remaining time."""

    damping: float
    counting: CountingNumbers
    part: float
    tolerance: float = 1e-4
    in_turn: bool = False


_SOFT = (_Try(0.5, Bethe(), 0.4, tolerance=1e-5), _Try(0.8, Bethe(), 0.9, tolerance=1e-5))
"""Runs without hard zeros, with increasing damping."""

_HARD = (
    _Try(0.3, Bethe(), 0.3, in_turn=True),
    _Try(0.5, Fractional(0.7), 0.5, tolerance=5e-4),
    _Try(0.5, Fractional(0.5), 0.9, tolerance=5e-4),
)
"""Runs with hard zeros: messages updated all at once contradict each other forever, and some of
convex counting numbers converge as slowly as one over the number of sweeps."""


def _attempt(messages: ForMessages, given: Settings, settings: _Try, left: float) -> Solution:
    schedule, network = Flooding(), messages.network
    if settings.in_turn:  # each subset asks automata slot by slot
        share = 0.5 if network.high_order else 0.1
        schedule = RandomSubsets(share, torch.Generator().manual_seed(0))
    scheduler = Loopy(
        sweeps=100_000,
        damping=settings.damping,
        tolerance=settings.tolerance,
        schedule=schedule,
        counting=settings.counting,
        seconds=settings.part * max(left, 0.0),
        progress=given.progress,
    )
    return scheduler.solution(network)
