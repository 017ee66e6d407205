// Links: rows of labels, or pairs of them, times a matrix, upwards; and their gradients downwards.
//
// A link is y_j = log sum_i exp(x_i + W_ij). Rows and columns are scaled so that the largest exponential
// of each is 1, and all rows of a step are one matrix product. A pair has a row x_(b,c) for every two
// labels, sum_r exp(l_rb + r_rc) over the splits r. Matrices that change from place to place, or whose
// places are data, are summed in logs where they lie (`direct`).

#pragma once

#include "sums.h"

namespace {

// The product of factors at a place, as logs of `depth` labels relative to a level, which is returned.
template <typename Real>
double Run<Real>::row(const Alternative& a, int64_t item, At s, int64_t p, int64_t r, int64_t depth, Real* to) const {
  Real more = 0;
  double known = 0;
  bool none = true;
  for (const FactorRecord* f = factors + a.first; f < factors + a.first + a.count; ++f) {
    const Real* source = data[f->slot];
    const Line from = line_of(*f, item, s, p, r);
    const double own = level(from, source, depth);
    known += own;
    if (!from.hop && !from.looks) more += source[from.at];
    else if (none && from.hop == 1 && !from.looks && !from.level_hop) std::memcpy(to, source + from.at, depth * sizeof(Real)), none = false;
    else {
      if (none) std::fill(to, to + depth, Real(0));
      add(to, source, from, own, 0, depth), none = false;
    }
  }
  if (none) std::fill(to, to + depth, Real(0));
  if (more != 0) for (int64_t k = 0; k < depth; ++k) to[k] += more;
  return known;
}

// Scales and packs some panels of a matrix, numbered from one on: exponentials relative to the peak of each column.
// Notes whether a column has a NaN or +inf, unless maxima are asked for.
template <typename Real>
template <bool best>
void Run<Real>::pack(const Stage& g, const Table<Real>& t, int64_t first, int64_t last) {
  typedef typename Format<Real>::type Mask;
  const int64_t wide = width<Real>(), depth = depth_of(g), begin = first * wide, end = std::min(g.labels, last * wide);
  const bool together = g.column == 1 && g.labels2 == 1;  // whether the columns of a row lie side by side
  std::fill(t.peaks + begin, t.peaks + last * wide, kNever<Real>);
  if (end < last * wide) std::fill(t.ahead + (last - 1) * wide * depth, t.ahead + last * wide * depth, best ? kNever<Real> : Real(0));
  // The peaks, row by row as these lie.
  Mask bad = {};
  const Lane<Real> most = all(std::numeric_limits<Real>::infinity());
  for (int64_t k = 0; !best && k < depth; ++k) {
    const Real* from = t.logs + row_of(g, k);
    if (!together) for (int64_t j = begin; j < end; ++j) t.peaks[j] = std::max(t.peaks[j], from[column_of(g, j)]);
    else by_lanes<Real>(end - begin, [&](int64_t j, auto left) {
      const Lane<Real> one = load(from + begin + j, left), peak = load(t.peaks + begin + j, left);
      bad |= ~(one < most);
      store(t.peaks + begin + j, one > peak ? one : peak, left);
    });
  }
  for (int64_t j = begin; j < last * wide; ++j) t.peaks[j] = finite(t.peaks[j]);
  for (int64_t j = 0; j < lanes<Real>(); ++j) if (bad[j]) note_unsound();
  // Blocks of rows, so that few pages are read and written by turns.
  for (int64_t start = 0; start < depth; start += kBlock)
    for (int64_t p = first; p < last; ++p) {
      const int64_t at = p * wide, some = std::min(wide, end - at);
      for (int64_t k = start; k < std::min(depth, start + kBlock); ++k) {
        Real* to = t.ahead + at * depth + k * wide;
        const Real* from = t.logs + row_of(g, k) + (together ? at : 0);
        if (!together) {
          for (int64_t j = 0; j < some; ++j) to[j] = from[column_of(g, at + j)];
          from = to;
        }
        by_lanes<Real>(some, [&](int64_t j, auto left) {
          const Lane<Real> one = load(from + j, left);
          store(to + j, best ? one : exp_of<Real>(one - load(t.peaks + at + j, left)), left);
        });
      }
    }
}

// The transpose of a packed matrix (depth, n), some panels of it, numbered from one on: tiles of a panel's width, which
// stay in the cache.
template <typename Real>
void Run<Real>::transpose(const Real* ahead, int64_t depth, int64_t n, Real* back, int64_t first, int64_t last) {
  constexpr int64_t wide = width<Real>();
  for (int64_t k = first * wide; k < last * wide; k += wide)
    for (int64_t j = 0; j < n; j += wide) {
      const Real* from = ahead + j * depth + k * wide;
      Real* to = back + k * n + j * wide;
      const int64_t rows_of = std::min(wide, depth - k), columns_of = std::min(wide, n - j);
      for (int64_t c = 0; c < columns_of; ++c) {
        for (int64_t r = 0; r < rows_of; ++r) to[c * wide + r] = from[r * wide + c];
        std::fill(to + c * wide + rows_of, to + (c + 1) * wide, Real(0));
      }
    }
}

// Prepares a matrix, or, for the way down, its transpose.
template <typename Real>
template <bool best>
void Run<Real>::prepare(const Stage& g, bool down) {
  prepared[&g - stages].resize(sets(g) * prepared_size(g));
  const int64_t panels = panels_of(down ? depth_of(g) : g.labels, width<Real>());
  const double work = double(depth_of(g)) * double(g.labels);
  for (int64_t item = 0; item < sets(g); ++item) {
    const Table<Real> t = table(g, item);
    by_items(panels, threads_for(8 * work, crew), [&](int64_t first, int64_t last) {
      const Flushed flushed;
      if (down) transpose(t.ahead, depth_of(g), g.labels, t.back, first, last);
      else pack<best>(g, t, first, last);
    });
  }
}

// (rows, panels * width): rows by all panels, or by those from one on to another; `backwards`: from the last one on.
template <typename Real>
template <bool best>
void Run<Real>::by_panels(const Real* left, int64_t rows, int64_t stride, int64_t depth, const Real* panels, int64_t columns, Real* result, int64_t hop) {
  by_panels<best>(left, rows, stride, depth, panels, 0, panels_of(columns, width<Real>()), false, result, hop);
}
template <typename Real>
template <bool best>
void Run<Real>::by_panels(const Real* left, int64_t rows, int64_t stride, int64_t depth, const Real* panels, int64_t first, int64_t last, bool backwards, Real* result, int64_t hop) {
  const int64_t wide = width<Real>();
  for (int64_t k = first; k < last; ++k) {
    const int64_t p = backwards ? first + last - 1 - k : k;
    for (int64_t r = 0; r < rows; r += kRows)
      multiply<Real, best>(std::min(kRows, rows - r), left + r * stride, stride, panels + p * wide * depth,
                           depth, result + r * hop + p * wide, hop);
  }
}

// Likewise by threads, of which each takes some panels. Where products by one matrix come in turn, every other one goes
// `backwards`: what the one before it has read last is in the nearest cache. Of 1,000 states in float32 that takes 100 us
// in place of 155.
template <typename Real>
template <bool best>
void Run<Real>::by_panels_of_all(const Real* left, int64_t rows, int64_t stride, int64_t depth, const Real* panels, int64_t columns, bool backwards, Real* result, int64_t hop) const {
  const int64_t threads = threads_for(double(rows) * double(depth) * double(columns), helpers.size() + 1);
  if (threads == 1) return by_panels<best>(left, rows, stride, depth, panels, 0, panels_of(columns, width<Real>()), backwards, result, hop);
  by_items(panels_of(columns, width<Real>()), threads, [&](int64_t first, int64_t last) {
    const Flushed flushed;
    by_panels<best>(left, rows, stride, depth, panels, first, last, backwards, result, hop);
  });
}

// A row before a product, as exponentials relative to its top (maxima: logs relative to it). Returns whether anything
// in it is possible.
template <typename Real>
template <bool best>
bool Run<Real>::prepare_row(const Stage& g, At s, Row& one, Real* to) {
  if (g.kind == kKindPair) return pair<best>(g, s, one, to);
  const Alternative& a = alternatives[g.first];
  if (!has_terms(a, one.item, s, one.p)) return false;
  one.level = row(a, one.item, s, one.p, 0, g.depth, to);
  const Real top = largest(to, g.depth);
  if (!(top > kNever<Real>)) return false;
  one.top = top, note(top);
  if (!best) exps(to, to, top, g.depth);
  else for (int64_t j = 0; j < g.depth; ++j) to[j] -= top;
  return true;
}

// Fills `x` and `rows` with those of `most` places of a step, counted item after item from `first` on. Rows in which
// nothing is possible are left out.
template <typename Real>
template <bool best>
void Run<Real>::prepare_rows(const Stage& g, At s, Span span, int64_t item, int64_t first, int64_t most) {
  const int64_t depth = depth_of(g), many = span.high - span.low + 1;
  rows.clear();
  x.resize(most * depth);
  for (int64_t k = first; k < first + most; ++k) {
    Row one{item + k / many, span.low + k % many, 0, 0};
    if (prepare_row<best>(g, s, one, x.data() + rows.size() * depth)) rows.push_back(one);
  }
}

// Likewise, with their products, `hop` apart: of a wide series those that the way up has kept, unless one was lost.
template <typename Real>
void Run<Real>::rows_and_products(const Stage& g, At s, Span span, int64_t item, int64_t first, int64_t most, int64_t hop, Real* products) {
  const int64_t depth = depth_of(g), n = g.labels;
  for (const Series& one : series) {
    if (stages + one.link != &g || !one.kept || is_narrow(one) || s.s < one.first || one.last < s.s) continue;
    const int64_t many = one.last - one.first + 1;
    rows.clear(), x.resize(most * depth);
    for (int64_t k = first; k < first + most; ++k) {
      const int64_t row = ((item + k) * many + s.s - one.first) * n;
      if (!any_of(one.after.data() + row, n)) break;
      std::memcpy(x.data() + rows.size() * n, one.before.data() + row, n * sizeof(Real));
      std::memcpy(products + rows.size() * hop, one.after.data() + row, n * sizeof(Real));
      rows.push_back({item + k, 0, 0, 0});
    }
    if (int64_t(rows.size()) == most) return;
  }
  prepare_rows<false>(g, s, span, item, first, most);
  by_panels_of_all<false>(x.data(), rows.size(), depth, depth, table(g, item).ahead, n, s.s % 2, products, hop);
}

// Where the row of a table is that a factor reads, of all `splits`, into `at`; adds its levels to `tops`. Rows move by
// a stride along each loop.
template <typename Real>
void Run<Real>::find_parts(const FactorRecord& f, int64_t item, At s, int64_t p, std::vector<int64_t>& at) {
  const int64_t many = splits.size();
  at.resize(many), s.w = 0;
  const int64_t place = value(f.at, s, p, 0) + item * f.item;
  const double* from = levels + item * f.level_item + value(f.level, s, p, 0);
  for (int64_t k = 0; k < many; ++k) {
    const int64_t outer = splits[k].s.w, r = splits[k].r;
    int64_t level = outer * f.level.w + r * f.level.r;
    at[k] = place + outer * f.at.w + r * f.at.r;
    for (const Look* l = looks + f.look; l < looks + f.look + f.looks; ++l) {
      const int64_t number = numbers(*l, item)[value(l->at, splits[k].s, p, r)];
      at[k] += l->stride * number, level += l->level * number;
    }
    tops[k] += from[level];
  }
}

// Both parts of all splits of a pair, as `parts_of_splits`: for maxima logs, to which `w` of the split is added; for
// sums exponentials relative to a common top, (splits, depth) in `y` and (splits, depth2) in `rights`. Returns whether
// any is possible.
template <typename Real>
template <bool best>
bool Run<Real>::prepare_splits(const Stage& g, At s, Row& one) {
  find_splits(alternatives[g.first], one.item, s, one.p);
  const int64_t many = splits.size();
  tops.assign(many, 0.0);
  for (int side = 0; side < 2; ++side) {
    const Alternative& a = alternatives[g.first + side];
    const int64_t depth = side ? g.depth2 : g.depth;
    std::vector<Real>& rows_of = side ? rights : y;
    std::vector<int64_t>& at = places_of_parts[side];
    std::vector<const Real*>& parts = parts_of_splits[side];
    parts.resize(many);
    const FactorRecord* f = single_row(a);
    if (f) find_parts(*f, one.item, s, one.p, at);
    if (!best || !f) rows_of.resize(std::max<int64_t>(rows_of.size(), many * depth));
    // Of sums the largest number of each row goes to its level; rows are then copied, or made.
    for (int64_t k = 0; k < many; ++k) {
      Real* to = rows_of.data() + k * depth;
      if (!f) tops[k] += row(a, one.item, splits[k].s, one.p, splits[k].r, depth, to);
      const Real *from = f ? data[0] + at[k] : to, top = best ? Real(0) : largest(from, depth);
      parts[k] = best ? from : to;
      if (best) continue;
      tops[k] += top;
      by_lanes<Real>(depth, [&](int64_t j, auto left) { store(to + j, load(from + j, left) - finite(top), left); });
    }
  }
  // The largest level of what is possible.
  double most = -INFINITY;
  for (int64_t k = 0; k < many; ++k)
    if (tops[k] > most && (!best || (any_possible(parts_of_splits[0][k], g.depth) && any_possible(parts_of_splits[1][k], g.depth2))))
      most = tops[k];
  if (!(most > -INFINITY)) return false;
  one.level = 0, one.top = most;
  // What is not possible may have a larger level.
  w.resize(std::max<int64_t>(w.size(), many));
  for (int64_t k = 0; k < many; ++k) w[k] = Real(std::min(tops[k] - most, 0.0));
  if (best) return true;
  // All exponentials at once: a row of a few labels fills no vector.
  const int64_t b = g.depth;
  exps(y.data(), y.data(), Real(0), many * b), exps(rights.data(), rights.data(), Real(0), many * g.depth2);
  exps(w.data(), w.data(), Real(0), many);
  for (int64_t k = 0; k < many; ++k)
    by_lanes<Real>(b, [&](int64_t j, auto left) { store(y.data() + k * b + j, load(y.data() + k * b + j, left) * w[k], left); });
  return true;
}

// The row of a pair, (depth, depth2). Returns whether anything in it is possible.
template <typename Real>
template <bool best>
bool Run<Real>::pair(const Stage& g, At s, Row& one, Real* to) {
  if (!prepare_splits<best>(g, s, one)) return false;
  products<best>(g, to);
  return true;
}

// (depth, depth2) of the rows L and R from `prepare_splits`: sum_k L_ki R_kj over splits k, or max_k [L_ki + (R_kj + w_k)].
template <typename Real>
template <bool best>
void Run<Real>::products(const Stage& g, Real* to) {
  const int64_t many = splits.size(), b = g.depth, c = g.depth2;
  const Real *const* left = parts_of_splits[0].data(), *const* right = parts_of_splits[1].data();
  for (int64_t first = 0; first < b; first += kRows)
    by_rows(std::min(kRows, b - first), [&](auto some) {
      constexpr int rows = decltype(some)::value;
      by_lanes<Real>(c, [&](int64_t j, auto count) {
        Lane<Real> sums[rows];
        for (Lane<Real>& sum : sums) sum = all(best ? kNever<Real> : Real(0));
        for (int64_t k = 0; k < many; ++k) {
          const Real* x = left[k] + first;
          const Lane<Real> y = load(right[k] + j, count) + (best ? w[k] : Real(0));
          for (int i = 0; i < rows; ++i) {
            const Lane<Real> one = best ? y + x[i] : y * x[i];
            sums[i] = !best ? sums[i] + one : one > sums[i] ? one : sums[i];
          }
        }
        for (int i = 0; i < rows; ++i) store(to + (first + i) * c + j, sums[i], count);
      });
    });
}

// Visits every term of a row's sum for one column, with its split, its label or pair of labels, and its log.
template <typename Real>
template <typename Visit>
void Run<Real>::each_term(const Stage& g, At s, const Row& one, const Real* logs, int64_t j, Visit visit) {
  const int64_t b = g.depth, c = g.kind == kKindPair ? g.depth2 : 1;
  const int64_t column = column_of(g, j);
  std::vector<Real> left(b), right(c, Real(0));
  each_loop(alternatives[g.first], one.item, s, one.p, [&](At here, Span span) {
    for (int64_t r = span.low; r <= span.high; ++r) {
      double more = row(alternatives[g.first], one.item, here, one.p, r, b, left.data());
      if (g.kind == kKindPair) more += row(alternatives[g.first + 1], one.item, here, one.p, r, c, right.data());
      for (int64_t k = 0; k < b * c; ++k)
        visit(Split{here, r}, k, double(left[k / c]) + right[k % c] + logs[row_of(g, k) + column] + more);
    }
  });
}

// Whether anything is possible in a column of a matrix, which is found once for all places.
template <typename Real>
bool Run<Real>::is_used(const Stage& g, int64_t item, const Real* logs, int64_t j) {
  std::vector<char>& found = used[&g - stages];  // 0: not known
  const int64_t at = (g.table_item ? item : 0) * g.labels + j;
  found.resize(sets(g) * g.labels, 0);
  if (!found[at]) {
    found[at] = 1;
    for (int64_t k = 0; k < depth_of(g); ++k) if (logs[row_of(g, k) + column_of(g, j)] > kNever<Real>) found[at] = 2;
  }
  return found[at] > 1;
}

// Whether any term of a row's sum is possible, for one column. Which labels or pairs of them are possible before
// the matrix is found once for all columns of a row: most sums that vanish are those of hard zeros.
template <typename Real>
bool Run<Real>::is_possible(const Stage& g, At s, const Row& one, const Real* logs, int64_t j) {
  if (!is_used(g, one.item, logs, j)) return false;
  const int64_t b = g.depth, c = g.kind == kKindPair ? g.depth2 : 1, column = column_of(g, j);
  const int64_t place[] = {&g - stages, one.item, one.p, s.s, s.o, s.q, s.u};
  if (!std::equal(std::begin(place), std::end(place), there_at)) {
    std::copy(std::begin(place), std::end(place), there_at);
    there.assign(b * c, 0);
    std::vector<Real> left(b), right(c, Real(0));
    each_loop(alternatives[g.first], one.item, s, one.p, [&](At here, Span span) {
      for (int64_t r = span.low; r <= span.high; ++r) {
        row(alternatives[g.first], one.item, here, one.p, r, b, left.data());
        if (g.kind == kKindPair) row(alternatives[g.first + 1], one.item, here, one.p, r, c, right.data());
        for (int64_t k = 0; k < b; ++k) {
          if (!(left[k] > kNever<Real>)) continue;
          for (int64_t i = 0; i < c; ++i) there[k * c + i] |= right[i] > kNever<Real>;
        }
      }
    });
  }
  for (int64_t k = 0; k < b * c; ++k) if (there[k] && logs[row_of(g, k) + column] > kNever<Real>) return true;
  return false;
}

// A sum of a row in logs, for one column.
template <typename Real>
double Run<Real>::in_logs(const Stage& g, At s, const Row& one, const Real* logs, int64_t j) {
  if (!is_possible(g, s, one, logs, j)) return -INFINITY;
  double top = -INFINITY, sum = 0;
  each_term(g, s, one, logs, j, [&](const Split&, int64_t, double v) { top = std::max(top, v); });
  if (!(top > -INFINITY)) return top;
  each_term(g, s, one, logs, j, [&](const Split&, int64_t, double v) { sum += std::exp(v - top); });
  return top + std::log(sum);
}

// Writes a row after a link, relative to its own top.
template <typename Real>
void Run<Real>::finish(const Target& target, At s, const Row& one, Real* values, double base) {
  const Stage& g = *target.g;
  Real* to = out(g, data[0], one.item, s, one.p);
  for (const Part& f : target.others) {
    const Line from = line_of(f, one.item);
    const double own = level(from, data[f.f->slot], g.labels);
    add(values, data[f.f->slot], from, own, 0, g.labels), base += own;
  }
  const Real top = finite(largest(values, g.labels));
  note(top);
  for (int64_t k = 0; k < g.labels; ++k) to[k] = values[k] - top;
  *out_level(g, one.item, s, one.p) = base + top;
}

// Writes that nothing is possible into a row that a link writes.
template <typename Real>
void Run<Real>::clear(const Target& target, At s, int64_t item, int64_t p) {
  const Stage& to = *target.g;
  Real* row = out(to, data[0], item, s, p);
  std::fill(row, row + to.labels, kNever<Real>);
  *out_level(to, item, s, p) = 0;
}

// A link's values at a place, relative to a level, for the way down: those of its target without other factors.
template <typename Real>
const Real* Run<Real>::link_values(const Target& target, At s, int64_t item, int64_t p, double* level) {
  const Stage& g = *target.g;
  const Real* done = out(g, data[0], item, s, p);
  *level = *out_level(g, item, s, p);
  if (target.others.empty()) return done;
  w.resize(std::max<int64_t>(w.size(), g.labels));
  std::memcpy(w.data(), done, g.labels * sizeof(Real));
  for (const Part& f : target.others) {
    const Line from = line_of(f, item);
    const Real* source = data[f.f->slot];
    const double own = this->level(from, source, g.labels);
    *level -= own;
    if (from.hop == 1 && !from.looks && !from.level_hop) by_lanes<Real>(g.labels, [&](int64_t k, auto left) {
      store(w.data() + k, load(w.data() + k, left) - load(source + from.at + k, left), left);
    });
    else for (int64_t k = 0; k < g.labels; ++k)
      w[k] -= source[from(k)] + (from.level_hop ? Real(from.levels[k * from.level_hop] - own) : 0);
  }
  return w.data();
}

// The gradients of other factors of a target, which is returned.
template <typename Real>
const Real* Run<Real>::add_other_gradients(const Target& target, At s, int64_t item, int64_t p) {
  const Stage& g = *target.g;
  const Real* above = out(g, grads[0], item, s, p);
  for (const Part& f : target.others)
    if (grads[f.f->slot]) give(grads[f.f->slot], line_of(f, item), above, g.labels);
  return above;
}

// The links of a step: blocks of rows of all items and places, times the matrix.
template <typename Real>
template <bool best>
void Run<Real>::link_up(const Stage& g, At s, int64_t from, int64_t until) {
  const Span span = defined(g, s);
  const int64_t depth = depth_of(g), n = g.labels, wide = width<Real>(), hop = panels_of(n, wide) * wide;
  const int64_t many = span.high - span.low + 1, items = g.fixed && !g.table_item ? until - from : 1;
  if (many <= 0) return;
  find_targets(g, s, span);
  if (!g.fixed) return direct_up<best>(g, s, span, from, until);
  for (int64_t item = from; item < until; item += items) {
    const Table<Real> own = table(g, item);
    for (int64_t first = 0; first < many * items; first += kBlock) {
      prepare_rows<best>(g, s, span, item, first, std::min(kBlock, many * items - first));
      sums.resize(std::max<int64_t>(sums.size(), kBlock * hop));
      for (int64_t k = first, next = 0; k < std::min(first + kBlock, many * items); ++k) {
        const int64_t i = item + k / many, p = span.low + k % many;
        if (next < int64_t(rows.size()) && rows[next].item == i && rows[next].p == p) ++next;
        else clear(targets[p - span.low], s, i, p);
      }
      by_panels<best>(x.data(), rows.size(), depth, depth, own.ahead, n, sums.data(), hop);
      for (size_t r = 0; r < rows.size(); ++r) {
        Real* y = sums.data() + r * hop;
        double base = rows[r].level + rows[r].top;
        if (!best) {
          Real least = std::numeric_limits<Real>::max();
#pragma omp simd reduction(min : least)
          for (int64_t k = 0; k < n; ++k) least = y[k] < least ? y[k] : least;
          if (least < faint<Real>(depth)) {
            // Relative to the largest, so that what is far from the columns' peaks keeps its digits.
            exact.resize(n);
            double largest_of_all = -INFINITY;
            for (int64_t k = 0; k < n; ++k) {
              exact[k] = y[k] < faint<Real>(depth) ? in_logs(g, s, rows[r], own.logs, k)
                                                   : std::log(double(y[k])) + double(own.peaks[k]) + base;
              largest_of_all = std::max(largest_of_all, exact[k]);
            }
            if (largest_of_all > -INFINITY) base = largest_of_all;
            for (int64_t k = 0; k < n; ++k) y[k] = Real(exact[k] - base);
          } else logs(y, y, own.peaks, Real(0), n);
        }
        finish(targets[rows[r].p - span.low], s, rows[r], y, base);
      }
    }
  }
}

// The rows before a matrix, or that are summed, of all loops of a place: in `x` as logs relative to a level,
// which is returned, one below the other for all `splits`.
template <typename Real>
double Run<Real>::find_rows(const Stage& g, int64_t item, At s, int64_t p) {
  find_splits(alternatives[g.first], item, s, p);
  const int64_t many = splits.size(), depth = depth_of(g), c = g.kind == kKindPair ? g.depth2 : 1;
  x.resize(many * depth), levels_at.resize(many), y.resize(g.depth), z.resize(c);
  double most = -INFINITY;
  for (int64_t k = 0; k < many; ++k) {
    const Split& at = splits[k];
    Real* to = x.data() + k * depth;
    double& known = levels_at[k];
    if (g.kind == kKindPair) {
      known = row(alternatives[g.first], item, at.s, p, at.r, g.depth, y.data());
      known += row(alternatives[g.first + 1], item, at.s, p, at.r, c, z.data());
      for (int64_t i = 0; i < depth; ++i) to[i] = y[i / c] + z[i % c];
    } else known = row(alternatives[g.first], item, at.s, p, at.r, depth, to);
    most = std::max(most, known);
  }
  if (many > 1)
    for (int64_t k = 0; k < many * depth; ++k) x[k] += Real(levels_at[k / depth] - most);
  return most;
}

// Some columns of the matrix of a place as it lies, or its entries gathered, one under the other for all
// `splits`; `hop` numbers from row to row. Likewise the rows before it, in `x`. Both are relative to one level.
template <typename Real>
const Real* Run<Real>::direct(const Stage& g, int64_t item, At s, int64_t p, int64_t column, int64_t columns,
                              int64_t* hop, double* level) {
  *level = find_rows(g, item, s, p);
  const int64_t many = splits.size(), n = columns, depth = depth_of(g), c = g.kind == kKindPair ? g.depth2 : 1;
  const Real* from = data[g.slot] + item * g.table_item;
  // The levels of a matrix that is a table; where they are those of its rows, they go to the rows before it.
  const auto level_at = [&](int64_t k, int64_t j) {
    const Split& at = splits[k / depth];
    return (levels + item * whole.levels)[value(g.table_level, at.s, p, at.r) + k % depth / c * g.row_level +
                                          k % c * g.row2_level + (column + j) / g.labels2 * g.column_level];
  };
  double most = -INFINITY;
  const int64_t apart = g.row_level || g.row2_level ? 1 : depth;  // from one row with a level of its own to the next
  for (int64_t k = 0; !g.slot && k < many * depth; k += apart)
    for (int64_t j = 0; j < (g.column_level ? n : 1); ++j) most = std::max(most, level_at(k, j));
  if (!g.slot) *level += most;
  for (int64_t k = 0; !g.slot && !g.column_level && (many > 1 || apart == 1) && k < many * depth; k += apart) {
    const Real more = Real(level_at(k, 0) - most);
    for (int64_t i = k; i < k + apart; ++i) x[i] += more;
  }
  if (!is_gathered(g)) return *hop = g.row, from + value(g.table, s, p, 0) + column;
  rows_at.resize(many * depth), columns_at.resize(many * n), gathered.resize(many * depth * n);
  parts_at.resize(g.depth + c + n);
  int64_t* parts = parts_at.data();
  for (int64_t k = 0; k < many; ++k) {
    const Split& at = splits[k];
    const int64_t start = value(g.table, at.s, p, at.r) + looked(g.look, g.looks, item, at.s, p, at.r);
    int64_t *rows_of = rows_at.data() + k * depth, *columns_of = columns_at.data() + k * n;
    find_places(g.rows, item, at.s, p, at.r, 0, g.depth, parts);
    if (g.kind == kKindPair) find_places(g.rows2, item, at.s, p, at.r, 0, c, parts + g.depth);
    if (g.labels2 == 1) find_places(g.columns, item, at.s, p, at.r, column, n, columns_of);
    else for (int64_t j = 0; j < n; ++j)
      columns_of[j] = place_in(g.columns, item, at.s, p, at.r, (column + j) / g.labels2) +
                      place_in(g.columns2, item, at.s, p, at.r, (column + j) % g.labels2);
    for (int64_t i = 0; i < depth; ++i) rows_of[i] = start + parts[i / c] + (g.kind == kKindPair ? parts[g.depth + i % c] : 0);
    for (int64_t i = 0; i < depth; ++i)
      for (int64_t j = 0; j < n; ++j) gathered[(k * depth + i) * n + j] = from[rows_of[i] + columns_of[j]];
    for (int64_t i = k * depth; g.column_level && i < (k + 1) * depth; ++i)
      for (int64_t j = 0; j < n; ++j) gathered[i * n + j] += Real(level_at(i, j) - most);
  }
  return *hop = n, gathered.data();
}

// By matrices that change from place to place: in logs.
template <typename Real>
template <bool best>
void Run<Real>::direct_up(const Stage& g, At s, Span span, int64_t first, int64_t until) {
  const int64_t n = g.labels;
  for (int64_t item = first; item < until; ++item)
    for (int64_t p = span.low; p <= span.high; ++p) {
      if (!has_terms(alternatives[g.first], item, s, p)) { clear(targets[p - span.low], s, item, p); continue; }
      Row one{item, p, 0, 0};
      sums.resize(std::max<int64_t>(sums.size(), n)), terms.resize(n);
      int64_t hop;
      const Real* from = direct(g, item, s, p, &hop, &one.level);
      const int64_t depth = depth_of(g) * splits.size();
      const auto at = [&](int64_t k, int64_t v, int64_t left) {
        return load(from + k * hop + v, left) + x[k];
      };
      by_lanes<Real>(n, [&](int64_t v, auto left) {
        Lane<Real> most = all(kNever<Real>), total = {};
        for (int64_t k = 0; k < depth; ++k) { const Lane<Real> o = at(k, v, left); most = o > most ? o : most; }
        if (best) return store(terms.data() + v, most, left);
        const Lane<Real> shift = most > kNever<Real> ? most : Lane<Real>{};
        for (int64_t k = 0; k < depth; ++k) total += exp_of<Real>(at(k, v, left) - shift);
        store(terms.data() + v, log_of<Real>(total) + shift, left);
      });
      finish(targets[p - span.low], s, one, terms.data(), one.level);
    }
}

template <typename Real>
void Run<Real>::add_splits(Real* const* to, const Stage& g, int64_t item, int64_t p, const Real* from) {
  const Alternative* a = alternatives + g.first;
  const int64_t each = depth_of(g), c = g.depth2;
  for (const Split& at : splits) {
    if (g.kind == kKindPair) {
      y.assign(g.depth, Real(0)), z.assign(c, Real(0));
      for (int64_t i = 0; i < each; ++i) y[i / c] += from[i], z[i % c] += from[i];
      add_rows(to, a[0], item, at.s, p, at.r, g.depth, y.data());
      add_rows(to, a[1], item, at.s, p, at.r, c, z.data());
    } else add_rows(to, a[0], item, at.s, p, at.r, g.depth, from);
    from += each;
  }
}

// The gradients of links by matrices that change from place to place.
template <typename Real>
void Run<Real>::direct_down(const Stage& g, At s, Span span, int64_t first, int64_t until) {
  const int64_t n = g.labels, each = depth_of(g);
  for (int64_t item = first; item < until; ++item)
    for (int64_t p = span.low; p <= span.high; ++p) {
      if (!has_terms(alternatives[g.first], item, s, p)) continue;
      double known;
      const Target& target = targets[p - span.low];
      double level;
      int64_t hop;
      const Real *from = direct(g, item, s, p, &hop, &known), *above = add_other_gradients(target, s, item, p);
      const Real* done = link_values(target, s, item, p, &level);
      const int64_t depth = each * splits.size();
      h.resize(std::max<int64_t>(h.size(), n)), e.resize(depth);
      const Real more = Real(known - level);
      Real *own = grads[g.slot] ? grads[g.slot] + item * g.table_item : nullptr, *to = own;
      if (own && is_gathered(g)) scattered.assign(depth * n, Real(0)), to = scattered.data();
      else if (own) to += value(g.table, s, p, 0);
      // The share of each term in its column's sum; divided by what they add up to, as logs are rounded.
      pairs.resize(std::max<int64_t>(pairs.size(), depth * n)), totals.assign(n, Real(0));
      for (int64_t v = 0; v < n; ++v) h[v] = finite(done[v]);
      for (int64_t k = 0; k < depth; ++k)
        by_lanes<Real>(n, [&](int64_t v, auto left) {
          const Lane<Real> share =
              exp_of<Real>(load(from + k * hop + v, left) + (x[k] + more) - load(h.data() + v, left));
          store(pairs.data() + k * n + v, share, left);
          store(totals.data() + v, load(totals.data() + v, left) + share, left);
        });
      for (int64_t v = 0; v < n; ++v) h[v] = totals[v] > 0 ? above[v] / totals[v] : 0;
      for (int64_t k = 0; k < depth; ++k) {
        Lane<Real> total = {};
        by_lanes<Real>(n, [&](int64_t v, auto left) {
          const Lane<Real> share = load(pairs.data() + k * n + v, left) * load(h.data() + v, left);
          total += share;
          if (to) store(to + k * hop + v, load(to + k * hop + v, left) + share, left);
        });
        Real sum = 0;
        for (int64_t j = 0; j < lanes<Real>(); ++j) sum += total[j];
        e[k] = sum;
      }
      add_splits(grads, g, item, p, e.data());
      for (int64_t k = 0; own && is_gathered(g) && k < depth; ++k)
        for (int64_t j = 0; j < n; ++j) own[rows_at[k] + columns_at[k / each * n + j]] += to[k * n + j];
    }
}

// Makes room for rows that are kept, and for their products.
template <typename Real>
void Run<Real>::start_kept(const Stage& g, Kept& own) {
  const int64_t depth = depth_of(g), padded = panels_of(g.labels, width<Real>()) * width<Real>(), most = most_kept(g);
  own.before.resize(sets(g) * panels_of(depth, kRows) * kRows * most);
  own.after.resize(sets(g) * padded * most, Real(0));
  own.sums.resize(sets(g) * packed_size(g), Real(0)), own.counts.resize(sets(g), 0);
}

// Keeps a row before a product and the gradient after it: their outer product is the gradient of the
// matrix, and many of them are one matrix product. `more` is added to the number of the stage.
template <typename Real>
void Run<Real>::keep_products(const Stage& g, int64_t item, const Real* before, const Real* after, int64_t more) {
  if (waits) {
    wait(nullptr, Line{item, 0}, before, depth_of(g));
    numbers_later.insert(numbers_later.end(), after, after + g.labels);
    return;
  }
  Kept& own = kept[&g - stages + more];
  const int64_t most = most_kept(g);
  if (own.before.empty()) start_kept(g, own);
  const int64_t set = g.table_item ? item : 0;
  if (own.counts[set] == most) multiply_kept(g, more, set);
  put_kept(g, own, set, own.counts[set]++, before, after);
}

// Writes a row that is kept at a place of a set: its numbers before the product in packs of kRows, of which each is
// multiplied by all rows, and those after it in panels.
template <typename Real>
void Run<Real>::put_kept(const Stage& g, Kept& own, int64_t set, int64_t at, const Real* before, const Real* after) {
  const int64_t depth = depth_of(g), wide = width<Real>(), packs = panels_of(depth, kRows);
  const int64_t panels = panels_of(g.labels, wide), most = most_kept(g);
  for (int64_t k = 0; k < packs; ++k)
    std::memcpy(own.before.data() + ((set * packs + k) * most + at) * kRows, before + k * kRows,
                std::min(kRows, depth - k * kRows) * sizeof(Real));
  for (int64_t p = 0; p < panels; ++p)
    std::memcpy(own.after.data() + ((set * panels + p) * most + at) * wide, after + p * wide,
                std::min(wide, g.labels - p * wide) * sizeof(Real));
}

// Multiplies the rows that are kept of a set, and adds the product to the gradient of the scaled matrix.
template <typename Real>
void Run<Real>::multiply_kept(const Stage& g, int64_t more, int64_t set) {
  Kept& own = kept[&g - stages + more];
  const int64_t depth = depth_of(g), wide = width<Real>(), panels = panels_of(g.labels, wide), most = most_kept(g);
  const int64_t count = own.counts[set];
  if (!count) return;
  const int64_t packs = panels_of(depth, kRows);
  const Real *before = own.before.data() + set * packs * most * kRows, *after = own.after.data() + set * panels * most * wide;
  Real* sums = own.sums.data() + set * packed_size(g);
  by_items(packs, threads_for(double(count) * depth * g.labels, helpers.size() + 1), [&](int64_t first, int64_t last) {
    const Flushed flushed;
    for (int64_t k = first * kRows; k < std::min(depth, last * kRows); k += kRows)
      for (int64_t p = 0; p < panels; ++p)
        by_rows(std::min(kRows, depth - k), [&](auto some) {
          multiply<Real, decltype(some)::value, false, kRows>(before + k * most, 1, after + p * most * wide, count,
                                                              sums + (p * depth + k) * wide, wide);
        });
  });
  own.counts[set] = 0;
}

// Visits the numbers of a packed matrix in blocks of rows, so that few pages are read by turns: for each row and panel
// with where they are in the panel and in the item, and how many; of columns that lie apart one by one.
template <typename Real>
template <typename Visit>
void Run<Real>::each_packed(const Stage& g, Visit visit) {
  const int64_t depth = depth_of(g), wide = width<Real>(), n = g.labels;
  const bool together = g.column == 1 && g.labels2 == 1;
  by_items(panels_of(depth, kBlock), threads_for(double(depth) * n, helpers.size() + 1), [&](int64_t from, int64_t until) {
    for (int64_t start = from * kBlock; start < std::min(depth, until * kBlock); start += kBlock)
      for (int64_t first = 0; first < n; first += wide)
        for (int64_t k = start; k < std::min(depth, start + kBlock); ++k) {
          const int64_t at = first * depth + k * wide, some = std::min(wide, n - first);
          if (together) visit(at, row_of(g, k) + first, some);
          else for (int64_t j = 0; j < some; ++j) visit(at + j, row_of(g, k) + column_of(g, first + j), 1);
        }
  });
}

// Turns the gradient of a scaled matrix into that of its logs, at the end of the pass.
template <typename Real>
void Run<Real>::write_matrix_gradient(const Stage& g) {
  Kept& own = kept[&g - stages];
  if (!g.fixed || g.slot < 0 || !grads[g.slot] || own.before.empty()) return;
  finish_kept(g, 0);
  for (int64_t item = 0; item < sets(g); ++item) {
    const Real *weights = table(g, item).ahead, *sums = own.sums.data() + item * packed_size(g);
    Real* to = grads[g.slot] + g.table.c + item * g.table_item;
    each_packed(g, [&](int64_t at, int64_t place, int64_t some) {
      for (int64_t j = 0; j < some; ++j) to[place + j] += weights[at + j] * sums[at + j];
    });
  }
}

// The gradients of the links of a step in their rows and their matrix.
template <typename Real>
void Run<Real>::link_down(const Stage& g, At s, int64_t from, int64_t until) {
  const Span span = defined(g, s);
  const int64_t depth = depth_of(g), n = g.labels, wide = width<Real>(), hop = panels_of(depth, wide) * wide;
  const int64_t many = span.high - span.low + 1, items = g.fixed && !g.table_item ? until - from : 1;
  if (many <= 0) return;
  find_targets(g, s, span);
  if (!g.fixed) return direct_down(g, s, span, from, until);
  const int64_t padded = panels_of(n, wide) * wide;
  h.resize(kBlock * padded), totals.resize(kBlock * padded), pairs.resize(kBlock * hop), faints.resize(kBlock);
  for (int64_t item = from; item < until; item += items) {
    const Table<Real> own = table(g, item);
    for (int64_t first = 0; first < many * items; first += rows_together(g)) {
      prepare_rows<false>(g, s, span, item, first, std::min(rows_together(g), many * items - first));
      // With y = x W of a row, the gradient of log y_j in W_ij x_i is 1 / y_j. The products are taken
      // again, not from their logs: the shares of a column then add up to 1, and no mass is lost or
      // made over thousands of steps.
      by_panels<false>(x.data(), rows.size(), depth, depth, own.ahead, n, totals.data(), padded);
      for (size_t r = 0; r < rows.size(); ++r) {
        const Row& one = rows[r];
        const Real *above = out(*targets[one.p - span.low].g, grads[0], one.item, s, one.p);
        const Real* products = totals.data() + r * padded;
        const Lane<Real> least = all(faint<Real>(depth)), ones = all(Real(1));
        Real* to = h.data() + r * padded;
        Lane<Real> lost = {};
        by_lanes<Real>(n, [&](int64_t k, auto count) {
          const Lane<Real> up = load(above + k, count), sum = load(products + k, count);
          lost += sum >= least ? Lane<Real>{} : up * up;
          store(to + k, sum >= least ? up / (sum >= least ? sum : ones) : Lane<Real>{}, count);
        });
        faints[r] = false;
        for (int64_t j = 0; j < lanes<Real>(); ++j) faints[r] |= lost[j] != 0;
      }
      by_panels<false>(h.data(), rows.size(), padded, n, own.back, depth, pairs.data(), hop);
      // All that a place adds to gradients comes before what the next one adds, however places lie on threads.
      for (size_t r = 0; r < rows.size(); ++r) {
        Row one = rows[r];
        const Target& target = targets[one.p - span.low];
        const Real *above = add_other_gradients(target, s, one.item, one.p), *products = totals.data() + r * padded;
        // Products that underflow: the shares of all terms, in logs.
        if (faints[r]) {
          double level;
          const Real* done = link_values(target, s, one.item, one.p, &level);
          for (int64_t k = 0; k < n; ++k)
            if (above[k] != 0 && !(products[k] >= faint<Real>(depth)) && done[k] > kNever<Real>)
              faint_down(g, s, one, own.logs, k, above[k], level + done[k]);
        }
        if (grads[g.slot]) keep_products(g, one.item, x.data() + r * depth, h.data() + r * padded, 0);
        Real* turned = pairs.data() + r * hop;
        if (g.kind != kKindPair) {
          const Real* before = x.data() + r * depth;
          for (int64_t k = 0; k < depth; ++k) turned[k] *= before[k];
          add_rows(grads, alternatives[g.first], one.item, s, one.p, 0, depth, turned);
        } else pair_down(g, s, one, turned);
      }
    }
  }
}

// The gradients of a pair in the rows of both of its parts, split by split.
template <typename Real>
void Run<Real>::pair_down(const Stage& g, At s, Row& one, const Real* turned) {
  if (rows_together(g) > 1) prepare_splits<false>(g, s, one);
  const int64_t some = splits.size(), b = g.depth, c = g.depth2, wide = width<Real>();
  const int64_t bs = panels_of(b, wide) * wide, cs = panels_of(c, wide) * wide;
  // turned (b, c), in panels over c and over b; the parts are (splits, b) and (splits, c).
  e.assign(b * cs + c * bs, Real(0)), t.resize(some * (cs + bs));
  Real *over = e.data(), *under = e.data() + b * cs, *to = t.data(), *back = to + some * cs;
  for (int64_t i = 0; i < b; ++i)
    for (int64_t j = 0; j < c; ++j) {
      over[(j / wide * b + i) * wide + j % wide] = turned[i * c + j];
      under[(i / wide * c + j) * wide + i % wide] = turned[i * c + j];
    }
  by_panels<false>(y.data(), some, b, b, over, c, to, cs);
  by_panels<false>(rights.data(), some, c, c, under, b, back, bs);
  for (int64_t k = 0; k < some; ++k) {
    for (int64_t j = 0; j < c; ++j) to[k * cs + j] *= rights[k * c + j];
    for (int64_t j = 0; j < b; ++j) back[k * bs + j] *= y[k * b + j];
    add_part(grads, g, 0, one, k, back + k * bs);
    add_part(grads, g, 1, one, k, to + k * cs);
  }
}

template <typename Real>
void Run<Real>::add_part(Real* const* to, const Stage& g, int side, const Row& one, int64_t k, const Real* from) {
  const Alternative& a = alternatives[g.first + side];
  const int64_t depth = side ? g.depth2 : g.depth;
  if (single_row(a)) give(to[0], Line{places_of_parts[side][k], 1}, from, depth);
  else add_rows(to, a, one.item, splits[k].s, one.p, splits[k].r, depth, from);
}

// The gradients of one entry whose products underflow: the share of every term, in logs.
template <typename Real>
void Run<Real>::faint_down(const Stage& g, At s, const Row& one, const Real* logs, int64_t j, Real above, double known) {
  const int64_t b = g.depth, c = g.kind == kKindPair ? g.depth2 : 1;
  std::vector<Real> left(b), right(c);
  Real* to = grads[g.slot] ? grads[g.slot] + g.table.c + one.item * g.table_item : nullptr;
  each_term(g, s, one, logs, j, [&](const Split& at, int64_t k, double v) {
    if (k == 0) std::fill(left.begin(), left.end(), Real(0)), std::fill(right.begin(), right.end(), Real(0));
    const Real share = above * Real(std::exp(v - known));
    left[k / c] += share, right[k % c] += share;
    if (to) give(to, Line{row_of(g, k) + column_of(g, j), 0}, &share, 1);
    if (k < b * c - 1) return;
    add_rows(grads, alternatives[g.first], one.item, at.s, one.p, at.r, b, left.data());
    if (g.kind == kKindPair) add_rows(grads, alternatives[g.first + 1], one.item, at.s, one.p, at.r, c, right.data());
  });
}

}  // namespace
