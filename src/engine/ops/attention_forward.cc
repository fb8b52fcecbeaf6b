#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "engine/ops/attention_tasks.h"
#include "engine/ops/attention_tiles.h"
#include "engine/ops/attention_worker.h"

namespace fivefold::ops {
namespace {

template <typename Element>
struct ForwardTensors {
  const Element* qkv;
  Element* o;
  float* lse;
};

// Forward of one query batch at a time.
template <typename Element, typename Operand>
class ForwardWorker {
 public:
  ForwardWorker(const Geometry& geometry, const ForwardTensors<Element>& tensors, std::span<std::byte> scratch)
      : g_(geometry), t_(tensors) {
    Carver carver(scratch);
    const int64_t tile = kBlock * g_.width;
    queries_ = carver.take<Operand>(kAttentionUnits * tile);
    outputs_ = carver.take<float>(kAttentionUnits * tile);
    passing_ = carver.take<Operand>(tile);
    keys_ = carver.take<Operand>(kAttentionForwardStrip * g_.width);
    values_ = carver.take<Operand>(kAttentionForwardStrip * g_.width);
    scores_ = carver.take<float>(kBlock * kAttentionForwardStrip);
    if constexpr (std::is_same_v<Operand, float>) {
      probabilities_ = scores_;
    } else {
      probabilities_ = carver.take<Operand>(kBlock * kAttentionForwardStrip);
    }
    row_max_ = carver.take<float>(kAttentionUnits * kBlock);
    row_sum_ = carver.take<float>(kAttentionUnits * kBlock);
  }

  void run(const Task& task) {
    const QueryBatch& batch = task.batch;
    const int64_t num_units = g_.num_units(batch);
    const Element* rows = t_.qkv + batch.document_begin * g_.layout.qkv_stride;
    for (int64_t u = 0; u < num_units; ++u) {
      const Unit unit = g_.unit(batch, u);
      tiles::stage_rows(rows + unit.row * g_.layout.qkv_stride + g_.query_column(unit.head), g_.layout.qkv_stride,
                        unit.rows, g_.layout.head_dim, queries_ + u * kBlock * g_.width, kBlock, g_.width);
    }
    std::fill_n(outputs_, num_units * kBlock * g_.width, 0.0f);
    std::fill_n(row_max_, num_units * kBlock, -std::numeric_limits<float>::infinity());
    std::fill_n(row_sum_, num_units * kBlock, 0.0f);
    for (int64_t key = 0; key < batch.end_row; key += kAttentionForwardStrip) {
      pack_strip(batch, rows, key);
      for (int64_t u = 0; u < num_units; ++u) attend(u, g_.unit(batch, u).row, key);
    }
    for (int64_t u = 0; u < num_units; ++u) finish(batch, u);
  }

 private:
  void pack_strip(const QueryBatch& batch, const Element* rows, int64_t first_key) {
    const int64_t stride = g_.layout.qkv_stride;
    const int64_t end = std::min(batch.end_row, first_key + kAttentionForwardStrip);
    for (int64_t key = first_key; key < end; key += kBlock) {
      const int64_t count = std::min(kBlock, end - key);
      const Element* row = rows + key * stride;
      const int64_t in_strip = key - first_key;
      tiles::stage_rows(row + g_.key_column(batch.kv_head), stride, count, g_.layout.head_dim, passing_, kBlock,
                        g_.width);
      // A pair of k, or one k, is a word: columns of the transposed operand are words for bf16 and fp32 alike.
      tiles::pack_right_transposed(passing_, kBlock, g_.width, keys_ + in_strip * kWordElements,
                                   kAttentionForwardStrip);
      tiles::stage_rows(row + g_.value_column(batch.kv_head), stride, count, g_.layout.head_dim, passing_, kBlock,
                        g_.width);
      tiles::pack_right(passing_, kBlock, g_.width, values_ + in_strip * g_.width);
    }
  }

  void attend(int64_t u, int64_t row, int64_t first_key) {
    const int64_t keys = std::min(kAttentionForwardStrip, row + kBlock - first_key);
    if (keys <= 0) return;
    float* output = outputs_ + u * kBlock * g_.width;
    multiply(kBlock, keys, g_.width, queries_ + u * kBlock * g_.width, g_.width, keys_, kAttentionForwardStrip, scores_,
             kAttentionForwardStrip, /*add=*/false);
    const tiles::SoftmaxStrip strip{.keys = keys,
                                    .ld = kAttentionForwardStrip,
                                    .first_row_keys = row + 1 - first_key,
                                    .scale_log2 = g_.layout.scale * kLog2E,
                                    .width = g_.width};
    tiles::softmax_strip(strip, scores_, probabilities_, row_max_ + u * kBlock, row_sum_ + u * kBlock, output);
    multiply(kBlock, g_.width, keys, probabilities_, kAttentionForwardStrip, values_, g_.width, output, g_.width,
             /*add=*/true);
  }

  void finish(const QueryBatch& batch, int64_t u) {
    const Unit unit = g_.unit(batch, u);
    const int64_t row = batch.document_begin + unit.row;
    float* sum = row_sum_ + u * kBlock;
    for (int64_t r = 0; r < unit.rows; ++r) {
      t_.lse[unit.head * g_.tokens + row + r] = row_max_[u * kBlock + r] / kLog2E + std::log(sum[r]);
      sum[r] = 1.0f / sum[r];
    }
    tiles::write_rows(outputs_ + u * kBlock * g_.width, g_.width, sum, unit.rows, g_.layout.head_dim,
                      t_.o + row * g_.output_stride() + g_.query_column(unit.head), g_.output_stride());
  }

  static constexpr int64_t kWordElements = 4 / sizeof(Operand);
  const Geometry& g_;
  const ForwardTensors<Element>& t_;
  Operand* queries_;  // per unit [64, width]
  float* outputs_;    // per unit [64, width]
  Operand* passing_;
  Operand* keys_;    // right operand, k = width, n = keys of the strip
  Operand* values_;  // right operand, k = keys of the strip, n = width
  float* scores_;    // [64, strip]
  Operand* probabilities_;
  float* row_max_;
  float* row_sum_;
};

template <typename Operand, typename Element>
void forward_on(const AttentionLayout& layout, const ForwardTensors<Element>& tensors, std::span<std::byte> scratch) {
  const Geometry geometry(layout);
  run_tasks(forward_tasks(geometry), scratch, attention_forward_scratch_bytes_per_thread(geometry.shape),
            [&](std::span<std::byte> own) { return ForwardWorker<Element, Operand>(geometry, tensors, own); });
}

}  // namespace

template <typename Element>
void attention_forward(const AttentionLayout& layout, const Element* qkv, Element* o, float* lse,
                       std::span<std::byte> scratch) {
  const ForwardTensors<Element> tensors{qkv, o, lse};
  if (std::is_same_v<Element, BFloat16> && multiplies_bf16()) {
    forward_on<Element>(layout, tensors, scratch);
  } else {
    forward_on<float>(layout, tensors, scratch);
  }
}

template void attention_forward<float>(const AttentionLayout&, const float*, float*, float*, std::span<std::byte>);
template void attention_forward<BFloat16>(const AttentionLayout&, const BFloat16*, BFloat16*, float*,
                                          std::span<std::byte>);

}  // namespace fivefold::ops
