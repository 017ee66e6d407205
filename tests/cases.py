"""Cases of which a few are short."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_short(cases: Iterable[Any], most: int) -> list[Any]:
    """Mark all cases but the first ``most`` as long: random ones, of which a few stand for all."""
    return [
        case if number < most else pytest.param(case, marks=pytest.mark.long)
        for number, case in enumerate(cases)
    ]
