"""What the links of one tape are made from, each made once."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.shapes import broadcasts
from rdpgraph.errors import ModelError
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.structures.recursion.links import Table
from rdpgraph.structures.recursion.rules import FactorisedRules, LowRankRules, Rules

RulesT = TypeVar("RulesT", bound=Rules)


@dataclass(frozen=True, eq=False)
class Sources:
    """Tensors and tables by what they were made from.

    Attributes:
        lead: the batch dims of the tape.
        dtype: of its log-values.
    """

    lead: tuple[int, ...]
    dtype: torch.dtype
    known: dict[tuple[Any, ...], Any] = field(
        default_factory=dict[tuple[Any, ...], Any], init=False
    )

    def once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What was made under that key, or is now."""
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def derived(self, owner: Any, make: Callable[[Any], Tensor]) -> Tensor:
        """One tensor for each owner, so that links by it are recognised as one."""
        return self.once(("derived", id(owner)), lambda: (owner, make(owner)))[1]

    def rules(self, rules: RulesT) -> RulesT:
        """Rules of one batch dim, 1 or that of the tape, in its type."""

        def made() -> tuple[RulesT, RulesT]:
            flat = rules.flat(self.lead)
            return rules, flat.with_parts([part.to(self.dtype) for part in flat.parts])

        return self.once(("rules", id(rules)), made)[1]

    def ranks(self, rules: LowRankRules | FactorisedRules) -> tuple[Tensor, Tensor, Tensor]:
        """(*batch, C, r) from left and right parts to the ranks, and (*batch, r, C) to parents."""
        return self.once(("ranks", id(rules)), lambda: (rules, _ranks(rules)))[1]

    def source(self, potential: Tensor | Potential) -> Tensor | Potential:
        """A table (batch or 1, 1, N, M), or a potential without leading dims; in their own type.

        Where the tape has replicates of the batch, or draws, they share the table of an item.
        """

        def made() -> tuple[object, Tensor | Potential]:
            if isinstance(potential, Potential) and not potential.lead(2):
                return potential, potential
            table = potential.table(2) if isinstance(potential, Potential) else potential
            if math.prod(table.shape[:-2]) != 1:
                own = self.lead[max(len(self.lead) - table.ndim + 2, 0) :]
                if not broadcasts(table.shape[:-2], own):
                    raise ModelError(
                        f"Tape.link needs log-values of the batch, {own}; got {tuple(table.shape)}."
                    )
                table = table.expand(*own, *table.shape[-2:])
            # The potential is held, so that no other comes to have its number.
            return potential, table.reshape(-1, 1, *table.shape[-2:])

        return self.once(("source", id(potential)), made)[1]

    def table(self, source: Tensor | Potential) -> Table:
        """Of a source, written out."""

        def made() -> Table:
            if isinstance(source, Tensor):
                copies = math.prod(self.lead) // max(1, len(source)) if len(source) > 1 else 1
                logs = source.to(self.dtype)
                logs = logs.repeat(copies, 1, 1, 1) if copies > 1 else logs
                # Sums over the first labels are those of rows.
                return Table(logs.mT.contiguous().mT)
            return Table(source.table(2).to(self.dtype)[None, None])

        return self.once(("table", id(source)), made)


def _ranks(rules: LowRankRules | FactorisedRules) -> tuple[Tensor, Tensor, Tensor]:
    """Of rules; -inf to what is never a parent."""
    if isinstance(rules, LowRankRules):
        more = rules.left.shape[-2] - rules.parent.shape[-2]
        return rules.left, rules.right, pad(rules.parent, (0, 0, 0, more), value=-math.inf).mT
    parents, rank = rules.left.shape[-3], rules.left.shape[-1]
    own = torch.eye(parents, device=rules.left.device).repeat_interleave(rank, 0) > 0
    logs = torch.where(own, -rules.log_normaliser.unsqueeze(-2), -math.inf)
    left, right = (part.transpose(-3, -2).flatten(-2) for part in rules.parts)
    return left, right, pad(logs, (0, left.shape[-2] - parents), value=-math.inf)
