"""Kernels and inducing points of each label, where they differ."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.gp.inducing import Basis, Group, chosen
from rdpgraph.gp.kernels import Features, Kernel


class LabelBases(Basis):
    """Inducing points and a kernel for each label; `points` and `kernel` are the first one's."""

    def __init__(self, bases: Sequence[Basis]) -> None:
        super().__init__(bases[0].points, bases[0].kernel, bases[0].nugget)
        self.bases = list(bases)

    def kernels(self) -> list[Kernel]:
        return [one.kernel for one in self.bases]

    def forget(self) -> None:
        for one in self.bases:
            one.forget()

    def root(self) -> list[Tensor]:
        return [one.root() for one in self.bases]

    def conditional(self, group: Group) -> Any:
        return tuple(b.conditional(part) for b, part in zip(self.bases, group.each, strict=True))

    def reused(self, group: Group, root: Any = None) -> Any:
        roots: list[Any] = [None] * len(self.bases) if root is None else root
        parts = zip(self.bases, group.each, roots, strict=True)
        return tuple(one.reused(part, given) for one, part, given in parts)

    def group(
        self,
        places: list[int],
        features: Sequence[Features],
        states: Sequence[Tensor] | None,
        edges: Sequence[Tensor] | None,
    ) -> Group:
        first = super().group(places, features, states, edges)
        some = [features[place] for place in places]
        each = (replace(first, cross=one.cross(some, first.cross.left)) for one in self.bases)
        return replace(first, each=tuple(each))


def bases_of(
    labels: Sequence[Hashable], kernel: Any, inducing: Any, everything: Features, nugget: float
) -> list[Basis]:
    """Bases given a kernel and points, or dicts of them by labels; one that all share."""
    for name, given in (("kernel", kernel), ("inducing", inducing)):
        if isinstance(given, Mapping) and set(given) != set(labels):  # pyright: ignore[reportUnknownArgumentType]
            raise ModelError(
                f"StructuredGP needs {name} for each of the labels {tuple(labels)!r:.80}; got "
                f"{tuple(given)!r:.80}."
            )
    apart = isinstance(kernel, Mapping) or isinstance(inducing, Mapping)
    bases = list[Basis]()
    for label in labels if apart else labels[:1]:
        one: Any = kernel[label] if isinstance(kernel, Mapping) else kernel
        points: Any = inducing[label] if isinstance(inducing, Mapping) else inducing
        if not isinstance(one, Kernel):
            raise ModelError(f"StructuredGP needs a Kernel for each label; got {one!r:.80}.")
        one = one.to(everything.device)
        bases.append(Basis(points_of(everything, points, one), one, nugget))
    most = max(one.points.rows for one in bases)
    return [replace(one, width=most) for one in bases]


def points_of(everything: Features, given: Any, kernel: Kernel) -> Features:
    """Inducing points: a number of all positions, chosen by their variances, or those given."""
    if given is None or isinstance(given, int):
        count = everything.rows if given is None else given
        if count < 1:
            raise ModelError(f"StructuredGP needs 1 inducing point or more; got {count}.")
        return everything[chosen(everything, kernel, count)]
    points = Features.of(given, "inducing", dtype=torch.float64)
    if points.columns != everything.columns or not points.rows:
        raise ModelError(
            f"Inducing points need {everything.columns} features, as the sequences; got "
            f"{tuple(points.matrix.shape)}."
        )
    return points
