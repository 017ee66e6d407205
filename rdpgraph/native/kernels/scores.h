// Means of normalised rows of log-scores, in logs: mean_i = log sum_k w_k q_k(i) / sum_j q_k(j), one
// k after the other.

#pragma once

#include "logs.h"

namespace {

// log sum_j exp(scores_j); NaN for a NaN or +inf.
template <typename Real> Real total_of(const Real* scores, int64_t size) {
  const Real top = finite(largest(scores, size));
  Lane<Real> sums = {};
  by_lanes<Real>(size, [&](int64_t k, auto left) {
    const Lane<Real> terms = exp_of<Real>(load(scores + k, left) - top);
    if (left == lanes<Real>()) {
      sums += terms;
    } else {  // lanes beyond the row hold no scores
      for (int64_t lane = 0; lane < left; ++lane) sums[lane] += terms[lane];
    }
  });
  Real sum = 0;
  for (int64_t lane = 0; lane < lanes<Real>(); ++lane) sum += sums[lane];
  return top + std::log(sum);
}

// mean = log(exp(mean) + exp(scores + add)), or the second alone.
template <typename Real>
void add_scores(Real* mean, const Real* scores, int64_t size, Real add, bool first) {
  const Lane<Real> never = all(kNever<Real>), one = all(Real(1));
  by_lanes<Real>(size, [&](int64_t k, auto left) {
    Lane<Real> term = load(scores + k, left) + add;
    if (!first) {
      const Lane<Real> held = load(mean + k, left);
      const Lane<Real> high = held > term ? held : term, low = held > term ? term : held;
      const Lane<Real> sum = high + log_of<Real>(one + exp_of<Real>(low - high));
      term = (held == never) & (term == never) ? never : sum;
      term = held == held ? term : held;  // a NaN stays
    }
    store(mean + k, term, left);
  });
}

}  // namespace
