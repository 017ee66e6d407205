// One cell of a table: its terms, of which its sum or maximum is made, and what each of them reads.

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
  cell.s.q = next(found->out.q), cell.s.u = next(found->out.u), cell.p = next(found->out.p), cell.v = rest;
  return cell;
}

// The logs of all terms of a possible cell, relative to one level, into `line`.
template <typename Real>
void Run<Real>::expand(const Cell& cell, int64_t item) {
  const Stage& g = *cell.g;
  double known, base = -INFINITY;
  if (g.kind == kKindSum) {
    collect_entries(g, cell.s, cell.p, g.labels ? g.labels : 1);
    line.assign(entries.size(), Real(0));
    if (entries.size() == 1) return;  // perhaps of a link that was written into the sum, and nowhere else
    for (Entry& one : entries) base = std::max(base, one.level = level_of(one, item));
    for (size_t k = 0; k < entries.size(); ++k) {
      const Entry& one = entries[k];
      line[k] = Real(one.level - base);
      for (int64_t j = one.first; j < one.first + one.count; ++j) line[k] += *read_label(g, factors_of[j], item, cell.v);
    }
  } else if (g.kind == kKindOver) {
    line.resize(g.depth);
    row(alternatives[g.first], item, cell.s, cell.p, 0, g.depth, line.data(), &known);
  } else if (g.kind == kKindPair) {
    // All pairs of labels of all splits, times the column of the label.
    const Real* matrix = data[g.slot] + item * g.table_item + value(g.table, cell.s, cell.p, 0);
    tops.clear();
    each_term(g, cell.s, Row{item, cell.p, 0, 0, loops(alternatives[g.first], cell.s, cell.p, false)}, matrix, cell.v,
              [&](int64_t, int64_t, double log) { tops.push_back(log), base = std::max(base, log); });
    line.resize(tops.size());
    for (size_t k = 0; k < tops.size(); ++k) line[k] = Real(tops[k] - base);
  } else {
    // A row of every value of the loop, times the column of the label.
    const Span loop = loops(alternatives[g.first], cell.s, cell.p, false);
    const int64_t many = count_of(loop);
    line.resize(many * g.depth), tops.resize(many), rows_at.resize(g.depth);
    for (int64_t k = 0; k < many; ++k) {
      row(alternatives[g.first], item, cell.s, cell.p, loop.low + k, g.depth, line.data() + k * g.depth, &tops[k]);
      base = std::max(base, tops[k]);
    }
    for (int64_t k = 0; k < many; ++k) {
      const int64_t r = loop.low + k;
      const Real* column = data[g.slot] + item * g.table_item + value(g.table, cell.s, cell.p, r) +
                           place_in(g.columns, g.column, item, cell.s, cell.p, r, cell.v);
      const Real more = Real(tops[k] - base);
      find_places(g.rows, g.row, item, cell.s, cell.p, r, g.depth, rows_at.data());
      for (int64_t j = 0; j < g.depth; ++j) line[k * g.depth + j] += column[rows_at[j]] + more;
    }
  }
}

// Calls for all that a term of a cell reads, with its slot and its place in the item. `known`: the cell is the
// last one that was expanded.
template <typename Real>
template <typename Reach>
void Run<Real>::each_read(const Cell& cell, int64_t item, int64_t term, bool known, Reach reach) {
  const Stage& g = *cell.g;
  if (g.kind == kKindSum) {
    if (!known) collect_entries(g, cell.s, cell.p, g.labels ? g.labels : 1);
    const Entry one = entries[term];
    for (int64_t k = one.first; k < one.first + one.count; ++k) {
      const Part& f = factors_of[k];
      reach(f.f->slot, read_label(g, f, item, cell.v) - data[f.f->slot] - item * f.f->item);
    }
    return;
  }
  const Alternative* a = alternatives + g.first;
  const auto spread = [&](const Alternative& a, int64_t r, int64_t label) {
    for (const Factor* f = factors + a.first; f < factors + a.first + a.count; ++f)
      reach(f->slot, offset(*f, item, cell.s, cell.p, r) + label * f->hop - item * f->item);
  };
  if (g.kind == kKindOver) return spread(*a, 0, term);
  const int64_t depth = depth_of(g), k = term % depth, r = loops(*a, cell.s, cell.p, false).low + term / depth;
  const int64_t start = value(g.table, cell.s, cell.p, r);
  if (g.kind == kKindPair) {
    spread(a[0], r, k / g.depth2), spread(a[1], r, k % g.depth2);
    return reach(g.slot, start + row_of(g, k) + cell.v * g.column);
  }
  spread(*a, r, k);
  reach(g.slot, start + place_in(g.rows, g.row, item, cell.s, cell.p, r, k) +
                    place_in(g.columns, g.column, item, cell.s, cell.p, r, cell.v));
}

}  // namespace
