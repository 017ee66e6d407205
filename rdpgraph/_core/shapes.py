"""Shapes that broadcast against each other."""

from collections.abc import Sequence
from itertools import zip_longest


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that tensors of these shapes broadcast to; RuntimeError if they do not.

    As `torch.broadcast_shapes`, whose first call imports 500 modules, sympy among them.
    """
    backwards: list[int] = []
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            listed = " and ".join(str(tuple(shape)) for shape in shapes)
            raise RuntimeError(f"Shapes {listed} do not broadcast.")
        backwards.append(wide.pop() if wide else 1)
    return tuple(reversed(backwards))


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Return whether a tensor of one shape can be expanded to another."""
    if len(shape) > len(to):
        return False
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return all(size in (1, wanted) for size, wanted in pairs)
