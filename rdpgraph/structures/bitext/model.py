"""Bitexts: distributions over the trees that two sentences share, and their grammar."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.arguments import require_fields
from rdpgraph._core.cache import cached_property, current_property, remembered
from rdpgraph._core.portable import in_full_precision
from rdpgraph.errors import ModelError
from rdpgraph.interface.masks import Masks
from rdpgraph.model.potentials.table import as_values, broadcast_values, checked_log_values, settle
from rdpgraph.recurrences.declaration import Declared, Input, Lengths
from rdpgraph.structures.checks import settle_lengths
from rdpgraph.structures.compact.bispans import Bispans
from rdpgraph.structures.compact.masked import LOWEST, Binary, Forest, ForestMasked, LinkMasks
from rdpgraph.structures.grammar.rules import DenseRules, NoRules, Rules
from rdpgraph.structures.grammar.trees import parts_of
from rdpgraph.structures.recurrence import Recurrence


@dataclass(frozen=True, eq=False)
class BitextMasks(LinkMasks):
    """Questions whether one leaf has a source and a target word.

    A yes leaves the bispans that have both words or neither; a no leaves the leaves that lack one.
    """

    model: "Bitext"

    def gains(self) -> Tensor:
        """The score of the best leaf of both words less those of the best leaves of one alone."""
        leaves = self.model.unary[..., -self.model.leaves :].detach().amax(-1).double()
        pairs = leaves.diagonal(1, -4, -3).diagonal(1, -3, -2)
        source = leaves.diagonal(1, -4, -3).diagonal(0, -3, -2).amax(-1)
        target = leaves.diagonal(0, -4, -3).diagonal(1, -3, -2).amax(-2)
        return pairs - (source.unsqueeze(-1) + target.unsqueeze(-2)).clamp(min=LOWEST)

    @cached_property
    def rules(self) -> Binary:
        """The rules of both orders."""
        states, device = self.sites[-1], self.model.unary.device
        tables: list[Tensor] = []
        for rules in (self.model.straight, self.model.inverted):
            table = rules.flat(self.batch_shape).table(states, states).to(device)
            tables.append(table.detach().reshape(-1, states, states, states))
        return Binary.of(tables)

    def masked(self, required: Tensor, forbidden: Tensor) -> "MaskedBitext":
        # Chains of an item are items here: all are solved as one batch, chain after chain.
        lead = tuple(required.shape[:-2])
        batch, chains = self.items, self.chains(lead)
        p, q = self.questions
        lengths = self.lengths[0].repeat(chains), self.lengths[1].repeat(chains)
        # The bispans that agree with the links that are required.
        links = required.reshape(len(lengths[0]), p, q).nonzero()
        allowed = self.model.allowed
        allowed = None if allowed is None else allowed.to(links.device).unsqueeze(0)
        kept = Bispans.of(lengths, links, allowed)
        i, k, j, m = kept.ends
        logs = self.potentials[kept.item % max(batch, 1), i, k, j, m].double()
        leaf = torch.arange(logs.shape[1], device=logs.device) >= logs.shape[1] - self.model.leaves
        # A leaf covers no pair that is forbidden: counts of forbidden pairs in a rectangle are
        # differences of running sums.
        no = pad(forbidden.reshape(len(lengths[0]), p, q).long(), (1, 0, 1, 0)).cumsum(1).cumsum(2)
        at = kept.item
        barred = no[at, k, m] - no[at, i, m] - no[at, k, j] + no[at, i, j] > 0
        ends = logs.masked_fill(~leaf | barred.unsqueeze(1), -math.inf)
        # The goal of each item is its whole bispan, with the scores of roots.
        zero, every = torch.zeros_like(lengths[0]), torch.arange(len(lengths[0]), device=at.device)
        empty = (lengths[0] == 0) & (lengths[1] == 0)
        tops = kept.numbers(every, torch.stack([zero, lengths[0], zero, lengths[1]]))
        root = logs.new_zeros(1, logs.shape[1])
        if self.model.root is not None:
            root = self.model.root.detach().double().expand(*self.batch_shape, -1)
            root = root.reshape(batch, -1).repeat(chains, 1)
        scores = torch.stack([ends, logs.masked_fill(leaf, -math.inf)], 1)
        forest = Forest(at, scores, kept.joins(), self.rules.repeated(chains), tops, root)
        # Bispans are numbered as in the full table, for marginals and counts.
        site = ((i * (p + 1) + k) * (q + 1) + j) * (q + 1) + m
        sites = (p + 1) ** 2 * (q + 1) ** 2
        return MaskedBitext(forest, lead, site, sites, empty, kept.ends, (p, q))


@dataclass(frozen=True, eq=False)
class MaskedBitext(ForestMasked):
    """A bitext within a mask."""

    ends: Tensor  # (4, P) of the bispans
    words: tuple[int, int]  # p and q

    @cached_property
    def both(self) -> Tensor:
        """(P,) whether a bispan has words on both sides."""
        i, k, j, m = self.ends
        return (k > i) & (m > j)

    def answering(self, place: Tensor, used: Tensor, ended: Tensor) -> Tensor:
        """Count leaves with words on both sides."""
        return torch.where(self.both[place], ended, 0.0)

    def answers(self, item: Tensor, weights: Tensor, place: Tensor) -> Tensor:
        some = (weights > 0).nonzero().squeeze(1)
        item, weights, place = item[some], weights[some], place[some]
        i, k, j, m = self.ends[:, place]
        p, q = self.words
        linked = weights.new_zeros(len(self.empty), p + 1, q + 1)
        large = bool(((k - i > 1) | (m - j > 1)).any())
        linked.index_put_((item, i, j), weights, accumulate=True)
        if large:
            for row, column, sign in ((k, j, -1), (i, m, -1), (k, m, 1)):
                linked.index_put_((item, row, column), sign * weights, accumulate=True)
            linked = linked.cumsum(1).cumsum(2).clamp_(0.0, 1.0)
        return linked[:, :p, :q].reshape(*self.lead, p, q)

    def counts(self, rules: Tensor) -> dict[str, Tensor]:
        """``"orders"``: the numbers of straight and of inverted constituents."""
        return {"orders": rules.sum((1, 3, 4))}


def words_unary(
    pairs: Tensor, source_null: Tensor, target_null: Tensor, phrases: Tensor | None, inner: int
) -> Tensor:
    """(*batch, p + 1, p + 1, q + 1, q + 1, inner + 3) potentials, for `Bitext.words`.

    The last three states are pairs and phrases, source words alone, and target words alone.
    """
    pairs = in_full_precision(as_values("Bitext.words' pairs", pairs))
    if pairs.ndim < 2:
        raise ModelError(f"Bitext.words needs pairs (*batch, p, q); got {tuple(pairs.shape)}.")
    *batch, p, q = pairs.shape
    shape = (*batch, p + 1, p + 1, q + 1, q + 1)
    leaf = pairs.new_full(shape, -math.inf)
    source_null = broadcast_values("Bitext.words' source_null", source_null, (*batch, p), pairs)
    target_null = broadcast_values("Bitext.words' target_null", target_null, (*batch, q), pairs)
    both = (leaf if phrases is None else phrases.expand(shape)).clone()
    alone, other = leaf.clone(), leaf.clone()
    both.diagonal(1, -4, -3).diagonal(1, -3, -2).copy_(pairs)
    alone.diagonal(1, -4, -3).diagonal(0, -3, -2).copy_(source_null.unsqueeze(-1))
    other.diagonal(0, -4, -3).diagonal(1, -3, -2).copy_(target_null.unsqueeze(-2))
    return torch.cat([pairs.new_zeros(*shape, inner), torch.stack([both, alone, other], -1)], -1)


def grammar_rules(
    straight: Tensor, inverted: Tensor, *, normal_form: bool
) -> tuple[DenseRules, DenseRules]:
    """Straight and inverted rules over the states of `words_unary`.

    In the normal form every alignment has one tree: a word pair takes the unaligned words that
    follow it, source words first; unaligned words before all pairs go to the whole, likewise; and
    parts in one order are joined from the left, so that no right part has the order of its whole.
    """
    if not normal_form:
        one, none = straight.new_zeros(1, 4, 4), straight.new_full((3, 4, 4), -math.inf)
        table = torch.cat([one, none])
        return DenseRules(table + straight), DenseRules(table + inverted)
    # "s" and "t" are unaligned words; "source" and "target" have taken those that follow.
    names = ("source", "target", "straight", "inverted", "early", "late", "pair", "s", "t")
    number = {name: place for place, name in enumerate(names)}
    tables = torch.full((2, 9, 9, 9), -math.inf, dtype=straight.dtype, device=straight.device)

    def allow(order: int, whole: str, left: str, right: str) -> None:
        for first in left.split():
            for second in right.split():
                tables[order, number[whole], number[first], number[second]] = 0.0

    block = "pair source target"
    allow(0, "source", "pair source", "s")
    allow(0, "target", block, "t")
    allow(0, "straight", f"{block} straight inverted", f"{block} inverted")
    allow(1, "inverted", f"{block} straight inverted", f"{block} straight")
    allow(0, "late", "t", f"{block} straight inverted late t")
    allow(0, "early", "s", f"{block} straight inverted late early s t")
    return DenseRules(tables[0] + straight), DenseRules(tables[1] + inverted)


@remembered(64)
def write_rules(
    *, straight: bool, inverted: bool, root: bool, allowed: bool, listed: bool
) -> tuple[Declared, str]:
    """The inputs and the rules of bitexts.

    Args:
        straight: whether straight parts are scored by rules, and not only by their states.
        inverted: likewise.
        root: whether the state of the whole is scored.
        allowed: whether some bispans are left out.
        listed: whether cells are numbers of bispans, and splits are lists; else cells are bispans,
            and all splits are tried.
    """
    size = "P+1 P+1 Q+1 Q+1"
    declared: dict[str, Input | Lengths] = {"unary": Input(f"{size} N"), "ends": Input("N")}
    declared |= {"joined": Input("N")} if not (straight and inverted) else {}
    declared |= {"straight": Input("N N N")} if straight else {}
    declared |= {"inverted": Input("N N N")} if inverted else {}
    declared |= {"root": Input("N")} if root else {}
    if listed:
        cell = "v"
        score = f"unary[{', '.join(f'bispans[v, {k}]' for k in range(4))}, a]"
        declared |= {"bispans": Input("V 4", whole=True), "tops": Lengths("V")}
        leaf = "v > 1"  # the first cells are two empty sentences, and what is not allowed
    else:
        cell = "i, k, j, l"
        score = f"unary[{cell}, a]" + (f" * allowed[{cell}]" if allowed else "")
        declared |= {"allowed": Input(size)} if allowed else {}
        declared |= {"source_lengths": Lengths("P"), "target_lengths": Lengths("Q")}
        leaf = "i <= k and j <= l and k - i + l - j > 0"
    rules = [f"b[{cell}, a] += {score} * ends[a] if {leaf}"]
    orders = [
        ("straight", straight, "i, m, j, n", "m, k, n, l", ""),
        ("inverted", inverted, "i, m, n, l", "m, k, j, n", " if i < m < k and j < n < l"),
    ]
    for order, ruled, left, right, where in orders:
        if listed:
            rows, parts = f"{order}_rows", f"{order}_parts"
            declared |= {rows: Input("V+1", whole=True)}
            declared |= {parts: Input(f"{order.title()} 2", whole=True)}
            left, right = f"{parts}[e, 0]", f"{parts}[e, 1]"
            where = f" if {rows}[v] <= e < {rows}[v + 1]"
        if ruled:
            both = f"b[{left}, x] * b[{right}, y] * {order}[a, x, y]"
            rules.append(f"b[{cell}, a] += {score} * {both}{where}")
        else:
            rules.append(f"free[{cell}] += any[{left}] * any[{right}]{where}")
    if not (straight and inverted):
        rules.append(f"b[{cell}, a] += {score} * joined[a] * free[{cell}]")
        rules.append(f"any[{cell}] += b[{cell}, a]")
    last = " * root[a]" if root else ""
    if listed:
        rules += ["whole[0] += 1", f"whole[v] += b[v, a]{last}", "goal += whole[tops]"]
    else:
        rules += ["whole[0, 0] += 1", f"whole[k, l] += b[0, k, 0, l, a]{last}"]
        rules.append("goal += whole[source_lengths, target_lengths]")
    return tuple(declared.items()), "\n".join(rules)


@dataclass(frozen=True, eq=False)
class _Splits:
    """The bispans that are allowed, by size, and the pairs of them that make others.

    Attributes:
        bispans: (V, 4) i, k, j, l of each: words i to k of the first sentence with words j to l of
            the second. The first two rows are no bispans: they stand for empty sentences, and for
            bispans that are not allowed.
        rows: two of (V + 1,), for straight splits and for inverted ones: where the splits of each
            bispan begin in ``parts``.
        parts: two of (splits, 2): the numbers of the two bispans of each split.
        number: (p + 1, p + 1, q + 1, q + 1) the number of each bispan.
    """

    bispans: Tensor
    rows: tuple[Tensor, Tensor]
    parts: tuple[Tensor, Tensor]
    number: Tensor

    @classmethod
    def of(cls, allowed: Tensor) -> "_Splits":
        """List the splits of all bispans that are allowed."""
        device = allowed.device
        words = [torch.tensor([size - 1], device=device) for size in allowed.shape[::2]]
        none = torch.zeros(0, 3, dtype=torch.long, device=device)
        kept = Bispans.of((words[0], words[1]), none, allowed.unsqueeze(0))
        number = torch.ones(allowed.shape, dtype=torch.long, device=device)
        number[0, 0, 0, 0] = 0
        number[tuple(kept.ends)] = torch.arange(2, 2 + len(kept.item), device=device)
        rows, parts = list[Tensor](), list[Tensor]()
        for whole, left, right in kept.joins():
            there = (whole >= 0).nonzero().squeeze(1)
            there = there[whole[there].argsort(stable=True)]
            counts = torch.bincount(whole[there] + 2, minlength=2 + len(kept.item))
            rows.append(pad(counts.cumsum(0), (1, 0)))
            parts.append(torch.stack([left[there], right[there]], 1) + 2)
        bispans = pad(kept.ends.mT, (0, 0, 2, 0))
        return cls(bispans, (rows[0], rows[1]), (parts[0], parts[1]), number)


_MOST_REMEMBERED = 1 << 16  # bispans, also those not allowed: of 15 x 15 words; some megabytes


@remembered(8)
def _remembered_splits(shape: tuple[int, ...], bits: bytes, device: torch.device) -> _Splits:
    """The splits of bispans, of which each byte says whether it is allowed."""
    return _Splits.of(torch.frombuffer(bytearray(bits), dtype=torch.bool).view(shape).to(device))


@dataclass(frozen=True, eq=False)
class SentencePairs(Recurrence):
    """Trees over two sentences, whose sites are bispans [i, k, j, l]: words i..k-1 and j..l-1."""

    source_lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})
    target_lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    why_no_graph = (
        "its sites are pairs of spans of two sentences, which no small factors join to trees"
    )

    def bispan_marginals(self) -> Tensor:
        """(*batch, p + 1, p + 1, q + 1, q + 1) the probability of each constituent."""
        return self.marginals().sum(-1)

    def place(self, site: tuple[int, ...]) -> tuple[float, float] | None:
        top, bottom, left, right = site
        there = top <= bottom and left <= right
        return ((left + right) / 2, -(top + bottom) / 2) if there else None

    def joined(self, used: Mapping[tuple[int, ...], int]) -> list[tuple[Any, Any]]:
        return parts_of(used)

    @property
    def _ends(self) -> tuple[Tensor, Tensor]:
        """(*batch,) the lengths of both sentences."""
        given = self.source_lengths, self.target_lengths
        source, target = (
            torch.full(self.batch_shape, size - 1, device=self.unary.device)
            if lengths is None
            else lengths.to(self.unary.device).expand(self.batch_shape)
            for lengths, size in zip(given, self.unary.shape[-4:-1:2], strict=True)
        )
        return source, target


@dataclass(frozen=True, eq=False)
class Bitext(SentencePairs):
    """Trees of an inversion transduction grammar over p source and q target words (Wu 1997).

    A constituent covers words i..k-1 of the source and j..l-1 of the target, a bispan, and has a
    state. It is a leaf, in one of the last states, or has two parts, in the same order on both
    sides (straight) or in reverse order in the target (inverted); inverted parts have words on both
    sides. The score of a tree is the sum of `unary` over its constituents, of the rules at those
    with parts, and of `root` at the whole. Sites are bispans; two sentences without words have one
    tree, of score 0.

    O(p^3 q^3 N^2 + p^2 q^2 N^3) time, all bispans of one size at once; O(p^2 q^2 N) numbers.

    Args:
        unary: (*batch, p + 1, p + 1, q + 1, q + 1, N) log-potentials (nats), [i, k, j, l, state];
            -inf forbids. Bispans without words are ignored.
        straight: log-weights of a state given those of its two parts: N parents, N children.
        inverted: likewise.
        leaves: the number of states, the last ones, for leaves; other states have parts.
        root: (*batch, N) log-potentials of the state of the whole; default: zeros.
        allowed: (p + 1, p + 1, q + 1, q + 1) bool: bispans that may be constituents, which saves
            time. Default: all.
        source_lengths: (*batch,) integers in 0..p; default: all p.
        target_lengths: (*batch,) integers in 0..q; default: all q.

    Raises:
        ModelError: shapes that do not fit, a length out of range.

    Example:
        >>> words, alone = torch.zeros(3, 3), torch.full((3,), -torch.inf)
        >>> Bitext.words(words, alone, alone).log_partition().exp()  # 6 orders, 2 of them twice
        tensor(8.)
    """

    straight: Rules = field(default_factory=NoRules)
    inverted: Rules = field(default_factory=NoRules)
    leaves: int = field(default=1, kw_only=True)
    root: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 1})
    allowed: Tensor | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        settle(self, "unary", "root", whole=("source_lengths", "target_lengths"))
        require_fields(self)
        checked_log_values("Bitext", self.unary)
        shape = tuple(self.unary.shape)
        if len(shape) < 5 or shape[-5] != shape[-4] or shape[-3] != shape[-2] or 0 in shape[-5:]:
            raise ModelError(
                "Bitext needs unary (*batch, p + 1, p + 1, q + 1, q + 1, N), [i, k, j, l, state]; "
                f"got {shape}."
            )
        shapes = {rules.shape for rules in (self.straight, self.inverted)} - {None}
        if not 1 <= self.leaves <= shape[-1] or shapes - {shape[-1:] * 2}:
            raise ModelError(
                f"Bitext of {shape[-1]} states needs rules of (N, N) states, and 1 to N of them "
                f"for leaves; got {shapes} and {self.leaves}."
            )
        for name, given, wanted in (
            ("allowed", self.allowed, shape[-5:-1]),
            ("root", self.root, shape[-1:]),
        ):
            if given is not None and tuple(given.shape[-len(wanted) :]) != wanted:
                raise ModelError(f"Bitext needs {name} {wanted}; got {tuple(given.shape)}.")
        settle_lengths(self, source_lengths=shape[-4] - 1, target_lengths=shape[-2] - 1)

    @classmethod
    def words(
        cls,
        pairs: Tensor,
        source_null: Tensor,
        target_null: Tensor,
        *,
        straight: Tensor | float = 0.0,
        inverted: Tensor | float = 0.0,
        phrases: Tensor | None = None,
        normal_form: bool = False,
        **rest: Any,
    ) -> "Bitext":
        """Alignments of words with each other, or with none.

        Scores, in nats: `pairs` (*batch, p, q), `source_null` (*batch, p) and `target_null`
        (*batch, q); `straight` and `inverted`, of every such constituent; and `phrases`
        (*batch, p + 1, p + 1, q + 1, q + 1), of bispans as leaves. In `normal_form` every alignment
        has one tree, rather than one for each bracketing: 9 states instead of 4. The rest are other
        fields.
        """
        unary = words_unary(pairs, source_null, target_null, phrases, 6 if normal_form else 1)
        weights = ((unary.new_zeros(()) + weight).to(unary) for weight in (straight, inverted))
        rules = grammar_rules(*weights, normal_form=normal_form)
        return cls(unary, *rules, leaves=3, **rest)

    def pair_marginals(self) -> Tensor:
        """(*batch, p, q) the probability of each pair of words as a leaf; differentiable."""
        leaves = self.marginals()[..., -self.leaves :].sum(-1)
        return leaves.diagonal(1, -4, -3).diagonal(1, -3, -2)

    def masks(self) -> Masks:
        """The questions of masks: for each pair of words, whether one leaf has both."""
        return BitextMasks(self)

    def written(self) -> tuple[Declared, str]:
        return self.written_for()

    def written_for(self, *, ranks: bool = False, kept: bool = False) -> tuple[Declared, str]:
        # On few states of each bispan, bispans are cells: a state's site is then the cell.
        return write_rules(
            straight=self.straight.shape is not None, inverted=self.inverted.shape is not None,
            root=self.root is not None, allowed=self.allowed is not None,
            listed=self.allowed is not None and not kept,
        )  # fmt: skip

    def inputs(self) -> Mapping[str, Any]:
        states, unary = self.unary.shape[-1], self.unary
        leaf = torch.arange(states, device=unary.device) >= states - self.leaves
        ends = torch.where(leaf, 0.0, -math.inf).to(unary)
        given: dict[str, Any] = {
            "unary": unary, "ends": ends, "joined": torch.where(leaf, -math.inf, 0.0).to(unary),
            "root": self.root, "source_lengths": self.source_lengths,
            "target_lengths": self.target_lengths,
        }  # fmt: skip
        for name in ("straight", "inverted"):
            rules: Rules = getattr(self, name)
            if rules.shape is not None:
                table = rules.table(states, states)
                given[name] = table.masked_fill(leaf.view(-1, 1, 1), -math.inf)
        if self.allowed is not None:
            listed = self._splits
            given["allowed"] = torch.where(self.allowed, 0.0, -math.inf).to(unary)
            given["bispans"] = listed.bispans
            for name, rows, parts in zip(
                ("straight", "inverted"), listed.rows, listed.parts, strict=True
            ):
                given |= {f"{name}_rows": rows, f"{name}_parts": parts}
            source, target = self._ends
            zero = torch.zeros_like(source)
            given["tops"] = listed.number[zero, source, zero, target]
        return given

    def work(self) -> float:
        p, q, states = self.unary.shape[-5] - 1, self.unary.shape[-3] - 1, self.unary.shape[-1]
        if self.allowed is None:
            cells = math.comb(p + 2, 2) * math.comb(q + 2, 2)
            splits = math.comb(p + 3, 3) * math.comb(q + 3, 3)
            splits += math.comb(p + 1, 3) * math.comb(q + 1, 3)
        else:
            cells = len(self._splits.bispans)
            splits = sum(map(len, self._splits.parts))
        return float(math.prod(self.batch_shape) * (splits + cells * states) * states**2)

    @current_property("allowed")
    def _splits(self) -> _Splits:
        # The same bispans are allowed in each step of training, in a model that is made anew.
        assert self.allowed is not None
        allowed, device = self.allowed.bool(), self.unary.device
        if allowed.numel() > _MOST_REMEMBERED:
            return _Splits.of(allowed.to(device))
        return _remembered_splits((*allowed.shape,), allowed.cpu().numpy().tobytes(), device)

    def _means(self, landmarks: int, generator: torch.Generator | None) -> Tensor:
        """Zeros: no state is linked to another but by rules."""
        return torch.zeros_like(self.unary[..., :1, :])
