"""Parts of models of trees: binary rules, grammars in files, and trees themselves.

The rules that a `Hypertree` takes (dense, sparse, of low rank, factorised, bilinear, none), the
`Grammar` that is read from text and turned into one, and `Trees`, a batch of derivations. The
structures (`Hypertree`, `ProjectiveDependencies`, `NonProjectiveDependencies`, `Derivations`) are
names of `rdpgraph`.
"""

from rdpgraph.io.grammar import Grammar, parse_grammar, read_grammar
from rdpgraph.structures.grammar.trees import Trees
from rdpgraph.structures.recursion.rules import (
    BilinearRules,
    DenseRules,
    FactorisedRules,
    LowRankRules,
    NoRules,
    Rules,
)
from rdpgraph.structures.recursion.sparse_rules import SparseRules

__all__ = [
    "BilinearRules",
    "DenseRules",
    "FactorisedRules",
    "Grammar",
    "LowRankRules",
    "NoRules",
    "Rules",
    "SparseRules",
    "Trees",
    "parse_grammar",
    "read_grammar",
]
