"""Results in the competitions' format, read back as their scorer reads them."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rdpgraph.io.evidence import format_map, format_mar, format_mmap, format_pr


def solution(text, task):
    head, *body = text.split()
    assert head == task
    assert text == f"{task}\n{' '.join(body)}\n"
    return body


@given(st.floats(allow_nan=False))
def test_pr(value):
    assert [float(word) for word in solution(format_pr(value), "PR")] == [value]


def test_pr_of_a_tensor():
    assert format_pr(torch.tensor(-math.inf)) == "PR\n-inf\n"


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), max_size=4))
def test_mar(marginals):
    for given_as in (list, np.array, lambda p: torch.tensor(p, dtype=torch.float64)):
        words = solution(format_mar([given_as(p) for p in marginals]), "MAR")
        count, words = int(words[0]), words[1:]
        found = []
        for _ in range(count):
            size = int(words[0])
            found.append([float(word) for word in words[1 : 1 + size]])
            words = words[1 + size :]
        assert found == marginals
        assert words == []


@given(st.lists(st.integers(0, 9)))
def test_map_and_mmap(states):
    words = solution(format_map(torch.tensor(states, dtype=torch.long)), "MPE")
    assert [int(word) for word in words] == [len(states), *states]
    query = [str(3 * n) for n in range(len(states))]
    words = solution(format_mmap(query, states), "MMAP")
    assert [int(w) for w in words[:1]] == [len(states)]
    assert words[1::2] == query
    assert [int(w) for w in words[2::2]] == states
