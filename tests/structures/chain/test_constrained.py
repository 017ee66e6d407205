"""Constrained hidden Markov models against enumeration of all sequences of words."""

import itertools
import math
import sys

import pytest
import torch

import rdpgraph as rg

WORDS, LENGTH = 5, 4
EVERY = torch.cartesian_prod(*[torch.arange(WORDS)] * LENGTH)
KINDS = [*itertools.product(("dense", "ranks"), repeat=2), ("blocks", "dense"), ("band", "ranks")]
PROMPT = torch.tensor([1, 3])


def hmm(transition, emission, states=4, words=WORDS, scale=2.0):
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    def rows(kind, size):
        if kind == "dense":
            return drawn(states, size).log_softmax(1)
        if kind == "blocks":
            return rg.Monarch.normalised(*drawn(2, 2, states // 2, 2))
        if kind == "band":
            rest = rg.LowRank(*drawn(2, states, 1))
            return rg.Banded.normalised(drawn(states, 2), (0, 1), rest)
        return rg.LowRank.normalised(drawn(states, 3), drawn(size, 3))

    start = drawn(states).log_softmax(0)
    return start, rows(transition, states), rows(emission, words)


def pattern():
    some = rg.nn.Pattern.containing([[0, 1], [2]], WORDS)
    return some & ~rg.nn.Pattern.containing([[4, 4]], WORDS)


def automaton(weighted):
    """The automaton of a pattern, or one that weights its end."""
    if not weighted:
        return pattern().automaton(LENGTH, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(3, generator=generator, dtype=torch.float64)
    weights[1] = -math.inf
    return rg.Automaton(torch.randint(3, (3, WORDS), generator=generator), weights, LENGTH)


def enumerated(model, prompt=None):
    """(V, ..., V) log-probabilities of all sequences after a prompt, and with the constraint."""
    hidden = model.start, model.transition, model.emission
    before = prompt.expand(len(EVERY), -1) if prompt is not None else EVERY[:, :0]
    plain = rg.Chain.hmm(*hidden, torch.cat([before, EVERY], 1)).log_partition()
    if prompt is not None:
        plain = plain - rg.Chain.hmm(*hidden, prompt).log_partition()
    plain = plain.reshape([WORDS] * LENGTH)
    return plain, plain + model.automaton.table(LENGTH)


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("prompt", [None, PROMPT])
def test_next_words_are_those_of_enumeration(kinds, weighted, prompt):
    model = rg.nn.ConstrainedHMM(*hmm(*kinds), automaton(weighted))
    plain, joint = enumerated(model, prompt)
    assert torch.allclose(model.log_partition(prompt), joint.logsumexp([0, 1, 2, 3]))
    for read in range(LENGTH):
        before = torch.tensor(list(itertools.product(range(WORDS), repeat=read)))
        before = before.reshape(WORDS**read, read).long()
        prefix = model.begin(len(before), prompt=prompt)
        for words in before.mT:
            prefix = model.advance(prefix, words)
        after = joint.reshape(len(before), WORDS, -1).logsumexp(2)
        without = plain.reshape(len(before), WORDS, -1).logsumexp(2)
        expected = (after.exp() / after.exp().sum(1, keepdim=True)).nan_to_num()
        assert torch.allclose(model.log_words(prefix).exp(), expected)
        assert torch.allclose(model.log_met(prefix).exp(), (after - without).exp())
        start = torch.zeros((), dtype=torch.float64)
        chance = plain.reshape(len(before), -1).logsumexp(1) if read else start
        assert torch.allclose(prefix.score, chance)


@pytest.mark.parametrize("kinds", KINDS)
def test_items_of_a_batch_may_have_read_unequally_much(kinds):
    model = rg.nn.ConstrainedHMM(*hmm(*kinds), automaton(weighted=False))
    one, other = model.begin(1), model.advance(model.begin(1), torch.tensor([2]))
    both = type(one)(*(torch.cat(parts) for parts in zip(other, one, strict=True)))
    assert torch.allclose(model.log_met(both).exp(),
                          torch.cat([model.log_met(other), model.log_met(one)]).exp())  # fmt: skip
    assert torch.equal(model.log_words(both.of(slice(0))), torch.zeros(0, WORDS))


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_best_sequences_are_those_of_enumeration(kinds, weighted):
    model = rg.nn.ConstrainedHMM(*hmm(*kinds), automaton(weighted))
    _, joint = enumerated(model)
    top = joint.flatten().topk(9)
    words, values = model.best(9)
    assert torch.equal(words, EVERY[top.indices])
    assert torch.allclose(values, top.values - joint.logsumexp([0, 1, 2, 3]))


def test_best_says_where_a_beam_does_not_tell():
    level = rg.nn.ConstrainedHMM(*hmm("dense", "dense", scale=0.0), automaton(weighted=False))
    with pytest.raises(rg.errors.BudgetError, match="up to 8 prefixes; give a larger width"):
        level.best(2, width=8)
    _, values = level.best(2, width=512)
    assert float(values[0]) == pytest.approx(float(values[1]))


def test_best_returns_all_where_there_are_few():
    few = rg.nn.Pattern.one_of([[0, 1, 2, 3], [4, 4, 4, 4]], WORDS).automaton(LENGTH)
    words, values = rg.nn.ConstrainedHMM(*hmm("ranks", "dense"), few).best(5)
    assert sorted(words.tolist()) == [[0, 1, 2, 3], [4, 4, 4, 4]]
    assert torch.allclose(values.exp().sum(), torch.ones((), dtype=torch.float64))


def misfit(drawn, expected):
    """Chi-squared of sequences in units of its deviation, about its mean: small cells as one."""
    places = (drawn * torch.tensor([WORDS**power for power in range(LENGTH - 1, -1, -1)])).sum(1)
    seen = places.bincount(minlength=len(EVERY)).double()
    assert not bool((seen[expected == 0] > 0).any())
    often = expected >= 5
    seen = torch.cat([seen[often], seen[~often].sum().reshape(1)])
    wanted = torch.cat([expected[often], expected[~often].sum().reshape(1)])
    freedom = len(seen) - 1
    return float(((seen - wanted) ** 2 / wanted).sum() - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_draws_follow_the_conditional_which_masked_words_do_not(count):
    model = rg.nn.ConstrainedHMM(*hmm("ranks", "ranks"), automaton(weighted=False))
    plain, joint = enumerated(model)
    expected = count * (joint - joint.logsumexp([0, 1, 2, 3])).exp().flatten()
    drawn = model.sample(count, torch.Generator().manual_seed(2))
    assert abs(misfit(drawn, expected)) < 4

    # Words of the model alone, those masked after which the constraint cannot be met.
    masked = torch.zeros_like(joint)
    for read in range(LENGTH):
        shape = [WORDS] * (read + 1) + [-1]
        chances = plain.reshape(shape).logsumexp(-1)
        chances = torch.where(joint.reshape(shape).amax(-1) > -math.inf, chances, -math.inf)
        step = chances.log_softmax(-1).nan_to_num(-math.inf, neginf=-math.inf)
        masked = masked + step.reshape(step.shape + (1,) * (LENGTH - read - 1))
    assert torch.allclose(masked.exp().sum(), torch.ones((), dtype=torch.float64))
    chosen = (
        masked.exp()
        .flatten()
        .multinomial(count, replacement=True, generator=torch.Generator().manual_seed(3))
    )
    assert misfit(EVERY[chosen], expected) > count / 1000


@pytest.mark.parametrize("kinds", KINDS)
def test_words_in_large_classes_are_as_others(kinds):
    """600 words of which most are alike: as in an automaton that tells all of them apart."""
    given, words = hmm(*kinds, words=600), torch.arange(600)
    either = rg.nn.Pattern.containing([[7], [599, 3]], 600).automaton(3, dtype=torch.float64)
    count = len(either.transitions)
    # States that no word leads to; their rows tell all words apart.
    more = torch.stack([words // 25 % count, words % 25 % count, words % 7 % count, words // 7 % 5])
    more = torch.cat([more, (words // 25).unsqueeze(0) % (count + 5), words[None] % (count + 5)])
    rows = torch.cat([either.transitions, more.clamp(max=count + 5)])
    none = torch.full((len(more),), -math.inf, dtype=torch.float64)
    apart = rg.Automaton(rows, torch.cat([either.log_accept, none]), 3)
    one, other = (rg.nn.ConstrainedHMM(*given, each) for each in (either, apart))
    for read in ([], [599], [5, 5]):
        met = []
        for model in (one, other):
            prefix = model.begin()
            for word in read:
                prefix = model.advance(prefix, torch.tensor([word]))
            met.append(model.log_met(prefix).exp())
        assert torch.allclose(*met)


def test_nothing_is_lost_where_probabilities_are_tiny():
    """Far below the range of float32; by the same numbers in float64."""
    start, transition, emission = hmm("ranks", "ranks", scale=20.0)
    least = EVERY[rg.Chain.hmm(start, transition, emission, EVERY).log_partition().argmin()]
    ending = rg.nn.Pattern.one_of([least.tolist()], WORDS).automaton(LENGTH)
    wide = rg.nn.ConstrainedHMM(start, transition, emission, ending)
    sides = ((low.log_left.float(), low.log_right.float()) for low in (transition, emission))
    narrow = rg.nn.ConstrainedHMM(start.float(), *(rg.LowRank(*side) for side in sides), ending)
    assert float(wide.log_partition()) < -110
    assert torch.allclose(narrow.log_partition().double(), wide.log_partition(), rtol=1e-5)


def test_a_processor_leads_a_language_model():
    model = rg.nn.ConstrainedHMM(*hmm("ranks", "dense"), automaton(weighted=False))
    generator = torch.Generator().manual_seed(4)
    scores = torch.randn(3, WORDS + 2, generator=generator, dtype=torch.float64)
    ids = PROMPT.expand(3, -1)
    lead = model.processor(len(PROMPT))
    for _ in range(LENGTH + 2):
        led = lead(ids, scores)
        prefix = model.begin(prompt=ids[:, :2])
        done = ids.shape[1] - 2
        for words in ids[:, 2 : 2 + LENGTH].mT:
            prefix = model.advance(prefix, words)
        if done < LENGTH:
            assert bool((led[:, WORDS:] == -math.inf).all())
            expected = scores[:, :WORDS] + model.log_met(prefix)
            assert torch.allclose(led[:, :WORDS].exp(), expected.exp())
        else:
            assert torch.equal(led, scores)
        # Beams: rows go on from any of the last call.
        beams = torch.tensor([2, 0, 0])
        word = led[beams, :WORDS].exp().multinomial(1, generator=generator)
        ids = torch.cat([ids[beams], word], 1)
    fresh = model.processor(2)
    again = ids[:, : 2 + LENGTH - 1]
    assert torch.allclose(fresh(again, scores).exp(), lead(again, scores).exp())


def test_a_processor_says_where_nothing_meets_the_constraint():
    never = rg.nn.Pattern.parse("0 0", WORDS).automaton(LENGTH)
    scores = torch.zeros(2, WORDS, dtype=torch.float64)
    for words in (0, 1, 3):  # from the beginning, and from words on that were written before
        lead = rg.nn.ConstrainedHMM(*hmm("dense", "dense"), never).processor()
        with pytest.raises(rg.errors.ImpossibleEvidenceError, match="no sequence of 4 words"):
            lead(torch.zeros(2, words).long(), scores)
    # Only the first of two prompts leaves a word to the hidden states that meets the constraint.
    absorbing = torch.eye(2).double().log()
    start, constraint = torch.tensor([0.5, 0.5]).log(), rg.nn.Pattern.parse("1", 2).automaton(1)
    shows = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double().log()
    model = rg.nn.ConstrainedHMM(start.double(), absorbing, shows, constraint)
    lead, two = model.processor(1), scores[:, :2]
    assert lead(torch.tensor([[1], [1]]), two)[:, 0].tolist() == [-math.inf] * 2
    with pytest.raises(rg.errors.ImpossibleEvidenceError):
        lead(torch.tensor([[1], [0]]), two)


def test_a_processor_masks_all_words_of_a_row_that_broke_the_constraint():
    model = rg.nn.ConstrainedHMM(*hmm("dense", "dense"), automaton(weighted=False))
    lead, scores = model.processor(), torch.zeros(2, WORDS, dtype=torch.float64)
    broken = torch.tensor([[4, 4], [2, 4]])
    lead(broken[:, :1], scores)
    for led in (lead(broken, scores), model.processor()(broken, scores)):
        assert bool((led[0] == -math.inf).all())
        assert bool(led[1].isfinite().any())
    whole = torch.cat([broken, broken], 1)
    assert torch.equal(lead(whole, scores), scores)  # there are no more words to choose


def test_transformers_take_a_processor():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": WORDS, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 1}
    config = transformers.GPT2Config(**sizes)
    torch.manual_seed(0)
    network = transformers.GPT2LMHeadModel(config).eval()
    model = rg.nn.ConstrainedHMM(*hmm("ranks", "ranks"), automaton(weighted=False))
    steps = transformers.LogitsProcessorList([model.processor(len(PROMPT))])
    out = network.generate(
        PROMPT.expand(4, -1), logits_processor=steps, max_new_tokens=LENGTH, do_sample=True,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    assert bool((model.automaton.evaluate([out[:, 2 + t, None] for t in range(LENGTH)]) == 0).all())


def test_transformers_are_not_imported():
    assert "transformers" not in vars(sys.modules["rdpgraph.structures.chain.constrained"])


def test_what_does_not_fit_is_refused():
    given, right = hmm("dense", "ranks"), automaton(weighted=False)
    with pytest.raises(rg.errors.ModelError, match="needs an automaton over them; got one over 3"):
        rg.nn.ConstrainedHMM(*given, rg.Automaton(torch.zeros(1, 3).long(), torch.zeros(1), 2))
    with pytest.raises(rg.errors.ModelError, match=r"needs one Automaton.*got Pattern"):
        rg.nn.ConstrainedHMM(*given, pattern())
    with pytest.raises(rg.errors.ModelError, match="rows of log-probabilities that sum to one"):
        rg.nn.ConstrainedHMM(given[0] + 1, *given[1:], right)
    model = rg.nn.ConstrainedHMM(*given, right)
    with pytest.raises(rg.errors.EvidenceError, match="of 5 words got 5; use 0 to 4"):
        model.advance(model.begin(), torch.tensor([5]))
    prefix = model.begin()
    for _ in range(LENGTH):
        prefix = model.advance(prefix, torch.tensor([0]))
    with pytest.raises(rg.errors.EvidenceError, match="has all of them; got one more"):
        model.advance(prefix, torch.tensor([0]))


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("never", [rg.nn.Pattern.parse("0 0", WORDS),
                                   ~rg.nn.Pattern.parse(".*", WORDS)])  # fmt: skip
def test_where_nothing_is_accepted_nothing_is_said(kinds, never):
    model = rg.nn.ConstrainedHMM(*hmm(*kinds), never.automaton(LENGTH))
    assert float(model.log_partition()) == -math.inf
    for values in (model.log_met(model.begin(2)), model.log_words(model.begin(2))):
        assert torch.equal(values, torch.full((2, WORDS), -math.inf, dtype=torch.float64))
    for ask in (lambda: model.sample(2), lambda: model.best(1)):
        with pytest.raises(rg.errors.ImpossibleEvidenceError, match="no sequence of 4 words"):
            ask()
