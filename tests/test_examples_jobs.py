"""The examples of jobs run at a small size, and what they say agrees with recursions by hand."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(monkeypatch):
    """The names of a script, after it has run at a small size."""
    pyplot = pytest.importorskip("matplotlib.pyplot")

    def asked(name):
        path = str(FOLDER / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, "--quick"])
        found = runpy.run_path(path)
        pyplot.close("all")
        return found

    return asked


def test_imputed_alleles_are_those_of_the_textbook(run, capsys):
    found = run("plot_haplotypes")
    assert found["off"] < 1e-9
    assert "squared correlation" in capsys.readouterr().out


def test_trees_of_species_are_pruned_as_by_hand(run, capsys):
    found = run("plot_species")
    assert found["off"] < 1e-9
    assert "of the ancestors' letters are right" in capsys.readouterr().out


@pytest.mark.long
def test_covariates_drive_states_and_choices(run, capsys):
    found = run("plot_covariates")
    scores = found["scores"]
    assert scores["stimulus"] > scores["no covariates"]
    assert "of the states are right" in capsys.readouterr().out


def test_interfaces_answer_as_the_network_of_all_steps(run, capsys):
    found = run("plot_dynamic")
    assert found["off"] < 1e-9
    assert "wear is right" in capsys.readouterr().out


def test_pictures_are_labelled_within_their_bound(run, capsys):
    found = run("plot_pictures")
    assert -1e-2 <= found["gap"] < 0.01 * found["cost"]
    assert found["after"] < 0.3 * found["before"]
    assert found["right_distances"] > 0.9
    assert "none costs less" in capsys.readouterr().out
