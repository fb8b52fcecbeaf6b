// How an attention call is cut into tasks: a task is what one thread does, and writes outputs that no other task
// writes. Without Torch and without data: everything follows from the layout.
//
// Note [Order of sums]
// Work is cut into tasks by the shape alone, and each output element is written by one task. A task adds its products
// in a fixed order: for an output row over strips of keys, ascending; for a query gradient likewise; for a key or value
// gradient over batches of query heads, then query blocks, then tiles of the batch, ascending. Backward has two forms,
// chosen by how well the work spreads over the threads: fused (one task per document and key head computes each score
// once) and split (key gradients in one pass, query gradients in another, each computing the scores). Both run the
// same products on the same tiles in the same order, so that their bits are equal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/integer.h"
#include "engine/ops/attention.h"

namespace fivefold::ops {

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
        rows_per_batch(div_floor(kAttentionUnits, heads_per_batch) * kAttentionBlock),
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
    const int64_t row = batch.first_row + index / batch.num_heads * kAttentionBlock;
    return {batch.first_head + index % batch.num_heads, row,
            std::clamp<int64_t>(batch.end_row - row, 0, kAttentionBlock)};
  }
  int64_t num_units(const QueryBatch& batch) const {
    return div_ceil(batch.end_row - batch.first_row, kAttentionBlock) * batch.num_heads;
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

// The tasks of a call, dearest first. Backward chooses its form by the number of threads; bits do not depend on it.
std::vector<Task> forward_tasks(const Geometry& g);
std::vector<Task> backward_tasks(const Geometry& g, int num_threads);

}  // namespace fivefold::ops
