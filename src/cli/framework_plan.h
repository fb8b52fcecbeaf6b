// plan for other frameworks: which one when nobody says, what it runs on, and the goals: the fastest, the fewest GPUs,
// the cheapest by a deadline.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/common_options.h"
#include "planner/layout_space.h"

namespace fivefold {

enum class PlanGoal : uint8_t { kThroughput, kFewestGpus, kCost };

struct FrameworkPlanInput {
  RunConfig base;
  FixedKeys fixed;
  ModelSpec model;  // without an adapter
  HardwareSpec hardware;
  int gpus = 1;  // for other goals than throughput: at most
  PlanGoal goal = PlanGoal::kThroughput;
  double tokens = 0, deadline_s = 0;  // 0: not said
  bool sequence_is_set = false;
  bool json = false;
  std::string out;                   // a configuration of the best plan; empty: none
  std::vector<std::string> assumed;  // what was taken for granted before
};

// fivefold's engine where it can run the model: what it has the layers of, on one node or on CPUs. Else Megatron-LM.
Framework chosen_framework(const ModelSpec& model, const RunConfig& base, const HardwareSpec& hardware, int gpus);

// The hardware with a network between its nodes where it has more of them than one: that of the cluster of the same
// GPU. `assumed` gets a line. Errors ("hardware.name"): no cluster has this GPU.
Result<HardwareSpec> with_network(HardwareSpec hardware, int gpus, std::vector<std::string>& assumed);

// Prints the plan. REQUIRES: base.framework.name is not kFivefold.
ExitCode plan_framework(FrameworkPlanInput input);
// Prints what fits each number of GPUs: full training and, where the framework has adapters, LoRA and QLoRA, or the
// method that is fixed.
ExitCode plan_framework_cards(FrameworkPlanInput input, const std::vector<int>& cards);

}  // namespace fivefold
