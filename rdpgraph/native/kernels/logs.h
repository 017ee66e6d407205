// Vector exponentials and logarithms, to about an ulp; logarithms by the polynomials of fdlibm.
//
// exp(x) = 2^n e^r with n = round(x / log 2), r = x - n log 2 in two parts (`high`, `low`), and e^r by its series,
// |r| <= log(2) / 2. log(x) = k log 2 + log(1 + f), with x = 2^k (1 + f) and 1 + f between sqrt(1/2) and sqrt(2), by
// the odd series in f / (2 + f).

#pragma once

#include "panels.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

template <typename Real> struct Format;
template <> struct Format<float> {
  typedef int32_t Bits;
  typedef Bits type __attribute__((vector_size(kBytes)));
  static constexpr int shift = 23, terms = 8;
  static constexpr Bits bias = 127, half = 0x3f3504f3;  // of the root of a half
  static constexpr float magic = 12582912.0f, high = 0.693359375f, low = -2.12194440e-4f;
  static constexpr float least = -87.0f, most = 88.0f;
  static constexpr float logs[] = {0.66666662693f, 0.40000972152f, 0.28498786688f, 0.24279078841f};
};
template <> struct Format<double> {
  typedef int64_t Bits;
  typedef Bits type __attribute__((vector_size(kBytes)));
  static constexpr int shift = 52, terms = 14;
  static constexpr Bits bias = 1023, half = 0x3fe6a09e667f3bcd;
  static constexpr double magic = 6755399441055744.0;
  static constexpr double high = 6.93147180369123816490e-01, low = 1.90821492927058770002e-10;
  static constexpr double least = -708.0, most = 709.0;
  static constexpr double logs[] = {
      6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
      2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
      1.479819860511658591e-01};
};

// exp(x); 0 below the smallest normal number.
template <typename Real> inline Lane<Real> exp_of(Lane<Real> x) {
  typedef Format<Real> F;
  typedef typename F::type Ints;
  const Lane<Real> low = all<Real>(F::least), top = all<Real>(F::most);
  Lane<Real> y = x < low ? low : x;
  y = y > top ? top : y;
  const Lane<Real> moved = y * Real(1.4426950408889634) + F::magic;
  const Lane<Real> n = moved - F::magic;
  const Lane<Real> r = y - n * F::high - n * F::low;
  // Even and odd terms of the series do not wait for one another.
  Real share = 1;
  Real shares[F::terms + 1] = {1};
#pragma GCC unroll 16
  for (int k = 1; k <= F::terms; ++k) shares[k] = share /= Real(k);
  const Lane<Real> square = r * r;
  Lane<Real> even = all<Real>(shares[F::terms]), odd = all<Real>(shares[F::terms - 1]);
#pragma GCC unroll 16
  for (int k = F::terms - 2; k >= 0; k -= 2) {
    even = even * square + shares[k];
    if (k) odd = odd * square + shares[k - 1];
  }
  const Lane<Real> sum = even + odd * r;
  Ints power;
  const Lane<Real> magic = all<Real>(F::magic);
  Ints from, bits;
  std::memcpy(&from, &magic, sizeof(from));
  std::memcpy(&bits, &moved, sizeof(bits));
  power = (bits - from + F::bias) << F::shift;
  Lane<Real> scale;
  std::memcpy(&scale, &power, sizeof(scale));
  return x < low ? Lane<Real>{} : sum * scale;
}

// log(x); -inf below the smallest normal number.
template <typename Real> inline Lane<Real> log_of(Lane<Real> x) {
  typedef Format<Real> F;
  typedef typename F::type Ints;
  Ints bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const Ints exponent = (bits - F::half) >> F::shift;
  bits -= exponent << F::shift;
  Lane<Real> m, e;
  std::memcpy(&m, &bits, sizeof(m));
  const Lane<Real> magic = all<Real>(F::magic);
  Ints count;
  std::memcpy(&count, &magic, sizeof(count));
  count += exponent;
  std::memcpy(&e, &count, sizeof(e));
  e -= magic;
  const Lane<Real> f = m - Real(1), s = f / (f + Real(2)), z = s * s;
  Lane<Real> sum = {};
  constexpr int count_of = sizeof(F::logs) / sizeof(F::logs[0]);
#pragma GCC unroll 8
  for (int k = count_of - 1; k >= 0; --k) sum = sum * z + F::logs[k];
  const Lane<Real> square = f * f * Real(0.5);
  const Lane<Real> value =
      e * F::high - ((square - (s * (square + sum * z) + e * F::low)) - f);
  return x < std::numeric_limits<Real>::min() ? all<Real>(kNever<Real>) : value;
}

// The first numbers of a vector, fewer than it has; others are 0, or not written. By masks where there
// are such instructions: copies of a size that is not known take longer than the arithmetic.
#if defined(__AVX512F__)
inline Lane<float> part(const float* from, int64_t count) {
  return (Lane<float>)_mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), from);
}
inline Lane<double> part(const double* from, int64_t count) {
  return (Lane<double>)_mm512_maskz_loadu_pd(__mmask8((1u << count) - 1), from);
}
inline void put(float* to, Lane<float> lane, int64_t count) {
  _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), (__m512)lane);
}
inline void put(double* to, Lane<double> lane, int64_t count) {
  _mm512_mask_storeu_pd(to, __mmask8((1u << count) - 1), (__m512d)lane);
}
#elif defined(__AVX2__)
inline __m256i first_bytes(int64_t count) {
  alignas(32) static constexpr int32_t bits[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits + 8 - count / 4));
}
inline Lane<float> part(const float* from, int64_t count) {
  return (Lane<float>)_mm256_maskload_ps(from, first_bytes(4 * count));
}
inline Lane<double> part(const double* from, int64_t count) {
  return (Lane<double>)_mm256_maskload_pd(from, first_bytes(8 * count));
}
inline void put(float* to, Lane<float> lane, int64_t count) {
  _mm256_maskstore_ps(to, first_bytes(4 * count), (__m256)lane);
}
inline void put(double* to, Lane<double> lane, int64_t count) {
  _mm256_maskstore_pd(to, first_bytes(8 * count), (__m256d)lane);
}
#else
template <typename Real> inline Lane<Real> part(const Real* from, int64_t count) {
  Lane<Real> lane = {};
  std::memcpy(&lane, from, count * sizeof(Real));
  return lane;
}
template <typename Real> inline void put(Real* to, Lane<Real> lane, int64_t count) {
  std::memcpy(to, &lane, count * sizeof(Real));
}
#endif

template <typename Real> inline Lane<Real> load(const Real* from, int64_t count) {
  if (count < lanes<Real>()) return part(from, count);
  Lane<Real> lane;
  std::memcpy(&lane, from, sizeof(lane));
  return lane;
}

template <typename Real> inline void store(Real* to, const Lane<Real>& lane, int64_t count) {
  if (count < lanes<Real>()) put(to, lane, count);
  else std::memcpy(to, &lane, sizeof(lane));
}

// Calls a step for each vector of so many numbers, with what is left; whole vectors as such.
template <typename Real, typename Step> inline void by_lanes(int64_t count, Step step) {
  int64_t k = 0;
  for (; k + lanes<Real>() <= count; k += lanes<Real>())
    step(k, std::integral_constant<int64_t, lanes<Real>()>());
  if (k < count) step(k, count - k);
}

// result = exp(logs - peak).
template <typename Real>
void exps(Real* result, const Real* logs, Real peak, int64_t count) {
  by_lanes<Real>(count, [&](int64_t k, auto left) {
    store(result + k, exp_of<Real>(load(logs + k, left) - peak), left);
  });
}

// result = log(sums) + peak, + peaks if given.
template <typename Real>
void logs(Real* result, const Real* sums, const Real* peaks, Real peak, int64_t count) {
  by_lanes<Real>(count, [&](int64_t k, auto left) {
    Lane<Real> value = log_of<Real>(load(sums + k, left)) + peak;
    if (peaks) value += load(peaks + k, left);
    store(result + k, value, left);
  });
}

}  // namespace
