// Non-projective trees, by elimination in float64.

#include "trees.h"

extern "C" {

void tree_sums(const double* arcs, const int64_t* lengths, double* weights, double* log_z,
               int64_t batch, int64_t words, int multiroot, int threads) {
  const Trees trees{arcs, lengths, weights, words, multiroot != 0};
  by_items(batch, threads, [&](int64_t a, int64_t b) {
    for (int64_t item = a; item < b; ++item) log_z[item] = trees.sum(item);
  });
}

void tree_gradient(const double* arcs, const int64_t* lengths, double* weights, const double* log_z,
                   const double* pull, double* grads, int64_t batch, int64_t words, int multiroot,
                   int threads) {
  const Trees trees{arcs, lengths, weights, words, multiroot != 0};
  by_items(batch, threads, [&](int64_t a, int64_t b) {
    for (int64_t item = a; item < b; ++item)
      if (log_z[item] > kNever<double>) trees.gradient(item, pull[item], grads);
  });
}

}
