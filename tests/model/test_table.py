"""Tables of log-values."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rdpgraph as rg


class Largest(TorchDispatchMode):
    """Size of the largest tensor that is made."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.numbers = max(self.numbers, found.numel())
        return found


def test_the_gradient_of_a_shared_table_is_not_one_for_each_item():
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(30, 40, generator=draw, dtype=torch.float64, requires_grad=True)
    before = torch.randint(30, (50, 2), generator=draw)
    after = torch.randint(40, (50, 3), generator=draw)
    with Largest() as largest:
        found = rg.Table(values).evaluate([before, after])
        (gradient,) = torch.autograd.grad(found.sum(), values)
    assert largest.numbers == values.numel()
    assert torch.equal(found, values[before.unsqueeze(2), after.unsqueeze(1)])
    counts = torch.zeros(30, 40, dtype=torch.float64)
    index = (before.unsqueeze(2) * 40 + after.unsqueeze(1)).flatten()
    counts.view(-1).scatter_add_(0, index, torch.ones(len(index), dtype=torch.float64))
    assert torch.equal(gradient, counts)


def test_tables_with_dims_of_their_own_meet_those_of_the_states():
    values = torch.randn(3, 1, 4, 5, generator=torch.Generator().manual_seed(0))
    before, after = torch.arange(8).reshape(1, 2, 4) % 4, torch.tensor([[[4, 0]]])
    found = rg.Table(values).evaluate([before, after])
    assert found.shape == (3, 2, 4, 2)
    for one, two in ((0, 0), (2, 1)):
        assert torch.equal(found[one, two], values[one, 0][before[0, two]][:, [4, 0]])


@pytest.mark.parametrize(
    "values",
    [
        [0.2, 0.8],
        [[0.9, 0.1], [0.2, 0.8]],
        [[0.9, 0.2], [0.1, 0.8]],
        [[0.1, 0.2], [0.3, 0.4]],
        [[1.0, 0.0], [0.25, 0.75]],
        torch.zeros(2, 5, 3).softmax(-1),
    ],
)
def test_probabilities_in_the_place_of_logs_are_warned_of(values):
    with pytest.warns(rg.errors.ProbabilityWarning, match="from_probabilities.*from_logs") as said:
        rg.Table(values)
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logs = rg.Table.from_logs(values)
        graph = rg.FactorGraph([rg.Factor(rg.Variable("x", 2), rg.Table.from_logs([0.2, 0.8]))])
        next(iter(graph.condition({"x": 1}).to(torch.float64).factors()))
        assert rg.infer(graph).marginal("x").sum() == 1
        chances = rg.Table.from_probabilities(values)
    assert torch.equal(logs.log_values, torch.as_tensor(values))
    torch.testing.assert_close(chances.log_values, torch.as_tensor(values).log())


@pytest.mark.parametrize(
    "values",
    [
        torch.eye(3), [0.0, 1.0], [1.0], 1.0, 0.5, [], [0.5, 0.6], [-0.2, 1.2], [0.2, 1.8],
        [[0.9, 0.1], [0.2, 0.9]], [[0.5, 0.0], [0.0, 0.5], [0.5, 1.0]], torch.zeros(2, 2),
        [0.0, float("-inf")], torch.tensor([0.2, 0.8]).log(),
    ],
)  # fmt: skip
def test_log_values_are_not_taken_for_probabilities(values):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rg.Table(values)


@pytest.mark.long
def test_one_warning_is_enough():
    program = (
        "import rdpgraph as rg\nfor _ in range(3): rg.Table([.2, .8])\n"
        "rg.Table([[.5, .5], [.1, .9]])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stderr.count("ProbabilityWarning") == 1


@pytest.mark.parametrize("values", [[float("nan")], [float("inf")], "ab", torch.zeros(2).long()])
def test_what_is_no_log_is_refused_by_either_name(values):
    for make in (rg.Table, rg.Table.from_logs):
        with pytest.raises(rg.errors.ModelError) as error:
            make(values)
        assert "\n" not in str(error.value)
