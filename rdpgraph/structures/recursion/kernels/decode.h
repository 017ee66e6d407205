// Belief propagation on parity checks, a shot in each vector lane; a lane takes the next shot when its
// syndrome is met.

#pragma once

#include "parity.h"

namespace {

using Mask = decltype(Shots{} < Shots{});

inline Shots chosen(Mask mask, Shots a, Shots b) {
  return (Shots)(((Mask)a & mask) | ((Mask)b & ~mask));
}

// starts (checks + 1) and bits (edges) of the checks; columns (bits + 1) and edges (edges, 2) of
// the bits, with their checks. syndrome: (batch, checks). Ratios: log-probability of 0 less that of 1.
struct Decode {
  const int64_t *starts, *bits, *columns, *edges;
  const double* prior;
  const int8_t* syndrome;
  double* posterior;
  int64_t* iterations;
  int64_t checks, count, batch, most;
  double scale;
  bool product, serial;

  void run(int64_t first, int64_t last) const {
    const int64_t size = starts[checks];
    const Mask sign = Mask{} + std::numeric_limits<int64_t>::min();
    const Shots far = Shots{} + std::numeric_limits<double>::infinity();
    const Shots below = Shots{} + std::nextafter(1.0, 0.0);
    std::vector<Shots> in(size), out(size), total(count), spare(size);
    std::vector<Mask> odd(checks, Mask{});
    std::array<int64_t, kShots> item, done{};
    item.fill(-1);
    int64_t next = first, busy = 0;
    auto load = [&](int64_t l) {
      item[l] = next < last ? next++ : -1;
      if (item[l] < 0) return;
      ++busy, done[l] = 0;
      for (int64_t c = 0; c < checks; ++c) {
        odd[c][l] = syndrome[item[l] * checks + c] == 1 ? sign[0] : 0;
        for (int64_t e = starts[c]; e < starts[c + 1]; ++e) in[e][l] = prior[bits[e]];
      }
    };
    auto negative = [&](Shots x) { return (Mask)(x <= Shots{}) & sign; };
    auto size_of = [&](Shots x) { return (Shots)((Mask)x & ~sign); };
    auto turned = [&](Shots x, Mask by) { return (Shots)((Mask)x ^ by); };
    auto ratio = [&](Shots x) {
      for (int64_t l = 0; l < kShots; ++l) {
        const double y = std::max(-below[l], std::min(below[l], x[l]));
        x[l] = std::log((1 + y) / (1 - y));
      }
      return x;
    };
    auto half = [&](Shots x) {
      for (int64_t l = 0; l < kShots; ++l) x[l] = std::tanh(x[l] / 2);
      return x;
    };
    auto flood = [&](int64_t c) {
      const int64_t a = starts[c], b = starts[c + 1];
      if (product) {
        Shots before = Shots{} + 1.0;
        for (int64_t e = a; e < b; ++e) out[e] = before, spare[e] = half(in[e]), before *= spare[e];
        Shots after = Shots{} + 1.0;
        for (int64_t e = b - 1; e >= a; --e) {
          out[e] = turned(ratio(out[e] * after), odd[c]);
          after *= spare[e];
        }
        return;
      }
      Shots least = far, second = far;
      Mask signs = odd[c];
      for (int64_t e = a; e < b; ++e) {
        const Shots x = size_of(in[e]);
        signs ^= negative(in[e]);
        const Mask less = (Mask)(x < least);
        const Shots rest = chosen(less, least, x);
        second = chosen((Mask)(rest < second), rest, second);
        least = chosen(less, x, least);
      }
      for (int64_t e = a; e < b; ++e) {
        const Shots x = chosen((Mask)(size_of(in[e]) == least), second, least);
        out[e] = turned(scale * x, signs ^ negative(in[e]));
      }
    };
    auto alone = [&](int64_t c, int64_t own) {
      Shots x = product ? Shots{} + 1.0 : far;
      Mask signs = odd[c];
      for (int64_t e = starts[c]; e < starts[c + 1]; ++e) {
        if (e == own) continue;
        if (product) {
          x *= spare[e];
        } else {
          const Shots y = size_of(in[e]);
          x = chosen((Mask)(y < x), y, x);
          signs ^= negative(in[e]);
        }
      }
      out[own] = turned(product ? ratio(x) : scale * x, signs);
    };
    for (int64_t l = 0; l < kShots; ++l) load(l);
    while (busy) {
      if (!serial)
        for (int64_t c = 0; c < checks; ++c) flood(c);
      else if (product)
        for (int64_t e = 0; e < size; ++e) spare[e] = half(in[e]);
      for (int64_t v = 0; v < count; ++v) {
        Shots sum = Shots{} + prior[v], after{};
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
          if (serial && product) spare[e] = half(in[e]);
        }
      }
      Mask wrong{};
      for (int64_t c = 0; c < checks; ++c) {
        Mask parity = odd[c];
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
