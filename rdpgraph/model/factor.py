"""Factors, and blocks of factors of one shape."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from rdpgraph._core.compiler import Opaque
from rdpgraph._core.types import broadcast_shapes
from rdpgraph.errors import ModelError
from rdpgraph.model.potentials.potential import Potential, checked_shape
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import Variable, VariableArray

Slot: TypeAlias = Variable | VariableArray | Sequence[Variable]


@dataclass(frozen=True, eq=False)
class Factor(Opaque):
    """A potential over variables, in the order of its slots.

    Args:
        variables: the scope; each variable once; may be empty (a constant).
        potential: of shape (*batch, sizes of the variables).

    Raises:
        ModelError: the shapes do not fit, or a variable stands in two slots.
    """

    variables: tuple[Variable, ...]
    potential: Potential

    if TYPE_CHECKING:  # arrays are accepted for typing, as indexing gives members or views

        def __init__(
            self,
            variables: Variable | VariableArray | Iterable[Variable | VariableArray],
            potential: Potential,
        ) -> None: ...

    def __post_init__(self) -> None:
        scope: Any = self.variables
        if type(scope) is not tuple:
            single = isinstance(scope, Variable)
            scope = (scope,) if single else listed("A Factor's variables", scope)
            object.__setattr__(self, "variables", scope)
        names: list[str] = []
        sizes: list[int] = []
        for variable in scope:
            if type(variable) is not Variable:
                _checked_variable(variable)
            names.append(variable.name)
            sizes.append(variable.size)
        if len(set(names)) < len(names):
            raise ModelError(
                f"Factor over {names} names a variable twice; each stands in one slot."
            )
        _check_slots(f"Factor over {names}", sizes, self.potential)


@dataclass(frozen=True, eq=False)
class FactorBlock(Opaque):
    """Many alike factors at once: one slot per variable of the scope, each an array of variables.

    Args:
        scopes: per slot a `VariableArray` (or a view of one), a list of variables, or one
            variable that stands in every factor. Their shapes broadcast to the block's shape.
        potential: of shape (*batch, *block, sizes): the dims before the slots broadcast against
            the block's shape from the right; any others in front are batch dims.

    Raises:
        ModelError: the shapes do not fit, or a factor would hold a variable twice.

    Example:
        >>> import torch
        >>> from rdpgraph.model.potentials.table import Table
        >>> pixels = VariableArray("pixel", (4, 6), 2)
        >>> FactorBlock((pixels[:, :-1], pixels[:, 1:]), Table(torch.zeros(2, 2))).shape
        (4, 5)
    """

    scopes: tuple[Slot, ...]
    potential: Potential

    if TYPE_CHECKING:

        def __init__(
            self, scopes: Iterable[Slot | Sequence[Variable | VariableArray]], potential: Potential
        ) -> None: ...

    def __post_init__(self) -> None:
        given: Any = self.scopes
        single = isinstance(given, Variable | VariableArray)
        slots = (given,) if single else listed("A FactorBlock's scopes", given)
        what = "The variables in a slot of a FactorBlock"
        scopes = tuple(
            slot if isinstance(slot, Variable | VariableArray) else listed(what, slot)
            for slot in slots
        )
        object.__setattr__(self, "scopes", scopes)
        name = f"FactorBlock over {self.slot_names}"
        if not scopes:
            raise ModelError("FactorBlock needs at least one slot; use Factor for a constant.")
        sizes = [_slot_size(name, slot) for slot in scopes]
        _check_slots(name, sizes, self.potential)
        block, lead = self.shape, self.potential.lead(len(scopes))
        aligned = lead[max(len(lead) - len(block), 0) :]
        for have, want in zip(reversed(aligned), reversed(block), strict=False):
            if have not in (1, want):
                raise ModelError(
                    f"{name} has shape {block}; its potential's leading dims {lead} must broadcast "
                    "to that from the right, batch dims in front (use size 1 to share a table)."
                )

    @property
    def slot_names(self) -> list[str]:
        """A name for each slot."""
        return [
            slot.name if isinstance(slot, Variable | VariableArray) else f"{len(slot)} variables"
            for slot in self.scopes
        ]

    @property
    def shape(self) -> tuple[int, ...]:
        """The block's dims: one factor for each element."""
        shapes = [
            slot.shape if isinstance(slot, Variable | VariableArray) else (len(slot),)
            for slot in self.scopes
        ]
        try:
            return broadcast_shapes(*shapes)
        except RuntimeError:
            raise ModelError(
                f"FactorBlock over {self.slot_names} needs shapes that broadcast; got {shapes}."
            ) from None

    @property
    def count(self) -> int:
        """The number of factors."""
        return math.prod(self.shape)


def listed(name: str, given: Any) -> tuple[Any, ...]:
    """A tuple of what a list of variables or factors holds."""
    several = hasattr(given, "__iter__") or hasattr(given, "__len__")  # as a `VariableArray` has
    if not several or isinstance(given, Tensor):
        raise ModelError(f"{name} must be a list or a tuple; got {type(given).__name__}.")
    return tuple(given)


def _checked_variable(variable: object) -> Variable:
    if not isinstance(variable, Variable):
        kind = type(variable).__name__
        hint = "; use FactorBlock for arrays" if isinstance(variable, VariableArray) else ""
        raise ModelError(f"A Factor's scope must be a tuple of Variables; got {kind}{hint}.")
    return variable


def _slot_size(name: str, slot: Slot) -> int:
    if isinstance(slot, Variable | VariableArray):
        return slot.size
    sizes = {_checked_variable(variable).size for variable in slot}
    if len(sizes) != 1:
        raise ModelError(
            f"{name} needs variables of one size in a slot; got sizes {sorted(sizes)}."
        )
    return sizes.pop()


def _check_slots(name: str, sizes: Sequence[int], potential: object) -> None:
    if type(potential) is Table and potential.log_values.shape == tuple(sizes):
        return
    if not isinstance(potential, Potential):
        raise ModelError(
            f"{name} needs a Potential, such as rdpgraph.Table(log_values); "
            f"got {type(potential).__name__}."
        )
    shape = checked_shape(potential)
    if len(shape) < len(sizes) or shape[len(shape) - len(sizes) :] != tuple(sizes):
        raise ModelError(
            f"{name} needs a potential of shape {tuple(sizes)} (batch dims in front); got {shape}."
        )
