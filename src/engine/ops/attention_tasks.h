// How an attention call is cut into tasks: a task is what one thread does, and writes outputs that no other task
// writes. Without Torch and without data: everything follows from the layout.
//
// Note [Order of sums]
// Work is cut into tasks by the segments alone, and each output element is written by one task. A task adds its
// products in a fixed order: for an output row over strips of keys, ascending; for a query gradient likewise; for a key
// or value gradient over the segments that see the key, in the order of the list, in each over batches of query heads,
// then query blocks, then tiles of the batch, ascending. Backward has two forms, chosen by how well the work spreads
// over the threads: fused (one task per group of keys and key head computes each score once) and split (key gradients
// in one pass, query gradients in another, each computing the scores). Both run the same products on the same tiles in
// the same order, so that their bits are equal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/integer.h"
#include "engine/ops/attention.h"

namespace fivefold::ops {

struct RowRange {
  int64_t begin = 0;
  int64_t count = 0;
};

// Segments that begin at the same key, [first_segment, first_segment + num_segments) of the geometry's, and the keys
// of the longest: whoever sums the gradient of one of these keys walks over all of these segments. A packed document is
// a group of one segment.
struct KeyGroup {
  int64_t kv_begin = 0;
  int64_t kv_len = 0;
  size_t first_segment = 0;
  size_t num_segments = 0;
};

// One key head of one segment, some query heads of its group, and query rows [first_row, end_row) of the segment: the
// (head, block of 64 rows) pairs that share each packed strip of keys are the units of the task.
struct QueryBatch {
  const AttentionSegment* segment = nullptr;
  int64_t kv_head = 0;
  int64_t first_head = 0;
  int64_t num_heads = 0;
  int64_t first_row = 0;
  int64_t end_row = 0;
};

// A query tile of a batch.
struct Unit {
  int64_t head = 0;
  int64_t row = 0;      // first row, within the segment
  int64_t rows = 0;     // at most 64
  int64_t key_end = 0;  // keys of the segment that the last of the rows sees
};

// Keys of the segment that its rows below `row_end` see.
inline int64_t visible_keys(const AttentionSegment& segment, int64_t row_end) {
  if (segment.mask == AttentionMask::kFull) return segment.kv_len;
  return std::min(segment.kv_len, segment.kv_len - segment.q_len + row_end);
}

// Geometry of a call, with what follows from it. The layout must outlive it.
struct Geometry {
  explicit Geometry(const AttentionLayout& layout_in);

  int64_t output_stride() const { return layout.num_heads * layout.head_dim; }

  // Unit `index` of a batch: blocks ascending, heads within a block.
  Unit unit(const QueryBatch& batch, int64_t index) const {
    const int64_t row = batch.first_row + index / batch.num_heads * kAttentionBlock;
    const int64_t rows = std::min(batch.end_row - row, kAttentionBlock);
    return {batch.first_head + index % batch.num_heads, row, rows, visible_keys(*batch.segment, row + rows)};
  }
  int64_t num_units(const QueryBatch& batch) const {
    return div_ceil(batch.end_row - batch.first_row, kAttentionBlock) * batch.num_heads;
  }

  // Calls f(row of the buffer, offset from `first`, rows) for the pieces of key rows [first, first + count) that lie
  // together.
  template <typename F>
  void for_each_run(int64_t first, int64_t count, F&& f) const {
    if (layout.kv_chunks.empty()) return f(first, int64_t{0}, count);
    const int64_t chunk_rows = layout.kv_chunk_rows;
    for (int64_t done = 0; done < count;) {
      const int64_t row = first + done, in_chunk = row % chunk_rows;
      const int64_t rows = std::min(count - done, chunk_rows - in_chunk);
      f(layout.kv_chunks[static_cast<size_t>(row / chunk_rows)] * chunk_rows + in_chunk, done, rows);
      done += rows;
    }
  }

  const AttentionLayout& layout;
  int64_t group;
  int64_t width;
  int64_t heads_per_batch;
  int64_t rows_per_batch;
  AttentionShape shape;
  std::vector<AttentionSegment> segments;  // those that have work, by first key
  std::vector<KeyGroup> key_groups;
  std::vector<RowRange> unseen_queries;  // rows of no segment
  std::vector<RowRange> unseen_keys;
};

// Calls f(batch) for the query batches of a key head of a segment that see keys from `first_key` on, in the order of
// sums.
template <typename F>
void for_each_batch(const Geometry& g, const AttentionSegment& segment, int64_t kv_head, int64_t first_key, F&& f) {
  if (first_key >= segment.kv_len) return;
  const bool causal = segment.mask == AttentionMask::kCausal;
  const int64_t first_row = causal ? std::max<int64_t>(0, first_key - (segment.kv_len - segment.q_len)) : 0;
  for (int64_t h = 0; h < g.group; h += g.heads_per_batch) {
    for (int64_t row = first_row / g.rows_per_batch * g.rows_per_batch; row < segment.q_len; row += g.rows_per_batch) {
      f(QueryBatch{&segment, kv_head, kv_head * g.group + h, std::min(g.heads_per_batch, g.group - h), row,
                   std::min(row + g.rows_per_batch, segment.q_len)});
    }
  }
}

// A piece of work that one thread does, and its cost in units of its own list. Those over keys have a group and a key
// head, those over queries a batch.
struct Task {
  enum class Kind { kForward, kFused, kKeyStrip, kQueries };
  Kind kind = Kind::kForward;
  QueryBatch batch;                 // kForward, kQueries
  const KeyGroup* group = nullptr;  // kFused, kKeyStrip
  int64_t kv_head = 0;
  int64_t first_key = 0;  // of the strip, from the first key of the group
  int64_t cost = 0;
};

// The tasks of a call, dearest first. Backward chooses its form by the number of threads; bits do not depend on it.
// They point into the geometry.
std::vector<Task> forward_tasks(const Geometry& g);
std::vector<Task> backward_tasks(const Geometry& g, int num_threads);

}  // namespace fivefold::ops
