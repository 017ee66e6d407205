"""Arguments of estimators, in the manner of scikit-learn."""

import importlib
import inspect
from typing import Any, Self

from rdpgraph.errors import ModelError


class Arguments:
    """Base of classes whose arguments are attributes of the same names; they may be cloned."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002
        """The arguments by name; ``deep`` means nothing here: there are no estimators inside."""
        del deep
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change arguments; an unknown name raises `ModelError`."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ModelError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}."
                )
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Tags of an estimator that takes gaps, which scikit-learn alone asks for."""
        utils = importlib.import_module("sklearn.utils")
        return utils.Tags(
            estimator_type=None,
            target_tags=utils.TargetTags(required=False),
            input_tags=utils.InputTags(allow_nan=True),
        )
