"""Exact counts by pyganak, in a process with limits of time and memory."""

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rdpgraph.engines.counting.encoding import Encoding, place
from rdpgraph.errors import BudgetError, UnsupportedError
from rdpgraph.plan import clock

_START = 64e6
"""Bytes that the program itself takes."""

_WIDEST = 600.0
"""Nats between the weights of a literal that a double holds with all digits, next to a 1."""


def has_counter() -> bool:
    """Return whether pyganak is installed."""
    return find_spec("pyganak") is not None


def require_counter() -> None:
    """Raise `UnsupportedError`, which names the extra, if pyganak is absent."""
    if not has_counter():
        raise UnsupportedError("Counting needs pyganak: pip install 'rdpgraph[counting]'.")


def log_count(encoding: Encoding, *, seconds: float, memory: float) -> float:
    """Log of the weighted count of an encoding with one row of weights (nats), without gradients.

    Raises `BudgetError` if it does not end within the seconds and memory (bytes).
    """
    require_counter()
    free, parts = _parts(encoding)
    request = json.dumps({"memory": memory + _START, "parts": parts})
    return math.fsum([free, *(_asked(request, seconds) if parts else [])])


def _parts(encoding: Encoding) -> tuple[float, list[Any]]:
    """Log-sum of the literals without clauses, and the components for the counter."""
    weights = encoding.log_weights[0].double().tolist()
    known, parts = [float(encoding.constant[0])], list[Any]()
    for variables, clauses in encoding.components:
        pairs = [(weights[place(x)], weights[place(-x)]) for x in variables]
        if not clauses:
            known += [_log_sum(*pair) for pair in pairs]
            continue
        numbers = {x: number for number, x in enumerate(variables, 1)}
        rows = [[numbers[abs(x)] if x > 0 else -numbers[abs(x)] for x in c] for c in clauses]
        for x, (one, other) in enumerate(tuple(pairs), 1):
            for literal, weight in ((x, one), (-x, other)):
                if weight == -math.inf:
                    rows.append([-literal])
            gap = abs(one - other) if one != other else 0.0
            if -math.inf in (one, other):
                top = max(one, other)
                pairs[x - 1] = (top, top) if top > -math.inf else (0.0, 0.0)
            # A weight too small for a double is that of several literals that are one.
            elif (copies := math.ceil(gap / _WIDEST)) > 1:
                pairs[x - 1] = one / copies, other / copies
                for _ in range(copies - 1):
                    pairs.append(pairs[x - 1])
                    rows += [[-x, len(pairs)], [x, -len(pairs)]]
        soft = any(one != 0.0 or other != 0.0 for one, other in pairs)
        parts.append((len(pairs), rows, [w for pair in pairs for w in pair] if soft else None))
    return math.fsum(known), parts


def _log_sum(one: float, other: float) -> float:
    top = max(one, other)
    return top if top == -math.inf else top + math.log1p(math.exp(min(one, other) - top))


def _asked(request: str, seconds: float) -> list[float]:
    """Answers of the counting program."""
    program = [sys.executable, str(Path(__file__).with_name("worker.py"))]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            answer = process.communicate(request, timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            answer = None
        finally:
            process.kill()
    if answer is None:
        raise BudgetError(
            f"The count did not end in {seconds:.3g} s; "
            f"{clock.ways_out(seconds, 'time', 'use an approximate method')}."
        )
    if process.returncode:
        raise BudgetError(
            f"The counter failed with exit code {process.returncode}, as without enough memory; "
            "raise the memory budget, or use an approximate method."
        )
    return json.loads(answer)
