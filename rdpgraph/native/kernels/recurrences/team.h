// The runs of a batch: one for each thread, with a range of the items, which are independent; or, of few items, one
// with all of them, and others that help it with the places of a step.

#pragma once

#include <memory>

#include "lists.h"
#include "passes.h"

namespace {

template <typename Real> struct Team {
  // Arrays by slot as a run has them, moved to its first item.
  typedef std::vector<Real*> Slots;

  const int64_t* records = nullptr;
  int64_t batch = 0, slots = 0;
  const int64_t* strides = nullptr;  // (slots + 1) bytes from one item to the next; 0: all items share it
  const int64_t* counts = nullptr;   // (slots) numbers of all items; 0 for whole numbers
  double* levels = nullptr;
  const int64_t* ends = nullptr;     // (goals, batch) the step of each goal
  const int64_t* cells = nullptr;    // and its cell among those of all items, below 0 where there is none
  int64_t goals = 0;
  std::vector<Real> totals;          // of each item the sum over its goals
  std::vector<std::vector<Real>> logs;  // finite ones of each slot
  std::vector<std::unique_ptr<Run<Real>>> runs;
  std::vector<Slots> given, below, said, other;  // of each run: inputs, gradients, moves, and others
  std::vector<std::vector<std::vector<Real>>> own;  // of each run and slot
  bool unsound = false;
  bool shared = false;  // whether all runs but the first one are its helpers

  // How many runs have items of their own.
  int64_t owners() const { return shared ? 1 : int64_t(runs.size()); }
  int64_t first_of(int64_t k) const { return batch * k / owners(); }

  // Whether derivations of an item go through a goal: the item has some, and the goal is a cell.
  bool reaches(int64_t goal, int64_t item) const { return totals[item] > -INFINITY && cells[goal * batch + item] >= 0; }
  // The place of a goal's cell in the tables of an item, below 0 where derivations do not go through it.
  int64_t goal_in(int64_t goal, int64_t item) const {
    return reaches(goal, item) ? cells[goal * batch + item] - item * numbers_apart(strides) : -1;
  }
  // Calls for each goal that derivations go through, with the item and the cell among those of all items.
  template <typename Each> void each_goal(Each each) const {
    for (int64_t goal = 0; goal < goals; ++goal)
      for (int64_t item = 0; item < batch; ++item)
        if (reaches(goal, item)) each(item, cells[goal * batch + item]);
  }
  static int64_t numbers_apart(const int64_t* bytes) { return *bytes / int64_t(sizeof(Real)); }
  // Numbers like those of tables with something of each item at its goals, and `other` elsewhere.
  template <typename Value> void put_goals(Real* to, Real other, Value value) const {
    std::fill(to, to + batch * numbers_apart(strides), other);
    each_goal([&](int64_t item, int64_t cell) { to[cell] = other == 0 ? to[cell] + value(item) : value(item); });
  }

  // Calls for each run with its number, in a thread of its own. One alone is no parallel region: within one, OpenMP
  // would start new threads for each product that is shared.
  template <typename Each> void each_run(Each each) {
    const int64_t many = owners();
    if (many == 1) return each(*runs[0], 0);
#pragma omp parallel for num_threads(many) schedule(static, 1)
    for (int64_t k = 0; k < many; ++k) each(*runs[k], k);
  }

  // The arrays from one item on.
  void move(Slots& to, Real* const* from, const int64_t* bytes, int64_t item) const {
    to.resize(slots + 1);
    for (int64_t k = 0; k <= slots; ++k)
      to[k] = from[k] ? reinterpret_cast<Real*>(reinterpret_cast<char*>(from[k]) + item * bytes[k]) : nullptr;
  }

  // Gives a run some items.
  void take(int64_t k, Real* const* data, int64_t first, int64_t count) {
    Run<Real>& run = *runs[k];
    move(given[k], data, strides, first);
    run.data = given[k].data(), run.levels = levels + first * run.whole.levels;
    run.ends = ends + first, run.ends_apart = batch, run.batch = count;
  }

  // Gives every run its items.
  void take(Real* const* data) {
    given.resize(runs.size());
    for (int64_t k = 0; k < owners(); ++k) take(k, data, first_of(k), first_of(k + 1) - first_of(k));
    for (size_t k = owners(); k < runs.size(); ++k) take(k, data, 0, batch);
  }

  // Notes whether an input has a NaN or +inf, which no answer is made of; but for matrices that are looked at when they
  // are prepared, as for log-sums.
  template <bool best> void check(Real* const* data) {
    constexpr Real kMost = std::numeric_limits<Real>::infinity();
    const Run<Real>& run = *runs[0];
    int bad = 0;
    for (int64_t slot = 1; slot <= slots; ++slot) {
      const bool later = !best && std::any_of(run.stages, run.stages + run.whole.stages, [&](const Stage& g) {
        return g.slot == slot && run.looks_at_all(g, counts[slot - 1]);
      });
      if (later) continue;
      const Real* values = data[slot];
#pragma omp simd reduction(| : bad)
      for (int64_t k = 0; k < counts[slot - 1]; ++k) bad |= !(values[k] < kMost);
    }
    unsound = bad;
  }

  template <bool best> void up(Real* const* data, int64_t threads, bool keep) {
    if (runs.empty()) runs.emplace_back(new Run<Real>(records, nullptr));
    shared = batch <= kFewItems && threads > batch && runs[0]->gain_of(threads) > double(batch);
    if (!shared) threads = std::min(threads, std::max<int64_t>(batch, 1));
    runs.resize(std::min<int64_t>(runs.size(), threads)), runs[0]->helpers.clear();
    while (int64_t(runs.size()) < threads) runs.emplace_back(new Run<Real>(records, runs[0].get()));
    for (int64_t k = 0; k < threads; ++k) {
      runs[k]->divides = batch <= kFewItems, runs[k]->helps = shared && k, runs[k]->is_far = false;
      runs[k]->crew = k ? 1 : threads, runs[k]->unsound = false;
      if (shared && k) runs[0]->helpers.push_back(runs[k].get());
    }
    take(data), check<best>(data);
    runs[0]->template prepare_up<best>();
    each_run([&](Run<Real>& run, int64_t k) {
      if (k) run.template prepare_up<best>();
      run.keep_series = keep, run.is_far = false;
      run.template up<best>();
    });
    for (const auto& run : runs) unsound |= run->unsound;
    // A goal that is before the first cell is 1; of one that is no cell there is no derivation.
    totals.resize(batch);
    for (int64_t item = 0; item < batch; ++item) {
      double sum = 0;
      for (int64_t k = item; k < goals * batch; k += batch)
        sum += cells[k] == -2 ? 0.0 : cells[k] < 0 ? -INFINITY : data[0][cells[k]] + levels[cells[goals * batch + k]];
      totals[item] = Real(sum);
    }
  }

  // Whether some row of the last pass lacks digits of float32.
  bool is_far() const {
    return std::any_of(runs.begin(), runs.end(), [](const auto& run) { return run->is_far; });
  }

  // Gives every run its items of arrays that are added to, as `field`; an input that items share has one for each
  // run, which `gather` adds up, run by run, in the order of items.
  void spread(std::vector<Slots>& moved, Real* const* to, Real* const* Run<Real>::*field) {
    own.assign(owners(), std::vector<std::vector<Real>>(slots + 1)), moved.resize(owners());
    for (size_t k = 0; k < own.size(); ++k) {
      move(moved[k], to, strides, first_of(k));
      for (int64_t slot = 1; k && slot <= slots; ++slot)
        if (to[slot] && !strides[slot])
          own[k][slot].assign(counts[slot - 1], Real(0)), moved[k][slot] = own[k][slot].data();
      (*runs[k]).*field = moved[k].data();
    }
    for (size_t k = own.size(); k < runs.size(); ++k) (*runs[k]).*field = moved[0].data();
  }
  void gather(Real* const* to) {
    for (size_t k = 1; k < own.size(); ++k)
      for (int64_t slot = 1; slot <= slots; ++slot)
        for (size_t j = 0; j < own[k][slot].size(); ++j) to[slot][j] += own[k][slot][j];
    own.clear();
  }

  void down(Real* const* data, Real* const* grads, const Real* above) {
    if (above) put_goals(grads[0], 0, [&](int64_t item) { return above[item]; });
    take(data), spread(below, grads, &Run<Real>::grads);
    runs[0]->prepare_down();
    each_run([&](Run<Real>& run, int64_t k) {
      if (k) run.prepare_down();
      run.down();
    });
    gather(grads);
  }

  // After `along` and `down`, with the arrays that these had.
  void second(Real* const* seconds, const Real* more) {
    put_goals(seconds[0], 0, [&](int64_t item) { return more ? more[item] : Real(0); });
    spread(other, seconds, &Run<Real>::seconds);
    runs[0]->prepare_second();
    each_run([&](Run<Real>& run, int64_t k) {
      if (k) run.prepare_second();
      run.second();
    });
    gather(seconds);
  }

  void along(Real* const* data, Real* const* moves, Real* to, bool own_logs, bool entropic) {
    take(data);
    std::vector<Real*> each(moves, moves + slots + 1);
    if (own_logs) {
      // Absent entries, which no derivation reads, say 0.
      logs.resize(slots);
      for (int64_t slot = 1; slot <= slots; ++slot) {
        logs[slot - 1].resize(counts[slot - 1]), each[slot] = counts[slot - 1] ? logs[slot - 1].data() : nullptr;
        std::transform(data[slot], data[slot] + counts[slot - 1], logs[slot - 1].begin(),
                       [](Real value) { return value > -INFINITY ? value : Real(0); });
      }
    }
    said.resize(owners());
    for (size_t k = 0; k < said.size(); ++k) {
      move(said[k], each.data(), strides, first_of(k));
      runs[k]->moves = said[k].data(), runs[k]->entropic = entropic;
    }
    runs[0]->prepare_along();
    each_run([&](Run<Real>& run, int64_t k) {
      if (k) run.prepare_along();
      run.along();
    });
    std::fill(to, to + batch, Real(0));
    each_goal([&](int64_t item, int64_t cell) { to[item] += moves[0][cell]; });
  }

  // What the best derivations that use an entry score; no two items share it, and each has its own, so many bytes apart.
  void maxima(Real* const* data, Real* const* losses, const int64_t* apart) {
    std::vector<int64_t> numbers(apart, apart + slots + 1);
    for (int64_t& one : numbers) one /= int64_t(sizeof(Real));
    put_goals(losses[0], -INFINITY, [](int64_t) { return Real(0); });
    for (int64_t slot = 1; slot <= slots; ++slot)
      if (losses[slot]) std::fill(losses[slot], losses[slot] + batch * numbers[slot], -INFINITY);
    take(data), other.resize(owners());
    for (size_t k = 0; k < other.size(); ++k) {
      move(other[k], losses, apart, first_of(k));
      runs[k]->losses = other[k].data(), runs[k]->losses_apart = numbers.data();
    }
    runs[0]->prepare_maxima();
    each_run([&](Run<Real>& run, int64_t k) {
      if (k) run.prepare_maxima();
      run.maxima();
      // From what is lost against the best to what is left; of an impossible item, nothing.
      for (int64_t item = first_of(k); item < first_of(k + 1); ++item)
        for (int64_t slot = 1; slot <= slots && totals[item] > -INFINITY; ++slot)
          for (int64_t at = 0; losses[slot] && at < numbers[slot]; ++at)
            losses[slot][item * numbers[slot] + at] += totals[item];
    });
  }

  // What derivations read: (draw, item, slot, place), item by item.
  std::vector<std::vector<int64_t>> reads;
  void put(int64_t run, int64_t draw, int64_t item, int64_t slot, int64_t at) {
    const int64_t numbers[] = {draw, item, slot, at};
    reads[run].insert(reads[run].end(), numbers, numbers + 4);
  }
  // Numbers of all reads.
  int64_t count_reads() const {
    int64_t count = 0;
    for (const auto& part : reads) count += part.size();
    return count / 4;
  }

  // Derivations of one goal; every one has a stream of random numbers of its own. Calls
  // `visit` with the run, the draw, the item, and the slot and the place of all that they read. With noise, so many
  // numbers for each draw and item, draws are maxima.
  template <typename Visit>
  void descend(int64_t goal, int64_t draws, bool best, uint64_t seed, Visit visit,
               const Real* noise = nullptr, int64_t noisy = 0, int64_t numbers = 0) {
    const bool exact = best || noise;
    runs[0]->prepare_descend(best, exact, batch * draws);
    each_run([&](Run<Real>& run, int64_t k) {
      if (k) run.prepare_descend(best, exact, batch * draws);
      run.remembers = !exact && draws >= kManyDraws, run.noisy = noisy;
      for (int64_t item = 0; item < run.batch; ++item) {
        const int64_t of_all = first_of(k) + item;
        if (!reaches(goal, of_all)) continue;
        run.descend(item, goal_in(goal, of_all), draws, best, seed + uint64_t(of_all) * draws, [&](int64_t draw) {
          return noise ? noise + (draw * batch + of_all) * numbers : nullptr;
        }, [&](int64_t draw, int64_t slot, int64_t at) { visit(k, draw, of_all, slot, at); });
      }
    });
  }
  // Of all goals, notes all that they read.
  int64_t descend(Real* const* data, int64_t draws, bool best, uint64_t seed) {
    take(data), reads.assign(runs.size(), {});
    for (int64_t goal = 0; goal < goals; ++goal, seed += draws * batch)
      descend(goal, draws, best, seed, [&](int64_t k, int64_t draw, int64_t item, int64_t slot, int64_t at) {
        put(k, draw, item, slot, at);
      });
    return count_reads();
  }
  // Writes the last index of the entries that they use of one input, by draw, item and the place of others; -1: none.
  void states(Real* const* data, int64_t draws, bool best, uint64_t seed, int64_t input, int64_t width, int64_t places,
              const Real* noise, int64_t* to) {
    take(data), std::fill(to, to + draws * batch * places, -1);
    for (int64_t goal = 0; goal < goals; ++goal, seed += draws * batch)
      descend(goal, draws, best, seed, [&](int64_t, int64_t draw, int64_t item, int64_t slot, int64_t at) {
        if (slot == input) to[(draw * batch + item) * places + at / width] = at % width;
      }, noise, input, places * width);
  }

  // The best derivations of all goals together; `counts` gets how many each item has, `most` at most.
  template <typename Visit> void k_best(Real* const* data, int64_t most, int64_t* counts, Visit visit) {
    take(data);
    runs[0]->prepare_descend(true, true, batch * most);
    each_run([&](Run<Real>& run, int64_t k) {
      if (k) run.prepare_descend(true, true, batch * most);
      for (int64_t item = 0; item < run.batch; ++item) {
        const int64_t of_all = first_of(k) + item;
        counts[of_all] = 0;
        if (!(totals[of_all] > -INFINITY)) continue;
        std::vector<int64_t> own;
        for (int64_t goal = 0; goal < goals; ++goal)
          if (reaches(goal, of_all)) own.push_back(goal_in(goal, of_all));
        Lists<Real> lists(run, item, most, own);
        int64_t rank = 0;
        for (; rank < most && lists.find(0, rank); ++rank)
          lists.use(rank, [&](int64_t slot, int64_t at) { visit(k, rank, of_all, slot, at); });
        counts[of_all] = rank;
      }
    });
  }
  // Notes all that they read.
  int64_t k_best(Real* const* data, int64_t most, int64_t* counts) {
    reads.assign(runs.size(), {});
    k_best(data, most, counts, [&](int64_t k, int64_t rank, int64_t item, int64_t slot, int64_t at) {
      put(k, rank, item, slot, at);
    });
    return count_reads();
  }
  // Writes the states of one input's sites, as `states` does, with ranks in place of draws; and scores.
  void k_best_states(Real* const* data, int64_t most, int64_t input, int64_t width, int64_t places, int64_t* to,
                     double* scores) {
    std::vector<int64_t> found(batch);
    std::fill(to, to + most * batch * places, -1), std::fill(scores, scores + most * batch, 0.0);
    k_best(data, most, found.data(), [&](int64_t, int64_t rank, int64_t item, int64_t slot, int64_t at) {
      if (slot == input) to[(rank * batch + item) * places + at / width] = at % width;
      if (counts[slot - 1]) scores[rank * batch + item] += data[slot][item * numbers_apart(strides + slot) + at];
    });
    for (int64_t k = 0; k < most * batch; ++k)
      if (k / batch >= found[k % batch]) scores[k] = -INFINITY;
  }
};

}  // namespace
