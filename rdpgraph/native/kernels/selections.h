// The certain states of a row of scores and a systematic sample of the rest, in O(N): no states are
// sorted but the K that may be certain.
//
// State i of the rest R, with m certain states above it, is kept with probability pi_i = q_i / s,
// where s = sum_R q / (K - m): it is when one of the targets (u + j) s, j = 0 .. K - m - 1, lies in
// its interval of the running sums of q. The sums run through buckets of nearly equal scores, in
// falling order, and through the states of a bucket in their own order. So each bucket has a running
// sum of its own, and one pass over the states in their own order meets all targets.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "logs.h"

namespace {

// Buckets of distances from the largest score: 256 in each octave from 2^-8 to 2^10 nats.
constexpr int32_t kLeastExponent = 127 - 8, kOctaves = 18, kBuckets = kOctaves * 256 + 1;

inline int32_t bucket_of(float distance) {
  int32_t bits;
  std::memcpy(&bits, &distance, sizeof(bits));
  const int32_t place = (bits >> 15) - kLeastExponent * 256 + 1;
  return std::min(std::max(place, 0), kBuckets - 1);
}

template <typename Real> class Systematic {
 public:
  // `top` of `keep` states are certain in any case, and others from a `sure` probability on;
  // `smooth` is the share of the steps of random order up to which a row's own order is the sample's.
  Systematic(int64_t states, int64_t keep, int64_t top, int64_t count, double sure, double smooth)
      : states_(states), keep_(keep), top_(top), count_(count), sure_(sure), smooth_(smooth),
        bucket_(states), masses_(states + lanes<double>()), ends_(kBuckets),
        buckets_(kBuckets) {}

  // One row: its scores, a uniform number for each sample (`hop` apart), and for each sample K
  // states and their log-weights (`stride` apart).
  void sample(const Real* scores, const double* uniforms, int64_t hop, int64_t* chosen,
              Real* weights, int64_t stride) {
    find_largest(scores);
    // Masses are relative to the K-th largest score, which no state of the rest exceeds by far.
    const double shift = finite(scores[order_[keep_ - 1]]);
    const int64_t certain = count_certain(scores, is_more_ ? weigh(scores, shift) : 0.0);
    for (int64_t c = 0; c < count_; ++c)
      for (int64_t j = 0; j < keep_; ++j) {
        const int64_t state = order_[j < certain ? j : keep_ - 1];
        chosen[c * stride + j] = state;
        weights[c * stride + j] = j < certain && scores[state] > kNever<Real> ? 0 : kNever<Real>;
      }
    if (!is_more_ || certain == keep_) return;
    for (int64_t j = certain; j < keep_; ++j)
      masses_[order_[j]] = std::exp(double(scores[order_[j]]) - shift);
    sort_into_buckets(scores, scores[order_[certain]]);
    aim(uniforms, hop, certain);
    // One pass meets all targets. The log-weight is -log pi_i = log s - log q_i.
    const double base = std::log(spacing_) + shift;
    for (int64_t i = 0; i < states_; ++i) {
      Bucket& here = buckets_[bucket_[i]];
      here.sum += masses_[i];
      while (here.sum > here.due) {
        const Target& met = targets_[here.next];
        const int64_t at = met.sample * stride + certain + met.entry;
        chosen[at] = i;
        weights[at] = Real(base - double(scores[i]));
        here.due = ++here.next < here.end ? targets_[here.next].mass : kFar;
      }
    }
  }

 private:
  static constexpr double kFar = std::numeric_limits<double>::infinity();
  struct Bucket {
    double sum = 0, due = kFar;  // the running sum, and the target that it reaches next
    int64_t next = 0, end = 0;   // its targets
  };
  struct Target {
    double mass;  // along the sum of all buckets, and then along that of its own
    int64_t sample, entry;
  };

  int64_t states_, keep_, top_, count_;
  double sure_, smooth_, spacing_ = 0;
  bool is_more_ = false;         // whether a possible state is not among the K largest
  std::vector<int32_t> bucket_;  // of each state
  std::vector<double> masses_;
  std::vector<int64_t> order_, found_, ends_;
  std::vector<Bucket> buckets_;
  std::vector<Target> targets_;

  // The K largest scores in falling order: of the first buckets that hold K states, sorted.
  void find_largest(const Real* scores) {
    const Real top = finite(largest(scores, states_));
    std::fill(ends_.begin(), ends_.end(), 0);
    int64_t possible = 0;
    for (int64_t i = 0; i < states_; ++i) {
      bucket_[i] = bucket_of(float(top - scores[i]));
      possible += scores[i] > kNever<Real>;
    }
    for (int64_t i = 0; i < states_; ++i) ++ends_[bucket_[i]];
    int32_t last = 0;
    for (int64_t held = ends_[0]; held < keep_;) held += ends_[++last];
    found_.clear();
    for (int64_t i = 0; i < states_; ++i)
      if (bucket_[i] <= last) found_.push_back(i);
    const auto before = [&](int64_t a, int64_t b) {
      return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
    };
    if (int64_t(found_.size()) > keep_)
      std::nth_element(found_.begin(), found_.begin() + keep_, found_.end(), before);
    order_.assign(found_.begin(), found_.begin() + keep_);
    std::sort(order_.begin(), order_.end(), before);
    is_more_ = possible > keep_;
  }

  // Fills the masses of all states but the K largest, whose are zero, and returns their sum.
  double weigh(const Real* scores, double shift) {
    for (int64_t i = 0; i < states_; ++i) masses_[i] = double(scores[i]) - shift;
    for (int64_t i = 0; i < states_; i += lanes<double>()) {
      Lane<double> lane;
      std::memcpy(&lane, &masses_[i], sizeof(lane));
      lane = exp_of<double>(lane);
      std::memcpy(&masses_[i], &lane, sizeof(lane));
    }
    for (const int64_t state : order_) masses_[state] = 0;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < states_; ++i) sum += masses_[i];
    return sum;
  }

  // m: state m of the K largest is certain if (K - m) q_m reaches q_m + q_{m+1} + ... of all states.
  // That sum is relative to q_m: S_m = 1 + S_{m+1} q_{m+1} / q_m.
  int64_t count_certain(const Real* scores, double beyond) const {
    double sum = beyond, below = scores[order_[keep_ - 1]];
    int64_t certain = keep_;
    for (int64_t j = keep_ - 1; j >= 0; --j) {
      const double score = scores[order_[j]];
      const bool is_possible = score > kNever<double>;
      if (is_possible) sum = 1 + (sum > 0 ? sum * std::exp(below - score) : 0);
      if (!is_possible || !(double(keep_ - j) > sum * sure_)) certain = j;
      below = score;
    }
    certain = std::max(certain, top_);
    return is_more_ ? std::min(certain, keep_ - 1) : certain;
  }

  // Puts the rest into buckets by their distance from its largest score, or into one where the
  // states' own order is smooth: where the ranks of neighbours differ little.
  void sort_into_buckets(const Real* scores, Real top) {
    std::fill(ends_.begin(), ends_.end(), 0);
    for (int64_t i = 0; i < states_; ++i) bucket_[i] = bucket_of(float(top - scores[i]));
    for (int64_t i = 0; i < states_; ++i) ends_[bucket_[i]] += masses_[i] > 0;
    int64_t rank = 0;
    for (int64_t& end : ends_) rank += std::exchange(end, rank);
    int64_t steps = 0, previous = -1;
    for (int64_t i = 0; i < states_; ++i) {
      if (!(masses_[i] > 0)) continue;
      const int64_t mine = ends_[bucket_[i]]++;
      if (previous >= 0) steps += std::abs(mine - previous);
      previous = mine;
    }
    // In random order n ranks have a mean step of (n + 1) / 3.
    const double n = double(rank);
    if (double(steps) <= smooth_ * (n - 1) * (n + 1) / 3)
      std::fill(bucket_.begin(), bucket_.end(), 0);
  }

  // Places the targets of all samples along the sum of the buckets, and tells each bucket its own.
  void aim(const double* uniforms, int64_t hop, int64_t certain) {
    for (Bucket& one : buckets_) one = Bucket{};
    for (int64_t i = 0; i < states_; ++i) buckets_[bucket_[i]].sum += masses_[i];
    double total = 0;
    for (const Bucket& one : buckets_) total += one.sum;
    spacing_ = total / double(keep_ - certain);
    targets_.clear();
    for (int64_t c = 0; c < count_; ++c)
      for (int64_t j = 0; j < keep_ - certain; ++j)
        targets_.push_back({(uniforms[c * hop] + double(j)) * spacing_, c, j});
    if (count_ > 1)
      std::sort(targets_.begin(), targets_.end(),
                [](const Target& a, const Target& b) { return a.mass < b.mass; });
    int64_t next = 0, filled = 0;
    for (int64_t b = 0; b < kBuckets; ++b)
      if (buckets_[b].sum > 0) filled = b;
    double start = 0;
    for (int64_t b = 0; b <= filled; ++b) {
      Bucket& one = buckets_[b];
      // Rounding may carry a target to the end of its bucket, which no running sum exceeds.
      const double mass = std::exchange(one.sum, 0.0), most = std::nextafter(mass, 0.0);
      one.next = next;
      while (mass > 0 && next < int64_t(targets_.size()) &&
             (targets_[next].mass < start + mass || b == filled)) {
        targets_[next].mass = std::min(targets_[next].mass - start, most);
        ++next;
      }
      one.end = next;
      if (one.next < next) one.due = targets_[one.next].mass;
      start += mass;
    }
  }
};

}  // namespace
