"""Warnings that are shown once."""

import inspect
import sys
import warnings

_PACKAGE = __name__.partition(".")[0]
_BETWEEN = ("contextlib", "dataclasses", "functools", "torch")  # modules that call back into ours
_SAID: set[str] = set()


def warn_once(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn once in a process, and each time where a filter asks for all warnings or for errors.

    The warning names the line outside of this package that led here. Python's own "once" forgets
    what it has shown whenever any code enters `warnings.catch_warnings`, as pandas does in most of
    its calls.

    Args:
        text: the warning; another text is another warning.
        category: its class.
    """
    if text in _SAID and _action_for(text, category) not in ("always", "all", "error"):
        return
    _SAID.add(text)
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_back and _room_of(frame.f_globals) in (_PACKAGE, *_BETWEEN):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def is_declared_by_user() -> bool:
    """Test if the object whose fields are being checked is made by code outside of this package.

    A constructor may be a class method, such as `Chain.crf`. The package itself makes many objects
    of tensors that a user has declared before.
    """
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        module, code = str(frame.f_globals.get("__name__", "")), frame.f_code
        room = module.partition(".")[0]
        if room == _PACKAGE:
            checks = code.co_name.startswith(("__", "checked_", "is_declared"))
            constructs = code.co_varnames[:1] == ("cls",) or module.startswith(f"{_PACKAGE}._core")
            if not checks and not constructs:
                return False
        elif room not in _BETWEEN:
            return True
        frame = frame.f_back
    return True


def _room_of(names: dict[str, object]) -> str:
    """The package that has a frame's global names."""
    return str(names.get("__name__", "")).partition(".")[0]


def _action_for(text: str, category: type[Warning]) -> str:
    """The action of the first filter that a warning meets, whatever its module."""
    for action, message, kind, _, _ in warnings.filters:
        if issubclass(category, kind) and (message is None or message.match(text)):  # pyright: ignore
            return action
    return "default"
