"""What is written into the box of a variable, and how large that is."""

from dataclasses import dataclass

from rdpgraph.errors import printable
from rdpgraph.model.variable import Variable, names_of
from rdpgraph.query.posterior import Posterior

MOST_STATES = 8
_NAMES, _BARS = 8.5, 5.5  # points
_WIDE = 0.61 / 72  # of a letter, in inches for each point
_LONGEST = 18


@dataclass(frozen=True)
class Box:
    """A box with a name, and lines of text below it.

    Attributes:
        name: of the variable.
        lines: a bar for each state; none where there are no marginals.
    """

    name: str
    lines: tuple[str, ...] = ()

    name_points = _NAMES
    line_points = _BARS

    @property
    def title(self) -> str:
        """The name, cut where it is long."""
        return self.name if len(self.name) <= _LONGEST else f"{self.name[: _LONGEST - 1]}…"

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        wide = max((len(line) for line in self.lines), default=0) * _BARS * _WIDE
        wide = max(wide, len(self.title) * _NAMES * _WIDE)
        high = 1.35 * (_NAMES + len(self.lines) * _BARS * 0.95) / 72
        return wide + 0.14, high + 0.1


def box_of(variable: Variable, posterior: Posterior | None) -> Box:
    """The box of a variable, with its marginal where there is one and its states are few."""
    title = printable(variable.name)
    if posterior is None or variable.size > MOST_STATES:
        return Box(title)
    marginal = posterior.marginal(variable).detach().reshape(-1, variable.size)[0].tolist()
    lines: list[str] = []
    for name, probability in zip(names_of(variable.states), marginal, strict=True):
        filled = round(10 * probability)
        bar = "█" * filled + "░" * (10 - filled)
        lines.append(f"{printable(str(name))[:8]:>8s} {bar} {probability:5.3f}")
    return Box(title, tuple(lines))
