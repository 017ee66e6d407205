"""Sizes and rates that several rooms share: they decide speed and memory, never an answer.

Measured with floats of 64 bits on one core of an AMD EPYC at 2.4 GHz with 1 MB of private cache
and 32 MB shared. `tests/benchmarks/tuning.py` measures each of them again. A number that steers one
algorithm alone stands beside it.
"""

CORE_BLOCK = 2**18
"""Elements of a temporary that is read again at once: 2 MB, about the cache of a core."""

CACHE_BLOCK = 2**20
"""Elements of a temporary that is read a few times: 8 MB, a part of the shared cache."""

BLOCK = 2**22
"""Elements of a temporary: 32 MB, from where larger ones spare no more overhead of calls."""

LARGE_BLOCK = 2**24
"""Elements of the operands and results of large matrix products: 128 MB."""

MOST_TABULATED = 2**28
"""Entries of a potential that is written out to a table: 2 GB."""

MOST_DIMS = 60
"""Variables of a dense table: NumPy and torch stop at 64 dims."""

PIECE = 2**14
"""Characters of a file that are read or tokenised at a time."""

OPERATIONS_PER_SECOND = 3e8
"""Multiply-adds per second of contractions and messages, over steps of all sizes."""

CLUSTER_ENTRIES_PER_SECOND = 1.5e8
"""Entries of cluster tables per second of join-graph messages."""

SECONDS_PER_GROUP = 1e-4
"""Seconds of the calls for one batched group of alike steps, whatever its size."""


def per_block(each: int, block: int = BLOCK) -> int:
    """Number of items of ``each`` elements that a block holds; at least one."""
    return max(1, block // max(1, each))
