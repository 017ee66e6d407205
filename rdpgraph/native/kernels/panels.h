// Matrices in panels of two vectors' width, read in order; a block of up to eight rows by one panel is multiplied in
// registers.
//
// Y = X W: X (rows, depth), W (depth, n) with y_rj = sum_k x_rk w_kj, and with maxima y_rj = max_k (x_rk + w_kj). A
// panel has the columns of W that fit two vectors, row after row, and zeros (or -inf) beyond the last column.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace {

// Bytes of a register, and the rows for which all sums of a block stay in registers. Vectors wider
// than a register are spilled to memory, ten times more slowly.
#if defined(__AVX512F__)
constexpr int64_t kBytes = 64, kRows = 8;
#elif defined(__AVX__)
constexpr int64_t kBytes = 32, kRows = 4;
#else
constexpr int64_t kBytes = 16, kRows = 4;
#endif

// How far ahead of a product its matrix is fetched, in bytes: while eight rows are multiplied by what was read, the
// processor asks for little more by itself. Of 4,096 states in float32 that takes eight rows from 7.5 to 5 ms.
constexpr int64_t kFetched = 2048;

template <typename Real> struct Vector;
template <> struct Vector<float> { typedef float type __attribute__((vector_size(kBytes))); };
template <> struct Vector<double> { typedef double type __attribute__((vector_size(kBytes))); };

template <typename Real> constexpr int64_t lanes() { return kBytes / sizeof(Real); }
template <typename Real> constexpr int64_t width() { return 2 * lanes<Real>(); }

template <typename Real> constexpr Real kNever = -std::numeric_limits<Real>::infinity();

template <typename Real> using Lane = typename Vector<Real>::type;

template <typename Real> Lane<Real> all(Real value) { return Lane<Real>{} + value; }

template <typename Real> Real largest(const Real* __restrict values, int64_t count) {
  Real top = kNever<Real>;
  const auto join = [&](int64_t k) { top = values[k] > top ? values[k] : top; };
  // A few numbers one by one: vectors of fewer numbers than they have take longer.
  switch (count) {
    case 4: join(3); [[fallthrough]];
    case 3: join(2); [[fallthrough]];
    case 2: join(1); [[fallthrough]];
    case 1: join(0); [[fallthrough]];
    case 0: return top;
    default: break;
  }
#pragma omp simd reduction(max : top)
  for (int64_t k = 0; k < count; ++k) top = values[k] > top ? values[k] : top;
  return top;
}

// A number, or 0 for -inf.
template <typename Real> Real finite(Real value) { return value > kNever<Real> ? value : 0; }

int64_t panels_of(int64_t states, int64_t wide) { return (states + wide - 1) / wide; }

// Calls a step with a number of rows from one to eight that is known at compile time.
template <typename Step> void by_rows(int64_t rows, Step step) {
  switch (rows) {
    case 1: return step(std::integral_constant<int, 1>());
    case 2: return step(std::integral_constant<int, 2>());
    case 3: return step(std::integral_constant<int, 3>());
    case 4: return step(std::integral_constant<int, 4>());
    case 5: return step(std::integral_constant<int, 5>());
    case 6: return step(std::integral_constant<int, 6>());
    case 7: return step(std::integral_constant<int, 7>());
    default: return step(std::integral_constant<int, 8>());
  }
}

// Rows (`stride` apart, their numbers `next` apart) times one panel of some depth; (rows, width) into `result`,
// whose rows are `hop` apart; added to it if `next` is not 1. Sums of products, or maxima of sums.
template <typename Real, int rows, bool best, int64_t next = 1>
__attribute__((noinline)) void multiply(const Real* left, int64_t stride,
                                        const Real* __restrict panel, int64_t depth,
                                        Real* __restrict result, int64_t hop) {
  constexpr int sets = rows < 4 ? 4 / rows : 1;  // sums of few rows, which do not wait for one another
  Lane<Real> sums[sets * rows][2];
  const auto join = [](Lane<Real>& sum, Lane<Real> one) {
    if constexpr (best) sum = one > sum ? one : sum;
    else sum += one;
  };
  const auto add = [&](int set, int64_t k) {
    Lane<Real> low, high;
    if (next == 1)
      for (int half = 0; half < 2; ++half) __builtin_prefetch(panel + (k * 2 + half) * lanes<Real>() + kFetched / sizeof(Real));
    std::memcpy(&low, panel + k * width<Real>(), sizeof(low));
    std::memcpy(&high, panel + k * width<Real>() + lanes<Real>(), sizeof(high));
#pragma GCC unroll 8
    for (int row = 0; row < rows; ++row) {
      const Real value = left[row * stride + k * next];
      join(sums[set * rows + row][0], best ? low + value : low * value);
      join(sums[set * rows + row][1], best ? high + value : high * value);
    }
  };
  for (auto& sum : sums) sum[0] = sum[1] = all(best ? kNever<Real> : Real(0));
  if (next != 1)
    for (int row = 0; row < rows; ++row) std::memcpy(sums[row], result + row * hop, sizeof(sums[row]));
  int64_t k = 0;
  for (; k + sets <= depth; k += sets) {
#pragma GCC unroll 4
    for (int set = 0; set < sets; ++set) add(set, k + set);
  }
  for (; k < depth; ++k) add(0, k);
  for (int row = rows; row < sets * rows; ++row)
    for (int half = 0; half < 2; ++half) join(sums[row % rows][half], sums[row][half]);
  for (int row = 0; row < rows; ++row) std::memcpy(result + row * hop, sums[row], sizeof(sums[row]));
}

template <typename Real, bool best = false>
void multiply(int64_t rows, const Real* left, int64_t stride, const Real* panel, int64_t depth,
              Real* result, int64_t hop = width<Real>()) {
  by_rows(rows, [&](auto count) {
    multiply<Real, decltype(count)::value, best>(left, stride, panel, depth, result, hop);
  });
}

}  // namespace
