"""HTML for notebooks: tables and small pictures, in the colours of the page."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from rdpgraph.errors import printable

Point = tuple[float, float]

_MOST_ROWS, _MOST_DOTS, _LONGEST = 20, 200, 80  # shown of a table, a picture and a text
_BOX = "font-family:ui-sans-serif,sans-serif;font-size:13px;line-height:1.5"
_CELL = "text-align:left;vertical-align:top;padding:1px 12px 1px 0;color:inherit"
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_BAR = "display:inline-block;height:.7em;background:currentColor;opacity:.45;margin-right:6px"


def escape(text: str) -> str:
    """Text as HTML shows it; as `html.escape`, which loads the names of all characters."""
    return text.translate(_ESCAPES)


def panel(text: str, picture: str = "") -> str:
    """A title and a table of "key: value" lines, with a picture in HTML below."""
    title, *lines = text.splitlines()
    parts = (re.split(r":\s+|\s{2,}", line.strip(), maxsplit=1) for line in lines)
    return table(title, [(key, _text("".join(value), 400)) for key, *value in parts], picture)


def table(title: str, rows: Iterable[tuple[str, str]], below: str = "") -> str:
    """A title and a table of names, which are escaped, with HTML."""
    every = list(rows)
    if len(every) > _MOST_ROWS:
        every[_MOST_ROWS:] = [(f"and {len(every) - _MOST_ROWS:,} more", "")]
    body = "".join(
        f'<tr style="background:none"><th style="{_CELL};font-weight:600">{_text(name)}</th>'
        f'<td style="{_CELL}">{html}</td></tr>'
        for name, html in every
    )
    return (
        f'<div style="{_BOX}"><div style="font-weight:600;max-width:60em">{_text(title, 400)}</div>'
        f'<table style="border:none;border-collapse:collapse;font:inherit;color:inherit">{body}'
        f"</table>{below}</div>"
    )


def bars(probabilities: Sequence[float], names: Iterable[object]) -> str:
    """Return HTML of a bar for each state, whose length is in proportion to its probability."""
    shown = [
        f'<span style="{_BAR};width:{80 * min(max(each, 0.0), 1.0):.0f}px"></span>'
        f"{each:.3f} {_text(str(name))}"
        for each, name in list(zip(probabilities, names, strict=False))[:_MOST_ROWS]
    ]
    return "<br>".join(shown if len(probabilities) <= _MOST_ROWS else [*shown, "..."])


def picture(
    places: Mapping[object, Point],
    edges: Iterable[tuple[object, object]],
    *,
    squares: Sequence[object] = (),
    arrows: bool = False,
) -> str:
    """An SVG of named dots at places, about one apart, joined by lines; empty for too many.

    With arrows each line ends in one, at its second dot.
    """
    edges = list(edges)
    if not 0 < len(places) <= _MOST_DOTS:
        return ""
    unit, dot = 44.0, 4.0
    # Places have y upwards and the SVG has it downwards: turn it, and leave a margin for names.
    left, top = min(x for x, _ in places.values()), max(y for _, y in places.values())
    at = {
        node: (unit * (x - left + 0.6), unit * (top - y + 0.5)) for node, (x, y) in places.items()
    }
    wide, high = (max(point[side] for point in at.values()) + 0.6 * unit for side in (0, 1))
    # Lines come first, so that dots lie on top of them.
    parts = [
        f'<line x1="{at[one][0]:.1f}" y1="{at[one][1]:.1f}" x2="{at[other][0]:.1f}" '
        f'y2="{at[other][1]:.1f}" stroke="currentColor" stroke-opacity=".4"/>'
        for one, other in edges
    ]
    if arrows:
        parts += (_arrowhead(at[one], at[other], dot) for one, other in edges)
    for node, (x, y) in at.items():
        if node in squares:
            parts.append(
                f'<rect x="{x - dot:.1f}" y="{y - dot:.1f}" width="{2 * dot}" height="{2 * dot}"/>'
            )
            continue
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{dot}"/><text x="{x:.1f}" y="{y + 16:.1f}" '
            f'font-size="10" text-anchor="middle">{_text(str(node), 12)}</text>'
        )
    return (
        f'<svg width="{wide:.0f}" height="{high:.0f}" viewBox="0 0 {wide:.0f} {high:.0f}" '
        f'fill="currentColor" style="max-width:100%" role="img">{"".join(parts)}</svg>'
    )


def _arrowhead(start: Point, end: Point, dot: float) -> str:
    """A triangle on the line from a dot to another, in front of the second one."""
    wide, high = end[0] - start[0], end[1] - start[1]
    length = math.hypot(wide, high) or 1.0
    x, y = wide / length, high / length
    tip = end[0] - (dot + 1) * x, end[1] - (dot + 1) * y
    back = tip[0] - 7 * x, tip[1] - 7 * y
    points = [tip, (back[0] - 3 * y, back[1] + 3 * x), (back[0] + 3 * y, back[1] - 3 * x)]
    listed = " ".join(f"{one:.1f},{other:.1f}" for one, other in points)
    return f'<polygon points="{listed}" fill-opacity=".6"/>'


def circle(names: Sequence[str], scopes: Iterable[Sequence[str]], *, arrows: bool = False) -> str:
    """Return an SVG of variables in a circle, with a square for each larger factor.

    A larger factor is one over two or more variables. With ``arrows`` the scopes are pairs of
    variables, and an arrow goes from the first to the second. The text is empty for too many
    variables.
    """
    radius = max(1.0, len(names) / 5)
    places: dict[object, Point] = {}
    for place, name in enumerate(names):
        angle = 2 * math.pi * place / len(names)
        places[name] = (radius * math.sin(angle), radius * math.cos(angle))
    if arrows:
        return picture(places, [(one, other) for one, other in scopes], arrows=True)
    edges: list[tuple[object, object]] = []
    squares: list[object] = []
    for number, scope in enumerate(scopes):
        if len(scope) > 1:
            xs, ys = zip(*(places[name] for name in scope), strict=True)
            squares.append(number)
            places[number] = (sum(xs) / len(scope), sum(ys) / len(scope))
            edges += ((number, name) for name in scope)
    return picture(places, edges, squares=squares)


def _text(text: str, most: int = _LONGEST) -> str:
    shown = printable(" ".join(text.split()))
    return escape(shown if len(shown) <= most else f"{shown[: most - 3]}...")
