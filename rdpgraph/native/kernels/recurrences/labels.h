// Sums over labels, z = log sum_i exp(x_i), upwards, and their gradients downwards.

#pragma once

#include "links.h"

namespace {

// The sums over labels of a step, in one row of places with one level.
template <typename Real>
template <bool best>
void Run<Real>::over_up(const Stage& g, At s) {
  const Span span = defined(g, s);
  if (span.high < span.low) return;
  tops.resize(span.high - span.low + 1);
  for (int64_t item = 0; item < batch; ++item) {
    if (!is_needed(g, item, s)) continue;
    double most = -INFINITY;
    for (int64_t p = span.low; p <= span.high; ++p) {
      double& sum = tops[p - span.low];
      sum = -INFINITY;
      const double known = find_rows(g, item, s, p);
      const int64_t count = x.size();
      const Real top = largest(x.data(), count);
      if (!(top > kNever<Real>)) continue;
      double total = 1;
      if (!best) {
        exps(x.data(), x.data(), top, count);
        Real part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t k = 0; k < count; ++k) part += x[k];
        total = part;
      }
      sum = known + top + std::log(total);
      most = std::max(most, sum);
    }
    if (!(most > -INFINITY)) most = 0;
    *out_level(g, item, s, span.low) = most;
    Real* to = out(g, data[0], item, s, span.low);
    for (int64_t p = 0; p <= span.high - span.low; ++p) to[p] = Real(tops[p] - most);
  }
}

// Their gradients: the share of each label.
template <typename Real>
void Run<Real>::over_down(const Stage& g, At s) {
  const Span span = defined(g, s);
  for (int64_t item = 0; item < batch; ++item)
    for (int64_t p = span.low; p <= span.high && is_needed(g, item, s); ++p) {
      const Real above = *out(g, grads[0], item, s, p), done = *out(g, data[0], item, s, p);
      if (above == 0 || !(done > kNever<Real>)) continue;
      const double known = find_rows(g, item, s, p);
      const int64_t count = x.size();
      exps(x.data(), x.data(), Real(*out_level(g, item, s, p) + done - known), count);
      Real total = 0;  // 1, but for rounding
#pragma omp simd reduction(+ : total)
      for (int64_t k = 0; k < count; ++k) total += x[k];
      for (int64_t k = 0; k < count; ++k) x[k] *= above / total;
      add_splits(grads, g, item, p, x.data());
    }
}

}  // namespace
