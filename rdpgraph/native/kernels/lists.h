// The k best derivations by lazy lists (Huang and Chiang 2005, algorithm 3).

#pragma once

#include <utility>

#include "descend.h"

namespace {

// The best derivations of every node of one item. Products and leaves have no lists: nodes lead through
// them to the nodes below.
template <typename Real> struct Lists {
  struct Derivation {
    Real score;
    int32_t way;
    int32_t ranks;   // of its only part, or where the ranks of its parts begin, if not all are 0
    int32_t raised;  // the last part that was raised in rank
    int32_t parts;   // where its parts are, those with lists and then entries; below 0: not yet known
    // Heap order: whether a derivation comes later than another in a list.
    bool operator<(const Derivation& other) const {
      if (score != other.score) return score < other.score;
      return std::tie(other.way, other.ranks) < std::tie(way, ranks);
    }
  };
  struct List {
    int64_t step, place, label;
    std::vector<Derivation> done, heap;
    int32_t raised = 0;  // the next part of the last one done that may be raised
    bool follows = false, ended = false;
  };
  typedef std::pair<int32_t, int32_t> Asked;  // a list, a rank
  Nodes<Real> nodes;
  const size_t most;
  std::vector<int64_t> starts;  // of each step's nodes
  std::vector<int32_t> known;   // the list of each node, or -1
  std::vector<int32_t> ranks{0}, parts, entries;
  std::vector<List> lists;
  std::vector<Real> terms;
  std::vector<Asked> waiting;

  Lists(const Nodes<Real>& nodes, int64_t most) : nodes(nodes), most(most), starts{0} {
    const Machine<Real>& m = nodes.m;
    for (int64_t n = 0; n < m.count; ++n) starts.push_back(starts.back() + m.places(n) * m.labels(n));
    known.assign(starts.back(), -1);
  }

  int32_t list_of(int64_t step, int64_t place, int64_t label) {
    int32_t& number = known[starts[step] + place * nodes.m.labels(step) + label];
    if (number >= 0) return number;
    number = lists.size();
    lists.emplace_back();
    List& list = lists.back();
    list.step = step, list.place = place, list.label = label;
    nodes.expand(step, place, label, terms);
    const size_t some = std::min(most, terms.size());
    list.heap.reserve(some + 1);
    for (size_t way = 0; way < terms.size(); ++way) {
      if (!(terms[way] > kNever<Real>)) continue;
      const Derivation one{terms[way], int32_t(way), 0, 0, -1};
      if (list.heap.size() < some) {
        list.heap.push_back(one);
        if (list.heap.size() == most) std::make_heap(list.heap.begin(), list.heap.end(), sooner);
      } else if (list.heap.front().score < one.score) {  // none but so many can be among the best
        std::pop_heap(list.heap.begin(), list.heap.end(), sooner);
        list.heap.back() = one;
        std::push_heap(list.heap.begin(), list.heap.end(), sooner);
      }
    }
    std::make_heap(list.heap.begin(), list.heap.end());
    return number;
  }

  static bool sooner(const Derivation& one, const Derivation& other) { return other < one; }

  // Appends the parts of a choice that have lists to `parts`, and what it reads of tensors to `entries`.
  void add_parts(int64_t step, int64_t place, int64_t label, int64_t way) {
    const int64_t* fields = nodes.step(step);
    if (fields[0] == kLinked || fields[0] == kRules) {
      const int64_t* table = nodes.m.table(fields[3]);
      add_entry(fields[3], table[8] * table[3], fields[10] * table[3] + way, label);
    }
    nodes.parts(step, place, label, way, [&](int64_t n, int64_t p, int64_t l) {
      if (nodes.step(n)[0] == kProduct) add_parts(n, p, l, 0);
      else if (!nodes.is_leaf(n)) parts.push_back(list_of(n, p, l));
      else add_leaf(n, p, l);
    });
  }

  void add_leaf(int64_t n, int64_t place, int64_t label) {
    const int64_t site = nodes.site(n, place);
    if (site >= 0) add_entry(0, nodes.m.table(0)[3], site, nodes.state(n, label));
    else if (nodes.step(n)[0] == kGiven) add_entry(nodes.step(n)[2], nodes.m.places(n), place, label);
  }

  // Appends a slot, the row among those of all items, each of which has so many, and the column.
  void add_entry(int64_t slot, int64_t rows, int64_t row, int64_t column) {
    row += nodes.m.shared(slot, nodes.item) * rows;
    for (int64_t number : {slot, row, column}) entries.push_back(number);
  }

  // Offsets in `parts`: the number of parts of a finished derivation that have lists, the list of each,
  // thrice the number of entries that it reads itself, and each.
  int32_t parts_of(int32_t number, size_t rank) {
    const Derivation one = lists[number].done[rank];
    if (one.parts >= 0) return one.parts;
    const List& list = lists[number];
    const int32_t start = parts.size();
    parts.push_back(0);
    entries.clear();
    add_parts(list.step, list.place, list.label, one.way);
    parts[start] = parts.size() - start - 1;
    parts.push_back(entries.size());
    parts.insert(parts.end(), entries.begin(), entries.end());
    return lists[number].done[rank].parts = start;
  }

  int32_t rank_of(const Derivation& one, int32_t part) const {
    return one.ranks && parts[one.parts] > 1 ? ranks[one.ranks + part] : one.ranks;
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
        const int32_t start = list.done.back().parts, count = parts[start];
        if (list.raised == count) {
          list.follows = false;
          continue;
        }
        Derivation next = list.done.back();
        const int32_t part = parts[start + 1 + list.raised], rank = rank_of(next, list.raised) + 1;
        const List& other = lists[part];
        if (!other.ended && int32_t(other.done.size()) <= rank) {
          waiting.push_back({part, rank});
          continue;
        }
        if (int32_t(other.done.size()) > rank) {
          next.score += other.done[rank].score - other.done[rank - 1].score;
          next.raised = list.raised;
          if (count > 1) {
            const int32_t before = next.ranks;
            next.ranks = ranks.size();
            for (int32_t k = 0; k < count; ++k) ranks.push_back(before ? ranks[before + k] : 0);
            ranks[next.ranks + list.raised] = rank;
          } else {
            next.ranks = rank;
          }
          list.heap.push_back(next);
          std::push_heap(list.heap.begin(), list.heap.end());
        }
        ++list.raised;
      } else if (list.heap.empty()) {
        list.ended = true;
      } else {
        std::pop_heap(list.heap.begin(), list.heap.end());
        list.done.push_back(list.heap.back());
        list.heap.pop_back();
        list.raised = list.done.back().raised;
        list.follows = true;
        parts_of(number, list.done.size() - 1);
      }
    }
    return lists[asked].done.size() > rank;
  }

  // Visits the entries of tensors that a found derivation reads: by slot, row and column.
  template <typename Visit> void use(int32_t asked, int32_t rank, Visit visit) {
    std::vector<Asked> open{{asked, rank}};
    while (!open.empty()) {
      const auto [number, place] = open.back();
      open.pop_back();
      if (int32_t(lists[number].done.size()) <= place) find(number, place);
      const Derivation one = lists[number].done[place];
      const int32_t* from = parts.data() + one.parts;
      for (int32_t k = 0; k < from[0]; ++k) open.push_back({from[1 + k], rank_of(one, k)});
      from += 1 + from[0];
      for (int32_t k = 1; k < from[0]; k += 3) visit(from[k], from[k + 1], from[k + 2]);
    }
  }
};

// The best derivations of all items, and their number for each: the states of their sites, or, if these are not given,
// the entries that they read of each slot, (derivation, row, column), and how many.
template <typename Real>
std::vector<Used>* k_best(const Machine<Real>& m, int64_t* states, int64_t* counts, int64_t slots, int64_t most,
                          int64_t* there, int threads) {
  const std::vector<uint8_t> turned = turn_tables(m, slots, most);
  const std::vector<int64_t> series = all_series(m, true);
  std::vector<std::vector<Used>> parts(slots * m.batch);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
  for (int64_t item = 0; item < m.batch; ++item) {
    const Nodes<Real> nodes(m, item, turned);
    const int64_t goal = m.count - 1;
    int64_t& rank = there[item] = 0;
    const auto use = [&](int64_t slot, int64_t row, int64_t column) {
      if (!states) parts[slot * m.batch + item].push_back({rank * m.batch + item, row, column});
      else if (!slot) states[rank * m.batch * m.table(0)[3] + row] = column;
    };
    if (!(m.arena[m.at(goal, item, 0)] > kNever<Real>)) continue;
    if (states && most == 1) {
      Descent<Real>(nodes, series, parts[item], states).run(0, item, item + 1, 0, 1);
      rank = 1;
      continue;
    }
    Lists<Real> lists(nodes, most);
    if (nodes.is_leaf(goal)) {  // of one derivation
      lists.add_leaf(goal, 0, 0);
      use(lists.entries[0], lists.entries[1], lists.entries[2]);
      rank = 1;
    } else {
      const int32_t asked = lists.list_of(goal, 0, 0);
      for (; rank < most && lists.find(asked, rank); ++rank) lists.use(asked, rank, use);
    }
  }
  for (int64_t slot = 0; !states && slot < slots; ++slot) {
    counts[slot] = 0;
    for (int64_t item = 0; item < m.batch; ++item) counts[slot] += parts[slot * m.batch + item].size();
  }
  return together(parts);
}

}  // namespace
