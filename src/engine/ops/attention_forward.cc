#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "engine/ops/attention_tasks.h"
#include "engine/ops/attention_tiles.h"
#include "engine/ops/attention_worker.h"
#include "kernels/attention_merge.h"

namespace fivefold::ops {
namespace {

template <typename Element>
struct ForwardTensors {
  const AttentionInputs<Element>& in;
  const AttentionOutput& out;
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
    for (int64_t u = 0; u < num_units; ++u) {
      const Unit unit = g_.unit(batch, u);
      const int64_t row = batch.segment->q_begin + unit.row;
      tiles::stage_rows(t_.in.q + row * g_.layout.q_stride + unit.head * g_.layout.head_dim, g_.layout.q_stride,
                        unit.rows, g_.layout.head_dim, queries_ + u * kBlock * g_.width, kBlock, g_.width);
    }
    std::fill_n(outputs_, num_units * kBlock * g_.width, 0.0f);
    std::fill_n(row_max_, num_units * kBlock, -std::numeric_limits<float>::infinity());
    std::fill_n(row_sum_, num_units * kBlock, 0.0f);
    const int64_t key_end = visible_keys(*batch.segment, batch.end_row);
    for (int64_t key = 0; key < key_end; key += kAttentionForwardStrip) {
      pack_strip(batch, key, std::min(key_end, key + kAttentionForwardStrip));
      for (int64_t u = 0; u < num_units; ++u) attend(batch, u, key);
    }
    for (int64_t u = 0; u < num_units; ++u) finish(batch, u);
  }

 private:
  void pack_strip(const QueryBatch& batch, int64_t first_key, int64_t end) {
    const int64_t column = batch.kv_head * g_.layout.head_dim;
    for (int64_t key = first_key; key < end; key += kBlock) {
      const int64_t count = std::min(kBlock, end - key);
      const int64_t row = batch.segment->kv_begin + key;
      const int64_t in_strip = key - first_key;
      stage_key_rows(g_, t_.in.k + column, row, count, passing_, kBlock);
      // A pair of k, or one k, is a word: columns of the transposed operand are words for bf16 and fp32 alike.
      tiles::pack_right_transposed(passing_, kBlock, g_.width, keys_ + in_strip * kWordElements,
                                   kAttentionForwardStrip);
      stage_key_rows(g_, t_.in.v + column, row, count, passing_, kBlock);
      tiles::pack_right(passing_, kBlock, g_.width, values_ + in_strip * g_.width);
    }
  }

  void attend(const QueryBatch& batch, int64_t u, int64_t first_key) {
    const Unit unit = g_.unit(batch, u);
    if (unit.key_end <= first_key) return;
    const int64_t keys = std::min(kAttentionForwardStrip, round_up(unit.key_end - first_key, kBlock));
    float* output = outputs_ + u * kBlock * g_.width;
    multiply(kBlock, keys, g_.width, queries_ + u * kBlock * g_.width, g_.width, keys_, kAttentionForwardStrip, scores_,
             kAttentionForwardStrip, /*add=*/false);
    const bool causal = batch.segment->mask == AttentionMask::kCausal;
    const tiles::SoftmaxStrip strip{.keys = keys,
                                    .ld = kAttentionForwardStrip,
                                    .first_row_keys = visible_keys(*batch.segment, unit.row + 1) - first_key,
                                    .keys_per_row = causal ? 1 : 0,
                                    .scale_log2 = g_.layout.scale * kLog2E,
                                    .width = g_.width};
    tiles::softmax_strip(strip, scores_, probabilities_, row_max_ + u * kBlock, row_sum_ + u * kBlock, output);
    multiply(kBlock, g_.width, keys, probabilities_, kAttentionForwardStrip, values_, g_.width, output, g_.width,
             /*add=*/true);
  }

  void finish(const QueryBatch& batch, int64_t u) {
    const Unit unit = g_.unit(batch, u);
    const int64_t row = batch.segment->q_begin + unit.row;
    float* lse = row_max_ + u * kBlock;
    float* factor = row_sum_ + u * kBlock;
    for (int64_t r = 0; r < unit.rows; ++r) {
      lse[r] = lse[r] / kLog2E + std::log(factor[r]);
      factor[r] = 1.0f / factor[r];
    }
    const float* output = outputs_ + u * kBlock * g_.width;
    const int64_t d = g_.layout.head_dim, stride = g_.output_stride(), first = row * stride + unit.head * d;
    float* lse_out = t_.lse + unit.head * g_.layout.q_rows + row;
    if (t_.out.mode == AttentionOutput::Mode::kMerge) {
      const kernels::AttentionPartial partial{
          .out = output, .out_stride = g_.width, .row_factor = factor, .lse = lse, .rows = unit.rows, .cols = d};
      kernels::merge_attention(partial, static_cast<float*>(t_.out.data) + first, stride, lse_out);
      return;
    }
    std::copy_n(lse, unit.rows, lse_out);
    kernels::visit_element(t_.out.type, [&]<class T>(std::type_identity<T>) {
      tiles::write_rows(output, g_.width, factor, unit.rows, d, kernels::Accumulate::kOverwrite,
                        static_cast<T*>(t_.out.data) + first, stride);
    });
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

// Rows that see nothing.
template <typename Element>
void write_unseen_rows(const Geometry& g, const ForwardTensors<Element>& t) {
  for (const RowRange rows : g.unseen_queries) {
    const int64_t size = t.out.type == kernels::ElementType::kFloat32 ? 4 : 2;
    clear_rows(rows, t.out.data, g.output_stride(), g.output_stride(), size);
    for (int64_t head = 0; head < g.layout.num_heads; ++head) {
      std::fill_n(t.lse + head * g.layout.q_rows + rows.begin, rows.count, -std::numeric_limits<float>::infinity());
    }
  }
}

template <typename Operand, typename Element>
void forward_on(const AttentionLayout& layout, const ForwardTensors<Element>& tensors, std::span<std::byte> scratch) {
  const Geometry geometry(layout);
  if (tensors.out.mode == AttentionOutput::Mode::kOverwrite) write_unseen_rows(geometry, tensors);
  run_tasks(forward_tasks(geometry), scratch, attention_forward_scratch_bytes_per_thread(geometry.shape),
            [&](std::span<std::byte> own) { return ForwardWorker<Element, Operand>(geometry, tensors, own); });
}

}  // namespace

template <typename Element>
void attention_forward(const AttentionLayout& layout, const AttentionInputs<Element>& inputs,
                       const AttentionOutput& output, float* lse, std::span<std::byte> scratch) {
  FIVEFOLD_CHECK(output.mode == AttentionOutput::Mode::kOverwrite || output.type == kernels::ElementType::kFloat32,
                 "attention: outputs are merged in fp32");
  const ForwardTensors<Element> tensors{inputs, output, lse};
  if constexpr (std::is_same_v<Element, BFloat16>) {
    if (multiplies_bf16()) return forward_on<BFloat16>(layout, tensors, scratch);
  }
  forward_on<float>(layout, tensors, scratch);
}

template void attention_forward<float>(const AttentionLayout&, const AttentionInputs<float>&, const AttentionOutput&,
                                       float*, std::span<std::byte>);
template void attention_forward<BFloat16>(const AttentionLayout&, const AttentionInputs<BFloat16>&,
                                          const AttentionOutput&, float*, std::span<std::byte>);
template void attention_forward<Float16>(const AttentionLayout&, const AttentionInputs<Float16>&,
                                         const AttentionOutput&, float*, std::span<std::byte>);

}  // namespace fivefold::ops
