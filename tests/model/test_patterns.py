"""Patterns of words against Python's regular expressions, over all short sequences."""

import itertools
import random
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


CUT = "abAB1_ \n\t.-^]"  # letters, signs and blanks that classes, escapes and flags tell apart
# Parts of Python's syntax of regular expressions that a pattern reads, in the order of its manual.
READ = [
    ".", "(?s).", "(?s:.)b", "(?s-i:.)|(?i:a)", "a*", "a+", "a?", "a*?b", "a+?", "a??b", "a{2}",
    "a{1,}", "a{,2}", "a{1,2}", "a{,}", "a{2}?", "a{1,2}?b", "a{,1}?", "a{,1}b",
    r"\.", r"\^|\]|\-", "[ab]", "[^ab]", "[a-b1]", "[]a]", "[^]a]", "[-a]", "[a-]", r"[\]\-]",
    r"[\w]", r"[^\W_]", r"[\s\d]", "[.]", "[(]|[)]|[|*+?{]|a", "[^a]b", r"[\b]|a", "a|b|1",
    "(a|b)1", "(a|)b", "|a", "a||b", "()", "(|a){2}", "(a)(b)", "(?:a|b)+", "(?P<name>a)b",
    "(?i)ab", "(?i:a)b", "(?i:a(?-i:b))a", "(?i)[^a]", "(?i)[A-B]{2}", r"(?i)\x61", "(?im)a",
    "(?u)a", r"(?a)\w", r"(?a:\w)\w", r"(?a:(?u:\w))", "(?i)(?s).a", "a(?#note)b", "a(?#note)*",
    "(?x) a b * # note\n 1", r"(?x) a\ b [ ] a", "(?x: a b ) ", "(?x)a(?-x: )b", "(?x) a {2}",
    "((a|b)*1)*", "((a?)*b?)*", "(a{1,2}){2}", "((a|ab)(1|b1))?", "(?:a*)+?",
    r"\d", r"\D", r"\s", r"\S", r"\w", r"\W", r"\n|\t|\f|\r|\v|\a", r"\\", r"\x41", r"\x41b",
    r"\u0041", r"\U00000041", r"\N{LATIN SMALL LETTER A}", r"[\N{DIGIT ONE}\x62]", r"\0|\01",
    r"\141", r"\0141?", r"[\141-\142]", "a{", "a{}", "a{a}|a", "a{1", "a{ 1}|b", "a]", "a}", "}",
    "-", "\n", "\\\n", " ", "#a",
]  # fmt: skip
# Parts that it refuses: the expression, the part and where it is.
REFUSED = [
    ("^a", "^", 0), ("a$", "$", 1), (r"\Aa", r"\A", 0), (r"a\Z", r"\Z", 1), ("(?m)^a", "^", 4),
    (r"a\b", r"\b", 1), (r"\Ba", r"\B", 0), (r"[\b]\b", r"\b", 4), ("a(?=b)b", "(?=", 1),
    ("(?!b)a", "(?!", 0), ("a(?<=a)", "(?<=", 1), ("a(?<!b)", "(?<!", 1), ("a*+", "*+", 1),
    ("a++", "++", 1), ("a?+", "?+", 1), ("a{1,2}+a", "{1,2}+", 1), ("(?>a*)a", "(?>", 0),
    (r"(a)\1", r"\1", 3), ("(?P<n>a)(?P=n)", "(?P=", 8), ("(a)?(?(1)b|c)", "(?(", 4),
    ("(?x) a ^", "^", 7), (r"(?i:a\b)", r"\b", 5),
]  # fmt: skip


def accepted_texts(pattern, letters, longest):
    table, found = pattern.table().tolist(), {}
    for n in range(longest + 1):
        for word in itertools.product(range(len(letters)), repeat=n):
            place = 0
            for letter in word:
                place = table[place][letter]
            found["".join(letters[letter] for letter in word)] = pattern.accepted[place]
    return found


@pytest.mark.parametrize("expression", READ)
def test_a_spelled_pattern_accepts_what_python_matches_in_full(expression):
    found = accepted_texts(rg.nn.Pattern.spelled(expression, CUT), CUT, 3)
    fits = re.compile(expression).fullmatch
    assert found == {text: fits(text) is not None for text in found}


def test_letters_beyond_ascii_are_those_of_python():
    letters = "kK\u212a\u00e9\u00c9\u0663\u00a0\u2028\x00"
    for expression in (
        "(?i)k", "(?i)[j-l]", "(?ia)k", r"\w", r"(?a)\w", r"\d", r"(?a)\d", r"\s", r"(?a)\s", ".",
        "(?i)\u00e9", "[^k]", r"(?i)[^\u00c9]", r"\N{ARABIC-INDIC DIGIT THREE}", r"\0", r"\W",
    ):  # fmt: skip
        found = accepted_texts(rg.nn.Pattern.spelled(expression, letters), letters, 2)
        fits = re.compile(expression).fullmatch
        assert found == {text: fits(text) is not None for text in found}, expression


def test_parts_in_any_order_are_read_as_python_does_or_refused():
    random_numbers, read = random.Random(0), 0
    parts = [
        *"ab1|()*+?.]{}^$-", "(?:", "(?i:", "(?x: ", "[^a]", "{,1}", "{1,2}", "{2", r"\w", r"\b",
        r"\1", "a*", "(a|b)", "(?#c)", "(?P<n>", "(?=", "[a", r"\x61", " ", "#",
    ]  # fmt: skip
    for _ in range(600):
        expression = "".join(random_numbers.choices(parts, k=random_numbers.randint(1, 6)))
        try:
            pattern = rg.nn.Pattern.spelled(expression, "aB1 ")
        except rg.errors.ModelError:
            continue
        fits, read = re.compile(expression).fullmatch, read + 1
        found = accepted_texts(pattern, "aB1 ", 3)
        assert found == {text: fits(text) is not None for text in found}, expression
    assert read > 60


@pytest.mark.parametrize(("expression", "part", "at"), REFUSED)
def test_a_part_that_is_not_supported_is_named_with_its_position(expression, part, at):
    re.compile(expression)  # Python reads it
    with pytest.raises(rg.errors.ModelError) as error:
        rg.nn.Pattern.spelled(expression, CUT)
    said = str(error.value)
    assert said.startswith(f"Pattern cannot read {part!r} at position {at} of {expression!r}: ")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("refused", "advised"),
    [
        ("^ab$", "ab"), (r"(?s).*\bab\b.*", r"(?s)(.*\W)?ab(\W.*)?"), ("a*+b", "a*b"),
        ("(?>a|b)1", "(a|b)1"), (r"(a|b)\1", "aa|bb"),
    ],
)  # fmt: skip
def test_what_is_advised_in_place_of_a_refused_part_is_read(refused, advised):
    found = accepted_texts(rg.nn.Pattern.spelled(advised, CUT), CUT, 3)
    fits = re.compile(refused).fullmatch
    assert found == {text: fits(text) is not None for text in found}


@pytest.mark.parametrize(("words", "letters"), [("a {,2} b", "a{,2}b"), ("a+? . {,}", "a+?.{,}")])
def test_words_are_repeated_as_letters_are(words, letters):
    assert set(accepted(rg.nn.Pattern.parse(words, LETTERS))) == matching(letters)


def test_a_sign_after_a_backslash_is_a_word():
    pattern = rg.nn.Pattern.parse(r"\. \* \\", [".", "*", "\\"])
    assert accepted(pattern, ".*\\", 3) == [".*\\"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: rg.nn.Pattern.parse("(a", LETTERS), "parenthesis is not closed"),
        (lambda: rg.nn.Pattern.parse("a)", LETTERS), r"cannot read '\)'"),
        (lambda: rg.nn.Pattern.parse("(" * 500 + "a", LETTERS), "more than 100 levels"),
        (lambda: rg.nn.Pattern.spelled("(" * 200 + "a" + ")" * 200, LETTERS), "100 levels"),
        (lambda: rg.nn.Pattern.spelled("a**", LETTERS), "multiple repeat at position 2"),
        (lambda: rg.nn.Pattern.parse("a**", LETTERS), r"'\*' at position 2 .* in parentheses"),
        (lambda: rg.nn.Pattern.parse("a b *+", LETTERS), r"read '\*\+' at position 4 .* last \+"),
        (lambda: rg.nn.Pattern.parse(r"a \b", LETTERS), r"'\\\\b' at position 2"),
        (lambda: rg.nn.Pattern.parse("* a", LETTERS), "nothing before it"),
        (lambda: rg.nn.Pattern.parse("a{3", LETTERS), "cannot read '{3'"),
        (lambda: rg.nn.Pattern.parse("a{3,2}", LETTERS), "least <= most; got 3 and 2"),
        (lambda: rg.nn.Pattern.parse("a d", LETTERS), "word 'd', which is not in the vocabulary"),
        (lambda: rg.nn.Pattern.parse("7", 7), "word '7'"),
        (lambda: rg.nn.Pattern.spelled("[b-a]", LETTERS), "bad character range"),
        (lambda: rg.nn.Pattern.one_of([[3]], 3), "words 0 to 2; got 3"),
        (
            lambda: rg.nn.Pattern.parse("a", 11 * "a") | rg.nn.Pattern.parse("a", LETTERS),
            "one vocabulary only; got those of 1 and 3 words",
        ),
    ],
)
def test_bad_patterns_are_refused(build, message):
    with pytest.raises(rg.errors.ModelError, match=message):
        build()
