// StepTimes: seconds of the instructions on each unit, of collectives and of transfers. What a step takes follows from
// them and the order of instructions (planner/step_replay.h). Plain data, predicted here for one configuration on one
// device, or taken from a record (reconcile/recorded_step.h). Pure functions, thread-safe.
#pragma once

#include <array>
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

// Computations of one microbatch, with the collectives inside them.
struct PassSeconds {
  TensorSeconds tensor_forward, tensor_recompute, tensor_recompute_unused, tensor_head;
  TensorSeconds tensor_backward, tensor_backward_input, tensor_backward_weight;
  double forward = 0, recompute = 0, recompute_unused = 0, head = 0;
  double backward = 0, backward_input = 0, backward_weight = 0;  // both at once, and each of the halves
};

// What the unit's states take, by how they are sharded.
struct StateSeconds {
  double optimizer = 0, accumulate = 0, sum_of_squares = 0;
  int64_t elements = 0;        // of its flat buffer of trained parameters: what a reduction moves
  int64_t gathered_bytes = 0;  // what a gather moves: of frozen weights only at ZeRO-3
};

struct UnitSeconds : PassSeconds, StateSeconds {};

// Seconds of the collectives of flat buffers, which may be several units' in one call.
struct BufferCalls {
  std::optional<LinkTimes> links;  // nothing: no call takes any time
  ShardingPolicy sharding;

  LinkSeconds gather(double bytes) const;             // of weights, over the shards
  LinkSeconds reduce_scatter(double elements) const;  // of gradients, over the shards
  LinkSeconds all_reduce(double elements) const;      // of the shards of gradients, over the replicas
};

// Of activations, or of their gradient, from one pipeline rank to another.
struct Transfers {
  std::vector<std::array<LinkSeconds, 2>> neighbours;  // by sender: to the rank before it, to the one after it
  std::array<LinkSeconds, 2> around{};                 // from the last rank to the first, and back

  // REQUIRES: `from` and `to` are neighbours, or the two ends of the pipeline.
  const LinkSeconds& operator()(int from, int to) const {
    const bool near = to == from + 1 || from == to + 1;
    return (near ? neighbours[static_cast<size_t>(from)] : around)[static_cast<size_t>(to > from)];
  }
};

// All that the replay of a step on one pipeline rank takes from outside its Program.
struct StepTimes {
  std::vector<UnitSeconds> units;  // of the whole model
  LinkSeconds scalar_all_reduce;
  std::vector<CallSeconds> partial_sums;  // of gradients of shared parameters, one call after the other
  BufferCalls buffer_calls;
  Transfers transfers;
  double overlap_share = 0;  // of a collective's time, by which computing meanwhile gets longer
  double step_overhead_s = 0;

  const UnitSeconds& operator[](int unit) const { return units[static_cast<size_t>(unit)]; }
};

// Times in which nothing takes any: of `num_units` units and so many pipeline ranks.
StepTimes no_step_times(int num_units, int num_pipeline_ranks);

class PredictionMemo;  // planner/prediction_memo.h

// Predicted; the same for every pipeline rank.
StepTimes predict_step_times(PredictionMemo& memo, const ResolvedConfig& config);
StepTimes predict_step_times(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                             const HardwareSpec& hardware);

}  // namespace fivefold
