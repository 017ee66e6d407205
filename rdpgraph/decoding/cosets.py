"""Decoding by the most probable values of observables, each distinct syndrome once."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.structures.parity.model import ParityModel
from rdpgraph.structures.parity.sweeps import checked_syndrome

_AT_ONCE = 1 << 14
"""Syndromes that are swept in one call, so that memory does not grow with the shots."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """Decisions about shots, and their confidence.

    Attributes:
        observables: (*batch, observables) int64, the most probable values.
        confidence: (*batch,) P(l | s) of those; on kept states their share of the mass kept. Zero
            where no error that explains the syndrome was found: the decision is then all zeros.
        log_probability: (*batch,) log P(s) in nats; on kept states a lower bound.
    """

    observables: Tensor
    confidence: Tensor
    log_probability: Tensor


@dataclass(frozen=True, eq=False)
class CosetDecoder:
    """The most probable values of a parity model's observables, given syndromes.

    Maximises P(l | s), summed over all errors: maximum likelihood under the model given.

    Args:
        model: without a batch.
        keep: the number of states kept, as for `ParityModel.kept`; None: exact.
        event_cost: as for `ParityModel.kept`.

    Raises:
        ModelError: no `ParityModel`, or one with batch dims.

    Example:
        >>> import rdpgraph as rg
        >>> bits = [[1, 1, 0], [0, 1, 1]]
        >>> model = rg.ParityModel.from_rates(bits, [0.1] * 3, observables=[[1, 0, 0]])
        >>> decoded = CosetDecoder(model).decode_observables([[1, 0], [0, 0]])
        >>> decoded.observables.tolist(), decoded.confidence
        ([[1], [0]], tensor([0.9000, 0.9986]))
        >>> CosetDecoder(model).decode([0, 1])
        tensor([0, 0, 1])
    """

    model: ParityModel
    keep: int | None = None
    event_cost: float = 0.05

    def __post_init__(self) -> None:
        if not isinstance(self.model, ParityModel) or self.model.unary.ndim != 2:
            raise ModelError(
                f"CosetDecoder needs a ParityModel without batch dims; got {self.model!r:.80}."
            )
        if self.keep is not None:
            self.model.kept(self.keep, event_cost=self.event_cost)  # refuses what cannot be

    def decode(self, syndrome: Any) -> Tensor:
        """(*batch, errors) the most probable errors, by an exact sweep.

        Raises:
            EvidenceError: a syndrome of another length.
            ImpossibleEvidenceError: no errors explain a syndrome.
        """
        return self.model.condition(syndrome).mode()

    @torch.no_grad()
    def decode_observables(self, syndromes: Any) -> Decoded:
        """Decide on shots (*batch, checks), -1 where a check is erased.

        Raises:
            EvidenceError: syndromes of another length.
        """
        given = checked_syndrome(syndromes, self.model.checks.num_checks)
        rows, back = given.reshape(-1, given.shape[-1]).unique(dim=0, return_inverse=True)
        parts = [self._log_cosets(part) for part in rows.split(_AT_ONCE)]
        logs = torch.cat(parts)[back].reshape(*given.shape[:-1], -1)
        log_p = logs.logsumexp(-1)
        best = logs.max(-1)
        there = log_p > -torch.inf
        chance = torch.where(there, best.values - torch.where(there, log_p, 0.0), -torch.inf).exp()
        number = torch.where(there, best.indices, 0).unsqueeze(-1)
        bits = number >> torch.arange(self.model.checks.num_observables) & 1
        return Decoded(bits, chance, log_p)

    def _log_cosets(self, rows: Tensor) -> Tensor:
        model = self.model.condition(rows)
        if self.keep is None:
            return model.log_cosets()
        return model.kept(self.keep, event_cost=self.event_cost).log_cosets
