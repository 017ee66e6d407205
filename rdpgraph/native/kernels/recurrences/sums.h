// Sums of alternatives, upwards, and their gradients downwards.
//
// An entry v of a table is log sum_k exp(c_k + sum_f x_kf), over alternatives and the values of their
// loops k, with factors f, each relative to a level c. Its gradient in x_kf is the share of k in the sum.

#pragma once

#include "places.h"

namespace {

// The entries of a sum, for a vector of places from `first` on or labels at one: those of all items, or, where items
// have lists of their own, of one of them.
template <typename Real>
void Run<Real>::collect_entries(const Stage& g, int64_t item, At s, int64_t first, int64_t count) {
  entries.clear(), factors_of.clear(), apart = false;
  looks_of.resize(looks_of_targets);
  const bool wide = g.labels > 0;
  for (const Alternative* a = alternatives + g.first; a < alternatives + g.first + g.count; ++a) {
    apart |= a->row >= 0 && looks[a->row].item;
    const FactorRecord *own = factors + a->first, *end = own + a->count;
    each_loop(*a, item, s, first, !wide, [&](At here, Span span) {
      // Where all is at 0 of the inner loop, from whose values it moves by strides; and what forms are that bound places.
      starts.clear();
      for (const FactorRecord* f = own; f < end; ++f)
        starts.push_back(value(f->at, here, first, 0)), starts.push_back(value(f->level, here, first, 0));
      for (int64_t k = 0; !wide && k < a->bounds; ++k) starts.push_back(value(forms[a->bound + k], here, first, 0));
      for (int64_t r = span.low; r <= span.high; ++r) {
        Span part{0, count - 1};
        for (int64_t k = 0; !wide && k < a->bounds; ++k) {
          const Form& f = forms[a->bound + k];
          if (f.p) narrow(part, f.p, starts[2 * a->count + k] + f.r * r);
        }
        if (part.high < part.low) continue;
        const int64_t p = first + part.low;
        entries.push_back({int64_t(factors_of.size()), a->count, part.low, part.high, 0});
        for (const FactorRecord* f = own; f < end; ++f) {
          const int64_t *start = starts.data() + 2 * (f - own), at = start[0] + f->at.r * r, level = start[1] + f->level.r * r;
          factors_of.push_back({f, at + f->at.p * part.low, level + f->level.p * part.low, wide ? f->hop : f->at.p,
                                wide ? f->level_hop : f->level.p, int64_t(looks_of.size()), 0});
          Part& made = factors_of.back();
          for (int64_t k = 0; k < f->looks; ++k) {
            const Look& l = looks[f->look + k];
            const int64_t at = value(l.at, here, p, r);
            if (!f->gather && !l.item) {  // all items have the same place
              const int64_t number = numbers(l, 0)[at];
              made.at += l.stride * number, made.level += l.level * number;
            } else {
              looks_of.push_back({&l, at, wide ? l.hop : l.at.p}), ++made.looks;
            }
          }
        }
      }
    });
  }
}

// Whether a row of a sum has one entry alone.
template <typename Real>
bool Run<Real>::is_alone(const Stage& g, At s, int64_t p) const {
  int64_t many = 0;
  for (const Alternative* a = alternatives + g.first; many < 2 && a < alternatives + g.first + g.count; ++a)
    each_loop(*a, 0, s, p, [&](At, Span span) { many += span.high - span.low + 1; });
  return many == 1;
}

// Where the rows of a link go, for the places of a step: into the sum that alone reads them, if its only
// entry is the link there.
template <typename Real>
void Run<Real>::find_targets(const Stage& g, At s, Span span) {
  targets.resize(std::max<int64_t>(targets.size(), span.high - span.low + 1)), looks_of_targets = 0;
  // A sum with terms everywhere that are none of a link has more than that of this one.
  const auto is_elsewhere = [&](const Alternative& a) {
    return !a.bounds && a.row < 0 && a.low <= a.high && a.low2 <= a.high2 &&
           std::none_of(factors + a.first, factors + a.first + a.count, [](const FactorRecord& f) { return f.link >= 0; });
  };
  const Stage* into = g.into < 0 ? nullptr : stages + g.into;
  if (into && std::any_of(alternatives + into->first, alternatives + into->first + into->count, is_elsewhere)) into = nullptr;
  for (int64_t p = span.low; p <= span.high; ++p) {
    Target& to = targets[p - span.low];
    to.g = &g, to.others.clear();
    if (!into || !is_alone(*into, s, p)) continue;
    collect_entries(*into, 0, s, p, g.labels);
    if (fused_link() != &g - stages) continue;
    to.g = stages + g.into, looks_of_targets = looks_of.size();
    for (const Part& f : factors_of) if (f.f->link < 0) to.others.push_back(f);
  }
}

// The level of an entry of an item, for a row of so many labels or places.
template <typename Real>
double Run<Real>::level_of(const Entry& one, int64_t item) const {
  double sum = 0;
  for (const Part* f = factors_of.data() + one.first; f < factors_of.data() + one.first + one.count; ++f)
    if (f->f->level_item >= 0) sum += level(line_of(*f, item), data[f->f->slot], one.high - one.low + 1);
  return sum;
}

// An entry's logs relative to its level, and a number, into a vector.
template <typename Real>
void Run<Real>::product(const Entry& one, int64_t item, Real more, Real* to) const {
  const int64_t count = one.high - one.low + 1;
  bool none = true;
  for (const Part* f = factors_of.data() + one.first; f < factors_of.data() + one.first + one.count; ++f) {
    const Line from = line_of(*f, item);
    const Real* source = data[f->f->slot];
    if (none && from.hop == 1 && !from.looks && !from.level_hop) by_lanes<Real>(count, [&](int64_t k, auto left) {
      store(to + k, load(source + from.at + k, left) + more, left);
    });
    else {
      if (none) std::fill(to, to + count, more);
      add(to, source, from, from.level_hop ? level(from, source, count) : 0, 0, count);
    }
    none = false;
  }
  if (none) std::fill(to, to + count, more);
}

// Finds the terms of a cell, of one label, and what their factors read; returns how many there are.
template <typename Real>
int64_t Run<Real>::find_terms(const Stage& g, int64_t item, At s, int64_t p, int64_t v) {
  terms_of.clear(), streams.clear(), numbers_of.clear(), apart = false;
  int64_t many = 0;
  for (const Alternative* a = alternatives + g.first; a < alternatives + g.first + g.count; ++a) {
    apart |= a->row >= 0 && looks[a->row].item;
    each_loop(*a, item, s, p, [&](At here, Span span) {
      terms_of.push_back({a, here, int64_t(streams.size()), span.low, span.high}), many += span.high - span.low + 1;
      for (const FactorRecord* f = factors + a->first; f < factors + a->first + a->count; ++f) {
        streams.push_back({f, value(f->at, here, p, 0) + v * f->hop + item * f->item, 0, int64_t(numbers_of.size())});
        if (f->level_item >= 0) streams.back().level = value(f->level, here, p, 0) + v * f->level_hop + item * f->level_item;
        for (const Look* l = looks + f->look; l < looks + f->look + f->looks; ++l)
          numbers_of.push_back(numbers(*l, item) + value(l->at, here, p, 0) + v * l->hop);
      }
    });
  }
  return many;
}

// Writes the logs of the terms that were found into `tops`.
template <typename Real>
void Run<Real>::sum_streams(int64_t many) {
  tops.assign(many, 0.0);
  double* to = tops.data();
  for (const Terms& part : terms_of) {
    to -= part.low;
    for (const Stream *one = streams.data() + part.first, *end = one + part.a->count; one < end; ++one) {
      const FactorRecord& f = *one->f;
      const Real* from = data[f.slot];
      const bool known = f.level_item >= 0;
      if (!f.looks) for (int64_t r = part.low; r <= part.high; ++r)
        to[r] += from[one->at + r * f.at.r] + (known ? levels[one->level + r * f.level.r] : 0);
      else for (int64_t r = part.low; r <= part.high; ++r) {
        int64_t level;
        to[r] += from[place_in(*one, r, &level)];
        if (known) to[r] += levels[level];
      }
    }
    to += part.high + 1;
  }
}

// One cell of a sum, and its level.
template <typename Real>
template <bool best>
void Run<Real>::cell_up(const Stage& g, int64_t item, At s, int64_t p) {
  const int64_t many = find_terms(g, item, s, p, 0);
  if (is_fused(many)) return;
  Real* to = out(g, data[0], item, s, p);
  double *known = out_level(g, item, s, p), top = -INFINITY, sum = 1;
  sum_streams(many), terms.resize(std::max<int64_t>(terms.size(), many));
  for (int64_t k = 0; k < many; ++k) top = std::max(top, tops[k]);
  if (!(top > -INFINITY)) { *to = kNever<Real>, *known = 0; return; }
  if (!best && many > 1) {
    for (int64_t k = 0; k < many; ++k) terms[k] = Real(tops[k] - top);
    sum = exps_sum(terms.data(), many);
  }
  *to = 0, *known = top + std::log(sum);
}

// Adds the shares of all terms of a cell, times its gradient, to the gradients of what they read.
template <typename Real>
void Run<Real>::cell_down(const Stage& g, int64_t item, At s, int64_t p) {
  const int64_t many = find_terms(g, item, s, p, 0);
  if (is_fused(many)) return;
  // The gradient of the cell by shares, divided by what these add up to, as logs are rounded.
  sum_streams(many), terms.resize(std::max<int64_t>(terms.size(), many));
  const double known = *out_level(g, item, s, p) + finite(*out(g, data[0], item, s, p));
  for (int64_t k = 0; k < many; ++k) terms[k] = Real(tops[k] - known);
  const Real sum = exps_sum(terms.data(), many), scale = sum > 0 ? *out(g, grads[0], item, s, p) / sum : 0;
  for (int64_t k = 0; k < many; ++k) terms[k] *= scale;
  // Each run adds its shares to what its factors read, or has them wait until all places are done.
  const Real* from = terms.data();
  for (const Terms& part : terms_of) {
    from -= part.low;
    for (const Stream *one = streams.data() + part.first, *end = one + part.a->count; one < end; ++one) {
      Real* to = grads[one->f->slot];
      int64_t level;
      for (int64_t r = part.low; to && r <= part.high; ++r) {
        const int64_t at = place_in(*one, r, &level);
        if (waits) wait(to, Line{at, 0}, from + r, 1);
        else to[at] += from[r];
      }
    }
    from += part.high + 1;
  }
}

// The sums of a step, in logs relative to the largest entry of each row, whose level is that of all of it.
template <typename Real>
template <bool best>
void Run<Real>::sum_up(const Stage& g, At s) {
  const Span span = defined(g, s);
  if (span.high < span.low) return;
  const bool wide = g.labels > 0;
  const int64_t count = wide ? g.labels : span.high - span.low + 1;
  for (int64_t p = span.low; p <= (wide ? span.high : span.low); ++p) {
    // Single cells are summed one by one, and otherwise all labels or all places of a step at once.
    for (int64_t item = 0; count == 1 && item < batch; ++item) if (is_needed(g, item, s)) cell_up<best>(g, item, s, p);
    if (count == 1) continue;
    collect_entries(g, 0, s, p, count);
    if (fused_link() >= 0) continue;
    for (int64_t item = 0; item < batch; ++item) {
      if (!is_needed(g, item, s)) continue;
      if (apart && item) collect_entries(g, item, s, p, count);
      const int64_t many = entries.size();
      terms.resize(std::max<int64_t>(terms.size(), many * count));
      Real* to = out(g, data[0], item, s, p);
      double* known = out_level(g, item, s, p);
      // Terms have levels of their own: all are taken relative to the highest.
      double base = -INFINITY;
      for (Entry& one : entries) base = std::max(base, one.level = level_of(one, item));
      *known = 0;
      if (!many) { std::fill(to, to + count, kNever<Real>); continue; }
      if (many == 1) {
        std::fill(to, to + entries[0].low, kNever<Real>);
        std::fill(to + entries[0].high + 1, to + count, kNever<Real>);
        product(entries[0], item, 0, to + entries[0].low);
      } else {
        for (int64_t k = 0; k < many; ++k) {
          Real* row = terms.data() + k * count;
          const Entry& one = entries[k];
          std::fill(row, row + one.low, kNever<Real>);
          std::fill(row + one.high + 1, row + count, kNever<Real>);
          product(one, item, Real(one.level - base), row + one.low);
        }
        // Column by column: the maximum, and unless that is the answer, log sum exp(t - max) + max.
        by_lanes<Real>(count, [&](int64_t v, auto left) {
          const Real* row = terms.data() + v;
          Lane<Real> most = load(row, left);
          for (int64_t k = 1; k < many; ++k) {
            const Lane<Real> one = load(row + k * count, left);
            most = one > most ? one : most;
          }
          if (best) return store(to + v, most, left);
          const Lane<Real> shift = most > kNever<Real> ? most : Lane<Real>{};
          Lane<Real> total = {};
          for (int64_t k = 0; k < many; ++k) total += exp_of<Real>(load(row + k * count, left) - shift);
          store(to + v, log_of<Real>(total) + shift, left);
        });
      }
      // The largest entry moves into the level, so that rows keep their digits in float32.
      const Real top = finite(largest(to, count));
      note(top);
      for (int64_t k = 0; k < count; ++k) to[k] -= top;
      *known = base + top;
    }
  }
}

// The gradient of a sum in each of its entries, into rows of `terms`: the entry's share of what they add
// up to, times that of the sum. Divided by the shares' own sum, as logs are rounded.
template <typename Real>
void Run<Real>::shares(const Stage& g, const Real* done, const Real* above, double known, int64_t item, int64_t count) {
  terms.resize(std::max<int64_t>(terms.size(), int64_t(entries.size()) * count)), totals.assign(count, Real(0));
  if (count == 1) {
    const int64_t many = entries.size();
    for (int64_t k = 0; k < many; ++k) terms[k] = Real(log_of_entry(entries[k], item) - known - finite(*done));
    const Real sum = exps_sum(terms.data(), many), scale = sum > 0 ? *above / sum : 0;
    for (int64_t k = 0; k < many; ++k) terms[k] *= scale;
    return;
  }
  for (size_t k = 0; k < entries.size(); ++k) {
    const Entry& one = entries[k];
    Real *row = terms.data() + k * count, *sums = totals.data() + one.low;
    product(one, item, Real(level_of(one, item) - known), row);
    by_lanes<Real>(one.high - one.low + 1, [&](int64_t v, auto left) {
      const Lane<Real> log = load(done + one.low + v, left);
      const Lane<Real> share = exp_of<Real>(load(row + v, left) - (log > kNever<Real> ? log : Lane<Real>{}));
      store(row + v, share, left);
      store(sums + v, load(sums + v, left) + share, left);
    });
  }
  for (int64_t v = 0; v < count; ++v) totals[v] = totals[v] > 0 ? above[v] / totals[v] : 0;
  for (size_t k = 0; k < entries.size(); ++k) {
    const Entry& one = entries[k];
    Real *row = terms.data() + k * count, *scale = totals.data() + one.low;
    by_lanes<Real>(one.high - one.low + 1, [&](int64_t v, auto left) {
      store(row + v, load(row + v, left) * load(scale + v, left), left);
    });
  }
}

// Adds the gradients of the sums of a step to those of all that they read.
template <typename Real>
void Run<Real>::sum_down(const Stage& g, At s) {
  const Span span = defined(g, s);
  if (span.high < span.low) return;
  const bool wide = g.labels > 0;
  const int64_t count = wide ? g.labels : span.high - span.low + 1;
  for (int64_t p = span.low; p <= (wide ? span.high : span.low); ++p) {
    for (int64_t item = 0; count == 1 && item < batch; ++item)
      if (is_needed(g, item, s) && *out(g, grads[0], item, s, p)) cell_down(g, item, s, p);
    if (count == 1) continue;
    collect_entries(g, 0, s, p, count);
    if (fused_link() >= 0) continue;
    for (int64_t item = 0; item < batch; ++item) {
      if (!is_needed(g, item, s)) continue;
      const Real *grad = out(g, grads[0], item, s, p), *done = out(g, data[0], item, s, p);
      if (!any_of(grad, count)) continue;
      if (apart && item) collect_entries(g, item, s, p, count);
      if (entries.size() > 1) shares(g, done, grad, *out_level(g, item, s, p), item, count);
      for (const Entry& one : entries) {
        const int64_t size = one.high - one.low + 1;
        const Real* row = entries.size() > 1 ? terms.data() + (&one - entries.data()) * count : grad + one.low;
        for (const Part* f = factors_of.data() + one.first; f < factors_of.data() + one.first + one.count; ++f) {
          if (grads[f->f->slot]) give(grads[f->f->slot], line_of(*f, item), row, size);
        }
      }
    }
  }
}

}  // namespace
