"""Decoders by enumeration, beside their peers where they are installed, and learned rates."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch

import rdpgraph as rg
from rdpgraph import decoding
from tests.fuzz.parities import drawn
from tests.structures.test_parity import memory

RING = [[1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]


def ring(**options):
    rates = torch.tensor([0.05, 0.1, 0.2, 0.1, 0.3], dtype=torch.float64)
    return rg.ParityModel.from_rates(RING, rates, observables=[[1, 0, 0, 0, 0]], **options)


def test_decisions_are_the_most_probable_and_repeats_are_decoded_alike():
    model = ring()
    every = torch.tensor(list(itertools.product((0, 1, -1), repeat=4)))
    decoded = decoding.CosetDecoder(model).decode_observables(every.repeat(2, 1).reshape(2, 81, 4))
    chances = model.condition(every).coset_probabilities()
    torch.testing.assert_close(decoded.confidence[1], chances.amax(1))
    assert torch.equal(decoded.observables[0, :, 0], chances.argmax(1))
    few = decoding.CosetDecoder(model, keep=64).decode_observables(every)
    torch.testing.assert_close(few.confidence, decoded.confidence[0])
    errors = decoding.CosetDecoder(model).decode(every)
    assert torch.equal(errors, model.condition(every).mode())


def test_no_shots_and_shots_without_checks():
    none, unchecked = torch.zeros(0, 2, dtype=torch.long), torch.zeros(3, 0, dtype=torch.long)
    model = rg.ParityModel.from_rates([[1, 1, 0], [0, 1, 1]], [0.1] * 3, observables=[[1, 0, 0]])
    for keep in (None, 4):
        decoded = decoding.CosetDecoder(model, keep).decode_observables(none)
        assert decoded.observables.shape == (0, 1)
    (_, last) = decoding.WindowDecoder(model, [0, 1]).decode([none[:, :1], none[:, :1]])
    assert last.confidence.shape == (0,)
    free = rg.ParityModel.from_rates(unchecked.T[:, :3], [0.1] * 3, observables=[[1, 0, 0]])
    decoded = decoding.CosetDecoder(free).decode_observables(unchecked)
    torch.testing.assert_close(decoded.confidence, torch.full((3,), 0.9))
    silent = decoding.MessagesDecoder(unchecked.T[:, :3], -1.0).decode(unchecked)
    assert silent.tolist() == [[0] * 3] * 3


def test_a_model_of_nothing_is_decoded():
    nothing, shots = rg.ParityModel.from_dem(""), np.zeros((3, 0), dtype=bool)
    decoded = decoding.CosetDecoder(nothing).decode_observables(shots)
    (last,) = decoding.WindowDecoder(nothing, torch.zeros(0, dtype=torch.long)).decode([shots])
    for each in (decoded, last):
        assert each.observables.shape == (3, 0)
        assert each.confidence.tolist() == [1, 1, 1]
        assert each.log_probability.tolist() == [0, 0, 0]


def test_an_impossible_shot_is_no_exception():
    model = rg.ParityModel([[1], [0]], [-1.0], observables=[[1]])
    decoded = decoding.CosetDecoder(model).decode_observables([[1, 1], [1, 0]])
    assert decoded.confidence.tolist() == [0, 1]
    assert decoded.observables.tolist() == [[0], [1]]


def shots_of(model, count, seed=0):
    """Syndromes and observables of drawn errors."""
    return model.syndrome_of(model.sample(count, torch.Generator().manual_seed(seed)))


def in_windows(model, windows, syndromes, keep):
    """Decisions after each window, and how many pieces had been taken before each."""
    taken = []

    def pieces():
        for window in range(int(windows.max()) + 1):
            taken.append(window)
            yield syndromes[..., windows == window]

    decoder = decoding.WindowDecoder(model, windows, keep=keep)
    return [(decoded, len(taken)) for decoded in decoder.decode(pieces())]


def test_windows_of_all_states_are_exact_after_each():
    model = memory(3, 3, 0.05)
    checks, windows = model.checks, torch.arange(8) // 2
    syndromes = shots_of(model, 12)[0].reshape(3, 4, 8)
    syndromes[0, 0, 3] = -1
    found = in_windows(model, windows, syndromes, keep=64)
    assert [taken for _, taken in found] == [2, 3, 4, 4]
    for window, (decoded, _) in enumerate(found):
        seen = [bool((windows[list(at)] <= window).any()) for at, _ in checks.columns]
        matrix = checks.matrices[1] * torch.tensor(seen)
        known = torch.where(windows <= window, syndromes, -1)
        so_far = rg.ParityModel(
            checks.matrices[0], unary=model.unary, observables=matrix, syndrome=known
        )
        chances = so_far.coset_probabilities()
        torch.testing.assert_close(decoded.log_probability, so_far.log_partition())
        torch.testing.assert_close(decoded.confidence, chances.amax(-1))
        assert torch.equal(decoded.observables[..., 0], chances.argmax(-1))


def test_one_window_is_the_whole():
    model = memory(3, 5, 0.05)
    syndromes = shots_of(model, 50)[0]
    whole = decoding.CosetDecoder(model, keep=6).decode_observables(syndromes)
    [(decoded, _)] = in_windows(model, torch.zeros(12).long(), syndromes, keep=6)
    torch.testing.assert_close(decoded.log_probability, whole.log_probability)
    torch.testing.assert_close(decoded.interval, whole.interval)
    torch.testing.assert_close(decoded.doubt, whole.doubt)


def test_intervals_hold_the_chances_of_decisions():
    model = memory(4, 5, 0.08)
    syndromes = shots_of(model, 200)[0]
    syndromes[::7, 3] = -1
    chances = model.condition(syndromes).coset_probabilities()
    for keep in (2, 6, 20):
        decoder = decoding.CosetDecoder(model, keep=keep)
        found = decoder.decode_observables(syndromes)
        right = chances.gather(1, found.observables).squeeze(1)
        lower, upper = found.interval
        assert bool(((lower <= right + 1e-12) & (right <= upper + 1e-12)).all())
        assert bool((lower <= found.share + 1e-12).all())
        # Erased checks make shots unlike those that are simulated: they have the lower end.
        assert torch.equal(found.confidence[::7], lower[::7])
        assert torch.equal(decoder.decide(syndromes), found.observables)
    assert lower.mean() > 0.5


def until(model, windows, window, syndromes):
    """The model of the errors that flip checks of the windows so far, given these checks."""
    checks = model.checks
    seen = [bool((windows[list(at)] <= window).any()) for at, _ in checks.columns]
    observables = checks.matrices[1] * torch.tensor(seen)
    known = torch.where(windows <= window, syndromes, -1)
    return rg.ParityModel(
        checks.matrices[0], unary=model.unary, observables=observables, syndrome=known
    )


def test_intervals_of_windows_hold_what_is_known_so_far():
    model, windows = memory(3, 5, 0.1), torch.arange(12) // 2
    syndromes = shots_of(model, 100)[0]
    syndromes[::9, 4] = -1
    for keep in (2, 4):
        found = in_windows(model, windows, syndromes, keep)
        for window, (decoded, _) in enumerate(found):
            chances = until(model, windows, window, syndromes).coset_probabilities()
            right = chances.gather(1, decoded.observables).squeeze(1)
            lower, upper = decoded.interval
            assert bool(((lower <= right + 1e-12) & (right <= upper + 1e-12)).all())
            assert bool(((lower <= decoded.confidence) & (decoded.confidence <= upper)).all())
            if window > 2:  # erased checks, which were not simulated, leave the lower end
                assert torch.equal(decoded.confidence[::9], lower[::9])


def test_confidence_of_windows_is_true_after_each():
    """Beside P(l | s), summed over all errors of the windows so far."""
    model, windows = memory(3, 5, 0.08), torch.arange(12) // 2
    syndromes = shots_of(model, 2000, seed=3)[0]
    for window, (decoded, _) in enumerate(in_windows(model, windows, syndromes, keep=3)):
        chances = until(model, windows, window, syndromes).coset_probabilities()
        right = chances.gather(1, decoded.observables).squeeze(1)
        for group in decoded.confidence.sort().indices.split(1000):
            # Shots of one confidence share its error, and all of a group at most their sum.
            spread = (right[group] * (1 - right[group])).sum() / 1000**2
            spread = (spread + decoded.standard_error[group].mean() ** 2).sqrt()
            assert (decoded.confidence[group] - right[group]).mean().abs() < 3.5 * spread
    assert decoded.confidence.mean() > decoded.interval[0].mean() + 0.2
    again = in_windows(model, windows, syndromes[:20], keep=3)
    assert torch.equal(again[-1][0].confidence, decoded.confidence[:20])


def test_calibrated_windows_know_erased_checks_and_errors_without_checks():
    chain = memory(3, 4, 0.1)
    columns = [*chain.checks.columns, ((), (0,)), ((), (0,))]  # two that flip the observable alone
    observables = torch.cat([chain.checks.matrices[1], torch.ones(1, 2)], 1)
    checks = torch.cat([chain.checks.matrices[0], torch.zeros(10, 2)], 1)
    odds = torch.cat([chain.unary[:, 1] - chain.unary[:, 0], torch.tensor([-2.0, -3.0])])
    model, windows = rg.ParityModel(checks, odds, observables=observables), torch.arange(10) // 2
    assert len(model.checks.columns) == len(columns)
    syndromes, truth = shots_of(model, 2000, seed=1)
    syndromes[::2, 4] = -1
    syndromes[:, 7] = -1
    decoder = decoding.WindowDecoder(model, windows, keep=3).calibrated(
        2000, like=syndromes[:10], generator=torch.Generator().manual_seed(0)
    )
    pieces = [syndromes[:, windows == at] for at in range(5)]
    *_, found = decoder.decode(pieces)
    assert_true(found, truth)
    assert found.confidence.mean() > found.interval[0].mean() + 0.1
    decided = [*decoder.decide(pieces)]
    assert len(decided) == 5
    assert torch.equal(decided[-1], found.observables)
    # All windows are one sweep where all states are kept: the stages of errors must be right.
    exact = decoding.WindowDecoder(model, windows, keep=512)
    for window, each in enumerate(exact.decode(pieces)):
        hidden = torch.where(windows <= window, syndromes, -1)
        seen = [bool((windows[list(at)] <= window).any()) or not at for at, _ in columns]
        so_far = rg.ParityModel(
            checks, unary=model.unary, observables=observables * torch.tensor(seen)
        )
        chances = so_far.condition(hidden[:200]).coset_probabilities()
        torch.testing.assert_close(each.confidence[:200], chances.amax(1))


def test_calibrated_confidence_is_that_of_shots():
    model, draw = memory(4, 5, 0.08), torch.Generator().manual_seed(0)
    decoder = decoding.CosetDecoder(model, keep=4).calibrated(8000, generator=draw)
    syndromes, truth = shots_of(model, 8000, seed=1)
    found = decoder.decode_observables(syndromes)
    assert_true(found, truth)
    lower, upper = found.interval
    assert bool(((lower <= found.confidence) & (found.confidence <= upper)).all())
    # No interval is sure of so much, and 8,000 shots are not.
    assert float(lower.max()) < 1 - 1 / 8001
    assert float(found.confidence.max()) <= 1 - 1 / 8001
    exact = decoding.CosetDecoder(model)
    assert exact.calibrated(5) is exact


@pytest.mark.long
def test_confidence_is_known_up_to_its_standard_error():
    """Of many calibrations, beside P(l | s) by all errors: no more than chance is far away."""
    model = memory(4, 5, 0.08)
    syndromes = shots_of(model, 4000, seed=1)[0]
    decoder, scores = decoding.CosetDecoder(model, keep=4), []
    decided = decoder.decide(syndromes)
    right = model.condition(syndromes).coset_probabilities().gather(1, decided).squeeze(1)
    for seed in range(15):
        draw = torch.Generator().manual_seed(seed)
        found = decoder.calibrated(400, generator=draw).decode_observables(syndromes)
        for level in found.confidence.unique():
            some = found.confidence == level
            error = found.standard_error[some][0] ** 2 + 1e-4 / some.sum()
            scores.append((level - right[some].mean()) / error.sqrt())
    scores = torch.stack(scores)
    assert len(scores) > 40
    assert scores.mean().abs() < 0.4
    assert scores.square().mean().sqrt() < 1.25
    assert scores.abs().max() < 3.5


def test_groups_of_wrong_decisions_grow_with_their_number():
    """A fifth of all wrong decisions tells a rate, and not more than a hundred."""
    model = memory(4, 5, 0.08)
    syndromes, truth = shots_of(model, 1000, seed=1)
    decoder = decoding.CosetDecoder(model, keep=4)
    rate = float((decoder.decide(syndromes) != truth).double().mean())
    for shots in (100, 1000, 10_000):
        draw = torch.Generator().manual_seed(shots)
        found = decoder.calibrated(shots, generator=draw).decode_observables(syndromes)
        known = found.standard_error / (1 - found.confidence)
        wrong = min(max(shots * rate / 5, 10), 100)
        assert known.median() < (0.8 * wrong) ** -0.5
        assert known.quantile(0.9) < 10**-0.5  # some intervals exclude what was measured
        assert len(found.confidence.unique()) > min(shots * rate / 200, 3)


def assert_true(found, truth):
    """Of shots of like confidence, as many are wrong as their confidences say."""
    wrong = (found.observables != truth).any(1)
    for group in found.confidence.sort().indices.split(1000):
        chance = 1 - found.confidence[group]
        # The counts vary, and so does the confidence, by its standard error in a whole group.
        spread = ((chance * (1 - chance)).sum() + found.standard_error[group].sum() ** 2).sqrt()
        assert (wrong[group].sum() - chance.sum()).abs() < 3.5 * spread


def test_confidence_of_erased_shots_is_measured_on_shots_like_them():
    model, draw = memory(4, 5, 0.08), torch.Generator().manual_seed(0)
    syndromes, truth = shots_of(model, 4000, seed=1)
    syndromes[::2, 4] = -1
    syndromes[:, 9] = -1
    plain = decoding.CosetDecoder(model, keep=4)
    decoder = plain.calibrated(4000, like=syndromes[:10], generator=draw)
    found = decoder.decode_observables(syndromes)
    assert_true(found, truth)
    assert found.confidence.mean() > found.interval[0].mean() + 0.2
    with pytest.raises(rg.errors.EvidenceError, match="needs a syndrome"):
        plain.calibrated(5, like=syndromes[:0])
    # Syndromes without erased checks change nothing.
    intact = plain.calibrated(500, like=syndromes[:3].abs(), generator=draw)
    erased = intact.decode_observables(syndromes[:5])
    assert torch.equal(erased.confidence, erased.interval[0])


def test_confidence_of_kept_states_is_true_without_being_asked():
    """The default simulates shots once; its doubts tell right decisions from wrong ones."""
    model = memory(5, 6, 0.06)
    decoder = decoding.CosetDecoder(model, keep=3)
    syndromes, truth = shots_of(model, 6000, seed=5)
    found = decoder.decode_observables(syndromes)
    assert_true(found, truth)
    again = decoding.CosetDecoder(model, keep=3).decode_observables(syndromes[:50])
    assert torch.equal(again.confidence, found.confidence[:50])  # batch or not, and always the same
    single = decoder.decode_observables(syndromes[7])
    assert torch.equal(single.confidence, found.confidence[7])
    assert bool((found.standard_error > 0).all())


def test_what_is_known_needs_no_simulated_shots():
    model = memory(4, 5, 0.08)
    syndromes = shots_of(model, 100)[0]
    exact = decoding.CosetDecoder(model).decode_observables(syndromes)
    few = decoding.CosetDecoder(model, keep=512).decode_observables(syndromes)
    torch.testing.assert_close(few.confidence, exact.confidence)
    torch.testing.assert_close(few.doubt, 1 - exact.confidence)
    assert float(few.standard_error.max()) < 1e-12
    sure = rg.ParityModel.from_rates([[1, 1]], [1e-9, 1e-9], observables=[[1, 0]])
    quiet = decoding.CosetDecoder(sure, keep=1).calibrated(9).decode_observables([[0]])
    assert float(quiet.interval[0]) <= float(quiet.confidence) <= float(quiet.interval[1])
    assert float(quiet.doubt) < 1e-8


@pytest.mark.long
def test_doubts_count_what_was_dropped():
    """The share of the decision in what was kept tells less than with an estimate of the rest."""
    model = memory(5, 20, 0.03)
    syndromes, truth = shots_of(model, 3000)
    found = decoding.CosetDecoder(model, keep=3).decode_observables(syndromes)
    wrong = (found.observables != truth).any(1)

    def told_apart(doubts):
        ranks = doubts.argsort().argsort().double()
        count = int(wrong.sum())
        best = count * (len(ranks) - count)
        return (ranks[wrong].sum() - count * (count - 1) / 2) / best

    assert told_apart(found.doubt) > told_apart(1 - found.share) + 0.02
    kept = model.condition(syndromes).kept(3)
    part = (kept.log_partition - model.condition(syndromes).log_partition()).exp()
    assert torch.corrcoef(torch.stack([kept.log_kept.exp(), part]))[0, 1] > 0.7
    assert (kept.log_kept <= 0).all()
    everything = model.condition(syndromes[:5]).kept(10**4)
    assert everything.log_kept.tolist() == [0] * 5


def test_kept_states_are_those_that_later_checks_explain():
    """Four states keep nearly all of P(s), since they are chosen by what is ahead."""
    model = memory(5, 20, 0.03)
    given = model.condition(shots_of(model, 300)[0])
    missing = given.log_partition() - given.kept(4).log_partition
    assert missing.mean() < 0.35  # a fixed factor for each event that is left loses 0.9


def test_default_simulates_fewer_shots_where_they_take_long():
    """The confidence is at most that of as many right decisions, whose number is by the work."""
    short, long = memory(4, 2, 0.02), memory(4, 100, 0.001)
    ends = []
    for model, keep in ((short, 2), (long, 2), (long, 8000)):
        decoder = decoding.CosetDecoder(model, keep=keep)
        ends.append(decoder._shots)
    assert ends[0] == ends[1] == 5000
    assert 100 <= ends[2] < 2000


def test_a_circuit_of_many_errors_is_decided_as_exactly():
    model = memory(3, 500, 0.003)
    syndromes = shots_of(model, 20)[0]
    exact = decoding.CosetDecoder(model).decode_observables(syndromes)
    few = decoding.CosetDecoder(model, keep=8).decide(syndromes)
    sure = exact.confidence > 0.6
    assert torch.equal(few[sure], exact.observables[sure])


@pytest.mark.long
def test_a_circuit_of_a_hundred_thousand_errors_is_no_table():
    """Its matrix of checks and errors would have 4 * 10^9 entries."""
    model = memory(3, 20_000, 0.001)
    assert len(model.checks.columns) > 100_000
    syndromes = torch.zeros(2, model.checks.num_checks, dtype=torch.int8)
    syndromes[1, 1000:40_000:2000] = 1
    exact = decoding.CosetDecoder(model).decode_observables(syndromes)
    few = decoding.CosetDecoder(model, keep=16).decode_observables(syndromes)
    assert torch.equal(few.observables, exact.observables)
    torch.testing.assert_close(few.confidence, exact.confidence)


def test_soft_measurements_are_decoded_with_log_odds_of_their_own():
    """Each shot has its own rates, as of analog readouts: a batch of models, and singles."""
    hard, draw = memory(3, 4, 0.05), torch.Generator().manual_seed(0)
    odds = hard.unary[:, 1] - hard.unary[:, 0]
    odds = odds + torch.randn(6, len(odds), generator=draw, dtype=torch.float64)
    soft = rg.ParityModel(hard.checks, odds)
    syndromes = shots_of(hard, 6)[0]
    given = soft.condition(syndromes)
    kept = given.kept(5)
    lower, upper = kept.interval
    exact = given.coset_probabilities()
    assert bool(((lower <= exact + 1e-12) & (exact <= upper + 1e-12)).all())
    for at in range(6):
        single = rg.ParityModel(hard.checks, odds[at]).condition(syndromes[at])
        torch.testing.assert_close(single.kept(5).log_cosets, kept.log_cosets[at])
        torch.testing.assert_close(single.kept(5).log_kept, kept.log_kept[at])
        alone = decoding.CosetDecoder(rg.ParityModel(hard.checks, odds[at]))
        found = alone.decode_observables(syndromes[at])
        torch.testing.assert_close(found.confidence, exact[at].amax())


@pytest.mark.parametrize("kind", ["color_code:memory_xyz", "surface_code:rotated_memory_x"])
def test_codes_of_stim_are_decided_by_kept_states_as_exactly(kind):
    stim = pytest.importorskip("stim", reason="stim writes the circuit")
    circuit = stim.Circuit.generated(
        kind, distance=3, rounds=2, after_clifford_depolarization=0.01,
        before_measure_flip_probability=0.01,
    )  # fmt: skip
    model = rg.ParityModel.from_dem(circuit.detector_error_model())
    syndromes = circuit.compile_detector_sampler(seed=0).sample(60)
    exact = decoding.CosetDecoder(model).decode_observables(syndromes)
    few = decoding.CosetDecoder(model, keep=40)
    sure = exact.confidence > 0.9
    assert int(sure.sum()) > 40
    assert torch.equal(few.decide(syndromes)[sure], exact.observables[sure])
    lower, upper = few._decode(syndromes, bounded=True).interval
    right = model.condition(syndromes).coset_probabilities()
    chosen = few.decide(syndromes) << torch.arange(model.checks.num_observables)
    right = right.gather(1, chosen.sum(1, keepdim=True)).squeeze(1)
    assert bool(((lower <= right + 1e-12) & (right <= upper + 1e-12)).all())


def gross_checks():
    """The X checks of the gross code, 72 of 144 bits, as sums of shifts."""
    shifts = [
        torch.kron(torch.eye(12).roll(k, 1), torch.eye(6).roll(j, 1)).long()
        for k, j in ((3, 0), (0, 1), (0, 2), (0, 3), (1, 0), (2, 0))
    ]
    return torch.cat([sum(shifts[:3]), sum(shifts[3:])], 1)


def test_a_sweep_that_ends_without_states_begins_again_with_faint_ones():
    """With many more errors than expected, estimates are sure of states that nothing explains."""
    checks = gross_checks()
    model = rg.ParityModel.from_rates(
        checks, torch.full((144,), 1e-3, dtype=torch.float64), observables=checks[:1] * 0 + 1
    )
    errors = torch.rand(200, 144, generator=torch.Generator().manual_seed(0)) < 0.08
    syndromes = model.syndrome_of(errors.long())[0]
    found = decoding.CosetDecoder(model, keep=100)._decode(syndromes, bounded=True)
    assert bool((found.log_probability > -math.inf).all())
    [(decoded, _)] = in_windows(model, torch.zeros(72).long(), syndromes[:40], keep=100)
    torch.testing.assert_close(decoded.log_probability, found.log_probability[:40])


def test_windows_of_a_long_memory_decide_as_the_whole_does():
    model = memory(5, 30, 0.02)
    syndromes = shots_of(model, 300)[0]
    exact = decoding.CosetDecoder(model).decode_observables(syndromes)
    windows = torch.arange(124) // 4
    decoder = decoding.WindowDecoder(model, windows, keep=8).calibrated(50)
    *_, found = decoder.decode(syndromes[:, windows == at] for at in range(31))
    assert (found.observables == exact.observables).double().mean() > 0.97
    assert (found.log_probability <= exact.log_probability + 1e-9).all()


def test_random_trees_are_decoded_by_sum_product_exactly():
    rng = np.random.default_rng(0)
    bits = [[int(rng.integers(at)), at] for at in range(1, 12)]
    matrix = torch.zeros(11, 12).index_put_(
        (torch.arange(11).repeat_interleave(2), torch.tensor(bits).flatten()), torch.ones(22)
    )
    odds = torch.tensor(rng.normal(size=12))
    model = rg.ParityModel(matrix, odds, syndrome=torch.tensor(rng.integers(0, 2, (6, 11))))
    marginals = model.marginals()[..., 1]
    for serial in (False, True):
        decoder = decoding.MessagesDecoder(matrix, odds, 60, product=True, serial=serial)
        # A shot stops when its checks are met: beliefs are exact once messages have gone through.
        found = decoder.run(model.syndrome)
        assert (found.violated == 0).all()
        late = found.iterations >= 11
        torch.testing.assert_close(found.log_odds[late].sigmoid(), marginals[late])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("product", [False, True])
@pytest.mark.parametrize("serial", [False, True])
def test_messages_of_plain_loops(seed, product, serial):
    rng = np.random.default_rng(seed)
    matrix = (rng.random((5, 9)) < 0.4).astype(int)
    odds, syndromes = rng.normal(size=9) - 1, rng.integers(0, 2, (21, 5))
    options = {"product": product, "serial": serial, "scale": 0.75}
    if seed % 2:
        options["damping"] = torch.tensor(rng.uniform(-0.5, 0.9, matrix.sum()))
    found = decoding.MessagesDecoder(matrix, odds, 4, **options).run(syndromes)
    for at, syndrome in enumerate(syndromes):
        ratios, count = plain(matrix, -odds, syndrome, 4, **options)
        np.testing.assert_allclose(-found.log_odds[at], ratios, rtol=1e-9, atol=1e-9)
        assert found.iterations[at] == count
        wrong = (matrix @ (ratios <= 0) % 2 != syndrome).sum()
        assert found.violated[at] == wrong


def test_shots_have_log_odds_of_their_own():
    rng = np.random.default_rng(0)
    matrix = (rng.random((5, 9)) < 0.4).astype(int)
    odds, syndromes = torch.tensor(rng.normal(size=(3, 7, 9)) - 1), rng.integers(0, 2, (3, 7, 5))
    found = decoding.MessagesDecoder(matrix, 0.0, 6).run(syndromes, odds)
    for at in itertools.product(range(3), range(7)):
        single = decoding.MessagesDecoder(matrix, odds[at], 6).run(syndromes[at])
        torch.testing.assert_close(found.log_odds[at], single.log_odds)
        assert found.iterations[at] == single.iterations


def plain(matrix, prior, syndrome, most, *, product, serial, scale, damping=None):
    """Belief propagation by loops."""
    edges = [(c, v) for c, v in zip(*np.nonzero(matrix), strict=True)]
    up = {(c, v): prior[v] for c, v in edges}
    down = dict.fromkeys(edges, 0.0)
    share = dict(
        zip(edges, [0.0] * len(edges) if damping is None else damping.tolist(), strict=True)
    )

    def answer(c, v):
        new = undamped(c, v)  # what is certain is not damped
        return new if np.isinf(new) else share[c, v] * down[c, v] + (1 - share[c, v]) * new

    def undamped(c, v):
        others = [up[e] for e in edges if e[0] == c and e[1] != v]
        turn = (-1) ** syndrome[c]
        if product:
            even, odd = 0.0, -np.inf  # log-weights of both parities
            for x in np.abs(others):
                even, odd = np.logaddexp(even, odd - x), np.logaddexp(odd, even - x)
            return turn * (even - odd) * np.prod(np.sign(others))
        size = min(map(abs, others), default=np.inf)
        return turn * scale * size * np.prod([-1 if x <= 0 else 1 for x in others])

    ratios = np.array(prior, dtype=float)
    count = 0
    while count < most:
        count += 1
        if not serial:
            down = {edge: answer(*edge) for edge in edges}
        for v in range(matrix.shape[1]):
            mine = [edge for edge in edges if edge[1] == v]
            if serial:
                down.update({edge: answer(*edge) for edge in mine})
            ratios[v] = prior[v] + sum(down[edge] for edge in mine)
            for edge in mine:
                up[edge] = prior[v] + sum(down[other] for other in mine if other != edge)
        if (matrix @ (ratios <= 0) % 2 == syndrome).all():
            break
    return ratios, count


def test_messages_decide_as_ldpc_does():
    ldpc = pytest.importorskip("ldpc", reason="ldpc is the peer")
    scipy = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(1)
    matrix = scipy.csr_matrix((rng.random((20, 40)) < 0.1).astype(np.uint8))
    rates = rng.uniform(0.01, 0.2, 40)
    shots = (rng.random((100, 40)) < rates).astype(np.uint8)
    syndromes = (matrix @ shots.T % 2).T.astype(np.uint8)
    for schedule in ("parallel", "serial"):
        theirs = ldpc.BpDecoder(
            matrix, error_channel=list(rates), max_iter=20, bp_method="minimum_sum",
            ms_scaling_factor=0.9, schedule=schedule,
        )  # fmt: skip
        ours = decoding.MessagesDecoder(
            matrix, torch.tensor(rates).logit(), 20, scale=0.9, serial=schedule == "serial"
        )
        wanted = np.stack([theirs.decode(row).copy() for row in syndromes])
        assert (ours.decode(syndromes).numpy() == wanted).all(1).mean() > 0.98


def toric(size):
    """The checks of a toric code: each vertex of a square grid on a torus, and its four edges."""
    matrix = torch.zeros(size, size, 2, size, size, dtype=torch.long)
    for i, j in itertools.product(range(size), repeat=2):
        for kind, row, column in ((0, i, j), (0, i, j - 1), (1, i, j), (1, i - 1, j)):
            matrix[i, j, kind, row, column] += 1
    return matrix.reshape(size**2, -1)


def test_learned_damping_leaves_fewer_shots_undecoded():
    """Errors of a toric code tie with others, and messages among equal edges go back and forth."""
    matrix, generator = toric(4), torch.Generator().manual_seed(0)
    errors = torch.rand(1500, 32, generator=generator) < 0.08
    shots, held = (errors.long() @ matrix.T % 2).split([500, 1000])

    def undecoded(decoder):
        return int((decoder.run(held).violated > 0).sum())

    fixed = [
        decoding.MessagesDecoder(matrix, -2.4, 8, damping=share) for share in (0, 0.1, 0.3, 0.5)
    ]
    best = min(fixed, key=undecoded)
    learned = decoding.learn_damping(best, shots, steps=12, rate=0.3, batch=30, generator=generator)
    assert undecoded(learned) < 0.6 * undecoded(best)


def blocks(count, seed=0):
    """Random codes side by side, of three observables each."""
    draw = torch.Generator().manual_seed(seed)
    flips = [(torch.rand(2, 5, generator=draw) < 0.5).long() for _ in range(count)]
    seen = [(torch.rand(3, 5, generator=draw) < 0.5).long() for _ in range(count)]
    rates = torch.rand(5 * count, generator=draw, dtype=torch.float64) / 2
    return flips, seen, rates


@pytest.mark.parametrize("keep", [None, 64])
def test_parts_with_many_observables_are_decided_on_apart(keep):
    flips, seen, rates = blocks(8)
    model = rg.ParityModel.from_rates(
        torch.block_diag(*flips), rates, observables=torch.block_diag(*seen)
    )
    shots = torch.randint(-1, 2, (20, 16), generator=torch.Generator().manual_seed(1))
    found = decoding.CosetDecoder(model, keep).decode_observables(shots)
    parts = [
        rg.ParityModel.from_rates(each, rates[5 * at : 5 * at + 5], observables=seen[at])
        for at, each in enumerate(flips)
    ]
    given = [part.condition(shots[:, 2 * at : 2 * at + 2]) for at, part in enumerate(parts)]
    log_p = sum(part.log_partition() for part in given)
    chance = torch.stack([part.coset_probabilities().amax(1) for part in given]).prod(0)
    possible = log_p > -math.inf
    assert bool(possible.any())
    torch.testing.assert_close(found.log_probability, log_p)
    torch.testing.assert_close(found.confidence, torch.where(possible, chance, 0.0))
    best = torch.stack([part.log_cosets().argmax(1) for part in given], 1)
    bits = (best.unsqueeze(2) >> torch.arange(3) & 1).flatten(1)
    assert torch.equal(found.observables, torch.where(possible.unsqueeze(1), bits, 0))


@pytest.mark.parametrize("keep", [None, 500])
def test_many_observables_of_one_part_are_decided_on_in_turn(keep):
    """Each ten are the most probable given those before, by sums over all errors."""
    draw = torch.Generator().manual_seed(0)
    flips, seen = (torch.rand(rows, 8, generator=draw) < 0.4 for rows in (3, 21))
    seen[:, 0] = True  # one part
    rates = torch.rand(8, generator=draw, dtype=torch.float64) / 2
    model = rg.ParityModel.from_rates(flips, rates, observables=seen)
    shots = torch.randint(0, 2, (3, 3), generator=draw)
    found = decoding.CosetDecoder(model, keep).decode_observables(shots)
    every = torch.tensor(list(itertools.product((0, 1), repeat=8)))
    checks, bits = model.syndrome_of(every)
    mass = model.score(every).exp()
    for number, shot in enumerate(shots):
        left = torch.where((checks == shot).all(1), mass, 0.0)
        total = left.sum()
        for start in range(0, 21, 10):
            some = bits[:, start : start + 10]
            kinds, which = some.unique(dim=0, return_inverse=True)
            masses = torch.zeros(len(kinds), dtype=torch.float64).index_add_(0, which, left)
            torch.testing.assert_close(
                masses[(kinds == found.observables[number, start : start + 10]).all(1)].sum(),
                masses.amax(),
            )
            left = torch.where(
                (some == found.observables[number, start : start + 10]).all(1), left, 0.0
            )
        torch.testing.assert_close(found.confidence[number], left.sum() / total)
        torch.testing.assert_close(found.log_probability[number], total.log())
    with pytest.raises(rg.errors.ModelError, match="CosetDecoder takes any number"):
        decoding.WindowDecoder(model, [0, 0, 1])


@pytest.mark.parametrize(("product", "serial"), itertools.product((False, True), repeat=2))
def test_certain_bits_stay_and_others_are_decoded_without_them(product, serial):
    draw, options = torch.Generator().manual_seed(0), {"product": product, "serial": serial}
    for _ in range(20):
        flips = (torch.rand(4, 8, generator=draw) < 0.4).long()
        odds = torch.randn(8, generator=draw, dtype=torch.float64) - 1
        sure, value = torch.rand(2, 8, generator=draw) < 0.4
        odds = torch.where(sure, torch.where(value, math.inf, -math.inf), odds)
        errors = torch.where(sure, value, torch.rand(30, 8, generator=draw) < 0.5).long()
        shots = errors @ flips.T % 2
        found = decoding.MessagesDecoder(flips, odds, **options).run(shots)
        assert bool((found.log_odds == odds)[:, sure].all())
        assert bool((found.errors == value.long())[:, sure].all())
        assert torch.equal(found.violated, (found.errors @ flips.T % 2 != shots).sum(1))
        few = decoding.MessagesDecoder(flips[:, ~sure], odds[~sure], **options)
        rest = few.run((shots - flips[:, sure & value].sum(1)) % 2)
        torch.testing.assert_close(found.log_odds[:, ~sure], rest.log_odds, rtol=0, atol=0)
        assert torch.equal(found.violated, rest.violated)
        own = decoding.MessagesDecoder(flips, 0.0, **options).run(shots, odds.expand(30, -1))
        assert torch.equal(own.log_odds, found.log_odds)


def test_damping_is_learned_beside_certain_bits():
    sure = decoding.MessagesDecoder(RING, [-math.inf, -1.0, math.inf, -1.0, -2.0])
    shots = torch.randint(0, 2, (20, 4), generator=torch.Generator().manual_seed(0))
    learned = decoding.learn_damping(sure, shots, steps=3, generator=torch.Generator())
    assert bool(learned.damping.isfinite().all())


def test_sinter_collects_with_it():
    sinter = pytest.importorskip("sinter", reason="sinter calls the decoder")
    stim = pytest.importorskip("stim")
    circuit = stim.Circuit.generated(
        "repetition_code:memory", distance=3, rounds=2, before_round_data_depolarization=0.05
    )
    again = pickle.loads(pickle.dumps(decoding.SinterDecoder(keep=50)))
    assert isinstance(again, sinter.Decoder)
    dem = circuit.detector_error_model()
    packed, actual, _ = dem.compile_sampler(seed=3).sample(300, bit_packed=True)
    exact = decoding.SinterDecoder().compile_decoder_for_dem(dem=dem)
    decided = exact.decode_shots_bit_packed(bit_packed_detection_event_data=packed)
    assert decided.shape == actual.shape
    assert (decided != actual).mean() < 0.1
    few = again.compile_decoder_for_dem(dem=dem)
    assert np.array_equal(
        few.decode_shots_bit_packed(bit_packed_detection_event_data=packed), decided
    )


def syndromes_of(model, shots, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return model.syndrome_of(model.sample(shots, generator))[0]


@pytest.mark.long
def test_sinter_collects_with_and_without_noise_checks_and_observables():
    sinter = pytest.importorskip("sinter", reason="sinter calls the decoder")
    import stim

    def memory_of(kind, noise):
        return stim.Circuit.generated(
            kind, distance=3, rounds=2, before_measure_flip_probability=noise
        )

    triples = stim.Circuit()
    for bit in range(0, 72, 3):  # 24 observables, each of a code of three bits
        triples += stim.Circuit(
            f"X_ERROR(0.02) {bit} {bit + 1} {bit + 2}\nM {bit} {bit + 1} {bit + 2}\n"
            "DETECTOR rec[-1] rec[-2]\nDETECTOR rec[-2] rec[-3]\n"
            f"OBSERVABLE_INCLUDE({bit // 3}) rec[-1]"
        )
    # Circuits by the largest number of 200 shots that may be decoded wrong.
    limits = [
        (memory_of("repetition_code:memory", 0.0), 0),
        (memory_of("repetition_code:memory", 0.02), 30),
        (memory_of("surface_code:rotated_memory_x", 0.005), 30),
        (triples, 30),
        (stim.Circuit("X_ERROR(1) 0\nM 0\nDETECTOR rec[-1]\nOBSERVABLE_INCLUDE(0) rec[-1]"), 0),
        (stim.Circuit("X_ERROR(0.1) 0\nM 0\nOBSERVABLE_INCLUDE(0) rec[-1]"), 60),
        (stim.Circuit("X_ERROR(0.1) 0\nM 0\nDETECTOR rec[-1]"), 0),
    ]
    decoders = {"all": decoding.SinterDecoder(), "few": decoding.SinterDecoder(keep=60)}
    collected = sinter.collect(
        num_workers=1,
        tasks=[
            sinter.Task(circuit=circuit, json_metadata=number)
            for number, (circuit, _) in enumerate(limits)
        ],
        decoders=list(decoders),
        custom_decoders=decoders,
        max_shots=200,
    )
    assert len(collected) == 2 * len(limits)
    for done in collected:
        assert done.shots == 200
        assert done.errors <= limits[done.json_metadata][1]


def test_rates_are_learned_and_what_cannot_be_told_apart_is_one():
    rates = torch.tensor([0.02, 0.04, 0.1, 0.06, 0.03, 0.05], dtype=torch.float64)
    matrix = torch.tensor(RING)
    matrix = torch.cat([matrix, matrix[:, :1]], 1)  # the last flips what the first does
    truth = rg.ParityModel.from_rates(matrix, rates)
    start = rg.ParityModel.from_rates(matrix, torch.full((6,), 0.05, dtype=torch.float64))
    learned = decoding.learn_rates(start, syndromes_of(truth, 20_000))
    assert learned.groups == ((0, 5), (1,), (2,), (3,), (4,))
    wanted = rates[:5].clone()
    wanted[0] = 0.02 * 0.95 + 0.05 * 0.98
    assert ((learned.rates - wanted).abs() < 4 * learned.standard_errors).all()
    tied = decoding.learn_rates(start, syndromes_of(truth, 2000), tied=[0, 1, 1, 1, 1, 0])
    assert len(tied.rates) == 2
    given = syndromes_of(truth, 2000)
    assert tied.log_likelihood >= start.condition(given).log_partition().mean() - 1e-9


def test_ties_are_a_list_or_a_tensor():
    given, ties = syndromes_of(ring(), 100), [0, 1, 1, 2, 0]
    asked = [decoding.learn_rates(ring(), given, tied=tied) for tied in (ties, torch.tensor(ties))]
    assert asked[1].groups == asked[0].groups == ((0, 4), (1, 2), (3,))


def test_rates_that_shots_do_not_tell_have_infinite_errors():
    one = decoding.learn_rates(ring(), [[1, 0, 0, 0]])
    assert bool(one.standard_errors.isinf().all())
    # The second check is never seen, nor is what flips it alone.
    model = rg.ParityModel.from_rates([[1, 0], [0, 1]], [0.1, 0.2])
    half = decoding.learn_rates(model, [[0, -1], [1, -1], [0, -1], [0, -1]])
    rate, error = half.rates[0], half.standard_errors
    torch.testing.assert_close(error[0], (rate * (1 - rate) / 4).sqrt(), rtol=1e-4, atol=0)
    assert error[1] == math.inf


def test_rates_are_learned_on_kept_states():
    start = rg.ParityModel.from_rates(RING, torch.full((5,), 0.15, dtype=torch.float64))
    given = syndromes_of(ring(), 2000)
    exact = decoding.learn_rates(start, given)
    kept = decoding.learn_rates(start, given, keep=16)
    torch.testing.assert_close(kept.rates, exact.rates, rtol=1e-3, atol=1e-4)
    few = decoding.learn_rates(start, given, keep=2).log_likelihood
    assert few <= exact.log_likelihood + 1e-9


@pytest.mark.parametrize("by", ["callback", "ctrl-c"])
@pytest.mark.parametrize("most", [1, 3, 6])
def test_rates_that_were_ended_are_the_best_so_far(most, by):
    given, told = syndromes_of(ring(), 300), []
    start = rg.ParityModel.from_rates(RING, [0.3, 0.01, 0.2, 0.3, 0.4])

    def tell(step):
        told.append(step)
        if len(told) == most and by == "callback":
            raise StopIteration
        stop.asked = len(told) == most

    with rg.interruptible() as stop:
        learned = decoding.learn_rates(start, given, progress=tell)
    assert [step.number for step in told] == [*range(1, most + 1)]
    assert learned.log_likelihood == max(step.value for step in told)
    found = rg.ParityModel.from_rates(RING, learned.rates).condition(given)
    assert learned.log_likelihood == pytest.approx(float(found.log_partition().mean()))
    assert told[0].value == pytest.approx(float(start.condition(given).log_partition().mean()))


@pytest.mark.long
def test_rates_of_a_repetition_code_are_recovered():
    stim = pytest.importorskip("stim", reason="stim writes the circuit")
    circuit = stim.Circuit.generated(
        "repetition_code:memory", distance=5, rounds=5, after_clifford_depolarization=0.01,
        before_measure_flip_probability=0.01, before_round_data_depolarization=0.01,
    )  # fmt: skip
    nominal = rg.ParityModel.from_dem(circuit.detector_error_model())
    factor = torch.randn(len(nominal.checks.columns), generator=torch.Generator().manual_seed(0))
    rates = (nominal.unary[:, 1].exp() * (0.5 * factor).exp()).clamp(max=0.2)
    truth = rg.ParityModel(nominal.checks, rates.logit())
    learned = decoding.learn_rates(nominal, syndromes_of(truth, 30_000))
    wanted = torch.stack([
        (1 - (1 - 2 * rates[list(group)]).prod()) / 2 for group in learned.groups
    ])  # fmt: skip
    scores = (learned.rates - wanted) / learned.standard_errors
    assert scores.square().mean().sqrt() < 1.3
    assert scores.abs().max() < 4


BAD = {
    "a model with a batch": lambda: decoding.CosetDecoder(ring(syndrome=[[0, 0, 0, 0]] * 2)),
    "no model": lambda: decoding.CosetDecoder(RING),
    "a syndrome of another length": lambda: decoding.CosetDecoder(ring()).decode_observables(
        [[1, 0]]
    ),
    "no iterations": lambda: decoding.MessagesDecoder(RING, -1.0, 0),
    "log-odds of other errors": lambda: decoding.MessagesDecoder(RING, [-1.0, 1.0]),
    "an erased check": lambda: decoding.MessagesDecoder(RING, -1.0).run([1, 0, -1, 0]),
    "rates of zero": lambda: decoding.learn_rates(
        rg.ParityModel.from_rates(RING, [0.0] * 5), [[0, 0, 0, 0]]
    ),
    "progress that is not called": lambda: decoding.learn_rates(ring(), [[0, 0, 0, 0]], progress=3),
    "no shots": lambda: decoding.learn_rates(ring(), torch.zeros(0, 4, dtype=torch.long)),
    "ties of other errors": lambda: decoding.learn_rates(ring(), [[0, 0, 0, 0]], tied=[1]),
    "windows of other checks": lambda: decoding.WindowDecoder(ring(), [0, 1]),
    "windows below zero": lambda: decoding.WindowDecoder(ring(), [0, 1, -1, 0]),
    "too few pieces": lambda: [*decoding.WindowDecoder(ring(), [0, 0, 1, 1]).decode([[0, 0]])],
    "a piece of another length": lambda: [
        *decoding.WindowDecoder(ring(), [0, 0, 1, 1]).decode([[0, 0, 0]])
    ],
    "pieces of other shots": lambda: [
        *decoding.WindowDecoder(ring(), [0, 0, 1, 1]).decode([[[0, 0]], [[0, 0], [0, 0]]])
    ],
    "log-odds of other shots": lambda: decoding.MessagesDecoder(RING, -1.0).run(
        [[0, 0, 0, 0]], [[-1.0] * 4]
    ),
    "damping of one": lambda: decoding.MessagesDecoder(RING, -1.0, damping=1.0),
    "damping of other edges": lambda: decoding.MessagesDecoder(RING, -1.0, damping=[0.1, 0.2]),
    "damping of sum-product": lambda: decoding.learn_damping(
        decoding.MessagesDecoder(RING, -1.0, product=True), [[0, 0, 0, 0]]
    ),
    "no steps": lambda: decoding.learn_damping(
        decoding.MessagesDecoder(RING, -1.0), [[0, 0, 0, 0]], steps=0
    ),
    "windows of more states than memory": lambda: [
        *decoding.WindowDecoder(ring(), [0] * 4, keep=10**12).decode([[0, 0, 0, 0]])
    ],
    "rates on no states": lambda: decoding.learn_rates(ring(), [[0, 0, 0, 0]], keep=0),
    "none kept": lambda: decoding.CosetDecoder(ring(), keep=0),
}


@pytest.mark.parametrize("what", BAD)
def test_errors_are_one_line(what):
    with pytest.raises(rg.errors.RdpgraphError) as caught:
        BAD[what]()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("seed", range(5))
def test_random_models_decode(seed):
    model = drawn(np.random.default_rng(100 + seed))
    if model.unary.ndim == 2:
        found = decoding.CosetDecoder(model).decode_observables(
            torch.zeros(3, model.checks.num_checks, dtype=torch.long)
        )
        assert found.observables.shape == (3, model.checks.num_observables)


@pytest.mark.parametrize("seed", range(3))
def test_rate_of_one_group_is_the_mean_and_spread_of_its_posterior(seed):
    """Of n shots with k wrong ones it is Beta(k + 1, n - k + 1), by a flat prior."""
    shots, decoder = 16, decoding.CosetDecoder(memory(4, 5, 0.08), keep=2)
    found = decoder.calibrated(shots, generator=torch.Generator().manual_seed(seed)).calibration
    (rate,), (error,) = (1 - found.chances).tolist(), found.standard_errors.tolist()
    wrong = rate * (shots + 2) - 1
    assert wrong == pytest.approx(round(wrong))
    assert error == pytest.approx(math.sqrt(rate * (1 - rate) / (shots + 3)))
