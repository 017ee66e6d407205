// Belief propagation on parity checks, a shot in each vector lane; a lane takes the next shot when its
// syndrome is met.

#pragma once

#include "parity.h"

namespace {

using Mask = decltype(Shots{} < Shots{});

inline Shots chosen(Mask mask, Shots a, Shots b) {
  return (Shots)(((Mask)a & mask) | ((Mask)b & ~mask));
}

constexpr double kFarthest = std::numeric_limits<double>::infinity();

inline Mask negative(Shots x) {  // the sign bit of what decides for 1
  return (Mask)(x <= Shots{}) & (Mask{} + std::numeric_limits<int64_t>::min());
}
inline Shots size_of(Shots x) { return (Shots)((Mask)x & std::numeric_limits<int64_t>::max()); }
inline Shots turned(Shots x, Mask by) { return (Shots)((Mask)x ^ by); }
inline Shots smaller(Shots x, Shots y) { return chosen((Mask)(x < y), x, y); }

// The odds of an odd parity of two parts, from those of each; at most 1, and without cancellation.
inline Shots joined(Shots a, Shots b) { return smaller((a + b) / (1.0 + a * b), Shots{} + 1.0); }

// The messages of one check to its bits from theirs, log-odds of 0. `even`: the log-odds that its
// parity is even. Sums, if there is room for `spare`; else maxima times `scale`.
inline void answer(const Shots* in, Shots* out, Shots* spare, int64_t count, Shots even,
                   double scale) {
  Shots least = size_of(even), second = Shots{} + kFarthest, odds{};
  Mask signs = negative(even);
  if (spare) odds = exp_of<double>(-least);
  for (int64_t e = 0; e < count; ++e) {
    const Shots x = size_of(in[e]);
    signs ^= negative(in[e]);
    second = smaller(second, chosen((Mask)(x < least), least, x));
    least = smaller(x, least);
    if (!spare) continue;
    spare[e] = exp_of<double>(-x), out[e] = odds;
    odds = joined(odds, spare[e]);
  }
  Shots after{};
  for (int64_t e = count - 1; e >= 0; --e) {
    // Where exponentials vanish, a maximum takes the place of the sum.
    Shots x = chosen((Mask)(size_of(in[e]) == least), second, least);
    if (spare) {
      x = smaller(x, -log_of<double>(joined(out[e], after)));
      after = joined(after, spare[e]);
    }
    out[e] = turned(spare ? x : scale * x, signs ^ negative(in[e]));
  }
}

// One sweep of all messages of checks, (edges, batch) log-odds of 0, and (batch) their largest change,
// of values within `seen`. starts and bits as below; prior (bits, batch), even (checks, batch).
struct Flood {
  const int64_t *starts, *bits;
  const double *prior, *even;
  double *odds, *changes;
  int64_t checks, count, batch;
  double keep, most, seen;
  bool product;

  void run(int64_t first, int64_t last) const {
    const int64_t size = starts[checks];
    std::vector<Shots> total(count), old(size), in, out, spare;
    auto within = [](Shots x, double limit) {
      x = smaller(x, Shots{} + limit);
      return -smaller(-x, Shots{} + limit);
    };
    for (int64_t l = first * kShots; l < std::min(last * kShots, batch); l += kShots) {
      const int64_t live = batch - l;
      for (int64_t v = 0; v < count; ++v) total[v] = load(prior + v * batch + l, live);
      for (int64_t e = 0; e < size; ++e) {
        old[e] = load(odds + e * batch + l, live);
        total[bits[e]] += old[e];
      }
      Shots largest{};
      for (int64_t c = 0; c < checks; ++c) {
        const int64_t a = starts[c], n = starts[c + 1] - a;
        if (int64_t(in.size()) < n) in.resize(n), out.resize(n), spare.resize(n);
        for (int64_t e = 0; e < n; ++e) in[e] = total[bits[a + e]] - old[a + e];
        answer(in.data(), out.data(), product ? spare.data() : nullptr, n,
               load(even + c * batch + l, live), 1.0);
        for (int64_t e = 0; e < n; ++e) {
          const Shots x = within(out[e], most), y = within(x, seen), z = size_of(y);
          const Shots change = size_of(y - within(old[a + e], seen));
          largest = -smaller(-largest, -change / chosen((Mask)(z < 1.0), Shots{} + 1.0, z));
          store(odds + (a + e) * batch + l, keep * old[a + e] + (1 - keep) * x, live);
        }
      }
      store(changes + l, largest, live);
    }
  }
};

// starts (checks + 1) and bits (edges) of the checks; columns (bits + 1) and edges (edges, 2) of
// the bits, with their checks. damping: (edges) shares that old messages of checks keep, or null.
// syndrome: (batch, checks). Ratios: log-probability of 0 less that of 1.
struct Decode {
  const int64_t *starts, *bits, *columns, *edges;
  const double *prior, *damping;
  const int8_t* syndrome;
  double* posterior;
  int64_t* iterations;
  int64_t checks, count, batch, most, stride;  // stride: between the priors of shots
  double scale;
  bool product, serial;

  Shots damped(Shots x, Shots old, int64_t e) const {  // what is certain is not damped
    if (!damping || damping[e] == 0) return x;
    return chosen((Mask)(size_of(x) < kFarthest), x + damping[e] * (old - x), x);
  }

  void run(int64_t first, int64_t last) const {
    const int64_t size = starts[checks];
    std::vector<Shots> in(size), out(size), total(count), spare(size), own(count), old;
    std::vector<Shots> even(checks, Shots{} + kFarthest);
    std::array<int64_t, kShots> item, done{};
    item.fill(-1);
    int64_t next = first, busy = 0;
    auto load = [&](int64_t l) {
      item[l] = next < last ? next++ : -1;
      if (item[l] < 0) return;
      ++busy, done[l] = 0;
      for (int64_t v = 0; v < count; ++v) own[v][l] = prior[item[l] * stride + v];
      for (int64_t c = 0; c < checks; ++c) {
        even[c][l] = syndrome[item[l] * checks + c] == 1 ? -kFarthest : kFarthest;
        for (int64_t e = starts[c]; e < starts[c + 1]; ++e)
          in[e][l] = own[bits[e]][l], out[e][l] = 0;
      }
    };
    auto alone = [&](int64_t c, int64_t own) {
      Shots least = size_of(even[c]), odds{};
      Mask signs = negative(even[c]);
      for (int64_t e = starts[c]; e < starts[c + 1]; ++e) {
        if (e == own) continue;
        least = smaller(size_of(in[e]), least);
        signs ^= negative(in[e]);
        if (product) odds = joined(odds, spare[e]);
      }
      if (product) least = smaller(least, -log_of<double>(odds));
      const Shots x = turned(product ? least : scale * least, signs);
      out[own] = damped(x, out[own], own);
    };
    for (int64_t l = 0; l < kShots; ++l) load(l);
    while (busy) {
      if (!serial) {
        if (damping) old = out;
        for (int64_t c = 0; c < checks; ++c) {
          const int64_t a = starts[c], n = starts[c + 1] - a;
          answer(&in[a], &out[a], product ? &spare[a] : nullptr, n, even[c], scale);
        }
        for (int64_t e = 0; damping && e < size; ++e) out[e] = damped(out[e], old[e], e);
      } else if (product) {
        for (int64_t e = 0; e < size; ++e) spare[e] = exp_of<double>(-size_of(in[e]));
      }
      for (int64_t v = 0; v < count; ++v) {
        Shots sum = own[v], after{};
        for (int64_t k = columns[v]; k < columns[v + 1]; ++k) {
          const int64_t e = edges[2 * k];
          if (serial) alone(edges[2 * k + 1], e);
          in[e] = sum;
          sum += out[e];
        }
        total[v] = sum;
        for (int64_t k = columns[v + 1] - 1; k >= columns[v]; --k) {
          const int64_t e = edges[2 * k];
          in[e] += after;
          after += out[e];
          if (serial && product) spare[e] = exp_of<double>(-size_of(in[e]));
        }
      }
      Mask wrong{};
      for (int64_t c = 0; c < checks; ++c) {
        Mask parity = negative(even[c]);
        for (int64_t e = starts[c]; e < starts[c + 1]; ++e) parity ^= negative(total[bits[e]]);
        wrong |= parity;
      }
      for (int64_t l = 0; l < kShots; ++l) {
        if (item[l] < 0 || (++done[l] < most && wrong[l])) continue;
        iterations[item[l]] = done[l];
        for (int64_t v = 0; v < count; ++v) posterior[item[l] * count + v] = total[v][l];
        --busy;
        load(l);
      }
    }
  }
};

}  // namespace
