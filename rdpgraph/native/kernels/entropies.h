// Entropies of chains with a table for each step, by two passes over each table, one of them for gradients.
//
// With p the distribution of sequences, scores u_t(x_t) and theta_t(x_t, x_t+1), and v_t = u_t less a base measure,
//
//   H = log Z - E_p[sum_t v_t(x_t) + sum_t theta_t(x_t, x_t+1)].
//
// Upwards, f_t(i) is the probability of state i given the prefix that ends there, and s_t(i) the expected score of
// that prefix given i. With w_ij = exp(theta_ij), before f is normalised and s is centred,
//
//   z_t+1(j) = sum_i f_t(i) w_ij,     f_t+1(j) = exp(u_t+1(j)) z_t+1(j),
//   s_t+1(j) = sum_i f_t(i) w_ij (s_t(i) + theta_ij) / z_t+1(j) + v_t+1(j).
//
// Downwards, b_t(i) is the sum over the suffixes after i, y = exp(u) b, and c_t(i) is v_t(i) plus the expected score
// of the suffix after i. With p_ij = f_t(i) w_ij y_t+1(j) / norm the derivative of the entropy is minus a covariance:
//
//   dH / dtheta_ij = -p_ij (s_t(i) + theta_ij + c_t+1(j) - E),    E = sum_ij p_ij (s_t(i) + theta_ij + c_t+1(j)),
//
// and that in u_t(i) the sum of its row. The largest score of each table and of each step is taken off, which changes
// neither, and leaves numbers that lose few digits. Products may underflow where scores are hundreds of nats apart:
// then an item is in doubt, and is left to sums in logarithms.

#pragma once

#include "logs.h"
#include "threads.h"

#include <cmath>
#include <vector>

namespace {

template <typename Real>
struct Chains {
  const Real *unary, *scored;  // (B, T, K) the potentials u, and v
  const Real* tables;          // (B, T - 1, K, K)
  const int64_t* lengths;      // (B,)
  Real* kept;                  // (B, T, 3, K): f, s and z
  double* levels;              // (B, T) what was taken off s at each step
  int64_t steps, states;

  // Scores below this weigh nothing, and are raised to it where a weight of zero multiplies them: zero times -inf
  // is no number. A quarter of the lowest number, so that sums of a few stay finite.
  static constexpr Real kFloor = std::numeric_limits<Real>::lowest() / 4;
  static constexpr Real kLeast = std::numeric_limits<Real>::min() * 16;

  const Real* site(const Real* all, int64_t item, int64_t step) const {
    return all + (item * steps + step) * states;
  }
  const Real* table(int64_t item, int64_t step) const {
    return tables + (item * (steps - 1) + step) * states * states;
  }
  Real* row(int64_t item, int64_t step, int64_t which) const {
    return kept + ((item * steps + step) * 3 + which) * states;
  }
  // A sum below this may have lost terms to underflow.
  Real least_sum() const {
    return std::numeric_limits<Real>::min() / std::numeric_limits<Real>::epsilon() * Real(states);
  }

  static Real largest_of(const Real* values, int64_t count) {
    Lane<Real> top = all_of(kFloor);
    by_lanes<Real>(count, [&](int64_t k, auto left) {
      if (left < lanes<Real>()) return;
      const Lane<Real> x = load(values + k, left);
      top = x > top ? x : top;
    });
    Real most = kFloor;
    for (int64_t k = 0; k < lanes<Real>(); ++k) most = std::max(most, Real(top[k]));
    for (int64_t k = count - count % lanes<Real>(); k < count; ++k) most = std::max(most, values[k]);
    return most;
  }
  static Lane<Real> all_of(Real value) { return all<Real>(value); }
  static Lane<Real> raised(Lane<Real> x) {
    const Lane<Real> floor = all_of(kFloor);
    return x > floor ? x : floor;
  }

  // Normalises f and centres s of a step; returns the log of the norm, and false as `sure` if f has lost a state.
  double settle(int64_t item, int64_t step, bool& sure) const {
    Real *f = row(item, step, 0), *s = row(item, step, 1);
    const Real* u = site(unary, item, step);
    double norm = 0, mean = 0;
    for (int64_t j = 0; j < states; ++j) norm += f[j];
    if (!(norm > 0) || !std::isfinite(norm)) {
      sure = false;
      return 0;
    }
    const Real scale = Real(1 / norm);
    for (int64_t j = 0; j < states; ++j) {
      f[j] *= scale;
      sure &= f[j] >= kLeast || !(u[j] > kNever<Real>) || row(item, step, 2)[j] == 0;
      mean += double(f[j]) * s[j];
    }
    for (int64_t j = 0; j < states; ++j) s[j] -= Real(mean);
    levels[item * steps + step] = mean;
    return std::log(norm);
  }

  // Whether a state of the next step can follow one of those with a probability.
  bool reached(int64_t item, int64_t step, int64_t j) const {
    const Real *f = row(item, step, 0), *logs = table(item, step);
    for (int64_t i = 0; i < states; ++i)
      if (f[i] > 0 && logs[i * states + j] > kNever<Real>) return true;
    return false;
  }

  // The entropy of an item, 0 without steps; false if it is in doubt.
  bool up(int64_t item, double& value) const {
    const int64_t length = lengths[item];
    value = 0;
    if (!length) return true;
    bool sure = true;
    std::vector<Real> sums(states);
    for (int64_t step = 0; step < length && sure; ++step) {
      const Real *u = site(unary, item, step), *v = site(scored, item, step);
      Real *f = row(item, step, 0), *s = row(item, step, 1), *z = row(item, step, 2), *q = sums.data();
      if (step) {
        const Real *before = row(item, step - 1, 0), *scores = row(item, step - 1, 1);
        const Real *logs = table(item, step - 1), top = largest_of(logs, states * states);
        if (!(top > kFloor)) return false;
        std::fill_n(z, states, Real(0)), std::fill_n(q, states, Real(0));
        for (int64_t i = 0; i < states; ++i, logs += states) {
          const Real chance = before[i], so_far = scores[i];
          if (!(chance > 0)) continue;
          by_lanes<Real>(states, [&](int64_t k, auto left) {
            const Lane<Real> theta = raised(load(logs + k, left)) - top, w = exp_of<Real>(theta) * chance;
            store(z + k, Lane<Real>(load(z + k, left) + w), left);
            store(q + k, Lane<Real>(load(q + k, left) + w * (theta + so_far)), left);
          });
        }
        const Real least = least_sum();
        for (int64_t j = 0; j < states; ++j)
          if (!(z[j] >= least) && u[j] > kNever<Real> && reached(item, step - 1, j)) sure = false;
      } else {
        std::fill_n(z, states, Real(1)), std::fill_n(q, states, Real(0));
      }
      const Real peak = largest_of(u, states);
      exps(f, u, peak, states);
      for (int64_t j = 0; j < states; ++j) {
        s[j] = z[j] > 0 ? q[j] / z[j] + (v[j] - peak) : Real(0);
        f[j] *= z[j];
      }
      value += settle(item, step, sure) - levels[item * steps + step];
    }
    return sure && std::isfinite(value);
  }

  // The gradient of an item in its potentials and tables, times a number; false if it is in doubt.
  bool down(int64_t item, Real pull, Real* sites, Real* links) const {
    const int64_t length = lengths[item], size = states * states;
    Real* own = sites + item * steps * states;
    Real* tables_own = links ? links + item * (steps - 1) * size : nullptr;
    const int64_t last = std::max<int64_t>(length - 1, 0);
    if (length < steps) std::fill_n(own + length * states, (steps - length) * states, Real(0));
    if (links) std::fill_n(tables_own + last * size, (steps - 1 - last) * size, Real(0));
    if (!length) return true;
    std::vector<Real> room(4 * states);
    Real *y = room.data(), *c = y + states, *sum = c + states, *mean = sum + states;
    std::fill_n(sum, states, Real(1)), std::fill_n(mean, states, Real(0));  // the end: no suffix
    const Real least = least_sum();
    for (int64_t step = last; step >= 0; --step) {
      // The sums over suffixes, with the potentials of this step.
      const Real *u = site(unary, item, step), *v = site(scored, item, step);
      const Real *f = row(item, step, 0), *s = row(item, step, 1), *z = row(item, step, 2);
      const Real peak = largest_of(u, states), most = largest_of(sum, states);
      exps(y, u, peak, states);
      for (int64_t j = 0; j < states; ++j) {
        y[j] *= sum[j] / most, c[j] = (v[j] - peak) + mean[j];
        if (y[j] < kLeast && u[j] > kNever<Real> && sum[j] > 0) return false;
      }
      if (step == last) {  // no row has its sum yet
        for (int64_t j = 0; j < states; ++j) own[step * states + j] = -pull * f[j] * s[j];
      }
      if (!step) break;
      // The norm of pairs, and the mean of their scores.
      double norm = 0, total = 0;
      const double level = levels[item * steps + step];
      for (int64_t j = 0; j < states; ++j) {
        const double share = double(z[j]) * y[j];
        norm += share, total += share * (double(s[j]) + level + mean[j]);
      }
      if (!(norm > 0)) return false;
      total /= norm;
      const Real *before = row(item, step - 1, 0), *scores = row(item, step - 1, 1);
      const Real *logs = table(item, step - 1), top = largest_of(logs, size);
      Real* extra = links ? tables_own + (step - 1) * size : nullptr;
      for (int64_t i = 0; i < states; ++i, logs += states) {
        const Real chance = -pull * Real(before[i] / norm), less = Real(scores[i] - total);
        Lane<Real> sums = {}, turns = {};
        by_lanes<Real>(states, [&](int64_t k, auto left) {
          const Lane<Real> theta = raised(load(logs + k, left)) - top, d = theta + load(c + k, left);
          const Lane<Real> w = exp_of<Real>(theta) * load(y + k, left), turn = w * d;
          sums += w, turns += turn;
          if (extra) store(extra + i * states + k, Lane<Real>((turn + w * less) * chance), left);
        });
        Real one = 0, two = 0;
        for (int64_t k = 0; k < lanes<Real>(); ++k) one += sums[k], two += turns[k];
        if (!(one >= least))
          for (int64_t j = 0; j < states; ++j)
            if (y[j] > 0 && logs[j] > kNever<Real>) return false;
        sum[i] = one, mean[i] = one > 0 ? two / one : Real(0);
        own[(step - 1) * states + i] = chance * (two + one * less);
      }
      // Scores of suffixes are known up to a constant: small numbers lose fewer digits.
      double weight = 0, middle = 0;
      for (int64_t i = 0; i < states; ++i) {
        const double share = double(before[i]) * sum[i];
        weight += share, middle += share * mean[i];
      }
      if (!(weight > 0)) return false;
      for (int64_t i = 0; i < states; ++i) mean[i] -= Real(middle / weight);
    }
    return true;
  }
};

}  // namespace
