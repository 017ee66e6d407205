// Arithmetic without subnormal numbers: |x| < the least normal number becomes 0, in operands and results.

#pragma once

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace {

// Numbers below the normal ones are 0 while this is alive: arithmetic on them takes a hundred times longer.
struct Flushed {
#if defined(__SSE__)
  unsigned before = _mm_getcsr();
  Flushed() { _mm_setcsr(before | 0x8040); }
  ~Flushed() { _mm_setcsr(before); }
#else
  Flushed() {}
#endif
};

}  // namespace
