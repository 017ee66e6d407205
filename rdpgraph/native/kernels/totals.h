// Sums over alternatives, upwards and downwards.

#pragma once

#include "tables.h"

namespace {

// (ways, labels) log-values of all alternatives of an entry, less a level.
template <typename Real>
NOINLINE void alternatives(const Machine<Real>& m, const int64_t* step, int64_t item, int64_t place,
                           int64_t labels, double level, std::vector<Real>& terms) {
  m.each_way(step, [&](int64_t row, const int32_t* part, int64_t factors, int64_t a) {
    Real* to = terms.data() + row * labels;
    double more = -level;
    for (int64_t f = 0; f < factors; ++f, part += kPart) {
      const int64_t from = m.entry(part, a, item, place);
      if (from < 0) return std::fill(to, to + labels, kNever<Real>);
      const Real* x = m.arena + from;
      more += m.level_of(part, a, item, place);
      if (const int32_t* list = m.listed(part, a)) {
        for (int64_t j = 0; j < labels; ++j) to[j] = (f ? to[j] : Real(0)) + x[list[j]];
      } else if (part[4] > 1 && f == 0) std::memcpy(to, x, labels * sizeof(Real));
      else if (part[4] > 1) for (int64_t j = 0; j < labels; ++j) to[j] += x[j];
      else if (f == 0) std::fill(to, to + labels, x[0]);
      else for (int64_t j = 0; j < labels; ++j) to[j] += x[0];
    }
    if (more != 0) for (int64_t j = 0; j < labels; ++j) to[j] += Real(more);
  });
}

// (ways, labels, count) log-values of the alternatives of some places.
template <typename Real>
NOINLINE void beside(const Machine<Real>& m, const int64_t* step, int64_t item, int64_t place,
                     int64_t count, Real* to) {
  const int64_t labels = m.labels(step[1]);
  const int32_t* way = m.index + step[2];
  for (int64_t w = 0; w < step[3]; ++w, way += 2 + kPart * way[1])
    for (int64_t a = 0; a < way[0]; ++a, to += labels * count)
      for (int64_t f = 0; f < way[1]; ++f) {
        const int32_t* part = way + 2 + f * kPart;
        const int64_t wide = part[4] > 1;
        m.each_run(part, a, item, place, count, [&](int64_t p, int64_t run, int64_t from, int64_t hop,
                                                    const double* level) {
          for (int64_t i = 0; i < labels; ++i) {
            Real* row = to + i * count + p;
            const Real* x = m.arena + from + i * wide;
            if (from < 0) std::fill(row, row + run, kNever<Real>);
            else if (f == 0) for (int64_t k = 0; k < run; ++k) row[k] = x[k * hop];
            else for (int64_t k = 0; k < run; ++k) row[k] += x[k * hop];
            for (int64_t k = 0; k < run && level; ++k) row[k] += Real(level[hop ? k : 0]);
          }
        });
      }
}

// Passes shares (ways, labels, count) on to the alternatives of some places.
template <typename Real>
NOINLINE void beside_down(const Machine<Real>& m, const int64_t* step, int64_t item, int64_t place,
                          int64_t count, const Real* shares, Arena<Real> grads) {
  const int64_t labels = m.labels(step[1]);
  const int32_t* way = m.index + step[2];
  for (int64_t w = 0; w < step[3]; ++w, way += 2 + kPart * way[1])
    for (int64_t a = 0; a < way[0]; ++a, shares += labels * count)
      for (int64_t f = 0; f < way[1]; ++f) {
        const int32_t* part = way + 2 + f * kPart;
        const int64_t wide = part[4] > 1;
        m.each_run(part, a, item, place, count, [&](int64_t p, int64_t run, int64_t to, int64_t hop,
                                                    const double*) {
          for (int64_t i = 0; i < labels && to >= 0; ++i) {
            const Real* row = shares + i * count + p;
            Real* x = grads + to + i * wide;
            for (int64_t k = 0; k < run; ++k) x[k * hop] += row[k];
          }
        });
      }
}

// The log-sums, or maxima, of terms (ways, count) over ways.
template <typename Real>
void soft_sums(const Real* terms, int64_t ways, int64_t count, bool best, Real* out) {
  std::fill(out, out + count, kNever<Real>);
  for (int64_t a = 0; a < ways; ++a)
    for (int64_t j = 0; j < count; ++j) out[j] = std::max(out[j], terms[a * count + j]);
  if (ways == 1 || best) return;
  by_lanes<Real>(count, [&](int64_t j, auto left) {
    const Lane<Real> top = load(out + j, left);
    const Lane<Real> least = all<Real>(-std::numeric_limits<Real>::max());
    const Lane<Real> base = top < least ? Lane<Real>{} : top;
    Lane<Real> sum = {};
    for (int64_t a = 0; a < ways; ++a)
      sum += exp_of<Real>(load(terms + a * count + j, left) - base);
    store(out + j, base + log_of<Real>(sum), left);
  });
}

// Terms (ways, count) become their shares of their sums, times gradients; 0 where nothing is possible.
template <typename Real>
void soft_shares(Real* terms, int64_t ways, int64_t count, const Real* grad) {
  by_lanes<Real>(count, [&](int64_t j, auto left) {
    const Lane<Real> least = all<Real>(-std::numeric_limits<Real>::max());
    Lane<Real> top = all<Real>(kNever<Real>), sum = {};
    for (int64_t a = 0; a < ways; ++a) {
      const Lane<Real> one = load(terms + a * count + j, left);
      top = one > top ? one : top;
    }
    const Lane<Real> base = top < least ? Lane<Real>{} : top;
    for (int64_t a = 0; a < ways; ++a) {
      const Lane<Real> one = exp_of<Real>(load(terms + a * count + j, left) - base);
      store(terms + a * count + j, one, left);
      sum += one;
    }
    const Lane<Real> factor = top < least ? Lane<Real>{} : load(grad + j, left) / sum;
    for (int64_t a = 0; a < ways; ++a)
      store(terms + a * count + j, load(terms + a * count + j, left) * factor, left);
  });
}

// The largest level of the alternatives of an entry.
template <typename Real>
double highest(const Machine<Real>& m, const int64_t* step, int64_t item, int64_t place) {
  double top = kNever<double>;
  m.each_way(step, [&](int64_t, const int32_t* part, int64_t factors, int64_t a) {
    double sum = 0;
    for (int64_t f = 0; f < factors; ++f, part += kPart)
      sum += m.entry(part, a, item, place) < 0 ? kNever<double> : m.level_of(part, a, item, place);
    top = std::max(top, sum);
  });
  return finite(top);
}

// The places of a sum that are worked on together: many of one label, as if they were labels.
template <typename Real> int64_t run_of(const Machine<Real>& m, const int64_t* step) {
  return m.labels(step[1]) == 1 && m.places(step[1]) >= lanes<Real>() / 2 ? kBlock : 1;
}

template <typename Real>
NOINLINE void total_up(const Machine<Real>& m, const int64_t* step, int64_t first, int64_t last,
              Room<Real>& room) {
  const int64_t places = m.places(step[1]), ways = step[4], some = run_of(m, step);
  int64_t labels = m.labels(step[1]);
  room.terms.resize(std::max<int64_t>(1, ways * labels * some));
  for (int64_t item = first; item < last; ++item)
    for (int64_t place = 0; place < places; place += some) {
      Real* out = m.arena + m.at(step[1], item, place);
      if (some > 1) {
        labels = std::min(some, places - place);
        beside(m, step, item, place, labels, room.terms.data());
      } else {
        double* level = m.level_at(step[1], item, place);
        if (level) *level = highest(m, step, item, place);
        alternatives(m, step, item, place, labels, level ? *level : 0, room.terms);
      }
      const Real* terms = room.terms.data();
      if (labels == 1) {
        out[0] = m.best ? largest(terms, ways) : log_sum(room.terms.data(), ways);
        continue;
      }
      soft_sums(terms, ways, labels, m.best, out);
    }
}

// Passes shares (ways, labels) on to the alternatives of a place.
template <typename Real>
void ways_down(const Machine<Real>& m, const int64_t* step, int64_t item, int64_t place, int64_t labels,
               const Real* shares, Arena<Real> grads) {
  m.each_way(step, [&](int64_t row, const int32_t* part, int64_t factors, int64_t a) {
    for (int64_t f = 0; f < factors; ++f)
      if (m.entry(part + f * kPart, a, item, place) < 0) return;
    const Real* own = shares + row * labels;
    for (int64_t f = 0; f < factors; ++f, part += kPart) {
      Real* to = grads + m.entry(part, a, item, place);
      if (const int32_t* list = m.listed(part, a)) for (int64_t j = 0; j < labels; ++j) to[list[j]] += own[j];
      else for (int64_t j = 0; j < labels; ++j) to[part[4] > 1 ? j : 0] += own[j];
    }
  });
}

template <typename Real>
NOINLINE void total_down(const Machine<Real>& m, const int64_t* step, int64_t first, int64_t last,
                Arena<Real> grads, Room<Real>& room) {
  const int64_t places = m.places(step[1]), ways = step[4], run = run_of(m, step);
  int64_t labels = m.labels(step[1]);
  room.terms.resize(std::max<int64_t>(1, ways * labels * run));
  for (int64_t item = first; item < last; ++item)
    for (int64_t place = 0; place < places; place += run) {
      if (run > 1) labels = std::min(run, places - place);
      const int64_t here = m.at(step[1], item, place);
      const Real *out = m.arena + here, *grad = grads + here;
      bool some = false;
      for (int64_t j = 0; j < labels; ++j) some |= grad[j] != 0 && out[j] > kNever<Real>;
      if (!some) continue;
      Real* terms = room.terms.data();
      if (ways > 1 && run > 1) {
        beside(m, step, item, place, labels, terms);
      } else if (ways > 1) {
        const double level = m.level(step[1], item, place);
        alternatives(m, step, item, place, labels, level, room.terms);
      }
      if (ways == 1) {
        for (int64_t j = 0; j < labels; ++j) terms[j] = out[j] > kNever<Real> ? grad[j] : 0;
      } else if (labels == 1) {
        exps(terms, terms, out[0], ways);
        for (int64_t a = 0; a < ways; ++a) terms[a] *= grad[0];
      } else {
        soft_shares(terms, ways, labels, grad);
      }
      if (run > 1) {
        beside_down(m, step, item, place, labels, terms, grads);
        continue;
      }
      ways_down(m, step, item, place, labels, terms, grads);
    }
}

}  // namespace
