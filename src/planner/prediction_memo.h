// PredictionMemo: what many configurations of one run have in common: seconds of computations by tensor and context
// split, of states by sharding, of transfers, and schedules. Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "planner/rank_view.h"
#include "planner/rates.h"
#include "planner/step_times.h"

namespace fivefold {

// What the units before each one take together, states of all; the last entry is that of all units.
struct StateSums {
  std::vector<double> ends;  // sums of squares and optimizer
  std::vector<double> accumulate, gather, reduce_scatter, all_reduce;
};

// REQUIRES: model, inventory and hardware outlive it; its configurations differ in parallel, batch.micro, recompute and
// precision only.
class PredictionMemo {
 public:
  PredictionMemo(const ModelSpec& model, const Inventory& inventory, const HardwareSpec& hardware)
      : model_(model), inventory_(inventory), hardware_(hardware) {}

  const ModelSpec& model() const { return model_; }
  const Inventory& inventory() const { return inventory_; }
  const HardwareSpec& hardware() const { return hardware_; }

  // Of the first rank of the tensor group; null without tensor parallelism.
  const RankPart* part(const ResolvedConfig& config);
  const LinkTimes& links(const ResolvedConfig& config);
  const Rates& rates(const ResolvedConfig& config);
  const Transfers& transfers(const ResolvedConfig& config);
  // By unit.
  const std::vector<PassSeconds>& passes(const ResolvedConfig& config);
  const std::vector<StateSeconds>& states(const ResolvedConfig& config);
  const StateSums& state_sums(const ResolvedConfig& config);
  // pipeline_schedule() of the configuration.
  std::shared_ptr<const Schedule> schedule(const ResolvedConfig& config);

 private:
  const ModelSpec& model_;
  const Inventory& inventory_;
  const HardwareSpec& hardware_;
  std::map<std::pair<int, bool>, std::unique_ptr<const RankPart>> parts_;
  std::map<std::tuple<int, int, int, int, int, int>, LinkTimes> links_;
  std::map<std::tuple<DType, int, int>, Rates> rates_;
  std::map<std::tuple<int, int, int, int, int64_t>, Transfers> transfers_;
  std::map<std::tuple<int, bool, int, CpKind, int64_t, DType, int, int, DroppedTensors>, std::vector<PassSeconds>>
      passes_;
  using StateKey = std::tuple<int, int, int, int, int, int, DType, DType, OptimizerStateKind, MasterKind>;
  static StateKey state_key(const ResolvedConfig& config);
  std::map<StateKey, std::vector<StateSeconds>> states_;
  std::map<StateKey, StateSums> state_sums_;
  std::map<std::tuple<ScheduleKind, int, int, int64_t>, std::shared_ptr<const Schedule>> schedules_;
  size_t num_actions_ = 0;  // of the schedules that are kept
};

}  // namespace fivefold
