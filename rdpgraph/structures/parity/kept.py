"""Sweeps over the states of largest mass: bounds, or unbiased with a sampled tail."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import BudgetError
from rdpgraph.logspace.gradients import differentiable_once
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.logspace.means import mean_error
from rdpgraph.native import library
from rdpgraph.plan.plan import require_room
from rdpgraph.structures.parity.parities import CLOSE, FLIP, OPEN, Parities, Slots
from rdpgraph.structures.parity.sweeps import linear, normalised

WIDER = 16
"""States that an estimate is checked by at most, over those of a replicate: it takes no longer."""
_ROUNDING = 1e-7
"""Nats by which a bound is raised, over the rounding of some 10^6 products."""
_MOST_WORDS = 8  # of 64 bits each, of the open checks and observables of kept states


@dataclass(frozen=True, eq=False)
class KeptCosets:
    """Probabilities of cosets from some of a sweep's states: bounds, or unbiased estimates."""

    # (*batch, 2^observables) nats. A lower bound on log P(s, l), or the logarithm of an unbiased
    # estimate of P(s, l).
    log_cosets: Tensor
    bound: str = ""  # ``"lower"`` if nothing is sampled; else empty
    # (*batch,) nats, if nothing is sampled and bounds are asked for: an upper bound on what all
    # dropped states together may add to P(s), so that log P(s) is at most
    # logaddexp(log_partition, log_dropped).
    log_dropped: Tensor | None = None
    # (*batch,) nats, if nothing is sampled: the logarithm of an estimate of the part of P(s) that
    # was kept. It is the product, over the steps, of the part that the kept states have of the
    # masses times the estimates of what is ahead of them.
    log_kept: Tensor | None = None
    # (*batch, 2^observables) of `log_cosets`, nats, as of `Replicates`: +inf for fewer than four
    # that found mass, no less than the distance to what more states keep. None for one replicate.
    standard_error: Tensor | None = None

    @classmethod
    def of(cls, logs: Tensor, least: Tensor) -> "KeptCosets":
        """The mean of replicates (replicates, *batch, 2^observables), and lower bounds."""
        mean = soft_sum(logs, 0) - math.log(len(logs))
        if len(logs) < 2:
            return cls(mean)
        lacking = torch.where(mean > -math.inf, least - mean, -math.inf).detach()
        return cls(mean, standard_error=torch.maximum(mean_error(logs), lacking))

    @property
    def log_partition(self) -> Tensor:
        """(*batch,) the bound or estimate of log P(s)."""
        return soft_sum(self.log_cosets, -1)

    @property
    def interval(self) -> tuple[Tensor, Tensor]:
        """(*batch, 2^observables) lower and upper ends that hold P(l | s) for certain.

        What was dropped may belong to any coset. So the lower end takes all of it for the others,
        and the upper end for this one. Where nothing is known, as after sampling and where the
        syndrome may be impossible, these are 0 and 1.
        """
        logs, lost = self.log_cosets, self.log_dropped
        if lost is None:
            return torch.zeros_like(logs), torch.ones_like(logs)
        lost = lost.unsqueeze(-1)
        total = torch.logaddexp(soft_sum(logs, -1).unsqueeze(-1), lost)
        there = total > -math.inf
        scale = torch.where(there, total, 0.0)
        # Logarithms are rounded to the precision of their size; without losses that is all.
        slack = torch.finfo(logs.dtype).eps * (4.0 + scale.abs())
        slack = torch.where(lost > -math.inf, slack, 0.0)
        known = there & (lost < math.inf)
        lower = torch.where(known, logs - scale - slack, -math.inf).exp()
        upper = torch.where(known, torch.logaddexp(logs, lost) - scale + slack, 0.0).exp()
        return lower, upper.clamp(max=1.0)

    @property
    def probabilities(self) -> Tensor:
        """(*batch, 2^observables) P(l | s), biased and no bound; uniform if no mass is left."""
        return normalised(self.log_cosets)


def kept_cosets(
    parities: Parities, unary: Tensor, syndrome: Tensor, states: int, replicates: int, seed: int,
    *, part: slice = slice(None), carried: Tensor | None = None, zeros: Tensor | None = None,
    bounded: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """(replicates, B, 2^observables) log-masses over kept states; compiled only.

    Also, if ``bounded``, (B,) upper bounds on the log-mass that the dropped states may have added;
    and (replicates * B,) estimates of the log of the part of P(s) that is kept, if none is sampled.
    States are dropped if ``seed`` is below 0, else sampled. States are compared by their masses
    times an estimate of what is ahead: belief propagation on the checks that are not closed yet. A
    part of the steps goes on with the states carried from that before it, `no_states` at first, and
    leaves its own there. Checks of -1 are not known yet, or erased. Gradients are those of the
    states kept; there are none where states are carried. ``zeros`` as for `linear`.
    """
    slots = parities.slots
    if slots.masks.shape[1] > _MOST_WORDS:
        raise BudgetError(
            f"{parities} has {parities.open_checks} checks open at once, and a kept state holds at "
            f"most {64 * _MOST_WORDS} checks and observables. Give errors that flip fewer checks, "
            "or decode parts of the code separately."
        )
    library.require("ParityModel.kept", "parities")
    weights, missing = linear(unary, slots.merges, zeros)
    if carried is None:  # there are no more
        states = min(states, 2 ** min(parities.open_checks + parities.num_observables, 40))
    # Errors after this part are looked at as long as they flip checks that are open at its end.
    begin, end, _ = part.indices(len(slots.steps))
    open_before, horizon = _horizon(slots, begin, end)
    steps = slots.steps[begin:horizon]
    threads = library.threads(replicates * len(syndrome) * states * 8.0 * (end - begin))
    require_room(threads * states * (160.0 + 48.0 * slots.masks.shape[1]), f"{states} kept states")
    numbers = states, parities.num_observables, replicates, seed, end - begin, 0, threads
    lost = weights.new_full((len(syndrome),), -math.inf) if bounded and seed < 0 else None
    left = weights.new_zeros(replicates * len(syndrome)).detach()
    masses: Any = _Kept.apply(
        weights, syndrome.contiguous(), steps, slots.masks, numbers,
        (open_before, lost, left, carried),
    )  # fmt: skip
    later = slots.steps[end:]
    later = weights[:, later[later[:, 0] == FLIP, 2]].sum(-1).log().sum(-1)
    scale = (missing + later).unsqueeze(-1)
    if lost is not None:  # rounding in the bound is less than its last term
        lost = lost + scale.detach()[:, 0] + _ROUNDING
    return masses + scale, lost, left


def _horizon(slots: Slots, begin: int, end: int) -> tuple[Tensor, int]:
    """The checks that are open before step ``begin``, and where all of those before ``end`` close.

    The checks are (slots,) numbers, -1 where a slot is free.
    """
    checks = torch.full((slots.masks.shape[1] * 64,), -1, dtype=torch.long, device="cpu")
    if not begin and end == len(slots.steps):
        return checks, end
    waiting = set[int]()
    horizon = end
    for at, (kind, slot, number) in enumerate(slots.steps.tolist()):
        if at < begin and kind != FLIP:
            checks[slot] = number if kind == OPEN else -1
        if at < end and kind == OPEN:
            waiting.add(number)
        if kind == CLOSE and number in waiting:
            horizon = max(horizon, at + 1)
    return checks, horizon


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, syndrome: Tensor, steps: Tensor, masks: Tensor,
        numbers: tuple[Any, ...], beside: tuple[Any, ...],
    ) -> Tensor:  # fmt: skip
        open_before, lost, left, carried = beside
        ctx.given = syndrome, steps, masks, numbers, open_before
        ctx.save_for_backward(weights)
        out = weights.new_empty(numbers[2], len(syndrome), 2 ** numbers[1])
        _call_kept(weights, *ctx.given, out=out, lost=lost, left=left, carried=carried)
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (weights,) = ctx.saved_tensors
        grads = torch.zeros_like(weights).contiguous()
        pull = gradients[0].double().contiguous()
        _call_kept(weights, *ctx.given, out=pull, grads=grads)
        return grads, None, None, None, None, None


def _call_kept(
    weights: Tensor, syndrome: Tensor, steps: Tensor, masks: Tensor, numbers: tuple[Any, ...],
    open_before: Tensor, *, out: Tensor, lost: Tensor | None = None, left: Tensor | None = None,
    carried: Tensor | None = None, grads: Tensor | None = None,
) -> None:  # fmt: skip
    weights, (batch, checks) = weights.contiguous(), syndrome.shape
    columns = weights.shape[1]
    tensors = steps, weights, syndrome, masks, open_before, out, lost, left, carried, grads
    library.function("parity_kept")(
        *(None if part is None else part.data_ptr() for part in tensors),
        len(steps), 0 if len(weights) == 1 else 2 * columns, checks, columns, batch,
        masks.shape[1], *numbers,
    )  # fmt: skip


def no_states(parities: Parities, states: int, batch: int) -> Tensor:
    """Room for the states that a part of `kept_cosets` leaves; none is there yet."""
    words = parities.slots.masks.shape[1]
    room = 2 + words + (states + states // 2) * (words + 1)
    require_room(8.0 * batch * room, f"{states} kept states of {batch} shots")
    return torch.full((batch, room), -1, dtype=torch.long, device="cpu")
