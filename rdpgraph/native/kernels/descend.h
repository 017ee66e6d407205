// Passes from the goal of a tape to its leaves: the best derivation, draws, and the score of the best
// derivation through each entry.

#pragma once

#include <array>
#include <tuple>

#include "machine.h"

namespace {

typedef std::array<int64_t, 3> Used;  // derivation, site, state

// A stream of random numbers (splitmix64).
struct Stream {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  double uniform() { return double(next() >> 11) * 0x1p-53; }
};

// The parts of the nodes of one item.
template <typename Real> struct Nodes {
  const Machine<Real>& m;
  int64_t item;
  const std::vector<uint8_t>* turned;  // of each slot, whether its table was turned
  const Real* noise = nullptr;         // (sites, states) to be added where states are chosen
  Room<Real> room;
  const Real* row = nullptr;  // of the step and place that were read last
  int64_t row_step = -1, row_place = -1, row_item = -1;

  Nodes(const Machine<Real>& machine, int64_t item, const std::vector<uint8_t>& turned)
      : m(machine), item(item), turned(&turned) {}

  const int64_t* step(int64_t n) const { return m.steps + kFields * n; }

  // Log-values of a node's alternatives: one where values are moved, none for a leaf.
  void expand(int64_t n, int64_t place, int64_t label, std::vector<Real>& terms) {
    const int64_t* step = this->step(n);
    terms.clear();
    switch (step[0]) {
      case kSites:
      case kGiven: return;
      case kTotal:
      case kProduct: {
        const double off = m.levels ? highest(m, step, item, place) : 0;
        m.each_way(step, [&](int64_t, const int32_t* part, int64_t factors, int64_t way) {
          Real sum = 0;
          double level = -off;
          for (int64_t f = 0; f < factors && sum > kNever<Real>; ++f, part += kPart) {
            const int32_t* pair = m.found(part, way, item, place);
            sum += pair ? value(pair[0], pair[1], m.label_of(part, way, label)) : kNever<Real>;
            level += m.level_of(part, way, item, place);
          }
          terms.push_back(sum + Real(level));
        });
        return;
      }
      case kSummed:
      case kLinked:
      case kRules: {
        const Link<Real> link(m, step);
        if (n != row_step || place != row_place || item != row_item)
          row = link.in_logs(item, place, link.rules ? link.base(item, place) : 0, room);
        row_step = n, row_place = place, row_item = item;
        terms.assign(row, row + link.depth);
        if (noise) shake(link, place, terms);
        if (step[0] == kSummed) return;
        const Prepared<Real> t = prepared(m, step[3], item, step[10]);
        if (!(*turned)[step[3]]) {
          const Real* logs = t.logs + label * t.column;
          for (int64_t i = 0; i < link.depth; ++i) terms[i] += logs[i * t.row];
          return;
        }
        constexpr int64_t wide = width<Real>();
        for (int64_t first = 0; first < link.depth; first += wide) {
          const Real* __restrict logs = t.back + first * t.columns + label * wide;
          Real* __restrict to = terms.data() + first;
          const int64_t count = std::min(wide, link.depth - first);
          for (int64_t i = 0; i < count; ++i) to[i] += logs[i];
        }
        return;
      }
      case kPairs:
      case kNone: {  // those that are not stored, too
        const int32_t *left = m.index + step[4], *right = m.index + step[5];
        const int64_t first = label / step[7], second = label % step[7];
        const int64_t splits = std::max(left[2], right[2]);
        const auto level = [&](int64_t s) {
          return m.level_of(left, s, item, place) + m.level_of(right, s, item, place);
        };
        double off = kNever<double>;
        for (int64_t s = 0; s < splits; ++s) off = std::max(off, level(s));
        for (int64_t s = 0; s < splits; ++s) {
          const int64_t l = m.entry(left, s, item, place), r = m.entry(right, s, item, place);
          terms.push_back(l < 0 || r < 0 ? kNever<Real>
                                         : m.arena[l + first] + m.arena[r + second] + Real(level(s) - off));
        }
        return;
      }
      default: terms.push_back(value(n, place, label));
    }
  }

  // Adds the noise of the site whose states are the labels of a row.
  void shake(const Link<Real>& link, int64_t place, std::vector<Real>& terms) const {
    const auto add = [&](int64_t n, int64_t spot) {
      const int64_t own = step(n)[0] == kSites ? site(n, spot) : -1;
      for (int64_t i = 0; own >= 0 && i < link.depth; ++i) terms[i] += noise[own * link.depth + i];
    };
    const int64_t spot = link.source(place);
    if (!link.product) add(link.inner, spot);
    for (int64_t f = 0; f < link.factors; ++f)
      if (const int32_t* pair = m.found(link.product + f * kPart, 0, item, spot)) add(pair[0], pair[1]);
  }

  Real value(int64_t n, int64_t place, int64_t label) const {
    return m.arena[m.at(n, item, place) + label];
  }

  bool is_leaf(int64_t n) const { return step(n)[0] == kSites || step(n)[0] == kGiven; }

  // The state of a site's label, and the site of a leaf's node; below 0: none.
  int64_t state(int64_t n, int64_t label) const { return label + step(n)[4]; }
  int64_t site(int64_t n, int64_t place) const {
    return step(n)[0] == kSites ? m.index[step(n)[2] + place] : -1;
  }

  // The parts (step, place, label) of an alternative.
  template <typename Visit>
  void parts(int64_t n, int64_t place, int64_t label, int64_t chosen, Visit visit) const {
    const int64_t* step = this->step(n);
    const auto part_of = [&](const int32_t* part, int64_t way, int64_t inner) {
      const int32_t* found = m.found(part, way, item, place);
      if (found) visit(found[0], found[1], m.label_of(part, way, inner));
    };
    switch (step[0]) {
      case kTotal:
      case kProduct: {
        const int32_t* way = m.index + step[2];
        for (; chosen >= way[0]; way += 2 + kPart * way[1]) chosen -= way[0];
        for (int64_t f = 0; f < way[1]; ++f) part_of(way + 2 + f * kPart, chosen, label);
        return;
      }
      case kPairs:
      case kNone:
        part_of(m.index + step[4], chosen, label / step[7]);
        part_of(m.index + step[5], chosen, label % step[7]);
        return;
      case kBeside: {
        const int32_t* part = m.index + step[3];
        for (; label >= part[2] * part[4]; part += kPart) label -= part[2] * part[4];
        part_of(part, label / part[4], label % part[4]);
        return;
      }
      case kApart: {
        const int64_t wide = m.labels(step[2]);
        visit(step[2], place / wide, place % wide);
        return;
      }
      case kPicked:
      case kSummed:
      case kLinked:
      case kRules:
        visit(step[2], m.places(step[2]) > 1 ? place : 0,
              step[0] == kPicked ? m.index[step[3] + label] : chosen);
    }
  }
};

// Derivations of some items, all nodes of a step at once: shared work is done once, and values are
// read in order.
template <typename Real> struct Descent {
  struct Node {
    // The last one: the next that waits for this step; the step itself where there is one tree.
    int64_t item, place, label, tree, after;
    bool operator<(const Node& other) const {
      return std::tie(item, place, label, tree) <
             std::tie(other.item, other.place, other.label, other.tree);
    }
  };
  Nodes<Real> nodes;
  const std::vector<int64_t>& series;  // of each step, the first link of its series of maxima; below 0: none
  std::vector<Used>& used;
  std::vector<Stream> streams;
  std::vector<int64_t> heads, draws;  // of each step the node that waits; of each tree its number
  std::vector<Node> waiting, here;
  std::vector<Real> terms;
  bool summed = false;
  int64_t* states;    // (draws, items, sites), where given in place of a list of sites used
  const Real* noise;  // (draws, items, sites, states) of draws that are maxima with it; null: none
  const bool largest_of_each;  // whether nothing is shared

  Descent(const Nodes<Real>& nodes, const std::vector<int64_t>& series, std::vector<Used>& used, int64_t* states,
          const Real* noise = nullptr)
      : nodes(nodes), series(series), used(used), states(states), noise(noise),
        largest_of_each(nodes.m.best || noise) {
    if (!largest_of_each) heads.assign(nodes.m.count, -1);
  }

  void use(int64_t tree, int64_t site, int64_t state) {
    if (states) states[draws[tree] * nodes.m.table(0)[3] + site] = state;
    else used.push_back({draws[tree], site, state});
  }

  // Uses a site, takes the parts of a product, or waits until other nodes of the step are known.
  void take(int64_t n, int64_t place, int64_t label, int64_t tree) {
    const int64_t* step = nodes.step(n);
    if (step[0] == kSites) {
      use(tree, nodes.site(n, place), nodes.state(n, label));
    } else if (step[0] == kProduct) {
      nodes.parts(n, place, label, 0,
                  [&](int64_t inner, int64_t p, int64_t l) { take(inner, p, l, tree); });
    } else {
      waiting.push_back({nodes.item, place, label, tree, largest_of_each ? n : heads[n]});
      if (!largest_of_each) heads[n] = waiting.size() - 1;
    }
  }

  // An index of `terms`: the first maximum, or a draw in proportion to the exponentials.
  int64_t chosen(Stream& stream) {
    const int64_t count = terms.size();
    if (count < 2) return 0;
    if (largest_of_each) {
      const Real top = largest(terms.data(), count), *term = terms.data();
      int64_t first = count - 1;
#pragma omp simd reduction(min : first)
      for (int64_t k = 0; k < count; ++k) first = std::min(first, term[k] == top ? k : count);
      return first;
    }
    if (!summed) {
      exps(terms.data(), terms.data(), finite(largest(terms.data(), count)), count);
      for (int64_t k = 1; k < count; ++k) terms[k] += terms[k - 1];
      summed = true;
    }
    const Real target = Real(stream.uniform()) * terms.back();
    const int64_t way = std::upper_bound(terms.begin(), terms.end(), target) - terms.begin();
    if (way < count) return way;  // else the product was rounded up: the last that has a share
    return std::lower_bound(terms.begin(), terms.end(), terms.back()) - terms.begin();
  }

  // Goes back along a series from one of its links.
  void follow(const Series<Real>& along, const Node& node) {
    constexpr int64_t wide = width<Real>();
    const Machine<Real>& m = nodes.m;
    const int64_t depth = along.depth, slot = along.first[3];
    const Prepared<Real> t = prepared(m, slot, node.item, along.first[10]);
    const bool turned = (*nodes.turned)[slot];
    const Lane<Real> pads = pads_of<Real>(depth);
    int64_t label = node.label;
    terms.resize(panels_of(depth, wide) * wide);
    Real* logs = terms.data();
    for (int64_t n = (node.after - series[node.after]) / along.hop; n >= 0; --n) {
      const Real *given = m.arena + along.sites(n, node.item), *before = m.arena + along.at(n - 1, node.item);
      if (!turned) for (int64_t i = 0; i < depth; ++i) logs[i] = t.logs[i * t.row + label * t.column];
      Lane<Real> top = all<Real>(kNever<Real>);
      by_lanes<Real>(depth, [&](int64_t i, auto left) {
        const Real* table = turned ? t.back + i / wide * wide * depth + label * wide + i % wide : logs + i;
        Lane<Real> sum = load(given + i, left) + load(before + i, left) + load(table, left);
        if (noise) sum += load(nodes.noise + along.sites(n, 0) + i, left);
        if (left < lanes<Real>()) sum += pads;
        store(logs + i, sum, lanes<Real>());
        top = sum > top ? sum : top;
      });
      label = place_of(logs, largest_of<Real>(top), depth);
      use(node.tree, along.sites(n, 0) / depth, label);
    }
    take(along.before, 0, label, node.tree);
  }

  // Ranges of items and draws; each draw has a separate stream.
  void run(uint64_t seed, int64_t first_item, int64_t last_item, int64_t first, int64_t last) {
    const Machine<Real>& m = nodes.m;
    for (nodes.item = first_item; nodes.item < last_item; ++nodes.item)
      for (int64_t draw = first; draw < last; ++draw) {
        if (!(m.arena[m.at(m.count - 1, nodes.item, 0)] > kNever<Real>)) break;
        draws.push_back(draw * m.batch + nodes.item);
        streams.push_back({seed ^ Stream{uint64_t(draws.back())}.next()});
        take(m.count - 1, 0, 0, draws.size() - 1);
      }
    while (largest_of_each && !waiting.empty()) {
      const Node node = waiting.back();
      waiting.pop_back();
      nodes.item = node.item;
      nodes.noise = noise ? noise + draws[node.tree] * m.table(0)[3] * m.table(0)[5] : nullptr;
      if (series[node.after] >= 0) {
        follow(Series<Real>(m, nodes.step(series[node.after])), node);
        continue;
      }
      nodes.expand(node.after, node.place, node.label, terms);
      nodes.parts(node.after, node.place, node.label, chosen(streams[node.tree]),
                  [&](int64_t inner, int64_t p, int64_t l) { take(inner, p, l, node.tree); });
    }
    for (int64_t n = m.count - 1; !largest_of_each && n >= 0; --n) {
      here.clear();
      for (int64_t k = heads[n]; k >= 0; k = waiting[k].after) here.push_back(waiting[k]);
      if (here.empty()) continue;
      std::sort(here.begin(), here.end());
      for (size_t k = 0; k < here.size(); ++k) {
        const Node node = here[k];
        nodes.item = node.item;
        if (!k || std::tie(node.item, node.place, node.label) !=
                      std::tie(here[k - 1].item, here[k - 1].place, here[k - 1].label)) {
          nodes.expand(n, node.place, node.label, terms);
          summed = false;
        }
        nodes.parts(n, node.place, node.label, chosen(streams[node.tree]),
                    [&](int64_t inner, int64_t p, int64_t l) { take(inner, p, l, node.tree); });
      }
    }
  }
};

std::vector<Used>* together(const std::vector<std::vector<Used>>& parts) {
  auto* all = new std::vector<Used>;
  for (const auto& part : parts) all->insert(all->end(), part.begin(), part.end());
  return all;
}

// Turns tables of which derivations read about as many columns as they have.
template <typename Real>
std::vector<uint8_t> turn_tables(const Machine<Real>& m, int64_t slots, int64_t draws) {
  std::vector<int64_t> reads(slots);
  for (int64_t n = 0; n < m.count; ++n) {
    const int64_t* step = m.steps + kFields * n;
    if (step[0] == kLinked || step[0] == kRules) reads[step[3]] += draws * m.batch * m.places(n);
  }
  constexpr int64_t wide = width<Real>();
  std::vector<uint8_t> turned(slots);
  for (int64_t slot = 1; slot < slots; ++slot) {
    const int64_t* table = m.table(slot);
    turned[slot] = reads[slot] && table[7] >= 0 && reads[slot] >= table[1] * table[8] * table[5];
    for (int64_t k = 0; turned[slot] && k < table[1] * table[8]; ++k) {
      const Prepared<Real> t = prepared(m, slot, k / table[8], k % table[8]);
      for (int64_t i = 0; i < t.rows; i += wide)
        for (int64_t j = 0; j < t.columns; ++j)
          for (int64_t k = 0; k < std::min(wide, t.rows - i); ++k)
            t.back[i * t.columns + j * wide + k] = t.logs[(i + k) * t.row + j * t.column];
    }
  }
  return turned;
}

// (derivation, site, state) of all sites that the draws of all items use, if `states` is not given.
template <typename Real>
std::vector<Used>* descend(const Machine<Real>& m, int64_t* states, const Real* noise, int64_t slots,
                           int64_t draws, uint64_t seed, int threads) {
  const int64_t blocks = m.batch >= threads ? 1 : std::min<int64_t>(draws, threads);
  const int64_t groups = blocks > 1 ? m.batch : std::min<int64_t>(m.batch, threads);
  const std::vector<uint8_t> turned = turn_tables(m, slots, draws);
  const std::vector<int64_t> series = all_series(m, m.best || noise);
  std::vector<std::vector<Used>> parts(groups * blocks);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
  for (int64_t job = 0; job < groups * blocks; ++job) {
    const int64_t group = job / blocks, block = job % blocks;
    Descent<Real>(Nodes<Real>(m, 0, turned), series, parts[job], states, noise)
        .run(seed, m.batch * group / groups, m.batch * (group + 1) / groups, draws * block / blocks,
             draws * (block + 1) / blocks);
  }
  return together(parts);
}

// ---- maxima downwards --------------------------------------------------------------------------

template <typename Real> void raise(Real& to, Real value) { to = std::max(to, value); }

// The score of the best derivation through an entry, less the entry's value.
template <typename Real> Real besides(Real above, Real value) {
  return above > kNever<Real> ? above - value : above;
}

template <typename Real>
NOINLINE void link_best(const Machine<Real>& m, const int64_t* step, int64_t first, int64_t last, Real* above,
                     Room<Real>& room) {
  const Link<Real> link(m, step);
  const int64_t columns = m.labels(step[1]), depth = link.depth;
  std::vector<Real> ahead(columns), back;
  for (int64_t item = first; item < last; ++item)
    for (int64_t place = 0; place < link.places; ++place) {
      const int64_t here = m.at(link.out, item, place);
      bool some = false;
      for (int64_t j = 0; j < columns; ++j) {
        ahead[j] = besides(above[here + j], m.arena[here + j]);
        some |= ahead[j] > kNever<Real>;
      }
      if (!some) continue;
      const Real* rest = ahead.data();  // of each row what the best entry gives
      if (step[0] == kSummed) {
        back.assign(depth, ahead[0]);
        rest = back.data();
      } else if (step[0] != kPairs) {
        const Prepared<Real> t = prepared(m, step[3], item, step[10]);
        back.resize(panels_of(depth, width<Real>()) * width<Real>());
        if (m.table(step[3])[7] >= 0) {
          by_panels(ahead.data(), 1, t.columns, t.back, depth, back.data(), true, m.threads);
        } else {
          std::fill(back.begin(), back.end(), kNever<Real>);
          for (int64_t i = 0; i < depth; ++i)
            for (int64_t j = 0; j < t.columns; ++j)
              raise(back[i], t.logs[i * t.row + j * t.column] + ahead[j]);
        }
        rest = back.data();
      }
      if (!link.rules) {
        const Real* row = link.in_logs(item, place, 0, room);
        link.each_factor(item, place, [&](int64_t from, int64_t labels) {
          for (int64_t i = 0; i < depth; ++i)
            raise(above[from + (labels > 1 ? i : 0)], row[i] + rest[i]);
        });
        continue;
      }
      for (int64_t s = 0; s < link.splits; ++s) {
        const int64_t l = m.entry(link.left, s, item, place), r = m.entry(link.right, s, item, place);
        if (l < 0 || r < 0) continue;
        for (int64_t c = 0; c < link.firsts; ++c)
          for (int64_t e = 0; e < link.seconds; ++e) {
            const Real whole = m.arena[l + c] + m.arena[r + e] + rest[c * link.seconds + e];
            raise(above[l + c], whole);
            raise(above[r + e], whole);
          }
      }
    }
}

template <typename Real>
NOINLINE void total_best(const Machine<Real>& m, const int64_t* step, int64_t first, int64_t last, Real* above,
                      Room<Real>& room) {
  const int64_t labels = m.labels(step[1]), places = m.places(step[1]);
  room.terms.resize(std::max<int64_t>(1, step[4] * labels));
  for (int64_t item = first; item < last; ++item)
    for (int64_t place = 0; place < places; ++place) {
      const int64_t here = m.at(step[1], item, place);
      if (!(largest(above + here, labels) > kNever<Real>)) continue;
      alternatives(m, step, item, place, labels, 0, room.terms);
      m.each_way(step, [&](int64_t row, const int32_t* part, int64_t factors, int64_t a) {
        Real* terms = room.terms.data() + row * labels;
        for (int64_t j = 0; j < labels; ++j) terms[j] += besides(above[here + j], m.arena[here + j]);
        for (int64_t f = 0; f < factors; ++f, part += kPart) {
          const int64_t to = m.entry(part, a, item, place);
          if (to < 0) return;
          const int32_t* list = m.listed(part, a);
          if (part[4] == 1) raise(above[to], largest(terms, labels));
          else if (list) for (int64_t j = 0; j < labels; ++j) raise(above[to + list[j]], terms[j]);
          else for (int64_t j = 0; j < labels; ++j) raise(above[to + j], terms[j]);
        }
      });
    }
}

// The score of the best derivation through each entry; -inf: none.
template <typename Real>
void run_best(const Machine<Real>& m, int64_t first, int64_t last, Real* above) {
  Room<Real> room;
  for (int64_t n = m.count - 1; n >= 0; --n) {
    const int64_t* step = m.steps + kFields * n;
    switch (step[0]) {
      case kSites:
        for (int64_t item = first; item < last; ++item)
          m.each_site(step, item, above, [&](int64_t from, Real* to) {
            for (int64_t j = 0; j < m.labels(n); ++j) raise(to[j], above[from + j]);
          });
        break;
      case kGiven:
      case kNone:
      case kProduct: break;
      case kTotal: total_best(m, step, first, last, above, room); break;
      case kSummed:
      case kLinked:
      case kRules:
      case kPairs: link_best(m, step, first, last, above, room); break;
      default:
        for (int64_t item = first; item < last; ++item)
          moved(m, step, item, [&](int64_t to, int64_t from, Real) {
            if (from >= 0) raise(above[from], above[to]);
          });
    }
  }
}

}  // namespace
