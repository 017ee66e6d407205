"""What `torch.compile` calls as it stands, instead of tracing into it."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def opaque(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, which compiled functions call as it stands.

    As `torch.compiler.disable`, asked for in a compiled function only: it loads the compiler, which
    takes seconds.
    """

    @wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling():
            alone = cast(Callable[Arguments, Result], torch.compiler.disable(function))
            return alone(*args, **kwargs)
        return function(*args, **kwargs)

    return called
