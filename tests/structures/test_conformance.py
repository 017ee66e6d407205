"""Every structure with sites of its own is held to its graph, or to its scores."""

import gc

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import check_structure
from tests.fuzz.structures import mapped
from tests.questions import NUMBERS


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def factors(count, *shape):
    return [draw(*shape, seed=seed) for seed in range(1, count + 1)]


def derivations(heads, tails):
    rows = torch.tensor([[*tail, *[-1] * (2 - len(tail))] for tail in tails])
    return rg.Derivations(draw(2, len(heads)), torch.tensor(heads), rows, nodes=max(heads) + 1)


SOME = torch.tensor([3, 1])
STRUCTURES = {
    "chain": lambda: rg.Chain(draw(2, 3, 3), draw(3, 3, seed=1), lengths=SOME),
    "chain of low rank": lambda: rg.Chain(draw(3, 3), rg.LowRank(*factors(2, 3, 2))),
    "chain of low rank, factors of each item": lambda: rg.Chain(
        draw(2, 3, 2), rg.LowRank(*factors(2, 2, 2, 2, 2))
    ),
    "chain that copies, with rates of each step": lambda: rg.Chain(
        draw(2, 3, 3),
        rg.Banded(draw(2, 3, 1), (0,), rg.LowRank(draw(2, 3, 1), draw(3, 1))),
        lengths=SOME,
    ),
    "chain of one step, transitions of each item": lambda: rg.Chain(
        draw(2, 1, 2), draw(2, 0, 2, 2), lengths=torch.tensor([1, 0])
    ),
    "dense rules of each item": lambda: rg.Hypertree(
        draw(2, 2, 2, 2), rg.trees.DenseRules(draw(2, 2, 2, 2, seed=1)), root=draw(2, 2, seed=2)
    ),
    "dense rules": lambda: rg.Hypertree(
        draw(2, 3, 3, 2),
        rg.trees.DenseRules(draw(2, 2, 2, seed=1)),
        root=draw(2, seed=2),
        lengths=SOME,
    ),
    "rules of low rank": lambda: rg.Hypertree(
        draw(3, 3, 2), rg.trees.LowRankRules(*factors(3, 2, 2))
    ),
    "factorised rules": lambda: rg.Hypertree(
        draw(3, 3, 2), rg.trees.FactorisedRules(*factors(2, 2, 2, 2))
    ),
    "bilinear rules": lambda: rg.Hypertree(
        draw(3, 3, 2), rg.trees.BilinearRules(*factors(2, 2, 2, 2))
    ),
    "sparse rules": lambda: rg.Hypertree(
        draw(2, 3, 3, 2),
        rg.trees.SparseRules([(0, 1, 0), (1, 0, 0), (1, 1, 1), (0, 0, 1)], draw(4), parents=2),
        lengths=SOME,
    ),
    "no rules": lambda: rg.Hypertree(draw(3, 3, 2)),
    "preterminals": lambda: rg.Hypertree(
        draw(3, 3, 2), rg.trees.DenseRules(draw(1, 2, 2, seed=1)), preterminals=1
    ),
    "segments": lambda: rg.SemiMarkov(draw(2, 3, 2, 2), draw(2, 2, seed=1), lengths=SOME),
    "segments, a transition each": lambda: rg.SemiMarkov(
        draw(2, 3, 2, 2), draw(2, 2, 2, 2, seed=1)
    ),
    "segments, one item with transitions of its own": lambda: rg.SemiMarkov(
        draw(1, 3, 2, 1), draw(1, 2, 1, 1, seed=1), lengths=torch.tensor([2])
    ),
    "segments as long as the sequence": lambda: rg.SemiMarkov(
        draw(2, 2, 2, 2), draw(2, 2, seed=1), lengths=torch.tensor([2, 1])
    ),
    "segments of nothing": lambda: rg.SemiMarkov(
        draw(1, 2, 2, 2), draw(2, 2, seed=1), lengths=torch.tensor([0])
    ),
    "segments of low rank": lambda: rg.SemiMarkov(draw(3, 2, 2), rg.LowRank(*factors(2, 2, 1))),
    "segments, labels of their own": lambda: rg.SemiMarkov(
        draw(2, 3, 2, 4), draw(4, 4, seed=1), lengths=SOME
    ).restrict(torch.arange(24).reshape(2, 3, 2, 2) % 4, draw(2, 3, 2, 2, seed=2)),
    "mixed rules": lambda: rg.MixedBitext(
        draw(2, 3, 3, 3, 3, 1),
        draw(2, 2, 2),
        draw(2, 2, seed=1),
        draw(2, 2, seed=2),
        rules=draw(10),
        source_lengths=torch.tensor([2, 1]),
    ),
    "projective": lambda: rg.ProjectiveDependencies(draw(2, 3, 4), lengths=SOME),
    "projective, of one word": lambda: rg.ProjectiveDependencies(draw(1, 2), multiroot=True),
    "non-projective": lambda: rg.NonProjectiveDependencies(draw(2, 3, 4), lengths=SOME),
    "matching": lambda: rg.Matching(draw(2, 2, 3), every_row=torch.tensor([True, False])),
    "matching, listed pairs": lambda: rg.Matching(
        unary=draw(2, 5, 2), pairs=[[0, 0], [0, 1], [2, 1], [2, 2], [0, 0]], shape=(4, 3)
    ),
    "derivations": lambda: derivations([0, 0, 1, 2, 2, 3], [[], [], [0], [0, 1], [1], [2, 2]]),
    "derivations, each node once": lambda: derivations(
        [0, 0, 1, 1, 2, 3, 3], [[], [], [], [], [1], [0, 1], [0, 2]]
    ),
    "derivations, hyperedges by node": lambda: derivations(
        [0, 0, 1, 1, 2, 3, 3], [[], [], [], [], [1], [0, 1], [0, 2]]
    ).restrict(torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0]]).expand(2, 4, 2), draw(2, 4, 2)),
}


# Each has a short sibling, which differs in the tensors of its rules or transitions alone.
SIBLINGS = {
    "bilinear rules", "factorised rules", "rules of low rank", "dense rules of each item",
    "segments, labels of their own", "segments, one item with transitions of its own",
    "chain of low rank, factors of each item",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name in SIBLINGS)) for name in STRUCTURES],
)
def test_conformance(name):
    check_structure(STRUCTURES[name]())


ANSWERS = NUMBERS | {
    "mode": lambda model: model.score(model.mode()),
    "k best": lambda model: model.k_best(2).scores,
    "samples": lambda model: model.log_prob(model.sample(3, torch.Generator().manual_seed(0))),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_answers_do_not_depend_on_strides(name):
    model = STRUCTURES[name]()
    other = mapped(model, lambda own: own.mT.contiguous().mT if own.ndim > 1 else own)
    for question, answer in ANSWERS.items():
        torch.testing.assert_close(answer(other), answer(model), msg=question)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in STRUCTURES if "by node" not in name])
def test_answers_are_computed_where_the_tensors_are_and_not_on_the_default_device(name):
    model = STRUCTURES[name]()
    with torch.device("meta"):
        found = {question: answer(model) for question, answer in ANSWERS.items()}
    for question, answer in ANSWERS.items():
        torch.testing.assert_close(found[question], answer(model))


# One of each way to hold what was computed.
FREED = (
    "chain", "chain of low rank", "dense rules", "rules of low rank", "sparse rules", "no rules",
    "segments", "segments of low rank", "mixed rules", "projective", "non-projective",
    "derivations", "derivations, each node once",
)  # fmt: skip


def asked(model, estimator=None):
    """Ask everything of a model and of its posterior."""
    for answer in ANSWERS.values():
        answer(model)
    generator = torch.Generator().manual_seed(0)
    posterior = rg.infer(model, estimator=estimator, generator=generator)
    posterior.marginals(), posterior.entropy(), posterior.max_marginals()
    posterior.mode(), posterior.sample(2, generator)


@pytest.mark.long
@pytest.mark.parametrize("name", FREED)
def test_what_answers_are_made_of_is_freed_when_nothing_names_it(name):
    """Tensors are freed at once, not when the garbage collector comes by."""
    every = rg.Randomized(
        rg.randomized.Uniform(), rg.randomized.TopSystematic(0.5, 0.5), replicates=2
    )
    estimators = [None, every] if STRUCTURES[name]().sites() is not None else [None]
    for estimator in estimators:
        asked(STRUCTURES[name](), estimator)  # what is made once for all stays
        gc.collect()
        gc.freeze()  # only what is made from here on is looked through
        gc.set_debug(gc.DEBUG_SAVEALL)  # what it would free is listed instead
        try:
            asked(STRUCTURES[name](), estimator)
            gc.collect()
            assert not [left for left in gc.garbage if isinstance(left, torch.Tensor)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()


def test_a_chain_in_a_graph_is_solved_where_its_tables_are():
    sites = rg.VariableArray("site", (50,), 4)
    tables = rg.Table(draw(4, 4)), rg.Table(draw(50, 4))
    blocks = rg.FactorBlock((sites[:-1], sites[1:]), tables[0]), rg.FactorBlock((sites,), tables[1])
    posterior, same = (rg.infer(rg.FactorGraph(blocks)) for _ in range(2))
    with torch.device("meta"):
        found = posterior.log_partition
    torch.testing.assert_close(found, same.log_partition)


def test_what_is_too_large_to_enumerate_is_refused():
    with pytest.raises(rg.errors.ModelError, match="fewer sites"):
        check_structure(rg.Hypertree(draw(5, 5, 3)))
