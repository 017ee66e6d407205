"""Checks of the arguments of tape methods, with errors in one line."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.model.potentials.potential import Potential, checked_shape
from rdpgraph.model.potentials.table import as_whole
from rdpgraph.structures.grammar.rules import Rules
from rdpgraph.structures.recursion.values import Labels, Value, View, Way, as_view


def products_of(step: str, ways: Sequence[Way]) -> list[tuple[View, ...]]:
    """Ways as products of views, each with as many alternatives or one."""
    products = [tuple(map(as_view, way if isinstance(way, tuple) else (way,))) for way in ways]
    if not products or () in products:
        raise ModelError(
            f"Tape.{step} needs at least one value or view in each alternative; got none."
        )
    for product in products:
        if len(product) > 1 and len(many := {view.ways for view in product} - {1}) > 1:
            raise ModelError(
                f"Tape.{step} needs the parts of a product to have equally many alternatives, or "
                f"one; got {sorted(many)}."
            )
    return products


def checked_merge(products: Sequence[tuple[View, ...]]) -> tuple[int, int]:
    """The common number of places of a merge's ways, and of their labels."""
    views = [view for way in products for view in way]
    places, widths = [view.places for view in views], [view.width for view in views]
    kept = any(view.pool[0].labels.states is not None for view in views)
    stateless = kept and any(view.pool[0].labels.states is None for view in views)
    if len(set(places)) > 1 or stateless or (not kept and len(set(widths)) > 1):
        raise ModelError(
            "Tape.merge needs values with equally many places, whose labels are states of sites; "
            f"got {places} places and {widths} labels."
        )
    return places[0], widths[0]


def common(views: Sequence[View]) -> tuple[int, int]:
    """The places and labels of views that broadcast; 1 broadcasts to any."""
    places, widths = [view.places for view in views], [view.width for view in views]
    most, widest = max(places), max(widths)
    if any(n not in (1, most) for n in places) or any(n not in (1, widest) for n in widths):
        raise ModelError(
            "Tape.total needs values with equally many places and labels, or one; got "
            f"{places} places and {widths} labels."
        )
    return most, widest


def checked_value(step: str, x: object) -> None:
    """Check that an argument is a value, not a view."""
    if isinstance(x, View):
        raise ModelError(
            f"Tape.{step} needs a value; got a View. tape.total(view) makes one of alternatives "
            "over the states of the same site, and tape.merge(view) over those of different sites."
        )
    if not isinstance(x, Value):
        raise ModelError(f"Tape.{step} needs a value of the tape; got {type(x).__name__}.")


def checked_link(
    x: Value, potential: Tensor | Potential, to: Value | Labels | None, width: int
) -> None:
    """Check the shape of a link's log-values against the labels at both ends."""
    checked_value("link", x)
    if not isinstance(to, Labels | None):
        checked_value("link", to)
    if not isinstance(potential, Tensor | Potential):
        raise ModelError(
            f"Tape.link needs a tensor of log-values or a Potential; got {potential!r:.80}."
        )
    shape = checked_shape(potential) if isinstance(potential, Potential) else potential.shape
    labels = to.labels if isinstance(to, Value) else to or Labels()
    fits = len(shape) >= 2
    fits = fits and (x.labels.states is not None or shape[-2] == x.width)
    if not fits or (labels.sites is not None and labels.states is None and shape[-1] > width):
        after = "M" if labels.sites is None else width
        raise ModelError(
            f"Tape.link needs log-values (*batch, {x.width}, {after}), [from, to]; "
            f"got {tuple(shape)}."
        )


def checked_tables(tables: object, at: int) -> Tensor:
    """Return several tables of which one is a link's, if they have it."""
    if not isinstance(tables, Tensor) or tables.ndim < 3 or not 0 <= at < tables.shape[-3]:
        got = tuple(tables.shape) if isinstance(tables, Tensor) else type(tables).__name__
        raise ModelError(
            f"Tape.link at {at} needs a tensor (*batch, S, N, M) of S > {at} tables; got {got}."
        )
    return tables


def checked_pick(x: Value, which: Tensor, to: Value | None) -> None:
    """Check the labels picked for those of another value."""
    checked_value("pick", x)
    checked_value("pick", to or x)
    if not isinstance(which, Tensor):
        raise ModelError(f"Tape.pick needs a tensor of labels; got {which!r:.80}.")
    width = None if to is None or to.labels.states is not None else to.width
    shape = which.shape
    if which.dtype != torch.long or len(shape) != 1 or width not in (None, shape[0]):
        many = "labels" if width is None else f"a label for each of the {width} of the other"
        raise ModelError(
            f"Tape.pick needs {many}, (N,) as int64; got {which.dtype} of shape {tuple(shape)}."
        )


def checked_join(left: View, right: View, rules: Rules, to: Value) -> None:
    """Check two views with as many splits, and rules for the labels of both."""
    parts = left, right
    if not (all(isinstance(part, View) for part in parts) and isinstance(to, Value)):
        got = ", ".join(type(part).__name__ for part in (*parts, to))
        raise ModelError(f"Tape.join needs two views, and a value to go to; got {got}.")
    if not isinstance(rules, Rules):
        raise ModelError(f"Tape.join needs Rules, as DenseRules; got {type(rules).__name__}.")
    if (left.ways, left.places) != (right.ways, right.places):
        raise ModelError(
            "Tape.join needs equally many splits on both sides, (M, P); got "
            f"{left.ways, left.places} and {right.ways, right.places}."
        )
    all_kept = all(part.pool[0].labels.states is None for part in parts)
    if rules.shape and all_kept and {part.width for part in parts} != {rules.shape[1]}:
        raise ModelError(
            f"Tape.join needs rules for parts of {left.width} and {right.width} labels; got "
            f"rules for {rules.shape[1]}."
        )


def checked_choice(index: Tensor, batch: int) -> Tensor:
    """Check a place for each item, (B,)."""
    if not isinstance(index, Tensor) or index.numel() != batch:
        got = tuple(index.shape) if isinstance(index, Tensor) else repr(index)
        raise ModelError(f"Tape.choose needs a place for each item, ({batch},); got {got!s:.80}.")
    return index


def checked_whole(value: Value) -> None:
    """Check that a recursion returns a value of one place."""
    if not isinstance(value, Value) or value.places != 1:
        got = f"has {value.places}" if isinstance(value, Value) else f"is a {type(value).__name__}"
        raise ModelError(
            f"A recursion must return a value of one place, for the whole input; this one {got}. "
            "Tape.choose picks one place for each item, and tape.total turns a view into a value."
        )


def checked_values(step: str, values: Tensor, batch: int, dims: int) -> None:
    """Check constants: booleans (B or 1, P), or log-values (B or 1, P, K)."""
    kind = "bool" if dims == 2 else "floating"
    fits = isinstance(values, Tensor) and values.ndim == dims and values.shape[0] in (1, batch)
    if not fits or not (values.dtype == torch.bool if dims == 2 else values.is_floating_point()):
        form = f"({batch} or 1, places{', labels' * (dims - 2)})"
        got = (
            f"{values.dtype} {tuple(values.shape)}" if isinstance(values, Tensor) else repr(values)
        )
        raise ModelError(f"Tape.{step} needs a {kind} tensor {form}; got {got:.80}.")


def checked_lengths(
    lengths: Tensor | None, most: int, lead: tuple[int, ...], device: torch.device
) -> Tensor:
    """(B,) valid lengths from (*batch,), by default all ``most``."""
    if lengths is None:
        return torch.full(lead, most, device=device).reshape(-1)
    lengths = as_whole("Tape.lengths", lengths)
    if tuple(lengths.shape) != lead[len(lead) - lengths.ndim :]:
        raise ModelError(
            f"Tape.lengths needs those of the batch, {lead}; got {tuple(lengths.shape)}."
        )
    if bool(((lengths < 0) | (lengths > most)).any()):
        raise ModelError(f"Tape.lengths needs numbers 0 to {most}; got {lengths.tolist()!s:.80}.")
    return lengths.to(device, torch.long).expand(lead).reshape(-1)
