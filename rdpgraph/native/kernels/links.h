// Links of a tape: log-sums or maxima upwards, and the gradient of the sums downwards.

#pragma once

#include "gradients.h"

namespace {

// A step that links a value, or the pairs of labels of two parts, by a table.
template <typename Real> struct Link {
  const Machine<Real>& m;
  const int64_t* step;
  bool rules;
  int64_t out, inner, splits = 1, firsts, seconds, depth, places;
  int64_t items = 1, copies = 1;  // of tables, and the items that share one
  const int32_t *left, *right;
  const int32_t* product = nullptr;  // the factors of a row that is not stored
  int64_t factors = 0;

  Link(const Machine<Real>& machine, const int64_t* step) : m(machine), step(step) {
    rules = step[0] == kRules || step[0] == kPairs;
    out = step[1];
    inner = step[2];
    places = m.places(out);
    if (step[0] == kLinked || step[0] == kRules) items = m.table(step[3])[1], copies = m.batch / items;
    if (rules) {
      left = m.index + step[4];
      right = m.index + step[5];
      splits = std::max(left[2], right[2]);
      firsts = step[6];
      seconds = step[7];
      depth = firsts * seconds;
    } else {
      depth = m.labels(inner);
      const int64_t* fields = m.steps + kFields * inner;
      if (fields[0] == kProduct) {
        product = m.index + fields[2] + 2;
        factors = product[-1];
      }
    }
  }

  // The places of a sum over a few labels of products that are worked on together.
  int64_t run() const {
    return product && depth <= lanes<Real>() && places >= lanes<Real>() / 2 ? kBlock : 1;
  }

  int64_t source(int64_t place) const { return m.places(inner) > 1 ? place : 0; }

  // Visits the rows that a row is the product of, and their labels; none if a part is missing.
  template <typename Visit> void each_factor(int64_t item, int64_t place, Visit visit) const {
    const int64_t spot = source(place);
    if (!product) return visit(m.at(inner, item, spot), depth);
    for (int64_t f = 0; f < factors; ++f)
      if (m.entry(product + f * kPart, 0, item, spot) < 0) return;
    for (int64_t f = 0; f < factors; ++f) {
      const int32_t* part = product + f * kPart;
      visit(m.entry(part, 0, item, spot), part[4]);
    }
  }

  // Loads the rows of the next link of a chain, or (-1) of the one before: of its sites and of the value it links.
  INLINE void load_beside(int64_t item, int64_t place, Arena<Real> all, int64_t next) const {
    for (int64_t f = 0; f < factors && depth > width<Real>(); ++f) {
      const int64_t at = m.entry(product + f * kPart, 0, item, source(place));
      if (at >= 0) load_ahead(all + (at + next * (at < all.size ? 1 : m.batch) * depth), depth);
    }
  }

  // What is taken off a row in logs.
  double base(int64_t item, int64_t place) const {
    if (!m.levels) return 0;
    if (!rules && !product) return m.level(inner, item, source(place));
    double sum = 0;
    if (product) {
      for (int64_t f = 0; f < factors; ++f)
        sum += m.level_of(product + f * kPart, 0, item, source(place));
      return sum;
    }
    bool some = false;
    for (int64_t s = 0; s < splits; ++s) {
      if (m.entry(left, s, item, place) < 0 || m.entry(right, s, item, place) < 0) continue;
      const double level = m.level_of(left, s, item, place) + m.level_of(right, s, item, place);
      sum = some ? std::max(sum, level) : level;
      some = true;
    }
    return sum;
  }

  // exp(row - top) and top; for pairs the sums over splits, relative to the largest of all.
  NOINLINE double scaled(int64_t item, int64_t place, Real* row, Room<Real>& room) const {
    if (!rules) {
      double off;
      Real top;
      const Real* x = near(item, place, row, off, top);
      exps(row, x, top, depth);
      return off + top;
    }
    const double top = scaled_parts(item, place, room);
    scaled_pairs(row, room);
    return top;
  }

  // The sums over splits of pairs of scaled parts.
  void scaled_pairs(Real* row, const Room<Real>& room) const {
    std::fill(row, row + depth, Real(0));
    for (int64_t s = 0; s < splits; ++s) {
      if (!(room.tops[s] > kNever<double>)) continue;
      const Real *one = room.left.data() + s * firsts, *two = room.right.data() + s * seconds;
      for (int64_t c = 0; c < firsts; ++c) {
        const Real value = one[c];
        Real* to = row + c * seconds;
        for (int64_t e = 0; e < seconds; ++e) to[e] += value * two[e];
      }
    }
  }

  // Whether rows before products are kept.
  bool keeps() const { return m.befores && !m.noted[3] && (!rules || m.noted[2]); }

  // A row in logs, not of pairs, its base, and its largest; factors whose largest are far from 0 are
  // summed less these, so that the sum keeps its digits.
  const Real* near(int64_t item, int64_t place, Real* to, double& off, Real& top) const {
    const Real* x = row_of(item, place, to, off);
    top = finite(largest(x, depth));
    if (product && m.is_far(top)) {
      x = row_of(item, place, to, off, true);
      top = finite(largest(x, depth));
    }
    if (m.is_far(top)) m.note(0);
    return x;
  }

  // A row in logs, not of pairs, in room for it or where it lies; and its base.
  const Real* row_of(int64_t item, int64_t place, Real* to, double& off, bool near = false) const {
    const int64_t spot = source(place);
    off = product ? 0 : m.level(inner, item, spot);
    if (!product) return m.arena + m.at(inner, item, spot);
    const Real* first = nullptr;  // the first factor, as long as it is the only one
    for (int64_t f = 0; f < factors; ++f) {
      const int32_t* part = product + f * kPart;
      const int32_t* pair = m.found(part, 0, item, spot);
      if (!pair) {
        off = 0;
        std::fill(to, to + depth, kNever<Real>);
        return to;
      }
      const Real* x = m.arena + m.at(pair[0], item, pair[1]);
      const Real top = near && part[4] > 1 ? finite(largest(x, depth)) : 0;
      off += m.level(pair[0], item, pair[1]) + top;
      const Real* before = first ? first : to;
      first = nullptr;
      if (part[4] == 1 && f) for (int64_t i = 0; i < depth; ++i) to[i] = before[i] + x[0];
      else if (part[4] == 1) std::fill(to, to + depth, x[0]);
      else if (f && near) for (int64_t i = 0; i < depth; ++i) to[i] = before[i] + (x[i] - top);
      else if (f) for (int64_t i = 0; i < depth; ++i) to[i] = before[i] + x[i];
      else if (!near) first = x;
      else for (int64_t i = 0; i < depth; ++i) to[i] = x[i] - top;
    }
    return first ? first : to;
  }

  // row - top and top, of maxima; in doubles top is 0.
  NOINLINE double levelled(int64_t item, int64_t place, Real* row, Room<Real>& room) const {
    double off = rules ? base(item, place) : 0;
    const Real* x = rules ? in_logs(item, place, off, row, room) : row_of(item, place, row, off);
    const Real top = m.levels ? finite(largest(x, depth)) : 0;
    for (int64_t i = 0; i < depth; ++i) row[i] = x[i] - top;
    return off + top;
  }

  // Visits blocks of rows of some items that are linked by one table: its item, the first row, and how
  // many. Rows are numbered by the table's item, its replicate, and the place.
  template <typename Visit> void each_block(int64_t first, int64_t last, Visit visit) const {
    for (int64_t which = 0; which < items; ++which) {
      const auto row = [&](int64_t item) {
        return (which * copies + (items > 1 ? (item - which + items - 1) / items : item)) * places;
      };
      const int64_t end = row(last);
      for (int64_t q = row(first); q < end; q += kBlock) visit(which, q, std::min(kBlock, end - q));
    }
  }

  // Where rows of a block lie among those of all links, before and after products: beside those of other
  // links by the same table.
  template <typename T> T* before(T* all, int64_t which, int64_t q) const {
    return all + m.batch * step[8] + row_at(which, q) * depth;
  }
  template <typename T> T* after(T* all, int64_t which, int64_t q) const {
    return all + m.batch * step[9] + row_at(which, q) * m.table(step[3])[5];
  }
  int64_t row_at(int64_t which, int64_t q) const {
    return q + copies * (which * (step[12] - places) + step[11]);
  }

  // Visits the rows of a block.
  template <typename Visit> INLINE void each_row(int64_t first, int64_t some, Visit visit) const {
    int64_t item = first, place = 0;
    if (places > 1) place = item % places, item /= places;
    if (items > 1) item = item % copies * items + item / copies;
    for (int64_t r = 0; r < some; ++r) {
      visit(r, item, place);
      if (++place == places) place = 0, item += items;
    }
  }

  // exp(left - ...), exp(right - ...) of every split, whose weight is in its left part.
  NOINLINE double scaled_parts(int64_t item, int64_t place, Room<Real>& room) const {
    room.left.resize(splits * firsts);
    room.right.resize(splits * seconds);
    room.tops.resize(splits);
    double top = kNever<double>;
    for (int64_t s = 0; s < splits; ++s) {
      const int64_t l = m.entry(left, s, item, place), r = m.entry(right, s, item, place);
      room.tops[s] = kNever<double>;
      if (l < 0 || r < 0) continue;
      const Real a = largest(m.arena + l, firsts), b = largest(m.arena + r, seconds);
      if (!(a + b > kNever<Real>)) continue;
      room.tops[s] = m.level_of(left, s, item, place) + m.level_of(right, s, item, place) + a + b;
      top = std::max(top, room.tops[s]);
      exps(room.right.data() + s * seconds, m.arena + r, b, seconds);
    }
    top = finite(top);
    for (int64_t s = 0; s < splits; ++s) {
      if (!(room.tops[s] > kNever<double>)) continue;
      const Real* from = m.arena + m.entry(left, s, item, place);
      Real* one = room.left.data() + s * firsts;
      const Real a = largest(from, firsts), share = Real(std::exp(room.tops[s] - top));
      exps(one, from, a, firsts);
      for (int64_t c = 0; c < firsts; ++c) one[c] *= share;
    }
    return top;
  }

  template <typename Visit>
  void each_split(int64_t item, int64_t place, double off, Visit visit) const {
    for (int64_t s = 0; s < splits; ++s) {
      const int64_t l = m.entry(left, s, item, place), r = m.entry(right, s, item, place);
      if (l < 0 || r < 0) continue;
      const double levels = m.level_of(left, s, item, place) + m.level_of(right, s, item, place);
      visit(l, r, Real(levels - off));
    }
  }

  // The row in logs, less its base, in room for it or where it lies; for pairs, less a number, the
  // exact log-sums, or maxima, over splits.
  NOINLINE const Real* in_logs(int64_t item, int64_t place, double off, Real* to,
                               Room<Real>& room) const {
    if (!rules) return row_of(item, place, to, off);
    std::fill(to, to + depth, kNever<Real>);
    Real* tops = to;
    each_split(item, place, off, [&](int64_t l, int64_t r, Real more) {
      const Real *one = m.arena + l, *two = m.arena + r;
      for (int64_t c = 0; c < firsts; ++c) {
        Real* to = tops + c * seconds;
        for (int64_t e = 0; e < seconds; ++e) to[e] = std::max(to[e], one[c] + two[e] + more);
      }
    });
    if (m.best || splits == 1) return tops;
    room.terms.assign(depth, Real(0));
    room.peaks.resize(seconds);
    each_split(item, place, off, [&](int64_t l, int64_t r, Real more) {
      const Real *one = m.arena + l, *two = m.arena + r;
      for (int64_t c = 0; c < firsts; ++c) {
        Real *to = room.terms.data() + c * seconds, *shares = room.peaks.data();
        for (int64_t e = 0; e < seconds; ++e)
          shares[e] = one[c] + two[e] + more - finite(tops[c * seconds + e]);
        exps(shares, shares, Real(0), seconds);
        for (int64_t e = 0; e < seconds; ++e) to[e] += shares[e];
      }
    });
    for (int64_t i = 0; i < depth; ++i)
      if (tops[i] > kNever<Real>) tops[i] += std::log(room.terms[i]);
    return tops;
  }

  const Real* in_logs(int64_t item, int64_t place, double off, Room<Real>& room) const {
    room.logs.resize(depth);
    return in_logs(item, place, off, room.logs.data(), room);
  }
};

template <typename Real>
Real exact_entry(const Prepared<Real>& t, const Real* row, int64_t column, std::vector<Real>& terms,
                 bool best = false) {
  terms.resize(t.rows);
  for (int64_t i = 0; i < t.rows; ++i) terms[i] = row[i] + t.logs[i * t.row + column * t.column];
  return best ? largest(terms.data(), t.rows) : log_sum(terms.data(), t.rows);
}

// The log-sums, or maxima, of some columns of a table whose columns lie side by side.
template <typename Real>
Lane<Real> exact_entries(const Prepared<Real>& t, const Real* row, int64_t column, int64_t left, bool best) {
  Lane<Real> peak = all<Real>(kNever<Real>), sum = {};
  for (int64_t i = 0; i < t.rows; ++i) {
    const Lane<Real> one = load(t.logs + i * t.row + column, left) + row[i];
    peak = one > peak ? one : peak;
  }
  if (best) return peak;
  const Lane<Real> from = peak < all<Real>(-std::numeric_limits<Real>::max()) ? Lane<Real>{} : peak;
  for (int64_t i = 0; i < t.rows; ++i)
    if (row[i] > kNever<Real>) sum += exp_of<Real>(load(t.logs + i * t.row + column, left) + (row[i] - from));
  return from + log_of<Real>(sum);
}

template <typename Real>
NOINLINE void link_up(const Machine<Real>& m, const int64_t* step, int64_t first, int64_t last,
             Room<Real>& room) {
  const Link<Real> link(m, step);
  const int64_t *table = m.table(step[3]), columns = table[5], labels = m.labels(link.out);
  const int64_t stride = panels_of(columns, width<Real>()) * width<Real>(), depth = link.depth;
  const Real low = faint<Real>(depth * std::max<int64_t>(1, link.splits));
  room.rows.resize(link.keeps() ? 0 : kBlock * depth);
  room.sums.resize(kBlock * stride);
  double tops[kBlock];
  link.each_block(first, last, [&](int64_t which, int64_t q, int64_t some) {
    const Prepared<Real> t = prepared(m, step[3], which, step[10]);
    Real* rows = link.keeps() ? link.before(m.befores, which, q) : room.rows.data();
    link.each_row(q, some, [&](int64_t r, int64_t item, int64_t place) {
      Real* row = rows + r * depth;
      tops[r] = m.best ? link.levelled(item, place, row, room) : link.scaled(item, place, row, room);
      link.load_beside(item, place, m.arena, 1);
    });
    Real* after = m.afters ? link.after(m.afters, which, q) : nullptr;
    Real* products = after && stride == columns ? after : room.sums.data();
    by_panels(rows, some, depth, t.ahead, columns, products, m.best, m.threads, step[11] & 1);
    link.each_row(q, some, [&](int64_t r, int64_t item, int64_t place) {
      Real* out = m.arena + m.at(link.out, item, place);
      const Real* sums = products + r * stride;
      if (columns < labels) std::fill(out + columns, out + labels, kNever<Real>);
      double* level = m.level_at(link.out, item, place);
      if (level) *level = tops[r];
      const Real top = level ? 0 : Real(tops[r]);
      if (m.best) {
        for (int64_t j = 0; j < columns; ++j) out[j] = sums[j] + top;
        return;
      }
      logs(out, sums, t.peaks, top, columns);
      if (after && after != products)
        std::memcpy(after + r * columns, sums, columns * sizeof(Real));
      int lost = 0;
#pragma omp simd reduction(| : lost)
      for (int64_t j = 0; j < columns; ++j) lost |= sums[j] < low;
      if (!lost) return;
      const double base = link.base(item, place);
      const Real* row = link.in_logs(item, place, base, room);
      const Real more = Real(base - (level ? *level : 0));
      by_lanes<Real>(columns, [&](int64_t first, auto left) {
        int64_t j = first;
        while (j < first + left && sums[j] >= low) ++j;
        if (j == first + left) return;
        Real exact[lanes<Real>()];
        if (t.column == 1) store(exact, exact_entries(t, row, first, left, false), lanes<Real>());
        for (; j < first + left; ++j)
          if (sums[j] < low) out[j] = (t.column == 1 ? exact[j - first] : exact_entry(t, row, j, room.terms)) + more;
      });
    });
  });
}

// Passes the gradient of a row's entries on to their parts.
template <typename Real>
NOINLINE void exact_down(const Machine<Real>& m, const Link<Real>& link, int64_t item, int64_t place,
                const Real* shares, const Real* row, double base, Arena<Real> grads) {
  if (!link.rules) {
    link.each_factor(item, place, [&](int64_t at, int64_t labels) {
      Real* to = grads + at;
      for (int64_t i = 0; i < link.depth; ++i) to[labels > 1 ? i : 0] += shares[i];
    });
    return;
  }
  link.each_split(item, place, base, [&](int64_t l, int64_t r, Real more) {
    const Real *one = m.arena + l, *two = m.arena + r;
    Real *first = grads + l, *second = grads + r;
    for (int64_t c = 0; c < link.firsts; ++c)
      for (int64_t e = 0; e < link.seconds; ++e) {
        const int64_t i = c * link.seconds + e;
        if (!(row[i] > kNever<Real>) || shares[i] == 0) continue;
        const Real part = shares[i] * std::exp(one[c] + two[e] + more - row[i]);
        first[c] += part;
        second[e] += part;
      }
  });
}

// The gradient of links, and the rows whose products are the table's gradient; of pairs these products,
// beside the extras of all tables, where they are wanted.
template <typename Real>
NOINLINE void link_down(const Machine<Real>& m, const int64_t* step, int64_t first, int64_t last,
               Arena<Real> grads, Real* shares, Real* const* extras, int64_t slots, Room<Real>& room) {
  const Link<Real> link(m, step);
  const int64_t *table = m.table(step[3]), columns = table[5], depth = link.depth;
  const int64_t wide = panels_of(depth, width<Real>()) * width<Real>();
  const Real low = faint<Real>(depth * std::max<int64_t>(1, link.splits));
  Real* products = link.rules ? extras[slots + step[3]] : nullptr;
  room.sums.resize(kBlock * wide);
  room.rows.resize(products ? kBlock * depth : 0);
  link.each_block(first, last, [&](int64_t which, int64_t q, int64_t some) {
    const Prepared<Real> t = prepared(m, step[3], which, step[10]);
    const int64_t own = (which * table[8] + step[10]) * depth * columns;
    Real* before = link.before(m.befores, which, q);
    const Real* sums = link.after(m.afters, which, q);
    Real* after = link.after(shares, which, q);
    link.each_row(q, some, [&](int64_t r, int64_t item, int64_t place) {
      const int64_t here = m.at(link.out, item, place);
      const Real *out = m.arena + here, *grad = grads + here;
      const Real* sum = sums + r * columns;
      Real* h = after + r * columns;
      int lost = 0;
#pragma omp simd reduction(| : lost)
      for (int64_t j = 0; j < columns; ++j)
        lost |= int(sum[j] < low) & int(grad[j] != 0) & int(out[j] > kNever<Real>);
      if (lost) {
        const double base = link.base(item, place);
        const Real* row = link.in_logs(item, place, base, room);
        const Real more = Real(base - m.level(link.out, item, place));
        std::vector<Real> share(depth);
        for (int64_t j = 0; j < columns; ++j) {
          if (!(sum[j] < low && grad[j] != 0 && out[j] > kNever<Real>)) continue;
          for (int64_t i = 0; i < depth; ++i)
            share[i] = grad[j] * std::exp(row[i] + t.logs[i * t.row + j * t.column] + more - out[j]);
          exact_down(m, link, item, place, share.data(), row, base, grads);
#pragma omp critical(rdpgraph_extra)
          if (Real* extra = extras[step[3]]) {
            for (int64_t i = 0; i < depth; ++i) extra[own + i * columns + j] += share[i];
          }
        }
      }
      // Sums below the limit are passed on above, or are of nothing.
      for (int64_t j = 0; j < columns; ++j) h[j] = sum[j] < low ? 0 : grad[j] / sum[j];
      link.load_beside(item, place, grads, -1);
      if (!m.noted[3]) return;
      link.scaled(item, place, before + r * depth, room);
      link.load_beside(item, place, m.arena, -1);
    });
    if (link.product) {
      load_ahead(sums - some * columns, some * columns);
      if (!m.noted[3]) load_ahead(before - some * depth, some * depth);
    }
    by_panels(after, some, columns, t.back, depth, room.sums.data(), false, m.threads, step[11] & 1);
    link.each_row(q, some, [&](int64_t r, int64_t item, int64_t place) {
      const Real* back = room.sums.data() + r * wide;
      if (!link.rules) {
        const Real* e = before + r * depth;
        link.each_factor(item, place, [&](int64_t at, int64_t labels) {
          Real* to = grads + at;
          if (labels > 1) for (int64_t i = 0; i < depth; ++i) to[i] += e[i] * back[i];
          else for (int64_t i = 0; i < depth; ++i) to[0] += e[i] * back[i];
        });
        return;
      }
      link.scaled_parts(item, place, room);
      if (products) link.scaled_pairs(room.rows.data() + r * depth, room);
      for (int64_t s = 0; s < link.splits; ++s) {
        if (!(room.tops[s] > kNever<double>)) continue;
        Real* l = grads + m.entry(link.left, s, item, place);
        Real* r2 = grads + m.entry(link.right, s, item, place);
        const Real *one = room.left.data() + s * link.firsts;
        const Real *two = room.right.data() + s * link.seconds;
        for (int64_t c = 0; c < link.firsts; ++c) {
          const Real* g = back + c * link.seconds;
          const Real value = one[c];
          Real sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t e = 0; e < link.seconds; ++e) {
            const Real part = g[e] * two[e];
            sum += part;
            r2[e] += value * part;
          }
          l[c] += value * sum;
        }
      }
    });
    if (!products) return;
    const int64_t hop = panels_of(columns, width<Real>()) * width<Real>();
    room.terms.assign(padded<Real>(depth, columns), Real(0));
    add_packed(room.rows.data(), after, some, depth, columns, room.terms.data(), 1, room);
#pragma omp critical(rdpgraph_products)
    for (int64_t i = 0; i < depth; ++i)
      for (int64_t j = 0; j < columns; ++j) products[own + i * columns + j] += room.terms[i * hop + j];
  });
}

}  // namespace
