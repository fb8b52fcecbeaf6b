// Sharding of a unit's states over data-parallel ranks, and the persistent buffers that follow from it. One mechanism:
// ZeRO levels 0-3 and HSDP are values of ShardingPolicy. Derivation and worked numbers: docs/memory.md.
// Plain data and pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/enums.h"
#include "spec/inventory.h"

namespace fivefold {

// How the data-parallel ranks share a unit's states. ZeRO levels and HSDP are values of this, not code paths.
struct ShardingPolicy {
  int zero = 0;                     // 0-3
  int shards = 1;                   // S: ranks over which states are divided; 1 at level 0
  int replicas = 1;                 // R: ranks holding the same shard; S * R = dp * cp
  bool double_quantization = true;  // of weights in 4 bits
  bool reduces_once = false;        // levels 2 and 3: gradients stay whole until the end of the step
  DType compute = DType::kFloat32;  // working weights, weight-gradient products
  DType grads = DType::kFloat32;    // accumulated gradient

  bool shards_params() const { return zero >= 3; }
  bool shards_grads() const { return zero >= 2 && !reduces_once; }
  bool gathers_after_step() const { return (zero == 1 || zero == 2) && shards > 1; }
  // The weight gradient goes through a transient unit buffer in the compute dtype.
  bool transient_grads() const { return shards_grads() || grads != compute; }
  bool has_master() const { return compute != DType::kFloat32; }
};

// Which optimizer states exist beside the weights.
enum class OptimizerStates : uint8_t { kNone, kMoment1, kMoment1And2 };  // SGD; SGD with momentum; Adam

// A buffer that lives from set-up to the end of the run.
struct StateBuffer {
  Account account = Account::kParams;
  int64_t elements = 0;
  DType dtype = DType::kFloat32;

  int64_t bytes() const { return elements * dtype_bytes(dtype); }
};

// What ZeRO-3 gathers of a unit: the trained weights, the frozen ones and those in 4 bits, as far as there are any;
// elements of the whole.
std::vector<StateBuffer> gathered_buffers(const Unit& unit, const ShardingPolicy& policy);
int64_t gathered_bytes(const Unit& unit, const ShardingPolicy& policy);

// The persistent buffers of one unit on one rank, in the order in which they are allocated.
std::vector<StateBuffer> state_buffers(const Unit& unit, const ShardingPolicy& policy, OptimizerStates optimizer);

}  // namespace fivefold
