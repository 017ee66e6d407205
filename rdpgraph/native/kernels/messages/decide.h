// Configurations decided one variable after the other, given those that were decided before.
//
// Variable i takes the best state of
//   u_i(x_i) + sum_f c_f max_{x_f without x_i} (theta_f / c_f + sum_{j != i} in_jf(x_j)),
// where in_jf of a decided variable is 0 at its state and -inf elsewhere, and that of an undecided one
// is its cavity belief_j - m_fj. Outwards from one variable of a tree this is the exact traceback. Where
// all variables are decided already it is coordinate ascent. Hard zeros are counted and not added, and
// the states with the fewest of them are compared. rdpgraph/engines/loopy/traceback.py does the same
// layer by layer.

#pragma once

#include <algorithm>
#include <deque>
#include <random>

#include "sweep.h"

namespace {

// The variables of each factor and the factors of each variable, by the graph's active numbers.
struct Neighbours {
  std::vector<int64_t> starts{0}, members, first, factors;

  template <typename Real> Neighbours(const Propagation<Real>& p, const int64_t* active) {
    const Model& model = p.model;
    starts.reserve(model.factors + 1), members.reserve(model.edges);
    for (int64_t n = 0; n < model.kernel_count; ++n) {
      const KernelRecord& k = p.kernels[n];
      const int32_t *edges = p.template at<const int32_t>(k.edges), *homes = p.template at<const int32_t>(k.homes);
      const int32_t* variables = p.template at<const int32_t>(k.variables);
      for (int64_t f = 0; f < k.factors; ++f) {
        for (int64_t s = 0; s < k.slots; ++s) {
          const int64_t at = s * k.factors + f;
          if (edges[at] < 0) continue;
          const Class& c = p.classes[homes[at]];
          members.push_back(active[c.variable + (variables[at] - c.belief) / c.states]);
        }
        starts.push_back(int64_t(members.size()));
      }
    }
    first.assign(model.variables + 1, 0), factors.resize(members.size());
    for (int64_t v : members) ++first[v + 1];
    for (int64_t v = 0; v < model.variables; ++v) first[v + 1] += first[v];
    std::vector<int64_t> next(first.begin(), first.end() - 1);
    for (int64_t f = 0; f < model.factors; ++f)
      for (int64_t i = starts[f]; i < starts[f + 1]; ++i) factors[next[members[i]]++] = f;
  }

  int64_t variables() const { return int64_t(first.size()) - 1; }
};

// The variables in breadth-first order, and the distance of each from the root of its component.
void breadth_first(const Neighbours& n, std::vector<int64_t>& queue, std::vector<int64_t>& distance) {
  const int64_t count = n.variables();
  distance.assign(count, -1), queue.clear();
  std::vector<uint8_t> met(n.starts.size() - 1, 0);
  size_t start = 0;
  for (int64_t root = 0; root < count; ++root) {
    if (distance[root] >= 0) continue;
    distance[root] = 0;
    for (queue.push_back(root); start < queue.size(); ++start) {
      const int64_t v = queue[start];
      for (int64_t i = n.first[v]; i < n.first[v + 1]; ++i) {
        if (met[n.factors[i]]) continue;
        met[n.factors[i]] = 1;
        for (int64_t j = n.starts[n.factors[i]]; j < n.starts[n.factors[i] + 1]; ++j) {
          const int64_t other = n.members[j];
          if (distance[other] < 0) distance[other] = distance[v] + 1, queue.push_back(other);
        }
      }
    }
  }
}

// The layer of every variable: by its level, and within a level by a greedy colour, such that no two
// variables of a layer share a factor. Returns the number of layers.
int64_t colour(const Neighbours& n, const std::vector<int64_t>& queue, const std::vector<int64_t>& levels,
               int64_t* layers) {
  std::vector<int64_t> order(queue), colours(levels.size(), 0), level(n.starts.size() - 1, -1);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return levels[a] < levels[b]; });
  std::vector<std::vector<int64_t>> taken(n.starts.size() - 1);  // colours at the factor's last level
  std::vector<int64_t> mark(levels.size() + 2, -1);
  for (int64_t v : order) {
    for (int64_t i = n.first[v]; i < n.first[v + 1]; ++i)
      if (level[n.factors[i]] == levels[v])
        for (int64_t used : taken[n.factors[i]]) mark[used] = v;
    int64_t free = 1;
    while (mark[free] == v) ++free;
    colours[v] = free;
    for (int64_t i = n.first[v]; i < n.first[v + 1]; ++i) {
      const int64_t f = n.factors[i];
      if (level[f] != levels[v]) taken[f].clear(), level[f] = levels[v];
      taken[f].push_back(free);
    }
  }
  // Layers are numbered in order of level and colour.
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return levels[a] != levels[b] ? levels[a] < levels[b] : colours[a] < colours[b];
  });
  int64_t count = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t v = order[i], before = i ? order[i - 1] : v;
    if (!i || levels[v] != levels[before] || colours[v] != colours[before]) ++count;
    layers[v] = count - 1;
  }
  return count;
}

// Layers in which variables with few factors come last: the variable with the fewest factors left is
// removed together with them, again and again, and the order is the reverse of the removals.
int64_t peel(const Neighbours& n, int64_t* layers) {
  const int64_t count = n.variables();
  std::vector<int64_t> left(count), order;
  for (int64_t v = 0; v < count; ++v) left[v] = n.first[v + 1] - n.first[v];
  std::vector<std::deque<int64_t>> buckets(1 + (count ? *std::max_element(left.begin(), left.end()) : 0));
  for (int64_t v = 0; v < count; ++v) buckets[left[v]].push_back(v);
  std::vector<uint8_t> gone(n.starts.size() - 1, 0), taken(count, 0);
  int64_t least = 0;
  while (int64_t(order.size()) < count) {
    while (buckets[least].empty()) ++least;
    const int64_t v = buckets[least].front();
    buckets[least].pop_front();
    if (taken[v] || left[v] != least) continue;
    taken[v] = 1, order.push_back(v);
    for (int64_t i = n.first[v]; i < n.first[v + 1]; ++i) {
      const int64_t f = n.factors[i];
      if (gone[f]) continue;
      gone[f] = 1;
      for (int64_t j = n.starts[f]; j < n.starts[f + 1]; ++j) {
        const int64_t other = n.members[j];
        buckets[--left[other]].push_back(other);
        least = std::min(least, left[other]);
      }
    }
  }
  std::vector<int64_t> last(n.starts.size() - 1, -1);
  int64_t most = -1;
  for (auto v = order.rbegin(); v != order.rend(); ++v) {
    int64_t layer = 0;
    for (int64_t i = n.first[*v]; i < n.first[*v + 1]; ++i) layer = std::max(layer, 1 + last[n.factors[i]]);
    layers[*v] = layer, most = std::max(most, layer);
    for (int64_t i = n.first[*v]; i < n.first[*v + 1]; ++i) last[n.factors[i]] = layer;
  }
  return most + 1;
}

// One item's configuration, which is held as the state of each variable among those that it has left.
template <typename Real>
struct Decider {
  const Propagation<Real>& p;
  int64_t item;
  int64_t* states;
  std::vector<double> in;  // what arrives at each factor, in the places of messages
  std::vector<double> before, after, next, at_slot, sent, sums;
  std::vector<int64_t> zeros;

  Decider(const Propagation<Real>& given, int64_t item_, int64_t* states_)
      : p(given), item(item_), states(states_) {
    int64_t most = 1;
    for (int64_t n = 0; n < p.model.kernel_count; ++n) {
      const KernelRecord& k = p.kernels[n];
      for (int64_t s = 0; s < k.slots; ++s) most = std::max(most, p.template at<const int64_t>(k.sizes)[s]);
      most = std::max(most, k.states);
    }
    for (int64_t n = 0; n < p.model.class_count; ++n) most = std::max(most, p.classes[n].states);
    for (auto* each : {&before, &after, &next, &at_slot, &sent, &sums}) each->resize(most);
    zeros.resize(most);
  }

  int64_t class_of(int64_t variable) const {
    int64_t n = 0;
    while (variable >= p.classes[n].variable + p.classes[n].variables) ++n;
    return n;
  }

  // The message of a decided variable along one of its edges.
  void hold(const Class& c, int64_t place, int64_t state) {
    for (int64_t x = 0; x < c.states; ++x) in[place + x * c.state_step] = x == state ? 0 : kNever<double>;
  }

  // Holds all variables, or those that are not free; others send their cavities, with a maximum of zero.
  void begin(const Real* messages, const Real* beliefs, const uint8_t* free) {
    in.resize(p.model.entries);
    const int32_t* ends = p.template at<const int32_t>(p.model.ends);
    for (int64_t n = 0; n < p.model.class_count; ++n) {
      const Class& c = p.classes[n];
      for (int64_t e = 0; e < c.edges; ++e) {
        const int64_t v = ends[c.edge + e], place = c.message + e * c.edge_step;
        if (!messages || !free[v]) {
          hold(c, place, states[v]);
          continue;
        }
        const Real *sums = beliefs + c.belief + (v - c.variable) * c.states, *dead = sums + p.model.beliefs;
        double peak = kNever<double>;
        for (int64_t x = 0; x < c.states; ++x) {
          const Real message = messages[place + x * c.state_step];
          double value = double(sums[x] - message);
          if (p.model.vanishing) {
            const bool none = message == kNever<Real>;
            if (none) value = sums[x];
            if (dead[x] - none > Real(0.5)) value = kNever<double>;
          }
          in[place + x * c.state_step] = value;
          peak = std::max(peak, value);
        }
        if (peak > kNever<double>)
          for (int64_t x = 0; x < c.states; ++x) in[place + x * c.state_step] -= peak;
      }
    }
  }

  // What arrives at a slot of a factor, over all its states.
  void load(const KernelRecord& k, int64_t f, int64_t s, double* into) const {
    const int64_t size = p.template at<const int64_t>(k.sizes)[s], at = s * k.factors + f;
    const int64_t e = p.template at<const int32_t>(k.edges)[at];
    if (e < 0) {
      const int64_t state = p.template at<const int32_t>(k.settled)[item * k.settled_item + at];
      for (int64_t x = 0; x < size; ++x) into[x] = state < 0 || x == state ? 0 : kNever<double>;
      return;
    }
    const Class& c = p.classes[p.template at<const int32_t>(k.homes)[at]];
    const int32_t* left = k.left ? p.template at<const int32_t>(k.left) + at * size : nullptr;
    if (left) std::fill(into, into + size, kNever<double>);
    for (int64_t j = 0; j < c.states; ++j) into[left ? left[j] : j] = in[e + j * c.state_step];
  }

  // The best value of a factor for each state of a slot, given what arrives at the others.
  void answer(const KernelRecord& k, int64_t f, int64_t slot) {
    std::fill(sent.begin(), sent.end(), kNever<double>);
    if (k.is_automaton) answer_automaton(k, f, slot);
    else answer_table(k, f, slot);
  }

  void answer_automaton(const KernelRecord& k, int64_t f, int64_t slot) {
    const int32_t* steps = p.template at<const int32_t>(k.transitions);
    const Real* accept = p.logs_of(k, item, f);
    std::fill(before.begin(), before.end(), kNever<double>);
    before[0] = 0;
    for (int64_t s = 0; s < slot; ++s) {
      load(k, f, s, at_slot.data());
      std::fill(next.begin(), next.begin() + k.states, kNever<double>);
      for (int64_t i = 0; i < 3 * k.steps; i += 3)
        next[steps[i + 2]] = std::max(next[steps[i + 2]], before[steps[i]] + at_slot[steps[i + 1]]);
      before.swap(next);
    }
    for (int64_t q = 0; q < k.states; ++q) after[q] = accept[q * k.logs_cell];
    for (int64_t s = k.slots - 1; s > slot; --s) {
      load(k, f, s, at_slot.data());
      std::fill(next.begin(), next.begin() + k.states, kNever<double>);
      for (int64_t i = 0; i < 3 * k.steps; i += 3)
        next[steps[i]] = std::max(next[steps[i]], at_slot[steps[i + 1]] + after[steps[i + 2]]);
      after.swap(next);
    }
    for (int64_t i = 0; i < 3 * k.steps; i += 3)
      sent[steps[i + 1]] = std::max(sent[steps[i + 1]], before[steps[i]] + after[steps[i + 2]]);
  }

  void answer_table(const KernelRecord& k, int64_t f, int64_t slot) {
    const int64_t *sizes = p.template at<const int64_t>(k.sizes), *entries = p.template at<const int64_t>(k.entries);
    const Real* logs = p.logs_of(k, item, f);
    std::vector<double>& arrived = table;
    if (int64_t(arrived.size()) < k.all_entries) arrived.resize(k.all_entries);
    for (int64_t s = 0; s < k.slots; ++s) {
      if (s == slot) std::fill(arrived.begin() + entries[s], arrived.begin() + entries[s] + sizes[s], 0.0);
      else load(k, f, s, arrived.data() + entries[s]);
    }
    // Sums over the slots so far change from the first slot on whose state differs.
    int64_t digits[kMostSlots] = {}, changed = 0;
    double sum[kMostSlots + 1] = {};
    for (int64_t number = 0; number < k.cells; ++number) {
      for (int64_t s = changed; s < k.slots; ++s) sum[s + 1] = sum[s] + arrived[entries[s] + digits[s]];
      double& best = sent[digits[slot]];
      best = std::max(best, sum[k.slots] + double(logs[number * k.logs_cell]));
      changed = k.slots - 1;
      while (changed >= 0 && ++digits[changed] == sizes[changed]) digits[changed--] = 0;
    }
  }
  std::vector<double> table;  // what arrives at all slots of a table

  // Decides free variables in an order; with luck, any of those states that are equally good is taken.
  void decide(const int64_t* order, int64_t count, const uint8_t* free, std::minstd_rand* luck,
              double rounding) {
    const int32_t *incident = p.template at<const int32_t>(p.model.incident);
    const int32_t *owners = p.template at<const int32_t>(p.model.owners), *slots = p.template at<const int32_t>(p.model.slots);
    const int64_t *starts = p.template at<const int64_t>(p.model.incident_starts);
    const int64_t *firsts = p.template at<const int64_t>(p.model.first_factors);
    const Real *shares = p.template at<const Real>(p.model.shares), *unary = p.template at<const Real>(p.model.unary);
    for (int64_t n = 0; n < count; ++n) {
      const int64_t v = order[n];
      if (free && !free[v]) continue;
      const Class& c = p.classes[class_of(v)];
      const Real* own = unary + item * p.model.unary_item + c.belief + (v - c.variable) * c.states;
      for (int64_t x = 0; x < c.states; ++x)
        zeros[x] = own[x] == kNever<Real>, sums[x] = zeros[x] ? 0 : double(own[x]);
      for (int64_t i = starts[v]; i < starts[v + 1]; ++i) {
        const int64_t e = p.edge_of(c, incident[i]);
        int64_t which = 0;
        while (owners[e] >= firsts[which + 1]) ++which;
        const KernelRecord& k = p.kernels[which];
        const int64_t f = owners[e] - firsts[which], s = slots[e];
        answer(k, f, s);
        const int64_t size = p.template at<const int64_t>(k.sizes)[s];
        const int32_t* left = k.left ? p.template at<const int32_t>(k.left) + (s * k.factors + f) * size : nullptr;
        for (int64_t x = 0; x < c.states; ++x) {
          const double value = sent[left ? left[x] : x];
          if (value == kNever<double>) ++zeros[x];
          else sums[x] += shares ? double(shares[i]) * value : value;
        }
      }
      states[v] = choose(c.states, luck, rounding);
      for (int64_t i = starts[v]; i < starts[v + 1]; ++i) hold(c, incident[i], states[v]);
    }
  }

  int64_t choose(int64_t count, std::minstd_rand* luck, double rounding) {
    const int64_t least = *std::min_element(zeros.begin(), zeros.begin() + count);
    int64_t best = -1;
    for (int64_t x = 0; x < count; ++x)
      if (zeros[x] == least && (best < 0 || sums[x] > sums[best])) best = x;
    if (!luck) return best;
    const double near = sums[best] - rounding * std::max(std::abs(sums[best]), 1.0);
    int64_t met = 0;
    for (int64_t x = 0; x < count; ++x)
      if (zeros[x] == least && sums[x] >= near && (*luck)() % ++met == 0) best = x;
    return best;
  }

  // Minus the number of hard zeros, and the sum of all other log-values times counting numbers.
  void score(double* into) {
    double none = 0, total = 0;
    const auto add = [&](double log, double weight) {
      if (log == kNever<double>) none += 1;
      else total += log * weight;
    };
    const Real* unary = p.template at<const Real>(p.model.unary) + item * p.model.unary_item;
    for (int64_t n = 0; n < p.model.class_count; ++n) {
      const Class& c = p.classes[n];
      for (int64_t v = 0; v < c.variables; ++v)
        add(unary[c.belief + v * c.states + states[c.variable + v]], 1);
    }
    for (int64_t n = 0; n < p.model.kernel_count; ++n) {
      const KernelRecord& k = p.kernels[n];
      const Real* weights = p.template at<const Real>(k.weights);
      for (int64_t f = 0; f < k.factors; ++f) add(value(k, f), weights ? double(weights[f]) : 1.0);
    }
    into[0] = -none, into[1] = total;
  }

  // The state of a factor's slot among all states of the slot.
  int64_t state_at(const KernelRecord& k, int64_t f, int64_t s) const {
    const int64_t at = s * k.factors + f;
    if (p.template at<const int32_t>(k.edges)[at] < 0)
      return p.template at<const int32_t>(k.settled)[item * k.settled_item + at];
    const Class& c = p.classes[p.template at<const int32_t>(k.homes)[at]];
    const int64_t v = c.variable + (p.template at<const int32_t>(k.variables)[at] - c.belief) / c.states;
    if (!k.left) return states[v];
    return p.template at<const int32_t>(k.left)[at * p.template at<const int64_t>(k.sizes)[s] + states[v]];
  }

  double value(const KernelRecord& k, int64_t f) const {
    const Real* logs = p.logs_of(k, item, f);
    int64_t number = 0;  // of a cell, or the state of the automaton
    if (!k.is_automaton) {
      const int64_t* sizes = p.template at<const int64_t>(k.sizes);
      for (int64_t s = 0; s < k.slots; ++s) number = number * sizes[s] + state_at(k, f, s);
      return logs[number * k.logs_cell];
    }
    const int32_t* steps = p.template at<const int32_t>(k.transitions);
    for (int64_t s = 0; s < k.slots; ++s) {
      const int64_t x = state_at(k, f, s);
      int64_t i = 0;  // steps that lead to no accepted state are left out
      while (i < 3 * k.steps && (steps[i] != number || steps[i + 1] != x)) i += 3;
      if (i == 3 * k.steps) return kNever<double>;
      number = steps[i + 2];
    }
    return logs[number * k.logs_cell];
  }
};

}  // namespace
