// For tests of the interpreter: an executor whose gradients are known whole numbers for each rank, microbatch and
// element, so that every sum is exact, and in which what is not gathered or has been freed reads as NaN.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/stage_executor.h"

namespace fivefold {

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
inline constexpr int kTiedOutput = 100;  // stands for the unit in the gradient that the loss adds to a tied embedding
inline constexpr int64_t kTokens = 3;    // valid tokens of each microbatch

inline double first_weight(int unit, size_t i) { return static_cast<double>((static_cast<size_t>(unit) * 3 + i) % 13); }
inline double gradient(int rank, int microbatch, int unit, size_t i) {
  return static_cast<double>((static_cast<size_t>(rank * 7 + microbatch * 5 + unit * 3) + i) % 11) - 5;
}

struct Faults {
  int throwing_rank = -1;  // throws in the backward of unit 2
  int64_t valid_tokens = kTokens;
};

class IntegerExecutor final : public StageExecutor {
 public:
  IntegerExecutor(const Inventory& inventory, const ShardingPolicy& policy, int rank, int shard, const Faults& faults)
      : inventory_(inventory),
        policy_(policy),
        rank_(rank),
        shard_(shard),
        faults_(faults),
        units_(static_cast<size_t>(inventory.num_units())) {
    for (int unit = 0; unit < inventory.num_units(); ++unit) {
      UnitState& state = at(unit);
      state.params.resize(policy.shards_params() ? part(unit) : full(unit));
      for (size_t i = 0; i < state.params.size(); ++i)
        state.params[i] = static_cast<float>(first_weight(unit, i + (policy.shards_params() ? first(unit) : 0)));
      state.grads.assign(policy.shards_grads() ? part(unit) : full(unit), kPoison);
    }
  }

  // Global ranks' gradient of one step; tied matrices have two contributions.
  double total(int unit, size_t i, int ranks, int microbatches) const {
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank)
      for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
        sum += gradient(rank, microbatch, unit, i);
        if (unit == 0 && inventory_.tied_embeddings) sum += gradient(rank, microbatch, kTiedOutput, i);
      }
    return sum;
  }
  // Weights that every read expects: those after `steps` steps of w += gradient.
  void expect_weights(int steps, int ranks, int microbatches) {
    steps_ = steps;
    ranks_ = ranks;
    microbatches_ = microbatches;
  }
  int64_t wrong_reads() const { return wrong_reads_; }
  std::map<std::string, int> calls;  // "forward 2", ...
  std::vector<int> backwards_per_update{0};

  // ---- StageExecutor ----
  void forward(int unit, int, Keep) override {
    ++calls["forward " + std::to_string(unit)];
    read(unit);
  }
  void recompute(int unit, int, bool) override {
    ++calls["recompute " + std::to_string(unit)];
    read(unit);
  }
  void loss(const Instruction& i) override {
    read(i.unit);
    if (inventory_.tied_embeddings) {
      read(0);
      write(0, kTiedOutput, i.microbatch, i.accumulate_tied && !policy_.transient_grads());
    }
    write(i.unit, i.unit, i.microbatch, i.accumulate && !policy_.transient_grads());
    ++backwards_per_update.back();
  }
  void backward_input(int, int) override { FAIL() << "no schedule here splits the backward"; }
  void backward_weight(int, int, bool) override { FAIL() << "no schedule here splits the backward"; }
  Buffer outgoing(const Instruction&) override { return {}; }
  Buffer incoming(const Instruction&) override { return {}; }
  void free_sent(const Instruction&) override { FAIL() << "there is no pipeline here"; }
  void backward(const Instruction& i) override {
    const int unit = i.unit, microbatch = i.microbatch;
    if (unit == 2 && rank_ == faults_.throwing_rank) throw std::runtime_error("no memory for unit 2");
    if (unit != 0) read(unit);
    const bool add = (i.accumulate && !policy_.transient_grads()) || i.joins_loss;
    write(unit, unit, microbatch, add);
  }
  void accumulate_grads(int unit, bool accumulate) override {
    UnitState& state = at(unit);
    for (size_t i = 0; i < state.grads.size(); ++i)
      state.grads[i] = (accumulate ? state.grads[i] : 0) + state.transient[i];
    free_transient_grads(unit);
  }
  void optimizer_step(int unit) override {
    ++calls["step " + std::to_string(unit)];
    UnitState& state = at(unit);
    const size_t params = policy_.shards_params() ? 0 : first(unit), grads = policy_.shards_grads() ? 0 : first(unit);
    for (size_t i = 0; i < part(unit); ++i) state.params[params + i] += state.grads[grads + i];
    if (unit == inventory_.num_units() - 1) backwards_per_update.push_back(0);
  }
  void allocate_unsharded(int unit) override { at(unit).unsharded.assign(full(unit), kPoison); }
  void free_unsharded(int unit) override { poison(at(unit).unsharded); }
  void allocate_transient_grads(int unit) override {
    EXPECT_TRUE(at(unit).transient.empty());
    at(unit).transient.assign(full(unit), kPoison);
  }
  void free_transient_grads(int unit) override {
    poison(at(unit).transient);
    at(unit).transient.clear();
  }
  std::vector<InOut> unsharded_params(int unit) override {
    return {{buffer(at(unit).params), buffer(at(unit).unsharded)}};
  }
  Buffer params(int unit) override { return buffer(at(unit).params); }
  Buffer transient_grads(int unit) override { return buffer(at(unit).transient); }
  Buffer grads(int unit) override { return buffer(at(unit).grads); }
  Buffer pack_partial_grads(PartialOver) override { return {}; }
  void unpack_partial_grads(PartialOver) override { FAIL() << "nothing was packed"; }
  int64_t local_valid_tokens() const override { return faults_.valid_tokens * microbatches_; }
  void set_global_valid_tokens(int64_t tokens) override { global_tokens = tokens; }
  double local_loss_sum() const override { return 2.5 * static_cast<double>(faults_.valid_tokens * microbatches_); }
  double local_squared_grad_norm() override {
    double sum = 0;
    for (int unit = 0; unit < inventory_.num_units(); ++unit)
      for (size_t i = 0; i < part(unit); ++i) {
        const double g = at(unit).grads[i + (policy_.shards_grads() ? 0 : first(unit))];
        const double right = total(unit, first(unit) + i, ranks_, microbatches_);
        wrong_reads_ += !(g == right);
        sum += g * g;
      }
    return sum;
  }
  void set_grad_norm(double value) override { norm = value; }

  int64_t global_tokens = 0;
  double norm = 0;

 private:
  struct UnitState {
    std::vector<float> params, grads, unsharded, transient;
  };
  UnitState& at(int unit) { return units_[static_cast<size_t>(unit)]; }
  size_t full(int unit) const {
    return static_cast<size_t>(inventory_.units[static_cast<size_t>(unit)].padded_numel(policy_.shards));
  }
  size_t part(int unit) const { return full(unit) / static_cast<size_t>(policy_.shards); }
  size_t first(int unit) const { return part(unit) * static_cast<size_t>(shard_); }
  static Buffer buffer(std::vector<float>& values) {
    return {values.data(), static_cast<int64_t>(values.size() * sizeof(float)), DType::kFloat32, {}};
  }
  static void poison(std::vector<float>& values) { std::fill(values.begin(), values.end(), kPoison); }
  // The memory of the weights stays allocated, so that a read after the free is seen and not undefined.
  void read(int unit) {
    const std::vector<float>& weights = policy_.shards_params() ? at(unit).unsharded : at(unit).params;
    for (size_t i = 0; i < full(unit); ++i) {
      const double right = first_weight(unit, i) + (steps_ > 0 ? steps_ * total(unit, i, ranks_, microbatches_) : 0);
      wrong_reads_ += !(i < weights.size() && weights[i] == right);
    }
  }
  void write(int unit, int source, int microbatch, bool add) {
    std::vector<float>& grads = policy_.transient_grads() ? at(unit).transient : at(unit).grads;
    ASSERT_EQ(grads.size(), full(unit));
    for (size_t i = 0; i < grads.size(); ++i)
      grads[i] = static_cast<float>((add ? grads[i] : 0.0) + gradient(rank_, microbatch, source, i));
  }

  const Inventory& inventory_;
  ShardingPolicy policy_;
  int rank_, shard_;
  Faults faults_;
  std::vector<UnitState> units_;
  int steps_ = 0, ranks_ = 1, microbatches_ = 1;
  int64_t wrong_reads_ = 0;
};

}  // namespace fivefold
