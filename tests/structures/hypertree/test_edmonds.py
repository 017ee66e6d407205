"""Cycles within cycles: as many as there are words, without a call inside a call for each."""

import inspect
import sys

from rdpgraph.structures.hypertree.edmonds import edmonds


def test_nested_cycles_are_opened_one_after_the_other():
    words = 120
    scores = [[0.0] + [-100.0] * words for _ in range(words)]
    for word in range(1, words + 1):
        if word < words:
            scores[word - 1][word + 1] = 10.0
        if word > 1:
            scores[word - 1][word - 1] = 9.0
    whole = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(len(inspect.stack(0)) + 30)
        heads = edmonds(scores)
    finally:
        sys.setrecursionlimit(whole)
    # All heads are the next words but the last one's: any other root trades tens for nines.
    assert heads == [*range(2, words + 1), 0]
