#include "planner/profiles/rank_groups.h"

#include <algorithm>
#include <numeric>

#include "base/integer.h"

namespace fivefold {

GroupShape strided_group(int64_t devices_per_node, int64_t stride, int64_t ranks) {
  if (ranks <= 1) return {};
  const int64_t d = devices_per_node;
  const auto shape = [&](int64_t nodes, int64_t least) {
    return GroupShape{static_cast<int>(ranks), static_cast<int>(nodes), static_cast<int>(least)};
  };
  if (stride >= d) return shape(ranks, 1);
  const int64_t block = stride * ranks;
  if (d % stride == 0 && (d % block == 0 || block % d == 0)) {
    const int64_t of_node = div_exact(d, stride);
    return ranks <= of_node ? shape(1, ranks) : shape(div_exact(ranks, of_node), of_node);
  }
  // Groups that are not aligned with nodes: one begins at every rank of each block of stride x ranks.
  GroupShape widest;
  for (int64_t first = 0; first < std::lcm(block, d); first += block)
    for (int64_t begin = first; begin < first + (d % stride == 0 ? 1 : stride); ++begin) {
      int64_t nodes = 0, here = 0, least = ranks, node = -1;
      for (int64_t i = 0; i < ranks; ++i, ++here) {
        const int64_t at = div_floor(begin + i * stride, d);
        if (at == node) continue;
        if (node >= 0) least = std::min(least, here);
        node = at, here = 0, ++nodes;
      }
      const GroupShape found = shape(nodes, std::min(least, here));
      if (found.nodes > widest.nodes || (found.nodes == widest.nodes && found.ranks_per_node < widest.ranks_per_node))
        widest = found;
    }
  return widest;
}

// Of a node's devices a job takes as many as whole groups fit on: of an NVL72's 72 it takes 64 for experts on 64 ranks.
int64_t taken_devices(int64_t devices, int64_t group) {
  return group <= devices && devices % group != 0 && group % 2 == 0 ? devices - devices % group : devices;
}

RankGroups rank_groups(const FrameworkRun& run, const NetworkSpec& network) {
  const int64_t replicas = run.dp * run.cp, stage = run.tp * replicas;
  const int64_t shards = run.shard_size > 0 ? run.shard_size : replicas, experts = run.ep * run.expert_tp;
  const int64_t d = taken_devices(network.devices_per_node, std::max(run.tp * run.cp, experts));
  RankGroups groups;
  groups.tp = strided_group(d, 1, run.tp);
  groups.cp = strided_group(d, run.tp, run.cp);
  groups.pp = strided_group(d, stage, run.pp);
  groups.etp = strided_group(d, 1, run.expert_tp);
  groups.ep = strided_group(d, run.expert_tp, run.ep);
  groups.shard = strided_group(d, run.tp, shards);
  groups.replicate = strided_group(d, run.tp * shards, div_floor(replicas, shards));
  groups.edp = strided_group(d, experts, std::max<int64_t>(1, div_floor(stage, experts)));
  return groups;
}

}  // namespace fivefold
