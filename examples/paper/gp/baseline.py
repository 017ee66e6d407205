"""A linear-chain conditional random field: `rdpgraph.nn.CRF` over sparse linear scores."""

from collections.abc import Iterator

import torch
from tasks import Sequences
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from rdpgraph.nn import CRF

PENALTIES = (0.01, 0.1, 1.0, 10.0)


class LinearCRF:
    """Weights of the features of training, with a penalty of half their squares."""

    def __init__(self, labels: int, penalty: float, iterations: int = 60) -> None:
        self.labels, self.penalty, self.iterations = labels, penalty, iterations

    def fit(self, data: Sequences) -> "LinearCRF":
        joined = torch.cat(data.features).coalesce()
        # Features that are not there in training have weights of zero.
        self.columns = torch.full((joined.shape[1],), -1)
        used = joined.indices()[1].unique()
        self.columns[used] = torch.arange(len(used))
        self.weight = nn.Parameter(torch.zeros(len(used), self.labels))
        self.crf = CRF(self.labels, batch_first=True)
        parameters = [self.weight, *self.crf.parameters()]
        for parameter in parameters:
            nn.init.zeros_(parameter)
        features, mask, tags = self._matrix(data), _mask(data), _padded(data)
        optimiser = torch.optim.LBFGS(
            parameters, max_iter=self.iterations, history_size=10, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimiser.zero_grad()
            squares = sum(one.square().sum() for one in parameters)
            loss = self.penalty / 2 * squares - self.crf(self._scores(features, mask), tags, mask)
            loss.backward()
            return loss

        optimiser.step(closure)
        return self

    @torch.no_grad()
    def predict_marginals(self, data: Sequences) -> list[Tensor]:
        mask = _mask(data)
        found = self.crf.marginals(self._scores(self._matrix(data), mask), mask)
        return [one[: len(tags)] for one, tags in zip(found, data.labels, strict=True)]

    def _matrix(self, data: Sequences) -> Tensor:
        joined = torch.cat(data.features).coalesce()
        rows, columns = joined.indices()
        columns = self.columns[columns]
        known = columns >= 0
        places = torch.stack([rows[known], columns[known]])
        shape = (joined.shape[0], len(self.weight))
        return torch.sparse_coo_tensor(
            places, joined.values()[known].float(), shape, check_invariants=True
        ).coalesce()

    def _scores(self, features: Tensor, mask: Tensor) -> Tensor:
        flat = torch.sparse.mm(features, self.weight)
        return flat.new_zeros(*mask.shape, self.labels).masked_scatter(mask.unsqueeze(-1), flat)


def parts(data: Sequences, count: int = 3) -> Iterator[tuple[Sequences, Sequences]]:
    """Training sequences without a part of them, and that part, for each of some parts."""
    for part in range(count):
        held = [place for place in range(len(data)) if place % count == part]
        kept = [place for place in range(len(data)) if place % count != part]
        yield data.taken(kept), data.taken(held)


def errors(marginals: list[Tensor], labels: list[list[int]]) -> int:
    """Number of labels that are not the most probable one."""
    return sum(
        int((one.argmax(-1) != torch.tensor(tags)).sum())
        for one, tags in zip(marginals, labels, strict=True)
    )


def cross_validated(labels: int, data: Sequences) -> tuple[LinearCRF, float]:
    """The CRF of the penalty with the fewest errors on held-out parts of training."""

    def wrong(penalty: float) -> int:
        return sum(
            errors(LinearCRF(labels, penalty).fit(kept).predict_marginals(held), held.labels)
            for kept, held in parts(data)
        )

    best = min(PENALTIES, key=wrong)
    return LinearCRF(labels, best).fit(data), best


def _padded(data: Sequences) -> Tensor:
    return pad_sequence([torch.tensor(tags) for tags in data.labels], batch_first=True)


def _mask(data: Sequences) -> Tensor:
    lengths = torch.tensor([len(tags) for tags in data.labels])
    return torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
