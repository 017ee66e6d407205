"""A conditional random field as a layer, and the schemes BIO and BIOES as hard zeros."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias, cast, get_args

import torch
from torch import Tensor, nn

from rdpgraph._core.arguments import typed
from rdpgraph._core.compiler import operator
from rdpgraph._core.masked import present
from rdpgraph._core.numbers import is_whole, lowest
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.structures.chain.model import Chain
from rdpgraph.structures.chain.parts import inside


@dataclass(frozen=True, eq=False)
class Constraints:
    """The tags that may begin a sequence, follow each other, and end it.

    Attributes:
        start: (tags,) bool.
        transitions: (tags, tags) bool, [from, to].
        end: (tags,) bool.

    Raises:
        ModelError: shapes that do not fit, or tensors that are not of bools.
    """

    start: Tensor
    transitions: Tensor
    end: Tensor

    def __post_init__(self) -> None:
        tags = tuple(getattr(self.transitions, "shape", ())[:1])
        for name, shape in (("start", tags), ("transitions", 2 * tags), ("end", tags)):
            given, kind = getattr(self, name), getattr(getattr(self, name), "dtype", None)
            if kind != torch.bool or tuple(given.shape) != shape or not tags:
                raise ModelError(
                    "Constraints need tensors of bools, (tags,), (tags, tags) and (tags,); got "
                    f"{name} {_shown(given)} of {kind}."
                )


@typed()
def bio_constraints(labels: Sequence[str]) -> Constraints:
    """The constraints of the scheme BIO: I-x only after B-x or I-x.

    Args:
        labels: the labels in the order of the tags, such as ``["O", "B-PER", "I-PER"]``; "O" or
            a letter of the scheme, a hyphen and a kind (or the letter alone, if there is one kind).

    Raises:
        ModelError: a label of another form, or one that is there twice.

    Example:
        >>> allowed = bio_constraints(["O", "B-PER", "I-PER"])
        >>> allowed.start
        tensor([ True,  True, False])
        >>> allowed.transitions  # [from, to]
        tensor([[ True,  True, False],
                [ True,  True,  True],
                [ True,  True,  True]])
    """
    parts = _parts(labels, "BIO")
    inside = torch.tensor([letter == "I" for letter, _ in parts])
    same = [[letter != "O" and one == other for _, other in parts] for letter, one in parts]
    return Constraints(~inside, ~inside | torch.tensor(same), torch.ones_like(inside))


@typed()
def bioes_constraints(labels: Sequence[str]) -> Constraints:
    """The constraints of the scheme BIOES: segments are S-x alone, or B-x, any I-x, and E-x.

    Args:
        labels: as for `bio_constraints`.

    Raises:
        ModelError: a label of another form, or one that is there twice.

    Example:
        >>> allowed = bioes_constraints(["O", "B-PER", "I-PER", "E-PER", "S-PER"])
        >>> allowed.end
        tensor([ True, False, False,  True,  True])
    """
    parts = _parts(labels, "BIOES")
    # Between two tags a segment of some kind is open, or none.
    before = [kind if letter in ("I", "E") else None for letter, kind in parts]
    after = [kind if letter in ("B", "I") else None for letter, kind in parts]
    meets = torch.tensor([[left == right for right in before] for left in after])
    return Constraints(
        torch.tensor([kind is None for kind in before]),
        meets,
        torch.tensor([kind is None for kind in after]),
    )


def _parts(labels: Sequence[str], letters: str) -> list[tuple[str, str]]:
    """Letters and kinds of labels; a letter alone has the empty kind."""
    if isinstance(labels, str) or not labels:
        raise ModelError(f"{letters} labels must be a list of one or more; got {labels!r:.80}.")
    parts: list[tuple[str, str]] = []
    for label in labels:
        letter, hyphen, kind = str(label).partition("-")
        if letter not in tuple(letters) or bool(hyphen) != bool(kind) or (letter == "O" and kind):
            forms = ", ".join(f'"{one}-x"' for one in letters if one != "O")
            raise ModelError(f'{letters} labels must be "O" or {forms}; got {label!r:.80}.')
        if (letter, kind) in parts:
            raise ModelError(
                f"{letters} labels must differ from each other; got {label!r:.80} twice."
            )
        parts.append((letter, kind))
    return parts


_PARTS = tuple(part.name for part in fields(Constraints))
Reduction: TypeAlias = Literal["none", "sum", "mean", "token_mean"]


class Transitions(nn.Module):
    """Base of layers with scores of tags that begin a sequence, follow each other and end it."""

    _allowed_start: Tensor | None
    _allowed_transitions: Tensor | None
    _allowed_end: Tensor | None

    def __init__(
        self,
        num_tags: int,
        batch_first: bool = False,  # noqa: FBT001, FBT002
        *,
        constraints: Constraints | None = None,
    ) -> None:
        name = f"A {type(self).__name__}"
        if not is_whole(num_tags, 1):
            raise ModelError(f"{name} needs one tag or more; got num_tags={num_tags!r:.80}.")
        if not isinstance(cast(object, constraints), Constraints | None):
            raise ModelError(
                f"{name} needs constraints as bio_constraints(labels) gives them; got "
                f"{type(constraints).__name__}."
            )
        if constraints is not None and len(constraints.start) != num_tags:
            raise ModelError(
                f"{name} of {num_tags} tags needs constraints of as many; got some of "
                f"{len(constraints.start)}."
            )
        super().__init__()
        for part in _PARTS:
            allowed = None if constraints is None else getattr(constraints, part)
            # Not in checkpoints, which match pytorch-crf's.
            self.register_buffer(f"_allowed_{part}", allowed, persistent=False)
        self.num_tags = num_tags
        self.batch_first = batch_first
        self.start_transitions = nn.Parameter(torch.empty(num_tags))
        self.end_transitions = nn.Parameter(torch.empty(num_tags))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter again, uniform between -0.1 and 0.1."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def extra_repr(self) -> str:
        return f"num_tags={self.num_tags}, batch_first={self.batch_first}"

    def _scores(
        self, emissions: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """Emissions with the batch first, scores of start, transitions and end, and the mask.

        All of one type; forbidden tags have -inf.
        """
        emissions, mask = present("emissions", emissions), present("mask", mask)
        given: object = emissions
        if not isinstance(given, Tensor) or given.ndim != 3 or given.shape[-1] != self.num_tags:
            order = "batch, steps" if self.batch_first else "steps, batch"
            raise ModelError(
                f"emissions must be ({order}, {self.num_tags}); got {_shown(emissions)}."
            )
        if mask is not None:
            self._require_steps("mask", mask, emissions)
        if not self.batch_first:
            emissions = emissions.transpose(0, 1)
            mask = None if mask is None else mask.t()
        dtype = torch.promote_types(emissions.dtype, self.transitions.dtype)
        # A likelihood is a difference of scores, which half precision would round to whole nats.
        dtype = torch.promote_types(dtype, torch.float32)

        def allowed(given: Tensor, kept: Tensor | None) -> Tensor:
            given = given.to(dtype)
            return given if kept is None else torch.where(kept, given, -math.inf)

        return (
            emissions.to(dtype),
            allowed(self.start_transitions, self._allowed_start),
            allowed(self.transitions, self._allowed_transitions),
            allowed(self.end_transitions, self._allowed_end),
            mask,
        )

    def _require_steps(self, name: str, given: object, emissions: Tensor) -> None:
        """Check that a mask or tags have the batch and the steps of emissions, in one order."""
        shape = emissions.shape[:2]
        if isinstance(given, Tensor) and given.shape == shape:
            return
        hint = ""
        if isinstance(given, Tensor) and given.shape == shape[::-1]:
            order = "(batch, steps)" if self.batch_first else "(steps, batch)"
            hint = (
                f", which is the other order. With batch_first={self.batch_first} both are "
                f"{order}: exchange the dims of one, or give the layer another batch_first"
            )
        raise ModelError(
            f"{name} must be a tensor of the first two dimensions of emissions, {tuple(shape)}; "
            f"got {_shown(given)}{hint}."
        )


class CRF(Transitions):
    """Scores whole sequences of tags, where a linear layer scores each tag by itself.

    Names, arguments, parameters and their initial values are those of ``torchcrf.CRF`` of the
    package pytorch-crf: swap the import, load the checkpoint. Beside `forward` and `decode` there
    are `marginals`, `entropy` and `chain`, which has the rest: k best, samples, divergences.

    Scores are in nats and may be any real numbers. Emissions are (steps, batch, tags), and tags
    and masks (steps, batch); with ``batch_first`` the batch comes first everywhere. A mask is on
    for the steps that count: from the first, without gaps. Lafferty, McCallum and Pereira (2001),
    *Conditional random fields*.

    Example:
        >>> import torch
        >>> from rdpgraph.nn import CRF
        >>> crf = CRF(3, batch_first=True)
        >>> emissions = torch.tensor([[[9.0, 0.0, 0.0], [0.0, 0.0, 9.0], [0.0, 9.0, 0.0]]])
        >>> crf.decode(emissions)
        [[0, 2, 1]]
        >>> crf(emissions, torch.tensor([[0, 2, 1]])).exp() > 0.99
        tensor(True)

    Args:
        num_tags: number of tags.
        batch_first: True for the batch as the first dimension.
        constraints: on the first tag, neighbours and the last tag, as by `bio_constraints` and
            `bioes_constraints`; forbidden sequences have probability zero, and log-likelihood
            -inf.

    Attributes:
        start_transitions: (tags,) scores of the first tag.
        end_transitions: (tags,) scores of the last tag.
        transitions: (tags, tags) scores of neighbours, [from, to].

    Raises:
        ModelError: no tags, or constraints of another number of them.
    """

    def forward(
        self,
        emissions: Tensor,
        tags: Tensor,
        mask: Tensor | None = None,
        reduction: Reduction = "sum",
    ) -> Tensor:
        """Log-likelihood of tags in nats: the loss of training is its negative.

        Args:
            emissions: (steps, batch, tags) scores.
            tags: (steps, batch) tags; those beyond the mask are not read.
            mask: (steps, batch) which steps count; default all.
            reduction: ``"none"`` gives (batch,); ``"sum"`` and ``"mean"`` are over the batch;
                ``"token_mean"`` divides the sum by the number of steps that count.

        Raises:
            ModelError: shapes, a mask or a reduction that do not fit.
            EvidenceError: a tag that is out of range.
        """
        scores = self._scores(emissions, mask)
        emissions, tags = present("emissions", emissions), present("tags", tags, EvidenceError)
        self._require_steps("tags", tags, emissions)
        given = [*scores[:4], tags if self.batch_first else tags.t(), scores[4]]
        log_likelihood = _log_likelihood(*(each for each in given if each is not None))
        steps = tags.numel() if mask is None else mask.bool().sum()
        return reduced(log_likelihood, reduction, steps)

    def decode(self, emissions: Tensor, mask: Tensor | None = None) -> list[list[int]]:
        """The best sequence of tags of each item, as long as its mask; O(T N^2) each."""
        with torch.no_grad():
            chain = self.chain(emissions, mask)
            rows: list[list[int]] = chain.mode().tolist()
        if chain.lengths is None:
            return rows
        lengths: list[int] = chain.lengths.tolist()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def marginals(self, emissions: Tensor, mask: Tensor | None = None) -> Tensor:
        """Probabilities of every tag at every step, of the shape of emissions; 0 beyond the mask.

        Differentiable.
        """
        marginals = self.chain(emissions, mask).marginals()
        return marginals if self.batch_first else marginals.transpose(0, 1)

    def entropy(self, emissions: Tensor, mask: Tensor | None = None) -> Tensor:
        """(batch,) entropies in nats of the whole sequences; differentiable."""
        return self.chain(emissions, mask).entropy()

    def exportable(self) -> "UnrolledCRF":
        """A module of plain torch for `torch.export` and ONNX: the best tags and log Z.

        ``exportable()(emissions, mask)`` gives tags of the shape of the mask, which is not
        optional, -1 beyond it, and log Z (batch,). Any mask is right: steps where it is off are
        left out, as if those that are on were packed, which the layer itself asks for; without any
        step log Z is 0. An item without a possible sequence has tags -1 and log Z -inf. The present
        scores become constants. Steps are unrolled: a program serves the shapes that it was
        exported with.

        Example:
            >>> crf = CRF(3).exportable()
            >>> inputs = torch.randn(4, 2, 3), torch.ones(4, 2, dtype=torch.bool)
            >>> program = torch.export.export(crf, inputs)
            >>> tags, log_z = program.module()(*inputs)
            >>> tags.shape, log_z.shape
            (torch.Size([4, 2]), torch.Size([2]))
        """
        scores = self._scores(self.transitions.unsqueeze(0), None)
        return UnrolledCRF(*scores[1:4], batch_first=self.batch_first)

    def chain(self, emissions: Tensor, mask: Tensor | None = None) -> Chain:
        """The distribution over sequences as a `Chain`, which has the batch first.

        Raises:
            ModelError: shapes or a mask that do not fit.
        """
        return _chain(*self._scores(emissions, mask))


class UnrolledCRF(nn.Module):
    """The best tags and log Z of a CRF in plain torch; a trace serves all inputs of one shape."""

    start: Tensor
    transitions: Tensor
    end: Tensor

    def __init__(self, *scores: Tensor, batch_first: bool) -> None:
        super().__init__()
        for name, part in zip(_PARTS, scores, strict=True):
            self.register_buffer(name, part.detach().clone())
        self.batch_first = batch_first

    def forward(self, emissions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The best tags, -1 beyond the mask, and log Z (batch,), as said in `CRF.exportable`.

        Emissions are (batch, steps, tags) and masks (batch, steps).

        Of an item whose kept steps are t1 < t2 < ... the scores of its k-th one are, for each tag,

            best[k] = max over the tag before of (best[k - 1] + transitions) + emissions[tk],

        with best[1] = start + emissions[t1], and the end scores are added to those of the last
        step; soft maxima in place of maxima give log Z. Other steps change nothing, and may hold
        any numbers.
        """
        emissions, mask = present("emissions", emissions), present("mask", mask)
        if self.batch_first:
            emissions, mask = emissions.transpose(0, 1), mask.t()
        mask = mask.bool()
        total = best = self.start.expand(emissions.shape[1:])
        begun = torch.zeros_like(mask[0]).unsqueeze(-1)  # whether an item has had a kept step
        same = torch.arange(emissions.shape[-1], device=emissions.device).expand(best.shape)
        before: list[Tensor] = []
        for scores, here in zip(emissions, mask.unsqueeze(-1), strict=True):
            highest, tag = (best.unsqueeze(-1) + self.transitions).max(1)
            summed = soft_sum(total.unsqueeze(-1) + self.transitions, 1)
            before.append(torch.where(here & begun, tag, same))
            best = torch.where(here, torch.where(begun, highest, best) + scores, best)
            total = torch.where(here, torch.where(begun, summed, total) + scores, total)
            begun = begun | here
        score, last = (best + self.end).max(-1)
        tags = [last]
        for step in before[:0:-1]:
            tags.append(step.gather(1, tags[-1].unsqueeze(1)).squeeze(1))
        chosen = torch.where(mask & (score > -math.inf), torch.stack(tags[::-1]), -1)
        # The sum over the one sequence of no steps is that of its empty product.
        log_z = torch.where(begun.squeeze(-1), soft_sum(total + self.end, 1), 0.0)
        return chosen.t() if self.batch_first else chosen, log_z


def _chain(
    emissions: Tensor, start: Tensor, transitions: Tensor, end: Tensor, mask: Tensor | None
) -> Chain:
    lengths = None if mask is None or bool(mask.all()) else lengths_of(mask)
    return Chain.crf(emissions, transitions, start=start, end=end, lengths=lengths)


def _of_tags(
    emissions: Tensor, start: Tensor, transitions: Tensor, end: Tensor, tags: Tensor,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return _chain(emissions, start, transitions, end, mask).log_prob(tags)


_log_likelihood = operator("crf", _of_tags)


def lengths_of(mask: Tensor) -> Tensor:
    """(batch,) steps that count, of a mask (batch, steps)."""
    mask = mask.bool()
    lengths = mask.sum(1)
    if lowest(lengths) > 0 and torch.equal(mask, inside(lengths, mask.shape[1])):
        return lengths
    # A mask in the other order, as where batch_first is forgotten, often has gaps in this one.
    exchanged, hint = mask.t(), ""
    if bool(exchanged[:, :1].all()) and torch.equal(exchanged, inside(mask.sum(0), len(mask))):
        hint = (
            " The mask would be valid with batch and steps exchanged: check the order of its dims, "
            "and batch_first of a CRF."
        )
    if not mask[:, :1].all():
        what = "mask must be True at the first step of every item: leave out empty items."
    else:
        what = "mask must have no gaps: once off, an item stays off; pack its steps."
    raise ModelError(f"{what}{hint}")


def reduced(log_likelihood: Tensor, reduction: Reduction, steps: Tensor | int) -> Tensor:
    """Reduce (batch,) log-likelihoods to a loss; ``steps`` is the number of steps that count."""
    if reduction not in get_args(Reduction):
        raise ModelError(
            f"reduction must be 'none', 'sum', 'mean' or 'token_mean'; got {reduction!r:.80}."
        )
    if reduction == "none":
        return log_likelihood
    if reduction == "mean":
        return log_likelihood.mean()
    return log_likelihood.sum() / (steps if reduction == "token_mean" else 1)


def _shown(given: object) -> str:
    return str(tuple(given.shape)) if isinstance(given, Tensor) else f"{given!r:.80}"
