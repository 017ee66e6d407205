"""Plans of exact inference for a topology and a budget, cached by topology.

A plan fixes some variables in slices where all at once does not fit the memory. Contraction paths
of opt_einsum and cotengra are turned into plans, and plans into such paths.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf, log, prod
from typing import Any, TypeAlias

from rdpgraph._core import effort, tuning
from rdpgraph._core.units import duration, quantity
from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.plan import clock
from rdpgraph.plan.orders import forest_order, graph_of, min_weight, peel
from rdpgraph.plan.plan import PASSES, Budget, Plan, Recent, cost
from rdpgraph.plan.tree import ContractionTree, Topology, tree_from_order, tree_from_path
from rdpgraph.plan.tree_search import HopelessError, search

Optimize: TypeAlias = str | Callable[..., Iterable[Sequence[int]]]
"""A name of opt_einsum's, or a call (inputs, output, sizes) that gives a path, such as an
optimizer of opt_einsum or cotengra."""


def require_optimize(optimize: Optimize | None) -> None:
    """Raise `ModelError` unless this names or is an optimizer, or is None."""
    if optimize is None or (callable(optimize) and not isinstance(optimize, type)):
        return
    from opt_einsum.paths import get_path_fn

    try:
        get_path_fn(optimize)  # pyright: ignore[reportArgumentType]
    except (AttributeError, KeyError, TypeError):
        raise ModelError(
            "Contraction's optimize must be a name of opt_einsum, such as 'greedy', 'dp' or "
            f"'random-greedy', or an optimizer of opt_einsum or cotengra; got {optimize!r:.80}."
        ) from None


def path_tree(topology: Topology, optimize: Optimize) -> ContractionTree:
    """Return the tree of the path that an optimizer gives for the sum over all variables.

    Raises:
        ModelError: the optimizer returned something else than a path.
    """
    from opt_einsum import get_symbol
    from opt_einsum.paths import get_path_fn

    call: Callable[..., Any] = get_path_fn(optimize) if isinstance(optimize, str) else optimize
    inputs = [frozenset(map(get_symbol, scope)) for scope in topology.scopes]
    sizes = {get_symbol(v): size for v, size in enumerate(topology.sizes)}
    path = call(inputs, frozenset[str](), sizes) if len(inputs) > 1 else []
    try:
        return tree_from_path(topology, [tuple(map(int, group)) for group in path], ssa=False)
    except (IndexError, TypeError, ValueError):
        raise ModelError(
            f"Contraction's optimize gave no path, which is pairs of positions among "
            f"{topology.num_tensors} tensors; got {path!r:.80}."
        ) from None


def contraction_path(
    inputs: Sequence[Collection[str]], output: Collection[str], size_dict: Mapping[str, int],
    memory_limit: float | None = None,
) -> list[tuple[int, ...]]:  # fmt: skip
    """Return the cheapest path that this library's search finds, in the form of opt_einsum.

    The search tries greedy elimination orders, and then anneals the best one for as long as the
    contraction is expected to take. `opt_einsum.paths.register_path_fn` registers this function
    under a name for ``optimize=``.

    Args:
        inputs: the indices of each operand.
        output: the indices of the result.
        size_dict: the size of each index.
        memory_limit: the most elements that all intermediates of a path should have together.

    Raises:
        BudgetError: no path of fewer than 2^64 operations is in sight.

    Example:
        >>> sizes = {"a": 8, "b": 2, "c": 9, "d": 3}
        >>> contraction_path(["ab", "bc", "cd"], "ad", sizes)
        [(1, 2), (0, 1)]
    """
    from opt_einsum.paths import ssa_to_linear

    names = sorted({name for indices in (*inputs, output) for name in indices})
    rank = {name: number for number, name in enumerate(names)}
    operands: list[Collection[str]] = [*inputs, output]
    leaves = [number for number, indices in enumerate(operands) if indices]
    scopes = tuple(tuple(sorted({rank[name] for name in operands[leaf]})) for leaf in leaves)
    topology = Topology(scopes, tuple(max(1, int(size_dict[name])) for name in names))
    limit = inf if memory_limit is None else float(memory_limit)
    tree = search(topology, deadline=clock.now() + effort.PATH_SECONDS, memory_elements=limit)
    path, made = list[tuple[int, ...]](), len(inputs)

    def join(left: int, right: int) -> int:
        nonlocal made
        path.append((left, right))
        made += 1
        return made - 1

    numbers: dict[int, int] = dict(enumerate(leaves))  # of the path, for those of the tree
    whole = len(leaves) - 1 if output else -1  # the tensor that holds the result's place
    beside: list[int] = []  # what it would be multiplied with on its way to the root
    for number, (left, right, _) in enumerate(tree.steps, len(leaves)):
        if whole in (left, right) and whole >= 0:
            if right >= 0:
                beside.append(numbers.pop(left if right == whole else right))
            whole = number
        else:
            first = numbers.pop(left)
            numbers[number] = first if right < 0 else join(first, numbers.pop(right))
    numbers.pop(len(leaves) - 1 if output else -1, None)
    scalars = [number for number, indices in enumerate(inputs) if not indices]
    rest = [*scalars, *numbers.values(), *reversed(beside)]
    while len(rest) > 1:
        rest[:2] = [join(rest[0], rest[1])]
    return list(ssa_to_linear(path)) or [(0,)]


_log = logging.getLogger(__name__)
_OTHERS = ("condition on more evidence", "use an approximate method")
_LATE = (
    "no elimination order was found in time",
    "an elimination order, and none was found in the time for planning, so that its cost is not "
    "known",
)
_HOPELESS = (
    "every elimination order that was tried is too expensive",
    f"more than 2^{effort.HOPELESS_BITS} operations in every elimination order that was tried",
)
_plans: Recent[tuple[Budget, Plan, float]] = Recent(128)
_easy: Recent[tuple[bool, float]] = Recent(128)


def make_plan(
    topology: Topology,
    *,
    budget: Budget,
    element_bytes: int,
    batch: int = 1,
    last: frozenset[int] = frozenset(),
    dropped_states: int = 0,
    sliceable: int | None = None,
    deadline: float | None = None,
    optimize: Optimize | None = None,
    tables_bytes: float = 0.0,
    answer_bytes: float = 0.0,
) -> Plan:
    """Return a plan for a topology; plans are cached by the topology's shape.

    Where the budget's memory was measured on this machine, a cached plan is taken if it was made
    for up to a quarter more or less memory.

    Args:
        topology: the variables and factors of the reduced model.
        budget: the limits. A plan that exceeds them says so in ``fits`` and ``remedy``.
        element_bytes: the bytes of a number, 4 or 8.
        batch: how many items are solved together.
        last: variables that are eliminated after all others.
        dropped_states: how many states the reduction dropped, for the report.
        sliceable: only variables with smaller numbers are fixed in slices; None: all are.
        deadline: when the search ends, on `clock.now`; None: after 12% of the seconds.
        optimize: an optimizer that gives the order instead of the search. It is not used where
            some variables come last.
        tables_bytes: the bytes of the model's tables as the engine takes them, copies included.
            What they take beyond 16 MB is missing from the budget; that much is taken in any case.
        answer_bytes: the bytes of all marginals.
    """
    key = (topology.key, budget.key(), element_bytes, batch, last, dropped_states, sliceable)
    meter = clock.Meter()
    key = (*key, optimize, meter.is_counting, tables_bytes, answer_bytes)
    known = _plans.get(key)
    if known is not None and budget.resembles(known[0]):
        meter.repeat(known[2])
        return known[1]
    start = clock.now()
    if deadline is None:
        deadline = start + max(effort.SEARCHING * budget.seconds, effort.LEAST_PLANNING)
    limits = deadline, None if last else optimize
    # Tables of a few megabytes fit everywhere; tiny budgets are meant for what is multiplied out.
    taken = max(tables_bytes - tuning.SMALL_BYTES, 0.0)
    plan = _plan(
        topology, budget, taken, element_bytes, batch, last, dropped_states, sliceable, *limits
    )
    plan = _with_tables(plan, tables_bytes, answer_bytes)
    plan = replace(plan, planning_seconds=clock.now() - start)
    _log.debug("planned: %s, width %.1f, %.3g s predicted", plan.route, plan.width, plan.seconds)
    return plan if clock.stopped() else _plans.put(key, (budget, plan, meter.seconds))[1]


def _with_tables(plan: Plan, tables: float, answer: float) -> Plan:
    """Return a plan whose memory includes the model's tables and the answer."""
    steps = 0 if plan.tree is None else len(plan.tree.steps)
    tables += tuning.STEP_BYTES * (plan.num_factors + steps)
    return replace(
        plan,
        peak_bytes=plan.peak_bytes + tables,
        stored_bytes=plan.stored_bytes + tables + answer,
    )


def is_easy(topology: Topology, *, deadline: float = inf) -> bool:
    """Return whether a greedy order that is found by a deadline is cheap; cached by topology."""
    meter = clock.Meter()
    key = topology.key, meter.is_counting
    if (known := _easy.get(key)) is not None:
        meter.repeat(known[1])
        return known[0]
    core = peel(graph_of(topology), deadline=deadline)[1]
    easy = min_weight(core, limit=tuning.EASY_ENTRIES, deadline=deadline) is not None
    return easy if clock.now() > deadline else _easy.put(key, (easy, meter.seconds))[0]


def _plan(
    topology: Topology, budget: Budget, taken: float, element_bytes: int, batch: int,
    last: frozenset[int], dropped: int, sliceable: int | None, deadline: float,
    optimize: Optimize | None,
) -> Plan:  # fmt: skip
    """Plan of results of steps, in the memory that ``taken`` bytes of other tables leave."""
    room = max(budget.memory_bytes - taken, 1.0)
    elements = room / element_bytes / batch / tuning.BOTH_WAYS
    counts: dict[str, Any] = {
        "num_variables": topology.num_variables,
        "num_factors": topology.num_tensors,
        "num_components": len(topology.components()),
        "dropped_states": dropped,
    }
    order = None if last or optimize is not None else forest_order(topology)
    if optimize is not None:
        tree = path_tree(topology, optimize)
        route, why = "contraction", "exact, in the order that optimize gave"
    elif order is not None:
        tree = tree_from_order(topology, order)
        route, why = "forest", "the factor graph has no cycles: two passes are exact"
    else:
        try:
            memory = elements * batch
            tree = search(
                topology, deadline=deadline, memory_elements=memory, last=last, batch=batch
            )
        except BudgetError as error:
            why, need = _HOPELESS if isinstance(error, HopelessError) else _LATE
            unknown = Plan("none", why, width=inf, flops=inf, peak_bytes=inf, stored_bytes=inf)
            # Nobody knows that more time would help.
            remedy = f"needs {need}; {clock.ways_out(inf, 'time', *_OTHERS)}"
            return replace(unknown, seconds=inf, fits=False, remedy=remedy, **counts)
        route, why = "contraction", "exact, in the cheapest order found"
    price = cost(tree, batch=batch)
    seconds = PASSES * price.seconds
    plan = Plan(
        route=route,
        why=why,
        **counts,
        width=price.width,
        flops=float(price.flops) if price.flops < 1e300 else inf,
        peak_bytes=float(min(price.peak, 10**300)) * element_bytes,
        stored_bytes=tuning.BOTH_WAYS * float(min(price.stored, 10**300)) * element_bytes,
        seconds=seconds,
        memory=None if budget.measured else budget.memory_bytes,
        tree=tree,
    )
    if plan.stored_bytes <= room:
        if seconds <= budget.seconds:
            # Log Z keeps the results of all steps for the marginals, which may be asked next.
            kept = tuning.UPWARDS_BYTES * plan.stored_bytes / tuning.BOTH_WAYS
            return replace(plan, peak_bytes=kept)
        remedy = (
            f"needs about {duration(plan.seconds)} (width {plan.width:.0f}) and the budget is "
            f"{duration(budget.seconds)}; {clock.ways_out(plan.seconds, 'time', *_OTHERS)}"
        )
        return replace(plan, fits=False, remedy=remedy)
    most = budget.seconds * tuning.OPERATIONS_PER_SECOND / PASSES / batch
    slices: tuple[int, ...] = ()
    deadline = clock.now() + max(effort.SLICING * budget.seconds, effort.LEAST_PLANNING)
    if not last:
        slices = choose_slices(
            tree, elements=elements, below=sliceable, operations=most, deadline=deadline
        )
    count = prod(topology.sizes[v] for v in slices)
    one = cost(sliced_tree(tree, slices), batch=batch)
    sliced = PASSES * one.seconds * count if count < 10**9 else inf
    if slices and one.stored <= elements * batch and sliced <= budget.seconds:
        why = f"exact in {count:,} slices: all at once needs {quantity(plan.stored_bytes + taken)}B"
        each = float(one.stored) * element_bytes
        return replace(
            plan, slices=slices, num_slices=count, why=why, seconds=sliced,
            peak_bytes=tuning.UPWARDS_BYTES * each, stored_bytes=tuning.BOTH_WAYS * each,
        )  # fmt: skip
    need, have = quantity(plan.stored_bytes + taken), quantity(budget.memory_bytes)
    remedy = (
        f"needs {need}B of memory (width {plan.width:.0f}) and the budget is {have}B; "
        f"{clock.ways_out(plan.seconds, 'memory or time', *_OTHERS)}"
    )
    return replace(plan, fits=False, remedy=remedy)


def choose_slices(
    tree: ContractionTree,
    *,
    elements: float,
    below: int | None = None,
    operations: float = inf,
    deadline: float = inf,
) -> tuple[int, ...]:
    """Return variables to fix in slices, so that the stored elements of one slice fit.

    They are chosen greedily. Each round fixes the variable that raises the operations of all slices
    together by the smallest factor, relative to the stored elements that it saves. The variables so
    far are returned although they do not suffice in three cases: nothing more can be saved, all
    slices together need more than ``operations``, or the deadline (on `clock.now`) has passed. Only
    variables with numbers smaller than ``below`` are fixed. Returns () where all fits at once. Each
    variable that is chosen costs time linear in the scopes of all steps.
    """
    sizes = list(tree.topology.sizes)
    scopes = tree.scopes
    # Operations of a step go with the union of its operands' scopes, memory with its result's.
    unions = [
        scopes[left] if right < 0 else tuple({*scopes[left], *scopes[right]})
        for left, right, _ in tree.steps
    ]
    results = [step.scope for step in tree.steps]
    chosen: list[int] = []
    count = 1
    while True:
        stored, saved_elements = _savings(results, sizes)
        if below is not None:
            saved_elements = Counter({v: n for v, n in saved_elements.items() if v < below})
        if stored <= elements or not saved_elements:
            return tuple(chosen)
        flops, saved_flops = _savings(unions, sizes)
        if flops * count > operations or clock.now() > deadline:
            return tuple(chosen)

        def price(v: int) -> tuple[float, int]:
            costlier = log(sizes[v]) + log(flops - saved_flops[v]) - log(flops)  # noqa: B023
            lighter = log(stored) - log(stored - saved_elements[v])  # noqa: B023
            return (costlier / lighter if lighter > 0 else inf), v

        best = min(saved_elements, key=price)
        chosen.append(best)
        count *= sizes[best]
        sizes[best] = 1


def _savings(scopes: list[tuple[int, ...]], sizes: list[int]) -> tuple[int, Counter[int]]:
    """Count the elements of tables over these scopes, and how many each variable would save."""
    total = 0
    saved: Counter[int] = Counter()
    for scope in scopes:
        table = prod([sizes[v] for v in scope])
        total += table
        for v in scope:
            if sizes[v] > 1:
                saved[v] += table - table // sizes[v]
    return total, saved


def sliced_tree(tree: ContractionTree, variables: Iterable[int]) -> ContractionTree:
    """Return a tree of the same steps for one slice, in which fixed variables have one state."""
    fixed, topology = set(variables), tree.topology
    sizes = tuple(1 if v in fixed else size for v, size in enumerate(topology.sizes))
    return ContractionTree(Topology(topology.scopes, sizes), tree.steps)
