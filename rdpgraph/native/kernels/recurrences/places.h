// Places of a step over threads: of few items, whose charts are large.
//
// The places of a stage at a step do not read one another, so each thread takes some of them, with a run of its own
// that has the same items. Downwards they add to gradients of the same cells. These additions wait, and are made when
// all threads have ended, in the order of places.
//
// So every sum has the terms of one thread, in its order. How a product rounds depends on the rows that are multiplied
// together, so places are divided in the same way whatever the number of threads, and answers are equal bit for bit.

#pragma once

#include "run.h"

namespace {

constexpr int64_t kLeastPlaces = 8, kMostParts = 16;     // places of a part, and parts
constexpr int64_t kFewItems = 3;                         // more items are divided themselves

// Multiply-adds at a place of a stage, or so; an exponential takes as long as eight.
template <typename Real>
double Run<Real>::work_of_place(const Stage& g, At s, int64_t p) const {
  double terms = 0;
  for (const Alternative* a = alternatives + g.first; a < alternatives + g.first + (g.kind == kKindSum ? g.count : 1); ++a)
    each_loop(*a, 0, s, p, [&](At, Span span) { terms += double(span.high - span.low + 1); });
  if (g.kind == kKindSum) return 8 * terms * g.labels;
  return (g.kind == kKindPair ? terms : 1) * depth_of(g) + double(depth_of(g)) * g.labels * (g.fixed ? 1 : 8 * terms);
}

// Into how many parts the places of a stage at a step are divided: by the work for an item.
template <typename Real>
int64_t Run<Real>::parts_of(const Stage& g, At s, bool down) const {
  // A row of places has one level, and matrices that change from place to place have gradients that are not given.
  if (!divides || !g.labels || g.kind == kKindOver || (down && g.kind != kKindSum && !g.fixed)) return 1;
  for (const Alternative* a = alternatives + g.first; a < alternatives + g.first + g.count; ++a)
    if (a->row >= 0) return 1;  // rows of lists may differ from item to item, and so would the work
  const Span span = defined(g, s);
  const int64_t count = span.high - span.low + 1, many = std::min(count / kLeastPlaces, kMostParts);
  if (many < 2) return 1;
  const double work = double(count) * work_of_place(g, s, (span.low + span.high) / 2);
  return std::max<int64_t>(1, std::min<int64_t>(many, int64_t(work / kLeastWork)));
}

// Visits runs for each part of the places of a stage, in threads of their own if there are helpers.
template <typename Real>
template <typename Visit>
void Run<Real>::each_part(const Stage& g, At s, int64_t parts, Visit visit) {
  const Span span = defined(g, s);
  const int64_t count = span.high - span.low + 1, threads = std::min<int64_t>(parts, helpers.size() + 1);
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int64_t k = 0; k < threads; ++k) {
    const Flushed flushed;
    Run& run = k ? *helpers[k - 1] : *this;
    run.there_at[0] = -1, run.used.assign(whole.stages, {});  // what is possible is that of other numbers
    for (int64_t part = parts * k / threads; part < parts * (k + 1) / threads; ++part) {
      run.mine = {span.low + count * part / parts, span.low + count * (part + 1) / parts - 1};
      visit(run);
    }
    run.mine = kEverywhere;
  }
}

// Upwards: places write cells of their own.
template <typename Real>
template <typename Visit>
void Run<Real>::by_places(const Stage& g, At s, Visit visit) {
  const int64_t parts = parts_of(g, s, false);
  parts < 2 ? visit(*this) : each_part(g, s, parts, visit);
}

// Downwards: what places add to gradients waits for all.
template <typename Real>
template <typename Visit>
void Run<Real>::by_places_in_order(const Stage& g, At s, int64_t parts, Visit visit) {
  if (helpers.empty()) return each_part(g, s, parts, visit);
  each_part(g, s, parts, [&](Run& run) { run.waits = true, visit(run), run.waits = false; });
  for (size_t k = 0; k <= helpers.size(); ++k) {
    Run& run = k ? *helpers[k - 1] : *this;
    for (const Later& one : run.later) {
      const Real* from = run.numbers_later.data() + one.from;
      if (one.target) add_to(one.target, one.to, from, one.count);
      else keep_products(g, one.to.at, from, from + depth_of(g), 0);
    }
    run.later.clear(), run.numbers_later.clear();
  }
}

// By how much many threads shorten the work of all passes, as if every step had all places.
template <typename Real>
double Run<Real>::gain_of(int64_t threads) const {
  double all = 0, shared = 0;
  for (const Stage* g = stages; g < stages + whole.stages; ++g) {
    const double own = work_of(*g);
    all += own;
    if (g->places > 1 && g->labels && g->kind != kKindOver) shared += own * (1 - 1.0 / std::min(threads, g->places));
    // Of a wide series the panels of its matrix are shared.
    for (const Series& one : series)
      if (stages + one.link == g && !is_narrow(one)) shared += own * (1 - 1.0 / threads_for(double(g->depth) * g->labels, threads));
  }
  return all > 0 ? all / (all - shared) : 1;
}

}  // namespace
