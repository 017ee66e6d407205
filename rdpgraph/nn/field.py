"""A random field of words: potentials of pairs at some lags, normalised over whole sequences."""

import torch
from torch import Tensor, nn

from rdpgraph._core.arguments import typed
from rdpgraph._core.numbers import is_whole
from rdpgraph._core.portable import in_full_precision
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.logspace.gradients import by_autograd
from rdpgraph.logspace.logmatrix import LogMatrix, log_products
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.nn.words import FeatureMap, checked_tokens, log_frequencies
from rdpgraph.structures.chain.model import Chain

_TOLERANCE = 1e-6  # largest change of a message at which sweeps have converged
_SWEEPS = 500  # most sweeps of messages; what has not converged by then says so


class MarkovField(nn.Module):
    """A language model that is normalised over whole sequences: scores of words and of pairs.

    ``score(x) = sum_t b(x_t) + sum_l c sum_t log K_l(x_t, x_{t+l})`` for the lags l = 1..L, where
    ``K_l(i, j) = sum_k exp(left_l[i, k] + right_l[j, k])`` is learned (`FeatureMap`). Everything
    costs O(V r), and no table of pairs of words is formed.

    With one lag a sequence is a chain, c is 1, and all is exact: after O(V r^2), once for all, the
    normalisers of all lengths up to T take O(T r^2). Sequences have a length prior,
    ``p(x) = p(T) exp(score) / Z_T``; or else every word may be the last one, with a learned
    probability of going on relative to the growth of Z_T, and the sum over all lengths is one
    solution of r linear equations.

    With more lags Z is that of a long text, per word: messages of the infinite chain are the same
    at every place, one for each lag and direction, and take O(L V r) a sweep. By default they are
    tree-reweighted, c is 1 / L, and `log_density` is an upper bound on log Z per word, so that
    `log_likelihood` is a lower one; otherwise c is 1 and it is Bethe's, which is no bound. At the
    fixed point the value does not change with the messages, so its gradient is that with the
    messages held: implicit, and as cheap as a sweep. The last messages are kept to start from, and
    `converged` is False where they had not settled: values are then neither bound nor Bethe's.

    Example:
        >>> field = MarkovField(vocabulary=20, rank=4)
        >>> tokens = torch.tensor([[3, 1, 4, 1], [5, 9, 0, 0]])
        >>> field.log_likelihood(tokens, torch.tensor([4, 2])).shape
        torch.Size([2])

    Args:
        vocabulary: how many words, V.
        rank: of each lag's pairs, r.
        lags: L.
        dimension: of the embeddings of words.
        prior: (T + 1,) log-probabilities of the lengths 0 to T, with one lag; default: learned.
        tree_reweighted: the bound, with more lags than one; else Bethe's value.
        counts: (V,) of the words in the training text: scores of words begin near their logs.
        generator: of the initial parameters.

    Raises:
        ModelError: sizes below 1, a prior with more than one lag or of lengths that do not sum to
            one, or counts of another shape.

    Source: Jernite, Rush and Sontag 2015, "A fast variational approach for learning Markov random
    field language models"; Wainwright, Jaakkola and Willsky 2005 for the bound.
    """

    @typed(vocabulary="[1, inf)", rank="[1, inf)", lags="[1, inf)", dimension="[1, inf)")
    def __init__(
        self,
        *,
        vocabulary: int,
        rank: int,
        lags: int = 1,
        dimension: int = 64,
        prior: Tensor | None = None,
        tree_reweighted: bool = True,
        counts: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if prior is not None and (
            lags > 1 or prior.ndim != 1 or abs(float(prior.exp().sum()) - 1) > 1e-4
        ):
            raise ModelError(
                "MarkovField takes a prior with one lag, log-probabilities of lengths (T + 1,) "
                f"that sum to one; got {tuple(prior.shape)} with {lags} lags."
            )
        super().__init__()
        self.lags, self.coefficient = lags, 1.0 / lags if tree_reweighted else 1.0
        # Embeddings of a token before and after a pair, and positive features of these for each
        # lag.
        scale = dimension**-0.5

        def drawn() -> nn.Parameter:
            return nn.Parameter(scale * torch.randn(vocabulary, dimension, generator=generator))

        self.before, self.after = drawn(), drawn()
        maps = [FeatureMap(dimension, rank, generator=generator) for _ in range(lags)]
        self.maps = nn.ModuleList(maps)
        # The bias starts at log-frequencies, so that training begins from the unigram model.
        start = torch.zeros(vocabulary)
        if counts is not None:
            start = log_frequencies("MarkovField", counts, start)
            start = start - start.logsumexp(0)
        self.bias = nn.Parameter(start)
        # The log-odds of another token: sigmoid(3) = .95, lengths of about 20.
        self.going_on = nn.Parameter(torch.tensor(3.0))
        self.converged = True
        self.messages: Tensor
        self.prior: Tensor | None
        # Messages are kept as a buffer: the next batch begins from them.
        self.register_buffer("prior", prior)
        self.register_buffer("messages", torch.zeros(2 * lags, vocabulary))

    def pairs(self) -> list[LowRank]:
        """``K_l`` of each lag."""
        maps = (layer for layer in self.maps if isinstance(layer, FeatureMap))
        return [in_full_precision(layer.low_rank(self.before, self.after)) for layer in maps]

    @property
    def _bias(self) -> Tensor:
        """(V,) the bias in which sums are taken: scores of a long text lose digits in half."""
        return in_full_precision(self.bias)

    def score(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B,) log-potentials of sequences, nats: O(T L r) each, of L lags and rank r.

        Args:
            tokens: (B, T) integers; what stands beyond a length is ignored.
            lengths: (B,), default all T.

        Raises:
            EvidenceError: a token that is out of range, or of another shape.
        """
        tokens, lengths = checked_tokens("MarkovField", tokens, lengths, len(self.bias))
        place = torch.arange(tokens.shape[1], device=tokens.device)
        total = torch.where(place < lengths.unsqueeze(1), self._bias[tokens], 0.0).sum(1)
        for lag, low in enumerate(self.pairs(), 1):
            first, second = tokens[:, :-lag], tokens[:, lag:]
            values = (low.log_left[first] + low.log_right[second]).logsumexp(-1)
            there = place[lag:] < lengths.unsqueeze(1)
            total = total + self.coefficient * torch.where(there, values, 0.0).sum(1)
        return total

    def log_likelihood(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B,) log-probabilities of sequences in nats; differentiable.

        With one lag exact, lengths included. With more, ``score - T log_density()``, of sequences
        as parts of a long text, whose length is given: a lower bound in the limit of long ones.

        Raises:
            EvidenceError: as for `score`.
            ModelError: an empty sequence without a prior, or one that the prior does not know.
        """
        tokens, lengths = checked_tokens("MarkovField", tokens, lengths, len(self.bias))
        score = self.score(tokens, lengths)
        if self.lags > 1:
            return score - lengths * self.log_density()
        if self.prior is None:
            if bool((lengths < 1).any()):
                raise ModelError(
                    "MarkovField without a prior has no empty sequences; drop them, or give "
                    "prior=..."
                )
            growth, total = self._all_lengths()
            return score + lengths * (nn.functional.logsigmoid(self.going_on) - growth) - total
        longest = len(self.prior) - 1
        if bool((lengths > longest).any()):
            raise ModelError(
                f"MarkovField has a prior for lengths of up to {longest}; a sequence has "
                f"{int(lengths.max())}."
            )
        return score - self.log_partitions(longest)[lengths] + self.prior[lengths]

    forward = log_likelihood

    def log_partitions(self, longest: int) -> Tensor:
        """Return log Z (nats) of all sequences of each length 0 to ``longest``, (longest + 1,).

        Time is O(V r^2 + longest r^2).

        Raises:
            UnsupportedError: more lags than one.
            ModelError: a length below 0.
        """
        _require_length(longest)
        one, ahead, step, last = self._ranks()
        logs, onward = [torch.zeros_like(one), one], LogMatrix.of(step.mT)
        for _ in range(longest - 1):
            logs.append((ahead + last).logsumexp(0))
            ahead = onward.times(ahead.unsqueeze(0)).squeeze(0)
        return torch.stack(logs[: longest + 1])

    def log_density(self) -> Tensor:
        """Log Z of a long text per word, nats: exact with one lag, by messages with more.

        Its gradient is that of the marginals of words and pairs, once the messages have converged.
        """
        if self.lags == 1:
            return self._all_lengths()[0]
        pairs, parts = self.pairs(), self.messages.new_zeros(())
        with torch.no_grad():
            self._converge(pairs)
        logs = self._bias + self.coefficient * self.messages.sum(0)
        total = logs.logsumexp(0)
        for low, (ahead, back) in zip(pairs, self.messages.unflatten(0, (-1, 2)), strict=True):
            left = (low.log_left + (logs - total - back).unsqueeze(1)).logsumexp(0)
            right = (low.log_right + (logs - total - ahead).unsqueeze(1)).logsumexp(0)
            parts = parts + (left + right).logsumexp(0)
        return total + self.coefficient * parts

    @by_autograd
    def marginals(self) -> Tensor:
        """(V,) the probability of each word in a long text: the gradient of `log_density`."""
        with torch.enable_grad():
            bias = self.bias
            return torch.autograd.grad(self.log_density(), bias)[0]

    def sample(
        self, count: int, length: int, generator: torch.Generator | None = None,
        *, sweeps: int = 50,
    ) -> Tensor:  # fmt: skip
        """(count, length) sequences of a length: exact with one lag, else by Gibbs sampling.

        Args:
            count: how many.
            length: in words.
            generator: the randomness.
            sweeps: over all places, of more lags than one; from independent words.

        Raises:
            ModelError: a length below 0.
        """
        _require_length(length)
        with torch.no_grad():
            pairs = self.pairs()
            if self.lags == 1:
                chain = Chain(self._bias.expand(length, -1), pairs[0])
                return chain.sample(count, generator)
            # Words that are independent to begin with, and then each given those within the lags.
            chances = self._bias.softmax(0).expand(count, -1)
            words = torch.multinomial(
                chances, max(length, 1), replacement=True, generator=generator
            )
            words = words[:, :length]
            for place in list(range(length)) * sweeps:
                logs = self._bias.expand(count, -1)
                for lag, low in enumerate(pairs, 1):
                    for other, near, far in (
                        (place - lag, low.log_left, low.log_right),
                        (place + lag, low.log_right, low.log_left),
                    ):
                        if 0 <= other < length:
                            seen = near[words[:, other]]
                            logs = logs + self.coefficient * log_products(seen, far)
                drawn = torch.multinomial(logs.softmax(1), 1, generator=generator)
                words[:, place] = drawn.squeeze(1)
            return words

    def _ranks(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logs of Z_1, a, M and c: ``Z_T = a M^(T - 2) c`` for T of two and more."""
        if self.lags > 1:
            raise UnsupportedError(
                f"MarkovField sums sequences of a length with one lag; this one has {self.lags}: "
                "use log_density()."
            )
        (low,) = self.pairs()
        half = self._bias.unsqueeze(1) / 2
        left, right = low.log_left + half, low.log_right + half
        first, last = (left + half).logsumexp(0), (right + half).logsumexp(0)
        return self._bias.logsumexp(0), first, log_products(right.mT, left.mT), last

    def _all_lengths(self) -> tuple[Tensor, Tensor]:
        """The growth of log Z_T for each word, and the log of the sum over T, discounted."""
        one, first, step, last = (logs.double() for logs in self._ranks())
        tops = [logs.detach().amax() for logs in (first, step, last)]
        first, step, last = (
            (logs - top).exp() for logs, top in zip((first, step, last), tops, strict=True)
        )
        with torch.no_grad():
            values, vectors = torch.linalg.eig(step)
            most = values.real.argmax()
            right = vectors[:, most].real.abs()
            left = torch.linalg.inv(vectors)[most].real.abs()
        size = left @ step @ right / (left @ right)  # its gradient does not need those of vectors
        on = torch.sigmoid(self.going_on.double()) / size
        every = torch.eye(len(step), dtype=step.dtype, device=step.device)
        more = first @ torch.linalg.solve(every - on * step, last)
        by_word = on.log() - tops[1]
        total = torch.logaddexp(by_word + one, 2 * by_word + more.log() + tops[0] + tops[2])
        return (size.log() + tops[1]).to(self._bias), total.to(self._bias)

    def _converge(self, pairs: list[LowRank]) -> None:
        """Messages at the fixed point, from those of last time: one sweep after another."""
        sides = [(LogMatrix.of(low.log_right), LogMatrix.of(low.log_left)) for low in pairs]
        for _ in range(_SWEEPS):
            logs = self._bias + self.coefficient * self.messages.sum(0)
            news: list[Tensor] = []
            every = zip(pairs, sides, self.messages.unflatten(0, (-1, 2)), strict=True)
            for low, (right, left), (ahead, back) in every:
                sent = (low.log_left + (logs - back).unsqueeze(1)).logsumexp(0)
                returned = (low.log_right + (logs - ahead).unsqueeze(1)).logsumexp(0)
                news += [right.times(sent.unsqueeze(0)), left.times(returned.unsqueeze(0))]
            new = torch.cat(news)
            new = new - new.mean(1, keepdim=True)
            self.converged = float((new - self.messages).abs().amax()) < _TOLERANCE
            self.messages = (new + self.messages) / 2
            if self.converged:
                return

    def extra_repr(self) -> str:
        return f"vocabulary={len(self.bias)}, lags={self.lags}"


def _require_length(length: object) -> None:
    if not is_whole(length, 0):
        raise ModelError(f"MarkovField needs a whole length >= 0; got {length!r:.40}.")
