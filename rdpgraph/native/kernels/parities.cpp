// Parity models: sums over their checks, kept states, and messages of decoders. All in float64.

#include "decode.h"
#include "kept.h"
#include "parity.h"

extern "C" {

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

void parity_kept(PARITY_GIVEN, const uint64_t* masks, const int64_t* open, double* out,
                 double* missing, double* left, int64_t* carried, double* grads, PARITY_SIZES, int64_t words,
                 int64_t most, int64_t seen, int64_t replicates, int64_t seed, int64_t sweep,
                 int best, int threads) {
  PARITY;
  const auto run = words == 1   ? kept_states<1>
                   : words == 2 ? kept_states<2>
                   : words <= 4 ? kept_states<4>
                                : kept_states<8>;
  run(p, masks, open, out, missing, left, carried, grads, most, seen, replicates, seed, sweep, threads);
}

void parity_messages(const int64_t* starts, const int64_t* edges, const int64_t* columns,
                     const int64_t* owners, const double* prior, const double* damping,
                     const int8_t* syndrome, double* posterior, int64_t* errors,
                     int64_t* iterations, int64_t* violated, int64_t checks, int64_t count,
                     int64_t batch, int64_t most, int64_t stride, double scale, int product, int serial, int threads) {
  const Decode decode{starts, edges, columns, owners, prior, damping, syndrome, posterior,
                      errors, iterations, violated, checks, count, batch, most, stride, scale,
                      product != 0, serial != 0};
  by_items(batch, threads, [&](int64_t a, int64_t b) { decode.run(a, b); });
}

void parity_flood(const int64_t* starts, const int64_t* bits, const double* prior,
                  const double* even, double* odds, double* changes, int64_t checks, int64_t count,
                  int64_t batch, double keep, double most, double seen, int product, int threads) {
  const Flood flood{starts, bits, prior, even, odds, changes, checks, count, batch, keep, most, seen,
                    product != 0};
  const int64_t groups = (batch + kShots - 1) / kShots;
  by_items(groups, threads, [&](int64_t a, int64_t b) { flood.run(a, b); });
}

}
