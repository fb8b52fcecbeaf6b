// What the planner's tests share: named models, configurations and hardware, and a machine of round figures.
#pragma once

#include <gtest/gtest.h>

#include "planner/explanation.h"
#include "planner/search.h"
#include "spec/model_named.h"

namespace fivefold::test {

inline ModelSpec named_model(const std::string& name) {
  const auto path = find_named_model(name);
  EXPECT_TRUE(path.ok());
  const auto model = read_model_config(*path);
  EXPECT_TRUE(model.ok());
  return *model;
}

inline HardwareSpec named_hardware(const std::string& name) {
  const auto path = find_named_hardware(name);
  EXPECT_TRUE(path.ok());
  const auto hardware = read_hardware(*path);
  EXPECT_TRUE(hardware.ok());
  return *hardware;
}

struct Layout {
  int dp = 1, zero = 0, shard_size = 0;
  int64_t micro = 1, accumulation = 1, sequence = 1024, recompute_every = 0, loss_chunk = 512;
  std::vector<std::string> dropped;  // selective recompute
  ComputeKind compute = ComputeKind::kBf16;
};

inline ResolvedConfig resolved(const ModelSpec& model, const Layout& layout) {
  RunConfig config;
  config.parallel.dp = layout.dp;
  config.parallel.zero = layout.zero;
  config.parallel.shard_size = layout.shard_size;
  config.batch.micro = layout.micro;
  config.batch.sequence = layout.sequence;
  config.batch.global = layout.micro * layout.accumulation * layout.dp;
  config.batch.loss_chunk = layout.loss_chunk;
  config.precision.compute = layout.compute;
  if (!layout.dropped.empty())
    config.recompute = {.kind = RecomputeKind::kSelective, .every = 1, .tensors = layout.dropped};
  if (layout.recompute_every > 0)
    config.recompute = {.kind = RecomputeKind::kFull, .every = layout.recompute_every, .tensors = {}};
  const auto result = resolve(config, model);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message());
  return *result;
}

inline Ledger ledger_of(const ModelSpec& model, const Layout& layout) {
  return predict_memory(model, build_inventory(model), resolved(model, layout));
}

inline SearchRequest request_for(const std::string& model, const std::string& hardware, int ranks, int64_t sequence,
                                 int64_t global = 0) {
  SearchRequest request{
      .model = named_model(model), .base = {}, .hardware = named_hardware(hardware), .rank_counts = {ranks}};
  request.base.batch.sequence = sequence;
  request.base.batch.global = global;
  return request;
}

inline constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
inline constexpr double kMib = 1024.0 * 1024.0;

}  // namespace fivefold::test
