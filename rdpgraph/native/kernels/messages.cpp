// Entry points of message passing in whole graphs, in each floating type.

#include "messages/decide.h"
#include "messages/odds.h"
#include "messages/sweep.h"

namespace {

// Runs on ranges of a block's factors, as many at a time as a vector has lanes.
template <typename Real, typename Work, typename Run>
void by_vectors(const KernelRecord& kernel, int threads, Run run) {
  constexpr int64_t wide = lanes<Work>();
  by_items((kernel.factors + wide - 1) / wide, threads, [&](int64_t a, int64_t b) {
    run(a * wide, std::min(b * wide, kernel.factors));
  });
}

// The largest numbers of several threads.
template <typename T> void raise(T& most, T value) {
#pragma omp critical
  most = value > most ? value : most;
}

template <typename Real, typename Work>
double sweep_once(const Propagation<Real>& p, int64_t item, Real* messages, Real* beliefs,
                  const Update& how, int threads) {
  p.gather_all(item, messages, beliefs, threads);
  double most = 0;
  for (int64_t n = 0; n < p.model.kernel_count; ++n)
    by_vectors<Real, Work>(p.kernels[n], threads, [&](int64_t a, int64_t b) {
      Worker<Real, Work> worker(p, item, messages, beliefs);
      double largest = 0;
      for (int64_t f = a; f < b; f += lanes<Work>())
        largest = std::max(largest, double(worker.update(p.kernels[n], nullptr, f, b, how)));
      raise(most, largest);
    });
  return most;
}

// Sweeps all messages of each item until none changes by more than the tolerance; (sweeps, items) largest
// changes, and the number of sweeps of each.
template <typename Real, typename Work>
void sweep_all(const Model& model, Real* messages, const int64_t* items, double* changes, int64_t* done,
               int64_t count, int64_t sweeps, double tolerance, const Update& how, int threads) {
  const Propagation<Real> p(model);
  const bool apart = count >= threads;  // an item for each thread
  by_items(count, apart ? threads : 1, [&](int64_t a, int64_t b) {
    std::vector<Real> beliefs(model.beliefs * (model.vanishing ? 2 : 1));
    for (int64_t i = a; i < b; ++i) {
      Real* own = messages + items[i] * model.entries;
      for (done[i] = 0; done[i] < sweeps;) {
        const double change =
            sweep_once<Real, Work>(p, items[i], own, beliefs.data(), how, apart ? 1 : threads);
        changes[done[i]++ * count + i] = change;
        if (change <= tolerance) break;
      }
    }
  });
}

// Updates some edges of each item at once, from the messages and beliefs before; then the beliefs of the
// variables that they lead to. With `deltas` nothing changes but these, of all edges of the only item.
template <typename Real, typename Work>
void update_some(const Model& model, Real* messages, Real* beliefs, const int64_t* chosen, double* changes,
                 double* deltas, int64_t count, double keep, bool in_values, int threads) {
  const Propagation<Real> p(model);
  std::vector<uint8_t> only(deltas ? 0 : model.edges, 0);
  std::vector<std::vector<int32_t>> lists(model.kernel_count);
  std::vector<int64_t> variables;
  if (!deltas) {
    // Each factor that sends some of the messages, and each variable that gets some, once.
    const int32_t* owners = p.template at<const int32_t>(model.owners);
    const int64_t* firsts = p.template at<const int64_t>(model.first_factors);
    const int32_t* ends = p.template at<const int32_t>(model.ends);
    std::vector<uint8_t> sends(model.factors, 0), gets(model.variables, 0);
    for (int64_t i = 0; i < count; ++i) {
      only[chosen[i]] = 1;
      sends[owners[chosen[i]]] = 1;
      if (!gets[ends[chosen[i]]]) variables.push_back(ends[chosen[i]]), gets[ends[chosen[i]]] = 1;
    }
    for (int64_t n = 0; n < model.kernel_count; ++n)
      for (int64_t f = 0; f < p.kernels[n].factors; ++f)
        if (sends[firsts[n] + f]) lists[n].push_back(int32_t(f));
  }
  const Update how{keep, in_values, deltas ? nullptr : only.data(), deltas};
  const int64_t width = model.beliefs * (model.vanishing ? 2 : 1);
  by_items(model.batch, threads, [&](int64_t a, int64_t b) {
    for (int64_t item = a; item < b; ++item) {
      Real *own = messages + item * model.entries, *sums = beliefs + item * width;
      Worker<Real, Work> worker(p, item, own, sums);
      double most = 0;
      for (int64_t n = 0; n < model.kernel_count; ++n) {
        const int64_t size = deltas ? p.kernels[n].factors : int64_t(lists[n].size());
        for (int64_t f = 0; f < size; f += lanes<Work>()) {
          const int32_t* list = deltas ? nullptr : lists[n].data();
          most = std::max(most, double(worker.update(p.kernels[n], list, f, size, how)));
        }
      }
      changes[item] = most;
      for (int64_t v : variables) {
        int64_t n = 0;
        while (v >= p.classes[n].variable + p.classes[n].variables) ++n;
        const int64_t local = v - p.classes[n].variable;
        p.gather(item, own, sums, p.classes[n], local, local + 1);
      }
    }
  });
}

// (items) log Z in double, -inf where a factor or a variable has no state left.
template <typename Real, typename Work>
void partition_all(const Model& model, Real* messages, double* totals, int threads) {
  const Propagation<Real> p(model);
  by_items(model.batch, threads, [&](int64_t a, int64_t b) {
    std::vector<Real> beliefs(model.beliefs * (model.vanishing ? 2 : 1));
    const Real* counts = p.template at<const Real>(model.counts);
    for (int64_t item = a; item < b; ++item) {
      Real* own = messages + item * model.entries;
      p.gather_all(item, own, beliefs.data(), 1);
      Worker<Real, Work> worker(p, item, own, beliefs.data());
      bool dead = false;
      double total = 0;
      for (int64_t n = 0; n < model.kernel_count; ++n)
        for (int64_t f = 0; f < p.kernels[n].factors; f += lanes<Work>())
          total += worker.partition(p.kernels[n], f, dead);
      for (int64_t n = 0; n < model.class_count; ++n) {
        const Class& c = p.classes[n];
        for (int64_t v = 0; v < c.variables; ++v) {
          const Real *sums = beliefs.data() + c.belief + v * c.states, *zeros = sums + model.beliefs;
          const auto log = [&](int64_t x) {
            return model.vanishing && zeros[x] > 0 ? kNever<double> : double(sums[x]);
          };
          double peak = kNever<double>, sum = 0;
          for (int64_t x = 0; x < c.states; ++x) peak = std::max(peak, log(x));
          if (!(peak > kNever<double>)) {
            dead = true;
            continue;
          }
          if (p.temperature > 0) {
            for (int64_t x = 0; x < c.states; ++x) sum += std::exp((log(x) - peak) / p.temperature);
            peak += p.temperature * std::log(sum);
          }
          total += peak * double(counts[c.variable + v]);
        }
      }
      totals[item] = dead ? kNever<double> : total;
    }
  });
}

// Decides the free variables of each item in an order: (items, variables) states, by messages of the
// undecided ones; or, where messages are null, improves all of them in (items,) passes of coordinate
// ascent, in which ties are broken at random.
template <typename Real>
void decide_all(const Model& model, const Real* messages, int64_t* states, const uint8_t* free,
                const int64_t* order, const int64_t* passes, double rounding, int threads) {
  const Propagation<Real> p(model);
  by_items(model.batch, threads, [&](int64_t a, int64_t b) {
    std::vector<Real> beliefs(messages ? model.beliefs * (model.vanishing ? 2 : 1) : 0);
    for (int64_t item = a; item < b; ++item) {
      const int64_t count = model.variables;
      const uint8_t* open = free ? free + item * count : nullptr;
      const Real* sent = messages ? messages + item * model.entries : nullptr;
      if (sent) p.gather_all(item, sent, beliefs.data(), 1);
      Decider<Real> decider(p, item, states + item * count);
      decider.begin(sent, beliefs.data(), open);
      if (sent) {
        decider.decide(order, count, open, nullptr, rounding);
        continue;
      }
      std::minstd_rand luck(1);  // the same for every item, so that batches are as singles
      for (int64_t pass = 0; pass < passes[item]; ++pass) decider.decide(order, count, open, &luck, rounding);
    }
  });
}

// (items, 2) minus the hard zeros of configurations, and their scores without these.
template <typename Real>
void score_all(const Model& model, int64_t* states, double* scores, int threads) {
  const Propagation<Real> p(model);
  by_items(model.batch, threads, [&](int64_t a, int64_t b) {
    for (int64_t item = a; item < b; ++item)
      Decider<Real>(p, item, states + item * model.variables).score(scores + 2 * item);
  });
}

// Layers of all variables in three orders, by the numbers that `active` gives them, and how many layers
// each order has. The third order is left out unless it is asked for.
template <typename Real>
void layer_all(const Model& model, const int64_t* active, int64_t* outwards, int64_t* colours,
               int64_t* peeled, int64_t* counts, bool peels) {
  const Neighbours neighbours(Propagation<Real>(model), active);
  std::vector<int64_t> queue, distance;
  breadth_first(neighbours, queue, distance);
  counts[0] = colour(neighbours, queue, distance, outwards);
  counts[1] = colour(neighbours, queue, std::vector<int64_t>(distance.size(), 0), colours);
  counts[2] = peels ? peel(neighbours, peeled) : 0;
}

// Sweeps the log-odds of each item until none changes by more than the tolerance; (sweeps, items) largest
// changes, and the number of sweeps of each.
template <typename Real>
void flood_all(const OddsModel& model, const int64_t* items, double* changes, int64_t* done, int64_t count,
               int64_t sweeps, double tolerance, double keep, int threads) {
  const Flooding<Real> flooding{model};
  const bool apart = count >= threads;  // an item for each thread
  by_items(count, apart ? threads : 1, [&](int64_t a, int64_t b) {
    std::vector<Real> beliefs(model.variables);
    for (int64_t i = a; i < b; ++i)
      for (done[i] = 0; done[i] < sweeps;) {
        const double change = flooding.sweep(items[i], beliefs.data(), Real(keep), apart ? 1 : threads);
        changes[done[i]++ * count + i] = change;
        if (change <= tolerance) break;
      }
  });
}

}  // namespace

extern "C" {

#ifdef MESSAGES_FLOAT
int64_t record_bytes(int64_t which) { return kRecordBytes[which]; }
#endif

// Sums are computed in double, and maxima in the type of the messages.
#define MESSAGES(Real, name)                                                                              \
  void sweep_##name(const Model* model, Real* messages, const int64_t* items, double* changes,            \
                    int64_t* done, int64_t count, int64_t sweeps, double tolerance, double keep,          \
                    int in_values, int threads) {                                                         \
    const Update how{keep, in_values != 0, nullptr, nullptr};                                             \
    const auto run = [&](auto work) {                                                                     \
      sweep_all<Real, decltype(work)>(*model, messages, items, changes, done, count, sweeps, tolerance,   \
                                      how, threads);                                                      \
    };                                                                                                    \
    if (reinterpret_cast<const double*>(model->reals)[0] > 0) run(double());                              \
    else run(Real());                                                                                     \
  }                                                                                                       \
  void gather_##name(const Model* model, const Real* messages, Real* beliefs, int threads) {              \
    const Propagation<Real> p(*model);                                                                    \
    const int64_t width = model->beliefs * (model->vanishing ? 2 : 1);                                    \
    for (int64_t item = 0; item < model->batch; ++item)                                                   \
      p.gather_all(item, messages + item * model->entries, beliefs + item * width, threads);              \
  }                                                                                                       \
  void update_##name(const Model* model, Real* messages, Real* beliefs, const int64_t* chosen,            \
                     double* changes, double* deltas, int64_t count, double keep, int in_values,          \
                     int threads) {                                                                       \
    const auto run = [&](auto work) {                                                                     \
      update_some<Real, decltype(work)>(*model, messages, beliefs, chosen, changes, deltas, count, keep,  \
                                        in_values != 0, threads);                                         \
    };                                                                                                    \
    if (reinterpret_cast<const double*>(model->reals)[0] > 0) run(double());                              \
    else run(Real());                                                                                     \
  }                                                                                                       \
  void partition_##name(const Model* model, Real* messages, double* totals, int threads) {                \
    const auto run = [&](auto work) {                                                                     \
      partition_all<Real, decltype(work)>(*model, messages, totals, threads);                             \
    };                                                                                                    \
    if (reinterpret_cast<const double*>(model->reals)[0] > 0) run(double());                              \
    else run(Real());                                                                                     \
  }                                                                                                       \
  void layers_##name(const Model* model, const int64_t* active, int64_t* outwards, int64_t* colours,      \
                     int64_t* peeled, int64_t* counts, int peels) {                                       \
    layer_all<Real>(*model, active, outwards, colours, peeled, counts, peels != 0);                       \
  }                                                                                                       \
  void decide_##name(const Model* model, const Real* messages, int64_t* states, const uint8_t* free,      \
                     const int64_t* order, const int64_t* passes, double rounding, int threads) {         \
    decide_all<Real>(*model, messages, states, free, order, passes, rounding, threads);                   \
  }                                                                                                       \
  void score_##name(const Model* model, int64_t* states, double* scores, int threads) {                   \
    score_all<Real>(*model, states, scores, threads);                                                     \
  }                                                                                                       \
  void flood_##name(const OddsModel* model, const int64_t* items, double* changes, int64_t* done,         \
                    int64_t count, int64_t sweeps, double tolerance, double keep, int threads) {          \
    flood_all<Real>(*model, items, changes, done, count, sweeps, tolerance, keep, threads);               \
  }                                                                                                       \
  void sort_edges_##name(const int32_t* variable, int64_t edges, int64_t variables, int32_t* starts,      \
                         int32_t* incident) {                                                             \
    by_variable(variable, edges, variables, starts, incident);                                            \
  }

#ifdef MESSAGES_FLOAT
MESSAGES(float, float)
#endif
#ifdef MESSAGES_DOUBLE
MESSAGES(double, double)
#endif
}
