"""Recurrences of one's own as structures: every answer, against all configurations."""

import copy
import math
import pickle

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Input, Lengths, Recurrence
from rdpgraph.errors import ModelError
from rdpgraph.testing import check_structure

close = torch.testing.assert_close


class Chain(Recurrence):
    unary, transition, lengths = Input("T N"), Input("N N"), Lengths("T")
    rules = """
        a[0, n] += unary[0, n]
        a[t, n] += a[t-1, m] * transition[m, n] * unary[t, n]
        goal    += a[lengths-1, n]
    """


class Segments(Recurrence):
    """Sites are segments: [last position, duration - 1]."""

    unary, transition, lengths = Input("T D N"), Input("N N"), Lengths("T")
    rules = """
        a[t, n] += unary[t, t, n]
        a[t, n] += a[t-d-1, m] * transition[m, n] * unary[t, d, n]
        goal    += a[lengths-1, n]
    """


class Trees(Recurrence):
    """Sites are spans: [first, last]; rules are [whole, left, right]."""

    unary, ruled, lengths = Input("T T N"), Input("N N N"), Lengths("T")
    rules = """
        b[i, i, a] += unary[i, i, a]
        b[i, j, a] += b[i, k, l] * b[k+1, j, r] * ruled[a, l, r] * unary[i, j, a]
        goal       += b[0, lengths-1, a]
    """


class Projective(Recurrence):
    """Eisner's trees: unary[dependent, head + 1], the root, head 0, with one dependent."""

    unary, lengths = Input("T T+1"), Lengths("T")
    rules = """
        r[i, j] += R[i, k] * L[k+1, j] * unary[j, i+1]
        l[i, j] += R[i, k] * L[k+1, j] * unary[i, j+1]
        R[i, j] += r[i, k] * R[k, j]
        R[i, i] += 1                          if i < T
        L[i, j] += L[i, k] * l[k, j]
        L[i, i] += 1                          if i < T
        goal    += L[0, k] * unary[k, 0] * R[k, lengths-1]
    """


class Tagged(Recurrence):
    """A chain whose potentials have a weight for each word."""

    unary, transition, emission = Input("T N"), Input("T-1 N N"), Input("N V")
    words, lengths = Input("T", whole=True), Lengths("T")
    rules = """
        a[0, n] += unary[0, n] * emission[n, words[0]]
        a[t, n] += a[t-1, m] * transition[t-1, m, n] * unary[t, n] * emission[n, words[t]]
        goal    += a[lengths-1, n]
    """


class Skipping(Recurrence):
    """Positions with a state or none; those without are skipped in one step of any length."""

    unary, transition = Input("T N"), Input("N N")
    rules = """
        a[t, n] += unary[t, n]
        a[t, n] += a[s, m] * transition[m, n] * unary[t, n]   if s < t
        goal    += a[t, n] + 1
    """


class Moves(Recurrence):
    """A chain whose links reach as far back as a field says."""

    unary = Input("T N")
    reach: int = 1

    @property
    def rules(self):
        earlier = " + ".join(f"a[t - {k}, m]" for k in range(1, 1 + self.reach))
        return f"""
            a[0, n] += unary[0, n]
            a[t, n] += ({earlier}) * unary[t, n]
            goal    += a[T-1, n]
        """


class Factorial(Recurrence):
    """Two chains side by side: no input has the potentials of single sites."""

    first, second, seen = Input("N N"), Input("M M"), Input("T N M")
    rules = """
        a[0, n, m]    += seen[0, n, m]
        half[t, n, j] += a[t-1, i, j] * first[i, n]
        a[t, n, m]    += half[t, n, j] * second[j, m] * seen[t, n, m]
        goal          += a[T-1, n, m]
    """


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


SOME = torch.tensor([2, 1])
MODELS = {
    "chain": lambda: Chain(draw(2, 3, 3), draw(3, 3, seed=1), torch.tensor([3, 1])),
    "segments": lambda: Segments(draw(2, 2, 2, 2), draw(2, 2, seed=1), SOME),
    "trees": lambda: Trees(draw(2, 3, 3, 2), draw(2, 2, 2, 2, seed=1), torch.tensor([3, 2])),
    "projective": lambda: Projective(draw(2, 3, 4), torch.tensor([3, 1])),
    "tagged": lambda: Tagged(
        draw(2, 3, 2), draw(2, 2, 2, seed=1), draw(2, 4, seed=2),
        torch.tensor([[0, 3, 1], [2, 2, 0]]),
    ),
    "skipping": lambda: Skipping(draw(2, 3, 2), draw(2, 2, seed=1)),
    "moves": lambda: Moves(draw(2, 4, 2), reach=2),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_conformance(name):
    check_structure(MODELS[name]())


def test_answers_are_those_of_the_librarys_class():
    unary, transition, lengths = draw(3, 6, 4), draw(4, 4, seed=1), torch.tensor([6, 1, 4])
    ours, theirs = Chain(unary, transition, lengths), rg.Chain(unary, transition, lengths=lengths)
    for ask in ("log_partition", "marginals", "max_marginals", "entropy", "mode"):
        close(getattr(ours, ask)(), getattr(theirs, ask)())
    other = [model.with_unary(unary * 0.3) for model in (ours, theirs)]
    close(ours.kl_divergence(other[0]), theirs.kl_divergence(other[1]))
    close(ours.k_best(7).scores, theirs.k_best(7).scores)
    few = torch.tensor([3, 1]).expand(5, 3, 6, 2)
    weights = draw(5, 3, 6, 2, seed=2)
    close(*(model.restrict(few, weights).log_partition() for model in (ours, theirs)))


class Steps(Chain):
    transition = Input("T-1 N N")
    rules = Chain.rules.replace("transition[", "transition[t-1, ")


class Whole(Recurrence):
    unary, transition = Input("T N"), Input("N N")
    rules = Chain.rules.replace("lengths", "T")


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 3, 3), (4, 3, 3), (2, 3, 3)])
def test_relaxed_draws_of_chains_are_those_of_the_librarys_class(shape):
    """Site by site, so that their argmaxes are exact draws."""
    unary, transition, lengths = draw(2, 5, 3), draw(*shape, seed=1), torch.tensor([5, 2])
    steps = transition if shape[-3:-2] == (4,) else transition.unsqueeze(-3)
    steps = steps.expand(2, 4, 3, 3) if len(shape) > 2 else transition
    kind = Steps if 4 in shape else Chain
    models = [(rg.Chain(unary, steps, lengths=lengths), kind(unary, transition, lengths))]
    if len(shape) == 2:
        models += [
            (rg.Chain(unary, transition), kind(unary, transition)) for kind in (Chain, Whole)
        ]
        models.append((rg.Chain(unary[0], transition), Chain(unary[0], transition)))
        models.append((rg.Chain(unary[None], transition), Chain(unary[None], transition)))
    for theirs, ours in models:
        drawn = [
            model.rsample(7, temperature=0.4, generator=torch.Generator().manual_seed(3))
            for model in (theirs, ours)
        ]
        close(*drawn)


def test_states_that_are_kept_are_looked_up():
    """What is read at the state of a site is data; nothing has the size of all states."""
    program = MODELS["chain"]().restrict(torch.zeros(2, 3, 1).long(), draw(2, 3, 1)).program
    assert "transition[unary_states[t - 1, m], unary_states[t, n]]" in str(program)
    assert not any(array.name == "unary_same" for array in program.inputs)


def test_the_expected_uses_of_every_input():
    """As expected numbers of transitions, which learn a table."""
    model = MODELS["chain"]()
    uses = model.by_input().marginals()
    assert {*uses} == {"unary", "transition"}
    close(uses["unary"], model.marginals())
    close(uses["transition"].sum((-2, -1)), torch.tensor([2.0, 0.0], dtype=torch.float64))


def test_a_recurrence_without_sites_answers_for_its_inputs():
    model = Factorial(draw(2, 2), draw(3, 3, seed=1), draw(2, 4, 2, 3, seed=2))
    joint = Chain(
        model.seen.flatten(2), (model.first[:, None, :, None] + model.second[:, None]).reshape(6, 6)
    )
    posterior = rg.infer(model)
    close(posterior.log_partition, joint.log_partition())
    close(posterior.entropy(), joint.entropy())
    assert posterior.marginals().shape == (2, 0, 1)
    close(model.by_input().marginals()["seen"].flatten(2), joint.marginals())


def test_tensors_written_afterwards_are_seen():
    model = MODELS["chain"]()
    before = model.log_partition()
    model.transition.zero_()
    close(
        model.log_partition(),
        Chain(model.unary, model.transition * 0, model.lengths).log_partition(),
    )
    assert not torch.equal(model.log_partition(), before)


def test_what_changes_after_a_model_was_made_is_seen():
    """A model keeps its tensors checked, but what is asked of them is not kept."""
    generator = torch.Generator().manual_seed(0)
    unary, transition = (torch.randn(shape, generator=generator) for shape in ((2, 4, 3), (3, 3)))
    lengths = torch.tensor([4, 3])
    model = Chain(unary, transition, lengths)

    def check(asked):
        copies = [x.detach().clone() for x in (unary, transition, lengths)]
        fresh = Chain(*copies)
        for answer in ("log_partition", "mode", "entropy", "max_marginals", "marginals"):
            close(getattr(asked, answer)(), getattr(fresh, answer)())
        close(asked.k_best(3).scores, fresh.k_best(3).scores)

    check(model)
    # Writes to potentials and to lengths, wrong ones too.
    unary[0, 1, 2] = 3.0
    transition[0] = -math.inf
    lengths[1] = 2
    check(model)
    lengths[1] = 5
    with pytest.raises(ModelError, match="lengths from 0 to T = 4; got 5"):
        model.log_partition()
    lengths[1] = 0
    check(model)
    unary[0, 0, 0] = math.nan
    with pytest.raises(ModelError, match="got NaN"):
        model.log_partition()
    unary[0, 0, 0] = 0.5
    # Gradients that are asked for later, and not asked for.
    unary.requires_grad_()
    (gradient,) = torch.autograd.grad(model.log_partition().sum(), unary)
    close(gradient, model.marginals().detach())
    with torch.no_grad():
        assert not model.log_partition().requires_grad
    assert model.entropy().requires_grad
    unary.requires_grad_(False)
    assert not model.log_partition().requires_grad
    # Copies, of which each has tensors of its own.
    twin = copy.deepcopy(model)
    check(pickle.loads(pickle.dumps(model)))
    unary.mul_(2.0)
    check(model)
    close(twin.unary * 2.0, unary)
    close(twin.log_partition(), Chain(unary / 2.0, transition, lengths).log_partition())
    # Another shape.
    unary.resize_(2, 3, 3)
    lengths.clamp_(max=3)
    check(model)


def test_answers_in_inference_mode_leave_gradients_to_later_ones():
    unary, transition = torch.randn(2, 4, 3, requires_grad=True), torch.zeros(3, 3)
    model = Chain(unary, transition)
    with torch.inference_mode():
        inside = model.log_partition(), model.entropy(), model.max_marginals(), model.k_best(2)
    close(inside[0], model.log_partition().detach())
    (gradient,) = torch.autograd.grad(model.log_partition().sum(), unary)
    close(gradient, model.marginals().detach())
    close(inside[3].states, model.k_best(2).states)


def test_numbers_take_the_widest_type():
    model = Chain(draw(3, 2).float(), draw(2, 2))
    assert model.unary.dtype == model.log_partition().dtype == torch.float64
    assert Chain([[0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]).log_partition().dtype == torch.float32
    half = Chain(draw(3, 2).half(), draw(2, 2).half())
    assert half.unary.dtype == half.log_partition().dtype == torch.float32


def test_what_does_not_fit_is_refused():
    unary, transition = draw(3, 2), draw(2, 2)
    for given, message in [
        (((unary,), {}), "Chain needs transition"),
        (((), {"units": unary}), "Chain got units; it takes unary, transition, lengths"),
        (((unary,), {"unary": unary}), "Chain got unary twice"),
        (((unary, transition, None, 3), {}), "takes unary, transition, lengths; got 4 values"),
        (((unary, transition, torch.tensor([4])), {}), "lengths from 0 to T = 3; got 4"),
    ]:
        with pytest.raises(rg.errors.ModelError, match=message) as error:
            Chain(*given[0], **given[1])
        assert "\n" not in str(error.value)
    with pytest.raises(rg.errors.ModelError, match="sites is a method of every recurrence"):
        type("Named", (Recurrence,), {"sites": Input("T"), "rules": "goal += sites[0]"})
    rules = Chain.rules.replace("* unary[t, n]", "* unary[t, n] * unary[t, m]")
    with pytest.raises(rg.errors.ModelError, match=r"once at most, and .* reads one twice"):
        type("Twice", (Chain,), {"rules": rules})(unary, transition)
    model = Chain(unary, transition)
    with pytest.raises(AttributeError):
        model.unary = unary
    with pytest.raises(rg.errors.ModelError, match=r"compared only with another .*got Chain of .4"):
        model.kl_divergence(Chain(draw(4, 2), transition))
    with pytest.raises(rg.errors.EvidenceError, match="states 0 to 1"):
        model.score(torch.tensor([0, 2, 1]))
    with pytest.raises(rg.errors.ImpossibleEvidenceError, match="Chain has no samples and no mode"):
        Chain(unary - math.inf, transition).mode()


def test_a_subclass_takes_the_inputs_of_its_base():
    unary, transition = draw(3, 2), draw(2, 2, 2, seed=1)
    ours, theirs = Steps(unary, transition), rg.Chain(unary, transition)
    close(ours.log_partition(), theirs.log_partition())
    assert "transition[t - 1, m, n]" in str(Steps.program)


def test_a_potential_stands_for_its_table():
    unary, left, right = draw(3, 4), draw(4, 2, seed=1), draw(4, 2, seed=2)
    low = rg.LowRank(left, right)
    close(Chain(unary, low).log_partition(), rg.Chain(unary, low).log_partition())


@pytest.mark.parametrize("kind", [Chain, Segments])
def test_a_matrix_of_low_rank_is_summed_over_its_ranks(kind):
    generator = torch.Generator().manual_seed(0)
    shape = (2, 4, 3) if kind is Chain else (2, 4, 2, 3)
    unary = torch.randn(shape, generator=generator, dtype=torch.float64)
    parts = [torch.randn(3, 2, generator=generator, dtype=torch.float64) for _ in range(2)]
    parts = [part.requires_grad_() for part in parts]
    lengths = torch.tensor([4, 2])
    low = kind(unary, rg.LowRank(*parts), lengths)
    known = kind(unary, rg.LowRank(*parts).table(2), lengths)
    for ask in ("log_partition", "marginals", "entropy", "max_marginals"):
        close(getattr(low, ask)(), getattr(known, ask)())
    close(*(torch.autograd.grad(one.log_partition().sum(), parts) for one in (low, known)))
    drawn = low.sample(10_000, generator)
    shares = torch.nn.functional.one_hot(drawn + 1, 4)[..., 1:].double().mean(0)
    close(shares, known.marginals(), rtol=0, atol=0.03)


def test_ranks_of_many_states_form_no_table():
    """Ten thousand million pairs of states would not fit."""
    factors = torch.randn(2, 100_000, 2, generator=torch.Generator().manual_seed(0))
    unary = torch.randn(3, 100_000, generator=torch.Generator().manual_seed(1))
    low = rg.LowRank(*factors)
    found = Chain(unary, low)
    close(found.log_partition(), rg.Chain(unary, low).log_partition())
    close(found.marginals().sum(-1), torch.ones(3))
    assert found.sample(2).shape == (2, 3)
    with pytest.raises(
        rg.errors.BudgetError, match="Chain's transition, a LowRank, has 10,000,000"
    ):
        found.max_marginals()


def test_a_potential_is_evaluated_at_the_states_that_are_kept():
    """Ten thousand million pairs of states would not fit."""
    factors = torch.randn(2, 100_000, 3, generator=torch.Generator().manual_seed(0))
    states = torch.tensor([[[3, 99_999], [5, 7], [1, 1]], [[0, 2], [4, 4], [99_998, 6]]])
    unary = torch.zeros(()).expand(2, 3, 100_000)
    for kind in (rg.Bilinear, rg.LowRank):
        left, right = (part.clone().requires_grad_() for part in factors)
        few = Chain(unary, kind(left, right)).restrict(states, torch.zeros(2, 3, 2))
        rows = factors[:, states].requires_grad_()  # of the same states, each a state of its own
        pairs = kind(rows[0, :, :-1], rows[1, :, 1:]).table(2)
        known = rg.Chain(torch.zeros(2, 3, 2), pairs)
        close(few.log_partition(), known.log_partition())
        close(few.entropy(), known.entropy())
        close(few.max_marginals(), known.max_marginals())
        close(few.kl_divergence(few), torch.zeros(2), atol=1e-5, rtol=0)
        found = torch.autograd.grad(few.log_partition().sum(), left)[0]
        wanted = torch.autograd.grad(known.log_partition().sum(), rows)[0][0]
        summed = torch.zeros_like(left).index_add(0, states.flatten(), wanted.flatten(0, 2))
        close(found, summed)


@pytest.mark.parametrize(("batch", "steps"), [((0,), 3), ((2,), 0), ((0,), 0), ((2, 0), 2)])
def test_no_items_and_no_sites_have_answers(batch, steps, by_torch):
    """A sequence of no steps has one empty configuration, of score 0."""
    model = Chain(torch.zeros(*batch, steps, 3), torch.zeros(3, 3))

    def check():
        log_z = model.log_partition()
        assert log_z.shape == model.entropy().shape == batch
        assert steps or not bool(log_z.any())
        assert model.marginals().shape == model.max_marginals().shape == model.unary.shape
        assert model.mode().shape == (*batch, steps)
        assert model.sample(2).shape == (2, *batch, steps)
        best = model.k_best(2)
        assert best.states.shape == (2, *batch, steps)
        close(model.score(best.states[0]), best.scores[0])
        assert model.rsample(2, temperature=0.5).shape == (2, *model.unary.shape)
        sites = model.sites()
        few = sites.restrict(torch.zeros(*sites.unary.shape[:-1], 1).long(), sites.unary[..., :1])
        assert few.log_partition().shape == batch

    check()
    by_torch(check)
