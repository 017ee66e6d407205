// Max-marginals: the best score of a derivation that uses an entry, given maxima of all tables.
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
    collect_entries(g, 0, s, p, count);
    if (fused_link() >= 0) continue;
    for (int64_t item = 0; item < batch; ++item) {
      const Real* loss = out(g, losses[0], item, s, p);
      if (!is_needed(g, item, s) || !any_possible(loss, count)) continue;
      if (apart && item) collect_entries(g, item, s, p, count);
      // One term loses what the cell does, as it is its largest.
      if (entries.size() == 1 && entries[0].high - entries[0].low + 1 == count) {
        raise_entry(entries[0], item, loss, count);
        continue;
      }
      // All terms, relative to one level, and the largest of each cell.
      double base = -INFINITY;
      for (Entry& one : entries) base = std::max(base, one.level = level_of(one, item));
      terms.resize(std::max<int64_t>(terms.size(), int64_t(entries.size()) * count)), totals.assign(count, kNever<Real>);
      for (size_t k = 0; k < entries.size(); ++k) {
        const Entry& one = entries[k];
        Real *row = terms.data() + k * count, *most = totals.data() + one.low;
        product(one, item, Real(one.level - base), row);
        raise(most, row, 1, one.high - one.low + 1);
      }
      for (int64_t v = 0; v < count; ++v) totals[v] = finite(totals[v]);
      for (size_t k = 0; k < entries.size(); ++k) {
        const Entry& one = entries[k];
        const int64_t size = one.high - one.low + 1;
        Real* row = terms.data() + k * count;
        for (int64_t v = 0; v < size; ++v) row[v] = loss[one.low + v] + (row[v] - totals[one.low + v]);
        raise_entry(one, item, row, size);
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
const Real* Run<Real>::loss_of_link(const Stage& g, const Target& target, At s, int64_t item, int64_t p) {
  // What has no terms is not possible, and so has lost everything.
  const Real* loss = out(*target.g, losses[0], item, s, p);
  if (!any_possible(loss, g.labels)) return nullptr;
  // Entries that are added to the whole row of labels lose what each label does.
  for (const Part& f : target.others)
    if (Real* to = losses_of(*f.f, item)) raise(to, line_of(f, item), loss, g.labels);
  return loss;
}

// The losses of the links of a step, into those of their rows and their matrix.
template <typename Real>
void Run<Real>::link_maxima(const Stage& g, At s) {
  const Span span = defined(g, s);
  if (span.high < span.low) return;
  find_targets(g, s, span);
  g.fixed && (g.kind == kKindPair || !losses[g.slot]) ? fixed_maxima(g, s, span) : direct_maxima(g, s, span);
}

// Those of links by a matrix of their own at each place, or whose losses are asked for.
template <typename Real>
void Run<Real>::direct_maxima(const Stage& g, At s, Span span) {
  const int64_t n = g.labels;
  const Alternative& a = alternatives[g.first];
  for (int64_t i = 0; i < batch * (span.high - span.low + 1); ++i) {
    const int64_t item = i / (span.high - span.low + 1), p = span.low + i % (span.high - span.low + 1);
    const Real* loss = loss_of_link(g, targets[p - span.low], s, item, p);
    if (!loss) continue;
    const int64_t start = value(g.table, s, p, 0), each = depth_of(g);
    // A link: each term is a label of the row and an entry of the matrix.
    int64_t hop;
    double known;
    const Real* matrix = direct(g, item, s, p, &hop, &known);
    const int64_t depth = each * splits.size();
    turned.resize(depth);
    Real* own = matrix_losses(g, item);
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
        row_raise(alternatives[g.first + 1], item, at.s, p, at.r, g.depth2, z.data());
        best = y.data();
      }
      row_raise(a, item, at.s, p, at.r, g.depth, best);
    }
  }
}

// The losses of the links or pairs of a step, by a matrix that is the same at all places: in the place k of a label, or of
// a pair of them, the best derivation loses max_j [loss_j - total_j + W_kj] + row_k, which is a product of maxima.
template <typename Real>
void Run<Real>::fixed_maxima(const Stage& g, At s, Span span) {
  const int64_t depth = depth_of(g), n = g.labels, wide = width<Real>(), count = span.high - span.low + 1;
  const int64_t padded = panels_of(n, wide) * wide, hop = panels_of(depth, wide) * wide;
  const int64_t most = rows_together(g);
  x.resize(std::max<int64_t>(x.size(), most * depth));
  totals.resize(std::max<int64_t>(totals.size(), most * padded)), moved.resize(std::max<int64_t>(moved.size(), most * hop));
  for (int64_t at = 0; at < batch * count;) {
    const int64_t until = g.table_item ? (at / count + 1) * count : batch * count;
    const Table<Real> own = table(g, at / count);
    for (rows.clear(); at < until && int64_t(rows.size()) < most; ++at) {
      Row one{at / count, span.low + at % count, 0, 0};
      if (loss_of_link(g, targets[at % count], s, one.item, one.p) && prepare_row<true>(g, s, one, x.data() + rows.size() * depth))
        rows.push_back(one);
    }
    by_panels<true>(x.data(), rows.size(), depth, depth, own.ahead, n, totals.data(), padded);
    for (Row& one : rows) {
      const Real* loss = out(*targets[one.p - span.low].g, losses[0], one.item, s, one.p);
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
      if (Real* to = matrix_losses(g, one.item)) {
        to += g.table.c;
        for (int64_t j = 0; j < n; ++j)
          for (int64_t k = 0; less[j] > kNever<Real> && k < depth; ++k) {
            const int64_t place = row_of(g, k) + column_of(g, j);
            to[place] = std::max(to[place], ((own.logs[place] + less[j]) + best[k]) + more);
          }
      }
      if (g.kind != kKindPair) { row_raise(alternatives[g.first], one.item, s, one.p, 0, depth, loss); continue; }
      if (most > 1) prepare_splits<true>(g, s, one);
      split_maxima(g, one, loss, best);
    }
  }
}

// The losses of both parts of all `splits` of a pair, given those of its pairs of labels and the largest terms of these.
template <typename Real>
void Run<Real>::split_maxima(const Stage& g, const Row& one, const Real* loss, const Real* most) {
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
        const Lane<Real> sum = loss[i * sizes[1] + j] + ((left + right) - most[i * sizes[1] + j]);
        Real* to_right = z.data() + (sizes[1] + j) * many + k;
        const Lane<Real> other = load(to_right, some);
        to_left = sum > to_left ? sum : to_left;
        store(to_right, sum > other ? sum : other, some);
      }
      store(t.data() + (sizes[0] + i) * many + k, to_left, some);
    });
  for (int side = 0; side < 2; ++side) {
    const Real* from = turned_parts[side]->data() + sizes[side] * many;
    const Alternative& a = alternatives[g.first + side];
    const FactorRecord* plain = single_row(a);
    w.resize(std::max<int64_t>(w.size(), sizes[side]));
    for (int64_t k = 0; k < many; ++k) {
      Real* to = plain ? losses_of(*plain, one.item) + places_of_parts[side][k] : w.data();
      if (!plain) std::fill_n(to, sizes[side], kNever<Real>);
      for (int64_t i = 0; i < sizes[side]; ++i) to[i] = std::max(to[i], from[i * many + k]);
      if (!plain) row_raise(a, one.item, splits[k].s, one.p, splits[k].r, sizes[side], to);
    }
  }
}

// The losses of a series, of some items that share a matrix, which is the same at all steps: those of a row are products
// of maxima, of the losses less the largest terms of the row after it, and the matrix.
template <typename Real>
void Run<Real>::series_maxima(Series& one, int64_t item, int64_t together) {
  const Stage &g = stages[one.link], &to = stages[one.into];
  const int64_t n = g.labels, hop = panels_of(n, width<Real>()) * width<Real>();
  const Table<Real> t = table(g, item);
  Array<Real> after(together * hop, kNever<Real>), back(together * hop, kNever<Real>);
  std::vector<Real> room, tops(together, kNever<Real>);  // the least losses of the step after
  for (int64_t s = one.last; s >= one.first; --s) {
    for (int64_t p = 0; p < together; ++p) {
      Real *loss = out(to, losses[0], item + p, At{s}, 0), *less = after.data() + p * hop;
      if (tops[p] > kNever<Real>) raise(loss, back.data() + p * hop, 1, n);
      tops[p] = largest(loss, n);
      if (!(tops[p] > kNever<Real>)) { std::fill_n(less, n, kNever<Real>); continue; }
      for (const FactorRecord *f = factors + one.own->first, *end = f + one.own->count; f < end; ++f)
        if (Real* own = f->link < 0 ? losses_of(*f, item + p) : nullptr) raise(own, line_of(*f, item + p, At{s}, 0, 0), loss, n);
      const Real *done = out(to, data[0], item + p, At{s}, 0), *given = others_at(one, item + p, s, room);
      by_lanes<Real>(n, [&](int64_t k, auto left) {
        const Lane<Real> own = load(done + k, left), rest = load(loss + k, left) - (own - load(given + k, left));
        store(less + k, own > kNever<Real> ? rest : all(kNever<Real>), left);
      });
    }
    by_panels<true>(after.data(), together, hop, n, t.back, n, back.data(), hop);
    for (int64_t p = 0; p < together; ++p) {
      if (!(tops[p] > kNever<Real>)) continue;
      Real *loss = back.data() + p * hop;
      const Real* before = out(to, data[0], item + p, At{s - 1}, 0);
      for (int64_t k = 0; k < n; ++k) loss[k] += before[k];
      // The best derivation loses nothing at any step: what rounding has added is taken off again.
      const Real more = tops[p] - largest(loss, n);
      for (int64_t k = 0; k < n; ++k) loss[k] += more;
    }
  }
  for (int64_t p = 0; p < together; ++p)
    if (tops[p] > kNever<Real>) raise(out(to, losses[0], item + p, At{one.first - 1}, 0), back.data() + p * hop, 1, n);
}

// Prepares the matrices of links and pairs for the way down, as `fixed_maxima` and series read them.
template <typename Real>
void Run<Real>::prepare_maxima() {
  for (int64_t k = 0; k < whole.stages; ++k)
    if (prepares(stages[k]) && (stages[k].kind == kKindPair || !losses[stages[k].slot])) prepare<true>(stages[k], true);
}

// The losses of sums over labels.
template <typename Real>
void Run<Real>::over_maxima(const Stage& g, At s) {
  const Span span = defined(g, s);
  const Alternative& a = alternatives[g.first];
  for (int64_t item = 0; item < batch; ++item)
    for (int64_t p = span.low; p <= span.high && is_needed(g, item, s); ++p) {
      const Real loss = *out(g, losses[0], item, s, p);
      if (!(loss > kNever<Real>)) continue;
      find_rows(g, item, s, p);
      const Real top = largest(x.data(), x.size());
      for (Real& one : x) one = loss + (one - top);
      for (size_t k = 0; k < splits.size(); ++k)
        row_raise(a, item, splits[k].s, p, splits[k].r, g.depth, x.data() + k * g.depth);
    }
}

}  // namespace
