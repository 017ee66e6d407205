"""The recurrences of hypertrees: trees over spans, by each kind of rules.

A span [i, j] has its first and its last word. With preterminals, which are the states of words and
the last ones of all, a wider span has one of the states from 0 to N - 1, and the states of words
begin at N. Labels of words are then summed over before the spans that these are parts of.
"""

from typing import Literal

from rdpgraph._core.cache import remembered
from rdpgraph.recurrences.declaration import Declared, Input, Lengths

Kind = Literal["dense", "ranked", "listed", "free"]
"""A table of rules, rules by ranks, a list of rules, or none."""

_WORDS = "a[i, i, p] += unary[i, i, p]"
_UNROOTED = "goal += a[0, lengths-1, p]"
_GOAL = f"{_UNROOTED} * roots[p]"
_DENSE = "a[i, j, p] += a[i, k, l] * a[k+1, j, r] * ruled[p, l, r] * unary[i, j, p]"
_DENSE_APART = """
    a[i, j, p]   += unary[i, i, q+N] * a[i+1, j, r] * ruled[p, q+N, r] * unary[i, j, p]
    a[i, j, p]   += a[i, j-1, l] * unary[j, j, q+N] * ruled[p, l, q+N] * unary[i, j, p]
    a[i, i+1, p] += unary[i, i, q+N] * unary[i+1, i+1, s+N] * ruled[p, q+N, s+N] * unary[i, i+1, p]
"""
# Spans as left and right parts by rank, x and y, and as wholes, m.
_RANKED = """
    x[i, j, t] += a[i, j, l] * left[l, t]
    y[i, j, t] += a[i, j, r] * right[r, t]
    m[i, j, t] += x[i, k, t] * y[k+1, j, t]
    a[i, j, p] += m[i, j, t] * parent[p, t] * unary[i, j, p]
"""
_RANKED_APART = """
    x[i, i, t] += unary[i, i, q+N] * left[q+N, t]
    y[i, i, t] += unary[i, i, q+N] * right[q+N, t]
"""
# Spans in any state, s, and the ways to make one of two.
_FREE = """
    s[i, j]    += a[i, j, p]
    m[i, j]    += s[i, k] * s[k+1, j]
    a[i, j, p] += m[i, j] * unary[i, j, p]
"""
_FREE_APART = "s[i, i] += unary[i, i, q+N]"
# Rule e of a list joins states left[e] and right[e]; then the rules of each parent are summed.
_LISTED = """
    x[i, j, e] += a[i, j, left[e]] * weight[e]
    y[i, j, e] += a[i, j, right[e]]
    m[i, j, e] += x[i, k, e] * y[k+1, j, e]
"""
# On kept states, where rules are neither a table nor ranks: every split of every span has a table.
_JOINT = "a[i, j, p] += a[i, k, l] * a[k+1, j, r] * joint[split[i, k, j], p, l, r] * unary[i, j, p]"


@remembered(64)
def write_rules(
    kind: Kind, preterminals: int, levels: int = 0, *, rooted: bool = True
) -> tuple[Declared, str]:
    """The inputs and the rules of hypertrees.

    Args:
        kind: of the rules.
        preterminals: the number of states that only words have.
        levels: in how many steps the rules of one parent are summed, if they are listed.
        rooted: whether the state of the whole is scored.
    """
    states = f"N+{preterminals}" if preterminals else "N"
    apart = preterminals > 0
    if kind == "listed":
        return _listed(levels, apart=apart)
    inputs, text, words = {
        "dense": ({"ruled": f"N {states} {states}"}, _DENSE, _DENSE_APART),
        "ranked": (
            {"parent": "N R", "left": f"{states} R", "right": f"{states} R"}, _RANKED, _RANKED_APART
        ),
        "free": ({}, _FREE, _FREE_APART),
    }[kind]  # fmt: skip
    dims = {"unary": f"T T {states}", **inputs, **({"roots": "N"} if rooted else {})}
    goal = _GOAL if rooted else _UNROOTED
    if kind == "free" and apart:
        text = text.rstrip() + " if p < N"
    return _declared(dims), "\n".join([words if apart else _WORDS, text, goal])


def _listed(levels: int, *, apart: bool) -> tuple[Declared, str]:
    """Listed rules; all states have places in one table, and `single` forbids those of words."""
    dims = {"unary": "T T N", "weight": "M", "roots": "N"}
    whole = {"left": "M", "right": "M"}
    # Rules of one parent are summed in groups, then in groups of groups, up to those of the parent.
    # A condition that always holds makes f a loop, along which entries of many groups are added.
    text, terms = [_LISTED], "m"
    for level in range(levels):
        name, last = f"members{level}", level == levels - 1
        whole[name] = f"F{level} {'N' if last else f'H{level}'}"
        text.append(f"g{level}[i, j, h] += {terms}[i, j, {name}[f, h]] if f >= 0")
        terms = f"g{level}"
    text.append(f"a[i, j, p] += {terms}[i, j, p] * unary[i, j, p]")
    words = _WORDS
    if apart:
        words, dims["single"] = f"{_WORDS} * single[p]", "N"
    return _declared(dims, whole), "\n".join([words, *text, _GOAL])


def write_joint_rules() -> tuple[Declared, str]:
    """The inputs and the rules of hypertrees on kept states with a table for every split."""
    dims = {"unary": "T T N", "joint": "M N N N"}
    return _declared(dims, {"split": "T T T"}), "\n".join([_WORDS, _JOINT, _UNROOTED])


def _declared(dims: dict[str, str], whole: dict[str, str] | None = None) -> Declared:
    """Inputs of some sizes, those of whole numbers last, and lengths."""
    inputs = {name: Input(size) for name, size in dims.items()}
    inputs |= {name: Input(size, whole=True) for name, size in (whole or {}).items()}
    return (*inputs.items(), ("lengths", Lengths("T")))
