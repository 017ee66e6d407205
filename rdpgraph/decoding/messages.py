"""Belief propagation on parity checks, compiled, and its damping learned from syndromes."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rdpgraph._core.arguments import require_fields, typed
from rdpgraph.errors import ModelError
from rdpgraph.model.potentials.table import as_values
from rdpgraph.native import library
from rdpgraph.structures.parity.parities import Parities
from rdpgraph.structures.parity.sweeps import checked_syndrome


@dataclass(frozen=True, eq=False)
class Messages:
    """What belief propagation ended with, for each shot.

    A shot whose decisions leave checks violated has its last messages here, too.

    Attributes:
        errors: (*batch, errors) int64 decisions.
        log_odds: (*batch, errors) beliefs: log-odds that an error happened.
        violated: (*batch,) the number of checks that the decisions leave violated.
        iterations: (*batch,) the number of iterations.
    """

    errors: Tensor
    log_odds: Tensor
    violated: Tensor
    iterations: Tensor


@dataclass(frozen=True, eq=False)
class MessagesDecoder:
    """Min-sum or sum-product on sparse parity checks; a shot stops when its syndrome is met.

    Messages are float64, on the CPU, by compiled code only, without gradients. Decisions follow
    the beliefs; a tie counts as an error.

    Args:
        checks: (checks, errors), as for `ParityModel`.
        log_odds: (errors,) or one number; -inf and +inf for errors of probability 0 and 1, whose
            decisions and beliefs stay as they are.
        iterations: the most for a shot.
        scale: the factor of min-sum's messages.
        product: sum-product instead of min-sum.
        serial: bit after bit, each using the messages of those before, instead of all at once.
        damping: the share of its old message that a check keeps: one number, or (edges,) one for
            each error of each check, check by check, as `learn_damping` finds them. Above -1 and
            below 1.

    Raises:
        ModelError: shapes that do not fit, or numbers out of range.
        UnsupportedError: there is no compiled library.

    Example:
        >>> ring = MessagesDecoder([[1, 1, 0], [0, 1, 1]], -2.0)
        >>> ring.decode([[1, 0], [0, 0]])
        tensor([[1, 0, 0],
                [0, 0, 0]])
    """

    checks: Any
    log_odds: Any
    iterations: int = 30
    scale: float = 1.0
    product: bool = False
    serial: bool = False
    damping: Any = 0.0

    def __post_init__(self) -> None:
        parities = Parities.of(self.checks, None)
        total = len(parities.columns)
        odds = as_values("MessagesDecoder's log_odds", self.log_odds).double().cpu()
        if tuple(odds.shape) not in ((), (total,)) or bool(odds.isnan().any()):
            raise ModelError(
                f"MessagesDecoder of {parities} needs log-odds ({total},), or one number, and no "
                f"NaN; got shape {tuple(odds.shape)}{' with NaN' if odds.isnan().any() else ''}."
            )
        require_fields(self, iterations="[1, inf)", scale="(0, inf]")
        count = sum(map(len, parities.rows))
        damping = as_values("MessagesDecoder's damping", self.damping).double().cpu()
        if tuple(damping.shape) not in ((), (count,)) or not bool((damping.abs() < 1).all()):
            raise ModelError(
                f"MessagesDecoder of {parities} needs a damping above -1 and below 1, one number "
                f"or ({count},) one for each edge; got shape {tuple(damping.shape)}."
            )
        library.require("MessagesDecoder", "parities")
        object.__setattr__(self, "checks", parities)
        object.__setattr__(self, "log_odds", odds.expand(total).contiguous())
        object.__setattr__(self, "damping", damping.expand(count).contiguous())
        edges = [(check, bit) for check, row in enumerate(parities.rows) for bit in row]
        incident = torch.tensor(edges, dtype=torch.long, device="cpu").reshape(-1, 2)
        order = torch.argsort(incident[:, 1], stable=True)  # the edges by bits
        starts, columns = (
            torch.cat(
                [torch.zeros(1, device="cpu").long(), part.bincount(minlength=size).cumsum(0)]
            )
            for part, size in zip(incident.T, (parities.num_checks, total), strict=True)
        )
        placed = torch.stack([order.argsort(), incident[:, 1]], 1).contiguous()
        damping = self.damping[order] if bool(self.damping.any()) else None
        parts = starts, placed, columns, incident[order, 0], damping
        object.__setattr__(self, "_edges", parts)

    def decode(self, syndrome: Any) -> Tensor:
        """Return the decisions (*batch, errors), given syndromes (*batch, checks).

        A decision is 1 where an error is believed to have happened. Where messages did not
        converge, decisions leave checks violated: `run` says how many.
        """
        return self.run(syndrome).errors

    def run(self, syndrome: Any, log_odds: Any = None) -> Messages:
        """Decisions, beliefs and violated checks, given syndromes (*batch, checks).

        Args:
            syndrome: of each shot.
            log_odds: (*batch, errors) for each shot, as a channel gives them, instead of the
                decoder's.

        Raises:
            ModelError: log-odds of other shots or errors, or NaN.
            EvidenceError: a syndrome of another length, or an erased check.
        """
        # One row for each shot, whatever the batch dims, and room for the answers.
        parities = self.checks
        given = checked_syndrome(syndrome, parities.num_checks, erased=False)
        rows, total = given[None].flatten(0, -2).contiguous(), len(self.log_odds)
        odds = torch.empty(len(rows), total, dtype=torch.float64, device="cpu")
        errors = torch.empty_like(odds, dtype=torch.long)
        iterations, violated = torch.zeros(2, len(rows), dtype=torch.long, device="cpu")
        *parts, damping = vars(self)["_edges"]
        # Log-odds of each shot take the place of those of the decoder.
        prior = self.log_odds
        if log_odds is not None:
            prior = as_values("MessagesDecoder's log_odds", log_odds).double().cpu()
            if prior.shape != (*given.shape[:-1], total) or bool(prior.isnan().any()):
                raise ModelError(
                    f"MessagesDecoder needs log-odds {(*given.shape[:-1], total)} for these shots, "
                    f"and no NaN; got shape {tuple(prior.shape)}"
                    f"{' with NaN' if prior.isnan().any() else ''}."
                )
        # Compiled code takes the log-odds that an error is absent; a stride of 0 gives all shots
        # the same.
        weights = (-prior).contiguous()
        tensors = *parts, weights, damping, rows, odds, errors, iterations, violated
        work = len(parts[3]) * len(rows)
        library.function("parity_messages")(
            *(None if part is None else part.data_ptr() for part in tensors),
            parities.num_checks, total, len(rows), self.iterations,
            0 if log_odds is None else total, self.scale, int(self.product),
            int(self.serial), library.threads(work, least=2**14),
        )  # fmt: skip
        batch = given.shape[:-1]
        return Messages(
            errors.reshape(*batch, total), odds.reshape(*batch, total), violated.reshape(batch),
            iterations.reshape(batch),
        )  # fmt: skip


_SURE = 100.0
"""Nats of a message that is certain, in training alone."""
_SHARPNESS = 2.0
"""Sharpness of the soft minimum over iterations, for each nat of violation."""


@typed(steps="[1, inf)", batch="[1, inf)", rate="(0, inf)")
def learn_damping(
    decoder: MessagesDecoder, syndromes: Any, *, steps: int = 100, batch: int = 60,
    rate: float = 0.05, generator: torch.Generator | None = None,
) -> MessagesDecoder:  # fmt: skip
    """The min-sum decoder with a damping of each edge that leaves fewer shots undecoded.

    Adam on the passes of all iterations, unrolled. The loss of a shot is the soft violation of its
    checks in its best iteration; errors need not be known. Half of a batch are shots that are not
    decoded yet, if there are enough. Start near the best single damping, and compare on shots that
    were not used.

    Args:
        decoder: min-sum in parallel order. Its damping, moved into 0.05 to 0.95, is the start.
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
    given = checked_syndrome(syndromes, decoder.checks.num_checks, erased=False)
    given = given[None].flatten(0, -2)
    wide, bits = _padded(decoder.checks.rows)
    values = decoder.damping.clamp(0.05, 0.95).logit().requires_grad_()
    optimiser = torch.optim.Adam([values], lr=rate)
    for _ in range(steps if len(given) and len(bits) else 0):
        damping = values.sigmoid()
        # Five times as many shots as needed, of which those that are not decoded come first.
        some = given[torch.randint(len(given), (5 * batch,), generator=generator)]
        met = replace(decoder, damping=damping.detach()).run(some).violated == 0
        half = batch - batch // 2
        some = torch.cat([some[~met][:half], some[met][: batch - min(half, int((~met).sum()))]])
        # The least violation over the iterations, smoothed so that all of them have a gradient.
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
    prior = -decoder.log_odds.nan_to_num(posinf=_SURE, neginf=-_SURE).expand(len(syndromes), -1)
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
