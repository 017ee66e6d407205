"""Contraction paths as opt_einsum and cotengra give them: theirs for us, and ours for them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any, TypeAlias

from rdpgraph.errors import ModelError
from rdpgraph.plan import clock
from rdpgraph.plan.search import search
from rdpgraph.plan.topology import Topology
from rdpgraph.plan.tree import ContractionTree, tree_from_path

Optimize: TypeAlias = str | Callable[..., Iterable[Sequence[int]]]
"""A name of opt_einsum's, or a call (inputs, output, sizes) that gives a path, such as an
optimizer of opt_einsum or cotengra."""

_SECONDS = 10.0
"""Seconds after which the search for a path ends; it ends sooner where contraction is quick."""


def require_optimize(optimize: Optimize | None) -> None:
    """Raise `ModelError` unless this names or is an optimizer, or is None."""
    if optimize is None or (callable(optimize) and not isinstance(optimize, type)):
        return
    from opt_einsum.paths import get_path_fn

    try:
        get_path_fn(optimize)  # pyright: ignore[reportArgumentType]
    except (KeyError, TypeError):
        raise ModelError(
            "Contraction's optimize is a name of opt_einsum, such as 'greedy', 'dp' or "
            f"'random-greedy', or an optimizer of opt_einsum or cotengra; got {optimize!r:.80}."
        ) from None


def path_tree(topology: Topology, optimize: Optimize) -> ContractionTree:
    """Tree of the path that an optimizer gives for the sum over all variables.

    Raises:
        ModelError: what it gave is no path.
    """
    from opt_einsum import get_symbol
    from opt_einsum.paths import get_path_fn

    call: Callable[..., Any] = get_path_fn(optimize) if isinstance(optimize, str) else optimize
    inputs = [frozenset(map(get_symbol, scope)) for scope in topology.scopes]
    sizes = {get_symbol(v): size for v, size in enumerate(topology.sizes)}
    path = call(inputs, frozenset[str](), sizes)
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
    """The cheapest path found by this library's search, for opt_einsum and what uses it.

    Greedy elimination orders, then annealing for as long as contraction is expected to take.
    `opt_einsum.paths.register_path_fn` gives it a name for ``optimize=``.

    Args:
        inputs: the indices of each operand.
        output: those of the result.
        size_dict: the size of each index.
        memory_limit: elements of all intermediates together that a path should not exceed.

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
    scopes = tuple(tuple(sorted(rank[name] for name in operands[leaf])) for leaf in leaves)
    topology = Topology(scopes, tuple(int(size_dict[name]) for name in names))
    limit = inf if memory_limit is None else float(memory_limit)
    tree = search(topology, deadline=clock.now() + _SECONDS, memory_elements=limit)
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
