// A gradient that overflows on one rank alone: every rank skips the step, with all state as it was to the bit, and in
// fp16 every rank's loss scale halves. Names E62, E64 are those of the case list of reported faults.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "support/rank_sessions.h"

namespace fivefold::testing {
namespace {

// Sets the first element of what rank `rank` sends in its `nth` gradient reduction from arming on.
class PlantedValue {
 public:
  PlantedValue(int rank, int nth, float value) : rank_(rank), nth_(nth), value_(value) {}

  // Called by the rank itself, between steps.
  void arm() { left_ = nth_ + 1; }
  bool planted() const { return left_ == 0; }

  void operator()(HookedCall& call) {
    if (call.point != HookPoint::kBeforeEntry || call.rank != rank_ || call.record.purpose != Purpose::kGradients)
      return;
    if (left_ <= 0 || --left_ > 0) return;
    const auto plant = [&](auto element) {
      ASSERT_GE(call.data.size(), sizeof element);
      std::memcpy(call.data.data(), &element, sizeof element);
    };
    if (call.record.dtype == DType::kFloat32) return plant(value_);
    if (call.record.dtype == DType::kBFloat16) return plant(kernels::from_float<kernels::BFloat16>(value_));
    plant(kernels::from_float<kernels::Float16>(value_));
  }

 private:
  int rank_, nth_;
  float value_;
  std::atomic<int> left_{-1};  // written by the rank's thread, counted down by its communication thread
};

StepOutcome step(RankSession& session, const std::vector<MicrobatchTokens>& microbatches, int64_t update) {
  return session.step(microbatches, 1e-2, update,
                      [](double loss, double norm) { return std::isfinite(loss) && std::isfinite(norm); });
}

using Shards = std::vector<std::vector<std::vector<float>>>;
Shards all_state(RankSession& session) {
  return {gather_all(session, RankSession::State::kMaster), gather_all(session, RankSession::State::kMoment1),
          gather_all(session, RankSession::State::kMoment2)};
}

ProbeRequest adamw_request(const ModelSpec& model, const GlobalBatch& batch, const Layout& layout) {
  return tiny_request(model, batch, layout, {"optimizer.kind=adamw", "precision.loss_scale=256"});
}

TEST(LossScaling, E62AnOverflowOnOneRankSkipsTheStepOnEveryRank) {
  const ModelSpec model = tiny_model(TinyKind::kTiedQwen3, 4);
  const GlobalBatch batch = ragged_batch(model, {16, 9, 3, 7});
  struct Case {
    Layout layout;
    float value;
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  std::vector<Case> cases;
  for (const int zero : {0, 1, 2, 3})
    cases.push_back({{.dp = 2, .zero = zero, .accumulation = 2, .compute = "fp16", .tp = 2, .pp = 2}, kInfinity});
  cases.push_back({{.dp = 4, .zero = 2, .compute = "fp16"}, kNaN});
  cases.push_back({{.dp = 2, .zero = 2, .micro = 2, .compute = "fp16", .tp = 2, .sp = true}, -kInfinity});
  cases.push_back({{.dp = 2, .zero = 1, .micro = 2, .compute = "fp16", .cp = 2}, kInfinity});
  cases.push_back({{.dp = 2, .zero = 2, .accumulation = 2, .compute = "bf16", .tp = 2, .pp = 2}, kNaN});
  cases.push_back({{.dp = 4, .zero = 3, .compute = "bf16"}, kInfinity});
  for (const Case& c : cases) {
    const ProbeRequest request = adamw_request(model, batch, c.layout);
    const bool fp16 = c.layout.compute == "fp16";
    for (int rank = 0; rank < request.config.degrees.world(); ++rank) {
      SCOPED_TRACE(c.layout.name() + ", rank " + std::to_string(rank));
      PlantedValue planted(rank, rank % 2, c.value);
      LocalOptions options;
      options.hook = [&](HookedCall& call) { planted(call); };
      run_sessions(request, options, [&](RankSession& session, const auto& tokens, MemoryLedger&) {
        EXPECT_TRUE(step(session, tokens, 1).updated);
        const Shards before = all_state(session);
        const at::Tensor working = session.executor().buffers(session.executor().holds(1) ? 1 : 4).params().clone();
        if (session.communicator().rank() == rank) planted.arm();
        const StepOutcome skipped = step(session, tokens, 2);
        EXPECT_FALSE(skipped.updated);
        EXPECT_TRUE(std::isfinite(skipped.loss));
        EXPECT_FALSE(std::isfinite(skipped.grad_norm));
        EXPECT_EQ(skipped.loss_scale, fp16 ? 256 : 0);
        EXPECT_EQ(all_state(session), before);
        EXPECT_TRUE(at::equal(session.executor().buffers(session.executor().holds(1) ? 1 : 4).params(), working));
        if (fp16) {
          EXPECT_EQ(session.loss_scaler()->scale(), 128);
          EXPECT_EQ(session.loss_scaler()->growth_tracker(), 0);
        }
        const StepOutcome next = step(session, tokens, 2);
        EXPECT_TRUE(next.updated);
        EXPECT_EQ(next.loss, skipped.loss);
        EXPECT_EQ(next.loss_scale, fp16 ? 128 : 0);
      });
      EXPECT_TRUE(planted.planted());
      if (HasFailure()) return;
    }
  }
}

// A parameter that every rank of a tensor group holds counts once in the norm; what is not finite in another rank's
// copy of its gradient stops the step all the same.
TEST(LossScaling, E62AnOverflowInACopyThatDoesNotCountInTheNormSkipsTheStep) {
  const ModelSpec model = tiny_model(TinyKind::kLlama);
  const GlobalBatch batch = ragged_batch(model, {16, 9});
  for (const int zero : {0, 3}) {
    run_sessions(adamw_request(model, batch, {.dp = 2, .zero = zero, .compute = "fp16", .tp = 2}), {},
                 [&](RankSession& session, const auto& tokens, MemoryLedger&) {
                   step(session, tokens, 1);
                   TrainingExecutor& executor = session.executor();
                   UnitBuffers& layer = executor.buffers(1);
                   const int norm = layer.unit().find("attention_norm.weight");
                   ASSERT_GE(norm, 0);
                   const ShardRange range = layer.range(norm);
                   const bool holds = range.begin < range.end;
                   EXPECT_TRUE(std::isfinite(executor.local_squared_grad_norm()));
                   if (!holds) return;
                   visit_dtype(layer.grads_shard(), [&]<class T>(std::type_identity<T>) {
                     elements<T>(layer.grads_shard())[range.shard_offset] = kernels::from_float<T>(INFINITY);
                   });
                   EXPECT_FALSE(std::isfinite(executor.local_squared_grad_norm()));
                 });
  }
}

// Two microbatches a step, and reductions that overlap with the backward: nothing of a skipped step's gradients reaches
// the next one, which equals the step of a run that never saw the skipped step's data.
TEST(LossScaling, E64NothingOfASkippedStepsGradientsStays) {
  const ModelSpec model = tiny_model(TinyKind::kLlama);
  const GlobalBatch first = ragged_batch(model, {16, 9, 3, 7}, 1), lost = ragged_batch(model, {4, 16, 16, 5}, 2),
                    last = ragged_batch(model, {11, 2, 16, 8}, 3);
  for (const std::string compute : {"fp16", "bf16"}) {
    for (const int zero : {0, 1, 2, 3}) {
      const Layout layout{.dp = 2, .zero = zero, .accumulation = 2, .compute = compute};
      SCOPED_TRACE(layout.name());
      const ProbeRequest request = adamw_request(model, first, layout);
      std::vector<std::vector<float>> with, without;
      double norm_with = 0, norm_without = 0;
      PlantedValue planted(1, 0, std::numeric_limits<float>::infinity());
      LocalOptions options;
      options.hook = [&](HookedCall& call) { planted(call); };
      run_sessions(request, options, [&](RankSession& session, const auto& tokens, MemoryLedger&) {
        const bool root = session.communicator().rank() == 0;
        EXPECT_TRUE(step(session, tokens, 1).updated);
        if (!root) planted.arm();
        EXPECT_FALSE(step(session, rank_microbatches(lost, request.config, session.data_rank()), 2).updated);
        const StepOutcome outcome = step(session, rank_microbatches(last, request.config, session.data_rank()), 2);
        EXPECT_TRUE(outcome.updated);
        const auto state = gather_all(session, RankSession::State::kMaster);
        if (root) with = state, norm_with = outcome.grad_norm;
      });
      run_sessions(request, {}, [&](RankSession& session, const auto& tokens, MemoryLedger&) {
        EXPECT_TRUE(step(session, tokens, 1).updated);
        // The scale of the other run: another one rounds small gradients otherwise.
        if (LossScaler* scaler = session.loss_scaler()) scaler->restore(128, 0);
        const StepOutcome outcome = step(session, rank_microbatches(last, request.config, session.data_rank()), 2);
        const auto state = gather_all(session, RankSession::State::kMaster);
        if (session.communicator().rank() == 0) without = state, norm_without = outcome.grad_norm;
      });
      EXPECT_TRUE(planted.planted());
      EXPECT_EQ(norm_with, norm_without);
      EXPECT_EQ(with, without);
    }
  }
}

// The scale is a power of two and is taken out again: norm, clipping and update do not depend on it where nothing
// overflows or becomes subnormal.
TEST(LossScaling, ReportsAndClipsTheNormWithoutTheScale) {
  const ModelSpec model = tiny_model(TinyKind::kLlama);
  const GlobalBatch batch = ragged_batch(model, {16, 9});
  const auto run = [&](const std::string& scale) {
    ProbeRequest request = tiny_request(model, batch, {.dp = 2, .zero = 1, .compute = "fp16"},
                                        {"optimizer.clip=0.01", "precision.loss_scale=" + scale});
    request.updates = 3;
    request.want_parameters = true;
    return probe(request);
  };
  const ProbeResult a = run("512"), b = run("2048");
  EXPECT_NEAR(a.grad_norm / b.grad_norm, 1, 1e-3);
  EXPECT_LT(largest_difference(a.gradients, b.gradients), 1e-3);
  EXPECT_LT(largest_difference(a.parameters, b.parameters), 1e-5);
  EXPECT_NEAR(a.losses.back(), b.losses.back(), 1e-3);
}

}  // namespace
}  // namespace fivefold::testing
