"""Answers of recurrences against all derivations, one by one."""

import math
from collections import Counter

import pytest
import torch

from rdpgraph import Input
from rdpgraph.errors import ModelError
from tests.recurrences import written
from tests.recurrences.cases import NAMES, is_compiled, logs, small
from tests.recurrences.enumeration import Derivations

close = torch.testing.assert_close
HARD = [pytest.param(0.0, marks=pytest.mark.long), 0.3]
"""Parts of the entries that are absent."""


@pytest.mark.parametrize("hard", HARD)
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_all_derivations(name, hard, by_torch):
    """By compiled code, where it serves the program, and by torch."""
    recurrence = small(name, hard)
    every = [Derivations(recurrence, (item,)) for item in range(3)]
    check(recurrence, every)
    by_torch(lambda: check(recurrence, every))


def check(recurrence, derivations):
    log_z, best, count = recurrence.log_partition(), recurrence.best_score(), recurrence.count()
    marginals, entropy = recurrence.marginals(), recurrence.entropy()
    for item in range(3):
        every = derivations[item]
        close(log_z[item], every.log_partition)
        close(best[item], every.scores.max())
        assert int(count[item]) == int((every.scores > -math.inf).sum())
        close(entropy[item], every.entropy(), atol=1e-12, rtol=1e-12)
        for array, means in every.marginals().items():
            close(marginals[array][item], means)


@pytest.mark.parametrize("name", ["Trees", "Lattices", "Forests", "Tagged"])
def test_one_pass_of_sums_has_the_answers_of_each_alone(name, by_torch):
    recurrence = small(name, 0.3)
    names = [array.name for array in recurrence.program.inputs if not array.whole]

    def check():
        sums, marginals = recurrence.sums(), recurrence.marginals()
        close(sums.log_partition, recurrence.log_partition())
        for key, uses in zip(names, sums.expected_uses(names), strict=True):
            shape = recurrence.given[key].shape
            close(uses, marginals[key].sum_to_size(shape))
        generator = torch.Generator().manual_seed(0)
        (row, place, state), possible = sums.entries_of(names[0], 1000, generator)
        close(possible, sums.log_partition > -math.inf)
        width = recurrence.given[names[0]].shape[-1]
        assert bool((marginals[names[0]].flatten(1)[row % 3, place * width + state] > 0).all())
        means = torch.zeros_like(marginals[names[0]]).flatten(1)
        one = torch.full_like(row, 1e-3, dtype=means.dtype)
        means.index_put_((row % 3, place * width + state), one, accumulate=True)
        close(means, marginals[names[0]].flatten(1), atol=0.15, rtol=0.0)

    check()
    by_torch(check)


@pytest.mark.parametrize("best", [True, False])
@pytest.mark.parametrize("name", ["one label", "two labels"])
def test_rows_of_a_table_are_sums_over_prefixes(name, best, by_torch):
    """A table's cells at each step, up to a shift, and their derivatives of both orders."""
    generator = torch.Generator().manual_seed(0)
    unary, links = logs(generator, 2, 4, 6, hard=0.1), logs(generator, 2, 6, 6, hard=0.1)
    cells = [unary[:, 0]]
    for step in range(1, 4):
        pairs = cells[-1].unsqueeze(2) + links
        cells.append((pairs.amax(1) if best else pairs.logsumexp(1)) + unary[:, step])
    expected = torch.stack(cells, 1)

    def rows(sites, transition):
        if name == "two labels":
            made = written.Squares(sites.unflatten(2, (2, 3)), transition.view(2, 2, 3, 2, 3))
        else:
            made = written.Chain(sites, transition)
        found = made.rows("a", best=best)
        return found if best else found.softmax(2)

    def check():
        close(rows(unary, links), expected if best else expected.softmax(2))
        inputs = [part.nan_to_num(neginf=0.5).requires_grad_() for part in (unary, links)]
        assert torch.autograd.gradcheck(rows, inputs, fast_mode=True)
        assert best or torch.autograd.gradgradcheck(rows, inputs, fast_mode=True)

    check()
    by_torch(check)


def test_an_array_without_entries_has_no_largest_score(by_torch):
    """Of one step, where an input of the steps between has none."""
    sites = logs(torch.Generator().manual_seed(0), 2, 1, 3)
    chain = written.Steps(sites, sites.new_zeros(0, 3, 3))
    for found in (chain.max_marginals(), by_torch(chain.max_marginals)):
        assert found["transition"].shape == (2, 0, 3, 3)
        close(found["sites"], sites)


@pytest.mark.parametrize("name", NAMES)
def test_an_item_has_the_answers_that_it_has_alone(name):
    recurrence = small(name, 0.2)
    together = recurrence.log_partition()
    for item in range(3):
        alone = {}
        for key, value in recurrence.given.items():
            array = recurrence.program.by_name.get(key)
            rank = 0 if array is None else len(array.dims)
            alone[key] = value[item] if value is not None and value.ndim > rank else value
        close(type(recurrence)(**alone).log_partition(), together[item])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("hard", [*HARD, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_k_best_are_the_first_of_all_derivations_by_score(name, hard, dtype, by_torch):
    """Each once, and no more than there are; so many, too, where all are asked for."""
    recurrence = in_dtype(small(name, hard), dtype)
    every = [Derivations(in_dtype(recurrence, torch.float64), (item,)) for item in range(3)]
    for count in (1, 5, 40):
        for uses, scores in twice(lambda count=count: recurrence.k_best(count), by_torch):
            for item in range(3):
                check_list(every[item], item, count, uses, scores[:, item])


def twice(answer, by_torch):
    """An answer by compiled code, where it serves the program, and by torch."""
    yield answer()
    yield by_torch(answer)


def check_list(every, item, count, uses, scores):
    order = every.scores.sort(descending=True)
    wanted = torch.full((count,), -math.inf)
    wanted[: len(order.values)] = order.values[:count]
    close(scores, wanted.to(scores), atol=1e-5, rtol=1e-5)
    there = int((order.values[:count] > -math.inf).sum())
    found = [used_by(uses, rank, item) for rank in range(count)]
    assert not any(found[there:])
    known = Counter(
        tuple(sorted(one.items()))
        for one, score in zip(every.list, every.scores, strict=False)
        if score > -math.inf
    )
    listed = Counter(found[:there])
    assert not listed - known, "one is there twice, or is none"
    scored = {
        tuple(sorted(one.items())): score
        for one, score in zip(every.list, every.scores, strict=False)
    }
    for rank in range(there):
        close(scores[rank], scored[found[rank]].to(scores), atol=1e-5, rtol=1e-5)


def used_by(uses, rank, item):
    """What a derivation uses, as `Derivations` says it."""
    return tuple(
        sorted(
            ((name, tuple(place)), int(parts[rank, item][tuple(place)]))
            for name, parts in uses.items()
            for place in parts[rank, item].nonzero().tolist()
        )
    )


def in_dtype(recurrence, dtype):
    given = recurrence.given.items()
    return type(recurrence)(
        **{k: x.to(dtype) if x is not None and x.is_floating_point() else x for k, x in given}
    )


@pytest.mark.parametrize("name", NAMES)
def test_compiled_code_serves(name):
    assert is_compiled(small(name))


@pytest.mark.parametrize(("labels", "compiled"), [("BCDEF", True), ("BCDEFG", False)])
def test_tables_of_many_labels(labels, compiled):
    """Up to six indices by compiled code, and more by torch."""
    cell = ", ".join(["t", *labels.lower()])
    rules = f"""
        a[{cell}] += w[{cell}]                     if t == 0
        a[{cell}] += a[{cell.replace("t", "t-1")}] * w[{cell}]
        goal += a[{cell.replace("t", "T-1")}]
    """
    declared = {"w": Input(" ".join(["T", *labels])), "rules": rules}
    weights = logs(torch.Generator().manual_seed(0), 3, *[2] * len(labels))
    recurrence = type("Many", (written.Recurrence,), declared)(weights)
    assert is_compiled(recurrence) == compiled
    close(recurrence.log_partition(), weights.sum(0).flatten().logsumexp(0))


@pytest.mark.parametrize("hard", [0.0, 0.2])
@pytest.mark.parametrize("name", NAMES)
def test_answers_in_float32_are_those_in_float64(name, hard):
    recurrence = small(name, hard, seed=4)
    single = in_dtype(recurrence, torch.float32)
    for answer in ("log_partition", "best_score", "entropy"):
        found, wanted = getattr(single, answer)(), getattr(recurrence, answer)()
        close(found.double(), wanted, rtol=2e-5, atol=2e-5)
    means = recurrence.marginals()
    for array, found in single.marginals().items():
        close(found.double(), means[array], rtol=2e-5, atol=2e-5)
    best = recurrence.max_marginals()
    for array, found in single.max_marginals().items():
        close(found.double(), best[array], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("spread", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("name", ["Chain", "Steps", "Alignment"])
def test_float32_keeps_the_entropies_and_maxima_of_many_steps(name, spread):
    """Numbers are small beside what they are added to at each of some hundred steps."""
    g = torch.Generator().manual_seed(7)

    def r(*shape):
        return spread * logs(g, *shape).float()

    recurrence = {
        "Chain": lambda: written.Chain(r(2, 300, 5), r(5, 5), torch.tensor([300, 211])),
        "Steps": lambda: written.Steps(r(2, 300, 5), r(299, 5, 5), torch.tensor([300, 211])),
        "Alignment": lambda: written.Alignment(
            r(2, 70, 60, 3), torch.tensor([69, 50]), torch.tensor([59, 40])
        ),
    }[name]()
    wide = in_dtype(recurrence, torch.float64)
    close(recurrence.entropy().double(), wide.entropy(), rtol=5e-6, atol=5e-5)
    best, least = wide.max_marginals(), 1e-6 * float(wide.best_score().abs().max())
    for array, found in recurrence.max_marginals().items():
        close(found.double(), best[array], rtol=0, atol=least)


@pytest.mark.parametrize("name", ["Chain", "Segments", "Trees"])
def test_the_best_of_float32_are_in_order(name):
    """Also those whose scores differ by less than numbers are rounded on the way up."""
    g = torch.Generator().manual_seed(2)

    def r(*shape):
        return 1e-3 * torch.randn(*shape, generator=g) + 100 * torch.rand(1, generator=g)

    recurrence = {
        "Chain": lambda: written.Chain(r(2, 40, 3), r(3, 3), torch.tensor([40, 7])),
        "Segments": lambda: written.Segments(r(2, 30, 3, 2), r(2, 2), torch.tensor([30, 8])),
        "Trees": lambda: written.Trees(r(2, 9, 9, 2), r(2, 2, 2), torch.tensor([9, 5])),
    }[name]()
    uses, scores = recurrence.k_best(60)
    exact = sum(
        (count * recurrence.given[array].double()).flatten(2).sum(2)
        for array, count in uses.items()
    )
    assert bool((exact.diff(dim=0) <= 1e-9).all())
    close(scores.double(), exact, rtol=1e-7, atol=0)


LARGER = {
    # Several splits, of one loop and of two, by fixed matrices and by gathered ones.
    "Brackets": lambda r, _: written.Brackets(r(2, 4, 3, 2), r(2, 2, 2), r(2, 2, 2)),
    "KeptTrees": lambda r, whole: written.KeptTrees(
        r(2, 6, 6, 3), r(7, 7, 7), torch.tensor([6, 5]), whole(7, 2, 6, 6, 3)
    ),
    "KeptSites": lambda r, whole: written.KeptSites(
        r(2, 9, 30), r(5, 30), r(4, 30, 30), whole(30, 2, 9, 18), whole(5, 2, 9), whole(4, 9)
    ),
    # Rows of several labels, some of more than a register.
    "Factorial": lambda r, _: written.Factorial(r(18, 18), r(5, 5), r(2, 6, 18, 5)),
    "Together": lambda r, _: written.Together(r(5, 5), r(18, 18), r(2, 6, 5, 18)),
    "Trigrams": lambda r, _: written.Trigrams(r(2, 7, 9), r(9, 9), r(9, 9, 9)),
    "Automaton": lambda r, _: written.Automaton(r(2, 7, 6), r(6, 6), r(4, 6, 4)),
    "Joined": lambda r, _: written.Joined(r(2, 6, 4, 4), r(4, 4)),
    # Scores of words, summed over by themselves.
    "Pcfg": lambda r, _: written.Pcfg.of(r(7), r(7, 17, 17), r(2, 6, 10), torch.tensor([6, 5])),
    "Durations": lambda r, _: written.Durations(r(2, 7, 5), r(3, 5, 5), r(2, 3, 7)),
    "Kinds": lambda r, whole: written.Kinds(r(2, 9, 20), r(2, 4, 20, 20), None, whole(4, 2, 9)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LARGER)
def test_compiled_code_and_torch_agree(name, dtype, by_torch):
    g = torch.Generator().manual_seed(0)
    recurrence = LARGER[name](
        lambda *shape: logs(g, *shape, hard=0.1).to(dtype),
        lambda most, *shape: torch.randint(most, shape, generator=g),
    )
    names = ("log_partition", "best_score", "entropy", "marginals")
    found, wanted = (
        run(lambda: [getattr(recurrence, each)() for each in names])
        for run in (lambda call: call(), by_torch)
    )
    close(found, wanted, **({"rtol": 3e-5, "atol": 3e-5} if dtype == torch.float32 else {}))


def of_logs(recurrence, answer):
    """An answer as a function of the inputs of logs, and those."""
    logs = {
        name: x for name, x in recurrence.given.items() if x is not None and x.is_floating_point()
    }
    made = type(recurrence)

    def function(*values):
        return answer(made(**(recurrence.given | dict(zip(logs, values, strict=True)))))

    return function, [x.clone().requires_grad_() for x in logs.values()]


@pytest.mark.parametrize("name", NAMES)
def test_first_derivatives(name, by_torch):
    function, logs = of_logs(small(name), lambda recurrence: recurrence.log_partition())
    assert torch.autograd.gradcheck(function, logs, fast_mode=True)
    assert by_torch(lambda: torch.autograd.gradcheck(function, logs, fast_mode=True))


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(name):
    function, logs = of_logs(small(name), lambda recurrence: recurrence.log_partition())
    assert torch.autograd.gradgradcheck(function, logs, fast_mode=True)
    function, logs = of_logs(small(name), lambda recurrence: recurrence.entropy())
    assert torch.autograd.gradcheck(function, logs, fast_mode=True)


@pytest.mark.parametrize("name", ["Chain", "Trees", "Tagged"])
def test_third_derivatives(name):
    function, logs = of_logs(small(name), lambda recurrence: recurrence.entropy())
    assert torch.autograd.gradgradcheck(function, logs, fast_mode=True)


def turns(recurrence, seed=0):
    """Derivatives of marginals along a random direction, and gradients of entropies."""
    g = torch.Generator().manual_seed(seed)
    unused = {"allow_unused": True, "materialize_grads": True}
    function, logs = of_logs(recurrence, lambda recurrence: recurrence.log_partition())
    log_z = function(*logs)
    weights = torch.rand(log_z.shape, generator=g, dtype=torch.float64).to(log_z).requires_grad_()
    first = torch.autograd.grad(log_z, logs, weights, create_graph=True, **unused)
    said = [torch.randn(x.shape, generator=g, dtype=torch.float64).to(x) for x in first]
    product = sum((x * along).sum() for x, along in zip(first, said, strict=True))
    *found, of_weights = torch.autograd.grad(product, [*logs, weights], **unused)
    found.append(of_weights.masked_fill(log_z == -math.inf, 0.0))
    function, logs = of_logs(recurrence, lambda recurrence: recurrence.entropy())
    return *found, *torch.autograd.grad(function(*logs).sum(), logs, **unused)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("hard", HARD)
@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives_are_compiled_and_those_of_torch(
    name, hard, dtype, by_torch, monkeypatch
):
    recurrence = small(name, hard)
    wanted = by_torch(lambda: turns(recurrence))
    if is_compiled(recurrence):
        monkeypatch.setattr("rdpgraph.recurrences.executor.evaluate", None)
    for one, other in zip(turns(in_dtype(recurrence, dtype)), wanted, strict=True):
        close(one, other.to(one), atol=1e-10 if dtype == torch.float64 else 1e-5, rtol=1e-4)


@pytest.mark.parametrize("hard", HARD)
@pytest.mark.parametrize("name", ["Chain", "Steps", "Trees", "Pcfg", "Segments", "KeptChain"])
def test_second_derivatives_of_scores_too_far_apart_for_products(name, hard, by_torch):
    recurrence = small(name, hard)
    for key, x in recurrence.given.items():
        recurrence.given[key] = 2000 * x if x is not None and x.is_floating_point() else x
    wanted = by_torch(lambda: turns(recurrence))
    for one, other in zip(turns(recurrence), wanted, strict=True):
        close(one, other, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("hard", HARD)
@pytest.mark.parametrize("name", NAMES)
def test_modes_and_draws_are_derivations(name, hard, by_torch):
    """The best one has the best score, and each is drawn as often as its probability says."""
    recurrence = small(name, hard)

    def answer():
        return recurrence.mode(), recurrence.sample(400, torch.Generator().manual_seed(1))

    for best, drawn in twice(answer, by_torch):
        check_derivations(recurrence, best, drawn)


def check_derivations(recurrence, best, drawn):
    for item in range(3):
        every = Derivations(recurrence, (item,))
        if not bool((every.scores > -math.inf).any()):
            assert not any(bool(uses[item].any()) for uses in best.values())
            continue
        score = torch.zeros((), dtype=torch.float64)
        for key, uses in best.items():
            x = recurrence.given[key].broadcast_to(uses.shape)[item]
            score = score + torch.where(uses[item] > 0, uses[item] * x, 0.0).sum()
        close(score, every.scores.max())
        known: dict[tuple, float] = {}
        for share, uses in zip(every.shares.tolist(), every.list, strict=False):
            key = tuple(sorted(uses.items()))
            known[key] = known.get(key, 0.0) + share
        found = Counter(used_by(drawn, draw, item) for draw in range(400))
        assert {*found} <= {*known}
        for key, share in known.items():
            error = math.sqrt(share * (1 - share) / 400)
            assert abs(found[key] / 400 - share) < 5 * error + 0.005


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("hard", [*HARD, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_max_marginals_are_the_best_scores_of_what_uses_an_entry(name, hard, dtype, by_torch):
    recurrence = small(name, hard)
    every = [Derivations(recurrence, (item,)).max_marginals() for item in range(3)]
    for found in twice(lambda: in_dtype(recurrence, dtype).max_marginals(), by_torch):
        for item, wanted in enumerate(every):
            assert {*found} == {*wanted}
            for array, most in wanted.items():
                close(found[array][item], most.to(dtype))


def test_max_marginals_lose_no_digits_of_what_is_next_to_the_best():
    """In float32, of long chains: the mode's entries have the best score, and no other has more."""
    g = torch.Generator().manual_seed(0)
    sites, transition = logs(g, 2, 400, 5), logs(g, 5, 5)
    chain = written.Chain(sites.float() - 20, transition.float(), torch.tensor([400, 300]))
    exact = in_dtype(chain, torch.float64)
    best, most, mode = chain.best_score(), chain.max_marginals(), chain.mode()
    for name, wanted in exact.max_marginals().items():
        tops = best.view(-1, *[1] * (wanted.ndim - 1))
        assert bool((torch.where(mode[name] > 0, most[name], tops) == tops).all())
        assert bool((most[name] <= tops).all())
        losses = wanted - exact.best_score().view(tops.shape)
        near = losses > -30
        close((most[name] - tops).double()[near], losses[near], atol=2e-3, rtol=0)


def test_scores_of_the_k_best_are_differentiable_in_what_they_use():
    chain = small("Chain")
    uses, scores = chain.k_best(4)
    function, inputs = of_logs(chain, lambda chain: chain.k_best(4)[1])
    gradients = torch.autograd.grad(function(*inputs)[:, 0].sum(), inputs)
    for name, gradient in zip(uses, gradients, strict=True):
        wanted = uses[name][:, 0].double().sum(0)
        close(gradient if gradient.ndim == wanted.ndim else gradient[0], wanted)
    assert scores.shape == (4, 3)
    with pytest.raises(ModelError, match="Chain lists 1 derivation or more; got count = 0"):
        chain.k_best(0)


def test_lists_of_long_sequences_are_found_without_recursion():
    """3000 steps of two states of equal scores: ties are broken alike in every call."""
    chain = written.Chain(torch.zeros(3000, 2), torch.zeros(2, 2))
    uses, scores = chain.k_best(50)
    again, _ = chain.k_best(50)
    assert bool((scores == 0).all())
    assert torch.equal(uses["sites"], again["sites"])
    assert len({tuple(one.argmax(-1).tolist()) for one in uses["sites"]}) == 50


@pytest.mark.parametrize("name", ["Chain", "Segments", "Alignment", "Trees", "Bitext", "Factorial"])
def test_divergences_are_those_of_all_derivations(name, by_torch):
    one, other = small(name, 0.1, seed=2), small(name, 0.1, seed=3)
    other = type(one)(**(one.given | {key: other.given[key] for key in one.marginals()}))
    pairs = [[Derivations(each, (item,)) for each in (one, other)] for item in range(3)]

    def compare():
        crossed, divergence = one.cross_entropy(other), one.kl_divergence(other)
        for item, (p, q) in enumerate(pairs):
            logs_of_q = q.scores - q.log_partition
            wanted = -torch.where(p.shares > 0, p.shares * logs_of_q, 0.0).sum()
            wanted = wanted if bool((p.scores > -math.inf).any()) else torch.zeros_like(wanted)
            wanted = torch.where(wanted.isnan(), math.inf, wanted)
            close(crossed[item], wanted, atol=1e-10, rtol=1e-10)
            close(divergence[item], crossed[item] - p.entropy(), atol=1e-10, rtol=1e-10)

    compare()
    by_torch(compare)
    with pytest.raises(ModelError, match="is compared with another of its class and shapes"):
        one.cross_entropy(small("Ctc"))


@pytest.mark.parametrize(("value", "kind"), [(math.nan, "NaN"), (math.inf, "inf")])
def test_values_written_afterwards_are_refused(value, kind, by_torch):
    def ask():
        for question in ("log_partition", "best_score", "count", "marginals", "entropy"):
            chain = small("Chain")
            chain.transition[0, 0] = value
            with pytest.raises(ModelError, match=rf"Chain's transition needs .* got .?{kind}"):
                getattr(chain, question)()

    ask()
    by_torch(ask)


def test_the_same_seed_gives_the_same_draws():
    chain = small("Chain")
    one, other = (chain.sample(20, torch.Generator().manual_seed(7)) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_is_lent_to_one_node_at_a_time():
    """Gradients of earlier calls are theirs, whatever was computed of the same sizes since."""
    chains = [small("Chain", seed=seed) for seed in (0, 1)]
    logs = [of_logs(chain, lambda chain: chain.log_partition()) for chain in chains]
    wanted = [torch.autograd.grad(function(*x).sum(), x) for function, x in logs]
    values = [function(*x).sum() for function, x in logs]
    found = [torch.autograd.grad(value, x) for value, (_, x) in zip(values, logs, strict=True)]
    for one, other in zip(wanted, found, strict=True):
        assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("name", NAMES)
def test_impossible_items_have_no_nan(name):
    recurrence = small(name, 1.0)
    function, logs = of_logs(recurrence, lambda recurrence: recurrence.log_partition())
    log_z = function(*logs)
    assert bool(((log_z == -math.inf) | (log_z == 0)).all())  # 0: the empty derivation
    gradients = torch.autograd.grad(log_z.sum(), logs, allow_unused=True)
    assert all(part is None or not bool(part.any()) for part in gradients)
    assert not bool(recurrence.entropy().any())


def test_sequences_apart_add_up_also_where_one_is_empty():
    g = torch.Generator().manual_seed(0)
    one, other = logs(g, 4, 3, 2), logs(g, 4, 2, 3)
    ends, more = torch.tensor([3, 0, 2, 0]), torch.tensor([2, 1, 0, 0])
    both = written.Apart(one, other, ends, more).log_partition()
    for item in range(4):
        parts = (
            one[item, : ends[item]].logsumexp(-1).sum(),
            other[item, : more[item]].logsumexp(-1).sum(),
        )
        close(both[item], parts[0] + parts[1])


def test_batch_dims_are_those_of_all_tensors_broadcast():
    g = torch.Generator().manual_seed(0)
    sites, transition = logs(g, 2, 1, 4, 3), logs(g, 5, 3, 3)
    log_z = written.Chain(sites, transition).log_partition()
    assert log_z.shape == (2, 5)
    for i in range(2):
        for j in range(5):
            close(written.Chain(sites[i, 0], transition[j]).log_partition(), log_z[i, j])
    assert written.Chain(sites[0, 0], transition[0]).log_partition().shape == ()


def test_scores_too_far_apart_for_products_are_summed_in_logs():
    g = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        sites, transition = 500 * logs(g, 2, 4, 3), 2000 * logs(g, 3, 3)
        chain = written.Chain(sites.to(dtype), transition.to(dtype))
        wanted = torch.stack(
            [Derivations(written.Chain(sites, transition), (k,)).log_partition for k in (0, 1)]
        )
        close(chain.log_partition(), wanted.to(dtype), rtol=1e-5, atol=0)
