"""Parity models against enumeration of all errors, and kept states against exact sweeps."""

import itertools
import math
import pickle
from contextlib import suppress

import numpy as np
import pytest
import torch

import rdpgraph as rg
from rdpgraph import decoding
from rdpgraph.testing import check_structure
from tests.cases import first_short
from tests.fuzz.parities import checked, drawn

REPETITION = [[1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
LAST = [[0, 0, 0, 0, 1]]


def repetition(rate=0.1, **options):
    rates = torch.full((5,), rate, dtype=torch.float64)
    return rg.ParityModel.from_rates(REPETITION, rates, observables=LAST, **options)


def memory(distance, rounds, rate):
    """A repetition code's memory: columns of flips of bits and of measurements."""
    columns = []
    for t in range(rounds + 1):
        for bit in range(distance):
            checks = [c for c in (bit - 1, bit) if 0 <= c < distance - 1]
            columns.append(([t * (distance - 1) + c for c in checks], [0] if bit == 0 else []))
    for t in range(rounds):
        here = range(t * (distance - 1), (t + 1) * (distance - 1))
        columns += [([at, at + distance - 1], []) for at in here]
    text = "\n".join(
        f"error({rate * (1 + at % 3)}) {' '.join([f'D{d}' for d in ds] + [f'L{o}' for o in obs])}"
        for at, (ds, obs) in enumerate(columns)
    )
    return rg.ParityModel.from_dem(text)


def by_flips(model):
    """P(s, l) over all syndromes, by the vector over all of them: no order, nothing is open."""
    parities = model.checks
    n, total = parities.num_checks, parities.num_checks + parities.num_observables
    masses, index = np.ones(1 << total) * 0, np.arange(1 << total)
    masses[0] = 1
    for (checks, seen), (even, odd) in zip(
        parities.columns, model.unary.exp().tolist(), strict=True
    ):
        mask = sum(1 << a for a in checks) | sum(1 << (n + b) for b in seen)
        masses = even * masses + odd * masses[index ^ mask]
    return torch.tensor(masses.reshape(-1, 1 << n).T)


@pytest.mark.parametrize("seed", first_short(range(30), 12))
def test_every_question_of_a_random_model_is_answered_as_by_enumeration(seed):
    checked(drawn(np.random.default_rng(seed)))


@pytest.mark.parametrize(("distance", "rounds"), [(3, 2), (5, 2)])
def test_all_syndromes_of_repetition_codes(distance, rounds):
    model = memory(distance, rounds, 0.01)
    n = model.checks.num_checks
    every = torch.tensor(list(itertools.product((0, 1), repeat=n))).flip(1)
    truth = by_flips(model)
    given = model.condition(every)
    torch.testing.assert_close(given.log_cosets().exp(), truth, rtol=1e-10, atol=0)
    chances = truth / truth.sum(1, keepdim=True)
    assert (given.coset_probabilities() - chances).abs().max() < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_entropy_of_cosets_has_finite_gradients_where_one_is_impossible(dtype):
    rates = torch.tensor([0.1, 0.2, 0.3, 0.2, 0.0], dtype=dtype).requires_grad_()
    model = rg.ParityModel.from_rates(REPETITION, rates, observables=LAST)
    given = model.condition([[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]])
    entropy = given.coset_entropy()
    assert bool((entropy == 0).all())  # the only error that flips the observable has rate 0
    entropy.sum().backward()
    assert bool(rates.grad.isfinite().all())
    sure = repetition(0.2).condition([[1, 0, 0, 0], [0, 1, 0, 1]])
    chances = sure.coset_probabilities()
    expected = torch.distributions.Categorical(chances).entropy()
    torch.testing.assert_close(sure.coset_entropy(), expected)


def test_cross_entropies_are_those_of_all_sets_of_errors():
    """Sums over all sets of errors, one model of which forbids an error that the other allows."""
    generator = torch.Generator().manual_seed(0)
    odds = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    odds[1, 2] = -math.inf
    syndrome = torch.tensor([1, -1, 0, 1])
    one, other = (rg.ParityModel(REPETITION, row, syndrome=syndrome) for row in odds)
    every = torch.cartesian_prod(*[torch.arange(2)] * 5)
    logs = [model.log_prob(every) for model in (one, other)]
    mean = (logs[1].exp() * torch.where(logs[1] > -math.inf, logs[1] - logs[0], 0.0)).sum()
    torch.testing.assert_close(other.kl_divergence(one), mean)
    assert float(one.cross_entropy(other)) == math.inf
    with pytest.raises(rg.errors.ModelError, match="its syndrome"):
        one.kl_divergence(one.condition([0, 0, 0, 0]))
    noisy = one.rsample(3, temperature=1e-3, generator=torch.Generator().manual_seed(1))
    assert bool((one.score(noisy.argmax(-1)) > -math.inf).all())


def test_surface_code_by_stim():
    stim = pytest.importorskip("stim", reason="stim writes the circuit")
    circuit = stim.Circuit.generated(
        "surface_code:rotated_memory_z", distance=3, rounds=2,
        after_clifford_depolarization=0.005, before_measure_flip_probability=0.005,
    )  # fmt: skip
    dem = circuit.detector_error_model()
    model = rg.ParityModel.from_dem(dem)
    assert model.checks.num_checks == 16
    truth = by_flips(model)
    some = torch.tensor(np.random.default_rng(0).integers(0, 2, (200, 16)))
    number = (some * 2 ** torch.arange(16)).sum(1)
    given = model.condition(some)
    torch.testing.assert_close(given.log_cosets().exp(), truth[number], rtol=1e-9, atol=0)
    same = rg.ParityModel.from_dem(str(dem)).condition(some)
    assert torch.equal(same.log_partition(), given.log_partition())


def test_torch_and_the_library_agree(by_torch):
    model = drawn(np.random.default_rng(5))
    for ask in (model.log_cosets, model.marginals, model.entropy, lambda: model.k_best(6).scores):
        torch.testing.assert_close(by_torch(ask), ask(), rtol=1e-9, atol=1e-9)


def test_masses_far_apart():
    odds = torch.tensor([-1000.0, -700.0, -900.0, 0.0, -800.0], dtype=torch.float64)
    model = rg.ParityModel(REPETITION, odds, syndrome=[1, 1, 0, 0])
    assert model.log_partition() == pytest.approx(-700 - math.log(2) * 1, abs=1e-9)
    assert model.mode().tolist() == [0, 1, 0, 0, 0]


def test_gradients_in_rates_by_differences():
    model = repetition(syndrome=[[1, 0, 0, 1], [0, 0, -1, 1]])
    odds = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def logs(odds):
        return rg.ParityModel(model.checks, odds, syndrome=model.syndrome).log_cosets()

    assert torch.autograd.gradcheck(logs, odds.requires_grad_())
    assert torch.autograd.gradgradcheck(logs, odds)


def test_rates_of_zero_and_one_have_gradients():
    rates = torch.tensor([0.0, 1.0, 0.2, 0.3, 0.0], dtype=torch.float64)
    unary = torch.stack([(1 - rates).log(), rates.log()], -1).requires_grad_()
    model = rg.ParityModel(REPETITION, unary=unary, syndrome=[1, 1, 0, 0])
    (gradient,) = torch.autograd.grad(model.log_partition(), unary)
    assert gradient[0].tolist() == pytest.approx([1, 0])
    assert gradient[1].tolist() == pytest.approx([0, 1])
    assert not gradient.isnan().any()


def test_structure_of_a_batch():
    check_structure(repetition(syndrome=[[1, 0, 0, 1], [0, 0, -1, 1]]))


def test_equal_errors_are_one_and_undetectable_ones_are_named():
    model = rg.ParityModel.from_rates(
        [[1, 1, 1, 0]], [0.1, 0.2, 0.3, 0.4], observables=[[1, 1, 0, 1]]
    )
    assert model.cost().undetectable == (3,)
    merged, _ = model.checks.merged(observables=False)
    assert sorted(merged.columns) == [((), ()), ((0,), ())]
    odd = 0.1 * 0.8 + 0.2 * 0.9
    odd = odd * 0.7 + 0.3 * (1 - odd)
    assert model.condition([1]).log_partition().exp() == pytest.approx(odd)


def test_entries_count_modulo_two_and_sparse_matrices_are_read():
    twice = [[2, 1, 0], [1, 1, 3]]
    odds = [-1.0, -2.0, -3.0]
    wanted = rg.ParityModel([[0, 1, 0], [1, 1, 1]], odds, syndrome=[1, 0]).log_partition()
    sparse = pytest.importorskip("scipy.sparse", reason="scipy makes the matrix")
    for matrix in (
        twice,
        np.array(twice),
        torch.tensor(twice).to_sparse(),
        sparse.csr_matrix(twice),
    ):
        assert rg.ParityModel(matrix, odds, syndrome=[1, 0]).log_partition() == wanted


def test_components_do_not_add_open_checks():
    single = repetition().cost()
    blocks = torch.block_diag(*[torch.tensor(REPETITION)] * 8)
    model = rg.ParityModel(blocks, torch.full((40,), -2.0))
    assert model.cost().open_checks == single.open_checks
    assert model.cost().work == pytest.approx(
        8 * rg.ParityModel(REPETITION, [-2.0] * 5).cost().work
    )


def test_draws_follow_the_posterior():
    model = repetition(0.3, syndrome=[1, 0, -1, 0])
    found = model.sample(20_000, torch.Generator().manual_seed(1)).double().mean(0)
    wanted = model.marginals()[:, 1]
    assert ((found - wanted).abs() < 5 * (wanted * (1 - wanted) / 20_000).sqrt() + 1e-9).all()
    again = model.sample(5, torch.Generator().manual_seed(1))
    assert torch.equal(again, model.sample(5, torch.Generator().manual_seed(1)))


def test_all_states_kept_are_exact_and_fewer_bound_from_below():
    model = memory(3, 2, 0.05)
    given = model.condition(np.random.default_rng(1).integers(-1, 2, (40, 6)))
    exact = given.log_cosets()
    torch.testing.assert_close(given.kept(4096).log_cosets, exact, rtol=1e-10, atol=1e-10)
    assert given.kept(4096).bound == "lower"
    assert torch.equal(given.kept(10**12).log_cosets, given.kept(4096).log_cosets)  # all there are
    for states in (1, 2, 4):
        few = given.kept(states)
        assert (few.log_cosets <= exact + 1e-9).all()
    assert (few.log_partition > -math.inf).any()
    drawn = given.kept(4096, replicates=4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.log_cosets, exact, rtol=1e-10, atol=1e-10)
    assert drawn.bound == ""
    assert drawn.standard_error.max() < 1e-6


def random_model(seed, dtype=torch.float64):
    """A random model of 3 to 14 errors with up to 3 observables, and 16 syndromes of it."""
    rng = np.random.default_rng(seed)
    checks, errors, seen = rng.integers(1, 8), rng.integers(3, 15), rng.integers(0, 4)
    density = rng.choice([0.2, 0.35, 0.6])
    rates = rng.random(errors) ** rng.choice([0.5, 1, 4, 12])
    rates = np.where(rng.random(errors) < 0.1, rng.integers(0, 2, errors), rates)
    model = rg.ParityModel.from_rates(
        rng.random((checks, errors)) < density, torch.tensor(rates, dtype=dtype),
        observables=rng.random((seen, errors)) < 0.4,
    )  # fmt: skip
    drawn = (rng.random((16, errors)) < rates) @ model.checks.matrices[0].numpy().T % 2
    any_bits = rng.integers(-1 if seed % 2 else 0, 2, (16, checks))
    return model.condition(np.where(np.arange(16)[:, None] < 10, drawn, any_bits).astype(int))


@pytest.mark.parametrize("first", first_short([125, *range(0, 500, 25)], 2))
def test_intervals_of_kept_states_hold_the_probabilities_of_cosets(first):
    """Of random models, by P(s, l) as a vector over all syndromes and observables."""
    dropped = narrow = 0
    for seed in range(first, first + 25):
        given = random_model(seed, torch.float32 if seed % 5 == 0 else torch.float64)
        tolerance = 3e-5 if given.unary.dtype == torch.float32 else 1e-12
        table = by_flips(rg.ParityModel(given.checks, unary=given.unary[0].double()))
        numbers = torch.arange(len(table)).unsqueeze(1) >> torch.arange(given.checks.num_checks) & 1
        exact = torch.stack([
            table[((numbers == row) | (row < 0)).all(1)].sum(0) for row in given.syndrome
        ])  # fmt: skip
        mass, there = exact.sum(1), exact.sum(1) > 0
        for states in (1, 2, 3, 5, 9):
            kept = given.kept(states)
            most = torch.logaddexp(kept.log_partition, kept.log_dropped).exp()
            assert bool((kept.log_partition.exp() <= mass * (1 + tolerance) + 1e-300).all())
            assert bool((most >= mass * (1 - tolerance)).all())
            lower, upper = kept.interval
            chances = exact[there] / mass[there].unsqueeze(1)
            assert bool((lower[there] <= chances + tolerance).all())
            assert bool((upper[there] >= chances - tolerance).all())
            dropped += int((kept.log_dropped > -math.inf).sum())
            narrow += int((upper - lower < 0.5).sum())
    assert dropped > 200  # states were dropped
    assert narrow > 2000  # and intervals tell something


def test_bounds_hold_what_more_states_keep():
    """Where more than 64 checks are open: of models that no sweep answers."""
    for seed, density, rate in itertools.product(range(4), (0.03, 0.1), (0.01, 0.1)):
        rng = np.random.default_rng(seed)
        rows = torch.tensor(rng.random((100, 300)) < density)
        model = rg.ParityModel.from_rates(
            rows, torch.full((300,), rate).double(), observables=rows[:1]
        )
        given = model.condition(model.syndrome_of(torch.tensor(rng.random((5, 300)) < rate))[0])
        few, more = given.kept(4), given.kept(64)
        assert bool((few.log_dropped > -math.inf).all())
        for most in (few, more):
            bound = torch.logaddexp(most.log_partition, most.log_dropped)
            assert bool((bound >= torch.maximum(few.log_partition, more.log_partition)).all())


def test_equal_ranks_do_not_drop_each_other():
    rng = np.random.default_rng(0)
    model = rg.ParityModel.from_rates(
        torch.tensor(rng.random((12, 40)) < 0.3), torch.full((40,), 0.5).double()
    )
    kept = model.condition(torch.zeros(12, dtype=torch.long)).kept(8)
    assert kept.log_partition > -math.inf


def test_errors_of_replicates_that_miss_mass_know_of_it():
    given = memory(3, 2, 0.05).condition(np.random.default_rng(1).integers(-1, 2, (40, 6)))
    exact = given.log_cosets()
    found = given.kept(1, replicates=16, generator=torch.Generator().manual_seed(0))
    assert bool((found.standard_error[found.log_cosets == -math.inf] == math.inf).all())
    assert bool(((exact - found.log_cosets).abs() <= 6 * found.standard_error + 1e-9).all())
    few = given.kept(4, replicates=3, generator=torch.Generator().manual_seed(0))
    assert bool((few.standard_error == math.inf).all())


@pytest.mark.parametrize("states", [2, 3, 6])
def test_sampled_tails_are_unbiased(states):
    model = memory(3, 2, 0.1)
    given = model.condition(torch.tensor([[1, 0, 0, 1, 1, 0], [0, 0, 1, -1, 0, 0]]))
    count = 20_000
    found = given.kept(states, replicates=count, generator=torch.Generator().manual_seed(states))
    ratio = (found.log_cosets - given.log_cosets()).exp()
    error = found.standard_error * ratio
    assert ((ratio - 1).abs() < 5 * error + 1e-9).all()


def test_gradients_of_kept_states_by_differences():
    model = memory(3, 2, 0.1)
    generator = torch.Generator().manual_seed(0)
    odds = torch.randn(len(model.checks.columns), dtype=torch.float64, generator=generator) - 2
    syndrome = torch.tensor([[1, 0, 0, 1, 1, 0], [0, 0, 1, -1, 0, 0]])

    def kept(odds, states=4, **options):
        model_of = rg.ParityModel(model.checks, odds, syndrome=syndrome)
        return model_of.kept(states, **options).log_cosets

    assert torch.autograd.gradcheck(kept, odds.requires_grad_())
    both = torch.stack([odds, odds - 0.3])
    options = {"replicates": 2, "generator": torch.Generator().manual_seed(0)}
    exact = rg.ParityModel(model.checks, both, syndrome=syndrome).log_cosets()
    for logs in (kept(both, 64), kept(both, 64, **options)):
        found, wanted = (torch.autograd.grad(part.sum(), odds, retain_graph=True)[0]
                         for part in (logs, exact))  # fmt: skip
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_gradients_of_sampled_tails_are_unbiased():
    model = memory(3, 2, 0.1).condition([1, 0, 0, 1, 1, 0])
    unary = model.unary.clone().requires_grad_()
    model = model.with_unary(unary)
    (exact,) = torch.autograd.grad(model.log_partition().exp(), unary)
    draws = []
    for seed in range(80):
        options = {"replicates": 10, "generator": torch.Generator().manual_seed(seed)}
        mass = model.kept(4, **options).log_partition.exp()
        draws.append(torch.autograd.grad(mass, unary)[0])
    error = torch.stack(draws).std(0) / len(draws) ** 0.5
    assert ((torch.stack(draws).mean(0) - exact).abs() < 5 * error + 1e-12).all()


@pytest.mark.long
def test_sampled_tails_are_unbiased_over_many_draws_and_intervals_cover():
    model = memory(5, 3, 0.05)
    rng = np.random.default_rng(0)
    given = model.condition(rng.integers(0, 2, (4, 16)) * rng.integers(0, 2, (4, 16)))
    exact = given.log_cosets()
    found = given.kept(12, replicates=20_000, generator=torch.Generator().manual_seed(0))
    ratio = (found.log_cosets - exact).exp()
    assert ((ratio - 1).abs() < 5 * found.standard_error * ratio).all()
    covered = 0
    for seed in range(60):
        some = given.kept(12, replicates=50, generator=torch.Generator().manual_seed(seed))
        ratio = (some.log_cosets - exact).exp()
        covered += ((ratio - 1).abs() < 2 * some.standard_error * ratio).double().mean().item()
    assert covered / 60 > 0.85


def test_more_than_sixty_four_open_checks_are_kept():
    rng = np.random.default_rng(0)
    rows = torch.tensor(rng.random((150, 200)) < 0.06)
    model = rg.ParityModel.from_rates(rows, torch.full((200,), 0.01), observables=rows[:2])
    cost = model.cost()
    assert cost.open_checks > 64
    assert cost.memory == 8 * 2.0 ** (cost.open_checks + 2)  # two observables beside the checks
    assert cost.work >= 2.0 ** (cost.open_checks + 2)
    with pytest.raises(rg.errors.BudgetError, match=f"has {cost.open_checks} bits open at once"):
        model.condition(torch.zeros(150, dtype=torch.int8)).log_partition()
    bound = model.condition(torch.zeros(150, dtype=torch.int8)).kept(200)
    assert 200 * math.log(0.99) - 1e-4 <= bound.log_partition <= 0
    assert bound.log_cosets.argmax() == 0


@pytest.mark.long
def test_more_checks_are_open_than_numbers_hold():
    rows = torch.cat([torch.eye(1100), torch.ones(1100, 1)], 1)
    model = rg.ParityModel(rows, torch.full((1101,), -9.0))
    assert model.cost().open_checks == 1100
    assert math.isfinite(model.cost().memory)
    assert rg.explain(model).width == 900
    assert rg.ParityModel.recognise(model.condition(torch.zeros(1100).int()).factor_graph()) is None


def test_ties_are_listed_one_by_one_and_scores_have_gradients():
    rates = torch.full((5,), 0.1, dtype=torch.float64, requires_grad=True)
    model = rg.ParityModel.from_rates(REPETITION, rates, syndrome=[[0, 1, 1, 0], [1, 0, 0, 0]])
    best = model.k_best(3)
    assert best.states[0].tolist() == [[0, 0, 1, 0, 0], [1, 0, 0, 0, 0]]
    assert (best.scores[2] == -math.inf).all()
    assert (best.states[2] == -1).all()
    free = rg.ParityModel.from_rates(REPETITION, rates)
    ties = free.k_best(6).scores[1:]
    torch.testing.assert_close(ties, ties[:1].expand(5))
    assert len(free.k_best(6).states.unique(dim=0)) == 6
    (gradient,) = torch.autograd.grad(best.scores[0, 0], rates)
    torch.testing.assert_close(
        gradient, torch.tensor([-1, -1, 9, -1, -1], dtype=torch.float64) / 0.9
    )


def test_pickled_models_answer_alike():
    model = repetition(syndrome=[1, 0, 0, 1])
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again.log_cosets(), model.log_cosets())


@pytest.mark.parametrize("seed", range(8))
def test_graphs_of_parity_checks_are_recognised(seed):
    """Compare any order, constants, batches and evidence with contraction."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    x = rg.VariableArray("x", (9,), 2)
    unary = torch.randn(2, 9, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    values = torch.randn(2, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    factors = [rg.FactorBlock((x,), rg.Table(unary))]
    for check in range(4):
        scope = [x[int(at)] for at in rng.permutation(9)[: rng.integers(2, 5)]]
        either = [[0.0, -math.inf], [-math.inf, 0.0], [0.0, 0.0]][rng.integers(3)]
        accept = values[:, check, None] + torch.tensor(either, dtype=torch.float64)
        parity = torch.tensor([[0, 1], [1, 0]])
        factors.append(rg.Factor(scope, rg.Automaton(parity, accept, len(scope))))
    graph = rg.FactorGraph(factors)
    if seed % 2:
        graph = graph.condition({x: [-1, 0, 1, -1, -1, -1, -1, -1, -1]})
    assert rg.explain(graph).route == "structure"
    found, wanted = (rg.infer(graph, scheduler=way) for way in (rg.Auto(), rg.Contraction()))
    torch.testing.assert_close(found.log_partition, wanted.log_partition)
    torch.testing.assert_close(found.marginal(x), wanted.marginal(x))
    torch.testing.assert_close(found.entropy(), wanted.entropy())
    assert torch.equal(found.mode()[x], wanted.mode()[x])
    for one, other in zip(
        *(torch.autograd.grad(post.log_partition.sum(), (unary, values))
          for post in (found, wanted)), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other)


def many_observables():
    """A bit for each of 21 observables."""
    return rg.ParityModel.from_rates(torch.eye(21), [0.1] * 21, observables=torch.eye(21))


BAD = {
    "a syndrome of another length": lambda: repetition().condition([1, 0, 0]),
    "a syndrome of other numbers": lambda: repetition().condition([1, 0, 0, 2]),
    "a syndrome of floats": lambda: repetition().condition([1.0, 0.0, 0.0, 0.5]),
    "a rate above one": lambda: repetition(1.1),
    "a rate below zero": lambda: repetition(-0.1),
    "log-odds of other errors": lambda: rg.ParityModel(REPETITION, [0.0] * 4),
    "neither log-odds nor unary": lambda: rg.ParityModel(REPETITION),
    "no matrix": lambda: rg.ParityModel([1, 0], [0.0]),
    "no whole numbers": lambda: rg.ParityModel([[0.5, 1]], [0.0, 0.0]),
    "observables of other errors": lambda: rg.ParityModel([[1, 1]], [0.0, 0.0], observables=[[1]]),
    "no states": lambda: repetition().kept(0),
    "replicates of a half": lambda: repetition().kept(3, replicates=0.5),
    "more states than memory": lambda: rg.ParityModel(
        torch.ones(45, 46).tril(1), torch.zeros(46), syndrome=torch.zeros(45).long()
    ).kept(10**12),
    "no best": lambda: repetition().k_best(0),
    "no generator": lambda: repetition().kept(3, replicates=2, generator=3),
    "batches that differ": lambda: rg.ParityModel(
        [[1]], torch.zeros(3, 1), syndrome=torch.zeros(2, 1, dtype=torch.long)
    ),
    "cosets of many observables": lambda: many_observables().log_cosets(),
    "kept cosets of many observables": lambda: many_observables().kept(3),
    "text that is no model": lambda: rg.ParityModel.from_dem("error(0.1) D0\nnonsense(3)"),
    "a probability above one": lambda: rg.ParityModel.from_dem("error(1.5) D0"),
    "a repeat without an end": lambda: rg.ParityModel.from_dem("repeat 3 {\nerror(.1) D0"),
    "a matrix that is not there": lambda: rg.ParityModel("nowhere.alist", [0.0]),
    "no alist": lambda: rg.ParityModel(__file__, [0.0]),
    "a file that is not there": lambda: rg.ParityModel.from_dem("nowhere.dem"),
}


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_line_of_a_detector_error_model_is_refused_by_its_number(wrong):
    lines = ["error(0.1) D0", "error(0.2) D0 D1", "error(0.1) D1"]
    lines[wrong] = "error(2) D0"
    with pytest.raises(rg.errors.FileFormatError, match=f"line {wrong + 1}: a probability"):
        rg.ParityModel.from_dem("\n".join(lines))


@pytest.mark.parametrize("what", BAD)
def test_errors_are_one_line(what):
    with pytest.raises((rg.errors.RdpgraphError, OSError)) as caught:
        BAD[what]()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_check_matrices_are_read_from_files(tmp_path):
    """A Hamming code in both formats is the matrix that was written."""
    sparse = pytest.importorskip("scipy.sparse", reason="scipy writes .npz")
    checks = torch.tensor([[1, 1, 0, 1, 1, 0, 0], [1, 0, 1, 1, 0, 1, 0], [0, 1, 1, 1, 0, 0, 1]])
    columns = [(column.nonzero().flatten() + 1).tolist() for column in checks.T]
    rows = [(row.nonzero().flatten() + 1).tolist() for row in checks]
    lines = [[7, 3], [3, 4], [len(c) for c in columns], [4, 4, 4]]
    lines += [[*column, 0, 0][:3] for column in columns] + rows
    (tmp_path / "hamming.alist").write_text("\n".join(" ".join(map(str, x)) for x in lines))
    sparse.save_npz(tmp_path / "hamming.npz", sparse.csr_matrix(checks.numpy()))
    odds, syndromes = torch.linspace(-3, -1, 7), torch.cartesian_prod(*[torch.arange(2)] * 3)
    expected = rg.ParityModel(checks, odds, syndrome=syndromes).log_partition()
    for name in ("hamming.alist", "hamming.npz"):
        model = rg.ParityModel(tmp_path / name, odds, syndrome=syndromes)
        torch.testing.assert_close(model.log_partition(), expected)
    (tmp_path / "broken.npz").write_bytes(b"PK")
    with pytest.raises(rg.errors.FileFormatError, match="no sparse matrix"):
        rg.ParityModel(tmp_path / "broken.npz", odds)


def test_transforms_of_torch_func_pass_through_log_z():
    odds = torch.tensor([[-3.0, -1.0, 0.5, -2.0, 1.0], [0.3, -2.0, -0.5, 2.0, -1.0]]).double()

    def model(odds):
        return rg.ParityModel(REPETITION, odds, syndrome=[1, 0, 0, 1])

    of_each = torch.func.vmap(lambda odds: model(odds).log_partition())(odds)
    torch.testing.assert_close(of_each, model(odds).log_partition())
    slopes = torch.func.grad(lambda odds: model(odds).log_partition())(odds[0])
    torch.testing.assert_close(slopes, model(odds[0]).marginals()[:, 1] - odds[0].sigmoid())


def test_a_check_that_no_error_flips():
    model = rg.ParityModel([[1, 1], [0, 0]], [-1.0, -2.0], syndrome=[[1, 1], [1, 0]])
    log_p = model.log_partition()
    assert log_p.isinf().tolist() == [True, False]
    assert model.marginals()[0].abs().sum() == 0
    with pytest.raises(rg.errors.ImpossibleEvidenceError, match="1 of 2"):
        model.mode()
    assert rg.infer(model).log_partition.tolist() == log_p.tolist()


def test_text_of_stim_is_read_as_stim_reads_it(tmp_path):
    stim = pytest.importorskip("stim", reason="stim says what it reads")
    text = """
        detector(1, 2) D5  # a comment
        error[tag](0.125) D0 D1 ^ D1 L0
        repeat 3 {
            error(0.25) D0 D2
            repeat 2 {
                shift_detectors(0, 1) 1
                error(1e-3) D1 L1
            }
        }
        shift_detectors 2
        ERROR(0.5) L2
        logical_observable L3
    """
    file = tmp_path / "model.dem"
    file.write_text(text)
    model, dem = rg.ParityModel.from_dem(file), stim.DetectorErrorModel(text)
    assert (model.checks.num_checks, model.checks.num_observables) == (
        dem.num_detectors, dem.num_observables,
    )  # fmt: skip
    flat = rg.ParityModel.from_dem(dem.flattened())
    assert flat.checks.columns == model.checks.columns
    assert torch.equal(flat.unary, model.unary)


READ = [
    "",
    " \n",
    "# a comment",
    "error(0.25)",
    "error() D0",
    "ERROR(1) d0 l1",
    "error(0.125)\tD0 \t^  D1 L0\r\n",
    "error[#1](0.25) D0 L0",
    "error[a(b{c[d](.5) D00",
    r"error[\n\r\B\C](1e-3) D0",
    "error(.5) D0#c",
    "detector() D3",
    "detector[t](1,,-2.5e1) D3",
    "shift_detectors(0, 1) 2\nerror( 0.5 ) D1\ndetector D0",
    "logical_observable L2",
    "repeat 2 { error(0.5) D0\n}",
    "REPEAT[t] 3{#c\nerror(.5) D0\nshift_detectors 2\n} error(.25) D0",
    "repeat 0 {\nerror(0.5) D3 L3\nshift_detectors 7\n}\nerror(0.5) D1",
    "repeat 2 {}",
    "repeat 2 {\nrepeat 3 {\nerror(.5) D0 L0\nshift_detectors 1\n}\n"
    "shift_detectors 1\ndetector D9\n}",
    "error(0.5) D2 D0 D2",
]
REFUSED = [
    "error D0",
    "error(0.1, 0.2) D0",
    "error(1.5) D0",
    "error(-0.1) D0",
    "error(nan) D0",
    "error(1e400) D0",
    "error(0.1)D0",
    "error (0.1) D0",
    "error(0.1) D0,D1",
    "error(0.1) D0^D1",
    "error(0.1) D0 ^ ^ D1",
    "error(0.1) ^ D1",
    "error(0.1) D0 ^",
    "error(0.1) 5",
    "error(0.1) X0",
    "error(0.1) D",
    "error(0.1) D-1",
    "error(0.1) D0 error(0.1) D1",
    "error [t](0.1) D0",
    "error[t] (0.1) D0",
    r"error[\x](0.1) D0",
    "error[a\nb](0.1) D0",
    "error(0.1) D0 {",
    "error(0.1",
    "detector",
    "detector D0 D1",
    "detector L0",
    "detector(a) D0",
    "logical_observable(1) L0",
    "logical_observable D0",
    "shift_detectors",
    "shift_detectors -1",
    "shift_detectors D1",
    "shift_detectors 1 2",
    "repeat {\n}",
    "repeat 2\n{\n}",
    "repeat 2 {\nerror(0.1) D0 }",
    "repeat 2 {",
    "}",
    "repeat 2 {\n}\n}",
    "repeat(1) 2 {\n}",
    "errors(0.1) D0",
    "error0(0.1) D0",
    "error(0.1) D\u0661",
    "error(0.1)\u00a0D0",
]


@pytest.mark.parametrize("text", READ)
def test_what_stim_reads_is_read_alike(text):
    stim = pytest.importorskip("stim", reason="stim says what it reads")
    found, dem = rg.ParityModel.from_dem(text).checks, stim.DetectorErrorModel(text)
    assert len(found.columns) == dem.num_errors
    assert (found.num_checks, found.num_observables) == (dem.num_detectors, dem.num_observables)
    assert found.columns == rg.ParityModel.from_dem(dem.flattened()).checks.columns
    assert rg.ParityModel.from_dem(dem).checks.columns == found.columns


@pytest.mark.parametrize("text", REFUSED)
def test_what_stim_refuses_is_refused_in_one_line(text, tmp_path):
    with suppress(ImportError):
        import stim

        with pytest.raises((ValueError, IndexError)):
            stim.DetectorErrorModel(text)
    file = tmp_path / "model.dem"
    file.write_text(text)
    for given in (f"{text}\n", file):
        with pytest.raises(rg.errors.FileFormatError, match=r"line [0-9]+: ") as caught:
            rg.ParityModel.from_dem(given)
        assert "\n" not in str(caught.value)


def test_repeats_without_errors_take_no_time():
    text = "repeat 1000000000 {\nrepeat 1000000000 {\ndetector D2\n}\n}\nerror(0.1) D0"
    assert rg.ParityModel.from_dem(text).checks.num_checks == 3
    with pytest.raises(rg.errors.FileFormatError, match="line 1: at most 10,000,000 errors"):
        rg.ParityModel.from_dem("repeat 1000000000 {\nerror(0.1) D0\n}")


def test_a_name_of_a_file_is_told_from_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("errors.dem", "error.dem", "model (1).dem", "detector-errors"):
        (tmp_path / name).write_text("error(0.1) D0")
        assert len(rg.ParityModel.from_dem(name).checks.columns) == 1
    for text in ("detector D3", "shift_detectors 1", "logical_observable L0", "repeat 2 {}", "#"):
        assert not rg.ParityModel.from_dem(text).checks.columns


@pytest.mark.parametrize("checks", [0, 2])
def test_a_model_without_errors(checks):
    """One set of errors, the empty one, which explains the syndrome of zeros alone."""
    text = "".join(f"detector D{at}\n" for at in range(checks)) + "logical_observable L1"
    model = rg.ParityModel.from_dem(text)
    every = torch.tensor(list(itertools.product((0, 1, -1), repeat=checks)), dtype=torch.long)
    some = model.condition(every)
    exact = torch.where((every < 1).all(1), 0.0, -math.inf).double()
    assert torch.equal(some.log_partition(), exact)
    assert torch.equal(some.log_cosets()[:, 0], exact)
    assert bool((some.log_cosets()[:, 1:] == -math.inf).all())
    assert torch.equal(some.kept(3).log_partition, exact)
    assert torch.equal(rg.infer(some).log_partition, exact)
    assert torch.equal(rg.infer(some.factor_graph()).log_partition.expand(exact.shape), exact)
    scores = some.k_best(2).scores
    assert torch.equal(scores, torch.stack([exact, torch.full_like(exact, -math.inf)]))
    assert model.mode().shape == (0,)
    assert model.sample(3).shape == (3, 0)
    assert model.max_marginals().shape == model.marginals().shape == (0, 2)


@pytest.mark.parametrize("seed", range(4))
def test_max_marginals_are_those_of_enumeration(seed):
    """Of random checks and batches, with erased checks and impossible states."""
    draw = torch.Generator().manual_seed(seed)
    flips = (torch.rand(3, 6, generator=draw) < 0.4).long()
    unary = torch.randn(2, 6, 2, generator=draw, dtype=torch.float64)
    unary[0, 0, 1] = -math.inf
    syndrome = torch.randint(-1, 2, (2, 3), generator=draw)
    model = rg.ParityModel(flips, unary=unary.requires_grad_(), syndrome=syndrome)
    every = torch.tensor(list(itertools.product((0, 1), repeat=6)))
    scores = model.score(every.unsqueeze(1).expand(-1, 2, -1))
    has = torch.stack([every == 0, every == 1], -1).unsqueeze(1)
    exact = torch.where(has, scores[..., None, None], -math.inf).amax(0)
    torch.testing.assert_close(model.max_marginals(), exact)
    torch.testing.assert_close(rg.infer(model).max_marginals(), exact)
    weights = torch.randn(exact.shape, generator=draw, dtype=torch.float64)
    found, wanted = (
        torch.autograd.grad((values * weights)[values > -math.inf].sum(), unary)[0]
        for values in (model.max_marginals(), exact)
    )
    torch.testing.assert_close(found, wanted)


BITS = [[1, 0], [0, 1], [1, 1]]


@pytest.mark.parametrize(
    "given",
    [
        [[bool(bit) for bit in row] for row in BITS],
        [torch.tensor(row, dtype=torch.bool) for row in BITS],
        *(np.array(BITS, dtype=kind) for kind in ("bool", "i1", "u1", "u2", "u4", "u8", "i8")),
        *(
            torch.tensor(BITS).to(kind)
            for kind in (torch.bool, torch.int8, torch.uint8, torch.uint16)
        ),
    ],
    ids=lambda given: f"{type(given).__name__} {getattr(given, 'dtype', '')}",
)
def test_bits_of_every_type_are_bits(given):
    model = rg.ParityModel.from_rates([[1, 1], [0, 1]], [0.1, 0.2])
    plain = torch.tensor(BITS)
    assert torch.equal(
        model.condition(given).log_partition(), model.condition(plain).log_partition()
    )
    assert torch.equal(model.score(given), model.score(plain))
    assert torch.equal(model.syndrome_of(given)[0], model.syndrome_of(plain)[0])
    coded = decoding.MessagesDecoder(model.checks, -1.0)
    assert torch.equal(coded.decode(given), coded.decode(plain))


@pytest.mark.parametrize("wrong", [255, 2])
def test_unsigned_numbers_that_are_no_bits_are_refused(wrong):
    model = rg.ParityModel.from_rates([[1, 1], [0, 1]], [0.1, 0.2])
    with pytest.raises(rg.errors.EvidenceError, match="must be 0 or 1"):
        model.condition(torch.tensor([wrong, 0], dtype=torch.uint8))


def test_a_constant_beside_parities_counts():
    a, b, c = (rg.Variable(name, 2) for name in "abc")
    parity = rg.Factor((a, b), rg.Xor(2, dtype=torch.float64))
    constants = torch.tensor([-math.inf, -0.5, 2.0], dtype=torch.float64)
    graph = rg.FactorGraph([parity, rg.Factor((), rg.Table.from_logs(constants))], (a, b, c))
    expected = math.log(4) + constants  # two values of a and b, two of c
    torch.testing.assert_close(rg.infer(graph).log_partition, expected)


ENDS = [[0.0, 0.5, 1.0, 0.3, 0.0, 1.0], [0.2, 0.0, 0.0, 1.0, 0.9, 0.5]]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("rates", ENDS)
def test_rates_of_zero_and_one_have_one_sided_derivatives(rates, again):
    checks = torch.tensor([[1, 1, 0, 1, 0, 0], [0, 1, 1, 0, 1, 1]])
    seen = torch.tensor([[1, 0, 1, 1, 0, 1]])
    syndromes = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1], [-1, 1]])
    leaf = torch.tensor(rates, dtype=torch.float64, requires_grad=True)
    model = rg.ParityModel.from_rates(checks, leaf, observables=seen).condition(syndromes)
    every = torch.cartesian_prod(*[torch.arange(2)] * 6)
    # Products of probabilities are polynomials, which have derivatives at their ends.
    mass = torch.where(every == 1, leaf, 1 - leaf).prod(1)
    flipped = (every @ checks.T % 2).unsqueeze(1)
    fits = ((flipped == syndromes) | (syndromes < 0)).all(2)
    side = (every @ seen.T % 2 == torch.arange(2)).unsqueeze(1)
    expected = torch.einsum("e,es,esl->sl", mass, fits.double(), side.double().expand(-1, 5, -1))
    configurations = every[(mass > 0)][:1].expand(5, -1)
    scores = torch.where(configurations[0] == 1, leaf, 1 - leaf).log().sum()

    def slopes(value):
        return torch.autograd.grad(value, leaf, create_graph=again, retain_graph=True)[0]

    for item in range(5):
        total = expected[item].sum()
        if float(total.detach()) > 0:
            torch.testing.assert_close(slopes(model.log_partition()[item]), slopes(total.log()))
        for value in range(2):
            found = slopes(model.log_cosets()[item, value])
            possible = float(expected[item, value].detach()) > 0
            known = slopes(expected[item, value].log()) if possible else torch.zeros_like(leaf)
            torch.testing.assert_close(found, known)
        if bool(fits[(mass > 0).nonzero()[0], item]):
            difference = scores - total.log()
            torch.testing.assert_close(
                slopes(model.log_prob(configurations)[item]), slopes(difference)
            )


def test_answers_without_a_derivative_at_rates_of_zero_and_one_have_none():
    leaf = torch.tensor([0.0, 0.5, 1.0, 0.3], dtype=torch.float64, requires_grad=True)
    model = rg.ParityModel.from_rates([[1, 1, 0, 1], [0, 1, 1, 0]], leaf).condition([1, 1])
    other = torch.tensor([0.0, 0.5, 1.0, 0.3], dtype=torch.float64)
    for answer in (
        model.entropy(), model.marginals().square().sum(),
        rg.infer(model.factor_graph()).log_partition,
    ):  # fmt: skip
        (slopes,) = torch.autograd.grad(answer, leaf, retain_graph=True)
        assert torch.allclose(slopes[other % 1 == 0], torch.zeros(2).double(), atol=1e-12)


def test_kept_states_and_torch_pass_derivatives_at_rates_of_zero_and_one(by_torch):
    leaf = torch.tensor([0.0, 0.5, 1.0, 0.3], dtype=torch.float64, requires_grad=True)
    model = rg.ParityModel.from_rates([[1, 1, 0, 1], [0, 1, 1, 0]], leaf).condition([1, 1])
    (few,) = torch.autograd.grad(model.kept(64).log_partition, leaf, retain_graph=True)
    (known,) = torch.autograd.grad(model.log_partition(), leaf, retain_graph=True)
    (plain,) = by_torch(lambda: torch.autograd.grad(model.log_partition(), leaf))
    torch.testing.assert_close(few, known)
    torch.testing.assert_close(plain, known)
