// From the goal to the inputs, one derivation: the best, or a draw.
//
// At a cell with terms t_k, its derivation goes on with k = argmax t_k, or with k in proportion to exp(t_k): the
// product of these chances along a derivation is exp(score - log Z), so draws are exact. Every cell that term k reads
// is visited likewise, and every entry of an input that it reads is used once.

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
  return choose(line.data(), many, sum);
}

// The number of a term, in proportion to some numbers, whose sum is given.
template <typename Real>
int64_t Run<Real>::choose(const Real* line, int64_t many, Real sum) {
  const int64_t some = lanes<Real>();
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

// Prepares the matrices of series for the way back along them, of so many derivations in all; `exact`: by their logs,
// as for maxima.
template <typename Real>
void Run<Real>::prepare_descend(bool best, bool exact, int64_t derivations) {
  for (Series& one : series) {
    const Stage& g = stages[one.link];
    if (!best && one.kept && prepares(g)) prepare<false>(g, true);
    // Log-matrices that all items share, by the label after them, if many columns will be read.
    one.turned.clear();
    const int64_t n = g.labels, reads = derivations * (one.last - one.first + 1);
    if (g.table_item || leader != this || (!exact && one.kept) || 4 * reads < n) continue;
    const Real* from = data[g.slot] + g.table.c;
    constexpr int64_t kTile = 16;
    one.turned.resize(n * n);
    for (int64_t k = 0; k < n; k += kTile)
      for (int64_t j = 0; j < n; j += kTile)
        for (int64_t c = j; c < std::min(n, j + kTile); ++c)
          for (int64_t r = k; r < std::min(n, k + kTile); ++r) one.turned[c * n + r] = from[r * g.row + c * g.column];
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
    if (sum >= faint<Real>(depth) * (1 << 20)) return choose(line.data(), depth, sum);
  }
  line_of_series(one, item, step, v);
  if (noise) shake(one, step - 1);
  return pick(best || noise);
}

// Adds the noise of a step to the logs of the labels that one of is chosen there.
template <typename Real>
void Run<Real>::shake(const Series& one, int64_t step) {
  const FactorRecord* f = other_of(one);
  if (!f || f->slot != noisy) return;
  const Real* own = noise + f->at.c + step * f->at.s;
  for (size_t k = 0; k < line.size(); ++k) line[k] += own[k];
}

// The same where a sum over labels, as a goal, or a link reads a row of a table: what is added to the input that the
// table's only rule there reads.
template <typename Real>
void Run<Real>::shake(const Cell& cell, int64_t item) {
  int64_t at = -1;
  each_read(cell, item, 0, true, [&](int64_t slot, int64_t place) { if (!slot) at = place; });
  if (at < 0) return;
  const Cell first = cell_at(at);
  if (const Series* one = series_of(*first.g, first.s.s)) return shake(*one, first.s.s);
  if (first.g->kind != kKindSum) return;
  if (find_terms(*first.g, item, first.s, first.p, 0) != 1) return;
  const Terms& term = terms_of[0];
  for (const FactorRecord *f = factors + term.a->first, *end = f + term.a->count; f < end; ++f) {
    if (f->slot != noisy) continue;
    const Line own = line_of(*f, item, term.s, first.p, term.low);
    for (size_t k = 0; k < line.size(); ++k) line[k] += noise[own(k) - item * f->item];
  }
}

// Goes back along a series from a label to that before it, which is returned.
template <typename Real>
template <typename Visit>
int64_t Run<Real>::descend_series(const Series& one, int64_t item, int64_t step, int64_t v, bool best, Visit visit) {
  const Stage& g = stages[one.link];
  for (; step >= one.first; --step) {
    const int64_t k = label_before(one, item, step, v, best);
    visit(g.slot, g.table.c + k * g.row + v * g.column);
    for (const FactorRecord *f = factors + one.own->first, *end = f + one.own->count; f < end; ++f)
      if (f->link < 0) visit(f->slot, line_of(*f, item, At{step}, 0, 0)(v) - item * f->item);
    v = k;
  }
  return v;
}

// The logs of all pairs of labels of a pair's cell, summed over splits, into `line`. Returns whether sums have lost no
// terms to underflow that may count.
template <typename Real>
template <bool best>
bool Run<Real>::pair_line(const Cell& cell, int64_t item) {
  const Stage& g = *cell.g;
  const int64_t b = g.depth, c = g.depth2;
  const Real* matrix = data[g.slot] + item * g.table_item + g.table.c + column_of(g, cell.v);
  Row one{item, cell.p, 0, 0};
  pairs.resize(std::max<int64_t>(pairs.size(), b * c)), line.resize(b * c);
  if (!pair<best>(g, cell.s, one, pairs.data())) return false;
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
  return top > kNever<Real> && !(lost + std::log(least) > top + std::log(std::numeric_limits<Real>::epsilon()));
}

// The number of a term of a pair's cell, as `pick` of all of its terms: first the labels of both parts, and then the
// split. Below 0: sums have lost terms to underflow that may count.
template <typename Real>
template <bool best>
int64_t Run<Real>::choose_pair(const Cell& cell, int64_t item) {
  if (!pair_line<best>(cell, item)) return -1;
  const int64_t c = cell.g->depth2, depth = depth_of(*cell.g), many = splits.size();
  const int64_t k = pick(best), i = k / c, j = k % c;
  line.resize(many);
  for (int64_t r = 0; r < many; ++r) {
    const Real left = parts_of_splits[0][r][i], right = parts_of_splits[1][r][j];
    line[r] = best ? left + (right + w[r]) : std::log(left * right);
  }
  return pick(best) * depth + k;
}

// The number of a node of a cell; below 0: it has none.
template <typename Real>
int32_t Run<Real>::Memory::find(int64_t at) const {
  if (table.empty()) return -1;
  size_t k = place_of(at);
  while (table[k] >= 0 && nodes[table[k]].at != at) k = (k + 1) & (table.size() - 1);
  return table[k];
}

template <typename Real>
void Run<Real>::Memory::put(int32_t node) {
  if (2 * (nodes.size() + 1) > table.size()) {
    std::vector<int32_t> before(std::max<size_t>(256, 2 * table.size()), -1);
    before.swap(table);
    for (const int32_t one : before) if (one >= 0) put(one);
  }
  size_t k = place_of(nodes[node].at);
  while (table[k] >= 0) k = (k + 1) & (table.size() - 1);
  table[k] = node;
}

// The number of a term of a node, in proportion to their exponentials.
template <typename Real>
int64_t Run<Real>::recall(int32_t node) {
  const int64_t many = memory.nodes[node].count;
  if (many == 1) return 0;
  const Real* sums = memory.sums.data() + memory.nodes[node].first;
  const Real *end = sums + many, *found = std::upper_bound(sums, end, Real(uniform()) * end[-1]);
  // Rounding may have led beyond the last term that is possible.
  return (found < end ? found : std::lower_bound(sums, end, end[-1])) - sums;
}

// Keeps the distribution over the terms in `line`, as a node, whose number is returned.
template <typename Real>
int32_t Run<Real>::remember(int64_t at, int64_t what) {
  const int64_t many = line.size(), first = memory.sums.size(), node = memory.nodes.size();
  exps(line.data(), line.data(), largest(line.data(), many), many);
  memory.sums.resize(first + many), memory.next.resize(first + many, -1);
  Real sum = 0;
  for (int64_t k = 0; k < many; ++k) memory.sums[first + k] = sum += line[k];
  memory.nodes.push_back({at, what, first, many});
  if (what < 0) memory.put(node);
  return node;
}

// Calls for all that a term of a cell reads, or the cells that it reads if these have one term alone.
template <typename Real>
template <typename Reach>
void Run<Real>::each_read_through(const Cell& cell, int64_t item, int64_t term, Reach reach) {
  std::vector<int64_t> inner;
  each_read(cell, item, term, false, [&](int64_t slot, int64_t place) {
    if (slot) reach(slot, place);
    else inner.push_back(place);
  });
  for (const int64_t place : inner) {
    const Cell one = cell_at(place);
    if (one.g->kind == kKindSum && !series_of(*one.g, one.s.s)) {
      if (find_terms(*one.g, item, one.s, one.p, one.v) == 1) { each_read_through(one, item, 0, reach); continue; }
    }
    reach(0, place);
  }
}

// The node of a cell that several draws go through, which is made if there is none. Below 0: the cell has none, as where
// there is no room, or where its label is found on the way back along a series.
template <typename Real>
int32_t Run<Real>::node_of(int64_t at, int64_t item) {
  if (const int32_t found = memory.find(at); found >= 0) return found;
  if (int64_t(memory.sums.size()) >= kRemembered || is_in_series(at)) return -1;
  const Cell cell = cell_at(at);
  const Stage& g = *cell.g;
  if (g.kind == kKindPair && g.fixed) {
    // Of many terms the sums over splits, by which labels are chosen first.
    find_splits(alternatives[g.first], item, cell.s, cell.p);
    if (int64_t(splits.size()) * depth_of(g) > kTerms && pair_line<false>(cell, item)) return remember(at, Memory::kPairs);
  }
  expand(cell, item);
  return remember(at, Memory::kEvery);
}

// A term of a node's cell for one of several draws: distributions are found once for all of them, and so is what terms
// read. Calls for each input, and notes the cells, or their nodes k as -1 - k.
template <typename Real>
template <typename Visit>
void Run<Real>::draw_known(int32_t node, int64_t item, std::vector<int64_t>& waiting, Visit visit) {
  int64_t term = recall(node);
  if (memory.nodes[node].what == Memory::kPairs) {
    const int64_t at = memory.nodes[node].at, place = memory.nodes[node].first + term;
    if (memory.next[place] < 0) {
      splits_of(cell_at(at), item, term);
      const int32_t made = remember(at, term);
      memory.next[place] = made;
    }
    node = memory.next[place], term = recall(node);
  }
  const typename Memory::Node one = memory.nodes[node];
  if (memory.next[one.first + term] < 0) {
    const Cell cell = cell_at(one.at);
    const int64_t start = memory.reads.size();
    each_read_through(cell, item, one.what < 0 ? term : term * depth_of(*cell.g) + one.what, [&](int64_t slot, int64_t place) {
      memory.reads.push_back({slot, place, -1});
    });
    memory.next[one.first + term] = memory.lists.size();
    memory.lists.push_back({start, int64_t(memory.reads.size())});
  }
  const std::pair<int64_t, int64_t> list = memory.lists[memory.next[one.first + term]];
  for (int64_t k = list.first; k < list.second; ++k) {
    const typename Memory::Read read = memory.reads[k];
    if (read.slot) { visit(read.slot, read.place); continue; }
    int32_t inner = read.node;
    if (inner < 0) inner = node_of(read.place, item), memory.reads[k].node = inner;
    waiting.push_back(inner < 0 ? read.place : -1 - inner);
  }
}

// The logs of a pair's terms of two labels, one for each split, into `line`.
template <typename Real>
void Run<Real>::splits_of(const Cell& cell, int64_t item, int64_t k) {
  const Stage& g = *cell.g;
  const int64_t labels[] = {k / g.depth2, k % g.depth2};
  find_splits(alternatives[g.first], item, cell.s, cell.p);
  tops.assign(splits.size(), 0.0);
  for (int side = 0; side < 2; ++side) {
    const Alternative& a = alternatives[g.first + side];
    if (const FactorRecord* f = single_row(a)) {
      find_parts(*f, item, cell.s, cell.p, places_of_parts[side]);
      const Real* from = data[0] + labels[side];
      for (size_t r = 0; r < splits.size(); ++r) tops[r] += from[places_of_parts[side][r]];
    } else for (size_t r = 0; r < splits.size(); ++r)
      for (const FactorRecord* f = factors + a.first; f < factors + a.first + a.count; ++f) {
        const Line from = line_of(*f, item, splits[r].s, cell.p, splits[r].r);
        tops[r] += data[f->slot][from(labels[side])] + (from.levels ? from.levels[labels[side] * from.level_hop] : 0);
      }
  }
  const double top = *std::max_element(tops.begin(), tops.end());
  line.resize(splits.size());
  for (size_t r = 0; r < splits.size(); ++r) line[r] = Real(tops[r] - top);
}

// Goes on with one of the cells that a derivation waits for: calls for each input that its term reads, with its slot and
// place in the item, and notes the cells.
template <typename Real>
template <typename Visit>
void Run<Real>::descend_once(int64_t item, std::vector<int64_t>& waiting, bool best, Visit visit) {
  const int64_t at = waiting.back();
  waiting.pop_back();
  const auto reach = [&](int64_t slot, int64_t place) {
    if (slot) visit(slot, place);
    else waiting.push_back(place);
  };
  // What several draws go through is found once.
  if (remembers) {
    const int32_t node = at < 0 ? int32_t(-1 - at) : node_of(at, item);
    if (node >= 0) return draw_known(node, item, waiting, visit);
  }
  const Cell cell = cell_at(at);
  if (const Series* one = series_of(*cell.g, cell.s.s)) {
    const int64_t v = descend_series(*one, item, cell.s.s, cell.v, best, visit);
    waiting.push_back(value(cell.g->out, At{one->first - 1}, 0, 0) + v);
    return;
  }
  const bool is_pair = cell.g->kind == kKindPair && cell.g->fixed && !noise;
  int64_t term = !is_pair ? -1 : best ? choose_pair<true>(cell, item) : choose_pair<false>(cell, item);
  if (term < 0) {
    expand(cell, item);
    if (noise && (cell.g->kind == kKindOver || cell.g->kind == kKindLink)) shake(cell, item);
    term = pick(best || noise);
  }
  each_read(cell, item, term, true, reach);
}

// Derivations of a goal, cell by cell of each in turn, so that those that are side by side read the same numbers. Every
// one has a stream of random numbers of its own. Calls for each input that one of them reads, with its number, the slot and
// the place in the item; `noise_of` says what is added to the entries of an input, or null.
template <typename Real>
template <typename Noise, typename Visit>
void Run<Real>::descend(int64_t item, int64_t goal, int64_t draws, bool best, uint64_t first_seed, Noise noise_of, Visit visit) {
  paths.resize(std::max<size_t>(paths.size(), draws));
  for (int64_t draw = 0; draw < draws; ++draw)
    seed(first_seed + draw), paths[draw].state = state, paths[draw].waiting.assign(1, goal);
  if (remembers) memory.clear();
  for (bool any = true; any;) {
    any = false;
    for (int64_t draw = 0; draw < draws; ++draw) {
      Path& path = paths[draw];
      if (path.waiting.empty()) continue;
      any = true, state = path.state, noise = noise_of(draw);
      descend_once(item, path.waiting, best, [&](int64_t slot, int64_t at) { visit(draw, slot, at); });
      path.state = state;
    }
  }
}

}  // namespace
