// Messages of tables of two variables of many states: a table is a matrix M, and both directions are taken in one
// pass over it,
//   sent to row r     u_r = sum_c M_rc b_c
//   sent to column c  v_c = sum_r M_rc a_r
// where a and b are what arrives, exp(cavity / t); maxima of sums of logs take the place of sums of products. Lanes
// are states, so that a factor's table is read from memory once, in order, and a set of a few factors costs no more
// than these. Where all factors share a table, eight of them are multiplied by it at a time.
//
// The equations are those of sweep.h, which has the updates of other factors.

#pragma once

#include "../panels.h"
#include "sweep.h"

namespace {

// The number of each lane.
template <typename Real> struct LaneNumbers {
  Real numbers[lanes<Real>()];
  constexpr LaneNumbers() : numbers() {
    for (int64_t l = 0; l < lanes<Real>(); ++l) numbers[l] = Real(l);
  }
};
template <typename Real> constexpr LaneNumbers<Real> kLaneNumbers{};

// The first numbers of a vector, and another one in all lanes beyond.
template <typename Real> inline Lane<Real> first_of(Lane<Real> lane, int64_t count, Real other) {
  if (count >= lanes<Real>()) return lane;
  return load(kLaneNumbers<Real>.numbers, lanes<Real>()) < Real(count) ? lane : all<Real>(other);
}

#if defined(__AVX512F__)
inline float largest_lane(Lane<float> lane) { return _mm512_reduce_max_ps((__m512)lane); }
inline double largest_lane(Lane<double> lane) { return _mm512_reduce_max_pd((__m512d)lane); }
inline float sum_of(Lane<float> lane) { return _mm512_reduce_add_ps((__m512)lane); }
inline double sum_of(Lane<double> lane) { return _mm512_reduce_add_pd((__m512d)lane); }
// The numbers of even or of odd lanes, of one vector after the other.
inline Lane<float> half_of(Lane<float> a, Lane<float> b, int odd) {
  const __m512i lane = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return (Lane<float>)_mm512_permutex2var_ps((__m512)a, _mm512_add_epi32(lane, _mm512_set1_epi32(odd)), (__m512)b);
}
inline Lane<double> half_of(Lane<double> a, Lane<double> b, int odd) {
  const __m512i lane = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
  return (Lane<double>)_mm512_permutex2var_pd((__m512d)a, _mm512_add_epi64(lane, _mm512_set1_epi64(odd)), (__m512d)b);
}
#else
template <typename Lanes> inline auto largest_lane(Lanes lane) {
  typedef std::decay_t<decltype(lane[0])> Real;
  Real top = lane[0];
  for (int64_t l = 1; l < lanes<Real>(); ++l) top = lane[l] > top ? lane[l] : top;
  return top;
}
template <typename Lanes> inline auto sum_of(Lanes lane) {
  typedef std::decay_t<decltype(lane[0])> Real;
  Real sum = lane[0];
  for (int64_t l = 1; l < lanes<Real>(); ++l) sum += lane[l];
  return sum;
}
#endif

// The sums or maxima of the lanes of as many vectors as one has lanes, as the lanes of one vector.
template <typename Real, bool best> inline Lane<Real> folded(Lane<Real>* rows) {
#if defined(__AVX512F__)
#pragma GCC unroll 8
  for (int count = int(lanes<Real>()) / 2; count > 0; count /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const Lane<Real> a = half_of(rows[2 * i], rows[2 * i + 1], 0), b = half_of(rows[2 * i], rows[2 * i + 1], 1);
      if constexpr (best) rows[i] = a > b ? a : b;
      else rows[i] = a + b;
    }
  return rows[0];
#else
  alignas(kBytes) Real own[lanes<Real>()];
  for (int64_t i = 0; i < lanes<Real>(); ++i) own[i] = best ? largest_lane(rows[i]) : sum_of(rows[i]);
  return load(own, lanes<Real>());
#endif
}

// How far ahead of products in both directions, which read the tables of all factors in order, these are fetched.
constexpr int64_t kAhead = 4096;

// The matrix of a pair: end 0 are its rows, and end 1 its columns, of which there are as many or more.
struct PairShape {
  bool turned;  // rows are states of the second slot
  int64_t sizes[2];

  explicit PairShape(const int64_t* of) : turned(of[0] > of[1]), sizes{of[turned], of[1 - turned]} {}

  int slot(int end) const { return turned ? 1 - end : end; }
  // The place in the table itself, whose rows are states of the first slot.
  int64_t cell(int64_t r, int64_t c) const { return turned ? c * sizes[0] + r : r * sizes[1] + c; }
  // The first place of the panels for messages to an end, of a table that all factors share.
  template <typename Real> int64_t panels_at(int end) const {
    return end ? panels_of(sizes[0], width<Real>()) * width<Real>() * sizes[1] : 0;
  }
};

template <typename Real>
struct PairWorker {
  using Lanes = Lane<Real>;
  static constexpr int64_t kSide = 8, kLanes = lanes<Real>();  // factors at a time, and states

  const Propagation<Real>& p;
  const KernelRecord& k;
  const PairShape shape;
  int64_t item;
  Real* messages;
  const Real* beliefs;

  // One end of the block's factors.
  struct End {
    const int32_t *edges, *variables;
    const Class* c;
    int64_t states, wide;  // and these with room for whole panels
    Aligned<Real> logs, values, sent;  // (side, wide) what arrives and what is sent
    Real shifts[kSide], reach[kSide];  // what was taken off the logs, and their lowest finite number
  };
  End ends[2];
  std::vector<Real> before;  // messages of an edge whose states do not stand in a row, or terms of a sum
  Aligned<Real> mixed;
  int64_t rows[kSide], live = 0;
  bool ranged[kSide];  // whether values that were sent to rows are in range

  PairWorker(const Propagation<Real>& given, const KernelRecord& of, int64_t item_, Real* messages_,
             const Real* beliefs_)
      : p(given), k(of), shape(p.template at<const int64_t>(of.sizes)), item(item_), messages(messages_),
        beliefs(beliefs_), before(shape.sizes[1]) {
    for (int e = 0; e < 2; ++e) {
      End& end = ends[e];
      const int64_t at = shape.slot(e) * k.factors;
      end.edges = p.template at<const int32_t>(k.edges) + at;
      end.variables = p.template at<const int32_t>(k.variables) + at;
      end.c = p.classes + p.template at<const int32_t>(k.homes)[at];
      end.states = shape.sizes[e];
      end.wide = panels_of(end.states, width<Real>()) * width<Real>();
      const int64_t room = kSide * end.wide / kLanes;
      end.logs.resize(room), end.values.resize(room), end.sent.resize(room);
    }
    mixed.resize(ends[1].wide / kLanes);
  }

  Real* row(Aligned<Real>& of, int e, int64_t i) const {
    return reinterpret_cast<Real*>(of.first) + i * ends[e].wide;
  }

  // Updates the factors `number` to `number + kSide` of a list; null: of the block.
  Real update(const int32_t* list, int64_t number, int64_t count, const Update& how) {
    begin(list, number, count);
    uint8_t sends[2][kSide];
    for (int e = 0; e < 2; ++e)
      for (int64_t i = 0; i < live; ++i)
        sends[e][i] = !how.only || how.only[p.edge_of(*ends[e].c, ends[e].edges[rows[i]])];
    answer(sends);
    Real most = 0;
    for (int e = 0; e < 2; ++e)
      for (int64_t i = 0; i < live; ++i)
        if (sends[e][i]) most = std::max(most, write(e, i, how));
    return most;
  }

  void begin(const int32_t* list, int64_t number, int64_t count) {
    live = std::min(kSide, count - number);
    for (int64_t i = 0; i < live; ++i) rows[i] = list ? list[number + i] : number + i;
  }

  // ---- What arrives.

  // The cavity log-messages at an end, with a maximum of zero, over the temperature; and their values.
  void load_end(int e, int64_t i) {
    End& end = ends[e];
    const int64_t f = rows[i];
    const Real *message = in_a_row(end, messages + end.edges[f]), *sums = beliefs + end.variables[f];
    Real *logs = row(end.logs, e, i), *values = row(end.values, e, i);
    Lanes top = all<Real>(kNever<Real>), least = {};
    by_lanes<Real>(end.states, [&](int64_t x, auto live_) {
      const Lanes sum = load(sums + x, live_), old = load(message + x, live_);
      Lanes rest = sum - old;
      if (p.model.vanishing) {
        // A hard zero of the message itself is none of the others, and was not added.
        const Lanes none = old > kNever<Real> ? Lanes{} : all<Real>(1);
        const Lanes others = load(sums + p.model.beliefs + x, live_) - none;
        rest = old > kNever<Real> ? rest : sum;
        rest = others > Real(0.5) ? all<Real>(kNever<Real>) : rest;
      }
      rest = first_of<Real>(rest, live_, kNever<Real>);
      top = rest > top ? rest : top;
      store(logs + x, rest, kLanes);
    });
    const Real peak = finite(largest_lane(top));
    const Real scale = p.temperature > 0 ? Real(1.0 / p.temperature) : Real(1);
    for (int64_t x = 0; x < end.states; x += kLanes) {
      const Lanes log = (load(logs + x, kLanes) - peak) * scale;
      const Lanes known = log > kNever<Real> ? log : Lanes{};
      least = known < least ? known : least;
      store(logs + x, log, kLanes);
      if (p.temperature > 0) store(values + x, exp_of<Real>(log), kLanes);
    }
    end.shifts[i] = peak;
    end.reach[i] = -largest_lane(-least);
  }

  const Real* in_a_row(const End& end, const Real* message) {
    if (end.c->state_step == 1) return message;
    for (int64_t x = 0; x < end.states; ++x) before[x] = message[x * end.c->state_step];
    return before.data();
  }

  // ---- What is sent, as logs.

  void answer(const uint8_t sends[2][kSide]) {
    for (int e = 0; e < 2; ++e)
      for (int64_t i = 0; i < live; ++i)
        if (sends[1 - e][i]) load_end(e, i);
    if (p.temperature > 0) multiply_all<false>(sends);
    else multiply_all<true>(sends);
    if (!(p.temperature > 0)) return;
    for (int e = 0; e < 2; ++e)
      for (int64_t i = 0; i < live; ++i)
        if (sends[e][i]) take_logs(e, i);
  }

  template <bool best> void multiply_all(const uint8_t sends[2][kSide]) {
    const Real* from = p.template at<const Real>(k.values) + item * k.values_item;
    const auto arrived = [&](int e, int64_t i) {
      return row(best ? ends[e].logs : ends[e].values, e, i);
    };
    // One table for all: what arrives at the other ends of all factors, by its panels for messages to an end.
    if (k.tables == 1) {
      for (int e = 0; e < 2; ++e) {
        if (std::none_of(sends[e], sends[e] + live, [](uint8_t one) { return one; })) continue;
        const Real* panel = from + shape.panels_at<Real>(e);
        const int64_t depth = ends[1 - e].states;
        for (int64_t x = 0; x < ends[e].wide; x += width<Real>(), panel += depth * width<Real>())
          multiply<Real, best>(live, arrived(1 - e, 0), ends[1 - e].wide, panel, depth,
                               row(ends[e].sent, e, 0) + x, ends[e].wide);
      }
      return;
    }
    // A table for each, in the directions that are sent.
    for (int64_t i = 0; i < live; ++i) {
      const Real* matrix = from + p.table_of(k, rows[i]) * k.cells;
      const Real *a = arrived(0, i), *b = arrived(1, i);
      Real *u = row(ends[0].sent, 0, i), *v = row(ends[1].sent, 1, i);
      if (sends[0][i] && sends[1][i]) multiply_one<best, true, true>(matrix, a, b, u, v);
      else if (sends[0][i]) multiply_one<best, true, false>(matrix, a, b, u, v);
      else if (sends[1][i]) multiply_one<best, false, true>(matrix, a, b, u, v);
    }
  }

  template <bool best> static Lanes join(Lanes sum, Lanes table, Lanes other) {
    if constexpr (best) {
      const Lanes one = table + other;
      return one > sum ? one : sum;
    } else {
      return sum + table * other;
    }
  }

  // A matrix by vectors from both sides, as many rows at a time as a vector has lanes: what is sent to these is
  // added up lane by lane, and to columns in sums that do not wait for one another.
  template <bool best, bool to_rows, bool to_columns>
  void multiply_one(const Real* matrix, const Real* a, const Real* b, Real* u, Real* v) const {
    const int64_t rows_ = shape.sizes[0], columns = shape.sizes[1];
    const Lanes none = all<Real>(best ? kNever<Real> : Real(0));
    if (to_columns)
      for (int64_t c = 0; c < columns; c += kLanes) store(v + c, none, kLanes);
    const auto some = [&](int64_t r, auto count_of) {
      constexpr int count = decltype(count_of)::value, apart = count < 4 ? 1 : 4;
      Lanes sums[count];
      for (auto& sum : sums) sum = none;
      by_lanes<Real>(columns, [&](int64_t c, auto live_) {
        Lanes other, back[apart];
        if (to_rows) other = load(b + c, kLanes);
        for (auto& sum : back) sum = none;
        if (to_columns) back[0] = load(v + c, kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < count; ++i) {
          const Real* from = matrix + (r + i) * columns + c;
          if (to_rows && to_columns) __builtin_prefetch(from + kAhead / sizeof(Real));
          const Lanes table = load(from, live_);
          if (to_rows) sums[i] = join<best>(sums[i], table, other);
          if (to_columns) back[i % apart] = join<best>(back[i % apart], table, all<Real>(a[r + i]));
        }
        if (!to_columns) return;
        for (int i = 1; i < apart; ++i) back[0] = best ? (back[i] > back[0] ? back[i] : back[0]) : back[0] + back[i];
        store(v + c, back[0], kLanes);
      });
      if (!to_rows) return;
      if constexpr (count == kLanes) store(u + r, folded<Real, best>(sums), kLanes);
      else for (int i = 0; i < count; ++i) u[r + i] = best ? largest_lane(sums[i]) : sum_of(sums[i]);
    };
    int64_t r = 0;
    for (; r + kLanes <= rows_; r += kLanes) some(r, std::integral_constant<int, kLanes>());
    for (; r + 4 <= rows_; r += 4) some(r, std::integral_constant<int, 4>());
    for (; r < rows_; ++r) some(r, std::integral_constant<int, 1>());
  }

  // Turns values that are sent into logs, computed again in logs where they may have left the range.
  void take_logs(int e, int64_t i) {
    Real* sent = row(ends[e].sent, e, i);
    const Real scale = Real(p.temperature);
    const bool fits = in_range(e, i);
    if (!e) ranged[i] = fits;
    if (!fits) {
      answer_in_logs(e, i, sent);
      for (int64_t x = 0; x < ends[e].states; ++x) sent[x] *= scale;
      return;
    }
    for (int64_t x = 0; x < ends[e].states; x += kLanes)
      store(sent + x, log_of<Real>(load(sent + x, kLanes)) * scale, kLanes);
  }

  // Where no product can be faint, a zero is a hard one.
  bool in_range(int e, int64_t i) {
    if (of_table(k.lows, i) + ends[1 - e].reach[i] >= kFaintLog<Real>) return true;
    const Real* sent = row(ends[e].sent, e, i);
    return *std::min_element(sent, sent + ends[e].states) >= kFaint<Real>;
  }

  Real of_table(int64_t numbers, int64_t i) const {
    const int64_t first = k.values_item ? item * k.tables : 0;
    return p.template at<const Real>(numbers)[first + p.table_of(k, rows[i])];
  }

  // Log-sums over the states of the other end, by the log-values themselves.
  void answer_in_logs(int e, int64_t i, Real* sent) {
    const Real *logs = p.logs_of(k, item, rows[i]), *arrived = row(ends[1 - e].logs, 1 - e, i);
    const int64_t others = ends[1 - e].states;
    std::vector<Real>& terms = before;
    for (int64_t x = 0; x < ends[e].states; ++x) {
      for (int64_t y = 0; y < others; ++y)
        terms[y] = logs[e ? shape.cell(y, x) : shape.cell(x, y)] + arrived[y];
      sent[x] = log_sum(terms.data(), others);
    }
  }

  static Real log_sum(const Real* terms, int64_t count) {
    const Real peak = largest<Real>(terms, count);
    if (!(peak > kNever<Real>)) return peak;
    Lanes sum = {};
    by_lanes<Real>(count, [&](int64_t y, auto live_) {
      sum += first_of<Real>(exp_of<Real>(load(terms + y, live_) - peak), live_, 0);
    });
    return peak + std::log(sum_of(sum));
  }

  // ---- What is written.

  // Writes the message of an edge, or its change; returns the change.
  Real write(int e, int64_t i, const Update& how) {
    End& end = ends[e];
    const int64_t place = end.edges[rows[i]], step = end.c->state_step;
    const Real *sent = row(end.sent, e, i), *old = in_a_row(end, messages + place);
    // The largest log, which is taken off all.
    Lanes top = all<Real>(kNever<Real>), change = {}, mixed_top = top;
    by_lanes<Real>(end.states, [&](int64_t x, auto live_) {
      const Lanes one = first_of<Real>(load(sent + x, kLanes), live_, kNever<Real>);
      top = one > top ? one : top;
    });
    const Real peak = finite(largest_lane(top));
    const Lanes floor = all<Real>(Real(p.model.bounded ? kNever<double> : p.lowest));
    const Lanes least = all<Real>(Real(-p.seen));
    // Clamped logs, their changes, and means with the old ones; written at once unless a mean is to be shifted,
    // states do not stand in a row, or only the change is asked for.
    Real* result = step == 1 && !(how.keep > 0) ? messages + place : reinterpret_cast<Real*>(mixed.first);
    if (how.deltas) result = reinterpret_cast<Real*>(mixed.first);
    by_lanes<Real>(end.states, [&](int64_t x, auto live_) {
      const Lanes before_ = load(old + x, live_);
      Lanes fresh = load(sent + x, kLanes) - peak;
      const Lanes raised = fresh > floor ? fresh : floor;
      fresh = fresh > kNever<Real> ? raised : fresh;
      const Lanes n = fresh > least ? fresh : least, o = before_ > least ? before_ : least;
      const Lanes gap = n > o ? n - o : o - n, size = -n > Real(1) ? -n : all<Real>(1);
      const Lanes relative = first_of<Real>(gap / size, live_, 0);
      change = relative > change ? relative : change;
      const Lanes value = mix(fresh, before_, how);
      const Lanes counted = first_of<Real>(value, live_, kNever<Real>);
      mixed_top = counted > mixed_top ? counted : mixed_top;
      store(result + x, value, live_);
    });
    const Real largest = largest_lane(change);
    if (how.deltas) {
      how.deltas[p.edge_of(*end.c, place)] = largest;
      return largest;
    }
    // A mean is shifted to a maximum of zero again.
    const Real shift = how.keep > 0 ? finite(largest_lane(mixed_top)) : Real(0);
    if (result != messages + place)
      for (int64_t x = 0; x < end.states; ++x) messages[place + x * step] = result[x] - shift;
    return largest;
  }

  static Lanes mix(Lanes fresh, Lanes old, const Update& how) {
    const Real keep = Real(how.keep);
    if (!(keep > 0)) return fresh;
    if (!how.in_values) return (1 - keep) * fresh + keep * old;
    const Lanes a = fresh + Real(std::log1p(-how.keep)), b = old + Real(std::log(how.keep)), top = a > b ? a : b;
    const Lanes mean = top + log_of<Real>(exp_of<Real>(a - top) + exp_of<Real>(b - top));
    return fresh > kNever<Real> ? mean : fresh;
  }

  // ---- The sum of the factors' log Z times counting numbers; -inf terms are left out and noted.
  double partition(int64_t number, int64_t count, bool& dead) {
    begin(nullptr, number, count);
    // Messages to the rows, and what arrives there, have all of it.
    uint8_t sends[2][kSide] = {};
    std::fill(sends[0], sends[0] + live, 1);
    for (int64_t i = 0; i < live; ++i) load_end(0, i);
    answer(sends);
    const Real* weights = p.template at<const Real>(k.weights);
    double sum = 0;
    for (int64_t i = 0; i < live; ++i) {
      const bool sums = p.temperature > 0, raw = sums && !ranged[i];
      const Real scale = sums ? Real(p.temperature) : Real(1);
      const Real *logs = row(ends[0].logs, 0, i), *sent = row(ends[0].sent, 0, i);
      for (int64_t x = 0; x < ends[0].states; ++x) before[x] = logs[x] + sent[x] / scale;
      const int64_t count_ = ends[0].states;
      double log = double(sums ? log_sum(before.data(), count_) : largest<Real>(before.data(), count_));
      if (!raw) log += double(of_table(k.peaks, i));
      log = log * double(scale) + double(ends[0].shifts[i]) + double(ends[1].shifts[i]);
      if (weights) log *= double(weights[rows[i]]);
      if (log == kNever<double>) dead = true;
      else sum += log;
    }
    return sum;
  }
};

}  // namespace
