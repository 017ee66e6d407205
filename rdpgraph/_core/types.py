"""Shapes of the arrays that recursions take, as jaxtyping aliases in shared words.

Kernels take one batch dim; users pass any number. The tests check the annotations at every call
(`tests/conftest.py`).

========  =====================================================================
word      meaning
========  =====================================================================
batch     items of one shape: evidence rows, parameter sets, sequences
steps     positions of a sequence, of the longest in the batch
states    states of one variable
words     words of a sentence; heads are words + 1 positions, the first the root
draws     samples, or the k best, in front
factors   factors of one block
arity     slots of a factor
========  =====================================================================
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Protocol, TypeAlias

from jaxtyping import Float, Int
from torch import Tensor

Scopes: TypeAlias = Int[Tensor, "factors arity"]

Lengths: TypeAlias = Int[Tensor, "batch"]
LogZ: TypeAlias = Float[Tensor, "batch"]

Unary: TypeAlias = Float[Tensor, "batch steps states"]
Transition: TypeAlias = Float[Tensor, "*each states states"]
Paths: TypeAlias = Int[Tensor, "*draws batch steps"]

Arcs: TypeAlias = Float[Tensor, "batch words words+1"]
Heads: TypeAlias = Int[Tensor, "*draws words"]


class SupportsArray(Protocol):
    """An array of another library, as NumPy's are."""

    def __array__(self) -> Any:
        """The values as a NumPy array."""
        ...


ArrayLike: TypeAlias = Tensor | SupportsArray | Sequence[Any] | float
"""Values that become tensors: nested lists, arrays and numbers too."""


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
