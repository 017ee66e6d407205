"""Hidden Markov models of text from matrices, on disk and on the hub."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import FileFormatError, ModelError
from rdpgraph.io.text import (
    PathLike,
    downloaded,
    read_tensors,
    require_like,
    upload,
    write_bytes_atomically,
    write_tensors,
)
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.operators import Banded, Monarch, PairOperator
from rdpgraph.model.potentials.table import as_values
from rdpgraph.structures.chain.constructors import checked_rows

_SIZES = ("vocabulary", "rank", "dimension", "dropout")


class Pretrained(nn.Module):
    """An `HMM` made of matrices that are known, and its folder: sizes and tensors."""

    start: Tensor
    _kind: Any

    @classmethod
    def from_probabilities(
        cls, start: ArrayLike, transition: ArrayLike | LowRank | PairOperator, emission: ArrayLike
    ) -> Self:
        """The model of three matrices, which are its parameters (`dimension` is None).

        Each may hold probabilities or their logs, which is told by what its rows sum to.

        Args:
            start: (N,) or (1, N) of the first state.
            transition: (N, N), [from, to], or the logs of a `LowRank`, `Banded` or `Monarch`.
            emission: (N, V) of the tokens in each state.

        Raises:
            ModelError: rows that sum to one in neither form, or shapes that do not fit.
        """
        # All three as logs; a transition without a table stays as it is.
        first = _logs("start", start).flatten()
        rank = transition.rank if isinstance(transition, LowRank) else None
        kind = transition if isinstance(transition, PairOperator) else None
        if isinstance(transition, LowRank | PairOperator):
            checked_rows("HMM's transition", transition)
        else:
            transition = _logs("transition", transition)
        shown, states = _logs("emission", emission), len(first)
        square, shape = tuple(transition.shape), tuple(shown.shape)
        if (square, shape) != ((states, states), (states, shape[-1])):
            raise ModelError(
                "HMM needs start (N,), transition (N, N) and emission (N, V); got "
                f"{(states,)}, {square} and {shape}."
            )
        # The layer is built without memory, and takes the given tensors as its parameters.
        with torch.device("meta"):
            model = cls(
                states=states, vocabulary=shape[1], rank=rank, transition=kind, dimension=None
            )
        if isinstance(transition, PairOperator):
            given = {f"links.{place}": part for place, part in enumerate(transition.tensors)}
        elif isinstance(transition, LowRank):
            given = {"before": transition.log_left, "after": transition.log_right}
        else:
            given = {"before": transition}
        given |= {"start": first, "emitting": shown, "bias": shown.new_zeros(shown.shape[1])}
        model.load_state_dict({name: part.to(shown) for name, part in given.items()}, assign=True)
        return model.requires_grad_()

    def save_pretrained(self, folder: PathLike) -> None:
        """Write ``config.json`` and ``model.safetensors`` to a folder, each of them atomically.

        Raises:
            UnsupportedError: safetensors is not installed.
            OSError: they cannot be written.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        config = {name: getattr(self, name) for name in _SIZES} | {"states": len(self.start)}
        config |= {"offsets": getattr(self._kind, "offsets", None)}
        write_tensors(Path(folder, "model.safetensors"), self.state_dict(), {"format": "pt"})
        data = json.dumps({"model_type": "rdpgraph.nn.HMM", **config}, indent=2)
        write_bytes_atomically(Path(folder, "config.json"), data.encode())

    def push_to_hub(
        self, name: str, *, token: str | None = None, private: bool | None = None,
        commit_message: str = "Upload a hidden Markov model",
    ) -> str:  # fmt: skip
        """Upload what `save_pretrained` writes to a repository of the hub; the commit's address.

        Args:
            name: ``"owner/name"``, which is made if there is none.
            token: of the account; default: the one that huggingface_hub keeps.
            private: where the repository is made.
            commit_message: of the commit.

        Raises:
            UnsupportedError: huggingface_hub or safetensors is not installed, or the hub refuses.
        """
        return upload(self.save_pretrained, name, token=token, private=private, note=commit_message)

    @classmethod
    def from_pretrained(
        cls, folder: PathLike, *, names: tuple[str, str, str] | None = None
    ) -> Self:
        """The model of a folder that `save_pretrained` wrote; or that of another program.

        Args:
            folder: one that is here; or, where huggingface_hub is installed, the name of a
                repository, ``"owner/name"``, that it downloads or has kept.
            names: of the start, the transition and the emission in another program's
                ``model.safetensors``: what `from_probabilities` is given.

        Raises:
            FileFormatError: not such files.
            UnsupportedError: safetensors is not installed.
        """
        folder = downloaded(folder)
        path = Path(folder, "model.safetensors")
        known, _ = read_tensors(path, "the tensors of an HMM")
        if names is not None:
            lacking = [name for name in names if name not in known]
            if lacking:
                raise FileFormatError(f"{path} has no {lacking[0]!r:.80}; it has {sorted(known)}.")
            return cls.from_probabilities(*(known[name] for name in names))
        config = Path(folder, "config.json")
        try:
            told = json.loads(config.read_bytes())
            links = [known[name] for name in sorted(known) if name.startswith("links.")]
            kind = _operator(told.get("offsets"), links)
            sizes = {name: told[name] for name in ("states", *_SIZES)}
            model = cls(transition=kind, clusters=known.get("clusters"), **sizes)
        except (ValueError, KeyError, TypeError) as error:  # a ModelError is a ValueError
            raise FileFormatError(f"{config}: not the sizes of an HMM: {error!s:.200}") from None
        wanted = model.state_dict()
        kept = {name: require_like(path, name, known.get(name), wanted[name]) for name in wanted}
        model.to(known["start"].dtype).load_state_dict({name: known[name] for name in kept})
        return model


def _operator(offsets: Sequence[int] | None, links: list[Tensor]) -> PairOperator | None:
    """The transition of such parameters, if they are of any kind."""
    if not links or offsets is None:
        return Monarch(*links) if links else None
    values, *sides = links
    return Banded(values, offsets, LowRank(*sides) if sides else None)


def _logs(name: str, given: ArrayLike) -> Tensor:
    """Logs of probabilities that are given, or of logs that are."""
    values = as_values(f"HMM's {name}", given)
    sums = values.sum(-1)
    if bool((values >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
        return values.log()
    checked_rows(f"HMM's {name}", values)
    return values
