"""Non-projective dependency trees beside networkx.

    python tests/benchmarks/dependencies.py

Milliseconds of CPU time, the least of the runs, one thread. For 16 sentences, several roots
allowed: the best tree of each by networkx (`maximum_spanning_arborescence`, sentence by sentence)
and here; log Z with its gradient by torch's determinant of the Laplacian and here; and the ratios.
And here, with one root alone, the 10 best trees, the max-marginals of all arcs, 10 draws of each,
and log Z with its gradient. Fails where the best trees differ in score, or log Z does.
"""

import time
from collections.abc import Callable
from functools import partial

import networkx as nx
import torch

import rdpgraph as rg

BATCH, WORDS = 16, (20, 40)


def milliseconds(run: Callable[[], object], runs: int = 3) -> float:
    best = float("inf")
    for _ in range(runs):
        begin = time.process_time()
        run()
        best = min(best, time.process_time() - begin)
    return 1000 * best


def by_networkx(scores: torch.Tensor) -> list[list[int]]:
    found = []
    for rows in scores.tolist():
        graph = nx.DiGraph()
        for word, row in enumerate(rows, 1):
            for head, score in enumerate(row):
                if head != word:
                    graph.add_edge(head, word, weight=score)
        best = nx.maximum_spanning_arborescence(graph)
        heads = {word: head for head, word in best.edges}
        found.append([heads[word + 1] for word in range(len(rows))])
    return found


def by_determinant(scores: torch.Tensor) -> torch.Tensor:
    weights = scores.exp()
    root, arcs = weights[..., 0], weights[..., 1:]
    arcs = arcs * (1 - torch.eye(arcs.shape[-1], dtype=arcs.dtype))
    return torch.linalg.slogdet(torch.diag_embed(root + arcs.sum(-1)) - arcs)[1]


def gradient_of(
    log_z: Callable[[torch.Tensor], torch.Tensor], scores: torch.Tensor
) -> Callable[[], object]:
    leaf = scores.clone().requires_grad_()
    return lambda: torch.autograd.grad(log_z(leaf).sum(), leaf)


def main() -> None:
    torch.set_num_threads(1)
    print(
        "words  best: networkx    here  ratio  log Z: determinant   here  ratio"
        "  one root: 10 best  max-marginals  draws  log Z"
    )
    for words in WORDS:
        scores = torch.randn(
            BATCH, words, words + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        many = rg.NonProjectiveDependencies(scores, multiroot=True)
        theirs = torch.tensor(by_networkx(scores))
        torch.testing.assert_close(many.score(theirs), many.score(many.mode()))
        torch.testing.assert_close(many.log_partition(), by_determinant(scores))
        peer, ours = milliseconds(lambda s=scores: by_networkx(s), 1), milliseconds(many.mode)

        def log_z(scores: torch.Tensor, *, multiroot: bool = True) -> torch.Tensor:
            return rg.NonProjectiveDependencies(scores, multiroot=multiroot).log_partition()

        works = [gradient_of(log, scores) for log in (by_determinant, log_z)]
        sums = [milliseconds(work, 50) for work in works]
        one = rg.NonProjectiveDependencies(scores)
        others = (
            milliseconds(lambda one=one: one.k_best(10)),
            milliseconds(one.max_marginals),
            milliseconds(lambda one=one: one.sample(10)),
            milliseconds(gradient_of(partial(log_z, multiroot=False), scores), 50),
        )
        print(
            f"{words:5}  {peer:14.1f}  {ours:6.1f}  {peer / ours:5.0f}"
            f"  {sums[0]:18.2f}  {sums[1]:5.2f}  {sums[0] / sums[1]:5.2f}  "
            "{:17.1f}  {:13.1f}  {:5.1f}  {:5.2f}".format(*others)
        )


if __name__ == "__main__":
    main()
