// Entry points of the executor of recurrences, in each floating type.

#include "recurrences/team.h"

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

// Multiply-adds of an item, or so.
double NAME(work)(const int64_t* records) { return Run<REAL>(records, nullptr).work(); }

// Log-sums, or maxima if `best`, of all tables; `keep` what gradients and draws need of them. Returns the runs, which
// are `known` if that is not null. Apart from `data` and its kind, arrays must outlive the runs.
// `cells` has those of all goals, (goals, batch), -1 where there is none and -2 before the first one, and then where their
// levels are; `value` gets the sums over goals. `found` gets whether an input had a NaN or +inf, and whether sums of
// large numbers have lost digits of float32.
void* NAME(up)(const int64_t* records, REAL* const* data, double* levels, const int64_t* ends,
               const int64_t* strides, const int64_t* counts, int64_t slots, int64_t batch, int64_t best,
               int64_t threads, int64_t keep, void* known, const int64_t* cells, int64_t goals, REAL* value, int64_t* found) {
  Team<REAL>* team = known ? static_cast<Team<REAL>*>(known) : new Team<REAL>;
  team->records = records, team->strides = strides, team->counts = counts, team->levels = levels, team->ends = ends;
  team->slots = slots, team->batch = batch;
  best ? team->template up<true>(data, threads, false) : team->template up<false>(data, threads, keep);
  found[0] = team->unsound, found[1] = !best && team->is_far();
  for (int64_t item = 0; item < batch; ++item) {
    double sum = 0;
    for (int64_t k = item; k < goals * batch; k += batch)
      sum += cells[k] == -2 ? 0.0 : cells[k] < 0 ? -INFINITY : data[0][cells[k]] + levels[cells[goals * batch + k]];
    value[item] = REAL(sum);
  }
  return team;
}

// The gradient of log-sums: `grads[0]` has those of the goals, and gets those of all tables.
void NAME(down)(void* team, REAL* const* data, REAL* const* grads) {
  static_cast<Team<REAL>*>(team)->down(data, grads);
}

// Means over derivations of the sum of what `moves` say of each entry that is read; if `entropic`, which is without what
// is said, of minus the log of a derivation's share.
void NAME(along)(void* team, REAL* const* data, REAL* const* moves, int64_t entropic) {
  static_cast<Team<REAL>*>(team)->along(data, moves, entropic);
}

// The derivative of gradients along what moves say, after `along` and `down` on arrays that are still there.
// `seconds[0]` has what is added to it at the goals, and gets those of all tables.
void NAME(second)(void* team, REAL* const* seconds) { static_cast<Team<REAL>*>(team)->second(seconds); }

// The best score of a derivation that uses an entry, less the best score, given maxima. `losses[0]` has 0 at
// the goals and -inf elsewhere, and gets what tables lose; every item has its own, so many bytes `apart`.
void NAME(maxima)(void* team, REAL* const* data, REAL* const* losses, const int64_t* apart) {
  static_cast<Team<REAL>*>(team)->maxima(data, losses, apart);
}

// Derivations of a goal, whose cells are given, below 0 where there is none: the best, or draws. Returns
// how many entries of inputs they read.
int64_t NAME(descend)(void* team, REAL* const* data, const int64_t* cells, int64_t draws, int64_t best,
                      int64_t seed) {
  return static_cast<Team<REAL>*>(team)->descend(data, cells, draws, best, seed);
}

// The states of an input's sites in such derivations, (draws, batch, places), written where there are any. With
// `noise`, (draws, batch, places, width), draws are the maxima of what it is added to, along a series of links.
void NAME(states)(void* team, REAL* const* data, const int64_t* cells, int64_t draws, int64_t best, int64_t seed,
                  int64_t slot, int64_t width, int64_t places, const REAL* noise, int64_t* to) {
  static_cast<Team<REAL>*>(team)->states(data, cells, draws, best, seed, slot, width, places, noise, to);
}

// The best derivations, given maxima: cells of all goals, (goals, batch), below 0 for those with nothing to
// read; `counts` has whether an item is possible, and gets how many were found. Returns what `descend` does.
int64_t NAME(k_best)(void* team, REAL* const* data, const int64_t* cells, int64_t goals, int64_t most, int64_t* counts) {
  return static_cast<Team<REAL>*>(team)->k_best(data, cells, goals, most, counts);
}

// The states of an input's sites in these, (most, batch, places), written where there are any.
void NAME(k_best_states)(void* team, REAL* const* data, const int64_t* cells, int64_t goals, int64_t most, int64_t* counts,
                         int64_t slot, int64_t width, int64_t places, int64_t* to) {
  static_cast<Team<REAL>*>(team)->k_best_states(data, cells, goals, most, counts, slot, width, places, to);
}

// Writes what the last derivations read, (draw, item, slot, place) each, and forgets it.
void NAME(read)(void* team, int64_t* to) {
  for (std::vector<int64_t>& part : static_cast<Team<REAL>*>(team)->reads) {
    to = std::copy(part.begin(), part.end(), to);
    part = std::vector<int64_t>();
  }
}

void NAME(release)(void* team) { delete static_cast<Team<REAL>*>(team); }

}  // extern "C"
