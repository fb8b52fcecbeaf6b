// One rank's computation without communication: the gradient of every kind of parameter against finite differences of
// the loss, and optimizer steps on gradients that the test chooses. Names E58, E59 are those of the case list of
// reported faults.
#include "engine/executor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "support/rank_sessions.h"

namespace fivefold::testing {
namespace {

// Central differences of fourth order with h = 0.02. A token's loss is near 5 with an error of a few 2^-22, the mean
// over 40 of them is good to 3e-7; the quotient magnifies that by 0.95 / h. A term of the gradient that is left out or
// counted twice is off by its own size, near 1e-2.
constexpr double kStep = 0.02;
constexpr double kAbsolute = 2e-5, kRelative = 1e-3;
constexpr int kSamples = 20;  // elements of each parameter

float constant(Initializer initializer) {
  return initializer == Initializer::kOnes || initializer == Initializer::kRowLengths ? 1.0f : 0.0f;
}

// Norm weights start at 1 and biases at 0, values that hide a factor or a term that is left out: all are moved away.
void move_constant_weights(TrainingExecutor& executor) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  const Inventory& inventory = executor.inventory();
  for (int unit = 0; unit < inventory.num_units(); ++unit) {
    const std::vector<ParameterEntry>& parameters = inventory.units[static_cast<size_t>(unit)].parameters;
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (parameters[p].initializer == Initializer::kNormal || parameters[p].storage == Storage::kFrozen) continue;
      std::vector<float> values(static_cast<size_t>(parameters[p].numel()), constant(parameters[p].initializer));
      for (float& value : values) value += normal(random);
      executor.set_parameter(unit, static_cast<int>(p), values);
    }
  }
}

// Of the trained parameters that `checks` names.
void expect_gradients_of_differences(const ProbeRequest& request,
                                     const std::function<bool(const ParameterEntry&)>& checks) {
  run_sessions(request, {}, [&](RankSession& session, const auto& microbatches, MemoryLedger&) {
    const double tokens = 40;
    move_constant_weights(session.executor());
    session.step(microbatches, 0, 1, [](double, double) { return false; });
    const auto gradients = gather_all(session, RankSession::State::kGrads);
    const auto weights = gather_all(session, RankSession::State::kMaster);
    std::mt19937 random(3);
    double worst = 0;
    const Inventory& inventory = session.executor().inventory();
    for (int unit = 0; unit < inventory.num_units(); ++unit) {
      const std::vector<ParameterEntry>& parameters = inventory.units[static_cast<size_t>(unit)].parameters;
      for (size_t p = 0; p < parameters.size(); ++p) {
        if (!parameters[p].trained() || !checks(parameters[p])) continue;
        const auto begin = weights[static_cast<size_t>(unit)].begin() + parameters[p].offset;
        std::vector<float> values(begin, begin + parameters[p].numel());
        const auto loss = [&](size_t i, double shift) {
          const float before = values[i];
          values[i] = static_cast<float>(before + shift);
          session.executor().set_parameter(unit, static_cast<int>(p), values);
          values[i] = before;
          return session.evaluate(microbatches[0]).loss_sum / tokens;
        };
        for (int sample = 0; sample < kSamples; ++sample) {
          const size_t i = random() % values.size();
          const double difference =
              (8 * (loss(i, kStep) - loss(i, -kStep)) - (loss(i, 2 * kStep) - loss(i, -2 * kStep))) / (12 * kStep);
          const double gradient = gradients[static_cast<size_t>(unit)][static_cast<size_t>(parameters[p].offset) + i];
          const double allowed = kAbsolute + kRelative * std::abs(gradient);
          EXPECT_NEAR(gradient, difference, allowed) << parameters[p].name << "[" << i << "]";
          worst = std::max(worst, std::abs(gradient - difference) / allowed);
        }
        session.executor().set_parameter(unit, static_cast<int>(p), values);
      }
    }
    std::printf("largest difference: %.2g of what is allowed\n", worst);
  });
}

class Gradients : public ::testing::TestWithParam<TinyKind> {};

TEST_P(Gradients, EqualFiniteDifferencesOfTheLoss) {
  const ModelSpec model = tiny_model(GetParam(), 2);
  expect_gradients_of_differences(tiny_request(model, ragged_batch(model, {16, 9, 15}), {.micro = 3}),
                                  [](const ParameterEntry&) { return true; });
}

// Under one and the same mask. The lengths that DoRA divides by are constants in the gradients of A and B, so that
// those are no derivatives; the magnitudes' are.
TEST_P(Gradients, OfAdaptersEqualFiniteDifferencesUnderDropout) {
  for (const bool dora : {false, true}) {
    const ModelSpec base = tiny_model(GetParam(), 2);
    ProbeRequest request = tiny_request(base, ragged_batch(base, {16, 9, 15}), {.micro = 3},
                                        {"method.kind=lora", "method.rank=3", "method.alpha=1", "method.dropout=0.3",
                                         dora ? "method.dora=true" : "method.dora=false"});
    request.model = with_method(base, request.config.config.method);
    expect_gradients_of_differences(
        request, [&](const ParameterEntry& entry) { return entry.initializer == Initializer::kRowLengths || !dora; });
  }
}

// Tokens without numbers, as those of validation, lose nothing: the loss is that of the same weights without dropout.
TEST(Dropout, LeavesTokensWithoutNumbersAlone) {
  std::vector<double> losses;
  for (const char* dropout : {"method.dropout=0", "method.dropout=0.4"}) {
    const ModelSpec base = tiny_model(TinyKind::kLlama, 2);
    ProbeRequest request = tiny_request(base, ragged_batch(base, {16, 9, 15}), {.micro = 3},
                                        {"method.kind=lora", "method.rank=3", "method.dora=true", dropout});
    request.model = with_method(base, request.config.config.method);
    run_sessions(request, {}, [&](RankSession& session, const auto& microbatches, MemoryLedger&) {
      move_constant_weights(session.executor());
      MicrobatchTokens tokens = microbatches[0];
      losses.push_back(session.evaluate(tokens).loss_sum);
      tokens.numbers.clear();
      losses.push_back(session.evaluate(tokens).loss_sum);
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[3], losses[1]);
  EXPECT_GT(std::abs(losses[2] - losses[1]), 0.1);
}

INSTANTIATE_TEST_SUITE_P(Models, Gradients, ::testing::ValuesIn(kTinyKinds),
                         [](const auto& info) { return to_string(info.param); });

// An executor of one rank, its gradients all `gradient`, after some steps.
class OptimizerSteps : public ::testing::Test {
 protected:
  void SetUp() override { install_counting_allocator(); }

  struct Shard {
    at::Tensor before, after, working;
    std::vector<ShardRange> ranges;
  };
  // By unit.
  static std::vector<Shard> run(const Inventory& inventory, const ModelSpec& model, const ShardingPolicy& policy,
                                int shard, const OptimizerConfig& optimizer, float gradient, int steps) {
    TrainingExecutor executor(model, inventory,
                              {.stages = {.chunks = {{0, inventory.num_units()}},
                                          .num_units = inventory.num_units(),
                                          .tied = inventory.tied_embeddings},
                               .sharding = policy,
                               .shard = shard,
                               .optimizer_states = optimizer_states(optimizer),
                               .optimizer = optimizer,
                               .sequence = kTinySequence,
                               .max_documents = 1});
    executor.initialize_weights(1);
    std::vector<Shard> shards(inventory.units.size());
    for (int unit = 0; unit < inventory.num_units(); ++unit)
      shards[static_cast<size_t>(unit)].before = executor.buffers(unit).master_shard().clone();
    for (int step = 1; step <= steps; ++step) {
      executor.set_learning_rate(optimizer.lr, step);
      executor.set_grad_norm(0);
      for (int unit = 0; unit < inventory.num_units(); ++unit) {
        executor.buffers(unit).grads_shard().fill_(gradient);
        executor.optimizer_step(unit);
      }
    }
    for (int unit = 0; unit < inventory.num_units(); ++unit) {
      Shard& result = shards[static_cast<size_t>(unit)];
      result.after = executor.buffers(unit).master_shard().clone();
      result.working = executor.buffers(unit).params_shard().clone();
      for (size_t p = 0; p < inventory.units[static_cast<size_t>(unit)].parameters.size(); ++p)
        result.ranges.push_back(executor.buffers(unit).range(static_cast<int>(p)));
    }
    return shards;
  }
};

// With zero gradients, lr 0.1 and decay 0.1 every matrix element shrinks by 0.99 and nothing else moves, on every
// shard.
TEST_F(OptimizerSteps, E58ZeroGradientsDecayMatricesOnly) {
  const ModelSpec model = tiny_model(TinyKind::kGpt2);
  const Inventory inventory = build_inventory(model);
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    const OptimizerConfig optimizer{
        .kind = kind, .lr = 0.1, .weight_decay = 0.1, .decay = DecayScope::kMatrices, .clip = 0};
    for (const int zero : {0, 1, 2, 3}) {
      const int count = zero == 0 ? 1 : 4;
      int64_t matrices = 0, vectors = 0;
      for (int shard = 0; shard < count; ++shard) {
        const auto shards = run(inventory, model, {.zero = zero, .shards = count}, shard, optimizer, 0, 1);
        for (size_t unit = 0; unit < shards.size(); ++unit) {
          for (size_t p = 0; p < shards[unit].ranges.size(); ++p) {
            const ParameterEntry& entry = inventory.units[unit].parameters[p];
            const ShardRange& range = shards[unit].ranges[p];
            const int64_t n = range.end - range.begin;
            const at::Tensor before = shards[unit].before.narrow(0, range.shard_offset, n);
            const at::Tensor after = shards[unit].after.narrow(0, range.shard_offset, n);
            if (entry.shape.size() > 1) {
              matrices += n;
              EXPECT_TRUE(at::allclose(after, before * 0.99, 2e-7, 0)) << entry.name;
            } else {
              vectors += n;
              EXPECT_TRUE(after.equal(before)) << entry.name;
            }
          }
        }
      }
      // Tied: 61 x 32 tokens, 16 x 32 positions; a layer: 32 x 96, 32 x 32, 2 x 32 x 128; 96 + 32 + 128 + 32 biases and
      // four of LayerNorm; two of the final norm.
      EXPECT_EQ(matrices, 61 * 32 + 16 * 32 + 2 * (32 * 96 + 32 * 32 + 2 * 32 * 128));
      EXPECT_EQ(vectors, 2 * (96 + 32 + 128 + 32 + 4 * 32) + 2 * 32);
    }
  }
}

// A weight of 1 under Adam with a constant gradient and lr 6e-4: each step moves it by the rate, a hundred to 0.94. The
// bf16 neighbour of 1 is 2^-8 away, so without a master nothing would move.
TEST_F(OptimizerSteps, E59MasterWeightsKeepSmallUpdates) {
  const ModelSpec model = tiny_model(TinyKind::kLlama);
  const Inventory inventory = build_inventory(model);
  const OptimizerConfig optimizer{.lr = 6e-4, .weight_decay = 0, .clip = 0};
  for (const DType grads : {DType::kFloat32, DType::kBFloat16}) {
    const auto shards = run(inventory, model, {.compute = DType::kBFloat16, .grads = grads}, 0, optimizer, 0.125f, 100);
    for (size_t unit = 0; unit < shards.size(); ++unit) {
      for (size_t p = 0; p < inventory.units[unit].parameters.size(); ++p) {
        const ParameterEntry& entry = inventory.units[unit].parameters[p];
        const at::Tensor before = shards[unit].before.narrow(0, entry.offset, entry.numel());
        const at::Tensor after = shards[unit].after.narrow(0, entry.offset, entry.numel());
        // 100 roundings of at most 2^-25 and eps = 1e-8 beside 0.125 each time.
        EXPECT_TRUE(at::allclose(after, before - 0.06, 0, 4e-6)) << entry.name;
        if (entry.initializer == Initializer::kOnes) {
          EXPECT_NEAR(after[0].item<float>(), 0.94, 4e-6) << entry.name;
        }
        EXPECT_TRUE(shards[unit].working.narrow(0, entry.offset, entry.numel()).equal(after.to(at::kBFloat16)))
            << entry.name;
      }
    }
  }
}

}  // namespace
}  // namespace fivefold::testing
