"""A hidden Markov model of text as a module."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph._core.arguments import typed
from rdpgraph.errors import ModelError
from rdpgraph.logspace.logmatrix import finite, soft_sum
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.operators import PairOperator
from rdpgraph.nn.pretrained import Pretrained
from rdpgraph.nn.words import (
    FeatureMap,
    checked_clusters,
    checked_tokens,
    cluster_emission,
    cluster_likelihood,
    log_frequencies,
)
from rdpgraph.structures.chain import rank_hmm
from rdpgraph.structures.chain.model import Chain

_SPREAD, _CLUSTERED_SPREAD = 2.0, 0.5  # standard deviations of the first logits


class HMM(Pretrained):
    """A language model with hidden states: p(tokens) = sum over states of transitions x emissions.

    Every state has embeddings, from which softmaxes make the start, the transitions and the
    emissions. With a ``rank``, transitions are `LowRank.normalised` on a learned `FeatureMap`: a
    sentence of T tokens then costs O(T N r) in place of O(T N^2), and tens of thousands of states
    can be trained. The loss is ``-log_likelihood``. Chiu, Deng and Rush 2021 (arXiv:2201.02715).

    Work for S tokens in all and embeddings of d numbers: S N r for transitions, and N d V for the
    normalisers of the emissions, which is most of it where a batch has few tokens. Memory: S N, and
    N V, of which no more than 2**24 entries at a time; beyond these they are made once more for the
    gradient. With a small vocabulary the r x r matrices of symbols are made once where that is
    faster. Under autocast the products are in its type, and the recursion is in the parameters'.

    With ``clusters`` each token is emitted by the N / K states of its cluster alone, and a state
    is followed by a cluster and then by a state of it: two softmaxes, computed for the tokens of a
    batch alone. S tokens cost S (N / K)^2 and N K d, exactly and without a table of N^2, so that
    dense transitions of tens of thousands of states can be trained. Chiu and Rush 2020, 3.2, where
    one softmax over all N states takes the place of the two.

    Example:
        >>> model = HMM(states=64, vocabulary=20, rank=8)
        >>> tokens = torch.tensor([[3, 1, 4, 1], [5, 9, 0, 0]])
        >>> model.log_likelihood(tokens, torch.tensor([4, 2])).shape
        torch.Size([2])

    Args:
        states: how many, N.
        vocabulary: the number of tokens, V.
        rank: of the transitions; None: a dense N x N softmax.
        transition: in place of a rank, a `Banded` or `Monarch` over the states. Its log-values are
            the first ones of parameters, and rows are normalised at every use.
        clusters: (V,) of each token, from 0 to K - 1, in place of both: `exchange_clusters`.
        dimension: of the embeddings; None: none, and the tables are the parameters.
        dropout: the share of states that each training call leaves out (of each cluster),
            renormalised over the rest; fewer states are also less work. Chiu and Rush 2020
            (arXiv:2011.04640), 3.3.
        counts: (V,) of the tokens in the training text: the emissions begin near their
            frequencies (a token counted 0 as half of one), which saves the first epochs. Default:
            near uniform.
        generator: of the initial parameters. States begin different enough, logits of standard
            deviation 2, to be told apart from the first step on; in clusters, 0.5.

    Raises:
        ModelError: sizes below 1, a dropout outside [0, 1), counts of another shape or below 0, or
            options that exclude each other.
    """

    # Parameters of some kinds of models; None in the others.
    before: Any
    after: Any
    tokens: Any
    leading: Any
    leading_bias: Any
    links: Any
    clusters: Any

    @typed(
        states="[1, inf)",
        vocabulary="[1, inf)",
        rank="[1, inf)",
        dimension="[1, inf)",
        dropout="[0, 1)",
    )
    def __init__(
        self,
        *,
        states: int,
        vocabulary: int,
        rank: int | None = None,
        transition: PairOperator | None = None,
        clusters: Tensor | None = None,
        dimension: int | None = 128,
        dropout: float = 0.0,
        counts: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if transition and (rank or dropout or transition.shape != (states, states)):
            raise ModelError(
                f"HMM with a {type(transition).__name__} transition needs it over its {states} "
                f"states, no rank and no dropout; got {transition.shape}, {rank} and {dropout}."
            )
        if clusters is not None and (rank or transition or not dimension):
            raise ModelError(
                "HMM with clusters needs a dimension, no rank and no transition; got "
                f"{dimension}, {rank} and {transition!r:.40}."
            )
        super().__init__()
        self.dropout, self.rank = dropout, rank
        self.vocabulary, self.dimension = vocabulary, dimension
        # Of products of two, or by itself, a deviation of this.
        spread = _SPREAD if clusters is None else _CLUSTERED_SPREAD
        scale = spread if dimension is None else math.sqrt(spread) / dimension**0.25

        def drawn(size: int, columns: int) -> nn.Parameter:
            return nn.Parameter(scale * torch.randn(size, columns, generator=generator))

        self.start, self.features = nn.Parameter(torch.zeros(states)), None
        self.before = self.after = self.tokens = None
        links = () if transition is None else transition.tensors
        parts = nn.ParameterList(part.detach().clone() for part in links)
        self.links = parts if links else None
        # Its kind and offsets; the values are in `links`.
        zeros = [part.new_zeros(()).expand(part.shape) for part in links]
        self._kind = transition and transition.replaced(zeros)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        columns = dimension or rank or states
        if transition is None:
            self.before = drawn(states, columns)
            self.after = drawn(states, columns) if dimension or rank else None
        self.emitting = drawn(states, dimension or vocabulary)
        self.tokens = drawn(vocabulary, dimension) if dimension else None
        self.register_buffer("clusters", None)
        self.leading = self.leading_bias = None
        self._groups = 1
        if clusters is not None and dimension:
            self.clusters, self._groups = checked_clusters(clusters, vocabulary, states)
            self.leading = drawn(self._groups, dimension)
            self.leading_bias = nn.Parameter(torch.zeros(self._groups))
        if counts is not None:
            frequent = log_frequencies("HMM", counts, self.bias)
            self.bias.data = frequent - frequent.mean()
        if rank and dimension:
            self.features = FeatureMap(dimension, rank, generator=generator)
            self.features.weight.data *= scale

    def log_likelihood(
        self, tokens: Tensor, lengths: Tensor | None = None,
        *, generator: torch.Generator | None = None,
    ) -> Tensor:  # fmt: skip
        """(B,) log-probabilities of sequences in nats, given their lengths; differentiable.

        Args:
            tokens: (B, T) integers; tokens beyond a length are ignored.
            lengths: (B,), default all T.
            generator: of the dropped states, in training.

        Raises:
            EvidenceError: a token that is out of range, or of another shape.
        """
        tokens, lengths = checked_tokens("HMM", tokens, lengths, self.vocabulary)
        active = self._active(generator)
        if self.clusters is not None:
            return self._clustered(tokens, lengths, active)
        transition = self._transition(active)
        if isinstance(transition, LowRank) and tokens.shape[1]:
            symbols, rows = tokens.unique(return_inverse=True)
            quick = rank_hmm.symbols_worthwhile(
                len(symbols), (tokens.shape[0], tokens.shape[1]), transition.shape[0],
                transition.rank, device=tokens.device,
            )  # fmt: skip
            if quick:
                emission = self._emission(symbols, active)
                made = rank_hmm.Symbols.of(self._start(active), transition, emission)
                return made.log_score(rows, lengths)
        return self._chain(tokens, lengths, active, transition).log_partition()

    forward = log_likelihood

    def chain(self, tokens: Tensor, lengths: Tensor | None = None) -> Chain:
        """The distribution of all hidden states given the tokens.

        Raises:
            EvidenceError: as for `log_likelihood`.
        """
        tokens, lengths = checked_tokens("HMM", tokens, lengths, self.vocabulary)
        return self._chain(tokens, lengths, None, self._transition(None))

    def transition(self) -> Tensor | LowRank | PairOperator:
        """The log-probabilities of a state after another, (N, N) or as the model has them."""
        return self._transition(None)

    def emission(self) -> Tensor:
        """Return the (N, V) log-probabilities of the tokens in each state."""
        every = torch.arange(self.vocabulary, device=self.start.device)
        return self._emission(every, None).mT

    def matrices(self) -> tuple[Tensor, Tensor | LowRank | PairOperator, Tensor]:
        """Start (N,), transition and emission, as `Chain.hmm` and `ConstrainedHMM` take them."""
        return self._start(None), self.transition(), self.emission()

    def _chain(
        self, tokens: Tensor, lengths: Tensor, active: Tensor | None,
        transition: Tensor | LowRank | PairOperator,
    ) -> Chain:  # fmt: skip
        unary = self._emission(tokens, active)
        first = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(1) == 0
        unary = torch.where(first, unary + self._start(active), unary)
        return Chain(unary, transition, lengths=lengths)

    def _clustered(self, tokens: Tensor, lengths: Tensor, active: Tensor | None) -> Tensor:
        start, before, after = (
            part.unflatten(0, (self._groups, -1))
            for part in (self._start(active), _some(self.before, active), _some(self.after, active))
        )
        return cluster_likelihood(
            tokens, lengths, self.clusters, start, self._following(before), before, after,
            self._shown(active),
        )  # fmt: skip

    def _following(self, before: Tensor) -> Tensor:
        """(..., K) log-probabilities of the cluster after a state."""
        return (before @ self.leading.mT + self.leading_bias).to(before.dtype).log_softmax(-1)

    def _shown(self, active: Tensor | None) -> Tensor:
        """(V, N / K) log-probabilities of tokens in the states of their clusters."""
        states = _some(self.emitting, active).unflatten(0, (self._groups, -1))
        return cluster_emission(states, self.tokens, self.bias, self.clusters)

    def _start(self, active: Tensor | None) -> Tensor:
        return _shares(_some(self.start, active))

    def _transition(self, active: Tensor | None) -> Tensor | LowRank | PairOperator:
        if self.before is None:
            return self._kind.replaced(list(self.links)).normal()
        before = _some(self.before, active)
        if self.after is None:
            return _shares(before if active is None else before[:, active])
        after = _some(self.after, active)
        if self.tokens is None:
            return LowRank.normalised(before, after)
        if self.clusters is not None:
            within = (before @ after.mT).unflatten(1, (self._groups, -1)).log_softmax(2)
            return (within + self._following(before).unsqueeze(2)).flatten(1)
        if self.features is None:
            return (before @ after.mT).to(before.dtype).log_softmax(1)
        features = (self.features(side).to(side.dtype) for side in (before, after))
        return LowRank.normalised(*features)  # in full, whatever autocast makes of the products

    def _emission(self, tokens: Tensor, active: Tensor | None) -> Tensor:
        """(*tokens.shape, N) log-probabilities of tokens in each state."""
        emitting, known, bias = _some(self.emitting, active), self.tokens, self.bias
        symbols, rows = tokens.unique(return_inverse=True)
        if self.clusters is not None:
            shown, which = self._shown(active)[symbols], self.clusters[symbols].unsqueeze(1)
            places = which * shown.shape[1] + torch.arange(shown.shape[1], device=rows.device)
            wide = shown.new_full((len(symbols), len(emitting)), -math.inf)
            return nn.functional.embedding(rows, wide.scatter(1, places, shown))
        if known is None:
            shown = _shares(emitting + bias)[:, symbols]
            return nn.functional.embedding(rows, shown.mT)

        def total(block: Tensor) -> Tensor:
            """Log-normalisers of some states; made again for the gradient where all are many."""
            return torch.logsumexp(block @ known.mT + bias, 1)

        blocks = emitting.split(tuning.per_block(self.vocabulary, tuning.LARGE_BLOCK))
        totals = [
            total(block) if len(blocks) == 1 else checkpoint(total, block, use_reentrant=False)
            for block in blocks
        ]
        logits = known[symbols] @ emitting.mT + bias[symbols].unsqueeze(1)
        return nn.functional.embedding(rows, logits - torch.cat(totals))  # pyright: ignore

    def _active(self, generator: torch.Generator | None) -> Tensor | None:
        size = len(self.start) // self._groups
        count = max(1, round(size * (1.0 - self.dropout)))
        if not self.training or count == size:
            return None
        device = "cpu" if generator is None else generator.device
        chosen = [
            torch.randperm(size, generator=generator, device=device)[:count].sort().values
            for _ in range(self._groups)
        ]
        first = torch.arange(self._groups, device=device).unsqueeze(1) * size
        return (torch.stack(chosen) + first).flatten().to(self.start.device)

    def extra_repr(self) -> str:
        kind = f"clusters={self._groups}, " if self.clusters is not None else ""
        return (
            f"states={len(self.start)}, {kind}vocabulary={self.vocabulary}, dropout={self.dropout}"
        )


def _shares(logits: Tensor) -> Tensor:
    """Log-probabilities by rows; -inf where all of a row is."""
    return logits - finite(soft_sum(logits, -1)).unsqueeze(-1)


def _some(values: Tensor, active: Tensor | None) -> Tensor:
    return values if active is None else values[active]
