// One run of a program: its records, the numbers of its tables, and what every stage needs of them.
//
// A step's items and places are the rows of one matrix product, or the entries of one vector. Rows are
// logs relative to a level in double, so that long recurrences keep their digits in float. Sums of
// products that come near underflow are taken again in logs, so no result depends on how far scores are
// apart.

#pragma once

#include "../arrays.h"
#include "../flushed.h"
#include "../logs.h"
#include "../threads.h"
#include "records.h"

namespace {

// Sums of products below this have lost terms to underflow.
template <typename Real> Real faint(int64_t terms) {
  typedef std::numeric_limits<Real> Limits;
  return Limits::min() / Limits::epsilon() * Real(terms);
}

constexpr double kWide = 64;     // nats, up to which float32 keeps 18 binary digits after the point
constexpr int64_t kBlock = 64;   // rows of a product
constexpr int64_t kKept = 256;   // rows whose outer products are added to a gradient together
constexpr int64_t kTerms = 64;           // terms of a pair's cell that are drawn from at once
constexpr int64_t kCached = 1 << 12;     // numbers of a matrix that stay in the nearest cache while it is used for one row
constexpr int64_t kManyDraws = 16;       // of an item, for which terms are kept
constexpr double kLeastWork = 1 << 17;   // multiply-adds of a thread, some 30 us
constexpr int64_t kRemembered = 1 << 22; // numbers of terms that are kept for the draws of an item

// Values from low to high, none where high is below low.
struct Span { int64_t low, high; };

// a / b, rounded down.
inline int64_t below(int64_t a, int64_t b) { return b == 1 ? a : a >= 0 ? a / b : -((-a + b - 1) / b); }

// Where in a program: the step, the places of the outer axes, and the outer loop.
struct At { int64_t s, q = 0, u = 0, w = 0, o = 0; };

// What is summed over at a place: a value of the outer loop, in `s`, and one of the inner loop.
struct Split { At s; int64_t r; };

constexpr int64_t kLooks = 4;  // indices of one entry that are data, at most

// The entries of a tensor that a row of labels or places reads: `hop` apart, and further by indices that are
// data; and their levels.
struct Line {
  int64_t at, hop, looks = 0;
  const int64_t* numbers[kLooks];
  int64_t apart[kLooks], stride[kLooks];
  const double* levels = nullptr;
  int64_t level_hop = 0;
  // The numbers that say, one after the other, where entries are from `at` on; null: they are not all of it.
  const int64_t* listed() const {
    return looks == 1 && !hop && apart[0] == 1 && stride[0] == 1 ? numbers[0] : nullptr;
  }
  int64_t operator()(int64_t k) const {
    int64_t sum = at + k * hop;
    for (int64_t l = 0; l < looks; ++l) sum += stride[l] * numbers[l][k * apart[l]];
    return sum;
  }
};

// A matrix of a link, prepared: exponentials relative to each column's peak, in panels for products with
// rows before it (ahead) and, transposed, with rows after it (back).
template <typename Real> struct Table {
  const Real* logs;
  Real *peaks, *ahead, *back;
};

template <typename Real, int K> struct Lanes;

template <typename Real> struct Run {
  const Whole& whole;
  const Stage* stages;
  const Alternative* alternatives;
  const FactorRecord* factors;
  const Look* looks;
  const Form* forms;
  const Run* const leader;  // that has prepared what items share; itself, or another thread's run
  // Of the items of this run, which may be some of a batch; item 0 is the first of them.
  Real* const* data = nullptr;    // by slot; 0: tables
  double* levels = nullptr;
  Real* const* grads = nullptr;   // by slot, or null: not wanted
  int64_t batch = 0;
  const int64_t* ends = nullptr;  // the step of each goal, those of one goal after the other
  int64_t ends_apart = 0;         // how far from one goal to the next
  // Whether the largest log of some row was as far from 0 as lacks digits of float32.
  bool is_far = false;
  void note(Real top) { is_far |= std::abs(top) > Real(kWide); }
  std::vector<Array<Real>> prepared;  // tables by stage; times what moves say of them; and transposed
  // Scratch: rows before products (x), the parts of splits (y, `rights`, transposed t and z), factors of them (w),
  // gradients of rows (e), gradients over sums (h), rows of pairs, products, the terms of sums, and what terms add up to.
  std::vector<Real> x, y, z, w, e, h, t, rights, pairs, sums, terms, totals;
  std::vector<double> tops, exact;
  Run(const int64_t* records, const Run* leader)
      : whole(*reinterpret_cast<const Whole*>(records)),
        stages(reinterpret_cast<const Stage*>(&whole + 1)),
        alternatives(reinterpret_cast<const Alternative*>(stages + whole.stages)),
        factors(reinterpret_cast<const FactorRecord*>(alternatives + whole.alternatives)),
        looks(reinterpret_cast<const Look*>(factors + whole.factors)),
        forms(reinterpret_cast<const Form*>(looks + whole.looks)),
        leader(leader ? leader : this), prepared(3 * whole.stages) {
    find_series();
  }
  // Multiply-adds of an item, or so, as if every step had all places; an exponential takes as long as eight.
  double work() const {
    double sum = 0;
    for (const Stage* g = stages; g < stages + whole.stages; ++g) sum += work_of(*g);
    return sum;
  }
  double work_of(const Stage& g) const {
    const double cells = double(whole.steps) * g.widest * g.wide * g.wider * g.places * std::max<int64_t>(g.labels, 1);
    double terms = 0;
    // All rows of a list together are as long as the list.
    for (const Alternative* a = alternatives + g.first; a < alternatives + g.first + g.count; ++a)
      terms += double(a->high - a->low + 1) * double(a->high2 - a->low2 + 1) / (a->row < 0 ? 1 : whole.steps);
    const int64_t depth = std::max<int64_t>(g.depth, 1) * std::max<int64_t>(g.depth2, 1);
    return cells * terms * depth * (g.kind == kKindSum || g.kind == kKindOver ? 8 : 1);
  }

  // ---- places over threads (places.h) ----

  std::vector<Run*> helpers;  // runs of other threads that have the items of this one
  bool helps = false;         // whether this is one of them, so that matrices are prepared by the leader
  bool divides = false;       // whether places are divided, as of a batch of few items
  int64_t crew = 1;           // threads that prepare the matrices of this run
  // How many of some threads are worth their while for so many multiply-adds.
  static int64_t threads_for(double work, int64_t most) {
    return std::max<int64_t>(1, std::min<int64_t>(most, int64_t(work / kLeastWork)));
  }
  static constexpr Span kEverywhere{0, std::numeric_limits<int64_t>::max()};
  Span mine = kEverywhere;    // the places of a step that this run works on
  // Numbers to be added to gradients, after those of the places before: a line of an array, or, without one, a row to
  // be kept for the gradient of a matrix, of the item `to.at`.
  struct Later { Real* target; Line to; int64_t count, from; };
  bool waits = false;         // whether additions wait
  std::vector<Later> later;
  std::vector<Real> numbers_later;
  void wait(Real* target, const Line& to, const Real* from, int64_t count) {
    later.push_back({target, to, count, int64_t(numbers_later.size())});
    numbers_later.insert(numbers_later.end(), from, from + count);
  }
  void give(Real* target, const Line& to, const Real* from, int64_t count) {
    waits ? wait(target, to, from, count) : add_to(target, to, from, count);
  }
  double work_of_place(const Stage& g, At s, int64_t p) const;
  int64_t parts_of(const Stage& g, At s, bool down) const;
  template <typename Visit> void each_part(const Stage& g, At s, int64_t parts, Visit visit);
  template <typename Visit> void by_places(const Stage& g, At s, Visit visit);
  template <typename Visit> void by_places_in_order(const Stage& g, At s, int64_t parts, Visit visit);
  double gain_of(int64_t threads) const;

  // ---- where programs say ----

  static int64_t value(const Form& f, At s, int64_t p, int64_t r) {
    return f.c + f.s * s.s + f.o * s.o + f.q * s.q + f.u * s.u + f.w * s.w + f.p * p + f.r * r;
  }
  // Narrows some values of a variable to those for which a form is at least 0 that has it so many times, and a rest.
  static void narrow(Span& span, int64_t times, int64_t rest) {
    if (times > 0) span.low = std::max(span.low, -below(rest, times));
    else if (times < 0) span.high = std::min(span.high, below(rest, -times));
    else if (rest < 0) span.high = span.low - 1;
  }
  // The values of one variable for which forms are at least 0, others given; only forms that have
  // none of a variable `r` if it is not known.
  Span places(int64_t bound, int64_t bounds, At s, int64_t r, Span span) const {
    for (const Form* f = forms + bound; f < forms + bound + bounds; ++f) narrow(span, f->p, value(*f, s, 0, r));
    return span;
  }
  // The values that data say of the inner loop.
  Span own_loop(const Alternative& a, int64_t item, At s, int64_t p) const {
    const Look& l = looks[a.row];
    const int64_t* row = numbers(l, item) + value(l.at, s, p, 0);
    return {row[0], row[1] - 1};
  }
  // Visits all values of an alternative's loops at a place, those of the inner one as a span; `any`: for some place, as
  // far as forms say that are the same for all.
  template <typename Visit>
  void each_loop(const Alternative& a, int64_t item, At s, int64_t p, bool any, Visit visit) const {
    const Form *first = forms + a.bound, *end = first + a.bounds;
    s.w = 0;
    // What bounds each loop whatever the other one is, and then the rest.
    Span outer{a.low2, a.high2}, every = a.loops ? Span{a.low, a.high} : Span{0, 0};
    for (const Form* f = first; f < end; ++f) {
      if ((any && f->p) || (f->w && f->r)) continue;
      if (f->w) narrow(outer, f->w, value(*f, s, p, 0));
      else narrow(every, f->r, value(*f, s, p, 0));
    }
    if (every.high < every.low) return;
    for (s.w = outer.low; s.w <= outer.high; ++s.w) {
      Span span = every;
      if (a.row >= 0) span = own_loop(a, item, s, p), span = {std::max(span.low, every.low), std::min(span.high, every.high)};
      for (const Form* f = first; f < end; ++f)
        if (f->w && f->r && !(any && f->p)) narrow(span, f->r, value(*f, s, p, 0));
      if (span.low <= span.high) visit(s, span);
    }
  }
  template <typename Visit> void each_loop(const Alternative& a, int64_t item, At s, int64_t p, Visit visit) const {
    each_loop(a, item, s, p, false, visit);
  }
  void find_splits(const Alternative& a, int64_t item, At s, int64_t p) {
    splits.clear();
    each_loop(a, item, s, p, [&](At here, Span span) {
      const int64_t first = int64_t(splits.size()) - span.low;
      splits.resize(first + span.high + 1);
      for (int64_t r = span.low; r <= span.high; ++r) splits[first + r] = {here, r};
    });
  }
  bool has_terms(const Alternative& a, int64_t item, At s, int64_t p) const {
    bool any = false;
    each_loop(a, item, s, p, [&](At, Span) { any = true; });
    return any;
  }
  const int64_t* numbers(const Look& l, int64_t item) const {
    return reinterpret_cast<const int64_t*>(data[l.slot]) + item * l.item;
  }
  // What indices add to a place that are data and the same for all labels.
  int64_t looked(int64_t first, int64_t count, int64_t item, At s, int64_t p, int64_t r) const {
    int64_t sum = 0;
    for (const Look* l = looks + first; l < looks + first + count; ++l)
      sum += l->stride * numbers(*l, item)[value(l->at, s, p, r)];
    return sum;
  }
  // The entries of a factor for all labels.
  Line line_of(const FactorRecord& f, int64_t item, At s, int64_t p, int64_t r) const {
    Line to{value(f.at, s, p, r) + item * f.item, f.hop};
    if (f.level_item >= 0)
      to.levels = levels + item * f.level_item + value(f.level, s, p, r), to.level_hop = f.level_hop;
    if (!f.gather) {
      for (const Look* l = looks + f.look; l < looks + f.look + f.looks; ++l) {
        const int64_t number = numbers(*l, item)[value(l->at, s, p, r)];
        to.at += l->stride * number, to.levels += l->level * number;
      }
    }
    else for (const Look* l = looks + f.look; l < looks + f.look + f.looks; ++l, ++to.looks) {
      to.numbers[to.looks] = numbers(*l, item) + value(l->at, s, p, r);
      to.apart[to.looks] = l->hop, to.stride[to.looks] = l->stride;
    }
    return to;
  }
  // The level that the entries of a line are relative to; where they have several, the largest of those possible.
  double level(const Line& from, const Real* source, int64_t count) const {
    if (!from.levels) return 0;
    if (!from.level_hop) return *from.levels;
    double most = -INFINITY;
    for (int64_t k = 0; k < count; ++k)
      if (source[from(k)] > kNever<Real>) most = std::max(most, from.levels[k * from.level_hop]);
    return most > -INFINITY ? most : 0;
  }
  // Whether an item's goal needs a stage: of the table of a goal it needs one step.
  bool is_needed(const Stage& g, int64_t item, At s) const {
    return !g.last || ends[(g.last - 1) * ends_apart + item] == s.s;
  }
  bool is_needed(const Stage& g, At s) const {
    for (int64_t item = 0; item < batch; ++item) if (is_needed(g, item, s)) return true;
    return false;
  }
  // The places of a stage at a step, of which this run has some.
  Span defined(const Stage& g, At s) const {
    const Span span = places(g.bound, g.bounds, s, 0, {0, g.places - 1});
    return {std::max(span.low, mine.low), std::min(span.high, mine.high)};
  }
  Real* out(const Stage& g, Real* all, int64_t item, At s, int64_t p) const {
    return all + item * g.item + value(g.out, s, p, 0);
  }
  double* out_level(const Stage& g, int64_t item, At s, int64_t p) const {
    return levels + item * g.level_item + value(g.level, s, p, 0);
  }
  // target += the entries of a line, relative to a level, and a number.
  __attribute__((always_inline)) static void add(Real* target, const Real* source, const Line& from, double level, Real more, int64_t count) {
    if (const int64_t* one = from.listed(); one && !from.level_hop) {
      for (int64_t k = 0; k < count; ++k) target[k] += source[from.at + one[k]] + more;
      return;
    }
    if (from.looks || from.level_hop) {
      for (int64_t k = 0; k < count; ++k)
        target[k] += source[from(k)] + (more + (from.level_hop ? Real(from.levels[k * from.level_hop] - level) : 0));
      return;
    }
    source += from.at;
    if (from.hop == 1) by_lanes<Real>(count, [&](int64_t k, auto left) {
      store(target + k, load(target + k, left) + load(source + k, left) + more, left);
    });
    else for (int64_t k = 0; k < count; ++k) target[k] += source[k * from.hop] + more;
  }
  // The entries of a line += source.
  static void add_to(Real* target, const Line& to, const Real* source, int64_t count) {
    if (!to.looks) return add_to(target + to.at, source, to.hop, count);
    if (const int64_t* one = to.listed()) for (int64_t k = 0; k < count; ++k) target[to.at + one[k]] += source[k];
    else for (int64_t k = 0; k < count; ++k) target[to(k)] += source[k];
  }
  static void add_to(Real* target, const Real* source, int64_t hop, int64_t count) {
    if (hop == 1) by_lanes<Real>(count, [&](int64_t k, auto left) {
      store(target + k, load(target + k, left) + load(source + k, left), left);
    });
    else if (hop) for (int64_t k = 0; k < count; ++k) target[k * hop] += source[k];
    else {
      Real sum = 0;
      for (int64_t k = 0; k < count; ++k) sum += source[k];
      *target += sum;
    }
  }

  // ---- sums (sums.h) ----

  // An alternative of a sum at a place, or for the places from `low` to `high`, with its factors for item 0, but for
  // the lists that are read there: those of a factor's looks that say another place for each item.
  struct Part { const FactorRecord* f; int64_t at, level, hop, level_hop, look, looks; };
  struct Looked { const Look* l; int64_t at, apart; };
  struct Entry { int64_t first, count, low, high; double level; };
  std::vector<Entry> entries;
  std::vector<Part> factors_of;
  std::vector<int64_t> starts;
  std::vector<Looked> looks_of;  // of the parts of `targets`, and then of all entries
  size_t looks_of_targets = 0;
  bool apart = false;  // whether items have lists of their own, so that entries are those of one item
  void collect_entries(const Stage& g, int64_t item, At s, int64_t first, int64_t count);
  // The stage of the link that a sum's only entry reads: that stage has written the sum. Below 0: none.
  int64_t fused_link() const {
    if (apart || entries.size() != 1) return -1;
    for (const Part& f : factors_of) if (f.f->link >= 0) return f.f->link;
    return -1;
  }
  // Where a link's rows at a place go: its own table, or the sum that reads it alone, times other factors.
  struct Target { const Stage* g; std::vector<Part> others; };
  std::vector<Target> targets;
  bool is_alone(const Stage& g, At s, int64_t p) const;
  void find_targets(const Stage& g, At s, Span span);
  // The entries that a factor of a sum has for all labels or places.
  Line line_of(const Part& f, int64_t item) const {
    Line to{f.at + item * f.f->item, f.hop};
    if (f.f->level_item >= 0) to.levels = levels + item * f.f->level_item + f.level, to.level_hop = f.level_hop;
    for (const Looked *one = looks_of.data() + f.look, *end = one + f.looks; one < end; ++one) {
      const int64_t* from = numbers(*one->l, item) + one->at;
      if (!f.f->gather) to.at += one->l->stride * *from, to.levels += one->l->level * *from;
      else to.numbers[to.looks] = from, to.apart[to.looks] = one->apart, to.stride[to.looks++] = one->l->stride;
    }
    return to;
  }
  double level_of(const Entry& one, int64_t item) const;
  // The log of an entry of one cell.
  double log_of_entry(const Entry& one, int64_t item) const {
    double sum = 0;
    for (const Part* f = factors_of.data() + one.first; f < factors_of.data() + one.first + one.count; ++f) {
      const Line from = line_of(*f, item);
      sum += data[f->f->slot][from(0)] + (from.levels ? *from.levels : 0);
    }
    return sum;
  }
  // Writes the exponentials of some logs, none above 0 but for rounding, in their place; returns their sum.
  static Real exps_sum(Real* logs, int64_t count) {
    exps(logs, logs, Real(0), count);
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < count; ++k) sum += logs[k];
    return sum;
  }
  // The terms of one cell of a sum: for each alternative and each value of its outer loop those of the inner one from
  // `low` to `high`, whose factors have streams from `first` on. A stream has the place of a number, and that of its
  // level, where the inner loop is at 0; along the loop they move by strides, and further by what data say.
  struct Terms { const Alternative* a; At s; int64_t first, low, high; };
  struct Stream { const FactorRecord* f; int64_t at, level, look; };
  std::vector<Terms> terms_of;
  std::vector<Stream> streams;
  std::vector<const int64_t*> numbers_of;  // what data say, by the looks of all streams
  int64_t find_terms(const Stage& g, int64_t item, At s, int64_t p, int64_t v);
  void sum_streams(int64_t many);
  int64_t place_in(const Stream& one, int64_t r, int64_t* level) const {
    const FactorRecord& f = *one.f;
    int64_t at = one.at + r * f.at.r;
    *level = one.level + r * f.level.r;
    for (int64_t k = 0; k < f.looks; ++k) {
      const Look& l = looks[f.look + k];
      const int64_t number = numbers_of[one.look + k][r * l.at.r];
      at += l.stride * number, *level += l.level * number;
    }
    return at;
  }
  // Whether a link has written the only term of a cell.
  bool is_fused(int64_t many) const {
    return !apart && many == 1 && std::any_of(streams.begin(), streams.end(), [](const Stream& one) { return one.f->link >= 0; });
  }
  template <bool best> void cell_up(const Stage& g, int64_t item, At s, int64_t p);
  void cell_down(const Stage& g, int64_t item, At s, int64_t p);
  void product(const Entry& one, int64_t item, Real more, Real* to) const;
  template <bool best> void sum_up(const Stage& g, At s);
  void shares(const Stage& g, const Real* done, const Real* above, double known, int64_t item, int64_t count);
  void sum_down(const Stage& g, At s);
  static bool any_possible(const Real* logs, int64_t count) {
    return std::any_of(logs, logs + count, [](Real one) { return one > kNever<Real>; });
  }
  static bool any_of(const Real* values, int64_t count) {
    bool any = false;
    for (int64_t k = 0; k < count; ++k) any |= values[k] != 0;
    return any;
  }

  // ---- links (links.h) ----

  struct Row { int64_t item, p; double level, top; };
  double row(const Alternative& a, int64_t item, At s, int64_t p, int64_t r, int64_t depth, Real* to) const;
  // The factor of an alternative that is one row of a table, side by side and of one level; null: it is not.
  const FactorRecord* single_row(const Alternative& a) const {
    const FactorRecord* f = factors + a.first;
    return a.count == 1 && !f->slot && f->hop == 1 && !f->gather && !f->level_hop && f->level_item >= 0 ? f : nullptr;
  }
  // The rows of either part of a pair, of all `splits`: where they are in the tables, if they are single rows, and the
  // numbers themselves, in the tables or in `y` and `rights`.
  std::vector<int64_t> places_of_parts[2];
  std::vector<const Real*> parts_of_splits[2];
  void find_parts(const FactorRecord& f, int64_t item, At s, int64_t p, std::vector<int64_t>& at);
  // Adds gradients of the part of one split.
  void add_part(Real* const* to, const Stage& g, int side, const Row& one, int64_t k, const Real* from);
  // Adds numbers to those of some arrays, such as gradients, of all that an alternative reads.
  void add_rows(Real* const* to, const Alternative& a, int64_t item, At s, int64_t p, int64_t r, int64_t depth,
                const Real* from) {
    for (const FactorRecord* f = factors + a.first; f < factors + a.first + a.count; ++f)
      if (to[f->slot]) give(to[f->slot], line_of(*f, item, s, p, r), from, depth);
  }
  // Likewise rows of labels, or of pairs of them, of all `splits`.
  void add_splits(Real* const* to, const Stage& g, int64_t item, int64_t p, const Real* from);
  double find_rows(const Stage& g, int64_t item, At s, int64_t p);
  int64_t depth_of(const Stage& g) const { return g.kind == kKindPair ? g.depth * g.depth2 : g.depth; }
  int64_t row_of(const Stage& g, int64_t k) const {
    return g.kind == kKindPair ? k / g.depth2 * g.row + k % g.depth2 * g.row2 : k * g.row;
  }
  int64_t column_of(const Stage& g, int64_t j) const { return j / g.labels2 * g.column + j % g.labels2 * g.column2; }
  int64_t sets(const Stage& g) const { return g.fixed ? (g.table_item ? batch : 1) : 0; }
  // How many numbers a matrix has in panels, and in all that is prepared of it.
  int64_t packed_size(const Stage& g) const { return panels_of(g.labels, width<Real>()) * width<Real>() * depth_of(g); }
  int64_t prepared_size(const Stage& g) const {
    const int64_t wide = width<Real>(), depth = depth_of(g), n = g.labels;
    return wide * (panels_of(n, wide) * (depth + 1) + panels_of(depth, wide) * n);
  }
  // Whether this run prepares the matrix of a stage, for other runs, too, if all items share it.
  bool prepares(const Stage& g) const { return g.slot >= 0 && g.fixed && (g.table_item || leader == this); }
  const Array<Real>& prepared_of(const Stage& g, int64_t more) const {
    return (g.table_item && !helps ? this : leader)->prepared[&g - stages + more];
  }
  Table<Real> table(const Stage& g, int64_t item) const {
    Real* start = const_cast<Real*>(prepared_of(g, 0).data()) + (g.table_item ? item : 0) * prepared_size(g);
    const int64_t padded = panels_of(g.labels, width<Real>()) * width<Real>();
    return {data[g.slot] + g.table.c + item * g.table_item, start, start + padded, start + padded * (depth_of(g) + 1)};
  }
  // Whether all numbers of an input are those of the matrix of a stage, which `pack` looks at one by one.
  bool looks_at_all(const Stage& g, int64_t numbers) const {
    return prepares(g) && g.kind == kKindLink && g.column == 1 && g.row == g.labels && g.labels2 == 1 &&
           sets(g) * g.depth * g.labels == numbers;
  }
  bool unsound = false;  // whether a matrix has a NaN or +inf
  void note_unsound() {
#pragma omp atomic write
    unsound = true;
  }
  template <bool best> void pack(const Stage& g, const Table<Real>& t, int64_t first, int64_t last);
  static void transpose(const Real* ahead, int64_t depth, int64_t n, Real* back, int64_t first, int64_t last);
  template <bool best> void prepare(const Stage& g, bool down);
  template <bool best> static void by_panels(const Real* left, int64_t rows, int64_t stride, int64_t depth, const Real* panels, int64_t columns, Real* result, int64_t hop);
  template <bool best> static void by_panels(const Real* left, int64_t rows, int64_t stride, int64_t depth, const Real* panels, int64_t first, int64_t last, bool backwards, Real* result, int64_t hop);
  template <bool best> void by_panels_of_all(const Real* left, int64_t rows, int64_t stride, int64_t depth, const Real* panels, int64_t columns, bool backwards, Real* result, int64_t hop) const;
  template <typename Visit> void each_packed(const Stage& g, Visit visit);
  std::vector<char> faints;  // of rows: whether products have lost what has a gradient
  Array<Split> splits;
  std::vector<Row> rows;
  // Rows that are multiplied together: of a pair whose matrix stays in the nearest cache one, whose splits, as
  // `prepare_splits` has them, need not be found again for its parts.
  int64_t rows_together(const Stage& g) const { return g.kind == kKindPair && depth_of(g) * g.labels <= kCached ? 1 : kBlock; }
  template <bool best> bool prepare_row(const Stage& g, At s, Row& one, Real* to);
  template <bool best> void prepare_rows(const Stage& g, At s, Span span, int64_t item, int64_t first, int64_t most);
  void rows_and_products(const Stage& g, At s, Span span, int64_t item, int64_t first, int64_t most, int64_t hop, Real* products);
  template <bool best> bool prepare_splits(const Stage& g, At s, Row& one);
  template <bool best> bool pair(const Stage& g, At s, Row& one, Real* to);
  template <bool best> void products(const Stage& g, Real* to);
  template <typename Visit> void each_term(const Stage& g, At s, const Row& one, const Real* logs, int64_t j, Visit visit);
  std::vector<char> there;  // what is possible before the matrix of a stage, at one of its places:
  int64_t there_at[7] = {-1};
  std::vector<std::vector<char>> used;  // of each stage, whether columns of its matrix are possible
  bool is_used(const Stage& g, int64_t item, const Real* logs, int64_t j);
  bool is_possible(const Stage& g, At s, const Row& one, const Real* logs, int64_t j);
  double in_logs(const Stage& g, At s, const Row& one, const Real* logs, int64_t j);
  void finish(const Target& target, At s, const Row& one, Real* values, double base);
  void clear(const Target& target, At s, int64_t item, int64_t p);
  const Real* link_values(const Target& target, At s, int64_t item, int64_t p, double* level);
  const Real* add_other_gradients(const Target& target, At s, int64_t item, int64_t p);
  // Of items from one on up to another.
  template <bool best> void link_up(const Stage& g, At s, int64_t from, int64_t until);
  // Where labels are in a matrix: their own numbers, or those that data say.
  std::vector<int64_t> rows_at, columns_at, parts_at;
  std::vector<double> levels_at;
  std::vector<Real> gathered, scattered;
  void find_places(const Look& l, int64_t item, At s, int64_t p, int64_t r, int64_t first, int64_t count, int64_t* to) const {
    const int64_t* from = l.slot < 0 ? nullptr : numbers(l, item) + value(l.at, s, p, r);
    for (int64_t k = 0; k < count; ++k) to[k] = l.stride * (from ? from[(first + k) * l.hop] : first + k);
  }
  // That of one label.
  int64_t place_in(const Look& l, int64_t item, At s, int64_t p, int64_t r, int64_t k) const {
    return l.stride * (l.slot < 0 ? k : numbers(l, item)[value(l.at, s, p, r) + k * l.hop]);
  }
  // Where an entry of a matrix is in an item, by the number of the label or pair before it and of that after it.
  int64_t place_in_matrix(const Stage& g, int64_t item, const Split& at, int64_t p, int64_t k, int64_t v) const {
    const int64_t c = g.kind == kKindPair ? g.depth2 : 1;
    return value(g.table, at.s, p, at.r) + looked(g.look, g.looks, item, at.s, p, at.r) +
           place_in(g.rows, item, at.s, p, at.r, k / c) + place_in(g.columns, item, at.s, p, at.r, v / g.labels2) +
           place_in(g.columns2, item, at.s, p, at.r, v % g.labels2) +
           (g.kind == kKindPair ? place_in(g.rows2, item, at.s, p, at.r, k % c) : 0);
  }
  // Whether a matrix that is not fixed is copied for each place, in place of read where it lies.
  bool is_gathered(const Stage& g) const {
    return g.kind == kKindPair || g.looks || g.rows.slot >= 0 || g.columns.slot >= 0 || g.column != 1 || g.labels2 > 1 || g.column_level || alternatives[g.first].loops;
  }
  const Real* direct(const Stage& g, int64_t item, At s, int64_t p, int64_t* hop, double* level) {
    return direct(g, item, s, p, 0, g.labels, hop, level);
  }
  const Real* direct(const Stage& g, int64_t item, At s, int64_t p, int64_t column, int64_t columns, int64_t* hop, double* level);
  template <bool best> void direct_up(const Stage& g, At s, Span span, int64_t from, int64_t until);
  void direct_down(const Stage& g, At s, Span span, int64_t from, int64_t until);
  // Rows before and after products, whose outer products are a table's gradient; by stage.
  // Each set of items that share a matrix has its own, `counts` of them.
  struct Kept { Array<Real> before, after, sums; std::vector<int64_t> counts; };
  std::vector<Kept> kept;
  // How many rows are kept of a set: those that stay in the cache.
  int64_t most_kept(const Stage& g) const {
    return g.table_item ? 32 : std::max<int64_t>(32, std::min(kKept, (1 << 17) / depth_of(g)));
  }
  void start_kept(const Stage& g, Kept& own);
  void keep_products(const Stage& g, int64_t item, const Real* before, const Real* after, int64_t more);
  void put_kept(const Stage& g, Kept& own, int64_t set, int64_t at, const Real* before, const Real* after);
  void multiply_kept(const Stage& g, int64_t more, int64_t set);
  void finish_kept(const Stage& g, int64_t more) {
    for (size_t set = 0; set < kept[&g - stages + more].counts.size(); ++set) multiply_kept(g, more, set);
  }
  void write_matrix_gradient(const Stage& g);
  void link_down(const Stage& g, At s, int64_t from, int64_t until);
  void pair_down(const Stage& g, At s, Row& one, const Real* turned);
  void faint_down(const Stage& g, At s, const Row& one, const Real* logs, int64_t j, Real above, double known);

  // ---- series of links (series.h) ----

  // A link and the sum that it is written into, from one step to another; `own`: what the sum reads there. `before`
  // and `after`: the rows before and after the products of all items and steps, if these are `kept`; `turned`: the matrix, transposed.
  struct Series { int64_t link, into, first, last; const Alternative* own; bool kept; std::vector<Real> before, after, turned; };
  std::vector<Series> series;
  bool keep_series = false;
  Span steps_of(int64_t bound, int64_t bounds, Span span, bool strict) const;
  void find_series();
  bool is_narrow(const Series& one) const;
  const FactorRecord* other_of(const Series& one) const;
  template <int K> void read_others(const Series& one, int64_t item, int64_t s, Lanes<Real, K>& to, int64_t left);
  template <int K, int P> void series_sums(Series& one, int64_t item, bool keep);
  template <int K, int P> void series_best(Series& one, int64_t item);
  template <int K, int P> void series_down(Series& one, int64_t item);
  const Real* others_at(const Series& one, int64_t item, int64_t s, std::vector<Real>& room) const;
  void wide_sums(Series& one, int64_t item, int64_t together, bool keep);
  void wide_best(Series& one, int64_t item, int64_t together);
  void wide_down(Series& one, int64_t item, int64_t together);
  template <typename Wide, typename Narrow> void each_of_series(const Series& one, Wide wide, Narrow narrow) const;
  template <bool best> void series_up(Series& one, bool keep);
  void series_down(Series& one);
  // The series of whose sums a stage has one at a step.
  const Series* series_of(const Stage& g, int64_t step) const {
    for (const Series& one : series)
      if (stages + one.into == &g && one.first <= step && step <= one.last) return &one;
    return nullptr;
  }
  // The series that begins with a stage at a step, in place of which it is worked on.
  Series* first_of_series(const Stage& g, int64_t step) {
    for (Series& one : series)
      if (stages + one.link == &g && one.first == step) return &one;
    return nullptr;
  }

  // ---- sums over labels (labels.h) ----

  template <bool best> void over_up(const Stage& g, At s);
  void over_down(const Stage& g, At s);

  // ---- means over derivations (means.h) ----

  Real* const* moves = nullptr;  // by slot; 0: the means of tables; null: zeros
  bool entropic = false;         // whether means are of minus the log of a derivation's share, and nothing is said
  std::vector<Real> turned, means, moved;
  // Minus the log of a share, given both; 0 of what has no share.
  static Lane<Real> surprise(Lane<Real> share, Lane<Real> log) { return share > Lane<Real>{} ? -log : Lane<Real>{}; }
  // Rows of exponentials x, times what is said of them, m, or m - log x of entropies.
  void times_along(Real* to, const Real* x, const Real* said, int64_t count) const {
    by_lanes<Real>(count, [&](int64_t k, auto left) {
      const Lane<Real> one = load(x + k, left), more = load(said + k, left);
      store(to + k, one * (entropic ? more + surprise(one, log_of<Real>(one)) : more), left);
    });
  }
  // Divides sums over terms by those of their shares, which are 1 but for rounding, or relative to a level; the entropy
  // of shares so divided has the log of their sum more.
  void divide_along(Real* to, const Real* sums, int64_t count) const {
    by_lanes<Real>(count, [&](int64_t k, auto left) {
      const Lane<Real> sum = load(sums + k, left), safe = sum > Lane<Real>{} ? sum : all(Real(1));
      store(to + k, load(to + k, left) / safe + (entropic ? log_of<Real>(safe) : Lane<Real>{}), left);
    });
  }
  // target += shares times the entries of a line.
  static void add_shares(Real* target, const Real* shares, const Real* source, const Line& from, int64_t count) {
    if (from.hop != 1 || from.looks) for (int64_t k = 0; k < count; ++k) target[k] += shares[k] * source[from(k)];
    else by_lanes<Real>(count, [&](int64_t k, auto left) {
      store(target + k, load(target + k, left) + load(shares + k, left) * load(source + from.at + k, left), left);
    });
  }
  static void add_moves(Real* target, const Real* source, Line from, int64_t count) {
    from.level_hop = 0;  // what is said has no level
    add(target, source, from, 0, 0, count);
  }
  // The sum of what the factors of an alternative say, for each label.
  void row_along(const Alternative& a, int64_t item, At s, int64_t p, int64_t r, int64_t depth, Real* to) const {
    std::fill(to, to + depth, Real(0));
    for (const FactorRecord* f = factors + a.first; f < factors + a.first + a.count; ++f)
      if (moves[f->slot]) add_moves(to, moves[f->slot], line_of(*f, item, s, p, r), depth);
  }
  // Likewise for all `splits`, pairs of labels among them.
  void splits_along(const Stage& g, int64_t item, int64_t p, Real* to) const;
  void sum_along(const Stage& g, At s);
  void mean_of(const Target& target, At s, int64_t item, int64_t p, const Real* from);
  void link_along(const Stage& g, At s);
  std::vector<Real> said_of_parts[2];  // of both parts of a pair, of all `splits`
  void prepare_said(const Stage& g, At s, Row& one);
  void pair_along(const Stage& g, Real* to) const;
  Real mean_in_logs(const Stage& g, At s, const Row& one, const Real* logs, int64_t j);
  const Real* said_row(const Stage& g, const Real* said, int64_t start, int64_t k);
  void direct_along(const Stage& g, At s, Span span);
  void over_along(const Stage& g, At s);

  // ---- second derivatives (second.h) ----

  Real* const* seconds = nullptr;  // by slot; null: not wanted
  // The gradient of a link's values at a place, its derivative, and that of the values.
  struct Turn { const Real *first, *second, *along; };
  std::vector<Real> tau;
  Array<Real> products_of, after_of, before_of;
  void sum_second(const Stage& g, At s);
  Turn turn_of(const Target& target, At s, int64_t item, int64_t p);
  void link_second(const Stage& g, At s);
  void pair_second(const Stage& g, const Row& one, const Real* p, const Real* q);
  void faint_second(const Stage& g, At s, const Row& one, const Real* logs, int64_t j, const Turn& t);
  void direct_second(const Stage& g, At s, Span span);
  void over_second(const Stage& g, At s);
  void write_matrix_second(const Stage& g);

  // ---- max-marginals (maxima.h) ----

  Real* const* losses = nullptr;          // by slot; null: not wanted
  const int64_t* losses_apart = nullptr;  // numbers from one item to the next, which share none
  // The losses of what a factor reads, to which its line of an item leads.
  Real* losses_of(const FactorRecord& f, int64_t item) const {
    return losses[f.slot] ? losses[f.slot] + item * (losses_apart[f.slot] - f.item) : nullptr;
  }
  // Those of a matrix of an item.
  Real* matrix_losses(const Stage& g, int64_t item) const {
    return losses[g.slot] ? losses[g.slot] + item * losses_apart[g.slot] : nullptr;
  }
  // Raises numbers `hop` apart to others where these are larger; if 0, one number to the largest.
  static void raise(Real* to, const Real* from, int64_t hop, int64_t count) {
    if (hop == 1) for (int64_t k = 0; k < count; ++k) to[k] = std::max(to[k], from[k]);
    else for (int64_t k = 0; k < count; ++k) to[k * hop] = std::max(to[k * hop], from[k]);
  }
  static void raise(Real* to, const Line& line, const Real* from, int64_t count) {
    if (!line.looks) return raise(to + line.at, from, line.hop, count);
    if (const int64_t* one = line.listed()) {
      for (int64_t k = 0; k < count; ++k) to[line.at + one[k]] = std::max(to[line.at + one[k]], from[k]);
      return;
    }
    for (int64_t k = 0; k < count; ++k) raise(to + line(k), from + k, 1, 1);
  }
  void row_raise(const Alternative& a, int64_t item, At s, int64_t p, int64_t r, int64_t depth, const Real* from) const {
    for (const FactorRecord* f = factors + a.first; f < factors + a.first + a.count; ++f)
      if (Real* to = losses_of(*f, item)) raise(to, line_of(*f, item, s, p, r), from, depth);
  }
  // Raises the losses of all that an entry of a sum reads.
  void raise_entry(const Entry& one, int64_t item, const Real* from, int64_t count) const {
    for (const Part* f = factors_of.data() + one.first; f < factors_of.data() + one.first + one.count; ++f)
      if (Real* to = losses_of(*f->f, item)) raise(to, line_of(*f, item), from, count);
  }
  void prepare_maxima();
  void series_maxima(Series& one, int64_t item, int64_t together);
  void sum_maxima(const Stage& g, At s);
  template <typename Visit>
  void matrix_maxima(const Real* loss, const Real* rows, int64_t depth, const Real* matrix, int64_t hop, int64_t n,
                     bool all_of, Visit visit, Real* to);
  void link_maxima(const Stage& g, At s);
  const Real* loss_of_link(const Stage& g, const Target& target, At s, int64_t item, int64_t p);
  void direct_maxima(const Stage& g, At s, Span span);
  void fixed_maxima(const Stage& g, At s, Span span);
  void split_maxima(const Stage& g, const Row& one, const Real* loss, const Real* most);
  void over_maxima(const Stage& g, At s);

  // ---- cells and their terms (cells.h) ----

  struct Cell { const Stage* g; At s; int64_t p, v; };
  std::vector<Real> line;
  Cell cell_at(int64_t at) const;
  void expand(const Cell& cell, int64_t item);
  template <typename Reach>
  void each_read_of(const Alternative& a, int64_t item, const Split& at, int64_t p, int64_t label, Reach reach);
  template <typename Reach> void each_read_of_split(const Cell& cell, int64_t item, const Split& at, int64_t k, Reach reach);
  template <typename Reach> void each_read(const Cell& cell, int64_t item, int64_t term, bool known, Reach reach);

  // ---- one derivation (descend.h) ----

  // Of a draw that is a maximum with noise: numbers to be added to the entries of the input `noisy` where labels are
  // chosen, by their places in an item; null: none.
  const Real* noise = nullptr;
  int64_t noisy = 0;
  void shake(const Series& one, int64_t step);
  void shake(const Cell& cell, int64_t item);

  // What was found of an item's cells that several draws go through: a graph, whose nodes are the distributions over the
  // terms of cells; or over pairs of labels, and then, for each pair that was drawn, over the splits of its terms.
  struct Memory {
    static constexpr int64_t kEvery = -1, kPairs = -2;
    struct Node { int64_t at, what, first, count; };  // the cell, `kEvery`, `kPairs` or a pair, and where its terms are
    struct Read { int64_t slot, place; int32_t node; };  // of a cell, its node; below 0: not known
    std::vector<Node> nodes;
    std::vector<Real> sums;  // of the exponentials of the terms of a node up to each
    // Of each term of a node: its list of reads, or, of pairs, the node of its splits. Below 0: not known.
    std::vector<int32_t> next;
    std::vector<Read> reads;
    std::vector<std::pair<int64_t, int64_t>> lists;  // from which read up to which
    std::vector<int32_t> table;  // the nodes of cells, by a hash of these; below 0: none
    size_t place_of(int64_t at) const { return uint64_t(at) * 0x9e3779b97f4a7c15ull >> 20 & (table.size() - 1); }
    int32_t find(int64_t at) const;
    void put(int32_t node);
    void clear() {
      nodes.clear(), sums.clear(), next.clear(), reads.clear(), lists.clear();
      std::fill(table.begin(), table.end(), -1);
    }
  };
  Memory memory;
  bool remembers = false;
  int32_t remember(int64_t at, int64_t what);
  int64_t recall(int32_t node);
  int32_t node_of(int64_t at, int64_t item);
  template <typename Visit> void draw_known(int32_t node, int64_t item, std::vector<int64_t>& waiting, Visit visit);
  void splits_of(const Cell& cell, int64_t item, int64_t k);
  bool is_in_series(int64_t at) const {
    if (series.empty()) return false;
    const Cell cell = cell_at(at);
    return series_of(*cell.g, cell.s.s) != nullptr;
  }

  uint64_t state = 0;
  uint64_t bits();
  double uniform() { return double(bits() >> 11) * 0x1p-53; }
  // Begins a stream of random numbers; those of seeds that follow one another have nothing in common.
  void seed(uint64_t number) { state = number, state = bits(); }
  int64_t pick(bool best);
  template <bool best> bool pair_line(const Cell& cell, int64_t item);
  template <bool best> int64_t choose_pair(const Cell& cell, int64_t item);
  std::vector<Real> columns;
  int64_t choose(const Real* line, int64_t many, Real sum);
  void prepare_descend(bool best, bool exact, int64_t derivations);
  void line_of_series(const Series& one, int64_t item, int64_t step, int64_t v);
  int64_t label_before(const Series& one, int64_t item, int64_t step, int64_t v, bool best);
  template <typename Visit> int64_t descend_series(const Series& one, int64_t item, int64_t step, int64_t v, bool best, Visit visit);
  template <typename Reach> void each_read_through(const Cell& cell, int64_t item, int64_t term, Reach reach);
  // A derivation on its way: cells that are to be read, or nodes k of the memory as -1 - k.
  struct Path { uint64_t state; std::vector<int64_t> waiting; };
  std::vector<Path> paths;
  template <typename Visit> void descend_once(int64_t item, std::vector<int64_t>& waiting, bool best, Visit visit);
  template <typename Noise, typename Visit>
  void descend(int64_t item, int64_t goal, int64_t draws, bool best, uint64_t first_seed, Noise noise_of, Visit visit);

  // ---- passes (passes.h) ----

  int64_t next_step(const Stage& g, Span span, int64_t step, bool forward, bool whole_series);
  template <typename Visit> void each_stage(bool forward, bool whole_series, Visit visit);
  template <bool best> void prepare_up();
  template <bool best> void up();
  void prepare_down();
  void down();
  void prepare_along();
  void along();
  void prepare_second();
  void second();
  void maxima();
};

}  // namespace
