// Reported faults of tensor, sequence and context parallelism and pipelines that no other test here is about: scaling
// of accumulated gradients in a pipeline, what is displayed, other documents' tokens, parameters that not every rank
// uses. Names E04... are those of the case list of reported faults.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/tiny_model.h"

namespace fivefold::testing {
namespace {

constexpr double kReordered = 4e-6;  // as in tensor_parallel_test

class SplitCases : public ::testing::TestWithParam<TinyKind> {
 protected:
  ProbeResult train(const GlobalBatch& batch, const Layout& layout, double rate,
                    const std::vector<std::string>& settings = {}) const {
    ProbeRequest request = tiny_request(model_, batch, layout, settings);
    request.config.config.optimizer.lr = rate;
    request.updates = 1;
    request.want_parameters = true;
    return probe(request);
  }

  ModelSpec model_ = tiny_model(GetParam(), 4);
};

const NamedTensor& tensor(const std::vector<NamedTensor>& tensors, const std::string& name) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const NamedTensor& t) { return t.name.ends_with(name); });
  FIVEFOLD_CHECK(found != tensors.end(), name);
  return *found;
}

std::vector<NamedTensor> stepped(std::vector<NamedTensor> weights, const std::vector<NamedTensor>& gradients,
                                 double rate) {
  for (NamedTensor& weight : weights) {
    const std::vector<float>& gradient = tensor(gradients, weight.name).values;
    for (size_t i = 0; i < weight.values.size(); ++i)
      weight.values[i] = static_cast<float>(weight.values[i] - rate * gradient[i]);
  }
  return weights;
}

// The definition, in fp64: over the rows, valid tokens x gradient of the row's own mean, by all valid tokens.
std::vector<NamedTensor> token_weighted(const std::vector<ProbeResult>& rows) {
  std::vector<NamedTensor> mean = rows.front().gradients;
  double tokens = 0;
  for (const ProbeResult& row : rows) tokens += static_cast<double>(row.valid_tokens);
  for (size_t t = 0; t < mean.size(); ++t)
    for (size_t i = 0; i < mean[t].values.size(); ++i) {
      double sum = 0;
      for (const ProbeResult& row : rows)
        sum += static_cast<double>(row.valid_tokens) * static_cast<double>(row.gradients[t].values[i]);
      mean[t].values[i] = static_cast<float>(sum / tokens);
    }
  return mean;
}

// Twelve microbatches with unequal numbers of valid tokens, 98 in all, as one of 12 rows, as 3 x 4 and as 12 x 1, on
// one stage and on two: the gradient is that of the mean over valid tokens, and one step of SGD goes by it. Divided on
// the displayed loss only it would be 98 times as large (E04); scaled at every microbatch or window it would weigh the
// first ones less (E05).
TEST_P(SplitCases, E04E05PipelinesDivideOnceByAllTokens) {
  const GlobalBatch batch = ragged_batch(model_, {16, 3, 0, 7, 1, 16, 5, 12, 9, 14, 2, 13});
  constexpr double kRate = 0.05;
  const ProbeResult one = train(batch, {.micro = 12}, kRate);
  EXPECT_EQ(one.valid_tokens, 98);
  EXPECT_NEAR(one.grad_norm / norm(one.gradients), 1, 1e-6);
  std::vector<ProbeResult> rows;
  for (int64_t row = 0; row < batch.rows; ++row) rows.push_back(train(select_rows(batch, {row}), {.pp = 2}, 0));
  EXPECT_LT(largest_difference(one.gradients, token_weighted(rows)), kReordered);
  const std::vector<NamedTensor> start = train(batch, {.micro = 12}, 0).parameters;
  for (const int pp : {1, 2})
    for (const char* schedule : {"gpipe", "1f1b", "zb1p"})
      for (const auto& [micro, accumulation] : {std::pair{12, 1}, {4, 3}, {1, 12}}) {
        if (pp == 1 && std::string(schedule) != "1f1b") continue;
        const Layout layout{.micro = micro, .accumulation = accumulation, .pp = pp, .schedule = schedule};
        SCOPED_TRACE(layout.name());
        const ProbeResult result = train(batch, layout, kRate);
        EXPECT_EQ(result.valid_tokens, 98);
        EXPECT_NEAR(result.loss, one.loss, 1e-6);
        EXPECT_NEAR(result.grad_norm / one.grad_norm, 1, 1e-6);
        EXPECT_LT(largest_difference(result.gradients, one.gradients), kReordered);
        EXPECT_LT(largest_difference(result.parameters, stepped(start, one.gradients, kRate)), kReordered);
      }
}

// 16 rows as (16, 1), (8, 2), (2, 8) and (1, 16) rows and microbatches, on 1, 2 and 4 stages.
TEST_P(SplitCases, E06NormDoesNotDependOnMicrobatchesOrStages) {
  const GlobalBatch batch = ragged_batch(model_, {16, 3, 1, 0, 12, 7, 16, 5, 2, 9, 0, 0, 14, 6, 8, 11});
  const ProbeResult one = train(batch, {.micro = 16}, 0);
  for (const int pp : {1, 2, 4})
    for (const int micro : {16, 8, 2, 1}) {
      const Layout layout{.micro = micro, .accumulation = 16 / micro, .pp = pp};
      SCOPED_TRACE(layout.name());
      EXPECT_NEAR(train(batch, layout, 0).grad_norm / one.grad_norm, 1, 1e-6);
    }
}

// What is displayed is the same on every layout. With at most 4 valid tokens at the begin of each row the second rank
// of two along the context, which has tokens 4 to 11 of 16, counts none, and has no NaN for it.
TEST_P(SplitCases, E09DisplayedLossAndTokensOfEveryLayout) {
  const GlobalBatch batch = ragged_batch(model_, {4, 3, 0, 2});
  const ProbeResult one = train(batch, {.micro = 4}, 0);
  EXPECT_EQ(one.valid_tokens, 9);
  EXPECT_TRUE(std::isfinite(one.loss));
  for (const Layout& layout :
       {Layout{.dp = 2, .micro = 2}, Layout{.micro = 4, .tp = 2}, Layout{.micro = 4, .tp = 2, .sp = true},
        Layout{.micro = 4, .cp = 2}, Layout{.micro = 4, .cp = 2, .cp_kind = "all_gather"},
        Layout{.micro = 4, .cp = 2, .cp_kind = "ulysses"}, Layout{.micro = 4, .tp = 2, .sp = true, .cp = 2},
        Layout{.accumulation = 4, .pp = 2}, Layout{.dp = 2, .accumulation = 2, .tp = 2, .pp = 2, .cp = 2}}) {
    SCOPED_TRACE(layout.name());
    const ProbeResult result = train(batch, layout, 0);
    EXPECT_EQ(result.valid_tokens, 9);
    EXPECT_NEAR(result.loss / one.loss, 1, 1e-6);
    EXPECT_NEAR(result.grad_norm / one.grad_norm, 1, 1e-6);
  }
}

// Rows of two documents A | B of which only B's tokens count: other tokens in A change no gradient in any bit.
TEST_P(SplitCases, E40OtherDocumentsTokensChangeNothing) {
  const auto documents = [&](uint32_t seed) {
    GlobalBatch batch = ragged_batch(model_, {16, 16});
    const GlobalBatch other = ragged_batch(model_, {16, 16}, seed);
    const std::vector<int32_t> lengths[] = {{7, 9}, {10, 6}};
    for (size_t row = 0; row < 2; ++row) {
      batch.document_lengths[row] = lengths[row];
      for (size_t i = 0; i < 16; ++i) {
        const size_t at = row * 16 + i, first = static_cast<size_t>(lengths[row][0]);
        batch.positions[at] = static_cast<int32_t>(i < first ? i : i - first);
        if (i >= first) continue;
        batch.input_ids[at] = other.input_ids[at];
        batch.targets[at] = -100;
      }
    }
    return batch;
  };
  const GlobalBatch a = documents(2), b = documents(3);
  EXPECT_NE(a.input_ids, b.input_ids);
  for (Layout layout : {Layout{}, Layout{.cp = 2}, Layout{.cp = 4}, Layout{.cp = 2, .cp_kind = "all_gather"},
                        Layout{.cp = 2, .cp_kind = "ulysses"}, Layout{.tp = 2, .sp = true, .cp = 2}, Layout{.tp = 2},
                        Layout{.pp = 2}}) {
    layout.micro = 1;
    layout.accumulation = 2;
    SCOPED_TRACE(layout.name());
    const std::vector<std::string> packed = {"batch.packing=documents"};
    const ProbeResult of_a = train(a, layout, 0, packed), of_b = train(b, layout, 0, packed);
    EXPECT_EQ(of_a.loss, of_b.loss);
    EXPECT_GT(norm(of_a.gradients), 0);
    for (size_t t = 0; t < of_a.gradients.size(); ++t)
      EXPECT_EQ(of_a.gradients[t].values, of_b.gradients[t].values) << of_a.gradients[t].name;
  }
}

// Two ranks and two microbatches: everything that the loss depends on is used on rank 0 in the second microbatch only;
// the others have rows without valid tokens. Ranks 0 and 1 have rows 0 and 1 first, then rows 2 and 3.
TEST_P(SplitCases, E84ParametersThatOneRankUsesInOneMicrobatch) {
  const ProbeResult right = train(ragged_batch(model_, {0, 0, 9, 0}), {.micro = 4}, 0.05);
  EXPECT_EQ(right.valid_tokens, 9);
  EXPECT_GT(right.grad_norm, 0);
  for (const int zero : {0, 1, 2, 3})
    for (Layout layout :
         {Layout{.dp = 2, .accumulation = 2}, Layout{.dp = 2, .accumulation = 2, .tp = 2},
          Layout{.dp = 2, .accumulation = 2, .tp = 2, .sp = true}, Layout{.dp = 2, .accumulation = 2, .pp = 2},
          Layout{.dp = 2, .accumulation = 2, .pp = 2, .cp = 2}}) {
      layout.zero = zero;
      SCOPED_TRACE(layout.name());
      const ProbeResult result = train(ragged_batch(model_, {0, 0, 9, 0}), layout, 0.05);
      EXPECT_EQ(result.valid_tokens, 9);
      EXPECT_NEAR(result.grad_norm / right.grad_norm, 1, 1e-6);
      EXPECT_LT(largest_difference(result.gradients, right.gradients), kReordered);
      EXPECT_LT(largest_difference(result.parameters, right.parameters), kReordered);
      for (const uint64_t hash : result.parameter_hashes) EXPECT_EQ(hash, result.parameter_hashes[0]);
    }
}

// Learned positions beyond the sequence: no rank uses them. Their gradient is exactly zero; as rows of a matrix they
// still decay: AdamW with lr 0.01 and decay 0.1 leaves 1 - 0.001 of them.
TEST(UnusedParameters, E84PositionsBeyondTheSequenceOnlyDecay) {
  ModelSpec model = tiny_model(TinyKind::kGpt2, 4);
  model.max_positions = 24;  // the sequence has 16
  const GlobalBatch batch = ragged_batch(model, {16, 3, 0, 7});
  const auto train = [&](const Layout& layout, double rate) {
    ProbeRequest request = tiny_request(model, batch, layout, {"optimizer.kind=adamw", "optimizer.weight_decay=0.1"});
    request.config.config.optimizer.lr = rate;
    request.updates = 1;
    request.want_parameters = true;
    return probe(request);
  };
  const std::vector<NamedTensor> start = train({.micro = 4}, 0).parameters;
  const std::vector<float>& before = tensor(start, "wpe.weight").values;
  ASSERT_EQ(before.size(), 24u * 32);
  for (const Layout& layout :
       {Layout{.micro = 4}, Layout{.dp = 2, .zero = 2, .accumulation = 2}, Layout{.dp = 2, .zero = 3, .micro = 2},
        Layout{.micro = 4, .tp = 2}, Layout{.micro = 4, .tp = 2, .sp = true}, Layout{.accumulation = 4, .pp = 2},
        Layout{.micro = 4, .cp = 2}}) {
    SCOPED_TRACE(layout.name());
    const ProbeResult result = train(layout, 0.01);
    const std::vector<float>& gradient = tensor(result.gradients, "wpe.weight").values;
    const std::vector<float>& after = tensor(result.parameters, "wpe.weight").values;
    for (size_t i = 16 * 32; i < before.size(); ++i) {
      ASSERT_EQ(gradient[i], 0) << i;
      ASSERT_NEAR(after[i], before[i] * 0.999f, 1e-7) << i;
    }
    EXPECT_NE(gradient[0], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SplitCases, ::testing::ValuesIn(kTinyKinds),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace fivefold::testing
