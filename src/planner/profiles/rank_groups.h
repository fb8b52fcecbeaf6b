// Internal to src/planner/profiles: where the groups of a framework's run lie on the nodes. Ranks are ordered tp, cp,
// dp, pp, and for experts etp, ep, edp, pp, the first fastest. Plain data, pure functions, thread-safe.
#pragma once

#include "planner/profiles/framework_run.h"
#include "spec/network.h"

namespace fivefold {

// `ranks` members, each `stride` ranks from the one before; of the groups that begin anywhere the widest.
GroupShape strided_group(int64_t devices_per_node, int64_t stride, int64_t ranks);

// Of a node's devices, those that a job takes whose groups of this many ranks exchange most.
int64_t taken_devices(int64_t devices, int64_t group);

struct RankGroups {
  GroupShape tp, cp, pp, ep, etp;
  GroupShape shard, replicate;  // of dense parameters
  GroupShape edp;               // ranks that hold the same experts
};
RankGroups rank_groups(const FrameworkRun& run, const NetworkSpec& network);

}  // namespace fivefold
