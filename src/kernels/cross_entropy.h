// Cross-entropy of a chunk of logits, with the gradient in place, so that full logits never exist.
//
//   loss[r] = log(sum_c exp(logits[r, c])) - logits[r, target],  dlogits[r, c] = scale (softmax(logits[r])_c - [c =
//   target])
//
// Sums run over the first `vocab` columns; the padding columns up to `row_stride` get no probability and gradient zero.
// Safe at any finite logits: the row's maximum is taken out first. Thread-safe; results do not depend on num_threads.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::kernels {

// Target of a token that counts nowhere: its loss is 0 and its gradient row is 0.
inline constexpr int32_t kIgnoredTarget = -100;

template <class T>
struct CrossEntropy {
  T* logits = nullptr;               // [rows, row_stride]
  const int32_t* targets = nullptr;  // [rows], each in [0, vocab) or kIgnoredTarget; others abort
  float* losses = nullptr;           // [rows], written
  int64_t rows = 0;
  int64_t vocab = 0;
  int64_t row_stride = 0;  // vocab rounded up as the head's rows are
  int num_threads = 1;
};
// Losses only; the logits stay.
template <class T>
void cross_entropy_forward(const CrossEntropy<T>&);

// Losses, and the logits replaced by their gradient. `scale` is 1 / (valid tokens of the global batch).
template <class T>
void cross_entropy_forward_backward(const CrossEntropy<T>&, float scale);

// A vocabulary that is split over ranks: this one has the logits of columns [first, first + vocab). Each rank takes its
// statistics of every row, they are gathered, and each then has all losses and the gradient of its columns.
struct RowStatistics {
  double log_sum_exp;   // over the rank's columns
  double target_logit;  // minus infinity when the target is another rank's
};
struct SplitVocabulary {
  int64_t first = 0;                   // the rank's first column; targets are columns of the whole vocabulary
  int64_t whole = 0;                   // columns of all ranks
  int ranks = 1;                       // n
  RowStatistics* own = nullptr;        // [rows], written by cross_entropy_statistics
  const RowStatistics* all = nullptr;  // [n, rows], read by the other two
};
template <class T>
void cross_entropy_statistics(const CrossEntropy<T>&, const SplitVocabulary&);
// Losses only.
template <class T>
void split_cross_entropy_forward(const CrossEntropy<T>&, const SplitVocabulary&);
// Losses, and the rank's logits replaced by their gradient.
template <class T>
void split_cross_entropy_forward_backward(const CrossEntropy<T>&, const SplitVocabulary&, float scale);

// Sum in fp64, in row order.
double sum_losses(const float* losses, int64_t rows);

}  // namespace fivefold::kernels
