// From the goal to the inputs, one derivation: the best, or a draw.

#pragma once

#include "labels.h"

namespace {

// Random bits, by splitmix64.
template <typename Real>
uint64_t Run<Real>::bits() {
  uint64_t z = state += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull, z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// One of the scores: the largest, or one in proportion to its exponential.
template <typename Real>
int64_t Run<Real>::pick(bool best) {
  const auto top = std::max_element(scores.begin(), scores.end());
  if (best) return top - scores.begin();
  double sum = 0, most = *top;
  for (double& one : scores) sum += one = std::exp(one - most);
  double left = uniform() * sum;
  int64_t k = 0;
  while (k + 1 < int64_t(scores.size()) && (left -= scores[k]) >= 0) ++k;
  return k;
}

// One of the logs, as `pick` picks it; the logs are overwritten.
template <typename Real>
int64_t Run<Real>::pick_of(std::vector<Real>& logs, bool best) {
  const int64_t many = logs.size();
  const Real top = largest(logs.data(), many);
  int64_t k = 0;
  if (best) {
    while (logs[k] != top) ++k;
    return k;
  }
  exps(logs.data(), logs.data(), top, many);
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < many; ++j) sum += logs[j];
  Real left = Real(uniform()) * sum;
  while (k + 1 < many && (left -= logs[k]) >= 0) ++k;
  return k;
}

// Calls for each input that one derivation reads, with its slot and offset in the item.
template <typename Real>
template <typename Visit>
void Run<Real>::descend(int64_t item, int64_t goal, bool best, Visit visit) {
  std::vector<int64_t> waiting{goal};
  std::vector<Real> line;
  const auto reach = [&](int64_t slot, int64_t at) {
    if (slot) visit(slot, at);
    else waiting.push_back(at);
  };
  while (!waiting.empty()) {
    const int64_t at = waiting.back();
    waiting.pop_back();
    const Stage* found = nullptr;
    for (const Stage* g = stages; g < stages + whole.stages; ++g)
      if (g->out.c <= at && (!found || g->out.c > found->out.c)) found = g;
    const Stage& g = *found;
    int64_t rest = at - g.out.c;
    const auto next = [&](int64_t hop) { const int64_t many = hop ? rest / hop : 0; rest -= many * hop; return many; };
    At s{next(g.out.s)};
    s.q = next(g.out.q), s.u = next(g.out.u);
    const int64_t p = next(g.out.p), v = rest;
    scores.clear();
    const auto spread = [&](const Alternative& a, int64_t r, int64_t label) {
      for (const Factor* f = factors + a.first; f < factors + a.first + a.count; ++f)
        reach(f->slot, offset(*f, item, s, p, r) + label * f->hop - item * f->item);
    };
    if (g.kind == kKindSum) {
      collect_entries(g, s, p, g.labels ? g.labels : 1);
      const auto place = [&](const Part& f) { return read(f, item) + (g.labels ? v * f.hop : 0); };
      for (const Entry& one : entries) {
        double sum = level_of(one, item);
        for (int64_t k = one.first; entries.size() > 1 && k < one.first + one.count; ++k) sum += *place(factors_of[k]);
        scores.push_back(sum);
      }
      const Entry& one = entries[pick(best)];
      for (int64_t k = one.first; k < one.first + one.count; ++k) {
        const Part& f = factors_of[k];
        reach(f.f->slot, place(f) - data[f.f->slot] - item * f.f->item);
      }
    } else if (g.kind == kKindOver) {
      double known;
      line.resize(g.depth);
      row(alternatives[g.first], item, s, p, 0, g.depth, line.data(), &known);
      spread(alternatives[g.first], 0, pick_of(line, best));
    } else {
      // A row of every split, times the column of the label.
      const Span splits = loops(alternatives[g.first], s, p, false);
      const int64_t many = depth_of(g);
      const auto places = [&](int64_t r) {  // of the matrix, for each label before it
        find_places(g.rows, g.row, item, s, p, r, g.depth, rows_at.data());
        find_places(g.columns, g.column, item, s, p, r, g.labels, columns_at.data());
        return value(g.table, s, p, r) + columns_at[v];
      };
      rows_at.resize(g.depth), columns_at.resize(g.labels);
      int64_t chosen;
      if (g.kind == kKindPair) {
        const Real* logs = data[g.slot] + item * g.table_item + value(g.table, s, p, 0);
        each_term(g, s, Row{item, p, 0, 0, splits}, logs, v,
                  [&](int64_t, int64_t, double score) { scores.push_back(score); });
        chosen = pick(best);
      } else if (splits.low == splits.high) {
        double known;
        line.resize(many);
        row(alternatives[g.first], item, s, p, splits.low, many, line.data(), &known);
        const Real* column = data[g.slot] + item * g.table_item + places(splits.low);
        for (int64_t k = 0; k < many; ++k) line[k] += column[rows_at[k]];
        chosen = pick_of(line, best);
      } else {
        line.resize(many);
        for (int64_t r = splits.low; r <= splits.high; ++r) {
          double known;
          row(alternatives[g.first], item, s, p, r, many, line.data(), &known);
          const Real* column = data[g.slot] + item * g.table_item + places(r);
          for (int64_t k = 0; k < many; ++k) scores.push_back(known + line[k] + column[rows_at[k]]);
        }
        chosen = pick(best);
      }
      const int64_t k = chosen % many, r = splits.low + chosen / many;
      const int64_t c = g.kind == kKindPair ? g.depth2 : 1;
      spread(alternatives[g.first], r, k / c);
      if (g.kind == kKindPair) {
        spread(alternatives[g.first + 1], r, k % c);
        reach(g.slot, value(g.table, s, p, 0) + row_of(g, k) + v * g.column);
      } else {
        const int64_t at = places(r);
        reach(g.slot, at + rows_at[k]);
      }
    }
  }
}

}  // namespace
