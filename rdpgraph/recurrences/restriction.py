"""Programs on a few states of each site: rules that read the states kept where they read all.

A site's state is the last index of its potentials, `unary`. On kept states an entry of `unary` is
at the number k of a kept state, and the state itself is data: ``unary_states[t, k]``. A variable
that is the state of one known site wherever it stands takes the numbers of kept states as its
values, and inputs read at it are looked up: ``transition[m, n]`` becomes ``transition[states[t - 1,
m], states[t, n]]``. For any other state the kept ones are compared with it: ``unary[t, n]`` becomes
the sum over k of ``unary[t, k] * unary_same[n, unary_states[t, k]]``. Sums over tables are then as
large as before.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from rdpgraph.recurrences.affine import Affine
from rdpgraph.recurrences.declaration import Declared, Input
from rdpgraph.recurrences.parsing import Line, is_size, parse
from rdpgraph.recurrences.program import Lookup, Read

UNARY, STATES, SAME, KEPT = "unary", "unary_states", "unary_same", "Kept"
Site = tuple[Affine, ...]
Slot = tuple[str, int]
"""An axis of a table."""


@functools.lru_cache(maxsize=256)
def restrict_rules(owner: str, declared: Declared, rules: str) -> tuple[Declared, str]:
    """What is declared, and the rules, on kept states.

    Inputs are those of before, with ``unary`` of kept states, ``unary_states`` of whole numbers in
    its shape, and, where it is read, ``unary_same``, 0 on its diagonal and -inf elsewhere.
    """
    dims = next(one.dims for name, one in declared if name == UNARY and isinstance(one, Input))
    *sites, states = dims.split()
    lines = parse(owner, rules)
    known = _States(lines, {name for name, one in declared if isinstance(one, Input)})
    made = [known.restricted(line, number) for number, line in enumerate(lines)]
    parts = dict(declared) | {
        UNARY: Input(" ".join([*sites, KEPT])),
        STATES: Input(" ".join([*sites, KEPT]), whole=True),
    }
    if any(read.array == SAME for line in made for read in line.factors):
        parts[SAME] = Input(f"{states} {states}")
    return tuple(parts.items()), "\n".join(map(_text, made))


def label_sites(owner: str, declared: Declared, rules: str) -> list[tuple[Read, int]]:
    """Inputs beside ``unary`` that are read at the state of a site, and which index is the state.

    Distinct ones, as (entry, number of the index); of those whose sites are known.
    """
    lines = parse(owner, rules)
    known = _States(lines, {name for name, one in declared if isinstance(one, Input)})
    return [*dict.fromkeys(pair for line in lines for pair in known.state_reads(line))]


def _text(line: Line) -> str:
    """A rule as text."""
    left = Read(line.table, line.index)
    product = " * ".join(map(str, line.factors)) or "1"
    where = " and ".join([*(f"{form} >= 0" for form in line.conditions), *map(str, line.rows)])
    return f"{left} += {product}" + (f" if {where}" if where else "")


@dataclass
class _States:
    """Which variables of rules are states of known sites.

    Attributes:
        lines: the rules.
        inputs: the names of all inputs.
        sites: of each axis that holds states, the site as forms in ``@0``, ``@1``, ..., the other
            axes of its table.
    """

    lines: list[Line]
    inputs: set[str]
    sites: dict[Slot, Site] = field(default_factory=dict[Slot, Site])

    def __post_init__(self) -> None:
        failed: set[Slot] = set()
        # Learn the sites of axes from rule to rule, and start anew without an axis that failed.
        while True:
            self.sites = {}
            while self._learn(failed):
                pass
            wrong = {slot for line in self.lines for slot in self._failing(line)}
            wrong |= self._partners(wrong)
            if not wrong - failed:
                break
            failed |= wrong
        self.sites = {slot: site for slot, site in self.sites.items() if slot not in failed}

    def _partners(self, slots: set[Slot]) -> set[Slot]:
        """Axes in whose place the same variable stands."""
        found = {*slots}
        while True:
            more = {
                other
                for line in self.lines
                for name in self._variables(line)
                if (own := {slot for slot, _ in self._slots(line, name)}) & found
                for other in own
            }
            if more <= found:
                return found
            found |= more

    def _variables(self, line: Line) -> list[str]:
        """Variables that stand alone in an index of a table or as a state."""
        reads = [Read(line.table, line.index), *line.factors]
        bare = [at.bare for read in reads for at in read.index if at.bare is not None]
        return [name for name in dict.fromkeys(bare) if not is_size(name)]

    def _slots(self, line: Line, name: str) -> Iterator[tuple[Slot, Site]]:
        """Axes of tables in which a variable stands alone, and the other indices there."""
        for read in (Read(line.table, line.index), *line.factors):
            if read.array in self.inputs:
                continue
            for k, at in enumerate(read.index):
                rest = (*read.index[:k], *read.index[k + 1 :])
                if at.bare == name:
                    yield (read.array, k), tuple(x for x in rest if isinstance(x, Affine))

    def _read_sites(self, line: Line, name: str) -> Iterator[Site]:
        """The sites whose state a variable is, by what the rule reads of `unary`."""
        for read in line.factors:
            if read.array == UNARY and read.index[-1].bare == name:
                yield tuple(at for at in read.index[:-1] if isinstance(at, Affine))

    def _site_of(self, line: Line, name: str) -> Site | None:
        """The site whose state a variable is; None: none, or unknown."""
        found = [*self._read_sites(line, name)]
        for slot, rest in self._slots(line, name):
            if slot in self.sites:
                moves = {f"@{k}": at for k, at in enumerate(rest)}
                found.append(tuple(at.substitute(moves) for at in self.sites[slot]))
        return found[0] if found and len({*found}) == 1 else None

    def _learn(self, failed: set[Slot]) -> bool:
        """Learn the site of one more axis; return whether there was one."""
        for line in self.lines:
            for name in self._variables(line):
                site = self._site_of(line, name)
                for slot, rest in self._slots(line, name) if site is not None else ():
                    if slot in self.sites or slot in failed:
                        continue
                    # Other axes of which each is one variable say what the site's indices are.
                    moves = {at.bare: Affine.of(f"@{k}") for k, at in enumerate(rest) if at.bare}
                    if len(moves) < len(rest):
                        continue
                    forms = tuple(at.substitute({**moves}) for at in site or ())
                    left = {n for at in forms for n in at.names if n[0] != "@" and not is_size(n)}
                    if not left:
                        self.sites[slot] = forms
                        return True
        return False

    def _failing(self, line: Line) -> Iterator[Slot]:
        """Axes that are no states of one site, or of which a rule asks more than that."""
        for name in self._variables(line):
            slots = [slot for slot, _ in self._slots(line, name)]
            if any(slot in self.sites for slot in slots) and not self._is_state(line, name):
                yield from slots

    def _is_state(self, line: Line, name: str) -> bool:
        """Whether a variable can have the numbers of kept states as its values."""
        site = self._site_of(line, name)
        if site is None or any(slot not in self.sites for slot, _ in self._slots(line, name)):
            return False
        # It stands alone, in no condition, and in an input as an index of its own.
        others = [*line.index, *(at for read in line.factors for at in read.index)]
        if any(name in at.names and at.bare != name for at in others):
            return False
        if any(name in form.names for form in (*line.conditions, *line.rows)):
            return False
        looked_up = any(
            read.array in self.inputs and read.array != UNARY and name in read.names
            for read in line.factors
        )
        # The end of an item is no index of an index.
        ends = line.table == "goal" and any(at.names for at in site)
        return not (looked_up and ends)

    def restricted(self, line: Line, number: int) -> Line:
        """A rule on kept states."""
        states: dict[str, Site] = {}
        for name in self._variables(line):
            slots = [slot for slot, _ in self._slots(line, name)]
            own = any(slot in self.sites for slot in slots)
            own |= not slots and any(True for _ in self._read_sites(line, name))
            site = self._site_of(line, name)
            if own and site is not None and self._is_state(line, name):
                states[name] = site
        factors: list[Read] = []
        conditions = [*line.conditions]
        for k, read in enumerate(line.factors):
            if read.array == UNARY and read.index[-1].bare not in states:
                kept = Affine.of(f"kept{number}_{k}")
                place = tuple(at for at in read.index[:-1] if isinstance(at, Affine))
                conditions.append(kept)  # makes it a loop, and no label, of which entries are data
                factors.append(Read(UNARY, (*place, kept)))
                factors.append(Read(SAME, (read.index[-1], Lookup(STATES, (*place, kept)))))
            elif read.array in self.inputs and read.array != UNARY:
                factors.append(Read(read.array, tuple(_looked_up(read, states))))
            else:
                factors.append(read)
        return replace(line, factors=tuple(factors), conditions=tuple(conditions))

    def state_reads(self, line: Line) -> Iterator[tuple[Read, int]]:
        """See `label_sites`."""
        for name in self._variables(line):
            if self._is_state(line, name):
                for read in line.factors:
                    if read.array in self.inputs and read.array != UNARY:
                        places = [k for k, at in enumerate(read.index) if at.bare == name]
                        yield from ((read, k) for k in places)


def _looked_up(read: Read, states: Mapping[str, Site]) -> Iterator[Affine | Lookup]:
    """The index of an entry, with the states that variables stand for."""
    for at in read.index:
        name = at.bare
        if name is not None and name in states:
            yield Lookup(STATES, (*states[name], Affine.of(name)))
        else:
            yield at
