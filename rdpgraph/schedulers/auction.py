"""The auction: routes are asked for bids, the best answer, and the others stand by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rdpgraph._core import effort, tuning
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.bids import QUESTIONS, Bid, Bids, Exactness, Offer
from rdpgraph.plan.clock import counted
from rdpgraph.plan.plan import Budget, Plan
from rdpgraph.schedulers.in_turn import InTurn
from rdpgraph.schedulers.preparing import solved
from rdpgraph.schedulers.route import ROUTES, Entry, Others, Route, Settings, Shape, Task
from rdpgraph.schedulers.rows_apart import RowsApart
from rdpgraph.schedulers.scheduler import Planned

_MARGINALS = "variable_marginals"
_ASKED: tuple[Question[Any], ...] = tuple(map(Question, QUESTIONS))

_IN_RANKS = frozenset({"counting of projections", "structure", "buckets", "ranks"})
_IN_ROWS = _IN_RANKS | {"rows"}
_IN_GENERAL = _IN_ROWS | {"structure given evidence"}
"""Routes that are not asked about a graph with variables of ranks, about some rows of evidence, and
about the questions that a structure leaves to others."""


@dataclass(frozen=True)
class _Asked:
    """A route that was asked, and its bids by question."""

    entry: Entry
    route: Route
    bids: dict[str, Bid]
    standing: dict[str, Bid]  # those that are not refused

    @property
    def best(self) -> Bid:
        """The bid for marginals, or else the one that ranks first, of those not refused if any."""
        bids = self.standing or self.bids
        return bids.get(_MARGINALS) or min(bids.values(), key=_rank)


def planned(task: Task) -> Planned:
    """The plan of a graph by the route whose bid for marginals is the best, and its solution.

    The solution of every question is that of the best bid for it.
    """
    with counted(task.counter):
        every = _ask(task, ROUTES.named(task.routes))
        task.spend_planning()
        return _told(task, every)


def _told(task: Task, every: Sequence[_Asked]) -> Planned:
    """The plan by the best bids, with the table of all, and the solution."""
    plan = _plan_of(task, every)
    rows = [replace(each, bids=_without_work(each.bids)) for each in every]
    bids = Bids(partial(_table, Shape.of(task.graph), ROUTES.named(task.routes), rows))
    return replace(plan, bids=bids), partial(_solution, task.settled(_remedy(every)), tuple(every))


def _remedy(every: Sequence[_Asked]) -> str:
    """What would give better answers than approximate ones, by the first refused bid that says."""
    refused = (each.bids[_MARGINALS] for each in every if _MARGINALS in each.bids)
    return next((bid.remedy for bid in refused if bid.refused and bid.remedy), "")


def begun(task: Task) -> tuple[Plan | None, Callable[[], Solution]]:
    """The same for answers that begin at once; None for a plan that is made when it is asked for.

    Only what surely fits is left unplanned: approximate routes that stand before loopy messages.
    """
    task = replace(task, lazily=True)
    with counted(task.counter):
        every = _ask(task, ROUTES.named(task.routes))
        task.spend_planning()
        main = next(e for e in _ranked(every, _MARGINALS) if not e.route.beforehand)
        if main.entry.is_own or _is_final(main) or main.entry.name == ROUTES.last:
            return _told(task, every)
    return None, partial(_solution, task.settled(_remedy(every)), tuple(every))


def _ask(task: Task, entries: Sequence[Entry]) -> list[_Asked]:
    """Ask routes for bids, until a decisive one bids for marginals."""
    shape, every, budget = Shape.of(task.graph), list[_Asked](), task.budget
    for entry in entries:
        if not entry.might_bid(shape):
            continue
        route, bids = entry.route(), dict[str, Bid]()
        if route is None:
            continue
        for question in _ASKED:
            bid = route.bid(task, question, budget)
            if bid is not None:
                bids[question.name] = _checked(entry, bid, budget)
        task.note(bids)
        standing = {name: bid for name, bid in bids.items() if not bid.refused}
        every.append(_Asked(entry, route, bids, standing))
        if route.decisive and not entry.is_own and _MARGINALS in standing:
            break
    return every


def _checked(entry: Entry, bid: object, budget: Budget) -> Bid:
    """A bid, refused if it is a user's and exceeds the budget; built-in routes know better."""
    if not isinstance(bid, Bid):
        raise ModelError(
            f"The route {entry.name!r} must bid a Bid or None; got {type(bid).__name__}. "
            "Bid(exactness, seconds, memory, why) is in rdpgraph.extend."
        )
    if not entry.is_own or bid.refused:
        return bid
    if bid.seconds > effort.HOPELESS * budget.seconds:
        return replace(bid, refused=f"needs more than the {budget.seconds:g} s of the budget")
    if bid.memory > max(budget.memory_bytes, tuning.SMALL_BYTES):
        return replace(bid, refused="needs more memory than the budget has")
    return bid


def _ranked(every: Sequence[_Asked], question: str) -> list[_Asked]:
    """The routes whose bids for a question stand, the best first."""
    bidding = [each for each in every if question in each.standing]
    return sorted(bidding, key=lambda each: each.bids[question].rank)


def _lead(every: Sequence[_Asked]) -> _Asked:
    """The built-in route that bid best for marginals, or the last one asked, if all are refused.

    What is taken before an auction, as the buckets of a small graph, is not run by it. Messages
    always bid, so that all are refused only among exact routes; the plan of the last says why.
    """
    ranked = _ranked(every, _MARGINALS)
    return next((e for e in ranked if not (e.entry.is_own or e.route.beforehand)), every[-1])


def _is_final(asked: _Asked) -> bool:
    """Return whether the bid of a built-in route for marginals leaves no approximate ones."""
    return asked.route.decisive or asked.bids[_MARGINALS].exactness is Exactness.EXACT


def _plan_of(task: Task, every: Sequence[_Asked]) -> Plan:
    """The plan for marginals, by the route that bid best for them."""
    ranked = [each for each in _ranked(every, _MARGINALS) if not each.route.beforehand]
    main = ranked[0] if ranked else _lead(every)
    bid = main.bids[_MARGINALS]
    if main.entry.is_own:
        return replace(main.route.plan(task, bid, bid.why), route=main.entry.name)
    if _is_final(main):
        return main.route.plan(task, bid, bid.why)
    # Approximate answers: why none is exact, which others stand by, and what answers log Z.
    bids = [each.bids for each in every]
    why = [one[_MARGINALS].refused for one in bids if _MARGINALS in one]
    why += [each.bids[_MARGINALS].note for each in ranked]
    log_z = sorted((one["log_partition"] for one in bids if "log_partition" in one), key=_rank)
    why += [bid.note for bid in log_z if bid.note][:1]
    told = dict.fromkeys(filter(None, why))
    return main.route.plan(task, bid, "; ".join(told) or bid.why)


def _rank(bid: Bid) -> tuple[int, float]:
    return bid.rank


def _solution(task: Task, every: tuple[_Asked, ...]) -> Solution:
    """The solution by the routes that bid: users' own where they are better, and built-in ones."""
    lead, own = _lead(every), [each for each in every if each.entry.is_own and each.standing]
    before, after = _divided(every, own) if own else ([], [])
    if task.is_exact:
        chain, last = (lead,), None
    elif _is_final(lead):
        chain, last = (lead,), partial(_standby, task, tuple(after), lead.entry.name)
    else:
        built_in = [e for e in every if not e.entry.is_own and e.standing]
        built_in = [each for each in built_in if not each.route.beforehand]
        chain, last = tuple(sorted(built_in, key=lambda each: each.best.rank)), None
    others = partial(_chained, task if last else task.after(0.0), chain, last)
    return _in_front(task, tuple(before), others) if before else others()


def _divided(
    every: Sequence[_Asked], own: Sequence[_Asked]
) -> tuple[list[tuple[_Asked, dict[str, Bid]]], list[tuple[_Asked, dict[str, Bid]]]]:
    """Own routes with their bids: those better than all built-in ones, and other exact ones."""
    before: list[tuple[_Asked, dict[str, Bid]]] = []
    after: list[tuple[_Asked, dict[str, Bid]]] = []
    for each in own:
        first, later = dict[str, Bid](), dict[str, Bid]()
        for name, bid in each.standing.items():
            others = [one for one in _ranked(every, name) if not one.route.beforehand]
            built_in = next((one for one in others if not one.entry.is_own), None)
            if built_in is None or bid.rank < built_in.bids[name].rank:
                first[name] = bid
            elif bid.exactness is Exactness.EXACT:
                later[name] = bid
        before += [(each, first)] if first else []
        after += [(each, later)] if later else []
    return before, after


def _in_front(
    task: Task, own: tuple[tuple[_Asked, dict[str, Bid]], ...], others: Callable[[], Solution]
) -> Solution:
    """Own routes in the order of their bids, and then the others, where none keeps its word."""
    ordered = sorted(own, key=lambda each: min(bid.rank for bid in each[1].values()))
    for asked, bids in reversed(ordered):
        others = partial(_own, task, asked, bids, others)
    return others()


def _own(
    task: Task, asked: _Asked, bids: dict[str, Bid], others: Callable[[], Solution]
) -> Solution:
    """The answers of a user's route to what it bid best for, and of others."""
    try:
        first: Solution | str = _run_own(task, asked, min(bids.values(), key=_rank))
    except BudgetError as error:
        first = str(error)
    exact = frozenset(name for name, bid in bids.items() if bid.exactness is Exactness.EXACT)
    return InTurn(asked.entry.name, first, frozenset(bids), exact, others)


def _run_own(task: Task, asked: _Asked, bid: Bid) -> Solution:
    solution: object = asked.route.run(task, bid)
    if not isinstance(solution, Solution):
        raise ModelError(
            f"run of the route {asked.entry.name!r} must give a Solution; got "
            f"{type(solution).__name__}. PartialSolution in rdpgraph.extend is one that answers "
            "some questions."
        )
    return solution


def _chained(
    task: Task, chain: tuple[_Asked, ...], last: Others | None, spent: float = 0.0
) -> Solution:
    """The solution of the first route of a chain, combined with that of the others."""
    first, *rest = chain
    task = task.after(spent) if spent else task
    others = partial(_chained, task, tuple(rest), last) if rest else last
    return first.route.run_with(task, first.best, others)


def _standby(
    task: Task, own: tuple[tuple[_Asked, dict[str, Bid]], ...], name: str, spent: float
) -> Solution:
    """The solution of the routes after an exact one that did not keep its word."""
    entries = [entry for entry in ROUTES.named(task.routes) if not entry.is_own]
    names = [entry.name for entry in entries]
    task = task.after(spent).standing_by()
    every = _ask(task, entries[names.index(name) + 1 :])
    chain = sorted((e for e in every if e.standing), key=lambda each: each.best.rank)
    others = partial(_chained, task, tuple(chain), None)
    return _in_front(task, own, others) if own else others()


def _without_work(bids: dict[str, Bid]) -> dict[str, Bid]:
    """Bids as a table shows them, without what their routes have computed."""
    shown = {id(bid): replace(bid, work=None) for bid in bids.values()}
    return {name: shown[id(bid)] for name, bid in bids.items()}


def _table(shape: Shape, entries: Sequence[Entry], every: Sequence[_Asked]) -> list[Offer]:
    """The table of all bids, taken and refused, and of the routes that made none."""
    asked = {each.entry.name: each for each in every}
    has_own = any(each.entry.is_own for each in every)
    taken: dict[str, list[str]] = {}
    for question in QUESTIONS:
        ranked = _ranked(every, question)
        # A small graph is taken before an auction, where no route of a user might bid.
        early = [each for each in ranked if each.route.beforehand and not has_own]
        ranked = early or [each for each in ranked if not each.route.beforehand]
        if ranked:
            taken.setdefault(ranked[0].entry.name, []).append(question)
    rows, last = list[Offer](), max(entries.index(each.entry) for each in every)
    lead = _lead(every).entry.name
    for number, entry in enumerate(entries):
        name = entry.name
        if name not in asked:
            missed = number > last
            shaped = "it is not installed" if entry.might_bid(shape) else "not for such a graph"
            note = f"{lead} answers" if missed else shaped
            rows.append(Offer(name, outcome="not asked" if missed else "no bid", note=note))
            continue
        one = asked[name]
        bids = one.bids
        refused = next((bid.refused for bid in bids.values() if bid.refused), "")
        if not bids:
            doc = (type(one.route).__doc__ or "").partition("\n")[0].rstrip(".")
            rows.append(Offer(name, note=f"does not apply ({doc})" if doc else ""))
        elif name in taken:
            rows.append(Offer(name, bids, "taken", tuple(taken[name])))
        elif one.standing:
            rows.append(Offer(name, bids, "stands by"))
        else:
            rows.append(Offer(name, bids, "refused", note=refused))
    return rows


def _planned_about(given: Settings, routes: frozenset[str], graph: FactorGraph) -> Planned:
    return planned(Task(graph, given, routes))


def planned_with_ranks(task: Task) -> Callable[[FactorGraph], Planned]:
    """A function that plans a graph with variables of ranks, within the limits of a task."""
    return partial(_planned_about, task.given, task.routes - _IN_RANKS)


def planned_whole(task: Task) -> Callable[[FactorGraph], Planned]:
    """A function that plans some rows of evidence, all of them at once."""
    return partial(_planned_about, task.given, task.routes - _IN_ROWS - _own_names())


def solver_without_structure(task: Task, graph: FactorGraph) -> Callable[[], Solution]:
    """Return a function that solves a graph as no structure, for what a structure leaves."""
    routes = task.routes - _IN_GENERAL
    apart = graph.observed is not None and not any(b.batch_shape for b in graph.blocks)
    if graph.batch_shape and apart:
        plan = partial(_planned_about, task.given, routes - _own_names())
        return partial(RowsApart, graph, plan, task.budget.memory_bytes)
    return partial(solved, partial(_planned_about, task.given, routes), graph)


def _own_names() -> set[str]:
    return {entry.name for entry in ROUTES.own}
