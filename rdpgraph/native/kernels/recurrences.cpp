// Entry points of the executor of recurrences, in each floating type, and its passes.

#include "recurrences/descend.h"
#include "recurrences/means.h"

namespace {

// Notes whether an input has a NaN or +inf.
template <typename Real>
void Run<Real>::check(const int64_t* counts, int64_t slots) {
  constexpr Real kMost = std::numeric_limits<Real>::infinity();
  int bad = 0;
  for (int64_t slot = 1; slot <= slots; ++slot) {
    const Real* values = data[slot];
#pragma omp simd reduction(| : bad)
    for (int64_t k = 0; k < counts[slot - 1]; ++k) bad |= !(values[k] < kMost);
  }
  unsound = bad;
}

// All tables, step by step; within a step in the sequence of the stages.
template <typename Real>
template <bool best>
void Run<Real>::up() {
  const Flushed flushed;
  for (int64_t k = 0; k < whole.stages; ++k)
    if (stages[k].slot >= 0 && stages[k].fixed) prepare<best>(stages[k], false);
  for (int64_t step = 0; step < whole.steps; ++step)
    for (int64_t k = 0; k < whole.stages; ++k) {
      const Stage& g = stages[k];
      if (!is_needed(g, At{step})) continue;
      for (int64_t q = 0; q < g.wide; ++q)
        for (int64_t u = 0; u < g.wider; ++u) {
          const At s{step, q, u};
          if (g.kind == kKindSum) sum_up<best>(g, s);
          else if (g.kind == kKindOver) over_up<best>(g, s);
          else link_up<best>(g, s);
        }
    }
}

// Gradients, in the opposite order: all of a cell is known before what it reads gets its share.
template <typename Real>
void Run<Real>::down() {
  const Flushed flushed;
  kept.assign(whole.stages, Kept());
  for (int64_t k = 0; k < whole.stages; ++k)
    if (stages[k].slot >= 0 && stages[k].fixed) prepare<false>(stages[k], true);
  for (int64_t step = whole.steps - 1; step >= 0; --step)
    for (int64_t k = whole.stages - 1; k >= 0; --k) {
      const Stage& g = stages[k];
      if (!is_needed(g, At{step})) continue;
      for (int64_t q = 0; q < g.wide; ++q)
        for (int64_t u = 0; u < g.wider; ++u) {
          const At s{step, q, u};
          if (g.kind == kKindSum) sum_down(g, s);
          else if (g.kind == kKindOver) over_down(g, s);
          else link_down(g, s);
        }
    }
  for (int64_t k = 0; k < whole.stages; ++k) write_matrix_gradient(stages[k]);
}

}  // namespace

#ifdef RECURRENCES_FLOAT
#define REAL float
#define NAME(what) what##_float
#else
#define REAL double
#define NAME(what) what##_double
#endif

extern "C" {

#ifdef RECURRENCES_FLOAT
int64_t record_bytes(int64_t which) { return kRecordBytes[which]; }
#endif

// Log-sums, or maxima if `best`, of all tables. Returns the run, which is `known` if that is not null.
void* NAME(up)(const int64_t* records, REAL* const* data, double* levels, const int64_t* ends,
               const int64_t* counts, int64_t slots, int64_t batch, int64_t best, void* known) {
  Run<REAL>* run = static_cast<Run<REAL>*>(known);
  if (!run) run = new Run<REAL>(records, data, levels, nullptr, batch, ends);
  else run->data = data, run->levels = levels, run->ends = ends;
  run->check(counts, slots);
  best ? run->template up<true>() : run->template up<false>();
  return run;
}

// The gradient of log-sums: `grads[0]` has_terms those of the goals, and gets those of all tables.
void NAME(down)(void* run, REAL* const* data, REAL* const* grads) {
  Run<REAL>* made = static_cast<Run<REAL>*>(run);
  made->data = data, made->grads = grads, made->down();
}

// Means over derivations of the sum of what `moves` say of each entry that is read.
void NAME(along)(void* run, REAL* const* data, REAL* const* moves) {
  Run<REAL>* made = static_cast<Run<REAL>*>(run);
  made->data = data, made->moves = moves, made->along();
}

// Whether an input had a NaN or +inf.
int64_t NAME(unsound)(void* run) { return static_cast<Run<REAL>*>(run)->unsound; }

// Reads (draw, item, slot, place) of derivations, as many as there is start for; returns how many.
int64_t NAME(descend)(void* run, REAL* const* data, const int64_t* goals, int64_t draws, int64_t best,
                      int64_t seed, int64_t* reads, int64_t most) {
  Run<REAL>* made = static_cast<Run<REAL>*>(run);
  made->data = data, made->state = seed;
  int64_t count = 0;
  for (int64_t draw = 0; draw < draws; ++draw)
    for (int64_t item = 0; item < made->batch; ++item) {
      if (goals[item] < 0) continue;
      made->descend(item, goals[item], best, [&](int64_t slot, int64_t at) {
        if (count < most) {
          int64_t* to = reads + 4 * count;
          to[0] = draw, to[1] = item, to[2] = slot, to[3] = at;
        }
        ++count;
      });
    }
  return count;
}

void NAME(release)(void* run) { delete static_cast<Run<REAL>*>(run); }

}  // extern "C"
