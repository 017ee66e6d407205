"""A hypertree with one batch dim, as the kernels take it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._cache import cached_property
from rdpgraph.errors import ImpossibleEvidenceError
from rdpgraph.structures.draws import Pick
from rdpgraph.structures.hypertree import plain
from rdpgraph.structures.hypertree.charts import HypertreeTensors
from rdpgraph.structures.hypertree.descent import descend
from rdpgraph.structures.hypertree.fields import HypertreeFields
from rdpgraph.structures.hypertree.ranks import Ranks, kernel_form
from rdpgraph.structures.hypertree.rules import DenseRules, NoRules, Rules
from rdpgraph.structures.hypertree.score import score
from rdpgraph.structures.hypertree.sparse_rules import SparseRules


@dataclass(frozen=True, eq=False)
class Form:
    """What the kernels read of a hypertree.

    Args:
        tree: the hypertree.
    """

    tree: HypertreeFields

    @cached_property
    def batch(self) -> int:
        """B, the product of the batch dims."""
        return math.prod(self.tree.batch_shape)

    @property
    def states(self) -> int:
        """N, of spans of two words and more."""
        return self.tree.unary.shape[-1] - self.tree.preterminals

    @cached_property
    def rules(self) -> Rules:
        """Of one batch dim, 1 or B."""
        return self.tree.rules.flat(self.tree.batch_shape)

    @cached_property
    def lengths(self) -> Tensor:
        """(B,) the numbers of words of the items."""
        tree = self.tree
        if tree.lengths is not None:
            return tree.lengths.reshape(-1)
        return torch.full((self.batch,), tree.unary.shape[-2], device=tree.unary.device)

    @property
    def root(self) -> Tensor:
        """(1 or B, C), -inf for preterminals."""
        tree = self.tree
        if tree.root is None:
            root = tree.unary.new_zeros(1, self.states)
        elif tree.root.ndim == 1:
            root = tree.root.unsqueeze(0)
        else:
            root = tree.root.expand(*tree.batch_shape, -1).reshape(self.batch, self.states)
        return pad(root, (0, tree.preterminals), value=-math.inf)

    @property
    def parts(self) -> HypertreeTensors:
        """Leaves, spans and rules."""
        return self._with(self.rules)

    @property
    def unruled(self) -> HypertreeTensors:
        """The same for those who do not read the rules."""
        return self._with(NoRules())

    def _with(self, rules: Rules) -> HypertreeTensors:
        tree = self.tree
        unary = tree.unary.reshape(self.batch, *tree.unary.shape[-3:])
        spans = unary[..., : self.states]
        first = self.states if tree.preterminals else 0
        leaves = unary.diagonal(dim1=1, dim2=2).mT[..., first:]
        form, spans = kernel_form(rules, spans, unary.shape[-1])
        return _alike(HypertreeTensors(leaves, spans, form, self.lengths, tree.preterminals > 0))

    @torch.no_grad()
    def best(self) -> tuple[HypertreeTensors, list[Tensor]]:
        """In doubles what maxima are of, and by width (B, T - width, C) the best scores of spans.

        Raises:
            BudgetError: rules that are too large when written out.
        """
        parts, tree = self.parts, self.tree
        # A maximum over ranks is none over rules, unless there is but one rank.
        if isinstance(parts.rules, Ranks) and not isinstance(tree.rules, NoRules):
            table = DenseRules(tree.rules.table(self.states, tree.unary.shape[-1]))
            parts = Form(replace(tree, rules=table)).parts
        parts = parts.to(torch.float64)
        return parts, plain.with_leaves(parts, plain.exact(parts, 0.0))

    def descended(
        self,
        parts: HypertreeTensors,
        rows: list[Tensor],
        *,
        count: int,
        pick: Pick,
        temperature: float,
    ) -> Tensor:
        """(count, *batch, T, T) trees from the root downwards, all in doubles.

        Raises:
            ImpossibleEvidenceError: an item has none.
        """
        trees = descend(parts, rows, self.root.double(), count, pick, temperature)
        lost = (trees < 0).flatten(1).all(1) & (parts.lengths.repeat(count) > 0)
        if bool(lost.any()):
            raise ImpossibleEvidenceError(
                "A hypertree has no samples and no mode: at least one item has no possible tree."
            )
        return trees.reshape([count, *self.tree.unary.shape[:-1]])

    def scored(self, states: Tensor, lead: Sequence[int]) -> Tensor:
        """(*lead, *batch) the scores of trees (*lead, *batch, T, T)."""
        flat = states.reshape(math.prod(lead), self.batch, *states.shape[-2:])
        scores = score(flat, self.unruled, self.root, self.rules)
        return scores.reshape([*lead, *self.tree.batch_shape])

    def work(self) -> float:
        """The multiply-adds of log Z."""
        total, rules = self.tree.unary.shape[-2], self.parts.rules
        spans, splits, states = total**2 / 2, total**3 / 6, self.states
        if isinstance(rules, Ranks):
            rank = rules.left.shape[2]
            run = 1 if rules.parent is None else states
            return self.batch * (splits * rank + spans * rank * (2 * states + run))
        if isinstance(rules, SparseRules):
            return self.batch * splits * rules.count
        return self.batch * (spans * states**3 + splits * states**2)

    def flat(self, rules: Rules) -> HypertreeFields:
        """The hypertree with one batch dim, and with other rules, of that for each item."""
        tree, batch = self.tree, (self.batch,)
        flat = rules.flat(tree.batch_shape)
        each = [part.expand(*batch, *part.shape[1:]) for part in flat.parts]
        unary = tree.unary.reshape(*batch, *tree.unary.shape[-3:])
        root = tree.root
        if root is not None:
            root = root.expand(*tree.batch_shape, -1).reshape(*batch, self.states)
        rules = flat.with_parts(each)
        return replace(tree, unary=unary, rules=rules, root=root, lengths=self.lengths)


def _alike(parts: HypertreeTensors) -> HypertreeTensors:
    """Spans and rules of one floating type."""
    dtype = parts.spans.dtype
    for part in parts.rules.parts:
        dtype = torch.promote_types(dtype, part.dtype)
    same = all(part.dtype == dtype for part in parts.tensors)
    return parts if same else parts.to(dtype)
