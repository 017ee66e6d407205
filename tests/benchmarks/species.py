"""Trees of species: seconds and likelihoods beside pruning by hand, and TreeTime where installed.

    pip install phylo-treetime==0.12.1
    OMP_NUM_THREADS=1 python tests/benchmarks/species.py --taxa 100 --columns 10000

Columns are drawn from a random tree by Jukes and Cantor's model; then four categories of rates are
mixed. Pruning by hand (Felsenstein 1981) takes all columns together, in torch, in float64.
"""

import argparse
import importlib.util
import io
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import rdpgraph as rg

LETTERS = 4
RATES = torch.tensor([0.1, 0.5, 1.0, 2.4], dtype=torch.float64)


@dataclass(frozen=True)
class Tree:
    """A tree whose leaves come first, and whose children come before their parents."""

    taxa: int
    above: Tensor  # (branches,) the parent of each node but the root
    lengths: Tensor  # (branches,)

    @property
    def root(self) -> int:
        """The number of the last node."""
        return len(self.above)


def random_tree(taxa: int, generator: torch.Generator) -> Tree:
    """Two lineages join at a time."""
    parents, alive = {}, list(range(taxa))
    for node in range(taxa, 2 * taxa - 1):
        for _ in range(2):
            parents[alive.pop(int(torch.randint(len(alive), (1,), generator=generator)))] = node
        alive.append(node)
    above = torch.tensor([parents[child] for child in range(2 * taxa - 2)])
    lengths = 0.2 * torch.rand(len(above), generator=generator, dtype=torch.float64)
    return Tree(taxa, above, lengths)


def changes(lengths: Tensor, rates: Tensor) -> Tensor:
    """(branches, categories, letters, letters) by Jukes and Cantor."""
    exchange = torch.full((LETTERS, LETTERS), 1 / (LETTERS - 1), dtype=torch.float64)
    exchange.fill_diagonal_(-1.0)
    return torch.linalg.matrix_exp(exchange * (lengths.unsqueeze(1) * rates)[..., None, None])


def drawn(tree: Tree, columns: int, generator: torch.Generator) -> Tensor:
    """(columns, taxa) letters of the leaves."""
    chances = changes(tree.lengths, torch.ones(1, dtype=torch.float64))[:, 0]
    letters = torch.zeros(columns, tree.root + 1, dtype=torch.long)
    letters[:, tree.root] = torch.randint(LETTERS, (columns,), generator=generator)
    for child in reversed(range(tree.root)):
        rows = chances[child][letters[:, tree.above[child]]]
        letters[:, child] = torch.multinomial(rows, 1, generator=generator)[:, 0]
    return letters[:, : tree.taxa]


def pruned(tree: Tree, seen: Tensor, chances: Tensor) -> Tensor:
    """(columns,) log-likelihoods by pruning; likelihoods are scaled at every node."""
    below: dict[int, Tensor] = {}
    scale = torch.zeros(chances.shape[1], len(seen), dtype=torch.float64)
    ends = torch.eye(LETTERS, dtype=torch.float64)
    for child, parent in enumerate(tree.above.tolist()):
        if child < tree.taxa:
            own = ends[seen[:, child]].unsqueeze(0)
        else:
            own = below.pop(child)
            top = own.amax(2, keepdim=True)
            own, scale = own / top, scale + top.squeeze(2).log()
        sent = own @ chances[child].mT  # (categories, columns, letters)
        below[parent] = below[parent] * sent if parent in below else sent
    logs = (below[tree.root].sum(2) / LETTERS).log() + scale
    return logs.logsumexp(0) - math.log(len(logs))


def model(tree: Tree, chances: Tensor) -> tuple[rg.FactorGraph, rg.VariableArray]:
    """One column, and its nodes."""
    node = rg.VariableArray("node", (tree.root + 1,), LETTERS)
    alike = torch.full((1, LETTERS), -math.log(LETTERS), dtype=torch.float64)
    blocks = [rg.FactorBlock((node[tree.root :],), rg.Table(alike))]
    scope = node[tree.above], node[: tree.root]
    if (count := chances.shape[1]) == 1:
        return rg.FactorGraph([*blocks, rg.FactorBlock(scope, rg.Table(chances[:, 0].log()))]), node
    kinds = torch.full((1, count), -math.log(count), dtype=torch.float64)
    speed = rg.VariableArray("speed", (1,), count)
    blocks.append(rg.FactorBlock((speed,), rg.Table(kinds)))
    return rg.FactorGraph([*blocks, rg.FactorBlock((speed, *scope), rg.Table(chances.log()))]), node


def seconds(ask: Callable[[], object]) -> str:
    """CPU seconds of the second of two calls."""
    ask()
    begun = time.process_time()
    ask()
    return f"{time.process_time() - begun:.2f}"


def by_treetime(tree: Tree, seen: Tensor) -> tuple[float, str]:
    """The log-likelihood, and CPU seconds of the ancestors' probabilities."""
    import treetime
    from Bio import Phylo
    from Bio.Align import MultipleSeqAlignment
    from Bio.Seq import Seq
    from Bio.SeqRecord import SeqRecord

    rows = ["".join("ACGT"[letter] for letter in row) for row in seen.T.tolist()]
    aligned = MultipleSeqAlignment([
        SeqRecord(Seq(row), id=f"t{number}") for number, row in enumerate(rows)
    ])  # fmt: skip

    def written(node: int) -> str:
        if node < tree.taxa:
            text = f"t{node}"
        else:
            text = (
                f"({','.join(map(written, (tree.above == node).nonzero()[:, 0].tolist()))})n{node}"
            )
        return text if node == tree.root else f"{text}:{float(tree.lengths[node]):.15f}"

    newick = written(tree.root) + ";"
    begun = time.process_time()
    gtr = treetime.GTR.standard("JC69", alphabet="nuc_nogap")
    phylogeny = Phylo.read(io.StringIO(newick), "newick")
    found = treetime.TreeAnc(tree=phylogeny, aln=aligned, gtr=gtr, verbose=0)
    found.infer_ancestral_sequences(marginal=True)
    return float(found.sequence_LH()), f"{time.process_time() - begun:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--taxa", type=int, default=100)
    parser.add_argument("--columns", type=int, default=10_000)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    tree = random_tree(options.taxa, generator)
    seen = drawn(tree, options.columns, generator)
    print("| CPU seconds | log-likelihoods | and gradients in branch lengths | ancestors |")
    print("|---|---|---|---|")
    for name, rates in (("one rate", torch.ones(1).double()), ("four rates", RATES)):

        def log_z(lengths: Tensor, rates: Tensor = rates) -> Tensor:
            graph, node = model(tree, changes(lengths, rates))
            return rg.infer(graph, evidence={node[: tree.taxa]: seen}).log_partition

        def by_hand(lengths: Tensor, rates: Tensor = rates) -> Tensor:
            return pruned(tree, seen, changes(lengths, rates))

        def marginals(rates: Tensor = rates) -> Tensor:
            graph, node = model(tree, changes(tree.lengths, rates))
            return rg.infer(graph, evidence={node[: tree.taxa]: seen}).marginals()[node]

        gradients = list[Tensor]()
        for label, ask in ((name, log_z), (f"{name}, by hand", by_hand)):
            free = tree.lengths.clone().requires_grad_()

            def gradient(ask: Callable[[Tensor], Tensor] = ask, free: Tensor = free) -> Tensor:
                return torch.autograd.grad(ask(free).sum(), free)[0]

            cells = [seconds(lambda ask=ask: ask(tree.lengths)), seconds(gradient)]
            cells.append(seconds(marginals) if ask is log_z else "")
            gradients.append(gradient())
            print(f"| {label} | {' | '.join(cells)} |")
        off = (log_z(tree.lengths) - by_hand(tree.lengths)).abs().max()
        apart = ((gradients[0] - gradients[1]) / gradients[1].abs().max()).abs().max()
        print(f"{name}: at most {off:.1e} off, gradients {apart:.1e} of the largest")
    if importlib.util.find_spec("treetime") is not None:
        likelihood, used = by_treetime(tree, seen)
        graph, node = model(tree, changes(tree.lengths, torch.ones(1).double()))
        own = float(rg.infer(graph, evidence={node[: tree.taxa]: seen}).log_partition.sum())
        print(f"TreeTime: ancestors in {used} s; log-likelihood {likelihood:.6f}, ours {own:.6f}")


if __name__ == "__main__":
    main()
