"""Cached layouts: a recursion that repeats its steps only gives new tensors.

The recursion runs each time; its calls of tape methods are compared with the recorded ones and
answered from the record. Log-values, and places that differ by item, go to the program's slots.
"""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.structures.recursion import machine
from rdpgraph.structures.recursion.program import Program, tensor_of, with_tensors
from rdpgraph.structures.recursion.step import Step
from rdpgraph.structures.recursion.steps import Linked
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.values import Given, Labels, Sites, Value, View, some_places

_MOST = 2**23  # size of all cached layouts, in numbers
_STEP = 2**6  # size of a step without its places
_TRIES = 3  # divergences after which a recursion is no longer cached
Answer = TypeVar("Answer")


class DivergedError(Exception):
    """The recursion does not repeat the recorded steps."""


@dataclass(eq=False)
class Call:
    """A call of a tape method."""

    name: str  # of the method
    given: tuple[Any, ...]  # its arguments, without tensors that go to slots
    answer: Any  # its result
    plain: bool  # whether no argument is a tensor
    slot: int | None = None  # the slot that its tensor goes to; None: nothing reads it


@dataclass(frozen=True, eq=False)
class Script:
    """A recorded layout."""

    calls: Sequence[Call]  # in order
    steps: Sequence[Step]  # without their tensors
    program: Program  # of the steps
    failures: int  # how often a recursion diverged from it

    @cached_property
    def shapes(self) -> list[torch.Size]:
        """The shapes of all slots' tensors, for one item."""
        dtype = torch.get_default_dtype()
        return [tensor_of(slot, dtype).shape[1:] for slot in self.program.slots]


@dataclass(frozen=True, eq=False)
class _Scripted(Tape):
    """A tape whose calls are recorded, or answered from a record."""

    @abstractmethod
    def ask(
        self, name: str, given: tuple[Any, ...], *args: Any,
        tensor: Callable[[], Tensor] | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """The result of a method, which depends on ``given``; called with ``args`` or these.

        If given, the tensor goes to a slot.
        """

    @property
    def sites(self) -> Sites:
        return _Sites(*self._numbered, self._of_sites, self.ask)

    def leaf(self, logs: Tensor) -> Value:
        return self.ask("leaf", (), logs, tensor=lambda: logs.to(self.dtype).contiguous())

    def view(self, pool: Given | Sequence[Value], index: Tensor) -> View:
        index = torch.as_tensor(index, device=self.device)
        pool = tuple(pool) if isinstance(pool, list) else pool  # which may grow
        if index.ndim < 3:
            return self.ask("view", (pool, index))

        def places() -> Tensor:
            own = some_places(pool, index).index
            assert own is not None
            return own.long().contiguous()

        return self.ask("view", (pool,), pool, index, tensor=places)

    def link(
        self, x: Value, potential: Tensor | Potential, *, to: Value | Labels | None = None
    ) -> Value:
        if isinstance(potential, LowRank) and self.ranks:
            return super().link(x, potential, to=to)  # by way of two others
        table = partial(self._table, potential)
        return self.ask("link", (x, to), x, potential, tensor=table, to=to)

    def _table(self, potential: Tensor | Potential) -> Tensor:
        known = self.sources.known.get(("values", id(potential)))
        if known is None:
            known = potential, self.sources.table(self.sources.source(potential)).values
            self.sources.known["values", id(potential)] = known
        return known[1]


def _asked(name: str) -> Callable[..., Any]:
    """A method of a tape as a recorded call."""

    @wraps(getattr(Tape, name))
    def method(self: _Scripted, *args: Any, **options: Any) -> Any:
        given = [tuple(own) if isinstance(own, list) else own for own in (*args, *options.values())]
        return self.ask(name, tuple(given), *args, **options)

    return method


for _name in (
    "as_alternatives",
    "total",
    "sum",
    "merge",
    "concatenate",
    "pick",
    "states_as_places",
    "pairs",
):
    setattr(_Scripted, _name, _asked(_name))


@dataclass(frozen=True, eq=False)
class _Sites(Sites):
    """The sites of such a tape, which ``ask`` it."""

    ask: Callable[[str, tuple[Any, ...]], Any]

    def __getitem__(self, index: Any) -> Value:
        return self.ask("site", (index,))

    def leaf(self, numbers: Tensor) -> Value:
        return self.ask("sites", (numbers,))

    def labels(self, numbers: Tensor) -> Labels:
        return self.ask("labels", (numbers,))


def _plain_method(name: str) -> Callable[..., Any]:
    """A method of `Tape`, or of its sites."""
    if name == "site":
        return lambda tape, index: Tape.sites.fget(tape)[index]  # pyright: ignore
    if name in ("sites", "labels"):
        own = "leaf" if name == "sites" else name
        return lambda tape, numbers: getattr(Tape.sites.fget(tape), own)(numbers)  # pyright: ignore
    return getattr(Tape, name)


@dataclass(frozen=True, eq=False)
class Recorded(_Scripted):
    """A tape that records its calls."""

    calls: list[Call] = field(default_factory=list[Call], init=False)

    def ask(
        self, name: str, given: tuple[Any, ...], *args: Any,
        tensor: Callable[[], Tensor] | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        del tensor
        answer = _plain_method(name)(self, *(args or given), **options)
        self.calls.append(Call(name, given, answer, _is_plain(given)))
        return answer

    def script(self, failures: int) -> Script | None:
        """The record; None where the machine does not have a step."""
        program = machine.program_of(self)
        if program is None:
            return None
        slots = {
            id(own.index if isinstance(own, View) else own): n
            for n, own in enumerate(program.slots)
        }
        given = set[int]()
        for call in self.calls:
            owner = None
            if call.name in ("leaf", "link"):
                step = self.steps[call.answer.number]
                owner = step.link if isinstance(step, Linked) else step
            elif call.name == "view":
                owner = call.answer.index
            call.slot = slots.get(id(owner))
            if call.slot is not None:
                given.add(call.slot)
        if len(given) < len(slots):
            return None
        # Tensors of the same shapes that take no memory.
        tensors = (tensor_of(own, self.dtype) for own in program.slots)
        blanks = [part.new_zeros((1,) * part.ndim).expand(part.shape) for part in tensors]
        steps, owners = with_tensors(self.steps, program.slots, blanks)
        return Script(self.calls, steps, replace(program, slots=owners), failures)


@dataclass(frozen=True, eq=False)
class Replayed(_Scripted):
    """A tape that answers from a record, and takes the tensors."""

    known: Script = field(kw_only=True)
    given: dict[int, Tensor] = field(default_factory=dict[int, Tensor], init=False)

    def __post_init__(self) -> None:
        self.sources.known[machine.PROGRAM] = self.known.program

    @cached_property
    def _left(self) -> Iterator[Call]:
        return iter(self.known.calls)

    def ask(
        self, name: str, given: tuple[Any, ...], *args: Any,
        tensor: Callable[[], Tensor] | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        del args, options
        call = next(self._left, None)
        if call is None or call.name != name:
            raise DivergedError
        if not ((call.plain and call.given == given) or _same(call.given, given)):
            raise DivergedError
        if tensor is not None and call.slot is not None:
            own, known = tensor(), self.given.get(call.slot)
            if known is None:
                shape = self.known.shapes[call.slot]
                if own.shape[1:] != shape or own.shape[0] not in (1, self.batch):
                    raise DivergedError
                self.given[call.slot] = own
            elif known is not own:
                raise DivergedError
        return call.answer

    def finish(self, value: Value) -> None:
        last = self.sum(value)
        for call in self._left:
            if call.name != "total" or not _same(call.given, (last,)):
                raise DivergedError
        if len(self.given) < len(self.known.program.slots):
            raise DivergedError
        self.sources.known[machine.GIVEN] = [self.given[n] for n in range(len(self.given))]
        self.steps.extend(self.known.steps)

    @cached_property
    def whole(self) -> Tape:
        """The tape whose steps have the tensors."""
        tape = Tape(self.unary, self.site_dims, ranks=self.ranks, dtype=self.dtype)
        given, program = self.sources.known[machine.GIVEN], self.known.program
        steps, slots = with_tensors(self.known.steps, program.slots, given)
        tape.steps.extend(steps)
        tape.sources.known[machine.PROGRAM] = replace(program, slots=slots)
        return tape


def whole(tape: Tape) -> Tape:
    """A tape with complete steps, which answers more than log Z."""
    return tape.whole if isinstance(tape, Replayed) else tape


_KEPT = OrderedDict[tuple[object, ...], Script | int]()
"""Scripts, or the number of divergences; those used last at the end."""
_LOCK = Lock()


def laid_out(tape: Tape, recursion: Callable[[Tape], Value], key: tuple[object, ...]) -> Tape:
    """Lay out a recursion on an empty tape; those that take the same steps share the key."""
    if tape.states is not None or not machine.serves(tape.unary, tape.dtype):
        tape.finish(recursion(tape))
        return tape
    options: Any = {"site_dims": tape.site_dims, "ranks": tape.ranks, "dtype": tape.dtype}
    key = *key, *options.values(), tape.site_shape, tape.unary.shape[-1], len(tape.lead)
    key = *key, torch.is_inference_mode_enabled()  # tensors made there pass no gradients elsewhere
    known = _KEPT.get(key, 0)
    if isinstance(known, Script):
        try:
            replayed = Replayed(tape.unary, **options, known=known)
            replayed.finish(recursion(replayed))
        except DivergedError:
            known = known.failures + 1
        else:
            _keep(key, replayed.known)
            return replayed
    if known >= _TRIES:
        tape.finish(recursion(tape))
        return tape
    recorded = Recorded(tape.unary, **options)
    recorded.finish(recursion(recorded))
    script = recorded.script(known)
    kept = _TRIES if script is None else script
    if _size(kept) <= _MOST:
        _keep(key, kept)
    return recorded


def _keep(key: tuple[object, ...], kept: Script | int) -> None:
    """Cache a script, and drop those used longest ago where the cache is full."""
    with _LOCK:
        _KEPT[key] = kept
        _KEPT.move_to_end(key)
        total = 0
        for old in reversed(list(_KEPT)):
            total += _size(_KEPT[old])
            if total > _MOST:
                del _KEPT[old]


def _size(kept: Script | int) -> int:
    """The size of a script, in numbers."""
    if isinstance(kept, int):
        return _STEP
    return _STEP * len(kept.steps) + len(kept.program.index)


def _is_plain(given: Any) -> bool:
    """Return whether arguments can be compared by ``==``."""
    if isinstance(given, tuple | list):
        return all(map(_is_plain, given))
    return not isinstance(given, Tensor)


def _same(one: Any, other: Any) -> bool:
    """Return whether two arguments are equal."""
    if one is other:
        return True
    if isinstance(one, Tensor):
        same = isinstance(other, Tensor) and one.shape == other.shape and one.dtype == other.dtype
        return same and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, View):
        return (
            one.as_alternatives == other.as_alternatives
            and _same(one.pool, other.pool)
            and _same(one.index, other.index)
        )
    if isinstance(one, Value):
        same = (one.number, one.places, one.width) == (other.number, other.places, other.width)
        return same and one.labels is other.labels
    return bool(one == other)
