"""The conformance suite: what potentials, structures, proposals, selections, estimators must do.

Each check raises an ``AssertionError`` that says what does not hold.
"""

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._agreement import QUESTIONS as _QUESTIONS
from rdpgraph._agreement import agree as _agree
from rdpgraph._agreement import close as _close
from rdpgraph._agreement import seeded as _seeded
from rdpgraph._choices import check_proposal, check_selection
from rdpgraph._enumeration import BruteForce, Enumeration, OnGraph, brute_force, truth_of
from rdpgraph._estimated import check_on_few
from rdpgraph._estimators import check_estimator
from rdpgraph._masking import check_masks
from rdpgraph._optional import check_optional
from rdpgraph._shapes import broadcast_shapes
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.infer import infer
from rdpgraph.model.factor import Factor
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potential import Decomposition, Potential
from rdpgraph.model.structure import Structure
from rdpgraph.model.variable import Variable
from rdpgraph.query.structured import StructuredPosterior
from rdpgraph.schedulers import Contraction
from rdpgraph.structures.hypertree.rules import Rules

__all__ = [
    "BruteForce",
    "brute_force",
    "check_estimator",
    "check_masks",
    "check_potential",
    "check_proposal",
    "check_selection",
    "check_structure",
]

_ROUNDING = 1e-6
"""How far above one the weights of a relaxed sample may come to, in float32 too."""
_CERTAIN = 1e-9
"""How near to 0 or 1 the probability that a site is used counts as that."""


def check_potential(potential: Potential, arity: int | None = None) -> None:
    """Hold a potential against its own table, and against a dense one in an exact answer.

    Args:
        potential: small enough to tabulate; float64 for the gradient checks to run.
        arity: its slots; default: all dims of its shape.
    """
    arity = len(potential.shape) if arity is None else arity
    table = potential.table(arity)
    sizes = potential.slots(arity)
    _agree(tuple(table.shape) == potential.shape, "table() has the potential's shape")
    _agree(bool((table < math.inf).all()), "log-values are below +inf and not NaN")
    _agree(table.dtype == potential.dtype, "dtype is that of the log-values")
    asked = [torch.tensor([size - 1, *range(size), 0], device=table.device) for size in sizes]
    expected = table
    for slot, states in enumerate(asked):
        expected = expected.index_select(table.ndim - arity + slot, states)
    _close(potential.evaluate(asked), expected, "evaluate() on repeated and permuted states")
    lead = potential.lead(arity)
    if not lead and arity:
        rows = [torch.stack([torch.arange(n), torch.arange(n).flip(0)]) for n in sizes]
        rows = [states.to(table.device) for states in rows]
        flipped = table.flip(tuple(range(arity)))
        _close(
            potential.evaluate(rows), torch.stack([table, flipped]), "evaluate() with leading dims"
        )
        none = potential.evaluate([states[:0] for states in rows])
        _agree(none.shape == (0, *sizes), "evaluate() with a leading dim of 0 has that dim")
    rebuilt = potential.decompose()
    if rebuilt is not None:
        _check_parts(rebuilt, sizes)
        _close(_rebuilt(rebuilt, arity, maximise=False), table, "decompose(), summed")
        _close(_rebuilt(rebuilt, arity, maximise=True), table, "decompose(), maximised")
    for temperature in (1.0, 0.0):
        _check_messages(potential, table, arity, temperature)
    variables = tuple(Variable(f"x{slot}", size) for slot, size in enumerate(sizes))
    dense = table.reshape(math.prod(lead), -1) if arity else table.reshape(-1, 1)
    answer = infer(FactorGraph([Factor(variables, potential)]), scheduler=Contraction())
    _close(answer.log_partition.reshape(-1), dense.logsumexp(1), "log Z of the potential alone")
    _check_gradients(potential, arity)


def check_structure(structure: Structure) -> None:
    """Hold a structure against brute force: on its `factor_graph`, or by its `score` if none.

    log Z, marginals, max-marginals, entropy, the mode, samples' support, relaxed samples,
    log-probabilities, the k best, cross-entropy and KL if it has them, both derivatives of log Z in
    `unary`, hard zeros in it, every batch item on its own, what its
    `sites` make of all states in another order if it offers them, and every answer of `Randomized`
    on a few of them, its masks if it has any, and, if its class recognises the graph, that it is
    the same model.

    Args:
        structure: small enough to enumerate, every item possible; float64.
    """
    truth = truth_of(structure)
    log_z = structure.log_partition()
    _close(log_z, truth.log_partition, "log_partition()")
    posterior = infer(structure)
    assert isinstance(posterior, StructuredPosterior)
    _check_answers(posterior, truth)
    _check_relaxed(posterior, truth)
    check_optional(structure, truth)
    _check_numbers(structure)

    unary = structure.unary.detach().requires_grad_()
    if unary.dtype == torch.float64 and bool(unary.isfinite().all()):
        _agree(
            torch.autograd.gradcheck(lambda u: structure.with_unary(u).log_partition(), (unary,)),
            "the gradient of log Z in unary",
        )
    hard = structure.unary.detach().clone()
    hard[..., 0] = -math.inf
    hard.requires_grad_()
    hard_z = structure.with_unary(hard).log_partition()
    (gradient,) = torch.autograd.grad(hard_z.sum(), hard)
    _agree(not bool(hard_z.isnan().any()), "no NaN in log Z with hard zeros")
    _agree(not bool(gradient.isnan().any()), "no NaN in the gradient with hard zeros")
    forbidden = truth_of(structure.with_unary(hard.detach()))
    _close(hard_z, forbidden.log_partition, "log Z with hard zeros")

    for item in range(log_z.shape[0] if log_z.ndim else 0):
        one = _item(structure, item, log_z.ndim)
        _close(one.log_partition(), log_z[item], f"batch item {item} alone")
    sites = structure.sites()
    if sites is not None:
        states = torch.arange(sites.states, device=unary.device).flip(0)
        states = states.expand(sites.unary.shape)
        same = sites.restrict(states, torch.zeros_like(sites.unary))
        _close(
            same.log_partition(),
            log_z,
            "log Z of sites() on all states in another order",
        )
        check_on_few(structure)
    if type(structure).masks is not Structure.masks:
        check_masks(structure)
    if isinstance(truth, OnGraph):
        match = type(structure).recognise(truth.graph)
        if match is not None:
            _close(match.structure.log_partition(), log_z, "what recognise() gives")


def _check_numbers(structure: Structure) -> None:
    """What was written over by NaN after it was declared is refused, whatever is asked."""
    if not bool(structure.marginals().any()):
        return  # nothing is read
    for name, ask in _QUESTIONS.items():
        broken = structure.with_unary(structure.unary.detach().clone())
        broken.unary.fill_(math.nan)
        try:
            ask(infer(broken))
        except (ModelError, UnsupportedError):
            continue
        raise AssertionError(f"{name} answers of a structure whose unary potentials are NaN")


def _check_answers(posterior: StructuredPosterior, truth: OnGraph | Enumeration) -> None:
    """Every answer, in the shape of the sites."""
    shape = posterior.structure.unary.shape
    structure = posterior.structure
    mode = structure.site_states(posterior.mode())
    _agree(structure.uses(mode).shape == shape, "mode() has the shape of unary without states")
    _close(truth.score(mode), truth.maximum, "the score of mode()")
    # In a graph a site that an item lacks is held in a state.
    fixed = isinstance(truth, OnGraph)
    present = (mode >= 0).unsqueeze(-1) if fixed else mode.new_ones((), dtype=torch.bool)
    marginals, best = posterior.marginals(), posterior.max_marginals()
    for what, values, expected, absent in (
        ("marginals()", marginals, truth.marginals, 0.0),
        ("max_marginals()", best, truth.max_marginals, -math.inf),
    ):
        _agree(values.shape == shape, f"{what} have the shape of unary")
        _close(values, torch.where(present, expected, absent), what)
    _close(posterior.entropy(), truth.entropy, "entropy()")
    base = torch.linspace(-1.0, 1.0, shape.numel()).reshape(shape).to(marginals)
    over = structure.entropy_over(base)
    if over is not None:
        mean = (torch.where(present, truth.marginals, 0.0) * base).flatten(over.ndim).sum(-1)
        _close(over, truth.entropy + mean, "entropy_over()")
    drawn = posterior.sample(8, generator=_seeded())
    drawn = structure.site_states(drawn)
    again = structure.site_states(structure.configuration(drawn))
    _agree(torch.equal(again, drawn), "site_states() gives what configuration() is made from")
    _agree(drawn.shape == (8, *mode.shape), "sample(8) has shape (8, *batch, *sites)")
    if fixed:
        _agree(bool(((drawn < 0) == (mode < 0)).all()), "samples have the sites that the mode has")
    _agree(bool((truth.score(drawn) > -math.inf).all()), "samples are possible")


def _check_relaxed(posterior: StructuredPosterior, truth: OnGraph | Enumeration) -> None:
    """Uses made soft: weights that sum to one, or to zero where there is no site."""
    structure = posterior.structure
    if type(structure).rsample is Structure.rsample:
        return
    drawn = structure.rsample(4, temperature=0.7, generator=_seeded()).detach()
    _agree(drawn.shape == (4, *structure.unary.shape), "rsample(4) has shape (4, *unary.shape)")
    _agree(bool((drawn >= 0).all()), "rsample() has weights >= 0")
    total = drawn.sum(-1)
    _agree(
        bool((total < truth.most + _ROUNDING).all()),
        "the weights of rsample() sum to the uses of a site at most",
    )
    used = posterior.marginals().detach().sum(-1)
    # A site that is used sometimes has a weight of its own.
    sure = (used - used.round()).abs() < _CERTAIN
    _close(total, torch.where(sure, used.round(), total), "the sum of the weights of rsample()")


def _check_gradients(potential: Potential, arity: int) -> None:
    """Check the gradient of log Z in the floating tensors of a dataclass potential."""
    if not is_dataclass(potential):
        return
    names = [
        field.name
        for field in fields(potential)
        if isinstance(value := getattr(potential, field.name), Tensor)
        and value.dtype == torch.float64
        and bool(value.isfinite().all())
    ]
    if not names:
        return

    def log_z(*tensors: Tensor) -> Tensor:
        changed: Any = replace(potential, **dict(zip(names, tensors, strict=True)))
        return changed.table(arity).flatten().logsumexp(0)

    inputs = tuple(getattr(potential, name).detach().requires_grad_() for name in names)
    _agree(torch.autograd.gradcheck(log_z, inputs), f"gradients in {', '.join(names)}")


def _check_messages(potential: Potential, table: Tensor, arity: int, temperature: float) -> None:
    """Hold the messages of a potential against its table, a few of those that come in -inf."""
    generator = _seeded()
    lead = potential.lead(arity)
    incoming: list[Tensor] = []
    for slot, size in enumerate(potential.slots(arity)):
        # Leads of every kind: none, the potential's own, and a dim in front of that.
        shape = ((3, *lead, size), (size,), (*lead, size))[slot % 3]
        message = torch.randn(shape, generator=generator, dtype=table.dtype).to(table.device)
        message[..., slot % size] = -math.inf if size > 1 else 0.0
        if slot % 3 == 0:
            message[-1] = -math.inf
        incoming.append(message.requires_grad_())
    outgoing = potential.messages(incoming, temperature=temperature)
    _agree(len(outgoing) == arity, "messages() has one message per slot")
    what = f"messages() at temperature {temperature}"
    joint = broadcast_shapes(lead, *(message.shape[:-1] for message in incoming))
    for slot, message in enumerate(outgoing):
        total = table
        for other, values in enumerate(incoming):
            if other != slot:
                total = total + values.detach().reshape(
                    *values.shape[:-1], *(1,) * other, values.shape[-1], *(1,) * (arity - other - 1)
                )
        others = [dim - arity for dim in range(arity) if dim != slot]
        if others:
            total = total.logsumexp(others) if temperature else total.amax(others)
        _close(message, total, f"{what}, to slot {slot}")
        _agree(message.shape == (*joint, incoming[slot].shape[-1]), f"{what} have the joint lead")
    if arity > 1:
        finite = torch.cat([message[message > -math.inf] for message in outgoing]).sum()
        gradients = torch.autograd.grad(finite, incoming, allow_unused=True, materialize_grads=True)
        _agree(
            not any(bool(gradient.isnan().any()) for gradient in gradients),
            f"{what} have no NaN in their gradient",
        )


def _check_parts(split: Decomposition, sizes: tuple[int, ...]) -> None:
    """Check that the parts' shapes are those of their variables, and that all are held."""
    every = (*sizes, *split.auxiliary)
    held: set[int] = set()
    for part in split.parts:
        held.update(part.variables)
        wanted = tuple(every[variable] for variable in part.variables)
        ends = part.log_values.shape[part.log_values.ndim - len(wanted) :]
        _agree(ends == wanted, f"decompose(): the part over {part.variables} has shape {wanted}")
    _agree(held == set(range(len(every))), "decompose(): the parts hold every variable")


def _rebuilt(split: Decomposition, arity: int, *, maximise: bool) -> Tensor:
    """The table of a decomposition, its auxiliary variables eliminated as soon as they can be."""
    joint, held = torch.zeros(()), list[int]()
    for place, part in enumerate(split.parts):
        union = [*held, *(variable for variable in part.variables if variable not in held)]
        joint = _aligned(joint, held, union) + _aligned(part.log_values, part.variables, union)
        later = {variable for other in split.parts[place + 1 :] for variable in other.variables}
        gone = [variable for variable in union if variable >= arity and variable not in later]
        held = [variable for variable in union if variable not in gone]
        dims = [union.index(variable) - len(union) for variable in gone]
        if dims:
            joint = joint.amax(dims) if maximise else joint.logsumexp(dims)
    return _aligned(joint, held, range(arity))


def _aligned(values: Tensor, variables: Sequence[int], order: Sequence[int]) -> Tensor:
    """Values over some variables, (*lead, sizes), with a dim for each of ``order`` instead."""
    lead = values.ndim - len(variables)
    dims = [lead + variables.index(variable) for variable in order if variable in variables]
    moved = values.permute([*range(lead), *dims])
    sizes = iter(moved.shape[lead:])
    spread = [next(sizes) if variable in variables else 1 for variable in order]
    return moved.reshape([*moved.shape[:lead], *spread])


def _item(structure: Structure, item: int, batch: int) -> Structure:
    """One batch item of a structure; the tensors that say how many dims they have are cut too.

    So are potentials of so many dims, rules, a structure of the same batch that it is made of, and
    what has the shape of its unary.
    """
    changed: dict[str, Any] = {"unary": structure.unary[item]}
    for field in fields(structure):
        value, dims = getattr(structure, field.name), field.metadata.get("dims")
        if isinstance(value, Structure) and value.batch_shape == structure.batch_shape:
            changed[field.name] = _item(value, item, batch)
        if isinstance(value, Rules) and len(value.batch_shape) == batch:
            parts = [part[item if len(part) > 1 else 0] for part in value.parts]
            changed[field.name] = value.with_parts(parts)
        if dims == "unary":
            dims = structure.unary.ndim - batch
        if dims is not None:
            changed[field.name] = _cut(value, item, dims + batch)
    return replace(structure, **changed)


def _cut(value: Any, item: int, dims: int) -> Any:
    """One item of what has so many dims: a tensor, or a potential that is made of tensors."""
    if isinstance(value, Potential) and is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return replace(value, **{name: _cut(part, item, dims) for name, part in parts.items()})
    if isinstance(value, Tensor) and value.ndim == dims:
        return value[item if len(value) > 1 else 0]
    return value
