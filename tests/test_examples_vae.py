"""The experiments with structured VAEs run, in small, and go on where they were killed."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

FOLDER = Path(__file__).parents[1] / "examples" / "paper"


@pytest.fixture
def loaded(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(FOLDER))

    def module(name):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        found = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, found)
        spec.loader.exec_module(found)
        return found

    shared = module("vae")
    yield lambda name: shared if name == "vae" else module(name)
    sys.modules.pop("hmm_lm", None)


SMALL = ("--states", 8, "--steps", 3, "--least", 1, "--tokens", 60, "--hidden", 8,
         "--dimension", 4, "--save-every", 0)  # fmt: skip


def call(module, *arguments):
    app = typer.Typer()
    app.command()(module.main)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def weights(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


@pytest.mark.long
def test_table_5_in_small_and_killed_in_between(loaded, text, tmp_path, monkeypatch):
    module, vae = loaded("table5"), loaded("vae")
    asked = ("--text", text, *SMALL, "--keep", 0.5, "--seeds", 1, "--samples", 3,
             "--methods", "rdp", "--every", 2)  # fmt: skip
    shown = call(module, "--out", tmp_path / "whole", *asked).stdout
    assert "After 2 of 3 updates of each" in shown
    assert "After 3 of 3 updates of each" in shown
    assert "rdp-8" in shown
    assert "nan" not in shown
    rows = json.loads((tmp_path / "whole" / "table5-8.json").read_text())
    assert [row["method"] for row in rows] == ["rdp"]
    assert all(row["dev"] > 0 and len(row["log"]) == 3 for row in rows)
    for how in ("own", "all"):
        assert all(1 <= row[f"worth, {how}"] <= row[f"in use, {how}"] + 1e-6 for row in rows)
    assert (tmp_path / "whole" / "table5-8.png").stat().st_size

    step, steps = vae.step, []

    def killed(*arguments):
        steps.append(arguments)
        if len(steps) in (2, 4):
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(vae, "step", killed)
    for _ in range(3):
        call(module, "--out", tmp_path / "cut", *asked)
    assert len(steps) == 5
    again = json.loads((tmp_path / "cut" / "table5-8.json").read_text())
    name = "8-2-2-0"
    runs = (weights(tmp_path / part / name).values() for part in ("whole", "cut"))
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    for one, other in zip(rows, again, strict=True):
        assert {k: v for k, v in one.items() if "seconds" not in k} == {
            k: v for k, v in other.items() if "seconds" not in k
        }


@pytest.mark.long
def test_figure_2_in_small(loaded, text, tmp_path):
    module = loaded("figure2")
    asked = (*SMALL, "--keep", 4, "--steps", 1, "--count", 20)
    shown = call(module, "--out", tmp_path, "--text", text, *asked).stdout
    found = json.loads((tmp_path / "figure2.json").read_text())
    assert list(found) == ["4/0", "3/1", "2/2", "0/4"]
    assert all(f"K1/K2 = {name}" in shown for name in found)
    for one in found.values():
        for how in ("own", "all"):
            assert sum(one[how]["shares"]) == pytest.approx(1.0)
            assert 1.0 <= one[how]["worth"] <= one[how]["in use"] + 1e-6
    assert (tmp_path / "figure2.png").stat().st_size


def told(result, *words):
    assert result.exit_code == 1
    (line,) = (line for line in result.output.splitlines() if line.startswith("Error: "))
    assert all(word in line for word in words), line


@pytest.mark.long
def test_what_cannot_be_is_told_in_a_line(loaded, text, tmp_path):
    module = loaded("table5")
    asked = ("--text", text, "--methods", "full", "--seeds", 1, "--samples", 1)
    call(module, "--out", tmp_path / "run", *asked, *SMALL)
    other = (*SMALL[:3], 7, *SMALL[4:])
    told(call(module, "--out", tmp_path / "run", *asked, *other), "another steps", "another folder")
    path = tmp_path / "run" / "8-0-0-0" / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:500])
    told(call(module, "--out", tmp_path / "run", *asked, *SMALL), "checkpoint.pt", "damaged")
    (tmp_path / "few.txt").write_text("a cat\n")
    told(call(module, "--out", tmp_path / "b", *asked[2:], "--text", tmp_path / "few.txt"), "few")
    if importlib.util.find_spec("transformers") is None:
        gpt = ("--encoder", "gpt2", "--out", tmp_path / "c")
        told(call(module, *asked, *SMALL, *gpt), "gpt2", "transformers")


def test_the_encoder_reads_both_ways_and_not_beyond_a_length(loaded):
    vae = loaded("vae")
    torch.manual_seed(0)
    encoder = vae.Encoder(9, 4)
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    both = encoder(tokens, torch.tensor([4, 2]))
    alone = encoder(tokens[1:, :2], torch.tensor([2]))
    assert torch.allclose(both[1, :2], alone[0], atol=1e-6)
    changed = tokens.clone()
    changed[0, 3] = 7
    assert not torch.allclose(encoder(changed, torch.tensor([4, 2]))[0, 0], both[0, 0])


def test_pieces_of_words_are_packed_and_a_word_is_read_at_its_last(loaded):
    vae = loaded("vae")
    words = [[7], [3, 4], [5, 6, 8]]
    pieces = torch.tensor([[*some, *[0] * (3 - len(some))] for some in words])
    counts = torch.tensor([len(some) for some in words])
    tokens, lengths = torch.tensor([[1, 0, 2, 1], [2, 1, 0, 0], [0, 0, 0, 0]]), [4, 2, 1]
    ids, last = vae.packed(pieces, counts, tokens, torch.tensor(lengths))
    for row, (line, length) in enumerate(zip(tokens.tolist(), lengths, strict=True)):
        said = [words[word] for word in line[:length]]
        whole = [piece for some in said for piece in some]
        assert ids[row].tolist() == whole + [0] * (ids.shape[1] - len(whole))
        for place, some in enumerate(said):
            end = int(last[row, place])
            assert ids[row, end + 1 - len(some) : end + 1].tolist() == some
