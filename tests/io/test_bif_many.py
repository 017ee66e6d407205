"""Blocks of BIF files that are read many at a time."""

import pytest
import torch

from rdpgraph.errors import FileFormatError
from tests.io.helpers import of_format

parse_bif, _ = of_format(".bif")


def test_a_block_means_the_same_among_others():
    """Each of forty networks, of the usual form or not, is read as if it were alone."""
    unit = """
        variable a# { type discrete [2] { no, yes }; }
        variable "b#" { type discrete[3]{u v w} } // a comment
        variable c# { property p = 1; type discrete [2] { x#, y }; }
        variable d# { type discrete [2] { no, yes }; }
        probability (a#) { table .25 .75; }
        probability ("b#" | a#) { (yes) .5, .25, .25; (no) 0, .125, .875; }
        probability (c# | "b#" a#) { table 1,0,1, 0,1,.5, 0,1,0, 1,0,.5 /* the end */ }
        probability (d# | c#) { (y) 1, 0; default .5, .5; }
        probability (e# | a#, d#) {
            (no, no) 1, 0; (yes, no) .5, .5; (no, yes) 0, 1; (yes, yes) 1, 0;
        }
        variable e# { type discrete [2] { y, n }; }
        probability (f# | c#) { (x#) 1, 0; (y) .5, .5; }
        variable f# { type discrete [2] { y, n }; }
    """
    numbers = range(10, 50)
    texts = [unit.replace("#", str(number)) for number in numbers]
    together = parse_bif("".join(texts))
    tables = {
        factor.variables: factor.potential.table(len(factor.variables))
        for factor in together.factors()
    }
    assert len(tables) == len(together.variables) == 6 * len(texts)
    for text in texts[::13]:
        for factor in parse_bif(text).factors():
            table = factor.potential.table(len(factor.variables))
            assert torch.equal(tables[factor.variables], table)


@pytest.mark.parametrize("body", [",table 1,0;", "table 1,0;,", "table 1,0,;,;", "; table 1 0;"])
def test_commas_stand_between_numbers_alone(body):
    declared = "variable a# { type discrete [2] { no, yes }; } probability (a#) { table 1,0; }"
    wrong = declared.replace("table 1,0;", body)
    for texts in ([wrong], [declared, wrong, declared]):
        text = "".join(text.replace("#", str(n)) for n, text in enumerate(texts))
        with pytest.raises(FileFormatError, match="a row, table or default"):
            parse_bif(text)


@pytest.mark.parametrize(
    "body", [",(no) 1,0; (yes) 0,1;", "(no) 1,0;\n , (yes) 0,1;", "(no) 1,0; (yes) 0,1;,"]
)
def test_no_row_begins_with_a_comma(body):
    declared = """
        variable a# { type discrete [2] { no, yes }; } probability (a#) { table 1,0; }
        variable b# { type discrete [2] { no, yes }; }
        probability (b# | a#) { (no) 1,0; (yes) 0,1; }
    """
    wrong = declared.replace("(no) 1,0; (yes) 0,1;", body)
    for texts in ([wrong], [declared, wrong, declared]):
        text = "".join(text.replace("#", str(n)) for n, text in enumerate(texts))
        with pytest.raises(FileFormatError, match="a row, table or default"):
            parse_bif(text)
