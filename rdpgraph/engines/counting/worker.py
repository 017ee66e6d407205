"""Counting program: a request in JSON on standard input, the answer on standard output.

That is the logarithms of counts, or the text of a circuit.

Runs by its path in a separate process, so that it imports nothing of the package.
"""

import ctypes
import importlib
import json
import math
import os
import resource
import signal
import sys
from typing import Any

_ROOM = 700.0
"""Nats above 1 of the upper bound of a scaled count: a double holds 709."""
_BITS = 1900
"""Bits by which the scale grows if the count was too small for a double."""
_LEAST = 1e-290
"""Counts below this have lost digits."""


_PAGE = str(2**26)
"""Bytes that d4 adds to its cache at once."""


def circuit(variables: int, clauses: list[list[int]]) -> str:
    """The text of a circuit of clauses over literals 1 to n, by d4."""
    return _d4(variables, clauses).compile().getNNFString()


def _d4(variables: int, clauses: list[list[int]]) -> Any:
    d4 = importlib.import_module("py_d4")
    options = d4.dump_options_to_dict(d4.OptionDpllStyleMethod())
    options["cache"]["bucket"].update(sizeFirstPage=_PAGE, sizeAdditionalPage=_PAGE)
    return d4.Solver(clauses, variables, d4.load_options_from_dict(options))


def whole(variables: int, clauses: list[list[int]], *_: None) -> float:
    """Log of the number of models of clauses over literals 1 to n, by d4."""
    number = int(_d4(variables, clauses).count().getIntResult())
    return math.log(number) if number else -math.inf


def count(
    variables: int, clauses: list[list[int]], weights: list[float] | None, shown: list[int] | None
) -> float:
    """Log of the weighted count of clauses over literals 1 to n, by pyganak; -inf if impossible.

    ``weights`` are the log-weights of 1, -1, 2, -2, ...; None: all are 0. Each assignment of the
    ``shown`` variables (None: of all) that some model has counts once.
    """
    pyganak = importlib.import_module("pyganak")
    # The wheel of pyganak brings this solver. The counter takes minutes to find contradictions.
    solver = importlib.import_module("pycryptosat").Solver()
    solver.add_clauses(clauses)
    if not solver.solve()[0]:
        return -math.inf
    if shown == []:
        return 0.0

    def made(kind: str) -> Any:
        counter = getattr(pyganak, kind)()
        counter.new_vars(variables)
        counter.add_clauses(clauses)
        if shown is not None:
            counter.set_sampling_set(shown)
        return counter

    if weights is None:
        return math.log(made("Counter").count())
    summed = range(1, variables + 1) if shown is None else shown
    tops = [max(weights[2 * x - 2 : 2 * x]) for x in summed]
    bits = int((_ROOM - len(summed) * math.log(2.0)) / math.log(2.0))
    total, used = 0.0, bits
    while total < _LEAST:
        counter = made("WeightedCounter")
        for number, (x, top) in enumerate(zip(summed, tops, strict=True)):
            # Powers of two, so that scaling loses no digit.
            scale = bits // len(tops) + (number < bits % len(tops))
            for literal, weight in zip((x, -x), weights[2 * x - 2 : 2 * x], strict=True):
                counter.set_lit_weight(literal, math.ldexp(math.exp(weight - top), scale))
        total, used, bits = counter.count(), bits, bits + _BITS
    return math.log(total) - used * math.log(2.0) + math.fsum(tops)


def main() -> None:
    """Answer one request within its memory limit, and end with the parent process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    request = json.load(sys.stdin)
    limit, hard = int(request["memory"]), resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    answers = os.dup(1)
    os.dup2(2, 1)  # the counter prints
    sys.set_int_max_str_digits(0)
    if request["program"] == "circuit":
        answer = circuit(*request["parts"])
    else:
        counting = {"d4": whole, "pyganak": count}[request["program"]]
        answer = json.dumps([counting(*part) for part in request["parts"]])
    with os.fdopen(answers, "w") as file:
        file.write(answer)


if __name__ == "__main__":
    main()
