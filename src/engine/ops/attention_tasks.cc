#include "engine/ops/attention_tasks.h"

#include <functional>
#include <queue>

namespace fivefold::ops {
namespace {

// The rows below `rows` that no range covers. REQUIRES: the ranges are disjoint.
std::vector<RowRange> rows_outside(std::vector<RowRange> ranges, int64_t rows) {
  std::sort(ranges.begin(), ranges.end(), [](RowRange a, RowRange b) { return a.begin < b.begin; });
  std::vector<RowRange> outside;
  int64_t covered = 0;
  for (const RowRange range : ranges) {
    FIVEFOLD_CHECK(range.begin >= covered, "attention: a query row is in two segments, or key ranges cross");
    if (range.begin > covered) outside.push_back({covered, range.begin - covered});
    covered = range.begin + range.count;
  }
  FIVEFOLD_CHECK(covered <= rows, "attention: a segment ends beyond the rows");
  if (covered < rows) outside.push_back({covered, rows - covered});
  return outside;
}

std::vector<AttentionSegment> segments_with_work(std::span<const AttentionSegment> all) {
  std::vector<AttentionSegment> segments;
  segments.reserve(all.size());
  for (const AttentionSegment& s : all) {
    FIVEFOLD_CHECK(s.q_begin >= 0 && s.q_len >= 0 && s.kv_begin >= 0 && s.kv_len >= 0);
    FIVEFOLD_CHECK(s.mask == AttentionMask::kFull || s.kv_len >= s.q_len, "attention: causal with more rows than keys");
    if (s.q_len > 0 && s.kv_len > 0) segments.push_back(s);
  }
  std::stable_sort(segments.begin(), segments.end(),
                   [](const AttentionSegment& a, const AttentionSegment& b) { return a.kv_begin < b.kv_begin; });
  return segments;
}

std::vector<KeyGroup> groups_of(const std::vector<AttentionSegment>& segments) {
  std::vector<KeyGroup> groups;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (groups.empty() || groups.back().kv_begin != segments[i].kv_begin) {
      groups.push_back({.kv_begin = segments[i].kv_begin, .first_segment = i});
    }
    ++groups.back().num_segments;
    groups.back().kv_len = std::max(groups.back().kv_len, segments[i].kv_len);
  }
  return groups;
}

void sort_dearest_first(std::vector<Task>& tasks) {
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
}

// (query, key) pairs that a segment's rows [begin, end) see.
int64_t pairs_of_rows(const AttentionSegment& s, int64_t begin, int64_t end) {
  if (s.mask == AttentionMask::kFull) return (end - begin) * s.kv_len;
  return (end - begin) * (2 * (s.kv_len - s.q_len) + begin + end + 1) / 2;
}
// The pairs with keys from `first_key` on, at most one strip of them.
int64_t pairs_of_strip(const AttentionSegment& s, int64_t first_key) {
  const int64_t end = std::min(s.kv_len, first_key + kAttentionBackwardStrip);
  if (end <= first_key) return 0;
  if (s.mask == AttentionMask::kFull) return s.q_len * (end - first_key);
  const int64_t all_see = std::clamp(s.kv_len - s.q_len, first_key, end);  // keys before this one
  return (all_see - first_key) * s.q_len + (end - all_see) * (2 * (s.kv_len - all_see) - (end - all_see) + 1) / 2;
}

// Calls f(group, kv_head) for all of them.
template <typename F>
void for_each_key_group(const Geometry& g, F&& f) {
  for (const KeyGroup& group : g.key_groups) {
    for (int64_t kv_head = 0; kv_head < g.layout.num_kv_heads; ++kv_head) f(group, kv_head);
  }
}

// Calls f(batch) for all batches of the call.
template <typename F>
void for_every_batch(const Geometry& g, F&& f) {
  for (const AttentionSegment& segment : g.segments) {
    for (int64_t kv_head = 0; kv_head < g.layout.num_kv_heads; ++kv_head) for_each_batch(g, segment, kv_head, 0, f);
  }
}

// Costs in products over the (query, key) pairs of a tile: five in a fused task, four and three in the passes of split.
std::vector<Task> fused_tasks(const Geometry& g) {
  std::vector<Task> tasks;
  for_each_key_group(g, [&](const KeyGroup& group, int64_t kv_head) {
    int64_t pairs = 0;
    for (size_t i = 0; i < group.num_segments; ++i) {
      const AttentionSegment& segment = g.segments[group.first_segment + i];
      pairs += pairs_of_rows(segment, 0, segment.q_len);
    }
    tasks.push_back({.kind = Task::Kind::kFused, .group = &group, .kv_head = kv_head, .cost = 5 * g.group * pairs});
  });
  sort_dearest_first(tasks);
  return tasks;
}

std::vector<Task> split_tasks(const Geometry& g) {
  std::vector<Task> tasks;
  for_each_key_group(g, [&](const KeyGroup& group, int64_t kv_head) {
    for (int64_t key = 0; key < group.kv_len; key += kAttentionBackwardStrip) {
      int64_t pairs = 0;
      for (size_t i = 0; i < group.num_segments; ++i) {
        pairs += pairs_of_strip(g.segments[group.first_segment + i], key);
      }
      tasks.push_back({.kind = Task::Kind::kKeyStrip,
                       .group = &group,
                       .kv_head = kv_head,
                       .first_key = key,
                       .cost = 4 * g.group * pairs});
    }
  });
  for_every_batch(g, [&](const QueryBatch& batch) {
    const int64_t pairs = pairs_of_rows(*batch.segment, batch.first_row, batch.end_row);
    tasks.push_back({.kind = Task::Kind::kQueries, .batch = batch, .cost = 3 * batch.num_heads * pairs});
  });
  sort_dearest_first(tasks);
  return tasks;
}

// Cost of the busiest of `num_threads` threads that take the tasks in their order as they become free.
int64_t makespan(const std::vector<Task>& tasks, int num_threads) {
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> load;
  for (int i = 0; i < num_threads; ++i) load.push(0);
  int64_t longest = 0;
  for (const Task& task : tasks) {
    const int64_t end = load.top() + task.cost;
    load.pop();
    load.push(end);
    longest = std::max(longest, end);
  }
  return longest;
}

}  // namespace

Geometry::Geometry(const AttentionLayout& layout_in)
    : layout(layout_in),
      group(div_exact(layout_in.num_heads, layout_in.num_kv_heads)),
      width(attention_tile_width(layout_in.head_dim)),
      heads_per_batch(std::min(group, kAttentionUnits)),
      rows_per_batch(div_floor(kAttentionUnits, heads_per_batch) * kAttentionBlock),
      shape(layout_in.shape()),
      segments(segments_with_work(layout_in.segments)),
      key_groups(groups_of(segments)) {
  FIVEFOLD_CHECK(layout.head_dim > 0 && layout.scale > 0.0f);
  FIVEFOLD_CHECK(layout.q_stride >= layout.num_heads * layout.head_dim);
  FIVEFOLD_CHECK(layout.kv_stride >= layout.num_kv_heads * layout.head_dim);
  FIVEFOLD_CHECK(layout.kv_chunks.empty() ||
                 layout.kv_chunk_rows * static_cast<int64_t>(layout.kv_chunks.size()) == layout.kv_rows);
  std::vector<RowRange> queries, keys;
  for (const AttentionSegment& segment : segments) queries.push_back({segment.q_begin, segment.q_len});
  for (const KeyGroup& keys_of_group : key_groups) keys.push_back({keys_of_group.kv_begin, keys_of_group.kv_len});
  unseen_queries = rows_outside(std::move(queries), layout.q_rows);
  unseen_keys = rows_outside(std::move(keys), layout.kv_rows);
}

std::vector<Task> forward_tasks(const Geometry& g) {
  std::vector<Task> tasks;
  for_every_batch(g, [&](const QueryBatch& batch) {
    const int64_t rows = batch.end_row - batch.first_row;
    tasks.push_back({.kind = Task::Kind::kForward,
                     .batch = batch,
                     .cost = rows * visible_keys(*batch.segment, batch.end_row) * batch.num_heads});
  });
  sort_dearest_first(tasks);
  return tasks;
}

std::vector<Task> backward_tasks(const Geometry& g, int num_threads) {
  std::vector<Task> split = split_tasks(g);
  if (!attention_backward_fits_fused(g.shape)) return split;
  std::vector<Task> fused = fused_tasks(g);
  return makespan(fused, num_threads) <= makespan(split, num_threads) ? fused : split;
}

}  // namespace fivefold::ops
