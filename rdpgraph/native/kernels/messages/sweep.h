// Messages of belief propagation in a whole graph of tables and automata, factor by factor.
//
// The equations are those of rdpgraph/engines/loopy/equations.py, for all counting numbers and
// temperatures:
//   belief_i   = u_i + sum_f c_f m_fi
//   cavity_if  = belief_i - m_fi, shifted to a maximum of zero
//   m_fi(x_i)  = t log sum_{x_f without x_i} exp((theta_f / c_f + sum_{j != i} cavity_jf) / t)
// A factor reads its messages once and writes them once: each message is read by its own factor alone,
// and by the beliefs, which are summed before. So a sweep works in place, with as many factors of a
// block side by side as a vector has lanes. Tables of two variables of many states have a form of their
// own, in pairs.h.

#pragma once

#include "../logs.h"
#include "../threads.h"
#include "odds.h"
#include "records.h"

namespace {

// Sums and maxima as one arithmetic. `Values` multiplies values whose largest is one; where these leave
// the range of the floating type, `Logs` does the same sums in logs, exact at any range.
template <typename Work>
struct Maxima {
  using Lanes = Lane<Work>;
  static constexpr bool is_scaled = false;
  static Lanes zero() { return all<Work>(kNever<Work>); }
  static Lanes one() { return Lanes{}; }
  static Lanes add(Lanes a, Lanes b) { return a > b ? a : b; }
  static Lanes times(Lanes a, Lanes b) { return a + b; }
};

template <typename Work>
struct Values {
  using Lanes = Lane<Work>;
  static constexpr bool is_scaled = true;
  static Lanes zero() { return Lanes{}; }
  static Lanes one() { return all<Work>(1); }
  static Lanes add(Lanes a, Lanes b) { return a + b; }
  static Lanes times(Lanes a, Lanes b) { return a * b; }
};

template <typename Work>
struct Logs {
  using Lanes = Lane<Work>;
  static constexpr bool is_scaled = false;
  static Lanes zero() { return all<Work>(kNever<Work>); }
  static Lanes one() { return Lanes{}; }
  static Lanes add(Lanes a, Lanes b) {
    const Lanes top = a > b ? a : b, low = a > b ? b : a;
    const Lanes sum = top + log_of<Work>(Work(1) + exp_of<Work>(low - top));
    return top > kNever<Work> ? sum : top;
  }
  static Lanes times(Lanes a, Lanes b) { return a + b; }
};

// Values below kFaint, or automata whose running totals shrank by more than kShrunk in all, are computed
// again in logs: what underflow lost is then less than the rounding of the result. A product of factors
// whose logs add up to kFaintLog or more is in range.
template <typename Work> constexpr Work kFaint = 0;
template <> constexpr double kFaint<double> = 0x1p-500;
template <> constexpr float kFaint<float> = 0x1p-103f;
template <typename Work> constexpr Work kFaintLog = 0;
template <> constexpr double kFaintLog<double> = -346.0;
template <> constexpr float kFaintLog<float> = -71.0f;
constexpr double kShrunk = 0x1p-400;

constexpr int64_t kMostSlots = 16;  // of a table
constexpr int64_t kFew = 7;  // states of variables whose messages are (states, edges)

// The place of a cell of a factor's table among tables that stand side by side, as many as a vector has lanes.
template <typename Work> int64_t lane_place(const KernelRecord& k, int64_t f, int64_t cell) {
  constexpr int64_t wide = lanes<Work>();
  return (f / wide * k.cells + cell) * wide + f % wide;
}

// Damping, how new messages are mixed with old ones (`mixed`, `store_few` or `store_pairs`), and which are written.
struct Update {
  double keep;          // the share of the old message
  bool in_values;       // the mean is of values, not of logs
  const uint8_t* only;  // per edge whether it is updated; null: all are
  double* deltas;       // per edge its change; nothing is written if it is not null
};

template <typename Real>
struct Propagation {
  const Model& model;
  const Class* classes;
  const KernelRecord* kernels;
  double temperature, lowest, seen;  // 0: maxima; bound from below on finite logs; see `change`

  explicit Propagation(const Model& given)
      : model(given), classes(at<const Class>(given.classes)), kernels(at<const KernelRecord>(given.kernels)) {
    const double* reals = at<const double>(given.reals);
    temperature = reals[0], lowest = reals[1], seen = reals[2];
  }

  template <typename T> static T* at(int64_t address) { return reinterpret_cast<T*>(address); }

  // The number of a factor's table, and its log-values, which are `logs_cell` apart.
  static int64_t table_of(const KernelRecord& k, int64_t f) {
    if (k.tables == 1) return 0;
    return k.rows ? at<const int32_t>(k.rows)[f] : f;
  }
  static const Real* logs_of(const KernelRecord& k, int64_t item, int64_t f) {
    return at<const Real>(k.logs) + item * k.logs_item + table_of(k, f) * k.logs_table;
  }
  static int64_t edge_of(const Class& c, int64_t place) { return c.edge + (place - c.message) / c.edge_step; }

  // Beliefs of the variables first to last of a class: sums of finite logs, (variables, states), and,
  // if messages may vanish, the numbers of hard zeros among their terms behind them.
  void gather(int64_t item, const Real* messages, Real* beliefs, const Class& c, int64_t first,
              int64_t last) const {
    const Real* unary = at<const Real>(model.unary) + item * model.unary_item + c.belief;
    const int64_t* starts = at<const int64_t>(model.incident_starts) + c.variable;
    const int32_t* incident = at<const int32_t>(model.incident);
    const Real* shares = at<const Real>(model.shares);
    const int64_t k = c.states, step = c.state_step;
    for (int64_t v = first; v < last; ++v) {
      Real* __restrict sums = beliefs + c.belief + v * k;
      Real* __restrict zeros = sums + model.beliefs;
      const Real* own = unary + v * k;
      if (!model.vanishing) {
        // Many states, which stand in a row: message after message.
        if (step == 1) {
          for (int64_t x = 0; x < k; ++x) sums[x] = own[x];
          for (int64_t i = starts[v]; i < starts[v + 1]; ++i) {
            const Real* message = messages + incident[i];
            const Real share = shares ? shares[i] : Real(1);
            for (int64_t x = 0; x < k; ++x) sums[x] += share * message[x];
          }
          continue;
        }
        // Few states: state after state, whose sum stays in a register.
        for (int64_t x = 0; x < k; ++x) {
          Real sum = own[x];
          for (int64_t i = starts[v]; i < starts[v + 1]; ++i) {
            const Real message = messages[incident[i] + x * step];
            sum += shares ? shares[i] * message : message;
          }
          sums[x] = sum;
        }
        continue;
      }
      // Hard zeros are counted, and not added.
      for (int64_t x = 0; x < k; ++x) {
        const bool dead = own[x] == kNever<Real>;
        sums[x] = dead ? Real(0) : own[x], zeros[x] = dead;
      }
      for (int64_t i = starts[v]; i < starts[v + 1]; ++i) {
        const Real share = shares ? shares[i] : Real(1);
        for (int64_t x = 0; x < k; ++x) {
          const Real message = messages[incident[i] + x * step];
          const bool dead = message == kNever<Real>;
          sums[x] += dead ? Real(0) : share * message, zeros[x] += dead;
        }
      }
    }
  }

  void gather_all(int64_t item, const Real* messages, Real* beliefs, int threads) const {
    for (int64_t n = 0; n < model.class_count; ++n)
      by_items(classes[n].variables, threads, [&](int64_t a, int64_t b) {
        gather(item, messages, beliefs, classes[n], a, b);
      });
  }
};

// Vectors in a row. (GCC forgets the alignment of a type that depends on a parameter, in `std::vector`.)
template <typename Work>
struct Aligned {
  std::vector<Work> numbers;
  Lane<Work>* first = nullptr;

  void resize(int64_t count) {
    numbers.resize((count + 1) * lanes<Work>());
    const uintptr_t end = reinterpret_cast<uintptr_t>(numbers.data()) + kBytes - 1;
    first = reinterpret_cast<Lane<Work>*>(end / kBytes * kBytes);
  }
  Lane<Work>* data() { return first; }
  const Lane<Work>* data() const { return first; }
  Lane<Work>& operator[](int64_t k) { return first[k]; }
  const Lane<Work>& operator[](int64_t k) const { return first[k]; }
};

// One thread's work on the factors of one item.
template <typename Real, typename Work>
struct Worker {
  using Lanes = Lane<Work>;
  static constexpr int64_t kLanes = lanes<Work>();

  const Propagation<Real>& p;
  int64_t item;
  Real* messages;
  const Real* beliefs;
  Aligned<Work> logs, values, out;  // by slots and states
  Aligned<Work> forward, spare, shifts;  // of automata by slots and their states, and by slots
  Lanes reach;  // a bound from below on the logs of all products of what arrives at tables
  const KernelRecord* kernel;
  int64_t rows[kLanes], live = 0;  // the factors of the lanes, and how many lanes are in use

  Worker(const Propagation<Real>& given, const KernelRecord& of, int64_t item_, Real* messages_,
         const Real* beliefs_)
      : p(given), item(item_), messages(messages_), beliefs(beliefs_), kernel(&of) {
    logs.resize(of.all_entries), values.resize(of.all_entries), out.resize(of.all_entries);
    forward.resize(of.states * (of.slots + 1)), spare.resize(2 * of.states), shifts.resize(of.slots);
  }

  // A block's slot, as its lanes see it.
  struct Slot {
    const int32_t *edges, *variables, *homes, *left;
    int64_t states, entry;  // of the slot, and the place of its first state in `logs`
  };
  Slot slot_of(int64_t s) const {
    const KernelRecord& k = *kernel;
    const int32_t* homes = p.template at<const int32_t>(k.homes);
    const int32_t* left = p.template at<const int32_t>(k.left);
    const int64_t* sizes = p.template at<const int64_t>(k.sizes);
    const int64_t* entries = p.template at<const int64_t>(k.entries);
    return {p.template at<const int32_t>(k.edges) + s * k.factors,
            p.template at<const int32_t>(k.variables) + s * k.factors, homes + s * k.factors,
            left ? left + s * k.factors * sizes[s] : nullptr, sizes[s], entries[s]};
  }

  static Work lane_of(const Lanes& lane, int64_t l) { return reinterpret_cast<const Work*>(&lane)[l]; }

  Work less(Real belief, Real zeros, Real message) const {
    if (!p.model.vanishing) return Work(belief - message);
    const bool dead = message == kNever<Real>;
    if (zeros - dead > Real(0.5)) return kNever<Work>;
    return Work(dead ? belief : belief - message);
  }

  // The log-messages that arrive at a slot, over all its states, with a maximum of zero. A settled
  // variable sends its state. Each is divided by the temperature, if that is above zero.
  void load(int64_t s) {
    const Slot slot = slot_of(s);
    const int64_t k = slot.states;
    Lanes* in = logs.data() + slot.entry;
    if (stands_in_a_row(slot)) {
      load_row(slot, in);
    } else {
      // Lanes that are not in use send zeros.
      alignas(64) Work begin[kLanes] = {};
      for (int64_t l = 0; l < live; ++l) begin[l] = kNever<Work>;
      for (int64_t x = 0; x < k; ++x) std::memcpy(in + x, begin, sizeof(begin));
      // Numbers one by one go through pointers: GCC takes `in[x][l]` to be aligned as a vector is.
      for (int64_t l = 0; l < live; ++l) load_lane(slot, s, l, reinterpret_cast<Work*>(in) + l);
    }
    Lanes peak = in[0], least = {};
    for (int64_t x = 1; x < k; ++x) peak = in[x] > peak ? in[x] : peak;
    peak = peak > kNever<Work> ? peak : Lanes{};
    const Work scale = p.temperature > 0 ? Work(1.0 / p.temperature) : Work(1);
    for (int64_t x = 0; x < k; ++x) {
      in[x] = (in[x] - peak) * scale;
      const Lanes known = in[x] > kNever<Work> ? in[x] : Lanes{};
      least = known < least ? known : least;
    }
    shifts[s] = peak;
    reach += least;
  }

  // Whether all lanes are in use by variables of few states whose messages stand in a row: the common
  // case, which needs no branches.
  bool stands_in_a_row(const Slot& slot) const {
    if (slot.left || live < kLanes) return false;
    const int64_t first = rows[0], last = rows[kLanes - 1];
    if (last - first != kLanes - 1 || slot.edges[first] < 0) return false;
    if (slot.edges[last] - slot.edges[first] != kLanes - 1) return false;
    return p.classes[slot.homes[first]].edge_step == 1 && slot.states <= kFew;
  }

  // Numbers of the variables' states, one for each lane.
  static Lanes spread(const Real* from, const int32_t* places) {
    if constexpr (std::is_same_v<Real, Work>) return gathered(from, places, kLanes);
    alignas(64) Work own[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) own[l] = Work(from[places[l]]);
    return lane_at(own);
  }
  static Lanes in_a_row(const Real* from) {
    if constexpr (std::is_same_v<Real, Work>) return ::load(from, kLanes);
    alignas(64) Work own[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) own[l] = Work(from[l]);
    return lane_at(own);
  }
  static Lanes lane_at(const Work* from) {
    Lanes lane;
    std::memcpy(&lane, from, sizeof(lane));
    return lane;
  }

  void load_row(const Slot& slot, Lanes* in) const {
    const int32_t* variables = slot.variables + rows[0];
    const Real* message = messages + slot.edges[rows[0]];
    const int64_t stride = p.classes[slot.homes[rows[0]]].state_step;
    for (int64_t x = 0; x < slot.states; ++x) {
      const Lanes sum = spread(beliefs + x, variables), old = in_a_row(message + x * stride);
      if (!p.model.vanishing) {
        in[x] = sum - old;
        continue;
      }
      // A hard zero of the message itself is none of the others, and was not added.
      const Lanes none = old > kNever<Work> ? Lanes{} : all<Work>(1);
      const Lanes others = spread(beliefs + p.model.beliefs + x, variables) - none;
      const Lanes rest = old > kNever<Work> ? sum - old : sum;
      in[x] = others > Work(0.5) ? all<Work>(kNever<Work>) : rest;
    }
  }

  void load_lane(const Slot& slot, int64_t s, int64_t l, Work* in) const {
    const int64_t f = rows[l], e = slot.edges[f];
    if (e < 0) {
      const KernelRecord& k = *kernel;
      const int32_t* settled = p.template at<const int32_t>(k.settled) + item * k.settled_item;
      const int64_t state = settled[s * k.factors + f];
      for (int64_t x = 0; x < slot.states; ++x)
        if (state < 0 || x == state) in[x * kLanes] = 0;
      return;
    }
    const Class& c = p.classes[slot.homes[f]];
    const Real *sums = beliefs + slot.variables[f], *zeros = sums + p.model.beliefs;
    for (int64_t j = 0; j < c.states; ++j) {
      const int64_t x = slot.left ? slot.left[f * slot.states + j] : j;
      const Real dead = p.model.vanishing ? zeros[j] : Real(0);
      in[x * kLanes] = less(sums[j], dead, messages[e + j * c.state_step]);
    }
  }

  // The log-values of a cell, or of an automaton's state, for each lane.
  Lanes log_cell(int64_t number) const {
    const KernelRecord& k = *kernel;
    if (k.tables == 1) return all<Work>(Work(p.logs_of(k, item, 0)[number * k.logs_cell]));
    alignas(64) Work own[kLanes] = {};
    for (int64_t l = 0; l < live; ++l) own[l] = Work(p.logs_of(k, item, rows[l])[number * k.logs_cell]);
    return lane_at(own);
  }

  // The value of a cell for each lane, of tables that were laid out for as many factors side by side.
  Lanes value_cell(int64_t number) const {
    const KernelRecord& k = *kernel;
    const Real* from = p.template at<const Real>(k.values) + item * k.values_item;
    if (k.tables == 1) return all<Work>(Work(from[number]));
    if (rows[0] % kLanes == 0 && rows[live - 1] - rows[0] == live - 1)
      return in_a_row(from + lane_place<Work>(k, rows[0], number));
    alignas(64) Work own[kLanes] = {};
    for (int64_t l = 0; l < live; ++l) own[l] = Work(from[lane_place<Work>(k, rows[l], number)]);
    return lane_at(own);
  }

  // What cells are multiplied as: values, their logs as they are laid out, or the logs themselves.
  template <typename S> Lanes cell(int64_t number) const {
    if constexpr (std::is_same_v<S, Logs<Work>>) return log_cell(number);
    else return value_cell(number);
  }

  // ---- Automata: forwards and backwards over the slots, O(transitions) for each.

  // Scales totals to a maximum of one, and notes by how much they shrank.
  template <typename S> static void normalise(Lanes* totals, int64_t count, Lanes& shrunk, Work spread) {
    if constexpr (S::is_scaled) {
      Lanes peak = totals[0];
      for (int64_t q = 1; q < count; ++q) peak = totals[q] > peak ? totals[q] : peak;
      const Lanes safe = peak > Work(0) ? peak : all<Work>(1);
      for (int64_t q = 0; q < count; ++q) totals[q] /= safe;
      shrunk *= (peak < Work(1) ? peak : all<Work>(1)) * spread;
    }
  }

  // The (states) log-values of acceptance, divided by the temperature, or values; with a maximum of zero
  // or one. Returns the shift.
  template <typename S> Lanes accept(Lanes* into) const {
    const KernelRecord& k = *kernel;
    Lanes peak = all<Work>(kNever<Work>);
    for (int64_t q = 0; q < k.states; ++q) {
      into[q] = log_cell(q);
      peak = into[q] > peak ? into[q] : peak;
    }
    peak = peak > kNever<Work> ? peak : Lanes{};
    for (int64_t q = 0; q < k.states; ++q) {
      into[q] -= peak;
      if constexpr (S::is_scaled) into[q] = exp_of<Work>(into[q]);
    }
    return peak;
  }

  // forward[s]: totals of the states before slot s, over all ways through the slots before it.
  template <typename S> void run_forward(const Lanes* in, int64_t last, Lanes& shrunk, Work spread) {
    const KernelRecord& k = *kernel;
    const int32_t* steps = p.template at<const int32_t>(k.transitions);
    const int64_t* entries = p.template at<const int64_t>(k.entries);
    const int64_t count = k.states;
    for (int64_t q = 0; q < count; ++q) forward[q] = q ? S::zero() : S::one();
    for (int64_t s = 0; s < last; ++s) {
      const Lanes *from = forward.data() + s * count, *message = in + entries[s];
      Lanes* to = forward.data() + (s + 1) * count;
      for (int64_t q = 0; q < count; ++q) to[q] = S::zero();
      for (int64_t i = 0; i < 3 * k.steps; i += 3) {
        if (!s && steps[i]) break;  // sorted by the state that they leave, and it starts in 0
        to[steps[i + 2]] = S::add(to[steps[i + 2]], S::times(from[steps[i]], message[steps[i + 1]]));
      }
      normalise<S>(to, count, shrunk, spread);
    }
  }

  // Messages to all slots into `out`; false where values left their range.
  template <typename S> bool answer_automaton(const Lanes* in) {
    const KernelRecord& k = *kernel;
    const int32_t* steps = p.template at<const int32_t>(k.transitions);
    const int64_t* entries = p.template at<const int64_t>(k.entries);
    const int64_t count = k.states, size = p.template at<const int64_t>(k.sizes)[0];
    Lanes shrunk = all<Work>(1);
    const Work spread = Work(1) / Work(k.spread);
    run_forward<S>(in, k.slots - 1, shrunk, spread);
    Lanes *behind = spare.data(), *next = behind + count;
    accept<S>(behind);
    for (int64_t s = k.slots - 1; s >= 0; --s) {
      const Lanes *before = forward.data() + s * count, *message = in + entries[s];
      Lanes* sent = out.data() + entries[s];
      for (int64_t x = 0; x < size; ++x) sent[x] = S::zero();
      for (int64_t q = 0; q < count; ++q) next[q] = S::zero();
      for (int64_t i = 0; i < 3 * k.steps; i += 3) {
        const int32_t q = steps[i], x = steps[i + 1];
        if (!s && q) break;
        const Lanes after = behind[steps[i + 2]];
        sent[x] = S::add(sent[x], S::times(before[q], after));
        next[q] = S::add(next[q], S::times(message[x], after));
      }
      if (s) normalise<S>(next, count, shrunk, spread);
      std::swap(behind, next);
    }
    if constexpr (S::is_scaled)
      for (int64_t l = 0; l < live; ++l)
        if (!(lane_of(shrunk, l) >= kShrunk)) return false;
    return true;
  }

  // ---- Tables: every cell adds to one state of each slot the product of all else.

  template <typename S> bool answer_table(const Lanes* in) {
    const KernelRecord& k = *kernel;
    const int64_t* sizes = p.template at<const int64_t>(k.sizes);
    const int64_t* entries = p.template at<const int64_t>(k.entries);
    for (int64_t i = 0; i < k.all_entries; ++i) out[i] = S::zero();
    if (k.slots == 2) {
      // Two rows at a time: what is sent to their states stays in registers.
      int64_t x = 0;
      for (; x + 2 <= sizes[0]; x += 2) answer_rows<S, 2>(in, x, sizes[1], entries[1]);
      if (x < sizes[0]) answer_rows<S, 1>(in, x, sizes[1], entries[1]);
      return true;
    }
    int64_t digits[kMostSlots] = {};
    Lanes before[kMostSlots + 1];
    before[0] = S::one();
    int64_t changed = 0;  // the first slot whose state differs from that of the cell before
    for (int64_t number = 0; number < k.cells; ++number) {
      for (int64_t s = changed; s < k.slots; ++s)
        before[s + 1] = S::times(before[s], in[entries[s] + digits[s]]);
      Lanes after = cell<S>(number);
      for (int64_t s = k.slots - 1; s >= 0; --s) {
        Lanes& sent = out[entries[s] + digits[s]];
        sent = S::add(sent, S::times(before[s], after));
        after = S::times(after, in[entries[s] + digits[s]]);
      }
      changed = k.slots - 1;
      while (changed >= 0 && ++digits[changed] == sizes[changed]) digits[changed--] = 0;
    }
    return true;
  }

  template <typename S, int count>
  void answer_rows(const Lanes* in, int64_t x, int64_t columns, int64_t right) {
    Lanes sent[count];
    for (auto& sum : sent) sum = S::zero();
    for (int64_t y = 0; y < columns; ++y) {
      Lanes back = out[right + y];
      for (int i = 0; i < count; ++i) {
        const Lanes value = cell<S>((x + i) * columns + y);
        sent[i] = S::add(sent[i], S::times(value, in[right + y]));
        back = S::add(back, S::times(value, in[x + i]));
      }
      out[right + y] = back;
    }
    for (int i = 0; i < count; ++i) out[x + i] = sent[i];
  }

  // ---- One vector of factors of a block.

  template <typename S> bool answer(const Lanes* in) {
    return kernel->is_automaton ? answer_automaton<S>(in) : answer_table<S>(in);
  }

  // Whether all values that are sent are in range. Those of tables are wherever no product can be faint:
  // a zero is then a hard one.
  bool in_range() const {
    if (!kernel->is_automaton) {
      const Real* lows = p.template at<const Real>(kernel->lows) + (kernel->values_item ? item * kernel->tables : 0);
      bool fits = true;
      for (int64_t l = 0; l < live; ++l)
        fits &= lane_of(reach, l) + Work(lows[p.table_of(*kernel, rows[l])]) >= kFaintLog<Work>;
      if (fits) return true;
    }
    for (int64_t s = 0; s < kernel->slots; ++s) {
      const Slot slot = slot_of(s);
      for (int64_t l = 0; l < live; ++l) {
        const int64_t f = rows[l];
        if (slot.edges[f] < 0) continue;
        for (int64_t j = 0; j < p.classes[slot.homes[f]].states; ++j) {
          const int64_t x = slot.left ? slot.left[f * slot.states + j] : j;
          if (!(lane_of(out[slot.entry + x], l) >= kFaint<Work>)) return false;
        }
      }
    }
    return true;
  }

  void answer_all() {
    const int64_t count = kernel->all_entries;
    if (!(p.temperature > 0)) {
      answer<Maxima<Work>>(logs.data());
      return;
    }
    for (int64_t i = 0; i < count; ++i) values[i] = exp_of<Work>(logs[i]);
    const Work scale = Work(p.temperature);
    if (answer<Values<Work>>(values.data()) && in_range()) {
      for (int64_t i = 0; i < count; ++i) out[i] = log_of<Work>(out[i]) * scale;
    } else {
      answer<Logs<Work>>(logs.data());
      for (int64_t i = 0; i < count; ++i) out[i] *= scale;
    }
  }

  static Work smaller(Work a, Work b) { return a < b ? a : b; }
  static Work larger(Work a, Work b) { return a > b ? a : b; }

  // Writes a slot's messages, or their changes; returns the largest change.
  Work store(int64_t s, const Update& update) {
    const Slot slot = slot_of(s);
    const Lanes* sent = out.data() + slot.entry;
    if (!update.only && !update.in_values && stands_in_a_row(slot)) return store_row(slot, sent, update);
    Work largest = 0;
    for (int64_t l = 0; l < live; ++l) {
      const int64_t f = rows[l], e = slot.edges[f];
      if (e < 0) continue;
      const Class& c = p.classes[slot.homes[f]];
      const int64_t number = p.edge_of(c, e);
      if (update.only && !update.only[number]) continue;
      const auto answered = [&](int64_t j) {
        return lane_of(sent[slot.left ? slot.left[f * slot.states + j] : j], l);
      };
      Work peak = kNever<Work>, change = 0, mixed_peak = kNever<Work>;
      for (int64_t j = 0; j < c.states; ++j) peak = larger(peak, answered(j));
      peak = finite(peak);
      for (int pass = 0; pass < 2; ++pass)  // a mean is shifted to a maximum of zero again
        for (int64_t j = 0; j < c.states; ++j) {
          const Work fresh = limited(answered(j) - peak), old = Work(messages[e + j * c.state_step]);
          if (!pass) change = larger(change, change_of(fresh, old));
          const Work value = mixed(fresh, old, update);
          if (!pass) mixed_peak = larger(mixed_peak, value);
          else messages[e + j * c.state_step] = Real(value - finite(mixed_peak));
          if (!pass && j + 1 == c.states && update.deltas) pass = 1;  // nothing is written
        }
      if (update.deltas) update.deltas[number] = change;
      largest = larger(largest, change);
    }
    return largest;
  }

  // The same for variables of few states in all lanes.
  Work store_row(const Slot& slot, const Lanes* sent, const Update& update) {
    const Class& c = p.classes[slot.homes[rows[0]]];
    const int64_t stride = c.state_step, k = slot.states;
    const Work keep = Work(update.keep);
    Real* message = messages + slot.edges[rows[0]];
    Lanes fresh[kFew], peak = sent[0], change = {}, top = all<Work>(kNever<Work>);
    for (int64_t x = 1; x < k; ++x) peak = sent[x] > peak ? sent[x] : peak;
    peak = peak > kNever<Work> ? peak : Lanes{};
    const Lanes floor = all<Work>(Work(p.model.bounded ? kNever<double> : p.lowest));
    const Lanes least = all<Work>(Work(-p.seen));
    for (int64_t x = 0; x < k; ++x) {
      const Lanes old = in_a_row(message + x * stride);
      fresh[x] = sent[x] - peak;
      const Lanes raised = fresh[x] > floor ? fresh[x] : floor;
      fresh[x] = fresh[x] > kNever<Work> ? raised : fresh[x];
      const Lanes a = fresh[x] > least ? fresh[x] : least, b = old > least ? old : least;
      const Lanes gap = a > b ? a - b : b - a, size = -a > Work(1) ? -a : all<Work>(1);
      const Lanes relative = gap / size;
      change = relative > change ? relative : change;
      if (keep > 0) fresh[x] = (1 - keep) * fresh[x] + keep * old;
      top = fresh[x] > top ? fresh[x] : top;
    }
    const Work most = largest<Work>(reinterpret_cast<const Work*>(&change), kLanes);
    if (update.deltas) {  // nothing is written
      double* deltas = update.deltas + p.edge_of(c, slot.edges[rows[0]]);
      for (int64_t l = 0; l < kLanes; ++l) deltas[l] = lane_of(change, l);
      return most;
    }
    // A mean is shifted to a maximum of zero again.
    top = top > kNever<Work> && keep > 0 ? top : Lanes{};
    for (int64_t x = 0; x < k; ++x) {
      alignas(64) Work after[kLanes];
      const Lanes value = fresh[x] - top;
      std::memcpy(after, &value, sizeof(after));
      for (int64_t l = 0; l < kLanes; ++l) message[l + x * stride] = Real(after[l]);
    }
    return most;
  }

  Work limited(Work log) const {
    if (p.model.bounded || !(log > kNever<Work>)) return log;
    return larger(log, Work(p.lowest));
  }

  // The change of a log, relative beyond one nat; logs below -seen count as equal.
  Work change_of(Work fresh, Work old) const {
    const Work a = larger(fresh, Work(-p.seen)), b = larger(old, Work(-p.seen));
    return std::abs(a - b) / larger(std::abs(a), Work(1));
  }

  static Work mixed(Work fresh, Work old, const Update& update) {
    const double keep = update.keep;
    if (!(keep > 0)) return fresh;
    if (!update.in_values) return Work(1 - keep) * fresh + Work(keep) * old;
    if (!(fresh > kNever<Work>)) return fresh;
    const Work a = fresh + Work(std::log1p(-keep)), b = old + Work(std::log(keep)), top = larger(a, b);
    return top + std::log(std::exp(a - top) + std::exp(b - top));
  }

  // Updates the factors `number` to `number + kLanes` of a list; null: of the block.
  Work update(const int32_t* list, int64_t number, int64_t count, const Update& how) {
    const KernelRecord& of = *kernel;
    begin(list, number, count);
    for (int64_t s = 0; s < of.slots; ++s) load(s);
    answer_all();
    Work most = 0;
    for (int64_t s = 0; s < of.slots; ++s) most = larger(most, store(s, how));
    return most;
  }

  void begin(const int32_t* list, int64_t number, int64_t count) {
    reach = Lanes{};
    live = std::min(kLanes, count - number);
    for (int64_t l = 0; l < live; ++l) rows[l] = list ? list[number + l] : number + l;
  }

  // The sum of the factors' log Z times counting numbers; -inf terms are left out and noted.
  double partition(int64_t number, int64_t count, bool& dead) {
    begin(nullptr, number, count);
    for (int64_t s = 0; s < kernel->slots; ++s) load(s);
    Lanes total;
    if (!(p.temperature > 0)) total = total_of<Maxima<Work>>(logs.data());
    else total = kernel->is_automaton ? total_of<Logs<Work>>(logs.data()) : total_of_table();
    const Work scale = Work(p.temperature > 0 ? p.temperature : 1.0);
    const Real* weights = p.template at<const Real>(kernel->weights);
    double sum = 0;
    for (int64_t l = 0; l < live; ++l) {
      double log = double(lane_of(total, l) * scale);
      for (int64_t s = 0; s < kernel->slots; ++s) log += double(lane_of(shifts[s], l));
      if (weights) log *= double(weights[rows[l]]);
      if (log == kNever<double>) dead = true;
      else sum += log;
    }
    return sum;
  }

  // Log-sums over the cells of tables, by values where these are in range.
  Lanes total_of_table() {
    for (int64_t i = 0; i < kernel->all_entries; ++i) values[i] = exp_of<Work>(logs[i]);
    const Lanes total = total_of<Values<Work>>(values.data());
    bool fits = true;
    for (int64_t l = 0; l < live; ++l) fits &= lane_of(total, l) >= kFaint<Work>;
    return fits ? log_of<Work>(total) + peaks() : total_of<Logs<Work>>(logs.data());
  }

  // The peaks that tables as they are laid out lack.
  Lanes peaks() const {
    const Real* from = p.template at<const Real>(kernel->peaks) + (kernel->values_item ? item * kernel->tables : 0);
    alignas(64) Work own[kLanes] = {};
    for (int64_t l = 0; l < live; ++l) own[l] = Work(from[p.table_of(*kernel, rows[l])]);
    return lane_at(own);
  }

  template <typename S> Lanes total_of(const Lanes* in) {
    Lanes total = S::zero();
    if (kernel->is_automaton) {
      Lanes none = {}, *ends = spare.data();
      run_forward<S>(in, kernel->slots, none, 1);
      const Lanes peak = accept<S>(ends);
      const Lanes* last = forward.data() + kernel->slots * kernel->states;
      for (int64_t q = 0; q < kernel->states; ++q) total = S::add(total, S::times(last[q], ends[q]));
      return total + peak;
    }
    answer_table<S>(in);
    const int64_t first = p.template at<const int64_t>(kernel->sizes)[0];
    for (int64_t x = 0; x < first; ++x) total = S::add(total, S::times(out[x], in[x]));
    return std::is_same_v<S, Maxima<Work>> ? total + peaks() : total;
  }
};

}  // namespace
