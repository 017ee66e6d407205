// Expectations over derivations, upwards, in doubles: losses (entropies, cross-entropies and divergences),
// and derivatives of the log-sums along moves of the inputs.

#pragma once

#include "machine.h"

namespace {

// Two runs of a program, ours and theirs. A derivation drawn from ours makes a choice at each entry; its
// loss is minus `more` times the log-probability of the choice in theirs, plus `less` times that in ours, plus
// the moves of inputs that it reads. Means are +inf where theirs forbids what is possible, and 0 where nothing
// is.
struct Losses {
  typedef std::vector<double> Row;
  const Machine<double>&ours, &theirs;
  const Machine<double>& means;  // in place of values; in place of tables their weights times losses
  const double more, less;
  const double* const* moves = nullptr;  // of each slot, in the shape of its tensor; null: none
  double* kept = nullptr;                // rows of links before products, times losses; null: not kept
  Room<double> room = {};
  Row x = {}, y = {}, below = {}, gains = {}, shares = {}, products = {}, losses = {};
  std::vector<int64_t> columns = {};  // of a row, those that go choice by choice

  bool same() const { return ours.arena.others == theirs.arena.others; }
  const double* other() const { return same() ? x.data() : y.data(); }

  // Whether choices have losses by the entries of a table, and not only by what is below them.
  bool scored(int64_t slot) const { return !moves || moves[slot]; }

  // The moves of one item of an input, or of one of its tables; null: none.
  const double* move(int64_t slot, int64_t item, int64_t size, int64_t number = 0) const {
    if (!moves || !moves[slot]) return nullptr;
    return moves[slot] + (ours.shared(slot, item) * ours.table(slot)[8] + number) * size;
  }

  // A share times its loss here and below, of x of v in ours and y of w in theirs.
  double part(double share, double x, double v, double y, double w, double below) const {
    const double loss = below + less * (x - v) - more * (y - w), most = -kNever<double>;
    return x > kNever<double> ? loss < most ? share * loss : most : 0.0;
  }

  // Means over a row of alternatives: their log-values, whose sums are v and w, and the means below them.
  double choice(const double* x, const double* y, const double* below, int64_t ways, double v, double w) {
    if (!(v > kNever<double>)) return 0;
    shares.resize(ways);
    exps(shares.data(), x, v, ways);
    double sum = 0, total = 0, *share = shares.data();
#pragma omp simd reduction(+ : sum, total)
    for (int64_t a = 0; a < ways; ++a) {
      sum += part(share[a], x[a], v, y[a], w, below[a]);
      total += share[a];
    }
    return sum / total;
  }

  // The same for each column of alternatives (ways, count).
  void choices(const double* x, const double* y, const double* below, int64_t ways, int64_t count,
               const double* v, const double* w, double* out) {
    shares.assign(2 * count, 0.0);
    double *share = shares.data(), *total = share + count;
    std::fill(out, out + count, 0.0);
    for (int64_t a = 0; a < ways; ++a, x += count, y += count, below += count) {
      for (int64_t j = 0; j < count; ++j) share[j] = x[j] - finite(v[j]);
      exps(share, share, 0.0, count);
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) {
        out[j] += part(share[j], x[j], v[j], y[j], w[j], below[j]);
        total[j] += share[j];
      }
    }
    for (int64_t j = 0; j < count; ++j) out[j] = total[j] > 0 ? out[j] / total[j] : 0.0;
  }

  // The alternatives of a row of a link, or of pairs by splits: x and y, and the means below.
  void row(const Link<double>& link, int64_t item, int64_t place) {
    const auto read = [&](const Machine<double>& m, Row& to) {
      to.resize((link.rules ? link.splits : 1) * link.depth);
      double *at = to.data(), off;
      if (!link.rules) {
        const double* from = Link<double>(m, link.step).row_of(item, place, at, off);
        if (from != at) std::copy(from, from + link.depth, at);
      }
      for (int64_t s = 0; link.rules && s < link.splits; ++s) {
        const int64_t l = m.entry(link.left, s, item, place), r = m.entry(link.right, s, item, place);
        for (int64_t c = 0; c < link.firsts; ++c)
          for (int64_t e = 0; e < link.seconds; ++e)
            *at++ = l < 0 || r < 0 ? kNever<double> : m.arena[l + c] + m.arena[r + e];
      }
    };
    read(ours, x), read(means, below);
    if (!same()) read(theirs, y);
  }

  // Shares times their losses, which are finite; returns whether others are not.
  bool weighted(const double* share, const double* x, double v, const double* y, double w, const double* below,
                int64_t count, double* out) const {
    int barred = 0;
#pragma omp simd reduction(| : barred)
    for (int64_t i = 0; i < count; ++i) {
      const double one = part(share[i], x[i], v, y[i], w, below[i]);
      out[i] = one < -kNever<double> ? one : 0.0;
      barred |= !(one < -kNever<double>);
    }
    return barred;
  }

  // The row of a link, relative to its largest entries, times losses; those are returned, and whether theirs
  // forbids something. The loss of a pair is the sum of those of its parts.
  bool gains_of(const Link<double>& link, int64_t item, int64_t place, const double* weight, double* gain,
                double& top, double& peak) {
    if (!link.rules) {
      row(link, item, place);
      top = finite(largest(x.data(), link.depth));
      peak = finite(largest(other(), link.depth));
      return weighted(weight, x.data(), top, other(), peak, below.data(), link.depth, gain);
    }
    const int64_t firsts = link.firsts, seconds = link.seconds;
    bool barred = false;
    top = link.scaled_parts(item, place, room);
    peak = 0;
    std::fill(gain, gain + link.depth, 0.0);
    shares.resize(firsts + seconds);
    for (int64_t s = 0, some = 0; s < link.splits; ++s) {
      if (!(room.tops[s] > kNever<double>)) continue;
      const int64_t l = ours.entry(link.left, s, item, place), r = ours.entry(link.right, s, item, place);
      const double *one = room.left.data() + s * firsts, *two = room.right.data() + s * seconds;
      const Arena<double> &x = ours.arena, &y = theirs.arena, &below = means.arena;
      const double tops[] = {largest(x + l, firsts), largest(x + r, seconds)};
      const double peaks[] = {finite(largest(y + l, firsts)), finite(largest(y + r, seconds))};
      if (!some++) peak = peaks[0] + peaks[1];
      double *first = shares.data(), *second = first + firsts;
      barred |= weighted(one, x + l, top - tops[1], y + l, peak - peaks[1], below + l, firsts, first);
      barred |= weighted(two, x + r, tops[1], y + r, peaks[1], below + r, seconds, second);
      for (int64_t c = 0; c < firsts; ++c)
        for (int64_t e = 0; e < seconds; ++e) gain[c * seconds + e] += first[c] * two[e] + one[c] * second[e];
    }
    return barred;
  }

  // Whether all columns of a row that is read in order go choice by choice.
  bool is_dense(const Prepared<double>& t, const Link<double>& link) const {
    return !link.rules && t.column == 1 && int64_t(columns.size()) == t.columns;
  }

  // Means at some columns of a row of a link, choice by choice.
  void by_choices(const Link<double>& link, int64_t item, int64_t place) {
    const int64_t slot = link.step[3], number = link.step[10], count = columns.size();
    const Prepared<double> t = prepared(ours, slot, item, number), u = prepared(theirs, slot, item, number);
    const double* move_of = move(slot, item, t.rows * t.columns, number);
    const int64_t here = ours.at(link.out, item, place);
    row(link, item, place);
    const int64_t ways = x.size();
    if (!scored(slot) && is_dense(t, link)) {  // means of what is below
      const double* v = ours.arena + here;
      by_lanes<double>(count, [&](int64_t k, auto left) {
        const Lane<double> sum = load(v + k, left);
        Lane<double> total = {}, mean = {};
        for (int64_t i = 0; i < ways; ++i) {
          if (!(x[i] > kNever<double>)) continue;
          const Lane<double> share = exp_of<double>(load(t.logs + i * t.row + k, left) + x[i] - sum);
          total += share, mean += share * below[i];
        }
        store(means.arena + here + k, Lane<double>(mean / total), left);
      });
      return;
    }
    Row one(ways * count), two(ways * count), under(ways * count), sums(3 * count);
    const int64_t* at = columns.data();
    for (int64_t a = 0; a < ways; ++a) {
      const int64_t i = a % link.depth;
      const double *ours = t.logs + i * t.row, *theirs = u.logs + i * u.row;
      double *first = one.data() + a * count, *second = two.data() + a * count, *deep = under.data() + a * count;
#pragma omp simd
      for (int64_t k = 0; k < count; ++k) first[k] = x[a] + ours[at[k] * t.column];
#pragma omp simd
      for (int64_t k = 0; k < count; ++k) deep[k] = below[a] + (move_of ? move_of[i * t.columns + at[k]] : 0.0);
      for (int64_t k = 0; !same() && k < count; ++k) second[k] = y[a] + theirs[at[k] * u.column];
    }
    double *v = sums.data(), *w = v + count, *out = w + count;
    for (int64_t k = 0; k < count; ++k)
      v[k] = ours.arena[here + columns[k]], w[k] = theirs.arena[here + columns[k]];
    choices(one.data(), same() ? one.data() : two.data(), under.data(), ways, count, v, w, out);
    for (int64_t k = 0; k < count; ++k) means.arena[here + columns[k]] = out[k];
  }

  // Means over the rows of a link, by products; choice by choice where a table is read where it lies, near
  // underflow, and in rows or columns in which theirs forbids something.
  void linked(const int64_t* step, int64_t first, int64_t last) {
    const Link<double> link(ours, step);
    const int64_t *table = ours.table(step[3]), count = table[5], labels = ours.labels(link.out);
    const int64_t stride = panels_of(count, width<double>()) * width<double>(), depth = link.depth;
    const double low = faint<double>(depth * std::max<int64_t>(1, link.splits));
    const bool direct = table[7] < 0, own = scored(step[3]);
    gains.resize(kBlock * depth), products.resize(kBlock * stride), losses.resize(kBlock * stride);
    double tops[kBlock], peaks[kBlock];
    bool barred[kBlock];
    link.each_block(first, last, [&](int64_t which, int64_t q, int64_t some) {
      const Prepared<double> t = prepared(ours, step[3], which, step[10]);
      const Prepared<double> u = prepared(theirs, step[3], which, step[10]);
      const Prepared<double> scores = prepared(means, step[3], which, step[10]);
      const double* weights = link.before(ours.befores, which, q);
      const double* sums = link.after(ours.afters, which, q);
      double* gain = kept ? link.before(kept, which, q) : gains.data();
      if (!direct) link.each_row(q, some, [&](int64_t r, int64_t item, int64_t place) {
        barred[r] = gains_of(link, item, place, weights + r * depth, gain + r * depth, tops[r], peaks[r]);
      });
      if (!direct) by_panels(gain, some, depth, t.ahead, count, products.data(), false, 1);
      if (!direct && own) by_panels(weights, some, depth, scores.ahead, count, losses.data(), false, 1);
      link.each_row(q, some, [&](int64_t r, int64_t item, int64_t place) {
        const int64_t here = ours.at(link.out, item, place);
        const double *v = ours.arena + here, *w = theirs.arena + here, *sum = sums + r * count;
        const double *product = products.data() + r * stride, *loss = losses.data() + r * stride;
        double* out = means.arena + here;
        std::fill(out, out + labels, 0.0);
        columns.clear();
        for (int64_t j = 0; j < count; ++j) {
          if (!(v[j] > kNever<double>)) continue;
          if (direct || sum[j] < low || barred[r] || (own && scores.peaks[j] > 0)) {
            columns.push_back(j);
            continue;
          }
          const double ours = v[j] - tops[r] - t.peaks[j], theirs = w[j] - peaks[r] - u.peaks[j];
          out[j] = (product[j] + (own ? loss[j] : 0.0)) / sum[j] + more * theirs - less * ours;
        }
        if (!columns.empty()) by_choices(link, item, place);
      });
    });
  }

  // A table's weights times losses, in panels; beside them, in place of peaks, 1 for columns in which theirs
  // forbids something.
  void prepare_scored(int64_t slot, int64_t item, int64_t number) const {
    const Prepared<double> t = prepared(ours, slot, item, number);
    const Prepared<double> u = prepared(theirs, slot, item, number);
    const Prepared<double> scored = prepared(means, slot, item, number);
    const int64_t wide = width<double>();
    const double* along = move(slot, item, t.rows * t.columns, number);
    std::fill(scored.peaks, scored.peaks + t.columns, 0.0);
    std::fill(scored.ahead, scored.back, 0.0);
    for (int64_t j = 0; j < t.columns; ++j)
      for (int64_t i = 0; i < t.rows; ++i) {
        const int64_t at = (j / wide * t.rows + i) * wide + j % wide;
        const double one = t.logs[i * t.row + j * t.column], two = u.logs[i * u.row + j * u.column];
        const double score = part(t.ahead[at], one, t.peaks[j], two, u.peaks[j],
                                  along ? along[i * t.columns + j] : 0.0);
        if (score < -kNever<double>) scored.ahead[at] = score;
        else scored.peaks[j] = 1;
      }
  }

  void prepare_all_scored(int64_t slots) const {
    for (int64_t slot = 0; slot < slots; ++slot)
      for (int64_t item = 0; ours.table(slot)[7] >= 0 && scored(slot) && item < ours.table(slot)[1]; ++item)
        for (int64_t k = 0; k < ours.table(slot)[8]; ++k) {
          prepare_scored(slot, item, k);
          if (moves) prepare(prepared(means, slot, item, k), false, true);
        }
  }

  // Losses of entries that are given: their moves, or what theirs forbids.
  void given(int64_t from, int64_t count, const double* move) {
    for (int64_t k = 0; k < count; ++k)
      means.arena[from + k] = part(0.0, ours.arena[from + k], 0.0, theirs.arena[from + k], 0.0, 0.0) +
                              (move ? move[k] : 0.0);
  }

  // The alternatives at one place of a sum, or, if `some`, at so many of one label, and what is below them;
  // returns how many. Of one alternative only what is below it.
  int64_t alternatives_of(const int64_t* step, int64_t item, int64_t place, int64_t some) {
    int64_t ways = step[4];
    const int64_t labels = some ? some : ours.labels(step[1]);
    if (step[0] == kSummed) {
      const Link<double> link(ours, step);
      ways = link.depth;
      if (!some) return row(link, item, place), ways;
      step = ours.steps + kFields * link.inner;
    }
    const auto read = [&](const Machine<double>& m, Row& terms) {
      terms.resize(std::max<int64_t>(1, ways * labels));
      if (some) beside(m, step, item, place, some, terms.data());
      else alternatives(m, step, item, place, labels, 0.0, terms);
    };
    read(means, below);
    if (ways > 1) read(ours, x);
    if (ways > 1 && !same()) read(theirs, y);
    return ways;
  }

  // The means of a row of pairs over splits, given its log-values; of any other row what is below it.
  void row_means(const Link<double>& link, int64_t item, int64_t place, const double* v, const double* w,
                 double* out) {
    row(link, item, place);
    if (link.rules) choices(x.data(), other(), below.data(), link.splits, link.depth, v, w, out);
    else std::copy(below.begin(), below.end(), out);
  }

  // The means at one place of a sum, or, if `some`, at so many of one label.
  void summed(const int64_t* step, int64_t item, int64_t place, int64_t some) {
    const int64_t here = ours.at(step[1], item, place), labels = some ? some : ours.labels(step[1]);
    const double *v = ours.arena + here, *w = theirs.arena + here;
    double* to = means.arena + here;
    const int64_t ways = alternatives_of(step, item, place, some);
    if (ways == 1 && (some || step[0] == kTotal)) {
      for (int64_t j = 0; j < labels; ++j) to[j] = v[j] > kNever<double> ? below[j] : 0.0;
      return;
    }
    if (labels == 1) *to = choice(x.data(), other(), below.data(), ways, *v, *w);
    else choices(x.data(), other(), below.data(), ways, labels, v, w, to);
  }

  void run(int64_t first, int64_t last) {
    const Machine<double>& m = ours;
    for (int64_t item = first; item < last; ++item) {
      const int64_t size = m.size_of_sites();
      given(item * size, size, move(0, item, size));
    }
    for (int64_t n = 0; n < m.count; ++n) {
      const int64_t* step = m.steps + kFields * n;
      const int64_t out = step[1], places = m.places(out), kind = step[0];
      if (kind == kLinked || kind == kRules) linked(step, first, last);
      for (int64_t item = first; item < last; ++item) {
        const int64_t here = m.at(out, item, 0), labels = m.labels(out);
        if (kind == kGiven) given(here, places * labels, move(step[2], item, places * labels));
        if (kind == kSites)
          m.each_site(step, item, means.arena, [&](int64_t to, const double* from) {
            std::copy(from, from + labels, means.arena + to);
          });
        if (kind == kBeside || kind == kPicked || kind == kApart)
          moved(m, step, item, [&](int64_t to, int64_t from, double) {
            means.arena[to] = from < 0 ? 0.0 : means.arena[from];
          });
        for (int64_t place = 0; kind == kPairs && place < places; ++place) {
          const Link<double> link(m, step);
          const double *v = ours.arena + here + place * labels, *w = theirs.arena + here + place * labels;
          row_means(link, item, place, v, w, means.arena + here + place * labels);
        }
        if (kind != kTotal && kind != kSummed) continue;
        const int64_t hop = kind == kTotal ? run_of(m, step) : Link<double>(m, step).run();
        for (int64_t place = 0; place < places; place += hop)
          summed(step, item, place, hop > 1 ? std::min(hop, places - place) : 0);
      }
    }
    for (int64_t item = first; item < last; ++item) {
      const int64_t goal = m.at(m.count - 1, item, 0);
      const double sum = ours.arena[goal] + theirs.arena[goal];
      if (sum != sum) means.arena[goal] = sum;
    }
  }
};

}  // namespace
