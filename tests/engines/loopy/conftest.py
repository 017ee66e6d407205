"""Settings of the tests of loopy belief propagation."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """The tensors are small: on a busy machine two threads wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
