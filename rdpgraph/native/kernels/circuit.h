// Clauses compiled into a circuit (smooth, deterministic, decomposable) by exhaustive branching.
//
// A branch propagates units and splits what is left into components that share no variable; each
// component is looked up by its variables and clauses before it is branched on.
// Sang, Bacchus, Beame, Kautz, Pitassi (2004), Combining component caching and clause learning;
// Darwiche (2004), New advances in compiling CNF to decomposable negation normal form.
//
// With C the clauses left over variables V, and x a variable of V,
//
//   sum(V, C)     = product(V, C with x) + product(V, C with not x),
//   product(V, C) = (literals that follow by units) * prod over components (V_k, C_k) of sum(V_k, C_k),
//
// where the terms of a sum differ in x, and the factors of a product share no variable. Nodes are numbered as they are
// made, so that those below a node come before it; `free_nodes` are x + not x, of variables in no clause that is left.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include <vector>

struct Compiler {
  // Nodes are 2 (x - 1) for literal x, one more for -x; from 2 n on in the order of `out`:
  // kind (0: product, 1: sum), the number of children, the children.
  static constexpr int64_t kNever = -1;
  static constexpr double kLast = 1e12;  // above all scores of variables
  struct Late {};

  const int32_t* literals;
  const int64_t* starts;
  // Of each variable: higher ones are branched on first. Negative: hidden, in no node of the circuit;
  // such are branched on last, until some values satisfy the clauses.
  const int32_t* order;
  int32_t* out;
  int64_t count, clauses, capacity;
  double seconds;

  int64_t used = 0, next = 0, looks = 0, kept = 0, empty = kNever;
  std::vector<int8_t> value;
  std::vector<int32_t> satisfied, open, trail, seen_variable, seen_clause;
  std::vector<std::vector<int32_t>> holding;  // of each literal the clauses
  std::vector<int64_t> free_nodes;
  std::unordered_map<std::string, int64_t> known;
  int32_t stamp = 0;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();

  bool hidden(int32_t literal) const { return order[std::abs(literal) - 1] < 0; }

  static int64_t node(int32_t literal) { return 2 * (std::abs(literal) - 1) + (literal < 0); }

  int64_t add(int kind, const std::vector<int64_t>& children) {
    const int64_t size = int64_t(children.size());
    if (used + 2 + size > capacity) throw Late();
    out[used++] = kind;
    out[used++] = int32_t(size);
    for (int64_t child : children) out[used++] = int32_t(child);
    return next++;
  }

  void look() {
    if (++looks % 256) return;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    if (spent.count() > seconds || kept > 4 * capacity) throw Late();
  }

  // Sets a literal and its consequences; false: a contradiction.
  bool assume(int32_t first) {
    size_t at = trail.size();
    value[std::abs(first)] = first > 0 ? 1 : -1;
    trail.push_back(first);
    bool sound = true;
    for (; at < trail.size(); at++) {
      const int32_t literal = trail[at];
      for (int32_t c : holding[node(literal)]) satisfied[c]++;
      for (int32_t c : holding[node(-literal)]) {
        if (--open[c] > 1 || satisfied[c] || !sound) continue;
        if (open[c] == 0) {
          sound = false;
          continue;
        }
        for (int64_t i = starts[c]; i < starts[c + 1]; i++) {
          const int32_t unit = literals[i];
          if (value[std::abs(unit)]) continue;
          value[std::abs(unit)] = unit > 0 ? 1 : -1;
          trail.push_back(unit);
          break;
        }
      }
    }
    return sound;
  }

  void undo(size_t size) {
    while (trail.size() > size) {
      const int32_t literal = trail.back();
      trail.pop_back();
      for (int32_t c : holding[node(literal)]) satisfied[c]--;
      for (int32_t c : holding[node(-literal)]) open[c]++;
      value[std::abs(literal)] = 0;
    }
  }

  // The product of the trail's literals from a position on and of the components of variables.
  int64_t product(size_t from, const std::vector<int32_t>& variables) {
    // Literals that follow are factors by themselves.
    std::vector<int64_t> children;
    for (size_t i = from; i < trail.size(); i++) {
      if (!hidden(trail[i])) children.push_back(node(trail[i]));
    }
    // Components: variables that share an open clause, found breadth first.
    const int32_t mark = ++stamp;
    std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>> parts;
    for (int32_t root : variables) {
      if (value[root] || seen_variable[root] == mark) continue;
      std::vector<int32_t> members{root}, rows;
      seen_variable[root] = mark;
      for (size_t at = 0; at < members.size(); at++) {
        for (int32_t literal : {members[at], -members[at]}) {
          for (int32_t c : holding[node(literal)]) {
            if (satisfied[c] || seen_clause[c] == mark) continue;
            seen_clause[c] = mark;
            rows.push_back(c);
            for (int64_t i = starts[c]; i < starts[c + 1]; i++) {
              const int32_t other = std::abs(literals[i]);
              if (value[other] || seen_variable[other] == mark) continue;
              seen_variable[other] = mark;
              members.push_back(other);
            }
          }
        }
      }
      if (rows.empty()) {
        if (!hidden(root)) children.push_back(free_nodes[root]);
      } else {
        parts.emplace_back(std::move(members), std::move(rows));
      }
    }
    // Small components first: an unsatisfiable one is found before the large ones are branched on.
    std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
      return a.first.size() < b.first.size();
    });
    for (auto& [members, rows] : parts) {
      const int64_t child = sum(members, rows);
      if (child == kNever) return kNever;
      if (child != empty) children.push_back(child);
    }
    if (children.empty() && empty == kNever) empty = add(0, {});
    return children.empty() ? empty : children.size() == 1 ? children[0] : add(0, children);
  }

  int64_t sum(std::vector<int32_t>& variables, std::vector<int32_t>& rows) {
    look();
    std::sort(variables.begin(), variables.end());
    std::sort(rows.begin(), rows.end());
    // Their number first: variables and clauses are numbers alike.
    const int32_t members = int32_t(variables.size());
    std::string key(reinterpret_cast<const char*>(&members), 4);
    key.append(reinterpret_cast<const char*>(variables.data()), 4 * variables.size());
    key.append(reinterpret_cast<const char*>(rows.data()), 4 * rows.size());
    const auto place = known.find(key);
    if (place != known.end()) return place->second;
    // Among the variables that separate most, the one in most of the shortest clauses.
    int32_t best = variables[0];
    double most = -kLast;
    for (int32_t x : variables) {
      double score = 0.0;
      for (int32_t literal : {x, -x}) {
        for (int32_t c : holding[node(literal)]) {
          if (!satisfied[c]) score += open[c] == 2 ? 2.0 : 1.0;
        }
      }
      score += hidden(x) ? 1.0 - kLast : order[x - 1];
      if (score > most) most = score, best = x;
    }
    std::vector<int64_t> children;
    const size_t from = trail.size();
    for (int32_t literal : {best, -best}) {
      if (assume(literal)) {
        const int64_t child = product(from, variables);
        if (child != kNever) children.push_back(child);
      }
      undo(from);
      if (hidden(best) && !children.empty()) break;
    }
    const int64_t found =
        children.empty() ? kNever : children.size() == 1 ? children[0] : add(1, children);
    kept += int64_t(key.size()) / 4 + 16;
    known.emplace(std::move(key), found);
    return found;
  }

  // The root; -1: unsatisfiable; -2: out of time or memory.
  int64_t run() {
    value.assign(count + 1, 0);
    seen_variable.assign(count + 1, 0);
    seen_clause.assign(clauses, 0);
    satisfied.assign(clauses, 0);
    holding.resize(2 * count);
    for (int64_t c = 0; c < clauses; c++) {
      open.push_back(int32_t(starts[c + 1] - starts[c]));
      for (int64_t i = starts[c]; i < starts[c + 1]; i++) {
        holding[node(literals[i])].push_back(int32_t(c));
      }
    }
    next = 2 * count;
    try {
      free_nodes.push_back(0);
      for (int64_t x = 0; x < count; x++) free_nodes.push_back(add(1, {2 * x, 2 * x + 1}));
      std::vector<int32_t> all;
      for (int64_t x = 1; x <= count; x++) all.push_back(int32_t(x));
      for (int64_t c = 0; c < clauses; c++) {
        if (starts[c + 1] - starts[c] > 1 || satisfied[c]) continue;
        const int32_t unit = literals[starts[c]];
        if (value[std::abs(unit)] || !assume(unit)) return kNever;
      }
      return product(0, all);
    } catch (const Late&) {
      return -2;
    }
  }
};
