"""Patterns of words against Python's regular expressions, over all short sequences."""

import itertools
import re

import pytest
import torch

import rdpgraph as rg

LETTERS = "abc"
EVERY = ["".join(word) for n in range(6) for word in itertools.product(LETTERS, repeat=n)]
EXPRESSIONS = [
    "a b* c", "(a|b)* c?", "(a b){1,2} | c", "a{2,3}", "(a? b+)* c{0,1}", "", "( . . )*", "a . c",
    "((a|b) c)+ | b{2}", "a{2,} .", "(a*)*",
]  # fmt: skip


def accepted(pattern, letters=LETTERS, longest=5):
    """The sequences up to a length, by walks in the table."""
    table, found = pattern.table(), []
    for n in range(longest + 1):
        for word in itertools.product(range(len(letters)), repeat=n):
            place = 0
            for letter in word:
                place = int(table[place, letter])
            if pattern.accepted[place]:
                found.append("".join(letters[letter] for letter in word))
    return found


def matching(expression):
    fits = re.compile(expression.replace(" ", "")).fullmatch
    return {text for text in EVERY if fits(text)}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_pattern_accepts_what_its_expression_matches(expression):
    assert set(accepted(rg.nn.Pattern.parse(expression, LETTERS))) == matching(expression)
    spelled = rg.nn.Pattern.spelled(expression.replace(" ", ""), LETTERS)
    assert set(accepted(spelled)) == matching(expression)


@pytest.mark.parametrize("one", EXPRESSIONS[:4])
@pytest.mark.parametrize("other", EXPRESSIONS[3:6])
def test_patterns_are_joined_as_sets_are(one, other):
    first, second = (rg.nn.Pattern.parse(each, LETTERS) for each in (one, other))
    left, right = matching(one), matching(other)
    assert set(accepted(first & second)) == left & right
    assert set(accepted(first | second)) == left | right
    assert set(accepted(~first)) == set(EVERY) - left
    cuts = {
        text for text in EVERY
        if any(text[:at] in left and text[at:] in right for at in range(len(text) + 1))
    }  # fmt: skip
    assert set(accepted(first + second)) == cuts


@pytest.mark.parametrize(
    ("one", "other"), [("a a*", "a+"), (". . .", ".{3}"), ("(a|b)*", "(a* b*)*"), ("a{2}", "a a")]
)
def test_equal_sets_have_equal_automata(one, other):
    first, second = (rg.nn.Pattern.parse(each, LETTERS) for each in (one, other))
    assert torch.equal(first.table(), second.table())


def test_tokens_spell_a_text_in_every_way():
    tokens = ["a", "ab", "b", "ba", "", "c"]
    pattern = rg.nn.Pattern.spelled(r"(ab)*[^ab]", tokens)
    table = pattern.table()
    for n in range(5):
        for word in itertools.product(range(6), repeat=n):
            place = 0
            for token in word:
                place = int(table[place, token])
            text = "".join(tokens[token] for token in word)
            fits = re.fullmatch(r"(ab)*[^ab]", text) is not None and 4 not in word
            assert pattern.accepted[place] == fits


def test_phrases_occur_or_do_not():
    some = rg.nn.Pattern.containing([[0, 1], [1, 1, 2]], 3)
    assert len(some.accepted) == 5  # those of Aho and Corasick
    expected = {text for text in EVERY if "ab" in text or "bbc" in text}
    assert set(accepted(some)) == expected
    assert set(accepted(~some)) == set(EVERY) - expected


def test_one_of_some_sequences():
    texts = {"a", "abc", "abb", "cc", ""}
    pattern = rg.nn.Pattern.one_of([[LETTERS.index(x) for x in text] for text in texts], 3)
    assert set(accepted(pattern)) == texts


def test_what_is_ended_has_one_length():
    pattern = rg.nn.Pattern.parse("a* b?", LETTERS).ended(2)
    fits = re.compile("a*b?c+").fullmatch
    assert set(accepted(pattern)) == {text for text in EVERY if fits(text)}


def test_an_automaton_of_a_pattern_is_its_table():
    automaton = rg.nn.Pattern.parse("a .* c", LETTERS).automaton(4, dtype=torch.float64)
    assert automaton.log_accept.dtype == torch.float64
    sums = automaton.table(4).exp()
    for word in itertools.product(range(3), repeat=4):
        assert float(sums[word]) == float(word[0] == 0 and word[3] == 2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: rg.nn.Pattern.parse("(a", LETTERS), "cannot read an open parenthesis in '\\(a'"),
        (lambda: rg.nn.Pattern.parse("a)", LETTERS), r"cannot read '\)'"),
        (lambda: rg.nn.Pattern.parse("(" * 500 + "a", LETTERS), "more than 100 levels"),
        (lambda: rg.nn.Pattern.parse("a" + "*" * 500, LETTERS), "more than 100 levels"),
        (lambda: rg.nn.Pattern.parse("* a", LETTERS), "nothing before it"),
        (lambda: rg.nn.Pattern.parse("a{3", LETTERS), "cannot read '{3'"),
        (lambda: rg.nn.Pattern.parse("a{3,2}", LETTERS), "least <= most; got 3 and 2"),
        (lambda: rg.nn.Pattern.parse("a d", LETTERS), "word 'd', which is not in the vocabulary"),
        (lambda: rg.nn.Pattern.parse("7", 7), "word '7'"),
        (lambda: rg.nn.Pattern.spelled("^a", LETTERS), "whole texts; leave out '\\^'"),
        (lambda: rg.nn.Pattern.spelled("[b-a]", LETTERS), "bad character range"),
        (lambda: rg.nn.Pattern.one_of([[3]], 3), "words 0 to 2; got 3"),
        (
            lambda: rg.nn.Pattern.parse("a", 11 * "a") | rg.nn.Pattern.parse("a", LETTERS),
            "one vocabulary; got those of 1 and 3 words",
        ),
    ],
)
def test_bad_patterns_are_refused(build, message):
    with pytest.raises(rg.errors.ModelError, match=message):
        build()
