"""Links: what lies between the labels of one value and those of the next."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph._core.cache import differentiable_property
from rdpgraph.logspace.logmatrix import LogMatrix
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import looked_up
from rdpgraph.structures.recursion.rules import Rules
from rdpgraph.structures.recursion.step import in_blocks, soft

_SMALL = 256  # entries of a table that is summed in logs rather than multiplied
_BLOCK = 2**20  # terms that are made at a time where they are made again for the gradient
_FEW = 2**15  # looked-up values that are kept
_CELLS = 2**24  # terms that are held at a time where nothing is differentiated


@dataclass(frozen=True, eq=False)
class Table:
    """Log-values between all labels.

    Attributes:
        values: (B or 1, P or 1, I, J) nats.
    """

    values: Tensor

    @property
    def width(self) -> int:
        """J, the number of labels after the link."""
        return self.values.shape[-1]

    def logs(self) -> Tensor:
        """(B or 1, P or 1, I, J)."""
        return self.values

    def into(self, item: Tensor, place: Tensor, label: Tensor) -> Tensor:
        """(Q, I) from all labels to those at some places."""
        batch, places = self.values.shape[:2]
        if places > 1:
            return self.values[item if batch > 1 else item * 0, place, :, label]
        return self.values[:, 0][item, :, label] if batch > 1 else self.values[0, 0].mT[label]

    @differentiable_property
    def matrix(self) -> LogMatrix:
        """From new labels to old ones, of each item."""
        logs = self.values.mT
        return LogMatrix.of(logs.squeeze(1) if logs.shape[1] == 1 else logs)

    def sums(self, x: Tensor, temperature: float) -> Tensor:
        """(B, P, J) sums over the labels of (B or 1, P or 1, I)."""
        if temperature == 0.0 and self.values.shape[1] == 1 and not torch.is_grad_enabled():
            rows = self.values.mT
            blocks = in_blocks(x.numel() * self.width, (x,), 1)
            return torch.cat([(own.unsqueeze(2) + rows).amax(3) for (own,) in blocks], 1)
        if temperature != 1.0 or math.prod(self.values.shape[-2:]) <= _SMALL:
            return in_parts(x, self.values, temperature)
        if self.values.shape[1] > 1:
            return self.matrix.times(x.unsqueeze(-2)).squeeze(-2)
        return self.matrix.times(x)


@dataclass(frozen=True, eq=False)
class LookupLink:
    """Log-values between the labels that are kept, looked up when they are asked for.

    Attributes:
        source: a table (n, 1, N, M), of which item b has number b mod n, or a potential without
            leading dims.
        before: (B, P, I) states; None: all.
        after: (B, P, J) states; None: all.
    """

    source: Tensor | Potential
    before: Tensor | None
    after: Tensor | None
    _few: list[Tensor] = field(default_factory=list[Tensor], init=False)

    @property
    def width(self) -> int:
        """J, the number of labels after the link."""
        return self._sizes[1] if self.after is None else self.after.shape[-1]

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(self.source.shape[-2:])

    def logs(self) -> Tensor:
        """(B, P, I, J); a few are kept, for a pass up is followed by one down."""
        if torch.is_grad_enabled():
            return self._evaluate(self._states(0), self._states(1))
        if not self._few:
            logs = self._evaluate(self._states(0), self._states(1))
            if logs.numel() > _FEW:
                return logs
            self._few.append(logs)
        return self._few[0]

    def into(self, item: Tensor, place: Tensor, label: Tensor) -> Tensor:
        """(Q, I) from all labels to those at some places."""
        before, after = self._states(0), self._states(1)
        before = before[item if len(before) > 1 else item * 0, place * (before.shape[1] > 1)]
        after = after[item * (len(after) > 1), place * (after.shape[1] > 1), label]
        if isinstance(self.source, Potential):
            return self.source.evaluate([before, after.unsqueeze(-1)]).squeeze(-1)
        if self.source.shape[0] == 1:
            return looked_up(self.source[0, 0], (before, after.unsqueeze(1)))
        item = (item % len(self.source)).unsqueeze(1)
        return looked_up(self.source.squeeze(1), (item, before, after.unsqueeze(1)))

    def sums(self, x: Tensor, temperature: float) -> Tensor:
        """(B, P, J) sums over the labels of (B, P, I)."""
        return by_places(self, x, temperature)

    def part(self, first: int, last: int) -> "LookupLink":
        """At some of the places."""
        return LookupLink(
            self.source, _some(self.before, first, last), _some(self.after, first, last)
        )

    def _states(self, slot: int) -> Tensor:
        given = (self.before, self.after)[slot]
        if given is not None:
            return given
        return torch.arange(self._sizes[slot], device=self.source.device).reshape(1, 1, -1)

    def _evaluate(self, before: Tensor, after: Tensor) -> Tensor:
        if isinstance(self.source, Potential):
            return self.source.evaluate([before, after])
        if self.source.shape[0] == 1:
            table = self.source[0, 0]
            if self.after is None or self.before is None:
                return table[before] if self.after is None else table.mT[after].mT
            return looked_up(table, (before.unsqueeze(-1), after.unsqueeze(-2)))
        item = torch.arange(max(len(before), len(after)), device=before.device) % len(self.source)
        # Whole rows and columns are copied as such.
        if self.after is None:
            return self.source[item.reshape(-1, 1, 1), 0, before]
        if self.before is None:
            return self.source.mT[item.reshape(-1, 1, 1), 0, after].mT
        index = item.reshape(-1, 1, 1, 1), before.unsqueeze(-1), after.unsqueeze(-2)
        return looked_up(self.source.squeeze(1), index)


@dataclass(frozen=True, eq=False)
class RuleLink:
    """Rules from the pairs of labels of two parts to those of the whole, all of them kept ones.

    Attributes:
        rules: flat.
        left: (B, P, C) states.
        right: (B, P, E) states.
        whole: (B, P, J) states.
    """

    rules: Rules
    left: Tensor
    right: Tensor
    whole: Tensor

    @property
    def width(self) -> int:
        """J, the number of labels after the link."""
        return self.whole.shape[-1]

    def logs(self) -> Tensor:
        """(B, P, C * E, J)."""
        return self.rules.evaluate(self.whole, self.left, self.right).flatten(-2).mT

    def into(self, item: Tensor, place: Tensor, label: Tensor) -> Tensor:
        """(Q, C * E) from all pairs of labels to those at some places."""
        left, right = self.left[item, place], self.right[item, place]
        whole = self.whole[item, place, label].unsqueeze(1)
        return self.rules.item(item).evaluate(whole, left, right).flatten(1)

    def sums(self, x: Tensor, temperature: float) -> Tensor:
        """(B, P, J) sums over the pairs of labels, (B, P, C * E)."""
        return by_places(self, x, temperature)

    def part(self, first: int, last: int) -> "RuleLink":
        """At some of the places."""
        cut = (part[:, first:last] for part in (self.left, self.right, self.whole))
        return RuleLink(self.rules, *cut)


Link = Table | LookupLink | RuleLink


def by_places(link: LookupLink | RuleLink, x: Tensor, temperature: float) -> Tensor:
    """(B, P, J) soft sums, a part of the places at a time, whose terms the gradient makes again."""
    after = link.after if isinstance(link, LookupLink) else link.whole
    places = max(x.shape[1], after.shape[1] if after is not None else 1)
    width = max(1, _BLOCK // max(1, len(x) * x.shape[2] * link.width))
    if places <= width:
        return in_parts(x, link.logs(), temperature)

    def block(own: Tensor, first: int) -> Tensor:
        return in_parts(own, link.part(first, first + width).logs(), temperature)

    blocks: list[Tensor] = []
    for first in range(0, places, width):
        own = x if x.shape[1] == 1 else x[:, first : first + width]
        if torch.is_grad_enabled():
            made: Tensor = checkpoint(  # pyright: ignore
                block, own, first, use_reentrant=False, preserve_rng_state=False
            )
            blocks.append(made)
        else:
            blocks.append(block(own, first))
    return torch.cat(blocks, 1)


def _some(states: Tensor | None, first: int, last: int) -> Tensor | None:
    return states if states is None or states.shape[1] == 1 else states[:, first:last]


def in_parts(x: Tensor, logs: Tensor, temperature: float) -> Tensor:
    """(B, P, J) soft sums of (B, P, I) and (B, P, I, J), a part of the columns at a time."""
    most = x.numel() * logs.numel() // max(1, logs.shape[-2])
    if torch.is_grad_enabled() or most <= _CELLS:
        return soft(x.unsqueeze(-1) + logs, 2, temperature)
    batch, places = (max(x.shape[dim], logs.shape[dim]) for dim in (0, 1))
    terms = batch * places * logs.shape[-2] * logs.shape[-1]
    width = max(1, _CELLS * logs.shape[-1] // terms)
    parts = logs.split(width, -1)
    return torch.cat([soft(x.unsqueeze(-1) + part, 2, temperature) for part in parts], -1)
