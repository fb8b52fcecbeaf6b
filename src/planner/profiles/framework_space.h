// FrameworkSpace: the layouts of a framework that the search looks at, for a model on a number of GPUs. What is legal
// is decided by framework_refusals(); this is what is worth asking. Immutable, thread-safe.
//
// Note [The space of a framework's layouts]
//   tp         divisors of the GPUs, within a node (beyond it only if nothing else fits), with and without sp
//   cp         divisors with at least 1,024 tokens a rank
//   pp, v      divisors of the GPUs; every number of chunks a rank that the layers divide into, embedding and loss
//              counted as a layer or not
//   ep, etp    divisors of the experts; etp 1 or tp
//   micro      divisors of a replica's sequences, up to 64
//   zero       those that the framework has; shards over all replicas, or (FSDP) within a node
//   recompute  nothing, everything, and what the framework's selective kind frees
//   A key that is fixed has its configured value only.
#pragma once

#include <compare>
#include <functional>
#include <vector>

#include "planner/layout_space.h"
#include "planner/profiles/framework_run.h"

namespace fivefold {

// How layers are divided among the stages: embedding and loss count for no layer, or for one, and all divide evenly; or
// both count for one and the stages are as even as they can be.
enum class EndsCount : uint8_t { kNothing, kLoss, kBoth, kUneven };

// What the search chooses; the rest is the base run's.
struct FrameworkLayout {
  int tp = 1;
  bool sp = false;
  int cp = 1, ep = 1, etp = 1, pp = 1, vpp = 1;
  EndsCount ends = EndsCount::kNothing;
  int64_t micro = 1;
  int zero = 0;
  int64_t shard_size = 0;
  Checkpointing checkpointing = Checkpointing::kNone;

  auto operator<=>(const FrameworkLayout&) const = default;
};

class FrameworkSpace {
 public:
  // `base`: what the search does not choose, and the values of fixed keys. REQUIRES: `base` outlives it.
  FrameworkSpace(const FrameworkRun& base, const FixedKeys& fixed, const HardwareSpec& hardware, int64_t gpus,
                 int64_t global_batch, TensorReach reach);

  int64_t gpus() const { return gpus_; }
  int64_t global_batch() const { return global_; }
  // All layouts that are legal; those that share what FrameworkClock::times() depends on, one after the other.
  std::vector<FrameworkLayout> layouts() const;
  // What of recompute needs least memory.
  Checkpointing leanest() const { return checkpointings().back(); }
  // Sets what `layout` chooses in a run that has the base's other settings.
  void apply(const FrameworkLayout& layout, FrameworkRun& run) const;

 private:
  struct Pipeline {
    int pp = 1, vpp = 1;
    EndsCount ends = EndsCount::kNothing;
  };
  std::vector<Pipeline> pipelines() const;
  std::vector<std::pair<int, int>> expert_splits(int tp) const;
  std::vector<Checkpointing> checkpointings() const;
  std::vector<std::pair<int, int64_t>> shardings(int tp, int64_t replicas, int pp) const;

  const FrameworkRun& base_;
  FixedKeys fixed_;
  int64_t devices_per_node_;
  int64_t gpus_, global_;
  int widest_tp_;
};

// Layers of each of the pp x vpp chunks in model order; or nothing: they do not divide so.
std::vector<int64_t> stage_layers(int64_t layers, int pp, int vpp, EndsCount ends);

// How much a layout asks of its owner, for layouts of equal speed. Less is simpler.
std::array<int64_t, 12> simplicity(const FrameworkLayout& layout);

}  // namespace fivefold
