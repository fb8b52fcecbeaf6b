#include "kernels/cross_entropy.h"

#include <cmath>
#include <limits>

#include "kernels/clones.h"
#include "kernels/parallel.h"
#include "kernels/vector_math.h"

namespace fivefold::kernels {
namespace {

// Terms that are added in fp32 before the sum goes on in fp64.
constexpr int64_t kSumChunk = 2048;

struct RowSoftmax {
  float max;
  double sum_exp;  // of logits minus max
};

template <class T>
FIVEFOLD_CLONES RowSoftmax softmax_row(const T* logits, int64_t vocab) {
  float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t c = 0; c < vocab; ++c) {
    const float logit = to_float(logits[c]);
    max = logit > max ? logit : max;
  }
  double total = 0;
  for (int64_t chunk = 0; chunk < vocab; chunk += kSumChunk) {
    const int64_t end = std::min(vocab, chunk + kSumChunk);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = chunk; c < end; ++c) sum += exp_f32(to_float(logits[c]) - max);
    total += static_cast<double>(sum);
  }
  return {max, total};
}

template <class T>
FIVEFOLD_CLONES void gradient_row(T* logits, int64_t vocab, float max, float factor) {
#pragma omp simd
  for (int64_t c = 0; c < vocab; ++c) logits[c] = from_float<T>(exp_f32(to_float(logits[c]) - max) * factor);
}

template <class T>
float loss_of(const RowSoftmax& softmax, T target_logit) {
  return static_cast<float>(std::log(softmax.sum_exp) + (static_cast<double>(softmax.max) - to_float(target_logit)));
}

template <class T>
void forward_backward_row(T* row, const CrossEntropy<T>& a, int32_t target, float scale, float* loss) {
  if (target == kIgnoredTarget) {
    *loss = 0;
    std::fill_n(row, a.row_stride, T{});
    return;
  }
  const RowSoftmax softmax = softmax_row(row, a.vocab);
  const float target_logit = to_float(row[target]);
  *loss = loss_of(softmax, target_logit);
  const float factor = static_cast<float>(static_cast<double>(scale) / softmax.sum_exp);
  gradient_row(row, a.vocab, softmax.max, factor);
  // From the logit again and not from the rounded bf16 probability: near 1 that has lost the difference to 1.
  row[target] = from_float<T>(exp_f32(target_logit - softmax.max) * factor - scale);
  std::fill_n(row + a.vocab, a.row_stride - a.vocab, T{});
}

template <class T>
void check_targets(const CrossEntropy<T>& a, int64_t whole_vocab) {
  FIVEFOLD_CHECK(a.vocab > 0 && a.vocab <= a.row_stride);
  for (int64_t r = 0; r < a.rows; ++r) {
    FIVEFOLD_CHECK(a.targets[r] == kIgnoredTarget || (a.targets[r] >= 0 && a.targets[r] < whole_vocab),
                   "cross-entropy: a target is outside the vocabulary");
  }
}

// Of one row over all ranks' columns.
struct WholeRow {
  double log_sum_exp, loss;
};

WholeRow combine(const SplitVocabulary& split, int64_t rows, int64_t row) {
  const auto of_rank = [&](int rank) -> const RowStatistics& { return split.all[rank * rows + row]; };
  double max = -std::numeric_limits<double>::infinity(), target = max, sum = 0;
  for (int rank = 0; rank < split.ranks; ++rank) {
    max = std::max(max, of_rank(rank).log_sum_exp);
    target = std::max(target, of_rank(rank).target_logit);
  }
  for (int rank = 0; rank < split.ranks; ++rank) sum += std::exp(of_rank(rank).log_sum_exp - max);
  const double log_sum_exp = max + std::log(sum);
  return {log_sum_exp, log_sum_exp - target};
}

bool is_own(int32_t target, const SplitVocabulary& split, int64_t vocab) {
  return target >= split.first && target < split.first + vocab;
}

}  // namespace

template <class T>
void cross_entropy_forward(const CrossEntropy<T>& a) {
  check_targets(a, a.vocab);
  for_each_block(a.rows, independent_block_rows(a.vocab), a.num_threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* row = a.logits + r * a.row_stride;
      const int32_t target = a.targets[r];
      a.losses[r] = target == kIgnoredTarget ? 0.0f : loss_of(softmax_row(row, a.vocab), to_float(row[target]));
    }
  });
}

template <class T>
void cross_entropy_forward_backward(const CrossEntropy<T>& a, float scale) {
  check_targets(a, a.vocab);
  for_each_block(a.rows, independent_block_rows(a.vocab), a.num_threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      forward_backward_row(a.logits + r * a.row_stride, a, a.targets[r], scale, a.losses + r);
    }
  });
}

template <class T>
void cross_entropy_statistics(const CrossEntropy<T>& a, const SplitVocabulary& split) {
  check_targets(a, split.whole);
  for_each_block(a.rows, independent_block_rows(a.vocab), a.num_threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* row = a.logits + r * a.row_stride;
      const RowSoftmax softmax = softmax_row(row, a.vocab);
      const bool own = is_own(a.targets[r], split, a.vocab);
      split.own[r] = {static_cast<double>(softmax.max) + std::log(softmax.sum_exp),
                      own ? to_float(row[a.targets[r] - split.first]) : -std::numeric_limits<double>::infinity()};
    }
  });
}

template <class T>
void split_cross_entropy_forward(const CrossEntropy<T>& a, const SplitVocabulary& split) {
  for (int64_t r = 0; r < a.rows; ++r)
    a.losses[r] = a.targets[r] == kIgnoredTarget ? 0.0f : static_cast<float>(combine(split, a.rows, r).loss);
}

template <class T>
void split_cross_entropy_forward_backward(const CrossEntropy<T>& a, const SplitVocabulary& split, float scale) {
  for_each_block(a.rows, independent_block_rows(a.vocab), a.num_threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* row = a.logits + r * a.row_stride;
      const int32_t target = a.targets[r];
      if (target == kIgnoredTarget) {
        a.losses[r] = 0;
        std::fill_n(row, a.row_stride, T{});
        continue;
      }
      const WholeRow whole = combine(split, a.rows, r);
      a.losses[r] = static_cast<float>(whole.loss);
      // exp(logit - log_sum_exp) in two factors, of which the first does not lose the logit's low bits.
      const float reference = static_cast<float>(whole.log_sum_exp);
      const float factor = scale * static_cast<float>(std::exp(static_cast<double>(reference) - whole.log_sum_exp));
      const bool own = is_own(target, split, a.vocab);
      const int64_t column = own ? target - split.first : 0;
      const float target_logit = to_float(row[column]);
      gradient_row(row, a.vocab, reference, factor);
      if (own) row[column] = from_float<T>(exp_f32(target_logit - reference) * factor - scale);
      std::fill_n(row + a.vocab, a.row_stride - a.vocab, T{});
    }
  });
}

template void cross_entropy_forward(const CrossEntropy<float>&);
template void cross_entropy_forward(const CrossEntropy<BFloat16>&);
template void cross_entropy_forward(const CrossEntropy<Float16>&);
template void cross_entropy_forward_backward(const CrossEntropy<float>&, float);
template void cross_entropy_forward_backward(const CrossEntropy<BFloat16>&, float);
template void cross_entropy_forward_backward(const CrossEntropy<Float16>&, float);

template void cross_entropy_statistics(const CrossEntropy<float>&, const SplitVocabulary&);
template void cross_entropy_statistics(const CrossEntropy<BFloat16>&, const SplitVocabulary&);
template void cross_entropy_statistics(const CrossEntropy<Float16>&, const SplitVocabulary&);
template void split_cross_entropy_forward(const CrossEntropy<float>&, const SplitVocabulary&);
template void split_cross_entropy_forward(const CrossEntropy<BFloat16>&, const SplitVocabulary&);
template void split_cross_entropy_forward(const CrossEntropy<Float16>&, const SplitVocabulary&);
template void split_cross_entropy_forward_backward(const CrossEntropy<float>&, const SplitVocabulary&, float);
template void split_cross_entropy_forward_backward(const CrossEntropy<BFloat16>&, const SplitVocabulary&, float);
template void split_cross_entropy_forward_backward(const CrossEntropy<Float16>&, const SplitVocabulary&, float);

double sum_losses(const float* losses, int64_t rows) {
  double sum = 0;
  for (int64_t r = 0; r < rows; ++r) sum += static_cast<double>(losses[r]);
  return sum;
}

}  // namespace fivefold::kernels
