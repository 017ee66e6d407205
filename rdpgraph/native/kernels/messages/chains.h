// Configurations improved by chains of changes, where hard zeros let no variable change alone.
//
// A move changes one variable; then, while a factor is violated by the move, that change of another of its
// variables is made which violates the fewest other factors, and among these scores best; one that violates
// none is looked for among variables of few factors first. No variable changes twice in a move. A move stays
// if fewer factors are violated in the end, or as many at a higher score; else it is undone. Children of And
// and Or follow their parents in this way, and assignments are rotated. (Ejection chains: Glover 1996.)

#pragma once

#include "decide.h"

namespace {

// The value of a factor at the states of all variables, one of which may be read as another state.
template <typename Real>
struct HeldFactors {
  const Propagation<Real>& p;
  int64_t item;
  const int64_t* states;
  std::vector<std::vector<int32_t>> following;  // of each automaton (states, alphabet), -1 beyond live steps

  HeldFactors(const Propagation<Real>& given, int64_t item_, const int64_t* states_)
      : p(given), item(item_), states(states_), following(given.model.kernel_count) {
    for (int64_t n = 0; n < p.model.kernel_count; ++n) {
      const KernelRecord& k = p.kernels[n];
      if (!k.is_automaton) continue;
      const int64_t size = p.template at<const int64_t>(k.sizes)[0];
      const int32_t* steps = p.template at<const int32_t>(k.transitions);
      following[n].assign(k.states * size, -1);
      for (int64_t i = 0; i < 3 * k.steps; i += 3) following[n][steps[i] * size + steps[i + 1]] = steps[i + 2];
    }
  }

  // The state of a factor's slot among all states of the slot.
  int64_t state_at(const KernelRecord& k, int64_t f, int64_t s, int64_t variable, int64_t state) const {
    const int64_t at = s * k.factors + f;
    if (p.template at<const int32_t>(k.edges)[at] < 0)
      return p.template at<const int32_t>(k.settled)[item * k.settled_item + at];
    const Class& c = p.classes[p.template at<const int32_t>(k.homes)[at]];
    const int64_t place = p.template at<const int32_t>(k.variables)[at] - c.belief;
    const int64_t v = c.variable + (c.states == 2 ? place >> 1 : place / c.states);
    const int64_t x = v == variable ? state : states[v];
    return k.left ? p.template at<const int32_t>(k.left)[at * p.template at<const int64_t>(k.sizes)[s] + x] : x;
  }

  double value(int64_t n, int64_t f, int64_t variable = -1, int64_t state = 0) const {
    const KernelRecord& k = p.kernels[n];
    const int64_t* sizes = p.template at<const int64_t>(k.sizes);
    int64_t number = 0;  // of a cell, or the state of the automaton
    if (!k.is_automaton) {
      for (int64_t s = 0; s < k.slots; ++s) number = number * sizes[s] + state_at(k, f, s, variable, state);
    } else {
      const int32_t* next = following[n].data();
      for (int64_t s = 0; s < k.slots; ++s) {
        number = next[number * sizes[0] + state_at(k, f, s, variable, state)];
        if (number < 0) return kNever<double>;
      }
    }
    return double(p.logs_of(k, item, f)[number * k.logs_cell]);
  }
};

template <typename Real>
struct Chains {
  // The most changes of a move; how many times the least number of factors a variable may have that mends
  // one; and the most factors of a variable through which others are told that something changed.
  static constexpr int64_t kMostChanges = 256, kWider = 4, kNear = 64;

  const Propagation<Real>& p;
  int64_t item, *states;
  HeldFactors<Real> held;
  const int64_t *starts, *firsts;  // of variables among the incident edges, of blocks among the factors
  const Real *unary, *shares;
  std::vector<int64_t> factors, members_start, members;  // of incident edges; variables of factors
  std::vector<int32_t> block;  // of factors
  std::vector<double> values;  // of factors
  std::vector<uint8_t> locked, graded;  // variables, blocks
  int64_t spent = 0;  // values of factors that were computed, by their slots

  struct Change { int64_t variable, before; };
  std::vector<Change> changes;
  std::vector<std::pair<int64_t, double>> overwritten;  // values of factors
  std::vector<int64_t> open;  // factors that the move violates
  std::vector<int64_t> stamps, tried;  // moves so far when factors changed, and when variables were tried
  int64_t stayed = 1;  // moves that stayed, and one
  int64_t violated = 0;  // factors
  int64_t zeros = 0;  // how many more of them the move violates
  double gain = 0;    // in the score of all others

  Chains(const Propagation<Real>& given, int64_t item_, int64_t* states_)
      : p(given), item(item_), states(states_), held(given, item_, states_) {
    const Model& model = p.model;
    starts = p.template at<const int64_t>(model.incident_starts);
    firsts = p.template at<const int64_t>(model.first_factors);
    shares = p.template at<const Real>(model.shares);
    unary = p.template at<const Real>(model.unary) + item * model.unary_item;
    const int32_t* owners = p.template at<const int32_t>(model.owners);
    const int32_t* incident = p.template at<const int32_t>(model.incident);
    // The factors of each variable, and the variables of each factor.
    factors.resize(model.edges), members_start.assign(model.factors + 1, 0), members.resize(model.edges);
    for (int64_t e = 0; e < model.edges; ++e) ++members_start[owners[e] + 1];
    for (int64_t f = 0; f < model.factors; ++f) members_start[f + 1] += members_start[f];
    std::vector<int64_t> next(members_start.begin(), members_start.end() - 1);
    for (int64_t n = 0; n < model.class_count; ++n) {
      const Class& c = p.classes[n];
      for (int64_t v = c.variable; v < c.variable + c.variables; ++v)
        for (int64_t i = starts[v]; i < starts[v + 1]; ++i) {
          factors[i] = owners[p.edge_of(c, incident[i])];
          members[next[factors[i]]++] = v;
        }
    }
    // Those of few factors first.
    for (int64_t f = 0; f < model.factors; ++f) {
      const auto before = [&](int64_t a, int64_t b) { return degree(a) < degree(b); };
      const auto first = members.begin() + members_start[f], last = members.begin() + members_start[f + 1];
      if (!std::is_sorted(first, last, before)) std::stable_sort(first, last, before);
    }
    for (int64_t n = 0; n < model.kernel_count; ++n) graded.push_back(is_graded(p.kernels[n]));
    stamps.assign(model.factors, 1), tried.assign(model.variables, 0);
    block.resize(model.factors), values.resize(model.factors), locked.assign(model.variables, 0);
    for (int64_t n = 0; n < model.kernel_count; ++n)
      for (int64_t f = firsts[n]; f < firsts[n + 1]; ++f) block[f] = int32_t(n), values[f] = value(f);
    violated = std::count(values.begin(), values.end(), kNever<double>);
  }

  const Class& class_of(int64_t v) const {
    const Class* c = p.classes;
    while (v >= c->variable + c->variables) ++c;
    return *c;
  }
  double own(int64_t v, int64_t x) const {
    const Class& c = class_of(v);
    return double(unary[c.belief + (v - c.variable) * c.states + x]);
  }
  int64_t degree(int64_t v) const { return starts[v + 1] - starts[v]; }

  double value(int64_t f, int64_t variable = -1, int64_t state = 0) {
    const int64_t n = block[f];
    spent += p.kernels[n].slots;
    const double log = held.value(n, f - firsts[n], variable, state);
    const Real* weights = p.template at<const Real>(p.kernels[n].weights);
    return weights && log > kNever<double> ? log * double(weights[f - firsts[n]]) : log;
  }

  static void add(double before, double after, int64_t& zeros, double& gain) {
    if (before == kNever<double>) --zeros;
    else gain -= before;
    if (after == kNever<double>) ++zeros;
    else gain += after;
  }

  // Makes a change, and notes the factors that it violates.
  void make(int64_t v, int64_t x) {
    changes.push_back({v, states[v]});
    locked[v] = 1;
    add(own(v, states[v]), own(v, x), zeros, gain);
    states[v] = x;
    for (int64_t i = starts[v]; i < starts[v + 1]; ++i) {
      const int64_t f = factors[i];
      const double after = value(f);
      if (after == values[f]) continue;
      add(values[f], after, zeros, gain);
      overwritten.push_back({f, values[f]});
      values[f] = after;
      if (after == kNever<double>) open.push_back(f);
    }
  }

  // The change that lets a violated factor be satisfied and violates the fewest others; none: false.
  bool mend(int64_t f) {
    // Members stand by their numbers of factors, so that the first that is free has the least.
    int64_t best = -1, state = 0, fewest = 0, least = -1;
    double most = 0;
    for (int64_t i = members_start[f]; i < members_start[f + 1]; ++i) {
      const int64_t v = members[i];
      if (locked[v]) continue;
      if (least < 0) least = degree(v);
      // Variables of many more factors than others have are left alone: a change of theirs violates more.
      if (degree(v) > kWider * least) break;
      for (int64_t x = 0; x < class_of(v).states; ++x) {
        if (x == states[v]) continue;
        const double mended = value(f, v, x);
        if (mended == kNever<double>) continue;
        int64_t worse = 0;
        double better = 0;
        add(own(v, states[v]), own(v, x), worse, better);
        add(values[f], mended, worse, better);
        // What the change does to the other factors, until it is known to violate more than the best one.
        for (int64_t j = starts[v]; j < starts[v + 1]; ++j) {
          if (factors[j] == f) continue;
          add(values[factors[j]], value(factors[j], v, x), worse, better);
          if (best >= 0 && worse > fewest + violated + zeros) break;
        }
        if (best < 0 || worse < fewest || (worse == fewest && better > most))
          best = v, state = x, fewest = worse, most = better;
      }
      if (best >= 0 && fewest < 0) break;
    }
    if (best >= 0) make(best, state);
    return best >= 0;
  }

  // Changes a variable, and others until no factor is violated by the move; returns whether it stays.
  bool move(int64_t v, int64_t x) {
    changes.clear(), overwritten.clear(), open.clear();
    zeros = 0, gain = 0;
    make(v, x);
    for (size_t i = 0; i < open.size() && int64_t(changes.size()) < kMostChanges; ++i)
      if (values[open[i]] == kNever<double> && !mend(open[i])) break;
    // It stays if it is better in the end; all is undone otherwise, the last change first.
    const double rounding = 1e-9 * std::max(1.0, std::abs(gain));
    const bool stays = zeros < 0 || (zeros == 0 && gain > rounding);
    for (const Change& change : changes) locked[change.variable] = 0;
    if (stays) {
      violated += zeros, ++stayed;
      for (const Change& change : changes)
        for (int64_t i = starts[change.variable]; i < starts[change.variable + 1]; ++i) stamps[factors[i]] = stayed;
      return true;
    }
    for (auto each = overwritten.rbegin(); each != overwritten.rend(); ++each) values[each->first] = each->second;
    for (auto each = changes.rbegin(); each != changes.rend(); ++each) states[each->variable] = each->before;
    return false;
  }

  // Whether a block's factors have finite log-values that differ: then any change may gain something.
  bool is_graded(const KernelRecord& k) const {
    double known = kNever<double>;
    const int64_t cells = k.is_automaton ? k.states : k.cells;
    for (int64_t f = 0; f < (k.tables == 1 ? 1 : k.factors); ++f) {
      const Real* logs = p.logs_of(k, item, f);
      for (int64_t c = 0; c < cells; ++c) {
        const double log = logs[c * k.logs_cell];
        if (log == kNever<double>) continue;
        if (known > kNever<double> && log != known) return true;
        known = log;
      }
    }
    return false;
  }

  // Whether the log-values of a variable or of its factors tell its states apart, or a factor is violated; and
  // whether something changed near it since it was tried.
  bool begins(int64_t v) const {
    bool differs = false, changed = false;
    for (int64_t x = 0; x < class_of(v).states; ++x) differs |= own(v, x) != own(v, states[v]);
    for (int64_t i = starts[v]; i < starts[v + 1] && !(differs && changed); ++i) {
      const int64_t f = factors[i];
      differs |= graded[block[f]] || values[f] == kNever<double>;
      changed |= stamps[f] > tried[v];
      for (int64_t j = members_start[f]; j < members_start[f + 1] && !changed; ++j) {
        const int64_t u = members[j];
        if (degree(u) > kNear) break;
        for (int64_t k = starts[u]; k < starts[u + 1]; ++k) changed |= stamps[factors[k]] > tried[v];
      }
    }
    return differs && changed;
  }

  // Changes single variables for the better, in passes over those near a change.
  void ascend(int64_t most) {
    std::vector<uint8_t> waiting(p.model.variables, 1);
    for (bool moved = true; moved;) {
      moved = false;
      for (int64_t v = 0; v < p.model.variables; ++v) {
        if (!waiting[v]) continue;
        if (spent > most) return;
        waiting[v] = 0;
        // The state of the fewest violated factors, and among these of the highest score.
        int64_t state = states[v], fewest = 0;
        double highest = 1e-9;
        for (int64_t x = 0; x < class_of(v).states; ++x) {
          if (x == states[v]) continue;
          int64_t worse = 0;
          double better = 0;
          add(own(v, states[v]), own(v, x), worse, better);
          for (int64_t i = starts[v]; i < starts[v + 1]; ++i)
            add(values[factors[i]], value(factors[i], v, x), worse, better);
          if (worse < fewest || (worse == fewest && better > highest)) state = x, fewest = worse, highest = better;
        }
        if (state == states[v]) continue;
        // The change stays, and all variables that share a factor with it are looked at again.
        changes.clear(), overwritten.clear(), open.clear();
        zeros = 0, gain = 0, moved = true;
        make(v, state);
        locked[v] = 0, violated += zeros;
        for (int64_t i = starts[v]; i < starts[v + 1]; ++i)
          for (int64_t j = members_start[factors[i]]; j < members_start[factors[i] + 1]; ++j) waiting[members[j]] = 1;
      }
    }
  }

  // Passes over all variables until none has a move that stays, or so many slots were read.
  void run(int64_t most) {
    ascend(most);
    for (bool moved = true; moved;) {
      moved = false;
      for (int64_t v = 0; v < p.model.variables; ++v) {
        if (spent > most) return;
        if (!begins(v)) continue;
        tried[v] = stayed;
        for (int64_t x = 0; x < class_of(v).states; ++x)
          if (x != states[v] && move(v, x)) moved = true;
      }
    }
  }
};

}  // namespace
