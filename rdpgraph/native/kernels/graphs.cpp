// Solvers of factor graphs: elimination in a search, tree-reweighted messages, minimum cuts, circuits, and
// rows of evidence along one order.

#include "circuit.h"
#include "cuts.h"
#include "rows.h"
#include "search.h"
#include "trws.h"

extern "C" {

void circuit_compile(const int32_t* literals, const int64_t* starts, const int32_t* order, int32_t* out,
                     int64_t* found, int64_t count, int64_t clauses, int64_t capacity, double seconds) {
  Compiler compiler{literals, starts, order, out, count, clauses, capacity, seconds};
  found[0] = compiler.run();
  found[1] = compiler.used;
}

#define ROWS(Real, name)                                                                        \
  void rows_##name(const int64_t* integers, const double* reals, const int64_t* targets,          \
                   const int64_t* observed, const double* weights, double* log_z, Real* marginals, \
                   double* counts, double* cells, int64_t rows, int64_t entries, int64_t stride,  \
                   double most, double beside, int threads) {                                     \
    rows_of_evidence<Real>(Tables(integers, reals, targets), observed, weights, log_z, marginals, \
                           counts, cells, rows, entries, stride, most, beside, threads);          \
  }
ROWS(float, float)
ROWS(double, double)
#undef ROWS

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

void trws_bound(const int64_t* starts, const int64_t* edges, const double* tables, const double* messages,
                const double* beliefs, const int64_t* later, double* terms, int64_t variables,
                int64_t count, double temperature, double rounding, int forward) {
  ReweightedBound bound{starts, edges, tables, messages, beliefs, later, terms, variables, count,
                        temperature, rounding};
  bound.run(forward != 0);
}

void cut_minimum(const int32_t* ends, const int64_t* weights, const int64_t* fields, int64_t* moved,
                 int8_t* labels, double* visits, int64_t variables, int64_t pairs, double most) {
  Cut cut{ends, weights, fields, moved, labels, variables, pairs};
  visits[1] = cut.run(most, visits);
}

void trws_sweeps(const int64_t* starts, const int64_t* edges, const int64_t* incident_starts,
                 const int64_t* incident, const double* unary, const double* tables, double* messages,
                 int64_t* states, int64_t variables, int64_t count, int64_t sweeps, double temperature,
                 double low, int forward, int evenly) {
  Reweighted reweighted{starts, edges, incident_starts, incident, unary, tables, messages, states,
                        variables, count, temperature, low, evenly != 0};
  reweighted.run(sweeps, forward != 0);
}

}
