// Gradients of tables: products of rows before and after them, summed over links.

#pragma once

#include "tables.h"

namespace {

// Products of rows (depth, columns), whose own rows are `hop` apart, times a table's weights and a move (null: 1), added
// to what its gradient has already.
template <typename Real>
void add_weighted(const Machine<Real>& m, int64_t slot, int64_t item, int64_t number, const Real* products,
                  int64_t hop, const Real* move, const Real* already, Real* gradients) {
  constexpr int64_t wide = width<Real>();
  const int64_t *table = m.table(slot), depth = table[3], columns = table[5];
  const Real* weights = prepared(m, slot, item, number).ahead;
  const int64_t first = (item * table[8] + number) * depth * columns;
  for (int64_t i = 0; i < depth; ++i)
    for (int64_t j = 0; j < columns; j += wide) {
      const Real *weight = weights + (j * depth + i * wide), *product = products + i * hop + j;
      const int64_t at = first + i * columns + j, count = std::min(wide, columns - j);
      const Real* own = already + at;
      Real* to = gradients + at;
      if (move) for (int64_t k = 0; k < count; ++k) to[k] = own[k] + weight[k] * product[k] * move[at + k];
      else for (int64_t k = 0; k < count; ++k) to[k] = own[k] + weight[k] * product[k];
    }
}

// Products of rows of pairs become the gradients of a slot's tables, given what these have already.
template <typename Real>
void products_gradient(const Machine<Real>& m, int64_t slot, const Real* already, Real* products) {
  const int64_t *table = m.table(slot), size = table[3] * table[5];
  for (int64_t k = 0; k < table[1] * table[8]; ++k)
    add_weighted<Real>(m, slot, k / table[8], k % table[8], products + k * size, table[5], nullptr, already, products);
}

// Adds products of rows before and after a table, summed over the rows, to numbers `to`, (depth, columns) in whole
// tiles and panels: of at most K vectors, or packed in tiles of kRows numbers and in panels.
template <int K, typename Real>
void add_few(const Real* before, const Real* after, int64_t rows, int64_t depth, int64_t columns, Real* to) {
  constexpr int64_t each = lanes<Real>();
  const int64_t left = columns - (K - 1) * each;
  for (int64_t start = 0; start < depth; start += kRows)
    by_rows(std::min(kRows, depth - start), [&](auto count) {
      Lane<Real> sums[count][K] = {};
      for (int64_t r = 0; r < rows; ++r)
        for (int k = 0; k < K; ++k) {
          const Lane<Real> x = load(after + r * columns + k * each, k < K - 1 ? each : left);
          for (int i = 0; i < count; ++i) sums[i][k] += before[r * depth + start + i] * x;
        }
      for (int i = 0; i < count; ++i)
        for (int k = 0; k < K; ++k) {
          Real* here = to + (start + i) * width<Real>() + k * each;
          store(here, load(here, each) + sums[i][k], each);
        }
    });
}

template <typename Real>
NOINLINE void add_packed(const Real* before, const Real* after, int64_t rows, int64_t depth, int64_t columns,
                         Real* to, int threads, Room<Real>& room) {
  constexpr int64_t wide = width<Real>(), each = lanes<Real>();
  const int64_t tiles = panels_of(depth, kRows), many = panels_of(columns, wide);
  room.left.assign(tiles * kRows * rows, Real(0));
  room.right.assign(many * wide * rows, Real(0));
  for (int64_t r = 0; r < rows; ++r) {
    Real *left = room.left.data() + r * kRows, *right = room.right.data() + r * wide;
    for (int64_t i = 0; i < depth; i += kRows, left += rows * kRows)
      for (int64_t k = 0; k < std::min(kRows, depth - i); ++k) left[k] = before[r * depth + i + k];
    by_lanes<Real>(columns, [&](int64_t j, auto few) {
      store(right + j / wide * rows * wide + j % wide, load(after + r * columns + j, few), each);
    });
  }
  each_panel(many, rows * depth * columns, threads, [&](int64_t p) {
    for (int64_t tile = 0; tile < tiles; ++tile)
      multiply<Real, kRows, false, kRows>(room.left.data() + tile * rows * kRows, 1, room.right.data() + p * rows * wide,
                                          rows, to + tile * kRows * many * wide + p * wide, many * wide);
  });
}

// Of how many numbers sums of such products are.
template <typename Real> int64_t padded(int64_t depth, int64_t columns) {
  return panels_of(depth, kRows) * kRows * panels_of(columns, width<Real>()) * width<Real>();
}

// Adds sums over all links of products of rows before and after them, times weights and a move (null: 1), to the
// gradients of a slot's tables.
template <typename Real>
void table_gradient(const Machine<Real>& m, int64_t slot, const Real* befores, const Real* afters,
                    const Real* move, Real* gradients, int threads) {
  constexpr int64_t wide = width<Real>(), most = 256;
  const int64_t *table = m.table(slot), depth = table[3], columns = table[5];
  const bool few = depth <= wide && columns <= wide;  // rows are not packed
  std::vector<Real> sums(padded<Real>(depth, columns));
  Room<Real> room;
  const int64_t copies = m.batch / std::max<int64_t>(1, table[1]);
  for (int64_t item = 0; item < table[1]; ++item) {
    int64_t number = 0, from = 0, until = 0;  // rows of links by one table, side by side
    const int64_t* of = nullptr;
    const auto flush = [&] {
      if (from == until) return;
      std::fill(sums.begin(), sums.end(), Real(0));
      for (; from < until; from += most) {
        const Real *before = befores + m.batch * of[8] + from * depth, *after = afters + m.batch * of[9] + from * columns;
        const int64_t rows = std::min(most, until - from);
        if (!few) add_packed(before, after, rows, depth, columns, sums.data(), threads, room);
        else if (columns > lanes<Real>()) add_few<2>(before, after, rows, depth, columns, sums.data());
        else add_few<1>(before, after, rows, depth, columns, sums.data());
      }
      from = until;
      add_weighted(m, slot, item, number, sums.data(), panels_of(columns, wide) * wide, move, gradients, gradients);
    };
    for (int64_t n = 0; n < m.count; ++n) {
      const int64_t* step = m.steps + kFields * n;
      if ((step[0] != kLinked && step[0] != kRules) || step[3] != slot) continue;
      const int64_t start = copies * (item * step[12] + step[11]);
      if (start != until || step[10] != number) flush(), from = start;
      const bool series = step[0] == kLinked && step[4] > 0;  // all its links in turn
      of = step, number = step[10], until = start + copies * (series ? step[4] : m.places(step[1]));
      if (series) n += (step[4] - 1) * step[13];
    }
    flush();
  }
}

}  // namespace
