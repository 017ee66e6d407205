// Tables in the form in which they are multiplied: values exp(log - peak) whose maximum is one, for sums, or logs
// whose maximum is zero, for maxima. It is made once, before the first sweep.
//
// Tables of few states, and of more than two variables, stand side by side: (vectors of factors, cells, lanes). Pairs
// of many states are matrices whose rows belong to the slot with fewer states. A table that all factors share is laid
// out once: as its cells, or for pairs as the panels of two matrices, one for each direction.

#pragma once

#include "pairs.h"

namespace {

template <typename Real, typename Work>
struct Layout {
  const Propagation<Real>& p;
  const KernelRecord& k;
  std::vector<Real> cells;  // of a table, with a maximum of one or zero

  Layout(const Propagation<Real>& given, const KernelRecord& of) : p(given), k(of), cells(of.cells) {}

  // Reads a table of an item; notes its peak and the lowest of its finite logs.
  void read(int64_t item, int64_t table) {
    const Real* logs = p.template at<const Real>(k.logs) + item * k.logs_item + table * k.logs_table;
    const Real peak = finite(largest<Real>(logs, k.cells));
    const bool sums = p.temperature > 0;
    Lane<Real> least = {};
    by_lanes<Real>(k.cells, [&](int64_t c, auto live) {
      const Lane<Real> log = load(logs + c, live) - peak;
      const Lane<Real> known = first_of<Real>(log > kNever<Real> ? log : Lane<Real>{}, live, 0);
      least = known < least ? known : least;
      store(cells.data() + c, sums ? exp_of<Real>(log) : log, live);
    });
    const Real low = -largest_lane(-least);
    const int64_t at = (k.values_item ? item * k.tables : 0) + table;
    p.template at<Real>(k.peaks)[at] = peak;
    p.template at<Real>(k.lows)[at] = low > Format<Real>::least ? low : kNever<Real>;  // else it underflowed
  }

  // Lays out the tables of some factors of an item, or of its tables where these are pairs.
  void run(int64_t item, int64_t first, int64_t last) {
    Real* values = p.template at<Real>(k.values) + item * k.values_item;
    for (int64_t f = first; f < last; ++f) {
      read(item, k.is_pairs ? f : p.table_of(k, f));
      if (k.is_pairs) {
        write_pair(values, f);
      } else if (k.tables == 1) {
        std::copy(cells.begin(), cells.end(), values);
      } else {
        for (int64_t c = 0; c < k.cells; ++c) values[lane_place<Work>(k, f, c)] = cells[c];
      }
    }
  }

  void write_pair(Real* values, int64_t table) {
    const PairShape shape(p.template at<const int64_t>(k.sizes));
    const Real absent = p.temperature > 0 ? Real(0) : kNever<Real>;
    if (k.tables == 1) {
      write_panels(values, shape, 0, absent);
      write_panels(values + shape.panels_at<Real>(1), shape, 1, absent);
      return;
    }
    Real* matrix = values + table * k.cells;
    if (!shape.turned) {
      std::copy(cells.begin(), cells.end(), matrix);
      return;
    }
    for (int64_t r = 0; r < shape.sizes[0]; ++r)
      for (int64_t c = 0; c < shape.sizes[1]; ++c) matrix[r * shape.sizes[1] + c] = cells[shape.cell(r, c)];
  }

  // The matrix by which what arrives at the other end is multiplied, for messages to an end.
  void write_panels(Real* panels, const PairShape& shape, int end, Real absent) {
    const int64_t wide = width<Real>(), depth = shape.sizes[1 - end];
    for (int64_t x = 0; x < panels_of(shape.sizes[end], wide) * wide; ++x)
      for (int64_t y = 0; y < depth; ++y) {
        const int64_t cell = end ? shape.cell(y, x) : shape.cell(x, y);
        panels[(x / wide * depth + y) * wide + x % wide] = x < shape.sizes[end] ? cells[cell] : absent;
      }
  }
};

// Lays out all tables of a model.
template <typename Real, typename Work> void lay_out(const Model& model, int threads) {
  const Propagation<Real> p(model);
  for (int64_t n = 0; n < model.kernel_count; ++n) {
    const KernelRecord& k = p.kernels[n];
    if (k.is_automaton) continue;
    const int64_t items = k.values_item ? model.batch : 1;
    const int64_t each = k.is_pairs || k.tables == 1 ? k.tables : k.factors;
    by_items(items * each, threads, [&](int64_t a, int64_t b) {
      Layout<Real, Work> layout(p, k);
      for (int64_t i = a; i < b;) {
        const int64_t item = i / each, last = std::min(b, (item + 1) * each);
        layout.run(item, i - item * each, last - item * each);
        i = last;
      }
    });
  }
}

}  // namespace
