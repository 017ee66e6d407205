"""A CRF in plain operations of torch, unrolled step by step, for export."""

import torch
from torch import Tensor, nn

from rdpgraph.logspace.logmatrix import soft_sum


class UnrolledCRF(nn.Module):
    """The best tags and log Z of a CRF in plain torch; a trace serves all inputs of one shape.

    ``start`` and ``end`` are (tags,) scores in nats, ``transitions`` (tags, tags), [from, to]; -inf
    forbids.
    """

    start: Tensor
    transitions: Tensor
    end: Tensor

    def __init__(
        self, start: Tensor, transitions: Tensor, end: Tensor, *, batch_first: bool
    ) -> None:
        super().__init__()
        for name, scores in (("start", start), ("transitions", transitions), ("end", end)):
            self.register_buffer(name, scores.detach().clone())
        self.batch_first = batch_first

    def forward(self, emissions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The best tags, -1 beyond the mask, and log Z (batch,) in nats.

        Emissions are (steps, batch, tags), masks (steps, batch) bools, unchecked; or the batch
        first.
        """
        if self.batch_first:
            emissions, mask = emissions.transpose(0, 1), mask.t()
        total = best = self.start + emissions[0]
        stay = torch.arange(emissions.shape[-1], device=emissions.device).expand_as(best)
        before: list[Tensor] = []
        for scores, here in zip(emissions[1:], mask[1:].unsqueeze(-1), strict=True):
            highest, tag = (best.unsqueeze(-1) + self.transitions).max(1)
            before.append(torch.where(here, tag, stay))
            best = torch.where(here, highest + scores, best)
            summed = soft_sum(total.unsqueeze(-1) + self.transitions, 1) + scores
            total = torch.where(here, summed, total)
        tags = [(best + self.end).argmax(-1)]
        for step in reversed(before):
            tags.append(step.gather(1, tags[-1].unsqueeze(1)).squeeze(1))
        chosen = torch.where(mask, torch.stack(tags[::-1]), -1)
        return chosen.t() if self.batch_first else chosen, soft_sum(total + self.end, 1)
