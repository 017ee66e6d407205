"""Decoding by the most probable values of observables, each distinct syndrome once."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields, typed
from rdpgraph._core.cache import cached_property
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.model.potentials.table import as_states
from rdpgraph.structures.parity.kept import KeptCosets, kept_cosets, no_states
from rdpgraph.structures.parity.model import ParityModel
from rdpgraph.structures.parity.parities import CLOSE, OPEN
from rdpgraph.structures.parity.sweeps import checked_syndrome


@dataclass(frozen=True, eq=False)
class Decoded:
    """Decisions about shots, and their confidence.

    Attributes:
        observables: (*batch, observables) int64, the most probable values.
        confidence: (*batch,) P(l | s) of those. On kept states it is a lower bound that holds for
            certain, of a `CosetDecoder` without `calibrated`; such a bound is often near zero where
            many states were dropped. Of a calibrated decoder it is the share of right decisions
            among simulated shots of a like ``share``. Zero where no error that explains the
            syndrome was found: the decision is then all zeros.
        log_probability: (*batch,) log P(s) in nats; on kept states a lower bound.
        share: (*batch,) the share of the decision in the mass that was kept; of exact sweeps
            P(l | s). On kept states it ranks shots by how sure they are, but it is no probability:
            mass that was dropped is not in it.
    """

    observables: Tensor
    confidence: Tensor
    log_probability: Tensor
    share: Tensor


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
        calibration: what `calibrated` measured; None: ``confidence`` is certain.

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
    calibration: "Calibration | None" = None

    def __post_init__(self) -> None:
        require_fields(self, keep="[1, inf)")
        if self.model.unary.ndim != 2:
            raise ModelError(
                f"CosetDecoder needs a ParityModel without batch dims; got {self.model!r:.80}."
            )
        if self.keep is not None:
            with torch.no_grad():
                for part in self._parts:  # refuses what cannot be
                    part.model.kept(self.keep)

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
    @typed(shots="[1, inf)")
    def calibrated(
        self, shots: int = 10_000, *, generator: torch.Generator | None = None
    ) -> "CosetDecoder":
        """The same decoder, whose confidence is measured on shots that the model draws.

        Shots are put in order of ``share`` and divided into groups of at least 20 wrong decisions.
        The confidence of a shot is (n - k) / (n + 1) of its group: n shots of which k were decided
        wrongly. So it is right on average over shots of the model, up to the error of these counts,
        and never above 1 - 1 / (shots + 1). Shots with erased checks are others than those drawn.
        A decoder by exact sweeps needs no calibration, and is returned as it is.

        Args:
            shots: the number drawn; each takes as long as a decision.
            generator: draws them.
        """
        if self.keep is None:
            return self
        syndromes, truth = _drawn(self.model, shots, generator)
        found = self._decode(syndromes, bounded=False)
        wrong = (found.observables != truth.to(found.observables)).any(-1)
        return replace(self, calibration=Calibration.of(found.share, wrong))

    def decode_observables(self, syndromes: Any) -> Decoded:
        """Decide on shots (*batch, checks), -1 where a check is erased.

        Raises:
            EvidenceError: syndromes of another length.
        """
        return self._decode(syndromes, bounded=self.calibration is None)

    def decide(self, syndromes: Any) -> Tensor:
        """(*batch, observables) the decisions of `decode_observables` alone, sooner."""
        return self._decode(syndromes, bounded=False).observables

    @torch.no_grad()
    def _decode(self, syndromes: Any, *, bounded: bool) -> Decoded:
        """As `decode_observables`; confidence is certain if ``bounded``, else calibrated or 0."""
        given = checked_syndrome(syndromes, self.model.checks.num_checks)
        padded = functional.pad(given[None].flatten(0, -2), (0, 1))  # torch needs a column
        rows, back = padded.unique(dim=0, return_inverse=True)
        most = max(part.model.checks.num_observables for part in self._parts)
        size = max(tuning.PIECE >> max(most - _GROUP, 0), 1)
        parts = [self._decided(part, bounded=bounded) for part in rows[:, :-1].split(size)]
        joined = (torch.cat(values)[back] for values in zip(*parts, strict=True))
        found = Decoded(
            *(values.unflatten(0, (1, *given.shape[:-1])).squeeze(0) for values in joined)
        )
        if self.calibration is None or bounded:
            return found
        return replace(found, confidence=self.calibration.confidence(found.share))

    def _decided(self, rows: Tensor, *, bounded: bool) -> tuple[Tensor, ...]:
        """Observables, confidence, log P(s) and share of shots (B, checks), as of `Decoded`."""
        count = self.model.checks.num_observables
        found = torch.zeros(len(rows), count, dtype=torch.long, device=rows.device)
        chance = torch.ones(len(rows), dtype=self.model.unary.dtype, device=rows.device)
        log_p, share = torch.zeros_like(chance), torch.ones_like(chance)
        for part in self._parts:
            known = [rows[:, at] if at >= 0 else found[:, -1 - at].to(rows) for at in part.known]
            given = torch.stack(known, 1) if known else rows[:, :0]
            model = part.model.condition(given)
            if self.keep is None:
                decided = _decided(model.log_cosets(), len(part.wanted))
            else:
                kept = model.kept(self.keep, bounded=bounded)
                decided = _decided(kept.log_cosets, len(part.wanted), kept.interval[0])
            found[:, part.wanted] = decided.observables.to(found)
            # The chances of parts, given the parts before, multiply; so do lower bounds on them.
            chance, share = chance * decided.confidence, share * decided.share
            log_p = log_p + decided.log_probability if part.first else log_p
        return torch.where((share > 0).unsqueeze(1), found, 0), chance, log_p, share


@dataclass(frozen=True, eq=False)
class Calibration:
    """How often simulated shots were decided rightly, by the share of the decision.

    Attributes:
        shares: (groups - 1,) ascending shares, at which the next group begins.
        chances: (groups,) the share of right decisions in each group, ascending.
    """

    shares: Tensor
    chances: Tensor

    @classmethod
    def of(cls, shares: Tensor, wrong: Tensor) -> "Calibration":
        """Groups from shots (shots,), of which some are wrong."""
        order = shares.argsort()
        shares, wrong = shares[order], wrong[order].long()
        # A group ends where it has enough wrong decisions, and where the next share is larger.
        ends, begin = list[int](), 0
        counts = wrong.cumsum(0).tolist()
        for at in range(len(counts) - 1):
            before = counts[begin - 1] if begin else 0
            if counts[at] - before >= _WRONG and bool(shares[at] < shares[at + 1]):
                ends.append(at + 1)
                begin = at + 1
        groups: list[list[int]] = []  # the first shot, the number of shots, and of wrong ones
        for start, end in zip([0, *ends], [*ends, len(counts)], strict=True):
            bad = counts[end - 1] - (counts[start - 1] if start else 0)
            groups.append([start, end - start, bad])
            # A group that is surer, but more often wrong, is one with that before it.
            while len(groups) > 1 and _right(groups[-1]) <= _right(groups[-2]):
                _, more, worse = groups.pop()
                groups[-1][1] += more
                groups[-1][2] += worse
        edges = shares[[group[0] for group in groups[1:]]]
        return cls(edges, torch.tensor([_right(group) for group in groups]).to(shares))

    def confidence(self, shares: Tensor) -> Tensor:
        """(*batch,) the confidence of shots of these shares; 0 where nothing was found."""
        group = torch.bucketize(shares.contiguous(), self.shares.to(shares), right=True)
        return torch.where(shares > 0, self.chances.to(shares)[group], 0.0)


_WRONG = 20
"""Wrong decisions of a group: its rate of them is known to about a quarter."""


def _right(group: list[int]) -> float:
    """A chance of right decisions that is not above their share, nor 1."""
    _, count, wrong = group
    return (count - wrong) / (count + 1)


def _drawn(
    model: ParityModel, shots: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Syndromes (shots, checks) and observables (shots, observables) of independent errors."""
    parities, rates = model.checks, (model.unary[:, 1] - model.unary[:, 0]).double().cpu().sigmoid()
    sizes = parities.num_checks, parities.num_observables
    flips = [
        (error, check) for error, (checks, _) in enumerate(parities.columns) for check in checks
    ]
    flips += [(error, sizes[0] + one) for error, (_, seen) in enumerate(parities.columns)
              for one in seen]  # fmt: skip
    ends = torch.tensor(flips, dtype=torch.long).reshape(-1, 2)
    drawn = list[Tensor]()
    block = max(tuning.per_block(9 * (len(rates) + len(ends) + sum(sizes) + 1)), 1)
    for count in [block] * (shots // block) + [shots % block]:
        errors = torch.rand(count, len(rates), generator=generator, dtype=torch.float64) < rates
        flipped = torch.zeros(count, sum(sizes), dtype=torch.int32)
        flipped.index_add_(1, ends[:, 1], errors[:, ends[:, 0]].int())
        drawn.append((flipped % 2).to(torch.int8))
    syndromes, seen = torch.cat(drawn).split(list(sizes), 1)
    return syndromes, seen


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
    decision usually comes one window late. The most promising states then go on to the next
    window, so that no error is decided on early, and the last decision is nearly that of one sweep
    over the whole, which compares states by later checks too. Memory for a shot is that of its
    states, for any number of windows.

    Args:
        model: without a batch.
        windows: (checks,) the number of each check's window, from 0.
        keep: the number of states, as for `ParityModel.kept`.

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

    def __post_init__(self) -> None:
        CosetDecoder(self.model, self.keep)
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
        dropped: Tensor | None = None
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
            (logs,), lost = kept_cosets(
                parities, unary, syndrome, self.keep, 1, -1, part=slice(begin, end),
                carried=carried, bounded=True,
            )  # fmt: skip
            assert lost is not None
            dropped = lost if dropped is None else torch.logaddexp(dropped, lost)
            begin = end
            kept = KeptCosets(logs.reshape(*lead, logs.shape[-1]), "lower", dropped.reshape(lead))
            yield _decided(kept.log_cosets, parities.num_observables, kept.interval[0])


def _decided(logs: Tensor, observables: int, lower: Tensor | None = None) -> Decoded:
    """The most probable of log-masses (*batch, 2^observables); ``lower``: bounds on P(l | s)."""
    log_p, best = logs.logsumexp(-1), logs.max(-1)
    there = log_p > -torch.inf
    share = torch.where(there, best.values - torch.where(there, log_p, 0.0), -torch.inf).exp()
    chance = share if lower is None else lower.gather(-1, best.indices.unsqueeze(-1)).squeeze(-1)
    number = torch.where(there, best.indices, 0).unsqueeze(-1)
    bits = number >> torch.arange(observables, device=number.device) & 1
    return Decoded(bits, chance, log_p, share)
