// StepTimes: seconds of the instructions on each unit, of collectives and of transfers. What a step takes follows from
// them and the order of instructions (planner/step_replay.h). Plain data, predicted here for one configuration on one
// device, or taken from a record (reconcile/recorded_step.h). Pure functions, thread-safe.
#pragma once

#include <optional>
#include <vector>

#include "planner/link_times.h"
#include "schedule/run_program.h"
#include "spec/hardware.h"

namespace fivefold {

// A collective of a layer, or of gradients of shared parameters.
struct CallSeconds {
  GroupKind group;
  Purpose purpose;
  double seconds;
  double exposed;  // of them, those that everything waits for
};

// Collectives of the tensor and context groups within a computation.
struct TensorSeconds {
  LinkSeconds exposed;             // the time that everything waits for
  LinkSeconds hidden;              // the time during which the computation goes on
  std::vector<CallSeconds> calls;  // all of them
};

// Of one microbatch, all in seconds.
struct UnitSeconds {
  TensorSeconds tensor_forward, tensor_recompute, tensor_recompute_unused, tensor_head;
  TensorSeconds tensor_backward, tensor_backward_input, tensor_backward_weight;
  double forward = 0, recompute = 0, recompute_unused = 0, head = 0;
  double backward = 0, backward_input = 0, backward_weight = 0;  // both at once, and each of the halves
  double optimizer = 0, accumulate = 0, sum_of_squares = 0;
  int64_t elements = 0;  // of its flat buffer: what a gather or a reduction moves
};

// Seconds of the collectives of flat buffers, which may be several units' in one call.
struct BufferCalls {
  std::optional<LinkTimes> links;  // nothing: no call takes any time
  ShardingPolicy sharding;

  LinkSeconds gather(double elements) const;          // of weights, over the shards
  LinkSeconds reduce_scatter(double elements) const;  // of gradients, over the shards
  LinkSeconds all_reduce(double elements) const;      // of the shards of gradients, over the replicas
};

// All that the replay of a step on one pipeline rank takes from outside its Program.
struct StepTimes {
  std::vector<UnitSeconds> units;  // of the whole model
  LinkSeconds scalar_all_reduce;
  std::vector<CallSeconds> partial_sums;  // of gradients of shared parameters, one call after the other
  BufferCalls buffer_calls;
  int num_pipeline_ranks = 1;
  std::vector<LinkSeconds> transfers;  // by sender and receiver: num_pipeline_ranks squared
  double overlap_share = 0;            // of a collective's time, by which computing meanwhile gets longer
  double step_overhead_s = 0;

  const UnitSeconds& operator[](int unit) const { return units[static_cast<size_t>(unit)]; }
  // Of activations, or of their gradient, from one pipeline rank to another.
  const LinkSeconds& transfer(int from, int to) const {
    return transfers[static_cast<size_t>(from) * static_cast<size_t>(num_pipeline_ranks) + static_cast<size_t>(to)];
  }
};

// Times in which nothing takes any: of `num_units` units and so many pipeline ranks.
StepTimes no_step_times(int num_units, int num_pipeline_ranks);

// Predicted; the same for every pipeline rank.
StepTimes predict_step_times(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                             const HardwareSpec& hardware);

}  // namespace fivefold
