// Scores of states, and selections of a few by them.

#include "scores.h"
#include "selections.h"

#include "threads.h"

namespace {

template <typename Real>
void systematic(const Real* scores, const double* uniforms, int64_t* states, Real* weights,
                int64_t rows, int64_t size, int64_t keep, int64_t top, int64_t count, double sure,
                double smooth, int threads) {
  by_items(rows, threads, [&](int64_t first, int64_t last) {
    Systematic<Real> one(size, keep, top, count, sure, smooth);
    for (int64_t row = first; row < last; ++row)
      one.sample(scores + row * size, uniforms + row, rows, states + row * keep,
                 weights + row * keep, rows * keep);
  });
}

// Adds the rows of scores (one for all if there is no `hop`), normalised and with weight, to a mean.
template <typename Real>
void mean(Real* into, const Real* scores, int64_t rows, int64_t size, int64_t hop, int64_t first,
          double log_weight, int threads) {
  const Real shared = hop ? 0 : total_of(scores, size);
  by_items(rows, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Real* given = scores + row * hop;
      const Real total = hop ? total_of(given, size) : shared;
      const Real add = Real(log_weight) - (total == kNever<Real> ? 0 : total);
      add_scores(into + row * size, given, size, add, first != 0);
    }
  });
}

}  // namespace

extern "C" {

void mean_float(float* into, const float* scores, int64_t rows, int64_t size, int64_t hop,
                int64_t first, double log_weight, int threads) {
  mean(into, scores, rows, size, hop, first, log_weight, threads);
}

void mean_double(double* into, const double* scores, int64_t rows, int64_t size, int64_t hop,
                 int64_t first, double log_weight, int threads) {
  mean(into, scores, rows, size, hop, first, log_weight, threads);
}

void systematic_float(const float* scores, const double* uniforms, int64_t* states, float* weights,
                      int64_t rows, int64_t size, int64_t keep, int64_t top, int64_t count,
                      double sure, double smooth, int threads) {
  systematic(scores, uniforms, states, weights, rows, size, keep, top, count, sure, smooth,
             threads);
}

void systematic_double(const double* scores, const double* uniforms, int64_t* states,
                       double* weights, int64_t rows, int64_t size, int64_t keep, int64_t top,
                       int64_t count, double sure, double smooth, int threads) {
  systematic(scores, uniforms, states, weights, rows, size, keep, top, count, sure, smooth,
             threads);
}

}
