// Rows of evidence, each by itself: log Z, marginals and expected counts of tables, by bucket
// elimination over the variables that a row lacks, in an order found for it. Rows in turn that lack the
// same variables are solved side by side: cell i of a table of a block of L rows has the places i L to
// i L + L - 1, one for each row.
//
// Dechter (1999), Bucket elimination: a unifying framework for reasoning. A bucket's table, over the
// variable it eliminates and its separator, becomes that of the variable given the separator by a
// division, so that the way back needs the parent's probabilities alone.
//
// With T_v the table of bucket v over v and its separator S, of log-values that are shifted to a peak of zero:
//
//   T_v(x_v, x_S) = prod of the factors and of the messages that arrive there,    m_v(x_S) = sum_(x_v) T_v(x_v, x_S),
//   p(x_v | x_S)  = T_v(x_v, x_S) / m_v(x_S)                                      (upwards),
//   p(x_v, x_S)   = p(x_v | x_S) p(x_S),    p(x_S) from the parent's p            (downwards).
//
// log Z is the sum of the logs of the roots' m_v and of all shifts; counts of tables are p summed over the rows.

#pragma once

#include <queue>
#include <utility>

#include "logs.h"
#include "threads.h"

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Integers: four counts (variables, factors, declared variables, entries), then the arrays in the
// order below; reals: logs, values, peaks and least.
struct Tables {
  int64_t variables, factors, declared, entries;
  const int64_t *sizes, *starts, *scopes, *offsets;              // the factors, as in a graph
  const int64_t *begins, *active, *left, *firsts, *columns;      // states declared, those remaining
  const double *logs, *values, *peaks, *least;  // values: exp(logs - peak), of each factor
  const int64_t* targets;                       // the place of a factor's counts, -1 for none

  Tables(const int64_t* i, const double* r, const int64_t* targets_)
      : variables(i[0]), factors(i[1]), declared(i[2]), entries(i[3]), targets(targets_) {
    sizes = i + 4;
    starts = sizes + variables;
    scopes = starts + factors + 1;
    offsets = scopes + starts[factors];
    begins = offsets + factors;
    active = begins + declared + 1;
    left = active + declared;
    firsts = left + begins[declared];
    columns = firsts + variables;
    logs = r;
    values = logs + entries;
    peaks = values + entries;
    least = peaks + factors;
  }
};

// Shared by all threads: neighbours of variables, and the strides of factors.
struct Near {
  std::vector<std::vector<int>> all;
  std::vector<int64_t> strides;

  explicit Near(const Tables& m) : all(m.variables), strides(m.starts[m.factors]) {
    for (int64_t f = 0; f < m.factors; ++f) {
      int64_t stride = 1;
      for (int64_t i = m.starts[f + 1]; i-- > m.starts[f]; stride *= m.sizes[m.scopes[i]]) {
        strides[i] = stride;
        for (int64_t j = m.starts[f]; j < m.starts[f + 1]; ++j)
          if (i != j) all[m.scopes[i]].push_back(int(m.scopes[j]));
      }
    }
    for (auto& near : all) {
      std::sort(near.begin(), near.end());
      near.erase(std::unique(near.begin(), near.end()), near.end());
    }
  }
};

// One thread's work on rows: the layout of a block of rows, kept where the next ones lack the same.
struct Eliminator {
  static constexpr int64_t kRun = 8, kBlock = 128;  // cells of a loop
  static constexpr int kLanes = 8;                  // rows of a block
  enum Outcome { kSolved, kImpossible, kDoubtful };
  struct Bucket {
    int variable, parent, factor, child, sibling;  // heads of lists, and the next one of a list
    int64_t dims, count, cells, table, message;    // the places of dims, entries, sums
    double peak[kLanes], least[kLanes];            // of the message, in its scale, of each row
  };

  const Tables& m;
  const Near& shared;
  double most, beside;  // cells of a row, and of all rows of a block

  std::vector<int> seen, before, place, dims, next, constant, merged;  // seen: (rows, variables)
  std::vector<std::vector<int>> near;
  std::vector<double> weight, tables, messages, sums, totals;
  std::vector<int> inner, outer;
  std::vector<int64_t> stride;
  std::vector<Bucket> buckets;
  double cells = 0.0, shift = 0.0;  // shift: the sum of the peaks of factors in buckets

  Eliminator(const Tables& tables_, const Near& near_, double most_, double beside_)
      : m(tables_), shared(near_), most(most_), beside(beside_), seen(kLanes * m.variables), place(m.variables),
        next(m.factors), near(m.variables), weight(m.variables), stride(m.variables) {}

  double weigh(int v) const {
    double product = double(m.sizes[v]);
    for (int u : near[v]) product *= double(m.sizes[u]);
    return product;
  }

  // The states of a row among those remaining, -1 where missing; false: one is impossible.
  bool read(const int64_t* row, int lane) {
    int* to = seen.data() + lane * m.variables;
    std::fill(to, to + m.variables, -1);
    for (int64_t v = 0; v < m.declared; ++v) {
      if (row[v] < 0) continue;
      const int64_t state = m.left[m.begins[v] + row[v]];
      if (state < 0) return false;
      if (m.active[v] >= 0) to[m.active[v]] = int(state);
    }
    return true;
  }

  // Whether a row lacks the variables of the layout.
  bool alike(int lane) const {
    if (before.empty()) return false;
    const int* now = seen.data() + lane * m.variables;
    for (int64_t v = 0; v < m.variables; ++v)
      if ((now[v] < 0) != (before[v] < 0)) return false;
    return true;
  }

  // Makes a row the first of a block.
  void begin_with(int lane) {
    const int* from = seen.data() + lane * m.variables;
    if (lane) std::copy(from, from + m.variables, seen.data());
  }

  // Buckets of the variables that a row lacks, those of least weight first; false: too many cells.
  bool lay_out() {
    if (alike(0)) return cells <= most;
    // The graph of the variables that this row lacks, with the weight of eliminating each: the cells of its
    // table.
    before.assign(seen.begin(), seen.begin() + m.variables);
    buckets.clear(), dims.clear(), constant.clear();
    cells = shift = 0.0;
    std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>,
                        std::greater<std::pair<double, int>>> queue;
    for (int v = 0; v < int(m.variables); ++v) {
      place[v] = -1;
      near[v].clear();
      if (seen[v] >= 0) continue;
      for (int u : shared.all[v])
        if (seen[u] < 0) near[v].push_back(u);
      queue.emplace(weight[v] = weigh(v), v);
    }
    // Greedy elimination, the fewest cells first; weights in the queue that have changed since are skipped.
    int64_t sums_used = 0;
    while (!queue.empty()) {
      const auto [least, v] = queue.top();
      queue.pop();
      if (place[v] >= 0 || least != weight[v]) continue;
      cells += least;
      if (cells > most) return false;
      place[v] = int(buckets.size());
      const int64_t entries = int64_t(least), first = int64_t(dims.size());
      buckets.push_back({v, -1, -1, -1, -1, first, int64_t(near[v].size()) + 1, entries,
                         int64_t(cells) - entries, sums_used, {}, {}});
      sums_used += entries / m.sizes[v];
      dims.push_back(v);
      dims.insert(dims.end(), near[v].begin(), near[v].end());
      // The neighbours of an eliminated variable become neighbours of one another.
      for (int u : near[v]) {
        merged.clear();
        std::set_union(near[u].begin(), near[u].end(), near[v].begin(), near[v].end(),
                       std::back_inserter(merged));
        merged.erase(std::remove_if(merged.begin(), merged.end(),
                                    [&](int w) { return w == u || w == v; }), merged.end());
        near[u].swap(merged);
        queue.emplace(weight[u] = weigh(u), u);
      }
    }
    const size_t rows = side_by_side() ? kLanes : 1;
    tables.resize(std::max(tables.size(), rows * size_t(cells)));
    messages.resize(std::max(messages.size(), rows * sums_used));
    sums.resize(std::max(sums.size(), rows * sums_used));
    // The parent of a bucket is the variable of its separator that is eliminated next: dims in this order.
    for (size_t k = buckets.size(); k-- > 0;) {
      Bucket& bucket = buckets[k];
      const auto begin = dims.begin() + bucket.dims;
      std::sort(begin, begin + bucket.count, [&](int a, int b) { return place[a] < place[b]; });
      if (bucket.count == 1) continue;
      bucket.parent = place[begin[1]];
      bucket.sibling = buckets[bucket.parent].child;
      buckets[bucket.parent].child = int(k);
    }
    // A factor belongs to the bucket of its variable that is eliminated first; one without such is a
    // constant of the row.
    for (int64_t f = m.factors; f-- > 0;) {
      int home = -1;
      for (int64_t i = m.starts[f]; i < m.starts[f + 1]; ++i) {
        const int slot = place[m.scopes[i]];
        if (slot >= 0 && (home < 0 || slot < home)) home = slot;
      }
      if (home < 0) {
        constant.push_back(int(f));
      } else {
        next[f] = buckets[home].factor;
        buckets[home].factor = int(f);
        shift += m.peaks[f];
      }
    }
    return true;
  }

  // Whether several rows of the layout are solved side by side.
  bool side_by_side() const { return kLanes * cells <= beside; }

  // The cells of all buckets, and those of the largest.
  void measure(double* to) {
    const bool fits = lay_out();
    to[0] = fits ? cells : kInfinite;
    to[1] = fits ? 0.0 : kInfinite;
    for (const Bucket& bucket : buckets) to[1] = std::max(to[1], double(bucket.cells));
  }

  // A factor's entry at the states that a row has.
  int64_t entry(int64_t f, int lane) const {
    int64_t at = 0;
    const int* states = seen.data() + lane * m.variables;
    for (int64_t i = m.starts[f]; i < m.starts[f + 1]; ++i) {
      const int state = states[m.scopes[i]];
      if (state > 0) at += state * shared.strides[i];
    }
    return at;
  }

  // Sets the strides of the variables of a factor that rows lack; whether they have none of it.
  bool set_strides(int64_t f) {
    bool none = true;
    for (int64_t i = m.starts[f]; i < m.starts[f + 1]; ++i) {
      const int64_t v = m.scopes[i];
      if (seen[v] >= 0) none = false;
      else stride[v] = shared.strides[i];
    }
    return none;
  }

  // Strides of the sums of a bucket, over its separator.
  void separate(const Bucket& bucket) {
    int64_t each = 1;
    for (int64_t i = bucket.count; i-- > 1; each *= m.sizes[dims[bucket.dims + i]])
      stride[dims[bucket.dims + i]] = each;
  }

  void spread(std::vector<int>& to, const int* first, const int* last) {
    to.assign(1, 0);
    while (last != first) {
      const int v = *--last, each = int(stride[v]), size = int(to.size());
      to.resize(size * m.sizes[v]);
      for (int s = 1; s < m.sizes[v]; ++s)
        for (int i = 0; i < size; ++i) to[s * size + i] = to[i] + s * each;
    }
  }

  // Calls for each cell of a bucket, with its place in a table of the strides set, which are reset.
  template <typename Act>
  void walk(const Bucket& bucket, Act act) {
    const int *first = dims.data() + bucket.dims, *last = first + bucket.count, *middle = last;
    const int64_t whole = stride[last[-1]] == 1;  // of the last variables, or without them
    int64_t size = 1;
    while (middle != first && stride[middle[-1]] == whole * size) size *= m.sizes[*--middle];
    const bool even = size >= kRun || middle == first;
    while (!even && middle != first && size <= kBlock) size *= m.sizes[*--middle];
    spread(outer, first, middle);
    if (!even) spread(inner, middle, last);
    for (size_t o = 0; o < outer.size(); ++o) {
      const int64_t to = int64_t(o) * size, from = outer[o];
      if (!even) {
        for (int64_t i = 0; i < size; ++i) act(to + i, from + inner[i]);
      } else if (whole) {
#pragma GCC ivdep
        for (int64_t i = 0; i < size; ++i) act(to + i, from + i);
      } else {
        for (int64_t i = 0; i < size; ++i) act(to + i, from);
      }
    }
    for (const int* v = first; v != last; ++v) stride[*v] = 0;
  }

  // Multiplies the table of a bucket by a factor, whose strides are set, at the states of each row.
  template <bool kLogs, int L>
  void multiply_factor(const Bucket& bucket, int64_t f, bool none) {
    double* table = tables.data() + L * bucket.table;
    const double* values = (kLogs ? m.logs : m.values) + m.offsets[f];
    if (L == 1 || none) {
      values += entry(f, 0);
      walk(bucket, [=](int64_t i, int64_t j) {
        const double value = values[j];
        for (int l = 0; l < L; ++l) {
          if (kLogs) table[i * L + l] += value;
          else table[i * L + l] *= value;
        }
      });
      return;
    }
    const double* from[L];
    for (int l = 0; l < L; ++l) from[l] = values + entry(f, l);
    walk(bucket, [=](int64_t i, int64_t j) {
      for (int l = 0; l < L; ++l) table[i * L + l] *= from[l][j];
    });
  }

  // Multiplies the table of a bucket by the sums of one below it.
  template <bool kLogs, int L>
  void multiply_message(const Bucket& bucket, const Bucket& child) {
    double* table = tables.data() + L * bucket.table;
    const double* from = messages.data() + L * child.message;
    separate(child);
    walk(bucket, [=](int64_t i, int64_t j) {
      for (int l = 0; l < L; ++l) {
        if (kLogs) table[i * L + l] += from[j * L + l];
        else table[i * L + l] *= from[j * L + l];
      }
    });
  }

  // Sums over the variable of a bucket, with their peak and least entry; in logarithms as they are.
  template <bool kLogs, int L>
  void sum(Bucket& bucket) {
    const int64_t size = m.sizes[bucket.variable], length = bucket.cells / size * L;
    const double* table = tables.data() + L * bucket.table;
    double* to = messages.data() + L * bucket.message;
    std::copy(table, table + length, to);
    for (int64_t s = 1; s < size; ++s) {
      const double* row = table + s * length;
#pragma GCC ivdep
      for (int64_t i = 0; i < length; ++i)
        to[i] = kLogs ? std::max(to[i], row[i]) : to[i] + row[i];
    }
    if (kLogs) {
      for (int64_t i = 0; i < length; ++i) {
        if (to[i] == -kInfinite) continue;
        double total = 0.0;
        for (int64_t s = 0; s < size; ++s) total += std::exp(table[s * length + i] - to[i]);
        to[i] += std::log(total);
      }
    }
    double peak[L], scale[L], least[L];
    for (int l = 0; l < L; ++l) peak[l] = to[l];
    for (int64_t i = 0; i < length; i += L)
      for (int l = 0; l < L; ++l) peak[l] = std::max(peak[l], to[i + l]);
    for (int l = 0; l < L; ++l) bucket.peak[l] = peak[l];
    if (kLogs) return;
    for (int l = 0; l < L; ++l) scale[l] = peak[l] > 0.0 ? 1.0 / peak[l] : 0.0, least[l] = 1.0;
    for (int64_t i = 0; i < length; i += L) {
      for (int l = 0; l < L; ++l) {
        const double value = to[i + l] *= scale[l];
        least[l] = value > 0.0 && value < least[l] ? value : least[l];
      }
    }
    for (int l = 0; l < L; ++l) bucket.least[l] = least[l];
  }

  // Log Z of the first `rows` rows of a block, and how each came out. In logarithms of one row.
  template <bool kLogs, int L>
  void up(int rows, double* log_z, Outcome* outcome) {
    double scale[L];
    for (int l = 0; l < L; ++l) {
      log_z[l] = kLogs ? 0.0 : shift, scale[l] = 1.0, outcome[l] = kSolved;
      for (int f : constant) log_z[l] += m.logs[m.offsets[f] + entry(f, l)];
      if (log_z[l] == -kInfinite) outcome[l] = kImpossible;
    }
    for (Bucket& bucket : buckets) {
      double* table = tables.data() + L * bucket.table;
      std::fill(table, table + L * bucket.cells, kLogs ? 0.0 : 1.0);
      double each = 1.0, least[L];
      for (int f = bucket.factor; f >= 0; f = next[f]) {
        multiply_factor<kLogs, L>(bucket, f, set_strides(f));
        each *= m.least[f];
      }
      for (int l = 0; l < L; ++l) least[l] = each;
      for (int c = bucket.child; c >= 0; c = buckets[c].sibling) {
        multiply_message<kLogs, L>(bucket, buckets[c]);
        for (int l = 0; l < L; ++l) least[l] *= buckets[c].least[l];
      }
      sum<kLogs, L>(bucket);
      for (int l = 0; l < rows; ++l) {
        if (outcome[l] != kSolved) continue;
        const double peak = bucket.peak[l];
        if (!kLogs && !(least[l] > 1e-290)) {
          outcome[l] = kDoubtful;
        } else if (peak == (kLogs ? -kInfinite : 0.0)) {
          outcome[l] = kImpossible;
        } else if (kLogs) {
          if (bucket.parent < 0) log_z[l] += peak;
        } else {
          // The product of peaks, of which a logarithm is taken before it leaves the range.
          if (peak < 1e-100 || !(scale[l] > 1e-150 && scale[l] < 1e150)) {
            log_z[l] += std::log(scale[l]) + std::log(peak);
            scale[l] = 1.0;
          } else {
            scale[l] *= peak;
          }
        }
      }
    }
    for (int l = 0; l < rows; ++l) log_z[l] += std::log(scale[l]);
  }

  // Tables become joint probabilities, roots first.
  template <bool kLogs, int L>
  void down() {
    for (size_t k = buckets.size(); k-- > 0;) {
      const Bucket& bucket = buckets[k];
      const int64_t length = bucket.cells / m.sizes[bucket.variable] * L;
      double *table = tables.data() + L * bucket.table, *above = sums.data() + L * bucket.message;
      const double* given = messages.data() + L * bucket.message;
      std::fill(above, above + length, bucket.parent < 0 ? 1.0 : 0.0);
      if (bucket.parent >= 0) {
        const Bucket& parent = buckets[bucket.parent];
        const double* joint = tables.data() + L * parent.table;
        separate(bucket);
        walk(parent, [=](int64_t i, int64_t j) {
          for (int l = 0; l < L; ++l) above[j * L + l] += joint[i * L + l];
        });
      }
      if (!kLogs) {
        for (int64_t i = 0; i < length; i += L)
          for (int l = 0; l < L; ++l)
            above[i + l] = given[i + l] > 0.0 ? above[i + l] / (given[i + l] * bucket.peak[l]) : 0.0;
      }
      for (int64_t s = 0; s < m.sizes[bucket.variable]; ++s) {
        double* row = table + s * length;
#pragma GCC ivdep
        for (int64_t i = 0; i < length; ++i) {
          if (!kLogs) row[i] *= above[i];
          else row[i] = above[i] > 0.0 ? std::exp(row[i] - given[i]) * above[i] : 0.0;
        }
      }
    }
  }

  template <int L, typename Real>
  void marginals(const int64_t* row, int lane, Real* to) {
    for (int64_t v = 0; v < m.declared; ++v) {
      if (row[v] >= 0) {
        to[m.begins[v] + row[v]] = 1;
      } else if (m.active[v] < 0) {
        for (int64_t s = m.begins[v]; s < m.begins[v + 1]; ++s) to[s] = m.left[s] == 0;
      }
    }
    for (const Bucket& bucket : buckets) {
      const int64_t size = m.sizes[bucket.variable], length = bucket.cells / size;
      const double* table = tables.data() + L * bucket.table + lane;
      totals.assign(size, 0.0);
      double total = 0.0;
      for (int64_t s = 0; s < size; ++s) {
        for (int64_t i = 0; i < length; ++i) totals[s] += table[(s * length + i) * L];
        total += totals[s];
      }
      const int64_t* columns = m.columns + m.firsts[bucket.variable];
      for (int64_t s = 0; s < size; ++s)
        if (columns[s] >= 0) to[columns[s]] = Real(totals[s] / total);
    }
  }

  // Adds the probabilities of the entries of factors, times the weight of each row, 0 for none; of all
  // rows to one place, or of each a `stride` further.
  template <int L>
  void count(const double* by, double* to, int64_t stride_of_rows) {
    for (int f : constant)
      for (int l = 0; l < L; ++l)
        if (m.targets[f] >= 0 && by[l] != 0.0)
          to[l * stride_of_rows + m.targets[f] + entry(f, l)] += by[l];
    for (const Bucket& bucket : buckets) {
      const double* table = tables.data() + L * bucket.table;
      for (int f = bucket.factor; f >= 0; f = next[f]) {
        if (m.targets[f] < 0) continue;
        const bool none = set_strides(f);
        if (none && !stride_of_rows) {
          double* counts = to + m.targets[f];
          walk(bucket, [=](int64_t i, int64_t j) {
            double total = 0.0;
            for (int l = 0; l < L; ++l) total += by[l] * table[i * L + l];
            counts[j] += total;
          });
          continue;
        }
        double* counts[L];
        for (int l = 0; l < L; ++l)
          counts[l] = to + (by[l] != 0.0 ? l * stride_of_rows : 0) + m.targets[f] + entry(f, l);
        walk(bucket, [&](int64_t i, int64_t j) {
          for (int l = 0; l < L; ++l) counts[l][j] += by[l] * table[i * L + l];
        });
      }
    }
  }
};

// What is asked of rows: log Z, and marginals and counts where given, of all rows together, weighted, or
// with a `stride` of each.
template <typename Real>
struct Asked {
  const int64_t* observed;
  const double* weights;
  double* log_z;
  Real* marginals;
  double* counts;
  int64_t stride;
};

// Answers `many` rows of one layout from `first` on, those in doubt one by one in logarithms.
template <int L, typename Real>
void answer_block(Eliminator& solver, const Asked<Real>& asked, int64_t first, int many, double* counts) {
  const Tables& m = solver.m;
  const int64_t states = m.begins[m.declared];
  // Places without a row repeat the first one, and count for nothing.
  for (int l = many; l < L; ++l)
    std::copy(solver.seen.begin(), solver.seen.begin() + m.variables,
              solver.seen.begin() + l * m.variables);
  double log_z[L], by[L];
  Eliminator::Outcome outcome[L];
  solver.template up<false, L>(many, log_z, outcome);
  bool back = false;
  for (int l = 0; l < L; ++l) {
    const bool solved = l < many && outcome[l] == Eliminator::kSolved;
    by[l] = solved && asked.counts ? (asked.stride ? 1.0 : asked.weights[first + l]) : 0.0;
    back = back || (solved && asked.marginals) || by[l] != 0.0;
    if (l < many) asked.log_z[first + l] = solved ? log_z[l] : -kInfinite;
  }
  if (back) {
    solver.template down<false, L>();
    for (int l = 0; asked.marginals && l < many; ++l)
      if (outcome[l] == Eliminator::kSolved)
        solver.template marginals<L>(asked.observed + (first + l) * m.declared, l,
                                     asked.marginals + (first + l) * states);
    if (asked.counts) solver.template count<L>(by, counts + first * asked.stride, asked.stride);
  }
  for (int l = 0; l < many; ++l) {
    if (outcome[l] != Eliminator::kDoubtful) continue;
    const int64_t r = first + l, *row = asked.observed + r * m.declared;
    solver.begin_with(l);
    solver.template up<true, 1>(1, log_z, outcome + l);
    if (outcome[l] != Eliminator::kSolved) continue;
    asked.log_z[r] = log_z[0];
    const double one = asked.counts ? (asked.stride ? 1.0 : asked.weights[r]) : 0.0;
    if (!asked.marginals && one == 0.0) continue;
    solver.template down<true, 1>();
    if (asked.marginals) solver.template marginals<1>(row, 0, asked.marginals + r * states);
    if (one != 0.0) solver.template count<1>(&one, counts + r * asked.stride, asked.stride);
  }
}

// For each row what it takes where `cells` is given, else what is asked.
template <typename Real>
void rows_of_evidence(const Tables& m, const int64_t* observed, const double* weights,
                      double* log_z, Real* marginals, double* counts, double* cells, int64_t rows,
                      int64_t entries, int64_t stride, double most, double beside, int threads) {
  const Near near(m);
  const Asked<Real> asked{observed, weights, log_z, marginals, counts, stride};
  std::vector<std::vector<double>> parts(threads);
  by_items(rows, threads, [&](int64_t first, int64_t last) {
    Eliminator solver(m, near, most, beside);
    std::vector<double>& part = parts[thread_number()];
    if (counts && !stride) part.resize(entries);
    double* to = stride ? counts : part.data();
    for (int64_t r = first; r < last; ++r) {
      if (!solver.read(observed + r * m.declared, 0)) {
        if (!cells) log_z[r] = -kInfinite;
        continue;
      }
      if (cells) {
        solver.measure(cells + 2 * r);
        continue;
      }
      if (!solver.lay_out()) {
        log_z[r] = std::nan("");
        continue;
      }
      int many = 1;
      while (solver.side_by_side() && many < Eliminator::kLanes && r + many < last &&
             solver.read(observed + (r + many) * m.declared, many) && solver.alike(many))
        ++many;
      if (many > 1) answer_block<Eliminator::kLanes>(solver, asked, r, many, to);
      else answer_block<1>(solver, asked, r, 1, to);
      r += many - 1;
    }
  });
  for (const auto& part : parts)
    for (size_t i = 0; i < part.size(); ++i) counts[i] += part[i];
}

}  // namespace
