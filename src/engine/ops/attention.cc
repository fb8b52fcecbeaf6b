#include "engine/ops/attention.h"

#include <ATen/Context.h>
#include <ATen/native/CPUBlas.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <queue>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/integer.h"
#include "engine/ops/attention_tiles.h"

#ifndef _OPENMP
#error "attention.cc must be compiled with -fopenmp: without it every loop over tasks is serial"
#endif

// Note [Order of sums]
// Work is cut into tasks by the shape alone, and each output element is written by one task. A task adds its products in
// a fixed order: for an output row over strips of keys, ascending; for a query gradient likewise; for a key or value
// gradient over batches of query heads, then query blocks, then tiles of the batch, ascending. Backward has two forms,
// chosen by how well the work spreads over the threads: fused (one task per document and key head computes each score
// once) and split (key gradients in one pass, query gradients in another, each computing the scores). Both run the
// same products on the same tiles in the same order, so that their bits are equal.

namespace fivefold::ops {
namespace {

using kernels::BFloat16;

constexpr int64_t kBlock = kAttentionBlock;
constexpr float kLog2E = std::numbers::log2e_v<float>;

// c [m, n] (+)= a [m, k] b [k, n]; b laid out by tiles::pack_right.
void multiply(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
              int64_t ldc, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c, /*is_vnni=*/false);
}
void multiply(int64_t m, int64_t n, int64_t k, const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb,
              float* c, int64_t ldc, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, reinterpret_cast<const at::BFloat16*>(a),
                              reinterpret_cast<const at::BFloat16*>(b), c, /*is_vnni=*/true);
}

// Cuts one thread's scratch into buffers.
class Carver {
 public:
  explicit Carver(std::span<std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T* take(int64_t count) {
    T* taken = reinterpret_cast<T*>(bytes_.data());
    bytes_ = bytes_.subspan(static_cast<size_t>(round_up(count * int64_t{sizeof(T)}, 64)));
    return taken;
  }

 private:
  std::span<std::byte> bytes_;
};

// One key head of one document, some query heads of its group, and query rows [first_row, first_row + rows of a batch):
// the (head, block of 64 rows) pairs that share each packed strip of keys are the units of the task.
struct QueryBatch {
  int64_t document_begin = 0;
  int64_t document_tokens = 0;
  int64_t kv_head = 0;
  int64_t first_head = 0;
  int64_t num_heads = 0;
  int64_t first_row = 0;
  int64_t end_row = 0;
};

// A query tile of a batch.
struct Unit {
  int64_t head = 0;
  int64_t row = 0;   // first row, within the document
  int64_t rows = 0;  // at most 64
};

// Geometry of a call, with what follows from it.
struct Geometry {
  explicit Geometry(const AttentionLayout& layout_in)
      : layout(layout_in),
        group(div_exact(layout_in.num_heads, layout_in.num_kv_heads)),
        width(attention_tile_width(layout_in.head_dim)),
        heads_per_batch(std::min(group, kAttentionUnits)),
        rows_per_batch(div_floor(kAttentionUnits, heads_per_batch) * kBlock),
        tokens(layout_in.cu_seqlens.back()),
        shape(layout_in.shape()) {
    FIVEFOLD_CHECK(layout.head_dim > 0 && layout.scale > 0.0f);
    FIVEFOLD_CHECK(layout.qkv_stride >= (layout.num_heads + 2 * layout.num_kv_heads) * layout.head_dim);
    FIVEFOLD_CHECK(layout.cu_seqlens.front() == 0);
    FIVEFOLD_CHECK(std::is_sorted(layout.cu_seqlens.begin(), layout.cu_seqlens.end()));
  }

  int64_t query_column(int64_t head) const { return head * layout.head_dim; }
  int64_t key_column(int64_t kv_head) const { return (layout.num_heads + kv_head) * layout.head_dim; }
  int64_t value_column(int64_t kv_head) const {
    return (layout.num_heads + layout.num_kv_heads + kv_head) * layout.head_dim;
  }
  int64_t output_stride() const { return layout.num_heads * layout.head_dim; }

  // Unit `index` of a batch: blocks ascending, heads within a block. No rows left: past the end of the document.
  Unit unit(const QueryBatch& batch, int64_t index) const {
    const int64_t row = batch.first_row + index / batch.num_heads * kBlock;
    return {batch.first_head + index % batch.num_heads, row, std::clamp<int64_t>(batch.end_row - row, 0, kBlock)};
  }
  int64_t num_units(const QueryBatch& batch) const {
    return div_ceil(batch.end_row - batch.first_row, kBlock) * batch.num_heads;
  }

  const AttentionLayout& layout;
  int64_t group;
  int64_t width;
  int64_t heads_per_batch;
  int64_t rows_per_batch;
  int64_t tokens;
  AttentionShape shape;
};

// Calls f(document_begin, document_tokens, kv_head) for each that has work.
template <typename F>
void for_each_kv_head(const Geometry& g, F&& f) {
  for (size_t i = 0; i + 1 < g.layout.cu_seqlens.size(); ++i) {
    const int64_t begin = g.layout.cu_seqlens[i];
    const int64_t tokens = g.layout.cu_seqlens[i + 1] - begin;
    for (int64_t kv_head = 0; tokens > 0 && kv_head < g.layout.num_kv_heads; ++kv_head) f(begin, tokens, kv_head);
  }
}

// Calls f(batch) for the query batches of a key head that see keys from `first_key` on, in the order of sums.
template <typename F>
void for_each_batch(const Geometry& g, int64_t document_begin, int64_t document_tokens, int64_t kv_head,
                    int64_t first_key, F&& f) {
  for (int64_t h = 0; h < g.group; h += g.heads_per_batch) {
    for (int64_t row = first_key / g.rows_per_batch * g.rows_per_batch; row < document_tokens;
         row += g.rows_per_batch) {
      f(QueryBatch{document_begin, document_tokens, kv_head, kv_head * g.group + h,
                   std::min(g.heads_per_batch, g.group - h), row, std::min(row + g.rows_per_batch, document_tokens)});
    }
  }
}

// A piece of work that one thread does, and its cost in units of its own list.
struct Task {
  enum class Kind { kForward, kFused, kKeyStrip, kQueries };
  Kind kind = Kind::kForward;
  QueryBatch batch;  // kFused reads document and key head of it, kKeyStrip also first_row as the strip's first key
  int64_t cost = 0;
};

void sort_dearest_first(std::vector<Task>& tasks) {
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
}

// Runs each task on a worker of its thread, made by make_worker(scratch of the thread).
template <typename MakeWorker>
void run_tasks(const std::vector<Task>& tasks, std::span<std::byte> scratch, int64_t bytes_per_thread,
               const MakeWorker& make_worker) {
  const int threads = omp_get_max_threads();
  FIVEFOLD_CHECK(static_cast<int64_t>(scratch.size()) >= threads * bytes_per_thread, "attention: too little scratch");
  FIVEFOLD_CHECK(reinterpret_cast<uintptr_t>(scratch.data()) % 64 == 0);
  const int64_t num_tasks = static_cast<int64_t>(tasks.size());
#pragma omp parallel num_threads(threads)
  {
    auto worker = make_worker(scratch.subspan(static_cast<size_t>(omp_get_thread_num() * bytes_per_thread),
                                              static_cast<size_t>(bytes_per_thread)));
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_tasks; ++i) worker.run(tasks[static_cast<size_t>(i)]);
    at::native::cpublas::brgemm_release();  // gives AMX tiles back; elsewhere nothing
  }
}

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
    multiply(kBlock, keys, g_.width, queries_ + u * kBlock * g_.width, g_.width, keys_, kAttentionForwardStrip,
             scores_, kAttentionForwardStrip, /*add=*/false);
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

// Tensors of a backward call.
template <typename Element>
struct BackwardTensors {
  const Element* qkv;
  const Element* o;
  const float* lse;
  const Element* d_o;
  Element* d_qkv;
};

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
    const QueryBatch& b = task.batch;
    switch (task.kind) {
      case Task::Kind::kFused: return run_fused(b.document_begin, b.document_tokens, b.kv_head);
      case Task::Kind::kKeyStrip: return run_key_strip(b.document_begin, b.document_tokens, b.kv_head, b.first_row);
      case Task::Kind::kQueries: return add_batch(b, Gradients::kQueries);
      case Task::Kind::kForward: FIVEFOLD_CHECK(false);
    }
  }

 private:
  // All gradients of a key head, each score once. Keeps the key gradients of the whole document.
  void run_fused(int64_t document_begin, int64_t document_tokens, int64_t kv_head) {
    clear_key_gradients(document_tokens);
    for_each_batch(g_, document_begin, document_tokens, kv_head, 0, [&](const QueryBatch& batch) {
      add_batch(batch, Gradients::kAll);
    });
    write_key_gradients(document_begin, kv_head, 0, document_tokens);
  }

  // Key and value gradients of the strip that starts at `first_key`.
  void run_key_strip(int64_t document_begin, int64_t document_tokens, int64_t kv_head, int64_t first_key) {
    const int64_t end = std::min(document_tokens, first_key + kAttentionBackwardStrip);
    clear_key_gradients(end - first_key);
    pack_strip(document_begin, kv_head, first_key, end);
    for_each_batch(g_, document_begin, document_tokens, kv_head, first_key, [&](const QueryBatch& batch) {
      pack_units(batch);
      for (int64_t u = 0; u < g_.num_units(batch); ++u) {
        add_tile(u, g_.unit(batch, u).row, first_key, 0, Gradients::kKeysAndValues);
      }
    });
    write_key_gradients(document_begin, kv_head, first_key, end);
  }

  // Query gradients of a batch and, with kAll, its part of the key gradients of the document.
  void add_batch(const QueryBatch& batch, Gradients gradients) {
    pack_units(batch);
    const int64_t num_units = g_.num_units(batch);
    std::fill_n(d_queries_, num_units * kBlock * g_.width, 0.0f);
    for (int64_t key = 0; key < batch.end_row; key += kAttentionBackwardStrip) {
      pack_strip(batch.document_begin, batch.kv_head, key, std::min(batch.end_row, key + kAttentionBackwardStrip));
      for (int64_t u = 0; u < num_units; ++u) {
        add_tile(u, g_.unit(batch, u).row, key, key, gradients);
      }
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
      const int64_t row = batch.document_begin + unit.row;
      const int64_t tile = u * kBlock * g_.width;
      const int64_t in_output = row * g_.output_stride() + g_.query_column(unit.head);
      pack_unit(t_.qkv + row * g_.layout.qkv_stride + g_.query_column(unit.head), g_.layout.qkv_stride, unit.rows,
                queries_ + tile, queries_transposed_ + tile);
      pack_unit(t_.d_o + in_output, g_.output_stride(), unit.rows, d_outputs_ + tile, d_outputs_transposed_ + tile);
      // Rows past the end of the document have zero queries and output gradients; finite statistics keep them harmless.
      float* lse_log2 = lse_log2_ + u * kBlock;
      float* row_dot = row_dot_ + u * kBlock;
      std::fill_n(lse_log2, kBlock, 0.0f);
      std::fill_n(row_dot, kBlock, 0.0f);
      for (int64_t r = 0; r < unit.rows; ++r) lse_log2[r] = t_.lse[unit.head * g_.tokens + row + r] * kLog2E;
      tiles::row_dots(t_.o + in_output, t_.d_o + in_output, g_.output_stride(), unit.rows, d, row_dot);
    }
  }

  void pack_unit(const Element* source, int64_t stride, int64_t rows, Operand* right, Operand* right_transposed) {
    tiles::stage_rows(source, stride, rows, g_.layout.head_dim, passing_, kBlock, g_.width);
    tiles::pack_right(passing_, kBlock, g_.width, right);
    tiles::pack_right_transposed(passing_, kBlock, g_.width, right_transposed, kBlock);
  }

  void pack_strip(int64_t document_begin, int64_t kv_head, int64_t first_key, int64_t end) {
    const int64_t stride = g_.layout.qkv_stride;
    const int64_t count = end - first_key;
    const int64_t padded = round_up(count, kBlock);
    const Element* row = t_.qkv + (document_begin + first_key) * stride;
    tiles::stage_rows(row + g_.key_column(kv_head), stride, count, g_.layout.head_dim, keys_, padded, g_.width);
    tiles::stage_rows(row + g_.value_column(kv_head), stride, count, g_.layout.head_dim, values_, padded, g_.width);
    for (int64_t key = 0; key < padded; key += kBlock) {
      tiles::transpose_left(keys_ + key * g_.width, kBlock, g_.width, passing_, keys_transposed_ + key,
                            kAttentionBackwardStrip);
    }
  }

  // Adds what the strip's keys and unit u give each other. `kept_key`: the strip's first row in the key gradients.
  void add_tile(int64_t u, int64_t row, int64_t first_key, int64_t kept_key, Gradients gradients) {
    const int64_t keys = std::min(kAttentionBackwardStrip, row + kBlock - first_key);
    if (keys <= 0) return;
    const int64_t w = g_.width;
    const int64_t tile = u * kBlock * w;
    multiply(keys, kBlock, w, keys_, w, queries_transposed_ + tile, kBlock, scores_, kBlock, /*add=*/false);
    multiply(keys, kBlock, w, values_, w, d_outputs_transposed_ + tile, kBlock, d_probabilities_, kBlock,
             /*add=*/false);
    const tiles::GradientStrip strip{
        .keys = keys, .first_query_offset = row - first_key, .scale_log2 = g_.layout.scale * kLog2E};
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
    Element* out = t_.d_qkv + (batch.document_begin + unit.row) * g_.layout.qkv_stride + g_.query_column(unit.head);
    for (int64_t c = 0; c < g_.layout.head_dim; c += kAttentionBackwardStrip) {
      const int64_t columns = std::min(kAttentionBackwardStrip, g_.width - c);
      tiles::pack_right_transposed(transposed + c * kBlock, columns, kBlock, rows, columns);
      tiles::write_rows(rows, columns, factor_, unit.rows, std::min(columns, g_.layout.head_dim - c), out + c,
                        g_.layout.qkv_stride);
    }
  }

  void write_key_gradients(int64_t document_begin, int64_t kv_head, int64_t first_key, int64_t end) {
    Element* row = t_.d_qkv + (document_begin + first_key) * g_.layout.qkv_stride;
    for (int64_t key = first_key; key < end; key += kBlock) {
      const int64_t rows = std::min(kBlock, end - key);
      const int64_t offset = (key - first_key) * g_.width;
      Element* out = row + (key - first_key) * g_.layout.qkv_stride;
      std::fill_n(factor_, kBlock, g_.layout.scale);
      tiles::write_rows(d_keys_ + offset, g_.width, factor_, rows, g_.layout.head_dim, out + g_.key_column(kv_head),
                        g_.layout.qkv_stride);
      std::fill_n(factor_, kBlock, 1.0f);
      tiles::write_rows(d_values_ + offset, g_.width, factor_, rows, g_.layout.head_dim,
                        out + g_.value_column(kv_head), g_.layout.qkv_stride);
    }
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

std::vector<Task> forward_tasks(const Geometry& g) {
  std::vector<Task> tasks;
  for_each_kv_head(g, [&](int64_t begin, int64_t tokens, int64_t kv_head) {
    for_each_batch(g, begin, tokens, kv_head, 0, [&](const QueryBatch& batch) {
      tasks.push_back({Task::Kind::kForward, batch, (batch.end_row - batch.first_row) * batch.end_row * batch.num_heads});
    });
  });
  sort_dearest_first(tasks);
  return tasks;
}

// Costs in products over the (query, key) pairs of a tile: five in a fused task, four and three in the passes of split.
std::vector<Task> fused_tasks(const Geometry& g) {
  std::vector<Task> tasks;
  for_each_kv_head(g, [&](int64_t begin, int64_t tokens, int64_t kv_head) {
    const QueryBatch whole{.document_begin = begin, .document_tokens = tokens, .kv_head = kv_head};
    tasks.push_back({Task::Kind::kFused, whole, 5 * g.group * tokens * (tokens + 1) / 2});
  });
  sort_dearest_first(tasks);
  return tasks;
}

std::vector<Task> split_tasks(const Geometry& g) {
  std::vector<Task> tasks;
  for_each_kv_head(g, [&](int64_t begin, int64_t tokens, int64_t kv_head) {
    for (int64_t key = 0; key < tokens; key += kAttentionBackwardStrip) {
      const int64_t keys = std::min(kAttentionBackwardStrip, tokens - key);
      const QueryBatch strip{
          .document_begin = begin, .document_tokens = tokens, .kv_head = kv_head, .first_row = key};
      tasks.push_back({Task::Kind::kKeyStrip, strip, 4 * g.group * keys * (2 * (tokens - key) - keys + 1) / 2});
    }
    for_each_batch(g, begin, tokens, kv_head, 0, [&](const QueryBatch& batch) {
      const int64_t rows = batch.end_row - batch.first_row;
      tasks.push_back(
          {Task::Kind::kQueries, batch, 3 * batch.num_heads * rows * (batch.first_row + batch.end_row + 1) / 2});
    });
  });
  sort_dearest_first(tasks);
  return tasks;
}

// Cost of the busiest of `threads` threads that take the tasks in their order as they become free.
int64_t makespan(const std::vector<Task>& tasks, int threads) {
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> load;
  for (int i = 0; i < threads; ++i) load.push(0);
  int64_t longest = 0;
  for (const Task& task : tasks) {
    const int64_t end = load.top() + task.cost;
    load.pop();
    load.push(end);
    longest = std::max(longest, end);
  }
  return longest;
}

std::vector<Task> backward_tasks(const Geometry& g) {
  std::vector<Task> split = split_tasks(g);
  if (!attention_backward_fits_fused(g.shape)) return split;
  std::vector<Task> fused = fused_tasks(g);
  const int threads = omp_get_max_threads();
  return makespan(fused, threads) <= makespan(split, threads) ? fused : split;
}

template <typename Operand, typename Element>
void forward_on(const AttentionLayout& layout, const ForwardTensors<Element>& tensors, std::span<std::byte> scratch) {
  const Geometry geometry(layout);
  run_tasks(forward_tasks(geometry), scratch, attention_forward_scratch_bytes_per_thread(geometry.shape),
            [&](std::span<std::byte> own) { return ForwardWorker<Element, Operand>(geometry, tensors, own); });
}

template <typename Operand, typename Element>
void backward_on(const AttentionLayout& layout, const BackwardTensors<Element>& tensors,
                 std::span<std::byte> scratch) {
  const Geometry geometry(layout);
  run_tasks(backward_tasks(geometry), scratch, attention_backward_scratch_bytes_per_thread(geometry.shape),
            [&](std::span<std::byte> own) { return BackwardWorker<Element, Operand>(geometry, tensors, own); });
}

// Whether products of bf16 tiles run in hardware. oneDNN takes paired operands from AVX-512 on, but emulates the product
// where the processor has none; fp32 tiles are quicker there.
bool multiplies_bf16() {
#ifdef __x86_64__
  static const bool in_hardware = __builtin_cpu_supports("avx512bf16");
  return in_hardware && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

}  // namespace

AttentionShape AttentionLayout::shape() const {
  FIVEFOLD_CHECK(!cu_seqlens.empty());
  int64_t longest = 0;
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    longest = std::max<int64_t>(longest, cu_seqlens[i + 1] - cu_seqlens[i]);
  }
  return {.tokens = cu_seqlens.back(),
          .max_document_tokens = longest,
          .num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim};
}

int64_t attention_forward_scratch_bytes(const AttentionShape& shape, int num_threads) {
  return num_threads * attention_forward_scratch_bytes_per_thread(shape);
}

int64_t attention_backward_scratch_bytes(const AttentionShape& shape, int num_threads) {
  return num_threads * attention_backward_scratch_bytes_per_thread(shape);
}

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

template <typename Element>
void attention_backward(const AttentionLayout& layout, const Element* qkv, const Element* o, const float* lse,
                        const Element* d_o, Element* d_qkv, std::span<std::byte> scratch) {
  const BackwardTensors<Element> tensors{qkv, o, lse, d_o, d_qkv};
  if (std::is_same_v<Element, BFloat16> && multiplies_bf16()) {
    backward_on<Element>(layout, tensors, scratch);
  } else {
    backward_on<float>(layout, tensors, scratch);
  }
}

template void attention_forward<float>(const AttentionLayout&, const float*, float*, float*, std::span<std::byte>);
template void attention_forward<BFloat16>(const AttentionLayout&, const BFloat16*, BFloat16*, float*,
                                          std::span<std::byte>);
template void attention_backward<float>(const AttentionLayout&, const float*, const float*, const float*, const float*,
                                        float*, std::span<std::byte>);
template void attention_backward<BFloat16>(const AttentionLayout&, const BFloat16*, const BFloat16*, const float*,
                                           const BFloat16*, BFloat16*, std::span<std::byte>);

}  // namespace fivefold::ops
