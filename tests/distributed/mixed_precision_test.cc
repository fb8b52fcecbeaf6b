// bf16 with fp32 master weights and fp32 accumulation loses no update and no contribution. Names E59, E60 are those of
// the case list of reported faults.
#include <gtest/gtest.h>

#include <cmath>

#include "spec/validate.h"
#include "support/tiny_model.h"

namespace fivefold::testing {
namespace {

bool is_norm(const std::string& name) { return name.find("norm") != std::string::npos; }

// Norm weights start at 1, where neighbouring bf16 numbers below lie 2^-8 apart: a step of 6e-4 rounds to nothing.
// With fp32 masters a hundred steps move them as far as in fp32.
TEST(MixedPrecision, E59SmallUpdatesReachTheMasterWeights) {
  const ModelSpec model = tiny_model(TinyKind::kTiedQwen3);
  const GlobalBatch batch = ragged_batch(model, {16, 12, 9, 14});
  const auto run = [&](const std::string& compute, int zero) {
    ProbeRequest request = tiny_request(model, batch, {.dp = 2, .zero = zero, .micro = 2, .compute = compute},
                                        {"optimizer.kind=adamw", "optimizer.lr=6e-4"});
    request.updates = 100;
    request.want_parameters = true;
    return probe(request);
  };
  const ProbeResult right = run("fp32", 1);
  EXPECT_LT(right.losses.back(), 0.8 * right.loss);
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    const ProbeResult result = run("bf16", zero);
    EXPECT_NEAR(result.losses.back() / right.losses.back(), 1, 0.05);
    double moved = 0, right_moved = 0;
    for (size_t t = 0; t < result.parameters.size(); ++t) {
      if (!is_norm(result.parameters[t].name)) continue;
      for (size_t i = 0; i < result.parameters[t].values.size(); ++i) {
        EXPECT_NE(result.parameters[t].values[i], 1.0f);
        moved += std::abs(static_cast<double>(result.parameters[t].values[i]) - 1);
        right_moved += std::abs(static_cast<double>(right.parameters[t].values[i]) - 1);
      }
    }
    EXPECT_NEAR(moved / right_moved, 1, 0.05);
    for (const uint64_t hash : result.parameter_hashes) EXPECT_EQ(hash, result.parameter_hashes[0]);
  }
}

// 256 microbatches of one row each contribute 1/256 of the row's gradient. Scaling by a power of two is exact, and a
// sum of up to 256 equal bf16 numbers (8 bits) has 16 bits: fp32 holds every partial sum, so the result is the row's
// gradient to the bit. A bf16 sum stops growing near the ninth bit.
TEST(MixedPrecision, E60AccumulationOverManyMicrobatchesIsInFp32) {
  const ModelSpec model = tiny_model(TinyKind::kLlama);
  const GlobalBatch row = ragged_batch(model, {13});
  const ProbeResult one = probe(tiny_request(model, row, {.compute = "bf16", .grads = "fp32"}));
  ASSERT_GT(one.grad_norm, 0.1);
  const GlobalBatch rows = select_rows(row, std::vector<int64_t>(256, 0));
  for (const int zero : {0, 2}) {
    const ProbeResult many = probe(tiny_request(model, rows, {.zero = zero, .accumulation = 256, .compute = "bf16"}));
    EXPECT_EQ(many.valid_tokens, 256 * 13);
    EXPECT_TRUE(same_bits(many.gradients, one.gradients)) << largest_difference(many.gradients, one.gradients);
  }
}

TEST(MixedPrecision, E60Bf16GradientsCannotAccumulate) {
  const ModelSpec model = tiny_model(TinyKind::kLlama);
  RunConfig config;
  config.precision.grads = DType::kBFloat16;
  config.batch.micro = 1;
  config.batch.global = 2;
  config.batch.sequence = kTinySequence;
  const std::vector<Error> errors = validate_layout(model, config);
  ASSERT_EQ(errors.size(), 1u) << to_string(errors);
  EXPECT_EQ(errors[0].where, "precision.grads");
  config.batch.global = 1;
  EXPECT_TRUE(validate_layout(model, config).empty());
}

}  // namespace
}  // namespace fivefold::testing
