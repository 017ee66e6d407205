// Chains and tapes, in each floating type.

#include "lists.h"
#include "machine.h"
#ifndef CHAIN_FLOAT
#include "second.h"
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
int64_t panel_width(int64_t bytes) { return 2 * kBytes / bytes; }
#endif

#define CHAIN_KERNELS(Real, name)                                                                 \
  void up_##name(const int64_t* parts, Real* goals, int64_t count, int64_t batch,           \
                       int64_t slots, int best, int threads) {                                    \
    const Machine<Real> m = machine_of<Real>(parts, count, batch, best, threads);                 \
    std::vector<uint8_t> bad = prepare_all(m, slots, false);                                      \
    by_items(m, slots, batch == 1 ? 1 : threads,                                                  \
             [&](int64_t a, int64_t b) { run_up(m, a, b, bad); });                                \
    std::copy_n(m.arena + m.at(count - 1, 0, 0), batch, goals);                                   \
  }                                                                                               \
  void down_##name(const int64_t* parts, const Real* pull, Real* sites, Real* others, Real* shares,       \
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
  void most_##name(const int64_t* parts, Real* above, int64_t count, int64_t batch,         \
                         int64_t slots, int threads) {                                            \
    const Machine<Real> m = machine_of<Real>(parts, count, batch, 1);                             \
    prepare_all(m, slots, true);                                                                  \
    by_items(m, slots, threads, [&](int64_t a, int64_t b) { run_best(m, a, b, above); });         \
  }                                                                                               \
  void descend_##name(const int64_t* parts, int64_t* found, int64_t* states,                \
                            const Real* noise, int64_t count, int64_t batch, int64_t slots,       \
                            int64_t draws, int64_t seed, int best, int threads) {                 \
    const Machine<Real> m = machine_of<Real>(parts, count, batch, best);                          \
    std::vector<Used>* all = descend(m, states, noise, slots, draws, uint64_t(seed), threads);    \
    found[0] = reinterpret_cast<int64_t>(all);                                                    \
    found[1] = all->size();                                                                       \
  }                                                                                               \
  void lists_##name(const int64_t* parts, int64_t* found, int64_t* states, int64_t* there,   \
                          int64_t count, int64_t batch, int64_t slots, int64_t k, int threads) {  \
    const Machine<Real> m = machine_of<Real>(parts, count, batch, 1);                             \
    std::vector<Used>* all = k_best(m, states, found + 2, slots, k, there, threads);              \
    found[0] = reinterpret_cast<int64_t>(all);                                                    \
    found[1] = all->size();                                                                       \
  }                                                                                               \
  void taken_##name(int64_t* found, int64_t* result) {                                      \
    auto* all = reinterpret_cast<std::vector<Used>*>(found[0]);                                   \
    if (result) std::memcpy(result, all->data(), all->size() * sizeof(Used));                     \
    delete all;                                                                                   \
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

#endif

}
