// The product of a vector and the second derivatives of the log-sum, in doubles: upwards the derivatives of
// all values along the vector, and downwards those of their gradients.

#pragma once

#include "expect.h"

namespace {

// An alternative of share p, whose parts move by t, of an entry that moves by u, whose gradient is G and that
// gradient's derivative D, passes p (D + G (t - u)) on to its parts.
struct Second {
  Losses& along;        // the derivatives of values, computed, with rows of links kept
  Arena<double> pulls;  // the gradients
  Arena<double> turns;  // their derivatives
  double *heads, *tails;  // rows of links after products: G / sum, and (D - G u) / sum
  double* const* extras;  // derivatives of the gradient of tables, of entries that go choice by choice
  const Machine<double>& m = along.ours;
  Losses::Row shares = {}, own = {}, pull = {}, tau = {}, backs = {}, entries = {};

  const Arena<double>& moved_by() const { return along.means.arena; }

  bool counts(int64_t at) const { return (pulls[at] != 0 || turns[at] != 0) && m.arena[at] > kNever<double>; }

  // What an alternative passes on.
  double passed(double share, int64_t at, double move) const {
    return share > 0 ? share * (turns[at] + pulls[at] * (move - moved_by()[at])) : 0.0;
  }

  // Passes derivatives of a row's gradient on to its parts, given the row, its gradient and its moves.
  void pass_on(const Link<double>& link, int64_t item, int64_t place, const double* row, const double* pull,
               const double* turn, const double* move) {
    if (!link.rules) return exact_down(m, link, item, place, turn, row, 0.0, turns);
    link.each_split(item, place, 0.0, [&](int64_t l, int64_t r, double) {
      const double *one = m.arena + l, *two = m.arena + r;
      for (int64_t c = 0; c < link.firsts; ++c)
        for (int64_t e = 0; e < link.seconds; ++e) {
          const int64_t i = c * link.seconds + e;
          if (!(row[i] > kNever<double>) || (pull[i] == 0 && turn[i] == 0)) continue;
          const double share = std::exp(one[c] + two[e] - row[i]);
          const double part = share * (turn[i] + pull[i] * (moved_by()[l + c] + moved_by()[r + e] - move[i]));
          turns[l + c] += part;
          turns[r + e] += part;
        }
    });
  }

  // One place of a sum, or, if `some`, so many of one label.
  void summed(const int64_t* step, int64_t item, int64_t place, int64_t some) {
    const int64_t here = m.at(step[1], item, place), labels = some ? some : m.labels(step[1]);
    bool any = false;
    for (int64_t j = 0; j < labels; ++j) any |= counts(here + j);
    if (!any) return;
    const int64_t ways = along.alternatives_of(step, item, place, some);
    shares.assign(ways * labels, 1.0);
    if (ways > 1 && labels == 1) {
      exps(shares.data(), along.x.data(), m.arena[here], ways);
    } else if (ways > 1) {
      own.assign(labels, 1.0);
      soft_shares(along.x.data(), ways, labels, own.data());
      std::copy(along.x.begin(), along.x.begin() + ways * labels, shares.begin());
    }
    for (int64_t a = 0, k = 0; a < ways; ++a)
      for (int64_t j = 0; j < labels; ++j, ++k)
        shares[k] = counts(here + j) ? passed(shares[k], here + j, along.below[k]) : 0.0;
    if (step[0] == kSummed && !some)
      return exact_down(m, Link<double>(m, step), item, place, shares.data(), shares.data(), 0.0, turns);
    if (step[0] == kSummed) step = m.steps + kFields * step[2];
    if (some) beside_down(m, step, item, place, labels, shares.data(), turns);
    else ways_down(m, step, item, place, labels, shares.data(), turns);
  }

  // Some columns of a row of a link, alternative by alternative.
  void by_choices(const Link<double>& link, const Prepared<double>& t, int64_t item, int64_t place) {
    const int64_t here = m.at(link.out, item, place), size = t.rows * t.columns, slot = link.step[3];
    const int64_t *columns = along.columns.data(), count = along.columns.size();
    const double* row = link.in_logs(item, place, 0.0, along.room);
    const double* move = along.move(slot, item, size, link.step[10]);
    tau.resize(link.depth), own.resize(link.depth), pull.resize(link.depth);
    shares.resize(link.depth * count), entries.resize(3 * count);
    double *sums = entries.data(), *above = sums + count, *rest = above + count;
    for (int64_t k = 0; k < count; ++k) {
      const int64_t at = here + columns[k];
      sums[k] = m.arena[at], above[k] = pulls[at], rest[k] = turns[at] - pulls[at] * moved_by()[at];
    }
    along.row_means(link, item, place, row, row, tau.data());
    double *share = shares.data(), *extra = extras[slot];
    if (extra) extra += (m.shared(slot, item) * m.table(slot)[8] + link.step[10]) * size;
    if (!move && m.table(slot)[7] < 0 && along.is_dense(t, link)) {  // of this item alone
      for (int64_t i = 0; i < link.depth; ++i) {
        Lane<double> total = {}, turned = {};
        by_lanes<double>(count, [&](int64_t k, auto left) {
          const Lane<double> logs = load(t.logs + i * t.row + k, left) + row[i];
          const Lane<double> one = exp_of<double>(logs - load(sums + k, left)), part = one * load(above + k, left);
          const Lane<double> turn = one * load(rest + k, left) + part * tau[i];
          total += part, turned += turn;
          const int64_t at = i * count + k;
          if (extra) store(extra + at, Lane<double>(load(extra + at, left) + turn), left);
        });
        pull[i] = own[i] = 0;
        for (int64_t k = 0; k < lanes<double>(); ++k) pull[i] += total[k], own[i] += turned[k];
      }
      return pass_on(link, item, place, row, pull.data(), own.data(), tau.data());
    }
    for (int64_t i = 0; i < link.depth; ++i, share += count) {
      const double* logs = t.logs + i * t.row;
#pragma omp simd
      for (int64_t k = 0; k < count; ++k) share[k] = row[i] + logs[columns[k] * t.column] - sums[k];
      exps(share, share, 0.0, count);
      double total = 0, turned = 0;
#pragma omp simd reduction(+ : total, turned)
      for (int64_t k = 0; k < count; ++k) {
        const double by = tau[i] + (move ? move[i * t.columns + columns[k]] : 0.0);
        total += share[k] * above[k];
        share[k] = share[k] > 0 ? share[k] * (rest[k] + above[k] * by) : 0.0;
        turned += share[k];
      }
      pull[i] = total, own[i] = turned;
    }
    pass_on(link, item, place, row, pull.data(), own.data(), tau.data());
    if (!extra) return;
#pragma omp critical(rdpgraph_extra)
    for (int64_t i = 0; i < t.rows; ++i)
#pragma omp simd
      for (int64_t k = 0; k < count; ++k) extra[i * t.columns + columns[k]] += shares[i * count + k];
  }

  // Links by products: with a table's weights w and moves V, and rows e that move by t, G and D of row
  // entries are e (w h), and e (w a + t (w h) + (w V) h).
  void linked(const int64_t* step, int64_t first, int64_t last) {
    const Link<double> link(m, step);
    const int64_t *table = m.table(step[3]), columns = table[5], depth = link.depth;
    const int64_t wide = panels_of(depth, width<double>()) * width<double>();
    const double low = faint<double>(depth * std::max<int64_t>(1, link.splits));
    const bool direct = table[7] < 0, scored = along.scored(step[3]);
    backs.resize(3 * kBlock * wide), own.resize(depth);
    double *straight = backs.data(), *turned = straight + kBlock * wide, *moved = turned + kBlock * wide;
    link.each_block(first, last, [&](int64_t which, int64_t q, int64_t some) {
      const Prepared<double> t = prepared(m, step[3], which, step[10]);
      const Prepared<double> scores = prepared(along.means, step[3], which, step[10]);
      const double* weights = link.before(m.befores, which, q);
      const double* gains = link.before(along.kept, which, q);
      const double* sums = link.after(m.afters, which, q);
      double* h = link.after(heads, which, q);
      double* a = link.after(tails, which, q);
      link.each_row(q, some, [&](int64_t r, int64_t item, int64_t place) {
        const int64_t here = m.at(link.out, item, place);
        along.columns.clear();
        for (int64_t j = 0, k = r * columns; j < columns; ++j, ++k) {
          const bool near = direct || sums[k] < low;
          if (near && counts(here + j)) along.columns.push_back(j);
          h[k] = near ? 0.0 : pulls[here + j] / sums[k];
          a[k] = near ? 0.0 : (turns[here + j] - pulls[here + j] * moved_by()[here + j]) / sums[k];
        }
        if (!along.columns.empty()) by_choices(link, t, item, place);
      });
      if (direct) return;
      by_panels(h, some, columns, t.back, depth, straight, false, 1);
      by_panels(a, some, columns, t.back, depth, turned, false, 1);
      if (scored) by_panels(h, some, columns, scores.back, depth, moved, false, 1);
      link.each_row(q, some, [&](int64_t r, int64_t item, int64_t place) {
        const double* flat = straight + r * wide;
        double* turn = turned + r * wide;
        for (int64_t i = 0; scored && i < depth; ++i) turn[i] += moved[r * wide + i];
        if (link.rules) return by_splits(link, item, place, flat, turn);
        const double *e = weights + r * depth, *gain = gains + r * depth;
        own.resize(depth);
        for (int64_t i = 0; i < depth; ++i) own[i] = e[i] * turn[i] + gain[i] * flat[i];
        exact_down(m, link, item, place, own.data(), own.data(), 0.0, turns);
      });
    });
  }

  // A row of pairs by splits: of scaled parts p and q, which move by s and t, p q (turn + (s + t) flat).
  void by_splits(const Link<double>& link, int64_t item, int64_t place, const double* flat,
                 const double* turn) {
    link.scaled_parts(item, place, along.room);
    for (int64_t s = 0; s < link.splits; ++s) {
      if (!(along.room.tops[s] > kNever<double>)) continue;
      const int64_t l = m.entry(link.left, s, item, place), r = m.entry(link.right, s, item, place);
      const double *one = along.room.left.data() + s * link.firsts;
      const double *two = along.room.right.data() + s * link.seconds, *move = moved_by() + r;
      double* to = turns + r;
      for (int64_t c = 0; c < link.firsts; ++c) {
        const double *f = flat + c * link.seconds, *g = turn + c * link.seconds, here = moved_by()[l + c];
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t e = 0; e < link.seconds; ++e) {
          const double part = one[c] * two[e] * (g[e] + (here + move[e]) * f[e]);
          sum += part;
          to[e] += part;
        }
        turns[l + c] += sum;
      }
    }
  }

  void run(int64_t first, int64_t last) {
    for (int64_t n = m.count - 1; n >= 0; --n) {
      const int64_t* step = m.steps + kFields * n;
      const int64_t out = step[1], places = m.places(out), kind = step[0];
      if (kind == kLinked || kind == kRules) linked(step, first, last);
      for (int64_t item = first; item < last; ++item) {
        if (kind == kBeside || kind == kPicked || kind == kApart)
          moved(m, step, item, [&](int64_t to, int64_t from, double) {
            if (from >= 0) turns[from] += turns[to];
          });
        if (kind == kSites)
          m.each_site(step, item, turns, [&](int64_t from, double* to) {
            for (int64_t j = 0; j < m.labels(out); ++j) to[j] += turns[from + j];
          });
        const bool sums = kind == kTotal || kind == kSummed;
        const int64_t hop = kind == kTotal ? run_of(m, step) : sums ? Link<double>(m, step).run() : 1;
        for (int64_t place = 0; place < places; place += hop) {
          const int64_t here = sums || kind == kPairs ? m.at(out, item, place) : 0;
          if (sums) summed(step, item, place, hop > 1 ? std::min(hop, places - place) : 0);
          else if (kind == kPairs)
            pass_on(Link<double>(m, step), item, place, m.arena + here, pulls + here, turns + here,
                    moved_by() + here);
        }
      }
    }
  }
};

}  // namespace
