"""A route of a user's own, and those that answer where it does not keep its word."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.engines.portfolio import PASS_OF
from rdpgraph.engines.solution import Delegate, PartialSolution, Question, Solution, Status, Value
from rdpgraph.errors import BudgetError

_KIND_OF = {
    **PASS_OF, "marginal_mode_scores": "marginal_mode", "joint": "variable_marginals",
    "rsample": "sample",
}  # fmt: skip
"""For each question the one whose bid decides about it."""


@dataclass(frozen=True, eq=False)
class InTurn(Delegate):
    """Answers of one route to the questions that it bid best for, and of others to all else.

    A question goes on to the others where the route raises `BudgetError`, or where it has not
    converged and the others have. Each kind of answer is decided about once, by a question that
    does not depend on what was asked before.
    """

    name: str  # of the route
    first: Solution | str  # its solution, or the reason why there is none
    kinds: frozenset[str]  # questions that it bid best for
    exact: frozenset[str]  # of these, those that it bid for as exact
    otherwise: Callable[[], Solution] = field(repr=False)

    @differentiable_property
    def _others(self) -> Solution:
        return self.otherwise()

    @cached_property
    def _failed(self) -> dict[str, str]:
        """For each kind of answers that was decided about, why others give it; or nothing."""
        return {}

    def _ask(self, question: Question[Value]) -> Value:
        subject = question.subject
        kind = _KIND_OF.get(subject, subject)
        first = self.first
        if kind not in self.kinds or isinstance(first, str):
            return question(self._others)
        if isinstance(first, PartialSolution) and not first.answers(subject):
            return question(self._others)
        if kind in ("sample", "marginal_mode"):  # these have arguments: each question is a trial
            try:
                return question(first)
            except BudgetError:
                return question(self._others)
        return question(self._others if self._reason(kind, first) else first)

    def _reason(self, kind: str, first: Solution) -> str:
        """Why others give a kind of answers, though the route bid for it; empty if it does."""
        if kind not in self._failed:
            self._failed[kind] = ""
            try:
                Question[Tensor](kind)(first)
                own = first.status_of(kind)
            except BudgetError as error:
                self._failed[kind] = str(error)
            else:
                if not own.converged and self._others.status_of(kind).converged:
                    self._failed[kind] = "it has not converged"
        return self._failed[kind]

    def status(self) -> Status:
        """Status of log Z and marginals, by the routes that answer them."""
        return self.status_of_sums()

    def status_of(self, answer: str) -> Status:
        """Status of an answer; it names the route, and whether this one was tried before."""
        kind, first = _KIND_OF.get(answer, answer), self.first
        if kind not in self.kinds:
            return self._others.status_of(answer)
        if isinstance(first, str):
            return self._instead(answer, first)
        if isinstance(first, PartialSolution) and not first.answers(answer):
            return self._others.status_of(answer)
        if kind not in ("sample", "marginal_mode") and (reason := self._reason(kind, first)):
            return self._instead(answer, reason)
        status = first.status_of(answer)
        # A bid that is not exact gives no exact status by default.
        said = type(first).status is not Solution.status
        said = said or type(first).status_of is not Solution.status_of
        exact = status.exact and (said or kind in self.exact)
        method = status.method or self.name
        return replace(status, exact=exact, route=status.route or self.name, method=method)

    def _instead(self, answer: str, reason: str) -> Status:
        status = self._others.status_of(answer)
        return replace(status, tried=(f"{self.name}: {reason}", *status.tried))
