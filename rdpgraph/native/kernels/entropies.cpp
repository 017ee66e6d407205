// Entropies of chains with a table for each step of each item, and their gradients.

#include "entropies.h"
#include "flushed.h"

extern "C" {

#define ENTROPY_KERNELS(Real, name)                                                              \
  void entropy_##name(const Real* unary, const Real* scored, const Real* tables,                 \
                      const int64_t* lengths, Real* kept, double* levels, double* values,        \
                      int64_t* doubts, int64_t batch, int64_t steps, int64_t states,             \
                      int threads) {                                                             \
    const Chains<Real> chains{unary, scored, tables, lengths, kept, levels, steps, states};      \
    by_items(batch, threads, [&](int64_t a, int64_t b) {                                         \
      const Flushed flushed;                                                                     \
      for (int64_t item = a; item < b; ++item) doubts[item] = !chains.up(item, values[item]);    \
    });                                                                                          \
  }                                                                                              \
  void pullback_##name(const Real* unary, const Real* scored, const Real* tables,                \
                       const int64_t* lengths, Real* kept, double* levels, const double* pulls,  \
                       Real* sites, Real* links, int64_t* doubts, int64_t batch, int64_t steps,  \
                       int64_t states, int threads) {                                            \
    const Chains<Real> chains{unary, scored, tables, lengths, kept, levels, steps, states};      \
    by_items(batch, threads, [&](int64_t a, int64_t b) {                                         \
      const Flushed flushed;                                                                     \
      for (int64_t item = a; item < b; ++item)                                                   \
        doubts[item] = !chains.down(item, Real(pulls[item]), sites, links);                      \
    });                                                                                          \
  }

ENTROPY_KERNELS(float, float)
ENTROPY_KERNELS(double, double)

}
