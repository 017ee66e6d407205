// Maxima of series of links by one table.

#pragma once

#include "series.h"

namespace {

// Numbers to add to the last vector of a row: 0, and -inf beyond the row.
template <typename Real> Lane<Real> pads_of(int64_t count) {
  Real pads[lanes<Real>()];
  for (int64_t k = 0; k < lanes<Real>(); ++k) pads[k] = k <= (count - 1) % lanes<Real>() ? Real(0) : kNever<Real>;
  return load(pads, lanes<Real>());
}

// The place of a number among others; of none, the last.
template <typename Real> int64_t place_of(const Real* values, Real wanted, int64_t count) {
  int64_t place = 0;
  while (place < count - 1 && values[place] != wanted) ++place;
  return place;
}
#if defined(__AVX512F__)
template <> inline int64_t place_of(const float* values, float wanted, int64_t count) {
  for (int64_t k = 0; k < count; k += lanes<float>()) {
    const Lane<float> one = load(values + k, count - k);
    if (const int found = _mm512_cmpeq_ps_mask((__m512)one, _mm512_set1_ps(wanted)))
      return std::min<int64_t>(k + __builtin_ctz(found), count - 1);
  }
  return count - 1;
}
#endif

// Whether a link is the first of a series by a table that is prepared.
template <typename Real> bool starts_series(const Machine<Real>& m, const int64_t* step) {
  const int64_t* table = m.table(step[3]);
  return step[0] == kLinked && step[4] > 0 && table[1] > 0 && table[7] >= 0;
}

// Of each step, if asked for, the first link of its series; below 0: none.
template <typename Real> std::vector<int64_t> all_series(const Machine<Real>& m, bool asked) {
  std::vector<int64_t> found(asked ? m.count : 0, -1);
  for (int64_t n = 0; n < int64_t(found.size()); ++n) {
    const int64_t* step = m.steps + kFields * n;
    if (starts_series(m, step)) for (int64_t k = 0; k < step[4]; ++k) found[n + k * step[13]] = n;
  }
  return found;
}

// The maxima of all links in turn, of blocks of items that share a table; as `link_up`.
template <typename Real>
NOINLINE void series_best(const Series<Real>& series, int64_t first, int64_t last, Room<Real>& room) {
  const Machine<Real>& m = series.m;
  const int64_t depth = series.depth, tables = m.table(series.first[3])[1];
  const int64_t stride = panels_of(depth, width<Real>()) * width<Real>();
  double levels[kBlock];
  room.rows.resize(kBlock * depth);
  room.sums.resize(kBlock * stride);
  for (int64_t which = first; which < std::min(last, first + tables); ++which)
    for (int64_t start = which; start < last; start += kBlock * tables) {
      const int64_t some = std::min(kBlock, (last - start + tables - 1) / tables);
      const Prepared<Real> t = prepared(m, series.first[3], start, series.first[10]);
      std::fill(room.sums.begin(), room.sums.end(), kNever<Real>);
      for (int64_t r = 0; r < some; ++r) {
        levels[r] = m.level(series.before, start + r * tables, 0);
        std::memcpy(room.sums.data() + r * stride, m.arena + series.at(-1, start + r * tables), depth * sizeof(Real));
      }
      for (int64_t n = 0; n < series.many; ++n) {
        for (int64_t r = 0; r < some; ++r) {
          const Real *sums = room.sums.data() + r * stride, *given = m.arena + series.sites(n, start + r * tables);
          Real* row = room.rows.data() + r * depth;
          Lane<Real> peak = all<Real>(kNever<Real>);
          by_lanes<Real>(depth, [&](int64_t i, auto left) {  // beyond the last sum there is none
            const Lane<Real> x = load(sums + i, lanes<Real>()) + load(given + i, left);
            peak = x > peak ? x : peak;
            store(row + i, x, left);
          });
          if (!m.levels) continue;
          const Real top = finite(largest_of<Real>(peak));
          *series.level(n, start + r * tables) = levels[r] += top;
          by_lanes<Real>(depth, [&](int64_t i, auto left) { store(row + i, load(row + i, left) - top, left); });
        }
        by_panels(room.rows.data(), some, depth, t.ahead, depth, room.sums.data(), true, m.threads);
        for (int64_t r = 0; r < some; ++r) {
          Real* here = m.arena + series.at(n, start + r * tables);
          by_lanes<Real>(depth, [&](int64_t i, auto left) {
            store(here + i, load(room.sums.data() + r * stride + i, left), left);
          });
        }
      }
    }
}

}  // namespace
