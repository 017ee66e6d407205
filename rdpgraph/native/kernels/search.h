// Moves of a search: elimination orders whose tables stay small because a few variables are fixed, and bucket
// elimination (Dechter 1999) along them, with variables that are summed and maximised.
//
// Eliminating a variable v with neighbours N makes the message of the factors and messages over it, with log-values
// t_f,
//
//   m_v(x_N) = log sum_(x_v) exp(sum_f t_f(x_v, x_N))   (summed), or   max_(x_v) sum_f t_f(x_v, x_N)   (maximised),
//
// and the best x_v is read off on the way back, last eliminated first. Summed variables come first: sums and maxima
// do not commute. An order is greedy; where a table would have more than `most` cells, a variable is fixed instead.

#pragma once

#include <cmath>
#include <ctime>
#include <queue>
#include <tuple>
#include <vector>

#include "logs.h"

namespace {

// The same greedy order as `rdpgraph.engines.search.elimination`, with other random numbers.
struct Ordering {
  const int64_t* starts;  // of each variable in `near`
  const int32_t* near;
  const double* logs;  // of numbers of states
  const int32_t* part;
  const int8_t* summed;
  const int32_t* places;  // in the sequence of summed variables; -1: greedy
  int32_t *steps, *fixed;
  int64_t* step_starts;
  int64_t variables, members, capacity;
  uint64_t seed;
  double most, degree, seconds;

  std::vector<int32_t> local;
  std::vector<std::vector<int32_t>> adjacency;
  std::vector<double> weights;
  typedef std::tuple<double, double, int32_t, int32_t> Entry;  // score, tie, member, version
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> heap;
  std::vector<int32_t> version;
  std::vector<int8_t> state;  // 0: not yet in the queue, 1: waiting, 2: eliminated, 3: fixed
  int64_t fixed_count = 0, used = 0;
  double cells = 0.0;

  double random() {
    seed += 0x9e3779b97f4a7c15ull;
    uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return double((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }

  double size(int32_t m) const { return logs[part[m]]; }

  void push(int32_t m) {
    const int32_t place = summed[part[m]] ? places[part[m]] : -1;
    heap.emplace(place < 0 ? weights[m] : double(place), random(), m, ++version[m]);
  }

  void changed(int32_t m) {
    if (state[m] == 1 && !(summed[part[m]] && places[part[m]] >= 0)) push(m);
  }

  static void erase(std::vector<int32_t>& from, int32_t m) {
    from.erase(std::lower_bound(from.begin(), from.end(), m));
  }

  void join(int32_t m) {
    std::vector<int32_t> lacking, all;
    for (int32_t u : adjacency[m]) {
      std::vector<int32_t>& other = adjacency[u];
      lacking.clear();
      for (int32_t w : adjacency[m]) {
        if (w != u && !std::binary_search(other.begin(), other.end(), w)) lacking.push_back(w);
      }
      erase(other, m);
      weights[u] -= size(m);
      for (int32_t w : lacking) weights[u] += size(w);
      if (!lacking.empty()) {
        all.resize(other.size() + lacking.size());
        std::merge(other.begin(), other.end(), lacking.begin(), lacking.end(), all.begin());
        other.swap(all);
      }
      changed(u);
    }
  }

  void fix(int32_t m) {
    state[m] = 3;
    fixed[fixed_count++] = part[m];
    for (int32_t u : adjacency[m]) {
      erase(adjacency[u], m);
      weights[u] -= size(m);
      changed(u);
    }
    adjacency[m].clear();
  }

  // One of the members of a clique that are not summed; -1: there is none.
  int32_t drawn(int32_t m) {
    double total = 0.0;
    int32_t chosen = -1;
    auto consider = [&](int32_t u) {
      if (summed[part[u]]) return;
      const double weight = std::pow(double(adjacency[u].size() + 1), degree);
      total += weight;
      if (random() * total < weight) chosen = u;
    };
    consider(m);
    for (int32_t u : adjacency[m]) consider(u);
    return chosen;
  }

  // Seconds of this thread on a processor: an order does not fail because others use the machine.
  static double of_thread() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
  }

  // The number of steps; -1: summed variables alone make a larger table, or it is too late.
  int64_t run() {
    const double begin = of_thread();
    local.assign(variables, -1);
    for (int64_t m = 0; m < members; m++) local[part[m]] = int32_t(m);
    adjacency.resize(members);
    weights.resize(members);
    version.assign(members, 0);
    state.assign(members, 0);
    for (int64_t m = 0; m < members; m++) {
      const int32_t v = part[m];
      weights[m] = logs[v];
      for (int64_t i = starts[v]; i < starts[v + 1]; i++) {
        if (local[near[i]] < 0) continue;
        adjacency[m].push_back(local[near[i]]);
        weights[m] += logs[near[i]];
      }
    }
    std::vector<int32_t> order, rank(members, -1);
    std::vector<std::vector<int32_t>> cliques(members);
    for (int phase = 1; phase >= 0; phase--) {
      for (int32_t m = 0; m < members; m++) {
        if (state[m] || (summed[part[m]] != 0) != (phase == 1)) continue;
        state[m] = 1;
        push(m);
      }
      for (int64_t looks = 1; !heap.empty(); looks++) {
        const auto [score, tie, m, turn] = heap.top();
        heap.pop();
        if (turn != version[m] || state[m] != 1) continue;
        if (looks % 256 == 0) {
          if (of_thread() - begin > seconds) return -1;
        }
        if (weights[m] > most) {
          const int32_t out = drawn(m);
          if (out < 0) return -1;
          fix(out);
          if (out != m) push(m);
          continue;
        }
        state[m] = 2;
        rank[m] = int32_t(order.size());
        order.push_back(m);
        join(m);
        cliques[m].swap(adjacency[m]);
      }
    }
    step_starts[0] = 0;
    for (size_t k = 0; k < order.size(); k++) {
      std::vector<int32_t>& clique = cliques[order[k]];
      // A neighbour that was fixed later on is fixed from the start.
      clique.erase(std::remove_if(clique.begin(), clique.end(),
                                  [&](int32_t u) { return state[u] == 3; }), clique.end());
      std::sort(clique.begin(), clique.end(),
                [&](int32_t a, int32_t b) { return rank[a] < rank[b]; });
      if (used + 1 + int64_t(clique.size()) > capacity) return -1;
      steps[used++] = part[order[k]];
      double log_size = size(order[k]);
      for (int32_t u : clique) {
        steps[used++] = part[u];
        log_size += size(u);
      }
      cells += std::exp(log_size);
      step_starts[k + 1] = used;
    }
    return int64_t(order.size());
  }
};

struct Eliminating {
  const int32_t* sizes;
  const int64_t* scope_starts;  // of factors
  const int32_t* scopes;
  const int64_t* value_starts;
  const double* values;
  const int64_t* holding_starts;  // of each variable the factors
  const int32_t* holding;
  const int8_t* summed;
  const int32_t* steps;
  const int64_t* step_starts;
  int64_t* states;
  int64_t variables, factors, count;
  bool whole;

  struct Operand {
    const double* data;
    int64_t dims, next;  // its dims in `ranks` and `strides`; the next one of the bucket
    int32_t arity, message;  // the step that it is of; -1: a factor
  };
  std::vector<int32_t> rank, ranks;
  std::vector<int64_t> strides, heads;
  std::vector<Operand> operands;
  // Summed operands of one variable, from the first place of each step on: added to its table once.
  std::vector<double> alone;
  std::vector<int64_t> alone_starts;
  double total = 0.0;

  void enter(const double* data, int64_t dims, int32_t message) {
    const int32_t arity = int32_t(int64_t(ranks.size()) - dims);
    if (!arity) {
      total += *data;
      return;
    }
    if (arity == 1) {
      const int64_t k = ranks[dims], size = sizes[steps[step_starts[k]]];
      for (int64_t x = 0; x < size; x++) alone[alone_starts[k] + x] += data[x * strides[dims]];
      ranks.pop_back();
      strides.pop_back();
      return;
    }
    for (int64_t i = dims + 1; i < int64_t(ranks.size()); i++) {
      for (int64_t j = i; j > dims && ranks[j] < ranks[j - 1]; j--) {
        std::swap(ranks[j], ranks[j - 1]);
        std::swap(strides[j], strides[j - 1]);
      }
    }
    int64_t& head = heads[ranks[dims]];
    operands.push_back({data, dims, head, arity, message});
    head = int64_t(operands.size()) - 1;
  }

  void factor(int64_t f) {
    const int64_t first = scope_starts[f], dims = int64_t(ranks.size());
    const double* data = values + value_starts[f];
    int64_t stride = 1;
    for (int64_t i = scope_starts[f + 1] - 1; i >= first; i--) {
      const int32_t v = scopes[i];
      if (rank[v] >= 0) {
        ranks.push_back(rank[v]);
        strides.push_back(stride);
      } else {
        data += stride * states[v];
      }
      stride *= sizes[v];
    }
    enter(data, dims, -1);
  }

  // joint += an operand, whose dims have these strides.
  static void add(double* joint, const double* data, const std::vector<int64_t>& shape,
                  const std::vector<int64_t>& by) {
    int64_t last = int64_t(shape.size()) - 1, length = shape[last];
    const int64_t inner = by[last--];
    while (last >= 0 && by[last] == inner * length) length *= shape[last--];
    int64_t blocks = 1;
    for (int64_t d = 0; d <= last; d++) blocks *= shape[d];
    std::vector<int64_t> at(last + 1, 0);
    for (int64_t b = 0; b < blocks; b++, joint += length) {
      if (inner == 0) {
        const double value = *data;
        for (int64_t i = 0; i < length; i++) joint[i] += value;
      } else if (inner == 1) {
        for (int64_t i = 0; i < length; i++) joint[i] += data[i];
      } else {
        for (int64_t i = 0; i < length; i++) joint[i] += data[i * inner];
      }
      for (int64_t d = last; d >= 0; d--) {
        data += by[d];
        if (++at[d] < shape[d]) break;
        data -= by[d] * shape[d];
        at[d] = 0;
      }
    }
  }

  static void log_sums(double* out, const double* joint, int64_t size, int64_t rest) {
    for (int64_t i = 0; i < rest; i += lanes<double>()) {
      const int64_t n = rest - i;
      Lane<double> peak = load(joint + i, n), sum = {};
      for (int64_t j = 1; j < size; j++) {
        const Lane<double> value = load(joint + j * rest + i, n);
        peak = value > peak ? value : peak;
      }
      for (int64_t j = 0; j < size; j++) {
        sum += exp_of<double>(load(joint + j * rest + i, n) - peak);
      }
      store(out + i, Lane<double>(log_of<double>(sum) + peak), n);
    }
  }

  // The value of the best states, which are left in `states`: of all factors, or of those that
  // hold an eliminated variable.
  double run() {
    rank.assign(variables, -1);
    heads.assign(count, -1);
    alone_starts.assign(count + 1, 0);
    for (int64_t k = 0; k < count; k++)
      alone_starts[k + 1] = alone_starts[k] + sizes[steps[step_starts[k]]];
    alone.assign(alone_starts[count], 0.0);
    for (int64_t k = 0; k < count; k++) rank[steps[step_starts[k]]] = int32_t(k);
    if (whole) {
      for (int64_t f = 0; f < factors; f++) factor(f);
    } else {
      std::vector<uint8_t> seen(factors, 0);
      for (int64_t k = 0; k < count; k++) {
        const int32_t v = steps[step_starts[k]];
        for (int64_t i = holding_starts[v]; i < holding_starts[v + 1]; i++) {
          if (!seen[holding[i]]++) factor(holding[i]);
        }
      }
    }
    std::vector<std::vector<double>> messages(count);
    std::vector<std::vector<int32_t>> traces(count);
    std::vector<double> joint;
    std::vector<int64_t> shape, by;
    for (int64_t k = 0; k < count; k++) {
      const int32_t* scope = steps + step_starts[k];
      const int64_t arity = step_starts[k + 1] - step_starts[k], size = sizes[scope[0]];
      int64_t rest = 1;
      shape.assign(arity, size);
      for (int64_t d = 1; d < arity; d++) rest *= shape[d] = sizes[scope[d]];
      joint.resize(size * rest);
      for (int64_t j = 0; j < size; j++)
        std::fill_n(joint.begin() + j * rest, rest, alone[alone_starts[k] + j]);
      for (int64_t o = heads[k]; o >= 0; o = operands[o].next) {
        const Operand& operand = operands[o];
        by.assign(arity, 0);
        int64_t d = 0;
        for (int64_t i = operand.dims; i < operand.dims + operand.arity; i++, d++) {
          while (rank[scope[d]] != ranks[i]) d++;
          by[d] = strides[i];
        }
        add(joint.data(), operand.data, shape, by);
      }
      for (int64_t o = heads[k]; o >= 0; o = operands[o].next) {
        if (operands[o].message >= 0) std::vector<double>().swap(messages[operands[o].message]);
      }
      std::vector<double>& message = messages[k];
      message.resize(rest);
      if (summed[scope[0]]) {
        log_sums(message.data(), joint.data(), size, rest);
      } else {
        std::copy_n(joint.data(), rest, message.data());
        traces[k].assign(rest, 0);
        for (int64_t j = 1; j < size; j++) {
          const double* row = joint.data() + j * rest;
          for (int64_t i = 0; i < rest; i++) {
            if (row[i] > message[i]) {
              message[i] = row[i];
              traces[k][i] = int32_t(j);
            }
          }
        }
      }
      const int64_t dims = int64_t(ranks.size());
      int64_t stride = 1;
      for (int64_t d = arity - 1; d > 0; d--) {
        ranks.push_back(rank[scope[d]]);
        strides.push_back(stride);
        stride *= shape[d];
      }
      enter(message.data(), dims, int32_t(k));
    }
    for (int64_t k = count - 1; k >= 0; k--) {
      const int32_t* scope = steps + step_starts[k];
      if (summed[scope[0]]) continue;
      int64_t at = 0;
      for (int64_t d = 1; d < step_starts[k + 1] - step_starts[k]; d++) {
        at = at * sizes[scope[d]] + states[scope[d]];
      }
      states[scope[0]] = traces[k][at];
    }
    return total;
  }
};

}  // namespace
