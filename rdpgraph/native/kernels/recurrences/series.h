// Series of links: a row of labels, times one matrix and then times entries of inputs, from step to step.
//
// a[s, j] = u[s, j] + log sum_i exp(a[s - 1, i] + W_ij). Item after item, a row stays probabilities x from
// one link to the next:
//   y_j = sum_i x_i exp(W_ij - c_j),   x'_j = y_j exp(u_j - h + c_j - c) / 2^k,
// with the columns' peaks c_j, c = max c_j, h = max u_j, and k the exponent of the largest x_i. The exponentials and
// logarithms of kAhead links are taken together, as they do not wait for one another. Where some y_j is near
// underflow the step is that of a single link, which sums in logs, and the row begins again from its logs.

#pragma once

#include "links.h"

namespace {

// The exponent of a number, and the power of two that brings it to between 1 and 2.
template <typename Real>
inline void find_power(Real number, typename Format<Real>::Bits& exponent, Real& factor) {
  typename Format<Real>::Bits bits;
  std::memcpy(&bits, &number, sizeof(number));
  exponent = (bits >> Format<Real>::shift) - Format<Real>::bias;
  bits = (Format<Real>::bias - exponent) << Format<Real>::shift;
  std::memcpy(&factor, &bits, sizeof(factor));
}

constexpr int64_t kAhead = 8;

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

// A row of one or two vectors, of which the last has `left` numbers.
template <typename Real, int K> struct Lanes {
  Lane<Real> of[K] = {};

  void read(const Real* from, int64_t left) {
    for (int k = 0; k < K; ++k) of[k] = load(from + k * lanes<Real>(), k < K - 1 ? lanes<Real>() : left);
  }
  void write(Real* to, int64_t left) const {
    for (int k = 0; k < K; ++k) store(to + k * lanes<Real>(), of[k], k < K - 1 ? lanes<Real>() : left);
  }
  // The largest number; 0 if that is -inf.
  Real top() const {
    Lane<Real> most = of[0];
    for (int k = 1; k < K; ++k) most = of[k] > most ? of[k] : most;
    return finite(largest_of<Real>(most));
  }
  // Whether a number is below a limit, apart from those where others are -inf.
  bool any_below(Real limit, const Lanes& others) const {
    Lane<Real> most = others.of[0] - of[0];
    for (int k = 1; k < K; ++k) {
      const Lane<Real> one = others.of[k] - of[k];
      most = one > most ? one : most;
    }
    return largest_of<Real>(most) > -limit;
  }
};

// Rows times a matrix in a panel, or the largest sums of both. Two halves of each do not wait for one another.
template <bool best, int P, int K, typename Real>
inline void multiply_rows(const Real (*rows)[K * lanes<Real>()], const Real* panel, int64_t depth, Lanes<Real, K>* to) {
  Lane<Real> sums[2][P][K];
  const auto join = [&](int half, int64_t i) {
    for (int k = 0; k < K; ++k) {
      const Lane<Real> by = load(panel + i * width<Real>() + k * lanes<Real>(), lanes<Real>());
      for (int p = 0; p < P; ++p) {
        Lane<Real>& sum = sums[half][p][k];
        if constexpr (best) {
          const Lane<Real> one = by + rows[p][i];
          sum = one > sum ? one : sum;
        } else sum += rows[p][i] * by;
      }
    }
  };
  for (int p = 0; p < P; ++p)
    for (int k = 0; k < K; ++k) sums[0][p][k] = sums[1][p][k] = all(best ? kNever<Real> : Real(0));
  int64_t i = 0;
  for (; i + 1 < depth; i += 2) join(0, i), join(1, i + 1);
  if (i < depth) join(0, i);
  for (int p = 0; p < P; ++p)
    for (int k = 0; k < K; ++k) {
      if constexpr (best) to[p].of[k] = sums[0][p][k] > sums[1][p][k] ? sums[0][p][k] : sums[1][p][k];
      else to[p].of[k] = sums[0][p][k] + sums[1][p][k];
    }
}

// The steps at which forms are at least 0: of a stage with one place, without those of loops, or no steps if there
// are such and `strict`; of another, as far as that depends on the step alone.
template <typename Real>
Span Run<Real>::steps_of(int64_t bound, int64_t bounds, Span span, bool strict) const {
  for (const Form* f = forms + bound; f < forms + bound + bounds; ++f) {
    if (f->r || f->w || f->o || f->q || f->u || f->p) {
      if (strict) return {0, -1};
    } else if (f->s > 0) span.low = std::max(span.low, -below(f->c, f->s));
    else if (f->s < 0) span.high = std::min(span.high, below(f->c, -f->s));
    else if (f->c < 0) span.high = span.low - 1;
  }
  return span;
}

// Finds the links that are in series: each is written into the sum that alone reads it, times entries of inputs,
// and reads nothing but that sum at the step before.
template <typename Real>
void Run<Real>::find_series() {
  for (int64_t k = 0; k < whole.stages; ++k) {
    const Stage& g = stages[k];
    if (g.kind != kKindLink || g.into < 0 || !g.fixed || g.count != 1 || g.depth != g.labels || g.labels2 > 1) continue;
    const Stage& to = stages[g.into];
    const Alternative& link = alternatives[g.first];
    const FactorRecord& from = factors[link.first];
    if (g.places != 1 || g.wide != 1 || g.wider != 1 || g.widest != 1 || to.places != 1 || to.last || link.loops) continue;
    if (link.count != 1 || from.slot || from.looks || from.hop != 1 || from.level_hop || from.link >= 0) continue;
    if (from.at.s != to.out.s || from.at.c != to.out.c - to.out.s || from.level.s != to.level.s ||
        from.level.c != to.level.c - to.level.s) continue;
    Span span{0, whole.steps - 1};
    span = steps_of(g.bound, g.bounds, span, true), span = steps_of(to.bound, to.bounds, span, true);
    span = steps_of(link.bound, link.bounds, span, true);
    const Alternative* own = nullptr;
    bool plain = true;
    for (const Alternative* a = alternatives + to.first; a < alternatives + to.first + to.count; ++a) {
      bool reads = false;
      for (const FactorRecord* f = factors + a->first; f < factors + a->first + a->count; ++f) reads |= f->link == k;
      if (!reads) continue;
      plain &= !own && !a->loops, own = a;
      for (const FactorRecord* f = factors + a->first; f < factors + a->first + a->count; ++f) plain &= f->link == k || f->slot > 0;
      span = steps_of(a->bound, a->bounds, span, true);
    }
    if (!own || !plain) continue;
    // Steps at which the sum has other entries are before the series, or after it.
    for (const Alternative* a = alternatives + to.first; a < alternatives + to.first + to.count; ++a) {
      if (a == own) continue;
      const Span other = steps_of(a->bound, a->bounds, span, false);
      if (other.high < other.low) continue;
      if (other.low == span.low) span.low = other.high + 1;
      else span.high = other.low - 1;
    }
    if (span.high - span.low < 1) continue;
    series.push_back({k, g.into, span.low, span.high, own, false, {}, {}, {}});
  }
}

// Whether the rows of a series fit into two vectors.
template <typename Real>
bool Run<Real>::is_narrow(const Series& one) const { return stages[one.link].labels <= width<Real>(); }

// The input that a link of a series is multiplied by, if it is one that is read as it lies; or null.
template <typename Real>
const FactorRecord* Run<Real>::other_of(const Series& one) const {
  const FactorRecord* f = factors + one.own->first;
  if (one.own->count != 2) return nullptr;
  if (f->link >= 0) ++f;
  return f->hop == 1 && !f->looks ? f : nullptr;
}

// The logs of a step that a link is multiplied by, if they are those of several inputs, or lie apart.
template <typename Real>
template <int K>
void Run<Real>::read_others(const Series& one, int64_t item, int64_t s, Lanes<Real, K>& to, int64_t left) {
  alignas(64) Real row[K * lanes<Real>()] = {};
  for (const FactorRecord *f = factors + one.own->first, *end = f + one.own->count; f < end; ++f)
    if (f->link < 0) add(row, data[f->slot], line_of(*f, item, At{s}, 0, 0), 0, 0, stages[one.link].labels);
  to.read(row, left);
}

// The sums of a series of P items from one on, which do not wait for one another; `keep`: the rows before and after
// products, too.
template <typename Real>
template <int K, int P>
void Run<Real>::series_sums(Series& one, int64_t item, bool keep) {
  typedef Lanes<Real, K> Vectors;
  typedef typename Format<Real>::Bits Bits;
  const Stage &g = stages[one.link], &to = stages[one.into];
  const int64_t depth = g.labels, left = depth - (K - 1) * lanes<Real>(), many = one.last - one.first + 1;
  const Real least = Real(1) / (1 << 20), low = faint<Real>(depth) / least;
  const Table<Real> t = table(g, item);
  const double kLog2 = 0.6931471805599453;
  alignas(64) Real row[P][K * lanes<Real>()] = {};
  // Numbers beyond the labels are absent; and columns in which nothing is possible are no reason to sum in logs.
  Vectors pads, unused, peaks;
  std::fill(row[0] + depth, row[0] + K * lanes<Real>(), kNever<Real>);
  pads.read(row[0], lanes<Real>());
  for (int64_t j = 0; j < depth; ++j) {
    bool any = false;
    for (int64_t i = 0; i < depth && !any; ++i) any = t.ahead[i * width<Real>() + j] > 0;
    row[0][j] = any ? Real(0) : kNever<Real>;
  }
  unused.read(row[0], lanes<Real>());
  const Real peak = largest(t.peaks, depth);
  peaks.read(t.peaks, left);
  for (int k = 0; k < K; ++k) peaks.of[k] += pads.of[k] - peak;
  // Of each item; x and y are before and after a product.
  struct Part {
    Vectors x, shown[kAhead], weights[kAhead], found[kAhead];
    Real highs[kAhead], scales[kAhead], *logs, *before, *after;
    double levels[kAhead], *known, base = 0;
    const Real* site;
    int64_t shift = 0, settled = 0;  // links whose logs are written
    Bits power = 0;    // the exponent of the largest number of the last row, by which the next one is divided
    Real factor = 1;
    bool fresh = true; // whether x is to be read from its logs
  } parts[P];
  Vectors y[P];
  const FactorRecord* other = other_of(one);
  for (int p = 0; p < P; ++p) {
    Part& of = parts[p];
    of.logs = out(to, data[0], item + p, At{one.first}, 0), of.known = out_level(to, item + p, At{one.first}, 0);
    of.before = keep ? one.before.data() + (item + p) * many * depth : nullptr;
    of.after = keep ? one.after.data() + (item + p) * many * depth : nullptr;
    of.site = other ? data[other->slot] + other->at.c + one.first * other->at.s + (item + p) * other->item : nullptr;
  }
  for (int64_t start = 0; start < many; start += kAhead) {
    const int64_t some = std::min(kAhead, many - start);
    for (Part& of : parts) {
      for (int64_t n = 0; n < some; ++n) {
        Vectors given;
        if (other) given.read(of.site + (start + n) * other->at.s, left);
        else read_others<K>(one, item + (&of - parts), one.first + start + n, given, left);
        for (int k = 0; k < K; ++k) given.of[k] += pads.of[k];
        of.highs[n] = given.top();
        for (int k = 0; k < K; ++k) of.shown[n].of[k] = (given.of[k] - of.highs[n]) + peaks.of[k];
        for (int k = 0; k < K; ++k) of.weights[n].of[k] = exp_of<Real>(of.shown[n].of[k]);
      }
      of.settled = 0;
    }
    const auto settle = [&](Part& of, int64_t until) {
      for (; of.settled < until; ++of.settled) {
        const int64_t n = of.settled;
        Vectors logs;
        for (int k = 0; k < K; ++k) logs.of[k] = log_of<Real>(of.found[n].of[k]) + (of.shown[n].of[k] - of.scales[n]);
        logs.write(of.logs + (start + n) * to.out.s, left);
        of.known[(start + n) * to.level.s] = of.levels[n];
      }
    };
    for (int64_t n = 0; n < some; ++n) {
      const int64_t at = start + n;
      for (int p = 0; p < P; ++p) {
        Part& of = parts[p];
        if (of.fresh) {
          settle(of, n);
          of.x.read(of.logs + (at - 1) * to.out.s, left);
          for (int k = 0; k < K; ++k) of.x.of[k] += pads.of[k];
          const Real top = of.x.top();
          note(top);
          for (int k = 0; k < K; ++k) of.x.of[k] = exp_of<Real>(of.x.of[k] - top);
          of.base = of.known[(at - 1) * to.level.s] + double(top), of.shift = of.power = 0, of.factor = 1, of.fresh = false;
        }
        of.x.write(row[p], lanes<Real>());
      }
      multiply_rows<false, P, K>(row, t.ahead, depth, y);
      for (int p = 0; p < P; ++p) {
        Part& of = parts[p];
        if (keep) {
          of.x.write(of.before + at * depth, left);
          y[p].write(of.after + at * depth, left);
        }
        if (y[p].any_below(low, unused)) {
          settle(of, n);
          link_up<false>(g, At{one.first + at}, item + p, item + p + 1);
          of.settled = n + 1, of.fresh = true;
          if (keep) std::fill_n(of.after + at * depth, depth, Real(0));
          continue;
        }
        of.base += double(of.highs[n]) + double(peak);
        for (int k = 0; k < K; ++k) of.x.of[k] = y[p].of[k] * (of.factor * of.weights[n].of[k]);
        const Real top = of.x.top();
        of.shift += of.power, of.found[n] = y[p], of.scales[n] = Real(double(of.power) * kLog2);
        of.levels[n] = of.base + double(of.shift) * kLog2;
        of.fresh = !(top >= least);
        if (of.fresh) continue;
        find_power(top, of.power, of.factor);
      }
    }
    for (Part& of : parts) settle(of, some);
  }
  for (const Part& of : parts)
    if (of.fresh) note(finite(largest(of.logs + (many - 1) * to.out.s, depth)));
}

// The maxima of a series of P items from one on. Rows are relative to the largest of the row before.
template <typename Real>
template <int K, int P>
void Run<Real>::series_best(Series& one, int64_t item) {
  typedef Lanes<Real, K> Vectors;
  const Stage &g = stages[one.link], &to = stages[one.into];
  const int64_t depth = g.labels, left = depth - (K - 1) * lanes<Real>(), many = one.last - one.first + 1;
  const Table<Real> t = table(g, item);
  const FactorRecord* other = other_of(one);
  alignas(64) Real row[P][K * lanes<Real>()] = {};
  std::fill(row[0] + depth, row[0] + K * lanes<Real>(), kNever<Real>);
  Vectors pads, x[P], y[P], given;
  pads.read(row[0], lanes<Real>());
  Real* logs[P];
  const Real* sites[P];
  double *known[P], base[P];
  for (int p = 0; p < P; ++p) {
    logs[p] = out(to, data[0], item + p, At{one.first}, 0), known[p] = out_level(to, item + p, At{one.first}, 0);
    sites[p] = other ? data[other->slot] + other->at.c + one.first * other->at.s + (item + p) * other->item : nullptr;
    x[p].read(logs[p] - to.out.s, left), base[p] = known[p][-to.level.s];
    for (int k = 0; k < K; ++k) x[p].of[k] += pads.of[k];
  }
  for (int64_t n = 0; n < many; ++n) {
    for (int p = 0; p < P; ++p) x[p].write(row[p], lanes<Real>());
    multiply_rows<true, P, K>(row, t.ahead, depth, y);
    for (int p = 0; p < P; ++p) {
      const Real top = x[p].top();
      if (other) given.read(sites[p] + n * other->at.s, left);
      else read_others<K>(one, item + p, one.first + n, given, left);
      for (int k = 0; k < K; ++k) x[p].of[k] = (y[p].of[k] - top) + given.of[k];
      x[p].write(logs[p] + n * to.out.s, left);
      for (int k = 0; k < K; ++k) x[p].of[k] += pads.of[k];
      base[p] += double(top), known[p][n * to.level.s] = base[p];
    }
  }
}

// The gradients of a series of P items from one on, whose rows were kept.
template <typename Real>
template <int K, int P>
void Run<Real>::series_down(Series& one, int64_t item) {
  typedef Lanes<Real, K> Vectors;
  constexpr int64_t wide = K * lanes<Real>();
  const Stage &g = stages[one.link], &to = stages[one.into];
  const int64_t depth = g.labels, left = depth - (K - 1) * lanes<Real>(), many = one.last - one.first + 1;
  const Lane<Real> low = all<Real>(faint<Real>(depth) * (1 << 20));
  const Table<Real> t = table(g, item);
  const FactorRecord* other = other_of(one);
  const Real *before[P], *own = grads[g.slot];
  Real *after[P], *above[P], *sites[P];  // `after` gets the gradients of the products
  bool some[P] = {};  // whether a row behind has a gradient, unlike those beyond an item's end
  Vectors back[P];    // what the link after a row adds to its gradient
  alignas(64) Real row[P][wide];
  for (int p = 0; p < P; ++p) {
    before[p] = one.before.data() + (item + p) * many * depth, after[p] = one.after.data() + (item + p) * many * depth;
    above[p] = out(to, grads[0], item + p, At{one.first}, 0);
    sites[p] = other && grads[other->slot]
        ? grads[other->slot] + other->at.c + one.first * other->at.s + (item + p) * other->item : nullptr;
  }
  for (int64_t n = many; n--;) {
    bool alone[P] = {};  // items whose rows are not in probabilities here
    for (int p = 0; p < P; ++p) {
      Real *here = above[p] + n * to.out.s, *turned = after[p] + n * depth;
      if (!some[p]) some[p] = any_of(here, depth);
      Vectors pull, y, rest;
      if (some[p]) {
        pull.read(here, left), y.read(turned, left);
        for (int k = 0; k < K; ++k) pull.of[k] += back[p].of[k];
        pull.write(here, left);
        for (int k = 0; k < K; ++k) {
          const auto lost = y.of[k] < low;
          rest.of[k] = lost ? (pull.of[k] < Real(0) ? -pull.of[k] : pull.of[k]) : Lane<Real>{};
          y.of[k] = lost ? Lane<Real>{} : pull.of[k] / y.of[k];
        }
        alone[p] = rest.top() > 0;
      }
      if (alone[p]) link_down(g, At{one.first + n}, item + p, item + p + 1);
      if (alone[p] || !some[p]) y = {};
      else if (other) {
        if (sites[p]) {
          Real* site = sites[p] + n * other->at.s;
          rest.read(site, left);
          for (int k = 0; k < K; ++k) rest.of[k] += pull.of[k];
          rest.write(site, left);
        }
      } else
        for (const FactorRecord *f = factors + one.own->first, *end = f + one.own->count; f < end; ++f)
          if (f->link < 0 && grads[f->slot]) add_to(grads[f->slot], line_of(*f, item + p, At{one.first + n}, 0, 0), here, depth);
      y.write(turned, left), y.write(row[p], lanes<Real>());
    }
    multiply_rows<false, P, K>(row, t.back, depth, back);
    for (int p = 0; p < P; ++p) {
      Vectors x;
      x.read(before[p] + n * depth, left);
      for (int k = 0; k < K; ++k) back[p].of[k] *= x.of[k];
    }
  }
  for (int p = 0; p < P; ++p) {
    back[p].write(row[p], lanes<Real>());
    for (int64_t j = 0; j < depth; ++j) above[p][j - to.out.s] += row[p][j];
  }
  if (!own) return;
  // The outer products of all rows, as matrix products of those that stay in the cache.
  Kept& rows = kept[one.link];
  if (rows.before.empty()) start_kept(g, rows);
  const int64_t most = most_kept(g);
  for (int64_t p = 0; p < P; ++p) {
    const int64_t set = g.table_item ? item + p : 0;
    for (int64_t n = 0; n < many; n += most) {
      multiply_kept(g, 0, set);
      const int64_t count = rows.counts[set] = std::min(most, many - n);
      for (int64_t k = 0; k < count; ++k)
        put_kept(g, rows, set, k, before[p] + (n + k) * depth, after[p] + (n + k) * depth);
    }
    multiply_kept(g, 0, set);
  }
}

}  // namespace
