// The k best derivations of an item, by lazy lists of its cells (Huang and Chiang 2005, algorithm 3).
//
// A cell's list has its derivations, best first, as far as they were asked for. A derivation is a term and a
// rank in the list of each cell that the term reads. What is compared is a loss: what a derivation is below the
// cell's best one. The loss of ranks r of term t is (t - max(terms)) + sum_i loss_i(r_i).

#pragma once

#include <tuple>
#include <utility>

#include "descend.h"

namespace {

template <typename Real> struct Lists {
  struct Derivation {
    double loss;
    int32_t term;
    int32_t ranks;   // of its only part, or where the ranks of its parts begin, if not all are 0
    int32_t raised;  // the last part that was raised in rank
    int32_t parts;   // where its parts are, see `parts_of`; below 0: not yet known
    // Heap order: whether a derivation comes later than another in a list. Ties are broken by terms, and then
    // by which was found first.
    bool operator<(const Derivation& other) const {
      if (loss != other.loss) return loss < other.loss;
      return std::tie(other.term, other.ranks) < std::tie(term, ranks);
    }
  };
  struct List {
    typename Run<Real>::Cell cell;
    std::vector<Derivation> done, heap;
    int32_t raised = 0;    // the next part of the last one done that may be raised
    bool follows = false;  // whether that one's successors are not yet all in the heap
    bool ended = false;
  };
  struct Asked { int32_t list, rank; };
  Run<Real>& run;
  const int64_t item;
  const size_t most;
  const std::vector<int64_t> goals;         // the cells of which every derivation has one part each
  std::vector<int32_t> known;               // the list of each cell of the item's tables; below 0: none yet
  std::vector<int32_t> ranks{0};
  std::vector<int64_t> parts, cells, entries;
  std::vector<List> lists;
  std::vector<Asked> waiting;

  // The first list is that of all goals together; it has one term.
  Lists(Run<Real>& run, int64_t item, int64_t most, std::vector<int64_t> goals)
      : run(run), item(item), most(most), goals(std::move(goals)), known(run.whole.size, -1), lists(1) {
    lists[0].cell.g = nullptr, lists[0].heap.push_back({0, 0, 0, 0, -1});
  }

  int32_t list_of(int64_t at) {
    if (known[at] >= 0) return known[at];
    known[at] = lists.size();
    lists.emplace_back();
    List& list = lists.back();
    list.cell = run.cell_at(at);
    run.expand(list.cell, item);
    const std::vector<Real>& terms = run.line;
    const Real top = largest(terms.data(), terms.size());
    const size_t some = std::min(most, terms.size());
    for (size_t k = 0; k < terms.size(); ++k) {
      if (!(terms[k] > kNever<Real>)) continue;
      const Derivation one{double(terms[k]) - top, int32_t(k), 0, 0, -1};
      if (list.heap.size() < some) {
        list.heap.push_back(one);
        if (list.heap.size() == some) std::make_heap(list.heap.begin(), list.heap.end(), sooner);
      } else if (list.heap.front() < one) {  // none but so many can be among the best
        std::pop_heap(list.heap.begin(), list.heap.end(), sooner);
        list.heap.back() = one;
        std::push_heap(list.heap.begin(), list.heap.end(), sooner);
      }
    }
    std::make_heap(list.heap.begin(), list.heap.end());
    return known[at];
  }

  static bool sooner(const Derivation& one, const Derivation& other) { return other < one; }

  // Where the parts of a finished derivation are among all: how many lists, each, how many numbers of inputs
  // that it reads itself, and each, its slot and its place.
  int32_t parts_of(int32_t number, size_t rank) {
    const Derivation one = lists[number].done[rank];
    if (one.parts >= 0) return one.parts;
    cells.clear(), entries.clear();
    if (!number) cells = goals;
    else run.each_read(lists[number].cell, item, one.term, false, [&](int64_t slot, int64_t at) {
      if (!slot) return cells.push_back(at);
      entries.push_back(slot), entries.push_back(at);
    });
    for (int64_t& cell : cells) cell = list_of(cell);
    const int32_t start = parts.size();
    for (const std::vector<int64_t>* each : {&cells, &entries}) {
      parts.push_back(each->size());
      parts.insert(parts.end(), each->begin(), each->end());
    }
    return lists[number].done[rank].parts = start;
  }

  int32_t rank_of(const Derivation& one, int32_t part) const {
    return one.ranks && parts[one.parts] > 1 ? ranks[one.ranks + part] : one.ranks;
  }

  // Finds the derivation of some rank in a list; returns whether there is one.
  bool find(int32_t asked, size_t rank) {
    waiting.assign(1, {asked, int32_t(rank)});
    while (!waiting.empty()) {
      const auto [number, wanted] = waiting.back();
      List& list = lists[number];
      if (list.ended || int32_t(list.done.size()) > wanted) {
        waiting.pop_back();
      } else if (list.follows) {
        // Successors raise the rank of one part, at or after the last one that was raised, so that none is
        // reached twice.
        const int64_t start = list.done.back().parts, count = parts[start];
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
          next.loss += other.done[rank].loss - other.done[rank - 1].loss;
          next.raised = list.raised;
          if (count > 1) {
            const int32_t before = next.ranks;
            next.ranks = ranks.size();
            for (int64_t k = 0; k < count; ++k) ranks.push_back(before ? ranks[before + k] : 0);
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
        parts_of(number, list.done.size() - 1);  // which may move `lists`
      }
    }
    return lists[asked].done.size() > rank;
  }

  // Calls for each input that a found derivation of all goals reads, with its slot and place in the item.
  template <typename Visit> void use(int32_t rank, Visit visit) {
    std::vector<Asked> open{{0, rank}};
    while (!open.empty()) {
      const auto [number, place] = open.back();
      open.pop_back();
      find(number, place);  // those of rank 0 are not yet there
      const Derivation one = lists[number].done[place];
      const int64_t* from = parts.data() + one.parts;
      for (int32_t k = 0; k < from[0]; ++k) open.push_back({int32_t(from[1 + k]), rank_of(one, k)});
      from += 1 + from[0];
      for (int64_t k = 1; k < from[0]; k += 2) visit(from[k], from[k + 1]);
    }
  }
};

}  // namespace
