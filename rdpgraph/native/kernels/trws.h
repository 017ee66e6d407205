// Sequential tree-reweighted messages (Kolmogorov 2006) between variables that share a pairwise factor,
// for maxima and, as power sums, for log Z.
//
// Variables are visited in order, or in reverse. Variable s collects its belief
//   b(x) = unary(x) + the messages into s(x),
// and sends along each factor to a later variable t
//   m(y) = max over x of [w b(x) - (the message from t)(x) + table(x, y)],
// shifted to a maximum of zero. The shares w of a variable's belief add up to one or less. At a
// temperature above zero the maximum is a sum of powers: v log sum exp(. / v), v = w temperature. A state
// whose message is -inf is impossible, and stays so.

#pragma once

#include <vector>

#include "logs.h"

namespace {

struct Reweighted {
  const int64_t* starts;           // of each variable's states
  const int64_t* edges;            // five rows: row and column variable, table, messages into both
  const int64_t* incident_starts;  // of each variable in `incident`
  const int64_t* incident;         // twice the edge, and one more where the variable is its column
  const double* unary;
  const double* tables;  // (rows, columns) from each edge's first entry on
  double* messages;
  int64_t* states;  // the configuration that is read off, or null
  int64_t variables, count;
  double temperature;
  double low;    // stands for -inf where a configuration is read off: fewer violations are better
  bool evenly;  // a belief is shared among the later factors alone, else as in Kolmogorov's paper

  std::vector<double> belief, sent;

  int64_t size(int64_t v) const { return starts[v + 1] - starts[v]; }

  // An edge as one of its variables sees it.
  struct End {
    int64_t other, table;
    const double* in;  // the message from the other variable
    double* out;
    bool column;  // this variable is the column of the table
  };
  End end(int64_t half) const {
    const int64_t e = half >> 1;
    const bool column = half & 1;
    double *to_row = messages + edges[3 * count + e], *to_column = messages + edges[4 * count + e];
    return {edges[(column ? 0 : 1) * count + e], edges[2 * count + e], column ? to_column : to_row,
            column ? to_row : to_column, column};
  }

  // The first of the states with the best score, given the states of the variables before.
  int64_t best(int64_t v, bool forward) {
    const int64_t k = size(v);
    std::vector<double>& score = sent;
    for (int64_t x = 0; x < k; ++x) score[x] = std::max(unary[starts[v] + x], low);
    for (int64_t i = incident_starts[v]; i < incident_starts[v + 1]; ++i) {
      const End e = end(incident[i]);
      if ((e.other > v) == forward) {
        for (int64_t x = 0; x < k; ++x) score[x] += std::max(e.in[x], low);
      } else {
        const int64_t y = states[e.other], across = e.column ? 1 : size(e.other);
        const double* from = tables + e.table + (e.column ? y * k : y);
        for (int64_t x = 0; x < k; ++x) score[x] += std::max(from[x * across], low);
      }
    }
    return std::max_element(score.begin(), score.begin() + k) - score.begin();
  }

  // out(y) from sent(x), where this variable is the row: over all y at a time.
  void along_columns(const double* table, double* out, int64_t k, int64_t others, double power) {
    std::fill(out, out + others, kNever<double>);
    for (int64_t x = 0; x < k; ++x) {
      for (int64_t y = 0; y < others; ++y) out[y] = std::max(out[y], sent[x] + table[x * others + y]);
    }
    if (!(power > 0)) return;
    by_lanes<double>(others, [&](int64_t y, auto left) {
      const Lane<double> top = load(out + y, left);
      const Lane<double> peak = top > kNever<double> ? top : Lane<double>{};
      Lane<double> sum = {};
      for (int64_t x = 0; x < k; ++x) {
        sum += exp_of<double>((load(table + x * others + y, left) + sent[x] - peak) / power);
      }
      store(out + y, Lane<double>(log_of<double>(sum) * power + peak), left);
    });
  }

  // out(x) from sent(y), where this variable is the column: each row by itself.
  void along_rows(const double* table, double* out, int64_t k, int64_t others, double power) {
    for (int64_t x = 0; x < others; ++x, table += k) {
      double peak = kNever<double>;
      for (int64_t y = 0; y < k; ++y) peak = std::max(peak, sent[y] + table[y]);
      out[x] = peak;
      if (!(power > 0 && peak > kNever<double>)) continue;
      double sum = 0;
      for (int64_t y = 0; y < k; ++y) sum += std::exp((sent[y] + table[y] - peak) / power);
      out[x] += power * std::log(sum);
    }
  }

  void visit(int64_t v, bool forward) {
    const int64_t k = size(v), first = incident_starts[v], last = incident_starts[v + 1];
    std::copy_n(unary + starts[v], k, belief.begin());
    int64_t later = 0;
    for (int64_t i = first; i < last; ++i) {
      const End e = end(incident[i]);
      for (int64_t x = 0; x < k; ++x) belief[x] += e.in[x];
      later += (e.other > v) == forward;
    }
    const int64_t shares = evenly ? later : std::max(later, last - first - later);
    const double share = 1.0 / double(std::max<int64_t>(shares, 1));
    for (int64_t i = first; i < last; ++i) {
      const End e = end(incident[i]);
      if ((e.other > v) != forward) continue;
      for (int64_t x = 0; x < k; ++x) {
        sent[x] = belief[x] > kNever<double> ? share * belief[x] - e.in[x] : kNever<double>;
      }
      const int64_t others = size(e.other);
      const auto along = e.column ? &Reweighted::along_rows : &Reweighted::along_columns;
      (this->*along)(tables + e.table, e.out, k, others, share * temperature);
      const double peak = *std::max_element(e.out, e.out + others);
      if (!(peak > kNever<double>)) continue;
      for (int64_t y = 0; y < others; ++y) e.out[y] -= peak;
    }
  }

  // Visits every variable so many times, in turns of direction; reads a configuration off the last turn.
  void run(int64_t sweeps, bool forward) {
    int64_t most = 1;
    for (int64_t v = 0; v < variables; ++v) most = std::max(most, size(v));
    belief.resize(most);
    sent.resize(most);
    for (; sweeps > 0; --sweeps, forward = !forward) {
      for (int64_t i = 0; i < variables; ++i) {
        const int64_t v = forward ? i : variables - 1 - i;
        if (states && sweeps == 1) states[v] = best(v, forward);
        visit(v, forward);
      }
    }
  }
};

// The terms of a bound by any messages, one for each edge: of the variable s that is visited first, with
// n(s) edges to later variables, and t,
//   max over y of  v log sum over x of exp((b_s(x) / n(s) - m_ts(x) + table(x, y) - m_st(y)) / v),
// v = temperature / n(s); the maximum over x at temperature zero. `rdpgraph.engines.trws.bound` derives it.
// Each number is raised by the rounding of all operations on it, so that no term is too small.
struct ReweightedBound {
  const int64_t *starts, *edges;
  const double *tables, *messages;
  const double* beliefs;   // raised already
  const int64_t* later;    // n(s)
  double* terms;
  int64_t variables, count;
  double temperature, rounding;  // relative, of all operations on a number

  double raised(double value, double size) const {
    return value > kNever<double> ? value + rounding * size : kNever<double>;
  }

  void run(bool forward) {
    int64_t most = 1;
    for (int64_t v = 0; v < variables; ++v) most = std::max(most, starts[v + 1] - starts[v]);
    std::vector<double> sent(most), back(most), top(most);
    for (int64_t e = 0; e < count; ++e) {
      const int64_t row = edges[e], column = edges[count + e];
      const bool swapped = (row < column) != forward;  // the column comes first
      const int64_t s = swapped ? column : row, t = swapped ? row : column;
      const int64_t k = starts[s + 1] - starts[s], l = starts[t + 1] - starts[t];
      const double* table = tables + edges[2 * count + e];
      const double* into_s = messages + edges[(swapped ? 4 : 3) * count + e];
      const double* into_t = messages + edges[(swapped ? 3 : 4) * count + e];
      const double share = 1.0 / double(later[s]);
      for (int64_t x = 0; x < k; ++x) {
        const double own = beliefs[starts[s] + x];
        if (!(own > kNever<double>)) {
          sent[x] = kNever<double>;  // an impossible state has no message that could be taken back
          continue;
        }
        const double part = share * own;
        sent[x] = raised(part - into_s[x], std::abs(part) + std::abs(into_s[x]));
      }
      for (int64_t y = 0; y < l; ++y) {
        back[y] = into_t[y] > kNever<double> ? raised(-into_t[y], std::abs(into_t[y])) : kNever<double>;
      }
      // Strides of x and of y in the table.
      const int64_t a = swapped ? 1 : l, b = swapped ? k : 1;
      const auto at = [&](int64_t x, int64_t y) {
        const double value = table[x * a + y * b];
        return value > kNever<double> ? value + rounding * std::abs(value) + sent[x] + back[y]
                                      : kNever<double>;
      };
      double best = kNever<double>;
      if (swapped) {
        for (int64_t y = 0; y < l; ++y) {
          double peak = kNever<double>;
          for (int64_t x = 0; x < k; ++x) peak = std::max(peak, at(x, y));
          best = std::max(best, over_first(peak, k, share, [&](int64_t x) { return at(x, y); }));
        }
      } else {
        std::fill_n(top.begin(), l, kNever<double>);
        for (int64_t x = 0; x < k; ++x) {
          for (int64_t y = 0; y < l; ++y) top[y] = std::max(top[y], at(x, y));
        }
        for (int64_t y = 0; y < l; ++y) {
          best = std::max(best, over_first(top[y], k, share, [&](int64_t x) { return at(x, y); }));
        }
      }
      terms[e] = best;
    }
  }

  // The power sum of k values with this maximum, rounded upwards; at temperature zero the maximum.
  template <typename At> double over_first(double peak, int64_t k, double share, At at) const {
    if (!(temperature > 0 && peak > kNever<double>)) return peak;
    const double power = share * temperature;
    double sum = 0;
    for (int64_t x = 0; x < k; ++x) sum += std::exp((at(x) - peak) / power);
    const double logs = std::log(sum);
    return raised(peak + power * logs, std::abs(peak) + power * (double(k) + std::abs(logs)));
  }
};

}  // namespace
