// The k best derivations of an item, by lazy lists of its cells (Huang and Chiang 2005, algorithm 3).
//
// A cell's list has its derivations, best first, as far as they were asked for. A derivation is a term and a
// rank in the list of each cell that the term reads. What is compared is a loss: what a derivation is below the
// cell's best one. The loss of ranks r of term t is (t - max(terms)) + sum_i loss_i(r_i).
//
// Of a pair with many terms the terms are the pairs of labels, each by its best split, and a pair has a list of its own
// over splits, which all cells of the place share.

#pragma once

#include <tuple>
#include <unordered_map>
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
  typedef typename Run<Real>::Cell Cell;
  static constexpr int64_t kEvery = -1, kPairs = -2;
  struct List {
    Cell cell;
    int64_t what;  // `kEvery` term of the cell, `kPairs` of labels, or the splits of one such pair
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
  std::vector<int64_t> parts, members, entries;
  std::vector<List> lists;
  std::vector<Asked> waiting;
  std::unordered_map<int64_t, int64_t> places;  // where those of a place of pairs begin, by its first cell:
  std::vector<Real> pairs;                      // the logs of the best splits of all pairs of labels
  std::vector<int32_t> pair_lists;              // and their lists; below 0: none yet

  // The first list is that of all goals together; it has one term.
  Lists(Run<Real>& run, int64_t item, int64_t most, std::vector<int64_t> goals)
      : run(run), item(item), most(most), goals(std::move(goals)), known(run.whole.size, -1), lists(1) {
    lists[0].cell.g = nullptr, lists[0].what = kEvery, lists[0].heap.push_back({0, 0, 0, 0, -1});
  }

  int32_t list_of(int64_t at) {
    if (known[at] >= 0) return known[at];
    const Cell cell = run.cell_at(at);
    const Stage& g = *cell.g;
    if (g.kind == kKindPair && g.fixed) {
      run.find_splits(run.alternatives[g.first], item, cell.s, cell.p);
      if (int64_t(run.splits.size()) * run.depth_of(g) > kTerms) {
        const int64_t start = pairs_of(cell);  // which may move `pairs`
        const Real* terms = pairs.data() + start;
        const Real* matrix = run.data[g.slot] + item * g.table_item + g.table.c + run.column_of(g, cell.v);
        run.line.resize(run.depth_of(g));
        for (int64_t k = 0; k < run.depth_of(g); ++k) run.line[k] = terms[k] + matrix[run.row_of(g, k)];
        return known[at] = begin(cell, kPairs);
      }
    }
    run.expand(cell, item);
    return known[at] = begin(cell, kEvery);
  }

  // Where the pairs of labels of a place begin among all; finds them if they are not yet there.
  int64_t pairs_of(const Cell& cell) {
    const Stage& g = *cell.g;
    const auto [found, fresh] = places.try_emplace(run.value(g.out, cell.s, cell.p, 0), pairs.size());
    const int64_t start = found->second, depth = run.depth_of(g);
    if (!fresh) return start;
    pairs.resize(start + depth, kNever<Real>), pair_lists.resize(start + depth, -1);
    typename Run<Real>::Row one{item, cell.p, 0, 0};
    run.template pair<true>(g, cell.s, one, pairs.data() + start);
    return start;
  }

  int32_t list_of_pair(const Cell& cell, int64_t k) {
    const int64_t at = pairs_of(cell) + k;
    if (pair_lists[at] >= 0) return pair_lists[at];
    run.splits_of(cell, item, k);
    return pair_lists[at] = begin(cell, k);
  }

  // Begins a list of the terms in `line`; returns its number.
  int32_t begin(const Cell& cell, int64_t what) {
    lists.emplace_back();
    List& list = lists.back();
    list.cell = cell, list.what = what;
    const std::vector<Real>& terms = run.line;
    const Real top = largest(terms.data(), terms.size());
    const size_t some = std::min(most, terms.size());
    list.heap.reserve(some);
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
    return lists.size() - 1;
  }

  static bool sooner(const Derivation& one, const Derivation& other) { return other < one; }

  // Where the parts of a finished derivation are among all: how many lists, each, how many numbers of inputs
  // that it reads itself, and each, its slot and its place.
  int32_t parts_of(int32_t number, size_t rank) {
    const Derivation one = lists[number].done[rank];
    if (one.parts >= 0) return one.parts;
    members.clear(), entries.clear();
    const Cell cell = lists[number].cell;
    const int64_t what = lists[number].what;
    const auto reach = [&](int64_t slot, int64_t at) {
      if (!slot) return members.push_back(at);
      entries.push_back(slot), entries.push_back(at);
    };
    if (what == kPairs) {
      const Stage& g = *cell.g;
      reach(g.slot, g.table.c + run.row_of(g, one.term) + run.column_of(g, cell.v));
      members.push_back(list_of_pair(cell, one.term));
    } else {
      if (!number) members = goals;
      else if (what == kEvery) run.each_read(cell, item, one.term, false, reach);
      else {
        run.find_splits(run.alternatives[cell.g->first], item, cell.s, cell.p);
        run.each_read_of_split(cell, item, run.splits[one.term], what, reach);
      }
      for (int64_t& member : members) member = list_of(member);
    }
    const int32_t start = parts.size();
    for (const std::vector<int64_t>* each : {&members, &entries}) {
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
