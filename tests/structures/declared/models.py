"""Chains, segments and trees that a user declares, beside the library's own."""

import torch

import rdpgraph as rg


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class Tags(rg.Recurrence):
    """A chain."""

    unary, transition, lengths = rg.Input("T N"), rg.Input("N N"), rg.Lengths("T")
    rules = """
        a[0, n] += unary[0, n]
        a[t, n] += a[t-1, m] * transition[m, n] * unary[t, n]
        goal    += a[lengths-1, n]
    """


class Segments(rg.Recurrence):
    """A semi-Markov chain: sites are segments, [last position, duration]."""

    unary, transition, lengths = rg.Input("T D N"), rg.Input("N N"), rg.Lengths("T")
    rules = """
        a[t, n] += unary[t, t, n]
        a[t, n] += a[t-d-1, m] * transition[m, n] * unary[t, d, n]
        goal    += a[lengths-1, n]
    """


class Spans(rg.Recurrence):
    """Binary trees: sites are spans, [first word, last word]."""

    unary, table, lengths = rg.Input("T T N"), rg.Input("N N N"), rg.Lengths("T")
    rules = """
        a[i, i, p] += unary[i, i, p]
        a[i, j, p] += a[i, k, l] * a[k+1, j, r] * table[p, l, r] * unary[i, j, p]
        goal       += a[0, lengths-1, p]
    """


class RankedSpans(rg.Recurrence):
    """Binary trees whose rules are products of ranks."""

    unary, whole, left, right = rg.Input("T T N"), rg.Input("N R"), rg.Input("N R"), rg.Input("N R")
    lengths = rg.Lengths("T")
    rules = """
        a[i, i, p] += unary[i, i, p]
        a[i, j, p] += b[i, j, r] * whole[p, r] * unary[i, j, p]
        b[i, j, r] += f[i, k, r] * g[k+1, j, r]
        f[i, j, r] += a[i, j, l] * left[l, r]
        g[i, j, r] += a[i, j, l] * right[l, r]
        goal       += a[0, lengths-1, p]
    """


class Steps(rg.Recurrence):
    """A chain with a transition for each step."""

    unary, transition, lengths = rg.Input("T N"), rg.Input("T-1 N N"), rg.Lengths("T")
    rules = """
        a[0, n] += unary[0, n]
        a[t, n] += a[t-1, m] * transition[t-1, m, n] * unary[t, n]
        goal    += a[lengths-1, n]
    """


class PlainSpans(rg.Recurrence):
    """Binary trees without rules, by the sums of all states of each span."""

    unary, lengths = rg.Input("T T N"), rg.Lengths("T")
    rules = """
        a[i, i] += unary[i, i, p]
        a[i, j] += a[i, k] * a[k+1, j] * unary[i, j, p]
        goal    += a[0, lengths-1]
    """


class Joints(rg.Recurrence):
    """Two sites that a third one follows, or one of them alone."""

    unary, pairs = rg.Input("S N"), rg.Input("N N N")
    first, second = rg.Input("N N"), rg.Input("N N")
    rules = """
        a[n] += unary[0, i] * unary[1, j] * pairs[i, j, n] * unary[2, n]
        a[n] += unary[0, i] * first[i, n] * unary[2, n]
        a[n] += unary[1, j] * second[j, n] * unary[2, n]
        goal += a[n]
    """


def leaves(model):
    """The tensors that a model's gradients are in, in the order in which its class takes them."""
    return [getattr(model, name) for name, one in model.declared if isinstance(one, rg.Input)]


def rebuilt(model, parts):
    """The model on other tensors, in the order of `leaves`."""
    return type(model)(*parts, *([model.lengths] if hasattr(model, "lengths") else []))


def agree_by_threads_and_items(asked, count):
    """One thread or two, and items one by one, give the same; ``asked(None)`` is of all items.

    Answers are log Z, the gradient in the sites, and others that items share.
    """
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(asked(None))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*found)
    for item in range(count):
        of_one, of_all = asked(item)[:2], [part[item, None] for part in found[0][:2]]
        torch.testing.assert_close(list(of_one), of_all)


LENGTHS = torch.tensor([4, 2, 0, 1])
TRANSITIONS = {
    "table": draw(3, 3, seed=1),
    "hard": draw(3, 3, seed=1).masked_fill(torch.eye(3) > 0, -torch.inf),
    "low rank": rg.LowRank(draw(3, 2, seed=2), draw(3, 2, seed=3)),
    "embeddings": rg.Bilinear(draw(3, 2, seed=4), draw(3, 2, seed=5)),
}
RANKS = [draw(2, 3, seed=seed) for seed in (2, 3, 4)]


def pairs():
    """(name, a user's structure, the library's); lengths of the batch differ, 0 and 1 too."""
    for name, transition in TRANSITIONS.items():
        unary = draw(4, 4, 3, seed=7)
        theirs = rg.Chain(unary, transition, lengths=LENGTHS)
        yield f"chain, {name}", Tags(unary, transition, lengths=LENGTHS), theirs
        unary = draw(4, 4, 3, 3, seed=8)
        theirs = rg.SemiMarkov(unary, transition, lengths=LENGTHS)
        yield f"segments, {name}", Segments(unary, transition, lengths=LENGTHS), theirs
    unary, table = draw(4, 4, 4, 2, seed=9), draw(2, 2, 2, seed=1)
    theirs = rg.Hypertree(unary, rg.trees.DenseRules(table), lengths=LENGTHS)
    yield "spans, dense", Spans(unary, table, LENGTHS), theirs


PAIRS = {name: (ours, theirs) for name, ours, theirs in pairs()}
