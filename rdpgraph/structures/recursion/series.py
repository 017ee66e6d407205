"""Series of links, which the compiled machine runs item after item."""

from collections.abc import Iterable, Sequence

from rdpgraph._core import tuning


def mark_series(
    steps: Sequence[list[int]], values: Sequence[Sequence[int]], index: Sequence[int],
    links: Iterable[Iterable[Sequence[int]]], kinds: tuple[int, int, int],
) -> None:  # fmt: skip
    """Tell the machine the series of links by one table.

    In these each link is of the one before it times a row of sites, and all lie at equal distances.
    The first link has in fields 4 to 7 their number, the offset of its sites and from these to the
    next ones, and the value before; the last has minus that number; both have in field 13 the steps
    from link to link.

    Args:
        steps: of a program, as its values and index.
        values: as above.
        index: as above.
        links: of each table in turn, their numbers first.
        kinds: of sites, of products that are not stored, and of steps that do nothing.
    """
    sites, product, nothing = kinds

    def is_plain(step: Sequence[int]) -> bool:
        return step[0] == sites and not step[3]

    def factors(number: int) -> tuple[int, int] | None:
        """The offset of the sites that a link has in its product, and the other value."""
        inner, (_, places, labels, level, *_) = steps[steps[number][2]], values[number]
        start = inner[2]
        if inner[0] != product or places > 1 or level < 0 or index[start + 1] != 2:
            return None
        operands = list[tuple[int, int]]()
        for at in (start + 2, start + 9):
            _, entries, _, many, width, slot, _ = index[at : at + 7]
            if slot >= 0 or many > 1 or width != labels or index[entries] < 0:
                return None
            operands.append((index[entries], index[entries + 1]))
        operands.sort(key=lambda pair: not is_plain(steps[pair[0]]))
        (value, place), (other, spot) = operands
        if not is_plain(steps[value]) or spot or values[other][1] > 1:
            return None
        return values[value][4] + place * labels, other

    def goes_on(run: Sequence[tuple[int, int, int]], number: int, offset: int, before: int) -> bool:
        last, end, _ = run[-1]
        passed = steps[last + 1 : number]
        alike = before == last and steps[number][10] == steps[last][10]
        alike = alike and all(step[0] in (product, nothing) or is_plain(step) for step in passed)
        one, start, _ = run[-2] if len(run) > 1 else (2 * last - number, 2 * end - offset, 0)
        return alike and (number - last, offset - end) == (last - one, end - start)

    def mark(run: Sequence[tuple[int, int, int]]) -> None:
        if len(run) >= tuning.SERIES_LINKS:
            (first, offset, before), (second, following, _), *_, (last, *_) = run
            steps[first][4:8] = len(run), offset, following - offset, before
            steps[last][4] = -len(run)
            steps[first][13] = steps[last][13] = second - first

    for numbers in links:
        run = list[tuple[int, int, int]]()  # links, their sites and the values before
        for number, _, depth, columns in numbers:
            operands = factors(number) if depth == columns else None
            if operands is None or not run or not goes_on(run, number, *operands):
                mark(run)
                run = []
            if operands:
                run.append((number, *operands))
        mark(run)
