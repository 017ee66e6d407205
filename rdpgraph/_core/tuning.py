"""Sizes, thresholds and rates of this machine: they decide speed and memory, never an answer.

Measured with floats of 64 bits on one core of an AMD EPYC at 2.4 GHz with 1 MB of private cache
and 32 MB shared. `tests/benchmarks/tuning.py` measures blocks, thresholds and rates again, and the
benchmark of a room (`tests/benchmarks/`) what stands under its name. Parts of a time budget and
sizes of searches are in `effort.py`; numbers of one algorithm's mathematics stand beside it.
"""

CORE_BLOCK = 2**18
"""Elements of a temporary that is read again at once: 2 MB, about the cache of a core. Larger ones
are read from slower memory, smaller ones spend their time in calls; so it is with all blocks below,
measured by `tuning.py`."""

CACHE_BLOCK = 2**20
"""Elements of a temporary that is read a few times: 8 MB, a part of the shared cache."""

BLOCK = 2**22
"""Elements of any other temporary: 32 MB. Larger ones take more memory and save no more calls."""

LARGE_BLOCK = 2**24
"""Elements of the operands and results of large matrix products, 128 MB: products gain from size
for longer than sums do."""

MOST_TABULATED = 2**28
"""Entries of a potential that is written out to a table, 2 GB. More is refused with an error that
names the potential, as it would end in a killed process."""

MOST_DIMS = 60
"""Variables of a dense table. NumPy and torch stop at 64 dims, and a few are needed for batches."""

SYMBOL_BLOCK = 2**26
"""Elements of the matrices of all symbols of a hidden Markov model of low rank, 512 MB: beyond it
vectors are used, one step after the other, which needs no such matrices."""

PIECE = 2**14
"""Characters of a file, rows of a table, or syndromes that are worked on at a time. It bounds
temporaries to some MB; calls are no longer seen at this size."""

SEQUENCES = 16
"""Sequences of a Gaussian process in memory at a time, where nothing else is asked for. More give a
gradient of less variance for each step, and take memory in proportion."""

STORED_TERMS = 2**12
"""Terms of sums in logs that are stored for the gradient. More are computed again on the way back:
twice the work instead of memory in proportion."""

CACHED_EDGES = 50_000
"""Edges of a model whose orders are cached for the next one of its shape. To compute them takes 0.1
s there; caches of larger models would hold memory for models that seldom come twice."""

LISTED_ARITY = 100
"""Variables of the widest factor up to which layered decoding peels a graph: the scopes of wider
ones would have to be listed, in Python."""

INDEXED = 4096
"""Entries of a result up to which plain indexing is as fast as flat indices (`tuning.py`)."""

LISTED = 64
"""Numbers up to which a list of Python gives the least one as fast as torch."""

EVIDENCE_KEYS = 64
"""Variables with evidence from which on they are looked up together and not one by one
(`tuning.py`)."""

GROUPED_FACTORS = 64
"""Factors of a block up to which Python groups them by shape as fast as tensors do
(`tuning.py`)."""

SMALL_TABLE = 16
"""Entries of a logical factor up to which its table is at least as fast as its own messages."""

CLASS_WORDS = 256
"""Words of a class from which on look-ahead multiplies matrices for it; fewer words are added one
by one."""

NOISY_ALTERNATIVES = 256
"""Alternatives of a draw up to which noise (Gumbel) is faster than inverting the running sum
(`tuning.py`)."""

OPERATIONS_PER_SECOND = 3e8
"""Multiply-adds per second of contractions and messages, over steps of all sizes (`tuning.py`). Too
high a rate promises answers in time that come late; too low a one refuses what would fit."""

VECTOR_OPERATIONS, VECTOR_SHARE = 2.5e9, 32
"""Multiply-adds per second of a large table with vectors, which are together smaller by so many
times; on tables of 1,000 to 10,000 states, exponentials included."""

STRUCTURE_CALL, STRUCTURE_ENTRY, STRUCTURE_OPERATIONS = 3e-4, 3e-8, 5e9
"""Seconds of a structure's marginals by compiled code: of the call, for each entry of its unary
potentials, and multiply-adds per second. On chains of 5 to 3,000 states and grammars of 30 and 90
symbols, they add up to 0.5 to 5 times the time taken."""

CLUSTER_ENTRIES_PER_SECOND = 1.5e8
"""Entries of cluster tables per second of join-graph messages; lower than the rate above, as each
is read and written in several passes."""

SECONDS_PER_GROUP = 1e-4
"""Seconds of the calls for one batched group of alike steps, whatever its size: why many small
steps cost more than their operations (`tuning.py`)."""

SECONDS_PER_CALL = 5e-6
"""Seconds of a call into torch, or of a launch on a GPU."""

SECONDS_PER_FACTOR = 1e-4
"""Seconds of a pass of mini-buckets for each variable and factor, measured on models of 100,000 and
of 200,000."""

CHAINED_SLOT = 3.0
"""Operations for each slot of a factor that chains of changes read."""

SECONDS_PER_EDGE, SECONDS_PER_ORDERED = 1e-5, 1e-6
"""Seconds to find an order of decoding, for each edge, rounded up so that decoding does not begin
what it cannot end; the same by compiled code."""

QUIET_SECONDS = 2.0
"""Seconds without a step after which work is reported by its name. It is for people: shorter ones
flicker."""

SECONDS_PER_LOOK = 2e-5
"""Seconds of a step of a greedy order, which stands for a look at a clock that counts work and not
time."""

MESSAGE_ENTRY, AUTOMATON_SLOT, AUTOMATON_ENTRY, CLUSTER_ENTRY = 5.0, 6e4, 30.0, 6.0
"""Operations for each entry of a message, beside those of tables; for each slot of an automaton,
however many factors there are, and each entry of its messages; of a cluster for each separator."""

SWEPT_TABLE, SWEPT_ENTRIES, SWEPT_CELL, SWEPT_STEP = 2**10, 2**14, 0.3, (0.7, 12.0)
"""Entries of a table of three variables or more up to which compiled code passes its messages;
entries of all messages that are worth a thread of a sweep; operations of a sweep of maxima for each
entry of a table, and each slot; and, for maxima and for sums, for each step of an automaton, at
each slot of each factor. Sums are counted above what they take (1.5): those that do not converge
end sooner."""

LOOK_OPERATIONS = 1e8
"""Operations of messages between two looks for Ctrl-C: some tens of milliseconds, which nobody
notices, while a look costs nothing beside them."""

ANNEALING_VISIT, SEARCH_VISIT = 600.0, 6e3
"""Operations of a visit of a node by annealing of orders, and of a variable, or a factor of it, by
all chains of a search."""

LARGE_IN_SERIES = 32
"""States of a variable from which on the product of three tables takes longer than the calls of a
group, so that leaves are eliminated first and not together."""

EASY_ENTRIES = 2e7
"""Entries of all tables of an order that needs no better one: they are summed in a fraction of a
second, and a search would take longer than it saves."""

LITTLE_WORK, LITTLE_SWEEP = 3e6, 2**14
"""Multiply-adds that take no longer than the overhead of an answer; and places and ways visited
that take no longer than the overhead of a masked sweep, some milliseconds. Choices between methods
below these sizes are not worth a thought."""

# Limits of memory.
MOST_DENSE, MOST_DECIDED, MOST_ENUMERATED = 2**30, 2**16, 2**20
"""Entries of a low-rank table that is written out (8 GB); configurations of a projected clause that
are decided one by one; and those of a structure or of a graph that are written out or enumerated.
Beyond them an error names another way."""
MOST_OBSERVABLES, OPEN_CHECKS = 20, 34
"""Observables of a parity model, of which all cosets are listed, a million; and open checks of its
sweep, 2^34 masses, beyond which no machine of ours has the memory."""
SIMULATED_SHOTS, SIMULATED_WORK = (100, 5000), 5e8
"""The least and the most shots by which a decoder measures its confidence where it was not told how
many, and errors times states of all of them: about ten seconds. More shots know the confidence
better, with an error that falls with their square root."""
AVAILABLE_SHARE, SMALL_BYTES, LITTLE_BYTES, COUNTER_BYTES = 0.6, 2.0**24, 2**28, 64e6
"""Part of the memory available that a plan takes by default, the rest being for what is not
predicted; bytes that are taken whatever the budget; bytes that any machine has, below which memory
is not even looked up; and bytes that a process that counts takes for itself."""
MOST_MASKS = 2**30
"""Bits, one for each tensor and variable of a component, up to which its order is annealed:
annealing keeps sets as masks, which take so much memory."""
BRANCHED_CELLS, CLUSTER_BITS = 1e8, 27.0
"""Entries of all tables of an order beyond which circuits do not branch by it, as the order
promises nothing then; and log2 of the largest table of a cluster that is tried, 1 GB."""
D4_BYTES, NNF_BYTES, COUNTER_LOOK = 2e9, 12.0, 0.5
"""Bytes that d4 reserves and does not use, by which its limit is raised; bytes of a circuit for
each character of its text; and seconds between looks at the memory that a counter uses."""
MOST_SHAPES, SHAPE_TEXT = 2**14, 700
"""Shapes of tables in a file, and bytes of text per shape beyond them. A block takes 4 kB, so a
short file of many shapes would take a thousand times its size."""
COUNTED_STATES = 32
"""States of a chain above which its expected transitions are products of messages; below, compiled
rules sum them as they go."""

# Bytes, from which memory is predicted.
BOTH_WAYS, UPWARDS_BYTES, STORED_ELEMENT = 2.5, 1.4, 4.0
"""Memory of marginals, and of log Z, relative to the tables of the upward pass: those of the
downward pass, and temporaries. The last is the weight of a stored element against an operation, in
the search for an order whose tables exceed the memory."""
STRUCTURE_COPIES = 4.0, 8.0
"""Copies of the unary potentials of a structure that log Z takes, and that marginals take."""
GATHERED, STEP_BYTES = 0.5, 48.0
"""Part of a group's small tables that steps which run as one copy at a time; and bytes of the
numbers of a factor or a step in Python."""
BUCKET_PART, BUCKET_BYTES = 1500.0, 24.0
"""Bytes of a pass of mini-buckets for each variable and factor, and each entry of its tables."""
CLUSTER_BYTES, PIN_BYTES, MOVE_BYTES, SUM_BYTES = 16, 32.0, 4.0, 28.0
"""Bytes of an entry of a cluster with its belief, of the tables of a move of pins, of those of a
move of a search with messages, and of the largest table of a sum."""
SWEPT_PAIR_BYTES, SWEPT_BYTES = 96.0, 24.0
"""Bytes of tree-reweighted messages for each pair, and each entry of its two messages."""
MEMBER_VARIABLE, MEMBER_EXTENDED, MEMBER_STEP = 16.0, 6.0, 64.0
"""Bytes of a member for each variable while its population grows, how many times that for each
state that it is extended by, and bytes of a member for each variable where all steps are kept."""
WRITTEN_NUMBER, PLAIN_NUMBER, ROW_STATE = 900.0, 120.0, 24.0
"""Bytes for each number written by a command, from the evidence to the text, with names and
without, on 60,000 rows of eight variables as JSON and on a million states; and for each state of a
row as it is read, given and kept."""

FITTED_ENTRY = 128.0
"""Bytes for each entry of a table while it is fitted, with its counts and their temporaries: 76 to
128 on networks of 21 and 23 parents, without gaps in the rows and with them."""

# Items that are worked on at a time.
COUNTED_ROWS, LEARNED_ROWS, LEARNED_SEQUENCES, DECODED_TOKENS = 2**16, 4096, 8, 4096
"""Rows that are counted at a time, 20 MB for 37 variables; rows whose log Z is computed together by
default; the fewest sequences of a batch; and tokens that are decoded at a time without gradients.
More take memory in proportion, fewer spend their time in calls."""
NAMES_PIECE, HEADERS, UNPACKED = 2**12, 2**9, 2**20
"""Names hashed, headers of a file read, and bytes of an archive unpacked at a time; they bound
temporaries as `PIECE` does."""
PATH_PARTS = 8
"""Blocks of a chain's draws with gradients, of which one is in memory."""

# Sizes from which another way is faster, or a smaller one enough.
COMPARED_STATES, TABLED_CLAUSE = 64, 6
"""States of automata that are compared by value, so that equal ones share a block; and literals of
a clause that is a table, while longer ones are automata."""
LISTED_VARIABLES, LISTED_NAMES, SLOW_NAMES = 2**10, 2**12, 2**5
"""Variables that are kept as objects once made, a third of a MB; names of their states, half a MB;
and names of one variable, from which on they are slow to make. What is not kept is made again on
each access."""
FEW_NAMES = 2**3
"""Names left in a look-up by hashes that Python finds one by one."""
ERROR_STATES, WARNING_STATES, SUMMED_RULES = 2048, 256, 2**12
"""States of each side whose errors under features are measured, and for a warning; and rules that
errors are summed over. Of more a random sample stands for all: errors are then estimates."""
ROW_MEAN, ROWS_TRIED = 2.0**20, 16
"""Mean cells of a row of evidence from which products of whole batches are as fast as rows by
themselves (`bnlearn.py --rows`); and rows whose work is measured for a plan: so many with most
gaps, and as many of all."""
RANKED_ENTRIES, RANKED_GAIN = 2**18, 4
"""Entries of all low-rank factors as tables, and their ratio to those of both sides of the factors,
from which on sums over ranks repay the variables that they add."""
SMALL_CELLS, SMALL_FACTORS = 2**16, 2**10
"""Cells of all buckets of a small graph, and its factors, up to which the auction is skipped:
compiled code answers in half a millisecond, while to recognise a chain and to answer for it takes
1.3 milliseconds at least (`small.py`)."""
BUCKETS_CALL, BUCKETS_VARIABLE, BUCKETS_CELL = 2e-5, 4e-7, 5e-9
"""Seconds of log Z and marginals by buckets: of any call, for each variable and for each cell
(`small.py`)."""
BUCKET_LEVELS = 16
"""Levels of buckets up to which torch takes second derivatives of log Z in less time than a plan
and a contraction take; alarm has 9, a chain of 100 variables with 10 states 51."""
SOLVED_TREES, PATH_NODES, PAIRED_COLUMNS = 2000, 600, 8
"""Variables whose spanning trees are counted by a linear solve, cubic in them; nodes of a picture
that is laid out by shortest paths, quadratic; and columns of which all products are made at once
for Gaussian emissions."""
DENSE_RULES = 200.0
"""Entries of a table of rules for each rule below which it is faster than a list, from measurements
of 20 to 200 symbols."""
ELIMINATED_ITEMS = 8
"""Sentences from which on the best trees of all of them at once are faster than one by one."""
RECOGNISED_CHECKS, RECOGNISED_WORK = 20, 1e9
"""Open checks of a graph that is answered as a parity model, or open rows and columns as a
matching, whose tables take 64 MB; and multiply-adds of a parity sweep, about a second. Beyond them
other routes are asked first."""
MOST_MATCHING_BITS, KEPT_MATCHING_BITS = 16, 9
"""Rows and columns that are open at once in the widest sweep over matchings, 2^16 sets; and in the
widest one whose steps are kept for other models (`matching.py`)."""
MATCHING_PART, RECOGNISED_MATCHING = 1 << 22, 3e7
"""Log-values of a sweep over matchings that are held together for gradients, about 100 MB, more
being computed again; and those of a graph that is answered as a matching, about three seconds."""
QUICK_MATCHING = 64
"""Log-values of a sweep over matchings below which no other order is tried, as trying takes
longer."""
FEWEST_SITES, MOST_PADDED = 3, 2
"""Variables of a chain in a graph, fewer being contracted as fast; and most sites, padding
included, for each variable of several chains."""
ROWS_BESIDE = 8
"""Rows of evidence that are solved side by side where they lack the same variables: `kLanes` of
`rows.h`, which must be the same number."""
MOST_OFFSETS = 16
"""Offsets of a band that have a rule each, which takes a fifth of the time of looking them up."""

# Rates beside those above.
STEP_LAUNCHES, MACHINE_STEP, MACHINE_PRODUCT, HOST_COPIES = 7, 1e-7, 1e-10, 2e-4
"""Launches on a GPU of a step of a chain's recursion; seconds of a step of an item on the compiled
machine, of each multiply-add there, and of copies between a GPU and the host. These decide between
both, and are estimates that were not measured on a GPU."""
ASSUMED_SWEEPS, CLUSTER_PASSES, DAMPED_SWEEP = 20, 3, 1.2
"""Sweeps that clusters are assumed to need, passes over a cluster's table for each link and sweep,
and the cost of a damped sweep, in sweeps. They predict time; sweeps end by their residual."""
MESSAGES_BEGIN, LAYER_BEGINS, POTENTIALS_BEGIN = 1e5, 4e4, 6e5
"""Overhead in operations of the messages of all factors of a kernel, of those of a layer, and of
potentials that answer messages themselves."""
MOVE_VARIABLE, MOVE_ENTRY = (1e4, 1.5e3), 2.0
"""Operations of a variable that a move of a search eliminates, by Python and by compiled code, and
of each entry of its table."""
SWEPT_MAXIMA, SWEPT_SUMS = (5.0, 0.2), (18.0, 1.2)
"""Operations of a compiled sweep of tree-reweighted messages for each pair, and each entry of its
table; of 2 to 64 states."""
COMPILED_BOUND_MAXIMA, COMPILED_BOUND_SUMS = (40.0, 1.5), (60.0, 4.0)
"""Operations of a bound by tree-reweighted messages for each pair, and each entry of its table, in
compiled code: of maxima, and of sums."""
LAID_OUT_ENTRY = 20.0
"""Operations of laying out an entry of a table for a search, a table for each factor: the time of
several copies of large arrays."""
CUT_VISIT, CUT_PAIR = 1.5, 60.0
"""Operations of a minimum cut for each visit of an arc, and for each pair while it is laid out."""
BOUND_PAIR, BOUND_ENTRY, MEAN_FIELD_ENTRY = 60.0, 8.0, 15.0
"""Operations of a bound by these messages for each pair, and each entry of its table; of a sweep
and a bound of mean field for each entry; in NumPy."""
MEMBERS_VARIABLE, MEMBER_STATE = 5e4, 100.0
"""Operations of a population for a variable, and for each member extended by one of its states."""
BUCKET, BUCKET_ENTRY = 3e4, 10.0
"""Operations of a mini-bucket, and of each entry of its table."""
ROW_CELLS_PER_SECOND, ROW_VARIABLE = 1e8, 100.0
"""Cells of all passes over a row per second, and what a missing variable costs besides, in cells;
`tests/benchmarks/bnlearn.py --rows`."""
SUMMED_PER_SECOND = 2e7, 1e8
"""Entries that a search sums per second, in NumPy and in compiled code."""


def per_block(each: int, block: int = BLOCK) -> int:
    """Number of items of ``each`` elements that a block holds; at least one."""
    return max(1, block // max(1, each))
