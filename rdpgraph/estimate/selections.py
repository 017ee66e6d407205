"""Choose a few states of each variable by their scores, with weights that keep Z unbiased."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.errors import ModelError
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.model.restriction import Support
from rdpgraph.native import library
from rdpgraph.structures.draws import uniform

Size: TypeAlias = int | float
"""A number of states as an int, or a fraction of all states as a float in (0, 1]."""


class Selection(ABC):
    """A rule that chooses which states to keep, by their scores, and gives each a weight.

    The estimate of Z is unbiased if sites are chosen independently and every state of non-zero
    score has an expected weight of one. A state that is not kept counts as weight zero, and the
    weights of a state that is kept several times add up.
    """

    @abstractmethod
    def select(self, log_q: Tensor, generator: torch.Generator | None) -> Support:
        """Choose states and their log-weights for every row of scores.

        Args:
            log_q: (*lead, N) log-scores, not necessarily normalised. A state whose log-score is
                -inf is never kept.
            generator: the only source of randomness.

        Returns:
            A support of shape (*lead, kept). If fewer states are possible than are to be kept, the
            entries left over have log-weight -inf.
        """

    def select_each(self, log_q: Tensor, count: int, generator: torch.Generator | None) -> Support:
        """Choose states as `select` does, ``count`` times, as a support (count, *lead, kept)."""
        draws = (self.select(log_q, generator) for _ in range(count))
        return Support.joined([draw.map(lambda part: part.unsqueeze(0)) for draw in draws], 0)

    @property
    def bound(self) -> str:
        """``"lower"`` if log Z of the kept states never exceeds the true log Z, otherwise empty."""
        return ""


class Inversion(Selection):
    """A selection that is a deterministic function of a few uniform numbers per row.

    Subclasses implement `choose`. For a row of scores there must be an order of its states along
    which each entry only moves forward as the number that decides it grows:
    `rdpgraph.testing.check_selection` relies on this to find all outcomes by bisection.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A class that changes what is chosen does not inherit how it is chosen several times.
        if "choose" in cls.__dict__ and "choose_each" not in cls.__dict__:
            cls.choose_each = Inversion.choose_each

    def select(self, log_q: Tensor, generator: torch.Generator | None) -> Support:
        """Choose states and their log-weights for every row of scores.

        Raises:
            ModelError: if a score is NaN or +inf.
        """
        return self.select_each(log_q, 1, generator).map(lambda part: part.squeeze(0))

    def select_each(self, log_q: Tensor, count: int, generator: torch.Generator | None) -> Support:
        if log_q.ndim < 1 or (log_q.numel() and not bool(log_q.amax() < math.inf)):
            raise ModelError(
                f"{type(self).__name__} needs log-scores of shape (..., states) that are below "
                f"+inf and not NaN; got {'a NaN or +inf' if log_q.ndim else 'a single number'}."
            )
        *lead, states = log_q.shape
        flat = log_q.reshape(-1, states)
        # All numbers are drawn at once, so that the choice does not depend on the size of a block.
        size = len(flat), self.num_uniforms(states)
        uniforms = torch.stack([uniform(size, log_q.device, generator) for _ in range(count)])
        # Rows are chosen block by block, to bound the memory of the temporaries.
        rows = tuning.per_block(states, tuning.BLOCK)
        if len(flat) <= rows:
            support = self.choose_each(flat, uniforms)
        else:
            pairs = zip(flat.split(rows), uniforms.split(rows, 1), strict=True)
            support = Support.joined([self.choose_each(*pair) for pair in pairs], 1)
        kept = support.kept
        return support.map(lambda part: part.reshape(count, *lead, kept))

    @abstractmethod
    def num_uniforms(self, states: int) -> int:
        """Return how many uniform numbers `choose` takes for a row of ``states`` scores."""

    @abstractmethod
    def choose(self, log_q: Tensor, uniforms: Tensor) -> Support:
        """Choose states and their log-weights, given the uniform numbers.

        Args:
            log_q: (*lead, N) log-scores.
            uniforms: (*lead, num_uniforms(N)) float64 numbers in [0, 1).
        """

    def choose_each(self, log_q: Tensor, uniforms: Tensor) -> Support:
        """`choose` for each of several uniform numbers, (count, *lead, num_uniforms(N)).

        A selection overrides it where the choices have work in common.
        """
        parts = [self.choose(log_q, each) for each in uniforms]
        return Support.joined([part.map(lambda values: values.unsqueeze(0)) for part in parts], 0)


def checked_size(owner: str, name: str, size: Size, least: int = 1) -> None:
    """Raise `ModelError` unless a size is an int of at least ``least`` or a float in (0, 1]."""
    is_fraction = isinstance(size, float) and 0.0 < size <= 1.0
    is_number = isinstance(size, int) and not isinstance(size, bool) and size >= least
    if not is_fraction and not is_number:
        raise ModelError(
            f"{owner} needs {name} to be a number of states, an int >= {least}, or a fraction of "
            f"them, a float in (0, 1]; got {size!r}."
        )


def count_of(size: Size, states: int) -> int:
    """Return the number of states that a size stands for, at most ``states``.

    A fraction is rounded to the nearest number of states, but never to zero.
    """
    count = max(1, round(size * states)) if isinstance(size, float) else size
    return min(count, states)


_CERTAIN_PROBABILITY = 1.0 - 1e-6
"""Probability above which a state is kept for certain.

The margin is wider than rounding errors: the mass of any state that is left to the systematic
sample is smaller than the spacing of the sample, so that no state is drawn twice.
"""


@dataclass(frozen=True)
class Top(Inversion):
    """Keep the states of largest score and no others.

    This is the truncation of Sun et al. 2019, a baseline. It is biased: log Z is bounded from
    below. It costs O(N) per site.

    Args:
        keep: number of states, or a fraction of them.
    """

    keep: Size

    def __post_init__(self) -> None:
        checked_size("Top", "keep", self.keep)

    @property
    def bound(self) -> str:
        return "lower"

    def num_uniforms(self, states: int) -> int:
        return 0

    def choose(self, log_q: Tensor, uniforms: Tensor) -> Support:
        keep = count_of(self.keep, log_q.shape[-1])
        return _keep_all(log_q) if keep == log_q.shape[-1] else _keep_largest(log_q, keep)


@dataclass(frozen=True)
class TopTail(Inversion):
    """Keep the states of largest score, and draw from the rest independently with replacement.

    This is the estimator of Fu, Cunningham and Lapata 2022, eq. 5-8. A drawn state i has the
    log-weight ``-log(tail * q(i))``, with q normalised over the rest; a state that is drawn twice
    takes two entries. If ``top + tail`` covers all states, all are kept with weight one. It costs
    O(N + tail log N) per site.

    Args:
        top: number of states of largest score, or a fraction of all states; 0 for none.
        tail: number of draws, or a fraction of all states.
    """

    top: Size
    tail: Size

    def __post_init__(self) -> None:
        checked_size("TopTail", "top", self.top, least=0)
        checked_size("TopTail", "tail", self.tail)

    def num_uniforms(self, states: int) -> int:
        return count_of(self.tail, states)

    def choose(self, log_q: Tensor, uniforms: Tensor) -> Support:
        states = log_q.shape[-1]
        top, tail = count_of(self.top, states), count_of(self.tail, states)
        if top + tail >= states:
            return _keep_all(log_q)
        largest = _keep_largest(log_q, top)
        # Draw one state of the rest for each uniform number, by inversion of the cumulative mass.
        rest = log_q.double().scatter(-1, largest.states, -math.inf)
        log_shift, cumulative = _cumulative_masses(rest)
        total = cumulative[..., -1:]
        drawn = _invert_cumulative(cumulative, uniforms * total)
        # The total normalises q over the rest.
        log_q_drawn = rest.gather(-1, drawn) - log_shift - _log_or_zero(total)
        # State i is drawn tail * q(i) times on average, so this weight makes its expectation one.
        log_weights = _mask_impossible(-log_q_drawn - math.log(tail), rest, drawn, log_q.dtype)
        return Support.joined([largest, Support(drawn, log_weights)])


@dataclass(frozen=True)
class TopSystematic(Inversion):
    """Keep the states of largest score and a systematic sample of the rest.

    A state i of the rest is kept with probability ``pi_i = min(1, c q_i)``, where c is such that
    these sum to ``tail``, and has the log-weight ``-log pi_i``. One uniform number decides the
    whole sample, so that no state is drawn twice.

    The sample passes through the rest in falling order of score, and so has its share of every
    level of scores, as a stratified sample has. Where neighbouring states have similar scores, as
    the levels of a quantity do, it passes through them in their own order instead, and has its
    share of every range of levels. It costs O(N) per site on the CPU and
    O(N log N) on a GPU.

    Args:
        top: number of states of largest score, or a fraction of all states; 0 for none.
        tail: number of states kept of the rest, or a fraction of all states.
    """

    top: Size
    tail: Size

    def __post_init__(self) -> None:
        checked_size("TopSystematic", "top", self.top, least=0)
        checked_size("TopSystematic", "tail", self.tail)

    def num_uniforms(self, states: int) -> int:
        return 1

    def choose(self, log_q: Tensor, uniforms: Tensor) -> Support:
        one = TopSystematic.choose_each(self, log_q, uniforms.unsqueeze(0))
        return one.map(lambda part: part.squeeze(0))

    def choose_each(self, log_q: Tensor, uniforms: Tensor) -> Support:
        states = log_q.shape[-1]
        top, tail = count_of(self.top, states), count_of(self.tail, states)
        return _sample_systematically(log_q, uniforms, min(top + tail, states), top)


@dataclass(frozen=True)
class Threshold(Inversion):
    """Keep state i with probability ``pi_i = min(1, c q_i)``, where these sum to ``keep``.

    This is the optimal resampling of Fearnhead and Clifford 2003. States whose score exceeds a
    threshold are kept with weight one. The rest is sampled systematically, and a kept state has the
    log-weight ``-log pi_i``. The scores alone decide how many states exceed the threshold.

    The selection is optimal if the scores are close to the marginals. If they are much flatter, no
    state is kept for certain, and `TopSystematic` is safer. The sample passes through the states
    in the same order as that of `TopSystematic`. It costs O(N) per site on the CPU and
    O(N log N) on a GPU.

    Args:
        keep: number of states, or a fraction of them.
    """

    keep: Size

    def __post_init__(self) -> None:
        checked_size("Threshold", "keep", self.keep)

    def num_uniforms(self, states: int) -> int:
        return 1

    def choose(self, log_q: Tensor, uniforms: Tensor) -> Support:
        one = Threshold.choose_each(self, log_q, uniforms.unsqueeze(0))
        return one.map(lambda part: part.squeeze(0))

    def choose_each(self, log_q: Tensor, uniforms: Tensor) -> Support:
        keep = count_of(self.keep, log_q.shape[-1])
        return _sample_systematically(log_q, uniforms, keep, top=0)


def _keep_all(log_q: Tensor) -> Support:
    """Keep every state, with log-weight 0 if it is possible and -inf if it is not."""
    states = torch.arange(log_q.shape[-1], device=log_q.device).expand(log_q.shape)
    return Support(states, log_q).unweighted()


def _keep_largest(log_q: Tensor, keep: int) -> Support:
    """Keep the ``keep`` states of largest score, with log-weights as in `_keep_all`."""
    largest, states = log_q.topk(keep)
    return Support(states, largest).unweighted()


def _sample_systematically(log_q: Tensor, uniforms: Tensor, keep: int, top: int) -> Support:
    """Keep the certain states, at least ``top`` of them, and a systematic sample of the rest.

    Of K = ``keep`` entries, the first m hold the m states of largest score, which are certain. The
    rest has the total mass S. One uniform number u per row places the targets ``(u + j) s``, j = 0
    to K - m - 1, at the spacing ``s = S / (K - m)`` along the cumulative mass of the rest in its
    sampling order, and entry m + j holds the state in whose interval target j lies. State i is
    therefore kept with probability ``pi_i = q_i / s``, and its log-weight is ``log s - log q_i``,
    whatever the order is.

    Args:
        log_q: (*lead, N) log-scores.
        uniforms: (count, *lead, 1), for as many samples, which share all but the targets.
        keep: the number K of entries.
        top: the number of states that are certain in any case.

    Returns:
        A support (count, *lead, K).
    """
    count = len(uniforms)
    if keep == log_q.shape[-1]:
        return _keep_all(log_q).map(lambda part: part.expand(count, *part.shape))
    if log_q.device.type == "cpu" and library.available(log_q.dtype, "selections"):
        return _sample_compiled(log_q, uniforms, keep, top)

    # Masses are relative to the K-th largest, which no state of the rest exceeds by far.
    scores = log_q.double()
    largest, order = scores.topk(keep)
    log_shift = finite(largest[..., -1:])
    masses = (scores - log_shift).exp_().scatter_(-1, order, 0.0)
    log_beyond = masses.sum(-1, keepdim=True).log() + log_shift
    is_any_beyond = (log_q > -math.inf).sum(-1, keepdim=True) > keep
    num_certain = _count_certain(largest, log_beyond, is_any_beyond, top)
    entry = torch.arange(keep, device=log_q.device)
    is_certain = entry < num_certain
    certain_log_weights = torch.where(largest > -math.inf, 0.0, -math.inf).to(log_q)

    # The rest, in the order of the sample.
    masses.scatter_(-1, order, torch.where(is_certain, 0.0, (largest - log_shift).exp()))
    highest = largest.gather(-1, num_certain.clamp(max=keep - 1))
    along = _sampling_order(log_q, highest.to(log_q), masses > 0)
    cumulative = masses.gather(-1, along).cumsum(-1)
    spacing = cumulative[..., -1:] / (keep - num_certain).clamp(min=1)
    # The clamps only affect entries of certain states, which are not sampled.
    targets = (uniforms + (entry - num_certain)).clamp(min=0.0) * spacing
    # Targets of all samples in a row: (*lead, count * K).
    places = _invert_cumulative(cumulative, targets.movedim(0, -2).flatten(-2))
    sampled = along.gather(-1, places)
    # -log pi_i = log s - log q_i. The masses, and so the spacing, are relative to exp(log_shift).
    log_weights = _log_or_zero(spacing) + log_shift - log_q.gather(-1, sampled).double()
    log_weights = torch.where(masses.gather(-1, sampled) > 0, log_weights, -math.inf).to(log_q)
    sample = Support(sampled, log_weights).map(
        lambda part: part.unflatten(-1, (count, keep)).movedim(-2, 0)
    )
    return Support(
        torch.where(is_certain, order, sample.states),
        torch.where(is_certain, certain_log_weights, sample.log_weights),
    )


def _sample_compiled(log_q: Tensor, uniforms: Tensor, keep: int, top: int) -> Support:
    """What `_sample_systematically` does, in O(N) and without a sort, in compiled code."""
    count, states = len(uniforms), log_q.shape[-1]
    rows, numbers = log_q.contiguous(), uniforms.double().contiguous()
    chosen = torch.empty(*numbers.shape[:-1], keep, dtype=torch.long, device="cpu")
    weights = torch.empty_like(chosen, dtype=log_q.dtype)
    parts = (part.data_ptr() for part in (rows, numbers, chosen, weights))
    size = rows.numel() // states
    library.function("systematic", log_q.dtype)(
        *parts, size, states, keep, top, count, _CERTAIN_PROBABILITY, _SMOOTH,
        library.threads(8 * rows.numel(), size),
    )  # fmt: skip
    return Support(chosen, weights)


def _count_certain(largest: Tensor, log_beyond: Tensor, is_any_beyond: Tensor, top: int) -> Tensor:
    """Return how many of the K largest scores are kept for certain, at least ``top``.

    Let ``q_0 >= q_1 >= ...`` be the scores in descending order. With the first m certain, the next
    one is kept with probability ``pi_m = (K - m) q_m / (q_m + q_{m+1} + ...)``. If that is one or
    more, it is certain too.

    Args:
        largest: (*lead, K) the largest log-scores, descending.
        log_beyond: (*lead, 1) the log of the mass of all other states.
        is_any_beyond: (*lead, 1) whether one of these is possible.
        top: the number of states that are certain in any case.

    Returns:
        (*lead, 1) int64.
    """
    keep = largest.shape[-1]
    # q_m + q_{m+1} + ... is summed from its small end; a total less a running sum would cancel.
    log_from_here = torch.cat([largest, log_beyond], -1).flip(-1).logcumsumexp(-1).flip(-1)
    entries_left = keep - torch.arange(keep, device=largest.device)
    log_wanted = log_from_here[..., :-1] + math.log(_CERTAIN_PROBABILITY)
    is_certain = entries_left.log() + largest > log_wanted
    # m is the length of the run of True at the start.
    num_certain = is_certain.long().cumprod(-1).sum(-1, keepdim=True)

    # Once pi_m < 1, making further states certain only lowers the pi of the rest. So all pi of the
    # rest stay below one if `top` is imposed here.
    num_certain = num_certain.clamp(min=top)
    # A possible state beyond the K largest must have an entry in which it may be kept.
    return torch.where(is_any_beyond, num_certain.clamp(max=keep - 1), num_certain)


_SMOOTH = 0.6
"""Largest mean step between the ranks of neighbouring states that counts as smooth.

It is relative to the mean step of states in random order. Measured with chains whose transitions
are smooth in the state and whose emissions have independent errors: up to .55 the states' own order
had 2 to 10,000 times less squared error, and from .7 their falling order up to 3 times less.
"""


def _sampling_order(scores: Tensor, highest: Tensor, is_rest: Tensor) -> Tensor:
    """Return the order (*lead, N) in which a systematic sample passes through the states.

    The error of a systematic sample is small where the ratio of true mass and score changes little
    from one state to the next. States of similar score tend to have similar ratios. Where the
    scores change little from each state to the next, the ratio usually does so as well, and the
    order of the states is the better one.

    Args:
        scores: (*lead, N) log-scores.
        highest: (*lead, 1) the largest of the rest.
        is_rest: (*lead, N) the states that are sampled; only their order matters.
    """
    states = scores.shape[-1]
    # In falling order of score, by the first 17 bits of the distance from the largest as a float32:
    # to one part in 256. Equal ones are in their own order.
    distance = (highest - scores).nan_to_num_(nan=math.inf).float()
    buckets = (distance.view(torch.int32) >> 15).clamp(*_BUCKETS)
    falling = buckets.argsort(dim=-1, stable=True)
    own = torch.arange(states, device=scores.device).expand(scores.shape)
    # The rank of every state among the rest; others have the rank of the one before them.
    ranks = torch.empty_like(falling)
    ranks.scatter_(-1, falling, is_rest.gather(-1, falling).long().cumsum(-1))
    before = torch.where(is_rest, own, -1).cummax(-1).values
    first = is_rest.byte().argmax(-1, keepdim=True)
    ranks = ranks.gather(-1, torch.where(before < 0, first, before))
    count = is_rest.sum(-1, keepdim=True).double()
    steps = ranks.diff(dim=-1).abs_().sum(-1, keepdim=True)
    # In random order m ranks have a mean step of (m + 1) / 3.
    is_smooth = steps <= _SMOOTH * (count - 1) * (count + 1) / 3
    return torch.where(is_smooth, own, falling)


_BUCKETS = ((127 - 8) * 256 - 1, (127 + 10) * 256 - 1)
"""Buckets of distances: 256 in each octave from 2^-8 to 2^10 nats, and one on each side."""


def _cumulative_masses(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return a log-shift (*lead, 1) and the running sums of ``exp(scores - shift)``, (*lead, N).

    The shift is the largest score, or 0 if all scores are -inf.
    """
    log_shift = finite(scores.amax(-1, keepdim=True))
    return log_shift, (scores - log_shift).exp_().cumsum(-1)


def _invert_cumulative(cumulative: Tensor, targets: Tensor) -> Tensor:
    """Return for each target the first state whose cumulative mass exceeds it.

    Such a state always has a positive mass. If all masses are zero, there is none and the last
    state is returned; `_mask_impossible` then gives it the log-weight -inf.
    """
    # Rounding may carry a target up to the total, which no cumulative mass exceeds.
    total = cumulative[..., -1:]
    targets = torch.minimum(targets, torch.nextafter(total, torch.zeros_like(total)))
    states = torch.searchsorted(cumulative, targets.contiguous(), right=True)
    return states.clamp(max=cumulative.shape[-1] - 1)


def _mask_impossible(
    log_weights: Tensor, scores: Tensor, states: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return the log-weights of drawn states, -inf if a row had no possible state to draw."""
    is_possible = scores.gather(-1, states) > -math.inf
    return torch.where(is_possible, log_weights, -math.inf).to(dtype)


def _log_or_zero(values: Tensor) -> Tensor:
    """Return the log of non-negative values, with 0 in place of log 0."""
    return torch.where(values > 0, values, 1.0).log()
