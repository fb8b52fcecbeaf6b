// FrameworkKnobs: a plan with one of its settings changed, on the same GPUs: what each axis costs and buys here. Pure
// functions, thread-safe.
#pragma once

#include <string>
#include <vector>

#include "planner/profiles/framework_search.h"

namespace fivefold {

struct Knob {
  std::string change;                 // "tp 8 -> 4"
  std::optional<FrameworkPlan> plan;  // nothing: `refused` says why
  std::string refused;
};

// Every degree of the plan doubled and halved, dp taking what is left; micro-batch, chunks, ZeRO level, recompute,
// sequence parallelism. Of changes that the framework does not have only the reason is there.
std::vector<Knob> framework_knobs(const FrameworkPlan& plan, const HardwareSpec& hardware);

// What of a step changes, most first: "tensor +0.52 s, bubble -0.10 s"; parts under a hundredth of the step left out.
std::string changed_parts(const FrameworkTime& from, const FrameworkTime& to, size_t most = 3);

// "tp=8 sp cp=2 pp=8 vpp=8 dp=128 zero=1 micro=1 accumulation=16".
std::string layout_text(const FrameworkRun& run);

}  // namespace fivefold
