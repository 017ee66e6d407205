"""Rules as text: what follows from them, how a program prints, and errors that repeat the rule."""

import itertools
import math
import sys

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Input, Lengths
from rdpgraph.errors import ModelError
from tests.recurrences import written
from tests.recurrences.binding import Recurrence


def recurrence(rules, **inputs):
    return type("Ahead", (Recurrence,), {"rules": rules, **inputs})


CHAIN = {"sites": Input("T N"), "transition": Input("N N"), "lengths": Lengths("T")}
END = "\n goal += a[lengths-1, n]"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            "a[t, n] += sites[t, n]\n"
            "a[t, n] += a[t-1, m] * transition[m, n] * sites[t, n]\n"
            "a[t, n] += a[t+1, m] * transition[m, n] * sites[t, n]" + END,
            r"Ahead: a reads a\[t \+ 1, m\] before it is there, as where t = 0, in a\[t, n\] \+= "
            r"a\[t\+1, m\] \* transition\[m, n\] \* sites\[t, n\]",
        ),
        (
            "a[t, n] += a[t, n] * sites[t, n]" + END,
            r"Ahead: a reads a\[t, n\] before it is there, as where t = 0 and n = 0, in",
        ),
        (
            "a[t, n] += b[t, n] * sites[t, n]\n b[t, n] += a[t, n] * sites[t, n]" + END,
            r"reads . ?.*before it is there",
        ),
        (
            "a[t, n] += site[t, n]" + END,
            "site is no input, and no rule makes it .known: sites, tra",
        ),
        ("a[t, n] += sites[t]" + END, "sites has 2 indices; got 1, in a"),
        ("a[t, n] += sites[t, n]\n a[t] += sites[t, 0]" + END, "a has 2 indices in another rule"),
        (
            "a[t, n] += a[t+1, m] * transition[m, n] * sites[t, n]\n goal += a[0, n]",
            "every cell of a is absent, because each of its rules reads a table that has no first "
            r"cell, as a in a\[t, n\] .*; add a rule for a first cell",
        ),
        (
            "a[t, n] += b[t-1, n] * sites[t, n]\n b[t, n] += a[t, n]" + END,
            "every cell of a is absent, because .* as b in a",
        ),
        ("a[t, n] = sites[t, n]" + END, "a rule adds to a table, as .* does, in a.t, n. = sites"),
        ("a[t, n] += sites[t, n] - 1" + END, "is no entry such as sites.t, n., no product"),
        ("a[t, n] += sites[t, n] * (" + END, "this is not the form of a rule"),
        ("a[t, n] += 2 * sites[t, n]" + END, "`2` is no entry"),
        ("a[t * t, n] += sites[t, n]" + END, "the index `t . t` is no sum of names and whole numb"),
        ("a[t, n] += sites[t, n] if t" + END, "a condition compares indices"),
        ("a[t, n] += sites[t, n] if t != 1" + END, "indices are compared by <"),
        (
            "a[t, n] += a[t-1, m] * transition[m, n]" + END,
            "nothing says how far t goes.*`if t < T`",
        ),
        (
            "b[0, k] += 1\n a[t, n] += sites[t, n] * b[0, k]" + END,
            "nothing says how far k goes.*`if k < 10`, by a number or by one of the sizes",
        ),
        ("a[t, n] += sites[t, n] * transition[m, K]" + END, "K is the size of no input"),
        ("a[t, n] += sites[t, lengths]" + END, "only reads of the goal have the index lengths"),
        ("a[t, n] += sites[t, transition[0, n]]" + END, "transition holds logs, no indices"),
        ("sites[t, n] += transition[t, n]" + END, "sites is an input, and no rule writes to it"),
        ("a[t, n] += sites[t, n]", "no rule says what the goal is"),
        ("a[t, n] += sites[t, n]\n goal[n] += a[0, n]", "the goal is one number"),
        ("a[t, n] += sites[t, n] * goal" + END, "known: sites, transition, a|goal"),
        ("a[sites[t, n]] += 1" + END, "is written to a place that is data; go through what is wr"),
        (
            "a[t, n] += sites[t, n] if t < sites[0, n]" + END,
            "as the ends of a row of a list, `rows",
        ),
        ("a[t, n] += sites[t, n] if sites[n] <= t < sites[n+2]" + END, "the ends of a row of a l"),
        ("", "rules are a text of one rule a line"),
    ],
)
def test_errors_repeat_the_rule_in_one_line(rules, message):
    with pytest.raises(ModelError, match=message) as caught:
        recurrence(rules, **CHAIN).make_program()
    assert "\n" not in str(caught.value)


def test_the_advice_for_a_variable_without_a_range_works():
    rules = "a[t, n] += sites[0, n] if t == 0\n a[t, n] += a[t-1, m] * transition[m, n]{}" + END
    bounded = recurrence(rules.format(" if t < T"), **CHAIN)
    log_z = bounded(torch.zeros(4, 3), torch.zeros(3, 3)).log_partition()
    assert round(log_z.exp().item()) == 3**4


def test_the_advice_for_axes_of_two_sizes_works():
    inputs = {"sites": Input("T N"), "first": Input("D N"), "lengths": Lengths("T")}
    rules = "a[t, n] += first[t, n]{}\n a[t, n] += a[t-1, n] * sites[t, n]" + END
    with pytest.raises(ModelError, match="`if t < T`"):
        recurrence(rules.format(""), **inputs).make_program()
    both = recurrence(rules.format(" if t < T"), **inputs)
    log_z = both(torch.zeros(4, 1), torch.zeros(2, 1)).log_partition()
    assert round(log_z.exp().item()) == 2  # the last two cells are reached from either of the first


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            ((3, 2), (3, 3)),
            r"needs transition\[N, N\], after batch dims where .*N = 2; got .*\(3, 3\)",
        ),
        (((2,), (3, 3)), r"needs sites\[T, N\], after batch dims; got a tensor of shape \(2,\)"),
        (
            ((2, 3, 2), (3, 2, 2)),
            r"batch dims that broadcast; got \(2,\) of sites, \(3,\) of trans",
        ),
    ],
)
def test_tensors_that_do_not_fit(sizes, message):
    with pytest.raises(ModelError, match=message):
        written.Chain(*map(torch.zeros, sizes))


def test_numbers_that_do_not_fit():
    sites, transition = torch.zeros(2, 3, 2), torch.zeros(2, 2)
    with pytest.raises(ModelError, match="Chain needs lengths from 0 to T = 3; got 4"):
        written.Chain(sites, transition, torch.tensor([3, 4]))
    with pytest.raises(ModelError, match=r"Chain's sites needs log-values below .inf.*got NaN"):
        written.Chain(sites / 0, transition)
    with pytest.raises(ModelError, match="Chain needs transition"):
        written.Chain(sites)
    with pytest.raises(ModelError, match="needs words from 0 to 3, as an index of emission; got 4"):
        written.Tagged(torch.zeros(2), transition, torch.zeros(2, 4), torch.tensor([0, 4]))


HEADS = [0, 0, 2, 3]  # the first of the edges into each of three nodes, and their number
TAILS = [[0, 0], [0, 0], [1, 0]]


class Runs(Recurrence):
    """Runs of an automaton over a tree whose children are data: leaves have empty rows."""

    sites, ruled, leaf = Input("V N"), Input("N N N"), Input("V")
    rows, left, right = Input("V+1", whole=True), *(Input("E", whole=True) for _ in range(2))
    rules = """
        a[v, n] += sites[v, n] * leaf[v]
        a[v, n] += sites[v, n] * ruled[n, l, r] * a[left[e], l] * a[right[e], r]
                 if rows[v] <= e < rows[v+1]
        goal    += a[V-1, n]
    """


def test_a_rule_that_does_not_hold_for_all_cells_goes_through_rows():
    """The advice of the error above, followed: a node of data is a leaf, or it has two children."""
    sites, ruled = torch.randn(5, 2).double(), torch.randn(2, 2, 2).double()
    rows, left, right = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 2]), torch.tensor([1, 3])
    leaf = torch.tensor([0.0, 0.0, -math.inf, 0.0, -math.inf]).double()
    found = Runs(sites, ruled, leaf, rows, left, right).log_partition()
    every = [
        sites[range(5), states].sum() + ruled[states[2], states[0], states[1]]
        + ruled[states[4], states[2], states[3]]
        for states in itertools.product(range(2), repeat=5)
    ]  # fmt: skip
    torch.testing.assert_close(found, torch.stack(every).logsumexp(0))


def test_conditions_say_which_cells_data_may_name():
    """Node 0 has no node before it, so what its data say is not read."""
    rules = """
        a[v, n] += sites[v, n]
        a[v, n] += sites[v, n] * links[n, m] * a[before[v], m] if 0 < v
        goal    += a[V-1, n]
    """
    inputs = {"sites": Input("V N"), "links": Input("N N"), "before": Input("V", whole=True)}
    kind = recurrence(rules, **inputs)
    sites, links = torch.randn(4, 2).double(), torch.randn(2, 2).double()
    before, sums = [0, 0, 1, 1], list[torch.Tensor]()
    for v, below in enumerate(before):
        more = links.exp() @ sums[below] if v else torch.zeros(2).double()
        sums.append(sites[v].exp() * (1 + more))
    found = kind(sites, links, torch.tensor(before)).log_partition()
    torch.testing.assert_close(found, sums[-1].sum().log())
    with pytest.raises(ModelError, match=r"needs before\[v\] below v"):
        kind(sites, links, torch.tensor([0, 1, 1, 1]))


def test_either_advice_on_sizes_that_differ_can_be_followed():
    rules = """
        a[0, 0] += 1
        a[i, j] += a[i-1, j] * x[i-1] if {one}
        a[i, j] += a[i, j-1] * y[j-1] if j <= J and {other}
        goal    += a[{last}, J]
    """
    wrong = rules.format(one="j <= J", other="i < J", last="I")
    told = r"`if i < I \+ 1` to the rule with J, .* or `if i < J` to the one with I \+ 1"
    with pytest.raises(ModelError, match=told):
        recurrence(wrong, x=Input("I"), y=Input("J"))(torch.zeros(2), torch.zeros(3))
    for one, other, last, count in (
        ("j <= J", "i < I + 1", "I", math.comb(5, 2)),
        ("j <= J and i < J", "i < J", "J-1", math.comb(5, 2)),
    ):
        text = rules.format(one=one, other=other, last=last)
        made = recurrence(text, x=Input("I"), y=Input("J"))
        sizes = (2, 3) if last == "I" else (4, 3)
        found = made(*map(torch.zeros, sizes)).log_partition().exp()
        assert found.round() == count, (text, found)


@pytest.mark.parametrize(
    ("rows", "tails", "message"),
    [
        ([HEADS, [0, 0, 3, 2]], TAILS, r"rows to ascend from 0 .*; got \[0, 0, 3, 2\]"),
        ([HEADS, [0, 2, 2, 3]], TAILS, r"needs tails\[e, 0\] below v, so that a cell is there"),
        ([0, 0, 3, 2], TAILS, "rows to ascend from 0 to at most 3, the length of its list; got"),
        ([0, 0, 2, 4], TAILS, "rows to ascend from 0 to at most 3, the length of its list; got"),
        (HEADS, [[0, 0], [0, 3], [1, 0]], "needs tails from 0 to 2, as an index of a; got 3"),
        (HEADS, [[0, 0], [1, 0], [1, 0]], r"needs tails\[e, 0\] below v, so that a cell is there"),
        (HEADS, [[0, 0], [0, 0], [1, 2]], r"needs tails\[e, 1\] below v, so that a cell is there"),
    ],
)
def test_lists_that_do_not_fit(rows, tails, message):
    with pytest.raises(ModelError, match=message) as caught:
        written.Hypergraph(torch.zeros(3), torch.tensor(rows), torch.tensor(tails))
    assert "\n" not in str(caught.value)
    goal = written.Hypergraph(torch.zeros(3), torch.tensor(HEADS), torch.tensor(TAILS))
    assert goal.log_partition().exp().round() == 2


def test_a_part_of_data_is_held_to_what_it_indexes():
    inputs = {"one": Input("I"), "other": Input("J"), "places": Input("T 2", whole=True)}
    rules = "a[0] += 1\n a[t+1] += a[t] * one[places[t, 0]] * other[places[t, 1]]\n goal += a[T]"
    kind = recurrence(rules, **inputs)
    one, other = torch.tensor([1.0, 2.0]), torch.arange(5.0)
    assert kind(one, other, torch.tensor([[0, 4], [1, 3]])).log_partition() == 1 + 4 + 2 + 3
    with pytest.raises(ModelError, match="needs places from 0 to 1, as an index of one; got 2"):
        kind(one, other, torch.tensor([[0, 4], [2, 3]]))


def test_data_that_are_written_to_are_checked_again():
    tails = torch.tensor(TAILS)
    goal = written.Hypergraph(torch.zeros(3), torch.tensor(HEADS), tails)
    assert goal.log_partition().exp().round() == 2
    tails[2, 0] = 2
    with pytest.raises(ModelError, match=r"needs tails\[e, 0\] below v"):
        goal.with_inputs()


def test_data_that_point_ahead_are_refused_where_each_item_has_its_own():
    tails = torch.tensor([[[[0, 0]], [[1, 0]]], [[[0, 0]], [[0, 2]]]])
    with pytest.raises(ModelError, match=r"needs tails\[v - 1, k, 1\] below v"):
        written.Kept(torch.zeros(2, 2, 1), tails)


def test_a_condition_on_what_an_inner_sum_alone_has_holds_there():
    inputs = {"one": Input("T"), "other": Input("T"), "lengths": Lengths("T")}
    rules = "a[t] += one[t] * (one[k] + other[k]) if k < t < T\n goal += a[lengths-1]"
    sums = recurrence(rules, **inputs)(torch.zeros(4), torch.zeros(4))
    assert int(sums.count()) == 6  # two for each of the three places before it


def test_a_program_prints_its_recurrence():
    lines = str(written.Segments.make_program()).splitlines()
    assert len(lines) <= 10
    assert "  a[t, n] += sum d, m: a[t - d - 1, m] * transition[m, n] * sites[t, d, n]" in lines
    assert "  table a[t, n] by t where t < T, n < N" in lines
    listed = (
        "a[v] += sum e: edges[e] * a[tails[e, 0]] * a[tails[e, 1]]  if rows[v] <= e < rows[v + 1]"
    )
    assert f"  {listed}" in str(written.Hypergraph.make_program()).splitlines()


def test_domains_and_orders_are_found():
    """Each is the smallest form that is sound: spans by their width, brackets by both widths."""
    trees, bitext = written.Trees.make_program(), written.Bitext.make_program()
    assert str(trees.table("b").order) == "j - i"
    assert [*map(str, trees.table("b").domain)] == ["j - i"]
    assert {*bitext.table("b").order.terms} == {("j", 1), ("l", 1), ("i", -1), ("k", -1)}
    assert {*map(str, bitext.table("b").domain)} == {"j - i", "l - k", "j + l - i - k - 1"}
    assert str(written.BackwardChain.make_program().table("b").order) == "T - t - 1"


def test_a_program_is_the_same_for_all_sizes():
    small, large = (written.Segments(torch.zeros(t, 3, 2), torch.zeros(2, 2)) for t in (2, 90))
    assert small.program is large.program


def test_axes_end_where_nobody_reads_on():
    program = written.Factorial.make_program()
    assert str(program.table("half").sizes[0]) == "T"


def test_a_sum_within_a_product_is_a_table_that_is_multiplied_once():
    program = written.Paths.make_program()
    (rule,) = [rule for rule in program.rules_of("a") if rule.over]
    assert sum(factor.array == "transition" for factor in rule.factors) == 1


def count_calls(function):
    """What a function returns, and how many calls of Python it takes, on any machine."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        return function(), calls
    finally:
        sys.setprofile(before)


def test_first_use_of_a_class_takes_few_steps():
    """A third more are 20 ms at most."""

    class Eisner(rg.Recurrence):
        unary, lengths = Input("T T+1"), Lengths("T")
        rules = """
            r[i, j] += R[i, k] * L[k + 1, j] * unary[j, i + 1]
            l[i, j] += R[i, k] * L[k + 1, j] * unary[i, j + 1]
            R[i, i] += 1 if i < T
            R[i, j] += r[i, k] * R[k, j]
            L[i, i] += 1 if i < T
            L[i, j] += L[i, k] * l[k, j]
            goal    += L[0, k] * unary[k, 0] * R[k, lengths - 1]
        """

    unary = torch.zeros(3, 4)
    log_z, calls = count_calls(lambda: Eisner(unary).log_partition())
    torch.testing.assert_close(log_z, rg.ProjectiveDependencies(unary).log_partition())
    assert calls < 45_000


def test_later_uses_of_a_class_take_few_steps():
    """Whatever follows from the class and the shapes is made once, not for each call."""

    class Tags(rg.Recurrence):
        unary, transition = Input("T N"), Input("N N")
        rules = """
            a[0, n] += unary[0, n]
            a[t, n] += a[t - 1, m] * transition[m, n] * unary[t, n]
            goal    += a[T - 1, n]
        """

    torch.manual_seed(0)
    unary, transition = torch.randn(2, 5, 3), torch.randn(3, 3)
    Tags(unary, transition).log_partition()
    log_z, calls = count_calls(lambda: Tags(unary, transition).log_partition())
    torch.testing.assert_close(log_z, rg.Chain(unary, transition).log_partition())
    assert calls < 150
    watched = unary.clone().requires_grad_()

    def gradient():
        return torch.autograd.grad(Tags(watched, transition).log_partition().sum(), watched)

    gradient()
    _, calls = count_calls(gradient)
    assert calls < 200
