// Sequences of a chain with one transition for all steps: the best ones, and those drawn.
//
// Sums are in torch's order, so that ties are broken alike.

#pragma once

#include "panels.h"

namespace {

// p_t(j) = u_t(j) + max_i(p_{t-1}(i) + A_ij), either term less its peak over j; 0 beyond a length.
template <typename Real>
void prefixes(const Real* __restrict unary, const Real* transition,
              const int64_t* __restrict lengths, Real* result, Real* packed, int64_t batch,
              int64_t steps, int64_t states, int threads) {
  constexpr int64_t wide = width<Real>();
  const int64_t panels = panels_of(states, wide), row_size = steps * states;
  std::vector<Real> partial(batch * threads);
#pragma omp parallel num_threads(threads)
  {
    const int64_t thread = thread_number(), team = team_size();
    const Share share = share_of(batch, panels, thread, team);
    for (int64_t p = panels * thread / team; p < panels * (thread + 1) / team; ++p)
      pack(transition, packed, states, p, false);
    const int64_t first_column = share.first_panel * wide;
    const int64_t last_column = std::min(share.last_panel * wide, states);
    alignas(64) Real block[kRows * wide];
#ifdef _OPENMP
#pragma omp barrier
#endif
    for (int64_t t = 0; t < steps; ++t) {
      for (int64_t b = share.first_row; b < share.last_row; ++b)
        partial[b * threads + thread] = kNever<Real>;
      for (int64_t p = share.first_panel; t && p < share.last_panel; ++p) {
        const int64_t first = p * wide, count = std::min(wide, states - first);
        for (int64_t from = share.first_row; from < share.last_row; from += kRows) {
          const int64_t rows = std::min(kRows, share.last_row - from);
          multiply<Real, true>(rows, result + from * row_size + (t - 1) * states, row_size,
                packed + p * wide * states, states, block);
          for (int64_t r = 0; r < rows; ++r) {
            Real* __restrict target = result + (from + r) * row_size + t * states + first;
            const Real* __restrict source = block + r * wide;
            Real peak = partial[(from + r) * threads + thread];
#pragma omp simd reduction(max : peak)
            for (int64_t k = 0; k < count; ++k) {
              target[k] = source[k];
              peak = source[k] > peak ? source[k] : peak;
            }
            partial[(from + r) * threads + thread] = peak;
          }
        }
      }
      wait(share.together);
      for (int64_t b = share.first_row; b < share.last_row; ++b) {
        Real* __restrict target = result + b * row_size + t * states;
        const Real* __restrict given = unary + b * row_size + t * states;
        if (t >= lengths[b]) {
          for (int64_t k = first_column; k < last_column; ++k) target[k] = 0;
          continue;
        }
        const Real level = finite(largest(given, states));
        if (!t) {
          for (int64_t k = first_column; k < last_column; ++k) target[k] = given[k] - level;
          continue;
        }
        Real peak = partial[b * threads + thread];
        for (int64_t other = 0; share.together && other < team; ++other)
          peak = std::max(peak, partial[b * threads + other]);
        if (!(peak > kNever<Real>)) peak = 0;
        for (int64_t k = first_column; k < last_column; ++k)
          target[k] = (given[k] - level) + (target[k] - peak);
      }
      wait(share.together);
    }
  }
}

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
