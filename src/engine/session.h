// RankSession: one rank of a run: its executor, its interpreter and its groups, from one resolved configuration. Shared
// by training, checking and calibration. One thread per object; that thread calls prepare_rank_thread first.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/engine_api.h"
#include "engine/executor.h"
#include "runtime/interpreter.h"
#include "runtime/loss_scaler.h"
#include "schedule/run_program.h"
#include "spec/rank_grid.h"
#include "spec/rank_part.h"
#include "spec/run_config_resolve.h"

namespace fivefold {

// `cores` of this machine that the process may use.
int available_cores();

// Per thread: Torch's thread count for this rank and inference mode until the object dies.
class RankThread {
 public:
  RankThread(MemoryLedger& ledger, int threads);
  ~RankThread();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class RankSession {
 public:
  // `model` and `inventory` are those of the whole model. REQUIRES: validate_engine accepted the configuration.
  RankSession(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
              Communicator& communicator);

  // Draws the adapter's start (Note [Adapters] in spec/adapter.h), the model's own weights being there. Collective.
  void start_adapter(uint64_t seed);
  // One optimizer step over this rank's microbatches. In fp16 under the loss scale, which follows from the outcome: a
  // step whose loss or gradients are not finite, on whatever rank, changes nothing else.
  StepOutcome step(const std::vector<MicrobatchTokens>& microbatches, double learning_rate, int64_t update,
                   const std::function<bool(double, double)>& accept = nullptr, bool request_stop = false);
  // Gives the executor the microbatches of a step, with rows as long as the layout needs them.
  void load(const std::vector<MicrobatchTokens>& microbatches);
  // Sum of losses and valid tokens of one microbatch on this rank, without gradients.
  struct Evaluation {
    double loss_sum = 0;
    int64_t valid_tokens = 0;
  };
  Evaluation evaluate(const MicrobatchTokens& tokens);

  // A unit's state in full, as fp32, in the layout of the whole inventory's unit, [padded_numel]: gathered over the
  // shard group and the tensor group; of what is trained, gradients without the loss scale. Collective: every rank
  // calls it.
  enum class State : uint8_t { kMaster, kGrads, kMoment1, kMoment2 };
  std::vector<float> gather(int unit, State state);

  const ModelSpec& whole_model() const { return whole_model_; }
  const Inventory& whole_inventory() const { return whole_inventory_; }
  TrainingExecutor& executor() { return executor_; }
  Interpreter& interpreter() { return interpreter_; }
  Communicator& communicator() { return communicator_; }
  const Program& program() const { return program_; }
  const Interpreter::Groups& groups() const { return groups_; }
  const ResolvedConfig& config() const { return config_; }
  // Of fp16 training; null: none. The same on every rank.
  LossScaler* loss_scaler() { return scaler_ ? &*scaler_ : nullptr; }
  const Coordinates& coordinates() const { return coordinates_; }
  // Position among the ranks that share the global batch: ranks of a tensor or context group and of a pipeline take the
  // same rows of it.
  int data_rank() const { return coordinates_.dp; }

 private:
  void start_magnitudes();
  StepOutcome run_scaled_step(const std::function<bool(double, double)>& accept, bool request_stop);
  std::vector<float> gather_shards(int unit, State state);
  std::vector<float> gather_stage(int unit, State state);

  const ModelSpec& whole_model_;
  const Inventory& whole_inventory_;
  const ResolvedConfig& config_;
  Communicator& communicator_;
  RankGrid grid_;
  Coordinates coordinates_;
  RankPart part_;
  Interpreter::Groups groups_;
  std::optional<TensorParallel> tensor_;
  std::optional<ContextParallel> context_;
  Program program_, evaluation_;
  TrainingExecutor executor_;
  Interpreter interpreter_;
  std::optional<LossScaler> scaler_;
};

// Rows of a global batch that this rank takes as its microbatches (data/sampling.h's BatchLayout order).
std::vector<MicrobatchTokens> rank_microbatches(const GlobalBatch& batch, const ResolvedConfig& config, int data_rank);

}  // namespace fivefold
