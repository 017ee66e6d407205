// Sums over errors that explain syndromes, by sweeps over kept states, one shot after another.

#pragma once

#include <array>

#include "parity.h"

namespace {

template <int N> using Key = std::array<uint64_t, N>;

// A sweep over kept states for a pass back: each change of the masses, which are products and sums of
// those before it. Chances of what was sampled count as constants, so that gradients are unbiased too.
struct Tape {
  struct Change {
    int64_t column, count, first, place;  // column -1: some stay, and are scaled; their places
  };
  std::vector<Change> changes;
  std::vector<double> reals;    // masses before a flip, and factors of what it adds, or of what stays
  std::vector<int64_t> places;  // partners in a flip, -1: none; sources of what it adds, or that stay

  void begin(int64_t column, size_t count, const double* masses) {
    changes.push_back({column, int64_t(count), int64_t(reals.size()), int64_t(places.size())});
    if (masses) reals.insert(reals.end(), masses, masses + count), places.resize(places.size() + count, -1);
  }
  void pair(size_t i, size_t j) { places[changes.back().place + i] = j; }
  void add(size_t source, double factor) { places.push_back(source), reals.push_back(factor); }

  // Gradients (columns, 2) in the weights, from those in the last masses.
  void back(const double* weights, std::vector<double>& bar, double* grads) const {
    std::vector<double> before;
    for (size_t at = changes.size(); at-- > 0;) {
      const Change& c = changes[at];
      const double* m = reals.data() + c.first;
      const int64_t* other = places.data() + c.place;
      before.assign(c.count, 0.0);
      if (c.column < 0) {
        for (size_t k = 0; k < bar.size(); ++k) before[other[k]] = m[k] * bar[k];
      } else {
        const double q = weights[2 * c.column], odd = weights[2 * c.column + 1];
        double *g = grads + 2 * c.column;
        for (size_t k = c.count; k < bar.size(); ++k) {
          const double x = bar[k] * m[k];
          before[other[k]] = odd * x, g[1] += x * m[other[k]];
        }
        for (int64_t i = 0; i < c.count; ++i) {
          before[i] += q * bar[i], g[0] += bar[i] * m[i];
          if (other[i] >= 0) before[other[i]] += odd * bar[i], g[1] += bar[i] * m[other[i]];
        }
      }
      bar.swap(before);
    }
  }
};

// The states of largest rank: mass times `cost` for each event still to be explained. With a seed the
// others are sampled in proportion to their rank, and weighted by the inverse probability.
template <int N> struct Kept {
  const Parity& p;  // steps: kind, slot, number
  const Key<N>* masks;
  int64_t most, seen;
  double cost;
  std::vector<Key<N>> keys;
  std::vector<double> mass, ranks, sorted, power;
  std::vector<int32_t> table;
  bool stale = true;
  uint64_t state = 0;
  Tape* tape = nullptr;

  Kept(const Parity& parity, const uint64_t* given, int64_t keep, int64_t observables, double each)
      : p(parity), masks(reinterpret_cast<const Key<N>*>(given)), most(keep), seen(observables),
        cost(each), power(64 * N + 1, 1.0) {
    for (int64_t i = 1; i <= 64 * N; ++i) power[i] = power[i - 1] * cost;
    int64_t room = 8;
    while (room < 4 * most) room *= 2;
    table.resize(room);
  }

  double uniform() { return double((state = Sweep::hashed(state)) >> 11) * 0x1p-53; }

  double weight_of(const Key<N>& key) const {
    int events = 0;
    for (int k = 0; k + 1 < N; ++k) events += __builtin_popcountll(key[k]);
    const uint64_t low = seen ? (uint64_t(1) << (64 - seen)) - 1 : ~uint64_t(0);
    return power[events + __builtin_popcountll(key[N - 1] & low)];
  }

  int64_t place(const Key<N>& key) const {
    uint64_t h = 0;
    for (uint64_t word : key) h = (h ^ word) * 0x9e3779b97f4a7c15, h ^= h >> 29;
    int64_t at = h & (table.size() - 1);
    while (table[at] && keys[table[at] - 1] != key) at = (at + 1) & (table.size() - 1);
    return at;
  }

  void index() {
    if (!stale) return;
    std::fill(table.begin(), table.end(), 0);
    for (size_t i = 0; i < keys.size(); ++i) table[place(keys[i])] = i + 1;
    stale = false;
  }

  void flip(int64_t column, const Key<N>& mask, double q, double odd, bool sampled) {
    const size_t count = keys.size();
    if (tape) tape->begin(column, count, mass.data());
    if (mask == Key<N>{}) {
      for (size_t i = 0; tape && i < count; ++i) tape->pair(i, i);
      for (double& m : mass) m *= q + odd;
      return;
    }
    index();
    double least = 0;
    if (int64_t(count) >= most) {
      least = kFar;
      for (size_t i = 0; i < count; ++i) least = std::min(least, mass[i] * weight_of(keys[i]));
    }
    double sum = sampled ? uniform() : 0;
    for (size_t i = 0; i < count; ++i) {
      Key<N> other = keys[i];
      for (int k = 0; k < N; ++k) other[k] ^= mask[k];
      const int64_t at = place(other), j = table[at] - 1;
      if (j >= int64_t(count)) continue;
      if (j >= 0) {
        if (j < int64_t(i)) continue;
        const double a = mass[i], b = mass[j];
        mass[i] = q * a + odd * b, mass[j] = q * b + odd * a;
        if (tape) tape->pair(i, j), tape->pair(j, i);
        continue;
      }
      double added = odd * mass[i], factor = 1;
      mass[i] *= q;
      const double rank = added * weight_of(other);
      if (!(rank > 0)) continue;
      if (rank < least) {
        if (!sampled || (sum += rank / least) < 1) continue;
        sum -= 1, factor = least / rank, added *= factor;
      }
      if (tape) tape->add(i, factor);
      keys.push_back(other), mass.push_back(added);
      table[at] = keys.size();
    }
    if (q == 0) drop([&](size_t i) { return mass[i] > 0; });
    if (int64_t(keys.size()) > most + most / 2) prune(sampled);
  }

  template <typename Stays> void drop(Stays stays) {
    size_t kept = 0;
    if (tape) tape->begin(-1, keys.size(), nullptr);
    for (size_t i = 0; i < keys.size(); ++i) {
      const double before = mass[i];
      if (!stays(i)) continue;
      if (tape) tape->add(i, before > 0 ? mass[i] / before : 1);
      keys[kept] = keys[i], mass[kept++] = mass[i];
    }
    stale |= kept < keys.size();
    keys.resize(kept), mass.resize(kept);
  }

  void prune(bool sampled) {
    const size_t count = keys.size();
    ranks.resize(count);
    for (size_t i = 0; i < count; ++i) ranks[i] = mass[i] * weight_of(keys[i]);
    sorted = ranks;
    double limit;
    if (!sampled) {
      std::nth_element(sorted.begin(), sorted.begin() + most, sorted.end(), std::greater<double>());
      limit = sorted[most];
      return drop([&](size_t i) { return ranks[i] > limit; });
    }
    // Chances min(1, rank / limit) that sum to what is kept (Fearnhead and Clifford 2003).
    std::sort(sorted.begin(), sorted.end());
    double below = 0;
    size_t i = 0;
    for (; i < count; ++i) {
      below += sorted[i];
      const double left = double(most) - double(count - i - 1);  // kept of those so far
      if (left > 0 && i + 1 < count && below <= left * sorted[i + 1]) break;
    }
    limit = below / std::max(double(most) - double(count) + double(i) + 1, 1.0);
    double sum = uniform();
    drop([&](size_t at) {
      if (ranks[at] >= limit) return true;
      if ((sum += ranks[at] / limit) < 1) return false;
      sum -= 1, mass[at] *= limit / ranks[at];
      return true;
    });
  }

  // Masses and keys before the first step, and after the last, in `carried` if it is given: their
  // number, the logarithm of their scale, the erased checks, and each with its mass.
  void run(int64_t item, int64_t row, uint64_t seed, bool sampled, double* out, int64_t* carried) {
    const double* w = p.weights + item * p.stride;
    const int8_t* s = p.syndrome + item * p.checks;
    Key<N> dead{};
    state = Sweep::hashed(seed) ^ Sweep::hashed(row + 1);
    keys.assign(1, Key<N>{}), mass.assign(1, 1.0), stale = true;
    double logs = 0;
    auto move = [&](auto copy) {  // between these and `carried`
      int64_t count = keys.size(), *from = carried + 2 + N;
      copy(&count, carried, 1), copy(&logs, carried + 1, 1), copy(&dead, carried + 2, N);
      keys.resize(count), mass.resize(count);
      for (int64_t i = 0; i < count; ++i, from += N + 1)
        copy(&mass[i], from, 1), copy(&keys[i], from + 1, N);
    };
    if (carried && *carried >= 0)
      move([](auto* here, int64_t* other, int64_t n) { std::memcpy(here, other, 8 * n); });
    for (int64_t t = 0; t < p.count; ++t) {
      const int64_t* step = p.steps + 3 * t;
      const int64_t word = step[1] / 64;
      const uint64_t bit = uint64_t(1) << (step[1] % 64);
      if (step[0] == 1) {
        Key<N> mask = masks[step[2]];
        for (int k = 0; k < N; ++k) mask[k] &= ~dead[k];
        flip(step[2], mask, w[2 * step[2]], w[2 * step[2] + 1], sampled);
      } else if (step[0] == 0) {
        if (s[step[2]] < 0) dead[word] |= bit;
        if (s[step[2]] != 1) continue;
        for (Key<N>& key : keys) key[word] |= bit;
        stale = true;
      } else {
        dead[word] &= ~bit;
        drop([&](size_t i) { return !(keys[i][word] & bit); });
        double total = 0;
        for (double m : mass) total += m;
        if (total > 0 && total < kFaint) {
          drop([&](size_t i) { return mass[i] /= total, true; });
          logs += std::log(total);
        }
      }
    }
    if (carried) move([](auto* here, int64_t* other, int64_t n) { std::memcpy(other, here, 8 * n); });
    if (!out) return;
    const int64_t cosets = int64_t(1) << seen;
    std::fill(out, out + cosets, 0.0);
    for (size_t i = 0; i < keys.size(); ++i)
      out[seen ? keys[i][N - 1] >> (64 - seen) : 0] += mass[i];
    for (int64_t l = 0; l < cosets; ++l) out[l] = std::log(out[l]) + logs;
  }

  // Adds to the gradients (columns, 2) of sum_l pull_l log out_l in the weights.
  void gradient(int64_t item, int64_t row, uint64_t seed, bool sampled, const double* pull,
                double* grads) {
    Tape steps;
    std::vector<double> out(int64_t(1) << seen), bar;
    tape = &steps;
    run(item, row, seed, sampled, nullptr, nullptr);
    auto coset = [&](size_t i) { return seen ? keys[i][N - 1] >> (64 - seen) : 0; };
    for (size_t i = 0; i < keys.size(); ++i) out[coset(i)] += mass[i];
    for (size_t i = 0; i < keys.size(); ++i)
      bar.push_back(out[coset(i)] > 0 ? pull[coset(i)] / out[coset(i)] : 0);
    steps.back(p.weights + item * p.stride, bar, grads);
  }

  static constexpr double kFar = std::numeric_limits<double>::infinity();
};

// out: (replicates, items, cosets), or what is pulled there if gradients are wanted. With a seed below
// 0 none is sampled.
template <int N>
void kept_states(const Parity& p, const uint64_t* masks, double* out, int64_t* carried,
                 double* grads, int64_t most, int64_t seen, int64_t replicates, int64_t seed,
                 double cost, int threads) {
  const int64_t room = 2 + N + (most + most / 2) * (N + 1), size = p.stride ? 0 : 2 * p.columns;
  const bool sampled = seed >= 0;
  if (!grads)
    return by_items(p.batch * replicates, threads, [&](int64_t a, int64_t b) {
      Kept<N> kept(p, masks, most, seen, cost);
      for (int64_t row = a; row < b; ++row)
        kept.run(row % p.batch, row, uint64_t(seed), sampled, out + (row << seen),
                 carried ? carried + row * room : nullptr);
    });
  by_items(p.batch, threads, [&](int64_t a, int64_t b) {
    Kept<N> kept(p, masks, most, seen, cost);
    std::vector<double> sum(size);  // of all items, where they share the weights
    for (int64_t item = a; item < b; ++item)
      for (int64_t row = item; row < p.batch * replicates; row += p.batch)
        kept.gradient(item, row, uint64_t(seed), sampled, out + (row << seen),
                      size ? sum.data() : grads + item * p.stride);
#pragma omp critical
    for (int64_t i = 0; i < size; ++i) grads[i] += sum[i];
  });
}

}  // namespace
