"""Hypertrees from probabilistic grammars and treebank grammars."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.errors import ModelError
from rdpgraph.io.grammar import Grammar
from rdpgraph.structures.recursion.rules import DenseRules, Rules
from rdpgraph.structures.recursion.sparse_rules import SparseRules

# A table of rules is faster than a list below so many entries for each rule, or in all.
_DENSE, _SMALL = 500.0, 2.0**15


def pcfg_unary(root: Tensor, rules: Rules, terms: Tensor) -> Tensor:
    """(*batch, T, T, NT + PT) span potentials of a grammar: those of its words, else zero."""
    if rules.shape is None or terms.ndim < 2 or root.ndim < 1:
        raise ModelError(
            "Hypertree.pcfg needs rules of a size, root (*batch, NT) and terms (*batch, T, PT)."
        )
    parents, children = rules.shape
    if children - parents != terms.shape[-1] or root.shape[-1] != parents:
        raise ModelError(
            f"Hypertree.pcfg with rules of {parents} parents and {children} children needs "
            f"root (*batch, {parents}) and terms (*batch, T, {children - parents}); got "
            f"{tuple(root.shape)} and {tuple(terms.shape)}."
        )
    words = pad(terms, (parents, 0))
    diagonal = torch.eye(terms.shape[-2], dtype=torch.bool, device=terms.device).unsqueeze(-1)
    zero = torch.zeros((), dtype=words.dtype, device=words.device)
    return torch.where(diagonal, words.unsqueeze(-3), zero)


def sentence_unary(grammar: Grammar, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
    """(S, T, T, N) span potentials of the words of sentences, and lengths (S,)."""
    if not isinstance(cast(object, grammar), Grammar):
        raise ModelError(f"Hypertree.parses needs a Grammar; got {type(grammar).__name__}.")
    if not sentences:
        raise ModelError("Hypertree.parses needs at least one sentence.")
    total, size = max(map(len, sentences)), len(grammar.symbols)
    unary = grammar.log_weights.new_zeros(len(sentences), total, total, size)
    for item, sentence in enumerate(sentences):
        place = torch.arange(len(sentence), device=unary.device)
        unary[item, place, place] = grammar.lexical(sentence)
    return unary, torch.tensor([len(sentence) for sentence in sentences], device="cpu")


def grammar_rules(grammar: Grammar) -> DenseRules | SparseRules:
    """The rules of a grammar as a table or a list, whichever is faster and fits."""
    states, rules, weights = len(grammar.symbols), grammar.rules, grammar.log_weights
    entries = float(states) ** 3
    dense = entries <= max(_DENSE * len(rules), _SMALL)
    if dense and entries * weights.element_size() <= grammar.memory_bytes:
        return DenseRules(grammar.log_rules)
    if not len(rules):  # words only: one rule that forbids itself
        rules, weights = rules.new_zeros(1, 3), weights.new_full((1,), -math.inf)
    return SparseRules(rules, weights, parents=states)
