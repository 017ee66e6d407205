"""Parts that models of words share: features of embeddings, clusters, checks of tokens."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph._core.arguments import typed
from rdpgraph._core.masked import present
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.model.potentials.features import RandomFeatures
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.table import as_states, as_values
from rdpgraph.structures.chain.constructors import checked_lengths
from rdpgraph.structures.chain.model import Chain
from rdpgraph.structures.chain.parts import inside


class FeatureMap(nn.Module):
    """Positive features exp(x W) of embeddings, W learned.

    What low-rank models train instead of random features: no estimate of exp(x . y), but a
    different family of potentials, exact. W starts as orthogonal random directions. Chiu, Deng
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
            ModelError: embeddings of another dimension, or with masked entries.
        """
        embeddings = as_values("FeatureMap's embeddings", embeddings)
        if embeddings.ndim < 1 or embeddings.shape[-1] != self.weight.shape[1]:
            raise ModelError(
                f"FeatureMap needs embeddings (*lead, n, {self.weight.shape[1]}); got shape "
                f"{tuple(embeddings.shape)}."
            )
        return embeddings @ self.weight.mT - math.log(len(self.weight)) / 2

    def low_rank(self, left: Tensor, right: Tensor) -> LowRank:
        """The potential of value ``exp(x W) . exp(y W)``, embeddings (*lead, states, dimension)."""
        return LowRank(self(left), self(right))

    def extra_repr(self) -> str:
        return f"dimension={self.weight.shape[1]}, features={len(self.weight)}"


def checked_tokens(
    name: str, tokens: Tensor, lengths: Tensor | None, vocabulary: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return tokens (B, T), 0 beyond the lengths, and lengths (B,), when they are valid.

    Errors call the model ``name``.
    """
    tokens = as_states(f"{name}'s tokens", tokens)
    if tokens.ndim != 2 or tokens.is_floating_point():
        raise EvidenceError(
            f"{name} needs integer tokens (B, T); got {tuple(tokens.shape)} of {tokens.dtype}."
        )
    batch, total = tokens.shape
    if lengths is None:
        lengths = torch.full((batch,), total, device=tokens.device)
    lengths = checked_lengths(lengths, tokens.unsqueeze(-1))
    tokens = torch.where(inside(lengths, total), tokens.long(), 0)
    if vocabulary is not None:
        require_known(f"{name} of {vocabulary} words", tokens, vocabulary)
    return tokens, lengths


def require_known(what: str, tokens: Tensor, vocabulary: int) -> None:
    """Raise an `EvidenceError` for a token out of range."""
    wrong = tokens[(tokens < 0) | (tokens >= vocabulary)]
    if len(wrong):
        raise EvidenceError(f"{what} got token {int(wrong[0])}; use 0 to {vocabulary - 1}.")


_FEW = 0.005  # share of the vocabulary that moves in a round, below which exchange ends
_ROUNDING = 1e-9  # nats that two sums of the same terms may differ by


def cluster_emission(states: Tensor, tokens: Tensor, bias: Tensor, clusters: Tensor) -> Tensor:
    """(V, k) log-probabilities of each token in the k states of its cluster.

    Args:
        states: (K, k, d) embeddings.
        tokens: (V, d) embeddings.
        bias: (V,) of the tokens.
        clusters: (V,) of the tokens.
    """
    order = clusters.argsort(stable=True)
    sizes = torch.bincount(clusters, minlength=len(states)).tolist()
    groups = zip(states, tokens[order].split(sizes), bias[order].split(sizes), strict=True)
    parts = [
        torch.addmm(some, each, known.mT).to(bias.dtype).log_softmax(1).mT
        for each, known, some in groups
    ]
    return torch.cat(parts)[order.argsort()]


def cluster_likelihood(
    tokens: Tensor, lengths: Tensor, clusters: Tensor, start: Tensor, following: Tensor,
    before: Tensor, after: Tensor, emission: Tensor,
) -> Tensor:  # fmt: skip
    """(B,) log-probabilities of sequences; work and memory S k^2 for S tokens in all.

    Links are made for the pairs of clusters that occur, and rows of the batch are taken some at a
    time where the links of all are many; these are made again for the gradient.

    Args:
        tokens: (B, T), 0 beyond the lengths.
        lengths: (B,).
        clusters: (V,) of the tokens, below K.
        start: (K, k) log-probabilities of the first state.
        following: (K, k, K) of the next cluster after a state.
        before: (K, k, d) embeddings of states that are left.
        after: (K, k, d) of states that are reached: a softmax of products in the next cluster.
        emission: (V, k) of a token in the states of its cluster.
    """
    count, size = start.shape

    def some(tokens: Tensor, lengths: Tensor) -> Tensor:
        which = clusters[tokens]
        unary = nn.functional.embedding(tokens, emission)
        unary = torch.cat([unary[:, :1] + start[which[:, :1]], unary[:, 1:]], 1)
        pairs, rows = (which[:, :-1] * count + which[:, 1:]).unique(return_inverse=True)
        source, target = pairs // count, pairs % count
        within = (before[source] @ after[target].mT).to(start.dtype).log_softmax(2)
        links = (within + following[source, :, target].unsqueeze(2)).flatten(1)
        links = nn.functional.embedding(rows, links).unflatten(-1, (size, size))
        return Chain(unary, links, lengths=lengths).log_partition()

    each = tuning.per_block(tokens.shape[1] * size**2, 4 * tuning.LARGE_BLOCK)
    if each >= len(tokens):
        return some(tokens, lengths)
    parts = zip(tokens.split(each), lengths.split(each), strict=True)
    values = [checkpoint(some, *part, use_reentrant=False) for part in parts]
    return torch.cat(values)  # pyright: ignore


def log_frequencies(name: str, counts: Tensor, like: Tensor) -> Tensor:
    """(V,) logs of the counts of tokens, of one counted 0 as half of one."""
    counts = torch.as_tensor(present(f"The counts of {name}", counts)).to(like)
    if counts.shape != like.shape or not bool((counts >= 0).all()):
        raise ModelError(
            f"{name} of {len(like)} tokens needs their counts, ({len(like)},), not below 0; got "
            f"{tuple(counts.shape)}."
        )
    return counts.clamp(min=0.5).log()


def checked_clusters(clusters: Tensor, vocabulary: int, states: int) -> tuple[Tensor, int]:
    """Clusters of a vocabulary, and their number; each has a token, and as many states.

    Raises:
        ModelError: of another shape or kind, one without a token, or states that do not divide.
    """
    clusters = torch.as_tensor(present("The clusters of HMM", clusters))
    whole = not (clusters.is_floating_point() or clusters.is_complex())
    if clusters.shape != (vocabulary,) or not whole or bool((clusters < 0).any()):
        raise ModelError(
            f"HMM of {vocabulary} tokens needs their clusters as integers ({vocabulary},) from 0 "
            f"on; got {tuple(clusters.shape)} of {clusters.dtype}."
        )
    count = int(clusters.max()) + 1
    empty = (torch.bincount(clusters, minlength=count) == 0).nonzero()
    if len(empty) or states % count:
        wrong = f"cluster {int(empty[0])} has none" if len(empty) else f"{states} do not divide"
        raise ModelError(
            f"HMM needs a token in each of its {count} clusters and as many states for each; "
            f"{wrong}."
        )
    return clusters.long(), count


@typed(vocabulary="[1, inf)", clusters="[1, inf)", rounds="[1, inf)")
def exchange_clusters(
    sentences: Sequence[Tensor], vocabulary: int, clusters: int, *, rounds: int = 10
) -> Tensor:
    """(V,) a cluster for each token, by the likelihood of bigrams of clusters.

    Each token in turn, the frequent first, moves to the cluster that makes the text likeliest,
    until fewer than 1 of 200 move, or none. A round costs O(V K + pairs of tokens x K). Kneser and
    Ney 1993; Martin, Liermann and Ney 1998.

    Args:
        sentences: tensors of tokens below ``vocabulary``.
        vocabulary: the number of tokens, V.
        clusters: how many, K, at most V; each keeps at least one token.
        rounds: over the vocabulary, at most.

    Raises:
        ModelError: clusters outside 1 to V, or tokens outside the vocabulary.
    """
    if clusters > vocabulary:
        raise ModelError(f"exchange_clusters needs 1 to {vocabulary} clusters; got {clusters}.")
    plain = [present("The sentences of exchange_clusters", sentence) for sentence in sentences]
    text = [np.asarray(sentence).reshape(-1) for sentence in plain]
    every = np.concatenate([np.zeros(0, int), *text]).astype(int)
    if len(every) and not 0 <= every.min() <= every.max() < vocabulary:
        raise ModelError(f"exchange_clusters got tokens outside 0 to {vocabulary - 1}.")
    # Counts of bigrams, as neighbours of each token: those after it and those before.
    often = np.bincount(every, minlength=vocabulary)
    first = np.concatenate([np.zeros(0, int), *(each[:-1] for each in text)]).astype(int)
    second = np.concatenate([np.zeros(0, int), *(each[1:] for each in text)]).astype(int)
    after, before = (_neighbours(*ends, vocabulary) for ends in ((first, second), (second, first)))
    # The K most frequent tokens start in clusters of their own, the rest round robin.
    order = np.argsort(-often, kind="stable")
    which = np.empty(vocabulary, int)
    which[order] = np.arange(vocabulary) % clusters
    tokens = np.bincount(which, minlength=clusters)
    counts = np.zeros((clusters, clusters))
    np.add.at(counts, (which[first], which[second]), 1.0)
    for _ in range(rounds):
        moved = 0
        for token in order[: int((often > 0).sum())]:
            # Take the token out of its cluster. `out` and `into` count its bigrams with each
            # cluster, `itself` those with itself.
            (to, forth), (back, came) = after[token], before[token]
            out = np.bincount(which[to], forth * (to != token), clusters)
            into = np.bincount(which[back], came * (back != token), clusters)
            itself, old = float(forth[to == token].sum()), int(which[token])
            _add(counts, old, -out, -into, -itself)
            gain = _gain(counts, out, into, itself)
            # The best cluster by the likelihood; a cluster is never emptied, and rounding moves
            # nothing.
            new = int(gain.argmax())
            if tokens[old] == 1 or gain[new] <= gain[old] + _ROUNDING:
                new = old
            _add(counts, new, out, into, itself)
            tokens[old] -= 1
            tokens[new] += 1
            which[token] = new
            moved += new != old
        if moved < _FEW * vocabulary:
            break
    return torch.from_numpy(which)


def _neighbours(
    first: np.ndarray, second: np.ndarray, size: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tokens that occur beside each token, and how often."""
    pairs, often = np.unique(first * size + second, return_counts=True)
    ends = np.searchsorted(pairs, np.arange(1, size) * size)
    return list(zip(np.split(pairs % size, ends), np.split(often, ends), strict=True))


def _add(counts: np.ndarray, place: int, out: np.ndarray, into: np.ndarray, itself: float) -> None:
    """Put a token's pairs among those of a cluster."""
    counts[place] += out
    counts[:, place] += into
    counts[place, place] += itself


def _gain(counts: np.ndarray, out: np.ndarray, into: np.ndarray, itself: float) -> np.ndarray:
    """(K,) the rise of the log-likelihood where a token joins each cluster."""
    to, back, kept = np.nonzero(out)[0], np.nonzero(into)[0], np.diag(counts)
    rows, columns = counts.sum(1) + into, counts.sum(0) + out  # of the others beside the token
    leaving, coming = out.sum() + itself, into.sum() + itself
    gain = _rise(counts[:, to], out[to]).sum(1) + _rise(counts[back], into[back][:, None]).sum(0)
    gain += _entropic(kept + out + into + itself) + _entropic(kept)  # counted in neither, or twice
    gain -= _entropic(kept + out) + _entropic(kept + into)
    return gain - _rise(rows, leaving) - _rise(columns, coming)


def _rise(counts: np.ndarray, more: np.ndarray | float) -> np.ndarray:
    return _entropic(counts + more) - _entropic(counts)


def _entropic(counts: np.ndarray) -> np.ndarray:
    """Whole numbers times their logs."""
    return counts * np.log(np.maximum(counts, 1.0))
