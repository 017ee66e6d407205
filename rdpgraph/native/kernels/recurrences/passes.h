// The passes over all stages: upwards in the order in which tables are computed, downwards in the opposite
// one, so that all of a cell is known before what it reads gets its share.

#pragma once

#include "descend.h"
#include "maxima.h"
#include "second.h"

namespace {

// The steps from one on, in the order of a pass, at which a stage has something to do; of one that is part of a
// series, in a pass that works on these as a whole, no step within it but the first of the link.
template <typename Real>
int64_t Run<Real>::next_step(const Stage& g, Span span, int64_t step, bool forward, bool whole_series) {
  const int64_t none = forward ? whole.steps : -1;
  step = forward ? std::max(step, span.low) : std::min(step, span.high);
  for (const Series& one : series) {
    const bool link = stages + one.link == &g;
    if (!whole_series || (!link && stages + one.into != &g)) continue;
    const Span inside{one.first + link, one.last};
    if (inside.low <= step && step <= inside.high) step = forward ? inside.high + 1 : inside.low - 1;
  }
  return span.low <= step && step <= span.high ? step : none;
}

// Visits every stage that is needed, at every step and every place of its outer axes.
template <typename Real>
template <typename Visit>
void Run<Real>::each_stage(bool forward, bool whole_series, Visit visit) {
  const Flushed flushed;
  there_at[0] = -1, used.assign(whole.stages, {});  // what is possible is that of other numbers
  std::vector<Span> spans;
  for (const Stage* g = stages; g < stages + whole.stages; ++g) {
    spans.push_back(steps_of(g->bound, g->bounds, {0, whole.steps - 1}, false));
    if (!g->last) continue;
    const int64_t* own = ends + (g->last - 1) * ends_apart;
    spans.back().low = std::max(spans.back().low, *std::min_element(own, own + batch));
    spans.back().high = std::min(spans.back().high, *std::max_element(own, own + batch));
  }
  for (int64_t step = forward ? 0 : whole.steps - 1; 0 <= step && step < whole.steps;) {
    int64_t next = forward ? whole.steps : -1;
    for (int64_t j = 0; j < whole.stages; ++j) {
      const int64_t k = forward ? j : whole.stages - 1 - j;
      const Stage& g = stages[k];
      const int64_t own = next_step(g, spans[k], step, forward, whole_series);
      const int64_t later = own == step ? next_step(g, spans[k], forward ? step + 1 : step - 1, forward, whole_series) : own;
      next = forward ? std::min(next, later) : std::max(next, later);
      if (own != step || !is_needed(g, At{step})) continue;
      for (int64_t o = 0; o < g.widest; ++o)
        for (int64_t q = 0; q < g.wide; ++q)
          for (int64_t u = 0; u < g.wider; ++u) visit(g, At{step, q, u, 0, o});
    }
    step = next;
  }
}

// Log-sums, or maxima, of all tables.
template <typename Real>
template <bool best>
void Run<Real>::prepare_up() {
  const Flushed flushed;
  for (int64_t k = 0; k < whole.stages; ++k)
    if (prepares(stages[k])) prepare<best>(stages[k], false);
}

template <typename Real>
template <bool best>
void Run<Real>::up() {
  each_stage(true, true, [&](const Stage& g, At s) {
    if (Series* one = first_of_series(g, s.s)) return series_up<best>(*one, keep_series);
    if (g.kind == kKindSum) by_places(g, s, [&](Run& run) { run.template sum_up<best>(g, s); });
    else if (g.kind == kKindOver) over_up<best>(g, s);
    else by_places(g, s, [&](Run& run) { run.template link_up<best>(g, s, 0, batch); });
  });
}

// Gradients of log-sums.
template <typename Real>
void Run<Real>::prepare_down() {
  const Flushed flushed;
  kept.assign(whole.stages, Kept());
  for (int64_t k = 0; k < whole.stages; ++k)
    if (prepares(stages[k])) prepare<false>(stages[k], true);
}

template <typename Real>
void Run<Real>::down() {
  const Flushed flushed;
  each_stage(false, true, [&](const Stage& g, At s) {
    if (Series* one = first_of_series(g, s.s)) return series_down(*one);
    const int64_t parts = parts_of(g, s, true);
    if (g.kind == kKindOver) return over_down(g, s);
    if (parts < 2) return g.kind == kKindSum ? sum_down(g, s) : link_down(g, s, 0, batch);
    if (g.kind == kKindSum) return by_places_in_order(g, s, parts, [&](Run& run) { run.sum_down(g, s); });
    for (int64_t item = 0; item < batch; ++item)
      by_places_in_order(g, s, parts, [&](Run& run) { run.link_down(g, s, item, item + 1); });
  });
  for (int64_t k = 0; k < whole.stages; ++k) write_matrix_gradient(stages[k]);
}

// Means of all tables over derivations.
template <typename Real>
void Run<Real>::along() {
  each_stage(true, false, [&](const Stage& g, At s) {
    if (g.kind == kKindSum) sum_along(g, s);
    else if (g.kind == kKindOver) over_along(g, s);
    else link_along(g, s);
  });
}

// Derivatives of gradients along what moves say, after `along` and `down`.
template <typename Real>
void Run<Real>::second() {
  each_stage(false, false, [&](const Stage& g, At s) {
    if (g.kind == kKindSum) sum_second(g, s);
    else if (g.kind == kKindOver) over_second(g, s);
    else link_second(g, s);
  });
  for (int64_t k = 0; k < whole.stages; ++k) write_matrix_second(stages[k]);
}

// Losses of the best derivations that use a cell or an entry.
template <typename Real>
void Run<Real>::maxima() {
  // Those of a matrix are found step by step.
  bool whole_series = true;
  for (const Series& one : series) whole_series &= !losses[stages[one.link].slot];
  each_stage(false, whole_series, [&](const Stage& g, At s) {
    if (Series* one = whole_series ? first_of_series(g, s.s) : nullptr) {
      const int64_t together = g.table_item ? 1 : kBlock;  // items that share a matrix
      for (int64_t item = 0; item < batch; item += together) series_maxima(*one, item, std::min(together, batch - item));
      return;
    }
    if (g.kind == kKindSum) sum_maxima(g, s);
    else if (g.kind == kKindOver) over_maxima(g, s);
    else link_maxima(g, s);
  });
}

}  // namespace
