"""The parse command."""

import inspect
import json
import math
import re
import sys
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rdpgraph.trees import Trees

GRAMMAR = """
1.0 S -> NP VP
0.5 NP -> Det N
0.2 NP -> NP PP
0.3 NP -> "dogs"
0.6 VP -> V NP
0.3 VP -> VP PP
0.1 VP -> "sleep"
1.0 PP -> P NP
1.0 Det -> "the"
1.0 N -> "dog"
1.0 V -> "see"
1.0 P -> "with"
"""
LONG = "dogs see the dog with dogs"
LOW = "(S (NP dogs) (VP (V see) (NP (NP (Det the) (N dog)) (PP (P with) (NP dogs)))))"
HIGH = "(S (NP dogs) (VP (VP (V see) (NP (Det the) (N dog))) (PP (P with) (NP dogs))))"
COMMON = 0.3 * 0.6 * 0.5 * 0.3


@pytest.fixture
def parse(run, tmp_path):
    """Parse with the grammar; gives the exit code, standard output and standard error."""
    path = tmp_path / "grammar.txt"
    path.write_text(GRAMMAR)

    def call(*arguments, grammar=path):
        return run("parse", grammar, *arguments)

    return call


def test_best_trees_one_a_line(parse):
    code, out, _ = parse(LONG, "dogs sleep")
    assert code == 0
    assert out.splitlines() == [HIGH, "(S (NP dogs) (VP sleep))"]
    assert parse(LONG, "dogs sleep", "--task", "mbr")[1] == out


def test_log_z_and_marginals_are_sums_over_trees(parse):
    code, out, _ = parse(LONG, "see dogs", "--task", "logz", "--format", "json")
    assert code == 0
    first, second = json.loads(out)
    assert first["log_partition"] == pytest.approx(math.log(COMMON * (0.2 + 0.3)))
    assert second["log_partition"] is None
    code, out, _ = parse(LONG, "--task", "marginals", "--format", "json")
    (row,) = json.loads(out)
    found = {(s["first"], s["last"], s["symbol"]): s["probability"] for s in row["spans"]}
    assert found[2, 5, "NP"] == pytest.approx(0.4)
    assert found[1, 3, "VP"] == pytest.approx(0.6)
    assert found[0, 5, "S"] == pytest.approx(1.0)
    code, out, _ = parse(LONG, "--task", "marginals")
    assert re.search(r"0\.400000 +NP +the dog with dogs\n", out)


def test_draws_are_trees_and_a_seed_repeats_them(parse):
    code, out, _ = parse(LONG, "--task", "sample", "--count", "40", "--seed", "0")
    assert code == 0
    assert set(out.splitlines()) == {LOW, HIGH}
    assert len(out.splitlines()) == 40
    assert parse(LONG, "--task", "sample", "--count", "40", "--seed", "0")[1] == out
    rows = json.loads(parse(LONG, "--task", "sample", "--format", "json")[1])
    (tree,) = rows[0]["trees"]
    expected = math.log(0.4 if tree["tree"] == LOW else 0.6)
    assert tree["log_probability"] == pytest.approx(expected)


def test_files_and_pictures(parse, tmp_path):
    pytest.importorskip("matplotlib")
    picture, target = tmp_path / "tree.svg", tmp_path / "tree.txt"
    code, out, _ = parse(LONG, "--draw", picture, "--output", target)
    assert (code, out) == (0, "")
    assert target.read_text() == HIGH + "\n"
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["see dogs"], 1, "no tree for 'see dogs'"),
        (["dogs bark"], 1, "'bark'"),
        ([""], 1, "one word"),
        ([LONG, "--draw", "tree.xyz"], 1, "picture"),
        ([LONG, "--task", "logz", "--draw", "tree.png"], 2, "trees"),
        ([LONG, "--count", "5"], 2, "--task sample"),
        (
            [LONG, "--draw", "tree.png", "--output", "tree.png"],
            1,
            "already the target of another output",
        ),
        ([LONG, "--task", "sample", "--count", "0"], 2, "count"),
        ([LONG, "--task", "sample", "--count", "9" * 20], 2, "count"),
        ([LONG, "--task", "sample", "--count", "1000", "--memory", "1MB"], 1, "1,000 trees"),
        ([LONG, "--memory", "1kB"], 1, "parse needs"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(parse, arguments, code, words):
    found, out, err = parse(*arguments)
    assert (found, out) == (code, "")
    assert words in err


def test_a_grammar_that_cannot_be_read(parse, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_text("1.0 S -> NP\n")
    code, _, err = parse("dogs", grammar=path)
    assert code == 1
    assert "line 1" in err
    assert parse("dogs", grammar=tmp_path / "none.txt")[0] == 1


def test_answers_are_not_written_over_the_grammar(parse, tmp_path):
    path = tmp_path / "grammar.txt"
    same = tmp_path / "x.png"
    for arguments in (["--output", path], ["--output", same, "--draw", same]):
        code, out, err = parse("dogs sleep", *arguments)
        assert (code, out, err.count("\n")) == (1, "", 1)
    assert path.read_text() == GRAMMAR
    assert not same.exists()


@pytest.mark.long
def test_a_tree_of_more_words_than_python_recurses(parse, tmp_path):
    """Trees are written, read and laid out without a nested call for each word."""
    states = torch.full((300, 300), -1)
    states[0] = 0
    states[torch.arange(300), torch.arange(300)] = 1
    depth, whole = len(inspect.stack(0)), sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(depth + 50)
        written = Trees(states).bracketed(["w"] * 300, ["S", "N"])
    finally:
        sys.setrecursionlimit(whole)
    assert written.startswith("(S " * 299 + "(N w)")
    assert written.count("(N w)") == 300
    pytest.importorskip("matplotlib")
    words = "dogs see the dog" + " with dogs" * 40
    code, out, err = parse(words, "--draw", tmp_path / "tree.svg")
    assert (code, err) == (0, "")
    assert out.count("(PP ") == 40
    assert (tmp_path / "tree.svg").read_text().count("dogs") > 40


class Held(TorchDispatchMode):
    """Counts the bytes of tensors that are there at a time."""

    def __init__(self):
        super().__init__()
        self.sizes, self.peak = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                if storage.data_ptr() not in self.sizes:
                    self.sizes[storage.data_ptr()] = storage.nbytes()
                    weakref.finalize(storage, self.sizes.pop, storage.data_ptr(), None)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return made


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("task", ["viterbi", "mbr", "sample", "marginals", "logz"])
@pytest.mark.parametrize("words", [20, 60])
def test_what_parsing_takes_is_predicted(task, words, parse, tmp_path):
    """Less memory than the tensors of an answer take is refused."""
    path = tmp_path / "g.txt"
    path.write_text('0.5 S -> S S\n0.3 S -> A B\n0.2 S -> B A\n1.0 A -> "a"\n1.0 B -> "b"\n')
    given = ("a b " * (words // 2), "--task", task)
    with Held() as held:
        code, _, err = parse(*given, grammar=path)
    assert (code, err) == (0, "")
    code, _, err = parse(*given, "--memory", f"{held.peak - 1}B", grammar=path)
    assert code == 1
    assert "parse needs" in err
