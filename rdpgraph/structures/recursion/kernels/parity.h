// Sums over errors that explain syndromes, by sweeps over the parities of open checks: exactly, with a
// shot in each vector lane, or over kept states, one shot after another.

#pragma once

#include <array>

#include "machine.h"

namespace {

using Shots = typename Vector<double>::type;
constexpr int64_t kShots = lanes<double>();
constexpr double kFaint = 1e-30;  // a total below which masses are scaled up

// steps: (count, 3), as in `Program`. weights: (items or 1, columns, 2). syndrome: (items, checks) of
// 0, 1, and -1 where unknown.
struct Parity {
  const int64_t* steps;
  int64_t count;
  const double* weights;
  int64_t stride;
  const int8_t* syndrome;
  int64_t checks, columns, batch;
  bool best;
};

struct Sweep {
  const Parity& p;
  int64_t first, live;
  std::vector<Shots> even, odd, zero, one, now, spare, log_scale;
  int64_t size;

  Sweep(const Parity& parity, int64_t item)
      : p(parity), first(item), live(std::min(kShots, parity.batch - item)), even(p.columns),
        odd(p.columns), zero(p.checks), one(p.checks) {
    for (int64_t l = 0; l < kShots; ++l) {
      const int64_t at = first + std::min(l, live - 1);
      const double* w = p.weights + at * p.stride;
      for (int64_t e = 0; e < p.columns; ++e) even[e][l] = w[2 * e], odd[e][l] = w[2 * e + 1];
      const int8_t* s = p.syndrome + at * p.checks;
      for (int64_t c = 0; c < p.checks; ++c) zero[c][l] = s[c] != 1, one[c][l] = s[c] != 0;
    }
    begin();
  }

  void begin() {
    now.assign(1, Shots{} + 1.0);
    size = 1;
  }

  Shots larger(Shots a, Shots b) const {
    for (int64_t l = 0; l < kShots; ++l) a[l] = a[l] > b[l] ? a[l] : b[l];
    return a;
  }

  // One step; returns the factor that it multiplied the masses by.
  Shots step(const int64_t* s) {
    Shots factor = Shots{} + 1.0;
    if (s[0] == 0) {
      now.resize(2 * size);
      std::fill(now.begin() + size, now.end(), Shots{});
      size *= 2;
    } else if (s[0] == 1) {
      const uint64_t mask = s[1];
      const Shots q = even[s[2]], p1 = odd[s[2]];
      if (!mask) {
        const Shots all = p.best ? larger(q, p1) : q + p1;
        for (int64_t i = 0; i < size; ++i) now[i] *= all;
        return factor;
      }
      const int64_t top = int64_t(1) << (63 - __builtin_clzll(mask));
      for (int64_t hi = 0; hi < size; hi += 2 * top)
        for (int64_t i = hi; i < hi + top; ++i) {
          Shots &x = now[i], &y = now[i ^ mask];
          const Shots a = x, b = y;
          x = p.best ? larger(q * a, p1 * b) : q * a + p1 * b;
          y = p.best ? larger(q * b, p1 * a) : q * b + p1 * a;
        }
    } else {
      const int64_t low = int64_t(1) << s[1];
      const Shots z = zero[s[2]], o = one[s[2]];
      Shots total{};
      int64_t to = 0;
      for (int64_t hi = 0; hi < size; hi += 2 * low)
        for (int64_t i = hi; i < hi + low; ++i, ++to) {
          const Shots a = z * now[i], b = o * now[i + low];
          now[to] = p.best ? larger(a, b) : a + b;
          total += now[to];
        }
      size /= 2;
      bool faint = false;
      for (int64_t l = 0; l < kShots; ++l)
        if (total[l] > 0 && total[l] < kFaint) factor[l] = 1 / total[l], faint = true;
      if (faint)
        for (int64_t i = 0; i < size; ++i) now[i] *= factor;
    }
    return factor;
  }

  // The logarithms of a sweep's final masses, (final) for each item.
  void sums(double* out, int64_t final) {
    Shots logs{};
    for (int64_t t = 0; t < p.count; ++t) {
      const Shots factor = step(p.steps + 3 * t);
      if (p.steps[3 * t] == 2)
        for (int64_t l = 0; l < kShots; ++l)
          if (factor[l] != 1) logs[l] -= std::log(factor[l]);
    }
    for (int64_t l = 0; l < live; ++l)
      for (int64_t i = 0; i < final; ++i)
        out[(first + l) * final + i] = std::log(now[i][l]) + logs[l];
  }

  // Visits all steps from the last to the first, with the masses before each: stored at the first
  // step of a segment, recomputed within it.
  template <typename Start, typename Visit> void backwards(Start start, Visit visit) {
    const int64_t span = std::max<int64_t>(1, std::sqrt(double(p.count)));
    std::vector<std::vector<Shots>> starts, before(span);
    std::vector<Shots> factors(p.count);
    begin();
    for (int64_t t = 0; t < p.count; ++t) {
      if (t % span == 0) starts.emplace_back(now.begin(), now.begin() + size);
      factors[t] = step(p.steps + 3 * t);
    }
    start();
    for (int64_t t = (p.count - 1) / span * span; t >= 0 && p.count; t -= span) {
      const int64_t end = std::min(p.count, t + span);
      now = starts.back(), size = now.size();
      starts.pop_back();
      for (int64_t k = t; k < end; ++k) {
        before[k - t].assign(now.begin(), now.begin() + size);
        step(p.steps + 3 * k);
      }
      for (int64_t k = end - 1; k >= t; --k) visit(k, p.steps + 3 * k, before[k - t], factors[k]);
    }
  }

  // Adds to the gradients (items or 1, columns, 2) of sum_i pull_i log out_i in the weights.
  void gradient(const double* pull, int64_t final, double* grads) {
    std::vector<Shots> bar, wide;
    backwards(
        [&] {
          bar.assign(final, Shots{});
          for (int64_t l = 0; l < live; ++l)
            for (int64_t i = 0; i < final; ++i)
              if (now[i][l] > 0) bar[i][l] = pull[(first + l) * final + i] / now[i][l];
        },
        [&](int64_t, const int64_t* s, const std::vector<Shots>& v, Shots factor) {
          const int64_t n = v.size();
          if (s[0] == 0) {
            bar.resize(n);
          } else if (s[0] == 1) {
            const uint64_t mask = s[1];
            const Shots q = even[s[2]], p1 = odd[s[2]];
            Shots g0{}, g1{};
            if (!mask) {
              for (int64_t i = 0; i < n; ++i) g0 += bar[i] * v[i], bar[i] *= q + p1;
              g1 = g0;
            } else {
              const int64_t top = int64_t(1) << (63 - __builtin_clzll(mask));
              for (int64_t hi = 0; hi < n; hi += 2 * top)
                for (int64_t i = hi; i < hi + top; ++i) {
                  const int64_t j = i ^ mask;
                  const Shots a = v[i], b = v[j], x = bar[i], y = bar[j];
                  g0 += x * a + y * b;
                  g1 += x * b + y * a;
                  bar[i] = q * x + p1 * y;
                  bar[j] = q * y + p1 * x;
                }
            }
            for (int64_t l = 0; l < live; ++l) {
              double* g = grads + (first + l) * p.stride + 2 * s[2];
              g[0] += g0[l], g[1] += g1[l];
            }
          } else {
            const int64_t low = int64_t(1) << s[1];
            const Shots z = zero[s[2]] * factor, o = one[s[2]] * factor;
            wide.resize(n);
            int64_t from = 0;
            for (int64_t hi = 0; hi < n; hi += 2 * low)
              for (int64_t i = hi; i < hi + low; ++i, ++from)
                wide[i] = z * bar[from], wide[i + low] = o * bar[from];
            bar.swap(wide);
          }
        });
  }

  // Errors (draws, items, columns) of each item: the most probable, or draws.
  void paths(uint64_t seed, int64_t draws, uint8_t* found) {
    std::vector<uint64_t> at(draws * live, 0);
    auto second = [&](double a, double b, int64_t draw, int64_t item, int64_t t) {
      if (p.best) return b > a;
      const uint64_t mixed = hashed(hashed(seed + t) ^ hashed(draw * p.batch + item + 1));
      return double(mixed >> 11) * 0x1p-53 * (a + b) < b;
    };
    backwards([] {}, [&](int64_t t, const int64_t* s, const std::vector<Shots>& v, Shots) {
      for (int64_t d = 0; d < draws; ++d)
        for (int64_t l = 0; l < live; ++l) {
          uint64_t& x = at[d * live + l];
          if (s[0] == 1) {
            const double a = even[s[2]][l] * v[x][l], b = odd[s[2]][l] * v[x ^ s[1]][l];
            const bool flip = second(a, b, d, first + l, t);
            found[(d * p.batch + first + l) * p.columns + s[2]] = flip;
            if (flip) x ^= s[1];
          } else if (s[0] == 2) {
            const uint64_t low = uint64_t(1) << s[1];
            x = (x & (low - 1)) | ((x & ~(low - 1)) << 1);
            const double a = zero[s[2]][l] * v[x][l], b = one[s[2]][l] * v[x | low][l];
            if (second(a, b, d, first + l, t)) x |= low;
          }
        }
    });
  }

  static uint64_t hashed(uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
};

template <int N> using Key = std::array<uint64_t, N>;

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

  void flip(const Key<N>& mask, double q, double odd, bool sampled) {
    if (mask == Key<N>{}) {
      for (double& m : mass) m *= q + odd;
      return;
    }
    index();
    const size_t count = keys.size();
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
        continue;
      }
      double added = odd * mass[i];
      mass[i] *= q;
      const double rank = added * weight_of(other);
      if (!(rank > 0)) continue;
      if (rank < least) {
        if (!sampled || (sum += rank / least) < 1) continue;
        sum -= 1, added *= least / rank;
      }
      keys.push_back(other), mass.push_back(added);
      table[at] = keys.size();
    }
    if (q == 0) drop([&](size_t i) { return mass[i] > 0; });
    if (int64_t(keys.size()) > most + most / 2) prune(sampled);
  }

  template <typename Stays> void drop(Stays stays) {
    size_t kept = 0;
    for (size_t i = 0; i < keys.size(); ++i)
      if (stays(i)) keys[kept] = keys[i], mass[kept++] = mass[i];
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
      move([](auto* own, int64_t* other, int64_t n) { std::memcpy(own, other, 8 * n); });
    for (int64_t t = 0; t < p.count; ++t) {
      const int64_t* step = p.steps + 3 * t;
      const int64_t word = step[1] / 64;
      const uint64_t bit = uint64_t(1) << (step[1] % 64);
      if (step[0] == 1) {
        Key<N> mask = masks[step[2]];
        for (int k = 0; k < N; ++k) mask[k] &= ~dead[k];
        flip(mask, w[2 * step[2]], w[2 * step[2] + 1], sampled);
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
          for (double& m : mass) m /= total;
          logs += std::log(total);
        }
      }
    }
    if (carried) move([](auto* own, int64_t* other, int64_t n) { std::memcpy(other, own, 8 * n); });
    const int64_t cosets = int64_t(1) << seen;
    std::fill(out, out + cosets, 0.0);
    for (size_t i = 0; i < keys.size(); ++i)
      out[seen ? keys[i][N - 1] >> (64 - seen) : 0] += mass[i];
    for (int64_t l = 0; l < cosets; ++l) out[l] = std::log(out[l]) + logs;
  }

  static constexpr double kFar = std::numeric_limits<double>::infinity();
};

// out: (replicates, items, cosets). With a seed below 0 none is sampled.
template <int N>
void kept_states(const Parity& p, const uint64_t* masks, double* out, int64_t* carried,
                 int64_t most, int64_t seen, int64_t replicates, int64_t seed, double cost,
                 int threads) {
  const int64_t room = 2 + N + (most + most / 2) * (N + 1);
  by_items<double>(p.batch * replicates, threads, [&](int64_t a, int64_t b) {
    Kept<N> kept(p, masks, most, seen, cost);
    for (int64_t row = a; row < b; ++row)
      kept.run(row % p.batch, row, uint64_t(seed), seed >= 0, out + (row << seen),
               carried ? carried + row * room : nullptr);
  });
}

// Groups of shots, divided among threads.
template <typename Run> void by_shots(const Parity& p, int threads, Run run) {
  by_items<double>((p.batch + kShots - 1) / kShots, threads, [&](int64_t a, int64_t b) {
    for (int64_t group = a; group < b; ++group) {
      Sweep sweep(p, group * kShots);
      run(sweep);
    }
  });
}

}  // namespace
