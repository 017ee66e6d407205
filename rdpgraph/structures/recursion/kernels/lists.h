// The k best derivations by lazy lists (Huang and Chiang 2005, algorithm 3), of tapes and of chains
// with given scores of prefixes.

#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "panels.h"

namespace {

typedef std::array<int64_t, 3> Used;  // derivation, site, state

// The best derivations of every node of one item. A node has a step, a place and a label; `Graph`
// gives the number of nodes of each step, their parts, and the sites of leaves.
template <typename Real, typename Graph> struct Lists {
  struct Derivation {
    Real score;
    int32_t way, ranks;  // where the ranks of its parts begin, if not all are 0
  };
  struct List {
    int64_t step, place, label;
    std::vector<Derivation> done, heap;
    std::vector<int32_t> parts;  // where the lists of the parts of each one done begin
    int32_t raised = 0;          // the next part of the last one done that may be raised in rank
    bool follows = false, ended = false;
  };
  typedef std::pair<int32_t, int32_t> Asked;  // a list, a rank
  Graph nodes;
  const size_t most;
  std::vector<int64_t> starts;  // of each step's nodes
  std::vector<int32_t> known;   // the list of each node, or -1
  std::vector<int32_t> ranks, parts;
  std::deque<List> lists;
  std::vector<Real> terms;
  std::vector<Asked> waiting;

  Lists(const Graph& nodes, int64_t most) : nodes(nodes), most(most), starts{0} {
    for (int64_t n = 0; n < nodes.steps(); ++n) starts.push_back(starts.back() + nodes.size(n));
    known.assign(starts.back(), -1);
  }

  // Heap order: whether a derivation comes later than another in a list.
  auto later() const {
    return [this](const Derivation& one, const Derivation& other) {
      if (one.score != other.score) return one.score < other.score;
      if (one.way != other.way) return one.way > other.way;
      const int32_t *left = rank_of(one), *right = rank_of(other);
      if (!left || !right) return left && !right;
      const int32_t count = ranks[one.ranks - 1];
      return std::lexicographical_compare(right, right + count, left, left + count);
    };
  }

  const int32_t* rank_of(const Derivation& one) const {
    return one.ranks ? ranks.data() + one.ranks : nullptr;
  }

  int32_t list_of(int64_t step, int64_t place, int64_t label) {
    int32_t& number = known[starts[step] + place * nodes.labels(step) + label];
    if (number >= 0) return number;
    number = lists.size();
    lists.emplace_back();
    List& list = lists.back();
    list.step = step, list.place = place, list.label = label;
    if (nodes.is_leaf(step)) {
      const Real value = nodes.value(step, place, label);
      if (value > kNever<Real>) list.done.push_back({value, 0, 0});
      list.ended = true;
      return number;
    }
    nodes.expand(step, place, label, terms);
    list.heap.reserve(std::min(most, terms.size()) + 1);
    for (size_t way = 0; way < terms.size(); ++way) {
      if (!(terms[way] > kNever<Real>)) continue;
      const Derivation one{terms[way], int32_t(way), 0};
      if (list.heap.size() < most) {
        list.heap.push_back(one);
        if (list.heap.size() == most) std::make_heap(list.heap.begin(), list.heap.end(), sooner());
      } else if (later()(list.heap.front(), one)) {  // none but so many can be among the best
        std::pop_heap(list.heap.begin(), list.heap.end(), sooner());
        list.heap.back() = one;
        std::push_heap(list.heap.begin(), list.heap.end(), sooner());
      }
    }
    std::make_heap(list.heap.begin(), list.heap.end(), later());
    return number;
  }

  auto sooner() const {
    return [this](const Derivation& one, const Derivation& other) { return later()(other, one); };
  }

  // Offsets in `parts`: the number of parts of a finished derivation, then the list of each.
  int32_t parts_of(List& list, size_t rank) {
    while (list.parts.size() <= rank) {
      const int32_t start = parts.size(), way = list.done[list.parts.size()].way;
      list.parts.push_back(start);
      parts.push_back(0);
      nodes.parts(list.step, list.place, list.label, way,
                  [&](int64_t n, int64_t p, int64_t l) { parts.push_back(list_of(n, p, l)); });
      parts[start] = parts.size() - start - 1;
    }
    return list.parts[rank];
  }

  // Finds a node's derivation of that rank, if it exists.
  bool find(int32_t asked, size_t rank) {
    waiting.assign(1, {asked, int32_t(rank)});
    while (!waiting.empty()) {
      const auto [number, wanted] = waiting.back();
      List& list = lists[number];
      if (list.ended || int32_t(list.done.size()) > wanted) {
        waiting.pop_back();
      } else if (list.follows) {
        // Successors raise the rank of one part, at or after the last one raised, so that none is
        // reached twice.
        const Derivation last = list.done.back();
        const int32_t start = parts_of(list, list.done.size() - 1), count = parts[start];
        if (list.raised == count) {
          list.follows = false;
          continue;
        }
        const int32_t* before = rank_of(last);
        const int32_t part = parts[start + 1 + list.raised];
        const int32_t next = (before ? before[list.raised] : 0) + 1;
        const List& other = lists[part];
        if (!other.ended && int32_t(other.done.size()) <= next) {
          waiting.push_back({part, next});
          continue;
        }
        if (int32_t(other.done.size()) > next) {
          ranks.push_back(count);
          const int32_t place = ranks.size();
          for (int32_t k = 0; k < count; ++k) ranks.push_back(last.ranks ? ranks[last.ranks + k] : 0);
          ranks[place + list.raised] = next;
          const Real score = last.score + (other.done[next].score - other.done[next - 1].score);
          list.heap.push_back({score, last.way, place});
          std::push_heap(list.heap.begin(), list.heap.end(), later());
        }
        ++list.raised;
      } else if (list.heap.empty()) {
        list.ended = true;
      } else {
        std::pop_heap(list.heap.begin(), list.heap.end(), later());
        const Derivation next = list.heap.back();
        list.heap.pop_back();
        list.done.push_back(next);
        list.raised = 0;
        if (next.ranks)
          for (int32_t k = 0; k < ranks[next.ranks - 1]; ++k)
            if (ranks[next.ranks + k]) list.raised = k;
        list.follows = true;
      }
    }
    return lists[asked].done.size() > rank;
  }

  // The sites that a found derivation uses.
  void use(int32_t asked, int32_t rank, int64_t tree, std::vector<Used>& used) {
    std::vector<Asked> open{{asked, rank}};
    while (!open.empty()) {
      const auto [number, place] = open.back();
      open.pop_back();
      find(number, place);
      List& list = lists[number];
      const int64_t site = nodes.site(list.step, list.place);
      if (site >= 0) used.push_back({tree, site, list.label});
      if (nodes.is_leaf(list.step)) continue;
      const int32_t start = parts_of(list, place), from = list.done[place].ranks;
      for (int32_t k = 0; k < parts[start]; ++k)
        open.push_back({parts[start + 1 + k], from ? ranks[from + k] : 0});
    }
  }

  // The derivations of one node, up to the most; numbered `tree + rank * stride`.
  int64_t use_best(int64_t step, int64_t tree, int64_t stride, std::vector<Used>& used) {
    const int32_t goal = list_of(step, 0, 0);
    size_t rank = 0;
    for (; rank < most && find(goal, rank); ++rank) use(goal, rank, tree + rank * stride, used);
    return rank;
  }
};

// A chain with one transition: node (t, 0, j) is state j at step t; the node after them is the whole.
template <typename Real> struct Steps {
  const Real *messages, *turned;  // (T, N) the best prefixes, up to a constant for each step; [to, from]
  int64_t states, length;

  int64_t steps() const { return length + 1; }
  int64_t size(int64_t t) const { return t < length ? states : 1; }
  int64_t labels(int64_t) const { return states; }
  bool is_leaf(int64_t t) const { return t == 0; }
  int64_t site(int64_t t, int64_t) const { return t < length ? t : -1; }
  Real value(int64_t t, int64_t, int64_t state) const { return messages[t * states + state]; }
  void expand(int64_t t, int64_t, int64_t state, std::vector<Real>& terms) const {
    const Real *before = messages + (t - 1) * states, *into = turned + state * states;
    terms.assign(before, before + states);
    if (t == length) return;
    for (int64_t i = 0; i < states; ++i) terms[i] += into[i];
  }
  template <typename Visit> void parts(int64_t t, int64_t, int64_t, int64_t from, Visit visit) const {
    visit(t - 1, 0, from);
  }
};

// The states of the k best sequences, (k, batch, steps); -1 beyond a length, and where there are fewer.
template <typename Real>
void best_sequences(const Real* messages, const Real* turned, const int64_t* lengths, int64_t* found,
                    int64_t batch, int64_t steps, int64_t states, int64_t k, int threads) {
  std::fill_n(found, k * batch * steps, int64_t(-1));
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int64_t b = 0; b < batch; ++b) {
    if (!lengths[b]) continue;
    const Steps<Real> chain{messages + b * steps * states, turned, states, lengths[b]};
    std::vector<Used> used;
    Lists<Real, Steps<Real>>(chain, k).use_best(lengths[b], b, batch, used);
    for (const Used& one : used) found[one[0] * steps + one[1]] = one[2];
  }
}

}  // namespace
