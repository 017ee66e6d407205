"""A structure sees what is written into its tensors between two questions."""

from dataclasses import fields, is_dataclass, replace
from itertools import cycle

import pytest
import torch

import rdpgraph as rg
from tests.questions import NUMBERS


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parts(count, *shape):
    return [drawn(*shape, seed=seed) for seed in range(1, count + 1)]


def tree(rules, **rest):
    return rg.Hypertree(drawn(2, 3, 3, 2), rules, lengths=torch.tensor([3, 2]), **rest)


def bispans(p, q, states):
    return drawn(2, p + 1, p + 1, q + 1, q + 1, states)


RULES = {
    "dense": lambda: rg.trees.DenseRules(drawn(2, 2, 2, seed=1)),
    "sparse": lambda: rg.trees.SparseRules(
        [(0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 0)], drawn(4), parents=2
    ),
    "of low rank": lambda: rg.trees.LowRankRules(*parts(3, 2, 2)),
    "factorised": lambda: rg.trees.FactorisedRules(*parts(2, 2, 2, 2)),
}
TRANSITIONS = {
    "plain": lambda: drawn(2, 2, seed=1),
    "each": lambda: drawn(2, 2, 2, 2, seed=1),
    "low rank": lambda: rg.LowRank(*parts(2, 2, 2)),
    "sparse": lambda: rg.Sparse([(0, 1), (1, 0), (1, 1)], drawn(3), (2, 2)),
}
SOME = [3, 2]
MODELS = {
    **{
        f"chain, {name}": lambda made=made: rg.Chain(
            drawn(2, 3, 2), made(), lengths=torch.tensor(SOME)
        )
        for name, made in TRANSITIONS.items()
    },
    **{
        f"segments, {name}": lambda made=made: rg.SemiMarkov(
            drawn(2, 3, 2, 2), made(), lengths=torch.tensor(SOME)
        )
        for name, made in TRANSITIONS.items()
    },
    **{
        f"tree, {name} rules": lambda made=made: tree(made(), root=drawn(2, 2, seed=2))
        for name, made in RULES.items()
    },
    "tree, no rules": lambda: tree(rg.trees.NoRules()),
    "tree, kept states": lambda: tree(RULES["dense"]()).restrict(
        torch.arange(36).reshape(2, 3, 3, 2) % 2, drawn(2, 3, 3, 2, seed=4)
    ),
    **{
        f"alignment, {name}": lambda made=made: rg.Alignment(
            drawn(2, 2, 3, 3),
            transition=made(),
            first_lengths=torch.tensor([1, 0]),
            second_lengths=torch.tensor([2, 1]),
        )
        for name, made in {
            "none": lambda: None,
            "plain": lambda: drawn(3, 3, seed=1),
            "low rank": lambda: rg.LowRank(*parts(2, 3, 2)),
        }.items()
    },
    "bitext": lambda: rg.Bitext(
        bispans(2, 2, 2),
        rg.trees.DenseRules(drawn(2, 2, 2, seed=1)),
        rg.trees.LowRankRules(*parts(3, 2, 2)),
        root=drawn(2, 2, seed=2),
        source_lengths=torch.tensor([2, 1]),
        target_lengths=torch.tensor([2, 1]),
    ),
    "mixed bitext": lambda: rg.MixedBitext(
        bispans(2, 2, 1),
        drawn(2, 2, 2),
        drawn(2, 2, seed=1),
        drawn(2, 2, seed=2),
        rules=drawn(10),
        source_lengths=torch.tensor([2, 1]),
        target_lengths=torch.tensor([2, 1]),
    ),
    "projective": lambda: rg.ProjectiveDependencies(drawn(2, 3, 4), lengths=torch.tensor(SOME)),
    "non-projective": lambda: rg.NonProjectiveDependencies(
        drawn(2, 3, 4), lengths=torch.tensor(SOME)
    ),
    "derivations": lambda: rg.Derivations(
        drawn(2, 5),
        torch.tensor([0, 1, 2, 3, 3]),
        torch.tensor([[-1, -1], [-1, -1], [0, 1], [2, 0], [1, 1]]),
        nodes=4,
    ),
}
QUESTIONS = NUMBERS | {
    "mode": lambda model: model.site_states(model.mode()),
    "k best": lambda model: model.k_best(3).scores,
    "samples": lambda model: model.site_states(model.sample(4, torch.Generator().manual_seed(0))),
    "inferred log Z": lambda model: rg.infer(model).log_partition,
    "inferred mode": lambda model: model.site_states(rg.infer(model).mode()),
}
WHOLE = {  # written into tensors of integers: other values that are possible; of lengths turned
    "heads": lambda own: torch.tensor([1, 0, 2, 3, 3]),
    "tails": lambda own: torch.where(torch.arange(len(own)).unsqueeze(1) == 3, -1, own),
    "states": lambda own: 1 - own,
}
FLOATING = {
    "add": lambda own: own.add_(torch.linspace(-2, 2, own.numel()).reshape(own.shape)),
    "multiply": lambda own: own.mul_(-1.5),
    "copy": lambda own: own.copy_(own.flip(-1) + 0.5),
}


def mapped(value, change, name=""):
    """The same object made anew, of tensors that are changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, rg.Variable) or not is_dataclass(value):
        return value
    return replace(
        value, **{part.name: mapped(getattr(value, part.name), change) for part in fields(value)}
    )


def places(value, path=()):
    """Places of the tensors of a model, and these tensors."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif is_dataclass(value):
        for part in fields(value):
            yield from places(getattr(value, part.name), (*path, part.name))


def answers(model, questions=tuple(QUESTIONS)):
    return {question: QUESTIONS[question](model) for question in questions}


def in_type(name, dtype):
    def cast(tensor):
        return tensor.to(dtype if tensor.is_floating_point() else tensor.dtype, copy=True)

    return mapped(MODELS[name](), cast)


@torch.no_grad()
def write(path, tensor, change):
    if tensor.is_floating_point():
        FLOATING[change](tensor)
    else:
        tensor.copy_(WHOLE.get(path[-1], lambda own: own.flip(0))(tensor))


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_into_one_tensor_is_seen(name):
    model, few = in_type(name, torch.float32), ("log_partition", "max_marginals")
    before = answers(model, few)
    for (path, tensor), change in zip(places(model), cycle(FLOATING), strict=False):
        write(path, tensor, change)
        found, wanted = answers(model, few), answers(mapped(model, torch.Tensor.clone), few)
        torch.testing.assert_close(found, wanted, msg=lambda m: f"{path}: {m}")  # noqa: B023
        if path[0] != "original":  # of which the states kept have their own
            assert any(not torch.equal(wanted[each], before[each]) for each in few), path
        before = found


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_seen_by_every_question(name, dtype):
    model = in_type(name, dtype)
    answers(model)
    for path, tensor in places(model):
        if path != ("original", "lengths"):  # at which the weights of kept states were cut
            write(path, tensor, "add")
    torch.testing.assert_close(answers(model), answers(mapped(model, torch.Tensor.clone)))


def test_gradients_that_are_asked_for_later_are_given():
    model = MODELS["segments, plain"]()
    model.log_partition()
    model.transition.requires_grad_()
    assert model.log_partition().requires_grad


def test_other_memory_put_into_a_tensor_is_seen():
    model = MODELS["segments, plain"]()
    best = model.k_best(1).scores
    for part in (model.unary, model.transition):
        part.data = -part.data
    assert not torch.equal(model.k_best(1).scores, best)
    model.unary.data, model.transition.data = -model.unary.data, -model.transition.data
    assert torch.equal(model.k_best(1).scores, best)


def test_tensors_that_count_no_writes_are_read_every_time():
    with torch.inference_mode():
        model = in_type("segments, plain", torch.float32)
        answers(model)
        model.transition.mul_(-1.5)
        found = answers(model)
    torch.testing.assert_close(found, answers(mapped(model, torch.Tensor.clone)))
