"""A tagger of sequences by features that are written as strings: a linear-chain CRF."""

import math
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields, typed
from rdpgraph._core.cache import cached_property
from rdpgraph._core.portable import Arguments
from rdpgraph.errors import EvidenceError, FileFormatError, ModelError
from rdpgraph.io.text import read_text
from rdpgraph.structures.chain.model import Chain

_CELLS = 200_000  # log-values of a batch, padded; half as many or twice take as long

Evaluate = Callable[[Tensor], tuple[float, Tensor]]
"""The value and the gradient of a function at a point."""


@dataclass(eq=False, kw_only=True)
class SequenceTagger(Arguments):
    """A linear-chain conditional random field over features that are strings, as of CRFsuite.

    Tokens are dicts of features, or lists of strings, as sklearn-crfsuite takes them, and labels
    are strings. A feature and a label have a weight if they occur together in the data, and so have
    two labels that follow each other. Weights minimise minus the log-likelihood of the labels, in
    nats, plus ``c1`` times their absolute sum plus ``c2`` times the sum of their squares.

    In a dict a string is joined to its key (``{"word": "of"}`` is the feature ``"word:of"``), a
    number is the value of the feature, True and False are 1 and 0, and a list of strings or a
    dict holds several features. The conventions are those of scikit-learn: `get_params`,
    `set_params` and ``sklearn.base.clone``; what `fit` finds has names with a trailing underscore.

    Args:
        c1: of the L1 penalty, which makes most weights 0 (by OWL-QN, Andrew and Gao 2007).
        c2: of the L2 penalty, as CRFsuite counts it: half the inverse of a Gaussian prior's
            variance.
        hashed: the number of buckets into which names of features are hashed, so that none is
            kept; 0: each has an index of its own.
        min_freq: the least number of times that a feature occurs; others are left out.
        all_possible_states: whether every feature has a weight for every label.
        all_possible_transitions: whether every pair of labels has a weight.
        limit: of the steps of L-BFGS, or of the passes over the data of ``batch_size``.
        tolerance: ends L-BFGS where ten steps lower the loss by less than this share of it.
        batch_size: sequences of a minibatch, for steps of Adam instead of L-BFGS, which need no
            more memory than that; 0: L-BFGS. It takes no L1 penalty.
        rate: of Adam's steps.
        seed: of the order of minibatches.

    Attributes:
        classes_: the labels, sorted.
        attributes_: the names of features; empty if they are hashed.
        state_weights_: (features, labels), a zero where there is no weight.
        transition_weights_: (labels, labels), [from, to].
        losses_: the penalised loss after every step, in nats; of minibatches the mean of a pass.
        converged_: whether L-BFGS ended by its tolerance.

    Example:
        >>> X = [[{"word": "the"}, {"word": "cat"}], [["word:the"], ["word:dog"]]]
        >>> y = [["DET", "NOUN"], ["DET", "NOUN"]]
        >>> tagger = SequenceTagger(c2=0.1).fit(X, y)
        >>> tagger.predict([[{"word": "the"}, {"word": "bird"}]])
        [['DET', 'NOUN']]
        >>> tagger.top_transitions(1)
        [('DET', 'NOUN', 1.73...)]
    """

    c1: float = 0.0
    c2: float = 1.0
    hashed: int = 0
    min_freq: int = 0
    all_possible_states: bool = False
    all_possible_transitions: bool = False
    limit: int = 500
    tolerance: float = 1e-6
    batch_size: int = 0
    rate: float = 0.02
    seed: int = 0

    @torch.inference_mode(mode=False)
    def fit(self, X: Iterable[Any], y: Iterable[Any]) -> Self:
        """Fit all weights.

        Args:
            X: sequences of tokens, each a dict of features, or a list of strings.
            y: sequences of labels, as long as those of X.

        Raises:
            EvidenceError: sequences without any token, of other lengths than their labels, or a
                feature that is no string and no number.
            ModelError: an argument out of range.
        """
        require_fields(
            self, c1="[0, inf)", c2="[0, inf)", hashed="[0, inf)", min_freq="[0, inf)",
            limit="[0, inf)", tolerance="[0, inf]", batch_size="[0, inf)", rate="(0, inf)",
        )  # fmt: skip
        if self.batch_size and self.c1:
            raise ModelError(
                "SequenceTagger has no L1 penalty by minibatches: set c1=0, or batch_size=0."
            )
        sequences, labels = [list(each) for each in X], [list(each) for each in y]
        _require_pairs(sequences, labels)
        self.classes_ = sorted({label for each in labels for label in each}, key=str)
        if not self.classes_:
            raise EvidenceError("SequenceTagger is fitted to sequences of tokens; X has none.")
        number = {label: place for place, label in enumerate(self.classes_)}
        gold = [
            torch.tensor([number[label] for label in each], dtype=torch.long, device="cpu")
            for each in labels
        ]
        # Features as columns: by an index of those seen often enough, or by their hashes.
        index: dict[str, int] = {}
        tokens = [[[*_features(token)] for token in each] for each in sequences]
        if not self.hashed:
            counts = Counter[str]()
            for each in tokens:
                for token in each:
                    counts.update(name for name, _ in token)
            kept = [name for name, count in counts.items() if count >= self.min_freq]
            index = {name: place for place, name in enumerate(kept)}
        elif self.min_freq:
            raise ModelError("SequenceTagger counts no features that are hashed: set min_freq=0.")
        self.attributes_ = list(index)
        # Weights of the pairs of features and labels that were seen, or of all, and their fit.
        data = _Encoded.of(tokens, self._lookup(index), self.hashed or len(index))
        weights = _Weights.observed(
            data, gold, len(self.classes_), states=self.all_possible_states,
            transitions=self.all_possible_transitions,
        )  # fmt: skip
        if self.batch_size:
            found = self._by_minibatches(data, gold, weights)
        else:
            found, self.losses_, self.converged_ = minimise(
                lambda theta: _loss(data, weights, theta, weights.counts, self.c2),
                weights.zeros(), self.c1, self.limit, self.tolerance,
            )  # fmt: skip
        self.state_weights_, self.transition_weights_ = weights.tables(found)
        return self

    def _lookup(self, index: Mapping[str, int]) -> Callable[[str], int | None]:
        """The number of a feature; None for one that has no weight."""
        if not self.hashed:
            return index.get
        size = self.hashed
        return lambda name: zlib.crc32(name.encode()) % size

    def _by_minibatches(
        self, data: "_Encoded", gold: Sequence[Tensor], weights: "_Weights"
    ) -> Tensor:
        """Weights after passes of Adam; the penalties of a minibatch are its share of all."""
        theta = weights.zeros().requires_grad_()
        optimiser = torch.optim.Adam([theta], lr=self.rate)
        generator = torch.Generator().manual_seed(self.seed)
        count = len(gold)
        self.losses_, self.converged_ = list[float](), False
        for _ in range(self.limit):
            total = 0.0
            for rows in torch.randperm(count, generator=generator).split(self.batch_size):
                part = data.some(rows.tolist())
                own = weights.counted(part, [gold[row] for row in rows.tolist()])
                penalty = self.c2 * len(rows) / count
                loss, theta.grad = _loss(part, weights, theta.detach(), own, penalty)
                optimiser.step()
                total += loss
            self.losses_.append(total)
        return theta.detach()

    @torch.inference_mode(mode=False)
    def predict(self, X: Iterable[Any]) -> list[list[Any]]:
        """The most probable labels of each sequence, all of its labels together (Viterbi)."""
        data = self._encoded(X)
        found: list[list[Any]] = [[] for _ in data.lengths]
        for rows, chain in data.chains(self.state_weights_, self.transition_weights_):
            for row, states in zip(rows, chain.mode().tolist(), strict=True):
                found[row] = [self.classes_[state] for state in states[: data.lengths[row]]]
        return found

    @torch.inference_mode(mode=False)
    def predict_marginals(self, X: Iterable[Any]) -> list[list[dict[Any, float]]]:
        """The probabilities of the labels of each token (forward-backward), as dicts."""
        data = self._encoded(X)
        found: list[list[dict[Any, float]]] = [[] for _ in data.lengths]
        for rows, chain in data.chains(self.state_weights_, self.transition_weights_):
            for row, chances in zip(rows, chain.marginals(), strict=True):
                own = chances[: data.lengths[row]].tolist()
                found[row] = [dict(zip(self.classes_, each, strict=True)) for each in own]
        return found

    def score(self, X: Iterable[Any], y: Iterable[Any]) -> float:
        """Return the share of tokens, over all sequences, that get the right label."""
        labels = [list(each) for each in y]
        found = self.predict(X)
        _require_pairs(found, labels)
        pairs = [
            one == other
            for mine, theirs in zip(found, labels, strict=True)
            for one, other in zip(mine, theirs, strict=True)
        ]
        return sum(pairs) / len(pairs) if pairs else math.nan

    @torch.inference_mode(mode=False)
    def log_likelihood(self, X: Iterable[Any], y: Iterable[Any]) -> Tensor:
        """(sequences,) the log-probability of the labels of each sequence, in nats.

        Raises:
            EvidenceError: a label that was not there in training.
        """
        sequences, labels = [list(each) for each in X], [list(each) for each in y]
        _require_pairs(sequences, labels)
        data, number = self._encoded(sequences), {one: at for at, one in enumerate(self.classes_)}
        unknown = {label for each in labels for label in each} - number.keys()
        if unknown:
            raise EvidenceError(
                f"SequenceTagger was fitted to the labels {', '.join(map(str, self.classes_))}; "
                f"got {min(map(str, unknown))}."
            )
        logs = torch.zeros(len(sequences), dtype=torch.float64)
        for rows, chain in data.chains(self.state_weights_, self.transition_weights_):
            longest = chain.unary.shape[-2]
            states = torch.full((len(rows), longest), -1)
            for place, row in enumerate(rows):
                own = [number[label] for label in labels[row]]
                states[place, : len(own)] = torch.tensor(own, dtype=torch.long)
            logs[rows] = chain.log_prob(states)
        return logs

    def top_transitions(self, count: int = 20) -> list[tuple[Any, Any, float]]:
        """The largest weights of transitions as (from, to, weight); a negative count: the least."""
        return [
            (self.classes_[one], self.classes_[other], weight)
            for (one, other), weight in _top(self._fitted("transition_weights_"), count)
        ]

    def top_features(self, count: int = 20) -> list[tuple[str, Any, float]]:
        """The ``count`` largest weights as (feature, label, weight); the least, if it is below 0.

        Features that are hashed are named by their bucket, as ``"#17"``.
        """
        names = self.attributes_
        return [
            (names[one] if names else f"#{one}", self.classes_[other], weight)
            for (one, other), weight in _top(self._fitted("state_weights_"), count)
        ]

    def _fitted(self, name: str) -> Tensor:
        if not hasattr(self, name):
            raise ModelError("This SequenceTagger is not fitted; call fit(X, y) first.")
        return getattr(self, name)

    def _encoded(self, X: Iterable[Any]) -> "_Encoded":
        size = len(self._fitted("state_weights_"))
        index = {name: place for place, name in enumerate(self.attributes_)}
        tokens = [[[*_features(token)] for token in each] for each in X]
        return _Encoded.of(tokens, self._lookup(index), size)


def _top(weights: Tensor, count: int) -> list[tuple[tuple[int, int], float]]:
    """The places and values of the largest weights, or of the least; zeros are no weights."""
    flat = weights.flatten()
    order = flat.argsort(descending=count > 0, stable=True)
    order = order[flat[order] != 0][: abs(count)].tolist()
    return [(divmod(place, weights.shape[1]), float(flat[place])) for place in order]


def _require_pairs(X: Sequence[Sequence[Any]], y: Sequence[Sequence[Any]]) -> None:
    """Require labels for every token; else `EvidenceError`."""
    if len(X) != len(y):
        raise EvidenceError(
            f"SequenceTagger needs labels for each sequence; got {len(X)} sequences and {len(y)} "
            "of labels."
        )
    for number, (one, other) in enumerate(zip(X, y, strict=True)):
        if len(one) != len(other):
            raise EvidenceError(
                f"SequenceTagger needs a label for each token; sequence {number} has {len(one)} "
                f"tokens and {len(other)} labels."
            )


def _features(token: Any, lead: str = "") -> Iterator[tuple[str, float]]:
    """The names and values of a token's features."""
    if isinstance(token, Mapping):
        # A text is a feature by itself, "word:dog"; a number weighs its feature; other values are
        # features below the key, as sklearn-crfsuite has them.
        for key, value in token.items():
            name = f"{lead}{key}"
            if isinstance(value, str):
                yield f"{name}:{value}", 1.0
            elif isinstance(value, bool | int | float) or hasattr(value, "__float__"):
                number = float(value)
                if not math.isfinite(number):
                    raise EvidenceError(
                        f"The feature {name!r:.80} needs a finite value; got {value!r}."
                    )
                yield name, number
            else:
                yield from _features(value, f"{name}:")
    elif isinstance(token, Iterable) and not isinstance(token, str | bytes):
        for name in token:
            if not isinstance(name, str):
                raise EvidenceError(
                    f"A token is a dict of features, or a list of strings; got {name!r:.80} in one."
                )
            yield f"{lead}{name}", 1.0
    else:
        name = f" for {lead[:-1]!r:.80}" if lead else ""
        raise EvidenceError(
            "A token is a dict of features, or a list of strings, and a feature is a string, a "
            f"number, a list or a dict; got {token!r:.80}{name}."
        )


@dataclass(frozen=True, eq=False)
class _Encoded:
    """Sequences of tokens as numbers of features."""

    features: Tensor  # (N,) of all tokens, one after another
    values: Tensor  # (N,)
    starts: Tensor  # (tokens + 1,) of each token, among the features
    lengths: list[int]  # of the sequences
    size: int  # the number of features there are

    @staticmethod
    def of(
        tokens: Sequence[Sequence[Sequence[tuple[str, float]]]],
        lookup: Callable[[str], int | None],
        size: int,
    ) -> "_Encoded":
        """Sequences of lists of names and values; names without a number are left out."""
        features, values, starts = list[int](), list[float](), [0]
        for each in tokens:
            for token in each:
                for name, value in token:
                    number = lookup(name)
                    if number is not None:
                        features.append(number)
                        values.append(value)
                starts.append(len(features))
        return _Encoded(
            torch.tensor(features, dtype=torch.long, device="cpu"),
            torch.tensor(values, dtype=torch.float64, device="cpu"),
            torch.tensor(starts, device="cpu"), [len(each) for each in tokens], size,
        )  # fmt: skip

    def some(self, rows: Sequence[int]) -> "_Encoded":
        """Some of the sequences, in another order."""
        ends = torch.tensor([0, *self.lengths]).cumsum(0).tolist()
        places = [
            torch.arange(int(self.starts[ends[r]]), int(self.starts[ends[r + 1]])) for r in rows
        ]
        counts = [self.starts.diff()[ends[r] : ends[r + 1]] for r in rows]
        place, zero = torch.cat(places), torch.zeros(1, dtype=torch.long)
        starts = torch.cat([zero, torch.cat(counts).cumsum(0)])
        lengths = [self.lengths[row] for row in rows]
        return _Encoded(self.features[place], self.values[place], starts, lengths, self.size)

    def scores(self, weights: Tensor) -> Tensor:
        """(tokens, labels) from the weights (features, labels)."""
        if not len(self.features):
            return weights.new_zeros(len(self.starts) - 1, weights.shape[1])
        return torch.nn.functional.embedding_bag(
            self.features, weights, self.starts[:-1], mode="sum", per_sample_weights=self.values
        )

    def summed_over_tokens(self, values: Tensor) -> Tensor:
        """(features, labels) sums of values (tokens, labels): the transpose of `scores`."""
        tokens, order, starts = self._by_feature
        if not len(tokens):
            return values.new_zeros(self.size, values.shape[1])
        return torch.nn.functional.embedding_bag(
            tokens, values, starts, mode="sum", per_sample_weights=self.values[order]
        )

    @cached_property
    def _by_feature(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens that have each feature, their places among the features, and the starts."""
        order = self.features.argsort(stable=True)
        owner = torch.arange(len(self.starts) - 1).repeat_interleave(self.starts.diff())
        counts = torch.bincount(self.features, minlength=self.size)
        return owner[order], order, counts.cumsum(0) - counts

    def batches(self, labels: int) -> "list[_PaddedBatch]":
        """Sequences that have tokens, several of about one length together."""
        if labels not in self._batched:
            first = torch.tensor([0, *self.lengths]).cumsum(0).tolist()
            none, made = int(self.starts.shape[0]) - 1, list[_PaddedBatch]()
            order = sorted(
                (r for r, n in enumerate(self.lengths) if n), key=self.lengths.__getitem__
            )
            while order:
                longest = self.lengths[order[-1]]
                count = max(1, _CELLS // (longest * labels))
                rows, order = order[-count:], order[:-count]
                place = torch.full((len(rows), longest), none)
                for at, row in enumerate(rows):
                    place[at, : self.lengths[row]] = torch.arange(first[row], first[row + 1])
                made.append(
                    _PaddedBatch(rows, place, torch.tensor([self.lengths[row] for row in rows]))
                )
            self._batched[labels] = made
        return self._batched[labels]

    @cached_property
    def _batched(self) -> "dict[int, list[_PaddedBatch]]":
        return {}

    def padded(self, weights: Tensor) -> Tensor:
        """(tokens + 1, labels) the scores, and a row for padding."""
        return torch.nn.functional.pad(self.scores(weights), (0, 0, 0, 1))

    def chains(self, weights: Tensor, transition: Tensor) -> Iterator[tuple[list[int], Chain]]:
        """Chains of the sequences that have tokens, several of about one length together."""
        scores = self.padded(weights)
        for batch in self.batches(len(transition)):
            yield batch.rows, Chain(scores[batch.place], transition, lengths=batch.lengths)


@dataclass(frozen=True, eq=False)
class _PaddedBatch:
    """Some sequences, padded to the length of the longest."""

    rows: list[int]
    place: Tensor  # (rows, steps) among all tokens; the number of tokens where it pads
    lengths: Tensor  # (rows,)


@dataclass(frozen=True, eq=False)
class _Weights:
    """Which features and transitions have weights, which lie in one vector, and their counts."""

    places: Tensor  # (n,) among the features and labels, and after these among pairs of labels
    counts: Tensor  # (n,) how often each occurs in the data with its labels
    features: int
    labels: int

    @staticmethod
    def observed(
        data: _Encoded, gold: Sequence[Tensor], labels: int, *, states: bool, transitions: bool
    ) -> "_Weights":
        """Those that occur, and all of a kind if asked for."""
        split = data.size * labels
        every = _Weights(torch.arange(split + labels**2), torch.zeros(0), data.size, labels)
        counts = every.counted(data, gold, seen=False)
        kept = every.counted(data, gold, seen=True) > 0
        kept[:split] |= states
        kept[split:] |= transitions
        places = kept.nonzero()[:, 0]
        return _Weights(places, counts[places], data.size, labels)

    def counted(self, data: _Encoded, gold: Sequence[Tensor], *, seen: bool = False) -> Tensor:
        """(n,) the summed values of features with their labels, and the number of transitions.

        With ``seen`` a feature counts once, whatever its value is.
        """
        empty = torch.zeros(0, dtype=torch.long, device="cpu")
        label = torch.cat([empty, *gold]).repeat_interleave(data.starts.diff())
        one = data.features * self.labels + label
        pairs = [states[:-1] * self.labels + states[1:] for states in gold]
        other = torch.cat([empty, *pairs]) + self.features * self.labels
        total = torch.zeros(self.features * self.labels + self.labels**2, dtype=torch.float64)
        values = torch.ones_like(data.values) if seen else data.values
        total.index_add_(0, one, values)
        total.index_add_(0, other, torch.ones_like(other, dtype=torch.float64))
        return total[self.places]

    def zeros(self) -> Tensor:
        """(n,) the weights to start from."""
        return torch.zeros(len(self.places), dtype=torch.float64)

    def tables(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """(features, labels) and (labels, labels), zero where there is no weight."""
        split = self.features * self.labels
        flat = theta.new_zeros(split + self.labels**2).index_copy(0, self.places, theta)
        return flat[:split].reshape(-1, self.labels), flat[split:].reshape(self.labels, -1)


def _loss(
    data: _Encoded, weights: _Weights, theta: Tensor, counts: Tensor, c2: float
) -> tuple[float, Tensor]:
    """Minus the log-likelihood with the L2 penalty, and its gradient."""
    state, transition = weights.tables(theta.detach())
    scores, link = data.padded(state), transition.requires_grad_()
    # Expected uses of labels at all tokens, and of transitions, batch by batch.
    uses, moves = torch.zeros_like(scores), torch.zeros_like(transition)
    loss = 0.0
    with torch.enable_grad():
        for batch in data.batches(len(transition)):
            unary = scores[batch.place].requires_grad_()
            log_z = Chain(unary, link, lengths=batch.lengths).log_partition().sum()
            at_tokens, more = torch.autograd.grad(log_z, (unary, link), materialize_grads=True)
            loss += float(log_z.detach())
            uses.index_copy_(0, batch.place.flatten(), at_tokens.flatten(0, 1))
            moves += more
    expected = torch.cat([data.summed_over_tokens(uses[:-1]).flatten(), moves.flatten()])
    theta = theta.detach()
    loss += float(c2 * (theta @ theta) - counts @ theta)
    return loss, expected[weights.places] - counts + 2 * c2 * theta


def minimise(
    evaluate: Evaluate, theta: Tensor, c1: float, limit: int, tolerance: float
) -> tuple[Tensor, list[float], bool]:
    """The minimum of a convex function plus ``c1`` times the absolute sum, by L-BFGS and OWL-QN.

    Andrew and Gao 2007, "Scalable training of L1-regularized log-linear models". It ends where ten
    steps lower the value by less than a share of it, or where no step does. Returns the point, the
    values after each step, and whether it ended before the limit.
    """
    value, gradient = evaluate(theta)
    value += c1 * float(theta.abs().sum())
    history: list[tuple[Tensor, Tensor]] = []
    values = [value]
    for _ in range(limit):
        slope = _slope(theta, gradient, c1)
        size = float(slope.norm())
        if size <= 1e-12 * max(1.0, abs(value)):
            return theta, values, True
        # Coordinates that would move against the slope stay, so that signs are kept.
        direction = -_inverse(history, slope)
        if c1:
            direction = torch.where(direction * slope < 0, direction, 0.0)
        sign = torch.where(theta != 0, theta.sign(), -slope.sign())
        step = 1.0 if history else 1.0 / size
        for _ in range(40):
            point = theta + step * direction
            if c1:
                point = torch.where(point * sign > 0, point, 0.0)
            new, after = evaluate(point)
            new += c1 * float(point.abs().sum())
            if new <= value + 1e-4 * float(slope @ (point - theta)):
                break
            step /= 2
        else:
            return theta, values, True  # rounding leaves no step that is lower
        change, bend = point - theta, after - gradient
        if float(change @ bend) > 1e-12 * float(bend @ bend):
            history = [*history[-9:], (change, bend)]
        theta, value, gradient = point, new, after
        values.append(value)
        if len(values) > 10 and values[-11] - value < tolerance * abs(value):
            return theta, values, True
    return theta, values, False


def _slope(theta: Tensor, gradient: Tensor, c1: float) -> Tensor:
    """The gradient with the L1 penalty; at zero that of the side where the value falls, or zero."""
    if not c1:
        return gradient
    right, left = gradient + c1, gradient - c1
    at_zero = torch.where(right < 0, right, torch.where(left > 0, left, 0.0))
    return torch.where(theta != 0, gradient + c1 * theta.sign(), at_zero)


def _inverse(history: Sequence[tuple[Tensor, Tensor]], slope: Tensor) -> Tensor:
    """The inverse Hessian that the last changes imply, times a vector: the two loops of L-BFGS."""
    result, parts = slope, list[tuple[float, Tensor, Tensor, float]]()
    for change, bend in reversed(history):
        rho = 1.0 / float(change @ bend)
        share = rho * float(change @ result)
        result = result - share * bend
        parts.append((rho, change, bend, share))
    if history:
        change, bend = history[-1]
        result = result * (float(change @ bend) / float(bend @ bend))
    for rho, change, bend, share in reversed(parts):
        result = result + (share - rho * float(bend @ result)) * change
    return result


@typed()
def read_conll(path: str | os.PathLike[str]) -> list[list[tuple[str, ...]]]:
    r"""Read sentences from a file in the manner of CoNLL: a token a line, an empty line between.

    Columns are separated by blanks or tabs; lines that begin with ``-DOCSTART-``, or with ``#``
    and a blank, are left out.

    Returns:
        sentences, each a list of the columns of its tokens.

    Raises:
        FileFormatError: a token that has another number of columns than the first.
        OSError: the file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "two.conll")
        >>> _ = file.write_text("Ann NNP B-PER\nsings VBZ O\n\nStop VB O\n")
        >>> read_conll(file)
        [[('Ann', 'NNP', 'B-PER'), ('sings', 'VBZ', 'O')], [('Stop', 'VB', 'O')]]
    """
    sentences: list[list[tuple[str, ...]]] = [[]]
    width = 0
    for number, line in enumerate(read_text(path).splitlines(), 1):
        columns = tuple(line.split("\t") if "\t" in line else line.split())
        if not line.strip():
            sentences.append([])
        elif not line.startswith(("-DOCSTART-", "# ")):
            width = width or len(columns)
            if len(columns) != width:
                raise FileFormatError(
                    f"{path}:{number}: expected {width} columns, as in the first line; got "
                    f"{len(columns)}."
                )
            sentences[-1].append(columns)
    return [sentence for sentence in sentences if sentence]
