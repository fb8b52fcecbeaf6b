#include "spec/enums.h"

namespace fivefold {
namespace {

constexpr std::string_view kDTypeNames[] = {"fp32",  "bf16",     "fp16",     "fp64",  "int32", "int64",
                                            "uint8", "fp8_e4m3", "fp8_e5m2", "int16", "int8",  "bool"};
constexpr std::string_view kAccountNames[] = {"params",
                                              "grads",
                                              "master",
                                              "moment1",
                                              "moment2",
                                              "activations",
                                              "unsharded_params",
                                              "unsharded_grads",
                                              "comm_buffers",
                                              "logits",
                                              "snapshot",
                                              "kv_cache",
                                              "data",
                                              "workspace",
                                              "other"};
constexpr std::string_view kCollectiveNames[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                                 "broadcast",  "send",           "recv",       "barrier"};
constexpr std::string_view kGroupNames[] = {"world", "dp",        "dp_cp", "shard", "replicate", "tp",     "cp",
                                            "pp",    "embedding", "etp",   "ep",    "edp",       "kv_head"};
constexpr std::string_view kPurposeNames[] = {"gradients",   "parameters", "activations", "activation_gradients",
                                              "token_count", "grad_norm",  "loss",        "control",
                                              "hash",        "scales"};
static_assert(std::size(kAccountNames) == kNumAccounts);
static_assert(std::size(kCollectiveNames) == kNumCollectiveKinds);
static_assert(std::size(kGroupNames) == kNumGroupKinds);
static_assert(std::size(kPurposeNames) == kNumPurposes);

template <typename Enum, size_t N>
std::optional<Enum> find(const std::string_view (&names)[N], std::string_view name) {
  for (size_t i = 0; i < N; ++i)
    if (names[i] == name) return static_cast<Enum>(i);
  return std::nullopt;
}

}  // namespace

std::string_view to_string(DType x) { return kDTypeNames[static_cast<size_t>(x)]; }
std::string_view to_string(Account x) { return kAccountNames[static_cast<size_t>(x)]; }
std::string_view to_string(CollectiveKind x) { return kCollectiveNames[static_cast<size_t>(x)]; }
std::string_view to_string(GroupKind x) { return kGroupNames[static_cast<size_t>(x)]; }
std::string_view to_string(Purpose x) { return kPurposeNames[static_cast<size_t>(x)]; }

std::optional<DType> parse_dtype(std::string_view name) { return find<DType>(kDTypeNames, name); }
std::optional<Account> parse_account(std::string_view name) { return find<Account>(kAccountNames, name); }
std::optional<CollectiveKind> parse_collective_kind(std::string_view name) {
  return find<CollectiveKind>(kCollectiveNames, name);
}
std::optional<GroupKind> parse_group_kind(std::string_view name) { return find<GroupKind>(kGroupNames, name); }
std::optional<Purpose> parse_purpose(std::string_view name) { return find<Purpose>(kPurposeNames, name); }

}  // namespace fivefold
