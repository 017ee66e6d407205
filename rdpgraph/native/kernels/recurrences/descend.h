// From the goal to the inputs, one derivation: the best, or a draw.

#pragma once

#include "cells.h"
#include "wide.h"

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
  return choose(sum);
}

// The number of a term, in proportion to what `line` has, whose sum is given.
template <typename Real>
int64_t Run<Real>::choose(Real sum) {
  const int64_t many = line.size(), some = lanes<Real>();
  Real left = Real(uniform()) * sum;
  int64_t k = 0;
  // Sums of several numbers at a time, and then one after the other.
  for (; k + some < many; k += some) {
    Real part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t j = 0; j < some; ++j) part += line[k + j];
    if (left < part) break;
    left -= part;
  }
  while (k + 1 < many && (left -= line[k]) >= 0) ++k;
  // Rounding may have led beyond the last term that is possible.
  while (k && !(line[k] > 0)) --k;
  return k;
}

// Prepares the matrices of series for the way back along them.
template <typename Real>
void Run<Real>::prepare_descend(bool best) {
  for (Series& one : series) {
    const Stage& g = stages[one.link];
    if (!best && one.kept && prepares(g)) prepare<false>(g, true);
    // Log-matrices that all items share, by the label after them.
    one.turned.clear();
    if (g.table_item || leader != this) continue;
    const Real* from = data[g.slot] + g.table.c;
    one.turned.resize(g.labels * g.depth);
    for (int64_t k = 0; k < g.depth; ++k)
      for (int64_t j = 0; j < g.labels; ++j) one.turned[j * g.depth + k] = from[k * g.row + j * g.column];
  }
}

// The label before a link of a series, given that after it: the best, or a draw.
template <typename Real>
int64_t Run<Real>::label_before(const Series& one, int64_t item, int64_t step, int64_t v, bool best) {
  const Stage& g = stages[one.link];
  const int64_t depth = g.depth;
  if (!best && !noise && one.kept) {
    line.resize(depth);
    // In proportion to x_k exp(W_kv), unless these are near underflow.
    const Real* x = one.before.data() + (item * (one.last - one.first + 1) + step - one.first) * depth;
    const Real* back = table(g, item).back;
    Real sum = 0;
    for (int64_t first = 0; first < depth; first += width<Real>()) {
      const Real* column = back + (first * depth + v * width<Real>());
      const int64_t some = std::min(width<Real>(), depth - first);
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < some; ++k) sum += line[first + k] = x[first + k] * column[k];
    }
    if (sum >= faint<Real>(depth) * (1 << 20)) return choose(sum);
  }
  line_of_series(one, item, step, v);
  if (noise) shake(one, step - 1);
  return pick(best || noise);
}

// Adds the noise of a step to the logs of the labels that one of is chosen there.
template <typename Real>
void Run<Real>::shake(const Series& one, int64_t step) {
  const Factor* f = other_of(one);
  if (!f || f->slot != noisy) return;
  const Real* own = noise + f->at.c + step * f->at.s;
  for (size_t k = 0; k < line.size(); ++k) line[k] += own[k];
}

// The same where a sum over labels reads a row of a series, as a goal does.
template <typename Real>
void Run<Real>::shake(const Cell& cell, int64_t item) {
  int64_t at = -1;
  each_read(cell, item, 0, true, [&](int64_t slot, int64_t place) { if (!slot) at = place; });
  if (at < 0) return;
  const Cell first = cell_at(at);
  for (const Series& one : series)
    if (stages + one.into == first.g) shake(one, first.s.s);
}

// Goes back along a series from a label to that before it, which is returned.
template <typename Real>
template <typename Visit>
int64_t Run<Real>::descend_series(const Series& one, int64_t item, int64_t step, int64_t v, bool best, Visit visit) {
  const Stage& g = stages[one.link];
  for (; step >= one.first; --step) {
    const int64_t k = label_before(one, item, step, v, best);
    visit(g.slot, g.table.c + k * g.row + v * g.column);
    for (const Factor *f = factors + one.own->first, *end = f + one.own->count; f < end; ++f)
      if (f->link < 0) visit(f->slot, line_of(*f, item, At{step}, 0, 0)(v) - item * f->item);
    v = k;
  }
  return v;
}

// The number of a term of a pair's cell, as `pick` of all of its terms: first the labels of both parts, by the sums
// over splits, then the split. Below 0: sums have lost terms to underflow that may count.
template <typename Real>
template <bool best>
int64_t Run<Real>::choose_pair(const Cell& cell, int64_t item) {
  const Stage& g = *cell.g;
  const int64_t b = g.depth, c = g.depth2, wide = width<Real>();
  const Real* matrix = data[g.slot] + item * g.table_item + g.table.c + column_of(g, cell.v);
  Row one{item, cell.p, 0, 0};
  pairs.resize(std::max<int64_t>(pairs.size(), b * c)), line.resize(b * c);
  if (!pair<best>(g, cell.s, one, pairs.data())) return -1;
  const int64_t many = splits.size();
  const Real least = faint<Real>(many);
  Real lost = kNever<Real>;
  for (int64_t i = 0; i < b; ++i)
    for (int64_t j = 0; j < c; ++j) {
      const Real column = matrix[i * g.row + j * g.row2];
      line[i * c + j] = column;
      if (!best && !(pairs[i * c + j] >= least)) lost = std::max(lost, column);
    }
  by_lanes<Real>(b * c, [&](int64_t k, auto left) {
    const Lane<Real> sum = load(pairs.data() + k, left);
    store(line.data() + k, load(line.data() + k, left) + (best ? sum : log_of<Real>(sum)), left);
  });
  const Real top = largest(line.data(), b * c);
  if (!(top > kNever<Real>) || lost + std::log(least) > top + std::log(std::numeric_limits<Real>::epsilon())) return -1;
  const int64_t k = pick(best), i = k / c, j = k % c;
  line.resize(many);
  for (int64_t r = 0; r < many; ++r) {
    const Real left = y[r * b + i], right = z[(j / wide * many + r) * wide + j % wide];
    line[r] = best ? left + right : std::log(left * right);
  }
  return pick(best) * b * c + k;
}

// Calls for each input that one derivation reads, with its slot and place in the item.
template <typename Real>
template <typename Visit>
void Run<Real>::descend(int64_t item, int64_t goal, bool best, Visit visit) {
  std::vector<int64_t> waiting{goal};
  while (!waiting.empty()) {
    const Cell cell = cell_at(waiting.back());
    waiting.pop_back();
    if (const Series* one = series_of(*cell.g, cell.s.s)) {
      const int64_t v = descend_series(*one, item, cell.s.s, cell.v, best, visit);
      waiting.push_back(value(cell.g->out, At{one->first - 1}, 0, 0) + v);
      continue;
    }
    const bool is_pair = cell.g->kind == kKindPair && cell.g->fixed && !noise;
    int64_t term = !is_pair ? -1 : best ? choose_pair<true>(cell, item) : choose_pair<false>(cell, item);
    if (term < 0) {
      expand(cell, item);
      if (noise && cell.g->kind == kKindOver) shake(cell, item);
      term = pick(best || noise);
    }
    each_read(cell, item, term, true, [&](int64_t slot, int64_t at) {
      if (slot) visit(slot, at);
      else waiting.push_back(at);
    });
  }
}

}  // namespace
