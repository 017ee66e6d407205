"""The recursion on NumPy's arrays says what the one in torch says, and is taken where it pays."""

import pytest
import torch

from rdpgraph.structures.chain import arrays, native, recursion, scaled, sweeps
from tests.structures.chain.test_native import SIZES, agree, factors


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sweeps_agree(size, dtype):
    case = factors(*size, dtype)
    found, plain = arrays.forward(case), sweeps.forward(case)
    agree(found, plain)
    torch.testing.assert_close(found.scales, plain.scales)
    turned = case.reversed()
    agree(arrays.forward(turned), sweeps.forward(turned))
    gradient = torch.linspace(1.0, 2.0, size[0], dtype=dtype)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    torch.testing.assert_close(
        arrays.backward(case, found, gradient), sweeps.backward(case, plain, gradient), **close
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1.0, 10.0, 30.0, 100.0, 1000.0])
def test_doubt_is_told_alike(spread, dtype):
    for size in ((16, 20, 6), (2, 9, 64)):
        case = factors(*size, dtype, spread=spread)
        found, plain = arrays.forward(case), sweeps.forward(case)
        assert torch.equal(found.doubtful, plain.doubtful)
        sure = ~plain.doubtful
        torch.testing.assert_close(found.values[sure], plain.values[sure])


def test_states_are_divided_by_their_sums_at_every_step_where_they_fall_low(monkeypatch):
    # Four steps lose sixty nats, which takes a state out of the range of float32; one does not.
    unary, lengths = torch.zeros(1, 9, 2), torch.tensor([9])
    transition = torch.tensor([[0.0, -15.0], [-15.0, -15.0]])
    unary[..., 0] = -15.0
    found: list[int] = []
    plain = arrays._swept
    monkeypatch.setattr(
        arrays, "_swept", lambda *given, every: found.append(every) or plain(*given, every=every)
    )
    case = scaled.Factors.of(unary, transition, lengths)
    agree(arrays.forward(case), sweeps.forward(case))
    assert found == [arrays._EVERY, 1]


def test_where_there_is_no_kernel_small_chains_have_no_call_of_torch_for_each_step(monkeypatch):
    monkeypatch.setattr(native, "applies", lambda unary, transition: False)
    monkeypatch.setattr(sweeps, "forward", None)
    monkeypatch.setattr(sweeps, "backward", None)
    case = factors(3, 20, 4, torch.float32)
    unary, transition = case.unary.requires_grad_(), case.transition.requires_grad_()
    recursion.log_partition(unary, transition, case.lengths).sum().backward()
    assert unary.grad is not None
    assert transition.grad is not None


def test_what_is_not_small_or_has_transitions_of_its_own_is_left_to_torch():
    unary = torch.zeros(2, 3, 4)
    assert arrays.applies(unary, torch.zeros(4, 4))
    assert not arrays.applies(unary, torch.zeros(1, 2, 4, 4))
    assert not arrays.applies(unary.double(), torch.zeros(4, 4))
    assert not arrays.applies(torch.zeros(64, 3, 100), torch.zeros(100, 100))
    assert not arrays.applies(torch.zeros(1, 3, 4, device="meta"), torch.zeros(4, 4))
