"""IBM Model 1 by EM, in both directions, and what it says of a pair of sentences."""

import gzip
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

Pair = tuple[list[int], list[int]]
"""The numbers of the words of a source and of a target sentence; 0 is the null word."""


def read_pairs(folder: Path, name: str = "train", *, most: int | None = None) -> list[Pair]:
    """The sentence pairs of multi30k, English and German, as numbers of words."""
    sides: list[list[list[int]]] = []
    for language in ("en", "de"):
        with gzip.open(folder / f"{name}.{language}.gz", "rt", encoding="utf-8") as lines:
            sentences = [line.split() for line in lines][:most]
        counts = Counter(word for sentence in sentences for word in sentence)
        # Words seen once are one word.
        known = [word for word, count in counts.items() if count > 1]
        numbers = {word: number for number, word in enumerate(known, 2)}
        sides.append([[numbers.get(word, 1) for word in sentence] for sentence in sentences])
    return [(source, target) for source, target in zip(*sides, strict=True) if source and target]


@dataclass(frozen=True)
class Model1:
    """The probabilities t(target word | source word), of the pairs of words seen together.

    Attributes:
        keys: (n,) source number * width + target number, rising.
        values: (n,) their probabilities.
        width: how many target words there are.
    """

    keys: Tensor
    values: Tensor
    width: int

    @classmethod
    def trained(cls, pairs: list[Pair], *, iterations: int = 5, width: int = 0) -> "Model1":
        """Train by EM: each target word comes from one source word, or from null."""
        width = max(width, 1 + max(max(target) for _, target in pairs))
        keys, groups, group = [], [], 0
        for source, target in pairs:
            source_words = torch.tensor([0, *source])
            target_words = torch.tensor(target)
            keys.append((source_words * width + target_words.unsqueeze(1)).flatten())
            numbers = torch.arange(group, group + len(target))
            groups.append(numbers.repeat_interleave(len(source_words)))
            group += len(target)
        seen, place = torch.cat(keys).unique(return_inverse=True)
        token = torch.cat(groups)
        of_source = seen // width
        values = torch.ones(len(seen), dtype=torch.float64)
        for _ in range(iterations):
            shares = values[place]
            total = torch.zeros(group, dtype=torch.float64).index_add_(0, token, shares)
            shares = shares / total[token]
            counts = torch.zeros(len(seen), dtype=torch.float64).index_add_(0, place, shares)
            norm = torch.zeros(int(of_source.max()) + 1, dtype=torch.float64)
            values = counts / norm.index_add_(0, of_source, counts)[of_source]
        return cls(seen, values, width)

    def table(self, source: list[int], target: list[int]) -> Tensor:
        """(p + 1, q) the probability of each target word given null and each source word."""
        asked = torch.tensor([0, *source]).unsqueeze(1) * self.width + torch.tensor(target)
        place = torch.searchsorted(self.keys, asked).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[place] == asked, self.values[place], 0.0).clamp(min=1e-7)


@dataclass(frozen=True)
class Lexicon:
    """Model 1 in both directions.

    Attributes:
        forward: of target words given source words.
        backward: of source words given target words.
    """

    forward: Model1
    backward: Model1

    @classmethod
    def trained(
        cls, pairs: list[Pair], *, iterations: int = 5, first: int | None = None
    ) -> "Lexicon":
        """Train on sentence pairs, or the first of them; the others have words of theirs too."""
        turned = [(target, source) for source, target in pairs]
        ways = [
            Model1.trained(
                own[:first], iterations=iterations, width=1 + max(max(words) for _, words in own)
            )
            for own in (pairs, turned)
        ]
        return cls(ways[0], ways[1])

    def tables(self, pair: Pair) -> tuple[Tensor, Tensor]:
        """(p + 1, q) and (p, q + 1): null first, by either side."""
        source, target = pair
        return self.forward.table(source, target), self.backward.table(target, source).T

    def scores(self, pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
        """Log-scores of pairs of words (p, q), and of words alone (p,) and (q,).

        Halfway between the logs of both directions, so that a pair and two words alone are
        explained by as much probability.
        """
        forward, backward = self.tables(pair)
        pairs = 0.5 * (forward[1:].log() + backward[:, 1:].log())
        return pairs, 0.5 * backward[:, 0].log(), 0.5 * forward[0].log()

    def posteriors(self, pair: Pair) -> Tensor:
        """(p, q) the product of the probabilities that either word comes from the other."""
        forward, backward = self.tables(pair)
        ahead = forward / forward.sum(0)
        back = backward / backward.sum(1, keepdim=True)
        return ahead[1:] * back[:, 1:]

    def links(self, pair: Pair) -> Tensor:
        """(p, q) bool: pairs of which either word is the likeliest source of the other.

        The intersection of both directions: few, and mostly right.
        """
        forward, backward = self.tables(pair)
        ahead = forward.argmax(0).unsqueeze(0) == torch.arange(1, len(forward)).unsqueeze(1)
        back = backward.argmax(1, keepdim=True) == torch.arange(1, backward.shape[1])
        return ahead & back
