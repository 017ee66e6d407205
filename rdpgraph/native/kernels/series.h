// Series of links by one table of few labels, each of the link before it times a row of sites: one item
// after the other. Rows stay probabilities between links, and exponentials do not wait for one another.

#pragma once

#include "links.h"

namespace {

constexpr int64_t kAhead = 8;   // links whose exponentials and logarithms are taken together

// A series, as its first link has it, and where the rows of its links are. It is one only for tables that are
// prepared, of no more labels than a panel.
template <typename Real> struct Series {
  const Machine<Real>& m;
  const int64_t *first, many, before, hop;  // its first link; its links; the value before; steps from link to link
  const int64_t depth, copies;              // labels; items that share a table

  Series(const Machine<Real>& m, const int64_t* step)
      : m(m), first(step), many(step[4]), before(step[7]), hop(step[13]), depth(m.labels(step[1])),
        copies(m.batch / std::max<int64_t>(1, m.table(step[3])[1])) {}

  const int64_t* link(int64_t n) const { return first + n * hop * kFields; }
  int64_t sites(int64_t n, int64_t item) const { return item * m.size_of_sites() + first[5] + n * first[6]; }
  // A link's values; those before the first for -1.
  int64_t at(int64_t n, int64_t item) const {
    return n < 0 ? m.at(before, item, 0) : m.at(first[1], item, 0) + n * m.batch * depth;
  }
  double* level(int64_t n, int64_t item) const {
    double* first_level = m.level_at(first[1], item, 0);
    return first_level ? first_level + n * m.batch : nullptr;
  }
  // The rows of an item before products, or after them, of the first link, and from one link to the next.
  Real* rows(Real* all, int field, int64_t item) const {
    const int64_t items = m.table(first[3])[1];
    const int64_t row = copies * (item % items * first[12] + first[11]) + item / items;
    return all ? all + m.batch * first[field] + row * depth : nullptr;
  }
  int64_t next() const { return copies * depth; }
};

// The steps of the series that begins with a link (or, of the way down, ends), if it is worked on as one; or 0.
template <typename Real> int64_t series_of(const Machine<Real>& m, const int64_t* step, bool down) {
  const int64_t links = down ? -step[4] : step[4], *table = m.table(step[3]);
  if (step[0] != kLinked || links <= 0 || m.best || table[1] < 1 || table[7] < 0 || table[3] > width<Real>()) return 0;
  return (links - 1) * step[13];
}

template <typename Real> Real largest_of(Lane<Real> x) {
  Real one[lanes<Real>()];
  std::memcpy(one, &x, sizeof(x));
  for (int64_t half = lanes<Real>() / 2; half; half /= 2)
    for (int64_t k = 0; k < half; ++k) one[k] = one[k] > one[k + half] ? one[k] : one[k + half];
  return one[0];
}
#if defined(__AVX512F__)
template <> inline float largest_of<float>(Lane<float> x) { return _mm512_reduce_max_ps((__m512)x); }
template <> inline double largest_of<double>(Lane<double> x) { return _mm512_reduce_max_pd((__m512d)x); }
#endif

// A row of up to two vectors, of which the last has fewer numbers.
template <typename Real, int K> struct Row {
  Lane<Real> of[K] = {};

  void read(const Real* from, int64_t left) {
    for (int k = 0; k < K; ++k) of[k] = load(from + k * lanes<Real>(), k < K - 1 ? lanes<Real>() : left);
  }
  void write(Real* to, int64_t left) const {
    for (int k = 0; k < K; ++k) store(to + k * lanes<Real>(), of[k], k < K - 1 ? lanes<Real>() : left);
  }
  Real top() const {
    Lane<Real> most = of[0];
    for (int k = 1; k < K; ++k) most = of[k] > most ? of[k] : most;
    return finite(largest_of<Real>(most));
  }
  // Whether a number is below a limit, apart from those at -inf in others.
  bool any_below(Real limit, const Row& others) const {
    Row turned;
    for (int k = 0; k < K; ++k) turned.of[k] = others.of[k] - of[k];
    return !(turned.top() <= -limit);
  }
  // A row of numbers times a table in a panel.
  void product(const Real* row, const Real* panel, int64_t depth) {
    Row one, two;
    int64_t i = 0;
    for (; i + 1 < depth; i += 2)
      for (int k = 0; k < K; ++k) {
        one.of[k] += row[i] * load(panel + i * width<Real>() + k * lanes<Real>(), lanes<Real>());
        two.of[k] += row[i + 1] * load(panel + (i + 1) * width<Real>() + k * lanes<Real>(), lanes<Real>());
      }
    for (int k = 0; k < K; ++k) {
      of[k] = one.of[k] + two.of[k];
      if (i < depth) of[k] += row[i] * load(panel + i * width<Real>() + k * lanes<Real>(), lanes<Real>());
    }
  }
};

// Products of probabilities that are not small enough to lose digits to underflow; else as `link_up`, which
// also takes the rows in which a sum is near it.
template <int K, typename Real>
void series_up(const Series<Real>& series, int64_t first, int64_t last, Room<Real>& room) {
  const Machine<Real>& m = series.m;
  const int64_t depth = series.depth, left = depth - (K - 1) * lanes<Real>();
  const Real least = Real(1) / (1 << 20), low = faint<Real>(depth) / least;
  alignas(64) Real row[K * lanes<Real>()] = {};
  std::fill(row + depth, row + K * lanes<Real>(), kNever<Real>);
  Row<Real, K> pads, peaks, given, x, sums;
  pads.read(row, lanes<Real>());
  Row<Real, K> shown[kAhead], found[kAhead];
  Real highs[kAhead];
  double levels[kAhead];
  for (int64_t item = first; item < last; ++item) {
    double base = 0;
    Real factor = 1;  // a power of two, near one over the largest of the row before
    int64_t shift = 0, power = 0;
    double level = m.level(series.before, item, 0);
    Real *before = series.rows(m.befores, 8, item), *after = series.rows(m.afters, 9, item);
    const Real* sites = m.arena + series.sites(0, item);
    Real* out = m.arena + series.at(0, item);
    double* known = series.level(0, item);
    sums = {};
    const Prepared<Real> t = prepared(m, series.first[3], item, series.first[10]);
    const Real peak = largest(t.peaks, depth);
    peaks.read(t.peaks, left);
    for (int k = 0; k < K; ++k) peaks.of[k] += pads.of[k] - peak;
    for (int64_t start = 0; start < series.many; start += kAhead) {
      const int64_t some = std::min(kAhead, series.many - start);
      for (int64_t n = 0; n < some; ++n) {
        given.read(sites + (start + n) * series.first[6], left);
        for (int k = 0; k < K; ++k) given.of[k] += pads.of[k];
        highs[n] = given.top();
        for (int k = 0; k < K; ++k) shown[n].of[k] = exp_of<Real>((given.of[k] - highs[n]) + peaks.of[k]);
      }
      int64_t settled = 0;  // links whose values are written
      const auto settle = [&](int64_t until) {
        for (; settled < until; ++settled) {
          const Real more = known ? peak : Real(levels[settled] + peak);
          for (int k = 0; k < K; ++k) x.of[k] = log_of<Real>(found[settled].of[k]) + (peaks.of[k] + more);
          x.write(out + (start + settled) * m.batch * depth, left);
          if (known) known[(start + settled) * m.batch] = levels[settled];
        }
      };
      for (int64_t n = 0; n < some; ++n) {
        for (int k = 0; k < K; ++k) x.of[k] = sums.of[k] * (factor * shown[n].of[k]);
        Real top = x.top();
        base += double(highs[n]) + double(peak), shift += power;
        if (!(top >= least)) {
          settle(n);
          sums.read(m.arena + series.at(start + n - 1, item), left);
          given.read(sites + (start + n) * series.first[6], left);
          for (int k = 0; k < K; ++k) sums.of[k] += pads.of[k];
          const Real most = sums.top();
          for (int k = 0; k < K; ++k) x.of[k] = (given.of[k] - highs[n]) + (sums.of[k] - most);
          top = x.top();
          if (m.is_far(top)) m.note(0);
          for (int k = 0; k < K; ++k) x.of[k] = exp_of<Real>(x.of[k] - top);
          base = level + double(highs[n]) + double(most) + double(top);
          shift = 0, top = 1;
        }
        typename Format<Real>::Bits bits;
        std::memcpy(&bits, &top, sizeof(top));
        power = (bits >> Format<Real>::shift) - Format<Real>::bias;
        bits = (Format<Real>::bias - typename Format<Real>::Bits(power)) << Format<Real>::shift;
        std::memcpy(&factor, &bits, sizeof(factor));
        x.write(row, lanes<Real>());
        if (before) x.write(before + (start + n) * series.next(), left);
        sums.product(row, t.ahead, depth);
        if (after) sums.write(after + (start + n) * series.next(), left);
        found[n] = sums;
        level = levels[n] = base + double(shift) * 0.6931471805599453;
        if (sums.any_below(low, pads)) {
          settle(n);
          link_up(m, series.link(start + n), item, item + 1, room);
          sums = {};
          settled = n + 1;
          if (known) level = known[(start + n) * m.batch];
        }
        if (!known) level = 0;
      }
      settle(some);
    }
  }
}

template <int K, typename Real>
void series_down(const Series<Real>& series, int64_t first, int64_t last, Arena<Real> grads, Real* shares,
                 Real* const* extras, int64_t slots, Room<Real>& room) {
  const Machine<Real>& m = series.m;
  const int64_t depth = series.depth, left = depth - (K - 1) * lanes<Real>();
  const Real low = faint<Real>(depth);
  alignas(64) Real row[K * lanes<Real>()] = {};
  Row<Real, K> pull, sums, rest, back;
  for (int64_t item = first; item < last; ++item) {
    const Prepared<Real> t = prepared(m, series.first[3], item, series.first[10]);
    const Real *befores = series.rows(m.befores, 8, item), *afters = series.rows(m.afters, 9, item);
    Real *after = series.rows(shares, 9, item), *out = grads + series.at(0, item);
    Real* sites = grads + series.sites(0, item);
    pull.read(grads + series.at(series.many - 1, item), left);
    bool some = false;  // whether a link behind has a gradient, unlike those beyond an item's length
    for (int64_t n = series.many; n--;) {
      Real *here = out + n * m.batch * depth, *before = n ? here - m.batch * depth : grads + series.at(-1, item);
      if (!some) some = std::any_of(here, here + depth, [](Real x) { return x != 0; });
      if (!some) {
        std::fill(after + n * series.next(), after + n * series.next() + depth, Real(0));
        pull.read(before, left);
        continue;
      }
      sums.read(afters + n * series.next(), left);
      for (int k = 0; k < K; ++k) {
        const auto faint = sums.of[k] < all<Real>(low);
        rest.of[k] = faint ? (pull.of[k] < Real(0) ? -pull.of[k] : pull.of[k]) : Lane<Real>{};
        pull.of[k] = faint ? Lane<Real>{} : pull.of[k] / sums.of[k];
      }
      if (rest.top() > 0) {
        link_down(m, series.link(n), item, item + 1, grads, shares, extras, slots, room);
        pull.read(before, left);
        continue;
      }
      pull.write(row, lanes<Real>());
      pull.write(after + n * series.next(), left);
      back.product(row, t.back, depth);
      sums.read(befores + n * series.next(), left);
      rest.read(sites + n * series.first[6], left);
      pull.read(before, left);
      for (int k = 0; k < K; ++k) {
        back.of[k] *= sums.of[k];
        rest.of[k] += back.of[k];
        pull.of[k] += back.of[k];
      }
      rest.write(sites + n * series.first[6], left);
      pull.write(before, left);
    }
  }
}

}  // namespace
