// Sharding of a unit's states over data-parallel ranks, and the persistent buffers that follow from it. One mechanism:
// ZeRO levels 0-3 and HSDP are values of ShardingPolicy. Derivation and worked numbers: docs/memory.md.
// Plain data and pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/enums.h"
#include "spec/inventory.h"
#include "spec/run_config.h"

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
  OptimizerStateKind moments = OptimizerStateKind::kFp32;
  MasterKind master = MasterKind::kFp32;  // of weights in a lower precision

  bool shards_params() const { return zero >= 3; }
  bool shards_grads() const { return zero >= 2 && !reduces_once; }
  bool gathers_after_step() const { return (zero == 1 || zero == 2) && shards > 1; }
  // The weight gradient goes through a transient unit buffer in the compute dtype.
  bool transient_grads() const { return shards_grads() || grads != compute; }
  bool has_master() const { return compute != DType::kFloat32 && master == MasterKind::kFp32; }
  // Weights in fp32 exist, as master copy or as the working weights.
  bool has_fp32_weights() const { return compute == DType::kFloat32 || has_master(); }
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

// Note [8-bit states]
// A moment in 8 bits is a code an element and an fp32 scale for each block of 256 elements of the unit's flat buffer.
// Parameters start on such blocks and shards are whole ones, so a block never spans parameters and means the same under
// every ZeRO level. A parameter is in 8 bits when each Hub tensor that it packs has at least 4096 elements in full,
// whatever part of it a rank holds; smaller ones are in fp32. The padding behind the last parameter has no state. A
// moment of a shard is three buffers: codes, scales, and the elements in fp32. Every rank has room for the most that a
// shard can hold of either kind, so that all have the same bytes.
inline constexpr int64_t kStateBlock = 256;
static_assert(kStateBlock == kParameterAlignment);
inline constexpr int64_t kLeast8BitNumel = 4096;

bool has_8bit_states(const ParameterEntry& parameter);

// Elements of a shard's moment by kind, multiples of kStateBlock.
struct MomentRoom {
  int64_t in_8bit = 0, in_fp32 = 0;
};
MomentRoom moment_room(const Unit& unit, int64_t shards);

// Where the moments of each of the unit's parameters start on a shard: `offset` elements into the codes, or into the
// elements in fp32. Frozen parameters have none.
struct MomentPlace {
  bool in_8bit = false;
  int64_t offset = 0;
};
std::vector<MomentPlace> moment_places(const Unit& unit, int64_t shards, int64_t shard);

}  // namespace fivefold
