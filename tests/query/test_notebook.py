"""HTML of objects: well formed, escaped, in the page's colours, and made without an answer."""

from xml.etree import ElementTree

import pytest
import torch

import rdpgraph as rg

ONES = rg.Table(torch.zeros(2))
NAME = "<b>&\"'\n</td>"


def html_of(thing):
    html = thing._repr_html_()
    ElementTree.fromstring(html.replace("<br>", "<br/>"))
    assert "#" not in html.replace("&#", "")  # no colour of its own
    assert "currentColor" in html or "<svg" not in html
    return html


def graph():
    x, y = rg.Variable(NAME, ("<i>", "no")), rg.VariableArray("y", (3,), 2)
    return rg.FactorGraph(
        [rg.Factor((x, y[0]), rg.Table(torch.zeros(2, 2))), rg.FactorBlock((y,), ONES)]
    )


def test_a_graph_its_plan_and_its_answers():
    model = graph()
    posterior = rg.infer(model)
    for thing in (model, rg.explain(model), posterior, posterior.marginals(), posterior.mode()):
        html = html_of(thing)
        assert NAME not in html
        assert "<i>" not in html
    assert html_of(model).count("<circle") == 4
    svg = ElementTree.fromstring(html_of(model).replace("<br>", "<br/>")).find(".//{*}svg")
    wide, high = map(float, svg.get("viewBox").split()[2:])
    for dot in svg.iterfind(".//{*}circle"):
        assert 0 < float(dot.get("cx")) < wide
        assert 0 < float(dot.get("cy")) < high
    assert html_of(posterior.marginals()).count("width:40px") == 2
    assert "&lt;i&gt;" in html_of(posterior.mode())
    many = rg.VariableArray("z", (10_000,), 2)
    large = html_of(rg.FactorGraph([rg.FactorBlock((many,), ONES)]))
    assert len(large) < 3000


STRUCTURES = {
    "chain": lambda: rg.Chain(torch.zeros(4, 3), torch.zeros(3, 3)),
    "tree": lambda: rg.Hypertree(torch.zeros(3, 3, 2)),
    "heads": lambda: rg.ProjectiveDependencies(torch.zeros(2, 4, 5)),
    "segments": lambda: rg.SemiMarkov(torch.zeros(3, 2, 1), torch.zeros(1, 1)),
    "alignment": lambda: rg.Alignment(torch.zeros(3, 4, 3)),
    "bitext": lambda: rg.Bitext.words(torch.zeros(2, 3), torch.zeros(2), torch.zeros(3)),
    "empty": lambda: rg.Chain(torch.zeros(0, 3), torch.zeros(3, 3)),
    "long": lambda: rg.Chain(torch.zeros(1000, 3), torch.zeros(3, 3)),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_and_its_posterior(name):
    structure = STRUCTURES[name]()
    html = html_of(structure)
    assert ("<svg" in html) == (name not in ("empty", "long"))
    assert ("<line" in html) == (name == "chain")
    html_of(rg.infer(structure))


def test_a_status():
    xs = rg.VariableArray("x", (3, 3), 2)
    generator = torch.Generator().manual_seed(0)
    pairs = [rg.Table(torch.randn(2, 2, generator=generator)) for _ in range(2)]
    model = rg.FactorGraph(
        [
            rg.FactorBlock((xs[1:], xs[:-1]), pairs[0]),
            rg.FactorBlock((xs[:, 1:], xs[:, :-1]), pairs[1]),
        ]
    )
    few = rg.Randomized.default(keep=1, replicates=8)
    exact = rg.infer(model).status
    loopy = rg.infer(model, rg.Loopy(sweeps=2)).status
    estimate = rg.infer(model, estimator=few, generator=generator).status
    assert str(exact) == "Status: exact\n  route       buckets"
    assert str(loopy).startswith("Status: approximate, NOT converged\n")
    assert str(estimate).startswith("Status: approximate")
    for status in (exact, loopy, estimate):
        html = html_of(status)
        for line in str(status).splitlines():
            assert line.split("  ")[-1].strip()[:60] in html.replace("&#x27;", "'")
        assert status.remedy in str(status)
    assert f"{loopy.iterations}, the last change {loopy.residual:.2g}" in str(loopy)
    assert f"{estimate.standard_error:.2g} nats" in str(estimate)
    assert html_of(rg.Status(exact=False, bound="upper", remedy=NAME)).count("upper bound") == 1
