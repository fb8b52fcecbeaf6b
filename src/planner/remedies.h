// Remedies: what to change when a run needs more memory than it has, in the order in which to try it: first what leaves
// the result as it is or nearly so, then what trains something smaller, last what needs other ranks. Each is a valid
// setting that the ledger says saves something; what the planner or the engine does not have is not offered.
// Order and reasons: docs/memory.md#when-it-does-not-fit. Pure functions, thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "spec/hardware.h"
#include "spec/model.h"
#include "spec/run_config_resolve.h"

namespace fivefold {

// In the order in which to try them.
enum class RemedyKind : uint8_t {
  kMicrobatch,        // fewer sequences at a time, the same global batch by accumulation
  kComputeType,       // bf16 operands
  kOptimizerStates,   // moments in fewer bits
  kMaster,            // no fp32 copy of the weights
  kRecomputeTensors,  // some saved tensors computed again in backward
  kRecomputeLayers,   // whole layers computed again in backward
  kAdapterRank,
  kSequence,
  kLora,
  kQlora,
  kSharding,   // a higher ZeRO level over the same ranks
  kMoreRanks,  // states sharded over more ranks, the same global batch
};
inline constexpr int kNumRemedyKinds = 12;
std::string_view to_string(RemedyKind kind);

// What a configuration needs, of the rank that needs most.
struct Need {
  int64_t peak = 0, capacity = 0;
  double tokens_per_s = 0;
  bool fits() const { return peak <= capacity; }
};

struct Remedy {
  RemedyKind kind = RemedyKind::kMicrobatch;
  RunConfig config;                   // the run with it, and nothing else changed
  std::vector<std::string> settings;  // KEY=VALUE, for --set: in what `config` differs
  Need need;
};

struct RemedyList {
  Need before;
  std::vector<Remedy> each;  // in order, each alone: of every kind the mildest that fits, else the one that saves most
  // Only when no remedy is enough alone: the first of them that are together, those without which the rest fits left
  // out. kind: of the last. Nothing: not all together are enough.
  std::optional<Remedy> together;
};

struct RemedyOptions {
  int64_t beyond_plan = 0;             // bytes that a run was seen to hold beside its plan: added to every peak
  const RunConfig* written = nullptr;  // what `settings` change; null: the configuration itself
};

// `config`: unresolved; `model`: with or without an adapter, since the method of each configuration counts. REQUIRES:
// validate_layout() and planner_scope() find nothing.
RemedyList find_remedies(const ModelSpec& model, const RunConfig& config, const HardwareSpec& hardware,
                         const RemedyOptions& options = {});

}  // namespace fivefold
