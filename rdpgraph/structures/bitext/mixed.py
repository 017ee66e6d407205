"""Bitexts of rules that mix words and up to three parts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.interface.masks import Masks
from rdpgraph.interface.structure import is_tracked
from rdpgraph.logspace.gradients import by_autograd, expectations
from rdpgraph.model.potentials.table import checked_log_values, settle, taken
from rdpgraph.structures.bitext.emission import ORDERS, Emission, layouts
from rdpgraph.structures.bitext.mixed_masks import MixedMasks
from rdpgraph.structures.checks import settle_lengths
from rdpgraph.structures.grammar.trees import middle, parts_of
from rdpgraph.structures.recursion.recursion import Recursion
from rdpgraph.structures.recursion.tape import Tape, Way
from rdpgraph.structures.recursion.values import Value


@dataclass(frozen=True, eq=False)
class MixedBitext(Recursion):
    """Trees over two sentences of rules that mix words with up to three parts, in any order.

    The grammar of Bouchard-Côté, Petrov and Klein 2009. A constituent is a bispan, words i..k-1 of
    the source and j..l-1 of the target, at least one of each. Its rule lays out either side as
    parts, which are constituents, and stretches of words, at most three of both together: no part;
    one part and words before or after it; two parts, and words before, between or after them;
    three parts. Words of one rule are aligned with each other, many to many, and with nothing
    where the rule has none of the other side. The score of a tree is the sum of `unary` over its
    constituents, of `rules`, and of the words of rules: `pairs` over the pairs that are aligned,
    `source` and `target` over words that are aligned with none.

    O(p^4 q^4) time, all constituents of one size at once. A bispan of few words stands in many
    trees: two that have the same alignments count as two. Sites are bispans, of one state; two
    sentences without words have one tree, of score 0, and one without the other has none.

    Args:
        unary: (*batch, p + 1, p + 1, q + 1, q + 1, 1) log-potentials (nats), [i, k, j, l, 0];
            -inf forbids. What lacks words on a side is ignored.
        pairs: (*batch, p, q) of words that one rule has, nats.
        source: (*batch, p) of source words of a rule that has no target words.
        target: (*batch, q) of target words of a rule that has no source words.
        rules: (10,) of the rules of no part, of one, of two straight and inverted, and of three
            in the orders 123, 132, 213, 231, 312 and 321: place in the target of the first,
            second and third of the source. Default: zeros. Batch dims that pairs, source or target
            lack, or that are 1, broadcast.
        source_lengths: (*batch,) integers in 0..p; default: all p.
        target_lengths: (*batch,) integers in 0..q; default: all q.

    Raises:
        ModelError: shapes that do not fit, a length out of range.

    Example:
        >>> bitext = MixedBitext.words(torch.zeros(1, 2), torch.zeros(1), torch.zeros(2))
        >>> bitext.log_partition().exp()  # both words by one rule; or one of them is null
        tensor(3.)
    """

    pairs: Tensor = field(metadata={"dims": 2})
    source: Tensor = field(metadata={"dims": 1})
    target: Tensor = field(metadata={"dims": 1})
    rules: Tensor | None = field(default=None, kw_only=True)
    source_lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})
    target_lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    site_dims = 4

    def __post_init__(self) -> None:
        names = "unary", "pairs", "source", "target", "rules"
        settle(self, *names, whole=("source_lengths", "target_lengths"))
        checked_log_values("MixedBitext's unary", self.unary)
        shape, batch = tuple(self.unary.shape), self.batch_shape
        p, q = (max(size - 1, 0) for size in (shape[-4:-1:2] if len(shape) > 4 else (0, 0)))
        wanted = {
            "unary": (*batch, p + 1, p + 1, q + 1, q + 1, 1),
            "pairs": (*batch, p, q),
            "source": (*batch, p),
            "target": (*batch, q),
            "rules": (len(ORDERS),),
        }
        for name, size in wanted.items():
            if (given := getattr(self, name)) is None:
                continue
            checked_log_values(f"MixedBitext's {name}", given)
            try:
                object.__setattr__(self, name, given.expand(size))
            except RuntimeError:
                raise ModelError(
                    f"MixedBitext of unary (*batch, p + 1, p + 1, q + 1, q + 1, 1) needs {name} "
                    f"{size}; got {tuple(given.shape)}."
                ) from None
        settle_lengths(self, source_lengths=p, target_lengths=q)

    @classmethod
    def words(cls, pairs: Tensor, source: Tensor, target: Tensor, **rest: Any) -> "MixedBitext":
        """The trees that only words and rules score: `unary` is zero. The rest are other fields."""
        pairs = taken("MixedBitext's pairs", pairs)
        if pairs.ndim < 2:
            raise ModelError(
                f"MixedBitext.words needs pairs (*batch, p, q); got {tuple(pairs.shape)}."
            )
        *batch, p, q = pairs.shape
        return cls(pairs.new_zeros(*batch, p + 1, p + 1, q + 1, q + 1, 1), pairs, source, target,
                   **rest)  # fmt: skip

    @by_autograd
    def pair_marginals(self) -> Tensor:
        """(*batch, p, q) the probability that a source and a target word are aligned.

        The gradient of log Z in the pairs; differentiable if anything in the bitext is.
        """
        _, (gradient,) = expectations(
            lambda pairs: replace(self, pairs=pairs).log_partition(),
            [self.pairs],
            tracked=is_tracked(self),
        )
        return gradient

    def bispan_marginals(self) -> Tensor:
        """(*batch, p + 1, p + 1, q + 1, q + 1) the probability of each constituent."""
        return self.marginals().squeeze(-1)

    def masks(self) -> Masks:
        """Whether one rule has two words, for each pair of them."""
        return MixedMasks(
            self, self.source_lengths, self.target_lengths,
            self.pairs, self.source, self.target, self.rules,
        )  # fmt: skip

    def place(self, site: tuple[int, ...]) -> tuple[float, float] | None:
        """The middle of a bispan in the grid of both sentences."""
        return middle(site)

    def joined(self, used: Mapping[tuple[int, ...], int]) -> list[tuple[Any, Any]]:
        """Bispans and their parts."""
        return parts_of(used)

    def recursion(self, tape: Tape) -> Value:
        """By size: every kind of rule, in all its layouts."""
        p, q = tape.site_shape[0] - 1, tape.site_shape[2] - 1
        emission = Emission(
            tape.flat(self.pairs, 2), tape.flat(self.source, 1), tape.flat(self.target, 1)
        )
        done, cpu = list[Value](), torch.device("cpu")
        stand = torch.full((p + 1, p + 1, q + 1, q + 1), -1, device=cpu)
        sizes = ((w, h) for w in range(1, p + 1) for h in range(1, q + 1))
        for w, h in sorted(sizes, key=sum):
            i = torch.arange(p + 1 - w, device=cpu).repeat_interleave(q + 1 - h)
            j = torch.arange(q + 1 - h, device=cpu).repeat(p + 1 - w)
            ways: list[Way] = []
            for kind in range(len(ORDERS)):
                parts, rows, columns = layouts(w, h, kind)
                if not len(parts):
                    continue
                shift = torch.stack([i, i, j, j], 1)
                ends = (parts.unsqueeze(2) + shift).movedim(3, 0)  # (4, M, parts, P)
                rows, columns = (
                    (own.unsqueeze(1) + at.reshape(-1, 1, 1)).flatten(0, 1)
                    for own, at in ((rows, i), (columns, j))
                )
                logs = emission.scores(None, rows.to(tape.device), columns.to(tape.device))
                if self.rules is not None:
                    logs = logs + self.rules[kind]
                words = tape.leaf(logs.to(tape.dtype).unsqueeze(-1))
                each = torch.arange(len(parts) * len(i), device=cpu).reshape(len(parts), -1)
                way = [tape.view(words, each)]
                way += [tape.view(done, stand[tuple(ends[:, :, n])]) for n in range(ends.shape[2])]
                ways.append(tuple(way))
            site = tape.sites[i, i + w, j, j + h]
            done.append(tape.sum(tape.total((site, tape.total(*ways)))))
            stand[i, i + w, j, j + h] = stand.max() + 1 + torch.arange(len(i), device=cpu)
        source = tape.lengths(self.source_lengths, p)
        target = tape.lengths(self.target_lengths, q)
        empty = tape.allowed(((source == 0) & (target == 0)).unsqueeze(1))
        if not done:
            return empty
        last = stand.to(tape.device)[0, source, 0, target].reshape(-1, 1, 1)
        return tape.total(tape.total(tape.view(done, last)), empty)
