// Items of a batch over the threads of OpenMP; without it one thread has them all.

#pragma once

#include <cstdint>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

int64_t thread_number() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

int64_t team_size() {
#ifdef _OPENMP
  return omp_get_num_threads();
#else
  return 1;
#endif
}

// Runs on ranges of items, one for each thread.
template <typename Run>
void by_items(int64_t batch, int threads, Run run) {
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int64_t team = team_size(), thread = thread_number();
    const int64_t first = batch * thread / team, last = batch * (thread + 1) / team;
    if (first < last) run(first, last);
  }
}

}  // namespace
