"""Parts of models of trees: binary rules, grammars in files, and trees themselves.

The rules that a `Hypertree` takes (dense, sparse, of low rank, factorised, bilinear, none), the
`Grammar` that is read from text and turned into one, and `Trees`, a batch of derivations. The
structures (`Hypertree`, `ProjectiveDependencies`, `NonProjectiveDependencies`, `Derivations`) are
names of `rdpgraph`.
"""

from rdpgraph.io.grammar import Grammar, parse_grammar, read_grammar
from rdpgraph.structures.grammar.rules import (
    BilinearRules,
    DenseRules,
    FactorisedRules,
    LowRankRules,
    NoRules,
    Rules,
)
from rdpgraph.structures.grammar.sparse_rules import SparseRules
from rdpgraph.structures.grammar.trees import Trees

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
