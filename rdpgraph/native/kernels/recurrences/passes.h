// The passes over all stages: upwards in the order in which tables are computed, downwards in the opposite
// one, so that all of a cell is known before what it reads gets its share.

#pragma once

#include "descend.h"
#include "maxima.h"
#include "second.h"

namespace {

// Visits every stage that is needed, at every step and every place of its outer axes.
template <typename Real>
template <typename Visit>
void Run<Real>::each_stage(bool forward, Visit visit) {
  const Flushed flushed;
  for (int64_t i = 0; i < whole.steps; ++i)
    for (int64_t j = 0; j < whole.stages; ++j) {
      const int64_t step = forward ? i : whole.steps - 1 - i;
      const Stage& g = stages[forward ? j : whole.stages - 1 - j];
      if (!is_needed(g, At{step})) continue;
      for (int64_t o = 0; o < g.widest; ++o)
        for (int64_t q = 0; q < g.wide; ++q)
          for (int64_t u = 0; u < g.wider; ++u) visit(g, At{step, q, u, 0, o});
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
  each_stage(true, [&](const Stage& g, At s) {
    if (g.kind == kKindSum) sum_up<best>(g, s);
    else if (g.kind == kKindOver) over_up<best>(g, s);
    else link_up<best>(g, s);
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
  each_stage(false, [&](const Stage& g, At s) {
    if (g.kind == kKindSum) sum_down(g, s);
    else if (g.kind == kKindOver) over_down(g, s);
    else link_down(g, s);
  });
  for (int64_t k = 0; k < whole.stages; ++k) write_matrix_gradient(stages[k]);
}

// Means of all tables over derivations.
template <typename Real>
void Run<Real>::along() {
  each_stage(true, [&](const Stage& g, At s) {
    if (g.kind == kKindSum) sum_along(g, s);
    else if (g.kind == kKindOver) over_along(g, s);
    else link_along(g, s);
  });
}

// Derivatives of gradients along what moves say, after `along` and `down`.
template <typename Real>
void Run<Real>::second() {
  each_stage(false, [&](const Stage& g, At s) {
    if (g.kind == kKindSum) sum_second(g, s);
    else if (g.kind == kKindOver) over_second(g, s);
    else link_second(g, s);
  });
  for (int64_t k = 0; k < whole.stages; ++k) write_matrix_second(stages[k]);
}

// Losses of the best derivations that use a cell or an entry, of one item.
template <typename Real>
void Run<Real>::maxima() {
  each_stage(false, [&](const Stage& g, At s) {
    if (g.kind == kKindSum) sum_maxima(g, s);
    else if (g.kind == kKindOver) over_maxima(g, s);
    else link_maxima(g, s);
  });
}

}  // namespace
