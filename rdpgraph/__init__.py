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
    """This module, with its names imported when the first of them is asked for.

    So ``rdpgraph --version`` and ``--help`` answer without the second or two that torch takes.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            self.__version__ = importlib.import_module("importlib.metadata").version(__name__)
            return self.__version__
        if not name.startswith("__") or name == "__all__":
            public = importlib.import_module("rdpgraph._public")
            names: tuple[str, ...] = (*getattr(public, "__all__", ()), "__all__")
            vars(self).update((each, vars(public)[each]) for each in names if each in vars(public))
            if name in names and name not in vars(self):  # a module that binds itself here
                importlib.import_module(f"{__name__}.{name}")
        if name not in vars(self):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return vars(self)[name]

    def __setattr__(self, name: str, value: object) -> None:
        # The import system would bind the submodule `infer` over the function.
        if name != "infer" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        return sorted(self.__all__)


sys.modules[__name__].__class__ = _Package
