"""The structures of the library, and some others, as recurrences."""

from rdpgraph import Input, Lengths
from tests.recurrences.binding import Recurrence


class Chain(Recurrence):
    sites, transition, lengths = Input("T N"), Input("N N"), Lengths("T")
    rules = """
        a[0, n] += sites[0, n]
        a[t, n] += a[t-1, m] * transition[m, n] * sites[t, n]
        goal    += a[lengths-1, n]
    """


class Steps(Chain):
    """A chain with a table for each step."""

    transition = Input("T-1 N N")
    rules = """
        a[0, n] += sites[0, n]
        a[t, n] += a[t-1, m] * transition[t-1, m, n] * sites[t, n]
        goal    += a[lengths-1, n]
    """


class Squares(Recurrence):
    """A chain whose states are pairs of labels."""

    sites, transition = Input("T A B"), Input("A B A B")
    lengths = Lengths("T")
    rules = """
        a[0, i, b] += sites[0, i, b]
        a[t, i, b] += a[t-1, j, c] * transition[j, c, i, b] * sites[t, i, b]
        goal       += a[lengths-1, i, b]
    """


class LowRankChain(Recurrence):
    sites, left, right, lengths = Input("T N"), Input("N R"), Input("R N"), Lengths("T")
    rules = """
        a[0, n] += sites[0, n]
        a[t, n] += k[t-1, r] * right[r, n] * sites[t, n]
        k[t, r] += a[t, m] * left[m, r]
        goal    += a[lengths-1, n]
    """


class BackwardChain(Chain):
    """A chain from its end to its start."""

    rules = """
        b[t, n] += sites[t, n]   if t == T - 1
        b[t, m] += sites[t, m] * transition[m, n] * b[t+1, n]
        goal    += b[0, n]
    """


class Segments(Recurrence):
    """Segments [last position, duration - 1] with labels."""

    sites, transition, lengths = Input("T D N"), Input("N N"), Lengths("T")
    rules = """
        a[t, n] += sites[t, t, n]
        a[t, n] += a[t-d-1, m] * transition[m, n] * sites[t, d, n]
        goal    += a[lengths-1, n]
    """


class Alignment(Recurrence):
    """Two sequences, by moves in both, in the first and in the second."""

    sites, first, second = Input("I+1 J+1 3"), Lengths("I"), Lengths("J")
    rules = """
        a[0, 0] += 1
        a[i, j] += a[i-1, j-1] * sites[i, j, 0]
                 + a[i-1, j] * sites[i, j, 1]
                 + a[i, j-1] * sites[i, j, 2]
        goal    += a[first, second]
    """


class Ctc(Recurrence):
    """Frames [class], and a spelling with blanks around its labels."""

    sites, spelt, skips = Input("T V"), Input("U", whole=True), Input("U")
    frames, ends = Lengths("T"), Lengths("U")
    rules = """
        e[0, 0] += 1
        e[0, 1] += 1
        e[t, u] += a[t-1, u] + a[t-1, u-1] + a[t-1, u-2] * skips[u]
        a[t, u] += e[t, u] * sites[t, spelt[u]]
        goal    += a[frames-1, ends-1] + a[frames-1, ends-2]
    """


class Trees(Recurrence):
    """Spans [first, last] with labels, by rules [whole, left, right]."""

    sites, ruled, lengths = Input("T T N"), Input("N N N"), Lengths("T")
    rules = """
        b[i, j, a] += b[i, k, l] * b[k+1, j, r] * ruled[a, l, r] * sites[i, j, a]
        b[i, i, a] += sites[i, i, a]
        goal       += b[0, lengths-1, a]
    """


class Pcfg(Recurrence):
    """Rules of labels of spans and of words, in four parts, and a root."""

    terms, root, lengths = Input("T P"), Input("N"), Lengths("T")
    spans, before = Input("N N N"), Input("N P N")
    after, words = Input("N N P"), Input("N P P")
    rules = """
        b[i, j, a]   += b[i, k, l] * b[k+1, j, r] * spans[a, l, r]
        b[i, j, a]   += terms[i, p] * b[i+1, j, r] * before[a, p, r]
        b[i, j, a]   += b[i, j-1, l] * terms[j, p] * after[a, l, p]
        b[i, i+1, a] += terms[i, p] * terms[i+1, q] * words[a, p, q]
        goal         += b[0, lengths-1, a] * root[a]
    """

    @classmethod
    def of(cls, root, rules, terms, lengths=None):
        n = rules.shape[-3]
        return cls(
            terms, root, lengths, rules[..., :n, :n], rules[..., n:, :n], rules[..., :n, n:],
            rules[..., n:, n:],
        )  # fmt: skip


class WordLabels(Recurrence):
    """Trees over spans, of whose N + 2 labels words have the last two and wider spans the rest."""

    sites, ruled, lengths = Input("T T N+2"), Input("N N+2 N+2"), Lengths("T")
    rules = """
        s[i, i]    += sites[i, i, q+N]
        b[i, j, a] += b[i, k, l] * b[k+1, j, r] * ruled[a, l, r] * sites[i, j, a]
        b[i, j, a] += sites[i, i, p+N] * b[i+1, j, r] * ruled[a, p+N, r] * sites[i, j, a]
        b[i, j, a] += b[i, j-1, l] * sites[j, j, p+N] * ruled[a, l, p+N] * sites[i, j, a]
        b[i, j, a] += s[i, i] * s[j, j] * sites[i, j, a]   if j == i + 1 and a < N
        goal       += b[0, lengths-1, a]
    """


class ListedTrees(Recurrence):
    """Trees over spans by a list of rules, those of each label in a row of numbers."""

    sites, weights, lengths = Input("T T N"), Input("M"), Lengths("T")
    left, right = Input("M", whole=True), Input("M", whole=True)
    members = Input("N F", whole=True)
    rules = """
        m[i, j, e] += b[i, k, left[e]] * b[k+1, j, right[e]]
        b[i, j, a] += m[i, j, members[a, f]] * weights[members[a, f]] * sites[i, j, a]
        b[i, i, a] += sites[i, i, a]
        goal       += b[0, lengths-1, a]
    """


class GroupedTrees(ListedTrees):
    """The same, in which the numbers of a row are a loop."""

    rules = """
        x[i, j, e] += b[i, j, left[e]] * weights[e]
        m[i, j, e] += x[i, k, e] * b[k+1, j, right[e]]
        w[i, j, a] += m[i, j, members[a, f]]   if f >= 0
        b[i, j, a] += w[i, j, a] * sites[i, j, a]
        b[i, i, a] += sites[i, i, a]
        goal       += b[0, lengths-1, a]
    """


class LowRankTrees(Recurrence):
    """Trees over spans, by rules of R ranks."""

    sites, left, right, parent = Input("T T N"), Input("N R"), Input("N R"), Input("N R")
    lengths = Lengths("T")
    rules = """
        q[i, j, r] += x[i, k, r] * y[k+1, j, r]
        b[i, j, a] += q[i, j, r] * parent[a, r] * sites[i, j, a]
        b[i, i, a] += sites[i, i, a]
        x[i, j, r] += b[i, j, a] * left[a, r]
        y[i, j, r] += b[i, j, a] * right[a, r]
        goal       += b[0, lengths-1, a]
    """


class Projective(Recurrence):
    """Eisner's trees; sites [dependent, head + 1], the root, head 0, with one dependent."""

    sites, lengths = Input("T T+1"), Lengths("T")
    rules = """
        r[i, j] += R[i, k] * L[k+1, j] * sites[j, i+1]
        l[i, j] += R[i, k] * L[k+1, j] * sites[i, j+1]
        R[i, j] += r[i, k] * R[k, j]
        R[i, i] += 1                          if i < T
        L[i, j] += L[i, k] * l[k, j]
        L[i, i] += 1                          if i < T
        goal    += L[0, k] * sites[k, 0] * R[k, lengths-1]
    """


class Bitext(Recurrence):
    """Two sentences in brackets, straight or inverted, around pairs of words or one word alone."""

    pairs, first, second = Input("I J"), Input("I"), Input("J")
    rules = """
        b[i, j, k, l]     += b[i, m, k, n] * b[m, j, n, l] + b[i, m, n, l] * b[m, j, k, n]
        b[i, i+1, k, k+1] += pairs[i, k]
        b[i, i+1, k, k]   += first[i]    if k <= J
        b[i, i, k, k+1]   += second[k]   if i <= I
        goal              += b[0, I, 0, J]
    """


class Tagged(Recurrence):
    """A hidden Markov model on words, whose emissions are looked up."""

    start, transition, emission = Input("N"), Input("N N"), Input("N V")
    words, lengths = Input("T", whole=True), Lengths("T")
    rules = """
        a[0, n] += start[n] * emission[n, words[0]]
        a[t, n] += a[t-1, m] * transition[m, n] * emission[n, words[t]]
        goal    += a[lengths-1, n]
    """


class KeptChain(Recurrence):
    """A chain on K states that were kept of each site."""

    sites, transition = Input("T K"), Input("N N")
    states, lengths = Input("T K", whole=True), Lengths("T")
    rules = """
        a[0, n] += sites[0, n]
        a[t, n] += a[t-1, m] * transition[states[t-1, m], states[t, n]] * sites[t, n]
        goal    += a[lengths-1, n]
    """


class KeptSegments(Recurrence):
    """Segments [last position, duration - 1] on K labels kept of each."""

    sites, transition = Input("T D K"), Input("N N")
    states, lengths = Input("T D K", whole=True), Lengths("T")
    rules = """
        a[t, t, n] += sites[t, t, n]
        a[t, d, n] += a[t-d-1, c, m] * sites[t, d, n]
                      * transition[states[t-d-1, c, m], states[t, d, n]]
        goal       += a[lengths-1, d, n]
    """


class KeptTrees(Recurrence):
    """Trees over spans, each with K labels that were kept of it."""

    sites, ruled, lengths = Input("T T K"), Input("N N N"), Lengths("T")
    kept = Input("T T K", whole=True)
    rules = """
        b[i, j, a] += b[i, k, l] * b[k+1, j, r] * sites[i, j, a]
                      * ruled[kept[i, j, a], kept[i, k, l], kept[k+1, j, r]]
        b[i, i, a] += sites[i, i, a]
        goal       += b[0, lengths-1, a]
    """


class KeptSites(Recurrence):
    """A chain on K states that were kept of each site, all of whose scores are those of states."""

    sites, weights, transition = Input("T N"), Input("V N"), Input("D N N")
    states, words, kinds = Input("T K", whole=True), Input("T", whole=True), Input("T", whole=True)
    lengths = Lengths("T")
    rules = """
        a[0, n] += sites[0, states[0, n]] * weights[words[0], states[0, n]]
        a[t, n] += a[t-1, m] * transition[kinds[t], states[t-1, m], states[t, n]]
                   * sites[t, states[t, n]] * weights[words[t], states[t, n]]
        goal    += a[lengths-1, n]
    """


class Kinds(Recurrence):
    """A chain whose matrices are looked up: one for each kind of step."""

    sites, transition, lengths = Input("T N"), Input("D N N"), Lengths("T")
    kinds = Input("T", whole=True)
    rules = """
        a[0, n] += sites[0, n]
        a[t, n] += a[t-1, m] * transition[kinds[t], m, n] * sites[t, n]
        goal    += a[lengths-1, n]
    """


class Cells(Recurrence):
    """Paths through a grid, whose cells have one of some costs."""

    costs, kinds = Input("D"), Input("I J", whole=True)
    rules = """
        a[0, 0] += 1
        a[i, j] += (a[i-1, j] + a[i, j-1]) * costs[kinds[i, j]]
        goal    += a[I-1, J-1]
    """


class Brackets(Recurrence):
    """A bitext in brackets with labels, straight or inverted."""

    pairs, straight, inverted = Input("I J N"), Input("N N N"), Input("N N N")
    rules = """
        b[i, j, k, l, a]     += b[i, m, k, n, c] * b[m, j, n, l, d] * straight[a, c, d]
        b[i, j, k, l, a]     += b[i, m, n, l, c] * b[m, j, k, n, d] * inverted[a, c, d]
        b[i, i+1, k, k+1, a] += pairs[i, k, a]
        goal                 += b[0, I, 0, J, a]
    """


class Factorial(Recurrence):
    """Two chains side by side, with one observation of both."""

    first, second, seen = Input("N N"), Input("M M"), Input("T N M")
    rules = """
        a[0, n, m]    += seen[0, n, m]
        a[t, n, m]    += half[t, n, j] * second[j, m] * seen[t, n, m]
        half[t, n, j] += a[t-1, i, j] * first[i, n]
        goal          += a[T-1, n, m]
    """


class Together(Factorial):
    """Two chains side by side, in one rule."""

    rules = """
        a[0, n, m] += seen[0, n, m]
        a[t, n, m] += a[t-1, i, j] * first[i, n] * second[j, m] * seen[t, n, m]
        goal       += a[T-1, n, m]
    """


class Trigrams(Recurrence):
    """A chain whose transitions depend on two labels before."""

    sites, start, transition = Input("T N"), Input("N N"), Input("N N N")
    lengths = Lengths("T-1")
    rules = """
        a[0, m, n] += sites[0, m] * sites[1, n] * start[m, n]
        a[t, m, n] += a[t-1, l, m] * transition[l, m, n] * sites[t+1, n]   if t > 0
        goal       += a[lengths-1, m, n]
    """


class Automaton(Recurrence):
    """A chain whose labels move an automaton of M states."""

    sites, transition, moves = Input("T N"), Input("N N"), Input("M N M")
    lengths = Lengths("T")
    rules = """
        a[0, q, n] += sites[0, n] * moves[0, n, q]
        a[t, q, n] += a[t-1, p, m] * moves[p, n, q] * transition[m, n] * sites[t, n]
        goal       += a[lengths-1, q, n]
    """


class Joined(Recurrence):
    """Spans with a label at each end, joined by scores of the labels that meet."""

    sites, joins = Input("T N N"), Input("N N")
    rules = """
        b[i, j, a, c] += b[i, k, a, d] * b[k+1, j, e, c] * joins[d, e]
        b[i, i, a, c] += sites[i, a, c]
        goal          += b[0, T-1, a, a]
    """


class Uneven(Recurrence):
    """A variable that stands in dims of different sizes, of which the smaller counts."""

    sites, weights = Input("T N"), Input("M")
    rules = """
        a[t, n] += a[t-1, n] * sites[t, n] * weights[n]
        a[0, n] += sites[0, n] * weights[n]
        goal    += a[T-1, n]
    """


class Apart(Recurrence):
    """Two chains that know nothing of each other."""

    one, other, ends, more = Input("T N"), Input("S M"), Lengths("T"), Lengths("S")
    rules = """
        a[0, n] += one[0, n]
        a[t, n] += a[t-1, m] * one[t, n]
        b[0, n] += other[0, n]
        b[t, n] += b[t-1, m] * other[t, n]
        goal    += a[ends-1, n] * b[more-1, m]
    """


class Paths(Recurrence):
    """Paths through a grid whose cells have states, to the right, down or both."""

    sites, transition = Input("I J N"), Input("N N")
    rules = """
        a[0, 0, n] += sites[0, 0, n]
        a[i, j, n] += (a[i-1, j, m] + a[i, j-1, m] + a[i-1, j-1, m])
                      * transition[m, n] * sites[i, j, n]
        goal       += a[I-1, J-1, n]
    """


class Earlier(Recurrence):
    """Jumps from any earlier position, by matrices that depend on where they start or end."""

    sites, starting, ending = Input("T N"), Input("T N N"), Input("N T N")
    lengths = Lengths("T")
    rules = """
        a[0, n] += sites[0, n]
        a[t, n] += a[s, m] * starting[s, m, n] * sites[t, n]   if s < t
        a[t, n] += a[s, m] * ending[n, t-1, m] * sites[s, m]   if s < t
        goal    += a[lengths-1, n]
    """


class Durations(Recurrence):
    """Segments whose links depend on the duration, and on labels of where they start or end."""

    sites, links, costs = Input("T N"), Input("D N N"), Input("D T")
    lengths = Lengths("T")
    rules = """
        a[0, n] += sites[0, n]
        a[t, n] += a[t-d-1, m] * links[d, m, n] * sites[t, n]
        a[t, n] += a[t-d-1, m] * costs[d, t-1] * sites[t, n] * sites[t, m]
        goal    += a[lengths-1, n]
    """


class Nested(Recurrence):
    """Segments of labels, each cut into words whose lengths are scored."""

    words, sites, transition, lengths = Input("T L"), Input("T N"), Input("N N"), Lengths("T")
    rules = """
        w[i, j] += words[j, d] * w[i, j-d-1]   if i <= j - d - 1
        w[i, j] += words[j, j-i]
        a[t, n] += w[0, t] * sites[t, n]
        a[t, n] += a[s, m] * w[s+1, t] * transition[m, n] * sites[t, n]
        goal    += a[lengths-1, n]
    """


class Hypergraph(Recurrence):
    """Derivations of the last node of a hypergraph; node 0 has one, which is empty."""

    edges, rows, tails = Input("E"), Input("V+1", whole=True), Input("E 2", whole=True)
    rules = """
        a[0] += 1
        a[v] += edges[e] * a[tails[e, 0]] * a[tails[e, 1]]   if rows[v] <= e < rows[v + 1]
        goal += a[V-1]
    """


class Forest(Recurrence):
    """Derivations of nodes that have one of N labels, by rules of the labels."""

    leaves, rows, parts = Input("V N"), Input("V+1", whole=True), Input("E 2", whole=True)
    ruled, weights = Input("N N N"), Input("E")
    rules = """
        a[v, n] += leaves[v, n]
        a[v, n] += weights[e] * a[parts[e, 0], l] * a[parts[e, 1], r] * ruled[n, l, r]
                   if rows[v] <= e < rows[v + 1]
        goal    += a[V-1, n]
    """


class Lattice(Recurrence):
    """Paths through a graph whose arcs carry the labels of their ends; ends of its own each."""

    arcs, start, transition = Input("E"), Input("N"), Input("N N")
    rows, tails, places = Input("V+1", whole=True), Input("E", whole=True), Input("E", whole=True)
    sites, ends = Input("S N"), Lengths("V")
    rules = """
        a[0, n] += start[n]
        a[v, n] += a[tails[e], m] * transition[m, n] * arcs[e] * sites[places[e], n]
                   if rows[v] <= e < rows[v + 1]
        goal    += a[ends-1, n]
    """


class Kept(Recurrence):
    """Nodes that have K hyperedges each, others in each item."""

    edges, tails = Input("M K"), Input("M K 2", whole=True)
    rules = """
        a[0] += 1
        w[v] += edges[v-1, k] * a[tails[v-1, k, 0]] * a[tails[v-1, k, 1]]
        a[v] += w[v]   if v > 0
        goal += a[M]
    """


class Binary(Recurrence):
    """Trees over spans, by a list of rules for each label: weights of its parts."""

    sites, weights = Input("T N"), Input("E")
    rows, left, right = Input("N+1", whole=True), Input("E", whole=True), Input("E", whole=True)
    lengths = Lengths("T")
    rules = """
        b[i, i, n] += sites[i, n]
        b[i, j, n] += weights[e] * b[i, k, left[e]] * b[k+1, j, right[e]]
                      if rows[n] <= e < rows[n + 1]
        goal       += b[0, lengths-1, n]
    """
