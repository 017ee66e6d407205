// One cell of a table: its terms, of which its sum or maximum is made, and what each of them reads.
//
// A cell v of a table is log sum_k exp(t_k), or max_k t_k, with terms t_k = sum of the cells and entries that k
// reads. For a sum, k is an alternative and the values of its loops (`terms_of`); for a link or a pair, a label of the
// row and a split. The terms are in `line`, relative to one level.

#pragma once

#include "labels.h"

namespace {

// The cell at a place in an item's tables.
template <typename Real>
typename Run<Real>::Cell Run<Real>::cell_at(int64_t at) const {
  const Stage* found = nullptr;
  for (const Stage* g = stages; g < stages + whole.stages; ++g)
    if (g->out.c <= at && (!found || g->out.c > found->out.c)) found = g;
  int64_t rest = at - found->out.c;
  const auto next = [&](int64_t hop) { const int64_t many = hop ? rest / hop : 0; rest -= many * hop; return many; };
  Cell cell{found, {next(found->out.s)}, 0, 0};
  cell.s.o = next(found->out.o), cell.s.q = next(found->out.q), cell.s.u = next(found->out.u), cell.p = next(found->out.p), cell.v = rest;
  return cell;
}

// The logs of the labels before a link of a series, given that after it, into `line`.
template <typename Real>
void Run<Real>::line_of_series(const Series& one, int64_t item, int64_t step, int64_t v) {
  const Stage& g = stages[one.link];
  const int64_t depth = g.depth;
  line.resize(depth);
  const Real* row = out(stages[one.into], data[0], item, At{step - 1}, 0);
  const std::vector<Real>& turned = leader->series[&one - series.data()].turned;
  if (!turned.empty()) {
    const Real* column = turned.data() + v * depth;
    for (int64_t k = 0; k < depth; ++k) line[k] = row[k] + column[k];
  } else {
    const Real* column = data[g.slot] + item * g.table_item + g.table.c + v * g.column;
    for (int64_t k = 0; k < depth; ++k) line[k] = row[k] + column[k * g.row];
  }
}

// The logs of all terms of a possible cell, relative to one level, into `line`.
template <typename Real>
void Run<Real>::expand(const Cell& cell, int64_t item) {
  const Stage& g = *cell.g;
  if (const Series* one = series_of(g, cell.s.s)) return line_of_series(*one, item, cell.s.s, cell.v);
  double known, base = -INFINITY;
  if (g.kind == kKindSum) {
    const int64_t many = find_terms(g, item, cell.s, cell.p, cell.v);
    line.assign(many, Real(0));
    if (many == 1) return;  // perhaps of a link that was written into the sum, and nowhere else
    sum_streams(many);
    for (const double top : tops) base = std::max(base, top);
    for (int64_t k = 0; k < many; ++k) line[k] = Real(tops[k] - base);
    return;
  }
  if (g.kind == kKindOver) {
    find_rows(g, item, cell.s, cell.p);
    line = x;
    return;
  }
  find_splits(alternatives[g.first], item, cell.s, cell.p);
  const int64_t depth = depth_of(g);
  if (!g.fixed) {
    int64_t hop;
    const Real* column = direct(g, item, cell.s, cell.p, cell.v, 1, &hop, &known);
    line.resize(depth * splits.size());
    for (size_t k = 0; k < line.size(); ++k) line[k] = x[k] + column[k * hop];
    return;
  }
  const Real* matrix = data[g.slot] + item * g.table_item + g.table.c;
  if (g.kind == kKindPair) {
    // All pairs of labels of all splits, times the column of the label.
    find_rows(g, item, cell.s, cell.p);
    line = x, columns.resize(depth);
    for (int64_t k = 0; k < depth; ++k) columns[k] = matrix[row_of(g, k) + column_of(g, cell.v)];
    for (size_t r = 0; r < splits.size(); ++r)
      for (int64_t k = 0; k < depth; ++k) line[r * depth + k] += columns[k];
    return;
  }
  line.resize(depth);
  row(alternatives[g.first], item, cell.s, cell.p, 0, depth, line.data());
  for (int64_t k = 0; k < depth; ++k) line[k] += matrix[k * g.row + column_of(g, cell.v)];
}

// Calls for all that the factors of an alternative read, of one label.
template <typename Real>
template <typename Reach>
void Run<Real>::each_read_of(const Alternative& a, int64_t item, const Split& at, int64_t p, int64_t label, Reach reach) {
  for (const FactorRecord* f = factors + a.first; f < factors + a.first + a.count; ++f)
    reach(f->slot, line_of(*f, item, at.s, p, at.r)(label) - item * f->item);
}

// Likewise for a label or pair of them before the matrix of a cell, of one split.
template <typename Real>
template <typename Reach>
void Run<Real>::each_read_of_split(const Cell& cell, int64_t item, const Split& at, int64_t k, Reach reach) {
  const Stage& g = *cell.g;
  const int64_t c = g.kind == kKindPair ? g.depth2 : 1;
  each_read_of(alternatives[g.first], item, at, cell.p, k / c, reach);
  if (g.kind == kKindPair) each_read_of(alternatives[g.first + 1], item, at, cell.p, k % c, reach);
}

// Calls for all that a term of a cell reads, with its slot and its place in the item. `known`: the cell is the
// last one that was expanded.
template <typename Real>
template <typename Reach>
void Run<Real>::each_read(const Cell& cell, int64_t item, int64_t term, bool known, Reach reach) {
  const Stage& g = *cell.g;
  if (const Series* one = series_of(g, cell.s.s)) {
    // The labels before a link that was written into the sum.
    const Stage& link = stages[one->link];
    reach(0, value(g.out, At{cell.s.s - 1}, 0, 0) + term);
    reach(link.slot, link.table.c + term * link.row + cell.v * link.column);
    for (const FactorRecord *f = factors + one->own->first, *end = f + one->own->count; f < end; ++f)
      if (f->link < 0) reach(f->slot, line_of(*f, item, cell.s, 0, 0)(cell.v) - item * f->item);
    return;
  }
  if (g.kind == kKindSum) {
    if (!known) find_terms(g, item, cell.s, cell.p, cell.v);
    const Terms* part = terms_of.data();
    for (; term > part->high - part->low; ++part) term -= part->high - part->low + 1;
    for (int64_t k = part->first, level; k < part->first + part->a->count; ++k)
      reach(streams[k].f->slot, place_in(streams[k], part->low + term, &level) - item * streams[k].f->item);
    return;
  }
  if (!known) find_splits(alternatives[g.first], item, cell.s, cell.p);
  const int64_t depth = depth_of(g), k = term % depth;
  const Split at = splits[term / depth];
  each_read_of_split(cell, item, at, k, reach);
  if (g.kind != kKindOver) reach(g.slot, place_in_matrix(g, item, at, cell.p, k, cell.v));
}

}  // namespace
