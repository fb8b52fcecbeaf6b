// LayoutSpace: the layouts that the search looks at for a model on a number of ranks, axis by axis. What is legal is
// decided by validate_layout() and validate_engine(); this is what is worth asking. Immutable, thread-safe.
//
// Note [The space of layouts]
//   precision  as configured; on CPUs also the other of fp32 and bf16, unless the parameters' type is set
//   tp         degrees that divide the ranks, within a node: two all-reduces a layer and pass are not hidden, and a
//              network between nodes is an order of magnitude slower. Beyond a node only if nothing else fits.
//   sp         with and without, where tp > 1
//   cp         degrees that divide the ranks, each of ring, all_gather and ulysses
//   pp         degrees that divide the ranks, at least one layer a chunk
//   schedule   the ten of schedule/generate.h where its domain allows the microbatches; interleaved with 2, 4 and 8
//              chunks a rank
//   zero       0 to 3, over every divisor of dp x cp
//   micro      divisors of a replica's sequences, up to 64
//   recompute  none; selective: without attention.qkv, without the MLP's product, without both, without all that can
//              be dropped; or segments of 1, 2, 4, 8 and sqrt(layers) layers, of those longer than every chunk only
//              the shortest, since they are the same
//   A key that is fixed has its configured value only.
#pragma once

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "spec/dropped_tensors.h"
#include "spec/hardware.h"
#include "spec/model.h"
#include "spec/run_config_resolve.h"

namespace fivefold {

// Keys that the search leaves as they are configured.
struct FixedKeys {
  bool dp = false, tp = false, sp = false, cp = false, cp_kind = false, pp = false, vpp = false, schedule = false;
  bool zero = false, shard_size = false, micro = false, recompute = false, every = false, compute = false;
  bool method = false;           // of plans for several methods
  bool ep = false, etp = false;  // of other frameworks
};

enum class TensorReach : uint8_t { kNode, kAnywhere };
// Ranks of a run that lie on one node: all of them on a CPU that imitates no cluster.
int ranks_of_node(const HardwareSpec& hardware, int ranks);

// What backward computes again: nothing, segments of `every` layers, or what is dropped.
struct Recomputed {
  int64_t every = 0;
  DroppedTensors dropped;

  // As the configuration has it.
  RecomputeConfig config() const;
};

// What the search chooses.
struct Layout {
  ComputeKind compute = ComputeKind::kBf16;
  int tp = 1;
  bool sp = false;
  int cp = 1;
  CpKind cp_kind = CpKind::kRing;
  int pp = 1;
  int64_t micro = 1;
  ScheduleKind schedule = ScheduleKind::k1F1B;
  int vpp = 1;
  int64_t every = 0;       // layers a recomputed segment; 0: no segments
  DroppedTensors dropped;  // of selective recompute; not with segments
  int zero = 0;
  int shard_size = 1;

  auto operator<=>(const Layout&) const = default;
};
// Of a resolved configuration.
Layout layout_of(const RunConfig& config);

// How much a layout asks of its owner, for layouts of equal speed: fewer kinds of split, lower degrees of pp, cp and
// tp, no recompute, then dropped tensors, fewest first, the lower ZeRO level, smaller microbatches, which leave
// head-room, the larger shard group, no sp, the plainer schedule with fewer chunks. Less is simpler.
std::array<int64_t, 11> simplicity(const Layout& layout);

class LayoutSpace {
 public:
  // `base`: what the search does not choose, and the values of fixed keys. batch.global 0: chosen.
  LayoutSpace(const ModelSpec& model, const RunConfig& base, const FixedKeys& fixed, const HardwareSpec& hardware,
              int ranks, TensorReach reach);

  int ranks() const { return ranks_; }
  int64_t global_batch() const { return global_; }
  int dp(const Layout& layout) const { return ranks_ / (layout.tp * layout.cp * layout.pp); }

  // Values of compute, tp, sp, cp, cp_kind, pp and micro, as far as they are legal; the rest is such that resolved()
  // has a value.
  std::vector<Layout> splits() const;
  // Of a split: schedule and vpp, as far as they are legal.
  std::vector<Layout> schedules(const Layout& split) const;
  // And what is recomputed, in chunks of at most so many layers.
  std::vector<Recomputed> recomputed(int64_t longest_chunk) const;
  // ZeRO level and shard size.
  std::vector<std::pair<int, int>> shardings(const Layout& split) const;

  RunConfig config(const Layout& layout) const;
  // Nothing: validate_layout() finds an error.
  std::optional<ResolvedConfig> resolved(const Layout& layout) const;

 private:
  std::vector<int> degrees(bool fixed, int value, int most) const;

  const ModelSpec& model_;
  const RunConfig& base_;
  FixedKeys fixed_;
  int ranks_;
  int widest_tp_;
  bool on_cpu_;
  int64_t global_;
};

// Of validate_engine()'s errors those that another layout of the same run would not have.
std::vector<Error> layout_refusals(const ModelSpec& model, const RunConfig& config);

}  // namespace fivefold
