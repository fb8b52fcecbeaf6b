// TrainingExecutor: the StageExecutor of the engine: a rank's buffers and computation. No communication happens here.
// One thread per object; that thread holds a LedgerScope for the rank.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/layers/unit_run.h"
#include "runtime/stage_executor.h"
#include "spec/rank_part.h"
#include "spec/run_config.h"

namespace fivefold {

struct ExecutorOptions {
  TensorSplit split;  // of `model` and `inventory`
  ContextSplit context;
  DroppedTensors dropped;
  RankStages stages;  // the units that this rank computes and holds
  ShardingPolicy sharding;
  int shard = 0;  // this rank's position in its shard group
  OptimizerStates optimizer_states = OptimizerStates::kMoment1And2;
  OptimizerConfig optimizer;
  uint64_t seed = 0;     // of dropout, and of the rounding of weights without master
  int64_t sequence = 0;  // positions of the RoPE tables
  int64_t loss_chunk = 512;
  int64_t max_documents = 0;  // per microbatch
  int threads = 1;
  std::optional<Fp8Scaling> fp8 = {};  // products of linears have fp8 operands
  int64_t fp8_history = 16;            // steps that delayed scaling looks back on
};

class TrainingExecutor final : public StageExecutor {
 public:
  // `model` and `inventory` are the rank's part; `tensor` and `context`, its tensor and context groups, are null
  // without that parallelism.
  TrainingExecutor(const ModelSpec& model, const Inventory& inventory, const ExecutorOptions& options,
                   const TensorParallel* tensor = nullptr, const ContextParallel* context = nullptr);

  // ---- set-up ----
  // Draws parameters from (seed, their names): the same full tensors under any layout.
  enum class Draw : uint8_t { kAll, kAdapters };
  void initialize_weights(uint64_t seed, Draw which = Draw::kAll);
  // Whether DoRA's magnitudes of a unit start as lengths of its frozen weights' rows.
  bool has_magnitudes(int unit) const;
  // Gives them their start. Collective over the tensor group. REQUIRES: the weights are there, in full; B is zero.
  void start_magnitudes(int unit);
  // Gives elements [begin, begin + values.size()) of a parameter in full, flattened row by row, their values; keeps
  // what this rank holds. REQUIRES: the range lies in the parameter, and is all of it if that is stored in 4 bits.
  void set_parameter(int unit, int parameter, std::span<const float> values, int64_t begin = 0);
  // The working weights become those of the master weights (after the latter were written from outside).
  void refresh_working_weights();
  // Times the operations of every unit from now on. REQUIRES: `clock` outlives its use; null: none.
  void set_operation_clock(OperationClock* clock) { context_.clock = clock; }

  // ---- a step ----
  // Replaces the microbatches of the step; clears loss and gradient bookkeeping.
  // `segments`: of each, under context parallelism.
  void load_step(const std::vector<MicrobatchTokens>& microbatches, std::vector<ContextSegments> segments = {});
  void set_learning_rate(double rate, int64_t update) { learning_rate_ = rate, update_ = update; }
  // Factor of the loss's gradient, and so of all gradient buffers, in the steps that follow; norm and optimizer take it
  // out again. REQUIRES: positive.
  void set_loss_scale(float scale);
  float loss_scale() const { return loss_scale_; }
  // Evaluation: sum of losses and number of valid tokens of microbatch 0 since load_step.
  double loss_sum() const { return loss_sum_; }

  // ---- StageExecutor ----
  void forward(int unit, int microbatch, Keep keep) override;
  void recompute(int unit, int microbatch, bool output_unused) override;
  void loss(const Instruction& instruction) override;
  void backward(const Instruction& instruction) override;
  void backward_input(int unit, int microbatch) override { run(unit, microbatch).backward_input(); }
  void backward_weight(int unit, int microbatch, bool accumulate) override;
  Buffer outgoing(const Instruction& send) override;
  Buffer incoming(const Instruction& receive) override;
  void free_sent(const Instruction& wait_send) override;
  void accumulate_grads(int unit, bool accumulate) override;
  void optimizer_step(int unit) override;
  void allocate_unsharded(int unit) override { buffers(unit).allocate_unsharded(); }
  void free_unsharded(int unit) override { buffers(unit).free_unsharded(); }
  void allocate_transient_grads(int unit) override { buffers(unit).allocate_transient_grads(); }
  void free_transient_grads(int unit) override { buffers(unit).free_transient_grads(); }
  std::vector<InOut> unsharded_params(int unit) override;
  Buffer params(int unit) override;
  Buffer transient_grads(int unit) override;
  Buffer grads(int unit) override;
  Buffer pack_partial_grads(PartialOver over) override;
  void unpack_partial_grads(PartialOver over) override;
  int64_t local_valid_tokens() const override;
  void set_global_valid_tokens(int64_t tokens) override;
  double local_loss_sum() const override { return loss_sum_; }
  double local_squared_grad_norm() override;
  void set_grad_norm(double norm) override;

  const Microbatch& microbatch(int index) const { return microbatches_[static_cast<size_t>(index)]; }
  bool holds(int unit) const { return buffers_[static_cast<size_t>(unit)] != nullptr; }
  // REQUIRES: holds(unit).
  UnitBuffers& buffers(int unit) { return *buffers_[static_cast<size_t>(unit)]; }
  const Inventory& inventory() const { return *context_.inventory; }
  const ExecutorOptions& options() const { return options_; }
  // Null unless fp8 scales are delayed.
  Fp8History* fp8_history() { return fp8_history_.get(); }

 private:
  void set_local(int unit, int parameter, std::span<const float> values, int64_t begin);
  std::vector<PartialRange> in_shard(const Unit& unit, const std::vector<PartialRange>& ranges) const;
  // Calls f(view of the gradient) for each range of partial gradients in this rank's shards.
  template <class F>
  void for_each_partial(PartialOver over, F&& f);
  at::Tensor& border(int unit, int microbatch, bool gradient);
  UnitRun run(int unit, int microbatch);
  double head_loss(const Instruction& instruction, float scale);
  template <class G>
  void update_parameter(UnitBuffers& buffers, int parameter, const G* grad);
  Microbatch load(const MicrobatchTokens& tokens) const;

  ExecutorOptions options_;
  std::unique_ptr<Fp8History> fp8_history_;
  ModelContext context_;
  std::vector<std::unique_ptr<UnitBuffers>> buffers_;
  std::vector<std::vector<PartialRange>> counted_;  // by unit: what of this rank's shard counts in the norm
  std::vector<Microbatch> microbatches_;
  at::Tensor partial_grads_;  // between pack and unpack
  double loss_sum_ = 0;
  float loss_scale_ = 1;    // fp16
  float token_weight_ = 1;  // of a token in the loss: 1 / valid tokens of the global batch
  float clip_factor_ = 1;
  double learning_rate_ = 0;
  int64_t update_ = 0;  // number of this optimizer step, from 1
};

}  // namespace fivefold
