"""Rows of evidence, solved together as far as that stays exact, and else apart."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property, recording
from rdpgraph._core.portable import tensors_in
from rdpgraph.engines.portfolio import PASS_OF, ExactFirst
from rdpgraph.engines.solution import Delegate, Question, Solution, Status, Value, of_all
from rdpgraph.errors import BudgetError
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.plan import Plan
from rdpgraph.schedulers.scheduler import Planned, require_fit

_BY_PASS = {**PASS_OF, "sample": "log_partition"}
"""For each question the one that decides which rows are solved together."""


@dataclass(frozen=True, eq=False)
class RowsApart(Delegate):
    """Answers about rows of evidence by solving as many rows together as stays exact.

    All rows are tried first, then those that lack the same variables, then halves of these. A row
    that is left by itself is answered as a model without a batch is. Each kind of answer splits the
    rows for itself.
    """

    graph: FactorGraph  # the model, evidence included; its tables have no batch dims
    planned: Callable[[FactorGraph], Planned]  # plans some rows, all of them at once
    memory: float  # bytes; solutions are kept up to there, and made again beyond

    joint, rsample = Solution.joint, Solution.rsample
    log_partitions = Solution.log_partitions

    @cached_property
    def observed(self) -> Tensor:
        """(B, V) states, -1 where missing."""
        assert self.graph.observed is not None
        return self.graph.observed.reshape(-1, self.graph.num_variables)

    def _ask(self, question: Question[Value]) -> Value:
        return self._answer(question, exactly=False)

    def exactly(self, question: Question[Value]) -> Value:
        """The answer of exact engines.

        Raises:
            BudgetError: some row does not fit by itself.
        """
        return self._answer(question, exactly=True)

    def status(self) -> Status:
        """Status of log Z and marginals, the worst of all rows."""
        return self.status_of_sums()

    def _answer(self, question: Question[Any], *, exactly: bool) -> Any:
        """The answers of all parts, in the order of the rows."""
        answers, every = list[Any](), self._parts(question)
        for rows in every:
            plan, solution = self._solved(rows)
            alone = len(rows) == 1 and not exactly
            answers.append(question(solution) if alone else _exactly(plan, solution, question))
        if any(answer is None for answer in answers):
            if all(answer is None for answer in answers):
                return None
            answers = [
                _known(question.name, self._solved(rows)[1]) if answer is None else answer
                for rows, answer in zip(every, answers, strict=True)
            ]
        return _joined(question.name, answers, torch.cat(every).argsort())

    @cached_property
    def _divisions(self) -> dict[tuple[Any, ...], list[Tensor]]:
        """Rows that are solved together, for each kind of answer."""
        return {}

    def _parts(self, question: Question[Any]) -> list[Tensor]:
        """Rows that are solved together for an answer of this kind."""
        asked, numbers = Question[Any](_BY_PASS.get(question.subject, question.subject)), ()
        if question.name in ("marginal_mode", "marginal_mode_scores"):
            asked = Question("marginal_mode", question.arguments)
            numbers = tuple(question.arguments[0].tolist())
        key = (asked.name, *numbers)
        if key not in self._divisions:
            every = torch.arange(len(self.observed), device="cpu")
            self._divisions[key] = list(self._divided(every, asked))
        return self._divisions[key]

    def _divided(self, rows: Tensor, asked: Question[Any]) -> Iterator[Tensor]:
        """Parts of the rows that are exact when they are solved together, or single rows."""
        if len(rows) == 1 or self._fit(rows, asked):
            yield rows
            return
        lacking = self.observed[rows] == MISSING
        patterns = lacking.unique(dim=0, return_inverse=True)[1]
        alike = bool((patterns == 0).all())
        numbers = patterns.unique()
        parts = rows.chunk(2) if alike else (rows[patterns == number] for number in numbers)
        for part in parts:
            yield from self._divided(part, asked)

    def _fit(self, rows: Tensor, asked: Question[Any]) -> bool:
        """Return whether an exact engine answers for some rows together."""
        try:
            plan, solution = self._solved(rows)
            # What is sure need not be tried, but for a marginal mode, which is planned when asked.
            sure = isinstance(solution, ExactFirst) and solution.sure
            if not sure or asked.name == "marginal_mode":
                _exactly(plan, solution, asked)
        except BudgetError:
            return False
        return True

    @cached_property
    def _kept(self) -> dict[tuple[int, ...], tuple[Plan, Solution]]:
        """Plans and solutions of rows, as many as fit the memory."""
        return {}

    def _solved(self, rows: Tensor) -> tuple[Plan, Solution]:
        """The plan of some rows, and their solution.

        Raises:
            BudgetError: the plan does not fit.
        """
        key = tuple(rows.tolist())
        if key in self._kept:
            return self._kept[key]
        some = FactorGraph.from_blocks(self.graph.domain, self.graph.blocks, self.observed[rows])
        with recording(lambda: tensors_in(self.graph.blocks)):
            plan, run = self.planned(some)
            require_fit(plan)
            solution = run()
        held = sum(plan.stored_bytes for plan, _ in self._kept.values())
        if held + plan.stored_bytes <= self.memory:
            self._kept[key] = plan, solution
        return plan, solution


def _exactly(plan: Plan, solution: Solution, question: Question[Value]) -> Value:
    """The answer of an exact engine.

    Raises:
        BudgetError: it does not fit.
    """
    if isinstance(solution, ExactFirst):
        return solution.exactly(question)
    if plan.route in ("join graph", "loopy"):
        raise BudgetError(f"Rows of evidence do not fit: {plan.why}.")
    return question(solution)


def _known(name: str, solution: Solution) -> Any:
    """What a solution's None says, as the tensor that it stands for."""
    if name in ("mode_exists", "mode_is_possible"):
        return solution.possible()
    assert name == "log_partition_errors"
    log_z = solution.log_partition().detach()
    return torch.full_like(log_z, 0.0 if solution.status_of(name).exact else math.inf)


def _joined(name: str, answers: Sequence[Any], order: Tensor) -> Any:
    """Join the answers of parts into that of all rows; ``order`` puts the rows in their places."""
    first = answers[0]
    if isinstance(first, Status):
        return of_all(answers)
    if isinstance(first, tuple):
        return tuple(_joined(name, each, order) for each in zip(*answers, strict=True))
    dim = 1 if name == "sample" else 0
    return torch.cat(list(answers), dim).index_select(dim, order.to(first.device))
