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
    if (!any_possible(loss, count)) continue;
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

// The losses of a link at a place, and into those of other factors of its target; null: no derivation goes through it.
template <typename Real>
const Real* Run<Real>::loss_of_link(const Stage& g, const Target& target, At s, int64_t p) {
  // What has no terms is not possible, and so has lost everything.
  const Real* loss = out(*target.g, losses[0], 0, s, p);
  if (!any_possible(loss, g.labels)) return nullptr;
  // Entries that are added to the whole row of labels lose what each label does.
  for (const Part& f : target.others)
    if (losses[f.f->slot]) raise(losses[f.f->slot], line_of(f, 0), loss, g.labels);
  return loss;
}

// The losses of the links of a step, into those of their rows and their matrix.
template <typename Real>
void Run<Real>::link_maxima(const Stage& g, At s) {
  const Span span = defined(g, s);
  const int64_t n = g.labels;
  const Alternative& a = alternatives[g.first];
  if (span.high < span.low) return;
  find_targets(g, s, span);
  if (g.kind == kKindPair && g.fixed) return pair_maxima(g, s, span);
  for (int64_t p = span.low; p <= span.high; ++p) {
    const Real* loss = loss_of_link(g, targets[p - span.low], s, p);
    if (!loss) continue;
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

// The losses of the pairs of a step, by a matrix that is the same at all places: in the place of a pair k of labels the
// best derivation loses max_j [loss_j - total_j + W_kj] + row_k, which is a product of maxima.
template <typename Real>
void Run<Real>::pair_maxima(const Stage& g, At s, Span span) {
  const int64_t depth = depth_of(g), n = g.labels, wide = width<Real>();
  const int64_t padded = panels_of(n, wide) * wide, hop = panels_of(depth, wide) * wide;
  // A large matrix is read once for the rows of several places, whose splits are then found again.
  const int64_t most = depth * n > kCached ? kRows : 1;
  const Table<Real> own = table(g, 0);
  x.resize(std::max<int64_t>(x.size(), most * depth));
  totals.resize(std::max<int64_t>(totals.size(), most * padded)), moved.resize(std::max<int64_t>(moved.size(), most * hop));
  for (int64_t p = span.low; p <= span.high;) {
    for (rows.clear(); p <= span.high && int64_t(rows.size()) < most; ++p) {
      Row one{0, p, 0, 0};
      if (loss_of_link(g, targets[p - span.low], s, p) && pair<true>(g, s, one, x.data() + rows.size() * depth)) rows.push_back(one);
    }
    by_panels<true>(x.data(), rows.size(), depth, depth, own.ahead, n, totals.data(), padded);
    for (Row& one : rows) {
      const Real* loss = out(*targets[one.p - span.low].g, losses[0], 0, s, one.p);
      Real *less = totals.data() + (&one - rows.data()) * padded, top = kNever<Real>;
      for (int64_t j = 0; j < n; ++j) {
        const bool any = less[j] > kNever<Real>;
        top = any ? std::max(top, loss[j]) : top, less[j] = any ? loss[j] - less[j] : kNever<Real>;
      }
      one.top = top;
    }
    by_panels<true>(totals.data(), rows.size(), padded, n, own.back, depth, moved.data(), hop);
    for (Row& one : rows) {
      if (!(one.top > kNever<Real>)) continue;
      const int64_t r = &one - rows.data();
      const Real *best = x.data() + r * depth, *less = totals.data() + r * padded;
      Real* loss = moved.data() + r * hop;
      for (int64_t k = 0; k < depth; ++k) loss[k] += best[k];
      // The best derivation loses nothing: what rounding has added is taken off again.
      const Real more = Real(one.top) - largest(loss, depth);
      for (int64_t k = 0; k < depth; ++k) loss[k] += more;
      if (Real* to = losses[g.slot] ? losses[g.slot] + g.table.c : nullptr)
        for (int64_t j = 0; j < n; ++j)
          for (int64_t k = 0; less[j] > kNever<Real> && k < depth; ++k) {
            const int64_t at = row_of(g, k) + column_of(g, j);
            to[at] = std::max(to[at], ((own.logs[at] + less[j]) + best[k]) + more);
          }
      if (most > 1) prepare_splits<true>(g, s, one);
      split_maxima(g, one.p, loss, best);
    }
  }
}

// The losses of both parts of all `splits` of a pair, given those of its pairs of labels and the largest terms of these.
template <typename Real>
void Run<Real>::split_maxima(const Stage& g, int64_t p, const Real* loss, const Real* most) {
  const int64_t many = splits.size(), sizes[] = {g.depth, g.depth2};
  // Both parts and their losses by the labels of the parts, with splits side by side.
  std::vector<Real>* const turned_parts[] = {&t, &z};
  for (int side = 0; side < 2; ++side) {
    std::vector<Real>& to = *turned_parts[side];
    to.resize(std::max<int64_t>(to.size(), 2 * sizes[side] * many));
    for (int64_t k = 0; k < many; ++k)
      for (int64_t i = 0; i < sizes[side]; ++i) to[i * many + k] = parts_of_splits[side][k][i] + (side ? w[k] : Real(0));
    std::fill_n(to.data() + sizes[side] * many, sizes[side] * many, kNever<Real>);
  }
  for (int64_t i = 0; i < sizes[0]; ++i)
    by_lanes<Real>(many, [&](int64_t k, auto some) {
      const Lane<Real> left = load(t.data() + i * many + k, some);
      Lane<Real> to_left = all(kNever<Real>);
      for (int64_t j = 0; j < sizes[1]; ++j) {
        // Of pairs that are not possible this is -inf or NaN, which is larger than nothing.
        const Lane<Real> right = load(z.data() + j * many + k, some);
        const Lane<Real> one = loss[i * sizes[1] + j] + ((left + right) - most[i * sizes[1] + j]);
        Real* to_right = z.data() + (sizes[1] + j) * many + k;
        const Lane<Real> other = load(to_right, some);
        to_left = one > to_left ? one : to_left;
        store(to_right, one > other ? one : other, some);
      }
      store(t.data() + (sizes[0] + i) * many + k, to_left, some);
    });
  for (int side = 0; side < 2; ++side) {
    const Real* from = turned_parts[side]->data() + sizes[side] * many;
    const Alternative& a = alternatives[g.first + side];
    const bool plain = single_row(a);
    w.resize(std::max<int64_t>(w.size(), sizes[side]));
    for (int64_t k = 0; k < many; ++k) {
      Real* to = plain ? losses[0] + places_of_parts[side][k] : w.data();
      if (!plain) std::fill_n(to, sizes[side], kNever<Real>);
      for (int64_t i = 0; i < sizes[side]; ++i) to[i] = std::max(to[i], from[i * many + k]);
      if (!plain) row_raise(a, splits[k].s, p, splits[k].r, sizes[side], to);
    }
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

// Prepares the matrices of series and pairs for the way down: those that items share, or those of the one item.
template <typename Real>
void Run<Real>::prepare_maxima(bool shared) {
  for (int64_t k = 0; k < whole.stages; ++k) {
    const Stage& g = stages[k];
    if (!prepares(g) || shared == (g.table_item > 0)) continue;
    const auto begins = [&](const Series& one) { return stages + one.link == &g; };
    if (g.kind != kKindPair && (losses[g.slot] || std::none_of(series.begin(), series.end(), begins))) continue;
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
