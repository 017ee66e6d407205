// Series of links whose rows are longer than two vectors: the recursion of series.h, of up to kBlock items at a time,
// whose rows are multiplied by one panel of the matrix after the other.

#pragma once

#include "series.h"

namespace {

// The logs of a step that a link is multiplied by: those of one input where they lie, or a sum in `room`.
template <typename Real>
const Real* Run<Real>::others_at(const Series& one, int64_t item, int64_t s, std::vector<Real>& room) const {
  if (const FactorRecord* f = other_of(one)) return data[f->slot] + f->at.c + s * f->at.s + item * f->item;
  const int64_t n = stages[one.link].labels;
  room.assign(n, Real(0));
  for (const FactorRecord *f = factors + one.own->first, *end = f + one.own->count; f < end; ++f)
    if (f->link < 0) add(room.data(), data[f->slot], line_of(*f, item, At{s}, 0, 0), 0, 0, n);
  return room.data();
}

// The sums of a series, of so many items from one on; `keep`: the rows before and after products, too.
template <typename Real>
void Run<Real>::wide_sums(Series& one, int64_t item, int64_t together, bool keep) {
  typedef typename Format<Real>::Bits Bits;
  // A row between two links, as in `series_sums`: it is read from its logs where it is `fresh`.
  struct Part { double base = 0; int64_t shift = 0; Bits power = 0; Real factor = 1; bool fresh = true; };
  const Stage &g = stages[one.link], &to = stages[one.into];
  const int64_t n = g.labels, many = one.last - one.first + 1, hop = panels_of(n, width<Real>()) * width<Real>();
  const Real least = Real(1) / (1 << 20), low = faint<Real>(n) / least;
  const Table<Real> t = table(g, item);
  const double kLog2 = 0.6931471805599453;
  const Real peak = largest(t.peaks, n);
  // Columns in which nothing is possible are no reason to sum in logs.
  Array<Real> before(together * hop, Real(0)), after(together * hop), limits(hop, Real(0));
  std::vector<Real> room;
  for (int64_t first = 0; first < n; first += width<Real>()) {
    bool lacks = true;  // whether some column has no term above 0 so far
    for (int64_t i = 0; i < n && lacks; ++i) {
      const Real* from = t.ahead + first * n + i * width<Real>();
      lacks = false;
      for (int64_t j = 0; j < width<Real>(); ++j) {
        limits[first + j] = std::max(limits[first + j], from[j]);
        lacks |= first + j < n && !(limits[first + j] > 0);
      }
    }
  }
  for (Real& limit : limits) limit = limit > 0 ? low : Real(0);
  std::vector<Part> parts(together);
  for (int64_t at = 0; at < many; ++at) {
    for (int64_t p = 0; p < together; ++p) {
      Part& of = parts[p];
      if (!of.fresh) continue;
      const Real* logs = out(to, data[0], item + p, At{one.first + at - 1}, 0);
      const Real top = finite(largest(logs, n));
      note(top), exps(before.data() + p * hop, logs, top, n);
      of = {*out_level(to, item + p, At{one.first + at - 1}, 0) + double(top), 0, 0, 1, false};
    }
    by_panels_of_all<false>(before.data(), together, hop, n, t.ahead, n, at % 2, after.data(), hop);
    for (int64_t p = 0; p < together; ++p) {
      Part& of = parts[p];
      Real *x = before.data() + p * hop, *y = after.data() + p * hop;
      const int64_t row = ((item + p) * many + at) * n;
      if (keep) std::memcpy(one.before.data() + row, x, n * sizeof(Real)), std::memcpy(one.after.data() + row, y, n * sizeof(Real));
      const Real *given = others_at(one, item + p, one.first + at, room), high = finite(largest(given, n));
      Real* logs = out(to, data[0], item + p, At{one.first + at}, 0);
      const Real scale = Real(double(of.power) * kLog2), factor = of.factor, more = peak + high;
      Lane<Real> most = {}, lost = {};
      by_lanes<Real>(n, [&](int64_t k, auto left) {
        const Lane<Real> sum = load(y + k, left), shown = (load(given + k, left) + load(t.peaks + k, left)) - more;
        const Lane<Real> next = sum * (factor * exp_of<Real>(shown));
        most = next > most ? next : most;
        lost += sum < load(limits.data() + k, left) ? all(Real(1)) : Lane<Real>{};
        store(x + k, next, left), store(logs + k, log_of<Real>(sum) + (shown - scale), left);
      });
      if (largest_of<Real>(lost) > 0) {
        link_up<false>(g, At{one.first + at}, item + p, item + p + 1);
        of.fresh = true;
        if (keep) std::fill_n(one.after.data() + row, n, Real(0));
        continue;
      }
      of.base += double(high) + double(peak), of.shift += of.power;
      *out_level(to, item + p, At{one.first + at}, 0) = of.base + double(of.shift) * kLog2;
      const Real top = largest_of<Real>(most);
      of.fresh = !(top >= least);
      if (of.fresh) continue;
      find_power(top, of.power, of.factor);
    }
  }
  for (int64_t p = 0; p < together; ++p)
    if (parts[p].fresh) note(finite(largest(out(to, data[0], item + p, At{one.last}, 0), n)));
}

// The maxima of a series. Rows are relative to the largest of the row before.
template <typename Real>
void Run<Real>::wide_best(Series& one, int64_t item, int64_t together) {
  const Stage &g = stages[one.link], &to = stages[one.into];
  const int64_t n = g.labels, hop = panels_of(n, width<Real>()) * width<Real>();
  const Table<Real> t = table(g, item);
  Array<Real> before(together * hop, Real(0)), after(together * hop);
  std::vector<Real> room;
  for (int64_t p = 0; p < together; ++p)
    std::memcpy(before.data() + p * hop, out(to, data[0], item + p, At{one.first - 1}, 0), n * sizeof(Real));
  for (int64_t s = one.first; s <= one.last; ++s) {
    by_panels_of_all<true>(before.data(), together, hop, n, t.ahead, n, s % 2, after.data(), hop);
    for (int64_t p = 0; p < together; ++p) {
      Real *x = before.data() + p * hop, *logs = out(to, data[0], item + p, At{s}, 0);
      const Real *y = after.data() + p * hop, *given = others_at(one, item + p, s, room), top = finite(largest(x, n));
      by_lanes<Real>(n, [&](int64_t k, auto left) {
        const Lane<Real> next = (load(y + k, left) - top) + load(given + k, left);
        store(x + k, next, left), store(logs + k, next, left);
      });
      *out_level(to, item + p, At{s}, 0) = *out_level(to, item + p, At{s - 1}, 0) + double(top);
    }
  }
}

// The gradients of a series, whose rows were kept.
template <typename Real>
void Run<Real>::wide_down(Series& one, int64_t item, int64_t together) {
  const Stage &g = stages[one.link], &to = stages[one.into];
  const int64_t n = g.labels, many = one.last - one.first + 1, hop = panels_of(n, width<Real>()) * width<Real>();
  const Lane<Real> low = all<Real>(faint<Real>(n) * (1 << 20)), ones = all(Real(1));
  const Table<Real> t = table(g, item);
  Array<Real> pull(together * hop, Real(0)), back(together * hop, Real(0));
  std::vector<char> any(together, 0);  // whether a row behind has a gradient, unlike those beyond an item's end
  for (int64_t at = many; at--;) {
    for (int64_t p = 0; p < together; ++p) {
      Real *here = out(to, grads[0], item + p, At{one.first + at}, 0), *turned = pull.data() + p * hop;
      if (!any[p] && !(any[p] = any_of(here, n))) continue;
      const int64_t row = ((item + p) * many + at) * n;
      const Real *sums = one.after.data() + row, *more = back.data() + p * hop;
      Lane<Real> lost = {};
      by_lanes<Real>(n, [&](int64_t k, auto left) {
        const Lane<Real> up = load(here + k, left) + load(more + k, left), sum = load(sums + k, left);
        store(here + k, up, left);
        lost += sum < low ? up * up : Lane<Real>{};
        store(turned + k, sum < low ? Lane<Real>{} : up / (sum < low ? ones : sum), left);
      });
      if (largest_of<Real>(lost) > 0) {  // rows that are not in probabilities here
        std::fill_n(turned, n, Real(0));
        link_down(g, At{one.first + at}, item + p, item + p + 1);
        continue;
      }
      for (const FactorRecord *f = factors + one.own->first, *end = f + one.own->count; f < end; ++f)
        if (f->link < 0 && grads[f->slot]) add_to(grads[f->slot], line_of(*f, item + p, At{one.first + at}, 0, 0), here, n);
      if (grads[g.slot]) keep_products(g, item + p, one.before.data() + row, turned, 0);
    }
    by_panels_of_all<false>(pull.data(), together, hop, n, t.back, n, at % 2, back.data(), hop);
    for (int64_t p = 0; p < together; ++p) {
      const Real* x = one.before.data() + ((item + p) * many + at) * n;
      Real* own = back.data() + p * hop;
      by_lanes<Real>(n, [&](int64_t k, auto left) { store(own + k, load(own + k, left) * load(x + k, left), left); });
    }
  }
  for (int64_t p = 0; p < together; ++p)
    add_to(out(to, grads[0], item + p, At{one.first - 1}, 0), back.data() + p * hop, 1, n);
}

// Calls for the items of a series: of a wide one with the first and how many are taken together, which are those that
// share a matrix; of a narrow one also with numbers that are known at compile time.
template <typename Real>
template <typename Wide, typename Narrow>
void Run<Real>::each_of_series(const Series& one, Wide wide, Narrow narrow) const {
  const Stage& g = stages[one.link];
  const int64_t most = is_narrow(one) ? (g.labels <= lanes<Real>() ? 4 : 2) : kBlock, together = g.table_item ? 1 : most;
  for (int64_t item = 0; item < batch;) {
    const int64_t some = std::min(together, batch - item);
    if (!is_narrow(one)) wide(item, some), item += some;
    else if (g.labels <= lanes<Real>()) {
      if (some == 4) narrow(item, std::integral_constant<int, 1>(), std::integral_constant<int, 4>()), item += 4;
      else narrow(item, std::integral_constant<int, 1>(), std::integral_constant<int, 1>()), ++item;
    } else {
      if (some == 2) narrow(item, std::integral_constant<int, 2>(), std::integral_constant<int, 2>()), item += 2;
      else narrow(item, std::integral_constant<int, 2>(), std::integral_constant<int, 1>()), ++item;
    }
  }
}

// All items' sums or maxima of a series.
template <typename Real>
template <bool best>
void Run<Real>::series_up(Series& one, bool keep) {
  const int64_t many = batch * (one.last - one.first + 1) * stages[one.link].labels;
  one.kept = keep;
  if (keep) one.before.resize(many), one.after.resize(many);
  each_of_series(one, [&](int64_t item, int64_t together) {
    if constexpr (best) wide_best(one, item, together);
    else wide_sums(one, item, together, keep);
  }, [&](int64_t item, auto k, auto p) {
    if constexpr (best) series_best<decltype(k)::value, decltype(p)::value>(one, item);
    else series_sums<decltype(k)::value, decltype(p)::value>(one, item, keep);
  });
}

// All items' gradients, from rows that were kept for this alone.
template <typename Real>
void Run<Real>::series_down(Series& one) {
  if (!one.kept) series_up<false>(one, true);
  each_of_series(one, [&](int64_t item, int64_t together) { wide_down(one, item, together); }, [&](int64_t item, auto k, auto p) {
    series_down<decltype(k)::value, decltype(p)::value>(one, item);
  });
  // In those of a narrow one, gradients have replaced what was after products.
  one.kept = !is_narrow(one);
}

}  // namespace
