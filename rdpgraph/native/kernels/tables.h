// A program with its inputs, and its tables prepared for products.

#pragma once

#include "logs.h"

namespace {

enum Kind : int64_t {
  kSites, kGiven, kTotal, kLinked, kSummed, kPairs, kRules, kBeside, kPicked, kApart, kNone, kProduct
};

// Large functions are not inlined, which would double the build time.
#define NOINLINE __attribute__((noinline))
#define INLINE __attribute__((always_inline)) inline

constexpr int64_t kFields = 14;   // numbers of one step
constexpr int64_t kValue = 6;     // numbers of one value
constexpr int64_t kPart = 7;      // numbers of one factor of a product
constexpr int64_t kTable = 9;     // numbers of one tensor
constexpr int64_t kBlock = 64;    // rows of a link that are worked on together
constexpr double kWide = 64;      // nats, up to which float32 keeps 18 binary digits after the point
constexpr int64_t kShared = 1 << 17;  // multiply-adds of a product that threads share

// A number for each entry of all values, by offset: those of the sites come first, and may lie elsewhere.
template <typename Real> struct Arena {
  Real *sites, *others;  // from both of which offsets are counted
  int64_t size;          // of the sites

  Arena(Real* all) : sites(all), others(all), size(0) {}
  Arena(Real* sites, Real* after, int64_t size) : sites(sites), others(after - size), size(size) {}
  INLINE Real* operator+(int64_t at) const { return (at < size ? sites : others) + at; }
  INLINE Real& operator[](int64_t at) const { return *(*this + at); }
};

// A program and its inputs.
template <typename Real> struct Machine {
  const int64_t* values;      // (n, kValue): numbers of one item before it, places, labels, rows with
                              // levels before it (below 0: it has none), where its first item begins
                              // after these, numbers from one item to the next
  const int64_t* steps;       // (n, kFields)
  const int32_t* index;       // lists that steps point to
  const int64_t* tables;      // (slots, kTable): address, items, their stride (-1: they are one), rows, their stride,
                              // columns, their stride, where its room begins (-1: it is no table; -2:
                              // it is read where it lies), dense tables of an item
  Arena<Real> arena;          // all values
  Real* room;                 // prepared tables
  double* levels;             // what is taken off rows of links and sums, so that long recursions
                              // keep their digits; null: nothing
  Real *befores, *afters;     // rows of links before and after products, or null
  int64_t* noted;             // whether sums of large numbers lost digits, whether there is a NaN, and
                              // (given) whether befores has those of pairs, and whether these rows are
                              // not kept but made again on the way down, in place of values
  int64_t count, batch;
  bool best;
  int threads;                // of a product, where there are fewer items than threads

  // Threads that note the same do so without order.
  void note(int which) const { __atomic_store_n(noted + which, int64_t(1), __ATOMIC_RELAXED); }
  bool has_lost() const { return __atomic_load_n(noted, __ATOMIC_RELAXED) != 0; }

  int64_t places(int64_t n) const { return values[kValue * n + 1]; }
  int64_t labels(int64_t n) const { return values[kValue * n + 2]; }
  int64_t at(int64_t n, int64_t item, int64_t place) const {
    const int64_t* v = values + kValue * n;
    return batch * v[0] + v[4] + item * v[5] + place * v[2];
  }
  // The sites of an item, among values, gradients or scores of all.
  int64_t size_of_sites() const { return table(0)[3] * table(0)[5]; }
  Real* sites(Arena<Real> all, int64_t item) const { return all.sites + item * size_of_sites(); }
  // Visits the places of a step that copies sites: where its labels begin, and those of the site.
  template <typename Visit>
  void each_site(const int64_t* step, int64_t item, Arena<Real> all, Visit visit) const {
    for (int64_t place = 0; step[3] && place < places(step[1]); ++place)
      visit(at(step[1], item, place), sites(all, item) + index[step[2] + place] * table(0)[5] + step[4]);
  }
  // Where the level of a row is; null: it is 0.
  double* level_at(int64_t n, int64_t item, int64_t place) const {
    const int64_t* v = values + kValue * n;
    return levels && v[3] >= 0 ? levels + batch * v[3] + item * v[1] + place : nullptr;
  }
  double level(int64_t n, int64_t item, int64_t place) const {
    const double* known = level_at(n, item, place);
    return known ? *known : 0;
  }
  const int64_t* table(int64_t slot) const { return tables + kTable * slot; }
  // The number of the tables of a slot that are prepared.
  int64_t apart(int64_t slot) const { return table(slot)[2] < 0 ? 1 : table(slot)[1]; }
  // The number of an item's tensor: replicates of the items share those of all.
  int64_t shared(int64_t slot, int64_t item) const { return item % table(slot)[1]; }
  template <typename T> const T* tensor(int64_t slot) const {
    return reinterpret_cast<const T*>(table(slot)[0]);
  }

  // Visits the alternatives of a sum: their number, factors, and number in their way.
  template <typename Visit> INLINE void each_way(const int64_t* step, Visit visit) const {
    const int32_t* way = index + step[2];
    for (int64_t w = 0, row = 0; w < step[3]; ++w, way += 2 + kPart * way[1])
      for (int64_t a = 0; a < way[0]; ++a) visit(row++, way + 2, way[1], a);
  }

  // The step and place of a factor's entry; null: none.
  const int32_t* found(const int32_t* part, int64_t way, int64_t item, int64_t place) const {
    const int64_t many = part[2], wide = part[3];
    int64_t number = (many > 1 ? way : 0) * wide + (wide > 1 ? place : 0);
    if (part[5] >= 0) {  // places in a pool, given at run time
      const int64_t* given = table(part[5]);
      const int64_t* places = reinterpret_cast<const int64_t*>(given[0]);
      number = places[(given[1] > 1 ? item * given[2] : 0) + number];
      if (number >= part[0]) return nullptr;
    }
    const int32_t* pair = index + part[1] + 2 * number;
    return pair[0] < 0 ? nullptr : pair;
  }

  // The offset of a factor's entry in the arena; below 0: none. Its labels begin there, unless they are listed.
  int64_t entry(const int32_t* part, int64_t way, int64_t item, int64_t place) const {
    const int32_t* pair = found(part, way, item, place);
    return pair ? at(pair[0], item, pair[1]) + std::max(part[6], 0) * way : -1;
  }

  // The labels that an alternative of a factor of a sum reads, if they are listed, or null. Lists begin with the
  // labels from one alternative to the next.
  const int32_t* listed(const int32_t* part, int64_t way) const {
    if (part[6] >= 0) return nullptr;
    const int32_t* list = index + ~part[6];
    return list + 1 + way * list[0];
  }
  // The label of a factor's place that a label of its reader reads.
  int64_t label_of(const int32_t* part, int64_t way, int64_t label) const {
    const int32_t* list = listed(part, way);
    return list ? list[label] : (part[4] > 1 ? label : 0) + way * part[6];
  }

  // Visits the entries of a factor at some places in turn, by runs at consecutive places of one value:
  // the first place, how many, the first offset (below 0: none) and the hop, the levels or null.
  template <typename Visit>
  void each_run(const int32_t* part, int64_t way, int64_t item, int64_t first, int64_t count,
                Visit visit) const {
    const int64_t hop = part[3] > 1, start = (part[2] > 1 ? way : 0) * part[3] + hop * first;
    const int64_t* given = part[5] < 0 ? nullptr : table(part[5]);
    const int64_t* numbers = given ? reinterpret_cast<const int64_t*>(given[0]) : nullptr;
    if (given && given[1] > 1) numbers += item * given[2];
    const auto pair = [&](int64_t p) -> const int32_t* {
      const int64_t number = numbers ? numbers[start + p] : start + p;
      if (numbers && number >= part[0]) return nullptr;
      const int32_t* one = index + part[1] + 2 * number;
      return one[0] < 0 ? nullptr : one;
    };
    for (int64_t p = 0, run; p < count; p += run) {
      const int32_t* one = pair(hop * p);
      run = hop ? 1 : count;
      for (; p + run < count; ++run) {
        const int32_t* next = pair(p + run);
        if (!one != !next) break;
        if (one && (next[0] != one[0] || next[1] != one[1] + run)) break;
      }
      if (!one) visit(p, run, -1, 0, nullptr);
      else visit(p, run, at(one[0], item, one[1]) + way * part[6], hop * labels(one[0]),
                 level_at(one[0], item, one[1]));
    }
  }

  // Whether values near a number lack digits of float32.
  bool is_far(Real value) const { return levels && !best && std::abs(value) > kWide; }

  // The level of a factor's entry; 0: none.
  double level_of(const int32_t* part, int64_t way, int64_t item, int64_t place) const {
    if (!levels) return 0;
    const int32_t* pair = found(part, way, item, place);
    return pair ? level(pair[0], item, pair[1]) : 0;
  }
};

template <typename Real> struct Room {
  std::vector<Real> rows, sums, left, right, terms, logs, peaks;
  std::vector<double> tops;
};

// The limit below which a scaled sum of so many terms is summed again, in logs.
template <typename Real> Real faint(int64_t terms) {
  typedef std::numeric_limits<Real> Limits;
  return Limits::min() / Limits::epsilon() * Real(terms);
}

// The log-sum of terms, which are overwritten by their exponentials relative to the largest.
template <typename Real> Real log_sum(Real* terms, int64_t count) {
  const Real top = largest(terms, count);
  if (!(top > kNever<Real>)) return kNever<Real>;
  exps(terms, terms, top, count);
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < count; ++k) sum += terms[k];
  return top + std::log(sum);
}

// One item's table: the columns' peaks, and the scaled table in panels, forwards and (for gradients)
// backwards; null where it is read where it lies.
template <typename Real> struct Prepared {
  Real *peaks, *ahead, *back;
  const Real* logs;
  int64_t rows, columns, row, column;
};

template <typename Real>
Prepared<Real> prepared(const Machine<Real>& machine, int64_t slot, int64_t item, int64_t number) {
  const int64_t* table = machine.table(slot);
  const int64_t rows = table[3], columns = table[5], wide = width<Real>();
  const int64_t first = table[2] < 0 ? 0 : machine.shared(slot, item), which = first * table[8] + number;
  const Real* logs =
      reinterpret_cast<const Real*>(table[0]) + first * table[2] + number * rows * columns;
  if (table[7] < 0) return {nullptr, nullptr, nullptr, logs, rows, columns, table[4], table[6]};
  const int64_t ahead = panels_of(columns, wide) * wide * rows;
  const int64_t size = columns + ahead + panels_of(rows, wide) * wide * columns;
  Real* room = machine.room + table[7] + which * size;
  return {room, room + columns, room + columns + ahead, logs, rows, columns, table[4], table[6]};
}

// Whether there is a NaN among log-values.
template <typename Real> bool unsound(const Real* values, int64_t count) {
  int bad = 0;
#pragma omp simd reduction(| : bad)
  for (int64_t k = 0; k < count; ++k) bad |= values[k] != values[k];
  return bad;
}

// Prepares a table; returns whether it has a NaN.
template <typename Real> bool prepare(const Prepared<Real>& t, bool best, bool back) {
  const int64_t wide = width<Real>();
  if (!back) {
    Real one[width<Real>()];
    const auto by_panels = [&](auto visit) {  // of each row, numbers side by side
      for (int64_t p = 0; p < panels_of(t.columns, wide); ++p)
        for (int64_t i = 0; i < t.rows; ++i) {
          const int64_t first = p * wide, count = std::min(wide, t.columns - first);
          const Real* source = t.logs + i * t.row + first * t.column;
          for (int64_t k = 0; t.column != 1 && k < count; ++k) one[k] = source[k * t.column];
          visit(first, count, t.column == 1 ? source : one, t.ahead + (p * t.rows + i) * wide);
        }
    };
    int bad = 0;
    std::fill(t.peaks, t.peaks + t.columns, kNever<Real>);
    by_panels([&](int64_t first, int64_t count, const Real* source, Real* target) {
      for (int64_t k = 0; k < count; ++k) bad |= source[k] != source[k];
      if (best) std::memcpy(target, source, count * sizeof(Real));
      else for (int64_t k = 0; k < count; ++k) t.peaks[first + k] = std::max(t.peaks[first + k], source[k]);
      std::fill(target + count, target + wide, best ? kNever<Real> : Real(0));
    });
    for (int64_t j = 0; j < t.columns; ++j) t.peaks[j] = finite(t.peaks[j]);
    if (!best) by_panels([&](int64_t first, int64_t count, const Real* source, Real* target) {
      for (int64_t k = 0; k < count; ++k) one[k] = source[k] - t.peaks[first + k];
      exps(target, one, Real(0), count);
    });
    return bad;
  }
  // The transpose of the prepared table.
  for (int64_t p = 0; p < panels_of(t.rows, wide); ++p)
    for (int64_t j = 0; j < t.columns; ++j) {
      const int64_t first = p * wide, count = std::min(wide, t.rows - first);
      Real* target = t.back + (p * t.columns + j) * wide;
      const Real* source = t.ahead + (j / wide * t.rows + first) * wide + j % wide;
      for (int64_t k = 0; k < count; ++k) target[k] = source[k * wide];
      for (int64_t k = count; k < wide; ++k) target[k] = best ? kNever<Real> : Real(0);
    }
  return false;
}

// Loads numbers into the nearest cache, while products are computed.
template <typename Real> INLINE void load_ahead(const Real* from, int64_t count) {
  for (int64_t k = 0; k < count; k += 64 / sizeof(Real)) __builtin_prefetch(from + k);
}

// Calls a step for each panel; threads share those of a product of so many multiply-adds, if it is large.
template <typename Step> void each_panel(int64_t panels, int64_t work, int threads, Step step) {
  if (threads == 1 || work < kShared) {
    for (int64_t p = 0; p < panels; ++p) step(p);
    return;
  }
#pragma omp parallel for num_threads(threads)
  for (int64_t p = 0; p < panels; ++p) step(p);
}

// (rows, panels * width): rows (rows, depth) by all panels. Products by one table are in turn from the first panel
// and, if `last`, from the last: it is in the nearest cache.
template <typename Real>
void by_panels(const Real* left, int64_t rows, int64_t depth, const Real* panels, int64_t columns,
               Real* result, bool best, int threads, bool last = false) {
  const int64_t wide = width<Real>(), many = panels_of(columns, wide), stride = many * wide;
  each_panel(many, rows * depth * columns, threads, [&](int64_t number) {
    const int64_t p = last ? many - 1 - number : number;
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t some = std::min(kRows, rows - r);
      const Real *from = left + r * depth, *panel = panels + p * wide * depth;
      Real* to = result + r * stride + p * wide;
      if (best) multiply<Real, true>(some, from, depth, panel, depth, to, stride);
      else multiply(some, from, depth, panel, depth, to, stride);
    }
  });
}

}  // namespace
