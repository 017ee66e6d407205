"""What a user declares: inputs, lengths and rules; and the program that they make."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdpgraph.errors import ModelError
from rdpgraph.recurrences.affine import Affine
from rdpgraph.recurrences.inference import infer_program
from rdpgraph.recurrences.parsing import is_size, parse
from rdpgraph.recurrences.program import Array, Program


class _Declared:
    """What is declared in a class, in place of which an object has the tensor that it was given."""

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: type) -> Any: ...


@dataclass(frozen=True)
class Input(_Declared):
    """A tensor that a recurrence is given: (*batch, *dims) logs in nats, -inf for what is absent.

    Attributes:
        dims: the sizes after the batch, in words, as "T N", "T-1 N N" or "I+1 J+1 3". Sizes begin
            with a capital letter; one name is the same size wherever it stands.
        whole: whether it holds whole numbers instead, by which other inputs are indexed, as in
            ``emission[n, words[t]]``.
    """

    dims: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Lengths(_Declared):
    """A whole number for each item, (*batch,), from 0 to a size, which it is if none is given.

    Attributes:
        most: the size, as "T".
    """

    most: str


Declared = tuple[tuple[str, Input | Lengths], ...]
"""Inputs and lengths by name, in order."""


@functools.lru_cache(maxsize=256)
def program_of(owner: str, declared: Declared, rules: str) -> Program:
    """The program of some rules, made once.

    Args:
        owner: the name of the class, for messages.
        declared: what the rules read, and the lengths.
        rules: a text of one rule a line.

    Raises:
        ModelError: in one line, for rules that cannot be computed, which it repeats.
    """
    arrays = [
        Array(name, _dims(owner, name, one.dims), one.whole)
        for name, one in declared
        if isinstance(one, Input)
    ]
    sizes = {name for array in arrays for dim in array.dims for name in dim.names}
    lengths: list[tuple[str, Affine]] = []
    for name, one in declared:
        if isinstance(one, Lengths):
            (most,) = _dims(owner, name, one.most)
            if not most.names <= sizes:
                raise ModelError(
                    f"{owner}: {name} are at most {most}, which is the size of no input."
                )
            lengths.append((name, most))
    return infer_program(owner, arrays, lengths, parse(owner, rules))


def _dims(owner: str, name: str, text: str) -> tuple[Affine, ...]:
    """Sizes in words, as "T-1 N 3"."""
    dims: list[Affine] = []
    for word in text.split():
        sign = "+" if "+" in word else "-"
        size, found, number = word.partition(sign)
        known = size.isdigit() or (size.isidentifier() and is_size(size))
        if not known or bool(found) != number.isdigit():
            raise ModelError(f"{owner}: {name} has sizes such as T, N, T-1 or 3; got {word!r}.")
        form = Affine.of(int(size)) if size.isdigit() else Affine.of(size)
        dims.append(form + (int(sign + number) if found else 0))
    return tuple(dims)
