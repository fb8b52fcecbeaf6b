#include "engine/ops/attention_tasks.h"

#include <functional>
#include <queue>

namespace fivefold::ops {
namespace {

void sort_dearest_first(std::vector<Task>& tasks) {
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
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
      const QueryBatch strip{.document_begin = begin, .document_tokens = tokens, .kv_head = kv_head, .first_row = key};
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

std::vector<Task> forward_tasks(const Geometry& g) {
  std::vector<Task> tasks;
  for_each_kv_head(g, [&](int64_t begin, int64_t tokens, int64_t kv_head) {
    for_each_batch(g, begin, tokens, kv_head, 0, [&](const QueryBatch& batch) {
      tasks.push_back(
          {Task::Kind::kForward, batch, (batch.end_row - batch.first_row) * batch.end_row * batch.num_heads});
    });
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
