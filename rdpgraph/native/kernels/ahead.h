// What the steps ahead of a sweep over kept states make of a state, as a product over open checks: an
// estimate, by which states are compared, and an upper bound, for what is dropped.
//
// Let F_t(x) be the mass of all errors after step t that leave every check explained, from residual
// parities x of the open checks. Both are products over the open checks c of pairs (f_c(0), f_c(1)).
//
// The estimate is belief propagation in the order of the sweep. An error sends each of its checks the
// log-odds that it happened, by its weight and by its other checks; f_c is the distribution of the
// parity of the errors that are still ahead of c. Parities are kept as h = P(even) - P(odd), whose
// products are those of independent parts.
//
// The bound goes back once. An error e of k checks, with weights q (absent) and o (present), has
//   F(x) = q prod_c f_c(x_c) + o prod_c f_c(1 - x_c) <= q prod_c (f_c(x_c)^k + (w_c f_c(1 - x_c))^k)^(1/k)
// for any w with prod_c w_c = o / q, by Hoelder's inequality. Equality holds where all terms have
// the same ratio; w makes it so at the parities that the estimate expects.

#pragma once

#include "parity.h"

namespace {

struct Ahead {
  struct Pair {
    double of[2];
  };
  static constexpr double kSure = 1 - 1e-12;  // of estimates: nothing is certain by them
  static constexpr double kUnlikely = 1e-3;   // the least chance that a bound is fitted to
  static constexpr double kDamping = 0.3;     // the share of its old message that an error keeps
  static constexpr int kRounds = 3;           // more change the masses kept by less than 0.1%

  const Parity& p;
  std::vector<int64_t> start;                 // (count + 1) the first edge of each step
  std::vector<int32_t> check, slot;           // of each edge
  std::vector<double> sent, after, before;    // of each edge: its message; h of c after e, and before
  std::vector<double> opening, h;             // of each check: h of all its errors; h now
  std::vector<Pair> bound, bound_opening;     // as `after` and `opening`, for the bound
  std::vector<double> log_bound, log_sum;     // after each step: the bound's constant, and all weights
  std::vector<Pair> now;                      // bounds of checks during the pass back
  std::vector<double> delta, even, odd;       // of the edges of one step

  std::vector<int32_t> open;                  // of each slot: its check before the first step, or -1
  int64_t sweep;                              // the steps that the bound is about

  Ahead(const Parity& parity, int64_t steps, const uint64_t* masks, int words, int64_t seen,
        const std::vector<int32_t>& given)
      : p(parity), start(1, 0), open(given), sweep(steps) {
    std::vector<int32_t> at = open;
    int64_t most = 0;
    for (int64_t t = 0; t < p.count; ++t) {
      const int64_t* s = p.steps + 3 * t;
      if (s[0] == 0) at[s[1]] = s[2];
      for (int k = 0; s[0] == 1 && k < 64 * words - seen; ++k)
        if (masks[s[2] * words + k / 64] >> (k % 64) & 1) check.push_back(at[k]), slot.push_back(k);
      start.push_back(check.size());
      most = std::max(most, start[t + 1] - start[t]);
    }
    for (auto* each : {&sent, &after, &before}) each->resize(check.size());
    for (auto* each : {&delta, &even, &odd}) each->resize(most);
    opening.resize(p.checks), h.resize(p.checks), now.resize(p.checks);
    bound_opening.resize(p.checks), bound.resize(check.size());
    log_bound.resize(p.count + 1), log_sum.resize(p.count + 1);
  }

  // New messages of one error to its k checks, whose other parities are `delta`.
  void answer(int64_t first, int64_t k, const double* w) {
    double e = w[0], o = w[1];
    for (int64_t j = 0; j < k; ++j) {
      even[j] = e, odd[j] = o;
      e *= 1 + delta[j], o *= 1 - delta[j];
      if (e + o < 1e-100) e *= 1e100, o *= 1e100;
    }
    e = o = 1;
    for (int64_t j = k - 1; j >= 0; --j) {
      const double a = even[j] * e, b = odd[j] * o, fresh = a + b > 0 ? (a - b) / (a + b) : 0;
      double& x = sent[first + j];
      x = std::min(std::max(kDamping * x + (1 - kDamping) * fresh, -kSure), kSure);
      e *= 1 + delta[j], o *= 1 - delta[j];
      if (e + o < 1e-100) e *= 1e100, o *= 1e100;
    }
  }

  // The messages of one shot: rounds forwards and backwards. `begin` (checks): h of the residual
  // parities of the checks that are open before the first step.
  void estimate(const double* w, const int8_t* s, const std::vector<double>& begin) {
    for (int64_t t = 0; t < p.count; ++t) {
      const double* each = w + 2 * p.steps[3 * t + 2];
      if (p.steps[3 * t] != 1) continue;
      const double x = (each[0] - each[1]) / (each[0] + each[1]);
      for (int64_t j = start[t]; j < start[t + 1]; ++j)
        sent[j] = std::min(std::max(x, -kSure), kSure);
    }
    for (int round = 0; round <= kRounds; ++round) {
      if (round) h = begin;
      for (int64_t t = 0; round && t < p.count; ++t) {
        const int64_t *step = p.steps + 3 * t, f = start[t], k = start[t + 1] - f;
        if (step[0] == 0) h[step[2]] = s[step[2]] < 0 ? 0 : s[step[2]] ? -1 : 1;
        if (step[0] != 1) continue;
        for (int64_t j = 0; j < k; ++j)
          before[f + j] = h[check[f + j]], delta[j] = before[f + j] * after[f + j];
        answer(f, k, w + 2 * step[2]);
        for (int64_t j = 0; j < k; ++j) h[check[f + j]] *= sent[f + j];
      }
      std::fill(h.begin(), h.end(), 0.0);  // checks that stay open are not known
      for (int64_t t = p.count - 1; t >= 0; --t) {
        const int64_t *step = p.steps + 3 * t, f = start[t], k = start[t + 1] - f;
        if (step[0] == 2) h[step[2]] = 1;
        if (step[0] == 0) opening[step[2]] = h[step[2]];
        if (step[0] != 1) continue;
        for (int64_t j = 0; j < k; ++j)
          after[f + j] = h[check[f + j]], delta[j] = before[f + j] * after[f + j];
        if (round) answer(f, k, w + 2 * step[2]);
        for (int64_t j = 0; j < k; ++j) h[check[f + j]] *= sent[f + j];
      }
    }
  }

  // The logarithm of the bound before the first step.
  double log_most() const {
    return std::isfinite(log_bound[0]) ? std::min(log_bound[0], log_sum[0]) : log_sum[0];
  }

  static Pair pair(double h) {
    const double top = 1 + std::abs(h);
    return {{(1 + h) / top, (1 - h) / top}};
  }

  // (x^k + y^k)^(1/k), without overflow.
  static double norm(double x, double y, int64_t k) {
    const double top = std::max(x, y), low = std::min(x, y);
    if (!(low > 0)) return top;
    double power = low / top;
    const double r = power;
    for (int64_t i = 1; i < k; ++i) power *= r;
    return top * root(1 + power, k);
  }
  static double root(double x, int64_t k) {
    return k == 1 ? x : k == 2 ? std::sqrt(x) : k == 4 ? std::sqrt(std::sqrt(x)) : std::pow(x, 1.0 / k);
  }

  // The bounds of one shot, after its estimates.
  void bounds(const double* w, const int8_t* s) {
    double logs = 0, sums = 0;
    std::fill(now.begin(), now.end(), Pair{{1, 1}});  // checks that stay open may have either parity
    for (int64_t t = sweep - 1; t >= 0; --t) {
      log_bound[t + 1] = logs, log_sum[t + 1] = sums;
      const int64_t* step = p.steps + 3 * t;
      const int64_t c = step[2];
      if (step[0] == 2) now[c] = {{1, s[c] < 0 ? 1.0 : 0.0}};
      if (step[0] == 0) bound_opening[c] = now[c];
      if (step[0] == 0 && s[c] >= 0) logs += std::log(now[c].of[s[c]]);
      if (step[0] != 1) continue;
      const double q = w[2 * c], o = w[2 * c + 1];
      sums += std::log(q + o);
      // Chances of the error by its checks: `even` and `odd` are the mass without it, and with it.
      double odds = o / q;
      int64_t k = 0;
      for (int64_t j = start[t]; j < start[t + 1]; ++j) {
        const Pair& f = bound[j] = now[check[j]];
        if (s[check[j]] < 0) continue;
        const double one = std::min(std::max((1 - before[j]) / 2, kUnlikely), 1 - kUnlikely);
        even[k] = (1 - one) * f.of[0] + one * f.of[1];
        odd[k] = (1 - one) * f.of[1] + one * f.of[0];
        odds *= odd[k] / even[k], ++k;
      }
      logs += std::log(k ? (q > 0 ? q : o) : q + o);
      if (!k || o == 0) continue;
      const double share = root(odds, k);
      for (int64_t j = start[t], at = 0; j < start[t + 1]; ++j) {
        if (s[check[j]] < 0) continue;
        Pair& f = now[check[j]];
        const double w_c = share * even[at] / odd[at], a = f.of[0], b = f.of[1];
        ++at;
        f = q > 0 ? Pair{{norm(a, w_c * b, k), norm(b, w_c * a, k)}} : Pair{{b, a}};
        const double top = std::max(f.of[0], f.of[1]);
        f.of[0] /= top, f.of[1] /= top, logs += std::log(top);
      }
    }
    log_bound[0] = logs, log_sum[0] = sums;
  }
};

}  // namespace
