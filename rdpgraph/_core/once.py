"""Warnings that are shown once."""

import warnings

_SAID: set[str] = set()


def warn_once(text: str, category: type[Warning] = UserWarning, *, stacklevel: int = 1) -> None:
    """Warn once in a process, and each time where a filter asks for all warnings or for errors.

    Python's own "once" forgets what it has shown whenever any code enters
    `warnings.catch_warnings`, as pandas does in most of its calls.

    Args:
        text: the warning; another text is another warning.
        category: its class.
        stacklevel: as for `warnings.warn`, 1 for the caller of this function.
    """
    if text in _SAID and _action_for(text, category) not in ("always", "all", "error"):
        return
    _SAID.add(text)
    warnings.warn(text, category, stacklevel=stacklevel + 1)


def _action_for(text: str, category: type[Warning]) -> str:
    """The action of the first filter that a warning meets, whatever its module."""
    for action, message, kind, _, _ in warnings.filters:
        if issubclass(category, kind) and (message is None or message.match(text)):  # pyright: ignore
            return action
    return "default"
