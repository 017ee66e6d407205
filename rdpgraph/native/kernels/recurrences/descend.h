// From the goal to the inputs, one derivation: the best, or a draw.

#pragma once

#include "cells.h"

namespace {

// Random bits, by splitmix64.
template <typename Real>
uint64_t Run<Real>::bits() {
  uint64_t z = state += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull, z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// The number of a term of `line`: the largest, or one in proportion to its exponential; `line` is overwritten.
template <typename Real>
int64_t Run<Real>::pick(bool best) {
  const int64_t many = line.size();
  if (many == 1) return 0;
  const Real top = largest(line.data(), many);
  int64_t k = 0;
  if (best) {
    while (line[k] != top) ++k;
    return k;
  }
  exps(line.data(), line.data(), top, many);
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < many; ++j) sum += line[j];
  Real left = Real(uniform()) * sum;
  while (k + 1 < many && (left -= line[k]) >= 0) ++k;
  return k;
}

// Calls for each input that one derivation reads, with its slot and place in the item.
template <typename Real>
template <typename Visit>
void Run<Real>::descend(int64_t item, int64_t goal, bool best, Visit visit) {
  std::vector<int64_t> waiting{goal};
  while (!waiting.empty()) {
    const Cell cell = cell_at(waiting.back());
    waiting.pop_back();
    expand(cell, item);
    each_read(cell, item, pick(best), true, [&](int64_t slot, int64_t at) {
      if (slot) visit(slot, at);
      else waiting.push_back(at);
    });
  }
}

}  // namespace
