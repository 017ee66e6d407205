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
from rdpgraph.structures.parity.parities import FLIP, Parities
from rdpgraph.structures.parity.sweeps import linear, normalised

EVENT_COST = 0.05
"""Factor of a state's mass for each event still to be explained, when states are compared."""
WIDER = 16
"""States that an estimate is checked by at most, over those of a replicate: it takes no longer."""
_MOST_WORDS = 8  # of 64 bits each, of the open checks and observables of kept states


@dataclass(frozen=True, eq=False)
class KeptCosets:
    """Probabilities of cosets from some of a sweep's states: bounds, or unbiased estimates."""

    # (*batch, 2^observables) nats. A lower bound on log P(s, l), or the logarithm of an unbiased
    # estimate of P(s, l).
    log_cosets: Tensor
    bound: str = ""  # ``"lower"`` if nothing is sampled; else empty
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
    def probabilities(self) -> Tensor:
        """(*batch, 2^observables) P(l | s), biased and no bound; uniform if no mass is left."""
        return normalised(self.log_cosets)


def kept_cosets(
    parities: Parities, unary: Tensor, syndrome: Tensor, states: int, replicates: int, seed: int,
    cost: float = EVENT_COST, *, part: slice = slice(None), carried: Tensor | None = None,
    zeros: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(replicates, B, 2^observables) log-masses over kept states; compiled only.

    Others are dropped if ``seed`` is below 0, else sampled. ``cost`` multiplies a state's mass for
    each event still to be explained, when states are compared. A part of the steps goes on with the
    states carried from that before it, `no_states` at first, and returns its last; later checks
    are not known then. Gradients are those of the states kept; none where states are carried.
    ``zeros`` as for `linear`.
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
    steps = slots.steps[part]
    threads = library.threads(replicates * len(syndrome) * states * 8.0 * len(steps))
    require_room(threads * states * (112.0 + 48.0 * slots.masks.shape[1]), f"{states} kept states")
    masses: Any = _Kept.apply(
        weights, syndrome.contiguous(), steps, slots.masks,
        (states, parities.num_observables, replicates, seed, cost, 0, threads), carried,
    )  # fmt: skip
    later = slots.steps[part][:0] if part.stop is None else slots.steps[part.stop :]
    later = weights[:, later[later[:, 0] == FLIP, 2]].sum(-1).log().sum(-1)
    return masses + (missing + later).unsqueeze(-1)


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, syndrome: Tensor, steps: Tensor, masks: Tensor,
        numbers: tuple[Any, ...], carried: Tensor | None,
    ) -> Tensor:  # fmt: skip
        ctx.given = syndrome, steps, masks, numbers
        ctx.save_for_backward(weights)
        out = weights.new_empty(numbers[2], len(syndrome), 2 ** numbers[1])
        _call_kept(weights, *ctx.given, out=out, carried=carried)
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (weights,) = ctx.saved_tensors
        grads = torch.zeros_like(weights).contiguous()
        pull = gradients[0].double().contiguous()
        _call_kept(weights, *ctx.given, out=pull, carried=None, grads=grads)
        return grads, None, None, None, None, None


def _call_kept(
    weights: Tensor, syndrome: Tensor, steps: Tensor, masks: Tensor, numbers: tuple[Any, ...], *,
    out: Tensor, carried: Tensor | None, grads: Tensor | None = None,
) -> None:  # fmt: skip
    weights, (batch, checks) = weights.contiguous(), syndrome.shape
    columns = weights.shape[1]
    tensors = steps, weights, syndrome, masks, out, carried, grads
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
