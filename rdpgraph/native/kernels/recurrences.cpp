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
// are `known` if that is not null; what `call` points to must outlive them. `value` gets the sums over goals, and `found`
// whether an input had a NaN or +inf, and whether sums of large numbers have lost digits of float32.
void* NAME(up)(const Call* call, REAL* const* data, double* levels, int64_t best, int64_t threads, int64_t keep,
               void* known, REAL* value, int64_t* found) {
  auto at = [](int64_t address) { return reinterpret_cast<const int64_t*>(address); };
  Team<REAL>* team = known ? static_cast<Team<REAL>*>(known) : new Team<REAL>;
  team->records = at(call->records), team->strides = at(call->apart), team->counts = at(call->counts);
  team->levels = levels, team->ends = at(call->steps), team->cells = at(call->cells);
  team->slots = call->slots, team->batch = call->items, team->goals = call->goals;
  best ? team->template up<true>(data, threads, false) : team->template up<false>(data, threads, keep);
  found[0] = team->unsound, found[1] = !best && team->is_far();
  std::copy(team->totals.begin(), team->totals.end(), value);
  return team;
}

// The gradient of log-sums. `grads[0]` gets those of all tables, given what is `above` each item's goals; with null it has
// something at their places already.
void NAME(down)(void* team, REAL* const* data, REAL* const* grads, const REAL* above) {
  static_cast<Team<REAL>*>(team)->down(data, grads, above);
}

// Means over derivations of the sum of what `moves` say of each entry that is read: in `moves[0]` those of tables, and
// those of items in `to`. If `own`, inputs say their own logs; if `entropic`, nothing is said, and means are of minus the
// log of a derivation's share.
void NAME(along)(void* team, REAL* const* data, REAL* const* moves, REAL* to, int64_t own, int64_t entropic) {
  static_cast<Team<REAL>*>(team)->along(data, moves, to, own, entropic);
}

// The derivative of gradients along what moves say, after `along` and `down` on arrays that are still there. `seconds[0]`
// gets those of all tables, with `more` of each item at its goals, if that is not null.
void NAME(second)(void* team, REAL* const* seconds, const REAL* more) {
  static_cast<Team<REAL>*>(team)->second(seconds, more);
}

// The best score of a derivation that uses an entry, given maxima, in `losses`, which gets in `losses[0]` what tables
// lose; every item has its own, so many bytes `apart`.
void NAME(maxima)(void* team, REAL* const* data, REAL* const* losses, const int64_t* apart) {
  static_cast<Team<REAL>*>(team)->maxima(data, losses, apart);
}

// The best derivation of each item, or draws. Returns how many entries of inputs they read.
int64_t NAME(descend)(void* team, REAL* const* data, int64_t draws, int64_t best, int64_t seed) {
  return static_cast<Team<REAL>*>(team)->descend(data, draws, best, seed);
}

// The states of an input's sites in such derivations, (draws, batch, places), -1 where they use none. With `noise`,
// (draws, batch, places, width), draws are the maxima of what it is added to, along a series of links.
void NAME(states)(void* team, REAL* const* data, int64_t draws, int64_t best, int64_t seed, int64_t slot, int64_t width,
                  int64_t places, const REAL* noise, int64_t* to) {
  static_cast<Team<REAL>*>(team)->states(data, draws, best, seed, slot, width, places, noise, to);
}

// The best derivations, given maxima; `counts` gets how many were found. Returns what `descend` does.
int64_t NAME(k_best)(void* team, REAL* const* data, int64_t most, int64_t* counts) {
  return static_cast<Team<REAL>*>(team)->k_best(data, most, counts);
}

// The states of an input's sites in these, (most, batch, places), -1 where there are none, and the sums of the entries of
// inputs that they read, (most, batch), -inf where there are fewer.
void NAME(k_best_states)(void* team, REAL* const* data, int64_t most, int64_t slot, int64_t width, int64_t places,
                         int64_t* to, double* scores) {
  static_cast<Team<REAL>*>(team)->k_best_states(data, most, slot, width, places, to, scores);
}

// Writes what the last derivations read, (draw, item, slot, place) each, and forgets it.
void NAME(read)(void* team, int64_t* to) {
  for (std::vector<int64_t>& part : static_cast<Team<REAL>*>(team)->reads) {
    to = std::copy(part.begin(), part.end(), to);
    part = std::vector<int64_t>();
  }
}

// Numbers of float64 in this type, with 0 in place of subnormal ones, with which products take up to a hundred times longer.
void NAME(narrow)(const double* from, REAL* to, int64_t count) {
  for (int64_t k = 0; k < count; ++k) {
    const REAL value = REAL(from[k]);
    to[k] = std::abs(value) < std::numeric_limits<REAL>::min() ? REAL(0) : value;
  }
}

void NAME(release)(void* team) { delete static_cast<Team<REAL>*>(team); }

}  // extern "C"
