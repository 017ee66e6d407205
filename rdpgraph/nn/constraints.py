"""Which sequences of labels spell segments: the schemes BIO and BIOES as hard zeros."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from rdpgraph.errors import ModelError


@dataclass(frozen=True, eq=False)
class Constraints:
    """Which tags may begin a sequence, follow each other, and end it.

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
        if not all(isinstance(getattr(self, own.name), Tensor) for own in fields(self)):
            raise ModelError(f"Constraints need three tensors of bools; got {self!r:.80}.")
        tags = tuple(self.transitions.shape[:1])
        shapes = {"start": tags, "transitions": 2 * tags, "end": tags}
        for name, shape in shapes.items():
            given: Tensor = getattr(self, name)
            if given.dtype != torch.bool or tuple(given.shape) != shape or not tags:
                raise ModelError(
                    "Constraints need bools of shapes (tags,), (tags, tags) and (tags,); got "
                    f"{name} of shape {tuple(given.shape)}, {given.dtype}."
                )


def bio_constraints(labels: Sequence[str]) -> Constraints:
    """What the scheme BIO allows: an I-x only after a B-x or an I-x.

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


def bioes_constraints(labels: Sequence[str]) -> Constraints:
    """What the scheme BIOES allows: segments are S-x alone, or B-x, any I-x, and E-x.

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
    # Between two tags a segment is open, of one kind, or there is none.
    before = [kind if letter in ("I", "E") else None for letter, kind in parts]
    after = [kind if letter in ("B", "I") else None for letter, kind in parts]
    meets = torch.tensor([[left == right for right in before] for left in after])
    return Constraints(
        torch.tensor([kind is None for kind in before]),
        meets,
        torch.tensor([kind is None for kind in after]),
    )


def _parts(labels: Sequence[str], letters: str) -> list[tuple[str, str]]:
    """Letters and kinds; the kind of a letter alone is empty."""
    if isinstance(labels, str) or not labels:
        raise ModelError(f"{letters} labels are a list of one or more; got {labels!r:.80}.")
    parts: list[tuple[str, str]] = []
    for label in labels:
        letter, hyphen, kind = str(label).partition("-")
        if letter not in tuple(letters) or bool(hyphen) != bool(kind) or (letter == "O" and kind):
            forms = ", ".join(f'"{one}-x"' for one in letters if one != "O")
            raise ModelError(f'{letters} labels are "O" or {forms}, x a kind; got {label!r:.80}.')
        if (letter, kind) in parts:
            raise ModelError(f"{letters} labels differ from each other; got {label!r:.80} twice.")
        parts.append((letter, kind))
    return parts
