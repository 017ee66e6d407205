"""Damping of each edge of belief propagation, learned from syndromes."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph.decoding.messages import MessagesDecoder
from rdpgraph.errors import ModelError
from rdpgraph.structures.draws import require_generator
from rdpgraph.structures.parity.sweeps import checked_syndrome

_SURE = 100.0
"""Nats of a message that is certain, in training alone."""
_SHARPNESS = 2.0
"""Sharpness of the soft minimum over iterations, for each nat of violation."""


def learn_damping(
    decoder: MessagesDecoder, syndromes: Any, *, steps: int = 100, batch: int = 60,
    rate: float = 0.05, generator: torch.Generator | None = None,
) -> MessagesDecoder:  # fmt: skip
    """The min-sum decoder with a damping of each edge that leaves fewer shots undecoded.

    Adam on the passes of all iterations, unrolled. The loss of a shot is the soft violation of its
    checks in its best iteration; errors need not be known. Half of a batch is not decoded yet, if
    so many are found. Start near the best single damping, and keep shots apart to compare.

    Args:
        decoder: min-sum in parallel order; its damping is the start, 0.05 to 0.95 of it.
        syndromes: (shots, checks).
        steps: of Adam.
        batch: the number of shots of a step.
        rate: of Adam, in log-odds of the damping.
        generator: chooses the shots.

    Raises:
        ModelError: sum-product, the serial order, or numbers out of range.
        EvidenceError: syndromes of another length, or erased checks.

    Example:
        >>> ring = MessagesDecoder([[1, 1, 0], [0, 1, 1]], -2.0, damping=0.3)
        >>> learn_damping(ring, [[1, 0], [0, 1], [1, 1]], steps=2).damping.shape
        torch.Size([4])
    """
    if decoder.product or decoder.serial:
        raise ModelError("learn_damping needs a min-sum decoder in parallel order.")
    if not is_whole(steps, 1) or not is_whole(batch, 1) or not is_real(rate) or not rate > 0:
        raise ModelError(
            "learn_damping needs steps and a batch >= 1 and a rate above 0; got "
            f"{steps!r:.40}, {batch!r:.40} and {rate!r:.40}."
        )
    require_generator(generator)
    given = checked_syndrome(syndromes, decoder.checks.num_checks, erased=False)
    given = given.reshape(-1, decoder.checks.num_checks)
    wide, bits = _padded(decoder.checks.rows)
    values = decoder.damping.clamp(0.05, 0.95).logit().requires_grad_()
    optimiser = torch.optim.Adam([values], lr=rate)
    for _ in range(steps if len(given) and len(bits) else 0):
        damping = values.sigmoid()
        some = given[torch.randint(len(given), (5 * batch,), generator=generator)]
        met = replace(decoder, damping=damping.detach()).run(some).violated == 0
        half = batch - batch // 2
        some = torch.cat([some[~met][:half], some[met][: batch - min(half, int((~met).sum()))]])
        optimiser.zero_grad()
        losses = torch.stack([
            _violation(total, some, wide, bits)
            for total in _passes(decoder, damping, some, wide, bits)
        ])  # fmt: skip
        loss = -(-_SHARPNESS * losses).logsumexp(0).mean()
        loss.backward()
        optimiser.step()
    return replace(decoder, damping=values.detach().sigmoid())


def _padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """(checks, widest) numbers of each check's edges, then -1, and (edges,) their bits."""
    wide = torch.full((len(rows), max(map(len, rows), default=0)), -1)
    count = 0
    for place, row in zip(wide, rows, strict=True):
        place[: len(row)] = torch.arange(count, count + len(row))
        count += len(row)
    return wide, torch.tensor([bit for row in rows for bit in row], dtype=torch.long)


def _by_checks(values: Tensor, wide: Tensor) -> tuple[Tensor, Tensor]:
    """(shots, checks, widest) sizes of (shots, edges) log-odds of 0, and their signs."""
    last = values.new_full((len(values), 1), _SURE)
    values = torch.cat([values, last], 1)[:, wide]
    return values.abs(), torch.where(values > 0, 1.0, -1.0).to(values)


def _passes(
    decoder: MessagesDecoder, damping: Tensor, syndromes: Tensor, wide: Tensor, bits: Tensor
) -> list[Tensor]:
    """(shots, errors) log-odds of no error after each iteration."""
    prior = -decoder.log_odds.expand(len(syndromes), -1)
    incoming, sent, totals = prior[:, bits], torch.zeros_like(prior[:, bits]), list[Tensor]()
    turn = (1 - 2 * syndromes).to(prior).unsqueeze(2)
    slots = torch.arange(wide.shape[1])
    for _ in range(decoder.iterations):
        sizes, signs = _by_checks(incoming, wide)
        sizes = functional.pad(sizes, (0, 1), value=_SURE)
        least, at = sizes.topk(2, -1, largest=False)
        others = torch.where(slots == at[..., :1], least[..., 1:], least[..., :1])
        new = decoder.scale * turn * signs.prod(-1, keepdim=True) * signs * others
        sent = torch.lerp(new[:, wide >= 0], sent, damping)
        totals.append(prior.index_add(1, bits, sent))
        incoming = totals[-1][:, bits] - sent
    return totals


def _violation(total: Tensor, syndromes: Tensor, wide: Tensor, bits: Tensor) -> Tensor:
    """(shots,) the violation of checks by beliefs, summed; nats."""
    sizes, signs = _by_checks(total[:, bits], wide)
    margin = (1 - 2 * syndromes) * signs.prod(-1) * sizes.amin(-1)
    return functional.softplus(-margin).sum(1)
