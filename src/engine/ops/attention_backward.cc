#include <algorithm>
#include <type_traits>

#include "engine/ops/attention_tasks.h"
#include "engine/ops/attention_tiles.h"
#include "engine/ops/attention_worker.h"

namespace fivefold::ops {
namespace {

// Tensors of a backward call.
template <typename Element>
struct BackwardTensors {
  const AttentionInputs<Element>& in;
  const Element* o;
  const float* lse;
  const Element* d_o;
  const AttentionGradients& gradients;
};

// Writes or adds rows of the tile [rows, width], times their factors, at (row, column) of a gradient.
void write_gradient(const AttentionGradient& gradient, int64_t row, int64_t column, const float* tile, int64_t width,
                    const float* row_factor, int64_t rows, int64_t columns) {
  kernels::visit_element(gradient.type, [&]<class T>(std::type_identity<T>) {
    tiles::write_rows(tile, width, row_factor, rows, columns, gradient.mode,
                      static_cast<T*>(gradient.data) + row * gradient.stride + column, gradient.stride);
  });
}

// Which gradients a walk over tiles adds up.
enum class Gradients { kAll, kKeysAndValues, kQueries };

// Backward of one task at a time. Tiles are key-major (scores transposed), so that probabilities
// and score gradients are left operands as they are written; query gradients are summed transposed, [width, 64].
template <typename Element, typename Operand>
class BackwardWorker {
 public:
  BackwardWorker(const Geometry& geometry, const BackwardTensors<Element>& tensors, std::span<std::byte> scratch)
      : g_(geometry), t_(tensors) {
    Carver carver(scratch);
    const int64_t tile = kBlock * g_.width;
    for (Operand** packed : {&queries_, &queries_transposed_, &d_outputs_, &d_outputs_transposed_}) {
      *packed = carver.take<Operand>(kAttentionUnits * tile);
    }
    d_queries_ = carver.take<float>(kAttentionUnits * tile);
    passing_ = carver.take<Operand>(tile);
    for (Operand** strip : {&keys_, &values_, &keys_transposed_}) {
      *strip = carver.take<Operand>(kAttentionBackwardStrip * g_.width);
    }
    constexpr int64_t kScores = kAttentionBackwardStrip * kBlock;
    scores_ = carver.take<float>(kScores);
    d_probabilities_ = carver.take<float>(kScores);
    if constexpr (std::is_same_v<Operand, float>) {
      probabilities_ = scores_;
      d_scores_ = d_scores_right_ = d_probabilities_;
    } else {
      for (Operand** copy : {&probabilities_, &d_scores_, &d_scores_right_}) *copy = carver.take<Operand>(kScores);
    }
    lse_log2_ = carver.take<float>(kAttentionUnits * kBlock);
    row_dot_ = carver.take<float>(kAttentionUnits * kBlock);
    const int64_t kept = attention_backward_kept_keys(g_.shape);
    d_keys_ = carver.take<float>(kept * g_.width);
    d_values_ = carver.take<float>(kept * g_.width);
  }

  void run(const Task& task) {
    switch (task.kind) {
      case Task::Kind::kFused:
        return run_fused(*task.group, task.kv_head);
      case Task::Kind::kKeyStrip:
        return run_key_strip(*task.group, task.kv_head, task.first_key);
      case Task::Kind::kQueries:
        return add_batch(task.batch, Gradients::kQueries);
      case Task::Kind::kForward:
        FIVEFOLD_CHECK(false);
    }
  }

 private:
  // All gradients of a key head, each score once. Keeps the key gradients of the whole group.
  void run_fused(const KeyGroup& group, int64_t kv_head) {
    clear_key_gradients(group.kv_len);
    for (size_t i = 0; i < group.num_segments; ++i) {
      for_each_batch(g_, g_.segments[group.first_segment + i], kv_head, 0,
                     [&](const QueryBatch& batch) { add_batch(batch, Gradients::kAll); });
    }
    write_key_gradients(group.kv_begin, kv_head, group.kv_len);
  }

  // Key and value gradients of the strip that starts at `first_key`.
  void run_key_strip(const KeyGroup& group, int64_t kv_head, int64_t first_key) {
    const int64_t count = std::min(group.kv_len - first_key, kAttentionBackwardStrip);
    clear_key_gradients(count);
    pack_strip(group.kv_begin + first_key, kv_head, count);
    for (size_t i = 0; i < group.num_segments; ++i) {
      for_each_batch(g_, g_.segments[group.first_segment + i], kv_head, first_key, [&](const QueryBatch& batch) {
        pack_units(batch);
        for (int64_t u = 0; u < g_.num_units(batch); ++u) {
          add_tile(batch, u, first_key, 0, Gradients::kKeysAndValues);
        }
      });
    }
    write_key_gradients(group.kv_begin + first_key, kv_head, count);
  }

  // Query gradients of a batch and, with kAll, its part of the key gradients of the group.
  void add_batch(const QueryBatch& batch, Gradients gradients) {
    pack_units(batch);
    const int64_t num_units = g_.num_units(batch);
    std::fill_n(d_queries_, num_units * kBlock * g_.width, 0.0f);
    const int64_t key_end = visible_keys(*batch.segment, batch.end_row);
    for (int64_t key = 0; key < key_end; key += kAttentionBackwardStrip) {
      pack_strip(batch.segment->kv_begin + key, batch.kv_head, std::min(key_end - key, kAttentionBackwardStrip));
      for (int64_t u = 0; u < num_units; ++u) add_tile(batch, u, key, key, gradients);
    }
    for (int64_t u = 0; u < num_units; ++u) write_query_gradient(batch, u);
  }

  void clear_key_gradients(int64_t keys) {
    std::fill_n(d_keys_, round_up(keys, kBlock) * g_.width, 0.0f);
    std::fill_n(d_values_, round_up(keys, kBlock) * g_.width, 0.0f);
  }

  void pack_units(const QueryBatch& batch) {
    const int64_t d = g_.layout.head_dim;
    for (int64_t u = 0; u < g_.num_units(batch); ++u) {
      const Unit unit = g_.unit(batch, u);
      const int64_t row = batch.segment->q_begin + unit.row;
      const int64_t tile = u * kBlock * g_.width;
      const int64_t in_output = row * g_.output_stride() + unit.head * d;
      pack_unit(t_.in.q + row * g_.layout.q_stride + unit.head * d, g_.layout.q_stride, unit.rows, queries_ + tile,
                queries_transposed_ + tile);
      pack_unit(t_.d_o + in_output, g_.output_stride(), unit.rows, d_outputs_ + tile, d_outputs_transposed_ + tile);
      // Rows past the end of the segment have zero queries and output gradients; finite statistics keep them harmless.
      float* lse_log2 = lse_log2_ + u * kBlock;
      float* row_dot = row_dot_ + u * kBlock;
      std::fill_n(lse_log2, kBlock, 0.0f);
      std::fill_n(row_dot, kBlock, 0.0f);
      for (int64_t r = 0; r < unit.rows; ++r) lse_log2[r] = t_.lse[unit.head * g_.layout.q_rows + row + r] * kLog2E;
      tiles::row_dots(t_.o + in_output, t_.d_o + in_output, g_.output_stride(), unit.rows, d, row_dot);
    }
  }

  void pack_unit(const Element* source, int64_t stride, int64_t rows, Operand* right, Operand* right_transposed) {
    tiles::stage_rows(source, stride, rows, g_.layout.head_dim, passing_, kBlock, g_.width);
    tiles::pack_right(passing_, kBlock, g_.width, right);
    tiles::pack_right_transposed(passing_, kBlock, g_.width, right_transposed, kBlock);
  }

  // Key rows [first, first + count) of the segments' numbering.
  void pack_strip(int64_t first, int64_t kv_head, int64_t count) {
    const int64_t padded = round_up(count, kBlock), column = kv_head * g_.layout.head_dim;
    stage_key_rows(g_, t_.in.k + column, first, count, keys_, padded);
    stage_key_rows(g_, t_.in.v + column, first, count, values_, padded);
    for (int64_t key = 0; key < padded; key += kBlock) {
      tiles::transpose_left(keys_ + key * g_.width, kBlock, g_.width, passing_, keys_transposed_ + key,
                            kAttentionBackwardStrip);
    }
  }

  // Adds what the strip's keys and unit u give each other. `kept_key`: the strip's first row in the key gradients.
  void add_tile(const QueryBatch& batch, int64_t u, int64_t first_key, int64_t kept_key, Gradients gradients) {
    const Unit unit = g_.unit(batch, u);
    if (unit.key_end <= first_key) return;
    const int64_t keys = std::min(kAttentionBackwardStrip, round_up(unit.key_end - first_key, kBlock));
    const int64_t w = g_.width;
    const int64_t tile = u * kBlock * w;
    multiply(keys, kBlock, w, keys_, w, queries_transposed_ + tile, kBlock, scores_, kBlock, /*add=*/false);
    multiply(keys, kBlock, w, values_, w, d_outputs_transposed_ + tile, kBlock, d_probabilities_, kBlock,
             /*add=*/false);
    const bool causal = batch.segment->mask == AttentionMask::kCausal;
    const tiles::GradientStrip strip{.keys = keys,
                                     .first_query_offset = visible_keys(*batch.segment, unit.row + 1) - 1 - first_key,
                                     .queries_per_key = causal ? 1 : kBlock,
                                     .scale_log2 = g_.layout.scale * kLog2E};
    const float* lse_log2 = lse_log2_ + u * kBlock;
    const float* row_dot = row_dot_ + u * kBlock;
    if constexpr (std::is_same_v<Operand, float>) {
      tiles::softmax_gradient(strip, scores_, d_probabilities_, lse_log2, row_dot);
    } else {
      tiles::softmax_gradient(strip, scores_, d_probabilities_, lse_log2, row_dot, probabilities_, d_scores_,
                              d_scores_right_);
    }
    if (gradients != Gradients::kQueries) {
      multiply(keys, w, kBlock, probabilities_, kBlock, d_outputs_ + tile, w, d_values_ + kept_key * w, w,
               /*add=*/true);
      multiply(keys, w, kBlock, d_scores_, kBlock, queries_ + tile, w, d_keys_ + kept_key * w, w, /*add=*/true);
    }
    if (gradients != Gradients::kKeysAndValues) {
      multiply(w, kBlock, keys, keys_transposed_, kAttentionBackwardStrip, d_scores_right_, kBlock, d_queries_ + tile,
               kBlock, /*add=*/true);
    }
  }

  void write_query_gradient(const QueryBatch& batch, int64_t u) {
    const Unit unit = g_.unit(batch, u);
    float* rows = scores_;  // free by now; holds 256 x 64, a tile at a time of at most 256 columns
    const float* transposed = d_queries_ + u * kBlock * g_.width;
    std::fill_n(factor_, kBlock, g_.layout.scale);
    const int64_t row = batch.segment->q_begin + unit.row, d = g_.layout.head_dim;
    for (int64_t c = 0; c < d; c += kAttentionBackwardStrip) {
      const int64_t columns = std::min(kAttentionBackwardStrip, g_.width - c);
      tiles::pack_right_transposed(transposed + c * kBlock, columns, kBlock, rows, columns);
      write_gradient(t_.gradients.q, row, unit.head * d + c, rows, columns, factor_, unit.rows,
                     std::min(columns, d - c));
    }
  }

  // The kept gradients, of key rows [first, first + count) of the segments' numbering.
  void write_key_gradients(int64_t first, int64_t kv_head, int64_t count) {
    const int64_t d = g_.layout.head_dim, column = kv_head * d;
    g_.for_each_run(first, count, [&](int64_t run, int64_t offset, int64_t run_rows) {
      for (int64_t r = 0; r < run_rows; r += kBlock) {
        const int64_t rows = std::min(kBlock, run_rows - r), kept = (offset + r) * g_.width;
        std::fill_n(factor_, kBlock, g_.layout.scale);
        write_gradient(t_.gradients.k, run + r, column, d_keys_ + kept, g_.width, factor_, rows, d);
        std::fill_n(factor_, kBlock, 1.0f);
        write_gradient(t_.gradients.v, run + r, column, d_values_ + kept, g_.width, factor_, rows, d);
      }
    });
  }

  const Geometry& g_;
  const BackwardTensors<Element>& t_;
  Operand* queries_;               // per unit, right operand, k = 64 rows, n = width
  Operand* queries_transposed_;    // per unit, right operand, k = width, n = 64 rows
  Operand* d_outputs_;             // as queries_
  Operand* d_outputs_transposed_;  // as queries_transposed_
  float* d_queries_;               // per unit [width, 64]
  Operand* passing_;
  Operand* keys_;             // [256, width]
  Operand* values_;           // [256, width]
  Operand* keys_transposed_;  // [width, 256]
  float* scores_;             // [256, 64]
  float* d_probabilities_;    // [256, 64]
  Operand* probabilities_;
  Operand* d_scores_;
  Operand* d_scores_right_;
  float* lse_log2_;
  float* row_dot_;
  float* d_keys_;    // [kept keys, width]
  float* d_values_;  // [kept keys, width]
  float factor_[kBlock];
};

// Zeroes the rows of a gradient that is overwritten, in the given ranges of its rows.
void clear_gradient(const AttentionGradient& gradient, RowRange rows, int64_t columns) {
  if (gradient.mode == kernels::Accumulate::kAdd) return;
  const int64_t size = gradient.type == kernels::ElementType::kFloat32 ? 4 : 2;
  clear_rows(rows, gradient.data, gradient.stride, columns, size);
}

void write_unseen_rows(const Geometry& g, const AttentionGradients& gradients) {
  for (const RowRange rows : g.unseen_queries) clear_gradient(gradients.q, rows, g.output_stride());
  const int64_t columns = g.layout.num_kv_heads * g.layout.head_dim;
  for (const RowRange rows : g.unseen_keys) {
    g.for_each_run(rows.begin, rows.count, [&](int64_t run, int64_t, int64_t run_rows) {
      for (const AttentionGradient* gradient : {&gradients.k, &gradients.v}) {
        clear_gradient(*gradient, {run, run_rows}, columns);
      }
    });
  }
}

template <typename Operand, typename Element>
void backward_on(const AttentionLayout& layout, const BackwardTensors<Element>& tensors, std::span<std::byte> scratch) {
  const Geometry geometry(layout);
  write_unseen_rows(geometry, tensors.gradients);
  run_tasks(backward_tasks(geometry, omp_get_max_threads()), scratch,
            attention_backward_scratch_bytes_per_thread(geometry.shape),
            [&](std::span<std::byte> own) { return BackwardWorker<Element, Operand>(geometry, tensors, own); });
}

}  // namespace

template <typename Element>
void attention_backward(const AttentionLayout& layout, const AttentionInputs<Element>& inputs, const Element* o,
                        const float* lse, const Element* d_o, const AttentionGradients& gradients,
                        std::span<std::byte> scratch) {
  const BackwardTensors<Element> tensors{inputs, o, lse, d_o, gradients};
  if constexpr (std::is_same_v<Element, BFloat16>) {
    if (multiplies_bf16()) return backward_on<BFloat16>(layout, tensors, scratch);
  }
  backward_on<float>(layout, tensors, scratch);
}

template void attention_backward<float>(const AttentionLayout&, const AttentionInputs<float>&, const float*,
                                        const float*, const float*, const AttentionGradients&, std::span<std::byte>);
template void attention_backward<BFloat16>(const AttentionLayout&, const AttentionInputs<BFloat16>&, const BFloat16*,
                                           const float*, const BFloat16*, const AttentionGradients&,
                                           std::span<std::byte>);
template void attention_backward<Float16>(const AttentionLayout&, const AttentionInputs<Float16>&, const Float16*,
                                          const float*, const Float16*, const AttentionGradients&,
                                          std::span<std::byte>);

}  // namespace fivefold::ops
