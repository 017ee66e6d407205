"""Semi-Markov chains by rules and as factor graphs of ages and labels; such graphs recognised."""

import math
from dataclasses import replace
from textwrap import dedent

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.cache import remembered
from rdpgraph.interface.structure import is_tracked
from rdpgraph.model.factor import FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import VariableArray
from rdpgraph.recurrences.declaration import Declared, Input, Lengths
from rdpgraph.structures.chain.recognition import Recognised, recognised


@remembered(8)
def write_rules(*, ranks: bool, steps: bool, kept: bool) -> tuple[Declared, str]:
    """The inputs and the rules of semi-Markov chains.

    On all labels log Z costs O(T (D N + N^2)), or O(T N (D + r)) with ranks; on K labels of each
    segment, [last position, duration], O(T (D K)^2), or O(T D K r).

    Args:
        ranks: whether the transition is given as factors.
        steps: whether there is a transition for each position.
        kept: whether each segment has states of its own.
    """
    declared: dict[str, Input | Lengths] = {"unary": Input("T D N")}
    # A transition of ranks goes through the ranks, so that pairs of labels are never listed.
    if ranks:
        declared |= {"left": Input("N R"), "right": Input("N R")}
    else:
        declared["transition"] = Input("T-1 N N" if steps else "N N")
    declared["lengths"] = Lengths("T")
    # Segments begin in `starts` and end in `ends`. On kept labels each segment has states of its
    # own, so both are also over durations d; e is the duration of the segment before.
    if kept:
        rules = """
            ends[t, d, n] += unary[t, d, n] if t == d
            ends[s + d, d, n] += starts[s, d, n] * unary[s + d, d, n]
            goal += ends[lengths - 1, d, n]
        """
        before, after, inside = "ends[s - 1, e, m]", "starts[s, d, n]", " if s < T and d < D"
    else:
        rules = """
            ends[t, n] += unary[t, t, n]
            ends[t, n] += starts[t - d, n] * unary[t, d, n]
            goal += ends[lengths - 1, n]
        """
        before, after, inside = "ends[s - 1, m]", "starts[s, n]", ""
    if ranks:
        rules += f"ranks[s, r] += {before} * left[m, r]\n"
        rules += f"{after} += ranks[s, r] * right[n, r]{inside}"
    else:
        table = "transition[s - 1, m, n]" if steps else "transition[m, n]"
        rules += f"{after} += {before} * {table}{inside}"
    return tuple(declared.items()), dedent(rules)


def graph_of(segments: Tensor, transition: Tensor, lengths: Tensor) -> FactorGraph:
    """The chain whose site t has state ``age * N + label`` of the segment at t.

    The age counts the steps since the segment's start. A segment's score is on the step after it:
    from (age d, n) at t to (age 0, m) at t + 1 it is segments[t, d, n] + transition[n, m]. Sites
    beyond the length are in state 0. Tables of O(T (D N)^2): for small models.
    """
    *batch, steps, durations, labels = segments.shape
    states = durations * labels
    sites = VariableArray("site", (steps,), states)
    if not steps:
        return FactorGraph([], variables=[sites])
    state = torch.arange(states, device=segments.device)
    age, label = state // labels, state % labels
    place = torch.arange(steps, device=segments.device)
    length = lengths.unsqueeze(-1)
    ending = segments.reshape(*batch, steps, states)

    # The last segment is scored on the last site; the first site has age 0; beyond the length all
    # is state 0.
    last = (place == length - 1).unsqueeze(-1)
    unary = torch.where(last, ending, 0.0)
    unary = unary.masked_fill((place == 0).unsqueeze(1) & (age > 0), -math.inf)
    beyond = (place >= length).unsqueeze(-1)
    unary = torch.where(beyond, torch.where(state > 0, -math.inf, 0.0).to(unary), unary)

    # Either the segment goes on, with the same label and its age one more, or it is scored and
    # another begins at age 0.
    goes_on = (age.unsqueeze(1) + 1 == age) & (label.unsqueeze(1) == label)
    kept = torch.where(goes_on, 0.0, -math.inf).to(segments)
    cut = ending[..., :-1, :].unsqueeze(-1) + transition[..., label.unsqueeze(1), label]
    reaches = (place[1:] < length).unsqueeze(-1).unsqueeze(-1)
    pairs = torch.where(age == 0, torch.where(reaches, cut, 0.0), kept)
    return FactorGraph(
        [
            FactorBlock((sites,), Table.from_logs(unary)),
            FactorBlock((sites[:-1], sites[1:]), Table.from_logs(pairs)),  # pyright: ignore
        ]
        if steps > 1
        else [FactorBlock((sites,), Table.from_logs(unary))]
    )


_ROUNDINGS = 8.0  # tolerance, in units of rounding, of a segment's plus a transition's log-value


def recognised_segments(graph: FactorGraph) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Segments (*batch, T, D, N), transitions, numbers of variables, and of states (S,).

    None unless the graph is a chain, or several of one length, in which each state has at most one
    successor in its segment, and all others start a segment, by a log-value of the segment that
    ends plus one of the two labels, up to rounding. Trained tables of pairs give None: each entry
    may change.
    """
    if any(block.arity > 2 for block in graph.blocks):
        return None
    pairs = [block.potential for block in graph.blocks if block.arity == 2]
    if is_tracked(pairs) or all(map(_is_dense, pairs)):
        return None
    chain = recognised(graph)
    if chain is None or chain.lengths is not None or not isinstance(chain.transition, Tensor):
        return None
    return _cut(chain) or _cut(_turned(chain, chain.transition))


def _is_dense(potential: Potential) -> bool:
    """Return whether a potential is a table without hard zeros."""
    values = potential.log_values if isinstance(potential, Table) else None
    return values is not None and values.numel() > 0 and bool(values.amin() > -math.inf)


def _turned(chain: Recognised, links: Tensor) -> Recognised:
    """The same chain from its other end."""
    links = links.mT if links.ndim == 2 else links.mT.flip(-3)
    return replace(
        chain, unary=chain.unary.flip(-2), transition=links, numbers=chain.numbers.flip(-1)
    )


def _cut(chain: Recognised) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """The chain as segments; None where its states are not ages of labels."""
    unary, links = chain.unary, chain.transition
    assert isinstance(links, Tensor)
    states = unary.shape[-1]
    allowed = (links > -math.inf).reshape(-1, states, states).any(0)
    starts = (unary[..., 0, :] > -math.inf).reshape(-1, states).any(0) | (allowed.sum(0) > 1)
    ages = _ages(allowed & ~starts, starts)
    if ages is None:
        return None
    durations = len(ages)
    known, ages = ages >= 0, ages.clamp(min=0)
    first = ages[0]
    parted = _parted(links[..., ages.unsqueeze(-1), first].masked_fill(
        ~known.unsqueeze(-1), -math.inf
    ))  # fmt: skip
    if parted is None:
        return None
    ends, transition = parted
    onward = links[..., ages[:-1], ages[1:]]
    onward = onward if links.ndim > 2 else onward.unsqueeze(-3)
    here = unary[..., ages].masked_fill(~known, -math.inf)
    # Scores along each segment from its start: states, and transitions between them.
    runs = [here[..., 0, :]]
    for age in range(1, durations):
        before = runs[-1][..., :-1, :] + onward[..., age - 1, :]
        runs.append(pad(before, (0, 0, 1, 0), value=-math.inf) + here[..., age, :])
    ends = ends if links.ndim > 2 else ends.unsqueeze(-3).expand(unary.shape[-2] - 1, -1, -1)
    segments = torch.stack(runs, -2) + pad(ends, (0, 0, 0, 0, 0, 1))
    place = torch.empty(states, dtype=torch.long, device=ages.device)
    place[ages[known]] = known.flatten().nonzero().flatten()
    return segments, transition, chain.numbers, place


def _ages(onward: Tensor, starts: Tensor) -> Tensor | None:
    """(D, N) the state of each age and label, -1 for none; None if states are not ages."""
    if bool((onward.sum(0) > 1).any() | (onward.sum(1) > 1).any()):
        return None
    following = torch.where(onward.any(1), onward.long().argmax(1), -1)
    rows = [starts.nonzero().flatten()]
    if not 0 < 2 * len(rows[0]) <= len(starts):
        return None  # nothing is possible, or a chain is as fast
    while bool((rows[-1] >= 0).any()):
        rows.append(torch.where(rows[-1] >= 0, following[rows[-1]], -1))
    ages = torch.stack(rows[:-1])
    return ages if int((ages >= 0).sum()) == len(starts) else None


def _parted(cuts: Tensor) -> tuple[Tensor, Tensor] | None:
    """Split log-values (..., D, N, N) into sums of (..., D, N) and (..., N, N), if possible."""
    least = torch.zeros((), dtype=cuts.dtype, device=cuts.device)
    some = (cuts > -math.inf).any(-1)
    row = some.long().argmax(-2, keepdim=True).unsqueeze(-1)
    links = cuts.take_along_dim(row, -3).squeeze(-3)
    column = (links > -math.inf).long().argmax(-1, keepdim=True)
    top = links.take_along_dim(column, -1).squeeze(-1)
    above = cuts.take_along_dim(column.unsqueeze(-3), -1).squeeze(-1)
    top = torch.where(top > -math.inf, top, least).unsqueeze(-2)
    ends = above - top
    both = ends.unsqueeze(-1) + links.unsqueeze(-3)
    # Every one of the three log-values that are added and subtracted was rounded, and may cancel.
    terms = above.abs() + top.abs() + ends.abs()
    scale = cuts.abs() + terms.unsqueeze(-1) + links.abs().unsqueeze(-3)
    near = (both - cuts).abs() <= _ROUNDINGS * torch.finfo(cuts.dtype).eps * scale
    fits = (both == cuts) | (near & scale.isfinite())
    if not bool(fits.all()):
        return None
    # A label's share of both is arbitrary. Segments have all that their last label's transitions
    # have in common, so that their scores alone say which are likely, as estimators read them.
    most = links.amax(-1)
    most = torch.where(most > -math.inf, most, least)
    return ends + most.unsqueeze(-2), links - most.unsqueeze(-1)
