"""Sweeps over the parities of open checks, compiled and by torch, and cosets from them."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.masked import filled
from rdpgraph.errors import BudgetError, EvidenceError, ModelError
from rdpgraph.logspace.gradients import is_transformed, with_gradient
from rdpgraph.logspace.logmatrix import safe_log, soft_sum
from rdpgraph.model.potentials.potential import WHOLE
from rdpgraph.model.potentials.table import converted
from rdpgraph.native import library
from rdpgraph.plan.plan import require_room
from rdpgraph.structures.draws import uniform
from rdpgraph.structures.parity.parities import FLIP, OPEN, Parities, ParityProgram


@dataclass(frozen=True)
class ParityCost:
    """The cost of exact answers about a parity model."""

    open_checks: int  # the most checks that are open at once
    work: float  # the multiply-adds of log P(s, l) for a shot
    memory: float  # the bytes of its tables for a shot
    order: tuple[int, ...] = field(repr=False)  # the checks in the order in which they are closed
    undetectable: tuple[int, ...] = ()  # the errors that flip an observable and no check


def normalised(logs: Tensor) -> Tensor:
    """Probabilities from log-masses; uniform where all are -inf."""
    peak = logs.detach().amax(-1, keepdim=True)
    return torch.where(peak > -math.inf, logs, 0.0).softmax(-1)


def as_bits(name: str, given: Any) -> Tensor:
    """Signed integers from tensors, arrays and lists of integers of any kind, or of booleans."""
    try:
        bits = converted(name, given, "integers")
    except ModelError as error:
        raise EvidenceError(str(error)) from None
    if bits.dtype == torch.bool:
        return bits.to(torch.int8)
    empty = not isinstance(given, Tensor) and not bits.numel()  # of no type
    if empty or not (bits.is_floating_point() or bits.is_complex() or bits.dtype in WHOLE[:4]):
        return bits.long()  # comparisons of unsigned numbers with -1 are wrong
    return bits


def checked_syndrome(given: Any, checks: int, *, erased: bool = True) -> Tensor:
    """Syndromes (*batch, checks) of 0, 1 and, if ``erased``, -1 as int8; else `EvidenceError`.

    A masked entry is an erased check.
    """
    syndrome = as_bits("A syndrome", filled(given, -1))
    if syndrome.dtype not in WHOLE or not syndrome.ndim or syndrome.shape[-1] != checks:
        raise EvidenceError(
            f"ParityModel of {checks} checks needs integer syndromes (*batch, {checks}); got "
            f"{syndrome.dtype} of shape {tuple(syndrome.shape)}."
        )
    if not bool(((syndrome >= -int(erased)) & (syndrome <= 1)).all()):
        also = (
            ", or -1 where a check is erased"
            if erased
            else "; erased checks are not supported here"
        )
        raise EvidenceError(f"Entries of a syndrome must be 0 or 1{also}.")
    return syndrome.to(torch.int8)


_RANGE = 600.0  # nats between two masses of one sweep in float64; beyond it logarithms are used


def serves(parities: Parities, unary: Tensor) -> bool:
    """Return whether the library sweeps over errors with these weights."""
    here = unary.device.type == "cpu" and library.available(torch.float64, "parities")
    return here and _fits(parities, unary)


def _fits(parities: Parities, unary: Tensor) -> bool:
    """Return whether the masses of a sweep are known to be in the range of float64."""
    if is_transformed():  # the values are not to be read
        return False
    odds = (unary[..., 1] - unary[..., 0]).detach()
    odds = odds[odds.isfinite()].abs()
    widest = odds.amax().item() if odds.numel() else 0.0
    return (parities.open_checks + 1) * (widest + 1.0) < _RANGE


def require_open(parities: Parities, program: ParityProgram, copies: float = 2.0) -> None:
    """Raise `BudgetError` where the table of a sweep does not fit."""
    if program.width > tuning.OPEN_CHECKS:
        raise BudgetError(
            f"The sweep of {parities} has {program.width} bits open at once, a table of "
            f"2^{program.width} numbers; keep some of its states: kept(states) of the model, or "
            "keep=100 for a decoder."
        )
    require_room(64.0 * copies * 2.0**program.width, f"The sweep of {parities}")


def linear(
    unary: Tensor, merges: tuple[Tensor, ...], zeros: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(R, columns, 2) float64 weights of merged columns, and (R,) the log of their scale.

    ``zeros`` are added to the weights: their values are 0, and they carry gradients that weights of
    0 have lost in the logarithms.
    """
    unary = unary.double()
    peak = unary.detach().amax(-1, keepdim=True)
    peak = torch.where(peak > -math.inf, peak, 0.0)
    weights = (unary - peak).exp()
    if zeros is not None:
        weights = weights + zeros * (-peak).exp()
    for left, right in merges:
        one = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        a, b = weights[:, left], torch.cat([weights, one.expand(len(weights), 1, 2)], 1)[:, right]
        even, odd = (a * b).sum(-1), (a * b.flip(-1)).sum(-1)
        weights = torch.stack([even, odd], -1)
    return weights, peak.sum((-1, -2))


def log_cosets(
    parities: Parities, unary: Tensor, syndrome: Tensor, *, observables: bool,
    zeros: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(B, 2^observables) log-masses (nats) of syndromes with each value of the observables.

    Log-weights (B or 1, errors, 2) and int8 syndromes (B, checks), -1 where unknown; (B, 1) if
    observables are not distinguished. ``zeros`` as for `linear`; out of its range they have no
    gradient.
    """
    compiled = serves(parities, unary)
    program = parities.program(observables=observables, merged=compiled)
    if compiled:
        require_open(parities, program, 2.0 + 4.0 * unary.requires_grad * len(program.steps) ** 0.5)
    else:
        require_open(parities, program, len(syndrome) * float(len(program.steps)) / 8)
        syndrome = syndrome.to(unary.device)
    if not _fits(parities, unary):
        return _numbered(by_logs(program, unary.double(), syndrome)[0], program)
    weights, missing = linear(unary, program.merges if compiled else (), zeros)
    values = (_compiled if compiled else by_masses)(weights, syndrome, program)
    return _numbered(values + missing.unsqueeze(-1), program)


def _numbered(logs: Tensor, program: ParityProgram) -> Tensor:
    """The cosets by number, bit i of which is observable i."""
    bits, count = program.bits, len(program.bits)
    if list(bits) == list(range(count)):
        return logs
    place = torch.arange(2**count, device=logs.device)
    source = sum(((place >> seen) & 1) << at for at, seen in enumerate(bits))
    return logs[:, source]


def _compiled(weights: Tensor, syndrome: Tensor, program: ParityProgram) -> Tensor:
    """`by_masses` by compiled code."""
    known = weights.detach().contiguous()
    out = known.new_empty(len(syndrome), 2 ** len(program.bits))
    _call("sums", program, known, syndrome, out, out.shape[1])

    def gradient(above: Tensor) -> Tensor:
        grads, above = torch.zeros_like(known), above.double().contiguous()
        _call("gradient", program, known, syndrome, above, above.shape[1], grads=grads)
        return grads

    return with_gradient(out, weights, gradient, lambda w: by_masses(w, syndrome, program))


def _call(
    name: str, program: ParityProgram, weights: Tensor, syndrome: Tensor, values: Tensor,
    *sizes: int, grads: Tensor | None = None, best: bool = False,
) -> None:  # fmt: skip
    """Call one of the library's sweeps; `values` is its last pointer, or the last but one."""
    weights, syndrome = weights.detach().contiguous(), syndrome.contiguous()
    batch, checks = syndrome.shape
    columns = weights.shape[1]
    tensors = [program.steps, weights, syndrome, values, *([] if grads is None else [grads])]
    stride = 0 if len(weights) == 1 else 2 * columns
    threads = library.threads(batch * program.work)
    library.function(f"parity_{name}")(
        *(part.data_ptr() for part in tensors), len(program.steps), stride, checks, columns, batch,
        *sizes, best, threads,
    )  # fmt: skip


def by_masses(weights: Tensor, syndrome: Tensor, program: ParityProgram) -> Tensor:
    """(B, final) log-masses as `by_logs` gives them, from weights (B or 1, columns, 2) by products.

    Differentiable any number of times, also in weights of 0.
    """
    masses = weights.new_ones(len(syndrome), 1)
    scale = weights.new_zeros(len(syndrome), 1)
    for kind, bit, number in program.steps.tolist():
        if kind == OPEN:
            masses = torch.cat([masses, torch.zeros_like(masses)], 1)
        elif kind == FLIP:
            even, odd = weights[:, number].split(1, -1)
            flipped = masses[:, torch.arange(masses.shape[1], device=masses.device) ^ bit]
            masses = masses * even + flipped * odd
        else:
            halves = masses.unflatten(1, (-1, 2, 1 << bit))
            seen = syndrome[:, number].reshape(-1, 1, 1)
            masses = ((seen != 1) * halves[:, :, 0] + (seen != 0) * halves[:, :, 1]).flatten(1)
            peak = masses.detach().amax(1, keepdim=True)
            peak = torch.where(peak > 0, peak, 1.0)
            masses, scale = masses / peak, scale + peak.log()
    return safe_log(masses) + scale


def by_logs(
    program: ParityProgram, unary: Tensor, syndrome: Tensor, *, best: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """(B, final) log-masses in the order of the program's bits, and those before each step.

    Sums, or maxima, of log-weights (B or 1, columns, 2), differentiable any number of times.
    """

    def total(one: Tensor, other: Tensor) -> Tensor:
        both = torch.stack([one, other])
        return both.amax(0) if best else soft_sum(both, 0)

    logs = unary.new_zeros(len(syndrome), 1)
    before: list[Tensor] = []
    for kind, bit, number in program.steps.tolist():
        before.append(logs)
        # A check opens at parity 0; an error flips the checks that it is in; a check closes at what
        # was seen, or at both parities where nothing was.
        if kind == OPEN:
            logs = torch.cat([logs, torch.full_like(logs, -math.inf)], 1)
        elif kind == FLIP:
            even, odd = unary[:, number].split(1, -1)
            flipped = logs[:, torch.arange(logs.shape[1], device=logs.device) ^ bit]
            logs = total(logs + even, flipped + odd)
        else:
            halves = logs.unflatten(1, (-1, 2, 1 << bit))
            seen = syndrome[:, number].reshape(-1, 1, 1)
            zero = torch.where(seen != 1, halves[:, :, 0], -math.inf)
            one = torch.where(seen != 0, halves[:, :, 1], -math.inf)
            logs = total(zero, one).flatten(1)
    return logs, before


@torch.no_grad()
def errors(
    parities: Parities, unary: Tensor, syndrome: Tensor, count: int,
    generator: torch.Generator | None, *, best: bool,
) -> Tensor:  # fmt: skip
    """(count, B, errors) int64: the most probable errors, or draws, of possible items."""
    program = parities.program(observables=False, merged=False)
    batch, total = len(syndrome), unary.shape[1]
    # Compiled code sweeps forwards and goes back along the same steps.
    if serves(parities, unary):
        require_open(parities, program, 4.0 * len(program.steps) ** 0.5)
        drawn = torch.empty(count, batch, total, dtype=torch.uint8)
        seed = 0 if best else int(torch.randint(2**62, (), generator=generator))
        weights = linear(unary, ())[0]
        _call("paths", program, weights, syndrome, drawn, count, seed, best=best)
        return drawn.long()
    if best:
        return k_best(parities, unary, syndrome, 1)
    # Draws in torch: log-values before every step of the forward sweep, then backwards, each error
    # given the parities behind it.
    require_open(parities, program, batch * float(len(program.steps)) / 8)
    unary, syndrome = unary.double().detach(), syndrome.to(unary.device)
    before = by_logs(program, unary, syndrome)[1]
    drawn = torch.zeros(count, batch, total, dtype=torch.long, device=unary.device)
    at = torch.zeros(count, batch, dtype=torch.long, device=unary.device)
    for step, logs in zip(program.steps.flip(0).tolist(), reversed(before), strict=True):
        if step[0] == OPEN:
            continue
        # a and b are the log-values of the two states before a step that lead to the present one,
        # where a step is an error, without it and with it.
        (here, a, _), (there, b, _) = _before(step, logs, at, unary, syndrome)
        chance = torch.where(b > -math.inf, (b - torch.logaddexp(a, b)).exp(), 0.0)
        chosen = uniform((count, batch), unary.device, generator) < chance
        at = torch.where(chosen, there, here)
        if step[0] == FLIP:
            drawn[:, :, step[2]] = chosen.long()
    return drawn


def _before(
    step: list[int], logs: Tensor, at: Tensor, unary: Tensor, syndrome: Tensor
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Both states (count, B) before ``at``, log-masses through them, and log-values of the step."""
    kind, bit, number = step
    if kind == FLIP:
        states, weights = (at, at ^ bit), unary[:, number].unbind(-1)
    else:
        low = 1 << bit
        at = at % low + at // low * (2 * low)
        seen = syndrome[:, number]
        zero = torch.zeros(len(seen), dtype=logs.dtype, device=logs.device)
        states = at, at + low
        weights = [zero.masked_fill(seen == other, -math.inf) for other in (1, 0)]
    logs = logs.expand(len(at), -1, -1)
    return [
        (state, logs.gather(2, state.unsqueeze(2)).squeeze(2) + weight, weight)
        for state, weight in zip(states, weights, strict=True)
    ]


def max_marginals(parities: Parities, unary: Tensor, syndrome: Tensor) -> Tensor:
    """(B, errors, 2) largest log-mass of a set of errors without each, and with it."""
    program = parities.program(observables=False, merged=False)
    require_open(parities, program, len(program.steps) / 8.0)
    unary, syndrome = unary.double(), syndrome.to(unary.device)
    items = tuning.per_block(len(program.steps) << program.width)
    if len(syndrome) > items:
        parts = zip(_items(unary, items), syndrome.split(items), strict=False)
        return torch.cat([max_marginals(parities, *part) for part in parts])
    final, before = by_logs(program, unary, syndrome, best=True)
    after = torch.zeros_like(final)  # (B, states) best completion of each state after the step
    best: list[Tensor] = [after] * unary.shape[1]
    for (kind, bit, number), logs in zip(
        program.steps.flip(0).tolist(), reversed(before), strict=True
    ):
        if kind == OPEN:
            after = after[:, : logs.shape[1]]
        elif kind == FLIP:
            flip = torch.arange(logs.shape[1], device=logs.device) ^ bit
            # The two ways on from each state before it.
            ways = torch.stack([after, after[:, flip]], -1) + unary[:, number].unsqueeze(1)
            best[number] = (logs.unsqueeze(-1) + ways).amax(1)
            after = ways.amax(-1)
        else:
            seen, halves = syndrome[:, number].reshape(-1, 1, 1), after.unflatten(1, (-1, 1 << bit))
            parts = [torch.where(seen != other, halves, -math.inf) for other in (1, 0)]
            after = torch.stack(parts, 2).flatten(1)
    empty = unary.new_zeros(len(syndrome), 0, 2)
    return torch.stack(best, 1) if best else empty


def _items(unary: Tensor, items: int) -> Iterable[Tensor]:
    """Yield the log-weights (B or 1, errors, 2) of a few items at a time."""
    return unary.split(items) if len(unary) > 1 else itertools.repeat(unary)


@torch.no_grad()
def k_best(parities: Parities, unary: Tensor, syndrome: Tensor, count: int) -> Tensor:
    """(count, B, errors) int64: the most probable errors, best first; -1 where there are fewer.

    Back from the end, the ``count`` partial sets whose best completions are largest: a maximum
    before each step gives these exactly.
    """
    program = parities.program(observables=False, merged=False)
    require_open(parities, program, len(program.steps) / 8.0)
    unary, syndrome = unary.double(), syndrome.to(unary.device)
    items = tuning.per_block(len(program.steps) << program.width)  # of 64 bytes each
    if len(syndrome) > items:
        pairs = zip(_items(unary, items), syndrome.split(items), strict=False)
        return torch.cat([k_best(parities, *pair, count) for pair in pairs], 1)
    before = by_logs(program, unary, syndrome, best=True)[1]
    at = syndrome.new_zeros(1, len(syndrome), dtype=torch.long)
    passed = unary.new_zeros(1, len(syndrome))  # log-masses of the steps that were taken back
    drawn = at.new_zeros(1, len(syndrome), unary.shape[1])
    for step, logs in zip(program.steps.flip(0).tolist(), reversed(before), strict=True):
        if step[0] == OPEN:
            at = at % logs.shape[1]  # where nothing is possible
            continue
        pair = _before(step, logs, at, unary, syndrome)
        through = torch.cat([passed + mass for _, mass, _ in pair])
        kept = through.sort(dim=0, descending=True, stable=True).indices[:count]
        at = torch.cat([state for state, _, _ in pair]).gather(0, kept)
        passed = torch.cat([passed + weight for _, _, weight in pair]).gather(0, kept)
        passed = passed.where(through.gather(0, kept) > -math.inf, -math.inf)
        wide = kept.unsqueeze(2).expand(-1, -1, drawn.shape[2])
        drawn = torch.cat([drawn, drawn]).gather(0, wide)
        if step[0] == FLIP:
            drawn[:, :, step[2]] = (kept >= len(through) // 2).long()
    drawn = torch.where((passed > -math.inf).unsqueeze(2), drawn, -1)
    missing = drawn.new_full((count - len(drawn), *drawn.shape[1:]), -1)
    return torch.cat([drawn, missing])
