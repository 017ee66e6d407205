"""Evidence and assignments as states of numbered variables."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.masked import filled, is_masked
from rdpgraph._core.once import warn_once
from rdpgraph._core.types import broadcast_shapes
from rdpgraph.errors import EvidenceError, no_raw_memory_error
from rdpgraph.model.domain import Domain, Entry, Named
from rdpgraph.model.frames import (
    codes_of,
    columns_of,
    is_frame,
    is_gap,
    is_series,
    require_one_index,
)
from rdpgraph.model.potentials.table import array_of, as_states, is_array
from rdpgraph.model.variable import States, is_named, state_index

MISSING = -1  # a state that was not observed


_Integers: TypeAlias = npt.NDArray[np.int64]

_Given: TypeAlias = tuple[Named, int, Entry, Tensor]
"""A variable with evidence, its number and entry, and the states."""


def states_given(
    given: Any, domain: Domain, *, ignore_unknown: bool = False, first: int = 0
) -> Tensor:
    """The states that evidence gives, (*batch, V) int64, -1 where it gives none.

    Evidence is a mapping from variables to states or batches of them, a list of mappings, or a
    DataFrame (a batch of rows) or Series. Integer tensors hold indices; other values name states.

    An entry of -1 is missing in tensors and arrays of indices. As the one state of a variable it
    is refused, and in a column of pandas or among names of states it is missing, with a warning:
    there it may have been meant as a state.

    Args:
        given: the evidence.
        domain: the variables.
        ignore_unknown: leave out what is no variable.
        first: the number of the first row, for errors, where the rows are some of more.

    Raises:
        EvidenceError: a state that a variable lacks; of several rows the message names the first
            one that is wrong.
    """

    def read(given: Any) -> Tensor:
        return _states_given(given, domain, ignore_unknown=ignore_unknown)

    try:
        return read(given)
    except EvidenceError:
        count = _count_rows(given)
        if not count or _is_wrong(read, _some_rows(given, 0, 0)):
            raise  # whatever the rows are
        # The rows up to the first wrong one are found by bisection.
        wrong = bisect_left(
            range(count), x=True, key=lambda n: _is_wrong(read, _some_rows(given, 0, n + 1))
        )
        place = row_name(given, wrong, first)
        try:
            read(_some_rows(given, wrong, wrong + 1))
        except EvidenceError as error:
            raise EvidenceError(f"Row {place}: {error}") from None
        raise  # no row is wrong by itself


def _is_wrong(read: Callable[[Any], Tensor], given: Any) -> bool:
    """Test if evidence is refused."""
    try:
        read(given)
    except EvidenceError:
        return True
    return False


def _count_rows(given: Any) -> int:
    """The number of rows of evidence; 0 where its values have no common length."""
    if is_frame(given) or (isinstance(given, Sequence) and not isinstance(given, str)):
        return len(given)
    columns = filter(_has_rows, given.values()) if isinstance(given, Mapping) else ()
    counts = set(map(len, columns))
    return counts.pop() if len(counts) == 1 else 0


def _has_rows(value: Any) -> bool:
    """Test for a list, an array, a tensor or a column."""
    if isinstance(value, Tensor):
        return value.ndim > 0 and value.layout == torch.strided
    return isinstance(value, list | tuple) or (is_array(value) and len(value.shape) > 0)


def _some_rows(given: Any, begin: int, end: int) -> Any:
    """Rows ``begin`` to ``end`` of evidence."""
    if is_frame(given):
        return given.iloc[begin:end]
    if isinstance(given, Mapping):
        return {
            item: (value.iloc if hasattr(value, "iloc") else value)[begin:end]
            if _has_rows(value)
            else value
            for item, value in given.items()
        }
    return given[begin:end]


def row_name(given: Any, place: int, first: int = 0) -> str:
    """Return what errors call a row of evidence.

    It is the label in the index of a DataFrame, or else the number of the row.
    """
    if is_frame(given):
        (label,) = given.index[place : place + 1].tolist()
        return repr(label)
    return str(first + place)


def _states_given(given: Any, domain: Domain, *, ignore_unknown: bool) -> Tensor:
    """The result of `states_given`; errors name no rows."""
    rows = None
    if is_frame(given):
        given, rows = columns_of(given), len(given)
    elif is_series(given) and hasattr(given, "items"):
        given = _without_gaps(columns_of(given), domain)
    elif isinstance(given, Sequence) and not isinstance(given, str):
        given, rows = _columns(given, domain), len(given)
    if not isinstance(given, Mapping):
        raise EvidenceError(
            "Evidence must be a mapping from variables to states, a list of such mappings, or a "
            f"DataFrame or Series of pandas; got {type(given).__name__}."
        )
    if rows is None:
        require_one_index(given.values())
    if ignore_unknown:
        given = {item: value for item, value in given.items() if domain.knows(item)}
    states = _read(given, domain)
    return states.expand(rows, -1) if rows is not None and not given else states


def _columns(rows: Sequence[Any], domain: Domain) -> dict[Any, list[Any]]:
    """The states in several mappings by variable, None where a mapping lacks one."""
    columns: dict[Any, list[Any]] = {}
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise EvidenceError(
                f"A list of evidence needs a mapping for each row; got {type(row).__name__}."
            )
        for item, value in row.items():
            _refuse_lone_gap(item, value, domain)
            if item not in columns:
                shape = domain.numbers(item).shape if domain.holds(item) else ()
                columns[item] = [np.full(shape, None, object).tolist()] * len(rows)
            if value is not None:
                columns[item][place] = value
    return columns


def _without_gaps(row: dict[Any, Any], domain: Domain) -> dict[Any, Any]:
    """A row of pandas with None in the place of -1, which its column would warn of, too."""
    lacking = [item for item, value in row.items() if _is_lone_gap(item, value, domain)]
    for item in lacking:
        _warn_of_gap(_name(item))
    return row | dict.fromkeys(lacking)


def _is_lone_gap(item: Any, value: Any, domain: Domain) -> bool:
    """Test for a single number -1 for a variable that has no such state."""
    if not isinstance(value, int | float | np.number) or value != MISSING:
        return False
    return domain.knows(item) and not is_named(domain.states_of(item), MISSING)


def _refuse_lone_gap(item: Any, value: Any, domain: Domain) -> None:
    if _is_lone_gap(item, value, domain):
        raise EvidenceError(
            f"-1 is no state of {_name(item)!r}: leave the variable out, or give None. -1 means "
            "missing only as an entry of a tensor or an array."
        )


def _warn_of_gap(name: str) -> None:
    warn_once(
        f"-1 is no state of {name!r}, and is read as a missing value. Give None or NaN instead; "
        "if -1 is meant as a state, declare the variable with -1 among the names of its states."
    )


def _read(given: Mapping[Any, Any], domain: Domain) -> Tensor:
    numbers, states = list[_Integers](), list[_Integers]()
    ones, their = list[int](), list[int]()
    alike: dict[tuple[int, ...], list[_Given]] = {}
    batch: tuple[int, ...] = ()
    rest = given.items()
    # Many single states at once are read without a loop over names.
    if len(given) >= tuning.EVIDENCE_KEYS:
        places, values, rest = _many(given, domain)
        numbers.append(places)
        states.append(values)
    for item, value in rest:
        # Three kinds: single states of single variables; tensors over single variables, stacked by
        # shape; and all else, array by array.
        single = domain.single(item)
        _refuse_lone_gap(item, value, domain)
        if single is not None and (value is None or type(value) in (int, str)):
            ones.append(single[0])
            their.append(_state(_name(item), value, single[1].states))
            continue
        if single is not None and _is_plain(value):
            alike.setdefault(tuple(value.shape), []).append((item, *single, value))
            continue
        places = domain.numbers(item)
        given_states = _states(item, value, places, domain)
        batch = _joint_batch(item, batch, tuple(given_states.shape[:-1]))
        numbers.append(places.reshape(-1).numpy())
        states.append(given_states.numpy())
    # The tensors of a shape are checked and stacked together.
    for shape, group in alike.items():
        batch = _joint_batch(group[0][0], batch, shape)
        numbers.append(np.array([number for _, number, _, _ in group]))
        states.append(_together(group).numpy())
    if ones:
        numbers.append(np.array(ones))
        states.append(np.array(their))
    return _placed(numbers, states, batch, domain)


def _many(
    given: Mapping[Any, Any], domain: Domain
) -> tuple[_Integers, _Integers, list[tuple[Any, Any]]]:
    """Numbers and states of single variables given as ints; the pairs left to the general path."""
    items, values, rest = list(given), list(given.values()), list[tuple[Any, Any]]()
    if set(map(type, values)) != {int}:
        rest = [pair for pair in given.items() if type(pair[1]) is not int]
        pairs = [pair for pair in given.items() if type(pair[1]) is int]
        items, values = [item for item, _ in pairs], [value for _, value in pairs]
    numbers = domain.singles(items)
    if None in numbers:
        missing = [place for place, number in enumerate(numbers) if number is None]
        rest += [(items[place], values[place]) for place in missing]
        known = [place for place, number in enumerate(numbers) if number is not None]
        items, values, numbers = ([part[at] for at in known] for part in (items, values, numbers))
    try:
        pairs = np.array([numbers, values], np.int64)
    except OverflowError:  # no state has such a number
        none = np.zeros(0, np.int64)
        return none, none, list(given.items())
    direct = domain.unnamed.numpy()[pairs[0]]
    if not direct.all():
        rest += [(items[place], values[place]) for place in np.flatnonzero(~direct).tolist()]
        pairs = pairs[:, direct]
    places, states = pairs
    wrong = (states < 0) | (states >= domain.sizes.numpy()[places])
    if wrong.any():
        number, state = pairs[:, wrong.argmax()].tolist()
        _refuse_lone_gap(domain.variable(number), state, domain)
        raise _beyond(domain.variable(number), domain.variable(number), state)
    return places, states, rest


def named_states(given: Mapping[Named, Any], domain: Domain) -> dict[str, Any]:
    """Names of the states in a mapping, in nested lists; None if missing, the index if unnamed."""
    result: dict[str, Any] = {}
    for item, value in given.items():
        numbers, states = domain.numbers(item), domain.states_of(item)
        indices = _states(item, value, numbers, domain)
        shaped = indices.reshape([*indices.shape[:-1], *numbers.shape]).tolist()
        result[_name(item)] = _renamed(shaped, states)
    return result


def _renamed(states: Any, names: States) -> Any:
    if isinstance(states, list):
        return [_renamed(part, names) for part in states]
    if states == MISSING:
        return None
    return states if isinstance(names, int) else names[states]


def _placed(
    numbers: list[_Integers], states: list[_Integers], batch: tuple[int, ...], domain: Domain
) -> Tensor:
    """(*batch, V) states at the numbers of their variables, which may repeat."""
    with no_raw_memory_error(f"Evidence of batch shape {batch} on {domain.count:,} variables"):
        filled = np.full((*batch, domain.count), MISSING)
    result = torch.from_numpy(filled)
    if not numbers:
        return result
    # Where no variable is named twice, states are written to their places.
    places = np.concatenate(numbers)
    if len(places) < 2 or np.bincount(places).max() < 2:
        for part, given in zip(numbers, states, strict=True):
            filled[..., part] = given
        return result
    # Otherwise the largest and the smallest state of each variable must agree.
    given = np.concatenate([np.broadcast_to(part, (*batch, part.shape[-1])) for part in states], -1)
    given, index = torch.from_numpy(given), torch.from_numpy(places).expand(given.shape)
    highest = result.scatter_reduce(-1, index, given, "amax")
    beyond = torch.iinfo(torch.long).max
    lowest = torch.full_like(result, beyond)
    lowest = lowest.scatter_reduce(-1, index, torch.where(given < 0, beyond, given), "amin")
    clash = ((highest != MISSING) & (lowest != highest)).reshape(-1, domain.count).any(0)
    if bool(clash.any()):
        name = domain.variable(int(clash.nonzero()[0])).name
        raise EvidenceError(f"The evidence gives {name!r} two different states.")
    return highest


def _is_plain(value: Any) -> bool:
    """Test if a value is an int64 tensor on the CPU."""
    plain = type(value) is Tensor and value.dtype == torch.long and value.device.type == "cpu"
    return plain and value.layout == torch.strided


def _together(group: "list[_Given]") -> Tensor:
    """States of single variables in tensors of one shape, (*shape, members)."""
    states = torch.stack([value.detach() for _, _, _, value in group], -1)
    sizes = torch.tensor([entry.size for _, _, entry, _ in group], device="cpu")
    wrong = ((states < MISSING) | (states >= sizes)).reshape(-1, len(group))
    if bool(wrong.any()):
        row, place = wrong.nonzero()[0].tolist()
        raise _beyond(
            group[place][0], group[place][2], int(states.reshape(wrong.shape)[row, place])
        )
    return states


def _state(name: str, value: Any, states: States) -> int:
    """The index of one state, or -1 where it is missing."""
    if is_gap(value):
        return MISSING
    # -1 is a gap unless a state is named so.
    if value == MISSING and not is_named(states, MISSING):
        if isinstance(states, tuple):
            _warn_of_gap(name)
        return MISSING
    return state_index(name, states, value)


def _states(item: Named, value: Any, numbers: Tensor, domain: Domain) -> Tensor:
    """States of one entry of the mapping: (*batch, members)."""
    name = _name(item)
    entry = domain.entries[domain.place(item)]
    value = _tensor(name, value, entry)
    dims = numbers.ndim
    if dims and tuple(value.shape[value.ndim - dims :]) != tuple(numbers.shape):
        if value.ndim:
            raise EvidenceError(
                f"Evidence on array {name!r} needs shape (*batch, *{tuple(numbers.shape)})"
                f"; got {tuple(value.shape)}."
            )
        value = value.expand(numbers.shape)
    if value.numel():
        low, high = (int(bound) for bound in value.aminmax())
        if low < MISSING or high >= entry.size:
            raise _beyond(item, entry, low if low < MISSING else high)
    return value.reshape(*value.shape[: value.ndim - dims], math.prod(numbers.shape))


def _tensor(name: str, value: Any, entry: Entry) -> Tensor:
    """Convert states of any form to int64 on the CPU."""
    # Masked arrays and Series of pandas first: gaps become -1, and each distinct value of a Series
    # is looked up once.
    if is_masked(value):
        value = _unmasked(value)
    if is_series(value):
        codes, kinds = codes_of(value)
        if isinstance(entry.states, int) and MISSING in kinds:
            _warn_of_gap(name)
        known = _tensor(name, [*kinds, None], entry)
        return known[torch.from_numpy(array_of(codes)).long()]
    # Lists may hold names of states, and become indices here.
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(_indices(name, value, entry, {}), device="cpu")
        except EvidenceError:
            raise
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise EvidenceError(
                f"Evidence on {name!r} needs states by index or name, in lists of one length in "
                f"each dim; got {type(value).__name__}."
            ) from None
        value = value if value.numel() else value.long()
    if value.is_floating_point() or value.is_complex():
        raise EvidenceError(
            f"Evidence on {name!r} needs state indices or names; got {value.dtype}."
        )
    if value.is_meta or value.layout != torch.strided:
        kind = "meta, which holds no states" if value.is_meta else str(value.layout)
        raise EvidenceError(f"Evidence on {name!r} needs a dense tensor of states; got {kind}.")
    value = value.detach().cpu()
    if value.dtype == torch.bool and value.numel():
        # True and False are looked up among the names of states.
        kinds, places = value.unique(return_inverse=True)
        return torch.tensor([_state(name, flag, entry.states) for flag in kinds.tolist()])[places]
    return value.long()


def _unmasked(value: Any) -> Any:
    """Tensors of indices with -1 at masked entries; names and other values with None there."""
    if isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool:
        return filled(value, MISSING)
    return filled(value, None).tolist()


def _indices(name: str, value: Any, entry: Entry, known: dict[tuple[type, Any], int]) -> Any:
    """Indices of names, gaps and numbers in nested lists and arrays; ``known`` caches values."""
    if isinstance(value, list | tuple):
        return [_indices(name, part, entry, known) for part in value]
    if is_masked(value):
        value = _unmasked(value)
    if isinstance(value, Tensor):
        return _tensor(name, value, entry).tolist()
    if is_array(value):
        array = array_of(value)
        if array.ndim and array.dtype.kind in "iu" and isinstance(entry.states, int):
            return array
        return _indices(name, array.tolist(), entry, known)
    key = type(value), value
    index = known.get(key)
    return known.setdefault(key, _state(name, value, entry.states)) if index is None else index


def checked_states(given: Any, domain: Domain) -> Tensor:
    """Check states by the numbers of the variables, (*lead, V) integers, -1 where there is none."""
    states = as_states("states by the numbers of the variables", given)
    whole = not (states.is_floating_point() or states.is_complex() or states.dtype == torch.bool)
    if not whole or states.shape[-1:] != (domain.count,):
        raise EvidenceError(
            f"States of all variables must be integers of shape (*lead, {domain.count}); got "
            f"{tuple(states.shape)} of {states.dtype}."
        )
    states = states.long()
    wrong = ((states < MISSING) | (states >= domain.sizes.to(states.device))).nonzero()
    if len(wrong):
        variable = domain.variable(int(wrong[0, -1]))
        raise _beyond(variable, variable, int(states[tuple(wrong[0])]))
    return states


def _beyond(item: Named, entry: Entry, got: int) -> EvidenceError:
    return EvidenceError(
        f"Variable {_name(item)!r} has states 0 to {entry.size - 1} (-1 for missing); got {got}."
    )


def _name(item: Named) -> str:
    return item if isinstance(item, str) else item.name


def _joint_batch(item: Named, batch: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return broadcast_shapes(batch, more)
    except RuntimeError:
        raise EvidenceError(
            f"Evidence on {_name(item)!r} has batch shape {more}, which does not broadcast with "
            f"{batch}."
        ) from None


def with_earlier(
    earlier: Tensor | None, states: Tensor, domain: Domain, given: Any = None
) -> Tensor:
    """States (*batch, V) of evidence merged with those observed before."""
    if earlier is None:
        return states
    try:
        clash = (earlier != MISSING) & (states != MISSING) & (earlier != states)
    except RuntimeError:
        raise EvidenceError(
            f"Evidence of batch shape {tuple(states.shape[:-1])} does not broadcast with that "
            f"given before, {tuple(earlier.shape[:-1])}."
        ) from None
    if bool(clash.any()):
        *rows, number = clash.nonzero()[0].tolist()
        name = domain.variable(number).name
        row = f"Row {row_name(given, *rows)}: " if len(rows) == 1 and states.ndim == 2 else ""
        raise EvidenceError(
            f"{row}Variable {name!r} is already observed in another state; retract({name!r}) "
            "undoes that."
        )
    return torch.where(states == MISSING, earlier, states)


def observed_entries(domain: Domain, observed: Tensor) -> tuple[list[bool], list[bool]]:
    """Flags of each entry: observed anywhere, and observed throughout in every row."""
    seen = (observed != MISSING).reshape(-1, domain.count)
    starts = torch.tensor(domain.starts, device="cpu")
    some, every = (
        torch.nn.functional.pad(where.long().cumsum(0), (1, 0))[starts].diff()
        for where in (seen.any(0), seen.all(0))
    )
    counts = starts.diff()
    return (some > 0).tolist(), ((every == counts) & (counts > 0) & (some > 0)).tolist()
