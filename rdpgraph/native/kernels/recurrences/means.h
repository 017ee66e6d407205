// Means over derivations of what inputs say, upwards: of their logs for entropies, or of any direction.
//
// The mean of a cell is the mean over its terms, weighted by their shares, of the sum of the means of
// what a term reads. It is the derivative of the cell's log-sum along the direction.
//
// The entropy of a cell's derivations is the mean of minus the log of their shares (`entropic`): with the shares s_k of
// terms and the entropies H_r of what a term reads,
//     H = sum_k s_k (sum_r H_r - log s_k).
// No number is below 0, so that float32 keeps its digits; the difference of log Z and a mean score would lose them.

#pragma once

#include "labels.h"

namespace {

// The means of the sums of a step.
template <typename Real>
void Run<Real>::sum_along(const Stage& g, At s) {
  const Span span = defined(g, s);
  const bool wide = g.labels > 0;
  const int64_t count = wide ? g.labels : span.high - span.low + 1;
  if (span.high < span.low) return;
  terms.resize(std::max<int64_t>(terms.size(), count));
  for (int64_t p = span.low; p <= (wide ? span.high : span.low); ++p) {
    collect_entries(g, 0, s, p, count);
    if (fused_link() >= 0) continue;
    for (int64_t item = 0; item < batch; ++item) {
      if (!is_needed(g, item, s)) continue;
      if (apart && item) collect_entries(g, item, s, p, count);
      const Real* done = out(g, data[0], item, s, p);
      Real* to = out(g, moves[0], item, s, p);
      const double known = *out_level(g, item, s, p);
      std::fill(to, to + count, Real(0)), totals.assign(count, Real(0));
      const Real scale = count == 1 ? Real(1) : Real(0);  // of one cell all shares are made together
      if (count == 1) shares(g, done, &scale, known, item, 1);
      for (const Entry& one : entries) {
        const int64_t size = one.high - one.low + 1;
        Real *row = terms.data() + (count == 1 ? &one - entries.data() : 0), *own = to + one.low;
        if (count > 1) product(one, item, Real(level_of(one, item) - known), row);
        // The share of each term from its log, and what it adds by itself.
        if (count > 1 || entropic) by_lanes<Real>(size, [&](int64_t k, auto left) {
          Lane<Real> log = load(row + k, left), share = log;
          if (count > 1) {
            const Lane<Real> sum = load(done + one.low + k, left);
            log = log - (sum > kNever<Real> ? sum : Lane<Real>{}), share = exp_of<Real>(log);
          } else log = log_of<Real>(share);
          store(row + k, share, left);
          if (count > 1) store(totals.data() + one.low + k, load(totals.data() + one.low + k, left) + share, left);
          if (entropic) store(own + k, load(own + k, left) + share * surprise(share, log), left);
        });
        for (const Part* f = factors_of.data() + one.first; f < factors_of.data() + one.first + one.count; ++f)
          if (moves[f->f->slot]) add_shares(own, row, moves[f->f->slot], line_of(*f, item), size);
      }
      if (count > 1) divide_along(to, totals.data(), count);
    }
  }
}

// Writes a row's means, and adds those of other factors of its target.
template <typename Real>
void Run<Real>::mean_of(const Target& target, At s, int64_t item, int64_t p, const Real* from) {
  const Stage& g = *target.g;
  Real* to = out(g, moves[0], item, s, p);
  std::memcpy(to, from, g.labels * sizeof(Real));
  for (const Part& f : target.others)
    if (moves[f.f->slot]) add_moves(to, moves[f.f->slot], line_of(f, item), g.labels);
}

// The means of the links of a step: two products more, with rows and with matrices times what they say.
template <typename Real>
void Run<Real>::link_along(const Stage& g, At s) {
  const Span span = defined(g, s);
  const int64_t depth = depth_of(g), n = g.labels, wide = width<Real>(), hop = panels_of(n, wide) * wide;
  const int64_t many = span.high - span.low + 1, items = g.fixed && !g.table_item ? batch : 1;
  if (many <= 0) return;
  find_targets(g, s, span);
  // Impossible cells have a mean of 0.
  means.assign(n, Real(0));
  for (int64_t item = 0; item < batch; ++item)
    for (int64_t p = span.low; p <= span.high; ++p) {
      Real* to = out(*targets[p - span.low].g, moves[0], item, s, p);
      std::fill(to, to + n, Real(0));
    }
  if (!g.fixed) return direct_along(g, s, span);
  const Array<Real>& said = prepared_of(g, whole.stages);
  for (int64_t item = 0; item < batch; item += items) {
    const Table<Real> own = table(g, item);
    const Real* along = moves[g.slot] || entropic ? said.data() + (g.table_item ? item : 0) * packed_size(g) : nullptr;
    for (int64_t first = 0; first < many * items; first += rows_together(g)) {
      const int64_t most = std::min(rows_together(g), many * items - first);
      turned.resize(most * depth), moved.resize(3 * most * hop);
      Real *sums_of = moved.data(), *with = sums_of + most * hop, *tables = with + most * hop;
      rows_and_products(g, s, span, item, first, most, hop, sums_of);
      const int64_t some = rows.size();
      for (int64_t r = 0; r < some; ++r) {
        // `x` has the exponentials of rows, `turned` these times the means of what the row reads.
        Row one = rows[r];
        Real* to = turned.data() + r * depth;
        if (g.kind == kKindLink) {
          row_along(alternatives[g.first], one.item, s, one.p, 0, depth, to);
          times_along(to, x.data() + r * depth, to, depth);
        } else prepare_said(g, s, one), pair_along(g, to);
      }
      // mean_j = sum_i (x_i m_i W_ij + x_i W_ij w_ij) / sum_i x_i W_ij, with m of the row and w (`along`) of
      // the matrix; where the divisor is near underflow, in logs. Of entropies m_i has - log x_i, w_ij is - log W_ij,
      // and the log of the divisor is added.
      by_panels_of_all<false>(turned.data(), some, depth, depth, own.ahead, n, s.s % 2, with, hop);
      if (along) by_panels_of_all<false>(x.data(), some, depth, depth, along, n, s.s % 2, tables, hop);
      for (int64_t r = 0; r < some; ++r) {
        const Real *sum_of = sums_of + r * hop, *top = with + r * hop, *more = tables + r * hop;
        for (int64_t k = 0; k < n; ++k) means[k] = top[k] + (along ? more[k] : 0);
        divide_along(means.data(), sum_of, n);
        for (int64_t k = 0; k < n; ++k)
          if (sum_of[k] < faint<Real>(depth)) means[k] = mean_in_logs(g, s, rows[r], own.logs, k);
        mean_of(targets[rows[r].p - span.low], s, rows[r].item, rows[r].p, means.data());
      }
    }
  }
}

// What is said of both parts of a pair, of all its splits, into `said_of_parts`: where a part is a row of a table that is
// what this has for it; of entropies minus the logs of shares are added.
template <typename Real>
void Run<Real>::prepare_said(const Stage& g, At s, Row& one) {
  if (rows_together(g) > 1) prepare_splits<false>(g, s, one);
  const int64_t some = splits.size();
  for (int side = 0; side < 2; ++side) {
    const Alternative& a = alternatives[g.first + side];
    const int64_t depth = side ? g.depth2 : g.depth;
    std::vector<Real>& to = said_of_parts[side];
    to.resize(std::max<int64_t>(to.size(), some * depth));
    const bool plain = single_row(a);
    for (int64_t k = 0; k < some; ++k) {
      Real* row = to.data() + k * depth;
      if (!plain) { row_along(a, one.item, splits[k].s, one.p, splits[k].r, depth, row); continue; }
      const Real* from = moves[0] + places_of_parts[side][k];
      by_lanes<Real>(depth, [&](int64_t j, auto left) { store(row + j, load(from + j, left), left); });
    }
    if (!entropic) continue;
    const Real* shares_of = side ? rights.data() : y.data();
    by_lanes<Real>(some * depth, [&](int64_t k, auto left) {
      const Lane<Real> share = load(shares_of + k, left);
      store(to.data() + k, load(to.data() + k, left) + surprise(share, log_of<Real>(share)), left);
    });
  }
}

// (depth, depth2) of both parts of a pair, L and R, times what is said of either, l and r:
//     sum_k L_kb R_kc (l_kb + r_kc) over splits k.
template <typename Real>
void Run<Real>::pair_along(const Stage& g, Real* to) const {
  const int64_t some = splits.size(), b = g.depth, c = g.depth2;
  const Real *left = said_of_parts[0].data(), *right = said_of_parts[1].data();
  for (int64_t i = 0; i < b; ++i)
    by_lanes<Real>(c, [&](int64_t j, auto count) {
      Lane<Real> sum = {};
      for (int64_t k = 0; k < some; ++k)
        sum += (load(rights.data() + k * c + j, count) * y[k * b + i]) * (load(right + k * c + j, count) + left[k * b + i]);
      store(to + i * c + j, sum, count);
    });
}

// The mean of one entry whose products underflow, term by term.
template <typename Real>
Real Run<Real>::mean_in_logs(const Stage& g, At s, const Row& one, const Real* logs, int64_t j) {
  const double total = in_logs(g, s, one, logs, j);
  if (!(total > -INFINITY)) return 0;
  const int64_t b = g.depth, c = g.kind == kKindPair ? g.depth2 : 1;
  std::vector<Real> left(b), right(c);
  const Real* said = moves[g.slot] ? moves[g.slot] + (logs - data[g.slot]) : nullptr;
  double sum = 0;
  each_term(g, s, one, logs, j, [&](const Split& split, int64_t k, double v) {
    if (k == 0) {
      row_along(alternatives[g.first], one.item, split.s, one.p, split.r, b, left.data());
      if (g.kind == kKindPair) row_along(alternatives[g.first + 1], one.item, split.s, one.p, split.r, c, right.data());
    }
    if (!(v > -INFINITY)) return;
    sum += std::exp(v - total) * (left[k / c] + right[k % c] + (said ? said[row_of(g, k) + column_of(g, j)] : 0) + (entropic ? total - v : 0));
  });
  return Real(sum);
}

// What is said of rows of labels, or of pairs of them, of all `splits`.
template <typename Real>
void Run<Real>::splits_along(const Stage& g, int64_t item, int64_t p, Real* to) const {
  const Alternative* a = alternatives + g.first;
  const int64_t each = depth_of(g), c = g.kind == kKindPair ? g.depth2 : 1;
  std::vector<Real> left(g.depth), right(c, Real(0));
  for (const Split& at : splits) {
    row_along(a[0], item, at.s, p, at.r, g.depth, left.data());
    if (g.kind == kKindPair) row_along(a[1], item, at.s, p, at.r, c, right.data());
    for (int64_t i = 0; i < each; ++i) to[i] = left[i / c] + right[i % c];
    to += each;
  }
}

// What is said of a row of a matrix as `direct` has it, where it lies or gathered into `scattered`.
template <typename Real>
const Real* Run<Real>::said_row(const Stage& g, const Real* said, int64_t start, int64_t k) {
  if (!is_gathered(g)) return said + start + k * g.row;
  const int64_t* columns = columns_at.data() + k / depth_of(g) * g.labels;
  for (int64_t j = 0; j < g.labels; ++j) scattered[j] = said[rows_at[k] + columns[j]];
  return scattered.data();
}

// The means of links by matrices that change from place to place.
template <typename Real>
void Run<Real>::direct_along(const Stage& g, At s, Span span) {
  const Alternative& a = alternatives[g.first];
  const int64_t each = depth_of(g), n = g.labels;
  scattered.resize(n), h.resize(std::max<int64_t>(h.size(), n));
  for (int64_t item = 0; item < batch; ++item)
    for (int64_t p = span.low; p <= span.high; ++p) {
      if (!has_terms(a, item, s, p)) continue;
      int64_t hop;
      double known, level;
      const Real *from = direct(g, item, s, p, &hop, &known), *done = link_values(targets[p - span.low], s, item, p, &level);
      const Real* said = moves[g.slot] ? moves[g.slot] + item * g.table_item : nullptr;
      const int64_t depth = each * splits.size(), start = value(g.table, s, p, 0);
      turned.resize(depth), means.assign(n, Real(0)), totals.assign(n, Real(0));
      splits_along(g, item, p, turned.data());
      for (int64_t j = 0; j < n; ++j) h[j] = finite(done[j]);
      for (int64_t k = 0; k < depth; ++k) x[k] += Real(known - level);
      // The share of each term in its column's sum, times what is said of it, and what they add up to.
      const auto join = [&](int64_t first, int64_t last, const Real* along) {
        by_lanes<Real>(n, [&](int64_t j, auto left) {
          const Lane<Real> sum = load(h.data() + j, left);
          Lane<Real> mean = load(means.data() + j, left), total = load(totals.data() + j, left);
          for (int64_t k = first; k < last; ++k) {
            const Lane<Real> log = load(from + k * hop + j, left) + x[k] - sum, share = exp_of<Real>(log);
            Lane<Real> more = all(turned[k]);
            if (along) more += load(along + j, left);
            if (entropic) more += surprise(share, log);
            mean += share * more, total += share;
          }
          store(means.data() + j, mean, left), store(totals.data() + j, total, left);
        });
      };
      if (!said) join(0, depth, nullptr);
      else for (int64_t k = 0; k < depth; ++k) join(k, k + 1, said_row(g, said, start, k));
      // Where another factor of the target forbids a label, shares are of nothing and may be huge.
      divide_along(means.data(), totals.data(), n);
      for (int64_t j = 0; j < n; ++j) if (!(done[j] > kNever<Real>)) means[j] = 0;
      mean_of(targets[p - span.low], s, item, p, means.data());
    }
}

// The means of sums over labels.
template <typename Real>
void Run<Real>::over_along(const Stage& g, At s) {
  const Span span = defined(g, s);
  for (int64_t item = 0; item < batch; ++item)
    for (int64_t p = span.low; p <= span.high && is_needed(g, item, s); ++p) {
      const Real done = *out(g, data[0], item, s, p);
      Real* to = out(g, moves[0], item, s, p);
      *to = 0;
      if (!(done > kNever<Real>)) continue;
      const double known = find_rows(g, item, s, p);
      exps(x.data(), x.data(), Real(*out_level(g, item, s, p) + done - known), x.size());
      turned.resize(x.size());
      splits_along(g, item, p, turned.data());
      times_along(turned.data(), x.data(), turned.data(), x.size());
      for (const Real one : turned) *to += one;
    }
}

// Matrices times what moves say of them, or times minus their logs, in panels.
template <typename Real>
void Run<Real>::prepare_along() {
  const int64_t wide = width<Real>();
  for (int64_t k = 0; k < whole.stages; ++k) {
    const Stage& g = stages[k];
    if (!prepares(g) || (!moves[g.slot] && !entropic)) continue;
    Array<Real>& made = prepared[whole.stages + k];
    made.resize(sets(g) * packed_size(g));
    for (int64_t item = 0; item < sets(g); ++item) {
      const Real* weights = table(g, item).ahead;
      Real* to = made.data() + item * packed_size(g);
      if (entropic) {
        by_lanes<Real>(packed_size(g), [&](int64_t j, auto left) {
          const Lane<Real> weight = load(weights + j, left);
          store(to + j, weight * surprise(weight, log_of<Real>(weight)), left);
        });
        continue;
      }
      const Real* said = moves[g.slot] + g.table.c + item * g.table_item;
      // Beside the last column there is nothing.
      if (g.labels % wide) std::fill(to + packed_size(g) - wide * depth_of(g), to + packed_size(g), Real(0));
      each_packed(g, [&](int64_t at, int64_t place, int64_t some) {
        for (int64_t j = 0; j < some; ++j) to[at + j] = weights[at + j] * said[place + j];
      });
    }
  }
}

}  // namespace
