"""A hidden Markov model of text as a module, and learned positive features."""

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.model.potentials.features import RandomFeatures
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.table import as_states
from rdpgraph.structures.chain import rank_chains
from rdpgraph.structures.chain.checks import checked_lengths
from rdpgraph.structures.chain.factors import inside
from rdpgraph.structures.chain.model import Chain


class FeatureMap(nn.Module):
    """Positive features exp(x W) of embeddings, W learned.

    What low-rank models train instead of random features: no estimate of exp(x . y), but a
    family of potentials of its own, exact. W starts as orthogonal random directions. Chiu, Deng
    and Rush 2021 (arXiv:2201.02715), section 4.

    Example:
        >>> states = torch.randn(1000, 16)
        >>> feature_map = FeatureMap(16, 32)
        >>> feature_map.low_rank(states, states).shape
        (1000, 1000)

    Args:
        dimension: of the embeddings.
        features: how many, the rank.
        generator: of the initial W.

    Attributes:
        weight: (features, dimension).
    """

    def __init__(
        self, dimension: int, features: int, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        drawn = RandomFeatures(dimension, features, generator=generator)
        self.weight = nn.Parameter(drawn.directions.clone())

    def forward(self, embeddings: Tensor) -> Tensor:
        """(*lead, n, dimension) as log-features (*lead, n, features), nats.

        Raises:
            ModelError: embeddings of another dimension.
        """
        if embeddings.shape[-1] != self.weight.shape[1]:
            raise ModelError(
                f"FeatureMap of dimension {self.weight.shape[1]} got embeddings "
                f"{tuple(embeddings.shape)}."
            )
        return embeddings @ self.weight.mT - math.log(len(self.weight)) / 2

    def low_rank(self, left: Tensor, right: Tensor) -> LowRank:
        """The potential of value ``exp(x W) . exp(y W)``, embeddings (*lead, states, dimension)."""
        return LowRank(self(left), self(right))

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"dimension={self.weight.shape[1]}, features={len(self.weight)}"


_CELLS = 2**24
_SPREAD = 2.0


class HMM(nn.Module):
    """A language model with hidden states: p(tokens) = sum over states of transitions x emissions.

    Every state has embeddings, from which softmaxes make the start, the transitions and the
    emissions. With a ``rank``, transitions are `LowRank.normalised` on a learned `FeatureMap`: a
    sentence of T tokens then costs O(T N r) in place of O(T N^2), and tens of thousands of states
    can be trained. The loss is ``-log_likelihood``. Chiu, Deng and Rush 2021 (arXiv:2201.02715).

    Work for S tokens in all and embeddings of d numbers: S N r for transitions, and N d V for the
    normalisers of the emissions, which is most of it where a batch has few tokens. Memory: S N, and
    N V, of which no more than 2**24 entries at a time; beyond these they are made once more for the
    gradient. Symbols of a small vocabulary have their r x r matrices made once where that is
    faster. Under autocast the products are in its type, and the recursion is in the parameters'.

    Example:
        >>> model = HMM(states=64, vocabulary=20, rank=8)
        >>> tokens = torch.tensor([[3, 1, 4, 1], [5, 9, 0, 0]])
        >>> model.log_likelihood(tokens, torch.tensor([4, 2])).shape
        torch.Size([2])

    Args:
        states: how many, N.
        vocabulary: how many tokens, V.
        rank: of the transitions; None: a dense N x N softmax.
        dimension: of the embeddings.
        dropout: the share of states that each training call leaves out, renormalised over the
            rest; fewer states are also less work. Chiu and Rush 2020 (arXiv:2011.04640), 3.3.
        counts: (V,) of the tokens in the training text: the emissions begin near their
            frequencies (a token counted 0 as half of one), which saves the first epochs. Default:
            near uniform.
        generator: of the initial parameters. States begin different enough, logits of standard
            deviation 2, to be told apart from the first step on.

    Raises:
        ModelError: sizes below 1, a dropout outside [0, 1), or counts of another shape or below 0.
    """

    def __init__(
        self,
        *,
        states: int,
        vocabulary: int,
        rank: int | None = None,
        dimension: int = 128,
        dropout: float = 0.0,
        counts: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        sizes = (states, vocabulary, dimension, 1 if rank is None else rank)
        fits = all(is_whole(size, 1) for size in sizes) and is_real(dropout)
        if not fits or not 0.0 <= dropout < 1.0:
            raise ModelError(
                "HMM needs states, vocabulary, dimension and rank >= 1 and a dropout in [0, 1); "
                f"got {states!r:.20}, {vocabulary!r:.20}, {dimension!r:.20}, {rank!r:.20} and "
                f"{dropout!r:.20}."
            )
        if counts is not None and (counts.shape != (vocabulary,) or bool((counts < 0).any())):
            raise ModelError(
                f"HMM of {vocabulary} tokens needs their counts, ({vocabulary},), not below 0; got "
                f"{tuple(counts.shape)}."
            )
        super().__init__()
        self.dropout = dropout
        scale = math.sqrt(_SPREAD) / dimension**0.25  # of products of two: a deviation of _SPREAD

        def drawn(size: int) -> nn.Parameter:
            return nn.Parameter(scale * torch.randn(size, dimension, generator=generator))

        self.start = nn.Parameter(torch.zeros(states))
        self.before, self.after, self.emitting = drawn(states), drawn(states), drawn(states)
        self.tokens, self.bias = drawn(vocabulary), nn.Parameter(torch.zeros(vocabulary))
        if counts is not None:
            frequent = counts.to(self.bias).clamp(min=0.5).log()
            self.bias.data = frequent - frequent.mean()
        self.features = None if rank is None else FeatureMap(dimension, rank, generator=generator)
        if self.features is not None:
            self.features.weight.data *= scale

    def log_likelihood(
        self, tokens: Tensor, lengths: Tensor | None = None,
        *, generator: torch.Generator | None = None,
    ) -> Tensor:  # fmt: skip
        """(B,) log-probabilities of sequences in nats, given their lengths; differentiable.

        Args:
            tokens: (B, T) integers; what stands beyond a length is ignored.
            lengths: (B,), default all T.
            generator: of the dropped states, in training.

        Raises:
            EvidenceError: a token that is out of range, or of another shape.
        """
        tokens, lengths = self._checked(tokens, lengths)
        active = self._active(generator)
        transition = self._transition(active)
        if isinstance(transition, LowRank) and tokens.shape[1]:
            symbols, rows = tokens.unique(return_inverse=True)
            quick = rank_chains.symbols_worthwhile(
                len(symbols), (tokens.shape[0], tokens.shape[1]), transition.shape[0],
                transition.rank, device=tokens.device,
            )  # fmt: skip
            if quick:
                emission = self._emission(symbols, active)
                made = rank_chains.Symbols.of(self._start(active), transition, emission)
                return made.log_score(rows, lengths)
        return self._chain(tokens, lengths, active, transition).log_partition()

    def forward(
        self, tokens: Tensor, lengths: Tensor | None = None,
        *, generator: torch.Generator | None = None,
    ) -> Tensor:  # fmt: skip
        """(B,) the log-likelihood of sequences, as `log_likelihood` has it."""
        return self.log_likelihood(tokens, lengths, generator=generator)

    def chain(self, tokens: Tensor, lengths: Tensor | None = None) -> Chain:
        """The distribution of all hidden states given the tokens.

        Raises:
            EvidenceError: as for `log_likelihood`.
        """
        tokens, lengths = self._checked(tokens, lengths)
        return self._chain(tokens, lengths, None, self._transition(None))

    def transition(self) -> Tensor | LowRank:
        """The log-probabilities of a state after another, (N, N) or `LowRank`."""
        return self._transition(None)

    def _chain(
        self, tokens: Tensor, lengths: Tensor, active: Tensor | None, transition: Tensor | LowRank
    ) -> Chain:
        unary = self._emission(tokens, active)
        first = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(1) == 0
        unary = torch.where(first, unary + self._start(active), unary)
        return Chain(unary, transition, lengths=lengths)

    def _start(self, active: Tensor | None) -> Tensor:
        return _some(self.start, active).log_softmax(0)

    def _transition(self, active: Tensor | None) -> Tensor | LowRank:
        before, after = _some(self.before, active), _some(self.after, active)
        if self.features is None:
            return (before @ after.mT).to(before.dtype).log_softmax(1)
        features = (self.features(side).to(side.dtype) for side in (before, after))
        return LowRank.normalised(*features)  # in full, whatever autocast makes of the products

    def _emission(self, tokens: Tensor, active: Tensor | None) -> Tensor:
        """(*tokens.shape, N) log-probabilities of tokens in each state."""
        emitting = _some(self.emitting, active)
        blocks = emitting.split(max(1, _CELLS // len(self.tokens)))
        totals = torch.cat([self._totals(block, again=len(blocks) > 1) for block in blocks])
        symbols, rows = tokens.unique(return_inverse=True)
        logits = self.tokens[symbols] @ emitting.mT + self.bias[symbols].unsqueeze(1)
        return nn.functional.embedding(rows, logits - totals)

    def _totals(self, emitting: Tensor, *, again: bool) -> Tensor:
        """The log-normalisers of some states; made again for the gradient where all are many."""
        if not again:
            return _log_total(emitting, self.tokens, self.bias)
        return checkpoint(_log_total, emitting, self.tokens, self.bias, use_reentrant=False)  # pyright: ignore

    def _active(self, generator: torch.Generator | None) -> Tensor | None:
        states = len(self.start)
        count = max(1, round(states * (1.0 - self.dropout)))
        if not self.training or count == states:
            return None
        device = "cpu" if generator is None else generator.device
        order = torch.randperm(states, generator=generator, device=device)
        return order[:count].sort().values.to(self.start.device)

    def _checked(self, tokens: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Tokens, 0 beyond the lengths, and lengths."""
        tokens, lengths = checked_tokens("HMM", tokens, lengths)
        require_known(f"HMM of {len(self.tokens)} tokens", tokens, len(self.tokens))
        return tokens, lengths

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"states={len(self.start)}, vocabulary={len(self.tokens)}, dropout={self.dropout}"


def _some(values: Tensor, active: Tensor | None) -> Tensor:
    return values if active is None else values[active]


def _log_total(states: Tensor, tokens: Tensor, bias: Tensor) -> Tensor:
    return torch.logsumexp(states @ tokens.mT + bias, 1)


def checked_tokens(name: str, tokens: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Tokens (B, T), 0 beyond the lengths, and lengths (B,), of a model that the errors name."""
    tokens = as_states(f"{name}'s tokens", tokens)
    if tokens.ndim != 2 or tokens.is_floating_point():
        raise EvidenceError(
            f"{name} needs integer tokens (B, T); got {tuple(tokens.shape)} of {tokens.dtype}."
        )
    batch, total = tokens.shape
    if lengths is None:
        lengths = torch.full((batch,), total, device=tokens.device)
    lengths = checked_lengths(lengths, tokens.unsqueeze(-1))
    return torch.where(inside(lengths, total), tokens.long(), 0), lengths


def require_known(what: str, tokens: Tensor, vocabulary: int) -> None:
    """Raise an EvidenceError, what it is about first, where a token is out of range."""
    wrong = tokens[(tokens < 0) | (tokens >= vocabulary)]
    if len(wrong):
        raise EvidenceError(f"{what} got token {int(wrong[0])}; use 0 to {vocabulary - 1}.")
