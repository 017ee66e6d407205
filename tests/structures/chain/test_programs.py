"""Programs of chains, made of arrays: those that tapes of the same steps are lowered to."""

import pytest
import torch

from rdpgraph.structures.chain.programs import chain_program
from rdpgraph.structures.recursion.program import lowered
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.values import Labels

FIELDS = "size", "levels", "levelled", "rows", "pairs", "places", "leaves", "unstored", "work"


def tape_of(total, widths, each, *, ragged):
    """A chain on a tape: links by tables of these widths, and the next site."""
    none = torch.zeros(())
    tape = Tape(none.expand(1, total, widths[-1]), 1)
    sizes = zip([widths[-1], *widths], widths, strict=False)
    tables = [
        none.expand(*(total - 1,) * one, *size) for one, size in zip(each, sizes, strict=True)
    ]
    sites, state, links = tape.sites[:], tape.sites[0], []
    for step in range(1, total):
        link, here = state, Labels(torch.tensor([step]))
        for number, (table, one) in enumerate(zip(tables, each, strict=True)):
            to = here if number == len(tables) - 1 else None
            link = tape.link(link, table, to=to, at=step - 1 if one else None)
        state = tape.total((tape.view(sites, torch.tensor([step])), link))
        links.append(link)
    if ragged:
        last, zeros = (
            torch.zeros(1, 1, 1, dtype=torch.long),
            tape.leaf(none.expand(1, 1, widths[-1])),
        )
        state = tape.merge((tape.view(sites, last), tape.view([zeros, *links], last)))
    tape.finish(tape.sum(state))
    return tape


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(
    ("widths", "each"),
    [([3], [False]), ([2], [True]), ([1, 3], [False, False]), ([2, 5], [True, False])],
)
@pytest.mark.parametrize("total", [3, 5, 6, 20])
def test_it_is_the_program_of_a_tape(total, widths, each, ragged):
    tape = tape_of(total, widths, each, ragged=ragged)
    expected = lowered(tape.steps, total, widths[-1])
    made = chain_program(total, tuple(widths), tuple(each), ragged=ragged)
    for name in ("values", "steps", "index"):
        torch.testing.assert_close(getattr(made, name), getattr(expected, name))
    assert all(getattr(made, name) == getattr(expected, name) for name in FIELDS)
    assert [type(slot) for slot in made.slots] == [type(slot) for slot in expected.slots]
