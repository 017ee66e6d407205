"""Decoding by the most probable values of observables, each distinct syndrome once.

Exact sweeps know the chance P(l | s) that a decision l is right. Sweeps over kept states know an
interval that holds it, which is often wide. Their confidence is then measured on shots that the
model draws: it is how often decisions are right that the sweep is about as sure of.
"""

import math
from collections.abc import Callable, Iterable, Iterator
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
        confidence: (*batch,) the chance that the decision l is right given the syndrome s. Exact
            sweeps give P(l | s). Sweeps over kept states give an estimate of P(l | s) where
            ``interval`` knows the chance of a wrong decision to a tenth, and otherwise the share of
            right decisions among simulated shots of a like ``doubt``; it is always between these
            ends. Shots with erased checks have the lower end in place of that share, unless
            ``calibrated`` was told of them. It is zero where no error that explains the syndrome
            was found: the decision is then all zeros.
        log_probability: (*batch,) log P(s) in nats; on kept states a lower bound.
        share: (*batch,) the share of the decision in the mass that was kept; of exact sweeps
            P(l | s). On kept states it is no probability: mass that was dropped is not in it.
        doubt: (*batch,) ranks shots from the surest, 0, to the least sure. It is 1 - ``share`` plus
            a twentieth of the part of P(s) that the sweep estimates to have dropped. By exact
            sweeps it is 1 - P(l | s), computed without a difference from 1.
        interval: lower and upper ends (*batch,), which hold P(l | s) for certain. On kept states
            the lower end is often near zero where many states were dropped.
        standard_error: (*batch,) of the confidence, from the numbers of simulated shots and of
            wrong decisions about them. Shots of one confidence share this error: it does not
            average out between them. Where nothing was simulated it is the distance between the
            ends of ``interval``.
    """

    observables: Tensor
    confidence: Tensor
    log_probability: Tensor
    share: Tensor
    doubt: Tensor
    interval: tuple[Tensor, Tensor]
    standard_error: Tensor


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
        calibration: what `calibrated` measured; None: 100 to 5,000 shots are simulated when a
            confidence is first needed, fewer the longer they take.

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
    def _parts(self) -> list["_DecisionGroup"]:
        """The observables that are decided on together, after those that they depend on."""
        model, parities = self.model, self.model.checks
        checks, seen = range(parities.num_checks), range(parities.num_observables)
        if len(seen) <= tuning.MOST_OBSERVABLES:
            return [
                _DecisionGroup(replace(model, syndrome=None), list(checks), list(seen), first=True)
            ]
        parts: list[_DecisionGroup] = []
        for errors, rows, places in parities.parts():
            size = len(places) if len(places) <= tuning.MOST_OBSERVABLES else _GROUP
            for start in range(0, max(len(places), 1), max(size, 1)):
                # Observables that are decided on are checks of those that follow.
                known = [*rows, *(-1 - one for one in places[:start])]
                wanted = places[start : start + size]
                unary = model.unary[errors]
                few = ParityModel(parities.part(errors, known, wanted), unary=unary)
                parts.append(_DecisionGroup(few, known, wanted, first=start == 0))
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
        self, shots: int = 10_000, *, like: Any = None, generator: torch.Generator | None = None
    ) -> "CosetDecoder":
        """The same decoder, whose confidence is measured on shots that the model draws.

        Shots whose P(l | s) is known from the interval are left out. The others are put in order of
        ``doubt`` and divided into groups of a hundred wrong decisions; where less than 500 are
        wrong, of a fifth of these, and of 10 at least; 10 are enough where the doubts of a group
        differ by more than ten times. The confidence of a shot is the posterior mean of the share
        of right ones in its group, with the posterior's standard deviation: ten wrong decisions
        know their rate to a third, and a hundred to a tenth. Where the interval excludes it, the
        confidence is 1 - ``doubt``, within the interval. So it is right on average over shots of
        the model, up to its standard error, and above 1 - 1 / (shots + 1) only where the interval
        says so. More shots tell apart more degrees of confidence, and are needed to report errors
        that are rarer than one in ``shots``. Noise that is not the model's is not in it. A decoder
        by exact sweeps needs no calibration, and is returned as it is.

        Args:
            shots: the number drawn; each takes as long as a decision.
            like: syndromes (*batch, checks), of which each shot drawn takes the erased checks of
                one at random. The confidence then holds for shots that are erased as these are.
            generator: draws them.

        Raises:
            EvidenceError: ``like`` has no syndrome, or one of another length.
        """
        if self.keep is None:
            return self
        syndromes, truth = _drawn(self.model, shots, generator)
        syndromes, erased = _erased_like(syndromes, like, generator)
        found = self._decode(syndromes, bounded=True)
        return replace(self, calibration=Calibration.of(found, truth[:, 0], erased=erased))

    @property
    def _shots(self) -> int:
        """The number of shots that the confidence is measured on."""
        known = self.calibration
        return _simulated_shots(self.model, self.keep or 1) if known is None else known.shots

    @cached_property
    def _default(self) -> "Calibration":
        """The calibration that is measured where none is given; always of the same draws."""
        decoder = self.calibrated(self._shots, generator=torch.Generator().manual_seed(0))
        assert decoder.calibration is not None
        return decoder.calibration

    @torch.no_grad()
    def decode_observables(self, syndromes: Any) -> Decoded:
        """Decide on shots (*batch, checks), -1 where a check is erased.

        On kept states the first call may simulate shots to learn how often a decision is right:
        5,000, or fewer of models with many errors and states, but 100 at least. Each takes as long
        as a decision. `calibrated` sets their number, and `decide` does without. A syndrome of
        probability zero has a log-probability of -inf and a confidence of 0.

        Raises:
            EvidenceError: syndromes of another length.
        """
        given = checked_syndrome(syndromes, self.model.checks.num_checks)
        found = self._decode(given, bounded=True)
        if self.keep is None:
            return found
        erased = (given < 0).any(-1).to(found.share.device)
        return _reported(found, erased, self._shots, self.calibration, lambda: self._default)

    def decide(self, syndromes: Any) -> Tensor:
        """(*batch, observables) the decisions of `decode_observables` alone, sooner."""
        return self._decode(syndromes, bounded=False).observables

    @torch.no_grad()
    def _decode(self, syndromes: Any, *, bounded: bool) -> Decoded:
        """Decisions with the lower end of the interval as confidence; 0 if not ``bounded``."""
        given = checked_syndrome(syndromes, self.model.checks.num_checks)
        padded = functional.pad(given[None].flatten(0, -2), (0, 1))  # torch needs a column
        rows, back = padded.unique(dim=0, return_inverse=True)
        most = max(part.model.checks.num_observables for part in self._parts)
        size = max(tuning.PIECE >> max(most - _GROUP, 0), 1)
        parts = [self._decided(part, bounded=bounded) for part in rows[:, :-1].split(size)]
        joined = (torch.cat(values)[back] for values in zip(*parts, strict=True))
        observables, lower, upper, log_p, share, doubt = (
            values.unflatten(0, (1, *given.shape[:-1])).squeeze(0) for values in joined
        )
        return Decoded(observables, lower, log_p, share, doubt, (lower, upper), upper - lower)

    def _decided(self, rows: Tensor, *, bounded: bool) -> tuple[Tensor, ...]:
        """Observables, ends of the interval, log P(s), share and doubt of shots (B, checks)."""
        count = self.model.checks.num_observables
        found = torch.zeros(len(rows), count, dtype=torch.long, device=rows.device)
        share = torch.ones(len(rows), dtype=self.model.unary.dtype, device=rows.device)
        lower, upper, log_p, doubt = share, share, torch.zeros_like(share), torch.zeros_like(share)
        for part in self._parts:
            known = [rows[:, at] if at >= 0 else found[:, -1 - at].to(rows) for at in part.known]
            given = torch.stack(known, 1) if known else rows[:, :0]
            model = part.model.condition(given)
            if self.keep is None:
                decided = _decided(model.log_cosets(), len(part.wanted))
            else:
                kept = model.kept(self.keep, bounded=bounded)
                decided = _decided(kept.log_cosets, len(part.wanted), kept)
            found[:, part.wanted] = decided.observables.to(found)
            # The chances of parts, given the parts before, multiply; so do bounds on them.
            share = share * decided.share
            doubt = doubt + (1 - doubt) * decided.doubt
            lower, upper = lower * decided.interval[0], upper * decided.interval[1]
            log_p = log_p + decided.log_probability if part.first else log_p
        return torch.where((share > 0).unsqueeze(1), found, 0), lower, upper, log_p, share, doubt


@dataclass(frozen=True, eq=False)
class Calibration:
    """How often simulated shots were decided rightly, by the doubt about the decision.

    Attributes:
        doubts: (groups - 1,) descending, at which the next group begins.
        chances: (groups,) of right decisions in each group, ascending.
        standard_errors: (groups,) of the chances.
        shots: the number that was simulated.
        erased: whether some of these had erased checks.
    """

    doubts: Tensor
    chances: Tensor
    standard_errors: Tensor
    shots: int
    erased: bool = False

    @classmethod
    def of(cls, found: Decoded, truth: Tensor, *, erased: bool) -> "Calibration":
        """Groups of decisions about simulated shots, of which the observables are known."""
        shots, wrong = len(truth), (found.observables != truth.to(found.observables)).any(-1)
        some = ~_is_known(found.interval, shots) & (found.share > 0)
        doubts = _ranks(found)[some]
        order = doubts.argsort(descending=True)
        # Shots from the least sure on: whether they are wrong, and certain bounds on that chance.
        doubts, wrong, least, most = (
            values[order].double().cpu()
            for values in (
                doubts, wrong[some], 1 - found.interval[1][some], 1 - found.interval[0][some]
            )
        )  # fmt: skip
        fewest, enough = _WRONG
        enough = min(max(int(wrong.sum()) // _GROUPS, fewest), enough)
        # A group ends where it has enough wrong decisions, or the fewest over a decade of doubts,
        # and where the next doubt is smaller.
        values = doubts.tolist()
        starts, bad = [0], 0
        for at, one in enumerate(wrong.tolist()[:-1], 1):
            bad += one
            wide = bad >= fewest and values[at] < 0.1 * values[starts[-1]]
            if (bad >= enough or wide) and values[at] < values[at - 1]:
                starts.append(at)
                bad = 0
        groups = list[tuple[int, float, float]]()
        for start, end in zip(starts, [*starts[1:], len(doubts)], strict=True):
            rate, error = _rate(*(values[start:end] for values in (wrong, least, most)),
                                more=end == len(doubts))  # fmt: skip
            # A group that is surer, but more often wrong, is one with that before it.
            while groups and rate >= groups[-1][1]:
                start, *_ = groups.pop()
                rate, error = _rate(*(values[start:end] for values in (wrong, least, most)),
                                    more=end == len(doubts))  # fmt: skip
            groups.append((start, rate, error))
        edges = doubts[[start for start, *_ in groups[1:]]].to(found.doubt)
        rates, errors = (
            torch.tensor(values, dtype=torch.float64, device="cpu").to(found.doubt)
            for values in ([rate for _, rate, _ in groups], [error for *_, error in groups])
        )
        return cls(edges, 1 - rates, errors, shots, erased)

    def of_decisions(self, found: Decoded) -> tuple[Tensor, Tensor]:
        """(*batch,) the confidence of decisions, and its standard error."""
        ranks = _ranks(found)
        group = torch.bucketize(-ranks.contiguous(), -self.doubts.to(ranks), right=True)
        chances, error = self.chances.to(ranks)[group], self.standard_errors.to(ranks)[group]
        lower, upper = found.interval
        # Where the interval excludes what was measured, it tells more: the estimate of the sweep is
        # taken, which is as far from the truth as from that end, about.
        end = chances.clamp(lower, upper)
        excluded = chances != end
        chances = torch.where(excluded, 1 - ranks, chances)
        error = torch.where(excluded, error.maximum((chances - end).abs()), error)
        return chances, error.minimum(upper - lower)


def _ranks(found: Decoded) -> Tensor:
    """(*batch,) doubts, which are no less and no more than the intervals allow."""
    lower, upper = found.interval
    return found.doubt.clamp(1 - upper, 1 - lower)


def _rate(wrong: Tensor, least: Tensor, most: Tensor, *, more: bool) -> tuple[float, float]:
    """The rate of wrong decisions in a group of shots, and its standard error.

    They are the mean and the standard deviation of the posterior. Of n shots with k wrong ones
    that is Beta(k, n - k + 1) with a prior of 1 / rate, as for a group that ends with its k-th
    wrong decision, and Beta(k + 1, n - k + 1) with a flat prior. A shot whose interval excludes the
    rate is left out, and the rate computed again.

    Args:
        wrong: (shots,) bool, whether the decision is wrong.
        least: (shots,) the least chance that it is, by the shot's interval.
        most: (shots,) the greatest.
        more: whether the prior is flat.
    """
    free, bad, count = torch.ones_like(wrong, dtype=torch.bool), 1.0, 1.0
    for _ in range(_ROUNDS):
        if not int(free.sum()) + more:
            break
        bad, count = float(wrong[free].sum()) + more, float(free.sum()) + 1.0 + more
        now = (least <= bad / count) & (bad / count <= most)
        if torch.equal(now, free):
            break
        free = now
    # Where no shot is left, nothing is known of the rate.
    spread = math.sqrt(bad * (count - bad) / (count + 1)) if bad < count else 1.0
    return bad / count, spread / count


_ROUNDS = 20
"""Rates that are tried at most until no other shots are excluded by theirs."""
_WRONG, _GROUPS = (10, 100), 5
"""The least and the most wrong decisions at which a group ends, and groups if these allow it. In
between, wrong decisions are divided by five: fewer groups know each rate better, more tell apart
more degrees of confidence."""


def _is_known(interval: tuple[Tensor, Tensor], shots: int) -> Tensor:
    """(*batch,) whether the chance of a wrong decision is known to a tenth, or of ``1 / shots``."""
    lower, upper = interval
    return upper - lower <= 0.1 * torch.clamp(1 - upper, min=1 / shots)


def _simulated_shots(model: ParityModel, keep: int) -> int:
    """The number of shots that a confidence is measured on where it was not given."""
    least, most = tuning.SIMULATED_SHOTS
    work = max(len(model.checks.columns), 1) * keep
    return int(min(max(tuning.SIMULATED_WORK / work, least), most))


def _reported(
    found: Decoded, erased: Tensor, shots: int, given: Calibration | None,
    measure: Callable[[], Calibration],
) -> Decoded:  # fmt: skip
    """Decisions on kept states with the confidence that is reported, instead of lower ends."""
    lower, upper = found.interval
    near = _is_known(found.interval, shots)
    confidence = torch.where(near, (1 - found.doubt).clamp(lower, upper), lower)
    error = upper - lower
    some = ~near & (found.share > 0)
    if given is None or not given.erased:
        # Shots with erased checks are unlike those that were simulated.
        some = some & ~erased
    if bool(some.any()):
        chances, errors = (given or measure()).of_decisions(found)
        confidence = torch.where(some, chances, confidence)
        error = torch.where(some, errors, error)
    return replace(found, confidence=confidence, standard_error=error)


def _drawn(
    model: ParityModel, shots: int, generator: torch.Generator | None,
    stages: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Syndromes (shots, checks) and observables (shots, stages, observables) of drawn errors.

    ``stages`` (errors,) has the number of the stage at which an error occurs, by default 0. The
    observables of a stage count the errors of this stage and of those before.
    """
    parities, rates = model.checks, (model.unary[:, 1] - model.unary[:, 0]).double().cpu().sigmoid()
    sizes = parities.num_checks, parities.num_observables
    when = [0] * len(rates) if stages is None else stages.tolist()
    count = max(when, default=0) + 1
    # An entry for each pair of an error and what it flips: columns of checks, then of observables,
    # stage by stage.
    flips = [
        (error, check) for error, (checks, _) in enumerate(parities.columns) for check in checks
    ]
    flips += [(error, sizes[0] + when[error] * sizes[1] + one)
              for error, (_, seen) in enumerate(parities.columns) for one in seen]  # fmt: skip
    ends = torch.tensor(flips, dtype=torch.long, device="cpu").reshape(-1, 2)
    # Blocks of shots bound the memory of the draws.
    drawn, width = list[Tensor](), sizes[0] + count * sizes[1]
    block = max(tuning.per_block(9 * (len(rates) + len(ends) + width + 1)), 1)
    for part in [block] * (shots // block) + [shots % block]:
        errors = (
            torch.rand(part, len(rates), generator=generator, dtype=torch.float64, device="cpu")
            < rates
        )
        flipped = torch.zeros(part, width, dtype=torch.int32, device="cpu")
        flipped.index_add_(1, ends[:, 1], errors[:, ends[:, 0]].int())
        # An observable of a stage counts the errors of all stages before it.
        flipped[:, sizes[0] :] = (
            flipped[:, sizes[0] :].unflatten(1, (count, -1)).cumsum(1).flatten(1)
        )
        drawn.append((flipped % 2).to(torch.int8))
    syndromes, seen = torch.cat(drawn).split([sizes[0], width - sizes[0]], 1)
    return syndromes, seen.reshape(shots, count, sizes[1])


def _erased_like(
    syndromes: Tensor, like: Any, generator: torch.Generator | None
) -> tuple[Tensor, bool]:
    """Syndromes (shots, checks) of which each has the erased checks of one of those given."""
    if like is None:
        return syndromes, False
    gaps = checked_syndrome(like, syndromes.shape[1])[None].flatten(0, -2) < 0
    if not len(gaps):
        raise EvidenceError("calibrated needs a syndrome that shots are like; got none.")
    chosen = torch.randint(len(gaps), (len(syndromes),), generator=generator, device="cpu")
    return syndromes.masked_fill(gaps.cpu()[chosen], -1), bool(gaps.any())


@dataclass(frozen=True, eq=False)
class _DecisionGroup:
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
        calibrations: for each window, what `calibrated` measured; None: as for `CosetDecoder`.

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
    calibrations: "tuple[Calibration, ...] | None" = None

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
    @typed(shots="[1, inf)")
    def calibrated(
        self, shots: int = 10_000, *, like: Any = None, generator: torch.Generator | None = None
    ) -> "WindowDecoder":
        """The same decoder, whose confidence after each window is measured on drawn shots.

        As `CosetDecoder.calibrated` does, window by window: a decision is right if it is the parity
        of the observables over the errors of the windows until then.

        Args:
            shots: the number drawn; each takes as long as a shot of all windows.
            like: syndromes (*batch, checks), of which each shot drawn takes the erased checks of
                one at random. The confidence then holds for shots that are erased as these are.
            generator: draws them.

        Raises:
            EvidenceError: ``like`` has no syndrome, or one of another length.
        """
        syndromes, truth = _drawn(self.model, shots, generator, self._stages)
        syndromes, erased = _erased_like(syndromes, like, generator)
        found: list[list[Decoded]] = []
        # The states of a block of shots are carried from window to window at once.
        for block in syndromes.split(_SHOTS):
            pieces = (block[:, self.windows == at] for at in range(self._count))
            found.append([decided for decided, _ in self._decode(pieces, bounded=True)])
        joined = [_joined(blocks) for blocks in zip(*found, strict=True)]
        measured = (
            Calibration.of(each, truth[:, at], erased=erased) for at, each in enumerate(joined)
        )
        return replace(self, calibrations=tuple(measured))

    @property
    def _count(self) -> int:
        """The number of windows; without checks there is one, which is empty."""
        return max(self.windows.tolist(), default=0) + 1

    @property
    def _stages(self) -> Tensor:
        """(errors,) the window in which each is swept: that of its first check.

        Errors that flip no check are swept with the first that do. All are swept in the end.
        """
        windows = self.windows.tolist()
        first = min(windows, default=0)
        stages = [min((windows[at] for at in checks), default=first)
                  for checks, _ in self.model.checks.columns]  # fmt: skip
        return torch.tensor([*stages, self._count - 1], dtype=torch.long, device="cpu")[:-1]

    @cached_property
    def _default(self) -> "tuple[Calibration, ...]":
        """The calibrations that are measured where none are given; always of the same draws."""
        shots = _simulated_shots(self.model, self.keep)
        decoder = self.calibrated(shots, generator=torch.Generator().manual_seed(0))
        assert decoder.calibrations is not None
        return decoder.calibrations

    @torch.no_grad()
    def decode(self, pieces: Iterable[Any]) -> Iterator[Decoded]:
        """Decisions about the observables so far after each window, given the checks until then.

        The first window with a decision whose interval is too wide for a confidence simulates shots
        to measure it, as `CosetDecoder.decode_observables` does. `decide` reports no confidence and
        simulates nothing.

        Args:
            pieces: for each window in order (*batch, checks of the window), -1 where erased. Taken
                one after the other, when the next decision is asked for.

        Raises:
            EvidenceError: a syndrome of another length, or fewer pieces than windows.
        """
        known = self.calibrations
        shots = _simulated_shots(self.model, self.keep) if known is None else known[0].shots
        for at, (found, erased) in enumerate(self._decode(pieces, bounded=True)):
            yield _reported(
                found, erased, shots, None if known is None else known[at],
                lambda at=at: self._default[at],
            )  # fmt: skip

    def decide(self, pieces: Iterable[Any]) -> Iterator[Tensor]:
        """Return the decisions of `decode` alone, (*batch, observables) after each window.

        This is faster than `decode`, as it finds no confidence. Arguments and errors are those of
        `decode`.
        """
        return (found.observables for found, _ in self._decode(pieces, bounded=False))

    @torch.no_grad()
    def _decode(self, pieces: Iterable[Any], *, bounded: bool) -> Iterator[tuple[Decoded, Tensor]]:
        """Decisions after each window, and (*batch,) whether checks so far were erased.

        Their confidence is the lower end of the interval, which is 0 if not ``bounded``.
        """
        windows, given, carried = self.windows.tolist(), iter(pieces), None
        parities = self.model.checks.by_windows(windows)
        steps = parities.slots.steps.tolist()
        unary, syndrome = self.model.unary.cpu().unsqueeze(0), None
        dropped: Tensor | None = None
        log_kept = 0.0
        begin, seen, lead = 0, -1, ()
        last = self._count - 1
        for window in range(last + 1):
            # The steps up to the last check that closes in this window. They may open checks of
            # later windows, whose syndromes must be there, too.
            closed = [at for at, (kind, _, number) in enumerate(steps)
                      if kind == CLOSE and windows[number] <= window]  # fmt: skip
            end = len(steps) if window == last else max(closed, default=-1) + 1
            wanted = max([windows[c] for kind, _, c in steps[:end] if kind == OPEN] + [window])
            # Read the syndromes of the windows that these steps need; those not read yet count as
            # erased.
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
            # Sweep on from the states of the window before. What is dropped adds up over windows.
            (logs,), lost, left = kept_cosets(
                parities, unary, syndrome, self.keep, 1, -1, part=slice(begin, end),
                carried=carried, bounded=bounded,
            )  # fmt: skip
            if lost is not None:
                dropped = lost if dropped is None else torch.logaddexp(dropped, lost)
            log_kept = log_kept + left
            begin = end
            kept = KeptCosets(
                logs.reshape(*lead, logs.shape[-1]), "lower",
                None if dropped is None else dropped.reshape(lead), log_kept.reshape(lead),
            )  # fmt: skip
            erased = (syndrome[:, self.windows <= seen] < 0).any(1).reshape(lead)
            yield _decided(kept.log_cosets, parities.num_observables, kept), erased


def _joined(parts: "tuple[Decoded, ...]") -> Decoded:
    """Decisions about the shots of all parts."""
    observables, share, doubt, confidence, log_p, error = (
        torch.cat([getattr(part, name) for part in parts])
        for name in (
            "observables", "share", "doubt", "confidence", "log_probability", "standard_error"
        )
    )  # fmt: skip
    lower, upper = (torch.cat([part.interval[end] for part in parts]) for end in (0, 1))
    return Decoded(observables, confidence, log_p, share, doubt, (lower, upper), error)


def _decided(logs: Tensor, observables: int, kept: KeptCosets | None = None) -> Decoded:
    """The most probable of log-masses (*batch, 2^observables), exact or of kept states."""
    log_p, best = logs.logsumexp(-1), logs.max(-1)
    there = log_p > -torch.inf
    scale = torch.where(there, log_p, 0.0)
    share = torch.where(there, best.values - scale, -torch.inf).exp()
    # The others are summed, since 1 - share rounds to 0.
    others = logs.scatter(-1, best.indices.unsqueeze(-1), -torch.inf).logsumexp(-1)
    doubt = torch.where(there, (others - scale).exp(), 1.0)
    lower = upper = share
    if kept is not None:
        lower, upper = (
            ends.gather(-1, best.indices.unsqueeze(-1)).squeeze(-1) for ends in kept.interval
        )
        part = torch.zeros_like(doubt) if kept.log_kept is None else kept.log_kept
        doubt = torch.where(there, doubt * part.exp() - _ELSEWHERE * part.expm1(), 1.0)
    number = torch.where(there, best.indices, 0).unsqueeze(-1)
    bits = number >> torch.arange(observables, device=number.device) & 1
    return Decoded(bits, lower, log_p, share, doubt, (lower, upper), upper - lower)


_SHOTS = 1000
"""Simulated shots whose states are carried from window to window at once."""

_ELSEWHERE = 0.05
"""The part of the mass dropped that counts against a decision. On surface codes of d5 to d9 and the
gross code, .02 to .1 tell wrong decisions from right ones about equally well, and others less."""
