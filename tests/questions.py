"""The questions that posteriors and structures answer, each by its name.

Tests of answers on every route read this table. A new question is given a line here, and has all
of their tests.
"""

from collections.abc import Callable
from typing import Any

import torch

Ask = Callable[[Any], Any]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def log_partition(asked: Any) -> torch.Tensor:
    """Log Z, which is an attribute of a posterior and a method of a structure."""
    return asked.log_partition() if callable(asked.log_partition) else asked.log_partition


# By the names of the methods, which are those that `status_of` takes. These give numbers:
NUMBERS: dict[str, Ask] = {
    "log_partition": log_partition,
    "marginals": lambda asked: asked.marginals(),
    "entropy": lambda asked: asked.entropy(),
    "max_marginals": lambda asked: asked.max_marginals(),
}
# And these states.
QUESTIONS: dict[str, Ask] = NUMBERS | {
    "mode": lambda asked: asked.mode(),
    "sample": lambda asked: asked.sample(3, generator=seeded(9)),
}
