"""Answers without gradients leave those with gradients as they are, in inference mode too."""

import ast
from pathlib import Path

import pytest
import torch

import rdpgraph as rg
from rdpgraph.engines.exact.batched_steps import compiled
from rdpgraph.plan import planner
from rdpgraph.recurrences.executor import executable_of
from tests.questions import QUESTIONS
from tests.routes import (
    ROUTES,
    answered,
    declared,
    inferred,
    posterior,
    total,
    weights,
)

PACKAGE = Path(rg.__file__).parent
FEW = (
    "buckets",
    "contraction",
    "loopy",
    "recognised chain",
    "randomized loopy",
    "randomized chain",
)
CASES = [
    *((route, torch.inference_mode) for route in ROUTES),
    *((route, torch.no_grad) for route in FEW),
]


def forget():
    """Clear the caches, as in a fresh process."""
    for function in (compiled, executable_of):
        function.cache_clear()
    for cache in (planner._plans, planner._easy):
        cache._values.clear()


def gradients(made, leaves):
    """Gradients of every answer that has one, in every leaf."""
    found = {}
    for name in ("log_partition", "marginals", "entropy"):
        value = total(QUESTIONS[name](made))
        if not value.requires_grad:
            continue
        try:
            found[name] = torch.autograd.grad(value, leaves, retain_graph=True)[0]
        except rg.errors.UnsupportedError:
            found[name] = None
    return found


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The implicit gradient")
@pytest.mark.parametrize(("route", "mode"), CASES)
def test_gradients_after_answers_without(route, mode):
    forget()
    leaves = weights()
    asked = posterior(route, leaves)
    model = declared(route, leaves)
    with mode():
        made_there = inferred(route, model)
        before = answered(made_there)
        inside = answered(asked)
    new = posterior(route, leaves)
    found = [gradients(made, leaves) for made in (asked, made_there, new)]
    forget()
    fresh = posterior(route, leaves)
    expected = gradients(fresh, leaves)
    assert "log_partition" in expected
    # Messages that record gradients end within their tolerance of those that do not.
    close = {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(before, answered(fresh), **close)
    torch.testing.assert_close(inside, before, **close)
    for each in found:
        loose = route in ("loopy at random", "loopy, redrawn")
        close = {"rtol": 1e-3, "atol": 1e-4} if loose else {"rtol": 1e-9, "atol": 1e-12}
        torch.testing.assert_close(each, expected, **close)


def test_a_model_declared_in_inference_mode_has_gradients_outside():
    """Tables that it does not copy have them; numbers of variables are no tensors of that mode."""
    x = rg.VariableArray("x", (4,), 2)
    table = torch.zeros(4, 2, requires_grad=True)
    with torch.inference_mode():
        graph = rg.FactorGraph([rg.FactorBlock((x,), rg.Table(table))])
        graph = graph.condition({x: torch.tensor([0, -1, -1, -1])}).condition({x[1]: 1})
    (found,) = torch.autograd.grad(rg.infer(graph).log_partition, table)
    expected = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5]])
    torch.testing.assert_close(found, expected)


def test_potentials_made_in_inference_mode_are_answered_there():
    """Answers beside parameters that require gradients."""
    with torch.inference_mode():
        made = torch.randn(4, 3)
        assert made.is_inference()
    table = torch.zeros(3, 3, requires_grad=True)
    x = rg.VariableArray("x", (4,), 3)
    pairs = rg.FactorBlock((x[:-1], x[1:]), rg.Bilinear(table, table))
    with torch.inference_mode():
        unary = rg.FactorBlock((x,), rg.Table(made + 1))
        for given in (rg.Contraction(), rg.Loopy(), rg.JoinGraph(), rg.Auto()):
            found = rg.infer(rg.FactorGraph([unary, pairs]), scheduler=given).marginal(x)
            torch.testing.assert_close(found, made.softmax(-1), rtol=1e-4, atol=1e-5)


def test_what_is_kept_is_made_outside_inference_mode():
    """Cached tensors go through `rdpgraph._core.cache`; plans are integers."""
    for path in PACKAGE.rglob("*.py"):
        name, text = path.relative_to(PACKAGE).as_posix(), path.read_text()
        if name.startswith("plan/") or name == "_cache.py" or "functools" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == "functools":
                kept = {part.name for part in node.names} & {"cached_property", "lru_cache"}
                assert not kept, f"{name}:{node.lineno}"
