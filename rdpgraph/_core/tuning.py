"""Sizes, thresholds and rates of this machine: they decide speed and memory, never an answer.

Measured with floats of 64 bits on one core of an AMD EPYC at 2.4 GHz with 1 MB of private cache
and 32 MB shared. `tests/benchmarks/tuning.py` measures blocks, thresholds and rates again. Parts of
a time budget, and numbers that belong to one algorithm's mathematics, stand beside it.
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

SCAN_BLOCK = 2**26
"""Elements of the matrices of an associative scan: longer chains are swept step by step."""

PIECE = 2**14
"""Characters of a file, rows of a table, or syndromes that are worked on at a time."""

SEQUENCES = 16
"""Sequences of a Gaussian process in memory at a time, where nothing else is asked for."""

PAIRED_POSITIONS = 16
"""Positions of a sequence up to which products of pairs of rows are stored in training."""

STORED_TERMS = 2**12
"""Terms of sums in logs that are stored for the gradient; more are computed again."""

CACHED_EDGES = 50_000
"""Edges of a model whose orders are cached for the next one of its shape: 0.1 s to compute."""

LISTED_ARITY = 100
"""Variables of a factor that is evaluated once for each of them in layered decoding."""

INDEXED = 4096
"""Entries of a result that plain indexing gives as fast as flat indices."""

EVIDENCE_KEYS = 64
"""Variables with evidence from which they are looked up together."""

GROUPED_FACTORS = 64
"""Factors of a block that Python groups by shape as fast as tensors do."""

SMALL_TABLE = 16
"""Entries of a factor whose table is at least as fast as special messages."""

NUMPY_MAXIMA = 2**13
"""Sums of a step of Viterbi's algorithm for which NumPy is faster than torch."""

KERNEL_SCALED = 2**17
"""Potentials of a chain that the compiled kernel scales faster than torch."""

CLASS_WORDS = 256
"""Words of a class from which on they are a product of matrices in look-ahead."""

NOISY_ALTERNATIVES = 256
"""Alternatives of a draw for which noise is faster than inverting the running sum."""

SORTED_NODES = 2**5
"""Nodes of a step that Python sorts faster than tensors."""

LOGGED_ENTRIES, LOGGED_TERMS = 256, 2**12
"""Entries of a link's table whose sums are faster in logs than as a product of matrices, and terms
of a link, of all items, for means."""

BROADCAST_SEQUENCES = 4
"""Sequences for which broadcasting is faster than a batched matrix product."""

OPERATIONS_PER_SECOND = 3e8
"""Multiply-adds per second of contractions and messages, over steps of all sizes."""

CLUSTER_ENTRIES_PER_SECOND = 1.5e8
"""Entries of cluster tables per second of join-graph messages."""

SECONDS_PER_GROUP = 1e-4
"""Seconds of the calls for one batched group of alike steps, whatever its size."""

SECONDS_PER_CALL = 5e-6
"""Seconds of a call into torch, or of a launch on a GPU."""

SCAN_LEVEL, SCAN_MATRIX, RECURSION_STEP = 165e-6, 1.2e-6, 11e-6
"""Seconds of a level of an associative scan, of each of its matrices, and of a step of the
recursion that it replaces."""

SECONDS_PER_FACTOR = 1e-4
"""Seconds of a pass of mini-buckets for each variable and factor; on 100,000 and 200,000."""

SECONDS_PER_EDGE = 1e-5
"""Seconds to find an order of decoding, for each edge, rounded up."""

SECONDS_PER_LOOK = 2e-5
"""Seconds between two looks at a clock that counts: a step of a greedy order."""

MESSAGE_ENTRY, AUTOMATON_ENTRY, CLUSTER_ENTRY = 5.0, 500.0, 6.0
"""Operations for each entry of a message, beside those of tables; of a message of an automaton;
and of a cluster for each separator."""

ANNEALING_VISIT, SEARCH_VISIT = 600.0, 6e3
"""Operations of a visit of a node by annealing of orders, and of a variable, or a factor of it, by
all chains of a search."""

EASY_ENTRIES = 2e7
"""Entries of all tables of an order that needs no better one: a fraction of a second."""

LITTLE_WORK, LITTLE_SWEEP = 3e6, 2**14
"""Multiply-adds that take no longer than the overhead of an answer, and places and ways visited
that take no longer than that of a masked sweep, some milliseconds."""


def per_block(each: int, block: int = BLOCK) -> int:
    """Number of items of ``each`` elements that a block holds; at least one."""
    return max(1, block // max(1, each))
