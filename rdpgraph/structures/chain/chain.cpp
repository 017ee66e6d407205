// The scaled recursion of a chain with one transition for all steps, forward and backward.
//
// Both sweeps multiply (rows, N) by (N, N) at each step. The matrix is packed once into panels of
// two vectors' width, read in order; a block of up to eight rows by one panel is summed in
// registers, and the rest of a step is done on it there. Threads share out the rows where there
// are many, and the panels, with a barrier at each step, where there are few.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

constexpr int64_t kRows = 8;

template <typename Real> struct Vector;
template <> struct Vector<float> { typedef float type __attribute__((vector_size(64))); };
template <> struct Vector<double> { typedef double type __attribute__((vector_size(64))); };

template <typename Real> constexpr int64_t lanes() { return 64 / sizeof(Real); }
template <typename Real> constexpr int64_t width() { return 2 * lanes<Real>(); }

int64_t panels_of(int64_t states, int64_t wide) { return (states + wide - 1) / wide; }

// One panel of a matrix, or of its transpose, as (states, width), zero beyond the last column.
template <typename Real>
void pack(const Real* __restrict matrix, Real* __restrict packed, int64_t states, int64_t panel,
          bool transposed) {
  constexpr int64_t wide = width<Real>();
  const int64_t first = panel * wide, count = std::min(wide, states - first);
  Real* __restrict target = packed + panel * wide * states;
  if (!transposed) {
    for (int64_t row = 0; row < states; ++row) {
      const Real* source = matrix + row * states + first;
      for (int64_t k = 0; k < count; ++k) target[row * wide + k] = source[k];
      for (int64_t k = count; k < wide; ++k) target[row * wide + k] = 0;
    }
    return;
  }
  for (int64_t from = 0; from < states; from += wide) {
    const int64_t until = std::min(from + wide, states);
    for (int64_t k = 0; k < count; ++k) {
      const Real* source = matrix + (first + k) * states;
      for (int64_t row = from; row < until; ++row) target[row * wide + k] = source[row];
    }
    for (int64_t row = from; row < until; ++row)
      for (int64_t k = count; k < wide; ++k) target[row * wide + k] = 0;
  }
}

// Rows (`stride` apart, their entries `hop` apart) times one panel of some depth; (rows, width) into
// `result`.
template <typename Real, int rows, int64_t hop = 1>
__attribute__((noinline)) void multiply(const Real* left, int64_t stride,
                                        const Real* __restrict panel, int64_t depth,
                                        Real* __restrict result) {
  typedef typename Vector<Real>::type Lane;
  Lane sums[rows][2] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Lane low, high;
    std::memcpy(&low, panel + k * width<Real>(), sizeof(Lane));
    std::memcpy(&high, panel + k * width<Real>() + lanes<Real>(), sizeof(Lane));
#pragma GCC unroll 8
    for (int row = 0; row < rows; ++row) {
      const Real value = left[row * stride + k * hop];
      sums[row][0] += value * low;
      sums[row][1] += value * high;
    }
  }
  std::memcpy(result, sums, sizeof(sums));
}

template <typename Real>
void multiply(int64_t rows, const Real* left, int64_t stride, const Real* panel, int64_t states,
              Real* result) {
  switch (rows) {
    case 1: return multiply<Real, 1>(left, stride, panel, states, result);
    case 2: return multiply<Real, 2>(left, stride, panel, states, result);
    case 3: return multiply<Real, 3>(left, stride, panel, states, result);
    case 4: return multiply<Real, 4>(left, stride, panel, states, result);
    case 5: return multiply<Real, 5>(left, stride, panel, states, result);
    case 6: return multiply<Real, 6>(left, stride, panel, states, result);
    case 7: return multiply<Real, 7>(left, stride, panel, states, result);
    default: return multiply<Real, 8>(left, stride, panel, states, result);
  }
}

struct Share {
  int64_t first_row, last_row, first_panel, last_panel;
  bool together;  // whether other threads have other panels of the same rows
};

// The part of one of `team` threads.
Share share_of(int64_t batch, int64_t panels, int64_t thread, int64_t team) {
  if (batch >= kRows * team || panels < team) {
    const int64_t blocks = (batch + kRows - 1) / kRows;
    const int64_t first = blocks * thread / team * kRows;
    const int64_t last = blocks * (thread + 1) / team * kRows;
    return {std::min(first, batch), std::min(last, batch), 0, panels, false};
  }
  return {0, batch, panels * thread / team, panels * (thread + 1) / team, true};
}

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

void wait(bool together) {
  if (!together) return;
#ifdef _OPENMP
#pragma omp barrier
#endif
}

// The least entry of some rows of the matrix that is not a hard zero; 1 if there is none.
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

// alpha_t = alpha_{t-1} P * e_t, normalised. Where floor > 0, states below it are set to zero, or
// to the floor (upward). `small` is the least positive state of a row, `thin` the least emission
// that is not a hard zero.
template <typename Real>
void forward(const Real* __restrict unary, const Real* __restrict emission,
             const Real* transition, const Real* matrix, const Real* __restrict offset,
             const int64_t* __restrict starts, const int64_t* __restrict lengths, Real* states_out,
             Real* scales, Real* values, uint8_t* doubtful, Real* packed, int64_t batch,
             int64_t steps, int64_t states, Real state_limit, Real step_limit, Real floor,
             bool upward, int threads) {
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
            const int64_t start = starts[from + r];
            if (t < start || t >= lengths[from + r]) {
              for (int64_t k = 0; k < count; ++k) target[k] = 0;
              continue;
            }
            const Real* __restrict shown = emission + place;
            const Real* __restrict given = unary + place;
            const Real* __restrict ahead = block + r * wide;
            Real sum = 0, thin = 1;
#pragma omp simd reduction(+ : sum) reduction(min : thin)
            for (int64_t k = 0; k < count; ++k) {
              const Real value = t > start ? ahead[k] * shown[k] : shown[k];
              target[k] = value;
              sum += value;
              const Real here = given[k] > -std::numeric_limits<Real>::infinity() ? shown[k] : 1;
              thin = here < thin ? here : thin;
            }
            partial[(from + r) * threads + thread] += sum;
            low[(from + r) * threads + thread] |= (t > start ? thin * lowest : thin) < step_limit;
          }
        }
      }
      wait(share.together);
      for (int64_t b = share.first_row; b < share.last_row; ++b) {
        if (t < starts[b] || t >= lengths[b]) {
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
        if (floor > 0)
          for (int64_t k = first_column; k < last_column; ++k)
            if (target[k] < floor) target[k] = upward && target[k] > 0 ? floor : 0;
      }
      wait(share.together);
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
            Real* __restrict own = marginals + place;
            Real* previous = ahead + place - states;
            if (t == steps - 1)
              for (int64_t k = 0; k < count; ++k) ahead[place + k] = 0;
            if (t >= lengths[b]) {
              for (int64_t k = 0; k < count; ++k) own[k] = 0;
              if (t)
                for (int64_t k = 0; k < count; ++k) previous[k] = 0;
              continue;
            }
            Real* __restrict beta = block + r * wide;
            if (t == lengths[b] - 1)
              for (int64_t k = 0; k < count; ++k) beta[k] = gradient[b];
            const Real* __restrict state = found + place;
            for (int64_t k = 0; k < count; ++k) own[k] = state[k] * beta[k];
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

// Edge marginals summed over steps, P * (found^T ahead), in the shape of the matrix. Blocks of steps
// are packed, (steps, kRows) and (steps, width) at a time, and summed into the result in turn.
template <typename Real>
void edges(const Real* __restrict found, const Real* __restrict ahead,
           const Real* __restrict matrix, Real* __restrict result, int64_t steps, int64_t states,
           int threads) {
  constexpr int64_t wide = width<Real>(), deep = 256;
  const int64_t panels = panels_of(states, wide), tiles = panels_of(states, kRows);
  std::vector<Real> left(tiles * kRows * deep);
#pragma omp parallel num_threads(threads)
  {
    const int64_t thread = thread_number(), team = team_size();
    alignas(64) Real right[deep * wide];
    for (int64_t from = 0; from < steps; from += deep) {
      const int64_t depth = std::min(deep, steps - from);
      const bool last = from + depth == steps;
      for (int64_t tile = tiles * thread / team; tile < tiles * (thread + 1) / team; ++tile) {
        const int64_t rows = std::min(kRows, states - tile * kRows);
        Real* __restrict target = left.data() + tile * kRows * deep;
        for (int64_t k = 0; k < depth; ++k) {
          const Real* source = found + (from + k) * states + tile * kRows;
          for (int64_t r = 0; r < kRows; ++r) target[k * kRows + r] = r < rows ? source[r] : 0;
        }
      }
      wait(true);
      for (int64_t p = panels * thread / team; p < panels * (thread + 1) / team; ++p) {
        const int64_t first = p * wide, count = std::min(wide, states - first);
        for (int64_t k = 0; k < depth; ++k) {
          const Real* source = ahead + (from + k) * states + first;
          for (int64_t c = 0; c < wide; ++c) right[k * wide + c] = c < count ? source[c] : 0;
        }
        for (int64_t tile = 0; tile < tiles; ++tile) {
          const Real* values = left.data() + tile * kRows * deep;
          alignas(64) Real block[kRows * wide];
          multiply<Real, kRows, kRows>(values, 1, right, depth, block);
          const int64_t rows = std::min(kRows, states - tile * kRows);
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t place = (tile * kRows + r) * states + first;
            for (int64_t c = 0; c < count; ++c) {
              const Real sum = block[r * wide + c] + (from ? result[place + c] : 0);
              result[place + c] = last ? sum * matrix[place + c] : sum;
            }
          }
        }
      }
      wait(true);
    }
  }
}

}  // namespace

extern "C" {

int64_t chain_packed_size(int64_t states, int64_t bytes) {
  const int64_t wide = 128 / bytes;
  return panels_of(states, wide) * wide * states;
}

#define CHAIN_KERNELS(Real, name)                                                                 \
  void chain_forward_##name(const Real* unary, const Real* emission, const Real* transition,      \
                            const Real* matrix, const Real* offset, const int64_t* starts,        \
                            const int64_t* lengths,                                               \
                            Real* states, Real* scales, Real* values, uint8_t* doubtful,          \
                            Real* packed, int64_t batch, int64_t steps, int64_t count,            \
                            double state_limit, double step_limit, double floor, int upward,      \
                            int threads) {                                                        \
    forward<Real>(unary, emission, transition, matrix, offset, starts, lengths, states, scales,   \
                  values, doubtful, packed, batch, steps, count, Real(state_limit), Real(step_limit),     \
                  Real(floor), upward != 0, threads);                                             \
  }                                                                                               \
  void chain_backward_##name(const Real* states, const Real* scales, const Real* emission,        \
                             const Real* matrix, const int64_t* lengths, const Real* gradient,    \
                             Real* marginals, Real* ahead, Real* packed, int64_t batch,           \
                             int64_t steps, int64_t count, int threads) {                         \
    backward<Real>(states, scales, emission, matrix, lengths, gradient, marginals, ahead, packed, \
                   batch, steps, count, threads);                                                 \
  }                                                                                               \
  void chain_edges_##name(const Real* states, const Real* ahead, const Real* matrix, Real* result, \
                          int64_t steps, int64_t count, int threads) {                            \
    edges<Real>(states, ahead, matrix, result, steps, count, threads);                            \
  }

CHAIN_KERNELS(float, float)
CHAIN_KERNELS(double, double)

}
