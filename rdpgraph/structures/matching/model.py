"""Matchings: rows and columns one-to-one, as of tracks and detections, or records and records."""

import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.portable import in_full_precision
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import BudgetError, EvidenceError, ModelError
from rdpgraph.interface.structure import Match
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.automaton import AtMostOne, Automaton, ExactlyOne
from rdpgraph.model.potentials.table import Table, as_values, checked_log_values
from rdpgraph.model.soundness import require_possible
from rdpgraph.model.variable import VariableArray
from rdpgraph.plan.plan import require_room
from rdpgraph.structures.chain.recognition import unary_sum
from rdpgraph.structures.draws import (
    KBestConfigurations,
    Pick,
    checked_best,
    checked_count,
    drawn,
    largest,
    require_generator,
)
from rdpgraph.structures.matching.assignment import NONE, AssignmentProblem, k_best, merged
from rdpgraph.structures.matching.pairs import Pairs, read_matrix, read_pairs, two_sides
from rdpgraph.structures.matching.sweep import MatchingSweep, sweeps
from rdpgraph.structures.summed_scores import SummedScores


@dataclass(frozen=True, eq=False)
class MatchingCost:
    """What exact sums over matchings cost.

    Attributes:
        open: the most rows and columns that are open at once in a sweep; a table has 2^open
            entries.
        components: the number of connected components, over all batch items.
        work: the log-values that are summed.
    """

    open: int
    components: int
    work: float


@dataclass(frozen=True, eq=False)
class Matching(SummedScores):
    """Who is who: pairs of rows and columns, in which each row and each column occurs once at most.

    Rows and columns are tracks and detections in data association, or records of two files in
    record linkage. Each pair has log-odds, and the score of a matching is the sum over its pairs.
    Marginals are the probabilities of pairs, the mode is the best assignment, and log Z of a square
    matrix with ``every_row`` is the logarithm of its permanent.

    Sites are pairs, in state 1 where they are matched and 0 where they are not. They are (rows,
    columns) for a dense matrix, and (P,) for a sparse one; `partners` gives the column of each row.

    Sums over matchings are hard to compute in general (#P). Here they are exact, by connected
    components of the pairs that are possible, each by a sweep over rows and columns that keeps a
    table of 2^open entries; `cost()` gives the number that is open. Gating makes it small: give
    pairs -inf that are next to impossible, or leave them out of a sparse matrix. Modes and the k
    best are assignment problems, and are exact however many are open: the k best by scipy, and so
    is the mode where no sweep fits. All is computed on the CPU, in float64.

    Args:
        log_odds: (*batch, rows, columns) nats: of the pair against both being alone; -inf: never.
            Or a sparse matrix of scipy or torch, in which pairs that are not stored are impossible
            and stored zeros are log-odds of 0. Or (*batch, P), beside ``pairs``.
        pairs: (P, 2) the row and the column of each pair.
        shape: the number of rows and of columns, for ``pairs``; by default the least that fits.
        every_row: whether each row is in exactly one pair; or (rows,) of these for each.
        every_column: whether each column is; or (columns,).
        unary: (*batch, *sites, 2) log-potentials (nats) instead of log-odds.

    Raises:
        ModelError: shapes that do not fit, NaN or +inf, a pair out of range.

    Example:
        >>> odds = torch.tensor([[2.0, 1.5], [1.0, -math.inf]])
        >>> two = Matching(odds)
        >>> two.partners(two.mode())  # greedily row 0 would take column 0
        tensor([1, 0])
        >>> two.marginals()[..., 1]
        tensor([[0.2661, 0.6000],
                [0.5365, 0.0000]])
    """

    unary: Tensor = field(kw_only=True, default=None)  # pyright: ignore[reportAssignmentType]
    log_odds: InitVar[Any] = None
    pairs: Any = field(kw_only=True, default=None)
    shape: InitVar[Any] = field(kw_only=True, default=None)
    every_row: InitVar[Any] = field(kw_only=True, default=False)
    every_column: InitVar[Any] = field(kw_only=True, default=False)

    if TYPE_CHECKING:  # arguments become tensors

        def __init__(
            self,
            log_odds: Any = None,
            *,
            pairs: Any = None,
            shape: tuple[int, int] | None = None,
            every_row: bool | ArrayLike = False,
            every_column: bool | ArrayLike = False,
            unary: ArrayLike | None = None,
        ) -> None: ...

    def __post_init__(self, log_odds: Any, shape: Any, every_row: Any, every_column: Any) -> None:
        given: Any = self.unary
        if (log_odds is None) == (given is None):
            raise ModelError("Matching needs log_odds, or unary log-potentials, and not both.")
        if log_odds is not None:  # a matrix, or a number for each pair
            pairs, odds = self._read(log_odds, shape, every_row, every_column)
            unary = torch.stack([torch.zeros_like(odds), odds], -1)
        else:
            # Potentials of both states of each pair, as answers and estimators hand them over.
            unary = as_values("Matching's unary", given)
            pairs = self.pairs
            if not isinstance(pairs, Pairs):
                dims, grid = (2, unary.shape[-3:-1]) if pairs is None else (1, shape)
                if unary.ndim < dims + 1:
                    raise ModelError(
                        f"Matching needs unary (*batch, rows, columns, 2), or (*batch, P, 2) "
                        f"beside pairs; got {tuple(unary.shape)}."
                    )
                listed = np.argwhere(np.ones(grid)) if pairs is None else pairs
                listed, grid = read_pairs(listed, grid)
                sites = tuple(unary.shape[-1 - dims : -1])
                pairs = Pairs.of(listed, grid, sites, every_row, every_column)
        object.__setattr__(self, "pairs", pairs)
        checked_log_values("Matching's log-potentials", unary)
        sites = pairs.sites
        if tuple(unary.shape[-1 - len(sites) :]) != (*sites, 2) or math.prod(sites) != len(
            pairs.ends
        ):
            shown = tuple(unary.shape if log_odds is None else unary.shape[:-1])
            raise ModelError(
                f"Matching of {len(pairs.ends)} pairs needs log-odds (*batch, {len(pairs.ends)}), "
                f"one for each pair, or unary (*batch, {len(pairs.ends)}, 2); got {shown}."
            )
        object.__setattr__(self, "unary", unary)

    def _read(
        self, log_odds: Any, shape: Any, every_row: Any, every_column: Any
    ) -> tuple[Pairs, Tensor]:
        """Pairs, and log-odds (*batch, *sites)."""
        if self.pairs is None:
            listed, found, odds, dense = read_matrix(in_full_precision(log_odds))
            if shape is not None and tuple(shape) != found:
                raise ModelError(
                    f"Matching takes its shape from a matrix of log-odds, {found}; got "
                    f"shape={shape!r:.80}. Leave it out."
                )
            sites = found if dense else (len(listed),)
        else:
            listed, found = read_pairs(self.pairs, shape)
            odds = as_values("Matching's log_odds", log_odds)
            sites = (len(listed),)
        return Pairs.of(listed, found, sites, every_row, every_column), odds

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.unary.shape[: self.unary.ndim - 1 - len(self.pairs.sites)])

    def partners(self, states: Tensor) -> Tensor:
        """(*lead, *batch, rows) the column of each row, -1 where it is alone.

        Args:
            states: (*lead, *batch, *sites) as `mode` and `sample` give them.
        """
        flat = self._flat(states)
        rows, columns = torch.from_numpy(self.pairs.ends.T).to(flat.device)
        found = flat.new_full((*flat.shape[:-1], self.pairs.num_rows), -1)
        *lead, pair = flat.nonzero(as_tuple=True)
        found[(*lead, rows[pair])] = columns[pair] - self.pairs.num_rows
        return found

    def cost(self) -> MatchingCost:
        """What exact sums cost: the most that is open, components, log-values."""
        sweeps = self._sweeps()
        return MatchingCost(
            max((each.open for each in sweeps), default=0),
            sum(len(each.alike.items) for each in sweeps),
            sum(len(each.alike.items) * each.entries for each in sweeps),
        )

    def work(self) -> float:
        return self.cost().work

    def width(self) -> float:
        return float(self.cost().open)

    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats; -inf where no matching is possible. Twice differentiable.

        Raises:
            BudgetError: a component is too wide for a sweep.
        """
        entries, total, alive = self._parts()
        for sweep in self._sweeps(room=True):
            total = total.index_add(0, sweep.alike.items, sweep.log_sums(entries))
        alive = alive & (total.detach() > -math.inf)
        total = torch.where(alive, total, -math.inf)
        return total.to(self.unary).reshape(self.batch_shape)

    def _require_alike(self, other: Any) -> None:
        super()._require_alike(other)
        if any(
            not np.array_equal(getattr(self.pairs, name), getattr(other.pairs, name))
            for name in ("ends", "required")
        ):
            raise ModelError(
                "A Matching can be compared only with another of its pairs, and of the same rows "
                "and columns that must be matched; got others."
            )

    @torch.no_grad()
    def max_marginals(self) -> Tensor:
        """(*batch, *sites, 2) the best score with each pair apart, and matched (nats).

        Raises:
            BudgetError: as for `log_partition`.
        """
        entries, base, alive = self._parts()
        sweeps = self._sweeps(room=True)
        # The best of the other components of an item, by sums from both sides of its own.
        found = [(each, each.max_marginals(entries)) for each in sweeps]
        tops = [best[:, 0].amax(-1) for _, best in found]
        items = torch.cat(
            [torch.zeros(0, dtype=torch.long, device="cpu"), *(each.alike.items for each in sweeps)]
        )
        top = torch.cat([entries.new_zeros(0), *tops])
        order = items.argsort(stable=True)
        counts = items.bincount(minlength=len(base))
        place = torch.arange(len(items), device="cpu") - (counts.cumsum(0) - counts)[items[order]]
        grid = entries.new_zeros(len(base), int(counts.max()) if len(items) else 0)
        grid[items[order], place] = top[order]
        zero = torch.zeros_like(base).unsqueeze(1)
        before = torch.cat([zero, grid.cumsum(1)], 1)
        after = torch.cat([grid.flip(1).cumsum(1).flip(1), zero], 1)
        whole = torch.where(alive, base + before[:, -1], -math.inf)
        others = torch.empty_like(top)
        others[order] = (before[:, :-1] + after[:, 1:])[items[order], place]
        # A pair that is impossible is apart in the best matching.
        best = torch.stack([whole, torch.full_like(whole, -math.inf)], -1)
        best = best.unsqueeze(1).expand(-1, len(self.pairs.ends), -1).reshape(-1, 2).clone()
        alive_base = torch.where(alive, base, -math.inf)
        for (sweep, own), rest in zip(found, others.split([len(t) for t in tops]), strict=True):
            lift = (rest + alive_base[sweep.alike.items]).reshape(-1, 1, 1)
            best[sweep.alike.entries] = own + lift
        return best.to(self.unary).reshape(self.unary.shape)

    def mode(self) -> Tensor:
        """(*batch, *sites) one best matching: by sweeps, or as an assignment problem by scipy.

        Raises:
            ImpossibleEvidenceError: an item has none.
            UnsupportedError: no sweep fits, and scipy is not installed.
        """
        with torch.no_grad():
            states, possible = self._chosen(1, largest, 0.0, self._best_of_wide)
        require_possible("No matching is possible", possible)
        return states[0]

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, *sites) independent exact draws.

        Raises:
            ImpossibleEvidenceError: an item has none.
            BudgetError: as for `log_partition`.
        """
        count = checked_count(count, self.states_shape)
        require_generator(generator)
        self._sweeps(room=True)
        with torch.no_grad():
            states, possible = self._chosen(count, drawn(generator), 1.0, None)
        require_possible("No matching is possible", possible)
        return states

    def _chosen(
        self,
        count: int,
        pick: Pick,
        temperature: float,
        wide: Callable[[MatchingSweep, Tensor], Any] | None,
    ) -> tuple[Tensor, Tensor]:
        """(count, *batch, *sites) states, and (*batch,) whether each item has any.

        Components that no sweep fits are left to ``wide``.
        """
        entries, total, alive = self._parts()
        states = torch.zeros(count, len(entries), dtype=torch.long, device="cpu")
        for sweep in self._sweeps():
            if wide is not None and sweep.entries > tuning.MATCHING_PART:
                edges, best = wide(sweep, entries)
            else:
                best = sweep.tables(sweep.choices(entries), temperature)[-1][:, 0]
                edges = sweep.descend(entries, count, pick, temperature)
            states[:, sweep.alike.entries] = edges.long()
            total = total.index_add(0, sweep.alike.items, best)
        possible = alive & (total > -math.inf)
        states = states.reshape(count, *self.states_shape).to(self.unary.device)
        return states, possible.reshape(self.batch_shape)

    def _best_of_wide(self, sweep: MatchingSweep, entries: Tensor) -> tuple[Tensor, Tensor]:
        """(1, G, E) the best matchings of components, and (G,) their scores."""
        edges = torch.zeros(1, *sweep.alike.entries.shape, dtype=torch.bool, device="cpu")
        scores = entries.new_full((len(sweep.alike.items),), -math.inf)
        for number in range(len(scores)):
            best = self._problem(sweep, number, entries).best()
            if best is not None:
                scores[number] = best[0]
                edges[0, number, [edge for edge in best[1] if edge != NONE]] = True
        return edges, scores

    def _problem(self, sweep: MatchingSweep, number: int, entries: Tensor) -> AssignmentProblem:
        """The assignment problem of one component."""
        places = sweep.alike.entries[number].numpy()
        ends = self.pairs.ends[places % len(self.pairs.ends)]
        rows, one = np.unique(ends[:, 0], return_inverse=True)
        columns, other = np.unique(ends[:, 1], return_inverse=True)
        off, on = entries[sweep.alike.entries[number]].detach().numpy().T
        required = self.pairs.required
        return AssignmentProblem(
            np.stack([one, other], 1), off, on, required[rows], required[columns]
        )

    def k_best(self, k: int) -> KBestConfigurations:
        """The k best matchings, best first; the scores are differentiable.

        By Murty's algorithm, which solves an assignment problem for each row of a component and
        each matching that is found; ties are listed one by one. It needs scipy.

        Raises:
            ModelError: k below 1.
            UnsupportedError: scipy is not installed.
        """
        k = checked_best("Matching", k, self.states_shape)
        states = self._best_few(k).reshape(k, *self.states_shape).to(self.unary.device)
        there = (self._flat(states) >= 0).all(-1)
        if not len(self.pairs.ends):  # the empty matching alone
            there[1:] = False
            there[0] = not self.pairs.required.any()
        scores = torch.where(there, self.score(states.clamp(min=0)), -math.inf)
        return KBestConfigurations(states, scores)

    @torch.no_grad()
    def _best_few(self, k: int) -> Tensor:
        """(k, items * P) the states of the best matchings, -1 where there are fewer."""
        entries, base, alive = self._parts()
        width = len(self.pairs.ends)
        states = torch.full((k, len(base), width), -1, device="cpu")
        by_item: dict[int, list[tuple[MatchingSweep, int]]] = {
            item: [] for item in range(len(base))
        }
        for sweep in self._sweeps():
            for number, item in enumerate(sweep.alike.items.tolist()):
                by_item[item].append((sweep, number))
        for item, parts in by_item.items():
            if not bool(alive[item]) or not bool(base[item] > -math.inf):
                continue
            problems = [self._problem(*part, entries) for part in parts]
            lists = [k_best(problem, min(k, 2)) for problem in problems]
            if not all(lists):
                continue
            # A matching among the k best differs from the best one in components whose second best
            # costs least, k - 1 of them at most.
            gaps = [few[0][0] - few[1][0] if len(few) > 1 else math.inf for few in lists]
            others = sorted(range(len(gaps)), key=gaps.__getitem__)[: k - 1]
            joint: list[tuple[float, Any]] = [(0.0, ())]
            for number in others:
                if gaps[number] < math.inf:
                    joint = merged(joint, k_best(problems[number], k), k)
            used = [number for number in others if gaps[number] < math.inf]
            places = [sweep.alike.entries[number] - item * width for sweep, number in parts]
            best = torch.zeros(width, dtype=torch.long, device="cpu")
            for where, few in zip(places, lists, strict=True):
                best[where[[edge for edge in few[0][1] if edge != NONE]]] = 1
            for place, (_, nested) in enumerate(joint):
                row = best.clone()
                for number in reversed(used):
                    nested, choice = nested
                    row[places[number]] = 0
                    row[places[number][[edge for edge in choice if edge != NONE]]] = 1
                states[place, item] = row
        return states

    def score(self, states: Tensor) -> Tensor:
        """(*lead, *batch) the summed log-potentials of matchings; -inf for what is none.

        That includes states other than 0 and 1.

        Raises:
            EvidenceError: another shape, or states that are no whole numbers.
        """
        shape = self.states_shape
        fits = isinstance(states, Tensor) and not states.is_floating_point()
        if not fits or tuple(states.shape[states.ndim - len(shape) :]) != shape:
            raise EvidenceError(
                f"Matching needs states of pairs as integers (*lead, *{shape}); got "
                f"{getattr(states, 'dtype', type(states).__name__)} of shape "
                f"{tuple(getattr(states, 'shape', ()))}."
            )
        # The sum over chosen pairs. What has other states than 0 and 1 is no matching.
        whole = (states == 0) | (states == 1)
        some = torch.where(whole, states, 0).long()
        picked = self.unary.expand(*some.shape, 2).gather(-1, some.unsqueeze(-1)).squeeze(-1)
        # A matching has at most one pair at each vertex, and one where it must have a partner.
        flat = self._flat(some)
        ends = torch.from_numpy(self.pairs.ends).to(flat.device)
        counts = flat.new_zeros(*flat.shape[:-1], self.pairs.vertices)
        for side in ends.T:
            counts = counts.index_add(-1, side, flat)
        required = torch.from_numpy(self.pairs.required).to(flat.device)
        fits = ((counts <= 1) & ((counts == 1) | ~required)).all(-1) & self._flat(whole).all(-1)
        return torch.where(fits, self._flat(picked).sum(-1), -math.inf)

    def factor_graph(self) -> FactorGraph:
        """Pairs as binary variables, and `AtMostOne` or `ExactlyOne` for each row and column."""
        sites = VariableArray("site", self.pairs.sites, 2)
        variables = [sites[tuple(place)] for place in np.ndindex(*self.pairs.sites)]
        near: list[list[int]] = [[] for _ in range(self.pairs.vertices)]
        for pair, ends in enumerate(self.pairs.ends.tolist()):
            for vertex in ends:
                near[vertex].append(pair)
        factors: list[Factor | FactorBlock] = []
        dtype = self.unary.dtype
        for every, own in zip(self.pairs.required.tolist(), near, strict=True):
            if every and not own:
                absent = torch.full((), -math.inf, dtype=dtype, device=self.unary.device)
                factors.append(Factor((), Table(absent)))
            elif own and (every or len(own) > 1):
                once = (ExactlyOne if every else AtMostOne)(len(own), dtype=dtype)
                factors.append(Factor([variables[pair] for pair in own], once))
        return FactorGraph([FactorBlock((sites,), Table(self.unary)), *factors])

    @classmethod
    def recognise(cls, graph: FactorGraph) -> Match | None:
        """Binary variables under `AtMostOne` and `ExactlyOne`, in two of these at most; narrow."""
        joint = [block for block in graph.blocks if block.arity > 1]
        if not joint or any(type(block.potential) is not Automaton for block in joint):
            return None
        if bool((graph.domain.sizes != 2).any()) or any(block.arity == 0 for block in graph.blocks):
            return None
        required: list[bool] = []
        within: list[list[int]] = [[] for _ in range(graph.num_variables)]
        for block in joint:
            every = _once(block.select())
            if every is None:
                return None
            for scope in block.scopes.tolist():
                for number in scope:
                    within[number].append(len(required))
                required.append(every)
        most = max(map(len, within))
        if most != 2:  # constraints of which no two share a variable are answered as quickly
            return None
        # A variable in fewer constraints has others to itself.
        count = len(required)
        for own in within:
            for _ in range(2 - len(own)):
                own.append(count)
                count += 1
        required += [False] * (count - len(required))
        side = two_sides(count, (tuple(own) for own in within))  # pyright: ignore
        if side is None or any(len(set(own)) < 2 for own in within):
            return None
        numbers, counts = list[int](), [0, 0]
        for one in side:
            numbers.append(counts[one])
            counts[one] += 1
        ends = np.array(within)  # that of the first side first
        listed = np.array(numbers)[np.where(np.array(side)[ends[:, :1]] == 0, ends, ends[:, ::-1])]
        flags = [
            torch.tensor([once for once, one in zip(required, side, strict=True) if one == each],
                         dtype=torch.bool, device="cpu")
            for each in (0, 1)
        ]  # fmt: skip
        variables = torch.arange(graph.num_variables, device="cpu")
        model = cls(
            unary=unary_sum(graph, variables, len(variables)), pairs=listed,
            shape=(counts[0], counts[1]), every_row=flags[0], every_column=flags[1],
        )  # fmt: skip
        cost = model.cost()
        if cost.open > tuning.RECOGNISED_CHECKS or cost.work > tuning.RECOGNISED_MATCHING:
            return None
        return Match(model, variables)

    def _flat(self, values: Tensor) -> Tensor:
        """(*lead, P) values of pairs (*lead, *sites)."""
        lead = values.shape[: values.ndim - len(self.pairs.sites)]
        return values.reshape(*lead, len(self.pairs.ends))

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log-potentials, and what lies outside of the components in which matchings are summed.

        Returns:
            (items * P, 2) log-potentials of the P pairs, unmatched and matched, in float64;
            (items,) the summed log-potentials of being unmatched of the pairs that cannot be
            matched, which are in no component; (items,) whether every node that must be matched has
            a pair.
        """
        count = math.prod(self.batch_shape)
        unary = self.unary.double().cpu().reshape(count, len(self.pairs.ends), 2)
        barred = unary[..., 1].detach() == -math.inf
        base = torch.where(barred, unary[..., 0], 0.0).sum(-1)
        _, lacking = self._plan
        return unary.reshape(-1, 2), base, ~torch.from_numpy(lacking)

    @property
    def _plan(self) -> tuple[list[MatchingSweep], Any]:
        """Sweeps of components that are alike, and items that lack a pair of a required vertex."""
        count = math.prod(self.batch_shape)
        unary = self.unary.detach().cpu().reshape(count, len(self.pairs.ends), 2)
        possible = (unary[..., 1] != -math.inf).numpy()  # NaN stays, for the error
        return sweeps(self.pairs, possible)

    def _sweeps(self, *, room: bool = False) -> list[MatchingSweep]:
        """The sweeps; with ``room``, a `BudgetError` if they do not fit."""
        every = self._plan[0]
        for sweep in every if room else ():
            if sweep.found is None:
                raise BudgetError(_too_wide(sweep))
            held = min(len(sweep.alike.items) * sweep.entries, sweep.entries + tuning.MATCHING_PART)
            require_room(
                40.0 * held, f"Sums over matchings with {sweep.open} rows and columns open",
                remedy="gate more pairs by log-odds of -inf",
            )  # fmt: skip
        return every


def _too_wide(sweep: MatchingSweep) -> str:
    """The message for a component that no sweep fits."""
    rows, columns = (len(np.unique(side)) for side in sweep.alike.ends.T)
    return (
        f"Sums over the matchings of {rows} rows and {columns} columns that are connected would "
        f"have more than {tuning.MOST_MATCHING_BITS} of them open at once: gate more pairs by "
        "log-odds of -inf, or ask messages by infer(matching.factor_graph(), scheduler=Loopy()), "
        "whose log Z is a lower bound once they have converged. mode() and k_best(k) are exact "
        "here, too."
    )


def _once(potential: Any) -> bool | None:
    """Whether an automaton is `ExactlyOne`; False for `AtMostOne`, None for any other."""
    if not isinstance(potential, Automaton):
        return None
    if potential.transitions.tolist() != [[0, 1], [1, 2], [2, 2]]:
        return None
    rows = potential.log_accept.reshape(-1, 3)
    if rows.requires_grad or not bool((rows == rows[0]).all()):
        return None
    known = {(0.0, 0.0, -math.inf): False, (-math.inf, 0.0, -math.inf): True}
    return known.get(tuple(rows[0].tolist()))
