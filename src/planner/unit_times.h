// UnitTimes: predicted seconds of the instructions on each unit, of collectives and of transfers, for one configuration
// on one device. What a step takes follows from them and the order of instructions (planner/cost.h). Immutable,
// thread-safe.
#pragma once

#include <vector>

#include "planner/layer_traffic.h"
#include "planner/link_times.h"
#include "planner/rank_view.h"
#include "planner/rates.h"

namespace fivefold {

// Collectives of the tensor and context groups within a computation.
struct TensorSeconds {
  struct Call {
    GroupKind group;
    Purpose purpose;
    double seconds;
    double exposed;  // of them, those that everything waits for
  };
  LinkSeconds exposed;      // the time that everything waits for
  LinkSeconds hidden;       // the time during which the computation goes on
  std::vector<Call> calls;  // all of them
};

struct UnitSeconds {
  TensorSeconds tensor_forward, tensor_recompute, tensor_recompute_unused, tensor_head;
  TensorSeconds tensor_backward, tensor_backward_input, tensor_backward_weight;
  double forward = 0, recompute = 0, recompute_unused = 0, head = 0;
  double backward = 0, backward_weight = 0;  // all of it, and the weights' part
  double optimizer = 0, accumulate = 0, sum_of_squares = 0;
};

class UnitTimes {
 public:
  // REQUIRES: all but `config` outlive the object.
  UnitTimes(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
            const HardwareSpec& hardware);

  const UnitSeconds& operator[](int unit) const { return seconds_[static_cast<size_t>(unit)]; }
  // Of the buffers of these units in one call: gather of weights; reduction of gradients over the shards; over
  // replicas.
  LinkSeconds gather(const std::vector<int>& units) const;
  LinkSeconds reduce_scatter(const std::vector<int>& units) const;
  LinkSeconds all_reduce(const std::vector<int>& units) const;
  const Rates& rates() const { return rates_; }
  const LinkSeconds& scalar_all_reduce() const { return scalar_all_reduce_; }
  // Of gradients of shared parameters, one call after the other.
  struct PartialSums {
    double seconds = 0;
    std::vector<TensorSeconds::Call> calls;
  };
  const PartialSums& partial_sums() const { return partial_sums_; }
  // Of activations, or of their gradient, from one pipeline rank to another.
  const LinkSeconds& transfer(int from, int to) const {
    return transfers_[static_cast<size_t>(from) * static_cast<size_t>(num_pipeline_ranks_) + static_cast<size_t>(to)];
  }
  int num_units() const { return static_cast<int>(seconds_.size()); }

 private:
  double pass_seconds(const Unit& unit, const UnitOperations& operations, Pass pass, int count) const;
  double weight_seconds(const Unit& unit, const UnitOperations& operations) const;
  TensorSeconds tensor_seconds(const Unit& unit, const UnitOperations& operations, TapeStep step, Pass pass,
                               const TapeOptions& options = {}) const;
  UnitSeconds unit_seconds(int index) const;
  // Elements of the units' flat buffers.
  double elements(const std::vector<int>& units) const;

  RankView part_;
  ShardingPolicy policy_;
  OptimizerStates states_;
  TapeShape tape_;
  WorkShape shape_;
  Rates rates_;
  LinkTimes links_;
  std::vector<UnitSeconds> seconds_;
  LinkSeconds scalar_all_reduce_;
  PartialSums partial_sums_;
  int num_pipeline_ranks_ = 1;
  std::vector<LinkSeconds> transfers_;  // by sender and receiver
};

}  // namespace fivefold
