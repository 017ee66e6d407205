"""The examples that train hidden Markov models run, in small, and go on where they were."""

import gzip
import importlib.util
import json
import math
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import rdpgraph as rg

EXAMPLES = Path(__file__).parents[1] / "examples"


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(module, *arguments):
    result = CliRunner().invoke(module.app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


SMALL = ("--states", 8, "--dimension", 8, "--tokens", 40, "--epochs", 2, "--rate", 0.05,
         "--save-every", 0)  # fmt: skip
SMALL_RANK = (*SMALL, "--clusters", 0, "--rank", 4)


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [SMALL_RANK, (*SMALL_RANK, "--bfloat16"), (*SMALL, "--clusters", 4)]
)
def test_a_language_model_learns_and_is_evaluated(text, tmp_path, kind):
    pytest.importorskip("matplotlib")
    module, out = loaded("hmm_lm"), tmp_path / "run"
    call(module, "train", text, "--valid", text, "--out", out, *kind)
    log = json.loads((out / "log.json").read_text())
    assert [entry["epoch"] for entry in log] == [1, 2]
    assert log[-1]["valid"] < log[0]["valid"] < 9  # there are nine words
    assert (out / "perplexity.png").stat().st_size
    shown = call(module, "evaluate", text, "--out", out).stdout
    assert float(shown.split()[-1]) == pytest.approx(log[-1]["valid"], abs=0.006)


@pytest.mark.long
def test_a_run_that_was_cut_off_ends_as_one_that_was_not(text, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    module = loaded("hmm_lm")
    call(module, "train", text, "--valid", text, "--out", tmp_path / "whole", *SMALL_RANK)
    whole_save, saves = module.save, []

    def cut(*arguments):
        whole_save(*arguments)
        saves.append(arguments)
        if len(saves) in (3, 9):
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "save", cut)
    for _ in range(3):
        call(module, "train", text, "--valid", text, "--out", tmp_path / "cut", *SMALL_RANK)
    assert len(saves) > 9
    states = [
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)
        for name in ("whole", "cut")
    ]
    for name, values in states[0]["model"].items():
        assert torch.equal(values, states[1]["model"][name])
    scores = [[(entry["train"], entry["valid"]) for entry in state["log"]] for state in states]
    assert scores[0] == scores[1]


@pytest.mark.long
@pytest.mark.timeout(900)  # five processes
def test_a_run_that_was_killed_ends_as_one_that_was_not(text, tmp_path):
    pytest.importorskip("matplotlib")
    script, draw = EXAMPLES / "hmm_lm.py", random.Random(0)
    options = [*map(str, SMALL_RANK), "--epochs", "6"]

    def begun(name):
        run = [sys.executable, script, "train", text, "--out", tmp_path / name, *options]
        return subprocess.Popen(run, stdout=subprocess.DEVNULL)

    assert begun("whole").wait() == 0
    path, killed = tmp_path / "cut" / "checkpoint.pt", 0
    for _ in range(3):
        before = path.stat().st_mtime_ns if path.exists() else 0
        run = begun("cut")
        while run.poll() is None and (not path.exists() or path.stat().st_mtime_ns == before):
            time.sleep(0.001)
        time.sleep(draw.random() / 10)
        run.kill()
        killed += run.wait() == -signal.SIGKILL
    assert killed
    assert begun("cut").wait() == 0
    whole, cut = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)
        for name in ("whole", "cut")
    )
    for name, values in whole["model"].items():
        assert torch.equal(values, cut["model"][name])
    assert [entry["train"] for entry in whole["log"]] == [entry["train"] for entry in cut["log"]]


def test_the_perplexity_is_of_every_token_and_the_end(text):
    module = loaded("hmm_lm")
    lines = module.read(text, characters=False)
    assert len(lines) == 60
    assert all(line[-1] == "<eos>" for line in lines)
    sizes = {"states": 1, "rank": None, "dimension": 4, "dropout": 0.0}
    model, state = module.begun(lines, sizes, least=1, characters=False, seed=0)
    with torch.no_grad():
        model.emitting.zero_()  # one state, the frequencies of the text: its entropy
    words = [word for line in lines for word in line]
    # "<unk>" never occurs, and counts as half a word.
    total = len(words) + 0.5
    expected = math.exp(-sum(math.log(words.count(word) / total) for word in words) / len(words))
    found = module.perplexity(model, module.numbered(lines, state["words"]), 50)
    assert found == pytest.approx(expected, rel=1e-4)


TINY = (
    "--clusters",
    0,
    "--states",
    4,
    "--rank",
    2,
    "--dimension",
    4,
    "--tokens",
    90,
    "--epochs",
    1,
)


@pytest.fixture
def begun_run(text, tmp_path):
    """The module, and the folder of a run of one epoch."""
    pytest.importorskip("matplotlib")
    module = loaded("hmm_lm")
    call(module, "train", text, "--out", tmp_path / "run", *TINY)
    return module, tmp_path / "run"


def told(result, *words):
    """Require one line of error with some words, and nothing else."""
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("Error: ")
    assert all(word in line for word in words), line


def damage(path, how):
    data = path.read_bytes()
    state = torch.load(path, weights_only=True)
    weights = next(iter(state["model"].values()))
    if how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("hello\n")
    elif how == "flipped":
        at = data.index(weights.numpy().tobytes()) + 1
        path.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "keys":
        torch.save({"model": 3}, path)
    elif how == "sizes":
        torch.save(state | {"sizes": state["sizes"] | {"states": 5}}, path)
    elif how == "list":
        torch.save([1, 2], path)


@pytest.mark.long
@pytest.mark.parametrize(
    "how", ["cut", "empty", "text", "flipped", "folder", "keys", "sizes", "list"]
)
def test_a_damaged_checkpoint_is_told_in_a_line(begun_run, text, how):
    module, out = begun_run
    damage(out / "checkpoint.pt", how)
    told(call(module, "train", text, "--out", out, "--epochs", 2), "checkpoint.pt", "damaged")
    told(call(module, "evaluate", text, "--out", out), "checkpoint.pt", "damaged")


def test_a_run_that_diverged_is_told_in_a_line(begun_run, text):
    module, out = begun_run
    state = torch.load(out / "checkpoint.pt", weights_only=True)
    del state["digest"]
    next(iter(state["model"].values()))[0] = math.nan
    torch.save(state | {"digest": module.digest(state)}, out / "checkpoint.pt")
    told(call(module, "train", text, "--out", out), "not finite", "--rate")


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [("--states", 5), ("--rank", 0), ("--seed", 1), ("--tokens", 50), ("--characters",)]
)
def test_other_options_than_a_run_was_begun_with_are_refused(begun_run, text, options):
    module, out = begun_run
    before = (out / "checkpoint.pt").read_bytes()
    told(call(module, "train", text, "--out", out, *options), "other options", options[0])
    assert (out / "checkpoint.pt").read_bytes() == before


@pytest.mark.long
def test_another_text_is_refused_and_what_may_change_is_said(begun_run, text, tmp_path):
    module, out = begun_run
    (tmp_path / "other.txt").write_text("the cat sees\n")
    told(call(module, "train", tmp_path / "other.txt", "--out", out), "another text")
    result = call(module, "train", text, "--out", out, "--epochs", 2)
    assert "--epochs is 2 from here on; it was 1." in result.stdout
    assert len(json.loads((out / "log.json").read_text())) == 2


@pytest.mark.long
def test_the_log_is_whole_after_a_kill_between_two_writes(begun_run, text, monkeypatch):
    module, out = begun_run
    killed = monkeypatch.context()
    with killed as patch:
        patch.setattr(module, "report", lambda out, log: 1 / 0 if len(log) == 2 else None)
        with pytest.raises(ZeroDivisionError):
            call(module, "train", text, "--out", out, "--epochs", 2)
    assert len(json.loads((out / "log.json").read_text())) == 1
    call(module, "train", text, "--out", out)
    assert len(json.loads((out / "log.json").read_text())) == 2


@pytest.mark.long
def test_a_second_run_in_a_folder_is_refused(begun_run, text):
    pytest.importorskip("fcntl")
    module, out = begun_run
    with module.alone(out):
        told(call(module, "train", text, "--out", out), "Another run")
    assert call(module, "train", text, "--out", out).exit_code == 0


@pytest.mark.long
def test_samples_of_another_model_become_one_that_is_read(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("safetensors")
    module, samples, out = loaded("hmm_lm"), tmp_path / "samples.txt", tmp_path / "run"
    samples.write_text("3 1 4 1 5\n2 6 5\n" * 4)
    call(module, "train", samples, "--numbers", 8, "--out", out, *SMALL_RANK, "--epochs", 1)
    call(module, "train", samples, "--out", out)  # goes on: nothing is left to do
    call(module, "export", tmp_path / "model", "--out", out)
    read = rg.nn.HMM.from_pretrained(tmp_path / "model").eval()
    tokens = torch.tensor([[3, 1, 4], [2, 7, 0]])
    trained, _ = module.load(out)
    assert torch.equal(read(tokens), trained.eval()(tokens))
    assert json.loads((tmp_path / "model" / "words.json").read_text()) == list("01234567")
    refused = call(module, "train", samples, "--numbers", 6, "--out", tmp_path / "less")
    assert refused.exit_code == 2
    assert "no number below 6" in " ".join(refused.output.split())


@pytest.mark.long
def test_music_is_learnt_from_a_mat_file(tmp_path):
    io = pytest.importorskip("scipy.io")
    numpy = pytest.importorskip("numpy")
    draw = numpy.random.default_rng(0)
    chords = (draw.random((3, 88)) < 0.05).astype("uint8")

    def rolls(count):
        """Three chords, one after another."""
        made = numpy.empty((1, count), dtype=object)
        for number in range(count):
            steps = draw.integers(3) + numpy.arange(draw.integers(5, 12))
            made[0, number] = chords[steps % 3]
        return made

    path = tmp_path / "music.mat"
    io.savemat(path, {"traindata": rolls(12), "validdata": rolls(4), "testdata": rolls(4)})
    module, out = loaded("hmm_music"), tmp_path / "run"
    call(module, path, "--out", out, "--states", 12, "--rank", 6, "--epochs", 8,
         "--steps", 60, "--dropout", 0.1, "--prior", 0.1)  # fmt: skip
    found = json.loads((out / "log.json").read_text())
    bound = min(epoch["valid"] for epoch in found["epochs"])  # two of the twelve keys
    assert 0.9 * bound < found["nats"]["valid"] <= bound + 1e-4
    assert found["nats"]["test"] < 0.5 * found["epochs"][0]["valid"]


@pytest.fixture(params=[99, 198])
def music(request):
    """The module, parameters without memory or with it, and two sequences."""
    module, generator = loaded("hmm_music"), torch.Generator().manual_seed(0)
    rolls = [(torch.rand(n, 88, generator=generator) < 0.1).double() for n in (4, 2)]
    notes = torch.cat([module.placed(roll[None], torch.tensor([5]))[0] for roll in rolls])
    often = 0.3 * torch.rand(request.param, generator=generator)
    parameters = module.begun(notes, often, states=5, rank=3, generator=generator)
    return module, module.Parameters(*(values.double() for values in parameters)), rolls


def test_the_likelihood_of_music_sums_over_keys_and_paths(music):
    _, parameters, rolls = music
    table = parameters.out.exp() @ parameters.into.exp().mT
    assert torch.allclose(table.sum(1), torch.ones(5, dtype=torch.float64), rtol=1e-6)
    every = torch.arange(12).expand(2, 12)
    for found, roll in zip(parameters.log_likelihood(rolls, every), rolls, strict=True):
        ways = []
        for key in range(12):
            on = parameters.on.exp()
            silent, sounding = on[:, key : key + 88], on[:, -99:][:, key : key + 88]
            alpha, before = parameters.start.exp(), torch.zeros(88).double()
            for step, chord in enumerate(roll):
                chances = torch.where(before > 0, sounding, silent)
                shown = torch.where(chord > 0, chances, 1 - chances).prod(1)
                alpha = (alpha @ table if step else alpha) * shown
                before = chord
            ways.append(alpha.sum() / 12)
        assert torch.allclose(found, sum(ways).log(), rtol=1e-5)


def test_expected_counts_of_music_add_up_and_raise_its_likelihood(music):
    module, parameters, rolls = music
    keys, often = torch.tensor([[5], [7]]), torch.full(parameters.on.shape[1:], 0.1).double()
    steps = sum(map(len, rolls))
    counts = module.expected(parameters, rolls, keys)
    totals = [float(values.sum()) for values in counts]
    notes = float(sum(roll.sum() for roll in rolls))
    pairs = steps - len(rolls)
    assert totals == pytest.approx([len(rolls), pairs, pairs, notes, 88 * steps - notes], rel=1e-4)
    better = module.learned(counts, often, 1e-6, 1e-6)
    before, after = (float(each.log_likelihood(rolls, keys).sum()) for each in (parameters, better))
    assert after > before


def test_pieces_are_put_into_a_common_key():
    module = loaded("hmm_music")
    scale = torch.zeros(30, 88)
    scale[torch.arange(30), 36 + torch.tensor([0, 4, 7, 2, 5] * 6)] = 1
    shifts = torch.tensor([0, 3, -4, -1])
    rolls = [scale.roll(int(shift), 1) for shift in shifts]
    keys = module.likely(rolls, module.common(rolls), 1).squeeze(1)
    assert len({int(key) for key in keys + shifts}) == 1  # none is an octave off
    assert module.placed(rolls[1][None], torch.tensor([4]))[0, 0, 36 + 3 + 4] == 1


def test_music_of_some_states_is_normalised(music):
    _, parameters, _ = music
    some = parameters.some(torch.tensor([0, 3]))
    table = some.out.exp() @ some.into.exp().mT
    assert torch.allclose(table.sum(1), torch.ones(2, dtype=torch.float64), rtol=1e-6)
    assert float(some.start.exp().sum()) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("options", [["--lags", "1"], ["--lags", "2"], ["--model", "hmm"]])
def test_a_field_of_words_learns_and_goes_on(tmp_path, monkeypatch, capsys, options):
    module = loaded("paper/field")
    for name in ("train", "valid", "test"):
        with gzip.open(tmp_path / f"ptb.{name}.txt.gz", "wt", encoding="utf-8") as file:
            file.write(" the cat sat on the mat \n a dog sat \n" * 8)

    def run(out, epochs):
        sizes = {"rank": 4, "states": 6, "dimension": 4, "batch": 4, "rate": 0.1, "epochs": epochs}
        argv = [str(tmp_path), *options, "--out", str(out)]
        argv += [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
        monkeypatch.setattr("sys.argv", ["field", *argv])
        module.main()
        return capsys.readouterr().out.splitlines()

    whole = run(tmp_path / "whole", 3)
    passes = [float(line.split()[-1]) for line in whole[1:-1]]
    assert passes[-1] < passes[0] < 9
    save, saves = torch.save, []

    def cut(state, path):
        save(state, path)
        saves.append(path)
        if len(saves) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", cut)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", 3)
    monkeypatch.setattr(torch, "save", save)
    capsys.readouterr()
    again = run(tmp_path / "cut", 3)
    assert again[-1] == whole[-1]
    assert again[-2] == whole[-2]


def test_kneser_ney_smoothing_sums_to_one():
    module = loaded("paper/field")
    train = [[1, 2, 3, 0], [1, 2, 0], [3, 1, 2, 4, 0]]
    for order in (1, 2, 3):
        for context in ([1, 2], [2, 2], [4, 3]):
            ends = [
                module.kneser_ney(train, [[*context, word]], 5, order) ** -3 for word in range(5)
            ]
            before = module.kneser_ney(train, [context], 5, order) ** -2
            assert sum(ends) == pytest.approx(before)
