"""Trees of cliques and circuits as integers."""

import math
import random

import numpy as np
import pytest

from rdpgraph.plan.circuit import MOST_CELLS, Scopes, circuit, clique_tree


def drawn(seed):
    """Scopes and sizes, some variables in no scope."""
    dice = random.Random(seed)
    count = dice.randint(1, 12)
    sizes = [dice.randint(1, 4) for _ in range(count)]
    many = dice.randint(0, 14)
    scopes = [dice.sample(range(count), dice.randint(0, min(4, count))) for _ in range(many)]
    return scopes, sizes


@pytest.mark.parametrize("seed", range(40))
def test_cliques_are_a_tree_that_holds_every_scope(seed):
    scopes, sizes = drawn(seed)
    tree = clique_tree(scopes, sizes, cells=1e9)
    members = [{*clique.separator, *clique.residual} for clique in tree]
    assert all(any(held.issuperset(scope) for held in members) for scope in scopes)
    owned = sorted(v for clique in tree for v in clique.residual)
    assert owned == list(range(len(sizes)))
    assert [clique.depth for clique in tree] == sorted(clique.depth for clique in tree)
    children = [sum(clique.parent == place for clique in tree) for place in range(len(tree))]
    for place, clique in enumerate(tree):
        if clique.parent < 0:
            assert not clique.separator
            assert not clique.depth
            continue
        parent = tree[clique.parent]
        assert clique.parent < place
        assert clique.depth == parent.depth + 1
        # Each variable has one owner, so this is the running intersection.
        assert set(clique.separator) == members[place] & members[clique.parent]
        assert clique.residual
        assert not members[place] <= members[clique.parent]
        before = tree[place - 1]
        assert before.depth < clique.depth or children[place - 1] >= children[place]


def test_a_chain_hangs_from_its_middle():
    tree = clique_tree([(v, v + 1) for v in range(40)], [2] * 41, cells=1e9)
    assert max(clique.depth for clique in tree) == 20


def test_what_is_not_small_has_no_circuit():
    whole = np.arange(16).reshape(1, 16)
    assert circuit([Scopes(whole, np.zeros(1, np.int64), 1)], np.full(16, 2)) is None
    assert clique_tree(whole.tolist(), [2] * 16, cells=MOST_CELLS) is None
    assert clique_tree([range(40)], [10] * 40, cells=math.inf) is None
    part = np.arange(15).reshape(1, 15)
    found = circuit([Scopes(part, np.zeros(1, np.int64), 1)], np.full(15, 2))
    assert found is not None
    assert len(found.owners) == found.entries == 2**15
