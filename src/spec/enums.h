// The words that the plan, the run and the report share. Every half of fivefold uses these enumerators; their names
// (`to_string`) are what the run record and JSON output contain.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/check.h"

namespace fivefold {

// Element types of buffers. kUint8 also carries fp8, 4-bit and 8-bit codes.
// kInt16, kInt8 and kBool exist only in model files.
enum class DType : uint8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat64,
  kInt32,
  kInt64,
  kUint8,
  kFloat8E4M3,
  kFloat8E5M2,
  kInt16,
  kInt8,
  kBool
};

constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
    case DType::kInt16:
      return 2;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kUint8:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
    case DType::kInt8:
    case DType::kBool:
      return 1;
  }
  FIVEFOLD_CHECK(false);
}

// Who owns a byte of memory. Planner sums, engine counts and reconcile compare by account.
enum class Account : uint8_t {
  kParams,           // weights in the working dtype: full (ZeRO 0-2) or this rank's shard (ZeRO-3)
  kGrads,            // gradients that live until the optimizer step: full (ZeRO 0-1) or the shard (ZeRO 2-3)
  kMaster,           // fp32 master weights of a lower-precision run
  kMoment1,          // Adam's m, or SGD's momentum
  kMoment2,          // Adam's v
  kActivations,      // tensors between forward and backward, and the layers' named temporaries
  kUnshardedParams,  // units gathered for use (ZeRO-3)
  kUnshardedGrads,   // a unit's gradient before it is reduced into the shard or added to the accumulated gradient
  kCommBuffers,      // staging of collectives
  kLogits,           // logits and their gradient
  kSnapshot,         // copy for an asynchronous checkpoint
  kKvCache,          // keys and values of `generate`
  kData,             // token ids, labels, positions, RoPE tables
  kWorkspace,        // scratch of kernels and libraries: bounded, not predicted to the byte
  kOther,            // what the process needs beside the above
};
inline constexpr int kNumAccounts = 15;

// What a collective does. Bytes sent per rank of n, for a full tensor of F bytes (padded to n equal chunks):
// all_reduce 2 (n-1)/n F, reduce_scatter / all_gather / all_to_all (n-1)/n F, broadcast F from the root, send F, recv
// 0.
enum class CollectiveKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kSend,
  kRecv,
  kBarrier
};
inline constexpr int kNumCollectiveKinds = 8;

// Which ranks take part: the axes of RankGrid along which the members differ.
enum class GroupKind : uint8_t {
  kWorld,
  kDp,         // data-parallel replicas of one dense shard
  kDpCp,       // dp x cp: the ranks that hold the same dense weights
  kShard,      // the ranks over which ZeRO shards one unit (part of dp x cp)
  kReplicate,  // HSDP: the ranks that hold the same shard
  kTp,
  kCp,
  kPp,
  kEmbedding,  // first and last pipeline stage, tied embeddings
  kEtp,
  kEp,
  kEdp,
  kKvHead,  // ranks of a tensor group that share a KV head
};
inline constexpr int kNumGroupKinds = 13;

// Why a collective happens.
enum class Purpose : uint8_t {
  kGradients,    // gradient reduction
  kParameters,   // gathering weights: ZeRO-3 before use, ZeRO-1/2 after the step
  kActivations,  // TP / SP / CP / EP / PP hand-over of activations
  kActivationGradients,
  kTokenCount,  // global number of valid tokens
  kGradNorm,    // clipping norm
  kLoss,        // logged loss
  kControl,     // checkpoints, agreement, shut-down
  kHash,        // replica comparison
  kScales,      // largest magnitudes that fp8 scales follow from
};
inline constexpr int kNumPurposes = 10;

std::string_view to_string(DType);
std::string_view to_string(Account);
std::string_view to_string(CollectiveKind);
std::string_view to_string(GroupKind);
std::string_view to_string(Purpose);

// Inverse of to_string; nothing when the name is unknown.
std::optional<DType> parse_dtype(std::string_view);
std::optional<Account> parse_account(std::string_view);
std::optional<CollectiveKind> parse_collective_kind(std::string_view);
std::optional<GroupKind> parse_group_kind(std::string_view);
std::optional<Purpose> parse_purpose(std::string_view);

}  // namespace fivefold
