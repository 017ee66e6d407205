"""Structures within masks: recurrences over the places that a mask keeps, listed for each item."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.cache import cached_property, remembered
from rdpgraph.interface.masks import NOTHING, Draw, Expected, Masked, StructureMasks
from rdpgraph.logspace.gradients import by_autograd
from rdpgraph.model.soundness import require_possible
from rdpgraph.recurrences.bound import Bound, SumPass
from rdpgraph.recurrences.declaration import Declared, Input, Lengths, program_of

LOWEST = -torch.finfo(torch.float64).max
"""A finite stand-in for a shift of -inf, which would make NaN of -inf."""


def weighted(chances: Tensor, logs: Tensor) -> Tensor:
    """Terms of expectations, 0 where the probability is, whose logs may be -inf."""
    return torch.where(chances > 0, chances * logs, 0.0)


# ---- questions about two sentences ----


@dataclass(frozen=True, eq=False)
class LinkMasks(StructureMasks):
    """Questions about pairs (p, q) of a source and a target word of a model."""

    model: Any

    site_dims = 5

    @property
    def questions(self) -> tuple[int, ...]:
        _, rows, _, columns, _ = self.sites
        return rows - 1, columns - 1

    @cached_property
    def lengths(self) -> tuple[Tensor, Tensor]:
        """(B,) of the sources and of the targets."""
        given = self.model.source_lengths, self.model.target_lengths
        source, target = map(self.flat_lengths, given, self.questions)
        return source, target

    def open(self) -> Tensor:
        """Pairs of words within the lengths."""
        inside = [
            torch.arange(most, device=lengths.device) < lengths.unsqueeze(1)
            for lengths, most in zip(self.lengths, self.questions, strict=True)
        ]
        within = inside[0].unsqueeze(2) & inside[1].unsqueeze(1)
        return within.reshape(*self.batch_shape, *self.questions)

    def guess(self, likely: Tensor) -> Tensor:
        """The pairs that gain most for both words, at most one for each."""
        if not likely.numel():
            return likely
        gains = self.gains().masked_fill(~likely, -math.inf)
        best = [torch.zeros_like(gains, dtype=torch.bool) for _ in range(2)]
        for mask, dim in zip(best, (-1, -2), strict=True):
            mask.scatter_(dim, gains.argmax(dim, keepdim=True), value=True)
        return best[0] & best[1] & likely

    @abstractmethod
    def gains(self) -> Tensor:
        """(*batch, p, q) by how much a link is better than both words alone, nats."""


# ---- lists ----


@dataclass(frozen=True, eq=False)
class ByItem:
    """Entries that belong to some items, those of each item side by side in a row of its own.

    Attributes:
        item: (n,) whose entry each is.
        place: (n,) its number among those of its item, in the order of the entries.
        shape: the number of items, and how many entries a row has: as many as the longest, and
            one at least.
    """

    item: Tensor
    place: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, item: Tensor, items: int) -> "ByItem":
        """Number the entries of each item."""
        count = torch.bincount(item, minlength=items)
        # Numbers of few bits are sorted in a quarter of the time.
        order = (item.short() if items < 1 << 15 else item).argsort(stable=True)
        place = torch.empty_like(order)
        every = torch.arange(len(order), device=order.device)
        place[order] = every - (count.cumsum(0) - count)[item[order]]
        return cls(item, place, (items, max(1, int(count.max()) if items else 0)))

    @cached_property
    def flat(self) -> Tensor:
        """(n,) where each entry is in rows one after the other."""
        return self.item * self.shape[1] + self.place

    def rows(self, values: Tensor, absent: float) -> Tensor:
        """Return values (n, *dims), sorted by item, as (items, most, *dims).

        Behind the last value of each item stands ``absent``.
        """
        made = values.new_full((math.prod(self.shape), *values.shape[1:]), absent)
        return made.index_copy_(0, self.flat, values).view(*self.shape, *values.shape[1:])

    def entries(self, rows: Tensor) -> Tensor:
        """(n, *dims) from rows (items, most, *dims)."""
        return rows.flatten(0, 1).index_select(0, self.flat)

    @cached_property
    def numbers(self) -> Tensor:
        """(items, most) the number of each entry; -1: none."""
        return self.rows(torch.arange(len(self.item), device=self.item.device), -1)

    def counts(self, entry: Tensor) -> Tensor:
        """(items, most) how often a list (m,) has each entry."""
        count = torch.bincount(self.flat[entry], minlength=math.prod(self.shape))
        return count.view(self.shape)


# ---- places of one of some labels, joined by rules ----


@dataclass(frozen=True, eq=False)
class Binary:
    """Rules of one or more kinds, over classes of labels that no rule distinguishes.

    Attributes:
        tables: (B or 1, kinds, K, L, R) log-weights of a label given the classes of its parts.
        left: (K,) the class of each label as a left part, 0..L-1.
        right: (K,) likewise, 0..R-1.
    """

    tables: Tensor
    left: Tensor
    right: Tensor

    @staticmethod
    def of(tables: Sequence[Tensor]) -> "Binary":
        """Rules from tables (B or 1, K, K, K), one for each kind, in doubles."""
        many = max(len(table) for table in tables)
        stack = torch.stack([table.double().expand(many, -1, -1, -1) for table in tables], 1)
        sides: list[Tensor] = []
        for dim in (3, 4):
            rows = stack.movedim(dim, 0).flatten(1)
            # Rows of no numbers are alike.
            classes = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
            if rows.numel():
                _, classes = rows.unique(dim=0, return_inverse=True)
            first = torch.full((int(classes.max()) + 1,), len(classes), device=classes.device)
            every = torch.arange(len(classes), device=classes.device)
            first, order = first.scatter_reduce(0, classes, every, "amin").sort()
            stack = stack.index_select(dim, first)
            sides.append(order.argsort()[classes])
        return Binary(stack, *sides)

    def repeated(self, chains: int) -> "Binary":
        """The rules of so many chains of items."""
        shared = len(self.tables) == 1
        return self if shared else replace(self, tables=self.tables.repeat(chains, 1, 1, 1, 1))

    @cached_property
    def members(self) -> tuple[Tensor, Tensor]:
        """(K, L) and (K, R): 0 where a label is of a class, else -inf."""
        sides: list[Tensor] = []
        for side, count in zip((self.left, self.right), self.tables.shape[3:], strict=True):
            member = side.unsqueeze(1) == torch.arange(count, device=side.device)
            sides.append(torch.where(member, 0.0, -math.inf).to(self.tables))
        return sides[0], sides[1]


@remembered(16)
def write_rules(kinds: int, *, alike: bool) -> tuple[Declared, str]:
    """The recurrence of a forest.

    A place v with label k is scored by ``scores[v, 0, k]`` if it has no parts, and else by
    ``scores[v, 1, k]`` and a rule for the classes of its parts.

    Args:
        kinds: the number of kinds of rules.
        alike: whether all labels are of one class, so that ways need no label.
    """
    declared: dict[str, Input | Lengths] = {"scores": Input("V 2 K"), "root": Input("K")}
    declared |= {"tops": Lengths("V")}
    rules = ["b[v, k] += scores[v, 0, k]"]
    for kind in range(kinds):
        declared |= {f"ruled{kind}": Input("K L R"), f"rows{kind}": Input("V+1", whole=True)}
        declared |= {f"parts{kind}": Input(f"E{kind} 2", whole=True)}
        # Ways to divide a place are the entries of its row in a list of pairs of parts.
        first, second = f"parts{kind}[e, 0]", f"parts{kind}[e, 1]"
        where = f"if rows{kind}[v] <= e < rows{kind}[v + 1]"
        if alike:
            rules.append(f"ways{kind}[v] += any[{first}] * any[{second}] {where}")
            rules.append(f"b[v, k] += scores[v, 1, k] * ruled{kind}[k, 0, 0] * ways{kind}[v]")
        else:
            both = f"left[{first}, l] * right[{second}, r] * ruled{kind}[k, l, r]"
            rules.append(f"b[v, k] += scores[v, 1, k] * {both} {where}")
    if alike:
        rules.append("any[v] += b[v, k]")
    else:
        declared |= {"lefts": Input("K L"), "rights": Input("K R")}
        rules += ["left[v, l] += b[v, k] * lefts[k, l]", "right[v, r] += b[v, k] * rights[k, r]"]
    rules += ["whole[v] += b[v, k] * root[k]", "goal += whole[tops]"]
    return tuple(declared.items()), "\n".join(rules)


@dataclass(frozen=True, eq=False)
class Forest:
    """The kept places of some items, by size, and the ways to make one of two smaller ones.

    A derivation uses a place once at most, with one label. Time and memory are in proportion to
    places and ways, and to the item that has most of them.

    Attributes:
        item: (P,) the item of each place.
        scores: (P, 2, K) log-potentials of a place without parts, and of one with parts, without
            its rule.
        ways: of each kind of rules the whole, the left and the right part of every way, (E,) each;
            a whole below 0 is left out.
        rules: what ways are scored by.
        tops: (B,) the place of each item's whole; -1: none, and Z is 0.
        root: (B or 1, K) log-potentials of its label.
    """

    item: Tensor
    scores: Tensor
    ways: Sequence[tuple[Tensor, Tensor, Tensor]]
    rules: Binary
    tops: Tensor
    root: Tensor

    @cached_property
    def places(self) -> ByItem:
        """The places of each item."""
        return ByItem.of(self.item, len(self.tops))

    @property
    def alike(self) -> bool:
        """Whether all labels are of one class."""
        return self.rules.tables.shape[3:] == (1, 1)

    @property
    def names(self) -> tuple[str, ...]:
        """What rules are called in the recurrence, by kind."""
        return tuple(f"ruled{kind}" for kind in range(len(self.ways)))

    @cached_property
    def given(self) -> dict[str, Tensor]:
        """The inputs of the recurrence."""
        places, (lefts, rights) = self.places, self.rules.members
        # An item without a whole has a cell that is not there.
        tops = pad(places.place, (0, 1), value=places.shape[1])[self.tops]
        given = {"scores": places.rows(self.scores, -math.inf), "root": self.root}
        given |= {"tops": tops} if self.alike else {"lefts": lefts, "rights": rights, "tops": tops}
        given |= dict(zip(self.names, self.rules.tables.unbind(1), strict=True))
        for kind, (whole, left, right) in enumerate(self.ways):
            some = whole.int().argsort(stable=True)[int((whole < 0).sum()) :]
            whole = whole[some]
            ways = ByItem.of(self.item[whole], len(self.tops))
            parts = torch.stack([places.place[left[some]], places.place[right[some]]], 1)
            given[f"parts{kind}"] = ways.rows(parts, 0)
            given[f"rows{kind}"] = pad(places.counts(whole).cumsum(1), (1, 0))
        return given

    def bound(self, **others: Tensor) -> Bound:
        """The recurrence, with some other inputs."""
        program = program_of("Masked", *write_rules(len(self.ways), alike=self.alike))
        return Bound.settled(program, self.given | others)

    @cached_property
    def _sums(self) -> SumPass:
        """The log-sums, by rules that items share."""
        return self.bound().sums()

    @cached_property
    def _own_sums(self) -> SumPass:
        """The same by rules of each item, so that their uses are known of each."""
        items, given = len(self.tops), self.given
        own = {name: given[name].expand(items, *given[name].shape[1:])
               for name in ("root", *self.names)}  # fmt: skip
        return self.bound(**own).sums()

    @property
    def _known_sums(self) -> SumPass:
        return self._own_sums if "_own_sums" in vars(self) else self._sums

    @property
    def log_partition(self) -> Tensor:
        """(B,) nats; -inf where an item has no derivation."""
        return self._known_sums.log_partition

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """Averages: the gradient of log Z.

        (P, 2, K) the probability of each label at each place, without parts and with some,
        (B, K, kinds, L, R) the expected uses of each rule, and (B,) the expected score.
        """
        names = "scores", "root", *self.names
        used = self._own_sums.expected_uses(names)
        pairs = [(chances, self.given[name]) for chances, name in zip(used, names, strict=True)]
        score = sum(weighted(chances, logs).flatten(1).sum(1) for chances, logs in pairs)
        assert isinstance(score, Tensor)
        places, _, *rules = used
        return self.places.entries(places), torch.stack(rules, 2), score

    def draw(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draw a derivation of each item.

        The places and labels (n,) that derivations use, and whether they have no parts; and (B,)
        which items have one.
        """
        (item, place, label), possible = self._known_sums.entries_of("scores", 1, generator)
        return self.places.numbers[item, place // 2], label, place % 2 == 0, possible


@dataclass(frozen=True, eq=False)
class ForestMasked(Masked):
    """A structure within a mask, as a forest."""

    forest: Forest  # the kept places, of chains * batch items; items that have no words have none
    lead: tuple[int, ...]  # chains and batch dims
    site: Tensor  # (P,) the number of each place's site within its item
    sites: int  # the number of sites of an item
    empty: Tensor  # (items,) bool: items whose one configuration is empty

    @property
    def work(self) -> int:
        ways = sum(int((whole >= 0).sum()) for whole, _, _ in self.forest.ways)
        return len(self.forest.item) + ways

    @property
    def log_partition(self) -> Tensor:
        return torch.where(self.empty, 0.0, self.forest.log_partition).reshape(self.lead)

    @by_autograd
    def expected(self) -> Expected:
        forest, (places, rules, score) = self.forest, self.forest.expected()
        ended, places = places[:, 0], places.sum(1)
        labels = places.shape[1]
        every = torch.arange(labels, device=self.site.device)
        number = (forest.item * self.sites + self.site).unsqueeze(1) * labels + every
        seen = places > 0
        counts = {name: count.reshape(*self.lead, *count.shape[1:]) for name, count in
                  self.counts(rules).items()}  # fmt: skip
        place = torch.arange(len(forest.item), device=self.site.device)
        weights = self.answering(place, places.sum(1), ended.sum(1))
        return Expected(
            self.answers(forest.item, weights, place), score.reshape(self.lead),
            number[seen], places[seen], counts,
        )  # fmt: skip

    def draw(self, generator: torch.Generator | None) -> Draw:
        place, label, ended, possible = self.forest.draw(generator)
        require_possible(NOTHING, possible | self.empty)
        item, ended = self.forest.item[place], ended.to(self.forest.scores)
        weights = self.answering(place, torch.ones_like(ended), ended)
        answers = self.answers(item, weights, place)
        places = (item * self.sites + self.site[place]) * self.forest.scores.shape[2] + label
        return Draw(answers > 0.5, places)

    @abstractmethod
    def answering(self, place: Tensor, used: Tensor, ended: Tensor) -> Tensor:
        """(n,) the probabilities that answer questions, of places used and of those that end."""

    @abstractmethod
    def answers(self, item: Tensor, weights: Tensor, place: Tensor) -> Tensor:
        """(*lead, *questions) answers of places (n,) of items, with weights."""

    @abstractmethod
    def counts(self, rules: Tensor) -> dict[str, Tensor]:
        """Named counts from the expected uses (items, K, kinds, L, R) of rules."""


# ---- places, and rules with a weight each ----


@remembered(16)
def write_listed_rules(parts: int) -> tuple[Declared, str]:
    """The recurrence of a list of rules, by the number of parts; place 0 stands for no part."""
    declared: dict[str, Input | Lengths] = {"logs": Input("E"), "tops": Lengths("V")}
    declared |= {"rows": Input("V+1", whole=True), "parts": Input(f"E {parts}", whole=True)}
    below = "".join(f" * a[parts[e, {part}]]" for part in range(parts))
    rules = "a[0] += 1", f"a[v] += logs[e]{below} if rows[v] <= e < rows[v + 1]", "goal += a[tops]"
    return tuple(declared.items()), "\n".join(rules)


@dataclass(frozen=True, eq=False)
class RuleForest:
    """The kept places of some items, parts first, and the rules that make one of some others.

    Time and memory are in proportion to the rules, and to the item that has most of them.

    Attributes:
        item: (P,) the item of each place.
        whole: (E,) the place that each rule makes, ascending.
        parts: (m, E) its parts, which are places before it; P: none.
        logs: (E,) log-weights (nats) of the rules, potentials of the wholes included.
        tops: (I,) the place of each item's whole; -1: none, and Z is 0.
    """

    item: Tensor
    whole: Tensor
    parts: Tensor
    logs: Tensor
    tops: Tensor

    @cached_property
    def rules(self) -> ByItem:
        """The rules of each item."""
        return ByItem.of(self.item[self.whole], len(self.tops))

    @cached_property
    def given(self) -> dict[str, Tensor]:
        """The inputs of the recurrence."""
        places = ByItem.of(self.item, len(self.tops))
        number = pad(places.place + 1, (0, 1))
        return {
            "logs": self.rules.rows(self.logs, -math.inf),
            "rows": pad(places.counts(self.whole).cumsum(1), (2, 0)),
            "parts": self.rules.rows(number[self.parts].T, 0),
            "tops": torch.where(self.tops < 0, 1 + places.shape[1], number[self.tops]),
        }

    @cached_property
    def sums(self) -> SumPass:
        """The log-sums."""
        program = program_of("Masked", *write_listed_rules(len(self.parts)))
        return Bound.settled(program, self.given).sums()

    def expected(self) -> tuple[Tensor, Tensor]:
        """(P,) the probability of each place; (E,) of each rule: the gradient of log Z."""
        (used,) = self.sums.expected_uses(["logs"])
        rules = self.rules.entries(used)
        places = rules.new_zeros(len(self.item)).index_add_(0, self.whole, rules)
        return places, rules

    def draw(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The rules of an exact draw of each item that has trees, and (I,) which have."""
        (item, _, place), possible = self.sums.entries_of("logs", 1, generator)
        return self.rules.numbers[item, place], possible


@dataclass(frozen=True, eq=False)
class RuleMasked(Masked):
    """A structure within a mask, as a forest of rules."""

    lead: tuple[int, ...]  # chains and batch dims
    forest: RuleForest  # the kept places, and the rules that make them
    empty: Tensor  # (I,) bool: items whose one configuration is empty

    @property
    def log_partition(self) -> Tensor:
        log_z = self.forest.sums.log_partition
        return torch.where(self.empty, 0.0, log_z).reshape(self.lead)

    @property
    def work(self) -> int:
        return len(self.forest.item) + len(self.forest.logs)

    @by_autograd
    def expected(self) -> Expected:
        chances, used = self.forest.expected()
        terms = weighted(used, self.forest.logs)
        score = used.new_zeros(len(self.empty))
        score.index_add_(0, self.forest.item[self.forest.whole], terms)
        return self.averages(chances, used, score.reshape(self.lead))

    def draw(self, generator: torch.Generator | None) -> Draw:
        rules, possible = self.forest.draw(generator)
        require_possible(NOTHING, (possible | self.empty).reshape(self.lead))
        return self.configuration(rules)

    @abstractmethod
    def averages(self, chances: Tensor, used: Tensor, score: Tensor) -> Expected:
        """Averages from probabilities (P,) of places and (E,) of rules, and the score (*lead,)."""

    @abstractmethod
    def configuration(self, rules: Tensor) -> Draw:
        """Configurations that use some rules (n,) once each."""
