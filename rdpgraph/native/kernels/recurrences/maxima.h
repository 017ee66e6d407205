// Max-marginals: the best score of a derivation that uses an entry, for one item, given maxima of all tables.
//
// Downwards goes the loss of the best derivation that uses a cell or entry, its score less the best score.
// The best one through a term of a cell loses what the best one through the cell does, and what the term is
// below the largest of the cell: loss + term - max(terms). So the best derivation loses exactly nothing.

#pragma once

#include "means.h"
#include "wide.h"

namespace {

// The losses of the sums of a step, into those of all that they read.
template <typename Real>
void Run<Real>::sum_maxima(const Stage& g, At s) {
  const Span span = defined(g, s);
  if (span.high < span.low) return;
  const bool wide = g.labels > 0;
  const int64_t count = wide ? g.labels : span.high - span.low + 1;
  for (int64_t p = span.low; p <= (wide ? span.high : span.low); ++p) {
    const Real* loss = out(g, losses[0], 0, s, p);
    if (!(largest(loss, count) > kNever<Real>)) continue;
    collect_entries(g, 0, s, p, count);
    if (fused_link() >= 0) continue;
    // All terms, relative to one level, and the largest of each cell.
    double base = -INFINITY;
    for (Entry& one : entries) base = std::max(base, one.level = level_of(one, 0));
    terms.resize(std::max<int64_t>(terms.size(), int64_t(entries.size()) * count)), totals.assign(count, kNever<Real>);
    for (size_t k = 0; k < entries.size(); ++k) {
      const Entry& one = entries[k];
      Real *row = terms.data() + k * count, *most = totals.data() + one.low;
      product(one, 0, Real(one.level - base), row);
      raise(most, row, 1, one.high - one.low + 1);
    }
    for (size_t k = 0; k < entries.size(); ++k) {
      const Entry& one = entries[k];
      const int64_t size = one.high - one.low + 1;
      Real* row = terms.data() + k * count;
      for (int64_t v = 0; v < size; ++v) row[v] = loss[one.low + v] + (row[v] - finite(totals[one.low + v]));
      for (const Part* f = factors_of.data() + one.first; f < factors_of.data() + one.first + one.count; ++f) {
        if (losses[f->f->slot]) raise(losses[f->f->slot], line_of(*f, 0), row, size);
      }
    }
  }
}

// The losses of terms x_k + W_kj, given those of the columns j: visits `all_of` each row k, if asked, and writes the best
// of it into `to`. Rows of W are `hop` apart.
template <typename Real>
template <typename Visit>
void Run<Real>::matrix_maxima(const Real* loss, const Real* rows, int64_t depth, const Real* matrix, int64_t hop,
                              int64_t n, bool all_of, Visit visit, Real* to) {
  // Vectors of losses and of the largest term of each column, padded to whole registers.
  const int64_t padded = panels_of(n, lanes<Real>()) * lanes<Real>();
  totals.assign(padded, kNever<Real>), moved.resize(padded), h.assign(padded, kNever<Real>);
  std::memcpy(h.data(), loss, n * sizeof(Real));
  by_lanes<Real>(n, [&](int64_t j, auto left) {
    Lane<Real> most = all(kNever<Real>);
    for (int64_t k = 0; k < depth; ++k) {
      const Lane<Real> one = load(matrix + k * hop + j, left) + rows[k];
      most = one > most ? one : most;
    }
    store(totals.data() + j, most, lanes<Real>());
  });
  for (Real& one : totals) one = finite(one);
  for (int64_t k = 0; k < depth; ++k) {
    Lane<Real> best = all(kNever<Real>);
    by_lanes<Real>(n, [&](int64_t j, auto left) {
      const Lane<Real> term = (load(matrix + k * hop + j, left) + rows[k]) - load(totals.data() + j, lanes<Real>());
      const Lane<Real> one = load(h.data() + j, lanes<Real>()) + term;
      best = one > best ? one : best;
      if (all_of) store(moved.data() + j, one, lanes<Real>());
    });
    to[k] = largest_of<Real>(best);
    if (all_of) visit(k, moved.data());
  }
}

// The losses of the links of a step, into those of their rows and their matrix.
template <typename Real>
void Run<Real>::link_maxima(const Stage& g, At s) {
  const Span span = defined(g, s);
  const int64_t n = g.labels;
  const Alternative& a = alternatives[g.first];
  if (span.high < span.low) return;
  find_targets(g, s, span);
  for (int64_t p = span.low; p <= span.high; ++p) {
    const Target& target = targets[p - span.low];
    const Real* loss = out(*target.g, losses[0], 0, s, p);
    if (!has_terms(a, 0, s, p) || !(largest(loss, n) > kNever<Real>)) continue;
    // Entries that are added to the whole row of labels lose what each label does.
    for (const Part& f : target.others)
      if (losses[f.f->slot]) raise(losses[f.f->slot], line_of(f, 0), loss, n);
    if (g.kind == kKindPair && g.fixed) {
      Row one{0, p, 0, 0};
      pair_maxima(g, s, one, loss);
      continue;
    }
    const int64_t start = value(g.table, s, p, 0), each = depth_of(g);
    // A link: each term is a label of the row and an entry of the matrix.
    int64_t hop;
    double known;
    const Real* matrix = direct(g, 0, s, p, &hop, &known);
    const int64_t depth = each * splits.size();
    turned.resize(depth);
    Real* own = losses[g.slot];
    matrix_maxima(loss, x.data(), depth, matrix, hop, n, own, [&](int64_t k, const Real* of_row) {
      if (!is_gathered(g)) return raise(own + start + k * g.row, of_row, 1, n);
      for (int64_t j = 0; j < n; ++j) raise(own + rows_at[k] + columns_at[k / each * n + j], of_row + j, 1, 1);
    }, turned.data());
    // The best loss for each label of the row; of a pair, for the labels of either part.
    for (size_t k = 0; k < splits.size(); ++k) {
      const Real* best = turned.data() + k * each;
      const Split& at = splits[k];
      if (g.kind == kKindPair) {
        y.assign(g.depth, kNever<Real>), z.assign(g.depth2, kNever<Real>);
        for (int64_t i = 0; i < each; ++i) {
          y[i / g.depth2] = std::max(y[i / g.depth2], best[i]);
          z[i % g.depth2] = std::max(z[i % g.depth2], best[i]);
        }
        row_raise(alternatives[g.first + 1], at.s, p, at.r, g.depth2, z.data());
        best = y.data();
      }
      row_raise(a, at.s, p, at.r, g.depth, best);
    }
  }
}

// The losses of a pair: of its matrix, and, by those of its row of pairs of labels, of both parts of all splits.
template <typename Real>
void Run<Real>::pair_maxima(const Stage& g, At s, Row& one, const Real* loss) {
  const int64_t b = g.depth, c = g.depth2, n = g.labels, wide = width<Real>();
  pairs.resize(std::max<int64_t>(pairs.size(), b * c));
  if (!pair<true>(g, s, one, pairs.data())) return;
  // The matrix with the labels of the whole side by side, made once for all places.
  std::vector<Real>& matrix = plain[&g - stages];
  turned.resize(b * c);
  if (matrix.empty()) {
    const Real* from = data[g.slot] + g.table.c;
    matrix.resize(b * c * n);
    for (int64_t j = 0; j < n; ++j)
      for (int64_t k = 0; k < b * c; ++k) matrix[k * n + j] = from[row_of(g, k) + column_of(g, j)];
  }
  Real* own = losses[g.slot];
  matrix_maxima(loss, pairs.data(), b * c, matrix.data(), n, n, own, [&](int64_t k, const Real* of_row) {
    for (int64_t j = 0; j < n; ++j) raise(own + g.table.c + row_of(g, k) + column_of(g, j), of_row + j, 1, 1);
  }, turned.data());
  for (int64_t k = 0; k < b * c; ++k) pairs[k] = finite(pairs[k]);
  const int64_t many = splits.size();
  std::vector<Real> left(b), right(c), of_right(c);
  for (int64_t r = 0; r < many; ++r) {
    std::fill(right.begin(), right.end(), kNever<Real>);
    for (int64_t j = 0; j < c; ++j) of_right[j] = z[(j / wide * many + r) * wide + j % wide];
    for (int64_t i = 0; i < b; ++i) {
      const Real *loss_of = turned.data() + i * c, *best_of = pairs.data() + i * c, own = y[r * b + i];
      Real most = kNever<Real>;
      for (int64_t j = 0; j < c; ++j) {
        const Real best = loss_of[j] + (own + of_right[j] - best_of[j]);
        most = std::max(most, best), right[j] = std::max(right[j], best);
      }
      left[i] = most;
    }
    row_raise(alternatives[g.first], splits[r].s, one.p, splits[r].r, b, left.data());
    row_raise(alternatives[g.first + 1], splits[r].s, one.p, splits[r].r, c, right.data());
  }
}

// The losses of a series, along which one matrix is the same at all steps: those of a row are products of maxima, of
// the losses less the largest terms of the row after it, and the matrix.
template <typename Real>
void Run<Real>::series_maxima(Series& one) {
  const Stage &g = stages[one.link], &to = stages[one.into];
  const int64_t n = g.labels, hop = panels_of(n, width<Real>()) * width<Real>();
  const Table<Real> t = table(g, 0);
  std::vector<Real> after(hop, kNever<Real>), back(hop, kNever<Real>), room;
  bool any = false;  // whether a derivation goes through the step after
  for (int64_t s = one.last; s >= one.first; --s) {
    Real* loss = out(to, losses[0], 0, At{s}, 0);
    if (any) raise(loss, back.data(), 1, n);
    const Real top = largest(loss, n);
    if (!(any = top > kNever<Real>)) continue;
    for (const FactorRecord *f = factors + one.own->first, *end = f + one.own->count; f < end; ++f)
      if (f->link < 0 && losses[f->slot]) raise(losses[f->slot], line_of(*f, 0, At{s}, 0, 0), loss, n);
    const Real *done = out(to, data[0], 0, At{s}, 0), *before = out(to, data[0], 0, At{s - 1}, 0);
    const Real* given = others_at(one, 0, s, room);
    by_lanes<Real>(n, [&](int64_t k, auto left) {
      const Lane<Real> own = load(done + k, left), less = load(loss + k, left) - (own - load(given + k, left));
      store(after.data() + k, own > kNever<Real> ? less : all(kNever<Real>), left);
    });
    by_panels<true>(after.data(), 1, hop, n, t.back, n, back.data(), hop);
    for (int64_t k = 0; k < n; ++k) back[k] += before[k];
    // The best derivation loses nothing at any step: what rounding has added is taken off again.
    const Real more = top - largest(back.data(), n);
    for (int64_t k = 0; k < n; ++k) back[k] += more;
  }
  if (any) raise(out(to, losses[0], 0, At{one.first - 1}, 0), back.data(), 1, n);
}

// Prepares the matrices of series for the way down: those that items share, or those of the one item.
template <typename Real>
void Run<Real>::prepare_maxima(bool shared) {
  for (const Series& one : series) {
    const Stage& g = stages[one.link];
    if (!prepares(g) || losses[g.slot] || shared == (g.table_item > 0)) continue;
    if (!shared) prepare<true>(g, false);
    prepare<true>(g, true);
  }
}

// The losses of sums over labels.
template <typename Real>
void Run<Real>::over_maxima(const Stage& g, At s) {
  const Span span = defined(g, s);
  const Alternative& a = alternatives[g.first];
  for (int64_t p = span.low; p <= span.high; ++p) {
    const Real loss = *out(g, losses[0], 0, s, p);
    if (!(loss > kNever<Real>)) continue;
    find_rows(g, 0, s, p);
    const Real top = largest(x.data(), x.size());
    for (Real& one : x) one = loss + (one - top);
    for (size_t k = 0; k < splits.size(); ++k)
      row_raise(a, splits[k].s, p, splits[k].r, g.depth, x.data() + k * g.depth);
  }
}

}  // namespace
