// Entry points of the library, for chains and tapes in each floating type.

#include "circuit.h"
#include "lists.h"
#include "machine.h"
#include "rows.h"
#ifndef CHAIN_FLOAT
#include "decode.h"
#include "kept.h"
#include "search.h"
#include "second.h"
#include "trees.h"
#include "trws.h"
#endif

// A program and its inputs, from their addresses.
template <typename Real>
Machine<Real> machine_of(const int64_t* parts, int64_t count, int64_t batch, int best,
                         int threads = 1) {
  const auto ints = [&](int k) { return reinterpret_cast<const int64_t*>(parts[k]); };
  const auto reals = [&](int k) { return reinterpret_cast<Real*>(parts[k]); };
  const int64_t* sites = ints(3);
  const Arena<Real> arena(reinterpret_cast<Real*>(sites[0]), reals(4), batch * sites[3] * sites[5]);
  return {ints(0), ints(1), reinterpret_cast<const int32_t*>(parts[2]), sites, arena, reals(5),
          reinterpret_cast<double*>(parts[6]), reals(7), reals(8), reinterpret_cast<int64_t*>(parts[9]),
          count, batch, best != 0, batch == 1 ? threads : 1};
}

extern "C" {

// One of two halves that are built in parallel.
#ifdef CHAIN_FLOAT
int64_t chain_panel_width(int64_t bytes) { return 2 * kBytes / bytes; }
#endif

#define CHAIN_KERNELS(Real, name)                                                                 \
  void chain_up_##name(const int64_t* parts, Real* goals, int64_t count, int64_t batch,           \
                       int64_t slots, int best, int threads) {                                    \
    const Machine<Real> m = machine_of<Real>(parts, count, batch, best, threads);                 \
    std::vector<uint8_t> bad = prepare_all(m, slots, false);                                      \
    by_items(m, slots, batch == 1 ? 1 : threads,                                                  \
             [&](int64_t a, int64_t b) { run_up(m, a, b, bad); });                                \
    std::copy_n(m.arena + m.at(count - 1, 0, 0), batch, goals);                                   \
  }                                                                                               \
  void chain_down_##name(const int64_t* parts, const Real* pull, Real* sites, Real* others, Real* shares,       \
                         Real* const* extras, int64_t count, int64_t batch, int64_t slots, int64_t hop, int threads) { \
    const Machine<Real> m = machine_of<Real>(parts, count, batch, 0, threads);                    \
    const Arena<Real> grads(sites, others, m.arena.size);                                         \
    prepare_all(m, slots, true);                                                                  \
    by_items(m, slots, batch == 1 ? 1 : threads, [&](int64_t a, int64_t b) {                      \
      run_down(m, a, b, pull, hop, grads, shares, extras, slots);                                 \
    });                                                                                           \
    for (int64_t slot = 0; slot < slots; ++slot) {                                                \
      if (!extras[slot] || m.table(slot)[7] < 0) continue;                                        \
      const Real* none = nullptr;                                                                 \
      Real* products = extras[slots + slot];                                                      \
      if (products) products_gradient<Real>(m, slot, extras[slot], products);                     \
      else table_gradient(m, slot, m.befores, shares, none, extras[slot], threads);               \
    }                                                                                             \
  }                                                                                               \
  void chain_most_##name(const int64_t* parts, Real* above, int64_t count, int64_t batch,         \
                         int64_t slots, int threads) {                                            \
    const Machine<Real> m = machine_of<Real>(parts, count, batch, 1);                             \
    prepare_all(m, slots, true);                                                                  \
    by_items(m, slots, threads, [&](int64_t a, int64_t b) { run_best(m, a, b, above); });         \
  }                                                                                               \
  void chain_descend_##name(const int64_t* parts, int64_t* found, int64_t* states,                \
                            const Real* noise, int64_t count, int64_t batch, int64_t slots,       \
                            int64_t draws, int64_t seed, int best, int threads) {                 \
    const Machine<Real> m = machine_of<Real>(parts, count, batch, best);                          \
    std::vector<Used>* all = descend(m, states, noise, slots, draws, uint64_t(seed), threads);    \
    found[0] = reinterpret_cast<int64_t>(all);                                                    \
    found[1] = all->size();                                                                       \
  }                                                                                               \
  void chain_lists_##name(const int64_t* parts, int64_t* found, int64_t* states, int64_t* there,   \
                          int64_t count, int64_t batch, int64_t slots, int64_t k, int threads) {  \
    const Machine<Real> m = machine_of<Real>(parts, count, batch, 1);                             \
    std::vector<Used>* all = k_best(m, states, found + 2, slots, k, there, threads);              \
    found[0] = reinterpret_cast<int64_t>(all);                                                    \
    found[1] = all->size();                                                                       \
  }                                                                                               \
  void chain_taken_##name(int64_t* found, int64_t* result) {                                      \
    auto* all = reinterpret_cast<std::vector<Used>*>(found[0]);                                   \
    if (result) std::memcpy(result, all->data(), all->size() * sizeof(Used));                     \
    delete all;                                                                                   \
  }                                                                                               \
  void chain_compile_##name(const int32_t* literals, const int64_t* starts, const int32_t* order, \
                            int32_t* out, int64_t* found, int64_t count, int64_t clauses,         \
                            int64_t capacity, double seconds) {                                   \
    Compiler compiler{literals, starts, order, out, count, clauses, capacity, seconds};           \
    found[0] = compiler.run();                                                                    \
    found[1] = compiler.used;                                                                     \
  }                                                                                               \
  void chain_rows_##name(const int64_t* integers, const double* reals, const int64_t* targets,     \
                         const int64_t* observed, const double* weights, double* log_z,           \
                         Real* marginals, double* counts, double* cells, int64_t rows,            \
                         int64_t entries, int64_t stride, double most, int threads) {             \
    rows_of_evidence<Real>(Tables(integers, reals, targets), observed, weights, log_z, marginals, counts,  \
                           cells, rows, entries, stride, most, threads);                          \
  }

#ifdef CHAIN_FLOAT
CHAIN_KERNELS(float, float)
#else
CHAIN_KERNELS(double, double)

void tape_losses(const int64_t* parts, const int64_t* others, double* losses, double* room,
                 int64_t count, int64_t batch, int64_t slots, int divergence, int threads) {
  const Machine<double> ours = machine_of<double>(parts, count, batch, 0);
  const Machine<double> theirs = machine_of<double>(others, count, batch, 0);
  Machine<double> means = ours;
  means.arena = losses, means.room = room;
  const auto made = [&] { return Losses{ours, theirs, means, 1.0, double(divergence)}; };
  made().prepare_all_scored(slots);
  by_items(ours, slots, threads, [&](int64_t a, int64_t b) { made().run(a, b); });
}

void tape_second(const int64_t* parts, double* pulls, const double* const* moves, double* derivatives,
                 double* room, double* turns, double* kept, double* heads, double* tails,
                 double* const* extras, int64_t count, int64_t batch, int64_t slots, int threads) {
  const Machine<double> m = machine_of<double>(parts, count, batch, 0);
  Machine<double> means = m;
  means.arena = derivatives, means.room = room;
  const auto made = [&] { return Losses{m, m, means, 0.0, 0.0, moves, kept}; };
  made().prepare_all_scored(slots);
  by_items(m, slots, threads, [&](int64_t a, int64_t b) {
    Losses along = made();
    along.run(a, b);
    Second{along, pulls, turns, heads, tails, extras}.run(a, b);
  });
  for (int64_t slot = 0; slot < slots; ++slot) {
    if (!extras[slot] || m.table(slot)[7] < 0) continue;
    table_gradient<double>(m, slot, m.befores, tails, nullptr, extras[slot], threads);
    table_gradient<double>(m, slot, kept, heads, nullptr, extras[slot], threads);
    if (moves[slot]) table_gradient<double>(m, slot, m.befores, heads, moves[slot], extras[slot], threads);
  }
}

#define PARITY \
  const Parity p{steps, count, weights, stride, syndrome, checks, columns, batch, best != 0}
#define PARITY_GIVEN const int64_t *steps, const double *weights, const int8_t *syndrome
#define PARITY_SIZES int64_t count, int64_t stride, int64_t checks, int64_t columns, int64_t batch

void parity_sums(PARITY_GIVEN, double* out, PARITY_SIZES, int64_t final, int best, int threads) {
  PARITY;
  by_shots(p, threads, [&](Sweep& sweep) { sweep.sums(out, final); });
}

void parity_gradient(PARITY_GIVEN, const double* pull, double* grads, PARITY_SIZES, int64_t final,
                     int best, int threads) {
  PARITY;
  by_shots(p, stride ? threads : 1, [&](Sweep& sweep) { sweep.gradient(pull, final, grads); });
}

void parity_paths(PARITY_GIVEN, uint8_t* found, PARITY_SIZES, int64_t draws, int64_t seed, int best,
                  int threads) {
  PARITY;
  by_shots(p, threads, [&](Sweep& sweep) { sweep.paths(uint64_t(seed), draws, found); });
}

void parity_kept(PARITY_GIVEN, const uint64_t* masks, double* out, int64_t* carried,
                 double* grads, PARITY_SIZES, int64_t words, int64_t most, int64_t seen,
                 int64_t replicates, int64_t seed, double cost, int best, int threads) {
  PARITY;
  const auto run = words == 1   ? kept_states<1>
                   : words == 2 ? kept_states<2>
                   : words <= 4 ? kept_states<4>
                                : kept_states<8>;
  run(p, masks, out, carried, grads, most, seen, replicates, seed, cost, threads);
}

void parity_messages(const int64_t* starts, const int64_t* edges, const int64_t* columns,
                     const int64_t* owners, const double* prior, const double* damping,
                     const int8_t* syndrome, double* posterior, int64_t* errors,
                     int64_t* iterations, int64_t* violated, int64_t checks, int64_t count,
                     int64_t batch, int64_t most, int64_t stride, double scale, int product, int serial, int threads) {
  const Decode decode{starts, edges, columns, owners, prior, damping, syndrome, posterior,
                      errors, iterations, violated, checks, count, batch, most, stride, scale,
                      product != 0, serial != 0};
  by_items<double>(batch, threads, [&](int64_t a, int64_t b) { decode.run(a, b); });
}

void parity_flood(const int64_t* starts, const int64_t* bits, const double* prior,
                  const double* even, double* odds, double* changes, int64_t checks, int64_t count,
                  int64_t batch, double keep, double most, double seen, int product, int threads) {
  const Flood flood{starts, bits, prior, even, odds, changes, checks, count, batch, keep, most, seen,
                    product != 0};
  const int64_t groups = (batch + kShots - 1) / kShots;
  by_items<double>(groups, threads, [&](int64_t a, int64_t b) { flood.run(a, b); });
}

void tree_sums(const double* arcs, const int64_t* lengths, double* weights, double* log_z,
               int64_t batch, int64_t words, int multiroot, int threads) {
  const Trees trees{arcs, lengths, weights, words, multiroot != 0};
  by_items<double>(batch, threads, [&](int64_t a, int64_t b) {
    for (int64_t item = a; item < b; ++item) log_z[item] = trees.sum(item);
  });
}

void tree_gradient(const double* arcs, const int64_t* lengths, double* weights, const double* log_z,
                   const double* pull, double* grads, int64_t batch, int64_t words, int multiroot,
                   int threads) {
  const Trees trees{arcs, lengths, weights, words, multiroot != 0};
  by_items<double>(batch, threads, [&](int64_t a, int64_t b) {
    for (int64_t item = a; item < b; ++item)
      if (log_z[item] > kNever<double>) trees.gradient(item, pull[item], grads);
  });
}

void search_order(const int64_t* starts, const int32_t* near, const double* logs,
                  const int8_t* summed, const int32_t* part, const int32_t* places, int32_t* steps,
                  int64_t* step_starts, int32_t* fixed, int64_t* found, double* cells,
                  int64_t variables, int64_t members, int64_t capacity, int64_t seed, double most,
                  double degree, double seconds) {
  Ordering ordering{starts, near, logs, part, summed, places, steps, fixed, step_starts, variables,
                    members, capacity, uint64_t(seed), most, degree, seconds};
  found[0] = ordering.run();
  found[1] = ordering.fixed_count;
  cells[0] = ordering.cells;
}

void search_solve(const int32_t* sizes, const int64_t* scope_starts, const int32_t* scopes,
                  const int64_t* value_starts, const double* values, const int64_t* holding_starts,
                  const int32_t* holding, const int8_t* summed, const int32_t* steps,
                  const int64_t* step_starts, int64_t* states, double* value, int64_t variables,
                  int64_t factors, int64_t count, int whole) {
  Eliminating eliminating{sizes, scope_starts, scopes, value_starts, values, holding_starts,
                          holding, summed, steps, step_starts, states, variables, factors, count,
                          whole != 0};
  value[0] = eliminating.run();
}

void trws_sweeps(const int64_t* starts, const int64_t* edges, const int64_t* incident_starts,
                 const int64_t* incident, const double* unary, const double* tables, double* messages,
                 int64_t* states, int64_t variables, int64_t count, int64_t sweeps, double temperature,
                 double low, int forward, int evenly) {
  Reweighted reweighted{starts, edges, incident_starts, incident, unary, tables, messages, states,
                        variables, count, temperature, low, evenly != 0};
  reweighted.run(sweeps, forward != 0);
}

#endif

}
