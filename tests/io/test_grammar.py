"""Grammars in files."""

import gzip
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.io.grammar import parse_grammar, read_grammar

TEXT = """
# a grammar
1.0 S -> NP VP
0.4 NP -> "dogs"
0.6 NP -> 'cats'     # two kinds of quotes
.5 VP -> V NP
5e-1 VP -> "#sleep"
0 V -> "see"
"""


def test_rules_become_tables(tmp_path):
    grammar = parse_grammar(TEXT)
    assert grammar.symbols == ("S", "NP", "VP", "V")
    assert grammar.words == ("dogs", "cats", "#sleep", "see")
    rules = torch.zeros(4, 4, 4, dtype=torch.float64)
    rules[0, 1, 2], rules[2, 3, 1] = 1.0, 0.5
    torch.testing.assert_close(grammar.log_rules.exp(), rules)
    words = torch.zeros(4, 4, dtype=torch.float64)
    words[1, 0], words[1, 1], words[2, 2] = 0.4, 0.6, 0.5
    torch.testing.assert_close(grammar.log_words.exp(), words)
    assert grammar.start.tolist() == [0.0, -math.inf, -math.inf, -math.inf]
    lexical = grammar.lexical(["cats", "dogs"])
    torch.testing.assert_close(lexical.exp(), words[:, [1, 0]].T)
    with pytest.raises(rg.errors.EvidenceError, match="'bark'"):
        grammar.lexical(["bark"])
    path = tmp_path / "grammar.txt.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    assert read_grammar(path, dtype=torch.float32).log_rules.dtype == torch.float32


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("S -> NP VP", 1, "expected a rule"),
        ("1 S -> S S\n-1 S -> 'a'", 2, "weight >= 0"),
        ("1 S -> S S\nx S -> 'a'", 2, "weight"),
        ("nan S -> 'a'", 1, "weight"),
        ("inf S -> 'a'", 1, "weight"),
        ("1_0 S -> 'a'", 1, "weight"),
        ("٣ S -> 'a'", 1, "weight"),
        ("1e999 S -> 'a'", 1, "weight"),
        ("\r\n\r1 S -> S S\n1 S -> 'a'\n1 S -> S S", 5, "line 3 already"),
        ("1 S -> A", 1, "expected a rule"),
        ("1 S -> A B C", 1, "expected a rule"),
        ("1 S -> 'a' B", 1, "expected a rule"),
        ("1 'S' -> 'a'", 1, "expected a rule"),
        ("1 S -> ''", 1, "expected a rule"),
        ("1 S 'a'", 1, "expected a rule"),
        ("1 S -> 'a", 1, "quote"),
        ("\n1 S -> 'a'\n2 S -> 'a'", 3, "line 2 already"),
        ("1 S -> S T\n1 S -> 'a'", 1, "'T'"),
    ],
)
def test_errors_name_the_line(text, line, words):
    with pytest.raises(rg.errors.FileFormatError, match=f"here: line {line}:.*{words}"):
        parse_grammar(text, source="here")


@pytest.mark.parametrize("text", ["", "# nothing\n\n"])
def test_a_grammar_without_rules_is_refused(text):
    with pytest.raises(rg.errors.FileFormatError, match="has none"):
        parse_grammar(text)


def test_too_many_symbols_are_refused_before_a_table_is_made():
    text = "\n".join(f"1 S{number} -> 'a'" for number in range(1000))
    with pytest.raises(rg.errors.BudgetError, match="1,000 symbols"):
        parse_grammar(text)
