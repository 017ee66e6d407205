"""Sequences made ready: padded batches, and the functions at their positions."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rdpgraph.gp.features import Features, Products
from rdpgraph.gp.inducing import Conditional, conditional, root_of
from rdpgraph.gp.kernels import Kernel
from rdpgraph.gp.labelling import Labelling


@dataclass(frozen=True, eq=False)
class Group:
    """Sequences of like lengths, padded to one.

    Attributes:
        places: of the sequences among all.
        labels: of the sequences.
        cross: products of their positions (B, T) with the M inducing points.
        within: products of the positions of each sequence with each other.
    """

    places: list[int]
    labels: Labelling
    cross: Products
    within: Products


@dataclass(eq=False)
class Basis:
    """Inducing points, and what is known of the functions between them.

    What hyperparameters change is recomputed where gradients reach them, and kept otherwise.

    Args:
        points: features of the inducing points.
        kernel: of the functions.
        nugget: variance of independent noise at every position.
    """

    points: Features
    kernel: Kernel
    nugget: float
    _products: Products = field(init=False, repr=False)
    _reused: dict[int, tuple[Group, Conditional]] = field(init=False, repr=False)
    _root: Tensor | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        self._products = self.points.products(self.points)
        self._reused = {}

    def forget(self) -> None:
        """The hyperparameters have changed."""
        self._reused.clear()
        self._root = None

    def root(self) -> Tensor:
        """(M, M) the Cholesky factor of the covariance at the inducing points."""
        if torch.is_grad_enabled() and any(one.requires_grad for one in self.kernel.parameters()):
            return root_of(self.kernel(self._products))
        if self._root is None:
            with torch.no_grad():
                self._root = root_of(self.kernel(self._products))
        return self._root

    def conditional(self, group: Group) -> Conditional:
        """The functions at the positions of a group, given those at the points; once."""
        with torch.no_grad():
            return self._computed(group, self.root())

    def reused(self, group: Group, root: Tensor | None = None) -> Conditional:
        """The same for many steps of training.

        Args:
            group: of sequences.
            root: where gradients should reach the hyperparameters, what `root` gave.
        """
        if root is not None:
            return self._computed(group, root)
        reused = self._reused.get(id(group))
        if reused is None:
            with torch.no_grad():
                given = replace(self._computed(group, self.root()), keeps=True)
            reused = self._reused[id(group)] = (group, given)
        return reused[1]

    def group(
        self,
        places: list[int],
        features: Sequence[Features],
        states: Sequence[Tensor] | None,
        edges: Sequence[Tensor] | None,
    ) -> Group:
        """Some of the sequences as a group."""
        chosen = [features[place] for place in places]
        device = chosen[0].device
        lengths = torch.tensor([one.rows for one in chosen], device=device)
        longest = int(lengths.max())
        if states is None:
            padded = torch.full((len(places), longest), -1, device=device)
        else:
            padded = pad_sequence([states[place] for place in places], True, -1)  # noqa: FBT003
        within = [one.products(one) for one in chosen]
        cross = Features.stacked(chosen).products(self.points)
        sizes = lengths.tolist()
        dots = pad_sequence(list(cross.dots.split(sizes)), batch_first=True)
        left = pad_sequence([one.left for one in within], batch_first=True)
        square = dots.new_zeros(len(places), longest, longest)
        for item, one in enumerate(within):
            square[item, : sizes[item], : sizes[item]] = one.dots
        return Group(
            places,
            Labelling(
                padded, lengths, None if edges is None else tuple(edges[place] for place in places)
            ),
            Products(dots, left, cross.right.expand(len(places), -1)),
            Products(square, left, left),
        )

    def groups(
        self,
        size: int,
        features: Sequence[Features],
        states: Sequence[Tensor] | None,
        edges: Sequence[Tensor] | None,
    ) -> list[Group]:
        """All sequences in groups of about a size, sorted by length so that little is padded."""
        order = sorted(range(len(features)), key=lambda place: features[place].rows)
        count = -(-len(order) // size)
        bounds = [len(order) * part // count for part in range(count + 1)]
        return [
            self.group(order[start:stop], features, states, edges)
            for start, stop in pairwise(bounds)
        ]

    def _computed(self, group: Group, root: Tensor) -> Conditional:
        return conditional(
            self.kernel,
            root,
            group.cross,
            group.within,
            inside=group.labels.inside(),
            nugget=self.nugget,
        )
