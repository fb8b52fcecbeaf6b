// Explanation: everything that is predicted of one configuration, gathered for printing: memory, traffic, time, flops,
// and the lines that say by which formula, with its numbers. Pure functions, thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/capacity.h"
#include "planner/cost.h"
#include "planner/traffic.h"

namespace fivefold {

struct Explanation {
  ResolvedConfig config;
  int rank = 0;                       // whose ledger and traffic these are: of a pipeline the rank that needs most
  Ledger ledger;                      // with what is outside the tensors
  std::optional<MemoryLine> scratch;  // where the ledger has it
  int64_t capacity = 0;
  std::vector<TrafficLine> traffic;  // of one rank and step
  StepCost cost;
  StepFlops flops;
  double peak_flops_per_s = 0;  // of all that runs
  double tokens_per_s = 0;

  double mfu() const { return flops.model_causal() / (cost.seconds * peak_flops_per_s); }
  double hfu() const { return flops.hardware_causal() / (cost.seconds * peak_flops_per_s); }
};

// REQUIRES: planner_scope(config) and validate_layout() find nothing.
Explanation explain(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                    const HardwareSpec& hardware);

// Saved tensors of layers that are alike, with the layers' range: "layers.0-31.qkv".
std::vector<SavedTensor> saved_tensors_by_range(const ModelSpec& model, const Inventory& inventory,
                                                const ResolvedConfig& config);

// What lives between steps, what forward leaves for backward, and the largest transients, each with its formula and
// numbers. docs/memory.md derives them.
std::vector<MemoryLine> memory_lines(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config);

// The formula of a traffic line with its numbers. docs/communication.md derives them.
std::string traffic_formula(const TrafficLine& line, const Inventory& inventory, const ResolvedConfig& config);

}  // namespace fivefold
