"""What `torch.compile` calls as it stands, instead of tracing into it."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def opaque(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`torch.compiler.disable`, typed: compiled functions call the function as it stands."""
    return cast(Callable[Arguments, Result], torch.compiler.disable(function))
