// Runs a lowered tape: log-sums or maxima of its values upwards, and the gradient of the sums
// downwards. Threads divide the items of a batch, which are independent.

#pragma once

#include "logs.h"

namespace {

enum Kind : int64_t { kSites, kGiven, kTotal, kLinked, kSummed, kPairs, kRules, kBeside, kPicked, kApart, kNone };

// Large functions are not inlined, which would double the build time.
#define NOINLINE __attribute__((noinline))

constexpr int64_t kFields = 12;   // numbers of one step
constexpr int64_t kPart = 6;      // numbers of one factor of a product
constexpr int64_t kTable = 8;     // numbers of one tensor
constexpr int64_t kBlock = 64;    // rows of a link that are worked on together

// A program and its inputs.
template <typename Real> struct Machine {
  const int64_t* values;      // (n, 3): numbers of one item before it, places, labels
  const int64_t* steps;       // (n, kFields)
  const int32_t* index;       // lists that steps point to
  const int64_t* tables;      // (slots, kTable): address, items, their stride, rows, their stride,
                              // columns, their stride, room of one item
  Real* arena;                // all values
  Real* room;                 // prepared tables
  int64_t count, batch;
  bool best;

  int64_t places(int64_t n) const { return values[3 * n + 1]; }
  int64_t labels(int64_t n) const { return values[3 * n + 2]; }
  int64_t at(int64_t n, int64_t item, int64_t place) const {
    const int64_t* v = values + 3 * n;
    return batch * v[0] + (item * v[1] + place) * v[2];
  }
  const int64_t* table(int64_t slot) const { return tables + kTable * slot; }
  template <typename T> const T* tensor(int64_t slot) const {
    return reinterpret_cast<const T*>(table(slot)[0]);
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
    const int32_t* own = index + part[1] + 2 * number;
    return own[0] < 0 ? nullptr : own;
  }

  // The offset of a factor's entry in the arena; below 0: none.
  int64_t entry(const int32_t* part, int64_t way, int64_t item, int64_t place) const {
    const int32_t* own = found(part, way, item, place);
    return own ? at(own[0], item, own[1]) : -1;
  }
};

template <typename Real> struct Room {
  std::vector<Real> rows, sums, left, right, terms, logs, peaks, tops;
};

template <typename Real> Real largest(const Real* __restrict values, int64_t count) {
  Real top = kNever<Real>;
#pragma omp simd reduction(max : top)
  for (int64_t k = 0; k < count; ++k) top = values[k] > top ? values[k] : top;
  return top;
}

template <typename Real> Real finite(Real value) { return value > kNever<Real> ? value : 0; }

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

// ---- tables ------------------------------------------------------------------------------------

// One item's table: the columns' peaks, and the scaled table in panels, forwards and (for gradients)
// backwards.
template <typename Real> struct Prepared {
  Real *peaks, *ahead, *back;
  const Real* logs;
  int64_t rows, columns, row, column;
};

template <typename Real>
Prepared<Real> prepared(const Machine<Real>& machine, int64_t slot, int64_t item) {
  const int64_t* table = machine.table(slot);
  const int64_t rows = table[3], columns = table[5], wide = width<Real>();
  const int64_t which = table[1] > 1 ? item : 0;
  const int64_t ahead = panels_of(columns, wide) * wide * rows;
  const int64_t size = columns + ahead + panels_of(rows, wide) * wide * columns;
  Real* room = machine.room + table[7] + which * size;
  const Real* logs = reinterpret_cast<const Real*>(table[0]) + which * table[2];
  return {room, room + columns, room + columns + ahead, logs, rows, columns, table[4], table[6]};
}

// Whether there is a NaN among log-values.
template <typename Real> bool unsound(const Real* values, int64_t count) {
  bool bad = false;
  for (int64_t k = 0; k < count; ++k) bad |= values[k] != values[k];
  return bad;
}

// Prepares a table; returns whether it has a NaN.
template <typename Real> bool prepare(const Prepared<Real>& t, bool best, bool back) {
  const int64_t wide = width<Real>();
  if (!back) {
    bool bad = false;
    for (int64_t j = 0; j < t.columns; ++j) t.peaks[j] = kNever<Real>;
    for (int64_t i = 0; i < t.rows; ++i)
      for (int64_t j = 0; j < t.columns; ++j) {
        const Real value = t.logs[i * t.row + j * t.column];
        bad |= value != value;
        t.peaks[j] = std::max(t.peaks[j], value);
      }
    for (int64_t j = 0; j < t.columns; ++j) t.peaks[j] = finite(t.peaks[j]);
    const Real none = best ? kNever<Real> : Real(0);
    Real one[width<Real>()];
    for (int64_t p = 0; p < panels_of(t.columns, wide); ++p)
      for (int64_t i = 0; i < t.rows; ++i) {
        const int64_t first = p * wide, count = std::min(wide, t.columns - first);
        Real* target = t.ahead + (p * t.rows + i) * wide;
        const Real* source = t.logs + i * t.row + first * t.column;
        for (int64_t k = 0; k < count; ++k) one[k] = source[k * t.column] - t.peaks[first + k];
        if (best) for (int64_t k = 0; k < count; ++k) target[k] = source[k * t.column];
        else exps(target, one, Real(0), count);
        for (int64_t k = count; k < wide; ++k) target[k] = none;
      }
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

// Rows by one panel, with maxima for sums.
template <typename Real, int rows>
void maximise(const Real* left, int64_t stride, const Real* panel, int64_t depth, Real* result) {
  Lane<Real> sums[rows][2];
  for (int r = 0; r < rows; ++r) sums[r][0] = sums[r][1] = all<Real>(kNever<Real>);
  for (int64_t k = 0; k < depth; ++k) {
    const Lane<Real> low = load(panel + k * width<Real>(), lanes<Real>());
    const Lane<Real> high = load(panel + k * width<Real>() + lanes<Real>(), lanes<Real>());
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const Real value = left[r * stride + k];
      const Lane<Real> one = low + value, two = high + value;
      sums[r][0] = one > sums[r][0] ? one : sums[r][0];
      sums[r][1] = two > sums[r][1] ? two : sums[r][1];
    }
  }
  std::memcpy(result, sums, sizeof(sums));
}

// (rows, panels * width): rows (rows, depth) by all panels.
template <typename Real>
void by_panels(const Real* left, int64_t rows, int64_t depth, const Real* panels, int64_t columns,
               Real* result, bool best) {
  const int64_t wide = width<Real>(), many = panels_of(columns, wide), stride = many * wide;
  Real block[8 * width<Real>()];
  for (int64_t p = 0; p < many; ++p)
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t some = std::min(kRows, rows - r);
      const Real *from = left + r * depth, *panel = panels + p * wide * depth;
      by_rows(some, [&](auto count) {
        constexpr int many_rows = decltype(count)::value;
        if (best) maximise<Real, many_rows>(from, depth, panel, depth, block);
        else multiply<Real, many_rows>(from, depth, panel, depth, block);
      });
      for (int64_t k = 0; k < some; ++k)
        std::memcpy(result + (r + k) * stride + p * wide, block + k * wide, wide * sizeof(Real));
    }
}

// ---- links -------------------------------------------------------------------------------------

// A step that links a value, or the pairs of labels of two parts, by a table.
template <typename Real> struct Link {
  const Machine<Real>& m;
  const int64_t* step;
  int64_t rules, out, inner, splits, firsts, seconds, depth, places;
  const int32_t *left, *right;

  Link(const Machine<Real>& machine, const int64_t* step) : m(machine), step(step) {
    rules = step[0] == kRules || step[0] == kPairs;
    out = step[1];
    inner = step[2];
    places = m.places(out);
    if (rules) {
      left = m.index + step[4];
      right = m.index + step[5];
      splits = std::max(left[2], right[2]);
      firsts = step[6];
      seconds = step[7];
      depth = firsts * seconds;
    } else {
      depth = m.labels(inner);
    }
  }

  int64_t source(int64_t item, int64_t place) const {
    return m.at(inner, item, m.places(inner) > 1 ? place : 0);
  }

  // exp(row - top) and top; for pairs the sums over splits, relative to the largest of all.
  NOINLINE Real scaled(int64_t item, int64_t place, Real* row, Room<Real>& room) const {
    if (!rules) {
      const Real* x = m.arena + source(item, place);
      const Real top = finite(largest(x, depth));
      exps(row, x, top, depth);
      return top;
    }
    const Real top = scaled_parts(item, place, room);
    std::fill(row, row + depth, Real(0));
    for (int64_t s = 0; s < splits; ++s) {
      if (!(room.tops[s] > kNever<Real>)) continue;
      const Real *one = room.left.data() + s * firsts, *two = room.right.data() + s * seconds;
      for (int64_t c = 0; c < firsts; ++c) {
        const Real value = one[c];
        Real* to = row + c * seconds;
        for (int64_t e = 0; e < seconds; ++e) to[e] += value * two[e];
      }
    }
    return top;
  }

  // exp(left - ...), exp(right - ...) of every split, whose weight is in its left part.
  NOINLINE Real scaled_parts(int64_t item, int64_t place, Room<Real>& room) const {
    room.left.resize(splits * firsts);
    room.right.resize(splits * seconds);
    room.tops.resize(splits);
    Real top = kNever<Real>;
    for (int64_t s = 0; s < splits; ++s) {
      const int64_t l = m.entry(left, s, item, place), r = m.entry(right, s, item, place);
      room.tops[s] = kNever<Real>;
      if (l < 0 || r < 0) continue;
      const Real a = largest(m.arena + l, firsts), b = largest(m.arena + r, seconds);
      if (!(a + b > kNever<Real>)) continue;
      room.tops[s] = a + b;
      top = std::max(top, a + b);
      exps(room.right.data() + s * seconds, m.arena + r, b, seconds);
    }
    top = finite(top);
    for (int64_t s = 0; s < splits; ++s) {
      if (!(room.tops[s] > kNever<Real>)) continue;
      const Real* from = m.arena + m.entry(left, s, item, place);
      Real* one = room.left.data() + s * firsts;
      const Real a = largest(from, firsts), share = std::exp(room.tops[s] - top);
      exps(one, from, a, firsts);
      for (int64_t c = 0; c < firsts; ++c) one[c] *= share;
    }
    return top;
  }

  template <typename Visit> void each_split(int64_t item, int64_t place, Visit visit) const {
    for (int64_t s = 0; s < splits; ++s) {
      const int64_t l = m.entry(left, s, item, place), r = m.entry(right, s, item, place);
      if (l >= 0 && r >= 0) visit(m.arena + l, m.arena + r);
    }
  }

  // The row in logs; for pairs the exact log-sums, or maxima, over splits.
  NOINLINE const Real* in_logs(int64_t item, int64_t place, Room<Real>& room) const {
    if (!rules) return m.arena + source(item, place);
    room.logs.assign(depth, kNever<Real>);
    Real* tops = room.logs.data();
    each_split(item, place, [&](const Real* one, const Real* two) {
      for (int64_t c = 0; c < firsts; ++c) {
        Real* to = tops + c * seconds;
        for (int64_t e = 0; e < seconds; ++e) to[e] = std::max(to[e], one[c] + two[e]);
      }
    });
    if (m.best || splits == 1) return tops;
    room.terms.assign(depth, Real(0));
    room.peaks.resize(seconds);
    each_split(item, place, [&](const Real* one, const Real* two) {
      for (int64_t c = 0; c < firsts; ++c) {
        Real *to = room.terms.data() + c * seconds, *shares = room.peaks.data();
        for (int64_t e = 0; e < seconds; ++e)
          shares[e] = one[c] + two[e] - finite(tops[c * seconds + e]);
        exps(shares, shares, Real(0), seconds);
        for (int64_t e = 0; e < seconds; ++e) to[e] += shares[e];
      }
    });
    for (int64_t i = 0; i < depth; ++i)
      if (tops[i] > kNever<Real>) tops[i] += std::log(room.terms[i]);
    return room.logs.data();
  }
};

template <typename Real>
Real exact_entry(const Prepared<Real>& t, const Real* row, int64_t column, std::vector<Real>& terms) {
  terms.resize(t.rows);
  for (int64_t i = 0; i < t.rows; ++i) terms[i] = row[i] + t.logs[i * t.row + column * t.column];
  return log_sum(terms.data(), t.rows);
}

template <typename Real>
NOINLINE void link_up(const Machine<Real>& m, const int64_t* step, int64_t first, int64_t last,
             Room<Real>& room) {
  const Link<Real> link(m, step);
  const int64_t *table = m.table(step[3]), columns = table[5], labels = m.labels(link.out);
  const int64_t stride = panels_of(columns, width<Real>()) * width<Real>();
  const Real low = faint<Real>(link.depth * std::max<int64_t>(1, link.rules ? link.splits : 1));
  const bool shared = table[1] == 1;
  const int64_t group = shared ? (last - first) * link.places : link.places;
  room.rows.resize(kBlock * link.depth);
  room.sums.resize(kBlock * stride);
  Real tops[kBlock];
  for (int64_t start = first * link.places; start < last * link.places; start += group) {
    const Prepared<Real> t = prepared(m, step[3], start / std::max<int64_t>(1, link.places));
    for (int64_t q = start; q < start + group; q += kBlock) {
      const int64_t some = std::min(kBlock, start + group - q);
      for (int64_t r = 0; r < some; ++r) {
        const int64_t item = (q + r) / link.places, place = (q + r) % link.places;
        Real* row = room.rows.data() + r * link.depth;
        if (m.best) std::memcpy(row, link.in_logs(item, place, room), link.depth * sizeof(Real));
        else tops[r] = link.scaled(item, place, row, room);
      }
      by_panels(room.rows.data(), some, link.depth, t.ahead, columns, room.sums.data(), m.best);
      for (int64_t r = 0; r < some; ++r) {
        const int64_t item = (q + r) / link.places, place = (q + r) % link.places;
        Real* out = m.arena + m.at(link.out, item, place);
        const Real* sums = room.sums.data() + r * stride;
        std::fill(out + columns, out + labels, kNever<Real>);
        if (m.best) {
          std::memcpy(out, sums, columns * sizeof(Real));
          continue;
        }
        logs(out, sums, t.peaks, tops[r], columns);
        bool lost = false;
        for (int64_t j = 0; j < columns; ++j) lost |= sums[j] < low;
        if (!lost) continue;
        const Real* row = link.in_logs(item, place, room);
        for (int64_t j = 0; j < columns; ++j)
          if (sums[j] < low) out[j] = exact_entry(t, row, j, room.terms);
      }
    }
  }
}

// The gradient of links, and the rows whose products are the table's gradient.
template <typename Real>
NOINLINE void link_down(const Machine<Real>& m, const int64_t* step, int64_t first, int64_t last,
               Real* grads, Real* befores, Real* afters, Real* const* extras, Room<Real>& room) {
  const Link<Real> link(m, step);
  const int64_t *table = m.table(step[3]), columns = table[5], depth = link.depth;
  const int64_t wide = panels_of(depth, width<Real>()) * width<Real>();
  const Real low = std::log(faint<Real>(depth * std::max<int64_t>(1, link.rules ? link.splits : 1)));
  room.sums.resize(kBlock * wide);
  const int64_t total = last * link.places;
  for (int64_t q = first * link.places; q < total;) {
    const int64_t own = q / link.places;
    const Prepared<Real> t = prepared(m, step[3], own);
    const int64_t until = table[1] == 1 ? total : (own + 1) * link.places;
    const int64_t some = std::min(kBlock, until - q);
    Real* before = befores + m.batch * step[8] + q * depth;
    Real* after = afters + m.batch * step[9] + q * columns;
    for (int64_t r = 0; r < some; ++r) {
      const int64_t item = (q + r) / link.places, place = (q + r) % link.places;
      const int64_t here = m.at(link.out, item, place);
      const Real *out = m.arena + here, *grad = grads + here;
      Real* h = after + r * columns;
      const Real top = link.scaled(item, place, before + r * depth, room);
      for (int64_t j = 0; j < columns; ++j) h[j] = out[j] - t.peaks[j];
      bool lost = false;
      for (int64_t j = 0; j < columns; ++j)
        lost |= grad[j] != 0 && out[j] > kNever<Real> && h[j] - top < low;
      if (lost) {
        const Real* row = link.in_logs(item, place, room);
        std::vector<Real> shares(depth);
        for (int64_t j = 0; j < columns; ++j) {
          if (!(grad[j] != 0 && out[j] > kNever<Real> && h[j] - top < low)) continue;
          h[j] = std::numeric_limits<Real>::infinity();  // passed on here
          for (int64_t i = 0; i < depth; ++i)
            shares[i] = grad[j] * std::exp(row[i] + t.logs[i * t.row + j * t.column] - out[j]);
          exact_down(m, link, item, place, shares.data(), row, grads);
#pragma omp critical(rdpgraph_extra)
          if (Real* extra = extras[step[3]]) {
            extra += (table[1] > 1 ? item : 0) * depth * columns;
            for (int64_t i = 0; i < depth; ++i) extra[i * columns + j] += shares[i];
          }
        }
      }
      for (int64_t j = 0; j < columns; j += lanes<Real>()) {
        const int64_t left = columns - j;
        const Lane<Real> o = load(h + j, left), g = load(grad + j, left);
        // o is -inf where nothing is possible, and +inf where it was passed on above.
        const Lane<Real> e = exp_of<Real>(top - o) * g;
        const Lane<Real> most = all<Real>(std::numeric_limits<Real>::max());
        store(h + j, (o < -most) | (o > most) | (g == Lane<Real>{}) ? Lane<Real>{} : e, left);
      }
    }
    by_panels(after, some, columns, t.back, depth, room.sums.data(), false);
    for (int64_t r = 0; r < some; ++r) {
      const int64_t item = (q + r) / link.places, place = (q + r) % link.places;
      const Real* back = room.sums.data() + r * wide;
      if (!link.rules) {
        Real* to = grads + link.source(item, place);
        const Real* e = before + r * depth;
        for (int64_t i = 0; i < depth; ++i) to[i] += e[i] * back[i];
        continue;
      }
      link.scaled_parts(item, place, room);
      for (int64_t s = 0; s < link.splits; ++s) {
        if (!(room.tops[s] > kNever<Real>)) continue;
        Real* l = grads + m.entry(link.left, s, item, place);
        Real* r2 = grads + m.entry(link.right, s, item, place);
        const Real *one = room.left.data() + s * link.firsts;
        const Real *two = room.right.data() + s * link.seconds;
        for (int64_t c = 0; c < link.firsts; ++c) {
          const Real* g = back + c * link.seconds;
          const Real value = one[c];
          Real sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t e = 0; e < link.seconds; ++e) {
            const Real part = g[e] * two[e];
            sum += part;
            r2[e] += value * part;
          }
          l[c] += value * sum;
        }
      }
    }
    q += some;
  }
}

// Passes the gradient of a row's entries on to their parts.
template <typename Real>
NOINLINE void exact_down(const Machine<Real>& m, const Link<Real>& link, int64_t item, int64_t place,
                const Real* shares, const Real* row, Real* grads) {
  if (!link.rules) {
    Real* to = grads + link.source(item, place);
    for (int64_t i = 0; i < link.depth; ++i) to[i] += shares[i];
    return;
  }
  for (int64_t s = 0; s < link.splits; ++s) {
    const int64_t l = m.entry(link.left, s, item, place), r = m.entry(link.right, s, item, place);
    if (l < 0 || r < 0) continue;
    for (int64_t c = 0; c < link.firsts; ++c)
      for (int64_t e = 0; e < link.seconds; ++e) {
        const int64_t i = c * link.seconds + e;
        if (!(row[i] > kNever<Real>) || shares[i] == 0) continue;
        const Real part = shares[i] * std::exp(m.arena[l + c] + m.arena[r + e] - row[i]);
        grads[l + c] += part;
        grads[r + e] += part;
      }
  }
}

// ---- sums of alternatives ----------------------------------------------------------------------

// (ways, labels) log-values of all alternatives of an entry.
template <typename Real>
NOINLINE int64_t alternatives(const Machine<Real>& m, const int64_t* step, int64_t item, int64_t place,
                     int64_t labels, std::vector<Real>& terms) {
  const int32_t* way = m.index + step[2];
  int64_t row = 0;
  for (int64_t w = 0; w < step[3]; ++w) {
    const int64_t many = way[0], factors = way[1];
    for (int64_t a = 0; a < many; ++a, ++row) {
      Real* to = terms.data() + row * labels;
      const int32_t* part = way + 2;
      for (int64_t f = 0; f < factors; ++f, part += kPart) {
        const int64_t from = m.entry(part, a, item, place);
        const Real* x = m.arena + from;
        if (from < 0) {
          std::fill(to, to + labels, kNever<Real>);
          break;
        }
        if (part[4] > 1 && f == 0) std::memcpy(to, x, labels * sizeof(Real));
        else if (part[4] > 1) for (int64_t j = 0; j < labels; ++j) to[j] += x[j];
        else if (f == 0) std::fill(to, to + labels, x[0]);
        else for (int64_t j = 0; j < labels; ++j) to[j] += x[0];
      }
    }
    way += 2 + kPart * factors;
  }
  return row;
}

template <typename Real>
NOINLINE void total_up(const Machine<Real>& m, const int64_t* step, int64_t first, int64_t last,
              Room<Real>& room) {
  const int64_t labels = m.labels(step[1]), places = m.places(step[1]), ways = step[4];
  room.terms.resize(std::max<int64_t>(1, ways * labels));
  room.sums.resize(labels);
  for (int64_t item = first; item < last; ++item)
    for (int64_t place = 0; place < places; ++place) {
      Real* out = m.arena + m.at(step[1], item, place);
      alternatives(m, step, item, place, labels, room.terms);
      const Real* terms = room.terms.data();
      if (labels == 1) {
        out[0] = m.best ? largest(terms, ways) : log_sum(room.terms.data(), ways);
        continue;
      }
      if (!ways) {
        std::fill(out, out + labels, kNever<Real>);
        continue;
      }
      std::memcpy(out, terms, labels * sizeof(Real));
      if (ways == 1) continue;
      for (int64_t a = 1; a < ways; ++a)
        for (int64_t j = 0; j < labels; ++j) out[j] = std::max(out[j], terms[a * labels + j]);
      if (m.best) continue;
      for (int64_t j = 0; j < labels; j += lanes<Real>()) {
        const int64_t left = labels - j;
        const Lane<Real> top = load(out + j, left);
        const Lane<Real> least = all<Real>(-std::numeric_limits<Real>::max());
        const Lane<Real> base = top < least ? Lane<Real>{} : top;
        Lane<Real> sum = {};
        for (int64_t a = 0; a < ways; ++a)
          sum += exp_of<Real>(load(terms + a * labels + j, left) - base);
        store(out + j, base + log_of<Real>(sum), left);
      }
    }
}

template <typename Real>
NOINLINE void total_down(const Machine<Real>& m, const int64_t* step, int64_t first, int64_t last,
                Real* grads, Room<Real>& room) {
  const int64_t labels = m.labels(step[1]), places = m.places(step[1]), ways = step[4];
  room.terms.resize(std::max<int64_t>(1, ways * labels));
  for (int64_t item = first; item < last; ++item)
    for (int64_t place = 0; place < places; ++place) {
      const int64_t here = m.at(step[1], item, place);
      const Real *out = m.arena + here, *grad = grads + here;
      bool some = false;
      for (int64_t j = 0; j < labels; ++j) some |= grad[j] != 0 && out[j] > kNever<Real>;
      if (!some) continue;
      Real* terms = room.terms.data();
      alternatives(m, step, item, place, labels, room.terms);
      if (labels == 1) {
        exps(terms, terms, out[0], ways);
        for (int64_t a = 0; a < ways; ++a) terms[a] *= grad[0];
      } else {
        for (int64_t j = 0; j < labels; j += lanes<Real>()) {
          const int64_t left = labels - j;
          const Lane<Real> o = load(out + j, left), g = load(grad + j, left);
          const Lane<Real> least = all<Real>(-std::numeric_limits<Real>::max());
          for (int64_t a = 0; a < ways; ++a) {
            Real* at = terms + a * labels + j;
            const Lane<Real> share = exp_of<Real>(load(at, left) - o) * g;
            store(at, o < least ? Lane<Real>{} : share, left);
          }
        }
      }
      const int32_t* way = m.index + step[2];
      for (int64_t w = 0; w < step[3]; ++w) {
        const int64_t many = way[0], factors = way[1];
        for (int64_t a = 0; a < many; ++a, terms += labels) {
          const int32_t* part = way + 2;
          bool none = false;
          for (int64_t f = 0; f < factors; ++f)
            none |= m.entry(part + f * kPart, a, item, place) < 0;
          if (none) continue;
          for (int64_t f = 0; f < factors; ++f, part += kPart) {
            Real* to = grads + m.entry(part, a, item, place);
            if (part[4] > 1) {
              for (int64_t j = 0; j < labels; ++j) to[j] += terms[j];
            } else {
              Real sum = 0;
              for (int64_t j = 0; j < labels; ++j) sum += terms[j];
              to[0] += sum;
            }
          }
        }
        way += 2 + kPart * factors;
      }
    }
}

// ---- all steps ---------------------------------------------------------------------------------

// Visits the entries of steps that move values, each with its source.
template <typename Real, typename Visit>
void moved(const Machine<Real>& m, const int64_t* step, int64_t item, Visit visit) {
  const int64_t out = step[1], places = m.places(out), labels = m.labels(out), x = step[2];
  for (int64_t place = 0; place < places; ++place) {
    const int64_t here = m.at(out, item, place);
    if (step[0] == kPicked) {
      const int64_t from = m.at(x, item, m.places(x) > 1 ? place : 0);
      for (int64_t j = 0; j < labels; ++j) visit(here + j, from + m.index[step[3] + j]);
    } else if (step[0] == kApart) {
      visit(here, m.at(x, item, 0) + place);
    } else {  // kBeside
      const int32_t* part = m.index + step[3];
      int64_t to = here;
      for (int64_t f = 0; f < step[4]; ++f, part += kPart)
        for (int64_t a = 0; a < part[2]; ++a) {
          const int64_t from = m.entry(part, a, item, place);
          for (int64_t j = 0; j < part[4]; ++j, ++to) visit(to, from < 0 ? -1 : from + j);
        }
    }
  }
}

// Items with a NaN in leaves or tables get a goal of NaN.
template <typename Real>
void run_up(const Machine<Real>& m, int64_t first, int64_t last, std::vector<uint8_t>& bad) {
  Room<Real> room;
  for (int64_t n = 0; n < m.count; ++n) {
    const int64_t* step = m.steps + kFields * n;
    const int64_t out = step[1], places = m.places(out), labels = m.labels(out);
    switch (step[0]) {
      case kSites: {
        const Real* unary = m.template tensor<Real>(0);
        const int64_t all_sites = m.table(0)[3];
        for (int64_t item = first; item < last; ++item)
          for (int64_t place = 0; place < places; ++place) {
            const Real* from = unary + (item * all_sites + m.index[step[2] + place]) * labels;
            bad[item] |= unsound(from, labels);
            std::memcpy(m.arena + m.at(out, item, place), from, labels * sizeof(Real));
          }
        break;
      }
      case kGiven: {
        const Real* given = m.template tensor<Real>(step[2]);
        const int64_t hop = m.table(step[2])[1] > 1 ? places * labels : 0;
        for (int64_t item = first; item < last; ++item) {
          bad[item] |= unsound(given + item * hop, places * labels);
          std::memcpy(m.arena + m.at(out, item, 0), given + item * hop,
                      places * labels * sizeof(Real));
        }
        break;
      }
      case kNone: break;
      case kTotal: total_up(m, step, first, last, room); break;
      case kLinked:
      case kRules: link_up(m, step, first, last, room); break;
      case kSummed: {
        const int64_t depth = m.labels(step[2]);
        room.terms.resize(depth);
        for (int64_t item = first; item < last; ++item)
          for (int64_t place = 0; place < places; ++place) {
            const Real* x = m.arena + m.at(step[2], item, place);
            std::memcpy(room.terms.data(), x, depth * sizeof(Real));
            m.arena[m.at(out, item, place)] =
                m.best ? largest(x, depth) : log_sum(room.terms.data(), depth);
          }
        break;
      }
      case kPairs: {
        const Link<Real> pairs(m, step);
        for (int64_t item = first; item < last; ++item)
          for (int64_t place = 0; place < places; ++place)
            std::memcpy(m.arena + m.at(out, item, place), pairs.in_logs(item, place, room),
                        labels * sizeof(Real));
        break;
      }
      default:
        for (int64_t item = first; item < last; ++item)
          moved(m, step, item, [&](int64_t to, int64_t from) {
            m.arena[to] = from < 0 ? kNever<Real> : m.arena[from];
          });
    }
  }
  for (int64_t item = first; item < last; ++item)
    if (bad[item]) m.arena[m.at(m.count - 1, item, 0)] = std::numeric_limits<Real>::quiet_NaN();
}

template <typename Real>
void run_down(const Machine<Real>& m, int64_t first, int64_t last, Real* grads, Real* befores,
              Real* afters, Real* const* extras, Real* sites) {
  Room<Real> room;
  for (int64_t n = m.count - 1; n >= 0; --n) {
    const int64_t* step = m.steps + kFields * n;
    const int64_t out = step[1], places = m.places(out), labels = m.labels(out);
    switch (step[0]) {
      case kSites: {
        const int64_t all_sites = m.table(0)[3];
        for (int64_t item = first; item < last; ++item)
          for (int64_t place = 0; place < places; ++place) {
            const Real* grad = grads + m.at(out, item, place);
            Real* to = sites + (item * all_sites + m.index[step[2] + place]) * labels;
            for (int64_t j = 0; j < labels; ++j) to[j] += grad[j];
          }
        break;
      }
      case kGiven:
      case kNone: break;
      case kTotal: total_down(m, step, first, last, grads, room); break;
      case kLinked:
      case kRules: link_down(m, step, first, last, grads, befores, afters, extras, room); break;
      case kSummed: {
        const int64_t depth = m.labels(step[2]);
        room.terms.resize(depth);
        for (int64_t item = first; item < last; ++item)
          for (int64_t place = 0; place < places; ++place) {
            const int64_t here = m.at(out, item, place), from = m.at(step[2], item, place);
            if (grads[here] == 0 || !(m.arena[here] > kNever<Real>)) continue;
            exps(room.terms.data(), m.arena + from, m.arena[here], depth);
            for (int64_t i = 0; i < depth; ++i) grads[from + i] += grads[here] * room.terms[i];
          }
        break;
      }
      case kPairs: {
        const Link<Real> pairs(m, step);
        for (int64_t item = first; item < last; ++item)
          for (int64_t place = 0; place < places; ++place) {
            const int64_t here = m.at(out, item, place);
            exact_down(m, pairs, item, place, grads + here, m.arena + here, grads);
          }
        break;
      }
      default:
        for (int64_t item = first; item < last; ++item)
          moved(m, step, item, [&](int64_t to, int64_t from) {
            if (from >= 0) grads[from] += grads[to];
          });
    }
  }
}

template <typename Real, typename Run>
void by_items(int64_t batch, int threads, Run run) {
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int64_t team = team_size(), own = thread_number();
    const int64_t first = batch * own / team, last = batch * (own + 1) / team;
    if (first < last) run(first, last);
  }
}

// Prepares all tables; marks the items with a NaN in one.
template <typename Real>
std::vector<uint8_t> prepare_all(const Machine<Real>& m, int64_t slots, bool back) {
  std::vector<uint8_t> bad(m.batch, 0);
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int64_t* table = m.table(slot);
    if (table[7] < 0) continue;
    for (int64_t item = 0; item < table[1]; ++item) {
      if (!prepare(prepared(m, slot, item), m.best, back)) continue;
      if (table[1] > 1) bad[item] = 1;
      else std::fill(bad.begin(), bad.end(), 1);
    }
  }
  return bad;
}

}  // namespace
