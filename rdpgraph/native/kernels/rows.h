// Rows of evidence, each by itself: log Z, marginals and expected counts of tables, by bucket
// elimination over the variables that a row lacks, in an order found for it.
//
// Dechter (1999), Bucket elimination: a unifying framework for reasoning. A bucket's table, over the
// variable it eliminates and its separator, becomes that of the variable given the separator by a
// division, so that the way back needs the parent's probabilities alone.

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

// One thread's work on rows: the layout of one row at a time, kept where the next row lacks the same.
struct Eliminator {
  static constexpr int64_t kRun = 8, kBlock = 128;  // cells of a loop
  enum Outcome { kSolved, kImpossible, kDoubtful };
  struct Bucket {
    int variable, parent, factor, child, sibling;  // heads of lists, and the next one of a list
    int64_t dims, count, cells, table, message;    // the places of dims, entries, sums
    double peak, least;                            // of the message, in its scale
  };

  const Tables& m;
  const Near& shared;
  double most;

  std::vector<int> seen, before, place, dims, next, constant, merged;
  std::vector<std::vector<int>> near;
  std::vector<double> weight, tables, messages, sums, totals;
  std::vector<int> inner, outer;
  std::vector<int64_t> stride;
  std::vector<Bucket> buckets;
  double cells = 0.0;

  Eliminator(const Tables& tables_, const Near& near_, double most_)
      : m(tables_), shared(near_), most(most_), seen(m.variables), place(m.variables),
        next(m.factors), near(m.variables), weight(m.variables), stride(m.variables) {}

  double weigh(int v) const {
    double product = double(m.sizes[v]);
    for (int u : near[v]) product *= double(m.sizes[u]);
    return product;
  }

  // The states of a row among those remaining, -1 where missing; false: one is impossible.
  bool read(const int64_t* row) {
    std::fill(seen.begin(), seen.end(), -1);
    for (int64_t v = 0; v < m.declared; ++v) {
      if (row[v] < 0) continue;
      const int64_t state = m.left[m.begins[v] + row[v]];
      if (state < 0) return false;
      if (m.active[v] >= 0) seen[m.active[v]] = int(state);
    }
    return true;
  }

  bool alike() const {
    if (before.size() != seen.size()) return false;
    for (size_t v = 0; v < seen.size(); ++v)
      if ((seen[v] < 0) != (before[v] < 0)) return false;
    return true;
  }

  // Buckets of the variables that a row lacks, those of least weight first; false: too many cells.
  bool lay_out() {
    if (alike()) return cells <= most;
    before = seen;
    buckets.clear(), dims.clear(), constant.clear();
    cells = 0.0;
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
                         int64_t(cells) - entries, sums_used, 0.0, 0.0});
      sums_used += entries / m.sizes[v];
      dims.push_back(v);
      dims.insert(dims.end(), near[v].begin(), near[v].end());
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
    tables.resize(std::max(tables.size(), size_t(cells)));
    messages.resize(std::max(messages.size(), size_t(sums_used)));
    sums.resize(std::max(sums.size(), size_t(sums_used)));
    for (size_t k = buckets.size(); k-- > 0;) {
      Bucket& bucket = buckets[k];
      const auto begin = dims.begin() + bucket.dims;
      std::sort(begin, begin + bucket.count, [&](int a, int b) { return place[a] < place[b]; });
      if (bucket.count == 1) continue;
      bucket.parent = place[begin[1]];
      bucket.sibling = buckets[bucket.parent].child;
      buckets[bucket.parent].child = int(k);
    }
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
      }
    }
    return true;
  }

  // The cells of all buckets, and those of the largest.
  void measure(double* to) {
    const bool fits = lay_out();
    to[0] = fits ? cells : kInfinite;
    to[1] = fits ? 0.0 : kInfinite;
    for (const Bucket& bucket : buckets) to[1] = std::max(to[1], double(bucket.cells));
  }

  // A factor's entry at the states that a row has; strides of those it lacks, where asked for.
  int64_t entry(int64_t f, bool strides) {
    int64_t at = 0;
    for (int64_t i = m.starts[f]; i < m.starts[f + 1]; ++i) {
      const int64_t v = m.scopes[i];
      if (seen[v] >= 0) at += seen[v] * shared.strides[i];
      else if (strides) stride[v] = shared.strides[i];
    }
    return at;
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

  template <bool kLogs>
  void multiply(const Bucket& bucket, const double* from) {
    double* table = tables.data() + bucket.table;
    walk(bucket, [=](int64_t i, int64_t j) {
      if (kLogs) table[i] += from[j];
      else table[i] *= from[j];
    });
  }

  // Sums over the variable of a bucket, with their peak and least entry; in logarithms as they are.
  template <bool kLogs>
  void sum(Bucket& bucket) {
    const int64_t size = m.sizes[bucket.variable], length = bucket.cells / size;
    const double* table = tables.data() + bucket.table;
    double* to = messages.data() + bucket.message;
    std::copy(table, table + length, to);
    double peak = to[0];
    for (int64_t s = 1; s < size; ++s) {
      const double* row = table + s * length;
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
    for (int64_t i = 0; i < length; ++i) peak = std::max(peak, to[i]);
    bucket.peak = peak;
    if (kLogs) return;
    double least = 1.0;
    const double scale = peak > 0.0 ? 1.0 / peak : 0.0;
    for (int64_t i = 0; i < length; ++i) {
      to[i] *= scale;
      if (to[i] > 0.0 && to[i] < least) least = to[i];
    }
    bucket.least = least;
  }

  template <bool kLogs>
  Outcome up(double& log_z) {
    log_z = 0.0;
    for (int f : constant) log_z += m.logs[m.offsets[f] + entry(f, false)];
    if (log_z == -kInfinite) return kImpossible;
    for (Bucket& bucket : buckets) {
      double* table = tables.data() + bucket.table;
      std::fill(table, table + bucket.cells, kLogs ? 0.0 : 1.0);
      double least = 1.0;
      for (int f = bucket.factor; f >= 0; f = next[f]) {
        const int64_t at = m.offsets[f] + entry(f, true);
        multiply<kLogs>(bucket, (kLogs ? m.logs : m.values) + at);
        least *= m.least[f];
        if (!kLogs) log_z += m.peaks[f];
      }
      for (int c = bucket.child; c >= 0; c = buckets[c].sibling) {
        separate(buckets[c]);
        multiply<kLogs>(bucket, messages.data() + buckets[c].message);
        least *= buckets[c].least;
      }
      if (!kLogs && !(least > 1e-290)) return kDoubtful;
      sum<kLogs>(bucket);
      if (bucket.peak == (kLogs ? -kInfinite : 0.0)) return kImpossible;
      if (!kLogs) log_z += std::log(bucket.peak);
      else if (bucket.parent < 0) log_z += bucket.peak;
    }
    return kSolved;
  }

  // Tables become joint probabilities, roots first.
  template <bool kLogs>
  void down() {
    for (size_t k = buckets.size(); k-- > 0;) {
      const Bucket& bucket = buckets[k];
      const int64_t length = bucket.cells / m.sizes[bucket.variable];
      double *table = tables.data() + bucket.table, *above = sums.data() + bucket.message;
      const double* given = messages.data() + bucket.message;
      std::fill(above, above + length, bucket.parent < 0 ? 1.0 : 0.0);
      if (bucket.parent >= 0) {
        const Bucket& parent = buckets[bucket.parent];
        const double* joint = tables.data() + parent.table;
        separate(bucket);
        walk(parent, [=](int64_t i, int64_t j) { above[j] += joint[i]; });
      }
      if (!kLogs)
        for (int64_t i = 0; i < length; ++i)
          above[i] = given[i] > 0.0 ? above[i] / (given[i] * bucket.peak) : 0.0;
      for (int64_t s = 0; s < m.sizes[bucket.variable]; ++s) {
        double* row = table + s * length;
        for (int64_t i = 0; i < length; ++i) {
          if (!kLogs) row[i] *= above[i];
          else row[i] = above[i] > 0.0 ? std::exp(row[i] - given[i]) * above[i] : 0.0;
        }
      }
    }
  }

  Outcome run(double& log_z, bool back) {
    Outcome outcome = up<false>(log_z);
    const bool logs = outcome == kDoubtful;
    if (logs) outcome = up<true>(log_z);
    if (back && outcome == kSolved) logs ? down<true>() : down<false>();
    return outcome;
  }

  template <typename Real>
  void marginals(const int64_t* row, Real* to) {
    for (int64_t v = 0; v < m.declared; ++v) {
      if (row[v] >= 0) {
        to[m.begins[v] + row[v]] = 1;
      } else if (m.active[v] < 0) {
        for (int64_t s = m.begins[v]; s < m.begins[v + 1]; ++s) to[s] = m.left[s] == 0;
      }
    }
    for (const Bucket& bucket : buckets) {
      const int64_t size = m.sizes[bucket.variable], length = bucket.cells / size;
      const double* table = tables.data() + bucket.table;
      totals.assign(size, 0.0);
      double total = 0.0;
      for (int64_t s = 0; s < size; ++s) {
        for (int64_t i = 0; i < length; ++i) totals[s] += table[s * length + i];
        total += totals[s];
      }
      const int64_t* columns = m.columns + m.firsts[bucket.variable];
      for (int64_t s = 0; s < size; ++s)
        if (columns[s] >= 0) to[columns[s]] = Real(totals[s] / total);
    }
  }

  // Adds the probabilities of the entries of factors, times a weight.
  void count(double by, double* to) {
    for (int f : constant)
      if (m.targets[f] >= 0) to[m.targets[f] + entry(f, false)] += by;
    for (const Bucket& bucket : buckets) {
      const double* table = tables.data() + bucket.table;
      for (int f = bucket.factor; f >= 0; f = next[f]) {
        if (m.targets[f] < 0) continue;
        double* counts = to + m.targets[f] + entry(f, true);
        walk(bucket, [=](int64_t i, int64_t j) { counts[j] += by * table[i]; });
      }
    }
  }
};

// For each row what it takes where `cells` is given, else log Z, and marginals and counts where given:
// of all rows together, weighted, or with a `stride` of each.
template <typename Real>
void rows_of_evidence(const Tables& m, const int64_t* observed, const double* weights,
                      double* log_z, Real* marginals, double* counts, double* cells, int64_t rows,
                      int64_t entries, int64_t stride, double most, int threads) {
  const Near near(m);
  const int64_t states = m.begins[m.declared];
  std::vector<std::vector<double>> parts(threads);
  by_items(rows, threads, [&](int64_t first, int64_t last) {
    Eliminator solver(m, near, most);
    std::vector<double>& part = parts[thread_number()];
    if (counts && !stride) part.resize(entries);
    for (int64_t r = first; r < last; ++r) {
      const int64_t* row = observed + r * m.declared;
      if (cells) {
        if (solver.read(row)) solver.measure(cells + 2 * r);
        continue;
      }
      log_z[r] = -kInfinite;
      if (!solver.read(row)) continue;
      if (!solver.lay_out()) {
        log_z[r] = std::nan("");
        continue;
      }
      const bool back = marginals || (counts && (stride || weights[r] != 0.0));
      if (solver.run(log_z[r], back) != Eliminator::kSolved) {
        log_z[r] = -kInfinite;
        continue;
      }
      if (marginals) solver.marginals(row, marginals + r * states);
      if (counts && back) solver.count(stride ? 1.0 : weights[r], stride ? counts + r * stride : part.data());
    }
  });
  for (const auto& part : parts)
    for (size_t i = 0; i < part.size(); ++i) counts[i] += part[i];
}

}  // namespace
