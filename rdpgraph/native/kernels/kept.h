// Sums over errors that explain syndromes, by sweeps over kept states, one shot after another.
//
// The steps are those of parity.h, m'(x) = q_e m(x) + p_e m(x xor M) at an error, on a set of states x instead of
// all. A state's rank is m(x) F(x), its mass times the estimate of what is ahead (ahead.h); of more than `most`
// states those of the largest ranks stay. Where others are sampled, with chance r(x) = rank / least, a sampled state
// gets the mass m(x) / r(x), so that the expected mass of every state is its mass, and Z is unbiased. Where they are
// dropped, sum over them of m(x) bound(x) is the most that was lost.

#pragma once

#include <array>

#include "ahead.h"

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

// The states of largest rank: mass times the estimate of what is ahead. With a seed the others are
// sampled in proportion to their rank, and weighted by the inverse probability; else the bounds on
// what is ahead of them are summed. Without a seed, states of a tiny share of all ranks are dropped
// too once there are more than can be kept: where the syndrome leaves little doubt, few are swept.
template <int N> struct Kept {
  // A factor of each state, a product over the open checks, and that of the state which an error makes.
  struct Factors {
    std::vector<double> own, flipped;
    std::vector<Ahead::Pair> slots;

    // The states pass an edge: the pair of its slot becomes `next`.
    void pass(const std::vector<Key<N>>& keys, int64_t slot, const Ahead::Pair& next) {
      const int64_t word = slot / 64, bit = slot % 64;
      Ahead::Pair& old = slots[slot];
      double stay[2], move[2];
      for (int b = 0; b < 2; ++b) {  // what is impossible stays so
        stay[b] = old.of[b] > 0 ? next.of[b] / old.of[b] : 0;
        move[b] = old.of[b] > 0 ? next.of[1 - b] / old.of[b] : 0;
      }
      auto times = [](double x, double y) { return y > 0 && x > 0 ? std::max(x * y, kLeast) : 0; };
      for (size_t i = 0; i < keys.size(); ++i) {
        const int b = keys[i][word] >> bit & 1;
        own[i] = times(own[i], stay[b]), flipped[i] = times(flipped[i], move[b]);
      }
      old = next;
    }

    // Two states make each other. Where the error is certain, one may be possible only as the other's.
    void meet(size_t i, size_t j) {
      own[i] = std::max(own[i], flipped[j]), own[j] = std::max(own[j], flipped[i]);
    }

    // Divides all by the largest; returns its logarithm.
    double level() {
      double top = 0;
      for (double x : own) top = std::max(top, x);
      if (!(top > 0)) return 0;
      for (double& x : own) x /= top;
      return std::log(top);
    }
    static constexpr double kLeast = 1e-280;
  };

  const Parity& p;  // steps: kind, slot, number
  const Key<N>* masks;
  int64_t most, seen, sweep;
  Ahead ahead;
  bool bounded;
  std::vector<Key<N>> keys;
  std::vector<double> mass, ranks, sorted;
  Factors estimate, bound;
  double logs = 0, log_bound = 0;         // of the scales of masses, and of bounds
  double lost = 0, by_bound = 0, by_sum = 0;  // the bound on what was dropped; factors of its parts
  double log_left = 0;                        // the estimate of the part of P(s) that was kept
  std::vector<int32_t> table;
  bool stale = true;
  bool crowded = false;  // there were more states than can be kept
  // The share of all ranks below which a state is dropped then. On the gross code at .4%, 1e-6 takes
  // 240 states to a tenth of the time, and 1e-4 decides worse. It is well below the mean share.
  double tiny = 0;
  uint64_t state = 0;
  Tape* tape = nullptr;

  // The first `steps` steps are swept; the others are looked at. `bounds`: what is dropped is bounded.
  Kept(const Parity& parity, const uint64_t* given, const int64_t* open, int64_t keep,
       int64_t observables, int64_t steps, bool bounds)
      : p(parity), masks(reinterpret_cast<const Key<N>*>(given)), most(keep), seen(observables),
        sweep(steps),
        ahead(parity, steps, given, N, observables, std::vector<int32_t>(open, open + 64 * N)),
        bounded(bounds) {
    for (Factors* each : {&estimate, &bound}) each->slots.assign(64 * N, {{1, 1}});
    int64_t room = 8;
    while (room < 4 * most) room *= 2;
    table.resize(room);
  }

  double uniform() { return double((state = Sweep::hashed(state)) >> 11) * 0x1p-53; }

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

  // An upper bound on the part of P(s) that comes of a mass, by its factor of `bound`.
  double dropped(double m, double factor) const {
    return factor > 0 ? m * std::min(factor * by_bound, by_sum) : 0;  // no error explains it
  }

  // Factors of all states after step t, and of those that its error makes.
  void look(int64_t t, const int8_t* s) {
    estimate.flipped = estimate.own;
    if (bounded) bound.flipped = bound.own;
    for (int64_t j = ahead.start[t]; j < ahead.start[t + 1]; ++j) {
      if (s[ahead.check[j]] < 0) continue;
      estimate.pass(keys, ahead.slot[j], Ahead::pair(ahead.after[j]));
      if (bounded) bound.pass(keys, ahead.slot[j], ahead.bound[j]);
    }
    if (!bounded) return;
    by_bound = std::exp(logs + log_bound + ahead.log_bound[t + 1] - ahead.log_most());
    by_sum = std::exp(logs + ahead.log_sum[t + 1] - ahead.log_most());
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
    // `least`: the rank that a new state needs; `stay`, `gone`: the sums of ranks kept and dropped.
    double least = 0, stay = 0, gone = 0;
    size_t faint = 0;
    crowded |= int64_t(count) >= most;
    if (crowded) {
      double lowest = kFar;
      ranks.resize(count);
      for (size_t i = 0; i < count; ++i) {
        ranks[i] = mass[i] * estimate.own[i];
        lowest = std::min(lowest, ranks[i]), stay += q * ranks[i];
      }
      if (int64_t(count) >= most) least = lowest;
      if (!sampled) {
        least = std::max(least, tiny * stay);
        for (double rank : ranks) faint += q * rank < tiny * stay;
      }
    }
    const double limit = tiny * stay;
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
        estimate.meet(i, j);
        if (bounded) bound.meet(i, j);
        continue;
      }
      double added = odd * mass[i], factor = 1;
      mass[i] *= q;
      const double rank = added * estimate.flipped[i];
      if (rank < least || !(rank > 0)) {
        gone += rank;
        if (bounded) lost += dropped(added, bound.flipped[i]);
        if (!sampled || !(rank > 0) || (sum += rank / least) < 1) continue;
        sum -= 1, factor = least / rank, added *= factor;
      }
      stay += rank;
      if (tape) tape->add(i, factor);
      keys.push_back(other), mass.push_back(added);
      estimate.own.push_back(estimate.flipped[i]);
      if (bounded) bound.own.push_back(bound.flipped[i]);
      table[at] = keys.size();
    }
    if (gone > 0) log_left -= std::log1p(gone / stay);
    if (q == 0) drop([&](size_t i) { return mass[i] > 0; });
    if (4 * faint > count) drop_below(limit);
    if (int64_t(keys.size()) > most + most / 2) prune(sampled);
  }

  template <typename Stays> void drop(Stays stays) {
    size_t kept = 0;
    if (tape) tape->begin(-1, keys.size(), nullptr);
    for (size_t i = 0; i < keys.size(); ++i) {
      const double before = mass[i];
      if (!stays(i)) continue;
      if (tape) tape->add(i, before > 0 ? mass[i] / before : 1);
      estimate.own[kept] = estimate.own[i];
      if (bounded) bound.own[kept] = bound.own[i];
      keys[kept] = keys[i], mass[kept++] = mass[i];
    }
    stale |= kept < keys.size();
    keys.resize(kept), mass.resize(kept), estimate.own.resize(kept);
    if (bounded) bound.own.resize(kept);
  }

  // Drops states of ranks below a limit, of which the first `ties` at the limit stay.
  void drop_below(double limit, int64_t ties = std::numeric_limits<int64_t>::max()) {
    double stay = 0, gone = 0;
    drop([&](size_t i) {
      const double rank = mass[i] * estimate.own[i];
      const bool stays = rank > limit || (rank == limit && ties-- > 0);
      (stays ? stay : gone) += rank;
      if (!stays && bounded) lost += dropped(mass[i], bound.own[i]);
      return stays;
    });
    if (gone > 0) log_left -= std::log1p(gone / stay);
  }

  void prune(bool sampled) {
    const size_t count = keys.size();
    ranks.resize(count);
    for (size_t i = 0; i < count; ++i) ranks[i] = mass[i] * estimate.own[i];
    sorted = ranks;
    double limit;
    if (!sampled) {
      std::nth_element(sorted.begin(), sorted.begin() + most, sorted.end(), std::greater<double>());
      limit = sorted[most];
      int64_t ties = most;  // how many of rank `limit` stay
      for (double rank : ranks) ties -= rank > limit;
      return drop_below(limit, ties);
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

  // The messages of this shot, and the factors of the states that are there.
  void begin(const double* w, const int8_t* s) {
    std::vector<double> h(p.checks, 1.0);
    for (int64_t slot = 0; slot < 64 * N; ++slot) {
      if (ahead.open[slot] < 0) continue;
      double even = 0, odd = 0;
      for (size_t i = 0; i < keys.size(); ++i)
        (keys[i][slot / 64] >> (slot % 64) & 1 ? odd : even) += mass[i];
      const bool known = s[ahead.open[slot]] >= 0 && even + odd > 0;
      h[ahead.open[slot]] = known ? (even - odd) / (even + odd) : 0;
    }
    ahead.estimate(w, s, h);
    if (bounded) ahead.bounds(w, s);
    lost = log_bound = log_left = 0, crowded = false;
    estimate.own.assign(keys.size(), 1.0), bound.own.assign(keys.size(), 1.0);
    for (int64_t slot = 0; slot < 64 * N; ++slot) {
      const int64_t c = ahead.open[slot];
      if (c < 0 || s[c] < 0) continue;
      for (Factors* each : {&estimate, &bound}) {
        if (each == &bound && !bounded) continue;
        each->flipped = each->own, each->slots[slot] = {{1, 1}};
        each->pass(keys, slot, each == &bound ? ahead.now[c] : Ahead::pair(ahead.h[c]));
      }
    }
  }

  // Masses and keys before the first step, and after the last, in `carried` if it is given: their
  // number, the logarithm of their scale, the erased checks, and each with its mass. `missing`: the
  // logarithm of the bound on what was dropped. `left`: that of the estimate of what was kept.
  void run(int64_t item, int64_t row, uint64_t seed, bool sampled, double* out, double* missing,
           double* left, int64_t* carried) {
    // Where the estimate of what is ahead was sure of states that nothing explains, none is left at
    // the end. Then states of tiny shares are needed, and the sweep begins again with them.
    std::vector<int64_t> before;
    if (carried) before.assign(carried, carried + 2 + N + (most + most / 2) * (N + 1));
    tiny = std::min(1e-6, 0.01 / double(most));
    sweep_once(item, row, seed, sampled, out, missing, left, carried);
    if (sampled || !keys.empty() || !crowded) return;
    if (carried) std::copy(before.begin(), before.end(), carried);
    if (tape) *tape = Tape{};
    tiny = 0;
    sweep_once(item, row, seed, sampled, out, missing, left, carried);
  }

  void sweep_once(int64_t item, int64_t row, uint64_t seed, bool sampled, double* out,
                  double* missing, double* left, int64_t* carried) {
    const double* w = p.weights + item * p.stride;
    const int8_t* s = p.syndrome + item * p.checks;
    Key<N> dead{};
    state = Sweep::hashed(seed) ^ Sweep::hashed(row + 1);
    keys.assign(1, Key<N>{}), mass.assign(1, 1.0), stale = true;
    logs = 0;
    auto move = [&](auto copy) {  // between these and `carried`
      int64_t count = keys.size(), *from = carried + 2 + N;
      copy(&count, carried, 1), copy(&logs, carried + 1, 1), copy(&dead, carried + 2, N);
      keys.resize(count), mass.resize(count);
      for (int64_t i = 0; i < count; ++i, from += N + 1)
        copy(&mass[i], from, 1), copy(&keys[i], from + 1, N);
    };
    if (carried && *carried >= 0)
      move([](auto* here, int64_t* other, int64_t n) { std::memcpy(here, other, 8 * n); });
    begin(w, s);
    for (int64_t t = 0; t < sweep; ++t) {
      const int64_t* step = p.steps + 3 * t;
      const int64_t word = step[1] / 64;
      const uint64_t bit = uint64_t(1) << (step[1] % 64);
      if (step[0] == 1) {
        Key<N> mask = masks[step[2]];
        for (int k = 0; k < N; ++k) mask[k] &= ~dead[k];
        look(t, s);
        flip(step[2], mask, w[2 * step[2]], w[2 * step[2] + 1], sampled);
      } else if (step[0] == 0) {
        const int64_t c = step[2];
        estimate.slots[step[1]] = Ahead::pair(ahead.opening[c]);
        if (bounded) bound.slots[step[1]] = ahead.bound_opening[c];
        if (bounded && s[c] >= 0) log_bound += std::log(ahead.bound_opening[c].of[s[c]]);
        if (s[c] < 0) dead[word] |= bit;
        if (s[step[2]] != 1) continue;
        for (Key<N>& key : keys) key[word] |= bit;
        stale = true;
      } else {
        dead[word] &= ~bit;
        drop([&](size_t i) { return !(keys[i][word] & bit); });
        estimate.level();
        if (bounded) log_bound += bound.level();
        double total = 0;
        for (double m : mass) total += m;
        if (total > 0 && total < kFaint) {
          drop([&](size_t i) { return mass[i] /= total, true; });
          logs += std::log(total);
        }
      }
    }
    if (carried) move([](auto* here, int64_t* other, int64_t n) { std::memcpy(other, here, 8 * n); });
    if (missing) {
      *missing = lost == 0 ? -kFar : std::log(lost) + ahead.log_most();
      if (!(lost >= 0)) *missing = kFar;  // nothing is known
    }
    if (left) *left = log_left;
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
    run(item, row, seed, sampled, nullptr, nullptr, nullptr, nullptr);
    auto coset = [&](size_t i) { return seen ? keys[i][N - 1] >> (64 - seen) : 0; };
    for (size_t i = 0; i < keys.size(); ++i) out[coset(i)] += mass[i];
    for (size_t i = 0; i < keys.size(); ++i)
      bar.push_back(out[coset(i)] > 0 ? pull[coset(i)] / out[coset(i)] : 0);
    steps.back(p.weights + item * p.stride, bar, grads);
  }

  static constexpr double kFar = std::numeric_limits<double>::infinity();
};

// out: (replicates, items, cosets), or what is pulled there if gradients are wanted. missing: (items)
// bounds on what was dropped, or null; left: (replicates, items) estimates of the part that was kept,
// which mean something where none is sampled. With a seed below 0 none is sampled. open: (slots) the checks
// that are open before the first step; the first `sweep` steps are swept.
template <int N>
void kept_states(const Parity& p, const uint64_t* masks, const int64_t* open, double* out,
                 double* missing, double* left, int64_t* carried, double* grads, int64_t most,
                 int64_t seen, int64_t replicates, int64_t seed, int64_t sweep, int threads) {
  const int64_t room = 2 + N + (most + most / 2) * (N + 1), size = p.stride ? 0 : 2 * p.columns;
  const bool sampled = seed >= 0;
  if (!grads)
    return by_items(p.batch * replicates, threads, [&](int64_t a, int64_t b) {
      Kept<N> kept(p, masks, open, most, seen, sweep, missing && !sampled);
      for (int64_t row = a; row < b; ++row)
        kept.run(row % p.batch, row, uint64_t(seed), sampled, out + (row << seen),
                 kept.bounded ? missing + row : nullptr, left + row,
                 carried ? carried + row * room : nullptr);
    });
  by_items(p.batch, threads, [&](int64_t a, int64_t b) {
    Kept<N> kept(p, masks, open, most, seen, sweep, false);
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
