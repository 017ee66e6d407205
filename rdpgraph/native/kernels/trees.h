// The matrix-tree theorem by eliminating words, last first, without a subtraction in sums (Grassmann, Taksar and
// Heyman): the sum over non-projective trees, and its gradient.
//
// w_ic = exp(score of the arc from head c to word i), head 0 the root. Eliminating the last word k takes every way
// through it into account, since k itself has one of the heads that are left:
//
//   pivot_k = sum_c w_kc,    share_kc = w_kc / pivot_k,    w_ic += w_ik share_kc for all words i < k and heads c < k,
//
// where an arc i to i closes a cycle, and is not counted (w_ii = 0). Z = prod_k pivot_k. With one root only, w_k0
// counts in the pivot of the one word that has no other head left. Gradients go the same way back, with the rows and
// columns of each word as they were at its turn.

#pragma once

#include "logs.h"
#include "threads.h"

namespace {

constexpr double kLeastArc = 1e-280;  // below which a product that is all of an arc is in doubt

// arcs: (items, words, words + 1) log-values [word, head], head 0 the root. weights: likewise, each
// row over its largest; once words are eliminated, a word's row and column as they were at its turn.
struct Trees {
  const double* arcs;
  const int64_t* lengths;
  double* weights;
  int64_t words;
  bool multiroot;

  template <typename Number> Number* row(Number* all, int64_t item, int64_t word) const {
    return all + (item * words + word) * (words + 1);
  }
  double peak(int64_t item, int64_t word) const {
    const double* from = row(arcs, item, word);
    return *std::max_element(from, from + words + 1);
  }

  // What a word's arcs are multiplied by when arcs to it go on to its heads. Returns the pivot.
  double shares(int64_t item, int64_t word, bool& used, double* share) const {
    const double* heads = row(weights, item, word);
    double pivot = used ? heads[0] : 0;
    for (int64_t c = 1; c <= word; ++c) pivot += heads[c];
    if (!used && !(pivot > 0)) pivot = heads[0], used = true;  // this is the one root
    for (int64_t c = 0; c <= word; ++c) share[c] = heads[c] / pivot;
    return pivot;
  }

  // Log Z; NaN where products may have lost all of an arc.
  double sum(int64_t item) const {
    std::vector<double> share(words + 1);
    double log_z = 0;
    for (int64_t word = 0; word < lengths[item]; ++word) {
      const double top = peak(item, word), *from = row(arcs, item, word);
      double* to = row(weights, item, word);
      if (!(top > kNever<double>)) return kNever<double>;
      log_z += top;
      for (int64_t c = 0; c <= words; ++c) {
        to[c] = std::exp(from[c] - top);
        if (from[c] > kNever<double> && to[c] < kLeastArc) return NAN;
      }
    }
    bool used = multiroot;
    int64_t lost = 0;
    for (int64_t word = lengths[item] - 1; word >= 0; --word) {
      const bool before = used;
      const double pivot = shares(item, word, used, share.data());
      if (!(pivot > 0)) return lost ? NAN : kNever<double>;
      log_z += std::log(pivot);
      for (int64_t i = 0; i < word; ++i) {
        double* to = row(weights, item, i);
        const double through = to[word + 1];
        if (used != before) to[0] = 0;
        if (through == 0) continue;
        for (int64_t c = 0; c <= word; ++c) {
          const double now = to[c] += through * share[c];
          lost += (share[c] > 0) & (!(now > kLeastArc) | !(now < 1 / kLeastArc));
        }
        to[i + 1] = 0;
      }
    }
    return lost ? NAN : log_z;
  }

  // Adds the gradient of log Z, times `pull`. In the weight of an arc it is the same before and after
  // other words are eliminated.
  void gradient(int64_t item, double pull, double* grads) const {
    const int64_t many = lengths[item];
    std::vector<double> share(words + 1), sums(words + 1);
    int64_t root = multiroot ? -1 : many - 1;  // the word at which the one root is found
    const auto has_heads = [&](const double* heads) {
      return std::any_of(heads + 1, heads + root + 1, [](double w) { return w > 0; });
    };
    while (root > 0 && has_heads(row(weights, item, root))) --root;
    for (int64_t word = 0; word < many; ++word) {
      bool used = word < root || multiroot;
      const double pivot = shares(item, word, used, share.data());
      std::fill(sums.begin(), sums.end(), 0.0);
      double rest = 1;  // of the pivot, which shares are divided by
      for (int64_t i = 0; i < word; ++i) {
        double *g = row(grads, item, i), through = row(weights, item, i)[word + 1], total = 0;
        for (int64_t c = 0; c <= word; ++c) total += g[c] * share[c], sums[c] += g[c] * through;
        if (through > 0) g[word + 1] = total;
        if (word == root) g[0] = 0;  // what led to the root before has no part in the rest
      }
      const double* heads = row(weights, item, word);
      double* g = row(grads, item, word);
      for (int64_t c = 0; c <= word; ++c) rest -= sums[c] * share[c];
      for (int64_t c = 0; c <= word; ++c)
        if (heads[c] > 0) g[c] = (sums[c] + (c || used ? rest : 0)) / pivot;
    }
    for (int64_t word = 0; word < many; ++word) {
      const double top = peak(item, word), *from = row(arcs, item, word);
      double* g = row(grads, item, word);
      for (int64_t c = 0; c <= words; ++c) g[c] *= pull * std::exp(from[c] - top);
    }
  }
};

}
