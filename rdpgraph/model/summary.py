"""Objects that hold tensors, in a line: shapes, types and devices in place of numbers."""

from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

_WIDTH = 120  # characters of what is no tensor


def summary(value: Any) -> str:
    """What `repr` shows of a dataclass, with tensors as ``float32(3, 5, 2)``."""
    if isinstance(value, Tensor):
        shape = ", ".join(map(str, value.shape)) + ("," if value.ndim == 1 else "")
        dtype = str(value.dtype).removeprefix("torch.")
        place = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{dtype}({shape}){place}"
    if is_dataclass(value) and not isinstance(value, type):
        shown = [field.name for field in fields(value) if field.repr]
        parts = [f"{name}={summary(getattr(value, name))}" for name in shown]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, tuple | list) and value:
        first = summary(value[0])
        more = f", {len(value) - 1} more" if len(value) > 1 else ""
        return f"[{first}{more}]"
    text = repr(value)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."
