"""Amounts and times in readable units."""


def quantity(value: float) -> str:
    """A number with a unit prefix: 1.2 G."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 1e15:
            return f"{value:.1e} "
        if value >= size:
            return f"{value / size:.1f} {prefix}"
    return f"{value:.0f} "


def duration(seconds: float) -> str:
    """Return a time as text in a readable unit, as "20 ms", "3.1 s" or "5 minutes"."""
    if seconds < 1e-3:
        return "1 ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.3g} hours"
