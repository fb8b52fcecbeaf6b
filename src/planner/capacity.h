// Capacity: how much of a device a rank may plan with, and what the process needs beside the tensors. Sources of the
// figures: docs/memory.md#outside-the-tensors. Pure functions, thread-safe.
#pragma once

#include "planner/ledger.h"
#include "spec/hardware.h"

namespace fivefold {

// Largest share of a device's memory that a plan may fill: fragmentation and variable lengths need the rest.
inline constexpr double kPlannedShare = 0.92;

// Bytes that a rank may plan with: limits.memory as given, else kPlannedShare of the device, which on a CPU the ranks
// of the machine share.
int64_t planned_capacity(const ResolvedConfig& config, const HardwareSpec& hardware);

// What a rank holds beside the tensors of its ledger.
struct OutsideTensors {
  int64_t other = 0;    // GPU: context and a communicator for each kind of group, all the time
  int64_t scratch = 0;  // CPU, under limits.memory: what kernels take at the most, since the limit counts it
  int64_t bytes() const { return other + scratch; }
};
OutsideTensors outside_tensors(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                               const HardwareSpec& hardware);

// The ledger with outside_tensors() under kOther, in each of its sums, and kWorkspace, in its peaks.
void add_outside_tensors(Ledger& ledger, const OutsideTensors& outside);

// The ledger of the pipeline rank that needs most, with what is outside the tensors.
struct RankLedger {
  int rank = 0;
  Ledger ledger;
};
RankLedger fullest_rank(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                        const HardwareSpec& hardware);

}  // namespace fivefold
