// Links by tables of which each is read by a few rows: summed in logs, where the tables lie.

#pragma once

#include "links.h"

namespace {

// Whether a table that is not prepared has a NaN.
template <typename Real> bool unsound(const Prepared<Real>& t) {
  bool bad = false;
  if (t.column == 1) for (int64_t i = 0; i < t.rows; ++i) bad |= unsound(t.logs + i * t.row, t.columns);
  else for (int64_t j = 0; j < t.columns; ++j)
    for (int64_t i = 0; i < t.rows; ++i) bad |= std::isnan(t.logs[i * t.row + j * t.column]);
  return bad;
}

template <typename Real>
NOINLINE void direct_up(const Machine<Real>& m, const int64_t* step, int64_t first, int64_t last,
                        Room<Real>& room, std::vector<uint8_t>& bad) {
  const Link<Real> link(m, step);
  const int64_t labels = m.labels(link.out);
  room.rows.resize(link.depth);
  Real* x = room.rows.data();
  for (int64_t item = first; item < last; ++item) {
    const Prepared<Real> t = prepared(m, step[3], item, step[10]);
    bad[item] |= unsound(t);
    for (int64_t place = 0; place < link.places; ++place) {
      double base = link.rules ? link.base(item, place) : 0;
      Real top = 0;
      const Real* row = link.rules ? link.in_logs(item, place, base, room)
                                   : link.near(item, place, x, base, top);
      Real* out = m.arena + m.at(link.out, item, place);
      std::fill(out + t.columns, out + labels, kNever<Real>);
      double* level = m.level_at(link.out, item, place);
      const Real more = level ? 0 : Real(base);
      top = level ? finite(largest(row, t.rows)) : 0;
      if (level) *level = base + top;
      for (int64_t i = 0; i < t.rows; ++i) x[i] = row[i] - top;
      if (t.column != 1) {
        for (int64_t j = 0; j < t.columns; ++j) out[j] = exact_entry(t, x, j, room.terms, m.best) + more;
        continue;
      }
      by_lanes<Real>(t.columns, [&](int64_t j, auto left) {
        store(out + j, Lane<Real>(exact_entries(t, x, j, left, m.best) + more), left);
      });
    }
  }
}

template <typename Real>
NOINLINE void direct_down(const Machine<Real>& m, const int64_t* step, int64_t first, int64_t last,
                          Arena<Real> grads, Real* const* extras, Room<Real>& room) {
  const Link<Real> link(m, step);
  std::vector<Real> share(link.depth);
  for (int64_t item = first; item < last; ++item) {
    const Prepared<Real> t = prepared(m, step[3], item, step[10]);
    Real* extra = extras[step[3]];
    if (extra) extra += (item * m.table(step[3])[8] + step[10]) * t.rows * t.columns;
    room.sums.resize(2 * t.columns + t.rows);
    Real *pull = room.sums.data(), *after = pull + t.columns, *terms = after + t.columns;
    for (int64_t place = 0; place < link.places; ++place) {
      const int64_t here = m.at(link.out, item, place);
      bool some = false;
      for (int64_t j = 0; j < t.columns; ++j) {
        const bool there = m.arena[here + j] > kNever<Real>;
        pull[j] = there ? grads[here + j] : 0;
        after[j] = there ? m.arena[here + j] : 0;
        some |= pull[j] != 0;
      }
      if (!some) continue;
      const double base = link.base(item, place);
      const Real* row = link.in_logs(item, place, base, room);
      const Real more = Real(base - m.level(link.out, item, place));
      std::fill(share.begin(), share.end(), Real(0));
      if (t.column == 1) {
        for (int64_t i = 0; i < t.rows; ++i) {
          if (!(row[i] > kNever<Real>)) continue;
          Lane<Real> total = {};
          by_lanes<Real>(t.columns, [&](int64_t j, auto left) {
            const Lane<Real> logs = load(t.logs + i * t.row + j, left) + (row[i] + more);
            const Lane<Real> one = load(pull + j, left) * exp_of<Real>(logs - load(after + j, left));
            total += one;
            if (!extra) return;
            Real* to = extra + i * t.columns + j;
            store(to, Lane<Real>(load(to, left) + one), left);
          });
          for (int64_t k = 0; k < lanes<Real>(); ++k) share[i] += total[k];
        }
      } else {
        for (int64_t j = 0; j < t.columns; ++j) {
          if (pull[j] == 0) continue;
          for (int64_t i = 0; i < t.rows; ++i) terms[i] = row[i] + more + t.logs[i * t.row + j * t.column];
          exps(terms, terms, after[j], t.rows);
          for (int64_t i = 0; i < t.rows; ++i) {
            share[i] += terms[i] *= pull[j];
            if (extra) extra[i * t.columns + j] += terms[i];
          }
        }
      }
      exact_down(m, link, item, place, share.data(), row, base, grads);
    }
  }
}

}  // namespace
