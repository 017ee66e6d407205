"""The experiments of randomized pruning run, in small; what they are made of is right."""

import gzip
import math
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg

FOLDER = Path(__file__).parents[1] / "examples" / "paper" / "pruning"
SENTENCES = (
    ("a dog sees a cat", "ein hund sieht eine katze"),
    ("a cat sees a dog", "eine katze sieht einen hund"),
    ("the dog sleeps", "der hund schläft"),
    ("the cat sleeps", "die katze schläft"),
    ("a dog sleeps", "ein hund schläft"),
)


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield lambda name: runpy.run_path(str(FOLDER / f"{name}.py"), run_name=name)
    for module in ("beam", "bitext", "figure4", "model1", "shown", "tictactoe"):
        sys.modules.pop(module, None)


@pytest.fixture
def corpus(tmp_path):
    for side, language in enumerate(("en", "de")):
        with gzip.open(tmp_path / f"train.{language}.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{pair[side]}\n" for pair in SENTENCES)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("more", [[], ["--mixed"]])
def test_the_experiment_runs_in_small(corpus, modules, monkeypatch, capsys, more):
    argv = ["bitext", str(corpus), "--small", "--pairs", "2", "--long", "2", "--square", "4"]
    monkeypatch.setattr(sys, "argv", [*argv, "--output", str(corpus), *more])
    threads = torch.get_num_threads()
    try:
        modules("bitext")["main"]()
    finally:
        torch.set_num_threads(threads)
    shown = capsys.readouterr().out
    assert "tic-tac-toe" in shown
    assert "one sweep over 2 pairs" in shown
    assert "nan" not in shown


@pytest.mark.long
def test_regimes_run_in_small_and_go_on(corpus, modules, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["regimes", str(corpus), "--small", "--output", str(corpus)])
    threads, shown = torch.get_num_threads(), []
    try:
        for _ in range(2):
            modules("regimes")["main"]()
            shown.append(capsys.readouterr().out.split("squared error at")[1])
    finally:
        torch.set_num_threads(threads)
    assert shown[0] == shown[1]
    assert "shuffled" in shown[0]
    assert "nan" not in shown[0]
    assert (corpus / "regimes.png").exists()


def test_model_1_is_a_fixed_point_of_its_likelihood(corpus, modules):
    module = modules("model1")
    pairs = module["read_pairs"](corpus)

    def likelihood(model):
        return sum(
            float(model.table(source, target).mean(0).log().sum()) for source, target in pairs
        )

    found = [module["Model1"].trained(pairs, iterations=n) for n in (1, 2, 5, 20)]
    values = [likelihood(model) for model in found]
    assert values == sorted(values)
    model = found[-1]
    sums = torch.zeros(int((model.keys // model.width).max()) + 1, dtype=torch.float64)
    sums.index_add_(0, model.keys // model.width, model.values)
    assert_close(sums[sums > 0], torch.ones_like(sums[sums > 0]))


def test_merits_are_sums_over_words(modules):
    module, (p, q) = modules("tictactoe"), (3, 2)
    generator = torch.Generator().manual_seed(0)
    forward = torch.rand(p + 1, q, generator=generator, dtype=torch.float64)
    backward = torch.rand(p, q + 1, generator=generator, dtype=torch.float64)
    merits = module["merits"](forward, backward)
    for i, k, j, m in [(0, 2, 1, 2), (1, 3, 0, 1), (0, 3, 0, 2), (1, 1, 0, 2)]:
        total = 0.0
        for table, inner, outer in (
            (forward, range(i, k), range(j, m)),
            (backward.T, range(j, m), range(i, k)),
        ):
            for column in range(table.shape[1]):
                every = range(table.shape[0] - 1)
                rows = [n for n in every if (n in inner) == (column in outer)]
                chance = float(table[0, column]) + sum(float(table[1 + n, column]) for n in rows)
                total += math.log(chance / (len(rows) + 1))
        assert float(merits[i, k, j, m]) == pytest.approx(total)
    everything = module["allowed"](merits, 1e6)
    assert int(everything.sum()) == 10 * 6
    assert int(module["allowed"](merits, 1e-9).sum()) < 60


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "options", "says"),
    [
        ("chain", ["--steps", "8"], "beam sampling"),
        ("graph", ["--states", "3"], "Randomized"),
        ("monolingual", ["--shortest", "4"], "coarse-to-fine"),
    ],
)
def test_others_run_in_small(tmp_path, modules, monkeypatch, capsys, script, options, says):
    argv = [script, "--small", "--output", str(tmp_path), *options]
    monkeypatch.setattr(sys, "argv", argv)
    threads = torch.get_num_threads()
    try:
        modules(script)["main"]()
    finally:
        torch.set_num_threads(threads)
    shown = capsys.readouterr().out
    assert says in shown
    assert "nan" not in shown
    assert (tmp_path / f"{script}.png").exists()


@pytest.mark.long
def test_beams_have_the_marginals_of_the_chain(modules):
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    transition = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    sampler = modules("beam")["BeamSampler"](unary, transition.exp())
    path, total = unary.argmax(1), torch.zeros_like(unary)
    for _ in range(750):
        marginals, path = sampler.sweep(path, generator)
        total += marginals
    assert_close(total / 750, rg.Chain(unary, transition).marginals(), rtol=0.0, atol=0.04)
