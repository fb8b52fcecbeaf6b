// Selective recompute against none, every subset of the names that a model has, over layouts of every kind: the same
// products from the same numbers are the same bits in loss, gradients, norm and weights. Memory, traffic and the
// allocation log are those of the plan, and what is dropped is not kept.
#include <gtest/gtest.h>

#include "spec/dropped_tensors.h"
#include "support/predicted.h"
#include "support/tiny_model.h"

namespace fivefold::testing {
namespace {

std::vector<std::string> subsets(const ModelSpec& model) {
  const std::vector<Droppable> names = droppable_tensors(model);
  std::vector<std::string> all;
  for (unsigned set = 1; set < 1U << names.size(); ++set) {
    std::string text;
    for (size_t i = 0; i < names.size(); ++i)
      if ((set >> i & 1U) != 0) text += (text.empty() ? "" : ",") + std::string(to_string(names[i]));
    all.push_back(text);
  }
  return all;
}

class SelectiveRecompute : public ::testing::TestWithParam<TinyKind> {
 protected:
  void expect_same_bits(const Layout& layout, const std::vector<std::string>& extra = {}) const {
    std::vector<std::string> settings = {"optimizer.lr=0.05"};
    settings.insert(settings.end(), extra.begin(), extra.end());
    const auto run = [&](const Layout& one) {
      ProbeRequest request = tiny_request(model_, batch_, one, settings);
      request.updates = 1;
      request.want_parameters = true;
      ProbeResult result = probe(request);
      expect_predicted(model_, inventory_, request, result);
      return result;
    };
    const ProbeResult none = run(layout);
    for (const std::string& drop : subsets(model_)) {
      Layout dropping = layout;
      dropping.drop = drop;
      SCOPED_TRACE(dropping.name());
      const ProbeResult result = run(dropping);
      EXPECT_EQ(result.loss, none.loss);
      EXPECT_EQ(result.grad_norm, none.grad_norm);
      EXPECT_TRUE(same_bits(result.gradients, none.gradients));
      EXPECT_TRUE(same_bits(result.parameters, none.parameters));
      if (HasFailure()) return;
    }
  }

  ModelSpec model_ = tiny_model(GetParam(), 4);
  Inventory inventory_ = build_inventory(model_);
  GlobalBatch batch_ = ragged_batch(model_, {16, 3, 0, 7, 1, 16, 5, 0});
};

TEST_P(SelectiveRecompute, OfOneRankAndItsShards) {
  expect_same_bits({.micro = 4, .accumulation = 2});
  for (const int zero : {0, 1, 2, 3}) expect_same_bits({.dp = 2, .zero = zero, .micro = 2, .accumulation = 2});
}

TEST_P(SelectiveRecompute, InBf16) {
  expect_same_bits({.micro = 4, .accumulation = 2, .compute = "bf16"});
  expect_same_bits({.dp = 2, .zero = 3, .micro = 4, .compute = "bf16"});
}

TEST_P(SelectiveRecompute, OfTensorAndSequenceParallelRanks) {
  for (const bool sp : {false, true}) expect_same_bits({.micro = 8, .tp = 2, .sp = sp});
  expect_same_bits({.dp = 2, .zero = 3, .micro = 4, .tp = 2, .sp = true});
}

TEST_P(SelectiveRecompute, OfContextParallelRanks) {
  for (const char* kind : {"ring", "all_gather", "ulysses"}) expect_same_bits({.micro = 8, .cp = 2, .cp_kind = kind});
  expect_same_bits({.zero = 1, .micro = 8, .tp = 2, .sp = true, .cp = 2, .cp_kind = "ulysses"});
}

TEST_P(SelectiveRecompute, OfPipelines) {
  expect_same_bits({.accumulation = 8, .pp = 2});
  expect_same_bits({.micro = 2, .accumulation = 4, .tp = 2, .sp = true, .pp = 2, .schedule = "zb1p"});
  expect_same_bits({.micro = 2, .accumulation = 4, .pp = 2, .vpp = 2, .schedule = "zbv"});
}

TEST_P(SelectiveRecompute, OfPackedDocuments) {
  batch_.document_lengths = {{5, 7, 4}, {16}, {1, 2, 13}, {11, 3, 1, 1}, {2, 2, 2, 10}, {9, 7}, {15, 1}, {4, 4, 4, 4}};
  size_t at = 0;
  for (const auto& row : batch_.document_lengths)
    for (const int32_t length : row)
      for (int32_t i = 0; i < length; ++i) batch_.positions[at++] = i;
  for (const char* kind : {"ring", "ulysses"})
    expect_same_bits({.micro = 8, .cp = 2, .cp_kind = kind}, {"batch.packing=documents"});
  expect_same_bits({.micro = 8}, {"batch.packing=documents"});
}

INSTANTIATE_TEST_SUITE_P(Kinds, SelectiveRecompute, ::testing::ValuesIn(kTinyKinds),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace fivefold::testing
