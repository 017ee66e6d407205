// Sums over errors that explain syndromes, by exact sweeps over the parities of open checks, with a shot in each
// vector lane.
//
// m(x) is the mass of all errors so far whose residual parities at the open checks are x, bit by bit in an index.
// With weights q_e (absent) and p_e (present) of an error, a step of the program makes of it:
//
//   check opens:           m'(x, 0) = m(x),  m'(x, 1) = 0
//   error e at checks M:   m'(x) = q_e m(x) + p_e m(x xor M)
//   check c closes:        m'(x) = [s_c != 1] m(x, 0) + [s_c != 0] m(x, 1)
//
// with max in place of + for the most probable errors. Z is the mass that is left when all checks are closed. Back
// from there the derivatives of log Z in the masses (`bar`) go through the transposes of the same steps, and draws or
// the best error choose one of the two terms at each. `now` has the masses, `even` and `odd` the weights, `zero` and
// `one` whether the syndrome allows either parity of a check.

#pragma once

#include "logs.h"
#include "threads.h"

namespace {

using Shots = typename Vector<double>::type;
constexpr int64_t kShots = lanes<double>();
constexpr double kFaint = 1e-30;  // a total below which masses are scaled up

// steps: (count, 3), as in `Program`. weights: (items or 1, columns, 2). syndrome: (items, checks) of
// 0, 1, and -1 where unknown.
struct Parity {
  const int64_t* steps;
  int64_t count;
  const double* weights;
  int64_t stride;
  const int8_t* syndrome;
  int64_t checks, columns, batch;
  bool best;
};

struct Sweep {
  const Parity& p;
  int64_t first, live;
  std::vector<Shots> even, odd, zero, one, now, spare, log_scale;
  int64_t size;

  Sweep(const Parity& parity, int64_t item)
      : p(parity), first(item), live(std::min(kShots, parity.batch - item)), even(p.columns),
        odd(p.columns), zero(p.checks), one(p.checks) {
    // Lanes beyond the last shot repeat it, and are not written.
    for (int64_t l = 0; l < kShots; ++l) {
      const int64_t at = first + std::min(l, live - 1);
      const double* w = p.weights + at * p.stride;
      for (int64_t e = 0; e < p.columns; ++e) even[e][l] = w[2 * e], odd[e][l] = w[2 * e + 1];
      const int8_t* s = p.syndrome + at * p.checks;
      for (int64_t c = 0; c < p.checks; ++c) zero[c][l] = s[c] != 1, one[c][l] = s[c] != 0;
    }
    begin();
  }

  void begin() {
    now.assign(1, Shots{} + 1.0);
    size = 1;
  }

  Shots larger(Shots a, Shots b) const {
    for (int64_t l = 0; l < kShots; ++l) a[l] = a[l] > b[l] ? a[l] : b[l];
    return a;
  }

  // One step; returns the factor that it multiplied the masses by.
  Shots step(const int64_t* s) {
    Shots factor = Shots{} + 1.0;
    // A check opens: twice as many parities, half of which no error has reached.
    if (s[0] == 0) {
      now.resize(2 * size);
      std::fill(now.begin() + size, now.end(), Shots{});
      size *= 2;
    } else if (s[0] == 1) {
      // An error: x and x xor mask exchange mass; `top` makes each pair come up once. One at no open check
      // multiplies all masses.
      const uint64_t mask = s[1];
      const Shots q = even[s[2]], p1 = odd[s[2]];
      if (!mask) {
        const Shots all = p.best ? larger(q, p1) : q + p1;
        for (int64_t i = 0; i < size; ++i) now[i] *= all;
        return factor;
      }
      const int64_t top = int64_t(1) << (63 - __builtin_clzll(mask));
      for (int64_t hi = 0; hi < size; hi += 2 * top)
        for (int64_t i = hi; i < hi + top; ++i) {
          Shots &x = now[i], &y = now[i ^ mask];
          const Shots a = x, b = y;
          x = p.best ? larger(q * a, p1 * b) : q * a + p1 * b;
          y = p.best ? larger(q * b, p1 * a) : q * b + p1 * a;
        }
    } else {
      // A check closes: the parity that disagrees with the syndrome is dropped, and faint masses are scaled
      // up.
      const int64_t low = int64_t(1) << s[1];
      const Shots z = zero[s[2]], o = one[s[2]];
      Shots total{};
      int64_t to = 0;
      for (int64_t hi = 0; hi < size; hi += 2 * low)
        for (int64_t i = hi; i < hi + low; ++i, ++to) {
          const Shots a = z * now[i], b = o * now[i + low];
          now[to] = p.best ? larger(a, b) : a + b;
          total += now[to];
        }
      size /= 2;
      bool faint = false;
      for (int64_t l = 0; l < kShots; ++l)
        if (total[l] > 0 && total[l] < kFaint) factor[l] = 1 / total[l], faint = true;
      if (faint)
        for (int64_t i = 0; i < size; ++i) now[i] *= factor;
    }
    return factor;
  }

  // The logarithms of a sweep's final masses, (final) for each item.
  void sums(double* out, int64_t final) {
    Shots logs{};
    for (int64_t t = 0; t < p.count; ++t) {
      const Shots factor = step(p.steps + 3 * t);
      if (p.steps[3 * t] == 2)
        for (int64_t l = 0; l < kShots; ++l)
          if (factor[l] != 1) logs[l] -= std::log(factor[l]);
    }
    for (int64_t l = 0; l < live; ++l)
      for (int64_t i = 0; i < final; ++i)
        out[(first + l) * final + i] = std::log(now[i][l]) + logs[l];
  }

  // Visits all steps from the last to the first, with the masses before each: stored at the first
  // step of a segment, recomputed within it.
  template <typename Start, typename Visit> void backwards(Start start, Visit visit) {
    const int64_t span = std::max<int64_t>(1, std::sqrt(double(p.count)));
    std::vector<std::vector<Shots>> starts, before(span);
    std::vector<Shots> factors(p.count);
    begin();
    for (int64_t t = 0; t < p.count; ++t) {
      if (t % span == 0) starts.emplace_back(now.begin(), now.begin() + size);
      factors[t] = step(p.steps + 3 * t);
    }
    start();
    for (int64_t t = (p.count - 1) / span * span; t >= 0 && p.count; t -= span) {
      const int64_t end = std::min(p.count, t + span);
      now = starts.back(), size = now.size();
      starts.pop_back();
      for (int64_t k = t; k < end; ++k) {
        before[k - t].assign(now.begin(), now.begin() + size);
        step(p.steps + 3 * k);
      }
      for (int64_t k = end - 1; k >= t; --k) visit(k, p.steps + 3 * k, before[k - t], factors[k]);
    }
  }

  // Adds to the gradients (items or 1, columns, 2) of sum_i pull_i log out_i in the weights.
  void gradient(const double* pull, int64_t final, double* grads) {
    std::vector<Shots> bar, wide;
    backwards(
        [&] {
          // d log m / dm at the end.
          bar.assign(final, Shots{});
          for (int64_t l = 0; l < live; ++l)
            for (int64_t i = 0; i < final; ++i)
              if (now[i][l] > 0) bar[i][l] = pull[(first + l) * final + i] / now[i][l];
        },
        [&](int64_t, const int64_t* s, const std::vector<Shots>& v, Shots factor) {
          const int64_t n = v.size();
          // The transpose of each step, last first: what opened is cut off, an error has its own transpose,
          // and a closed check gives back both parities. g0 and g1 are the derivatives in q_e and p_e.
          if (s[0] == 0) {
            bar.resize(n);
          } else if (s[0] == 1) {
            const uint64_t mask = s[1];
            const Shots q = even[s[2]], p1 = odd[s[2]];
            Shots g0{}, g1{};
            if (!mask) {
              for (int64_t i = 0; i < n; ++i) g0 += bar[i] * v[i], bar[i] *= q + p1;
              g1 = g0;
            } else {
              const int64_t top = int64_t(1) << (63 - __builtin_clzll(mask));
              for (int64_t hi = 0; hi < n; hi += 2 * top)
                for (int64_t i = hi; i < hi + top; ++i) {
                  const int64_t j = i ^ mask;
                  const Shots a = v[i], b = v[j], x = bar[i], y = bar[j];
                  g0 += x * a + y * b;
                  g1 += x * b + y * a;
                  bar[i] = q * x + p1 * y;
                  bar[j] = q * y + p1 * x;
                }
            }
            for (int64_t l = 0; l < live; ++l) {
              double* g = grads + (first + l) * p.stride + 2 * s[2];
              g[0] += g0[l], g[1] += g1[l];
            }
          } else {
            const int64_t low = int64_t(1) << s[1];
            const Shots z = zero[s[2]] * factor, o = one[s[2]] * factor;
            wide.resize(n);
            int64_t from = 0;
            for (int64_t hi = 0; hi < n; hi += 2 * low)
              for (int64_t i = hi; i < hi + low; ++i, ++from)
                wide[i] = z * bar[from], wide[i + low] = o * bar[from];
            bar.swap(wide);
          }
        });
  }

  // Errors (draws, items, columns) of each item: the most probable, or draws.
  void paths(uint64_t seed, int64_t draws, uint8_t* found) {
    std::vector<uint64_t> at(draws * live, 0);
    auto second = [&](double a, double b, int64_t draw, int64_t item, int64_t t) {
      if (p.best) return b > a;
      const uint64_t mixed = hashed(hashed(seed + t) ^ hashed(draw * p.batch + item + 1));
      return double(mixed >> 11) * 0x1p-53 * (a + b) < b;
    };
    backwards([] {}, [&](int64_t t, const int64_t* s, const std::vector<Shots>& v, Shots) {
      for (int64_t d = 0; d < draws; ++d)
        for (int64_t l = 0; l < live; ++l) {
          uint64_t& x = at[d * live + l];
          if (s[0] == 1) {
            const double a = even[s[2]][l] * v[x][l], b = odd[s[2]][l] * v[x ^ s[1]][l];
            const bool flip = second(a, b, d, first + l, t);
            found[(d * p.batch + first + l) * p.columns + s[2]] = flip;
            if (flip) x ^= s[1];
          } else if (s[0] == 2) {
            const uint64_t low = uint64_t(1) << s[1];
            x = (x & (low - 1)) | ((x & ~(low - 1)) << 1);
            const double a = zero[s[2]][l] * v[x][l], b = one[s[2]][l] * v[x | low][l];
            if (second(a, b, d, first + l, t)) x |= low;
          }
        }
    });
  }

  static uint64_t hashed(uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
};

// Groups of shots, divided among threads.
template <typename Run> void by_shots(const Parity& p, int threads, Run run) {
  by_items((p.batch + kShots - 1) / kShots, threads, [&](int64_t a, int64_t b) {
    for (int64_t group = a; group < b; ++group) {
      Sweep sweep(p, group * kShots);
      run(sweep);
    }
  });
}

}  // namespace
