"""Boxes and lines of pictures never lie on top of each other."""

import itertools
import math
from functools import cache
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

import rdpgraph as rg
from rdpgraph.query.drawing import box_of, draw
from rdpgraph.query.layouts import edges_of, layered, line_of, unfolded

ASIA = rg.read("examples/asia.bif")


def random_parents(count, most, seed):
    generator = np.random.default_rng(seed)
    return {
        f"n{node}": [f"n{p}" for p in generator.choice(node, min(node, most), replace=False)]
        for node in range(count)
    }


def overlap(one, size, other, its):
    return all(abs(a - b) < (s + t) / 2 for a, b, s, t in zip(one, other, size, its, strict=True))


def sampled(route):
    """Points of an arrow: straight through layers, bent in between."""
    for place, ((x, y), (u, v)) in enumerate(itertools.pairwise(route)):
        for share in np.linspace(0, 1, 9):
            bent = x + (3 * share**2 - 2 * share**3) * (u - x) if place % 2 else x
            yield bent, y + share * (v - y)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("count", "most"), [(1, 0), (9, 1), (25, 2), (40, 3)])
def test_a_directed_graph_goes_down_and_no_box_covers_an_arrow(count, most, seed):
    parents = random_parents(count, most, seed)
    sizes = {name: (0.5 + 0.2 * (n % 4), 0.2 + 0.1 * (n % 3)) for n, name in enumerate(parents)}
    laid = layered(parents, sizes)
    for one, other in itertools.combinations(parents, 2):
        assert not overlap(laid.places[one], sizes[one], laid.places[other], sizes[other])
    assert set(laid.routes) == {(p, child) for child, above in parents.items() for p in above}
    for (parent, child), route in laid.routes.items():
        heights = [y for _, y in route]
        assert (np.diff(heights) < 1e-9).all()
        assert route[0] == (laid.places[parent][0], laid.places[parent][1] - sizes[parent][1] / 2)
        assert route[-1] == (laid.places[child][0], laid.places[child][1] + sizes[child][1] / 2)
        for point in sampled(route):
            for name in set(parents) - {parent, child}:
                assert not overlap(point, (0, 0), laid.places[name], sizes[name])


def test_a_tree_has_no_crossing():
    parents = {"r": [], **{f"a{n}": ["r"] for n in range(3)}}
    parents |= {f"b{n}{m}": [f"a{n}"] for m in range(2) for n in (2, 0, 1)}
    laid = layered(parents, dict.fromkeys(parents, (0.5, 0.2)))
    for one, other in itertools.combinations(laid.routes, 2):
        (first, _), (second, _) = (laid.places[parent] for parent, _ in (one, other))
        (left, _), (right, _) = (laid.places[child] for _, child in (one, other))
        assert (first - second) * (left - right) >= -1e-9


def grid(height, width):
    number = np.arange(height * width).reshape(height, width)
    ends = (number[1:], number[:-1]), (number[:, 1:], number[:, :-1])
    pairs = np.concatenate([np.stack([one.ravel(), other.ravel()], 1) for one, other in ends])
    return height * width, [tuple(pair) for pair in pairs.tolist()]


GRAPHS = {
    "grid": grid(4, 5),
    "ring": (8, [(n, (n + 1) % 8) for n in range(8)]),
    "star": (9, [(0, n) for n in range(1, 9)]),
    "tree": (12, [(n, (n - 1) // 2) for n in range(1, 12)]),
    "clique": (6, list(itertools.combinations(range(6), 2))),
    "larger factors": (7, [(0, 1, 2), (2, 3, 4, 5), (5, 6)]),
    "parts": (6, [(0, 1), (1, 2), (3, 4)]),
    "one": (1, []),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_an_undirected_graph_has_no_box_on_a_box_or_a_line(name):
    count, scopes = GRAPHS[name]
    larger = sum(len(scope) > 2 for scope in scopes)
    sizes = np.array([(1.0, 0.4)] * count + [(0.1, 0.1)] * larger)
    places = unfolded(sizes, scopes)
    assert np.isfinite(places).all()
    for one, other in itertools.combinations(range(len(sizes)), 2):
        assert not overlap(places[one], sizes[one], places[other], sizes[other])
    for edge in edges_of(len(sizes), scopes):
        line = line_of(places, sizes, edge)
        for one, other in itertools.pairwise(line):
            for share in np.linspace(0, 1, 9):
                for node in set(range(len(sizes))) - set(edge):
                    assert not overlap(
                        one + share * (other - one), (0, 0), places[node], sizes[node]
                    )


def test_a_grid_is_unfolded_and_upright():
    count, pairs = grid(5, 6)
    places = unfolded(np.full((count, 2), 0.1), pairs)
    steps = np.array([places[a] - places[b] for a, b in pairs])
    angles = np.degrees(np.arctan2(*np.abs(steps).T))
    assert np.minimum(angles, 90 - angles).max() < 20
    lengths = np.hypot(*steps.T)
    assert lengths.max() < 2.2 * lengths.min()


def test_boxes_are_as_large_as_what_they_hold():
    posterior = rg.infer(ASIA)
    plain, bars = box_of(ASIA["either"], None), box_of(ASIA["either"], posterior)
    assert len(bars.lines) == 2
    assert all(large > small for large, small in zip(bars.size, plain.size, strict=True))
    named = box_of(rg.Variable("x" * 100, 2), None)
    assert named.size[0] < 20 * plain.size[0] / len("either")


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_arrows_and_squares(tmp_path: Path, suffix):
    pytest.importorskip("matplotlib")
    seen = ASIA.condition({"dysp": "yes"})
    xs = rg.VariableArray("x", (3, 4), 2)
    coupling = rg.Table(torch.tensor([[math.log(2.0), 0.0], [0.0, math.log(2.0)]]))
    ising = rg.FactorGraph(
        [rg.FactorBlock((xs[1:], xs[:-1]), coupling), rg.FactorBlock((xs,), rg.Table([0.0, 0.1]))]
    )
    for name, graph in (("asia", seen), ("ising", ising)):
        picture = tmp_path / f"{name}{suffix}"
        draw(rg.infer(graph), picture)
        assert picture.stat().st_size > 1000


def test_pictures_of_approximations_say_so(tmp_path: Path):
    pytest.importorskip("matplotlib")
    x = [rg.Variable(name, 2) for name in "abc"]
    pairs = [rg.Factor([x[i], x[i - 1]], rg.Table([[2.0, 0.0], [0.0, 1.0]])) for i in range(3)]
    graph, picture = rg.FactorGraph(pairs), tmp_path / "ring.svg"
    said = []
    for scheduler in (rg.Loopy(sweeps=1), rg.Loopy(), rg.Auto()):
        draw(rg.infer(graph, scheduler), picture)
        said.append("<!-- approximate" in picture.read_text())
        said.append("NOT converged" in picture.read_text())
    assert said == [True, True, True, False, False, False]


@cache
def networks():
    """Directed graphs, made in all ways, each with its number of arrows."""
    rain, lawn, wet = (rg.Variable(name, ("no", "yes")) for name in ("rain", "lawn", "wet"))
    tables = [0.8, 0.2], [[0.6, 0.4], [0.99, 0.01]], [[[1, 0], [0.2, 0.8]], [[0.1, 0.9], [0, 1]]]
    declared = rg.FactorGraph.bayesian_network(
        [(rain, (), tables[0]), (lawn, (rain,), tables[1]), (wet, (lawn, rain), tables[2])]
    )
    batch = rg.FactorGraph.bayesian_network(
        [(rain, (), [[0.8, 0.2], [0.5, 0.5]]), (lawn, (rain,), tables[1])]
    )
    rows = pandas.DataFrame({"rain": ["no", "yes", "no"], "wet": ["no", "yes", "yes"]})
    fitted = rg.learn.BayesianNetwork([("rain", "wet")], prior=1.0).fit(rows)
    heard = rg.Factor(wet, rg.Table([0.0, 1.0]))
    first = rg.Factor(lawn, rg.Table([1.0, 3.0]))
    steps = rg.VariableArray("x", (5,), 2)
    return {
        "declared": (declared, 3),
        "observed": (declared.condition({"wet": "yes"}), 3),
        "soft evidence": (declared.with_factors(heard), 3),
        "several of it": (declared.with_factors(heard, first, heard), 3),
        "a batch": (batch, 1),
        "a file": (ASIA, 8),
        "fitted": (fitted.graph_, 1),
        "after an intervention": (fitted.do(rain="yes"), 0),
        "steps": (
            rg.FactorGraph([
                rg.Factor(steps[0], rg.Table.from_probabilities(tables[0])),
                rg.FactorBlock((steps[:-1], steps[1:]), rg.Table.from_probabilities(tables[1])),
            ]),
            4,
        ),
        "no network": (
            rg.FactorGraph([rg.Factor((rain, lawn), rg.Table([[1.0, 0.0], [0.0, 1.0]]))]), 0
        ),
    }  # fmt: skip


NETWORKS = (
    "declared", "observed", "soft evidence", "several of it", "a batch", "a file", "fitted",
    "after an intervention", "steps", "no network",
)  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_the_figure_is_returned_and_a_network_has_its_arrows(name, tmp_path):
    graph, edges = networks()[name]
    assert set(networks()) == set(NETWORKS)
    if name == "after an intervention":
        edges = len(graph.parents("wet"))
    for model in (graph, rg.infer(graph)):
        figure = rg.draw(model)
        assert isinstance(figure, Figure)
        arrows = [each for each in figure.axes[0].patches if isinstance(each, FancyArrowPatch)]
        assert len(arrows) == edges
    squares = [each for each in figure.axes[0].patches if isinstance(each, Rectangle)]
    assert len(squares) == {"soft evidence": 1, "several of it": 2, "no network": 1}.get(name, 0)
    assert graph._repr_html_().count("<polygon") == edges
    assert isinstance(rg.draw(graph, tmp_path / "graph.png"), Figure)
    assert (tmp_path / "graph.png").stat().st_size > 1000


def test_pictures_of_structures_and_plans_are_returned_too():
    chain = rg.Chain(torch.zeros(3, 2), torch.zeros(2, 2))
    for model in (chain, rg.infer(chain), rg.explain(ASIA)):
        assert isinstance(rg.draw(model), Figure)


@pytest.mark.parametrize("turned", [0.0, 0.7, 2.0])
def test_an_edge_joins_its_ends_around_the_box_between(turned):
    turn = np.array([[np.cos(turned), np.sin(turned)], [-np.sin(turned), np.cos(turned)]])
    ends, sizes = np.array([[0.0, 0.0], [3.0, 1.0]]) @ turn, np.full((3, 2), 0.3)
    free = line_of(ends, sizes[:2], (0, 1))
    np.testing.assert_allclose(free, ends)  # straight
    between = ends.mean(0)
    bent = line_of(np.vstack([ends, between]), sizes, (0, 1))
    np.testing.assert_allclose(bent[[0, -1]], ends, atol=1e-12)
    assert (np.abs(bent - between) > 0.15).any(1).all()
    # The bend is even: its middle is farthest off, at one distance from both ends.
    away = np.linalg.norm(bent - between, axis=1)
    np.testing.assert_allclose(away, away[::-1])
    np.testing.assert_allclose(*np.linalg.norm(bent[len(bent) // 2] - ends, axis=1))
