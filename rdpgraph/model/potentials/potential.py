"""The interface of a potential: the log-values of a factor, on demand."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce, wraps
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from rdpgraph._core.compiler import in_transform, refuse_exported
from rdpgraph._core.masked import present
from rdpgraph._core.numbers import is_whole
from rdpgraph._core.types import broadcast_shapes, broadcasts
from rdpgraph.errors import ModelError
from rdpgraph.logspace.logmatrix import soft_sum

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

_LARGE = 1 << 16  # numbers, which take longer to read than it takes to find that they were read
_HIGHEST = WeakTensorKeyDictionary()
"""The largest value of each large tensor that was found sound, and its state then."""


def checked_log_values(name: str, log_values: Tensor) -> float:
    """The largest log-value; refuses other types, NaN and +inf.

    A large tensor is read again only after a write to it. Writes that torch does not count, as by
    way of NumPy or ``.data``, are found by the compiled code that reads all of a table.

    Values are not read inside `torch.compile`, which would break the graph, and `torch.func`.
    """
    if not isinstance(log_values, Tensor):
        raise ModelError(f"{name} needs a floating tensor of log-values; got {log_values!r:.80}.")
    if log_values.dtype not in FLOATING:
        raise ModelError(f"{name} needs floating log-values; got a tensor of {log_values.dtype}.")
    if torch.compiler.is_compiling() or in_transform():
        return -math.inf
    here = is_here(log_values)
    own = here and type(log_values) is Tensor
    if not own:
        refuse_hollow(name, log_values)
    state, parameter = None, here and type(log_values) is torch.nn.Parameter
    if (own or parameter) and log_values.numel() >= _LARGE and not log_values.is_inference():
        state = log_values._version, log_values.data_ptr(), log_values.shape, log_values.stride()
        known = _HIGHEST.get(log_values)
        if known is not None and known[0] == state:
            return known[1]
    highest = log_values.detach().amax().item() if log_values.numel() else -math.inf
    if not highest < math.inf:
        kind = "NaN" if bool(log_values.isnan().any()) else "+inf"
        raise ModelError(f"{name} needs log-values below +inf (-inf is a hard zero); got {kind}.")
    if state is not None:
        _HIGHEST[log_values] = state, highest
    return highest


def is_here(values: Tensor) -> bool:
    """Return whether a tensor of torch's own class has its values, outside of an export."""
    watched = torch._C._len_torch_dispatch_stack() > 0  # pyright: ignore
    return not watched and not values.is_meta and values.layout == torch.strided


def refuse_hollow(name: str, values: Tensor) -> None:
    """Refuse a tensor without its values: on meta, sparse, masked, or on several ranks."""
    present(name, values)
    refuse_exported(name)
    if type(values).__name__ == "DTensor":  # tested by name, to import nothing
        raise ModelError(
            f"{name} needs values that are all here; got a DTensor: take its full_tensor(), or "
            "declare the part that is here, as rdpgraph.distributed.GraphPart."
        )
    if values.is_meta and not torch.compiler.is_compiling():
        raise ModelError(f"{name} needs values; got a tensor on the device meta, which holds none.")
    if values.layout != torch.strided:
        raise ModelError(f"{name} needs a dense tensor; got {values.layout}: use to_dense().")


@dataclass(frozen=True)
class Part:
    """A small table of a `Decomposition`.

    Attributes:
        variables: the variable of each dim: slots are 0 to n - 1, then auxiliary variables.
        log_values: (*lead, the sizes of the variables).
    """

    variables: tuple[int, ...]
    log_values: Tensor


@dataclass(frozen=True)
class Decomposition:
    """A potential as a sum over auxiliary variables of products of small tables.

    ``value(x) = sum_a prod_p exp(log_values_p[x, a])``, and at most one configuration a of the
    auxiliary variables contributes to any x, so that it holds with a maximum in place of the sum
    too.

    Attributes:
        auxiliary: the number of states of each auxiliary variable, n, n + 1, ... in the parts.
        parts: each over some slots and auxiliary variables; together they hold every one of them.
    """

    auxiliary: tuple[int, ...]
    parts: tuple[Part, ...]


class Potential(ABC):
    """The log-values of a factor (nats); -inf marks an impossible configuration.

    A new kind of potential says its `shape` and how to `evaluate` itself; `rdpgraph.testing.
    check_potential` then checks it. Everything else has a default. Leading dims before the slots
    are batch dims, or one entry per factor of a `FactorBlock`; they broadcast.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in _FITTED.keys() & vars(cls):
            setattr(cls, name, _held(getattr(cls, name), _FITTED[name]))

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Leading dims, then the number of states of each slot."""

    @abstractmethod
    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states.

        Args:
            states: per slot an int64 tensor (*lead, m_i): the states asked for, in any order and
                with repeats. The leads broadcast with each other and with the potential's.

        Returns:
            (*lead, m_1, ..., m_n) log-values, differentiable in the potential's parameters.
        """

    def table(self, arity: int) -> Tensor:
        """The table of all log-values, (*lead, k_1, ..., k_n)."""
        return self.evaluate([torch.arange(k, device=self.device) for k in self.slots(arity)])

    def slots(self, arity: int) -> tuple[int, ...]:
        """The number of states of each of the last ``arity`` dims."""
        return self.shape[len(self.shape) - arity :]

    def lead(self, arity: int) -> tuple[int, ...]:
        """The dims before the slots."""
        return self.shape[: len(self.shape) - arity]

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the log-values: by default that of the tensors among its fields."""
        types = [tensor.dtype for tensor in self._own_numbers()]
        return reduce(torch.promote_types, types) if types else torch.get_default_dtype()

    @property
    def device(self) -> torch.device:
        """The device of the log-values: by default that of the tensors among its fields."""
        return next((tensor.device for tensor in self._own_numbers()), torch.device("cpu"))

    def _own_numbers(self) -> Iterator[Tensor]:
        """The fields that are floating tensors."""
        fields = getattr(self, "__dict__", {}).values()
        return (one for one in fields if isinstance(one, Tensor) and one.is_floating_point())

    def select(self, block: tuple[int, ...], rows: Tensor | None, arity: int) -> "Potential":
        """The potential of some factors of a block.

        Args:
            block: the block's dims; the last ``len(block)`` leading dims broadcast to them.
            rows: (F,) positions in the flattened block, or None for all of them.
            arity: the number of slots.

        Returns:
            A potential with (*batch, F) leading dims, or (*batch, 1) if all share one.
        """
        if self.lead(arity):
            raise ModelError(
                f"{type(self).__name__} has leading dims {self.lead(arity)}; to be used in a "
                "FactorBlock it must implement select(block, rows, arity)."
            )
        return self

    def decompose(self) -> Decomposition | None:
        """An exact rewrite by auxiliary variables, where a dense table would be large.

        For a potential given by `select` the parts have the lead (*batch, F or 1).
        """
        return None

    def messages(
        self, incoming: Sequence[Tensor], *, temperature: float | Tensor = 1.0
    ) -> tuple[Tensor, ...]:
        """The log-messages to all slots, from those that come in (nats).

        To a slot goes ``temperature * logsumexp((log_values + the other slots' incoming) /
        temperature)`` over the states of the other slots; at 0.0 the maximum. Exact, and -inf
        where nothing is possible. Differentiable in the incoming messages and the parameters,
        without NaN. This default takes the time and memory of a few tables; a potential whose
        table is large overrides it.

        Args:
            incoming: per slot (*lead, k_i), -inf allowed. The leads broadcast with each other and
                with the potential's.
            temperature: 1.0 for sum-product, 0.0 for max-product; a tensor is positive and
                broadcasts against the lead.

        Returns:
            Per slot (*lead, k_i), the lead being that of all of it together.

        Raises:
            ModelError: the sizes of the messages are not those of the slots, or the temperature
                is negative.
        """
        lead = message_lead(self, incoming, temperature)
        arity = len(incoming)

        def summed(logs: Tensor, dim: int, slots: int) -> Tensor:
            if not isinstance(temperature, Tensor):
                return soft_sum(logs, dim, temperature)
            return soft_sum(logs, dim, temperature.reshape(*temperature.shape, *(1,) * slots))

        # Slots are summed out one by one, so that tables shrink.
        left = self.table(arity)
        outgoing: list[Tensor] = []
        for slot, message in enumerate(incoming):
            rest = left
            for other in range(arity - 1, slot, -1):
                arriving = incoming[other].unflatten(-1, (*(1,) * (other - slot), -1))
                rest = summed(rest + arriving, -1, other - slot + 1)
            outgoing.append(rest.expand(*lead, -1))
            arriving = message.reshape(*message.shape, *(1,) * (arity - slot - 1))
            left = summed(left + arriving, slot - arity, arity - slot)
        return tuple(outgoing)


def _held(method: Callable[..., object], fitted: Callable[..., object]) -> Callable[..., object]:
    """A method of a potential with a check of its result."""

    @wraps(method)
    def checked(self: Potential, *asked: Any, **options: Any) -> object:
        return fitted(self, method(self, *asked, **options), *asked, **options)

    return checked


def _evaluated(self: Potential, values: object, states: Sequence[Tensor]) -> Tensor:
    sizes = tuple([asked.shape[-1] for asked in states])
    if isinstance(values, Tensor) and values.shape == sizes and _is_built_in(self):
        return values  # without a lead, it fits any
    what = f"evaluate, asked for {sizes} states of its slots,"
    leads = [asked.shape[:-1] for asked in states]
    return _numbers(self, what, values, sizes, len(sizes), leads)


def _tabulated(self: Potential, values: object, arity: int) -> Tensor:
    return _numbers(self, "table", values, self.slots(arity), arity)


def _sent(
    self: Potential, sent: Any, incoming: Sequence[Tensor], temperature: float | Tensor = 1.0
) -> tuple[Tensor, ...]:
    arity = len(incoming)
    if not isinstance(sent, tuple | list) or len(sent) != arity:
        raise _unfit(self, "messages", f"a tuple of {arity} messages, one for each slot", sent)
    leads = [message.shape[:-1] for message in incoming]
    leads += [temperature.shape] if isinstance(temperature, Tensor) else []
    return tuple(
        _numbers(self, f"messages, to slot {slot},", sent[slot], (size,), arity, leads)
        for slot, size in enumerate(self.slots(arity))
    )


def _split(self: Potential, split: Any) -> Decomposition | None:
    if split is None:
        return None
    if not isinstance(split, Decomposition):
        raise _unfit(self, "decompose", "a Decomposition, or None", split)
    # A user wrote this: every field is checked before it is used.
    aux: Any = split.auxiliary
    if not isinstance(aux, tuple) or not all(is_whole(size, 1) for size in aux):
        raise _unfit(self, "decompose", "auxiliary, a tuple of numbers of states", aux)
    parts: Any = split.parts
    if not isinstance(parts, tuple) or not all(isinstance(part, Part) for part in parts):
        raise _unfit(self, "decompose", "parts, a tuple of Part", parts)
    scopes: list[Any] = [part.variables for part in split.parts]
    # Slots and auxiliary variables are numbered 0, 1, ... without a gap; the auxiliary ones come
    # last, which tells the arity.
    known = all(
        isinstance(s, tuple) and all(map(is_whole, s)) and len(s) == len({*s}) for s in scopes
    )
    held = {number for scope in scopes for number in scope} if known else {-1}
    arity = len(held) - len(aux)
    if held != set(range(len(held))) or not 0 <= arity <= len(self.shape):
        wanted = f"parts over distinct variables, all slots and {len(aux)} auxiliary ones together,"
        raise _unfit(self, "decompose", wanted, scopes)
    # Each part has the sizes of its variables.
    sizes, made = (*self.slots(arity), *split.auxiliary), list[Part]()
    for part in split.parts:
        what = f"decompose, for the part over {part.variables},"
        wanted = tuple(sizes[number] for number in part.variables)
        made.append(Part(part.variables, _numbers(self, what, part.log_values, wanted, arity)))
    return Decomposition(split.auxiliary, tuple(made))


def _is_built_in(potential: Potential) -> bool:
    """Return whether a potential is one of ours, whose values tests check."""
    return type(potential).__module__.startswith("rdpgraph.")


def _numbers(
    potential: Potential, what: str, values: object, sizes: tuple[int, ...], arity: int,
    leads: Sequence[Sequence[int]] = (),
) -> Tensor:  # fmt: skip
    """Check the log-values (*lead, *sizes) of a method; integers become floating."""
    name, got = type(potential), values
    if isinstance(values, Tensor):
        split = max(0, values.ndim - len(sizes))
        batch, got = tuple(values.shape[:split]), tuple(values.shape)
        lead = broadcast_shapes(potential.lead(arity), *leads)
        if got[split:] == sizes and (math.prod(batch) == 1 or broadcasts(batch, lead)):
            if not _is_built_in(potential):
                values = values.to(potential.dtype) if values.dtype in WHOLE else values
                checked_log_values(f"{name.__name__}.{what.split(',')[0]}", values)
            return values
    shape = f"log-values of shape (*lead, {str(sizes)[1:-1].rstrip(',')})"
    raise _unfit(potential, what, shape, got)


def _unfit(potential: Potential, what: str, wanted: str, got: object) -> ModelError:
    shown = " ".join(repr(got).split())
    return ModelError(f"{type(potential).__name__}.{what} needs to give {wanted}; got {shown:.80}.")


_FITTED: dict[str, Callable[..., object]] = {
    "evaluate": _evaluated, "table": _tabulated, "messages": _sent, "decompose": _split,
}  # fmt: skip
"""Checks of the results of a potential's methods."""


class Stored(Potential):
    """A potential whose type and device are those of one of its fields."""

    stored: ClassVar[str]
    """The name of the field."""

    @property
    def dtype(self) -> torch.dtype:
        return getattr(self, self.stored).dtype

    @property
    def device(self) -> torch.device:
        return getattr(self, self.stored).device


def checked_shape(potential: Potential) -> tuple[int, ...]:
    """The shape of a potential, checked to be a tuple of integers."""
    shape: object = potential.shape
    if not isinstance(shape, tuple) or not all(is_whole(size) for size in shape):
        raise ModelError(
            f"{type(potential).__name__}.shape needs to be a tuple, the leading dims and then the "
            f"number of states of each slot; got {shape!r:.80}."
        )
    return tuple(shape)


def select_lead(
    values: Tensor, *, trailing: int, block: tuple[int, ...], rows: Tensor | None
) -> Tensor:
    """Rows of the flattened block dims of a tensor (*batch, *block or broadcast, *trailing).

    Returns (*batch, F, *trailing), or (*batch, 1, *trailing) where all factors share one entry.
    """
    ends = values.shape[values.ndim - trailing :]
    lead = values.shape[: values.ndim - trailing]
    missing = max(len(block) - len(lead), 0)
    aligned = (1,) * missing + tuple(lead[max(len(lead) - len(block), 0) :])
    batch = tuple(lead[: max(len(lead) - len(block), 0)])
    shared = all(size == 1 for size in aligned)
    kept = aligned if shared else block
    flat = values.reshape([*batch, *aligned, *ends]).expand([*batch, *kept, *ends])
    flat = flat.reshape([*batch, math.prod(kept), *ends])
    if rows is None or flat.shape[len(batch)] == 1:
        return flat
    return flat.index_select(len(batch), rows.to(flat.device))


def message_lead(
    potential: Potential, incoming: Sequence[Tensor], temperature: float | Tensor
) -> tuple[int, ...]:
    """The lead of the messages that a potential sends; refuses sizes and leads that do not fit."""
    name, arity = type(potential).__name__, len(incoming)
    sizes = [message.shape[-1] for message in incoming]
    if arity > len(potential.shape) or potential.slots(arity) != tuple(sizes):
        raise ModelError(
            f"{name} of shape {potential.shape} needs one message per slot, of the slot's size; "
            f"got sizes {sizes}."
        )
    leads = [potential.lead(arity), *(tuple(message.shape[:-1]) for message in incoming)]
    if isinstance(temperature, Tensor):
        leads.append(tuple(temperature.shape))
    elif not temperature >= 0.0:
        raise ModelError(f"Messages need a temperature >= 0 (0: the maximum); got {temperature}.")
    try:
        return broadcast_shapes(*leads)
    except RuntimeError:
        raise ModelError(
            f"Messages of {name} need leads that broadcast with {leads[0]} and the "
            f"temperature's; got {leads[1:]}."
        ) from None
