"""When a search for a mode ends, and where it starts, if the user sets no limit."""

import warnings

import numpy as np
import pytest
import torch

import rdpgraph as rg
from rdpgraph.answers import Move


def boltzmann(side, seed, scale):
    """A restricted Boltzmann machine: every visible unit is tied to every hidden one."""
    random = np.random.default_rng(seed)
    ends = np.indices((side, side)).reshape(2, -1)
    tables = np.zeros((side * side, 2, 2))
    tables[:, 1, 1] = random.standard_normal(side * side) * scale
    x = rg.VariableArray("x", (2 * side,), 2)
    first, second = (torch.from_numpy(end) for end in (ends[0], side + ends[1]))
    unary = rg.Table(torch.from_numpy(random.gumbel(size=(2 * side, 2))))
    pairs = rg.FactorBlock((x[first], x[second]), rg.Table(torch.from_numpy(tables)))
    return rg.FactorGraph([rg.FactorBlock((x,), unary), pairs]), x


def clauses(count, number, seed):
    """Random clauses of three variables, and unary potentials."""
    random = np.random.default_rng(seed)
    scopes = np.array([random.choice(count, 3, replace=False) for _ in range(number)])
    unary = random.standard_normal((count, 2)) * 0.3
    tables = np.zeros((number, 2, 2, 2))
    refused = random.integers(0, 2, (number, 3))
    tables[np.arange(number), *refused.T] = -np.inf
    x = rg.VariableArray("x", (count,), 2)
    three = tuple(x[torch.from_numpy(slot)] for slot in scopes.T)
    clause = rg.FactorBlock(three, rg.Table(torch.from_numpy(tables)))
    return rg.FactorGraph([rg.FactorBlock((x,), rg.Table(torch.from_numpy(unary))), clause]), x


def triples(count, number, seed):
    """Random potentials of three variables."""
    random = np.random.default_rng(seed)
    scopes = np.array([random.choice(count, 3, replace=False) for _ in range(number)])
    tables = torch.from_numpy(random.standard_normal((number, 2, 2, 2)))
    x = rg.VariableArray("x", (count,), 2)
    three = tuple(x[torch.from_numpy(slot)] for slot in scopes.T)
    return rg.FactorGraph([rg.FactorBlock(three, rg.Table(tables))]), x


def sudoku(seed):
    """Clues of a Sudoku of nine digits; the state of a variable says whether a cell has a digit."""
    random, digit = np.random.default_rng(seed), np.arange(9)
    solved = (3 * (digit[:, None] % 3) + digit[:, None] // 3 + digit) % 9
    x = rg.VariableArray("x", (729,), 2)
    places = np.arange(729).reshape(9, 9, 9)
    boxes = places.reshape(3, 3, 3, 3, 9).transpose(0, 2, 4, 1, 3)
    parts = places, places.transpose(0, 2, 1), places.transpose(1, 2, 0), boxes
    scopes = torch.from_numpy(np.concatenate([part.reshape(-1, 9) for part in parts]))
    unary = random.gumbel(size=(729, 2)) * 0.01
    known = np.nonzero(random.random((9, 9)) < 0.2)
    unary[places[known], 0] = 30.0
    unary[places[(*known, solved[known])]] = (0.0, 30.0)
    one = rg.FactorBlock(tuple(x[slot] for slot in scopes.T), rg.ExactlyOne(9))
    return rg.FactorGraph([rg.FactorBlock((x,), rg.Table(torch.from_numpy(unary))), one]), x


def score_of(graph, scheduler):
    posterior = rg.infer(graph, scheduler=scheduler)
    return float(graph.score({**posterior.mode()})), posterior


def test_a_search_in_vain_takes_no_longer_than_messages():
    graph, _ = boltzmann(40, 1, 0.5)
    moves = []
    scheduler = rg.Auto(progress=lambda step: moves.append(step) if type(step) is Move else None)
    best, posterior = score_of(graph, scheduler)
    plain, messages = score_of(graph, rg.Loopy())
    assert bool(messages.mode_is_consistent().all())
    assert posterior.status_of("mode").method == "search"
    assert not bool(posterior.mode_is_optimal())
    assert best == plain  # the messages converged to the best that is known
    assert 0 < moves[-1].seconds < 0.1  # counted; 1.5 of the two seconds if it went on to the end


@pytest.mark.long
def test_a_search_goes_on_while_it_gains():
    x = rg.VariableArray("x", (40, 40), 2)
    generator = torch.Generator().manual_seed(0)
    unary = rg.Table(0.1 * torch.randn(40, 40, 2, generator=generator))
    across, down = (
        rg.Table(2.0 * torch.randn(*shape, 1, 1, generator=generator) * torch.eye(2))
        for shape in ((40, 39), (39, 40))
    )
    graph = rg.FactorGraph([
        rg.FactorBlock((x,), unary), rg.FactorBlock((x[:, :-1], x[:, 1:]), across),
        rg.FactorBlock((x[:-1], x[1:]), down),
    ])  # fmt: skip
    moves = []
    scheduler = rg.Auto(progress=lambda step: moves.append(step) if type(step) is Move else None)
    best, _ = score_of(graph, scheduler)
    plain, messages = score_of(graph, rg.Loopy())
    assert not bool(messages.mode_is_consistent().all())
    assert best > plain + 50.0
    assert moves[-1].seconds > 0.5  # counted


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (boltzmann, (30, 5, 2.0)),
        pytest.param(boltzmann, (60, 6, 0.5), marks=pytest.mark.long),
        pytest.param(triples, (60, 150, 7), marks=pytest.mark.long),
        pytest.param(clauses, (50, 190, 4), marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_no_mode_is_below_that_of_plain_messages(make, arguments):
    graph, _ = make(*arguments)
    plain, _ = score_of(graph, rg.Loopy())
    best, posterior = score_of(graph, rg.Auto())
    assert best >= plain - 1e-9
    assert best <= float(posterior.mode_bound()) + 1e-9


def test_messages_without_a_possible_mode_are_not_warned_of_where_a_search_finds_one():
    graph, _ = sudoku(5)
    with pytest.warns(UserWarning, match="probability zero"):
        messages = rg.infer(graph, scheduler=rg.Loopy()).mode()
    assert int(graph.violations({**messages})) > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = rg.infer(graph).mode()
    assert int(graph.violations({**found})) == 0
