"""Answers of a network by a counter."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.engines.counting.counter import log_counts
from rdpgraph.engines.counting.encoding import encoded
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.solution import Delegate, Question, Status, Value
from rdpgraph.errors import UnsupportedError
from rdpgraph.plan.clock import Allowance


@dataclass(frozen=True, eq=False)
class CountedSolution(Delegate):
    """Exact log Z, counted, without gradients; other questions are not answered.

    Attributes:
        network: the reduced model, without whole potentials.
        memory: bytes that the counter may take.
        allowance: its seconds.
    """

    network: Network
    memory: float
    allowance: Allowance = field(repr=False)

    def status(self) -> Status:
        """Status of log Z, which is exact."""
        return Status(method="counting")

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): log Z."""
        return self._counted, self._counted

    def log_partition_errors(self) -> None:
        """No errors: the count is exact."""

    def possible(self) -> Tensor:
        """(B,) whether any configuration is, by log Z."""
        return self._counted > -math.inf

    def log_partition(self) -> Tensor:
        return self._counted

    def log_partitions(self) -> Tensor:
        """(1, B) log Z."""
        return self._counted.unsqueeze(0)

    @cached_property
    def _counted(self) -> Tensor:
        """(B,) nats.

        Raises:
            BudgetError: the count does not fit.
        """
        network = self.network
        log_z = torch.full((network.batch,), -math.inf, dtype=network.constant.dtype, device="cpu")
        if not network.impossible:
            with self.allowance.spending(), torch.no_grad():
                every = [encoded(network, item) for item in range(network.batch)]
                counts = log_counts(every, seconds=self.allowance.left(), memory=self.memory)
                log_z = torch.tensor(counts, dtype=log_z.dtype, device="cpu")
        return log_z.to(network.constant.device)

    def _ask(self, question: Question[Value]) -> Value:
        raise UnsupportedError(
            f"A counter gives log Z alone, not {question.name}; ask Auto() for approximate "
            "answers, or condition on a state for its probability."
        )
