// What the tests of the search share: a cluster of round figures, small models, and every layout of a small space, told
// apart by loops of its own and validate_layout(), predicted one by one.
#pragma once

#include <algorithm>
#include <cmath>
#include <set>

#include "planner/planner_testing.h"
#include "spec/rank_grid.h"
#include "spec/validate.h"

namespace fivefold::test {

// GPUs of 1 TFLOP/s and 100 GB/s, four to a node: 2 GB/s in a node, 0.5 GB/s between nodes. Small enough that tiny
// models compute for as long as they communicate.
inline HardwareSpec small_cluster(int devices_per_node = 4) {
  HardwareSpec h;
  h.device.memory_bytes.value = 1e12;
  h.device.memory_bytes_per_s.value = 1e11;
  h.device.peak_flops_per_s.fp32.value = 5e11;
  h.device.peak_flops_per_s.bf16.value = 1e12;
  h.device.launch_latency_s.value = 2e-7;
  h.devices_per_node = devices_per_node;
  h.node_link.bytes_per_s.value = 2e9;
  h.node_link.latency_s.value = 1e-6;
  h.network.bytes_per_s.value = 5e8;
  h.network.latency_s.value = 4e-6;
  return h;
}

inline ModelSpec small_model(int layers, bool tied = false) {
  ModelSpec model = named_model("demo-tiny");
  model.layers.resize(static_cast<size_t>(layers), model.layers[0]);
  model.tied_embeddings = tied;
  return model;
}

struct EveryLayout {
  ResolvedConfig config;
  double seconds = 0;
  int64_t peak = 0;  // of the fullest pipeline rank, with what is outside the tensors
};

// Of a model whose layers are attention and a gated MLP.
inline std::vector<RecomputeConfig> every_recompute(int layers) {
  std::vector<RecomputeConfig> all{{}};
  const std::vector<std::vector<std::string>> sets{{"attention.qkv"},
                                                   {"mlp.gate_up"},
                                                   {"attention.qkv", "mlp.gate_up"},
                                                   {"attention.qkv", "attention.out", "mlp.gate_up"}};
  for (const std::vector<std::string>& tensors : sets)
    all.push_back({.kind = RecomputeKind::kSelective, .every = 1, .tensors = tensors});
  for (const int64_t every : std::set<int64_t>{1, 2, 4, 8, std::lround(std::sqrt(layers))})
    if (every <= layers) all.push_back({.kind = RecomputeKind::kFull, .every = every, .tensors = {}});
  return all;
}

// Of the space in planner/layout_space.h without what `keep` refuses, and with tp up to `most_tp`. For GPUs: one
// precision.
template <typename Keep>
std::vector<RunConfig> every_config(const SearchRequest& request, int64_t global, int64_t most_tp, const Keep& keep) {
  const int ranks = request.rank_counts.back(), layers = static_cast<int>(request.model.layers.size());
  std::vector<RunConfig> all;
  const auto axis = [](int most) {
    std::vector<int> values;
    for (int i = 1; i <= most; ++i) values.push_back(i);
    return values;
  };
  for (const int tp : axis(std::min<int>(ranks, static_cast<int>(most_tp))))
    for (const int cp : axis(ranks))
      for (const int pp : axis(std::min(ranks, layers)))
        for (const int kind : {0, 1, 2})
          for (const bool sp : {false, true})
            for (int schedule = 0; schedule < 10; ++schedule)
              for (const int vpp : {1, 2, 4, 8})
                for (const int zero : {0, 1, 2, 3})
                  for (const int shards : axis(ranks))
                    for (const int64_t micro : axis(static_cast<int>(global)))
                      for (const RecomputeConfig& recompute : every_recompute(layers)) {
                        if (ranks % (tp * cp * pp) != 0) continue;
                        const int dp = ranks / (tp * cp * pp);
                        if ((sp && tp == 1) || (kind > 0 && cp == 1)) continue;
                        // With nothing to shard over a level above 0 is only as it is configured.
                        if (dp * cp == 1 ? shards > 1 || (zero > 0 && !request.fixed.zero) : (zero > 0) != (shards > 1))
                          continue;
                        if (pp == 1 && (vpp > 1 || schedule != static_cast<int>(ScheduleKind::k1F1B))) continue;
                        if (pp * vpp > layers || dp * cp % shards != 0 || global % (dp * micro) != 0) continue;
                        RunConfig config = request.base;
                        config.parallel = {.dp = dp,
                                           .tp = tp,
                                           .sp = sp,
                                           .pp = pp,
                                           .vpp = vpp,
                                           .schedule = static_cast<ScheduleKind>(schedule),
                                           .cp = cp,
                                           .cp_kind = static_cast<CpKind>(kind),
                                           .zero = zero,
                                           .shard_size = shards,
                                           .prefetch = request.base.parallel.prefetch};
                        config.batch.micro = micro;
                        config.batch.global = global;
                        config.recompute = recompute;
                        if (keep(config) && validate_layout(request.model, config).empty() &&
                            validate_engine(request.model, config).empty())
                          all.push_back(config);
                      }
  return all;
}

inline EveryLayout predicted(const SearchRequest& request, const Inventory& inventory, const RunConfig& config) {
  EveryLayout layout{.config = *resolve(config, request.model)};
  layout.seconds = predict_cost(request.model, inventory, layout.config, request.hardware).seconds;
  for (const int rank : RankGrid::create(layout.config.degrees)->group(GroupKind::kPp, 0))
    layout.peak =
        std::max(layout.peak, predict_memory(request.model, inventory, layout.config, rank).peak_total +
                                  outside_tensors(request.model, inventory, layout.config, request.hardware).bytes());
  return layout;
}

}  // namespace fivefold::test
