// Time of a step in another framework: what its layers take on the device (layer_times.h), replayed through its
// pipeline, with the exchange of gradients and weights and the optimizer; and what the framework does otherwise than
// the device's rates say: how many bytes its kernels move between products, how fast its host launches them, how much
// of its traffic it hides. Constants and their sources: docs/profiles.md#time. Thread-safe: immutable, pure functions.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "planner/profiles/framework_pace.h"
#include "planner/profiles/framework_run.h"
#include "planner/profiles/layer_times.h"
#include "planner/work.h"
#include "spec/hardware.h"

namespace fivefold {

// Of the stage that computes longest; their sum is the step.
enum class FrameworkPart : uint8_t {
  kForward,
  kBackward,
  kRecompute,
  kTensor,    // waiting for collectives of tp
  kContext,   // of cp
  kExperts,   // of ep and etp
  kExchange,  // of gradients and weights over dp
  kBubble,    // for other stages, and transfers between them
  kOptimizer,
  kOverhead,
};
inline constexpr int kNumFrameworkParts = 10;
std::string_view to_string(FrameworkPart part);

struct FrameworkTime {
  double seconds = 0;
  std::array<double, kNumFrameworkParts> parts{};
  double tokens_per_s = 0;  // of one GPU
  // Of the rate of the products' type; attention counted over the pairs that its mask leaves, and over all.
  double mfu = 0, hfu = 0, mfu_full = 0, hfu_full = 0;

  double operator[](FrameworkPart part) const { return parts[static_cast<size_t>(part)]; }
};

// Times of many runs of one model that differ in layout and batch only.
class FrameworkClock {
 public:
  // REQUIRES: the runs that are asked about have the framework, model, precision, method and kernels of `like`.
  FrameworkClock(const FrameworkRun& like, const HardwareSpec& hardware);

  // What runs of the same tp, sp, cp, ep, etp, micro, sequence and checkpointing share, with or without a pipeline.
  ModelTimes times(const FrameworkRun& run) const;
  // REQUIRES: framework_refusals() finds nothing; `times` are those of the run.
  FrameworkTime step(const FrameworkRun& run, const ModelTimes& times) const;
  // No step() takes less: of the stages in their order, without waiting for one another on the way.
  double least_seconds(const FrameworkRun& run, const ModelTimes& times) const;

 private:
  struct Elements {
    double whole = 0, split = 0, expert = 0;  // of trained parameters: on every rank of tp, cut by tp, of experts
  };
  struct Stages;
  // A virtual stage: layers [first, last), and which ends of the model.
  struct Chunk {
    int64_t first = 0, last = 0;
    bool embedding = false, head = false;
  };
  static std::vector<Chunk> chunks_of(const FrameworkRun& run);
  static double makespan(const FrameworkRun& run, const Stages& all);
  struct Ends {
    double exchange = 0, optimizer = 0, overhead = 0;
  };
  Stages stages(const FrameworkRun& run, const ModelTimes& times) const;
  double transfer_seconds(const FrameworkRun& run) const;
  Ends ends(const FrameworkRun& run, const ModelTimes& times) const;
  double sharded_seconds(const FrameworkRun& run, const ModelTimes& times) const;
  bool gathers_layers(const FrameworkRun& run) const;

  FrameworkPace pace_;
  // Kept apart, so that the clock can be copied: `rates_` refers to it.
  std::shared_ptr<const HardwareSpec> hardware_;
  Rates rates_;
  NetworkSpec network_;
  std::vector<Elements> layers_;  // of each
  Elements ends_elements_;        // of embedding and head together
  double peak_rate_ = 0;
  TokenFlops flops_per_token_;
  double frozen_share_ = 1;  // of the operations that remain when frozen weights have no gradients
};

// Errors: framework_refusals().
Result<FrameworkTime> framework_time(const FrameworkRun& run, const HardwareSpec& hardware);

}  // namespace fivefold
