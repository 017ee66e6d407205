// Flooding in models of binary variables and pairs, with one number for each message.
//
// A message is its log-odds h = log m(1) / m(0). A table (a b; x y) turns the cavity log-odds h of its
// second variable into the message
//   log (x + y e^h) - log (a + b e^h)
// to its first, and (a x; b y) the other way round; maxima of logs take the place of sums. A message is
// read by its own factor alone, after beliefs were summed, so that a sweep works in place. Per message
// it holds one number, the variable that gets it, and its place among those of the variable.

#pragma once

#include "../logs.h"
#include "../threads.h"
#include "records.h"

namespace {

// The numbers at some places, 0 in lanes beyond their count.
template <typename Real>
inline Lane<Real> gathered(const Real* from, const int32_t* places, int64_t count) {
#if defined(__AVX512F__)
  if (count == lanes<Real>()) {
    if constexpr (std::is_same_v<Real, float>)
      return (Lane<Real>)_mm512_i32gather_ps(_mm512_loadu_si512(places), from, 4);
    else
      return (Lane<Real>)_mm512_i32gather_pd(_mm256_loadu_si256((const __m256i*)places), from, 8);
  }
#endif
  alignas(kBytes) Real own[lanes<Real>()] = {};
  for (int64_t l = 0; l < count; ++l) own[l] = from[places[l]];
  Lane<Real> lane;
  std::memcpy(&lane, own, sizeof(lane));
  return lane;
}

// The places of the messages that each variable gets, in ascending order.
void by_variable(const int32_t* variable, int64_t edges, int64_t variables, int32_t* starts,
                 int32_t* incident) {
  std::fill(starts, starts + variables + 1, 0);
  for (int64_t e = 0; e < edges; ++e) ++starts[variable[e] + 1];
  for (int64_t v = 0; v < variables; ++v) starts[v + 1] += starts[v];
  for (int64_t e = 0; e < edges; ++e) incident[starts[variable[e]]++] = int32_t(e);
  for (int64_t v = variables; v > 0; --v) starts[v] = starts[v - 1];
  starts[0] = 0;
}

template <typename Real>
struct Flooding {
  const OddsModel& model;

  template <typename T> static T* at(int64_t address) { return reinterpret_cast<T*>(address); }

  // Messages to one end, given cavity odds at the other.
  Lane<Real> message(Lane<Real> a, Lane<Real> b, Lane<Real> x, Lane<Real> y, Lane<Real> odds) const {
    if (model.maximal) {
      const Lane<Real> one = y + odds, none = b + odds;
      return (x > one ? x : one) - (a > none ? a : none);
    }
    const Lane<Real> value = exp_of<Real>(odds);
    return log_of<Real>((x + y * value) / (a + b * value));
  }

  // Updates the messages of the factors first to last of a group; returns the largest change.
  Real update(const OddsGroup& group, const Real* values, const Real* beliefs, Real* odds, Real keep,
              int64_t first, int64_t last) const {
    const int32_t* variable = at<const int32_t>(model.variable);
    Lane<Real> most = {};
    by_lanes<Real>(last - first, [&](int64_t begin, auto live) {
      const int64_t f = first + begin;
      Lane<Real> table[4], cavity[2], old[2];
      for (int64_t c = 0; c < 4; ++c)
        table[c] = group.tables == 1 ? all<Real>(values[c]) : load(values + c * group.tables + f, live);
      Real* sent[2] = {odds + group.first + f, odds + group.second + f};
      const int32_t* ends[2] = {variable + group.first + f, variable + group.second + f};
      for (int end = 0; end < 2; ++end) {
        old[end] = load(sent[end], live);
        cavity[end] = gathered(beliefs, ends[end], live) - old[end];
      }
      Lane<Real> fresh[2] = {message(table[0], table[1], table[2], table[3], cavity[1]),
                             message(table[0], table[2], table[1], table[3], cavity[0])};
      for (int end = 0; end < 2; ++end) {
        const Lane<Real> gap = fresh[end] - old[end], size = fresh[end] < Real(0) ? -fresh[end] : fresh[end];
        Lane<Real> change = (gap < Real(0) ? -gap : gap) / (size > Real(1) ? size : all<Real>(1));
        store(sent[end], keep > 0 ? fresh[end] + keep * (old[end] - fresh[end]) : fresh[end], live);
        if (live < lanes<Real>()) {  // lanes that are not in use do not count
          alignas(kBytes) Real changes[lanes<Real>()] = {};
          store(changes, change, live);
          std::memcpy(&change, changes, sizeof(change));
        }
        most = change > most ? change : most;
      }
    });
    const Real* each = reinterpret_cast<const Real*>(&most);
    return *std::max_element(each, each + lanes<Real>());
  }

  // One sweep of an item; returns the largest change.
  double sweep(int64_t item, Real* beliefs, Real keep, int threads) const {
    Real* odds = at<Real>(model.odds) + item * model.edges;
    const Real* unary = at<const Real>(model.unary) + item * model.unary_item;
    const int32_t *starts = at<const int32_t>(model.starts), *incident = at<const int32_t>(model.incident);
    by_items(model.variables, threads, [&](int64_t a, int64_t b) {
      for (int64_t v = a; v < b; ++v) {
        Real sum = unary[v];
        for (int32_t i = starts[v]; i < starts[v + 1]; ++i) sum += odds[incident[i]];
        beliefs[v] = sum;
      }
    });
    const OddsGroup* groups = at<const OddsGroup>(model.groups);
    double most = 0;
    for (int64_t n = 0; n < model.group_count; ++n) {
      const Real* values = at<const Real>(groups[n].values) + item * groups[n].values_item;
      by_items(groups[n].factors, threads, [&](int64_t a, int64_t b) {
        const double change = update(groups[n], values, beliefs, odds, keep, a, b);
#pragma omp critical
        most = std::max(most, change);
      });
    }
    return most;
  }
};

}  // namespace
