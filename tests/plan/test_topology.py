import subprocess
import sys

import pytest
from hypothesis import given

from rdpgraph.errors import ModelError
from rdpgraph.plan.topology import Topology

from .problems import topologies


@pytest.mark.long
@given(topologies())
def test_components_are_those_of_a_flood_fill(topology):
    left = set(range(topology.num_tensors))
    expected = []
    while left:
        reached = {min(left)}
        while True:
            variables = {v for t in reached for v in topology.scopes[t]}
            more = {t for t in left if variables.intersection(topology.scopes[t])}
            if more == reached:
                break
            reached = more
        left -= reached
        expected.append(tuple(sorted(reached)))
    assert sorted(topology.components()) == sorted(expected)


@pytest.mark.long
@given(topologies(), topologies())
def test_keys_are_equal_exactly_for_equal_topologies(one, other):
    assert (one.key() == other.key()) == (one == other)
    assert Topology(one.scopes, one.sizes).key() == one.key()


def test_keys_tell_scopes_apart_that_flatten_alike():
    assert Topology(((0, 1), (2,)), (2, 2, 2)).key() != Topology(((0,), (1, 2)), (2, 2, 2)).key()


def test_keys_are_the_same_in_another_process():
    text = (
        "from rdpgraph.plan.topology import Topology as T; print(T(((0, 1),), (2, 3)).key().hex())"
    )
    out = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == Topology(((0, 1),), (2, 3)).key().hex()


@pytest.mark.parametrize(
    ("scopes", "sizes", "message"),
    [
        (((),), (2,), "Tensor 0 has an empty scope"),
        (((0, 0),), (2,), "repeats a variable"),
        (((0, 2),), (2, 2), "names variable 2"),
        (((0, -1),), (2, 2), "names variable -1"),
        (((0,),), (0,), "has size 0"),
    ],
)
def test_what_is_no_topology_is_refused(scopes, sizes, message):
    with pytest.raises(ModelError, match=message):
        Topology(scopes, sizes)


def test_the_empty_topology():
    assert Topology((), ()).components() == ()
    assert Topology((), (2, 2)).num_variables == 2
