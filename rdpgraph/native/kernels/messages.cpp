// Entry points of message passing in whole graphs, in each floating type.

#include "flushed.h"
#include "messages/binary.h"
#include "messages/chains.h"
#include "messages/decide.h"
#include "messages/odds.h"
#include "messages/tables.h"

namespace {

template <typename T> struct Type { typedef T type; };

// Runs `run(worker, a, b, wide)` on ranges of so many factors of a block, each with a worker of its own, which takes
// `wide` factors at a time.
template <typename Real, typename Work, typename Run>
void by_workers(const Propagation<Real>& p, const KernelRecord& kernel, int64_t item, Real* messages,
                const Real* beliefs, int64_t factors, int threads, Run run) {
  const auto each = [&](auto which, int64_t wide) {
    by_items((factors + wide - 1) / wide, threads, [&](int64_t a, int64_t b) {
      const Flushed flushed;
      typename decltype(which)::type worker(p, kernel, item, messages, beliefs);
      run(worker, a * wide, std::min(b * wide, factors), wide);
    });
  };
  if (kernel.is_pairs) each(Type<PairWorker<Real>>(), PairWorker<Real>::kSide);
  else each(Type<Worker<Real, Work>>(), lanes<Work>());
}

// The largest numbers of several threads.
template <typename T> void raise(T& most, T value) {
#pragma omp critical
  most = value > most ? value : most;
}

// Updates factors of all blocks: those of a list for each block, or all; returns the largest change.
template <typename Real, typename Work>
double update_factors(const Propagation<Real>& p, int64_t item, Real* messages, const Real* beliefs,
                      const std::vector<int32_t>* lists, const Update& how, int threads) {
  double most = 0;
  for (int64_t n = 0; n < p.model.kernel_count; ++n) {
    const int32_t* list = lists ? lists[n].data() : nullptr;
    const int64_t factors = lists ? int64_t(lists[n].size()) : p.kernels[n].factors;
    by_workers<Real, Work>(p, p.kernels[n], item, messages, beliefs, factors, threads,
                           [&](auto& worker, int64_t a, int64_t b, int64_t wide) {
      double largest = 0;
      for (int64_t f = a; f < b; f += wide) largest = std::max(largest, double(worker.update(list, f, b, how)));
      raise(most, largest);
    });
  }
  return most;
}

template <typename Real, typename Work>
double sweep_once(const Propagation<Real>& p, int64_t item, Real* messages, Real* beliefs,
                  const Update& how, int threads) {
  p.gather_all(item, messages, beliefs, threads);
  return update_factors<Real, Work>(p, item, messages, beliefs, nullptr, how, threads);
}

// Sweeps the messages of a model of binary variables, which `OddsWorker` holds as log-odds.
template <typename Real>
double sweep_odds(const Propagation<Real>& p, int64_t item, Real* odds, Real* beliefs, const Update& how,
                  int threads) {
  gather_odds(p, item, odds, beliefs, threads);
  double most = 0;
  for (int64_t n = 0; n < p.model.kernel_count; ++n) {
    const KernelRecord& k = p.kernels[n];
    constexpr int64_t wide = lanes<Real>();
    by_items((k.factors + wide - 1) / wide, threads, [&](int64_t a, int64_t b) {
      const Flushed flushed;
      OddsWorker<Real> worker(p, k, item, odds, beliefs);
      const int64_t last = std::min(b * wide, k.factors);
      double largest = 0;
      for (int64_t f = a * wide; f < last; f += wide)
        largest = std::max(largest, double(worker.update(nullptr, f, last, how)));
      raise(most, largest);
    });
  }
  return most;
}

// Sweeps all messages of each item until none changes by more than the tolerance; (sweeps, items) largest
// changes, and the number of sweeps of each.
template <typename Real, typename Work>
void sweep_all(const Model& model, Real* messages, const int64_t* items, double* changes, int64_t* done,
               int64_t count, int64_t sweeps, double tolerance, const Update& how, int threads) {
  const Propagation<Real> p(model);
  const bool apart = count >= threads;  // an item for each thread
  const int inner = apart ? 1 : threads;
  const bool binary = !how.in_values && held_as_odds(p);
  by_items(count, apart ? threads : 1, [&](int64_t a, int64_t b) {
    std::vector<Real> beliefs(model.beliefs * (model.vanishing ? 2 : 1)), odds(binary ? model.edges : 0);
    for (int64_t i = a; i < b; ++i) {
      Real *own = messages + items[i] * model.entries, *other = own + model.edges;
      for (size_t e = 0; e < odds.size(); ++e) odds[e] = other[e] - own[e];
      for (done[i] = 0; done[i] < sweeps;) {
        const double change = binary ? sweep_odds(p, items[i], odds.data(), beliefs.data(), how, inner)
                                     : sweep_once<Real, Work>(p, items[i], own, beliefs.data(), how, inner);
        changes[done[i]++ * count + i] = change;
        if (change <= tolerance) break;
      }
      for (size_t e = 0; e < odds.size(); ++e)
        own[e] = off(odds[e]), other[e] = on(odds[e]);
    }
  });
}

// The factors of each block that are marked, among those of all blocks.
std::vector<std::vector<int32_t>> listed(const Model& model, const std::vector<uint8_t>& marked) {
  std::vector<std::vector<int32_t>> lists(model.kernel_count);
  const auto* firsts = reinterpret_cast<const int64_t*>(model.first_factors);
  for (int64_t n = 0; n < model.kernel_count; ++n)
    for (int64_t f = firsts[n]; f < firsts[n + 1]; ++f)
      if (marked[f]) lists[n].push_back(int32_t(f - firsts[n]));
  return lists;
}

// Updates some edges of each item at once, from the messages and beliefs before; then the beliefs of the
// variables that they lead to, and, of a single item, the residuals of all edges: those of factors of
// these variables. Without chosen edges, the residuals alone.
template <typename Real, typename Work>
void update_some(const Model& model, Real* messages, Real* beliefs, const int64_t* chosen, double* changes,
                 double* residuals, int64_t count, double keep, bool in_values, int threads) {
  const Propagation<Real> p(model);
  const Update asking{0, false, nullptr, residuals};
  if (!chosen) {
    update_factors<Real, Work>(p, 0, messages, beliefs, nullptr, asking, threads);
    return;
  }
  // Each factor that sends some of the messages, and each variable that gets some, once.
  const int32_t *owners = p.template at<const int32_t>(model.owners), *ends = p.template at<const int32_t>(model.ends);
  std::vector<uint8_t> only(model.edges, 0), sends(model.factors, 0), gets(model.variables, 0);
  std::vector<int64_t> variables;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t v = ends[chosen[i]];
    only[chosen[i]] = 1, sends[owners[chosen[i]]] = 1;
    if (!gets[v]) variables.push_back(v), gets[v] = 1;
  }
  const auto lists = listed(model, sends);
  const Update how{keep, in_values, only.data(), nullptr};
  const int64_t width = model.beliefs * (model.vanishing ? 2 : 1);
  const bool apart = model.batch >= threads;  // an item for each thread
  by_items(model.batch, apart ? threads : 1, [&](int64_t a, int64_t b) {
    for (int64_t item = a; item < b; ++item) {
      Real *own = messages + item * model.entries, *sums = beliefs + item * width;
      changes[item] = update_factors<Real, Work>(p, item, own, sums, lists.data(), how, apart ? 1 : threads);
      for (int64_t v : variables) {
        int64_t n = 0;
        while (v >= p.classes[n].variable + p.classes[n].variables) ++n;
        const int64_t local = v - p.classes[n].variable;
        p.gather(item, own, sums, p.classes[n], local, local + 1);
      }
    }
  });
  if (!residuals) return;
  std::fill(sends.begin(), sends.end(), 0);
  for (int64_t e = 0; e < model.edges; ++e)
    if (gets[ends[e]]) sends[owners[e]] = 1;
  update_factors<Real, Work>(p, 0, messages, beliefs, listed(model, sends).data(), asking, threads);
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
      bool dead = false;
      double total = 0;
      for (int64_t n = 0; n < model.kernel_count; ++n)
        by_workers<Real, Work>(p, p.kernels[n], item, own, beliefs.data(), p.kernels[n].factors, 1,
                               [&](auto& worker, int64_t first, int64_t last, int64_t wide) {
          for (int64_t f = first; f < last; f += wide) total += worker.partition(f, last, dead);
        });
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

// Improves the configuration of each item by chains of changes that read so many slots of factors at most.
template <typename Real>
void chain_all(const Model& model, int64_t* states, int64_t most, int64_t* spent, int threads) {
  const Propagation<Real> p(model);
  by_items(model.batch, threads, [&](int64_t a, int64_t b) {
    for (int64_t item = a; item < b; ++item) {
      Chains<Real> chains(p, item, states + item * model.variables);
      chains.run(most);
      spent[item] = chains.spent;
    }
  });
}

// The best state of each variable of each item, the first one where several are equal.
template <typename Real>
void best_all(const Model& model, const Real* messages, int64_t* states, int threads) {
  const Propagation<Real> p(model);
  by_items(model.batch, threads, [&](int64_t a, int64_t b) {
    std::vector<Real> beliefs(model.beliefs * (model.vanishing ? 2 : 1));
    for (int64_t item = a; item < b; ++item) {
      p.gather_all(item, messages + item * model.entries, beliefs.data(), 1);
      for (int64_t n = 0; n < model.class_count; ++n) {
        const Class& c = p.classes[n];
        for (int64_t v = 0; v < c.variables; ++v) {
          const Real *sums = beliefs.data() + c.belief + v * c.states, *zeros = sums + model.beliefs;
          const auto log = [&](int64_t x) { return model.vanishing && zeros[x] > 0 ? kNever<Real> : sums[x]; };
          int64_t best = 0;
          for (int64_t x = 1; x < c.states; ++x)
            if (log(x) > log(best)) best = x;
          states[item * model.variables + c.variable + v] = best;
        }
      }
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

// Runs in the type in which a model computes: that of its messages, or double for sums over automata.
template <typename Real, typename Run> void in_work(const Model& model, Run run) {
  const Propagation<Real> p(model);
  const auto automata = [](const KernelRecord& k) { return k.is_automaton != 0; };
  if (p.temperature > 0 && std::any_of(p.kernels, p.kernels + model.kernel_count, automata)) run(double());
  else run(Real());
}

}  // namespace

extern "C" {

#ifdef MESSAGES_FLOAT
int64_t record_bytes(int64_t which) { return kRecordBytes[which]; }
#endif

#define MESSAGES(Real, name)                                                                              \
  void sweep_##name(const Model* model, Real* messages, const int64_t* items, double* changes,            \
                    int64_t* done, int64_t count, int64_t sweeps, double tolerance, double keep,          \
                    int in_values, int threads) {                                                         \
    const Update how{keep, in_values != 0, nullptr, nullptr};                                             \
    const auto run = [&](auto work) {                                                                     \
      sweep_all<Real, decltype(work)>(*model, messages, items, changes, done, count, sweeps, tolerance,   \
                                      how, threads);                                                      \
    };                                                                                                    \
    in_work<Real>(*model, run);                                                                           \
  }                                                                                                       \
  void lay_out_##name(const Model* model, int threads) {                                                  \
    in_work<Real>(*model, [&](auto work) { lay_out<Real, decltype(work)>(*model, threads); });            \
  }                                                                                                       \
  void gather_##name(const Model* model, const Real* messages, Real* beliefs, int threads) {              \
    const Propagation<Real> p(*model);                                                                    \
    const int64_t width = model->beliefs * (model->vanishing ? 2 : 1);                                    \
    for (int64_t item = 0; item < model->batch; ++item)                                                   \
      p.gather_all(item, messages + item * model->entries, beliefs + item * width, threads);              \
  }                                                                                                       \
  void update_##name(const Model* model, Real* messages, Real* beliefs, const int64_t* chosen,            \
                     double* changes, double* residuals, int64_t count, double keep, int in_values,       \
                     int threads) {                                                                       \
    const auto run = [&](auto work) {                                                                     \
      update_some<Real, decltype(work)>(*model, messages, beliefs, chosen, changes, residuals, count,     \
                                        keep, in_values != 0, threads);                                   \
    };                                                                                                    \
    in_work<Real>(*model, run);                                                                           \
  }                                                                                                       \
  void partition_##name(const Model* model, Real* messages, double* totals, int threads) {                \
    const auto run = [&](auto work) {                                                                     \
      partition_all<Real, decltype(work)>(*model, messages, totals, threads);                             \
    };                                                                                                    \
    in_work<Real>(*model, run);                                                                           \
  }                                                                                                       \
  void layers_##name(const Model* model, const int64_t* active, int64_t* outwards, int64_t* colours,      \
                     int64_t* peeled, int64_t* counts, int peels) {                                       \
    layer_all<Real>(*model, active, outwards, colours, peeled, counts, peels != 0);                       \
  }                                                                                                       \
  void decide_##name(const Model* model, const Real* messages, int64_t* states, const uint8_t* free,      \
                     const int64_t* order, const int64_t* passes, double rounding, int threads) {         \
    decide_all<Real>(*model, messages, states, free, order, passes, rounding, threads);                   \
  }                                                                                                       \
  void best_##name(const Model* model, const Real* messages, int64_t* states, int threads) {              \
    best_all<Real>(*model, messages, states, threads);                                                    \
  }                                                                                                       \
  void chain_##name(const Model* model, int64_t* states, int64_t most, int64_t* spent, int threads) {     \
    chain_all<Real>(*model, states, most, spent, threads);                                                \
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
