// Runs a lowered tape: log-sums or maxima of its values upwards, and the gradient of the sums
// downwards. Threads divide the items of a batch, which are independent.

#pragma once

#include "best.h"
#include "direct.h"
#include "threads.h"
#include "totals.h"

namespace {

// Visits the entries of steps that move values, each with its source, and what is added to it.
template <typename Real, typename Visit>
void moved(const Machine<Real>& m, const int64_t* step, int64_t item, Visit visit) {
  const int64_t out = step[1], places = m.places(out), labels = m.labels(out), x = step[2];
  const int64_t here = m.at(out, item, 0);
  double* levels = m.level_at(out, item, 0);
  if (step[0] == kBeside) {
    const auto each = [&](auto call) {
      const int32_t* part = m.index + step[3];
      int64_t to = here;
      for (int64_t f = 0; f < step[4]; ++f, part += kPart)
        for (int64_t a = 0; a < part[2]; ++a, to += part[4])
          m.each_run(part, a, item, 0, places, [&](int64_t p, int64_t run, int64_t from, int64_t hop,
                                                   const double* level) {
            for (int64_t k = 0; k < run; ++k)
              call(p + k, from < 0 ? -1 : from + k * hop, level ? level[hop ? k : 0] : 0,
                   to + (p + k) * labels, part[4]);
          });
    };
    if (levels) {
      std::fill(levels, levels + places, kNever<double>);
      each([&](int64_t p, int64_t from, double level, int64_t, int64_t) {
        if (from >= 0) levels[p] = std::max(levels[p], level);
      });
      for (int64_t p = 0; p < places; ++p) levels[p] = finite(levels[p]);
    }
    each([&](int64_t p, int64_t from, double level, int64_t to, int64_t wide) {
      const Real more = Real(level - (levels ? levels[p] : 0));
      for (int64_t j = 0; j < wide; ++j) visit(to + j, from < 0 ? -1 : from + j, more);
    });
    return;
  }
  const bool apart = step[0] == kApart;
  for (int64_t place = 0; place < places; ++place) {
    const int64_t spot = !apart && m.places(x) > 1 ? place : 0, from = m.at(x, item, spot);
    const double level = m.level(x, item, spot);
    if (levels) levels[place] = level;
    const Real more = levels ? 0 : Real(level);
    if (apart) visit(here + place, from + place, more);
    else for (int64_t j = 0; j < labels; ++j)
      visit(here + place * labels + j, from + m.index[step[3] + j], more);
  }
}

// Items with a NaN in leaves or tables get a goal of NaN. Ends early where digits are lost.
template <typename Real>
void run_up(const Machine<Real>& m, int64_t first, int64_t last, std::vector<uint8_t>& bad) {
  Room<Real> room;
  for (int64_t item = first; item < last; ++item)
    bad[item] |= unsound(m.sites(m.arena, item), m.size_of_sites());
  for (int64_t n = 0; n < m.count && !m.has_lost(); ++n) {
    const int64_t* step = m.steps + kFields * n;
    if (const int64_t more = series_of(m, step, false)) {
      const Series<Real> series(m, step);
      if (series.depth > lanes<Real>()) series_up<2>(series, first, last, room);
      else series_up<1>(series, first, last, room);
      n += more;
      continue;
    }
    if (m.best && starts_series(m, step)) {
      const Series<Real> series(m, step);
      series_best(series, first, last, room);
      n += (series.many - 1) * series.hop;
      continue;
    }
    const int64_t out = step[1], places = m.places(out), labels = m.labels(out);
    switch (step[0]) {
      case kSites:
        for (int64_t item = first; item < last; ++item)
          m.each_site(step, item, m.arena, [&](int64_t to, const Real* from) {
            std::memcpy(m.arena + to, from, labels * sizeof(Real));
          });
        break;
      case kGiven: {
        const Real* given = m.template tensor<Real>(step[2]);
        const int64_t size = places * labels;
        for (int64_t item = first; item < last; ++item) {
          const Real* from = given + m.shared(step[2], item) * size;
          bad[item] |= unsound(from, size);
          std::memcpy(m.arena + m.at(out, item, 0), from, size * sizeof(Real));
        }
        break;
      }
      case kNone:
      case kProduct: break;
      case kTotal: total_up(m, step, first, last, room); break;
      case kLinked:
      case kRules:
        if (m.table(step[3])[7] >= 0) link_up(m, step, first, last, room);
        else direct_up(m, step, first, last, room, bad);
        break;
      case kSummed: {
        const Link<Real> link(m, step);
        const int64_t run = link.run();
        room.terms.resize(link.depth * run);
        for (int64_t item = first; item < last; ++item)
          for (int64_t place = 0; place < places; place += run) {
            if (run > 1) {
              const int64_t some = std::min(run, places - place);
              beside(m, m.steps + kFields * link.inner, item, place, some, room.terms.data());
              soft_sums(room.terms.data(), link.depth, some, m.best, m.arena + m.at(out, item, place));
              continue;
            }
            const double base = link.base(item, place);
            const Real* x = link.in_logs(item, place, base, room);
            std::memcpy(room.terms.data(), x, link.depth * sizeof(Real));
            const Real sum =
                m.best ? largest(x, link.depth) : log_sum(room.terms.data(), link.depth);
            double* level = m.level_at(out, item, place);
            if (level) *level = base + finite(sum);
            m.arena[m.at(out, item, place)] = level ? sum - finite(sum) : Real(base + sum);
          }
        break;
      }
      case kPairs: {
        const Link<Real> pairs(m, step);
        for (int64_t item = first; item < last; ++item)
          for (int64_t place = 0; place < places; ++place)
            std::memcpy(m.arena + m.at(out, item, place), pairs.in_logs(item, place, 0, room),
                        labels * sizeof(Real));
        break;
      }
      default:
        for (int64_t item = first; item < last; ++item)
          moved(m, step, item, [&](int64_t to, int64_t from, Real more) {
            m.arena[to] = from < 0 ? kNever<Real> : m.arena[from] + more;
          });
    }
  }
  for (int64_t item = first; item < last; ++item)
    if (bad[item]) {
      m.arena[m.at(m.count - 1, item, 0)] = std::numeric_limits<Real>::quiet_NaN();
      m.note(1);
    }
}

template <typename Real>
void run_down(const Machine<Real>& m, int64_t first, int64_t last, const Real* pull, int64_t hop,
              Arena<Real> grads, Real* shares, Real* const* extras, int64_t slots) {
  Room<Real> room;
  for (int64_t item = first; item < last; ++item) grads[m.at(m.count - 1, item, 0)] = pull[hop * item];
  for (int64_t n = m.count - 1; n >= 0; --n) {
    const int64_t* step = m.steps + kFields * n;
    if (const int64_t more = series_of(m, step, true)) {
      const Series<Real> series(m, step - more * kFields);
      if (series.depth > lanes<Real>()) series_down<2>(series, first, last, grads, shares, extras, slots, room);
      else series_down<1>(series, first, last, grads, shares, extras, slots, room);
      n -= more;
      continue;
    }
    const int64_t out = step[1], places = m.places(out), labels = m.labels(out);
    switch (step[0]) {
      case kSites:
        for (int64_t item = first; item < last; ++item)
          m.each_site(step, item, grads, [&](int64_t from, Real* to) {
            const Real* grad = grads + from;
            for (int64_t j = 0; j < labels; ++j) to[j] += grad[j];
          });
        break;
      case kGiven:
      case kNone:
      case kProduct: break;
      case kTotal: total_down(m, step, first, last, grads, room); break;
      case kLinked:
      case kRules:
        if (m.table(step[3])[7] >= 0) link_down(m, step, first, last, grads, shares, extras, slots, room);
        else direct_down(m, step, first, last, grads, extras, room);
        break;
      case kSummed: {
        const Link<Real> link(m, step);
        const int64_t run = link.run();
        room.terms.resize(link.depth * run);
        Real* shares = room.terms.data();
        for (int64_t item = first; item < last; ++item)
          for (int64_t place = 0; place < places; place += run) {
            const int64_t here = m.at(out, item, place);
            if (run > 1) {
              const int64_t some = std::min(run, places - place);
              const int64_t* inner = m.steps + kFields * link.inner;
              beside(m, inner, item, place, some, shares);
              soft_shares(shares, link.depth, some, grads + here);
              beside_down(m, inner, item, place, some, shares, grads);
              continue;
            }
            if (grads[here] == 0 || !(m.arena[here] > kNever<Real>)) continue;
            const double base = link.base(item, place);
            const Real* row = link.in_logs(item, place, base, room);
            std::memcpy(shares, row, link.depth * sizeof(Real));
            const Real top = largest(row, link.depth);
            const Real whole = std::exp(log_sum(shares, link.depth) - top);
            for (int64_t i = 0; i < link.depth; ++i) shares[i] *= grads[here] / whole;
            exact_down(m, link, item, place, shares, row, base, grads);
          }
        break;
      }
      case kPairs: {
        const Link<Real> pairs(m, step);
        for (int64_t item = first; item < last; ++item)
          for (int64_t place = 0; place < places; ++place) {
            const int64_t here = m.at(out, item, place);
            exact_down(m, pairs, item, place, grads + here, m.arena + here, 0, grads);
          }
        break;
      }
      default:
        for (int64_t item = first; item < last; ++item)
          moved(m, step, item, [&](int64_t to, int64_t from, Real) {
            if (from >= 0) grads[from] += grads[to];
          });
    }
  }
}

// The items of a run together; one by one where all tables are read where they lie, an item's side by side.
template <typename Real, typename Run>
void by_items(const Machine<Real>& m, int64_t slots, int threads, Run run) {
  bool apart = false, shared = false;
  for (int64_t slot = 0; slot < slots; ++slot) {
    apart |= m.table(slot)[7] < -1;
    shared |= m.table(slot)[7] >= 0;
  }
  by_items(m.batch, threads, [&](int64_t first, int64_t last) {
    const int64_t hop = apart && !shared ? 1 : last - first;
    for (; first < last; first += hop) run(first, first + hop);
  });
}

// Prepares all tables; marks the items with a NaN in one.
template <typename Real>
std::vector<uint8_t> prepare_all(const Machine<Real>& m, int64_t slots, bool back) {
  std::vector<uint8_t> bad(m.batch, 0);
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int64_t* table = m.table(slot);
    if (table[7] < 0) continue;
    for (int64_t item = 0; item < m.apart(slot); ++item) {
      bool sound = true;
      for (int64_t number = 0; number < table[8]; ++number)
        sound &= !prepare(prepared(m, slot, item, number), m.best, back);
      for (int64_t copy = item; !sound && copy < m.batch; copy += m.apart(slot)) bad[copy] = 1;
    }
  }
  return bad;
}

}  // namespace
