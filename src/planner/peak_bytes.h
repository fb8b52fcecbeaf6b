// PeakBytes: the same peak that the ledger has (planner/ledger.h), as one number, for searches over many layouts: each
// tape is summed up once, and a Program then replayed over sums. Not thread-safe: it remembers what it has summed up.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "planner/prediction_memo.h"

namespace fivefold {

class PeakBytes {
 public:
  // REQUIRES: `memo` outlives it.
  explicit PeakBytes(PredictionMemo& memo) : memo_(memo) {}

  // predict_memory(..., rank).peak_total. `program`: training_program() of the rank.
  int64_t operator()(const ResolvedConfig& config, int rank, const Program& program);
  // Of the rank's persistent buffers: states, RoPE tables, the data of all microbatches.
  int64_t persistent(const ResolvedConfig& config, const RankStages& stages);
  // Of the states of the units before each one; the last entry is that of all.
  const std::vector<int64_t>& states_before(const ResolvedConfig& config);
  // What one unit keeps of a microbatch between forward and backward, its input included; a layer's, else 0.
  const std::vector<int64_t>& saved(const ResolvedConfig& config);
  // What one unit's backward holds at the least beside what there was before it, in one part or two; a layer's, else 0.
  const std::vector<int64_t>& backward_most(const ResolvedConfig& config);

 private:
  struct Step {
    int64_t net = 0;   // after it less before it
    int64_t most = 0;  // during it above before it
  };
  // Sums of a unit's tapes.
  struct UnitSteps {
    Step forward[3];    // by Keep
    Step recompute[2];  // by output_unused
    Step loss, backward, backward_input, backward_weight;
    int64_t saved = 0;
  };
  struct Walk;

  const std::vector<UnitSteps>& steps(const ResolvedConfig& config);
  UnitSteps unit_steps(const ResolvedConfig& config, int unit);

  PredictionMemo& memo_;
  std::map<int64_t, int64_t> rope_;  // bytes of the tables, by tokens of a sequence
  using PassKey = std::tuple<int, bool, int, CpKind, int64_t, DType, DroppedTensors>;
  std::map<PassKey, std::vector<UnitSteps>> steps_;
  std::map<PassKey, std::vector<int64_t>> saved_, backward_most_;
  std::map<std::tuple<int, bool, int, int, DType, DType, OptimizerStateKind, MasterKind>, std::vector<int64_t>> states_;
};

}  // namespace fivefold
