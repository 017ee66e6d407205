"""Links between the labels of one value and the next, and the tensors they are made from."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph._core.cache import differentiable_property
from rdpgraph._core.types import broadcasts
from rdpgraph.errors import ModelError
from rdpgraph.logspace.logmatrix import LogMatrix
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import looked_up
from rdpgraph.structures.grammar.rules import FactorisedRules, LowRankRules, Rules
from rdpgraph.structures.recursion.step import in_blocks, soft


@dataclass(frozen=True, eq=False)
class Table:
    """Log-values between all labels.

    Attributes:
        values: (n, 1, I, J) nats, of n items in turn.
        source: (n, S, I, J) the tables that it is one of.
        number: its place among them.
        copies: how often the items are repeated, if there is more than one.
    """

    values: Tensor
    source: Tensor
    number: int = 0
    copies: int = 1

    @property
    def width(self) -> int:
        """J, the number of labels after the link."""
        return self.values.shape[-1]

    def logs(self) -> Tensor:
        """(B or 1, 1, I, J)."""
        return self.values if self.copies == 1 else self.values.repeat(self.copies, 1, 1, 1)

    def into(self, item: Tensor, place: Tensor, label: Tensor) -> Tensor:
        """(Q, I) from all labels to a label at each of some places."""
        rows = self.values.squeeze(1)
        return rows[0].mT[label] if len(rows) == 1 else rows[item % len(rows), :, label]

    @differentiable_property
    def matrix(self) -> LogMatrix:
        """The transposed table, from new labels to old ones, for products."""
        return LogMatrix.of(self.logs().squeeze(1).mT)

    def sums(self, x: Tensor, temperature: float) -> Tensor:
        """(B, P, J) soft sums over the labels of (B or 1, P or 1, I)."""
        if temperature == 0.0 and not torch.is_grad_enabled():
            rows = self.logs().mT
            blocks = in_blocks(x.numel() * self.width, (x,), 1)
            return torch.cat([(block.unsqueeze(2) + rows).amax(3) for (block,) in blocks], 1)
        if temperature != 1.0 or math.prod(self.values.shape[-2:]) <= tuning.LOGGED_ENTRIES:
            return in_parts(x, self.logs(), temperature)
        return self.matrix.times(x)


@dataclass(frozen=True, eq=False)
class LookupLink:
    """Log-values between kept labels, looked up on demand."""

    # A table (n, 1, N, M), of which item b has row b mod n, or a potential without leading dims.
    source: Tensor | Potential
    before: Tensor | None  # (B, P, I) states; None: all
    after: Tensor | None  # (B, P, J) states; None: all

    @property
    def width(self) -> int:
        """J, the number of labels after the link."""
        return self._sizes[1] if self.after is None else self.after.shape[-1]

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(self.source.shape[-2:])

    def logs(self) -> Tensor:
        """(B, P, I, J)."""
        return self._evaluate(self._states(0), self._states(1))

    def into(self, item: Tensor, place: Tensor, label: Tensor) -> Tensor:
        """(Q, I) from all labels to a label at each of some places."""
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
        """(B, P, J) soft sums over the labels of (B, P, I)."""
        return by_places(self, x, temperature)

    def part(self, first: int, last: int) -> "LookupLink":
        """The link at a range of places."""
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
        item = torch.arange(max(len(before), len(after)), device=before.device)
        item = item % max(len(self.source), 1)
        # Copy whole rows or columns.
        if self.after is None:
            return self.source[item.reshape(-1, 1, 1), 0, before]
        if self.before is None:
            return self.source.mT[item.reshape(-1, 1, 1), 0, after].mT
        index = item.reshape(-1, 1, 1, 1), before.unsqueeze(-1), after.unsqueeze(-2)
        return looked_up(self.source.squeeze(1), index)


@dataclass(frozen=True, eq=False)
class RuleLink:
    """Rules from pairs of kept labels of two parts to kept labels of the whole."""

    rules: Rules  # flat
    left: Tensor  # (B, P, C) states
    right: Tensor  # (B, P, E) states
    whole: Tensor  # (B, P, J) states

    @property
    def width(self) -> int:
        """J, the number of labels after the link."""
        return self.whole.shape[-1]

    def logs(self) -> Tensor:
        """(B, P, C * E, J)."""
        return self.rules.evaluate(self.whole, self.left, self.right).flatten(-2).mT

    def into(self, item: Tensor, place: Tensor, label: Tensor) -> Tensor:
        """(Q, C * E) from all pairs of labels to a label at each of some places."""
        left, right = self.left[item, place], self.right[item, place]
        whole = self.whole[item, place, label].unsqueeze(1)
        return self.rules.item(item).evaluate(whole, left, right).flatten(1)

    def sums(self, x: Tensor, temperature: float) -> Tensor:
        """(B, P, J) soft sums over the pairs of labels, (B, P, C * E)."""
        return by_places(self, x, temperature)

    def part(self, first: int, last: int) -> "RuleLink":
        """The link at a range of places."""
        cut = (part[:, first:last] for part in (self.left, self.right, self.whole))
        return RuleLink(self.rules, *cut)


Link = Table | LookupLink | RuleLink


def by_places(link: LookupLink | RuleLink, x: Tensor, temperature: float) -> Tensor:
    """(B, P, J) soft sums in blocks of places, recomputed for the gradient."""
    after = link.after if isinstance(link, LookupLink) else link.whole
    places = max(x.shape[1], after.shape[1] if after is not None else 1)
    width = tuning.per_block(len(x) * x.shape[2] * link.width, tuning.CACHE_BLOCK)
    if places <= width:
        return in_parts(x, link.logs(), temperature)

    def block(given: Tensor, first: int) -> Tensor:
        return in_parts(given, link.part(first, first + width).logs(), temperature)

    blocks: list[Tensor] = []
    for first in range(0, places, width):
        given = x if x.shape[1] == 1 else x[:, first : first + width]
        if torch.is_grad_enabled():
            made: Tensor = checkpoint(  # pyright: ignore
                block, given, first, use_reentrant=False, preserve_rng_state=False
            )
            blocks.append(made)
        else:
            blocks.append(block(given, first))
    return torch.cat(blocks, 1)


def _some(states: Tensor | None, first: int, last: int) -> Tensor | None:
    return states if states is None or states.shape[1] == 1 else states[:, first:last]


def in_parts(x: Tensor, logs: Tensor, temperature: float) -> Tensor:
    """(B, P, J) soft sums of (B, P, I) and (B, P, I, J), in blocks of columns."""
    most = x.numel() * logs.numel() // max(1, logs.shape[-2])
    if torch.is_grad_enabled() or most <= tuning.LARGE_BLOCK:
        return soft(x.unsqueeze(-1) + logs, 2, temperature)
    batch, places = (max(x.shape[dim], logs.shape[dim]) for dim in (0, 1))
    terms = batch * places * logs.shape[-2] * logs.shape[-1]
    width = max(1, tuning.LARGE_BLOCK * logs.shape[-1] // terms)
    parts = logs.split(width, -1)
    return torch.cat([soft(x.unsqueeze(-1) + part, 2, temperature) for part in parts], -1)


RulesT = TypeVar("RulesT", bound=Rules)


@dataclass(frozen=True, eq=False)
class Sources:
    """Tensors and tables by their source."""

    lead: tuple[int, ...]  # the batch dims of the tape
    dtype: torch.dtype  # of its log-values
    known: dict[tuple[Any, ...], Any] = field(
        default_factory=dict[tuple[Any, ...], Any], init=False
    )

    def once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """A cached object, made if absent."""
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def derived(self, owner: Any, make: Callable[[Any], Tensor]) -> Tensor:
        """One tensor for each owner, so that its links are recognised as one."""
        return self.once(("derived", id(owner)), lambda: (owner, make(owner)))[1]

    def rules(self, rules: RulesT) -> RulesT:
        """Rules of one batch dim, 1 or that of the tape, in its dtype."""

        def made() -> tuple[RulesT, RulesT]:
            flat = rules.flat(self.lead)
            return rules, flat.with_parts([part.to(self.dtype) for part in flat.parts])

        return self.once(("rules", id(rules)), made)[1]

    def ranks(self, rules: LowRankRules | FactorisedRules) -> tuple[Tensor, Tensor, Tensor]:
        """(*batch, C, r) from left and right parts to the ranks, and (*batch, r, C) to parents."""

        def made() -> tuple[object, tuple[Tensor, Tensor, Tensor]]:
            parent, left, right = rules.ranks()
            return rules, (left, right, parent.mT)

        return self.once(("ranks", id(rules)), made)[1]

    def source(self, potential: Tensor | Potential) -> Tensor | Potential:
        """A table (batch or 1, 1, N, M), or a potential without leading dims.

        Replicates and draws on the tape share the table of an item.
        """

        def made() -> tuple[object, Tensor | Potential]:
            if isinstance(potential, Potential) and not potential.lead(2):
                return potential, potential
            table = potential.table(2) if isinstance(potential, Potential) else potential
            # Hold the potential, so that its id is not reused.
            return potential, self._of_items(table, 2)

        return self.once(("source", id(potential)), made)[1]

    def _of_items(self, tables: Tensor, dims: int) -> Tensor:
        """(n, S, N, M) the tables of n items, repeated by replicates, of 2 dims or 3 each."""
        own, many = tables.shape[tables.ndim - dims :], tables.ndim - dims
        if math.prod(tables.shape[:many]) != 1:
            lead = self.lead[max(len(self.lead) - many, 0) :]
            if not broadcasts(tables.shape[:many], lead):
                raise ModelError(
                    f"Tape.link needs values of the batch, {lead}; got {tuple(tables.shape)}."
                )
            tables = tables.expand(*lead, *own)
        return tables.reshape(-1, *(1,) * (3 - dims), *own)

    def _copies(self, items: int) -> int:
        return math.prod(self.lead) // items if items > 1 else 1

    def table(self, source: Tensor | Potential) -> Table:
        """The table of a source."""

        def made() -> Table:
            tables = source if isinstance(source, Tensor) else source.table(2)[None, None]
            tables = tables.to(self.dtype)
            return Table(tables, tables, copies=self._copies(len(tables)))

        return self.once(("table", id(source)), made)

    def one_of(self, potential: Tensor, at: int) -> Tensor:
        """One of several tables (*batch, S, N, M); the same tensor whenever it is asked for."""
        parts = self.once(("parts", id(potential)), lambda: (potential, potential.unbind(-3)))[1]
        return parts[at]

    def numbered(self, potential: Tensor, at: int) -> Table:
        """A table of one of several (*batch, S, N, M), which all lie in one tensor."""

        def made() -> tuple[object, Tensor, Sequence[Tensor]]:
            whole = self._of_items(potential, 3).to(self.dtype)
            return potential, whole, whole.split(1, 1)

        _, whole, parts = self.once(("tables", id(potential)), made)
        return Table(parts[at], whole, at, self._copies(len(whole)))
