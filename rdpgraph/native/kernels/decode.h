// Belief propagation on parity checks, a shot in each vector lane; a lane takes the next shot when its
// syndrome is met.
//
// With log-odds log P(0) / P(1), a bit v sends to its check c all that it knows but what c sent, and c answers by
// the parity of its other bits, the sign of which is that of its syndrome s_c:
//
//   in_vc  = prior_v + sum_(d != c) out_dv,
//   out_cv = (-1)^s_c 2 atanh prod_(u != v) tanh(in_uc / 2)                      (sums), or
//   out_cv = (-1)^s_c scale prod_(u != v) sign(in_uc) min_(u != v) |in_uc|       (maxima).
//
// A product of tanh is taken as odds exp(-|in|) of an odd parity, joined as (a + b) / (1 + a b), which does not cancel.
// In the code `in`, `out` are the messages along edges, `total` the beliefs prior_v + sum_d out_dv, `even` the log-odds
// of each check's parity, +inf or -inf where its syndrome is known. `serial` reads new messages as soon as they are
// there; otherwise all checks answer first, and then all bits.

#pragma once

#include <array>

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
using Bytes = int8_t __attribute__((vector_size(kShots)));
inline Bytes decided(Shots x) { return __builtin_convertvector((Mask)(x <= Shots{}), Bytes); }
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
    // Beliefs are the priors and all messages; every check then answers what is left without its own.
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
          // Limits keep messages finite; the largest change is relative for large messages.
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

// starts (checks + 1) of the checks' edges, and (edges, 2) their places by bits and their bits; columns
// (bits + 1) of the edges by bits, and their checks. damping: (edges by bits) shares that old messages
// of checks keep, or null. syndrome: (batch, checks). Ratios: log-probability of 0 less that of 1.
struct Decode {
  const int64_t *starts, *edges, *columns, *owners;
  const double *prior, *damping;
  const int8_t* syndrome;
  double* posterior;
  int64_t *errors, *iterations, *violated;
  int64_t checks, count, batch, most, stride;  // stride: between the priors of shots
  double scale;
  bool product, serial;

  // What a check sends, without scale: to the bit of its least message another.
  struct Sent {
    Shots least, second;
    Mask signs;
  };

  Shots damped(Shots x, Shots* out, int64_t k) const {  // what is certain is not damped
    if (!damping) return x;
    if (damping[k] != 0)
      x = chosen((Mask)(size_of(x) < kFarthest), x + damping[k] * (out[k] - x), x);
    return out[k] = x;
  }

  // Beliefs of all bits, and what they send to each of their checks: all but what it sent. A bit whose
  // prior is certain keeps and sends that, whatever checks say.
  template <typename Message>
  void gather(const Shots* channel, Shots* in, Shots* exps, Shots* total, Bytes* hard, Shots* room,
              Message message) const {
    for (int64_t v = 0; v < count; ++v) {
      const int64_t a = columns[v], n = columns[v + 1] - a;
      Shots sum = channel[v], after{};
      for (int64_t k = 0; k < n; ++k) {
        room[2 * k] = sum, room[2 * k + 1] = message(a + k);
        sum += room[2 * k + 1];
      }
      const Mask open = (Mask)(size_of(channel[v]) < kFarthest);
      sum = chosen(open, sum, channel[v]);
      total[v] = sum, hard[v] = decided(sum);
      for (int64_t k = n - 1; k >= 0; --k) {
        in[a + k] = chosen(open, room[2 * k] + after, channel[v]);
        after += room[2 * k + 1];
        if (exps) exps[a + k] = exp_of<double>(-size_of(in[a + k]));
      }
    }
  }

  Sent summary(int64_t c, Shots even, const Shots* in) const {
    Sent sent{size_of(even), Shots{} + kFarthest, negative(even)};
    for (int64_t e = starts[c]; e < starts[c + 1]; ++e) {
      const Shots x = in[edges[2 * e]], size = size_of(x);
      sent.signs ^= negative(x);
      sent.second = smaller(sent.second, chosen((Mask)(size < sent.least), sent.least, size));
      sent.least = smaller(size, sent.least);
    }
    return sent;
  }

  Shots alone(int64_t edge, Shots even, const Shots* in, const Shots* exps) const {
    const int64_t c = owners[edge];
    Shots least = size_of(even), odds{};
    Mask signs = negative(even);
    for (int64_t e = starts[c]; e < starts[c + 1]; ++e) {
      const int64_t k = edges[2 * e];
      if (k == edge) continue;
      least = smaller(size_of(in[k]), least);
      signs ^= negative(in[k]);
      if (product) odds = joined(odds, exps[k]);
    }
    if (product) least = smaller(least, -log_of<double>(odds));
    return turned(product ? least : scale * least, signs);
  }

  void run(int64_t first, int64_t last) const {
    // Room by edges: `in`, what bits send, `out`, what checks sent before (for damping), and `exps`, the
    // odds of messages.
    const int64_t size = starts[checks];
    int64_t widest = 0;
    for (int64_t c = 0; c < checks; ++c) widest = std::max(widest, starts[c + 1] - starts[c]);
    for (int64_t v = 0; v < count; ++v) widest = std::max(widest, columns[v + 1] - columns[v]);
    std::vector<Shots> in(size), total(count), channel(count), room(3 * widest);
    std::vector<Shots> out(damping || (product && !serial) ? size : 0);
    std::vector<Shots> exps(product && serial ? size : 0), even(checks, Shots{} + kFarthest);
    std::vector<Sent> sent(product || serial ? 0 : checks);
    std::vector<Bytes> hard(count), odd(checks), unmet(checks);
    std::array<int64_t, kShots> item, done{};
    item.fill(-1);
    int64_t next = first, busy = 0;
    // Lane l takes the next shot: its syndrome, its priors, and no messages yet.
    auto load = [&](int64_t l) {
      item[l] = next < last ? next++ : -1;
      if (item[l] < 0) return;
      ++busy, done[l] = 0;
      for (int64_t c = 0; c < checks; ++c) {
        odd[c][l] = -(syndrome[item[l] * checks + c] == 1);
        even[c][l] = odd[c][l] ? -kFarthest : kFarthest;
      }
      for (int64_t v = 0; v < count; ++v) {
        channel[v][l] = prior[item[l] * stride + v];
        const double odds = exps.empty() ? 0 : std::exp(-std::abs(channel[v][l]));
        for (int64_t k = columns[v]; k < columns[v + 1]; ++k) {
          in[k][l] = channel[v][l];
          if (!out.empty()) out[k][l] = 0;
          if (!exps.empty()) exps[k][l] = odds;
        }
      }
    };
    auto each = [&](auto message) {
      Shots* odds = exps.empty() ? nullptr : exps.data();
      gather(channel.data(), in.data(), odds, total.data(), hard.data(), room.data(), message);
    };
    for (int64_t l = 0; l < kShots; ++l) load(l);
    while (busy) {
      // One iteration. Serial: bit after bit, from the newest messages. Sums: all answers of a check at
      // once. Maxima: the two smallest sizes of a check and its sign say what it sends to any bit.
      if (serial) {
        each([&](int64_t k) {
          const Shots x = alone(k, even[owners[k]], in.data(), exps.data());
          return damped(x, out.data(), k);
        });
      } else if (product) {
        for (int64_t c = 0; c < checks; ++c) {
          const int64_t a = starts[c], n = starts[c + 1] - a;
          Shots *mine = room.data(), *sum = mine + n;
          for (int64_t e = 0; e < n; ++e) mine[e] = in[edges[2 * (a + e)]];
          answer(mine, sum, sum + n, n, even[c], scale);
          for (int64_t e = 0; e < n; ++e) {
            const int64_t k = edges[2 * (a + e)];
            out[k] = damped(sum[e], out.data(), k);
          }
        }
        each([&](int64_t k) { return out[k]; });
      } else {
        for (int64_t c = 0; c < checks; ++c) sent[c] = summary(c, even[c], in.data());
        each([&](int64_t k) {
          const Sent& s = sent[owners[k]];
          const Shots x = chosen((Mask)(size_of(in[k]) == s.least), s.second, s.least);
          return damped(turned(scale * x, s.signs ^ negative(in[k])), out.data(), k);
        });
      }
      // Lanes end whose decisions meet their syndromes, or whose iterations are used up.
      Bytes wrong{};
      for (int64_t c = 0; c < checks; ++c) {
        unmet[c] = odd[c];
        for (int64_t e = starts[c]; e < starts[c + 1]; ++e) unmet[c] ^= hard[edges[2 * e + 1]];
        wrong |= unmet[c];
      }
      for (int64_t l = 0; l < kShots; ++l) {
        if (item[l] < 0 || (++done[l] < most && wrong[l])) continue;
        iterations[item[l]] = done[l], violated[item[l]] = 0;
        for (int64_t c = 0; wrong[l] && c < checks; ++c) violated[item[l]] -= unmet[c][l];
        for (int64_t v = 0; v < count; ++v) {
          const double x = total[v][l];
          posterior[item[l] * count + v] = x == x ? -x : 0;
          errors[item[l] * count + v] = x <= 0;
        }
        --busy;
        load(l);
      }
    }
  }
};

}  // namespace
