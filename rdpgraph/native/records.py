"""Records that Python writes and C++ reads: dataclasses of 64-bit whole numbers.

The dataclasses are the only definition. `header` writes them as C++ structs, a test holds the file
in `kernels/` to that, and `check_sizes` refuses a library that was built with other ones. A kernel
takes a pointer to a record and reads its fields by name; no number is known by its position.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import IntEnum
from functools import cache
from typing import Any, get_type_hints


def header(source: str, records: Sequence[type], kinds: Sequence[type[IntEnum]] = ()) -> str:
    """The C++ header of some records, each after those that it holds.

    Args:
        source: the Python file that defines them, for the first line.
        records: dataclasses whose fields are `int`, or records before them.
        kinds: enumerations for whole numbers; a member SUM of Kind is kKindSum.
    """
    lines = [
        f"// Written by rdpgraph.native.records from {source}.",
        "",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        "namespace {",
        "",
    ]
    # Enumerations first, as fields of records are named after their members; then each record,
    # whose fields are 64-bit numbers or records before it.
    for kind in kinds:
        members = [f"k{kind.__name__}{one.name.capitalize()} = {one.value}" for one in kind]
        lines += [f"enum {kind.__name__} : int64_t {{ {', '.join(members)} }};", ""]
    for record in records:
        hints = get_type_hints(record)
        lines.append(f"struct {record.__name__} {{")
        for part in fields(record):
            held = hints[part.name]
            lines.append(f"  {held.__name__ if held in records else 'int64_t'} {part.name};")
        lines += ["};", ""]
    # A library tells its sizes when it is loaded, so that one built from an older header is
    # refused.
    sizes = ", ".join(f"sizeof({record.__name__})" for record in records)
    lines += [
        "// The bytes of each record, which `record_bytes` of a library returns.",
        f"constexpr int64_t kRecordBytes[] = {{{sizes}}};",
        "",
        "}  // namespace",
    ]
    return "\n".join(lines) + "\n"


def numbers(record: Any) -> Iterator[Any]:
    """The numbers of a record in the order of its struct."""
    for name in _names(type(record)):
        value = getattr(record, name)
        if _is_record(type(value)):
            yield from numbers(value)
        else:
            yield value


@cache
def _is_record(kind: type) -> bool:
    return is_dataclass(kind)


@cache
def _names(record: type) -> tuple[str, ...]:
    return tuple(part.name for part in fields(record))


def size(record: Any) -> int:
    """Return how many 64-bit numbers a record takes in memory."""
    hints = get_type_hints(record)
    held = [hints[part.name] for part in fields(record)]
    return sum(size(kind) if is_dataclass(kind) else 1 for kind in held)


def check_sizes(library: ctypes.CDLL, records: Sequence[type]) -> None:
    """Check that a library was built with these records.

    Raises:
        AttributeError: it was not, as where a function is missing.
    """
    measure = library.record_bytes
    measure.argtypes, measure.restype = [ctypes.c_int64], ctypes.c_int64
    for which, record in enumerate(records):
        if measure(which) != 8 * size(record):
            raise AttributeError(f"the library was built with another {record.__name__}")
