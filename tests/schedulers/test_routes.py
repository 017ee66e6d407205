"""Routes that bid: the best bid answers, a user's own by the same door, and tables of bids."""

import copy
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.extend import Bid, Exactness, PartialSolution, Route
from rdpgraph.testing import brute_force

DOUBLE = torch.float64


def ring(size: int = 6, scale: float = 1.0, seed: int = 0) -> rg.FactorGraph:
    """Binary variables in a ring with a chord: a small model with cycles."""
    generator = torch.Generator().manual_seed(seed)
    x = [rg.Variable(f"x{i}", 2) for i in range(size)]
    pairs = [(i, (i + 1) % size) for i in range(size)] + [(0, size // 2)]
    tables = scale * torch.randn(len(pairs), 2, 2, generator=generator, dtype=DOUBLE)
    factors = [
        rg.Factor((x[i], x[j]), rg.Table(table))
        for (i, j), table in zip(pairs, tables, strict=True)
    ]
    return rg.FactorGraph(factors)


@dataclass(frozen=True, eq=False)
class Enumerated(PartialSolution):
    """Log Z, marginals and the mode of a small graph, from the scores of all configurations."""

    graph: rg.FactorGraph

    @property
    def sizes(self) -> list[int]:
        return [variable.size for variable in self.graph.variables]

    @property
    def states(self) -> torch.Tensor:
        return torch.cartesian_prod(*map(torch.arange, self.sizes))

    @property
    def scores(self) -> torch.Tensor:
        return self.graph.score_states(self.states)

    def log_partition(self) -> torch.Tensor:
        return self.scores.logsumexp(0, keepdim=True)

    def variable_marginals(self) -> torch.Tensor:
        weights = self.scores.softmax(0)
        pairs = zip(self.states.T, self.sizes, strict=True)
        hot = [torch.nn.functional.one_hot(states, size) for states, size in pairs]
        return (weights.unsqueeze(1) * torch.cat(hot, 1)).sum(0, keepdim=True)

    def mode(self) -> torch.Tensor:
        return self.states[self.scores.argmax()].unsqueeze(0)


class Enumeration(Route):
    """All configurations, one by one."""

    exactness, seconds, memory = Exactness.EXACT, 1e-6, 0.0
    questions = ("log_partition", "variable_marginals", "mode")

    def bid(self, task, question, budget):
        if question.name not in self.questions or task.graph.num_variables > 12:
            return None
        assert budget.seconds > 0.0
        return Bid(self.exactness, self.seconds, self.memory, "all configurations are listed")

    def run(self, task, bid):
        assert bid.why == "all configurations are listed"
        return Enumerated(task.graph)


@pytest.fixture
def registered(request) -> Iterator[str]:
    """A route of one's own, registered for one test."""
    kind = getattr(request, "param", Enumeration)
    rg.extend.register_route("enumeration", kind)
    yield "enumeration"
    rg.extend.ROUTES.remove("enumeration")


def variant(**changes) -> type[Route]:
    """Enumeration with other attributes."""
    return type("Variant", (Enumeration,), changes)


def offer(plan: rg.Plan, name: str):
    """The row of a route in the table of bids."""
    return next(one for one in plan.bids if one.route == name)


def check_truth(posterior: rg.Posterior, graph: rg.FactorGraph) -> None:
    truth = brute_force(graph)
    torch.testing.assert_close(posterior.log_partition, truth.log_partition)
    for variable in graph.variables:
        torch.testing.assert_close(posterior.marginal(variable), truth.joint((variable,)))
    scored = graph.score(posterior.mode())
    torch.testing.assert_close(scored, truth.maximum)
    torch.testing.assert_close(posterior.entropy(), truth.entropy)


def test_a_route_of_one_s_own_is_used_and_its_answers_say_so(registered):
    graph = ring()
    plan = rg.explain(graph)
    assert plan.route == registered
    assert plan.why == "all configurations are listed"
    assert offer(plan, registered).outcome == "taken"
    assert plan.bids.taken["mode"] == registered
    assert plan.bids.taken["sample"] == "contraction"
    assert registered in str(plan.bids)
    posterior = rg.infer(graph)
    check_truth(posterior, graph)
    assert isinstance(posterior.solution.first, Enumerated)
    for answer in ("log_partition", "marginals", "mode"):
        assert posterior.status_of(answer).route == registered
        assert posterior.status_of(answer).exact
    # What it does not answer comes from the route whose bid is the next.
    assert posterior.status_of("max_marginals").route == "contraction"
    assert posterior.status_of("entropy").route == "contraction"
    assert posterior.sample(3).keys() == posterior.mode().keys()


def test_without_the_route_answers_are_as_before():
    graph = ring()
    before = rg.infer(graph)
    rg.extend.register_route("enumeration", Enumeration)
    during = rg.infer(graph)
    rg.extend.ROUTES.remove("enumeration")
    after = rg.infer(graph)
    assert [each.status.route for each in (before, during, after)] == [
        "buckets", "enumeration", "buckets",
    ]  # fmt: skip
    assert not any(one.route == "enumeration" for one in rg.explain(graph).bids)


def test_a_plan_that_was_kept_does_not_hide_a_route_registered_since():
    graph = ring()
    assert rg.explain(graph).route == "contraction"
    rg.extend.register_route("enumeration", Enumeration)
    try:
        assert rg.infer(graph).status.route == rg.explain(graph).route == "enumeration"
    finally:
        rg.extend.ROUTES.remove("enumeration")
    assert rg.explain(graph).route == "contraction"


@pytest.mark.parametrize("registered", [variant(seconds=5.0)], indirect=True)
def test_of_two_exact_bids_the_quicker_is_taken(registered):
    graph = ring()
    plan = rg.explain(graph)
    assert plan.route == "contraction"
    assert offer(plan, registered).outcome == "stands by"
    assert rg.infer(graph).status.route == "contraction"


@pytest.mark.parametrize(
    ("registered", "reason"),
    [(variant(seconds=1e9), "of the budget"), (variant(memory=1e18), "more memory")],
    indirect=["registered"],
)
def test_bids_over_the_budget_are_refused_with_a_reason(registered, reason):
    one = offer(rg.explain(ring(), rg.Auto(memory=1e9)), registered)
    assert one.outcome == "refused"
    assert reason in one.note


@pytest.mark.parametrize("registered", [variant(exactness=Exactness.ESTIMATE)], indirect=True)
def test_an_estimate_answers_only_where_nothing_exact_does_and_is_not_called_exact(registered):
    graph = ring()
    assert rg.explain(graph).route == "contraction"
    tight = rg.Auto(memory=1.0, seconds=1.0)
    plan = rg.explain(graph, tight)
    assert plan.route == registered
    assert plan.bids.taken["variable_marginals"] == registered
    # Mini-buckets and search have bounds, of which more is known than of an estimate.
    assert plan.bids.taken["log_partition"] == "mini-buckets"
    assert plan.bids.taken["mode"] == "search"
    posterior = rg.infer(graph, tight)
    x = graph.variables[0]
    torch.testing.assert_close(posterior.marginal(x), brute_force(graph).joint((x,)))
    assert not posterior.status_of("marginals").exact
    assert posterior.status_of("marginals").route == registered


class Refused(Enumerated):
    """A solution that does not keep its word."""

    def variable_marginals(self):
        raise BudgetError("Marginals take a year.")


@pytest.mark.parametrize(
    "registered", [variant(run=lambda _self, task, _bid: Refused(task.graph))], indirect=True
)
def test_where_a_route_does_not_keep_its_word_the_next_answers_and_the_status_says_so(registered):
    graph = ring()
    posterior = rg.infer(graph)
    check_truth(posterior, graph)
    status = posterior.status_of("marginals")
    assert status.route == "contraction"
    assert status.tried == ("enumeration: Marginals take a year.",)
    assert "Marginals take a year." in str(status)
    assert posterior.status_of("log_partition").route == registered
    # The same whatever was asked before.
    assert rg.infer(graph).status_of("marginals").tried == status.tried


def refuse(*_):
    raise BudgetError("The list is too long.")


@pytest.mark.parametrize("registered", [variant(run=refuse)], indirect=True)
def test_a_route_that_gives_no_solution_is_passed_over(registered):
    graph = ring()
    posterior = rg.infer(graph)
    check_truth(posterior, graph)
    assert posterior.status.tried == (f"{registered}: The list is too long.",)


class Restless(Enumerated):
    """A solution that says that it has not converged."""

    def log_partition(self):
        return super().log_partition() + 1.0

    def status(self):
        return rg.Status(exact=False, converged=False)


@pytest.mark.parametrize(
    "registered", [variant(run=lambda _self, task, _bid: Restless(task.graph))], indirect=True
)
def test_what_has_not_converged_gives_way_to_what_has(registered):
    graph = ring()
    posterior = rg.infer(graph)
    torch.testing.assert_close(posterior.log_partition, brute_force(graph).log_partition)
    assert posterior.status_of("log_partition").tried == (f"{registered}: it has not converged",)


def test_a_route_named_by_its_module_is_imported_when_it_may_bid(tmp_path, monkeypatch):
    (tmp_path / "routes_of_a_user.py").write_text(
        "from rdpgraph.extend import Bid, Exactness, PartialSolution, Route\n"
        "class Same(PartialSolution):\n"
        "    def __init__(self, graph): self.graph = graph\n"
        "    def log_partition(self):\n"
        "        return self.graph.blocks[0].potential.log_values.new_full((1,), 7.0)\n"
        "class Lazy(Route):\n"
        "    def bid(self, task, question, budget):\n"
        "        if question.name == 'log_partition':\n"
        "            return Bid(Exactness.EXACT, 1e-9, 0.0, 'seven')\n"
        "    def run(self, task, bid): return Same(task.graph)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []

    def five(shape):
        seen.append(shape)
        return shape.num_variables == 5

    rg.extend.register_route("lazy", "routes_of_a_user:Lazy", might_bid=five)
    try:
        graph = ring(6)
        assert rg.infer(graph).status.route == "buckets"
        assert offer(rg.explain(graph), "lazy").outcome == "no bid"
        assert "routes_of_a_user" not in sys.modules
        posterior = rg.infer(ring(5))
        assert float(posterior.log_partition) == 7.0
        assert "routes_of_a_user" in sys.modules
        assert (posterior.plan.route, posterior.status_of("log_partition").route) == (
            "contraction", "lazy",
        )  # fmt: skip
        shape = seen[0]
        assert (shape.num_factors, shape.num_states, shape.arity, shape.items) == (7, 12, 2, 1)
        assert not shape.is_observed
        assert "Table" in shape.potentials
    finally:
        rg.extend.ROUTES.remove("lazy")


def test_what_cannot_be_a_route_is_refused_in_one_line(registered):
    register, remove = rg.extend.register_route, rg.extend.ROUTES.remove
    with pytest.raises(ModelError, match="'enumeration' is registered already; ROUTES"):
        register(registered, Enumeration)
    with pytest.raises(ModelError, match="'contraction' is registered already"):
        register("contraction", Enumeration)
    with pytest.raises(ModelError, match="needs a subclass of Route, or its place"):
        register("mine", Enumerated)  # pyright: ignore
    with pytest.raises(ModelError, match="got 'no_colon'"):
        register("mine", "no_colon")
    with pytest.raises(ModelError, match="needs a name for the route; got ''"):
        register("", Enumeration)
    with pytest.raises(ModelError, match="No route 'contraction' was registered"):
        remove("contraction")
    for place in ("no_such_module_of_mine:Class", "rdpgraph.errors:NoSuchClass"):
        register("mine", place)
        try:
            with pytest.raises(ModelError, match=r"'mine' is registered as .* cannot be imported"):
                rg.infer(ring())
        finally:
            remove("mine")
    register("mine", "rdpgraph.errors:ModelError")
    try:
        with pytest.raises(ModelError, match="'mine' needs a subclass of rdpgraph"):
            rg.infer(ring())
    finally:
        remove("mine")


@pytest.mark.parametrize("registered", [variant(bid=lambda *_: 3.0)], indirect=True)
def test_what_is_no_bid_is_refused(registered):
    with pytest.raises(ModelError, match="'enumeration' must bid a Bid or None; got float"):
        rg.infer(ring())


@pytest.mark.parametrize("registered", [variant(run=lambda *_: 3.0)], indirect=True)
def test_what_is_no_solution_is_refused(registered):
    with pytest.raises(ModelError, match="run of the route 'enumeration' must give a Solution"):
        rg.infer(ring())


def test_gradients_and_copies_pass_through_a_route_of_one_s_own(registered):
    theta = torch.zeros(3, 2, 2, dtype=DOUBLE, requires_grad=True)
    x = [rg.Variable(name, 2) for name in "abc"]
    pairs = [(0, 1), (1, 2), (2, 0)]
    graph = rg.FactorGraph(
        [rg.Factor((x[i], x[j]), rg.Table(theta[k])) for k, (i, j) in enumerate(pairs)]
    )
    posterior = rg.infer(graph)
    posterior.log_partition.backward()
    torch.testing.assert_close(theta.grad, torch.full_like(theta, 0.25))
    for other in (copy.deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):
        torch.testing.assert_close(other.marginal(x[0]), posterior.marginal(x[0]).detach())
        assert other.status.route == registered


@pytest.mark.parametrize(
    "scheduler", [rg.Auto(), rg.Auto(memory=1.0), rg.Auto(memory=1.0, seconds=1.0)]
)
@pytest.mark.parametrize("evidence", [False, True])
def test_for_each_question_the_bid_that_is_taken_ranks_first(scheduler, evidence):
    graph = ring(9)
    graph = graph.condition({"x0": torch.tensor([0, 1, -1])}) if evidence else graph
    bids = rg.explain(graph, scheduler).bids
    for question, name in bids.taken.items():
        standing = {
            one.route: one.bids[question] for one in bids
            if question in one.bids and not one.bids[question].refused
        }  # fmt: skip
        best = min(standing.values(), key=lambda bid: (-bid.exactness, bid.seconds))
        assert standing[name].rank == best.rank
    for one in bids:
        for bid in one.bids.values():
            assert bid.seconds >= 0.0
            assert bid.why or bid.refused
    text = str(bids)
    assert all(one.route in text for one in bids)


def test_a_table_says_what_was_refused_and_why():
    tight = rg.explain(ring(), rg.Auto(memory=1.0, seconds=1.0))
    refused = offer(tight, "contraction")
    assert refused.outcome == "refused"
    assert "exact inference needs" in refused.note
    assert tight.route == tight.bids.taken["variable_marginals"] == "join graph"
    assert offer(rg.explain(ring()), "loopy").outcome == "not asked"
    chain = rg.Chain(torch.zeros(5, 3), torch.zeros(3, 3)).factor_graph()
    assert rg.explain(chain).bids.taken["mode"] == "structure"
    assert offer(rg.explain(chain), "contraction").outcome == "not asked"
    assert rg.explain(chain).bids.taken["variable_marginals"] == "buckets"  # of so small a chain
    assert rg.infer(chain).status.route == "buckets"
    assert rg.infer(chain).status_of("mode").route == "structure"
    long = rg.Chain(torch.zeros(9000, 3), torch.zeros(3, 3)).factor_graph()
    assert set(rg.explain(long).bids.taken.values()) >= {"structure"}
    assert rg.explain(long).bids.taken["variable_marginals"] == "structure"
    assert rg.infer(long).status.route == "structure"
    assert not rg.explain(ring(), rg.Loopy()).bids


def test_contraction_holds_the_auction_among_routes_that_are_exact_for_any_graph(registered):
    chain = rg.Chain(torch.zeros(5, 3), torch.zeros(3, 3)).factor_graph()
    rows = ring(9).condition({"x0": torch.tensor([0, 1, -1])})
    taken = {
        "ring": {"buckets", "contraction"},
        "rows": {"rows"},
        "chain": {"buckets", "contraction"},
    }
    for name, graph in {"ring": ring(), "rows": rows, "chain": chain}.items():
        bids = rg.explain(graph, rg.Contraction()).bids
        # No structure, no approximate route, and no route of one's own.
        assert [one.route for one in bids] == ["buckets", "rows", "contraction"]
        assert set(bids.taken.values()) == taken[name]
        assert rg.infer(graph, rg.Contraction()).status.route in taken[name]
        together = rg.Contraction(optimize="greedy")
        assert [one.route for one in rg.explain(graph, together).bids] == ["contraction"]
        plan = rg.explain(graph, together)
        assert plan.bids.taken["variable_marginals"] == "contraction"
        torch.testing.assert_close(
            rg.infer(graph, rg.Contraction()).log_partition,
            rg.infer(graph, together).log_partition,
        )


def test_where_no_exact_bid_stands_contraction_refuses_and_says_what_would_help():
    graph, tight = ring(12), rg.Contraction(memory=300.0)
    graph = graph.condition({"x0": torch.tensor([0, 1])})
    plan = rg.explain(graph, tight)
    assert not plan.fits
    assert not plan.bids.taken
    assert offer(plan, "contraction").outcome == "refused"
    with pytest.raises(BudgetError, match="raise the memory or time budget") as refused:
        rg.infer(graph, tight)
    assert plan.remedy in str(refused.value)
    assert plan.remedy.split(";")[0] in offer(plan, "contraction").note
    # The advice works.
    assert rg.infer(graph, rg.Contraction(memory=1e6)).status.exact


def test_a_subclass_of_contraction_that_plans_otherwise_decides_for_small_graphs_too():
    class ByMessages(rg.Contraction):
        def plan(self, graph):
            return rg.Loopy().plan(graph)

    assert rg.infer(ring(), ByMessages()).status.route == "loopy"


@pytest.mark.parametrize("memory", [300.0, 2e9])
def test_bids_predict_memory_as_plans_do_or_say_that_it_is_a_limit(memory):
    x = rg.VariableArray("x", (40, 40), 2)
    table = torch.randn(2, 2, generator=torch.Generator().manual_seed(0))
    slots = (x[1:], x[:-1]), (x[:, 1:], x[:, :-1])
    graph = rg.FactorGraph([rg.FactorBlock(each, rg.Table(table)) for each in slots])
    plan = rg.explain(graph, rg.Auto(memory=memory))
    messages = offer(plan, "loopy").bids["variable_marginals"]
    assert not messages.memory_is_limit
    assert messages.memory == plan.stored_bytes == rg.explain(graph, rg.Loopy()).stored_bytes
    assert messages.seconds == plan.seconds
    for name, question in (("mini-buckets", "log_partition"), ("search", "mode")):
        bid = offer(plan, name).bids[question]
        assert bid.memory_is_limit
        assert bid.memory == max(memory, 2.0**24)  # what is taken whatever the budget
        row = next(line for line in str(plan.bids).splitlines() if line.startswith(name))
        assert f"up to {'16.8 MB' if memory < 1e9 else '2.0 GB'}" in row


def test_a_graph_is_recognised_once_in_a_call():
    asked: list[rg.FactorGraph] = []

    class Watching(rg.Chain):
        @classmethod
        def recognise(cls, graph):
            asked.append(graph)

    rg.extend.register(Watching)
    try:
        for call in (rg.explain, rg.infer):
            for scheduler in (rg.Auto(), rg.Auto(memory=1.0), rg.Auto(seconds=2.0)):
                asked.clear()
                call(ring(), scheduler)
                assert len(asked) == 1
    finally:
        rg.extend.REGISTRY.remove(Watching)
