"""The tape on which a structure lays out its recursion."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.errors import ModelError
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.structures.grammar.rules import FactorisedRules, LowRankRules, NoRules, Rules, flat
from rdpgraph.structures.recursion.checks import (
    checked_choice,
    checked_join,
    checked_lengths,
    checked_link,
    checked_merge,
    checked_pick,
    checked_tables,
    checked_value,
    checked_values,
    checked_whole,
    common,
    products_of,
)
from rdpgraph.structures.recursion.links import Link, LookupLink, RuleLink, Sources
from rdpgraph.structures.recursion.step import Step
from rdpgraph.structures.recursion.steps import (
    Concatenated,
    LabelsAsPlaces,
    Leaf,
    Linked,
    Pairs,
    Relabelled,
    Total,
)
from rdpgraph.structures.recursion.values import (
    Given,
    Labels,
    Sites,
    Value,
    View,
    Way,
    agreed,
    as_view,
    mapped,
    mixed_states,
    numbered,
    one_of_each,
    some_places,
)

Meeting = tuple[Labels, Tensor | Potential, Labels]
"""The labels that a link joins, and its log-values (B or 1, P or 1, N, M) or a potential."""


@dataclass(frozen=True, eq=False)
class Tape:
    """A recursion as steps, over values of log-sums for each item, place and label.

    A structure's `recursion` is handed one, and returns the value of the whole: one place, one
    label. The layout answers all questions: sums, maxima, draws, expectations; and works for all
    representations: where only some states of each site are kept, these are the labels, and links
    are evaluated on them. Values whose labels are the states of different sites are linked, or
    merged; a sum of them is refused.

    Attributes:
        unary: (*lead, *sites, K) the log-potentials of the sites' states.
        site_dims: the number of dims of the sites.
        states: (*lead, *sites, K) the states kept; None: all, in order.
        ranks: whether a link of low rank goes by its ranks, as sums may and maxima not.
        dtype: of all log-values.
        meetings: labels that were linked, and how.
    """

    unary: Tensor
    site_dims: int
    states: Tensor | None = None
    ranks: bool = True
    dtype: torch.dtype = torch.float32
    steps: list[Step] = field(default_factory=list[Step], init=False)
    meetings: list[Meeting] = field(default_factory=list[Meeting], init=False)

    @cached_property
    def sources(self) -> Sources:
        """The tensors that links are made from."""
        return Sources(self.lead, self.dtype)

    @cached_property
    def lead(self) -> tuple[int, ...]:
        """The dims before the sites: replicates, draws, batch dims."""
        return tuple(self.unary.shape[: self.unary.ndim - self.site_dims - 1])

    @property
    def batch(self) -> int:
        """B, the product of the lead."""
        return math.prod(self.lead)

    @property
    def site_shape(self) -> tuple[int, ...]:
        """The dims of the sites."""
        return tuple(self.unary.shape[len(self.lead) : -1])

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.unary.device

    @property
    def sites(self) -> "Sites":
        """The sites, to be indexed like an array of their shape: the potentials of some of them.

        One place for each; their labels are the sites' states.
        """
        # Not cached: it refers to the tape, and a cycle would wait for the garbage collector.
        return Sites(*self._numbered[:2], self._of_sites)

    @cached_property
    def _numbered(self) -> tuple[Tensor, Tensor | None, int]:
        return numbered(self.unary, self.states, self.batch, self.site_shape)

    def _of_sites(self, labels: Labels) -> Value:
        assert labels.sites is not None
        leaf = Leaf(None, labels.sites)
        return self._add(leaf, labels.sites.shape[0], self._numbered[2], labels)

    @property
    def one(self) -> Value:
        """A value of one place and one label with log-value 0, that of the empty derivation."""
        return self.sources.once(("one",), lambda: self.leaf(self.unary.new_zeros(1, 1, 1)))

    @property
    def nothing(self) -> Value:
        """A value of one place and one label with log-value -inf, which has no derivation."""
        return self.sources.once(
            ("nothing",), lambda: self.leaf(self.unary.new_full((1, 1, 1), -math.inf))
        )

    def flat(self, values: Tensor, dims: int) -> Tensor:
        """(B or 1, ...) of values (*batch, ...) with that many dims after the batch."""
        return flat(values, dims, self.lead)

    def lengths(self, lengths: Tensor | None, most: int) -> Tensor:
        """(B,) lengths from (*batch,); by default all ``most``.

        Raises:
            ModelError: no integers from 0 to ``most``, in the shape of the batch.
        """
        return checked_lengths(lengths, most, self.lead, self.device)

    def leaf(self, logs: Tensor) -> Value:
        """Make a value of log-values (B or 1, P, K), whose labels are not states of sites."""
        checked_values("leaf", logs, self.batch, dims=3)
        return self._add(Leaf(logs), logs.shape[1], logs.shape[2], Labels())

    def allowed(self, mask: Tensor) -> Value:
        """Make a value of one label, 0 where a mask (B or 1, P) is true and -inf elsewhere."""
        checked_values("allowed", mask, self.batch, dims=2)
        return self.leaf(torch.where(mask, 0.0, -math.inf).to(self.unary).unsqueeze(-1))

    def view(self, pool: Given | Sequence[Value], index: Tensor) -> View:
        """Make a view of places of one or more values, concatenated.

        Args:
            pool: values of one width.
            index: (P,) the place for each new place; (M, P) or (B, M, P) M alternatives for each.
                Below 0: none, -inf.
        """
        index = torch.as_tensor(index, device=self.device)
        if index.ndim == 3 and len(index) not in (1, self.batch):
            raise ModelError(
                f"Tape.view needs places (B, M, P) of 1 or {self.batch} items; got {len(index)}. "
                "A tape may have several copies of the batch: "
                "index[torch.arange(tape.batch) % len(index)]."
            )
        return some_places(pool, index)

    def as_alternatives(self, pool: Value | Sequence[Value], which: Tensor | None = None) -> View:
        """Places as the alternatives of one.

        Args:
            pool: a value, of which all places are taken; or several, of each of which one is.
            which: (M,) the place in each of several values; a value of one place serves as any.
        """
        return one_of_each((pool,) if isinstance(pool, Value) else tuple(pool), which)

    def total(self, *ways: Way) -> Value:
        """Sum over alternatives, each of which is a value or view, or a product of several.

        Values of one place or one label serve all of them. The alternatives of a view are summed
        if they are over the states of one site.

        Raises:
            ModelError: labels of different sites, which mean different states.
        """
        taken = products_of("total", ways)
        views = [view for way in taken for view in way]
        return self._add(Total(taken), *common(views), agreed(views))

    def sum(self, x: Value) -> Value:
        """The sum over the labels of a value."""
        checked_value("sum", x)
        if x.width == 1:
            return Value(x.number, x.places, 1)
        return self.sources.once(
            ("sum", x.number), lambda: self._add(Linked(x, None, x.places), x.places, 1, Labels())
        )

    def link(
        self, x: Value, potential: Tensor | Potential, *, to: Value | Labels | None = None,
        at: int | None = None,
    ) -> Value:  # fmt: skip
        """The sum over the labels of x of its value and a potential of both labels.

        Args:
            x: whose labels come first.
            potential: (*batch, N, M) log-values, or a pairwise `Potential`.
            to: a value whose labels come second, or these labels, with as many places; default: all
                M, of no site.
            at: which one of several tables (*batch, S, N, M) it is; their gradient is one tensor.

        Raises:
            ModelError: shapes that do not fit the labels and the batch.
        """
        one = None if at is None else (checked_tables(potential, at), at)
        potential = self.sources.one_of(*one) if one else potential
        checked_link(x, potential, to, self._numbered[2])
        if isinstance(potential, LowRank) and self.ranks:
            right = self.sources.derived(potential.log_right, lambda values: values.mT)
            return self.link(self.link(x, potential.log_left), right, to=to)
        to_labels = to.labels if isinstance(to, Value) else to or Labels()
        source = self.sources.source(potential)
        self.meetings.append((x.labels, source, to_labels))
        key = ("link", x.number, id(potential), None if to_labels.states is None else id(to_labels))
        if key in self.sources.known and to_labels.states is None:
            known: Value = self.sources.known[key]
            return replace(known, labels=to_labels)
        before, after = x.labels.states, to_labels.states
        link: Link
        if before is None and after is None:
            link = self.sources.numbered(*one) if one else self.sources.table(source)
        else:
            link = LookupLink(source, before, after)
        places = x.places if after is None else after.shape[1]
        width = max(link.width, to.width) if isinstance(to, Value) else link.width
        made = self._add(Linked(x, link, places, width - link.width), places, width, to_labels)
        self.sources.known[key] = made
        return made

    def lookup(self, values: Tensor, to: Value | Labels) -> Value:
        """A log-value for each label, from (*batch, M), of given labels or of a value's."""
        row = self.sources.derived(values, lambda logs: logs.unsqueeze(-2))
        return self.link(self.one, row, to=to)

    def merge(self, *ways: Way) -> Value:
        """Alternatives whose labels are the states of different sites, to be linked or summed.

        A way is a value or view, or a product of several whose labels are of the same sites. The
        ways are summed if all states are kept, else their labels are concatenated.
        """
        products = products_of("merge", ways)
        places, width = checked_merge(products)
        mixed = self.sources.once(("mixed",), lambda: torch.full((1,), -1, device=self.device))
        if all(view.pool[0].labels.states is None for way in products for view in way):
            return self._add(Total(products), places, width, Labels(mixed))
        taken = [self._product(way) for way in products]
        labels = Labels(mixed, mixed_states(taken))
        width = sum(view.ways * view.width for view in taken)
        return self._add(Concatenated(taken), places, width, labels)

    def _product(self, way: tuple[View, ...]) -> View:
        """A product of several views as one; its alternatives are of different sites."""
        if len(way) == 1:
            return way[0]
        ways, places = way[0].ways, way[0].places
        product = self.total(tuple(view.flat for view in way))
        if places == 1:
            return View((product,), as_alternatives=True)
        return View((product,), torch.arange(ways * places, device=self.device).reshape(ways, -1))

    def concatenate(self, *views: Given) -> Value:
        """The labels of several views, and of their alternatives, concatenated; of no site."""
        taken = [view for (view,) in products_of("concatenate", views)]
        width = sum(view.ways * view.width for view in taken)
        return self._add(Concatenated(taken), taken[0].places, width, Labels())

    def pick(self, x: Value, which: Tensor, *, to: Value | None = None) -> Value:
        """The label `which[n]` of x for each label n of another value, of as many places.

        Args:
            x: (B, P, I).
            which: (N,) labels of x for all labels of the other.
            to: the value whose labels the result has; None: labels of no site.
        """
        checked_pick(x, which, to)
        labels, places = Labels() if to is None else to.labels, x.places
        if labels.states is not None:
            which, places = which[labels.states], labels.states.shape[1]
        return self.sources.once(
            ("pick", x.number, id(which), None if to is None else id(labels)),
            lambda: self._add(Relabelled(x, which, places), places, which.shape[-1], labels),
        )

    def states_as_places(self, x: Value, states: int | None = None) -> Value:
        """The states of sites as places of one label: place p * states + s is state s of place p.

        Args:
            x: whose labels are the states of its sites; a state that is not kept is -inf.
            states: their number, kept or not; default: those kept, by their labels.
        """
        checked_value("states_as_places", x)
        if states is not None and x.labels.states is not None:
            same = torch.eye(states, dtype=torch.bool, device=self.device)
            x = self.link(x, torch.where(same, 0.0, -math.inf).to(self.dtype))
        return self._add(LabelsAsPlaces(x), x.places * x.width, 1, Labels())

    def pairs(self, left: Given, right: Given) -> Value:
        """The pairs of labels of two parts, C * E of them, summed over their alternatives."""
        first, second = as_view(left), as_view(right)
        width = first.width * second.width
        return self._add(Pairs(first, second), first.places, width, Labels())

    def join(self, left: View, right: View, rules: Rules, *, to: Value) -> Value:
        """The sum over splits and over the labels of both parts, by the rules of the whole.

        Rules of low rank go by their ranks, to which each part is linked once; without rules the
        labels of the parts are summed out, and the result has one label. States that are no parents
        are forbidden by their potentials.

        Args:
            left: (M, P) the left parts of M splits.
            right: the right ones.
            rules: log-weights of a label of the whole given those of the parts.
            to: the value that has the labels of the whole.
        """
        checked_join(left, right, rules, to)
        if isinstance(rules, NoRules):
            return self.total((mapped(left, self.sum), mapped(right, self.sum)))
        if not self.ranks or not isinstance(rules, LowRankRules | FactorisedRules):
            return self._joined(left, right, rules, to)
        to_left, to_right, top = self.sources.ranks(rules)
        one = mapped(left, partial(self.link, potential=to_left))
        other = mapped(right, partial(self.link, potential=to_right))
        return self.link(self.total((one, other)), top, to=to)

    def _joined(self, left: View, right: View, rules: Rules, to: Value) -> Value:
        """Join by all pairs of labels."""
        if self.states is None:
            table = self.sources.derived(
                rules, lambda rules: rules.table(*rules.shape).flatten(-2).mT
            )
            return self.link(self.pairs(left, right), table, to=to)
        # Labels differ by split, so splits are places until labels of the whole are reached.
        assert to.labels.states is not None
        ways, places = left.ways, left.places
        first, second = (self.total(view.flat) for view in (left, right))
        assert first.labels.states is not None
        assert second.labels.states is not None
        pairs = self.pairs(first, second)
        parents = rules.shape[0] if rules.shape else self.unary.shape[-1]
        whole = to.labels.states.clamp(max=parents - 1).repeat(1, ways, 1)
        link = RuleLink(self.sources.rules(rules), first.labels.states, second.labels.states, whole)
        each = self._add(Linked(pairs, link, pairs.places), pairs.places, link.width, Labels())
        index = torch.arange(ways * places, device=self.device).reshape(ways, places)
        return replace(self.total(self.view(each, index)), labels=to.labels)

    def choose(self, values: Sequence[Value], index: Tensor) -> Value:
        """Choose a place of some values for each item, by (B,) places among all of them."""
        index = checked_choice(index, self.batch)
        return self.sum(self.total(self.view(values, index.reshape(-1, 1, 1))))

    def finish(self, value: Value) -> None:
        """Make a value of one place the goal; its labels are summed out.

        Raises:
            ModelError: no value, or one of more places.
        """
        checked_whole(value)
        last = self.sum(value)
        if last.number != len(self.steps) - 1:
            self.total(last)

    @property
    def work(self) -> float:
        """The number of terms of log Z."""
        return self.batch * sum(step.work for step in self.steps)

    @property
    def tells_states(self) -> bool:
        """Return whether the parts of a site depend on its state."""
        return any(isinstance(step, Relabelled) for step in self.steps)

    def _add(self, step: Step, places: int, width: int, labels: Labels) -> Value:
        self.steps.append(step)
        return Value(len(self.steps) - 1, places, width, labels)
