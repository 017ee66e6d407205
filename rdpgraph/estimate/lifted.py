"""Solutions that speak by another one: what lifts are built on."""

from dataclasses import dataclass, replace

from rdpgraph.engines.solution import Delegate, Question, Solution, Value
from rdpgraph.engines.status import Status


@dataclass(frozen=True, eq=False)
class Lifted(Delegate):
    """The answers of another solution; a subclass overrides those that differ.

    Attributes:
        inner: the solution of the model that an estimator made.
    """

    inner: Solution

    def _ask(self, question: Question[Value]) -> Value:
        return question(self.inner)


@dataclass(frozen=True, eq=False)
class Inexact(Lifted):
    """The same answers, of a model that approximates the one declared: a lift by itself.

    What is proved of the approximation is not proved of the model.
    """

    bounds, interval = Solution.bounds, Solution.interval
    mode_bound, mode_is_optimal = Solution.mode_bound, Solution.mode_is_optimal

    def status(self) -> Status:
        """Neither exact nor unbiased, nor a bound."""
        return replace(self.inner.status(), exact=False, biased=True, bound="")
