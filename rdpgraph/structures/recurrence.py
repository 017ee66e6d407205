"""Structures that are declared as recurrences: inputs, and rules in the notation of sums."""

import functools
import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.numbers import lowest
from rdpgraph._core.portable import field_names
from rdpgraph._core.shards import is_sharded
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.interface.sites import Sites
from rdpgraph.interface.structure import Structure, is_tracked
from rdpgraph.logspace.gradients import by_autograd, expectations
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.potential import Potential, refuse_hollow
from rdpgraph.model.potentials.sharded import Sharded, as_potential
from rdpgraph.model.potentials.table import Table, as_states
from rdpgraph.model.restriction import gathered
from rdpgraph.model.soundness import require_possible
from rdpgraph.recurrences.affine import Affine
from rdpgraph.recurrences.bound import Bound
from rdpgraph.recurrences.declaration import Declared, Input, Lengths, program_of
from rdpgraph.recurrences.potentials import (
    evaluate_at,
    factors_of,
    read_at_data,
    sizes_of,
    with_ranks,
)
from rdpgraph.recurrences.program import Array, Program
from rdpgraph.recurrences.restriction import SAME, STATES, UNARY, label_sites, restrict_rules
from rdpgraph.structures.chain import paths
from rdpgraph.structures.chain.parts import ChainTensors, Parts
from rdpgraph.structures.checks import written_out
from rdpgraph.structures.draws import (
    KBestConfigurations,
    checked_best,
    checked_count,
    perturbed,
    require_generator,
)

_CHECKED = "checked inputs"
"""Where objects keep a `_Checked`."""


class _ProgramOf:
    """The program of a class, or of an object whose rules depend on its fields."""

    def __get__(self, instance: "Recurrence | None", owner: "type[Recurrence]") -> Program:
        if instance is None:
            return _program_of_sites(owner.__name__, owner.declared, owner.rules)
        return _program_of_sites(instance.name, *instance.written())


@dataclass(frozen=True, eq=False, init=False)
class Recurrence(Structure):
    """A dynamic program that is its recurrence: inputs, and rules in the notation of sums.

    A rule adds a product to a cell of a table, for all values of its variables. A variable that the
    left side lacks is summed over; what is read outside of an array is absent; rules for one cell
    add up; `goal` is what the recurrence is asked for. Nothing else is declared: ranges, sizes, and
    the order in which cells are computed follow from the rules.

    ========================  ======================================================================
    rules                     meaning
    ========================  ======================================================================
    ``a[t, n] += ...``        a cell of the table a, for all t and n
    ``a[t - 1, m]``           another cell; an index is a sum of names and whole numbers
    ``scores[n, words[t]]``   an entry at a place that is data
    ``a[tails[e]]``           a cell at a place that is data, lower than that of the rule's own cell
    ``... if rows[v] <= e``   with ``< rows[v + 1]``: e goes through row v of a list
    ``a[t - 1, left[e]]``     a cell at a label that is data
    ``unary[t, q + N]``       an entry at a label from N on
    ``x * y + z``, ``1``      products, sums, and the empty product
    ``... if i < j``          where the rule holds
    ``T``, ``I + 1``          sizes, which begin with a capital letter
    ``goal += a[lengths-1]``  the answer of each item, at the end of its length; an item of length 0
                              has one empty derivation, log Z 0 (of several ends in one cell, all
                              must be before the first)
    ========================  ======================================================================

    A derivation is one way to reach the goal, and its score is the sum of the entries of inputs
    that it uses. The input that is called ``unary`` has the potentials of the sites: its last size
    is the number of states, the others are the sites, and a derivation uses each site once at most.
    A configuration has the state of each site that a derivation uses, and -1 elsewhere; its score
    is the log-sum of all derivations that use these states and no other site. Where no input has
    that name there are no sites. `by_input` has the answers for the entries of all inputs.

    Objects take the inputs in the order of the class, or by name, with any batch dims. An input
    without batch dims is shared by all items. A `Potential` stands for its table: with a `LowRank`
    log Z, its gradients and draws sum over the ranks, and on few states of each site a potential is
    evaluated at these alone. Whatever differs from one call to the next, sizes
    included, is no part of the program: it is made once for a class. Rules that depend on a field
    of the object that is no tensor are a property; ``print(Segments.program)`` shows the others.

    Example:
        >>> import torch
        >>> import rdpgraph as rg
        >>> class Segments(rg.Recurrence):
        ...     unary, transition = rg.Input("T D N"), rg.Input("N N")
        ...     lengths = rg.Lengths("T")
        ...     rules = '''
        ...         a[t, n] += unary[t, t, n]
        ...         a[t, n] += a[t-d-1, m] * transition[m, n] * unary[t, d, n]
        ...         goal    += a[lengths-1, n]
        ...     '''
        >>> segments = Segments(torch.zeros(2, 4, 3, 5), torch.zeros(5, 5), torch.tensor([4, 3]))
        >>> segments.log_partition()
        tensor([6.9801, 5.1930])
        >>> segments.mode().shape
        torch.Size([2, 4, 3])

    Raises:
        ModelError: in one line, for rules that cannot be computed, which it repeats, or for tensors
            that do not fit.
    """

    if TYPE_CHECKING:  # a subclass declares an `Input`, in place of which objects have a tensor
        unary: Any

    why_no_graph = "its rules may score what factors of few sites cannot"
    _transparent = frozenset({"batch_shape", "inputs", "name", "written", "written_for"})

    rules: ClassVar[str] = ""
    declared: ClassVar[Declared] = ()
    """The inputs and lengths by name, those of base classes first."""
    program = _ProgramOf()

    def __init_subclass__(cls, **options: Any) -> None:
        own = {n: one for n, one in vars(cls).items() if isinstance(one, Input | Lengths)}
        if own:
            cls.declared = tuple({**dict(cls.declared), **own}.items())
            _make_fields(cls, own)
        super().__init_subclass__(**options)
        if own:
            dataclass(frozen=True, eq=False, init=False)(cls)

    def __init__(self, *args: Any, **named: Any) -> None:
        kind, stored = type(self), vars(self)
        owner, order = kind.__name__, _arguments(kind)
        if len(args) > len(order):
            raise ModelError(f"{owner} takes {', '.join(order)}; got {len(args)} values.")
        given = dict(zip(order, args, strict=False))
        for name, value in named.items():
            if name not in order or name in given:
                why = " twice" if name in given else f"; it takes {', '.join(order)}"
                raise ModelError(f"{owner} got {name}{why}.")
            given[name] = value
        for name in field_names(kind):
            stored[name] = given[name] if name in given else getattr(kind, name, None)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the inputs; a `__post_init__` of a subclass calls this one."""
        stored, names, written = vars(self), field_names(type(self)), self.written()
        # Of a DTensor each process has a part; unary potentials are whole, as answers are.
        for name, _ in written[0]:
            if name in names and is_sharded(stored[name]):
                if name == UNARY:
                    refuse_hollow(f"{self.name}'s {name}", stored[name])
                stored[name] = as_potential(stored[name])
        bound = self._bind(checked=False)
        for name, value in bound.given.items():
            known = stored.get(name)
            if known is not value and name in names and not isinstance(known, Potential):
                stored[name] = value
        unary, batch = bound.given.get(UNARY), bound.batch_shape
        if unary is None:
            unary = bound.logs()[bound.program.logs[0]].new_zeros(*batch, 0, 1)
        sites = unary.shape[unary.ndim - _site_dims(bound.program) - 1 :]
        if unary.shape != (*batch, *sites):
            unary = unary.expand(*batch, *sites)
        stored[UNARY] = unary
        if bound.given.keys() == dict(written[0]).keys():
            stored[_CHECKED] = _Checked(written, bound)

    # ---- the program and its inputs ----

    def written(self) -> tuple[Declared, str]:
        """What is declared, and the rules: by default those of the class."""
        return self.declared, self.rules

    def written_for(self, *, ranks: bool = False, kept: bool = False) -> tuple[Declared, str]:
        """What is declared, and the rules, for some answers; by default as for all others.

        Args:
            ranks: for log Z, its gradients and draws, where rules may sum over the ranks of a
                matrix, too; for others each configuration has one derivation.
            kept: for a few states of each site, by `restrict_rules`.
        """
        return self.written()

    def inputs(self) -> Mapping[str, Any]:
        """What is declared, by name: tensors, a `Potential` in place of one, or None for lengths.

        All that any of the rules may read that `written_for` gives. Default: the fields of the
        same names.
        """
        return {name: getattr(self, name) for name, _ in self.written()[0]}

    def _bind(
        self, other: Mapping[str, Tensor] | None = None, *, double: bool = False,
        checked: bool = True, ranks: bool = False, whole: Collection[str] = (),
    ) -> Bound:  # fmt: skip
        """The program with its inputs, or ``other`` ones.

        Args:
            other: inputs by name.
            double: whether all are in float64.
            checked: see `Bound`.
            ranks: see `written_for`.
            whole: potentials that are written out, where others are evaluated at the states read.
        """
        written, given = self.written_for(ranks=ranks), dict[str, Any](self.inputs())
        known: _Checked | None = vars(self).get(_CHECKED)
        if known is not None and other is None and known.serves(written, given):
            return known.bound.double() if double else known.bound
        given |= other or {}
        program = program_of(self.name, *written)
        sizes: dict[str, int] = {}
        for array in program.inputs:
            name, value = array.name, given[array.name]
            if value is None or isinstance(value, Tensor) or not isinstance(value, Potential):
                continue
            if not checked and _is_asked(value):
                # A potential that may be asked for few values is checked for its shape alone.
                given[name] = _shaped(value)
                continue
            found = read_at_data(program, name) if _is_asked(value) and name not in whole else None
            if found is not None:
                # Sizes are those of tensors.
                sizes = sizes or sizes_of(program.inputs, given)
                program, asked = found
                for one in asked:
                    given[one.name] = evaluate_at(value, one, sizes, given)
            elif isinstance(value, Sharded):
                given[name] = value.values
            elif ranks and isinstance(value, LowRank):
                program = with_ranks(program, name)
                left, right = factors_of(value, len(array.dims))
                given |= {f"{name}_left": left, f"{name}_right": right}
            else:
                given[name] = written_out(self.name, name, value, len(array.dims))
        bound = Bound(program, given, checked=checked)
        return bound.double() if double else bound

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.unary.shape[: self.unary.ndim - self._dims - 1])

    @property
    def name(self) -> str:
        """The name of the structure, for error messages."""
        return type(self).__name__

    @property
    def _is_double(self) -> bool:
        """Whether log Z of float32 is summed in float64, too."""
        return False

    @property
    def _dims(self) -> int:
        """How many dims the sites have."""
        return _site_dims(self.program)

    @property
    def _has_sites(self) -> bool:
        return UNARY in self.program.by_name

    def with_unary(self, unary: Tensor) -> Self:
        """Return the structure with other unary potentials, (*batch, *sites, states).

        Everything else is shared.
        """
        return super().with_unary(unary) if self._has_sites else self

    # ---- sums ----

    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats; -inf where nothing is possible. All derivatives exist."""
        bound = self._bind(ranks=True, double=self._is_double)
        return bound.log_partition().to(self.unary)

    @torch.no_grad()
    def count(self) -> Tensor:
        """(*batch,) the number of derivations that are possible, in float64: exact up to 2^53."""
        return self._bind().count()

    @by_autograd
    def entropy(self) -> Tensor:
        """(*batch,) nats, of derivations; 0 where nothing is possible. Differentiable."""
        return self._bind().entropy().to(self.unary)

    @by_autograd
    def cross_entropy(self, other: "Recurrence") -> Tensor:
        """(*batch,) nats: the mean of minus the log-probability in another of the same shape.

        +inf where the other forbids what is possible here; 0 where nothing is. Differentiable in
        both.

        Raises:
            ModelError: the other has another shape.
        """
        one, two = self._compared(other)
        return one.cross_entropy(two).to(self.unary)

    @by_autograd
    def kl_divergence(self, other: "Recurrence") -> Tensor:
        """(*batch,) nats: `cross_entropy` less `entropy`; 0 where nothing is possible here.

        Raises:
            ModelError: the other has another shape.
        """
        one, two = self._compared(other)
        return one.kl_divergence(two).clamp(min=0.0).to(self.unary)

    def _compared(self, other: "Recurrence") -> tuple[Bound, Bound]:
        same = type(other) is type(self) and other.unary.shape == self.unary.shape
        if not same or other.written() != self.written():
            shape = f" of {tuple(other.unary.shape)}" if isinstance(other, Structure) else ""
            raise ModelError(
                f"{self.name} can be compared only with another of its shape, "
                f"{tuple(self.unary.shape)}; got {type(other).__name__}{shape}."
            )
        # Both have the same inputs, so what one of them has as a table the other has as one, too.
        kinds = [one.inputs() for one in (self, other)]
        tables = {name for each in kinds for name, one in each.items() if not _is_asked(one)}
        return self._bind(double=True, whole=tables), other._bind(double=True, whole=tables)

    def score(self, states: Tensor) -> Tensor:
        """(*lead, *batch) the scores of configurations (*lead, *batch, *sites); differentiable.

        The log-sum of the derivations that use the sites in these states, and no other site; -inf
        for what is no configuration.

        Raises:
            EvidenceError: another shape, or a state out of range.
        """
        states = _checked_states(self, states)
        wanted = (states >= 0).flatten(states.ndim - self._dims).sum(-1)
        lead = states.shape[: states.ndim - self.unary.ndim + 1]
        many = max(1, tuning.CACHE_BLOCK * math.prod(lead) // max(1, states.numel() * self._width))
        if math.prod(lead) <= many or not states.numel():
            return self._score(states, wanted)
        # Many configurations need the potentials of all states each, so they are scored in parts.
        parts = zip(
            states.flatten(0, len(lead) - 1).split(many),
            wanted.flatten(0, len(lead) - 1).split(many),
            strict=True,
        )
        return torch.cat([self._score(*part) for part in parts]).reshape(wanted.shape)

    @property
    def _width(self) -> int:
        return self.unary.shape[-1]

    def _score(self, states: Tensor, wanted: Tensor) -> Tensor:
        every = torch.arange(self._width, device=states.device)
        alone = torch.where(states.unsqueeze(-1) == every, self.unary, -math.inf)
        bound = self._bind({UNARY: alone} if self._has_sites else None, double=True)
        return bound.log_sum_of_most(UNARY, wanted).to(self.unary)

    # ---- the best, and draws ----

    @torch.no_grad()
    def max_marginals(self) -> Tensor:
        """(*batch, *sites, states) the best score with each state of each site; -inf: none.

        Not differentiable.
        """
        if not self._has_sites:
            return self.unary
        return self._bind().max_marginals(UNARY)[UNARY].to(self.unary)

    def mode(self) -> Tensor:
        """(*batch, *sites) the states of one best derivation, -1 at unused sites.

        Raises:
            ImpossibleEvidenceError: an item has none.
        """
        return self._states(None, None)[0]

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, *sites) independent exact draws, as `mode` gives its configuration.

        Raises:
            ImpossibleEvidenceError: an item has none.
        """
        require_generator(generator)
        return self._states(checked_count(count, self.states_shape), generator)

    @torch.no_grad()
    def _states(self, count: int | None, generator: torch.Generator | None) -> Tensor:
        """(draws, *batch, *sites) the states in derivations; None: in the best."""
        bound = self._bind(ranks=count is not None)
        if UNARY in bound.program.by_name:
            states, score = bound.states_of(UNARY, count, generator)
        else:
            score = bound.log_partition()
            states = torch.zeros(1 if count is None else count, *self.states_shape).long()
        if not lowest(score) > -math.inf:
            require_possible(f"{self.name} has no samples and no mode", score > -math.inf)
        return states

    def k_best(self, k: int) -> KBestConfigurations:
        """The k best derivations, best first; the scores are differentiable.

        Those of float32 are found in float32, and put in the order of their scores in float64.

        Raises:
            ModelError: k below 1.
        """
        k, bound = checked_best(self.name, k, self.states_shape), self._bind()
        if UNARY in bound.program.by_name:
            states, scores = bound.k_best_states_of(UNARY, k)
        else:
            states, scores = self.unary.new_zeros(k, *self.states_shape).long(), bound.k_best(k)[1]
        return KBestConfigurations(states, scores.to(self.unary))

    @by_autograd
    def rsample(
        self, count: int, *, temperature: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """(count, *batch, *sites, states) relaxed draws, differentiable.

        Of a chain, whose rules are those of the example of `Chain`, in which each site is linked to
        the one before it by one table or by one for each step, they are those of `Chain.rsample`,
        whose argmaxes are exact draws. Others are a stochastic softmax: marginals at a temperature
        of the model with Gumbel noise on every state. As the temperature falls to 0 they become the
        best configuration of the noisy model, which is not an exact draw (Paulus et al. 2020,
        arXiv:2006.08063).

        Raises:
            ModelError: a temperature that is not above 0.
        """
        chain = self._as_chain()
        if chain is not None:
            count = checked_count(count, self.unary.shape)
            drawn = paths.relaxed(chain, count, temperature, generator).to(self.unary)
            return drawn.reshape(count, *self.unary.shape)
        noisy = perturbed(self.unary, count, temperature, generator)
        if not self._has_sites:
            return noisy
        bound = self._bind(double=True)
        logs = bound.logs()

        def log_partition(unary: Tensor) -> Tensor:
            scaled = {name: x / temperature for name, x in (logs | {UNARY: unary}).items()}
            return temperature * bound.with_inputs(**scaled).log_partition()

        _, (gradient,) = expectations(log_partition, [noisy], tracked=is_tracked(self))
        return gradient

    def _as_chain(self) -> ChainTensors | None:
        """The chain that this is, by a transition (N, N) or (1 or B, 1 or T - 1, N, N); or None."""
        found = chain_parts(self.program)
        if found is None or not all(self.unary.shape[-2:]):
            return None
        links, ends = found
        bound, batch = self._bind(), math.prod(self.batch_shape)
        unary, table = bound.given[UNARY].reshape(batch, *self.unary.shape[-2:]), bound.given[links]
        dims = next(len(one.dims) for one in self.program.inputs if one.name == links)
        lead = table.shape[: table.ndim - dims]
        if math.prod(lead) > 1:
            table = table.expand(*self.batch_shape, *table.shape[len(lead) :])
        table = table.reshape(max(1, math.prod(table.shape[:-dims])), -1, *table.shape[-2:])
        if not table.numel():
            return None
        lengths = bound.given.get(ends)
        if lengths is None:
            lengths = torch.full(self.batch_shape, unary.shape[1], device=unary.device)
        lengths = lengths.expand(self.batch_shape).reshape(batch)
        return Parts(unary, table[0, 0] if table.shape[:2] == (1, 1) else table, lengths)

    # ---- a few states ----

    def restrict(self, states: Tensor, log_weights: Tensor) -> "RestrictedRecurrence":
        """The recurrence on some states of each site, with weights, as estimators solve it.

        A derivation uses a site once at most, so Z is unbiased if the weights of each site are.

        Args:
            states: (*replicates, *batch, *sites, kept); repeats stay separate.
            log_weights: of that shape; added to the potentials.

        Raises:
            ModelError: shapes that do not fit, or a state out of range.
        """
        unary = gathered(self.name, self.unary, states, log_weights, sites=self._dims)
        return RestrictedRecurrence(unary, states, self)

    def sites(self) -> Sites | None:
        """The sites that a derivation of an item may use; others have -inf.

        A state's mean factor value is the mean of the inputs that are read at it, over random
        states at their other indices.
        """
        if not self._has_sites:
            return None
        # Whatever the potentials, so that those of one item are as good as those of all.
        blank = self.unary.new_zeros(self.unary.shape[len(self.batch_shape) :])
        best = self._bind({UNARY: blank}, double=True).max_marginals(UNARY)[UNARY]
        unary = torch.where(best > -math.inf, self.unary, -math.inf)
        return Sites(unary, restrict=self.restrict, means=self._means)

    @torch.no_grad()
    def _means(self, landmarks: int, generator: torch.Generator | None) -> Tensor:
        bound, total = self._bind(), torch.zeros_like(self.unary[..., :1, :])
        for read, place in label_sites(self.name, *self.written()):
            values = bound.given[read.array].to(self.unary)
            lead = values.ndim - len(read.index)
            for dim in range(lead, values.ndim):
                size = values.shape[dim]
                if dim != lead + place and size > landmarks:
                    source = values.device if generator is None else generator.device
                    some = torch.randint(size, (landmarks,), generator=generator, device=source)
                    values = values.index_select(dim, some.to(values.device))
            others = [dim for dim in range(lead, values.ndim) if dim != lead + place]
            sizes = math.prod(values.shape[dim] for dim in others)
            means = values.logsumexp(others) - math.log(max(sizes, 1)) if others else values
            total = total + means.reshape(*means.shape[:-1], *[1] * self._dims, self._width)
        return total

    def work(self) -> float:
        bound = self._bind(ranks=True)
        program, sizes = bound.program, bound.sizes
        ranges = {name: max(0, size.evaluate(sizes)) for name, size in program.ranges.items()}
        axes = {table.name: table.axes for table in program.tables}
        many = list[int]()
        for rule in program.rules:
            # All rows of a list together are as long as the list.
            rows = frozenset[str]().union(*(row.at.names for row in rule.rows))
            names = {*axes[rule.table], *rule.over} - rows
            many.append(math.prod(ranges[name] for name in names))
        return float(sum(many)) * max(1, math.prod(self.batch_shape))

    def by_input(self) -> Bound:
        """The answers for all inputs: how often derivations use each entry of each of them.

        As ``segments.by_input().marginals()["transition"]``, the expected number of transitions.
        """
        return self._bind(whole=[*self.inputs()])


@dataclass(frozen=True, eq=False)
class RestrictedRecurrence(Recurrence):
    """A recurrence on some states of each site, numbered 0..K-1, made by `Recurrence.restrict`.

    Potentials are (*lead, *sites, K), weights included; the original's batch dims end the lead.
    """

    states: Tensor = field(metadata={"dims": "unary"})  # (*lead, *sites, K); repeats are separate
    original: Recurrence = field(repr=False)

    def __post_init__(self) -> None:
        """Skip the checks, which the original has passed."""

    @property
    def name(self) -> str:
        return self.original.name

    @property
    def _is_double(self) -> bool:
        return self.original._is_double

    def written(self) -> tuple[Declared, str]:
        return self.written_for()

    def written_for(self, *, ranks: bool = False, kept: bool = True) -> tuple[Declared, str]:
        return restrict_rules(self.name, *self.original.written_for(ranks=ranks, kept=kept))

    def inputs(self) -> Mapping[str, Any]:
        given = {**self.original.inputs(), UNARY: self.unary, STATES: self.states}
        if any(name == SAME for name, _ in self.written()[0]):
            states = self.original.unary.shape[-1]
            same = torch.eye(states, dtype=self.unary.dtype, device=self.unary.device)
            given[SAME] = same.log()
        return given

    def restrict(self, states: Tensor, log_weights: Tensor) -> Self:
        """The recurrence on some of the states kept."""
        unary = gathered(self.name, self.unary, states, log_weights, sites=self._dims)
        kept = self.states.expand(*states.shape[:-1], -1).gather(-1, states)
        return replace(self, unary=unary, states=kept)


@dataclass(frozen=True, eq=False)
class _Checked:
    """A recurrence with its tensors as they were checked; neither pickled nor copied deeply."""

    written: tuple[Declared, str]
    bound: Bound

    def serves(self, written: tuple[Declared, str], given: Mapping[str, Any]) -> bool:
        """Return whether it is that of some rules and inputs; checks data that were written to."""
        bound = self.bound
        if written != self.written or any(
            given.get(name) is not value for name, value in bound.given.items()
        ):
            return False
        bound.check_again()
        return True

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


@functools.lru_cache(maxsize=256)
def chain_parts(program: Program) -> tuple[str, str] | None:
    """The inputs that are a chain's transition and its ends, a size or lengths; None for others.

    Recurrences that are chains get what chains have beyond rules, such as low rank. The rules are,
    by other names, those of the example of `Chain`, or with ``links[t - 1, m, n]``.
    """
    (goal, *others), inputs = program.goals, [array.name for array in program.inputs]
    states = [table for table in program.tables if table.name != goal.array]
    ends = [at for at in goal.index if isinstance(at, Affine)]
    if others or len(states) != 1 or len(states[0].axes) != 2 or len(ends) != 1:
        return None
    a, (t, n), end = states[0].name, states[0].axes, ends[0]
    last = next(one.axes[0] for one in program.tables if one.name == goal.array)
    # Every rule as text, with its sum and conditions, compared with those of a chain.
    found = {
        (rule.table, frozenset(map(str, rule.factors)), len(rule.over), rule.guards, rule.equal)
        for rule in program.rules
    }
    for m, links in itertools.product(program.labels, inputs):
        for read in (f"{links}[{m}, {n}]", f"{links}[{t} - 1, {m}, {n}]"):
            begun = (a, frozenset([f"{UNARY}[0, {n}]"]), 0, (), (Affine.of(t),))
            way = frozenset([f"{a}[{t} - 1, {m}]", read, f"{UNARY}[{t}, {n}]"])
            summed = (goal.array, frozenset([f"{a}[{last}, {n}]"]), 1, (), ())
            if found == {begun, (a, way, 1, (), ()), summed} and end.constant == -1:
                return links, end.terms[0][0]
    return None


def _is_asked(potential: Any) -> bool:
    """Return whether a potential can be evaluated at some states in less than its table."""
    known = isinstance(potential, Potential) and not isinstance(potential, Table)
    return known and (len(potential.shape) == 2 or isinstance(potential, Sharded))


def _shaped(potential: Potential) -> Tensor:
    """Zeros in the shape of a potential, which take no memory."""
    zero = torch.zeros((), dtype=potential.dtype, device=potential.device)
    return zero.expand(potential.shape)


def _program_of_sites(owner: str, declared: Declared, rules: str) -> Program:
    """The program of some rules, none of which uses a site twice."""
    program = program_of(owner, declared, rules)
    _site_dims(program)
    return program


@functools.lru_cache(maxsize=256)
def _site_dims(program: Program) -> int:
    """How many dims the sites have; ModelError where a rule uses one twice."""
    for rule in program.rules:
        sites = [read.index[:-1] for read in rule.factors if read.array == UNARY]
        if len({*sites}) < len(sites):
            raise ModelError(
                f"{program.name}: a derivation uses each site of {UNARY} once at most, and "
                f"{rule.text} reads one twice; read one of the two from another input."
            )
    found = program.by_name.get(UNARY)
    return len(found.dims) - 1 if isinstance(found, Array) else 1


@functools.lru_cache(maxsize=256)
def _arguments(kind: type[Recurrence]) -> tuple[str, ...]:
    """The names of the arguments, in the order of the class."""
    names = [name for name in field_names(kind) if kind.__dataclass_fields__[name].init]
    first = [name for name, _ in kind.declared if name in names]
    return (*first, *(name for name in names if name not in first))


def _make_fields(cls: type, declared: Mapping[str, Input | Lengths]) -> None:
    """Turn what a class declares into fields of a dataclass."""
    annotations = get_annotations(cls)
    for name, one in declared.items():
        if name != UNARY and hasattr(Recurrence, name):
            raise ModelError(
                f"{cls.__name__}: {name} is a method of every recurrence; give the input another "
                "name."
            )
        dims = len(one.dims.split()) if isinstance(one, Input) else 0
        annotations[name] = Tensor | Potential | None
        whole = field(default=None, metadata={"dims": dims})
        setattr(cls, name, whole)
    if UNARY not in dict(cls.declared):
        annotations[UNARY] = Tensor
        setattr(cls, UNARY, field(init=False, repr=False))
    cls.__annotations__ = annotations


def _checked_states(model: Recurrence, states: Tensor) -> Tensor:
    """Configurations (*lead, *batch, *sites) to be scored."""
    states, shape = as_states(f"A configuration of {model.name}", states), tuple(model.unary.shape)
    lead = states.ndim - len(shape) + 1
    if lead < 0 or tuple(states.shape[lead:]) != shape[:-1] or states.dtype != torch.long:
        raise EvidenceError(
            f"{model.name} needs configurations (*lead, *{shape[:-1]}) of int64; got "
            f"{tuple(states.shape)} of {states.dtype}."
        )
    if states.numel() and not -1 <= int(states.min()) <= int(states.max()) < shape[-1]:
        raise EvidenceError(
            f"{model.name} has states 0 to {shape[-1] - 1}, and -1 for a site that is "
            f"not used; got {int(states.min())} to {int(states.max())}."
        )
    return states
