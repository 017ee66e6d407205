// Minimum cuts of pairwise models of binary variables: their exact mode where pairs can be made to attract
// by exchanging the states of some variables, and otherwise the states that some optimum has for certain
// (roof duality; Hammer, Hansen and Simeone 1984; Boros and Hammer 2002).
//
// The energy is  sum_i c_i x_i + sum_ij w_ij [x_i != x_j],  in integers. Where a component of the graph has
// a choice of states y_i = x_i or 1 - x_i with all w_ij >= 0, its nodes are the y_i. Elsewhere each variable
// has two nodes, x_i and 1 - x_i, and each term stands for half of itself in both. A node costs its
// coefficient on the side of the sink (y = 1), so that the minimum cut is the minimum of the energy, or of
// its relaxation. Flow f from i to j moves f (y_j - y_i) from the pair to the variables: flows are messages.
//
// The flow is by Boykov and Kolmogorov (2004): trees of residual arcs grow from source and sink, a path is
// filled where they meet, and nodes that lose the way to their root look for another one.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

namespace {

struct MaximumFlow {
  enum : int32_t { kNone = -1, kTerminal = -2, kOrphan = -3 };
  std::vector<int32_t> heads, firsts, incident;  // arc a has the sister a ^ 1; arcs by their tails
  std::vector<int64_t> left;                     // residual capacity of each arc
  std::vector<int64_t> terminal;  // residual capacity from the source, or minus that to the sink

  std::vector<int32_t> parent, distance, active, orphans;  // parent: an arc that leaves the node
  std::vector<int64_t> stamp;
  std::vector<uint8_t> sink, queued;
  size_t next_active = 0;
  int64_t time = 0;
  double visits = 0;

  explicit MaximumFlow(int64_t nodes) : terminal(nodes, 0) {}

  void edge(int32_t from, int32_t to, int64_t capacity) {
    heads.push_back(to), left.push_back(capacity);
    heads.push_back(from), left.push_back(capacity);
  }

  int32_t tail(int32_t a) const { return heads[a ^ 1]; }
  // The residual capacity of an arc that leaves a node, in the direction in which its tree sends flow.
  int64_t outward(int32_t a, bool to_sink) const { return left[to_sink ? a ^ 1 : a]; }
  int64_t inward(int32_t a, bool to_sink) const { return left[to_sink ? a : a ^ 1]; }

  void activate(int32_t i) {
    if (queued[i]) return;
    queued[i] = 1;
    active.push_back(i);
  }

  void begin() {
    const size_t nodes = terminal.size();
    firsts.assign(nodes + 1, 0);
    for (size_t a = 0; a < heads.size(); ++a) ++firsts[tail(int32_t(a)) + 1];
    for (size_t i = 0; i < nodes; ++i) firsts[i + 1] += firsts[i];
    incident.resize(heads.size());
    std::vector<int32_t> place(firsts.begin(), firsts.end() - 1);
    for (size_t a = 0; a < heads.size(); ++a) incident[place[tail(int32_t(a))]++] = int32_t(a);
    parent.assign(nodes, kNone), distance.assign(nodes, 0), stamp.assign(nodes, 0);
    sink.assign(nodes, 0), queued.assign(nodes, 0);
    for (size_t i = 0; i < nodes; ++i) {
      if (!terminal[i]) continue;
      parent[i] = kTerminal, distance[i] = 1, sink[i] = terminal[i] < 0;
      activate(int32_t(i));
    }
  }

  // Grows the tree of a node until it meets the other one; the arc from source to sink side, or kNone.
  int32_t grow(int32_t i) {
    const bool to_sink = sink[i];
    for (int32_t n = firsts[i]; n < firsts[i + 1]; ++n) {
      const int32_t a = incident[n], j = heads[a];
      ++visits;
      if (!outward(a, to_sink)) continue;
      if (parent[j] == kNone) {
        parent[j] = a ^ 1, sink[j] = to_sink, stamp[j] = stamp[i], distance[j] = distance[i] + 1;
        activate(j);
      } else if (bool(sink[j]) != to_sink) {
        return to_sink ? a ^ 1 : a;
      } else if (stamp[j] <= stamp[i] && distance[j] > distance[i]) {
        parent[j] = a ^ 1, stamp[j] = stamp[i], distance[j] = distance[i] + 1;  // a shorter way
      }
    }
    return kNone;
  }

  // Fills the path through an arc between the trees; nodes whose arc is full become orphans.
  void augment(int32_t middle) {
    int64_t flow = left[middle];
    for (const bool to_sink : {false, true}) {
      int32_t i = to_sink ? heads[middle] : tail(middle);
      for (; parent[i] != kTerminal; i = heads[parent[i]])
        flow = std::min(flow, inward(parent[i], to_sink));
      flow = std::min(flow, to_sink ? -terminal[i] : terminal[i]);
    }
    left[middle] -= flow, left[middle ^ 1] += flow;
    for (const bool to_sink : {false, true}) {
      int32_t i = to_sink ? heads[middle] : tail(middle);
      while (parent[i] != kTerminal) {
        const int32_t a = parent[i], above = heads[a];
        ++visits;
        left[to_sink ? a : a ^ 1] -= flow, left[to_sink ? a ^ 1 : a] += flow;
        if (!inward(a, to_sink)) parent[i] = kOrphan, orphans.push_back(i);
        i = above;
      }
      terminal[i] += to_sink ? flow : -flow;
      if (!terminal[i]) parent[i] = kOrphan, orphans.push_back(i);
    }
  }

  // The distance of a node from its root, or the largest number if it leads to an orphan.
  int32_t to_root(int32_t j) {
    int32_t steps = 0;
    for (;;) {
      ++visits;
      if (stamp[j] == time) return steps + distance[j];
      const int32_t a = parent[j];
      ++steps;
      if (a == kTerminal) {
        stamp[j] = time, distance[j] = 1;
        return steps;
      }
      if (a == kOrphan || a == kNone) return std::numeric_limits<int32_t>::max();
      j = heads[a];
    }
  }

  // Finds an orphan another parent in its tree, the nearest to the root; else it leaves the tree.
  void adopt(int32_t i) {
    const bool to_sink = sink[i];
    int32_t best = kNone, least = std::numeric_limits<int32_t>::max();
    for (int32_t n = firsts[i]; n < firsts[i + 1]; ++n) {
      const int32_t a = incident[n], j = heads[a];
      if (!inward(a, to_sink) || parent[j] == kNone || bool(sink[j]) != to_sink) continue;
      int32_t steps = to_root(j);
      if (steps == std::numeric_limits<int32_t>::max()) continue;
      if (steps < least) best = a, least = steps;
      for (int32_t k = j; stamp[k] != time; k = heads[parent[k]]) stamp[k] = time, distance[k] = steps--;
    }
    parent[i] = best;
    if (best != kNone) {
      stamp[i] = time, distance[i] = least + 1;
      return;
    }
    for (int32_t n = firsts[i]; n < firsts[i + 1]; ++n) {
      const int32_t a = incident[n], j = heads[a];
      ++visits;
      if (parent[j] == kNone || bool(sink[j]) != to_sink) continue;
      if (inward(a, to_sink)) activate(j);
      if (parent[j] >= 0 && heads[parent[j]] == i) parent[j] = kOrphan, orphans.push_back(j);
    }
  }

  // Whether the flow is at its maximum; false after so many visits of arcs.
  bool run(double most) {
    begin();
    for (int32_t i = kNone;;) {
      if (visits > most) return false;
      while (i == kNone && next_active < active.size()) {
        i = active[next_active++];
        queued[i] = 0;
        if (parent[i] == kNone) i = kNone;
      }
      if (i == kNone) return true;
      if (next_active > 65536 && next_active * 2 > active.size()) {
        active.erase(active.begin(), active.begin() + next_active);
        next_active = 0;
      }
      const int32_t middle = grow(i);
      ++time;
      if (middle == kNone) {
        i = kNone;
        continue;
      }
      augment(middle);
      for (size_t n = 0; n < orphans.size(); ++n) adopt(orphans[n]);
      orphans.clear();
      if (parent[i] == kNone) i = kNone;
    }
  }

  // After the maximum: whether the source still reaches a node.
  bool from_source(int32_t i) const { return parent[i] != kNone && !sink[i]; }
};

struct Cut {
  const int32_t* ends;     // of each pair: first and second variable
  const int64_t* weights;  // w of each pair
  const int64_t* fields;   // c of each variable
  int64_t* moved;   // of each pair 2 g: the pair gives -g x_i + sign(w) g x_j to its variables
  int8_t* labels;   // of each variable the state of an optimum, -1: not known
  int64_t variables, pairs;

  // Whether the maximum was reached within so many visits of arcs; else no variable has a label.
  bool run(double most, double* visits) {
    // Of each variable -1 where y is 1 - x, and the first variable of its component.
    std::vector<int8_t> sign(variables, 0);
    std::vector<int32_t> root(variables), second(variables, -1);
    const std::vector<uint8_t> frustrated = components(sign, root);
    int64_t nodes = variables;
    for (int64_t i = 0; i < variables; ++i) {
      if (frustrated[root[i]]) second[i] = int32_t(nodes++), sign[i] = 1;
    }
    MaximumFlow flow(nodes);
    for (int64_t i = 0; i < variables; ++i) {
      flow.terminal[i] = sign[i] * fields[i];
      if (second[i] >= 0) flow.terminal[second[i]] = -fields[i];
    }
    for (int64_t e = 0; e < pairs; ++e) {
      const int32_t i = ends[2 * e], j = ends[2 * e + 1];
      const int64_t capacity = std::abs(weights[e]);
      const bool attracts = weights[e] >= 0;
      const int32_t twin = second[j] >= 0 ? second[j] : j;  // of another component where w = 0
      flow.edge(i, second[i] >= 0 && !attracts ? twin : j, capacity);
      if (second[i] >= 0) flow.edge(second[i], attracts ? twin : j, capacity);
    }
    const bool done = flow.run(most);
    *visits = flow.visits;
    int64_t edge = 0;
    for (int64_t e = 0; e < pairs; ++e) {
      const int32_t i = ends[2 * e];
      const auto sent = [&] { return std::abs(weights[e]) - flow.left[2 * edge++]; };
      const int64_t one = sent();
      moved[e] = second[i] >= 0 ? one - sent() : 2 * sign[i] * one;
    }
    for (int64_t i = 0; i < variables; ++i) {
      labels[i] = -1;
      if (!done) continue;
      const bool zero = flow.from_source(int32_t(i));
      if (second[i] < 0) labels[i] = int8_t(sign[i] > 0 ? !zero : zero);
      else if (zero) labels[i] = 0;
      else if (flow.from_source(second[i])) labels[i] = 1;
    }
    return done;
  }

  // Signs that make all pairs of a component attract, and whether there are none, by each one's root.
  std::vector<uint8_t> components(std::vector<int8_t>& sign, std::vector<int32_t>& root) const {
    std::vector<int32_t> firsts(variables + 1, 0), incident(2 * pairs), queue;
    for (int64_t n = 0; n < 2 * pairs; ++n) ++firsts[ends[n] + 1];
    for (int64_t i = 0; i < variables; ++i) firsts[i + 1] += firsts[i];
    std::vector<int32_t> place(firsts.begin(), firsts.end() - 1);
    for (int64_t n = 0; n < 2 * pairs; ++n) incident[place[ends[n]]++] = int32_t(n);
    std::vector<uint8_t> frustrated(variables, 0);
    for (int64_t start = 0; start < variables; ++start) {
      if (sign[start]) continue;
      sign[start] = 1, root[start] = int32_t(start);
      queue.assign(1, int32_t(start));
      for (size_t next = 0; next < queue.size(); ++next) {
        const int32_t i = queue[next];
        for (int32_t n = firsts[i]; n < firsts[i + 1]; ++n) {
          const int64_t w = weights[incident[n] >> 1];
          if (!w) continue;
          const int32_t j = ends[incident[n] ^ 1];
          const int8_t wanted = int8_t(w > 0 ? sign[i] : -sign[i]);
          if (!sign[j]) sign[j] = wanted, root[j] = int32_t(start), queue.push_back(j);
          else if (sign[j] != wanted) frustrated[start] = 1;
        }
      }
    }
    return frustrated;
  }
};

}  // namespace
