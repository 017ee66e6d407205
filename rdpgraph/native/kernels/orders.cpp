// Greedy elimination orders of a graph: the same as in `rdpgraph/plan/orders.py`, which says what each
// rule does. Graphs are lists of neighbours, increasing: those of v are near[starts[v]] up to
// near[starts[v + 1]].

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>
#include <vector>

namespace {

typedef std::vector<int32_t> List;

// Told of so many looks at the clock since the last time; returns whether it is past the deadline.
typedef int (*Look)(int64_t);

struct Clock {
  static constexpr int64_t kEvery = 32;  // a call into Python takes as long as many looks
  Look look;
  int64_t looks = 0;
  bool late = false;

  bool past() {
    if (++looks < kEvery) return late;
    return tell();
  }
  bool tell() {
    if (looks) late = look(looks) || late;
    looks = 0;
    return late;
  }
};

// Neighbours that shrink as variables are eliminated. Those that are gone stay in a list until it is
// read whole (`live`), as to take one out of a long list takes as long as to read it.
struct Graph {
  std::vector<List> lists;
  std::vector<int64_t> degree;  // of neighbours that are left
  std::vector<int8_t> gone;
  std::vector<int64_t> marks;
  int64_t mark = 0;

  Graph(const int64_t* starts, const int32_t* near, int64_t count)
      : lists(count), degree(count), gone(count, 0), marks(count, 0) {
    for (int64_t v = 0; v < count; v++) {
      lists[v].assign(near + starts[v], near + starts[v + 1]);
      degree[v] = int64_t(lists[v].size());
    }
  }

  List& live(int32_t v) {
    List& list = lists[v];
    if (int64_t(list.size()) != degree[v])
      list.erase(std::remove_if(list.begin(), list.end(), [&](int32_t u) { return gone[u]; }), list.end());
    return list;
  }

  // Takes a variable out of the graph.
  void remove(int32_t v) {
    gone[v] = 1;
    for (int32_t u : lists[v])
      if (!gone[u]) degree[u]--;
  }

  bool adjacent(int32_t v, int32_t u) const {
    return std::binary_search(lists[v].begin(), lists[v].end(), u);
  }

  // Adds increasing neighbours that the list of v lacks.
  void add(int32_t v, const List& others) {
    if (others.empty()) return;
    List& list = live(v);
    const size_t before = list.size();
    list.insert(list.end(), others.begin(), others.end());
    std::inplace_merge(list.begin(), list.begin() + before, list.end());
    degree[v] = int64_t(list.size());
  }

  void set_marks(const List& list) {
    mark++;
    for (int32_t u : list) marks[u] = mark;
  }
  bool marked(int32_t v) const { return marks[v] == mark; }
};

// `peel` of orders.py; the number of variables that were taken.
int64_t peel_safely(Graph& graph, const int64_t* sizes, const int8_t* last, int32_t* prefix, int64_t large,
                    Clock& clock) {
  const int64_t count = int64_t(graph.lists.size());
  bool leaves_first = false;
  for (int64_t v = 0; v < count; v++) leaves_first = leaves_first || sizes[v] >= large;
  List frontier, touched;
  std::vector<int8_t> waiting(count, 0), touches(count, 0);
  int64_t waits = 0, used = 0;
  for (int32_t v = 0; v < count; v++)
    if (!last[v]) frontier.push_back(v);
  auto wait = [&](int32_t v, int8_t to) {
    waits += to - waiting[v];
    waiting[v] = to;
  };
  while (!frontier.empty() || waits) {
    if (frontier.empty()) {  // there are no leaves any more
      leaves_first = false;
      for (int32_t v = 0; v < count; v++) {
        if (waiting[v]) frontier.push_back(v);
        waiting[v] = 0;
      }
      waits = 0;
    }
    touched.clear();
    for (int32_t v : frontier) {
      if (clock.past()) return used;
      wait(v, 0);
      const int64_t degree = graph.degree[v];
      if (leaves_first && degree > 1) {
        wait(v, 1);
        continue;
      }
      const List& near = graph.live(v);
      if (degree == 2) {
        const int32_t a = near[0], b = near[1];
        if (!graph.adjacent(a, b)) {
          if (sizes[v] < sizes[a] && sizes[v] < sizes[b]) continue;
          graph.add(a, {b});
          graph.add(b, {a});
        }
      } else if (degree > 2) {
        bool simplicial = true;
        for (int32_t u : near) simplicial = simplicial && graph.degree[u] >= degree;
        for (size_t i = 0; simplicial && i < near.size(); i++)
          for (size_t j = 0; simplicial && j < near.size(); j++)
            simplicial = i == j || graph.adjacent(near[i], near[j]);
        if (!simplicial) continue;
      }
      prefix[used++] = v;
      graph.remove(v);
      for (int32_t u : near) {
        if (!touches[u]) touched.push_back(u);
        touches[u] = 1;
      }
    }
    frontier.clear();
    for (int32_t v : touched) {
      touches[v] = 0;
      if (!graph.gone[v] && !last[v]) frontier.push_back(v);
    }
    std::sort(frontier.begin(), frontier.end());
  }
  return used;
}

// `min_weight` and `_fill_order` of orders.py, without random numbers.
struct Greedy {
  static constexpr double kUnit = 0x1p-30;  // of scores of cliques, whose sums are exact integers

  Graph graph;
  const int64_t* sizes;
  const int8_t* last;
  int32_t* order;
  double limit;
  bool fill, weighted;  // the rule: missing edges, or else the weight of the clique
  Clock clock;
  int64_t count;

  std::vector<double> logs, score, inside;
  typedef std::tuple<double, int64_t, int32_t, int32_t> Entry;  // score, degree, variable, version
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> heap;
  std::vector<int32_t> version;
  std::vector<int8_t> waits;
  std::vector<List> outside;
  List lacking, changed;
  std::vector<int64_t> changes;
  int64_t turn = 0;

  Greedy(const int64_t* starts, const int32_t* near, const int64_t* sizes_, const int8_t* last_,
         int32_t* order_, void* look, int64_t count_, double limit_, bool fill_, bool weighted_)
      : graph(starts, near, count_), sizes(sizes_), last(last_), order(order_), limit(limit_), fill(fill_),
        weighted(weighted_), clock{Look(look)}, count(count_), logs(count), score(count), inside(count),
        version(count), waits(count), outside(fill ? count : 0), changes(count) {
    for (int64_t v = 0; v < count; v++) logs[v] = std::nearbyint(std::log(double(sizes[v])) / kUnit);
  }

  double weight(int32_t v) const { return weighted ? double(sizes[v]) : 1.0; }

  double mass(const List& list) const {
    if (!weighted) return double(list.size());
    double total = 0.0;
    for (int32_t u : list) total += double(sizes[u]);
    return total;
  }

  void push(int32_t v) {
    if (waits[v]) heap.emplace(score[v], graph.degree[v], v, ++version[v]);
  }

  void change(int32_t v) {
    if (changes[v] == turn) return;
    changes[v] = turn;
    changed.push_back(v);
  }

  // The mass of the neighbours of v among those listed, in the shorter one of both lists.
  double mass_among(const List& list, int32_t v) {
    double total = 0.0;
    if (list.size() * 8 < graph.lists[v].size()) {
      for (int32_t u : list)
        if (graph.adjacent(v, u)) total += weight(u);
    } else {
      graph.set_marks(list);
      for (int32_t u : graph.live(v))
        if (graph.marked(u)) total += weight(u);
    }
    return total;
  }

  // The scores at first; false: it is too late.
  bool begin() {
    for (int32_t v = 0; v < count; v++) {
      const List& near = graph.lists[v];
      if (!fill) {
        double total = 0.0;
        for (int32_t u : near) total += logs[u];
        score[v] = logs[v] + total;
        continue;
      }
      if (clock.past()) return false;
      const double whole = mass(near);
      graph.set_marks(near);
      for (int32_t u : near) {
        double common = 0.0;
        for (int32_t w : graph.lists[u])
          if (graph.marked(w)) common += weight(w);
        score[v] += 0.5 * weight(u) * (whole - weight(u) - common);
      }
    }
    return true;
  }

  // Eliminates a variable by `joined` of orders.py; false: it is too late.
  bool join(int32_t v) {
    const List near = graph.live(v);
    graph.remove(v);
    for (int32_t u : near) {
      lacking.clear();
      double more = 0.0;
      for (int32_t w : near)
        if (w != u && !graph.adjacent(u, w)) {
          lacking.push_back(w);
          more += logs[w];
        }
      graph.add(u, lacking);
      score[u] += more - logs[v];
      if (clock.past()) return false;
      push(u);
    }
    return true;
  }

  // The same by the number of missing edges.
  bool join_filling(int32_t v) {
    const List near = graph.live(v);
    graph.remove(v);
    turn++;
    changed.clear();
    for (int32_t u : near) {
      change(u);
      List& rest = outside[u];
      rest.clear();
    }
    graph.set_marks(near);
    for (int32_t u : near)
      for (int32_t w : graph.live(u))
        if (!graph.marked(w)) outside[u].push_back(w);
    if (score[v] == 0.0) {  // no edge is added; its neighbours lack those to it no more
      for (int32_t u : near) score[u] -= weight(v) * mass(outside[u]);
    } else {
      if (!connect(near)) return false;
      const double whole = mass(near);
      for (int32_t u : near)
        for (int32_t y : outside[u]) inside[y] += weight(u);
      for (int32_t u : near) {
        if (clock.past()) return false;
        const List& beyond = outside[u];
        const double rest = mass(beyond);
        double total = 0.0;
        for (int32_t y : beyond) {
          const double inner = rest - weight(y) - mass_among(beyond, y);
          total += weight(y) * (whole - inside[y] + 0.5 * inner);
        }
        score[u] = total;
      }
      for (int32_t u : near)
        for (int32_t y : outside[u]) inside[y] = 0.0;
      for (int32_t u : near) {
        lacking.clear();
        for (int32_t w : near)
          if (w != u && !graph.adjacent(u, w)) lacking.push_back(w);
        graph.add(u, lacking);
      }
    }
    for (int32_t u : changed) push(u);
    return true;
  }

  // A new edge between a and b is one that their common neighbours lack no more; false: too late.
  bool connect(const List& near) {
    for (int32_t a : near) {
      if (clock.past()) return false;
      graph.set_marks(outside[a]);
      for (int32_t b : near) {
        if (a >= b || graph.adjacent(a, b)) continue;
        const double gain = weight(a) * weight(b);
        for (int32_t y : outside[b]) {
          if (!graph.marked(y)) continue;
          score[y] -= gain;
          change(y);
        }
      }
    }
    return true;
  }

  bool run() {
    if (!begin()) return false;
    double spent = 0.0;
    int64_t used = 0;
    for (int phase = 0; phase < 2; phase++) {  // variables that come last are the second
      for (int32_t v = 0; v < count; v++) {
        if ((last[v] != 0) != (phase == 1)) continue;
        waits[v] = 1;
        push(v);
      }
      while (!heap.empty()) {
        const auto [least, degree, v, entry] = heap.top();
        heap.pop();
        if (entry != version[v] || !waits[v]) continue;
        waits[v] = 0;
        order[used++] = v;
        double exponent = score[v];
        if (fill) {
          exponent = logs[v];
          for (int32_t u : graph.live(v)) exponent += logs[u];
        }
        exponent *= kUnit;
        spent += exponent < 700.0 ? std::exp(exponent) : std::numeric_limits<double>::infinity();
        if (spent > limit || (fill && clock.past())) return false;
        if (!(fill ? join_filling(v) : join(v))) return false;
      }
    }
    return true;
  }
};

}

extern "C" {

// The number of neighbours of each variable, `counts`, or these, in the places from `starts` on:
// variables are neighbours if a tensor has both.
void order_primal(const int32_t* flat, const int64_t* tensor_starts, const int64_t* starts, int64_t* counts,
                  int32_t* near, int64_t variables, int64_t tensors) {
  std::vector<int64_t> begins(variables + 1, 0), seen(variables, -1);
  for (int64_t i = 0; i < tensor_starts[tensors]; i++) begins[flat[i] + 1]++;
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<int32_t> having(tensor_starts[tensors]);
  std::vector<int64_t> next(begins.begin(), begins.end() - 1);
  for (int64_t t = 0; t < tensors; t++)
    for (int64_t i = tensor_starts[t]; i < tensor_starts[t + 1]; i++) having[next[flat[i]]++] = int32_t(t);
  for (int64_t v = 0; v < variables; v++) {
    int64_t found = 0;
    seen[v] = v;
    for (int64_t k = begins[v]; k < begins[v + 1]; k++)
      for (int64_t i = tensor_starts[having[k]]; i < tensor_starts[having[k] + 1]; i++) {
        if (seen[flat[i]] == v) continue;
        seen[flat[i]] = v;
        if (starts) near[starts[v] + found] = flat[i];
        found++;
      }
    if (starts) std::sort(near + starts[v], near + starts[v] + found);
    else counts[v] = found;
  }
}

// Variables that are safe to eliminate first, `used` of them, and the neighbours of those left over.
void order_peel(const int64_t* starts, const int32_t* near, const int64_t* sizes, const int8_t* last,
                int32_t* prefix, int64_t* used, int64_t* left_starts, int32_t* left, void* look,
                int64_t variables, int64_t large) {
  Graph graph(starts, near, variables);
  Clock clock{Look(look)};
  used[0] = peel_safely(graph, sizes, last, prefix, large, clock);
  clock.tell();
  std::vector<int32_t> names(variables, -1);
  int32_t kept = 0;
  for (int64_t v = 0; v < variables; v++)
    if (!graph.gone[v]) names[v] = kept++;
  int64_t at = 0, number = 0;
  left_starts[0] = 0;
  for (int32_t v = 0; v < variables; v++) {
    if (graph.gone[v]) continue;
    for (int32_t u : graph.live(v)) left[at++] = names[u];
    left_starts[++number] = at;
  }
}

// A greedy order; `found` is 0 where it passes the limit or the deadline.
void order_greedy(const int64_t* starts, const int32_t* near, const int64_t* sizes, const int8_t* last,
                  int32_t* order, int64_t* found, void* look, int64_t variables, double limit, int fill,
                  int weighted) {
  Greedy greedy(starts, near, sizes, last, order, look, variables, limit, fill != 0, weighted != 0);
  found[0] = greedy.run();
  greedy.clock.tell();
}

}
