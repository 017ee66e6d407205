"""Memory and work follow the bytes of a file, whatever its header or its archive promises."""

import gzip
from itertools import combinations, islice, product

import pytest

from rdpgraph import read
from rdpgraph.errors import BudgetError, FileFormatError
from rdpgraph.trees import parse_grammar
from tests.io.helpers import of_format, peak

parse_uai, _ = of_format(".uai")

parse_bif, _ = of_format(".bif")

WIDE = 18
MANY = 50_000
SCOPE = " ".join(map(str, range(WIDE)))
UAI = {
    "one table of digits": f"MARKOV {WIDE} {'2 ' * WIDE} 1 {WIDE} {SCOPE} {2**WIDE} "
    + "1 " * 2**WIDE,
    "small factors": f"MARKOV 1 2 {MANY} " + "1 0 " * MANY + "2 1 1 " * MANY,
    "factors of two shapes": f"MARKOV 4 2 3 2 3 {MANY} "
    + "1 0 2 2 3 " * (MANY // 2)
    + "2 1 1 6 1 2 3 4 5 6 " * (MANY // 2),
    "variables without factors": "MARKOV 250000 " + "2 " * 250_000 + "0",
    "variables of many sizes": f"MARKOV {MANY} "
    + " ".join(str(2 + n % 300) for n in range(MANY))
    + f" {MANY} "
    + "0 " * MANY
    + "1 1 " * MANY,
    "constants": f"MARKOV 1 2 {2 * MANY} " + "0 " * 2 * MANY + "1 1 " * 2 * MANY,
    "comments": "MARKOV 1 2 0\n" + "#\n" * 250_000,
    "blanks": "MARKOV 1 2 0" + " \n" * 250_000,
}


@pytest.mark.long
@pytest.mark.parametrize("case", UAI)
def test_memory_is_at_most_six_times_the_text(case):
    data = bytearray(UAI[case].encode())
    size = len(data)
    assert size > 400_000
    parse_uai("MARKOV 1 2 1 1 0 2 1 1")  # whatever is imported late
    found, raised = peak(lambda: parse_uai(data))
    assert raised is None
    assert found + size < 6 * size + 400_000  # the text is held by the caller here


def network(parents, body):
    """A chain of unrelated bits, and the last one's table, given all others."""
    names = [f"v{number}" for number in range(parents)]
    bits = "".join(f"variable {n} {{ type discrete [2] {{ a, b }}; }}\n" for n in [*names, "x"])
    alone = "".join(f"probability ({name}) {{ table 0.5, 0.5; }}\n" for name in names)
    return f"{bits}{alone}probability (x | {', '.join(names)}) {{\n{body}}}\n"


def declared(name, states="a,b"):
    return f"variable {name}{{type discrete[{states.count(',') + 1}]{{{states}}};}}"


def many(states, block, count):
    """Variables of like states, each with the one before as the parent where the block asks."""
    first = declared("0", states) + f"probability(0){{default 1{',0' * states.count(',')};}}"
    return first + "".join(
        declared(f"{n:x}", states) + block.format(f"{n:x}", f"{n - 1:x}") for n in range(1, count)
    )


NUMBERED = [f"{number:x}" for number in range(8_000)]
BIT = declared("x") + "probability(x){table 1,0;"
BIF = {
    "one table": network(16, "table " + ", ".join(["0.1234"] * 2**16 + ["0.8766"] * 2**16) + ";"),
    "one table of digits": network(19, "table " + "1," * 2**19 + "0," * 2**19 + ";"),
    "one table of digits, with a comment": network(
        18, "table //\n" + "1," * 2**18 + "0," * 2**18 + ";"
    ),
    "rows": network(
        13, "".join(f"({', '.join(row)}) 0.1234, 0.8766;\n" for row in product("ab", repeat=13))
    ),
    "long rows": declared("p", "a,b,c,d")
    + "probability(p){default 1,0,0,0;}"
    + declared("x", ",".join(NUMBERED))
    + "probability(x|p){"
    + "".join(f"({state})1{',0' * (len(NUMBERED) - 1)};" for state in "abcd")
    + "}",
    "states with spaces": declared("x", "aa " * 60_000) + "probability(x){table 1;}",
    "properties of a variable": "variable x{type discrete[2]{a,b};"
    + "property a;" * 60_000
    + "}probability(x){table 1,0;}",
    "properties of a table": BIT + "property a;" * 60_000 + "}",
    "properties in quotes": BIT + 'property "a";' * 60_000 + "}",
    "properties and blanks beyond ASCII": BIT + "property \xa0;" * 60_000 + "}",
    "a scope of bars": declared("x") + "probability(x" + "|" * 300_000 + "){table 1,0;}",
    "a row of commas": network(1, "(" + "," * 300_000 + "a) 1, 0; (b) 0, 1;"),
    "one character of four bytes": BIT + "} // \U0001f600" + " x" * 300_000,
    "names of such characters": many("\U0001f600,b", "probability({0}){{table 1,0;}}", 1_500),
    "states of one variable": declared("x", ",".join(f"{number:x}" for number in range(60_000)))
    + "probability(x){table 1"
    + ",0" * 59_999
    + ";}",
    "states of a parent": declared("p", ",".join(f"{number:x}" for number in range(60_000)))
    + f"probability(p){{table 1{',0' * 59_999};}}"
    + declared("x", "a")
    + "probability(x|p){(7)1;(a)1;default 1;}",
    "states that differ": "".join(
        declared(f"x{n:x}", f"y{n:x},b") + f"probability(x{n:x}){{table 1,0;}}"
        for n in range(4_000)
    ),
    "Latin-1": (BIT + "property \xe9;" * 60_000 + "}").encode("latin-1"),
}


@pytest.mark.long
@pytest.mark.parametrize("case", BIF)
def test_the_memory_of_a_network_is_at_most_six_times_its_text(case):
    text = BIF[case]
    data = bytearray(text if isinstance(text, bytes) else text.encode())
    parse_bif(network(1, "(a) 1, 0; (b) 0, 1;"))
    found, raised = peak(lambda: parse_bif(data))
    assert raised is None
    assert found + len(data) < 6 * len(data) + 1_000_000


@pytest.mark.long
@pytest.mark.parametrize(
    ("states", "block"),
    [
        ("a,b", "probability({0}){{table 1,0;}}"),
        ("a", "probability({0}){{table 1;}}"),
        ("a,b", "probability({0}|{1}){{(a)1,0;(b)0,1;}}"),
    ],
)
def test_the_memory_of_small_variables_grows_with_their_text(states, block):
    parse_bif(network(1, "(a) 1, 0; (b) 0, 1;"))
    short, long = (bytearray(many(states, block, count).encode()) for count in (2_000, 5_000))
    grown = peak(lambda: parse_bif(long))[0] - peak(lambda: parse_bif(short))[0]
    assert grown < 5 * (len(long) - len(short))  # the text is held by the caller here


def test_a_body_that_is_no_table_is_read_in_linear_time():
    """A table of numbers is tried once, not once more for every blank."""
    with pytest.raises(FileFormatError, match="2 probabilities here"):
        parse_bif(network(0, "table " + " " * 500_000 + "x;").replace(" | ", ""))


def test_an_archive_is_unpacked_up_to_a_limit(tmp_path):
    path = tmp_path / "bomb.uai"
    path.write_bytes(gzip.compress(b"11 " * 10_000_000))
    found, raised = peak(lambda: read(path, limit=2**21))
    assert isinstance(raised, FileFormatError)
    assert all(word in str(raised) for word in ("2097152 bytes", "--limit"))
    assert found < 8_000_000


@pytest.mark.long
def test_factors_of_too_many_shapes_are_refused_before_they_are_made():
    """Two variables of two states among others of one: tables of four numbers."""
    most, every = 58, combinations(range(58), 3)
    held = [set(chosen) for chosen in islice(every, 2**14 + 1)]
    scopes = [" ".join(str(n + most * (n in two)) for n in range(most)) for two in held]
    text = f"MARKOV {2 * most} {'1 ' * most}{'2 ' * most}{len(held)} "
    text += "".join(f"{most} {scope} " for scope in scopes) + "8 1 1 1 1 1 1 1 1 " * len(held)
    found, raised = peak(lambda: parse_uai(text))
    assert isinstance(raised, BudgetError)
    assert "16,384 different shapes" in str(raised)
    assert found < 6 * len(text)


RULES = 20_000
GRAMMAR = {
    "symbols": "\n".join(f'1 {n:x} -> "a"' for n in range(RULES)),
    "words": "\n".join(f'1 S -> "{n:x}"' for n in range(RULES)),
    "symbols named before they have rules": "\n".join(
        f"1 {n:x} -> {n + 1:x} {n + 1:x}" for n in range(RULES // 2)
    )
    + f'\n1 {RULES // 2:x} -> "a"',
    "names of one character that takes four bytes": "\n".join(
        f'1 S -> "{chr(0x10000 + n)}"' for n in range(RULES)
    ),
    "one such character among others": "# \U0001f600\n"
    + "\n".join(f'1 S -> "{n:x}"' for n in range(RULES)),
    "rules of few symbols": "\n".join(
        [f"1 {n % 50} -> {n // 50 % 50} {n // 2500}" for n in range(RULES)]
        + [f"1 {n} -> 'a'" for n in range(50)]
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("case", GRAMMAR)
def test_the_memory_of_a_grammar_is_at_most_six_times_its_text(case):
    data = bytearray(GRAMMAR[case].encode())
    assert len(data) > 150_000
    parse_grammar("1 S -> 'a'")
    grammars = []
    found, raised = peak(lambda: grammars.append(parse_grammar(data)))
    assert raised is None
    (grammar,) = grammars
    # What tensors hold are NumPy's arrays, which count.
    assert found + len(data) < 6 * len(data) + 100_000
    found, _ = peak(lambda: grammar.lexical([grammar.words[len(grammar.words) // 2]]))
    assert found < 6 * len(data)


def test_a_line_of_a_grammar_has_an_end():
    rule = b'1 S -> "a"\n'
    with pytest.raises(FileFormatError, match=r"line 2: .* a line of a million characters"):
        parse_grammar(rule + b"1 S -> '" + b"x" * 2**20 + b"'")
    assert parse_grammar(rule + b"#" * 2**20).words == ("a",)


def test_an_empty_grammar_of_many_lines_costs_nothing():
    text = b"\n" * 3_000_000 + b"\r\n x"
    found, raised = peak(lambda: parse_grammar(text))
    assert "line 3000002" in str(raised)
    assert found < 200_000


def test_a_grammar_s_table_is_refused_by_name_before_it_is_made():
    text = "\n".join(f"1 S{number} -> 'a'" for number in range(645))
    found, raised = peak(lambda: parse_grammar(text).log_rules)
    assert isinstance(raised, BudgetError)
    assert all(word in str(raised) for word in ("645 symbols", "2.1 GB", "memory_bytes"))
    assert found < 1_000_000
    small = "\n".join(f"1 S{number} -> 'a'" for number in range(10))
    with pytest.raises(BudgetError):
        print(parse_grammar(small, memory_bytes=8 * 1000 - 1).log_rules)
    assert len(parse_grammar(small, memory_bytes=8 * 1000).log_rules) == 10


def test_a_number_may_be_long_and_a_line_too():
    digits = "0." + "3" * 200_000
    graph = parse_uai(f"MARKOV 1 2 1 1 0 2 {digits} 1 # " + "x" * 300_000 + " 5\n")
    assert float(graph.score({"0": 0}).exp()) == pytest.approx(1 / 3)
    with pytest.raises(FileFormatError, match="a million characters"):
        parse_uai(f"MARKOV 1 2 1 1 0 2 {'0' * 1_200_000} 1")
