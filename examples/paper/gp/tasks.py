"""The four tasks: sequences of sparse features, labels, and the folds of the paper."""

import math
import tarfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

DATA = Path(__file__).parents[4] / "shared" / "data" / "gpstruct"


@dataclass(frozen=True)
class Task:
    features: int
    labels: int
    listed: int  # sequences of a fold
    training: int  # of them, the first
    printed: tuple[str, ...]  # svm, CRF, GP-ESS, B, S, P


TASKS = {
    "basenp": Task(6438, 3, 300, 150, ("5.91 (0.44)", "5.92 (0.23)", "4.81 (0.47)", "5.17 (0.41)",
                                       "5.27 (0.24)", "5.37 (0.33)")),
    "chunking": Task(29764, 14, 100, 50, ("9.79 (0.97)", "8.29 (0.77)", "8.77 (1.08)",
                                          "8.76 (1.09)", "10.02 (0.41)", "9.58 (0.87)")),
    "segmentation": Task(1386, 2, 36, 20, ("16.21 (2.21)", "14.94 (5.65)", "14.88 (1.80)",
                                           "15.61 (1.90)", "14.97 (1.38)", "15.16 (1.57)")),
    "japanesene": Task(102799, 17, 100, 50, ("5.64 (0.82)", "5.11 (0.66)", "5.83 (0.83)",
                                             "5.23 (0.68)", "4.99 (0.41)", "4.80 (0.65)")),
}  # fmt: skip


@dataclass(frozen=True)
class Sequences:
    features: list[Tensor]  # (T, D) sparse
    labels: list[list[int]]

    def __getitem__(self, part: slice) -> "Sequences":
        return Sequences(self.features[part], self.labels[part])

    def taken(self, places: list[int]) -> "Sequences":
        return Sequences([self.features[i] for i in places], [self.labels[i] for i in places])

    def __len__(self) -> int:
        return len(self.labels)


def everything(name: str, folder: Path = DATA) -> Sequences:
    """All sequences of a task, in the order of their numbers."""
    files: dict[str, str] = {}
    with tarfile.open(folder / f"{name}.tar.gz") as archive:
        for member in archive:
            opened = archive.extractfile(member) if member.isfile() else None
            if opened is not None:
                files[Path(member.name).name] = opened.read().decode()
    count = sum(one.endswith(".y") for one in files)
    pairs = [_sequence(files, number, TASKS[name].features) for number in range(1, count + 1)]
    return Sequences([one for one, _ in pairs], [other for _, other in pairs])


def listed(name: str, folder: Path = DATA) -> list[list[int]]:
    """Sequences of each of the five folds, those of training first."""
    lines = (folder / f"datasplit.n_data={TASKS[name].listed}.txt").read_text().splitlines()
    return [[int(number) - 1 for number in line.split()] for line in lines if line.strip()]


def folds(name: str, folder: Path = DATA) -> list[tuple[Sequences, Sequences]]:
    """Training and test sequences of each of the five folds."""
    known, training = everything(name, folder), TASKS[name].training
    return [
        (known.taken(places[:training]), known.taken(places[training:]))
        for places in listed(name, folder)
    ]


def large(folder: Path = DATA) -> list[tuple[Sequences, Sequences]]:
    """Base NP with 500 sequences for training, in five random divisions."""
    known = everything("basenp", folder)
    found: list[tuple[Sequences, Sequences]] = []
    for seed in range(5):
        order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed)).tolist()
        found.append((known.taken(order[:500]), known.taken(order[500:])))
    return found


def _sequence(files: dict[str, str], number: int, features: int) -> tuple[Tensor, list[int]]:
    rows = [line.split() for line in files[f"{number}.x"].splitlines()]
    places = torch.tensor([[int(row[0]) - 1, int(row[1]) - 1] for row in rows]).T
    values = torch.tensor([float(row[2]) for row in rows], dtype=torch.float64)
    # Three labels of Japanese NE are -1, and count as 0.
    labels = [max(0, int(label)) for label in files[f"{number}.y"].split()]
    return torch.sparse_coo_tensor(
        places, values, (len(labels), features), check_invariants=True
    ).coalesce(), labels


def mean_and_deviation(values: list[float]) -> tuple[float, float]:
    average = sum(values) / len(values)
    squares = sum((value - average) ** 2 for value in values)
    return average, math.sqrt(squares / max(1, len(values) - 1))
