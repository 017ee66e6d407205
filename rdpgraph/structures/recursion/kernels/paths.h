// Sequences of a chain with one transition for all steps, drawn by given noise.

#pragma once

#include "panels.h"

namespace {

// States of `count` sequences of each item at the steps from `last` down to `first`, given those after
// `last`: the first maximum of m_t(i) + A(i, the next) + noise. The transition is [to, from], the
// noise (steps, count, batch, states), the last step first.
template <typename Real>
void trace(const Real* messages, const Real* turned, const int64_t* lengths, const Real* noise,
           int64_t* found, int64_t count, int64_t batch, int64_t steps, int64_t states,
           int64_t first, int64_t last, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t path = 0; path < count * batch; ++path) {
    const int64_t b = path % batch, length = lengths[b];
    int64_t* sequence = found + path * steps;
    const Real* sent = messages + b * steps * states;
    bool possible = false;
    for (int64_t k = 0; length && k < states; ++k)
      possible |= sent[(length - 1) * states + k] > kNever<Real>;
    std::vector<Real> logs(states);
    for (int64_t t = last; t >= first; --t) {
      if (!possible || t >= length) {
        sequence[t] = -1;
        continue;
      }
      Real* __restrict log = logs.data();
      const Real* __restrict here = sent + t * states;
      if (t + 1 < length) {
        const Real* __restrict into = turned + sequence[t + 1] * states;
        for (int64_t k = 0; k < states; ++k) log[k] = here[k] + into[k];
      } else {
        for (int64_t k = 0; k < states; ++k) log[k] = here[k];
      }
      if (noise) {
        const Real* __restrict shake = noise + ((last - t) * count * batch + path) * states;
        for (int64_t k = 0; k < states; ++k) log[k] += shake[k];
      }
      Real most = kNever<Real>;
#pragma omp simd reduction(max : most)
      for (int64_t k = 0; k < states; ++k) most = log[k] > most ? log[k] : most;
      int64_t place = 0;
      while (place < states - 1 && log[place] != most) ++place;
      sequence[t] = place;
    }
  }
}

}  // namespace
