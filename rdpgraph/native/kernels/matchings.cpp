// Sums over the matchings of components of one shape, by the sweep of `matching/sweep.py`, in float64.
//
// A step decides on the edges of a vertex. T(s) is the log-value of the set s of open vertices that
// are matched, and T'(s') = log sum over (s, choice) that lead to s' of exp(T(s) + value(choice)).

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "threads.h"

namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

// One step, read from the numbers that `Sweep.program` writes: edges, bits, the vertex's own bit or
// -1, whether it is required, the bits kept and their number, and the mask of bits that must be set.
struct Step {
  int64_t edges, bits, own, required, kept, closed;
  const int64_t *kept_bits, *targets, *takes;

  const int64_t* read(const int64_t* at) {
    edges = at[0], bits = at[1], own = at[2], required = at[3], kept = at[4], closed = at[5];
    kept_bits = at + 6, targets = kept_bits + kept, takes = targets + edges;
    return takes + edges + 1;
  }
  int64_t before() const { return int64_t{1} << bits; }
  int64_t after() const { return int64_t{1} << kept; }
  int64_t entry(int64_t matched) const {
    int64_t to = 0;
    for (int64_t place = 0; place < kept; ++place) to |= (matched >> kept_bits[place] & 1) << place;
    return to;
  }

  // Calls visit(s, choice, s') for every choice that is allowed.
  template <typename Visit> void each(Visit visit) const {
    std::vector<int64_t> adds(edges), leads(edges);
    for (int64_t edge = 0; edge < edges; ++edge) {
      adds[edge] = targets[edge] < 0 ? 0 : int64_t{1} << targets[edge];
      leads[edge] = entry(adds[edge]);
    }
    for (int64_t s = 0; s < before(); ++s) {
      const bool used = own >= 0 && (s >> own & 1);
      const int64_t to = entry(s);
      if (takes[0] && (used || !required) && (closed & ~s) == 0) visit(s, 0, to);
      for (int64_t edge = 0; !used && edge < edges; ++edge)
        if (takes[edge + 1] && !(s & adds[edge]) && (closed & ~(s | adds[edge])) == 0)
          visit(s, edge + 1, to | leads[edge]);
    }
  }
};

void next_table(const Step& step, const double* values, const double* table, double* next) {
  std::vector<double> peak(step.after(), kNone), sum(step.after(), 0.0);
  step.each([&](int64_t s, int64_t choice, int64_t to) {
    const double value = table[s] + values[choice];
    if (value == kNone) return;
    if (value > peak[to]) {
      sum[to] = sum[to] * std::exp(peak[to] - value) + 1;
      peak[to] = value;
    } else {
      sum[to] += std::exp(value - peak[to]);  // NaN stays NaN
    }
  });
  for (int64_t to = 0; to < step.after(); ++to)
    next[to] = sum[to] == 0 ? kNone : peak[to] + std::log(sum[to]);
}

std::vector<Step> steps_of(const int64_t* program, int64_t count) {
  std::vector<Step> steps(count);
  for (Step& step : steps) program = step.read(program);
  return steps;
}

}  // namespace

extern "C" {

// values: (items, steps, width) of choices. log_z: (items,).
void matching_sums(const int64_t* program, const double* values, double* log_z, int64_t items,
                   int64_t count, int64_t width, int threads) {
  const std::vector<Step> steps = steps_of(program, count);
  by_items(items, threads, [&](int64_t first, int64_t last) {
    std::vector<double> table, next;
    for (int64_t item = first; item < last; ++item) {
      table.assign(1, 0.0);
      for (int64_t at = 0; at < count; ++at) {
        next.resize(steps[at].after());
        next_table(steps[at], values + (item * count + at) * width, table.data(), next.data());
        table.swap(next);
      }
      log_z[item] = table[0];
    }
  });
}

// pull: (items,) the gradient of log Z. grads: (items, steps, width), zeros at first: each choice's
// probability times it, as exp(T(s) + value - T'(s')) is its probability given s'.
void matching_gradient(const int64_t* program, const double* values, const double* pull,
                       double* grads, int64_t items, int64_t count, int64_t width, int threads) {
  const std::vector<Step> steps = steps_of(program, count);
  by_items(items, threads, [&](int64_t first, int64_t last) {
    std::vector<std::vector<double>> tables(count + 1);
    std::vector<double> down, up;
    for (int64_t item = first; item < last; ++item) {
      tables[0].assign(1, 0.0);
      for (int64_t at = 0; at < count; ++at) {
        tables[at + 1].resize(steps[at].after());
        next_table(steps[at], values + (item * count + at) * width, tables[at].data(),
                   tables[at + 1].data());
      }
      if (tables[count][0] == kNone) continue;
      down.assign(1, pull[item]);
      for (int64_t at = count - 1; at >= 0; --at) {
        const double* value = values + (item * count + at) * width;
        double* grad = grads + (item * count + at) * width;
        const double *table = tables[at].data(), *next = tables[at + 1].data();
        up.assign(steps[at].before(), 0.0);
        steps[at].each([&](int64_t s, int64_t choice, int64_t to) {
          const double all = table[s] + value[choice];
          if (all == kNone || next[to] == kNone) return;
          const double share = std::exp(all - next[to]) * down[to];
          up[s] += share;
          grad[choice] += share;
        });
        down.swap(up);
      }
    }
  });
}

}
