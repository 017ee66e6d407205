"""Counters, d4 and pyganak, in processes with limits of time and memory."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rdpgraph._core import tuning
from rdpgraph.engines.counting.encoding import Encoding, place
from rdpgraph.errors import BudgetError, UnsupportedError
from rdpgraph.plan import clock

_WIDEST = 600.0
"""Nats between the weights of a literal that a double holds with all digits, next to a 1."""

_LOST, _COPIES = 6e4, 100_000
"""Nats below the least weight of all others together from which literals are left out, and literals
that stand for one at most."""

_TRUE = b"o 1 0\nt 2 0\n1 2 0\n"
"""Text of the circuit without clauses; d4 fails without variables."""


def has_counter(*names: str) -> bool:
    """Return whether pyganak or d4, or one of those named, is installed."""
    modules = {"pyganak": "pyganak", "d4": "py_d4"}
    return any(find_spec(modules[name]) is not None for name in names or modules)


def require_counter() -> None:
    """Raise `UnsupportedError`, which names the extra, if no counter is installed."""
    if not has_counter():
        raise UnsupportedError("Counting needs pyganak: pip install 'rdpgraph[counting]'.")


def log_count(encoding: Encoding, program: str, *, seconds: float, memory: float) -> float | None:
    """Log of the weighted count of an encoding with one row of weights (nats), without gradients.

    None if the program, "d4" or "pyganak", is not installed, or does not answer: d4 has few digits
    for weights, and no hidden variables. Raises `BudgetError` if it does not end within the seconds
    and memory (bytes).
    """
    free, parts, lost = _parts(encoding)
    plain = all(logs is None and shown is None for _, _, logs, shown in parts)
    if not has_counter(program) or (program == "d4" and not plain):
        return None
    counts = json.loads(_asked(program, parts, seconds, memory)) if parts else []
    if -math.inf in counts and lost:
        raise BudgetError(
            "The counter drops configurations as unlikely as log-values of -1e9 make them, and "
            "found no others. Write -inf where something is impossible."
        )
    return math.fsum([free, *counts])


def _parts(encoding: Encoding) -> tuple[float, list[Any], bool]:
    """Log-sum of the literals without clauses, and the components for the counter.

    Also whether literals were left out of these that weigh less than all others together.
    """
    weights = encoding.log_weights[0].double().tolist()
    known, parts, some_lost = [float(encoding.constant[0])], list[Any](), False
    for variables, clauses in encoding.components:
        pairs = [(weights[place(x)], weights[place(-x)]) for x in variables]
        shown = [n for n, x in enumerate(variables, 1) if x <= encoding.count - encoding.hidden]
        if not clauses:
            known += [float(np.logaddexp(*pairs[number - 1])) for number in shown]
            continue
        lost = _lost([abs(one - other) for one, other in pairs if -math.inf not in (one, other)])
        numbers = {x: number for number, x in enumerate(variables, 1)}
        rows = [[numbers[abs(x)] if x > 0 else -numbers[abs(x)] for x in c] for c in clauses]
        for x, (one, other) in enumerate(tuple(pairs), 1):
            gap = abs(one - other) if one != other else 0.0
            if lost <= gap < math.inf:
                some_lost = True
                one, other = (w if w == max(one, other) else -math.inf for w in (one, other))
            for literal, weight in ((x, one), (-x, other)):
                if weight == -math.inf:
                    rows.append([-literal])
            if -math.inf in (one, other):
                top = max(one, other)
                pairs[x - 1] = (top, top) if top > -math.inf else (0.0, 0.0)
            # A weight too small for a double is that of several literals that are one.
            elif (copies := math.ceil(gap / _WIDEST)) > _COPIES:
                raise BudgetError(
                    f"The counter cannot represent weights that are {gap:.3g} nats apart. Write "
                    "-inf where something is impossible, or use an approximate method."
                )
            elif copies > 1:
                pairs[x - 1] = one / copies, other / copies
                for _ in range(copies - 1):
                    pairs.append(pairs[x - 1])
                    rows += [[-x, len(pairs)], [x, -len(pairs)]]
                    shown.append(len(pairs))
        soft = any(one != 0.0 or other != 0.0 for one, other in pairs)
        logs = [w for pair in pairs for w in pair] if soft else None
        parts.append((len(pairs), rows, logs, shown if encoding.hidden else None))
    return math.fsum(known), parts, some_lost


def _lost(gaps: list[float]) -> float:
    """Least gap of literals that are left out: what is possible without them weighs more."""
    kept = _LOST + len(gaps)
    for gap in sorted(gaps):
        if gap > kept:
            return gap
        kept += gap
    return math.inf


def circuit_text(encoding: Encoding, *, seconds: float, memory: float) -> bytes:
    """Text of a circuit by d4, without hidden variables; `BudgetError` as for counts."""
    if not encoding.clauses:
        return _TRUE
    return _asked("circuit", (encoding.count, encoding.clauses), seconds, memory)


def _asked(name: str, parts: Sequence[Any], seconds: float, memory: float) -> bytes:
    """Answer of the counting program."""
    # The counter runs in a process of its own, which can be ended in time or when it takes too
    # much.
    reserved = memory + tuning.COUNTER_BYTES + (0.0 if name == "pyganak" else tuning.D4_BYTES)
    text = json.dumps({"program": name, "memory": reserved, "parts": parts})
    request: bytes | None = text.encode()
    program = [sys.executable, str(Path(__file__).with_name("worker.py"))]
    end, left, answer = clock.now() + seconds, seconds, None
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            while answer is None and (left := end - clock.now()) > 0.0:
                with suppress(subprocess.TimeoutExpired):
                    answer = process.communicate(request, timeout=min(left, tuning.COUNTER_LOOK))[0]
                # The request is written once; later calls wait for the answer alone.
                request = None
                if answer is None and _resident(process.pid) > memory + tuning.COUNTER_BYTES:
                    break
        finally:
            process.kill()
    if answer is None and left <= 0.0:
        raise BudgetError(
            f"The count did not end in {seconds:.3g} s; "
            f"{clock.ways_out(seconds, 'time', 'use an approximate method')}."
        )
    if process.returncode:
        raise BudgetError(
            f"The counter failed with exit code {process.returncode}, as without enough memory; "
            "raise the memory budget, or use an approximate method."
        )
    return answer or b""


def _resident(process: int) -> float:
    """Bytes of memory that a process has in use; 0 where that is not told."""
    with suppress(OSError):
        return 4096.0 * int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return 0.0
