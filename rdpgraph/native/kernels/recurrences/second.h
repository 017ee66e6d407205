// Second derivatives, downwards: the derivative along a direction of the gradient of the goals.
//
// `moves` has the direction, and for every table what `along` made of it: t_c, the derivative of its log-sum.
// `grads[0]` has the gradients g_c from `down`. A term k of a cell c has the share s_k = exp(log_k - log_c), whose
// derivative is s_k (t_k - t_c), with t_k the sum of what moves say of all that the term reads. What the term
// reads gets g_c s_k as its gradient, and so as the derivative of that, with g'_c in `seconds`,
//     s_k (g'_c + g_c (t_k - t_c)).

#pragma once

#include "means.h"

namespace {

// Those of the sums of a step.
template <typename Real>
void Run<Real>::sum_second(const Stage& g, At s) {
  const Span span = defined(g, s);
  if (span.high < span.low) return;
  const bool wide = g.labels > 0;
  const int64_t count = wide ? g.labels : span.high - span.low + 1;
  const std::vector<Real> ones(count, Real(1));
  for (int64_t p = span.low; p <= (wide ? span.high : span.low); ++p) {
    collect_entries(g, 0, s, p, count);
    if (fused_link() >= 0) continue;
    for (int64_t item = 0; item < batch; ++item) {
      if (!is_needed(g, item, s)) continue;
      const Real *done = out(g, data[0], item, s, p), *first = out(g, grads[0], item, s, p);
      const Real *second = out(g, seconds[0], item, s, p), *along = out(g, moves[0], item, s, p);
      if (!any_of(first, count) && !any_of(second, count)) continue;
      if (apart && item) collect_entries(g, item, s, p, count);
      shares(g, done, ones.data(), *out_level(g, item, s, p), item, count);
      for (const Entry& one : entries) {
        const int64_t size = one.high - one.low + 1;
        Real* row = terms.data() + (&one - entries.data()) * count;
        const Part *parts = factors_of.data() + one.first, *end = parts + one.count;
        // The derivative of the logs of the term, then that of its gradient.
        means.assign(size, Real(0));
        for (const Part* f = parts; f < end; ++f)
          if (moves[f->f->slot]) add_moves(means.data(), moves[f->f->slot], line_of(*f, item), size);
        for (int64_t k = 0; k < size; ++k) {
          const int64_t v = one.low + k;
          row[k] *= second[v] + first[v] * (means[k] - along[v]);
        }
        for (const Part* f = parts; f < end; ++f)
          if (seconds[f->f->slot]) add_to(seconds[f->f->slot], line_of(*f, item), row, size);
      }
    }
  }
}

// The gradient of a link at a place, its derivative, and that of its values: those of its target without other
// factors, whose share of the target is 1. Adds the derivatives of these.
template <typename Real>
typename Run<Real>::Turn Run<Real>::turn_of(const Target& target, At s, int64_t item, int64_t p) {
  const Stage& g = *target.g;
  const Real *first = out(g, grads[0], item, s, p), *second = out(g, seconds[0], item, s, p);
  tau.resize(g.labels);
  std::memcpy(tau.data(), out(g, moves[0], item, s, p), g.labels * sizeof(Real));
  for (const Part& f : target.others) {
    const Line line = line_of(f, item);
    if (const Real* from = moves[f.f->slot])
      for (int64_t k = 0; k < g.labels; ++k) tau[k] -= from[line(k)];
    if (seconds[f.f->slot]) add_to(seconds[f.f->slot], line, second, g.labels);
  }
  return {first, second, tau.data()};
}

// Those of the links of a step. With rows x, products y = x W, and moves a of rows and w of W, the derivative is
//     x_i [ sum_j W_ij h'_j + a_i sum_j W_ij h_j + sum_j W_ij w_ij h_j ]   in row i, and
//     W_ij [ x_i h'_j + x_i a_i h_j + w_ij x_i h_j ]                       in the matrix,
// where h_j = g_j / y_j and h'_j = (g'_j - g_j t_j) / y_j.
template <typename Real>
void Run<Real>::link_second(const Stage& g, At s) {
  const Span span = defined(g, s);
  const int64_t depth = depth_of(g), n = g.labels, wide = width<Real>(), hop = panels_of(depth, wide) * wide;
  const int64_t many = span.high - span.low + 1, items = g.fixed && !g.table_item ? batch : 1;
  if (many <= 0) return;
  find_targets(g, s, span);
  if (!g.fixed) return direct_second(g, s, span);
  const int64_t padded = panels_of(n, wide) * wide, size = hop * n, most = std::min(rows_together(g), many * items);
  // Room that is kept from step to step: filling it anew takes longer than the products of a few rows.
  products_of.resize(std::max<int64_t>(products_of.size(), most * padded));
  after_of.resize(std::max<int64_t>(after_of.size(), 2 * most * padded));
  before_of.resize(std::max<int64_t>(before_of.size(), 3 * most * hop));
  std::vector<Real> moved_rows(depth);
  for (int64_t item = 0; item < batch; item += items) {
    const Table<Real> own = table(g, item);
    const Real* back = moves[g.slot] ? prepared_of(g, 2 * whole.stages).data() + (g.table_item ? item : 0) * size : nullptr;
    for (int64_t first = 0; first < many * items; first += rows_together(g)) {
      rows_and_products(g, s, span, item, first, std::min(rows_together(g), many * items - first), padded, products_of.data());
      const int64_t some = rows.size();
      Real *h = after_of.data(), *turn = h + some * padded;
      Real *plain = before_of.data(), *turned_of = plain + some * hop, *with = turned_of + some * hop;
      for (int64_t r = 0; r < some; ++r) {
        const Row one = rows[r];
        const Turn t = turn_of(targets[one.p - span.low], s, one.item, one.p);
        Real *own_h = h + r * padded, *own_turn = turn + r * padded;
        for (int64_t j = 0; j < n; ++j) {
          const Real sum = products_of[r * padded + j];
          const bool sound = sum >= faint<Real>(depth);
          own_h[j] = sound ? t.first[j] / sum : 0;
          own_turn[j] = sound ? (t.second[j] - t.first[j] * t.along[j]) / sum : 0;
          if (!sound && (t.first[j] != 0 || t.second[j] != 0)) faint_second(g, s, one, own.logs, j, t);
        }
      }
      by_panels_of_all<false>(h, 2 * some, padded, n, own.back, depth, s.s % 2, plain, hop);  // and the turns, which lie behind
      if (back) by_panels_of_all<false>(h, some, padded, n, back, depth, s.s % 2, with, hop);
      for (int64_t r = 0; r < some; ++r) {
        Row one = rows[r];
        const Real* row = x.data() + r * depth;
        Real *p = plain + r * hop, *q = turned_of + r * hop;
        if (back) for (int64_t k = 0; k < depth; ++k) q[k] += with[r * hop + k];
        // Rows times what moves say of them.
        if (g.kind == kKindLink) {
          row_along(alternatives[g.first], one.item, s, one.p, 0, depth, moved_rows.data());
          for (int64_t k = 0; k < depth; ++k) q[k] = row[k] * (q[k] + moved_rows[k] * p[k]), moved_rows[k] *= row[k];
          add_rows(seconds, alternatives[g.first], one.item, s, one.p, 0, depth, q);
        } else {
          prepare_said(g, s, one);
          if (seconds[g.slot]) pair_along(g, moved_rows.data());
          pair_second(g, one, p, q);
        }
        if (!seconds[g.slot]) continue;
        keep_products(g, one.item, row, turn + r * padded, 0);
        keep_products(g, one.item, moved_rows.data(), h + r * padded, 0);
        if (back) keep_products(g, one.item, row, h + r * padded, whole.stages);
      }
    }
  }
}

// Those of both parts of a pair, L and R, split by split. In the product L_rb R_rc of a split it is
//     L_rb R_rc [ q_bc + p_bc (l_rb + r_rc) ],
// with moves l and r, and p and q what a link has beside a_i, and without, in brackets.
template <typename Real>
void Run<Real>::pair_second(const Stage& g, const Row& one, const Real* p, const Real* q) {
  const int64_t some = splits.size(), b = g.depth, c = g.depth2;
  const Real *left = said_of_parts[0].data(), *right = said_of_parts[1].data();
  e.resize(std::max<int64_t>(e.size(), b)), t.resize(std::max<int64_t>(t.size(), c));
  for (int64_t k = 0; k < some; ++k) {
    std::fill_n(t.data(), c, Real(0));
    for (int64_t i = 0; i < b; ++i) {
      const Real own = y[k * b + i], along = left[k * b + i];
      Real sum = 0, *to_right = t.data();
      const Real *of_right = rights.data() + k * c, *said = right + k * c;
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j < c; ++j) {
        const Real share = own * of_right[j] * (q[i * c + j] + p[i * c + j] * (along + said[j]));
        sum += share, to_right[j] += share;
      }
      e[i] = sum;
    }
    add_part(seconds, g, 0, one, k, e.data());
    add_part(seconds, g, 1, one, k, t.data());
  }
}

// Those of one entry whose products underflow, term by term.
template <typename Real>
void Run<Real>::faint_second(const Stage& g, At s, const Row& one, const Real* logs, int64_t j, const Turn& t) {
  const double total = in_logs(g, s, one, logs, j);
  if (!(total > -INFINITY)) return;
  const int64_t b = g.depth, c = g.kind == kKindPair ? g.depth2 : 1, base = logs - data[g.slot];
  std::vector<Real> left(b), right(c), to_left(b), to_right(c);
  const Real* said = moves[g.slot] ? moves[g.slot] + base : nullptr;
  Real* to = seconds[g.slot] ? seconds[g.slot] + base : nullptr;
  const Alternative *a = alternatives + g.first, *other = g.kind == kKindPair ? a + 1 : nullptr;
  each_term(g, s, one, logs, j, [&](const Split& split, int64_t k, double log) {
    if (k == 0) {
      row_along(*a, one.item, split.s, one.p, split.r, b, left.data());
      if (other) row_along(*other, one.item, split.s, one.p, split.r, c, right.data());
      std::fill(to_left.begin(), to_left.end(), Real(0)), std::fill(to_right.begin(), to_right.end(), Real(0));
    }
    const int64_t at = row_of(g, k) + column_of(g, j);
    const Real along = left[k / c] + right[k % c] + (said ? said[at] : 0);
    const Real share = Real(std::exp(log - total)) * (t.second[j] + t.first[j] * (along - t.along[j]));
    to_left[k / c] += share, to_right[k % c] += share;
    if (to) to[at] += share;
    if (k < b * c - 1) return;
    add_rows(seconds, *a, one.item, split.s, one.p, split.r, b, to_left.data());
    if (other) add_rows(seconds, *other, one.item, split.s, one.p, split.r, c, to_right.data());
  });
}

// Those of links by matrices that change from place to place.
template <typename Real>
void Run<Real>::direct_second(const Stage& g, At s, Span span) {
  const int64_t n = g.labels, each = depth_of(g);
  for (int64_t item = 0; item < batch; ++item)
    for (int64_t p = span.low; p <= span.high; ++p) {
      const Target& target = targets[p - span.low];
      const Turn t = turn_of(target, s, item, p);
      if (!has_terms(alternatives[g.first], item, s, p) || (!any_of(t.first, n) && !any_of(t.second, n))) continue;
      int64_t hop;
      double known, level;
      const Real *from = direct(g, item, s, p, &hop, &known), *done = link_values(target, s, item, p, &level);
      const int64_t depth = each * splits.size();
      const Real* said = moves[g.slot] ? moves[g.slot] + item * g.table_item : nullptr;
      Real* to = seconds[g.slot] ? seconds[g.slot] + item * g.table_item : nullptr;
      // The share of each term in its column's sum; divided by what they add up to, as logs are rounded.
      pairs.resize(std::max<int64_t>(pairs.size(), depth * n)), totals.resize(n), h.resize(std::max<int64_t>(h.size(), n));
      for (int64_t k = 0; k < depth; ++k) x[k] += Real(known - level);
      for (int64_t j = 0; j < n; ++j) h[j] = finite(done[j]);
      by_lanes<Real>(n, [&](int64_t j, auto left) {
        const Lane<Real> sum = load(h.data() + j, left);
        Lane<Real> total = {};
        for (int64_t k = 0; k < depth; ++k) {
          const Lane<Real> share = exp_of<Real>(load(from + k * hop + j, left) + x[k] - sum);
          store(pairs.data() + k * n + j, share, left), total += share;
        }
        store(totals.data() + j, total > Lane<Real>{} ? all(Real(1)) / total : Lane<Real>{}, left);
      });
      const int64_t start = value(g.table, s, p, 0);
      turned.resize(depth), e.assign(depth, Real(0));
      splits_along(g, item, p, turned.data());
      const std::vector<Real> none(said ? 0 : n, Real(0));
      scattered.resize(n);
      for (int64_t k = 0; k < depth; ++k) {
        const Real *along = said ? said_row(g, said, start, k) : none.data(), own = turned[k];
        Real *row = pairs.data() + k * n, *added = to && !is_gathered(g) ? to + start + k * g.row : nullptr;
        Lane<Real> total = {};
        by_lanes<Real>(n, [&](int64_t j, auto left) {
          const Lane<Real> turn = (load(along + j, left) + own) - load(t.along + j, left);
          const Lane<Real> one = (load(row + j, left) * load(totals.data() + j, left)) *
                                 (load(t.second + j, left) + load(t.first + j, left) * turn);
          total += one;
          if (added) store(added + j, load(added + j, left) + one, left);
          else store(row + j, one, left);
        });
        Real sum = 0;
        for (int64_t j = 0; j < lanes<Real>(); ++j) sum += total[j];
        e[k] = sum;
        if (to && !added) for (int64_t j = 0; j < n; ++j) to[rows_at[k] + columns_at[k / each * n + j]] += row[j];
      }
      add_splits(seconds, g, item, p, e.data());
    }
}

// Those of sums over labels.
template <typename Real>
void Run<Real>::over_second(const Stage& g, At s) {
  const Span span = defined(g, s);
  for (int64_t item = 0; item < batch; ++item)
    for (int64_t p = span.low; p <= span.high && is_needed(g, item, s); ++p) {
      const Real done = *out(g, data[0], item, s, p), along = *out(g, moves[0], item, s, p);
      const Real first = *out(g, grads[0], item, s, p), second = *out(g, seconds[0], item, s, p);
      if (!(done > kNever<Real>) || (first == 0 && second == 0)) continue;
      const double known = find_rows(g, item, s, p);
      const int64_t count = x.size();
      exps(x.data(), x.data(), Real(*out_level(g, item, s, p) + done - known), count);
      turned.resize(count);
      splits_along(g, item, p, turned.data());
      Real total = 0;  // 1, but for rounding
      for (int64_t k = 0; k < count; ++k) total += x[k];
      for (int64_t k = 0; k < count; ++k) x[k] *= (second + first * (turned[k] - along)) / total;
      add_splits(seconds, g, item, p, x.data());
    }
}

// The panels of `prepare_along`, transposed.
template <typename Real>
void Run<Real>::prepare_second() {
  const int64_t wide = width<Real>();
  kept.assign(2 * whole.stages, Kept());
  for (int64_t k = 0; k < whole.stages; ++k) {
    const Stage& g = stages[k];
    if (!prepares(g) || !moves[g.slot]) continue;
    const int64_t depth = depth_of(g), n = g.labels, panels = panels_of(depth, wide), size = panels * wide * n;
    Array<Real>& made = prepared[2 * whole.stages + k];
    made.resize(sets(g) * size);
    for (int64_t item = 0; item < sets(g); ++item) {
      const Real* from = prepared[whole.stages + k].data() + item * packed_size(g);
      by_items(panels, threads_for(double(depth) * n, crew), [&](int64_t first, int64_t last) {
        transpose(from, depth, n, made.data() + item * size, first, last);
      });
    }
  }
}

// Turns what was kept of products into the derivatives of the logs of a matrix, at the end of the pass.
template <typename Real>
void Run<Real>::write_matrix_second(const Stage& g) {
  Kept& own = kept[&g - stages];
  if (!g.fixed || g.slot < 0 || !seconds[g.slot] || own.before.empty()) return;
  finish_kept(g, 0), finish_kept(g, whole.stages);
  for (int64_t item = 0; item < sets(g); ++item) {
    const int64_t start = g.table.c + item * g.table_item;
    const Real *weights = table(g, item).ahead, *sums = own.sums.data() + item * packed_size(g);
    Real* to = seconds[g.slot] + start;
    const auto add_all = [&](auto factor) {
      each_packed(g, [&](int64_t at, int64_t place, int64_t some) {
        for (int64_t j = 0; j < some; ++j) to[place + j] += weights[at + j] * factor(at + j, place + j);
      });
    };
    if (!moves[g.slot]) { add_all([=](int64_t at, int64_t) { return sums[at]; }); continue; }
    const Real *said = moves[g.slot] + start, *plain = kept[&g - stages + whole.stages].sums.data() + item * packed_size(g);
    add_all([=](int64_t at, int64_t place) { return sums[at] + said[place] * plain[at]; });
  }
}

}  // namespace
