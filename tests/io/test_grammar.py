"""Grammars in files."""

import gzip
import math
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph.trees import parse_grammar, read_grammar

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
    assert parse_grammar(memoryview(TEXT.encode())).words == grammar.words


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
        ("# c\n" * 9 + "1 S -> 'a' # it's\n\n1 S -> S", 12, "expected a rule"),
        ("1 S -> 'a'\nx S -> 'b'\n1 S -> S", 2, "weight"),
        ("1 S -> 'a'\n1 S -> S\nx S -> 'b'", 2, "expected a rule"),
        ("1 S -> 'a\"", 1, "quote"),
        ('1 S -> "a" b "c"', 1, "expected a rule"),
    ],
)
def test_errors_name_the_line(text, line, words):
    with pytest.raises(rg.errors.FileFormatError, match=f"here: line {line}:.*{words}"):
        parse_grammar(text, source="here")


def test_a_rule_means_the_same_on_every_line():
    """Rules of the usual form or not, alone or among others, in characters or in bytes."""
    rules = {
        "0.5 S -> S S": (0.5, "S", "S", "S"),
        '1 S -> "a"': (1.0, "S", "a"),
        " 2e-1\tS ->  'two words'  # and \"a\" tail's": (0.2, "S", "two words"),
        '3 S -> "it\'s"': (3.0, "S", "it's"),
        '.5 S -> "#"#': (0.5, "S", "#"),
        "4 S -> T S": (4.0, "S", "T", "S"),
        "5 T -> 'a\xa0b'": (5.0, "T", "a\xa0b"),
        "6 T\x1f-> 'c'": (6.0, "T", "c"),
        "7 T -> \u3000T S": (7.0, "T", "T", "S"),
        "8 ->S -> 'd'": (8.0, "->S", "d"),
    }

    def of(part, number):  # forty grammars in one
        return part.replace("S", f"S{number}").replace("T", f"T{number}")

    text = "# rules\n" + "\n\n".join(of(line, n) for line in rules for n in range(40))
    wanted = [(w, *(of(p, n) for p in parts)) for w, *parts in rules.values() for n in range(40)]
    ends = [text.replace("\n", end) for end in ("\n", "\r", "\r\n")]
    for data in (*ends, text.encode(), text.encode() + b"\n# the end"):
        grammar = parse_grammar(data)
        symbols, words = grammar.symbols, grammar.words
        pairs = [tuple(symbols[n] for n in rule) for rule in grammar.rules.tolist()]
        alone = [(symbols[n], words[word]) for n, word in grammar.word_rules.tolist()]
        logs = torch.cat([grammar.log_weights, grammar.log_word_weights])
        ranked = sorted(wanted, key=len, reverse=True)  # those of two symbols come first
        assert [*pairs, *alone] == [tuple(parts) for _, *parts in ranked]
        assert_close(logs.exp(), torch.tensor([w for w, *_ in ranked], dtype=logs.dtype))


@pytest.mark.parametrize("text", ["", "# nothing\n\n"])
def test_a_grammar_without_rules_is_refused(text):
    with pytest.raises(rg.errors.FileFormatError, match="has none"):
        parse_grammar(text)


def test_too_many_symbols_have_no_table():
    text = "\n".join(f"1 S{number} -> 'a'" for number in range(1000))
    grammar = parse_grammar(text)
    with pytest.raises(rg.errors.BudgetError, match="1,000 symbols"):
        print(grammar.log_rules)
    assert len(grammar.lexical(["a", "a"])) == 2
    tree = rg.Hypertree.parses(grammar, [["a"], ["a", "a"]])
    assert tree.log_partition().tolist() == [0.0, -math.inf]


@pytest.mark.long
def test_thousands_of_symbols_are_parsed_without_a_table():
    size, total = 3000, 5
    numbers = [(n, k) for n in range(size) for k in range(3)]
    rules = {(n, (7 * n + k) % size, (n + 5 * k) % size): 1 + k for n, k in numbers}
    lines = [f"{weight} S{a} -> S{b} S{c}" for (a, b, c), weight in rules.items()]
    lines += [f"1 S{n} -> 'w{n % 3}'" for n in range(size)]
    chart = defaultdict(
        float, {(i, i, n): 1.0 for i in range(total) for n in range(i % 3, size, 3)}
    )
    for width in range(1, total):
        for i in range(total - width):
            for (a, b, c), weight in rules.items():
                for m in range(i, i + width):
                    chart[i, i + width, a] += weight * chart[i, m, b] * chart[m + 1, i + width, c]
    tree = rg.Hypertree.parses(
        parse_grammar("\n".join(lines)), [[f"w{i % 3}" for i in range(total)]]
    )
    with pytest.raises(rg.errors.BudgetError):
        tree.rules.table(size, size)
    assert chart[0, total - 1, 0] > 0
    assert float(tree.log_partition().exp()) == pytest.approx(chart[0, total - 1, 0])
    trees = rg.trees.Trees(tree.sample(20, torch.Generator().manual_seed(0)))
    assert bool((tree.score(trees) > -math.inf).all())
    assert bool((tree.score(tree.viterbi()) >= tree.score(trees) - 1e-9).all())
    assert float(tree.k_best(2).scores[0]) == pytest.approx(float(tree.score(tree.viterbi())))


def test_rules_in_a_list_are_those_of_the_table():
    draw = torch.Generator().manual_seed(0)
    size, lines = 60, ['1 S0 -> "a"']
    for parent in range(size):
        first, second = torch.randint(size, (2, 20), generator=draw).tolist()
        pairs = dict.fromkeys(zip(first, second, strict=True))
        lines += [f"{1 + a % 7} S{parent} -> S{a} S{b}" for a, b in pairs]
        lines.append(f'{1 + parent % 3} S{parent} -> "w{parent % 5}"')
    grammar = parse_grammar("\n".join(lines))
    sentences = [[f"w{(7 * i) % 5}" for i in range(n)] for n in (1, 4, 6)]
    table = rg.Hypertree.parses(grammar, sentences)
    assert isinstance(table.rules, rg.trees.DenseRules)
    listed = replace(grammar, memory_bytes=1e5)
    tree = rg.Hypertree.parses(listed, sentences)
    assert isinstance(tree.rules, rg.trees.SparseRules)
    assert torch.equal(tree.rules.table(size, size), grammar.log_rules)
    torch.testing.assert_close(tree.log_partition(), table.log_partition())
    torch.testing.assert_close(tree.marginals(), table.marginals())
    torch.testing.assert_close(tree.score(tree.viterbi()), table.score(table.viterbi()))
    for place, word in enumerate(grammar.words):
        torch.testing.assert_close(grammar.lexical([word])[0], grammar.log_words[:, place])


TWO_KINDS = """
2 S -> NP-1 VP
3 S -> NP-2 VP
1 NP-1 -> "dogs"
5 NP-2 -> "dogs"
7 VP -> VP NP-1
4 VP -> "sleep"
"""


def test_coarse_rules_sum_over_parts_and_average_over_parents():
    few = parse_grammar(TWO_KINDS).coarsened(lambda symbol: symbol.split("-")[0])
    assert few.symbols == ("S", "NP", "VP")
    rules = few.log_rules.exp()
    assert_close(rules[0, 1, 2], torch.tensor(5.0, dtype=rules.dtype))
    assert_close(rules[2, 2, 1], torch.tensor(7.0, dtype=rules.dtype))
    assert_close(rules.sum(), torch.tensor(12.0, dtype=rules.dtype))
    assert_close(few.log_words.exp()[1].sum(), torch.tensor(3.0, dtype=rules.dtype))
    assert float(few.log_rules[1, 1, 1]) == -math.inf


def test_a_grammar_coarsened_to_itself_is_the_same():
    grammar = parse_grammar(TWO_KINDS)
    same = grammar.coarsened(str)
    assert same.symbols == grammar.symbols
    assert_close(same.log_rules, grammar.log_rules)
    assert_close(same.log_words, grammar.log_words)
