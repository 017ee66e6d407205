// Series of links by one table of few labels, each of the link before it times a row of sites: one item
// after the other. Rows stay probabilities between links, and exponentials do not wait for one another.

#pragma once

#include "links.h"

namespace {

constexpr int64_t kSeries = 4;  // links, from which a series pays

constexpr int64_t kAhead = 8;   // links whose exponentials and logarithms are taken together

// A link of a series: its step, and where its row of sites, its values, their level (below 0: it has none), and
// its rows before and after products are, of the first item.
struct Member {
  const int64_t* step;
  int64_t sites, hop, out, level, before, after;
};

struct Series {
  int64_t first, last, before, stride;  // steps; the value before the first; that of a step to an item
  std::vector<Member> links;
};

// The other factor of a link's product by this table, if one is a row of sites (which goes to `member`);
// -1: it has no place in a series.
template <typename Real>
int64_t joins(const Machine<Real>& m, const int64_t* step, Member& member) {
  const int64_t *table = m.table(step[3]), *inner = m.steps + kFields * step[2];
  const int64_t depth = table[3], out = step[1];
  if (inner[0] != kProduct || m.best || table[1] < 1 || table[7] < 0 || m.places(out) != 1 ||
      depth > width<Real>() || table[5] != depth || m.labels(out) != depth)
    return -1;
  const int32_t* part = m.index + inner[2] + 2;
  if (part[-1] != 2) return -1;
  int64_t sites = -1, other = -1;
  for (int64_t f = 0; f < 2; ++f, part += kPart) {
    const int32_t* pair = m.index + part[1];
    if (part[5] >= 0 || part[3] > 1 || part[4] != depth || pair[0] < 0) return -1;
    const int64_t *fields = m.steps + kFields * pair[0], *value = m.values + kValue * pair[0];
    const bool of_sites = fields[0] == kSites && !fields[3];
    if (of_sites && sites < 0) {
      sites = pair[0];
      const int64_t level = m.levels ? m.batch * m.values[kValue * out + 3] : -1;
      member = {step, m.at(sites, 0, pair[1]), value[5], m.at(out, 0, 0),
                level, m.batch * step[8] + m.batch / table[1] * step[11] * depth,
                m.batch * step[9] + m.batch / table[1] * step[11] * depth};
    } else {
      other = pair[1] == 0 && m.places(pair[0]) == 1 ? pair[0] : -1;
    }
  }
  return sites < 0 ? -1 : other;
}

// The place of an item's rows among those of a link, which are in the order of the tables' items.
template <typename Real> int64_t row_of(const Machine<Real>& m, const int64_t* step, int64_t item) {
  const int64_t items = m.table(step[3])[1];
  return m.batch / items * (item % items) * step[12] + item / items;
}

template <typename Real> std::vector<Series> all_series(const Machine<Real>& m) {
  std::vector<Series> found;
  Series now{-1, -1, -1, 0, {}};
  const auto end = [&] {
    if (int64_t(now.links.size()) >= kSeries) found.push_back(std::move(now));
    now = {-1, -1, -1, 0, {}};
  };
  for (int64_t n = 0; n < m.count; ++n) {
    const int64_t* step = m.steps + kFields * n;
    if (step[0] == kProduct || step[0] == kNone || (step[0] == kSites && !step[3])) continue;
    Member member;
    const int64_t before = step[0] == kLinked ? joins(m, step, member) : -1;
    const int64_t* last = now.links.empty() ? nullptr : now.links.back().step;
    const bool goes_on = last && before == last[1] && step[3] == last[3] && step[10] == last[10];
    if (!goes_on) end();
    if (before < 0) continue;
    if (!goes_on) now.first = n, now.before = before, now.stride = m.labels(step[1]);
    now.last = n;
    now.links.push_back(member);
  }
  end();
  return found;
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
void series_up(const Machine<Real>& m, const Series& series, int64_t first, int64_t last, Room<Real>& room) {
  const int64_t* step = series.links[0].step;
  const int64_t depth = series.stride, left = depth - (K - 1) * lanes<Real>();
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
    int64_t before = m.at(series.before, item, 0), shift = 0, power = 0;
    double level = m.level(series.before, item, 0);
    sums = {};
    const Prepared<Real> t = prepared(m, step[3], item, step[10]);
    const Real peak = largest(t.peaks, depth);
    peaks.read(t.peaks, left);
    for (int k = 0; k < K; ++k) peaks.of[k] += pads.of[k] - peak;
    const int64_t many = series.links.size(), at = row_of(m, step, item) * depth;
    for (int64_t start = 0; start < many; start += kAhead) {
      const Member* links = series.links.data() + start;
      const int64_t some = std::min(kAhead, many - start);
      for (int64_t n = 0; n < some; ++n) {
        given.read(m.arena + links[n].sites + item * links[n].hop, left);
        for (int k = 0; k < K; ++k) given.of[k] += pads.of[k];
        highs[n] = given.top();
        for (int k = 0; k < K; ++k) shown[n].of[k] = exp_of<Real>((given.of[k] - highs[n]) + peaks.of[k]);
      }
      int64_t settled = 0;  // links whose values are written
      const auto settle = [&](int64_t until) {
        for (; settled < until; ++settled) {
          const Member& link = links[settled];
          const Real more = link.level < 0 ? Real(levels[settled] + peak) : peak;
          for (int k = 0; k < K; ++k) x.of[k] = log_of<Real>(found[settled].of[k]) + (peaks.of[k] + more);
          x.write(m.arena + link.out + item * series.stride, left);
          if (link.level >= 0) m.levels[link.level + item] = levels[settled];
        }
      };
      for (int64_t n = 0; n < some; ++n) {
        const Member& link = links[n];
        for (int k = 0; k < K; ++k) x.of[k] = sums.of[k] * (factor * shown[n].of[k]);
        Real top = x.top();
        base += double(highs[n]) + double(peak), shift += power;
        if (!(top >= least)) {
          settle(n);
          sums.read(m.arena + before, left);
          given.read(m.arena + link.sites + item * link.hop, left);
          for (int k = 0; k < K; ++k) sums.of[k] += pads.of[k];
          const Real most = sums.top();
          for (int k = 0; k < K; ++k) x.of[k] = (given.of[k] - highs[n]) + (sums.of[k] - most);
          top = x.top();
          if (m.is_far(top)) m.noted[0] = 1;
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
        if (m.befores) x.write(m.befores + link.before + at, left);
        sums.product(row, t.ahead, depth);
        if (m.afters) sums.write(m.afters + link.after + at, left);
        before = link.out + item * series.stride;
        found[n] = sums;
        level = levels[n] = base + double(shift) * 0.6931471805599453;
        if (sums.any_below(low, pads)) {
          settle(n);
          link_up(m, link.step, item, item + 1, room);
          sums = {};
          settled = n + 1;
          if (link.level >= 0) level = m.levels[link.level + item];
        }
        if (link.level < 0) level = 0;
      }
      settle(some);
    }
  }
}

template <int K, typename Real>
void series_down(const Machine<Real>& m, const Series& series, int64_t first, int64_t last, Real* grads,
                 Real* shares, Real* const* extras, int64_t slots, Room<Real>& room) {
  const int64_t* step = series.links[0].step;
  const int64_t depth = series.stride, left = depth - (K - 1) * lanes<Real>();
  const Real low = faint<Real>(depth);
  alignas(64) Real row[K * lanes<Real>()] = {};
  Row<Real, K> pull, sums, rest, back;
  for (int64_t item = first; item < last; ++item) {
    const Prepared<Real> t = prepared(m, step[3], item, step[10]);
    const int64_t at = row_of(m, step, item) * depth;
    pull.read(grads + series.links.back().out + item * series.stride, left);
    for (size_t n = series.links.size(); n--;) {
      const Member& link = series.links[n];
      const int64_t before =
          n ? series.links[n - 1].out + item * series.stride : m.at(series.before, item, 0);
      sums.read(m.afters + link.after + at, left);
      for (int k = 0; k < K; ++k) {
        const auto faint = sums.of[k] < all<Real>(low);
        rest.of[k] = faint ? (pull.of[k] < Real(0) ? -pull.of[k] : pull.of[k]) : Lane<Real>{};
        pull.of[k] = faint ? Lane<Real>{} : pull.of[k] / sums.of[k];
      }
      if (rest.top() > 0) {
        link_down(m, link.step, item, item + 1, grads, shares, extras, slots, room);
        pull.read(grads + before, left);
        continue;
      }
      pull.write(row, lanes<Real>());
      pull.write(shares + link.after + at, left);
      back.product(row, t.back, depth);
      sums.read(m.befores + link.before + at, left);
      Real* sites = grads + link.sites + item * link.hop;
      rest.read(sites, left);
      pull.read(grads + before, left);
      for (int k = 0; k < K; ++k) {
        back.of[k] *= sums.of[k];
        rest.of[k] += back.of[k];
        pull.of[k] += back.of[k];
      }
      rest.write(sites, left);
      pull.write(grads + before, left);
    }
  }
}

}  // namespace
