"""Models inside functions that torch compiles or traces."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import rdpgraph as rg

D = torch.float64
TAGS = torch.tensor([[0, 2, 1, 1], [1, 1, 0, 2]])


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D)


XS = rg.VariableArray("x", (4,), 3)


def ring(table):
    return rg.FactorGraph([rg.FactorBlock((XS, XS[[1, 2, 3, 0]]), rg.Table(table))])


def crf():
    layer = rg.nn.CRF(3, batch_first=True).double().requires_grad_(False)
    for number, parameter in enumerate(layer.parameters()):
        parameter.copy_(numbers(*parameter.shape, seed=number))
    return layer


CRF = crf()
QUESTIONS = {
    "evidence": lambda table: (
        rg.infer(ring(table.tanh()).condition({XS[0]: 1})).marginal(XS[2]).square().sum()
    ),
    "messages": lambda table: rg.infer(ring(table), rg.Loopy()).entropy(),
    "segments": lambda table: rg.SemiMarkov(table.expand(4, 2, 3, 3)[..., 0], table).entropy(),
    "a layer": lambda table: CRF(table[TAGS], TAGS, TAGS < 9),
}
ASKED = QUESTIONS | {
    "a factor": lambda table: (
        rg.infer(rg.FactorGraph([rg.Factor(XS[:2], rg.Table(table))])).log_partition
    )
}


@pytest.mark.long
@pytest.mark.parametrize("asked", QUESTIONS)
def test_a_compiled_function_has_the_answers_and_gradients_of_the_plain_one(asked):
    torch._dynamo.reset()
    table, ask = numbers(3, 3).requires_grad_(), QUESTIONS[asked]

    def value(table):
        return ask(2 * table) * 3

    found, expected = torch.compile(value, backend="eager")(table), value(table)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, table), torch.autograd.grad(expected, table)
    )


@pytest.mark.long
def test_a_compiled_module_holds_its_variables():
    torch._dynamo.reset()

    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = torch.nn.Linear(2, 3, dtype=D)
            self.table = torch.nn.Parameter(numbers(3, 3))
            self.tags = rg.VariableArray("tag", (4,), 3)

        def forward(self, words):
            pairs = [(self.tags[: 4 - d], self.tags[d:]) for d in (1, 2)]
            graph = rg.FactorGraph(
                [
                    rg.FactorBlock((self.tags,), rg.Table(self.scores(words))),
                    *(rg.FactorBlock(pair, rg.Table(self.table)) for pair in pairs),
                ]
            )
            posterior = rg.infer(graph)
            return posterior.log_partition, posterior.marginal(self.tags)

    tagger, words = Tagger(), numbers(4, 2)
    found, expected = torch.compile(tagger, backend="eager")(words), tagger(words)
    torch.testing.assert_close(found, expected)
    gradients = [
        torch.autograd.grad(log_z + marginals[0, 1], tagger.parameters())
        for log_z, marginals in (found, expected)
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("asked", ASKED)
def test_a_trace_is_refused_in_a_line(asked):
    with pytest.raises(rg.errors.UnsupportedError, match=r"torch\.jit\.trace") as caught:
        torch.jit.trace(ASKED[asked], numbers(3, 3))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
@pytest.mark.parametrize("asked", QUESTIONS)
def test_a_transform_of_torch_func_is_right_or_refused_in_a_line(asked, transform):
    if transform is torch.func.grad and asked == "a layer":  # a chain, by torch operations alone
        table = numbers(3, 3).requires_grad_()
        expected = torch.autograd.grad(QUESTIONS[asked](table), table)[0]
        torch.testing.assert_close(transform(QUESTIONS[asked])(numbers(3, 3)), expected)
        return
    with pytest.raises(rg.errors.UnsupportedError, match=r"torch\.func") as caught:
        transform(QUESTIONS[asked])(
            numbers(3, 3) if transform is torch.func.grad else numbers(2, 3, 3)
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("way", [pytest.param("export", marks=pytest.mark.long), "make_fx", "fake"])
@pytest.mark.parametrize("asked", ["evidence", "messages", "segments", "a factor"])
def test_an_export_is_refused_in_a_line(asked, way):
    def ask(table):
        return ASKED[asked](table)

    def faked(table):
        with FakeTensorMode() as mode:
            return ask(mode.from_tensor(table))

    def exported(table):
        module = torch.nn.Module()
        module.forward = ask
        return torch.export.export(module, (table,))

    ways = {"export": exported, "make_fx": make_fx(ask), "fake": faked}
    with pytest.raises(rg.errors.UnsupportedError, match=r"torch\.export") as caught:
        ways[way](numbers(3, 3))
    assert "\n" not in str(caught.value)


def test_gradients_of_a_language_model_by_torch_func():
    model = rg.nn.HMM(states=8, vocabulary=10, rank=4)

    def loss(parameters):
        tokens = torch.tensor([[1, 2, 3, 1, 2]])
        return torch.func.functional_call(model, parameters, (tokens,)).sum()

    parameters = dict(model.named_parameters())
    found = torch.func.grad(loss)(parameters)
    expected = torch.autograd.grad(loss(parameters), parameters.values())
    for one, other in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_transforms_pass_through_an_unrolled_layer():
    unrolled, emissions = CRF.exportable(), numbers(2, 4, 3)
    mask = torch.arange(4) < torch.tensor([[4], [2]])
    gradient = torch.func.grad(lambda given: unrolled(given, mask)[1].sum())(emissions)
    torch.testing.assert_close(gradient, CRF.marginals(emissions, mask))


def trained(kind):
    """A layer above another, and a step of training it."""
    if kind == "segments":
        layer = rg.nn.SemiCRF(3, 2).double()
        starts = torch.tensor([[True, False, True, True], [True, True, False, True]])
        labels = torch.tensor([[0, 0, 1, 2], [2, 1, 1, 0]])
        gold = rg.Segmentation(labels, starts)
    else:
        layer = rg.nn.CRF(3, batch_first=kind == "tags").double()
        gold = TAGS if kind == "tags" else TAGS.t()
    for number, parameter in enumerate(layer.parameters()):
        parameter.data.copy_(numbers(*parameter.shape, seed=number))
    below = torch.nn.Linear(2, 3, dtype=D)
    words = numbers(2, 4, 2) if kind != "steps first" else numbers(4, 2, 2)
    return [
        *layer.parameters(),
        *below.parameters(),
    ], lambda mask: -layer(below(words).tanh(), gold, mask, "token_mean")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["tags", "steps first", "segments"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_step_of_training_is_one_graph(kind, masked):
    torch._dynamo.reset()
    parameters, loss = trained(kind)
    mask = torch.tensor([[True, True, True, True], [True, True, True, False]])
    mask = None if not masked else mask.t() if kind == "steps first" else mask
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    found, expected = compiled(mask), loss(mask)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters)
    )
    if masked:
        mask = mask.logical_not()
        with pytest.raises(rg.errors.ModelError, match="mask must be True at the first step"):
            compiled(mask)
