// Maxima in models of binary variables, with one number for each message while they are swept.
//
// A message (m(0), m(1)) whose maximum is zero is held as its log-odds h = m(1) - m(0), from which it is
// (min(0, -h), min(0, h)) again without rounding: half of the numbers to read and write, and no peaks to
// find. Damping mixes log-odds as it mixes the logs of states. All that is summed is summed as in sweep.h,
// to the last digit, because messages that do not converge go other ways after any rounding.

#pragma once

#include "pairs.h"

namespace {

// Whether log-odds hold all messages of a model: one class of two states, maxima, no hard zero in a
// message, plain counting numbers, and no factor whose variables have lost states.
template <typename Real> bool held_as_odds(const Propagation<Real>& p) {
  const Model& model = p.model;
  if (p.temperature > 0 || model.vanishing || model.shares || model.class_count != 1) return false;
  if (p.classes[0].states != 2 || p.classes[0].edge_step != 1) return false;
  return std::none_of(p.kernels, p.kernels + model.kernel_count, [](const KernelRecord& k) { return k.left != 0; });
}

// The log-messages of both states.
template <typename Number> Number off(Number odds) { return odds > 0 ? -odds : Number{}; }
template <typename Number> Number on(Number odds) { return odds < 0 ? odds : Number{}; }

// The two numbers at each of so many places as a vector has lanes: those of both states of a variable.
template <typename Real>
void gather_pairs(const Real* from, const int32_t* places, Lane<Real>& first, Lane<Real>& second) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<Real, float>) {
    // A pair is read as one number of eight bytes, in half as many steps.
    const __m256i* at = reinterpret_cast<const __m256i*>(places);
    const __m512 low = _mm512_castpd_ps(_mm512_i32gather_pd(_mm256_loadu_si256(at), from, 4));
    const __m512 high = _mm512_castpd_ps(_mm512_i32gather_pd(_mm256_loadu_si256(at + 1), from, 4));
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    first = (Lane<float>)_mm512_permutex2var_ps(low, even, high);
    second = (Lane<float>)_mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high);
    return;
  }
#endif
  first = gathered(from, places, lanes<Real>()), second = gathered(from + 1, places, lanes<Real>());
}

// One thread's work on the factors of one item.
template <typename Real>
struct OddsWorker : Worker<Real, Real> {
  using Base = Worker<Real, Real>;
  using Lanes = Lane<Real>;
  using Slot = typename Base::Slot;
  using Base::kLanes, Base::kernel, Base::live, Base::rows, Base::p, Base::messages, Base::beliefs;
  using Base::logs, Base::out;
  Aligned<Real> held;  // the messages of the lanes by slots, as they were before

  OddsWorker(const Propagation<Real>& given, const KernelRecord& of, int64_t item_, Real* odds, const Real* sums)
      : Base(given, of, item_, odds, sums) {
    held.resize(of.slots);
  }

  // Whether all lanes are in use by variables whose messages stand in a row.
  bool in_row(const Slot& slot) const {
    const int64_t first = rows[0], last = rows[kLanes - 1];
    return live == kLanes && last - first == kLanes - 1 && slot.edges[first] >= 0 &&
           slot.edges[last] - slot.edges[first] == kLanes - 1;
  }

  void load(int64_t s) {
    const Slot slot = Base::slot_of(s);
    Lanes* in = logs.data() + slot.entry;
    if (in_row(slot)) {
      held[s] = ::load(messages + slot.edges[rows[0]], kLanes);
      Lanes none, one;
      gather_pairs(beliefs, slot.variables + rows[0], none, one);
      const Lanes odds = (one - on(held[s])) - (none - off(held[s]));
      in[0] = off(odds), in[1] = on(odds);
      return;
    }
    // Lane by lane, where a variable is settled or lanes are not in use, which send zeros.
    alignas(kBytes) Real none[kLanes] = {}, one[kLanes] = {}, before[kLanes] = {};
    for (int64_t l = 0; l < live; ++l) {
      const int64_t f = rows[l], e = slot.edges[f];
      if (e < 0) {
        const int64_t state = p.template at<const int32_t>(kernel->settled)[
            this->item * kernel->settled_item + s * kernel->factors + f];
        none[l] = state == 1 ? kNever<Real> : Real(0), one[l] = state == 0 ? kNever<Real> : Real(0);
        continue;
      }
      before[l] = messages[e];
      const Real* sums = beliefs + slot.variables[f];
      const Real odds = (sums[1] - on(before[l])) - (sums[0] - off(before[l]));
      none[l] = off(odds), one[l] = on(odds);
    }
    in[0] = Base::lane_at(none), in[1] = Base::lane_at(one), held[s] = Base::lane_at(before);
  }

  // Answers of tables of three variables, whose impossible cells are passed over where all factors share one.
  void answer_three() {
    const Lanes* in = logs.data();
    const Real* shared = kernel->tables > 1 ? nullptr :
        p.template at<const Real>(kernel->values) + this->item * kernel->values_item;
    Lanes sent[6];
    for (Lanes& each : sent) each = all<Real>(kNever<Real>);
#pragma GCC unroll 8
    for (int64_t number = 0; number < 8; ++number) {
      if (shared && shared[number] == kNever<Real>) continue;
      const int64_t x = number >> 2, y = 2 + (number >> 1 & 1), z = 4 + (number & 1);
      const Lanes value = Base::value_cell(number);
      const Lanes first = value + in[y] + in[z], rest = value + in[x], second = rest + in[z], third = rest + in[y];
      sent[x] = first > sent[x] ? first : sent[x];
      sent[y] = second > sent[y] ? second : sent[y];
      sent[z] = third > sent[z] ? third : sent[z];
    }
    for (int64_t i = 0; i < 6; ++i) out[i] = sent[i];
  }

  // Writes a slot's messages; returns the largest change of a lane that is in use.
  Real store(int64_t s, Real keep) {
    const Slot slot = Base::slot_of(s);
    const Lanes* sent = out.data() + slot.entry;
    const Lanes most = all<Real>(p.model.bounded ? -kNever<Real> : Real(-p.lowest)), old = held[s];
    // The fresh log-odds, bounded as messages of hard factors are.
    Lanes odds = sent[1] - sent[0];
    odds = odds < most ? odds : most;
    odds = odds > -most ? odds : -most;
    // The larger of the changes of both states, as `Worker::change_of` has them. The state of the maximum is
    // the same before and after, or both states change.
    const Lanes least = all<Real>(Real(p.seen)), one = all<Real>(1);
    Lanes size = odds < Real(0) ? -odds : odds, before = old < Real(0) ? -old : old;
    size = size < least ? size : least, before = before < least ? before : least;
    const Lanes gap = (size > before ? size - before : before - size) / (size > one ? size : one);
    const Lanes turned = size > one ? one : size;
    const Lanes change = odds * old < Real(0) ? (turned > before ? turned : before) : gap;
    // Damped, and written to all lanes at once where these stand in a row.
    if (keep > 0) odds = (1 - keep) * odds + keep * old;
    if (in_row(slot)) {
      ::store(messages + slot.edges[rows[0]], odds, kLanes);
      return largest_lane(change);
    }
    Real largest = 0;
    for (int64_t l = 0; l < live; ++l) {
      if (slot.edges[rows[l]] < 0) continue;
      messages[slot.edges[rows[l]]] = Base::lane_of(odds, l);
      largest = std::max(largest, Base::lane_of(change, l));
    }
    return largest;
  }

  Real update(const int32_t* list, int64_t number, int64_t count, const Update& how) {
    this->begin(list, number, count);
    for (int64_t s = 0; s < kernel->slots; ++s) load(s);
    if (kernel->is_automaton || kernel->slots != 3) this->template answer<Maxima<Real>>(logs.data());
    else answer_three();
    Real most = 0;
    for (int64_t s = 0; s < kernel->slots; ++s) most = std::max(most, store(s, Real(how.keep)));
    return most;
  }
};

// The beliefs of all variables, whose messages are log-odds.
template <typename Real>
void gather_odds(const Propagation<Real>& p, int64_t item, const Real* odds, Real* beliefs, int threads) {
  const Model& model = p.model;
  const Real* unary = p.template at<const Real>(model.unary) + item * model.unary_item;
  const int64_t* starts = p.template at<const int64_t>(model.incident_starts);
  const int32_t* incident = p.template at<const int32_t>(model.incident);
  by_items(model.variables, threads, [&](int64_t first, int64_t last) {
    for (int64_t v = first; v < last; ++v) {
      Real none = unary[2 * v], one = unary[2 * v + 1];
      for (int64_t i = starts[v]; i < starts[v + 1]; ++i) {
        const Real message = odds[incident[i]];
        none += off(message), one += on(message);
      }
      beliefs[2 * v] = none, beliefs[2 * v + 1] = one;
    }
  });
}

}  // namespace
