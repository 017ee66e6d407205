// Arrays of many numbers: each begins at a register's width, the large ones in huge pages where the system has them.
//
// A product that reads a matrix of megabytes in order misses the cache of addresses once in a page. With pages of two
// megabytes it takes two thirds of the time that it takes with those of four kilobytes, and so does the first use.

#pragma once

#include <cstddef>
#include <new>
#include <utility>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

constexpr size_t kHugePage = size_t(1) << 21, kRegister = 64;  // bytes

// Allocates for a vector. Numbers that no value is given for are not written, so that memory is first used by the
// thread and at the time that fills it.
template <typename Real> struct Unfilled {
  typedef Real value_type;
  Unfilled() = default;
  template <typename Other> Unfilled(const Unfilled<Other>&) {}

  static std::align_val_t alignment(size_t count) {
    return std::align_val_t(count * sizeof(Real) < 2 * kHugePage ? kRegister : kHugePage);
  }
  Real* allocate(size_t count) {
    void* made = ::operator new(count * sizeof(Real), alignment(count));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    // A system that has none says so, and pages are small.
    if (alignment(count) == std::align_val_t(kHugePage)) madvise(made, count * sizeof(Real), MADV_HUGEPAGE);
#endif
    return static_cast<Real*>(made);
  }
  void deallocate(Real* made, size_t count) { ::operator delete(made, alignment(count)); }
  template <typename Other> void construct(Other* at) noexcept { ::new (static_cast<void*>(at)) Other; }
  template <typename Other, typename... Given> void construct(Other* at, Given&&... given) {
    ::new (static_cast<void*>(at)) Other(std::forward<Given>(given)...);
  }
  template <typename Other> bool operator==(const Unfilled<Other>&) const { return true; }
  template <typename Other> bool operator!=(const Unfilled<Other>&) const { return false; }
};

template <typename Real> using Array = std::vector<Real, Unfilled<Real>>;

}  // namespace
