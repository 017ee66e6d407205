"""Chains of all sites; series of links, which the compiled machine runs item after item."""

from collections.abc import Iterable, Sequence

from rdpgraph._core import tuning
from rdpgraph.structures.recursion.links import Table
from rdpgraph.structures.recursion.step import Step
from rdpgraph.structures.recursion.steps import Leaf, Linked, Total
from rdpgraph.structures.recursion.values import Value


def chain_ends(steps: Sequence[Step], sites: int) -> Sequence[int] | None:
    """Numbers of sites an item may have, if a tape's steps are those of a chain; else None.

    Each row, of the states of a site, is the first site, or the product of the next one and the
    link from the row before, by one table or by the tables of one tensor in turn. The last step is
    the sum of a row, or for each item one of several sums and constants, which the result lists.
    """
    rows, ends, tables = dict[int, int](), dict[int, int](), list[Table]()
    link = -1
    for number, step in enumerate(steps):
        if isinstance(step, Leaf) and step.logs is not None:
            ends[number] = 0
        if not isinstance(step, Linked):
            continue
        if step.x.number not in rows and len(rows) == len(tables):
            if not _is_row(steps, step.x, len(rows), link):
                return None
            rows[step.x.number] = len(rows) + 1
        count = rows.get(step.x.number)
        if step.link is None and count:
            ends[number] = count
        elif isinstance(step.link, Table) and count == len(tables) + 1:
            tables.append(step.link)
            link = number
        else:
            return None
    if not 0 < len(tables) == sites - 1 == len(rows) - 1:
        return None
    source = tables[0].source
    many, last, read = source.shape[1], steps[-1], [len(steps) - 1]
    if isinstance(last, Total):
        view = last.reads[0]
        read = [value.number for value in view.pool]
        if len(last.reads) > 1 or not view.varies or view.size > len(read):
            return None
    alike = all(one.source is source and one.number == at % many for at, one in enumerate(tables))
    alike = alike and many in (1, len(tables)) and source.shape[-2] == source.shape[-1]
    return [ends[number] for number in read] if alike and ends.keys() >= set(read) else None


def _is_row(steps: Sequence[Step], x: Value, site: int, link: int) -> bool:
    """Return whether a value is the potentials of a site, times a link to it, but to the first."""
    step, sites = steps[x.number], x.labels.sites
    if sites is None or sites.tolist() != [site]:
        return False
    if not site or not isinstance(step, Total):
        return not site and isinstance(step, Leaf)
    others, factors = list[tuple[int, ...]](), step.reads
    for view in factors:
        leaves = [one for n in view.numbers if isinstance(one := steps[n], Leaf)]
        if len(leaves) < len(view.pool) or any(leaf.logs is not None for leaf in leaves):
            others.append(view.numbers)
        missing = view.index is not None and bool((view.index == view.size).any())
        if view.ways > 1 or view.varies or missing:
            return False
    return len(step.ways) == 1 and len(factors) == 2 and others == [(link,)]


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
