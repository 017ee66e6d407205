"""Parts of a time budget, sizes of searches and of populations, and when each of them ends.

Parts are of the seconds given, or of the 0.9 of them that `Auto` keeps for approximate answers
(`Task.allowance`), unless an entry says otherwise. They decide how good an approximate
answer is after so many seconds, and were chosen by the scores of docs/benchmarks.md on models of
UAI-2014 and UAI-2022. `tests/benchmarks/uai.py` (sums) and `tests/benchmarks/uai2022.py` (sums,
modes, marginal modes) measure them again: compare the scores before and after a change. Memory is
not divided: each route may use all of it, as its file in `schedulers/routes/` says.
"""

# Clocks and plans.
PLANNING, LEAST_PLANNING, SEARCHING = 0.2, 0.1, 0.12
"""Part in which planning and preparation end, seconds that they may take whatever the budget, and
part in which the search for an order ends. A longer search finds cheaper orders, and leaves less
time to carry them out."""
LEAST_LEFT = 0.1
"""Part of the seconds that every answer has at least, whatever others took: a late question is not
refused for an early one."""
EARLY, HOPELESS, LEAST_DONE = 0.25, 2.0, 1e-3
"""Part of the seconds before which no end is foreseen, as predictions are poor then; predicted
parts at which exact inference or a pass of mini-buckets is given up; and the least part of the work
that a prediction starts from."""
UPWARDS, UPWARDS_ENDING = 0.6, 0.8
"""Parts in which an upward pass must end, and in which it must if the products that are done say
that it will. Its share is predicted as a third: twice that is allowed before the rest is left for
approximate answers, which are much worse than a pass that is nearly done."""
SLICES_FORESEEN, SLICES_LATE = 0.1, 1.2
"""Part after which the time of all slices is foreseen from those done, and the parts of the budget
at which they are given up."""
PATH_SECONDS, NEVER = 10.0, 30 * 86_400.0
"""Seconds after which the search for a path ends, sooner where contraction is quick; and seconds
that nobody waits for, a month, beyond which no prediction is compared."""
PROBING, SLICING = 0.05, 0.02
"""Parts in which hard zeros are propagated, and in which a choice of slices ends."""
PROBED_ZEROS, PROBED_LOOKS, PROBED_SECONDS = 500_000, 3_000_000, 60.0
"""Impossible configurations that are examined at most; visits of them in all assumptions together,
a second or two; and the budget in seconds below which both are smaller in proportion. Fewer visits
leave states that are impossible, which costs time and no exactness."""

# Searches for an order.
HOPELESS_BITS, GREEDY_VARIABLES, EASY_SECONDS = 64, 100, 0.01
"""Log2 of the operations of every greedy order beyond which the search gives up: annealing has
gained up to 15 bits on the hardest UAI models (linkage). Variables up to which greedy orders ignore
the clock, and seconds of a plan below which it is not improved: so it is alike on every machine."""
BEFORE_ORDERS = 4.0
"""Time of the passes over a large component between its primal graph and its first elimination
order, relative to the time that its scopes and primal graph took: 3 to 5 on grids of 4 * 10^4."""
FIRST_SWEEPS, SWEEP_GROWTH, MOST_SWEEPS, LONG_RUN = 50, 1.5, 20_000, 500
"""Sweeps of the first annealing run of a component, their growth from run to run, those of the
longest run, and those from which annealing starts hotter, every other run."""
STALE_RUNS, RUN_GAIN, FRESH_EVERY = 8, 0.98, 4
"""Runs in a row without a gain that end the search in a component, the relative cost that counts as
a gain, and runs per one that starts from a new order, not from the best tree."""

# Auto: the order of routes.
MOST_PLANNED, MOST_JOINED = 50_000, 8_000
"""Joint factors of a graph with cycles up to which an exact order is sought, and up to which
clusters are; larger graphs get messages between factors."""
APPROXIMATE_SECONDS, APPROXIMATE_RUNS, RUN_SWEEPS = 2.0, 4.0, 100
"""Counted seconds for approximate answers where the user set no limit: at least so many, or those
of so many runs of plain messages of so many sweeps, whichever is more."""
IMPROVING_SECONDS, REPAIR_SECONDS = 2.0, 0.3
"""Seconds to improve on an answer that is there, where the user set no limit: for bounds on log Z
beside messages, and for repairs of the modes of all items."""
PLAIN_WITH_ZEROS = 0.5
"""Part for plain messages before others are tried, where some scores are hard zeros."""
SURE = 0.1
"""Part of the budget below which a prediction for exact inference is relied on, so that nothing
else is prepared."""
PATIENCE, LEAST_PATIENCE = 0.8, (0.25, 0.01)
"""Part of the budget without a gain after which a search for modes ends. Where the user set no
limit it ends after as long without a gain as everything took up to the last one (`Patience`), and
at least so many counted seconds: from messages that have not settled, and from others."""
BOUNDED_PER_SECOND = 400
"""Factors per second of the budget for which modes are bounded in any case."""
FORWARD_TRIED, FORWARD_SURE = 2.0, 0.25
"""Predicted time of log Z alone, in parts: where it is tried, and where it surely fits. Products
of large tables take a fraction of the prediction, and a pass that is too slow ends."""
COUNTED, MESSAGE_RUNS = 0.4, 5.0
"""Part that a count may take, as messages need the rest where it fails; and at most so many times
the runs above, if another program can count after them."""
JOINED = 0.24
"""Part that messages between clusters take; the rest is for messages between factors, and for
estimates."""
ESTIMATED_ITEMS = 8
"""Batch items, at most, whose log Z is estimated one after the other."""
ADVISED, LONGEST_ADVISED = 1.25, 3600.0
"""Advised seconds over those predicted, as another plan may be found under a clock; and seconds of
exact inference above which it is not advised."""
COUNTS_CONSTRAINTS = 0.75
"""Part of the factors that are constraints alone, from which on log Z is counted."""
ROWS_CIRCUIT, CIRCUIT_FIRST, CIRCUIT_ORDER = 0.5, 0.2, 0.25
"""Parts of the time of a count in which a circuit for all rows is compiled, and one for log Z
before it is counted; and of the time of a circuit in which an order is sought."""
CIRCUIT_BEFORE_D4, D4_FIRST = 0.05, 0.6
"""The same part before d4, which compiles in the time of a count; and that of d4 before pyganak."""

# Auto and Search: log Z and modes among several methods.
EXACT_SUM, DRAWN_SUM, DRAWN_TRIAL, DRAWN_LEAST = 0.5, 0.7, 0.1, 0.3
"""Parts for exact log Z; of the rest, for estimates; of that, after which estimates are given up if
marginals are asked for, too; and the part that must be left for these."""
PLAIN_MODES, PLAIN_PAIRS, MODES, MARGINAL_MODES = 0.4, 0.1, 0.8, 0.9
"""Parts of the time for a mode that plain messages have without hard zeros; the same after
tree-reweighted messages of pairs; and parts of all time for modes, and for marginal modes."""
MODE_START, HARD_MODE_START, SOFT_MODE_START, MARGINAL_START = 0.4, 0.2, 0.05, 0.1
"""Parts in which messages give the start of a search for a mode; the same of those that sum, which
are another start where tables have hard zeros; of damped ones where plain ones, without these, are
the better start; and for a marginal mode. A better start saves moves, and leaves time for fewer."""
MODE_BOUNDS, AUTO_BOUNDS, BOUNDS_BYTES = 0.1, 0.05, 1e9
"""Parts for a bound on the scores of modes, by `Search` and by `Auto`; and bytes for it, at most. A
bound that meets the score proves the mode and ends the search."""
REWEIGHTED, REWEIGHTED_NEAR, REWEIGHTED_ALONE, NEAR_PROOF = 0.25, 0.75, 0.9, 0.02
"""Parts of the time for a mode in which tree-reweighted messages pass, where a model is pairwise:
in general; where the gap between bound and score is at most so large, relative to the score; and
where laying out the tables for a search would take what is left."""
SEARCH_LAYOUT = 0.5
"""Part of the rest of that time that this layout may take; else there is no search."""
PLAIN_SWEEPS = 4.0
"""Times of a bound by these messages that plain messages must have to give a start beside them:
their first sweep takes that long on tables of many states."""
SUM_BOUNDS = 0.1
"""Part for bounds on log Z by tree-reweighted messages and mean field."""
SEARCH_SUMS, PROPOSAL_MESSAGES = 0.4, 0.1
"""Parts of the messages' time for those that sum, and for those that a proposal asks for."""
FIRST_LATE = 1.0
"""Seconds by which the first population of a proposal may be late."""

# Messages and their decoding.
LOOPY_MAXIMA, LOOPY_DECODING, LOOPY_REPAIR = 0.6, 0.5, 0.5
"""Parts for the messages behind a mode; of the rest, for ties; of the rest, to make it possible."""
REPAIR_PATIENCE = 0.25
"""Part of the seconds for repairs of modes without a gain after which these end."""
UNDAMPED_SWEEPS, MODE_SWEEPS = 10, 200
"""Sweeps after which messages of logical factors are damped, unless told otherwise, and for which
the states of a possible mode must last; and those for a mode, if a fifth of all are not more."""
ASCENTS, DECODING_SWEEPS, SETTLING_SWEEPS = 10, 0.8, 0.6
"""Most passes of coordinate ascent; parts of the sweeps that decoding takes in all, and in which
oscillating messages may settle, damped."""
CHAIN_SWEEPS = 200
"""Sweeps that chains of changes may read as much as."""
PEELED_LAYERS = 2
"""Most layers of the peeling order, relative to the outward order: more of them come from a core
in which every variable has many factors, where peeling promises nothing."""
CLUSTERS_SETUP = 0.5
"""Part that the tables of clusters may take at most."""
CLUSTERS_SENT, CLUSTERS_LEAST, CLUSTERS_READ = 0.7, 0.2, 5.0
"""Parts after which answers are read off clusters, and that messages have at least; and the time
to read them off, in times of a first look at all beliefs."""
CLUSTERS_PATIENCE, CLUSTERS_DAMPING, CLUSTERS_HOPELESS = 12, 0.8, 0.05
"""Sweeps in which the residual should shrink by two thirds, or damping grows; most damping; and
the residual above which the end is not waited for then."""

CUT = 0.5
"""Part of the time for tree-reweighted messages that a minimum cut may take: after it no state is
decided so."""
SWEEPS, SWEPT_GAIN, SWEPT_CLOSED, FIRST_REWEIGHTED = 15, 1e-7, 0.01, 32
"""Tree-reweighted sweeps, an odd number, between two bounds; the gain of these below which sweeps
end, relative to a bound; the part of the gap to a score that is a gain in any case; and the first
sweeps for maxima, which have the time of those near a proof: where tables are large a search would
begin from a poor configuration without them."""
MEAN_FIELD_SWEEPS, MEAN_FIELD_GAIN = 30, 1e-6
"""Sweeps of mean field at most, and the gain of one, relative to a bound, below which they end."""

# Mini-buckets, their populations and bounds.
PASS_GROWTH, POPULATION_CELLS, BOUND_CELLS = 8.0, 2.0**10, 2.0**12
"""Growth of the largest table from pass to pass; its entries in the first pass, for populations
and for bounds."""
POPULATION_ORDER, BOUND_ORDER = 0.15, 0.3
"""Parts in which orders are compared."""
ORDER_CELLS, ORDER_NOISE, ORDERS_STALE = 2.0**14, (0.0, 0.1, 0.3, 1.0), 30
"""Entries of the tables by which orders are compared; noise of their greedy choices, relative, of
which small ones keep to the best order and large ones leave it; and orders in a row without a gain
after which no more are tried."""
POPULATION_PASSES, BOUND_LATE = 0.45, 10.0
"""Part in which passes of populations end; limit of the first pass of a bound, in its parts."""
FIRST_MEMBERS, MOST_MEMBERS, ROUND, PINS_MADE = 500, 2**20, 0.3, 0.4
"""Members of the first populations, and at most; parts of the rest for the populations of a round,
and for pins."""
LED_STARTS, FEW_PINS = 6, 16
"""Draws from independent starts that must confirm populations; pins, whatever their size."""
MEANS_SUMS, MEANS_GROWTH = 0.6, 1.5
"""Part for log Z, the rest being for means; growth of populations that is worth a new start."""

# Searches: starts, annealing, moves.
JOINT_MODE, DRAWN_STARTS, BOUNDED_STARTS = 0.35, 0.15, 0.15
"""Parts for a search for a mode of all variables before that of a marginal mode, for draws, and
for bounds that give initial states."""
STARTS, TRIED_STARTS, START_LATE = 3, 10, 0.1
"""Starts of a search, configurations of each kind whose sums are estimated, and the part by which
the population of the first of them may be late."""
START_CELLS, BEAM = 2.0**15, 300
"""Entries of a table of these bounds, and configurations in a beam."""
ANNEALED_CHAINS, ANNEALED_SWEEPS, ANNEALED_LEAST = 64, 24, 6
"""Parallel chains, sweeps of each over all variables, and the fewest sweeps."""
ANNEALED_LOOK, ANNEALED_RANGE = 100, 3.0
"""Variables between two looks at the clock; range (nats) of a factor at the highest temperature."""
PIN_CELLS, PIN_MOVES, PIN_DRAWS, PIN_MAXIMA = 2048.0, 4, 8, 2
"""Entries of the largest table of a move of pins, or a few states squared; moves at the model's
temperature, draws of each of them, and moves to a mode."""
MOST_PINS, PIN_MASS = 64, 0.1
"""Configurations that are pinned at most, and the part of Z that need not be found twice."""
MOVE_CELLS, COMPILED_CELLS, MOST_MOVE_CELLS = 2048, 16, 2**22
"""Entries of the largest table of a move to begin with, or a few states squared; so many times that
in compiled code, where finding an order takes longer; and at most."""
SUM_ONCE, MOVE_LONG, PATIENT_MOVE = 0.1, 0.03, 0.25
"""Parts that one sum takes at most, as predicted, and one move: tables grow up to there; and part
of the seconds without a gain after which a search ends that a move takes at most, so that several
are tried before."""
PART_VARIABLES = 8000
"""Variables of a part, at most: moves of a larger one take long."""
STALE_MOVES, TIRED_MOVES, JUDGED_MOVES = 8, 24, 4
"""Moves without a gain after which tables grow, or some fixed variables are changed; after which a
search from one start ends; and after such a change until its outcome is judged."""
SHORT_SEARCH, STARTS_TRIED, SHORT_MOVES = 0.1, 0.6, 3
"""Parts of a search from one start, and in which there are other starts, before the best ends; and
the fewest moves of such a search for which a mode without hard zeros has other starts."""
KEPT_ORDERS, REUSED_ORDER = 16, 0.8
"""Orders in the cache, and how often one is reused: finding one takes as long as carrying it out,
and its fixed variables have other states by then."""
GREEDY_SUMS, LOCAL_SUMS, LOCAL_VARIABLES = 0.5, 0.7, (10, 30, 100)
"""Probabilities to eliminate summed variables in a greedy order, and not in the narrowest, and that
a move with sums is around one variable; numbers of variables around it."""
MOVE_ORDERS, ORDER_SECONDS, KEPT_SUMS = 5, 0.5, 4096
"""Orders of the summed variables of which the narrowest is taken, seconds that one may take
whatever the deadline, and sums of a component that are kept."""

# The command line and randomized pruning.
WIDE_SWEEPS, WIDE_WORK, WIDE_MOVES = 0.25, 4.0, 3.0
"""Fraction of the sweeps that are wide, twice that while averages have not begun; their most work,
relative to another sweep; and known configurations that one moves between, on average."""
KEPT_DRAWS = 1000
"""Draws that a run keeps, of all sweeps: more take memory in proportion."""
COMMAND_LATE, COMMAND_MORE = 1.2, 1.0
"""Parts, and seconds beside them for small models, after which a command is stopped."""
COMMAND_OWED, COMMAND_WAITS = 0.1, 3.0
"""Part of these seconds that others must have had of the machine for a command without an answer
to go on, and how many times the seconds it may take then."""
