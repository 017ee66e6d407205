"""The hidden Markov model of text."""

import itertools
import math
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch

import rdpgraph as rg
from rdpgraph.nn import HMM


def model(rank, dropout=0.0):
    generator = torch.Generator().manual_seed(0)
    made = HMM(
        states=12, vocabulary=9, rank=rank, dimension=8, dropout=dropout, generator=generator
    )
    return made.double()


def text():
    tokens = torch.randint(9, (5, 7), generator=torch.Generator().manual_seed(1))
    return tokens, torch.tensor([7, 3, 1, 0, 5])


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("total", [3, None])  # few steps go without a matrix for each symbol
@pytest.mark.parametrize("cells", [2**24, 1])
def test_the_likelihood_is_that_of_the_tables(small_blocks, rank, total, cells):
    small_blocks(cells)
    made, (tokens, lengths) = model(rank), text()
    tokens, lengths = tokens[:, :total], lengths.clamp(max=total or tokens.shape[1])
    transition = made.transition()
    table = transition if isinstance(transition, torch.Tensor) else transition.table(2)
    emission = (made.emitting @ made.tokens.mT + made.bias).log_softmax(1)
    start = made.start.log_softmax(0)
    expected = rg.Chain.hmm(start, table, emission, tokens, lengths=lengths).log_partition()
    found = made.log_likelihood(tokens, lengths)
    assert torch.allclose(found, expected)
    assert torch.allclose(made.chain(tokens, lengths).log_partition(), expected)
    parameters = list(made.parameters())
    for own, other in zip(
        torch.autograd.grad(found.sum(), parameters),
        torch.autograd.grad(expected.sum(), parameters),
        strict=True,
    ):
        assert torch.allclose(own, other)


def tables(made):
    """Start, transition (from, to) and emission (state, token), as probabilities."""
    transition = made.transition()
    table = transition if isinstance(transition, torch.Tensor) else transition.table(2)
    emission = (made.emitting @ made.tokens.mT + made.bias).softmax(1)
    return made.start.softmax(0), table.exp(), emission


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("length", [0, 1, 4])
def test_the_likelihood_is_a_sum_over_all_paths(rank, length):
    made = HMM(states=3, vocabulary=5, rank=rank, dimension=4,
               generator=torch.Generator().manual_seed(2)).double()  # fmt: skip
    start, table, emission = tables(made)
    tokens = torch.randint(5, (1, 4), generator=torch.Generator().manual_seed(3))
    total = torch.zeros((), dtype=torch.float64)
    for path in itertools.product(range(3), repeat=length):
        value = torch.ones((), dtype=torch.float64)
        for step, state in enumerate(path):
            value = value * (table[path[step - 1], state] if step else start[state])
            value = value * emission[state, tokens[0, step]]
        total = total + value
    found = made(tokens, torch.tensor([length]))
    assert torch.allclose(found, total.log())


@pytest.mark.parametrize("rank", [None, 4])
def test_rows_sum_to_one(rank):
    start, table, emission = tables(model(rank))
    for rows in (start, table, emission):
        assert torch.allclose(rows.sum(-1), torch.ones(1, dtype=rows.dtype), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_batch_is_its_items(rank, dropout):
    made, (tokens, lengths) = model(rank, dropout), text()

    def found(rows):
        drawn = torch.Generator().manual_seed(4)  # the same states are left out
        return made(tokens[rows], lengths[rows], generator=drawn)

    together = found(slice(None))
    for item in range(len(tokens)):
        assert torch.allclose(together[item], found(slice(item, item + 1))[0])
    beyond = tokens.clone()
    beyond[torch.arange(7) >= lengths.unsqueeze(1)] = 99  # no token at all
    drawn = torch.Generator().manual_seed(4)
    assert torch.equal(made(beyond, lengths, generator=drawn), together)


@pytest.mark.parametrize("rank", [None, 4])
def test_the_gradient_is_that_of_finite_differences(rank):
    made, (tokens, lengths) = model(rank), text()
    names, values = zip(*made.named_parameters(), strict=True)

    def likelihood(*parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(made, given, (tokens, lengths))

    assert torch.autograd.gradcheck(likelihood, values, fast_mode=True)


@pytest.mark.parametrize("rank", [None, 4])
def test_gradients_are_finite_where_emissions_are_all_but_certain(rank):
    made, (tokens, lengths) = model(rank, dropout=0.5).float(), text()
    made.emitting.data *= 200.0  # logits in the hundreds
    made(tokens, lengths, generator=torch.Generator().manual_seed(5)).sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in made.parameters())


def test_emissions_begin_at_the_frequencies():
    counts = torch.tensor([4.0, 0.0, 16.0, 1.0])
    made = HMM(states=3, vocabulary=4, counts=counts)
    expected = torch.tensor([4.0, 0.5, 16.0, 1.0])
    assert torch.allclose(made.bias.softmax(0), expected / expected.sum())
    for wrong in (counts[:2], -counts):
        with pytest.raises(rg.errors.ModelError, match="counts"):
            HMM(states=3, vocabulary=4, counts=wrong)


@pytest.mark.parametrize("rank", [None, 16])
def test_products_in_bfloat16_are_near_and_states_stay_normalised(rank):
    made = HMM(states=64, vocabulary=50, rank=rank, dimension=16,
               generator=torch.Generator().manual_seed(0))  # fmt: skip
    tokens = torch.randint(50, (6, 12), generator=torch.Generator().manual_seed(1))
    found, gradients = [], []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            values = made(tokens)
            rows = tables(made)[1].float().sum(1)
        found.append(values)
        gradients.append(torch.autograd.grad(values.sum(), list(made.parameters())))
        assert torch.allclose(rows, torch.ones(64), atol=0.02)
    assert found[1].dtype == torch.float32
    assert torch.allclose(found[0], found[1], rtol=0.01)
    for exact, near in zip(*gradients, strict=True):
        assert torch.cosine_similarity(exact.flatten(), near.flatten(), dim=0) > 0.98


@pytest.mark.parametrize("rank", [None, 4])
def test_all_sequences_of_a_length_have_probability_one(rank):
    made = model(rank)
    tokens = torch.cartesian_prod(*[torch.arange(9)] * 3)
    assert torch.allclose(made(tokens).logsumexp(0).exp(), torch.ones((), dtype=torch.float64))


def test_dropped_states_are_left_out_and_the_rest_is_normalised():
    made = model(4, dropout=0.5)
    tokens = torch.cartesian_prod(*[torch.arange(9)] * 2)
    draws = [made(tokens, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.allclose(draws[0], draws[2])
    for drawn in draws:
        assert torch.allclose(drawn.logsumexp(0).exp(), torch.ones((), dtype=torch.float64))
    made.eval()
    assert torch.equal(made(tokens), made(tokens))


@pytest.mark.long
@pytest.mark.parametrize("rank", [None, 6])
def test_training_learns_what_follows_what(rank):
    """A cycle of three tokens: nearly all of the entropy, log 3 a token, goes."""
    made = HMM(states=6, vocabulary=3, rank=rank, dimension=8,
               generator=torch.Generator().manual_seed(0))  # fmt: skip
    tokens = (torch.arange(12) + torch.arange(3).unsqueeze(1)) % 3
    optimiser = torch.optim.Adam(made.parameters(), lr=0.1)
    for _ in range(60):
        optimiser.zero_grad()
        loss = -made(tokens).mean() / 12
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.2


def test_what_is_no_text_is_refused():
    made = model(4)
    with pytest.raises(rg.errors.EvidenceError, match="token 9"):
        made(torch.tensor([[9]]))
    with pytest.raises(rg.errors.EvidenceError, match="integer tokens"):
        made(torch.zeros(2, 3))
    with pytest.raises(rg.errors.ModelError, match="dropout"):
        HMM(states=2, vocabulary=2, dropout=1.0)


@pytest.mark.parametrize("batch", [1, 1000])
@pytest.mark.parametrize("length", [4, -2, 1.5])
def test_lengths_are_checked_whatever_the_route(batch, length):
    model = rg.nn.HMM(states=4, vocabulary=6, rank=3)
    tokens = torch.zeros(batch, 3, dtype=torch.long)
    with pytest.raises(rg.errors.ModelError, match="lengths"):
        model.log_likelihood(tokens, torch.full((batch,), length))


@pytest.mark.parametrize("rank", [None, 4])
def test_tables_may_be_the_parameters(rank):
    generator = torch.Generator().manual_seed(6)
    made = HMM(states=6, vocabulary=9, rank=rank, dimension=None, dropout=0.5, generator=generator)
    tokens, lengths = text()
    made = made.double()
    found = made.train(mode=False)(tokens, lengths)
    expected = rg.Chain.hmm(*made.matrices(), tokens, lengths=lengths).log_partition()
    assert torch.allclose(found, expected)
    made.train()(tokens, lengths, generator=generator).sum().backward()
    given = [p.grad for p in made.parameters()]
    assert all(bool(grad.isfinite().all()) for grad in given)


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("as_logs", [False, True])
def test_matrices_of_other_programs_are_read(rank, as_logs):
    start, transition, emission = (part.detach() if isinstance(part, torch.Tensor) else part
                                   for part in model(rank).matrices())  # fmt: skip
    if isinstance(transition, torch.Tensor):
        transition = torch.where(transition < -4, -math.inf, transition).log_softmax(1)
    link = transition
    if not as_logs:
        start, emission = start.exp(), emission.exp()
        link = transition.exp() if isinstance(transition, torch.Tensor) else transition
    made = HMM.from_probabilities(start.unsqueeze(0), link, emission)
    tokens, lengths = text()
    logs = (start, emission) if as_logs else (start.log(), emission.log())
    expected = rg.Chain.hmm(logs[0], transition, logs[1], tokens, lengths=lengths).log_partition()
    assert torch.allclose(made(tokens, lengths), expected)
    made(tokens, lengths).sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in made.parameters())


def operators(count=6):
    draw = torch.randn(3, count, count, generator=torch.Generator().manual_seed(7)).double()
    parts = draw[:2, :, :4].reshape(2, 2, 3, 4)[..., :2]
    return {
        "blocks": rg.Monarch(parts[0], parts[1].mT),
        "band": rg.Banded(draw[0, :, :2], (0, 1)),
        "diagonal": rg.Banded(draw[0, :, :1], (0,), rg.LowRank(*draw[1:, :, :3])),
    }


@pytest.mark.parametrize("kind", ["blocks", "band", "diagonal"])
@pytest.mark.parametrize("dimension", [None, 4])
def test_an_operator_may_be_the_transition(tmp_path, kind, dimension):
    pytest.importorskip("safetensors")
    given = operators()[kind]
    made = HMM(states=6, vocabulary=9, transition=given, dimension=dimension).double()
    start, transition, emission = made.matrices()
    assert type(transition) is type(given)
    torch.testing.assert_close(transition.table(2), given.table(2).log_softmax(1))
    tokens, lengths = text()
    found = made(tokens, lengths)
    expected = rg.Chain.hmm(
        start, transition.table(2), emission, tokens, lengths=lengths
    ).log_partition()
    torch.testing.assert_close(found, expected)
    ways = [torch.autograd.grad(value.sum(), made.parameters(), allow_unused=True)
            for value in (found, expected)]  # fmt: skip
    torch.testing.assert_close(*ways)
    made.save_pretrained(tmp_path)
    assert torch.equal(HMM.from_pretrained(tmp_path)(tokens, lengths), found)
    read = HMM.from_probabilities(start, transition, emission)
    torch.testing.assert_close(read(tokens, lengths), found)


def test_a_transition_that_does_not_fit_is_refused():
    with pytest.raises(rg.errors.ModelError, match=r"over its 5 states.* got \(6, 6\), None"):
        HMM(states=5, vocabulary=2, transition=operators()["blocks"])
    with pytest.raises(rg.errors.ModelError, match="PairOperator"):
        HMM(states=2, vocabulary=2, transition=torch.zeros(2, 2))  # pyright: ignore
    with pytest.raises(rg.errors.ModelError, match="no rank and no dropout"):
        HMM(states=6, vocabulary=2, transition=operators()["band"], dropout=0.5)
    with pytest.raises(rg.errors.ModelError, match="rows of log-probabilities that sum to one"):
        HMM.from_probabilities(torch.ones(6) / 6, operators()["band"], torch.ones(6, 2) / 2)


def test_matrices_that_do_not_fit_are_refused():
    rows = torch.full((3, 3), 1 / 3)
    with pytest.raises(rg.errors.ModelError, match="HMM's emission needs rows"):
        HMM.from_probabilities(rows[0], rows, 2 * rows)
    with pytest.raises(rg.errors.ModelError, match=r"got \(2,\), \(3, 3\) and \(3, 3\)"):
        HMM.from_probabilities(torch.tensor([0.5, 0.5]), rows, rows)


@pytest.mark.parametrize(("rank", "dimension"), [(None, 8), (4, 8), (None, None), (4, None)])
def test_a_saved_model_is_the_same(tmp_path, rank, dimension):
    pytest.importorskip("safetensors")
    made = HMM(states=6, vocabulary=9, rank=rank, dimension=dimension, dropout=0.25).double()
    made.save_pretrained(tmp_path / "new" / "model")
    again = HMM.from_pretrained(tmp_path / "new" / "model")
    assert torch.equal(again.eval()(*text()), made.eval()(*text()))
    assert again.dropout == 0.25


def test_a_name_that_is_no_folder_is_asked_of_the_hub(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    hub = pytest.importorskip("huggingface_hub")
    made = model(4)
    made.save_pretrained(tmp_path)
    monkeypatch.setattr(hub, "snapshot_download", {"us/words": str(tmp_path)}.__getitem__)
    assert torch.equal(HMM.from_pretrained("us/words")(*text()), made(*text()))

    def absent(name):
        raise OSError(f"no {name}:\ntwo lines")

    monkeypatch.setattr(hub, "snapshot_download", absent)
    with pytest.raises(
        rg.errors.FileFormatError, match="nor a model on the hub: no us/else: two lines"
    ):
        HMM.from_pretrained("us/else")


def test_a_model_is_uploaded_to_the_hub(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    made, sent = model(4), {}

    class HfApi:
        def __init__(self, token):
            self.token = token

        def create_repo(self, name, **options):
            if self.token is None:
                raise OSError("no token:\nlog in")
            sent["asked"] = name, options
            return SimpleNamespace(repo_id=f"us/{name}")

        def upload_folder(self, *, repo_id, folder_path, commit_message):
            shutil.copytree(folder_path, tmp_path / repo_id)
            sent["message"] = commit_message
            return SimpleNamespace(commit_url=f"https://hub/{repo_id}/1")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=HfApi))
    told = made.push_to_hub("words", token="key", private=True, commit_message="First")
    assert told == "https://hub/us/words/1"
    assert sent == {"asked": ("words", {"private": True, "exist_ok": True}), "message": "First"}
    assert torch.equal(HMM.from_pretrained(tmp_path / "us/words")(*text()), made(*text()))
    with pytest.raises(rg.errors.UnsupportedError, match=r"^words: the hub .* no token: log in$"):
        made.push_to_hub("words")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(rg.errors.UnsupportedError, match="pip install huggingface_hub"):
        made.push_to_hub("words")


def test_models_of_other_programs_are_read_by_name(tmp_path):
    library = pytest.importorskip("safetensors.torch")
    start, transition, emission = (part.detach() for part in model(None).matrices())
    given = {"alpha": transition.exp(), "beta": emission.contiguous(), "gamma": start}
    library.save_file(given, tmp_path / "model.safetensors")
    read = HMM.from_pretrained(tmp_path, names=("gamma", "alpha", "beta"))
    assert torch.allclose(read(*text()), model(None)(*text()))
    with pytest.raises(rg.errors.FileFormatError, match=r"no 'pi'; it has \['alpha', 'beta', 'g"):
        HMM.from_pretrained(tmp_path, names=("pi", "alpha", "beta"))
    (tmp_path / "config.json").write_text('{"states": 3}')
    with pytest.raises(rg.errors.FileFormatError, match="not the sizes of an HMM"):
        HMM.from_pretrained(tmp_path)
    sizes = '{"states": 3, "vocabulary": 4, "rank": null, "dimension": 2, "dropout": 0.0}'
    (tmp_path / "config.json").write_text(sizes)
    with pytest.raises(
        rg.errors.FileFormatError, match=r"expected start of shape \(3,\); got None"
    ):
        HMM.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(rg.errors.FileFormatError, match="not the tensors of an HMM"):
        HMM.from_pretrained(tmp_path)
