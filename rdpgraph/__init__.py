"""rdpgraph: declare a discrete graphical model, see the plan, get answers with gradients."""

import importlib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdpgraph._public import *  # noqa: F403
    from rdpgraph._public import __all__ as __all__

    __version__: str


class _Package(ModuleType):
    """This module, with each name imported from its place when it is asked for.

    So ``rdpgraph --version`` and ``--help`` answer without the second or two that torch takes, and
    a program loads only the subpackages that it uses. The names and their places are the import
    statements of `_public.py`, which type checkers read too.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            self.__version__ = importlib.import_module("importlib.metadata").version(__name__)
            return self.__version__
        if name == "__all__":
            self.__all__ = tuple(sorted(_places()))
            return self.__all__
        if name.startswith("__") or name not in (places := _places()):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module = importlib.import_module(places[name])
        vars(self)[name] = (
            module
            if places[name] == f"{__name__}.{name}" and name != "infer"
            else (getattr(module, name))
        )
        return vars(self)[name]

    def __setattr__(self, name: str, value: object) -> None:
        # The import system would bind the submodule `infer` over the function.
        if name != "infer" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        return sorted(self.__all__)


def _places() -> dict[str, str]:
    """The module of each public name."""
    if not _known:
        ast = importlib.import_module("ast")
        source = importlib.import_module("pathlib").Path(__file__).with_name("_public.py")
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith(__name__):
                for each in node.names:
                    inside = node.module == __name__  # a module of the package
                    _known[each.name] = f"{__name__}.{each.name}" if inside else node.module
    return _known


_known: dict[str, str] = {}

sys.modules[__name__].__class__ = _Package
