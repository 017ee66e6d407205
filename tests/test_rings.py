"""Rings around the core can be taken away: the core does not know them by name."""

import subprocess
import sys

import pytest

import rdpgraph as rg

RINGS = {
    "search": (
        "rdpgraph.engines.search", "rdpgraph.schedulers.routes.search",
        "rdpgraph.schedulers.search",
    ),
    # A search for a marginal mode begins with estimates of mini-buckets, so it goes with them.
    "minibuckets": (
        "rdpgraph.engines.minibuckets", "rdpgraph.schedulers.minibuckets",
        "rdpgraph.schedulers.routes.minibuckets", "rdpgraph.engines.search",
        "rdpgraph.schedulers.routes.search", "rdpgraph.schedulers.search",
    ),
    "counting": (
        "rdpgraph.engines.counting", "rdpgraph.schedulers.counting",
        "rdpgraph.schedulers.routes.counting",
    ),
    "formats": ("rdpgraph.io.xml", "rdpgraph.io.toulbar", "rdpgraph.io.dimacs"),
    "codes": ("rdpgraph.decoding",),
    "pruning": ("rdpgraph.pruning", "rdpgraph.estimate.pruning"),
    "nn": ("rdpgraph.nn",),
    "gp": ("rdpgraph.gp",),
    "learn": ("rdpgraph.learn",),
    "distributions": ("rdpgraph.distributions",),
    "distributed": ("rdpgraph.distributed",),
    "cli": ("rdpgraph.cli",),
    "testing": ("rdpgraph.testing",),
}  # fmt: skip
"""The modules of each ring, and those that stand on it."""

QUESTIONS = '''
import sys

class Taken:
    """An import hook that has lost some modules."""
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in TAKEN):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Taken())

import io, pathlib, tempfile
import torch
import rdpgraph as rg

def grid(side, batch=False):
    generator = torch.Generator().manual_seed(0)
    x = rg.VariableArray("x", (side, side), 2)
    tables = [torch.randn(2, 2, generator=generator).double().requires_grad_() for _ in range(2)]
    graph = rg.FactorGraph([
        rg.FactorBlock((x[1:], x[:-1]), rg.Table(tables[0])),
        rg.FactorBlock((x[:, 1:], x[:, :-1]), rg.Table(tables[1])),
    ])
    return x, tables, graph.condition({x[0, 0]: torch.tensor([0, 1])}) if batch else graph

for batch in (False, True):
    x, tables, graph = grid(4, batch)
    exact = rg.infer(graph)
    exact.log_partition.sum().backward()
    assert all(bool(table.grad.isfinite().all()) for table in tables)
    whole = rg.infer(graph, rg.Contraction())
    assert torch.allclose(exact.log_partition, whole.log_partition)
    assert torch.allclose(exact.marginal(x), whole.marginal(x))
    assert torch.allclose(exact.entropy(), whole.entropy())
    assert exact.status.exact and exact.sample(2)
    assert torch.allclose(graph.score(exact.mode()), graph.score(whole.mode()))
    messages = rg.infer(graph, rg.Loopy())
    assert (messages.marginal(x) - exact.marginal(x)).abs().max() < 0.2
    tight = rg.infer(graph, rg.Auto(memory=300.0))
    assert tight.plan.route in ("join graph", "loopy"), tight.plan
    assert (tight.marginal(x) - exact.marginal(x)).abs().max() < 0.2
    assert bool(graph.score(tight.mode()).isfinite().all())
    assert str(rg.explain(graph).bids)
_, _, graph = grid(3)
with tempfile.TemporaryDirectory() as folder:
    for suffix in (".uai", ".bif"):
        if suffix == ".bif":
            coin = rg.Table(torch.tensor([0.5, 0.5]).log())
            graph = rg.FactorGraph([rg.Factor((rg.Variable("a", 2),), coin)])
        place = pathlib.Path(folder) / f"model{suffix}"
        rg.write(graph, place)
        known, again = rg.infer(graph).log_partition, rg.infer(rg.read(place)).log_partition
        assert torch.allclose(known.double(), again.double(), atol=1e-5)
chain = rg.Chain(torch.randn(2, 5, 3), torch.randn(3, 3))
assert torch.allclose(rg.infer(chain).marginals().sum(-1), torch.ones(2, 5))
few = rg.infer(chain, estimator=rg.Randomized.default(keep=2, replicates=4))
assert bool(few.log_partition.isfinite().all())
lost = [
    name for name in sys.modules if any(name == one or name.startswith(one + ".") for one in TAKEN)
]
assert not lost, lost
print("answered")
'''


def answered(taken: tuple[str, ...]) -> None:
    """The core answers small questions in a process without some modules."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"TAKEN = {taken!r}\n{QUESTIONS}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.stdout.split() == ["answered"], run.stderr[-2000:]


def test_the_core_answers_without_any_ring():
    answered(tuple(sorted({module for ring in RINGS.values() for module in ring})))


@pytest.mark.long
@pytest.mark.parametrize("ring", RINGS)
def test_the_core_answers_without(ring):
    answered(RINGS[ring])


LOADED = """
import torch
import rdpgraph as rg
x = [rg.Variable(name, 2) for name in "xyz"]
pairs = [(x[0], x[1]), (x[1], x[2]), (x[2], x[0])]
factors = [rg.Factor(pair, rg.Table(torch.randn(2, 2))) for pair in pairs[:COUNT]]
posterior = rg.infer(rg.FactorGraph(factors))
posterior.marginal(x[0]), posterior.log_partition
"""


def modules_after(code: str) -> list[str]:
    """The modules of the package that are loaded after some code has run in a new process."""
    told = """
import sys
print(*sorted(name for name in sys.modules if name.split(".")[0] == "rdpgraph"))
"""
    command = [sys.executable, "-c", code + told]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 3])  # a chain, and a cycle
def test_what_is_not_asked_is_not_imported(count):
    """The figure is that of docs/architecture.md: no structure, no network, no auction."""
    loaded = modules_after(f"COUNT = {count}\n{LOADED}")
    away = {module for ring in RINGS.values() for module in ring}
    away |= {"rdpgraph.engines.loopy", "rdpgraph.engines.reduction", "rdpgraph.structures"}
    away |= {"rdpgraph.recurrences", "rdpgraph.schedulers.auction"}
    assert not [name for name in loaded if any(name.startswith(one) for one in away)]
    assert len(loaded) <= 65


@pytest.mark.long
def test_a_structure_is_imported_where_a_graph_may_be_one():
    code = """
import torch
import rdpgraph as rg
x = rg.VariableArray("x", (9,), 2)
tables = rg.Table(torch.zeros(2, 8, 2, 2))  # a batch, which is no small graph
model = rg.FactorGraph([rg.FactorBlock((x[1:], x[:-1]), tables)])
assert rg.infer(model).status.route == "structure"
"""
    loaded = modules_after(code)
    assert "rdpgraph.structures.chain.model" in loaded
    others = ("grammar", "dependency", "parity", "matching", "derivations", "bitext")
    places = tuple(f"rdpgraph.structures.{other}" for other in others)
    assert not [name for name in loaded if name.startswith(places)]
    for name in ("Chain", "SemiMarkov", "Hypertree", "ParityModel", "Matching"):
        assert rg.extend.REGISTRY.known[name] is getattr(rg, name)
