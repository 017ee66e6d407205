"""Decoding by the most probable values of observables, each distinct syndrome once."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.cache import cached_property
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.model.potentials.table import as_states
from rdpgraph.structures.parity.kept import EVENT_COST, kept_cosets, no_states
from rdpgraph.structures.parity.model import ParityModel
from rdpgraph.structures.parity.parities import CLOSE, OPEN
from rdpgraph.structures.parity.sweeps import checked_syndrome


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


_GROUP = 10
"""Observables that are decided on together, of a part of a code with more than can be listed."""


@dataclass(frozen=True, eq=False)
class CosetDecoder:
    """The most probable values of a parity model's observables, given syndromes.

    Maximises P(l | s), summed over all errors: maximum likelihood under the model given. With more
    than 20 observables, parts of the code that share no error are decided on apart, which is the
    same; a part with more than 20 is decided on ten at a time, in the order of their numbers, each
    ten the most probable given those before.

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
    event_cost: float = EVENT_COST

    def __post_init__(self) -> None:
        require_fields(self, keep="[1, inf)", event_cost="(0, 1]")
        if self.model.unary.ndim != 2:
            raise ModelError(
                f"CosetDecoder needs a ParityModel without batch dims; got {self.model!r:.80}."
            )
        if self.keep is not None:
            with torch.no_grad():
                for part in self._parts:  # refuses what cannot be
                    part.model.kept(self.keep, event_cost=self.event_cost)

    @cached_property
    def _parts(self) -> list["_Part"]:
        """The observables that are decided on together, after those that they depend on."""
        model, parities = self.model, self.model.checks
        checks, seen = range(parities.num_checks), range(parities.num_observables)
        if len(seen) <= tuning.MOST_OBSERVABLES:
            return [_Part(replace(model, syndrome=None), list(checks), list(seen), first=True)]
        parts: list[_Part] = []
        for errors, rows, places in parities.parts():
            size = len(places) if len(places) <= tuning.MOST_OBSERVABLES else _GROUP
            for start in range(0, max(len(places), 1), max(size, 1)):
                # Observables that are decided on are checks of those that follow.
                known = [*rows, *(-1 - one for one in places[:start])]
                wanted = places[start : start + size]
                unary = model.unary[errors]
                few = ParityModel(parities.part(errors, known, wanted), unary=unary)
                parts.append(_Part(few, known, wanted, first=start == 0))
        return parts

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
        padded = functional.pad(given[None].flatten(0, -2), (0, 1))  # torch needs a column
        rows, back = padded.unique(dim=0, return_inverse=True)
        most = max(part.model.checks.num_observables for part in self._parts)
        size = max(tuning.PIECE >> max(most - _GROUP, 0), 1)
        parts = [self._decided(part) for part in rows[:, :-1].split(size)]
        joined = (torch.cat(values)[back] for values in zip(*parts, strict=True))
        return Decoded(
            *(values.unflatten(0, (1, *given.shape[:-1])).squeeze(0) for values in joined)
        )

    def _decided(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Observables, confidence and log P(s) of shots (B, checks), as of `Decoded`."""
        count = self.model.checks.num_observables
        found = torch.zeros(len(rows), count, dtype=torch.long, device=rows.device)
        chance = torch.ones(len(rows), dtype=self.model.unary.dtype, device=rows.device)
        log_p = torch.zeros_like(chance)
        for part in self._parts:
            known = [rows[:, at] if at >= 0 else found[:, -1 - at].to(rows) for at in part.known]
            given = torch.stack(known, 1) if known else rows[:, :0]
            logs = self._log_cosets(part.model.condition(given))
            decided = _decided(logs, len(part.wanted))
            found[:, part.wanted] = decided.observables.to(found)
            chance = chance * decided.confidence
            log_p = log_p + decided.log_probability if part.first else log_p
        return torch.where((chance > 0).unsqueeze(1), found, 0), chance, log_p

    def _log_cosets(self, model: ParityModel) -> Tensor:
        if self.keep is None:
            return model.log_cosets()
        return model.kept(self.keep, event_cost=self.event_cost).log_cosets


@dataclass(frozen=True, eq=False)
class _Part:
    """Observables that are decided on together, given checks and other observables."""

    model: ParityModel
    known: list[int]  # checks, and observables as -1 - number
    wanted: list[int]  # observables
    first: bool  # of its part of the code


@dataclass(frozen=True, eq=False)
class WindowDecoder:
    """Sliding-window decoding: one window of checks after another, with states carried over.

    A window is swept once all checks that its errors flip are known: windows overlap, and a
    decision usually comes one window late. The states of largest mass then go on to the next
    window, so that no error is decided on early, and the last decision is that of one sweep over
    the whole. Memory for a shot is that of its states, for any number of windows.

    Args:
        model: without a batch.
        windows: (checks,) the number of each check's window, from 0.
        keep: the number of states, as for `ParityModel.kept`.
        event_cost: as for `ParityModel.kept`.

    Raises:
        ModelError: no `ParityModel`, one with batch dims, or other windows.

    Example:
        >>> chain = ParityModel.from_rates(
        ...     [[1, 1, 0], [0, 1, 1]], [0.2, 0.1, 0.1], observables=[[1, 0, 0]]
        ... )
        >>> for so_far in WindowDecoder(chain, [0, 1], keep=10).decode([[1], [0]]):
        ...     print(so_far.observables, so_far.confidence)
        tensor([1]) tensor(0.6923, dtype=torch.float64)
        tensor([1]) tensor(0.9529, dtype=torch.float64)
    """

    model: ParityModel
    windows: Any
    keep: int = 100
    event_cost: float = EVENT_COST

    def __post_init__(self) -> None:
        CosetDecoder(self.model, self.keep, self.event_cost)
        if self.model.checks.num_observables > tuning.MOST_OBSERVABLES:
            raise ModelError(
                f"WindowDecoder decides on {tuning.MOST_OBSERVABLES} observables at most; this "
                f"model has {self.model.checks.num_observables}: CosetDecoder takes any number."
            )
        given = as_states("WindowDecoder's windows", self.windows).cpu()
        checks = self.model.checks
        wrong = tuple(given.shape) != (checks.num_checks,) or given.is_floating_point()
        if wrong or bool((given < 0).any()):
            raise ModelError(
                f"WindowDecoder of {checks} needs the number of a window, an integer >= 0, for "
                f"each check, in shape ({checks.num_checks},); got {given.dtype} of shape "
                f"{tuple(given.shape)}."
            )
        object.__setattr__(self, "windows", given)

    @torch.no_grad()
    def decode(self, pieces: Iterable[Any]) -> Iterator[Decoded]:
        """Decisions about the observables so far after each window, given the checks until then.

        Args:
            pieces: for each window in order (*batch, checks of the window), -1 where erased. Taken
                one after the other, when the next decision is asked for.

        Raises:
            EvidenceError: a syndrome of another length, or fewer pieces than windows.
        """
        windows, given, carried = self.windows.tolist(), iter(pieces), None
        parities = self.model.checks.by_windows(windows)
        steps = parities.slots.steps.tolist()
        unary, syndrome = self.model.unary.cpu().unsqueeze(0), None
        begin, seen, lead = 0, -1, ()
        last = max(windows, default=0)  # without checks there is one window, which is empty
        for window in range(last + 1):
            closed = [at for at, (kind, _, number) in enumerate(steps)
                      if kind == CLOSE and windows[number] <= window]  # fmt: skip
            end = len(steps) if window == last else max(closed, default=-1) + 1
            wanted = max([windows[c] for kind, _, c in steps[:end] if kind == OPEN] + [window])
            while seen < wanted:
                seen += 1
                places = (self.windows == seen).nonzero().flatten()
                piece = next(given, None)
                if piece is None:
                    raise EvidenceError(
                        f"WindowDecoder needs syndromes for window {seen}; got none."
                    )
                piece = checked_syndrome(piece, len(places))
                if syndrome is None:
                    lead = piece.shape[:-1]
                    syndrome = piece.new_full((math.prod(lead), len(windows)), -1)
                    carried = no_states(parities, self.keep, len(syndrome))
                if piece.shape[:-1] != lead:
                    raise EvidenceError(
                        "WindowDecoder needs syndromes of one batch shape in all windows; got "
                        f"{tuple(lead)} and {tuple(piece.shape[:-1])}."
                    )
                syndrome[:, places] = piece[None].flatten(0, -2)
            assert syndrome is not None
            logs = kept_cosets(
                parities, unary, syndrome, self.keep, 1, -1, self.event_cost,
                part=slice(begin, end), carried=carried,
            )[0]  # fmt: skip
            begin = end
            yield _decided(logs.reshape(*lead, logs.shape[-1]), parities.num_observables)


def _decided(logs: Tensor, observables: int) -> Decoded:
    """The most probable of log-masses (*batch, 2^observables)."""
    log_p, best = logs.logsumexp(-1), logs.max(-1)
    there = log_p > -torch.inf
    chance = torch.where(there, best.values - torch.where(there, log_p, 0.0), -torch.inf).exp()
    number = torch.where(there, best.indices, 0).unsqueeze(-1)
    return Decoded(number >> torch.arange(observables, device=number.device) & 1, chance, log_p)
