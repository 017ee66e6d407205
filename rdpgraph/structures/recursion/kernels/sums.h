// The scaled recursion of a chain with one transition for all steps, forward and backward.
//
// Both sweeps multiply (rows, N) by (N, N) at each step, and finish each block of the product while it
// is in the cache.

#pragma once

#include "panels.h"

namespace {

// The least entry of some rows of the matrix other than hard zeros; 1 if there is none.
template <typename Real>
Real least(const Real* __restrict transition, const Real* __restrict matrix, int64_t count) {
  Real lowest = 1;
#pragma omp simd reduction(min : lowest)
  for (int64_t k = 0; k < count; ++k) {
    const Real here = transition[k] > -std::numeric_limits<Real>::infinity() ? matrix[k] : 1;
    lowest = here < lowest ? here : lowest;
  }
  return lowest;
}

// Potentials less their peaks, by step and for the transition, which are summed in `offset`.
template <typename Real>
void level(const Real* __restrict unary, const Real* __restrict transition,
           Real* __restrict emission, Real* __restrict matrix, Real* __restrict offset, int64_t batch, int64_t steps,
           int64_t states) {
  const Real top = finite(largest(transition, states * states));
  for (int64_t k = 0; k < states * states; ++k) matrix[k] = transition[k] - top;
  for (int64_t row = 0; row < batch * steps; ++row) {
    const Real* __restrict given = unary + row * states;
    const Real peak = finite(largest(given, states));
    for (int64_t k = 0; k < states; ++k) emission[row * states + k] = given[k] - peak;
    offset[row] = row % steps ? peak + top : peak;
  }
}

// Both sweeps, where all states of a step fit a few registers: one sequence after the other.
constexpr int64_t kFew = 8;

template <int64_t N = 1, typename Call>
void with_states(int64_t states, Call call) {
  if (states == N) call(std::integral_constant<int64_t, N>());
  else if constexpr (N < kFew) with_states<N + 1>(states, call);
}

template <int64_t N, typename Real>
void forward_few(const Real* unary, const Real* emission, const Real* transition,
                 const Real* matrix, const Real* offset, const int64_t* lengths, Real* states_out,
                 Real* scales, Real* values, uint8_t* doubtful, int64_t batch, int64_t steps,
                 Real state_limit, Real step_limit, int threads) {
  const Real lowest = least(transition, matrix, N * N);
  Real rows[N][N] = {};
  for (int64_t j = 0; j < N; ++j) std::copy_n(matrix + j * N, N, rows[j]);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t b = 0; b < batch; ++b) {
    Real mass[N] = {}, shown[N] = {}, thin[N], small[N];
    std::fill_n(thin, N, Real(1)), std::fill_n(small, N, Real(1));
    Real first = 1;
    double sum = 0, product = 1;
    for (int64_t t = 0; t < steps; ++t) {
      const int64_t place = (b * steps + t) * N;
      if (t >= lengths[b]) {
        scales[b * steps + t] = 1;
        std::fill_n(states_out + place, N, Real(0));
        continue;
      }
      Real next[N] = {};
      for (int64_t k = 0; k < N; ++k) {
        shown[k] = emission[place + k];
        const bool never = unary[place + k] == kNever<Real>;
        thin[k] = never || shown[k] > thin[k] ? thin[k] : shown[k];
      }
      if (t) {
        for (int64_t j = 0; j < N; ++j)
          for (int64_t k = 0; k < N; ++k) next[k] += mass[j] * rows[j][k];
      } else {
        std::fill_n(next, N, Real(1));
      }
      Real total = 0;
      for (int64_t k = 0; k < N; ++k) total += next[k] *= shown[k];
      const Real factor = total > 0 ? 1 / total : 0;
      for (int64_t k = 0; k < N; ++k) {
        mass[k] = next[k] * factor;
        small[k] = mass[k] > 0 && mass[k] < small[k] ? mass[k] : small[k];
      }
      std::copy_n(mass, N, states_out + place);
      scales[b * steps + t] = total;
      sum += double(offset[b * steps + t]);
      product *= double(total);
      if (!(product > 1e-100 && product < 1e100)) {
        sum += std::log(product);
        product = 1;
      }
      if (!t) first = *std::min_element(thin, thin + N);
    }
    values[b] = Real(sum + std::log(product));
    doubtful[b] = *std::min_element(small, small + N) < state_limit || first < step_limit ||
                  *std::min_element(thin, thin + N) * lowest < step_limit;
  }
}

template <int64_t N, typename Real>
void backward_few(const Real* found, const Real* scales, const Real* emission, const Real* matrix,
                  const int64_t* lengths, const Real* gradient, Real* marginals, Real* ahead,
                  int64_t batch, int64_t steps, int threads) {
  Real turned[N][N] = {};
  for (int64_t j = 0; j < N; ++j)
    for (int64_t k = 0; k < N; ++k) turned[k][j] = matrix[j * N + k];
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t b = 0; b < batch; ++b) {
    Real after[N] = {};
    for (int64_t t = steps - 1; t >= 0; --t) {
      const int64_t place = (b * steps + t) * N;
      std::copy_n(after, N, ahead + place);
      if (t >= lengths[b]) {
        std::fill_n(marginals + place, N, Real(0));
        continue;
      }
      Real beta[N] = {};
      if (t == lengths[b] - 1) {
        std::fill_n(beta, N, gradient[b]);
      } else {
        for (int64_t j = 0; j < N; ++j)
          for (int64_t k = 0; k < N; ++k) beta[k] += after[j] * turned[j][k];
      }
      const Real scale = scales[b * steps + t], factor = scale > 0 ? 1 / scale : 0;
      for (int64_t k = 0; k < N; ++k) {
        const Real state = found[place + k];
        marginals[place + k] = state * beta[k];
        after[k] = state > 0 ? emission[place + k] * factor * beta[k] : 0;
      }
    }
  }
}

// alpha_t = alpha_{t-1} P * e_t, normalised, until all items are in doubt. `small` is the least positive state of a row, `thin` the least emission other
// than hard zeros.
template <typename Real>
void forward(const Real* __restrict unary, const Real* __restrict emission,
             const Real* transition, const Real* matrix, const Real* __restrict offset,
             const int64_t* __restrict lengths, Real* states_out,
             Real* scales, Real* values, uint8_t* doubtful, Real* packed, int64_t batch,
             int64_t steps, int64_t states, Real state_limit, Real step_limit,
             int threads) {
  if (states <= kFew)
    return with_states(states, [&](auto few) {
      forward_few<few>(unary, emission, transition, matrix, offset, lengths, states_out, scales,
                       values, doubtful, batch, steps, state_limit, step_limit, threads);
    });
  constexpr int64_t wide = width<Real>();
  const int64_t panels = panels_of(states, wide), row_size = steps * states;
  std::vector<double> partial(batch * threads);
  std::vector<double> totals(batch, 0.0);
  std::vector<uint8_t> low(batch * threads, 0);
  std::vector<Real> lows(threads, 1);
#pragma omp parallel num_threads(threads)
  {
    const int64_t thread = thread_number(), team = team_size();
    const Share share = share_of(batch, panels, thread, team);
    for (int64_t p = panels * thread / team; p < panels * (thread + 1) / team; ++p)
      pack(matrix, packed, states, p, false);
    const int64_t begin = states * thread / team * states;
    const int64_t end = states * (thread + 1) / team * states;
    lows[thread] = least(transition + begin, matrix + begin, end - begin);
    const int64_t first_column = share.first_panel * wide;
    const int64_t last_column = std::min(share.last_panel * wide, states);
    alignas(64) Real block[kRows * wide];
#ifdef _OPENMP
#pragma omp barrier
#endif
    const Real lowest = *std::min_element(lows.begin(), lows.end());
    for (int64_t t = 0; t < steps; ++t) {
      bool sure = false;
      for (int64_t b = share.first_row; b < share.last_row; ++b) partial[b * threads + thread] = 0;
      for (int64_t p = share.first_panel; p < share.last_panel; ++p) {
        const int64_t first = p * wide, count = std::min(wide, states - first);
        for (int64_t from = share.first_row; from < share.last_row; from += kRows) {
          const int64_t rows = std::min(kRows, share.last_row - from);
          if (t)
            multiply(rows, states_out + from * row_size + (t - 1) * states, row_size,
                     packed + p * wide * states, states, block);
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t place = (from + r) * row_size + t * states + first;
            Real* __restrict target = states_out + place;
            if (t >= lengths[from + r]) {
              for (int64_t k = 0; k < count; ++k) target[k] = 0;
              continue;
            }
            const Real* __restrict shown = emission + place;
            const Real* __restrict given = unary + place;
            const Real* __restrict ahead = block + r * wide;
            Real sum = 0, thin = 1;
#pragma omp simd reduction(+ : sum) reduction(min : thin)
            for (int64_t k = 0; k < count; ++k) {
              const Real value = t ? ahead[k] * shown[k] : shown[k];
              target[k] = value;
              sum += value;
              const Real here = given[k] > -std::numeric_limits<Real>::infinity() ? shown[k] : 1;
              thin = here < thin ? here : thin;
            }
            partial[(from + r) * threads + thread] += sum;
            low[(from + r) * threads + thread] |= (t ? thin * lowest : thin) < step_limit;
          }
        }
      }
      wait(share.together);
      for (int64_t b = share.first_row; b < share.last_row; ++b) {
        sure |= !low[b * threads + thread];
        if (t >= lengths[b]) {
          if (first_column == 0) scales[b * steps + t] = 1;
          continue;
        }
        double total = 0;
        if (share.together) {
          for (int64_t other = 0; other < team; ++other) total += partial[b * threads + other];
        } else {
          total = partial[b * threads + thread];
        }
        if (first_column == 0) {
          scales[b * steps + t] = Real(total);
          totals[b] += std::log(total) + double(offset[b * steps + t]);
        }
        const Real factor = total > 0 ? Real(1 / total) : 0;
        Real* __restrict target = states_out + b * row_size + t * states;
        Real small = 1;
#pragma omp simd reduction(min : small)
        for (int64_t k = first_column; k < last_column; ++k) {
          const Real value = target[k] * factor;
          target[k] = value;
          const Real here = value > 0 ? value : 1;
          small = here < small ? here : small;
        }
        low[b * threads + thread] |= small < state_limit;
      }
      wait(share.together);
      if (!sure && !share.together) break;
    }
  }
  for (int64_t b = 0; b < batch; ++b) {
    values[b] = Real(totals[b]);
    doubtful[b] = 0;
    for (int64_t thread = 0; thread < threads; ++thread) doubtful[b] |= low[b * threads + thread];
  }
}

// beta_t = P (e_{t+1} beta_{t+1} / c_{t+1}), from the gradient of log Z at the last step.
template <typename Real>
void backward(const Real* __restrict found, const Real* __restrict scales,
              const Real* __restrict emission, const Real* matrix,
              const int64_t* __restrict lengths, const Real* __restrict gradient,
              Real* __restrict marginals, Real* ahead, Real* packed, int64_t batch, int64_t steps,
              int64_t states, int threads) {
  if (states <= kFew)
    return with_states(states, [&](auto few) {
      backward_few<few>(found, scales, emission, matrix, lengths, gradient, marginals, ahead,
                        batch, steps, threads);
    });
  constexpr int64_t wide = width<Real>();
  const int64_t panels = panels_of(states, wide), row_size = steps * states;
#pragma omp parallel num_threads(threads)
  {
    const int64_t thread = thread_number(), team = team_size();
    const Share share = share_of(batch, panels, thread, team);
    for (int64_t p = panels * thread / team; p < panels * (thread + 1) / team; ++p)
      pack(matrix, packed, states, p, true);
    alignas(64) Real block[kRows * wide];
#ifdef _OPENMP
#pragma omp barrier
#endif
    for (int64_t t = steps - 1; t >= 0; --t) {
      for (int64_t p = share.first_panel; p < share.last_panel; ++p) {
        const int64_t first = p * wide, count = std::min(wide, states - first);
        for (int64_t from = share.first_row; from < share.last_row; from += kRows) {
          const int64_t rows = std::min(kRows, share.last_row - from);
          if (t < steps - 1)
            multiply(rows, ahead + from * row_size + t * states, row_size,
                     packed + p * wide * states, states, block);
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t b = from + r, place = b * row_size + t * states + first;
            Real* __restrict row = marginals + place;
            Real* previous = ahead + place - states;
            if (t == steps - 1)
              for (int64_t k = 0; k < count; ++k) ahead[place + k] = 0;
            if (t >= lengths[b]) {
              for (int64_t k = 0; k < count; ++k) row[k] = 0;
              if (t)
                for (int64_t k = 0; k < count; ++k) previous[k] = 0;
              continue;
            }
            Real* __restrict beta = block + r * wide;
            if (t == lengths[b] - 1)
              for (int64_t k = 0; k < count; ++k) beta[k] = gradient[b];
            const Real* __restrict state = found + place;
            for (int64_t k = 0; k < count; ++k) row[k] = state[k] * beta[k];
            if (!t) continue;
            const Real scale = scales[b * steps + t];
            const Real factor = scale > 0 ? 1 / scale : 0;
            const Real* __restrict shown = emission + place;
            for (int64_t k = 0; k < count; ++k) {
              const Real value = shown[k] * factor * beta[k];
              previous[k] = state[k] > 0 ? value : 0;
            }
          }
        }
      }
      wait(share.together);
    }
  }
}

}  // namespace
