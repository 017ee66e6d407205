"""Randomized pruning as an estimator: its averages, what they are worth, and its refusals."""

import math

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph.errors import ImpossibleEvidenceError, ModelError, UnsupportedError
from rdpgraph.pruning import Alternating, Given, LikelyBy, Selected, masks_of, sweeps_of
from rdpgraph.testing import check_masks
from tests.estimate.pruning_models import (
    bitext,
    chain,
    draw,
    graph,
    hypertree,
    mixed,
    pruned,
    seeded,
    segments,
)


@pytest.mark.parametrize("model", [bitext(), mixed(), hypertree(), chain(), segments()])
def test_nothing_selected_is_exact_inference(model):
    posterior = pruned(model, 1, selected=Alternating(share=0.0))
    assert_close(posterior.marginals(), model.marginals())
    assert_close(sweeps_of(posterior).expected_score()[0], model.log_partition() - model.entropy())


def test_all_selected_is_gibbs_sampling_of_the_rest():
    # All spans are held, so only the states change: those of one tree shape.
    model = hypertree()
    posterior = pruned(model, 20, selected=Alternating(share=1.0))
    shapes = (posterior.sample(20) >= 0).unique(dim=0)
    assert len(shapes) == 1
    assert_close(sweeps_of(posterior).answers, torch.where(shapes[0], 1.0, 0.0).double())
    of_shape = model.masked(shapes[0])
    assert_close(posterior.marginals(), of_shape.marginals())


@pytest.mark.long
def test_rules_in_a_list_are_those_of_a_table():
    every = torch.rand(4, 6, 6, generator=seeded()) < 0.2
    table = torch.where(every, draw(4, 6, 6), -math.inf)
    triples = every.nonzero()
    rules = rg.trees.SparseRules(triples, table[tuple(triples.T)], parents=4, children=6)
    unary, root, lengths = draw(2, 6, 6, 6), draw(2, 4, seed=1), torch.tensor([6, 4])
    listed, whole = (
        rg.Hypertree(unary, own, root=root, preterminals=2, lengths=lengths)
        for own in (rules, rg.trees.DenseRules(table))
    )
    check_masks(listed)
    none = torch.zeros(3, 2, 6, 6, dtype=torch.bool)
    held = masks_of(whole, rg.infer).masked(none, none).draw(seeded()).answers
    held &= torch.rand(held.shape, generator=seeded()) < 0.3
    one, other = (masks_of(own, rg.infer).masked(held, none) for own in (listed, whole))
    assert_close(one.log_partition, other.log_partition)
    assert_close(one.expected().answers, other.expected().answers)
    assert_close(one.expected().score, other.expected().score)
    posterior = pruned(listed, 1, selected=Alternating(share=0.0))
    assert_close(sweeps_of(posterior).counts["rules"], torch.stack(listed.rule_marginals())[0])


@pytest.mark.long
def test_graphs_are_answered_by_variable():
    pixels, flag = rg.VariableArray("pixel", (2, 2), 3), rg.Variable("flag", ("off", "on"))
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((pixels[:, 0], pixels[:, 1]), rg.Table(draw(2, 3, 3))),
            rg.FactorBlock((pixels[0], pixels[1]), rg.Table(draw(2, 3, 3, seed=1))),
            rg.Factor((pixels[0, 0], flag), rg.Table(draw(3, 2, seed=2))),
        ]
    ).condition({"pixel[1, 1]": 2})
    exact = rg.infer(graph)
    posterior = pruned(graph, 1, selected=Alternating(share=0.0))
    assert_close(posterior.marginal("pixel"), exact.marginal("pixel"))
    assert_close(posterior.marginal(flag), exact.marginal(flag))
    posterior = pruned(graph, 60)
    assert float((posterior.marginal(flag) - exact.marginal(flag)).abs().max()) < 0.1
    drawn = posterior.sample(5)
    assert bool((drawn["pixel"][:, 1, 1] == 2).all())
    assert bool(graph.score(drawn).isfinite().all())
    check_masks(graph)


@pytest.mark.long
def test_batches_are_items_of_their_own():
    whole = bitext(3, 3, 2)
    lengths = {"source_lengths": torch.tensor([3, 2]), "target_lengths": torch.tensor([2, 3])}
    model = rg.Bitext(whole.unary, whole.straight, whole.inverted, leaves=3, **lengths)
    posterior = pruned(model, 100, chains=8)
    assert sweeps_of(posterior).answers.shape == (2, 3, 3)
    assert sweeps_of(posterior).trace.shape == (110, 8, 2)
    assert_close(sweeps_of(posterior).answers, model.pair_marginals(), rtol=0.0, atol=0.05)
    assert_close(posterior.marginals(), model.marginals(), rtol=0.0, atol=0.05)
    orders = sweeps_of(posterior).counts["orders"]
    inner = model.marginals()[..., 0].flatten(1).sum(1)
    assert_close(orders.sum(-1), inner, rtol=0.05, atol=0.05)
    assert bool((sweeps_of(posterior).r_hat < 1.2).all())
    assert bool((sweeps_of(posterior).effective_sample_size > 50).all())
    assert bool(model.score(posterior.sample(4)).isfinite().all())


@pytest.mark.long
def test_a_few_states_of_a_cheaper_model_are_likely():
    model = hypertree(6, 4)
    cheap = rg.Hypertree(model.unary.logsumexp(-1, keepdim=True))
    likely = LikelyBy(cheap, above=0.3)
    chosen = likely.questions(masks_of(model, rg.infer), rg.infer)
    assert_close(chosen, cheap.span_marginals() > 0.3)
    posterior = pruned(model, 80, likely=likely, chains=16, selected=Alternating(share=1 / 2))
    assert_close(sweeps_of(posterior).answers, model.span_marginals(), rtol=0.0, atol=0.1)


def test_a_coarse_grammar_says_which_spans_are_likely():
    fine = rg.trees.parse_grammar(
        """2 S -> NP-1 VP-1
        1 S -> NP-2 VP-2
        3 VP-1 -> V NP-2
        1 VP-2 -> VP-1 NP-1
        1 NP-1 -> NP-2 NP-1
        4 NP-2 -> NP-1 NP-1
        1 NP-1 -> "dogs"
        1 NP-2 -> "dogs"
        2 NP-2 -> "cats"
        2 NP-1 -> "cats"
        1 V -> "see" """
    )
    coarse = fine.coarsened(lambda symbol: symbol.split("-")[0])
    sentences = ["dogs see cats dogs cats".split(), "cats see dogs".split()]  # noqa: SIM905
    model, cheap = (rg.Hypertree.parses(each, sentences) for each in (fine, coarse))
    likely = LikelyBy(cheap, above=0.4)
    chosen = likely.questions(masks_of(model, rg.infer), rg.infer)
    assert torch.equal(chosen, cheap.span_marginals() > 0.4)
    posterior = pruned(model, 60, likely=likely, chains=32)
    assert_close(sweeps_of(posterior).answers, model.span_marginals(), rtol=0.0, atol=0.1)


def test_a_pilot_with_few_states_says_what_is_likely():
    model = chain(6, 12)
    pilot = rg.infer(
        model, estimator=rg.Randomized.default(keep=4, replicates=4), generator=seeded()
    )
    likely = Given(pilot.marginals() > 0.1)
    posterior = pruned(model, 40, likely=likely, chains=16)
    assert_close(posterior.marginals(), model.marginals(), rtol=0.0, atol=0.1)


def test_every_selection_changes_and_has_its_size():
    likely = torch.arange(12).expand(3, 2, 12) < torch.tensor([[9], [5]])
    policy, generator = Alternating(), seeded()
    selected = policy.first(likely, generator)
    for _ in range(5):
        again = policy.after(selected, likely, generator)
        assert not bool((again & ~likely).any())
        assert again.sum(-1).tolist() == [[6, 3]] * 3
        # All that was left out is selected now.
        assert bool(((likely & ~selected) <= again).all())
        selected = again


def test_one_likely_question_is_left_out_at_least():
    likely = torch.tensor([[[True, False]]])
    assert not bool(Alternating().first(likely, seeded()).any())
    assert bool(Alternating(share=1.0).first(likely, seeded()).sum() == 1)


def test_resuming_goes_on_with_the_same_chains():
    model, generator = chain(), seeded()
    half = rg.infer(model, estimator=rg.RandomizedPruning(9, warm_up=2), generator=generator)
    rest = rg.RandomizedPruning(7, resume=half)
    whole = rg.infer(model, estimator=rest, generator=generator)
    once = pruned(model, 16, warm_up=2)
    assert_close(sweeps_of(whole).answers, sweeps_of(once).answers)
    assert_close(sweeps_of(whole).trace, sweeps_of(once).trace)
    with pytest.raises(ModelError, match="model object of that posterior"):
        pruned(chain(), 3, resume=half)


def test_no_sweep_begins_after_the_seconds(ticking):
    ticking()
    posterior = pruned(chain(), 100, warm_up=3, seconds=10.5)
    assert 0 < sweeps_of(posterior).run.sweeps < 10
    assert pruned(chain(), 100, warm_up=30, seconds=0.5).solution.run.sweeps == 1


def test_fewer_labels_of_steps_are_fewer_segments_and_transitions():
    model = segments(8, 6)
    masks = masks_of(model, rg.infer)
    none = torch.zeros(1, 8, 6, dtype=torch.bool)
    some = none.clone()
    some[..., 2:] = True
    left = masks.masked(none, some)
    # Of two labels: of each step three segments at most, and four transitions.
    assert left.work <= 8 * 2 * 3 + 7 * 4 + 4 + (2 * 8 * 2 + 1)
    assert left.work < masks.masked(none, none).work / 4


def test_masks_leave_less_to_do():
    model = bitext(6, 6)
    masks = masks_of(model, rg.infer)
    none = torch.zeros(1, 6, 6, dtype=torch.bool)
    held = none.clone()
    held[0, range(0, 6, 2), range(0, 6, 2)] = True
    assert masks.masked(held, none).work < masks.masked(none, none).work / 5


def test_chains_of_which_the_same_is_left_share_a_graph():
    masks = masks_of(graph(), rg.infer)
    required = torch.tensor([[True, False, False, False], [False, False, True, False]])[
        [0, 1, 0, 0, 1]
    ]
    # That a variable of two states is not in one of them is that it is in the other.
    forbidden = torch.zeros_like(required)
    required[3], forbidden[3] = False, torch.tensor([False, True, False, False])
    masked = masks.masked(required, forbidden)
    assert len(masked.graphs) == 2
    for chain_ in range(5):
        one = masks.masked(required[chain_, None], forbidden[chain_, None])
        assert_close(masked.expected().answers[chain_, None], one.expected().answers)
        assert_close(masked.log_partition[chain_, None], one.log_partition)
    drawn = masked.draw(seeded()).answers
    assert bool((drawn | ~required).all())
    assert drawn.sum(1).tolist() == [2] * 5


@pytest.mark.parametrize("batch", [(), (2,)])
def test_log_weights_of_a_bitext_s_root_count_within_a_mask(batch):
    rules = [rg.trees.DenseRules(draw(3, 3, 3, seed=seed)) for seed in (1, 2)]
    model = rg.Bitext(draw(*batch, 3, 3, 3, 3, 3), *rules, root=draw(3, seed=4))
    posterior = pruned(model, 1, selected=Alternating(share=0.0))
    assert_close(posterior.marginals(), model.marginals())


@pytest.mark.parametrize("kind", [rg.Bitext, rg.MixedBitext])
def test_a_start_takes_no_word_twice(kind):
    # Sentences in which words come again: all links of these are as good.
    same = torch.tensor([0, 1, 2, 0, 1])
    scores = torch.where(same.unsqueeze(1) == same, 4.0, 0.0).double()
    model = kind.words(scores, torch.zeros(5).double(), torch.zeros(5).double())
    masks = masks_of(model, rg.infer)
    guess = masks.guess(masks.open())
    assert int(guess.sum()) > 1
    assert int(guess.sum(0).max()) == int(guess.sum(1).max()) == 1


def test_there_is_no_z():
    posterior = pruned(chain(), 3)
    for ask in (
        lambda: posterior.log_partition,
        posterior.entropy,
        lambda: sweeps_of(posterior).interval(0.9),
    ):
        with pytest.raises(
            UnsupportedError, match=r"^Randomized pruning averages .* and has no Z.*$"
        ):
            ask()
    assert not posterior.status.exact
    assert posterior.status.iterations == 3


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: rg.RandomizedPruning(0), "sweeps as a whole number of at least 1"),
        (lambda: Alternating(share=1.5), "share"),
        (lambda: pruned(chain(), 3, likely=Given(torch.zeros(5, 3).bool())), "likely"),
        (lambda: pruned(chain(), 3, likely=Given(torch.ones(4, 3).bool())), r"\(5, 3\)"),
        (lambda: pruned(chain(), 3, likely=Given(torch.ones(5, 3))), "bool"),
        (lambda: pruned(chain(), 3, likely=LikelyBy(bitext())), "same questions"),
        (lambda: pruned(rg.NonProjectiveDependencies(draw(3, 4)), 3), "no masks"),
        (lambda: pruned(rg.Chain(torch.full((3, 2), -math.inf), draw(2, 2)), 3), "nothing"),
    ],
)
def test_bad_input_is_one_line(ask, says):
    kinds = (ModelError, UnsupportedError, ImpossibleEvidenceError)
    with pytest.raises(kinds, match=says) as caught:
        ask()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "model", [bitext(3, 3), hypertree(5, 1), chain(), segments(), chain().factor_graph()]
)
def test_a_mask_that_allows_nothing_is_one_line(model):
    masks = masks_of(model, rg.infer)
    none = torch.zeros(1, *masks.questions, dtype=torch.bool)
    required = none.clone()
    # Two states of one step; two words aligned with the ends of a sentence; two spans that cross.
    required.view(1, -1)[0, [1, 2] if masks.questions != (5, 5) else [2, 8]] = True
    nothing = masks.masked(required, none)
    assert nothing.log_partition == -math.inf
    with pytest.raises(ImpossibleEvidenceError, match=r"^A mask allows nothing.*$"):
        nothing.draw(None)


class Coins(Selected):
    """A selection of one's own: each question by itself."""

    def first(self, likely, generator):
        return likely & (torch.rand(likely.shape, generator=generator) < 0.3)

    def after(self, last, likely, generator):
        return self.first(likely, generator)


@pytest.mark.long
def test_a_selection_of_ones_own():
    model = chain()
    posterior = pruned(model, 80, chains=16, selected=Coins())
    assert_close(posterior.marginals(), model.marginals(), rtol=0.0, atol=0.1)


@pytest.mark.parametrize(
    "model",
    [
        bitext(0, 0), bitext(0, 2), chain(0), hypertree(0), hypertree(1), mixed(0, 0), mixed(1, 1),
        segments(0), segments(1),
    ],
)  # fmt: skip
def test_small_models_have_their_one_answer(model):
    posterior = pruned(model, 2, selected=Alternating(share=0.0))
    assert_close(posterior.marginals(), model.marginals())
    drawn = model.site_states(posterior.sample(3))
    assert drawn.shape == (3, *model.unary.shape[:-1])


def test_no_sweep_is_wide_before_the_warm_up_has_found_what_that_costs():
    model = rg.Chain(3 * draw(9, 4), torch.zeros(4, 4, dtype=torch.float64))
    none = torch.zeros(1, 9, 4, dtype=torch.bool)
    whole = masks_of(model, rg.infer).masked(none, none).work
    likely, generator, posterior = Given(model.marginals() > 0.5), seeded(0), None
    for sweep in range(12):
        before = sweeps_of(posterior).run.work if sweep else 0
        estimator = rg.RandomizedPruning(1, warm_up=0, likely=likely, resume=posterior)
        posterior = rg.infer(model, estimator=estimator, generator=generator)
        assert sweeps_of(posterior).run.work - before < 0.8 * whole
