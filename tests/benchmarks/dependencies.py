"""Non-projective dependency trees beside networkx.

    python tests/benchmarks/dependencies.py

Milliseconds of CPU time, the least of the runs, one thread: for 16 sentences the best tree of each,
several roots allowed, by networkx (`maximum_spanning_arborescence`, sentence by sentence) and here,
and the ratio of the two; and here, with one root alone, the 10 best trees, the max-marginals of all
arcs, 10 draws of each, and log Z with its gradient. Fails where the best trees differ in score.
"""

import time
from collections.abc import Callable

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


def main() -> None:
    torch.set_num_threads(1)
    print("words  best: networkx    here  ratio   10 best  max-marginals  draws  log Z + gradient")
    for words in WORDS:
        scores = torch.randn(
            BATCH, words, words + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        many = rg.NonProjectiveDependencies(scores, multiroot=True)
        theirs = torch.tensor(by_networkx(scores))
        torch.testing.assert_close(many.score(theirs), many.score(many.mode()))
        peer, ours = milliseconds(lambda s=scores: by_networkx(s), 1), milliseconds(many.mode)
        one = rg.NonProjectiveDependencies(scores)
        others = (
            milliseconds(lambda one=one: one.k_best(10)),
            milliseconds(one.max_marginals),
            milliseconds(lambda one=one: one.sample(10)),
            milliseconds(one.marginals),
        )
        print(
            f"{words:5}  {peer:14.1f}  {ours:6.1f}  {peer / ours:5.0f}   "
            "{:7.1f}  {:13.1f}  {:5.1f}  {:16.1f}".format(*others)
        )


if __name__ == "__main__":
    main()
