"""What all ranks found, on each of them: a posterior of the whole graph."""

from dataclasses import dataclass, field
from typing import NoReturn

from torch import Tensor

from rdpgraph.engines.solution import Approximation
from rdpgraph.engines.status import Status
from rdpgraph.errors import UnsupportedError
from rdpgraph.model.graph import FactorGraph


@dataclass(frozen=True, eq=False)
class Gathered(Approximation):
    """log Z and the beliefs of variables, from all parts of a graph; nothing else crossed.

    Attributes:
        log_z: (B,) nats.
        beliefs: (B, S).
        worth: of the messages.
    """

    log_z: Tensor = field(repr=False)
    beliefs: Tensor = field(repr=False)
    worth: Status

    def status(self) -> Status:
        """Whether the messages converged."""
        return self.worth

    def log_partition(self) -> Tensor:
        """(B,) log Z in nats."""
        return self.log_z

    def variable_marginals(self) -> Tensor:
        """(B, S) the beliefs."""
        return self.beliefs

    def factor_marginals(self, block: int) -> Tensor:
        """Not gathered.

        Raises:
            UnsupportedError: always.
        """
        refuse()

    def expected_score(self) -> Tensor:
        """Not gathered.

        Raises:
            UnsupportedError: always.
        """
        refuse()

    def max_marginals(self) -> Tensor:
        """Not gathered.

        Raises:
            UnsupportedError: always.
        """
        refuse()

    def mode(self) -> Tensor:
        """Not gathered.

        Raises:
            UnsupportedError: always.
        """
        refuse()


def refuse_to_solve(graph: FactorGraph) -> NoReturn:
    """For joints of variables that no factor holds."""
    del graph
    refuse()


def refuse() -> NoReturn:
    """What is not known of the parts."""
    raise UnsupportedError(
        "The parts of a graph give log Z and marginals of single variables; ask one process for "
        "modes, draws, joints and entropies."
    )
