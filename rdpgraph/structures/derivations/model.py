"""Derivations: the trees of a hypergraph."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.arguments import require_fields
from rdpgraph._core.cache import cached_property, current_property, remembered
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.interface.sites import Sites
from rdpgraph.model.potentials.table import as_states, checked_log_values, settle
from rdpgraph.model.restriction import gathered
from rdpgraph.model.soundness import require_possible
from rdpgraph.recurrences.bound import Bound
from rdpgraph.recurrences.declaration import Declared, Input
from rdpgraph.recurrences.restriction import UNARY
from rdpgraph.structures.draws import checked_best, checked_count, require_generator
from rdpgraph.structures.recurrence import Recurrence

MOST_LISTED = 1 << 18  # derivations of a node


@remembered(64)
def write_rules(arity: int, *, kept: bool) -> tuple[Declared, str]:
    """The inputs and the rules of derivations, by the number of tails.

    Node 0 has one derivation, which is empty: it is the tail where a hyperedge lacks one. Where
    some hyperedges are ``kept``, each of M nodes has K, which may differ from item to item.
    """
    # Kept edges lie by their nodes, in a table; all edges in one list, of which a node has a row.
    edge, sizes = ("v - 1, k", "M K") if kept else ("e", "E")
    declared = {"unary": Input(sizes)}
    if not kept:
        declared |= {"order": Input("E", whole=True), "rows": Input("V+1", whole=True)}
    if arity:
        declared["below"] = Input(f"{sizes} {arity}", whole=True)
    below = "".join(f" * a[below[{edge}, {slot}]]" for slot in range(arity))
    rules = f"""
        a[0] += 1
        a[v] += unary[v - 1, k]{below}
        goal += a[M]
    """
    if not kept:
        rules = f"""
            a[0] += 1
            a[v] += unary[order[e]]{below} if rows[v] <= e < rows[v + 1]
            goal += a[V - 1]
        """
    return tuple(declared.items()), rules


@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Hyperedges between nodes in topological order."""

    heads: Tensor  # (E,) nodes 0..nodes-1
    tails: Tensor  # (E, arity) nodes, padded with -1
    nodes: int  # their number; the last one is the goal

    @cached_property
    def edges(self) -> Sequence[Sequence[int]]:
        """The hyperedges of each node."""
        edges: list[list[int]] = [[] for _ in range(self.nodes)]
        for edge, head in enumerate(self.heads.tolist()):
            edges[head].append(edge)
        return edges

    @cached_property
    def below(self) -> Sequence[Sequence[int]]:
        """The tails of each hyperedge."""
        return [[tail for tail in row if tail >= 0] for row in self.tails.tolist()]

    @cached_property
    def listed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the hyperedges as a list of rows, one for each node, after one for no tail.

        The results are (E,) the numbers of the hyperedges sorted by their heads; (nodes + 2,) where
        each row begins, the last entry being the end; and (E, arity) the tails of the hyperedges in
        this order, 0 for none.
        """
        order = self.heads.argsort(stable=True)
        every = torch.arange(self.nodes + 1, device=order.device)
        begins = torch.searchsorted(self.heads[order].contiguous(), every)
        return order, pad(begins, (1, 0)), self.tails[order] + 1

    @cached_property
    def by_node(self) -> Tensor:
        """(nodes, M) the hyperedges of each node, padded with E."""
        order, rows, _ = self.listed
        heads, every = self.heads[order], torch.arange(len(order), device=order.device)
        most = int(rows.diff().max()) if len(order) else 0
        grid = torch.full((self.nodes, most), len(order), device=order.device)
        return grid.index_put((heads, every - rows[heads + 1]), order)

    @cached_property
    def tails_by_node(self) -> Tensor:
        """(nodes, M, arity) the tails of the hyperedges of each node, from 1 on, 0 for none."""
        return pad(self.tails + 1, (0, 0, 0, 1))[self.by_node]

    @cached_property
    def each_once(self) -> bool:
        """Return whether no derivation of the goal uses a node twice.

        One does if two tails of a usable hyperedge share a node below them. Bit sets: O(nodes E)
        bits.
        """
        within = list[int]()  # the nodes that a derivation of each may use; 0: it has none
        usable: list[list[int]] = []
        for node, ways in enumerate(self.edges):
            usable.append([edge for edge in ways if all(within[tail] for tail in self.below[edge])])
            used = 1 << node if usable[-1] else 0
            for edge in usable[-1]:
                for tail in self.below[edge]:
                    used |= within[tail]
            within.append(used)
        # Disjoint sets add up without a carry.
        return all(
            sum(within[tail] for tail in self.below[edge])
            == reduce(or_, (within[tail] for tail in self.below[edge]), 0)
            for node, edges in enumerate(usable)
            if within[-1] >> node & 1
            for edge in edges
        )


@dataclass(frozen=True, eq=False)
class KBestDerivations:
    """The derivations of largest score, best first.

    Attributes:
        uses: (k, *batch, E) the uses of every hyperedge; all 0 if there are fewer.
        scores: (k, *batch) nats, unnormalised; -inf where there are fewer.
    """

    uses: Tensor
    scores: Tensor


@dataclass(frozen=True, eq=False)
class Derivations(Recurrence):
    """The derivations of the last node of a hypergraph, weighted by their hyperedges.

    A derivation of a node is a hyperedge with that head, and one derivation of each of its tails;
    its score is the sum of its hyperedges' log-weights, as often as they are used. Nodes are
    numbered in topological order: tails before heads. A node without hyperedges has no derivation;
    one with a hyperedge without tails is an axiom.

    `marginals` are the expected numbers of uses of each hyperedge, and `mode` and `sample` give
    numbers of uses, (*batch, E); `rsample` gives relaxed ones, and `max_marginals` the score of the
    best derivation that uses each hyperedge. log Z takes O(E arity), level by level. Estimators
    choose hyperedges of each node: they take hypergraphs in which no derivation uses a node twice.

    Args:
        unary: (*batch, E) log-weights (nats) of the hyperedges; -inf forbids one.
        heads: (E,) nodes 0..nodes-1.
        tails: (E, arity) nodes, padded with -1.
        nodes: their number; the last one is the goal.

    Raises:
        ModelError: shapes that do not fit, NaN or +inf, a node out of range, a tail that does not
            come before its head.

    Example:
        >>> heads = torch.tensor([0, 1, 2, 2])
        >>> tails = torch.tensor([[-1, -1], [-1, -1], [0, 1], [1, 1]])
        >>> weights = torch.tensor([0.5, 2.0, 1.0, 3.0])
        >>> derivations = Derivations(weights.log(), heads, tails, nodes=3)
        >>> derivations.log_partition().exp()  # 0.5 * 2 * 1 + 2 * 2 * 3
        tensor(13.0000)
        >>> derivations.mode()
        tensor([0, 2, 0, 1])
    """

    heads: Tensor
    tails: Tensor
    nodes: int = field(kw_only=True)

    why_no_graph = "derivations use hyperedges in numbers, and not states of variables"
    least_use = 1

    if TYPE_CHECKING:  # arguments become tensors

        def __init__(
            self, unary: ArrayLike, heads: ArrayLike, tails: ArrayLike, *, nodes: int
        ) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "unary", whole=("heads", "tails"))
        checked_log_values("Derivations' unary", self.unary)
        edges = self.unary.shape[-1] if self.unary.ndim else -1
        for name, part in (("heads", self.heads), ("tails", self.tails)):
            if part.dtype != torch.int64:
                raise ModelError(f"Derivations needs {name} as int64; got {part.dtype}.")
        if tuple(self.heads.shape) != (edges,) or self.tails.ndim != 2 or len(self.tails) != edges:
            raise ModelError(
                "Derivations needs unary (*batch, E), heads (E,) and tails (E, arity); got "
                f"{tuple(self.unary.shape)}, {tuple(self.heads.shape)}, {tuple(self.tails.shape)}."
            )
        require_fields(self, nodes="[1, inf)")
        if not bool(((self.heads >= 0) & (self.heads < self.nodes)).all()):
            raise ModelError(
                f"Derivations of {self.nodes} nodes needs heads 0 to {self.nodes - 1}."
            )
        late = (self.tails >= self.heads.unsqueeze(1)) | (self.tails < -1)
        if bool(late.any()):
            edge = int(late.any(1).nonzero()[0])
            raise ModelError(
                f"Derivations needs tails before heads (-1 pads); hyperedge {edge} has head "
                f"{int(self.heads[edge])} and tails {self.tails[edge].tolist()}."
            )

    def written(self) -> tuple[Declared, str]:
        return write_rules(self.tails.shape[1], kept=False)

    def inputs(self) -> Mapping[str, Any]:
        order, rows, below = self._graph.listed
        given = {"unary": self.unary, "order": order, "rows": rows, "below": below}
        return {name: given[name] for name, _ in self.written()[0]}

    def score(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, uses: Tensor
    ) -> Tensor:
        """(*lead, *batch) the summed log-weights of derivations, given their numbers of uses.

        -inf for numbers that no derivation has: a node is used as often as it is needed.

        Raises:
            EvidenceError: another shape.
        """
        uses = as_states("The numbers of uses of Derivations", uses)
        if tuple(uses.shape[-self.unary.ndim :]) != tuple(self.unary.shape):
            raise EvidenceError(
                f"Derivations needs numbers of uses (*lead, *{tuple(self.unary.shape)}); got "
                f"{tuple(uses.shape)}."
            )
        values = torch.where(uses > 0, self.unary, 0.0)
        return torch.where(self._balanced(uses), (values * uses).sum(-1), -math.inf)

    def _balanced(self, uses: Tensor) -> Tensor:
        """(*lead, *batch) whether every node is derived as often as it is needed, the goal once."""
        lead = (*uses.shape[:-1], self.nodes + 1)
        derived = uses.new_zeros(lead).index_add(-1, self.heads.to(uses.device), uses)
        needed = uses.new_zeros(lead)
        needed[..., self.nodes - 1] = 1
        tails = torch.where(self.tails < 0, self.nodes, self.tails).to(uses.device)
        for slot in tails.unbind(1):
            needed = needed.index_add(-1, slot, uses)
        same = (derived == needed)[..., : self.nodes].all(-1)
        return same & (uses >= 0).all(-1)

    def joined(self, used: Mapping[tuple[int, ...], int]) -> list[tuple[Any, Any]]:
        tails, heads = self.tails.tolist(), self.heads.tolist()
        return [(one, other) for one in used for other in used if heads[other[0]] in tails[one[0]]]

    def uses(self, states: Tensor) -> Tensor:
        return states

    def listed(self) -> Tensor:
        """(D, E) the uses of every hyperedge in each derivation of the goal.

        Derivations that swap two parts of one node are listed separately.

        Raises:
            ModelError: more than 2^18 derivations of a node.
        """
        by_node: list[Tensor] = []
        for edges in self._graph.edges:
            ways: list[Tensor] = []
            for edge in edges:
                uses = torch.zeros(1, len(self.heads), dtype=torch.int64, device="cpu")
                uses[0, edge] = 1
                for tail in self.tails[edge].tolist():
                    below = by_node[tail] if tail >= 0 else torch.zeros_like(uses[:1])
                    if len(uses) * len(below) > MOST_LISTED:
                        raise ModelError(
                            f"Derivations lists at most {MOST_LISTED:,} derivations; this "
                            "hypergraph has more. Draw some with sample(count)."
                        )
                    uses = (uses.unsqueeze(1) + below).flatten(0, 1)
                ways.append(uses)
            by_node.append(
                torch.cat([torch.zeros(0, len(self.heads), dtype=torch.int64, device="cpu"), *ways])
            )
        return by_node[-1].to(self.unary.device)

    @torch.no_grad()
    def mode(self) -> Tensor:
        """(*batch, E) the uses of each hyperedge in one best derivation.

        Raises:
            ImpossibleEvidenceError: an item has no derivation.
        """
        return self._used(None, None)[0]

    def k_best(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, k: int
    ) -> KBestDerivations:
        """The k most probable derivations of each item, best first; the scores are differentiable.

        Derivations that swap two parts of one node count separately, with equal numbers of uses.

        Raises:
            ModelError: k below 1.
        """
        k = checked_best(self.name, k, self.states_shape)
        uses, scores = self._bind().k_best(k)
        return KBestDerivations(uses[UNARY], scores.to(self.unary))

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, E) the uses of each hyperedge in independent exact draws.

        Raises:
            ImpossibleEvidenceError: an item has no derivation.
        """
        require_generator(generator)
        return self._used(checked_count(count, self.states_shape), generator)

    def _used(self, count: int | None, generator: torch.Generator | None) -> Tensor:
        """(draws, *batch, E) the uses of each hyperedge; None: in the best derivation."""
        uses, possible = self._bind().uses_of(count, generator)
        require_possible(f"{self.name} has no samples and no mode", possible)
        return uses[UNARY]

    def _compared(self, other: Recurrence) -> tuple[Bound, Bound]:
        if isinstance(other, Derivations) and not (
            self.nodes == other.nodes
            and torch.equal(self.heads, other.heads)
            and torch.equal(self.tails, other.tails)
        ):
            raise ModelError("Derivations can be compared only if their hypergraphs are the same.")
        return super()._compared(other)

    def sites(self) -> Sites | None:
        """The nodes, whose states are their hyperedges, if no derivation uses a node twice.

        Z is then linear in the weights of each node's hyperedges, so unbiased if they are. Nodes
        with fewer hyperedges are padded with impossible states. Mean factor values are all equal:
        use a `Pilot` where the hyperedges below a node matter.
        """
        if not self._graph.each_once:
            return None
        unary = self._by_node
        means = torch.zeros_like(unary[..., :1])
        return Sites(unary, restrict=self.restrict, means=lambda _count, _generator: means)

    def site_places(self) -> Tensor:
        """(nodes, M) the hyperedge of each state of `sites`; -1: none."""
        edges = self._graph.by_node
        return torch.where(edges < len(self.heads), edges, -1)

    @property
    def states_shape(self) -> tuple[int, ...]:
        """(*batch, E): derivations are numbers of uses."""
        return tuple(self.unary.shape)

    def restrict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, states: Tensor, log_weights: Tensor
    ) -> "NodeDerivations":
        """The derivations by some hyperedges of each node, with weights, as estimators solve them.

        O(nodes K arity) for log Z, where K are kept of each node.

        Args:
            states: (*replicates, *batch, nodes, K) of the states of `sites`; repeats stay separate.
            log_weights: of that shape; added to the log-weights of the hyperedges.

        Raises:
            ModelError: shapes that do not fit, or a state out of range.
        """
        kept = gathered("Derivations", self._by_node, states, log_weights, sites=1)
        return NodeDerivations(kept, states, self._graph)

    def with_unary(self, unary: Tensor) -> Self:
        """The same hypergraph with other log-weights."""
        other, _ = super().with_unary(unary), self._graph
        vars(other).update({name: value for name, value in vars(self).items() if "_graph" in name})
        return other

    def work(self) -> float:
        return float(math.prod(self.batch_shape) * self.tails.numel())

    @current_property("heads", "tails")
    def _graph(self) -> Hypergraph:
        # Made of copies: restricted derivations hold on to it.
        heads, tails = (part.to(self.unary.device, copy=True) for part in (self.heads, self.tails))
        return Hypergraph(heads, tails, self.nodes)

    @property
    def _by_node(self) -> Tensor:
        """(*batch, nodes, M) the log-weights of the hyperedges of each node; -inf: none."""
        return pad(self.unary, (0, 1), value=-math.inf)[..., self._graph.by_node]


@dataclass(frozen=True, eq=False)
class NodeDerivations(Recurrence):
    """Derivations whose nodes have K hyperedges each, numbered 0..K-1, chosen by item.

    A derivation uses a node once at most; unused nodes are in the state -1. Log-weights are
    (*lead, nodes, K).
    """

    # (*lead, nodes, K) their numbers among the node's hyperedges; repeats are allowed.
    states: Tensor = field(metadata={"dims": 2})
    graph: Hypergraph = field(repr=False)

    def __post_init__(self) -> None:
        """Skip the checks, which `Derivations` has passed."""

    @property
    def name(self) -> str:
        return "Derivations"

    def written(self) -> tuple[Declared, str]:
        return write_rules(self.graph.tails.shape[1], kept=True)

    def inputs(self) -> Mapping[str, Any]:
        given = {"unary": self.unary, "below": self._below}
        return {name: given[name] for name, _ in self.written()[0]}

    @current_property("states")
    def _below(self) -> Tensor:
        """(*lead, nodes, K, arity) the tails of the hyperedges kept, from 1 on, 0 for none."""
        tails = self.graph.tails_by_node
        node = torch.arange(len(tails), device=tails.device).unsqueeze(1)
        return tails[node, self.states]

    def restrict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, states: Tensor, log_weights: Tensor
    ) -> "NodeDerivations":
        """The derivations by some of the hyperedges kept."""
        unary = gathered(self.name, self.unary, states, log_weights, sites=1)
        kept = self.states.expand(*states.shape[:-1], -1).gather(-1, states)
        return NodeDerivations(unary, kept, self.graph)
