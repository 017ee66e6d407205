"""Links that are read more than once, made once for each place.

A rule that sums a table over a label, times a matrix of labels, is a link, as the sum over m of
a[t-d-1, m] * transition[m, n]. Read along a loop, here d, or by several rules, it would be computed
for every read, so it becomes a table of its own that these read: the same sum, computed once.
"""

import functools
from collections import Counter
from dataclasses import dataclass, replace

from rdpgraph.recurrences.affine import Affine
from rdpgraph.recurrences.program import Array, CellTable, Program, Read, Rule


@dataclass(frozen=True)
class _Link:
    """The sum over a label of a table times a matrix, in a rule.

    Attributes:
        read, matrix: the factors.
        before, after: the labels of the matrix, of which the first is summed over.
        axis: which axis of the table the first is.
    """

    read: Read
    matrix: Read
    before: str
    after: str
    axis: int

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What is equal for links that are the same wherever they are read."""
        first = self.matrix.index[0]
        return self.read.array, self.matrix.array, self.axis, int(first.bare != self.before)


@functools.lru_cache(maxsize=256)
def with_links(program: Program) -> Program:
    """The program whose links that are read more than once are tables; itself if it has none."""
    while True:
        found = [(rule, _link_of(program, rule)) for rule in program.rules]
        counts = Counter(link.key for _, link in found if link is not None)
        chosen = next(
            (
                link
                for rule, link in found
                if link is not None
                and (counts[link.key] > 1 or link.read.names & {*rule.over} - program.labels)
            ),
            None,
        )
        if chosen is None:
            return program
        program = _with_table(program, chosen, {
            rule: link for rule, link in found if link is not None and link.key == chosen.key
        })  # fmt: skip


def _link_of(program: Program, rule: Rule) -> _Link | None:
    """A link that a rule sums."""
    for matrix in rule.factors:
        array = program.by_name[matrix.array]
        names = [at.bare for at in matrix.index]
        if not isinstance(array, Array) or len(names) != 2 or not {*names} <= program.labels:
            continue
        for before, after in ((names[0], names[1]), (names[1], names[0])):
            readers = [f for f in rule.factors if before in f.names and f is not matrix]
            if before == after or before not in rule.over or len(readers) != 1:
                continue
            (read,) = readers
            bare = [at.bare for at in read.index]
            table = program.table(read.array)
            if table is not None and bare.count(before) == 1 and after not in read.names:
                assert before is not None
                assert after is not None
                return _Link(read, matrix, before, after, bare.index(before))
    return None


def _with_table(program: Program, link: _Link, links: dict[Rule, _Link]) -> Program:
    """The program with a table for a link, which some rules read in place of it."""
    table = program.table(link.read.array)
    array = program.by_name[link.matrix.array]
    assert table is not None
    assert isinstance(array, Array)
    name = f"{table.name}@{len(program.tables)}"
    # Places keep their axes; labels are those that the first of the rules has.
    bare = [at.bare for at in link.read.index]
    own = [
        str(label) if axis in program.labels else axis
        for axis, label in zip(table.axes, bare, strict=True)
    ]
    axes, sizes = [*own], [*table.sizes]
    axes[link.axis] = link.after
    sizes[link.axis] = array.dims[1 - link.key[3]]
    made = CellTable(name, tuple(axes), tuple(sizes), table.domain, table.order)
    inner = Read(table.name, tuple(map(Affine.of, own)))
    rule = Rule(name, (inner, link.matrix), (link.before,), text=f"{name}: a link of {table.name}")
    place = program.tables.index(table) + 1
    return replace(
        program,
        tables=(*program.tables[:place], made, *program.tables[place:]),
        rules=(*(_reading(each, links.get(each), name) for each in program.rules), rule),
    )


def _reading(rule: Rule, link: _Link | None, name: str) -> Rule:
    """A rule that reads the table of a link in place of it."""
    if link is None:
        return rule
    index = [*link.read.index]
    index[link.axis] = Affine.of(link.after)
    factors = tuple(
        Read(name, tuple(index)) if factor is link.read else factor
        for factor in rule.factors
        if factor is not link.matrix
    )
    return replace(rule, factors=factors, over=tuple(n for n in rule.over if n != link.before))
