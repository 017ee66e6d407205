"""Circuits of clauses as text: d-DNNF in the format of c2d (Darwiche 2004)."""

from collections.abc import Callable, Iterator

import torch

from rdpgraph.engines.counting.circuit import Circuit, compiled
from rdpgraph.engines.counting.encoding import Clause, Encoding


def circuit_of(
    clauses: list[Clause], count: int, compiler: Callable[..., None], seconds: float, memory: float
) -> Circuit:
    """The circuit of clauses over ``count`` variables, numbered from 1; as `compiled`."""
    weights, literals = torch.zeros(1, 2 * count), tuple((-x, x) for x in range(1, count + 1))
    encoding = Encoding(literals, tuple(sorted(set(clauses))), weights, torch.zeros(1))
    return compiled(encoding, compiler, seconds=seconds, memory=memory)


def format_nnf(circuit: Circuit) -> str:
    """The text of a circuit: a line for each node, children before parents, the root last."""
    nodes = ["O 0 0"] if circuit.impossible else list(_lines(circuit))
    edges = (
        0
        if circuit.impossible
        else sum(len(children) + 2 * len(sums) for children, _, _, sums in circuit.levels)
    )
    return "\n".join([f"nnf {len(nodes)} {edges} {circuit.literals}", *nodes]) + "\n"


def _lines(circuit: Circuit) -> Iterator[str]:
    for x in range(1, circuit.literals + 1):
        yield from (f"L {x}", f"L {-x}")
    for children, owners, count, sums in circuit.levels:
        products: list[list[int]] = [[] for _ in range(count)]
        for child, owner in zip(children.tolist(), owners.tolist(), strict=True):
            products[owner].append(child)
        yield from (" ".join(map(str, ("A", len(operands), *operands))) for operands in products)
        yield from (f"O 0 2 {one} {other}" for one, other in sums.tolist())
