// Context parallelism by ring, gathered keys and Ulysses against one rank: gradients and pre-clip norm under SGD with
// unequal numbers of valid tokens, packed documents whose borders cut chunks anywhere, with ZeRO, tensor and sequence
// parallelism, pipelines and recompute. Names E08... are those of the case list of reported faults.
#include <gtest/gtest.h>

#include <cmath>

#include "support/predicted.h"
#include "support/tiny_model.h"

namespace fivefold::testing {
namespace {

constexpr double kReordered = 4e-6;  // as in tensor_parallel_test
const char* const kKinds[] = {"ring", "all_gather", "ulysses"};

ModelSpec model_of(TinyKind kind) { return tiny_model(kind, 3); }

// Rows cut into documents of the given lengths, positions restarting.
GlobalBatch packed(const ModelSpec& model, const std::vector<std::vector<int32_t>>& documents) {
  GlobalBatch batch = ragged_batch(model, std::vector<int64_t>(documents.size(), kTinySequence));
  batch.document_lengths = documents;
  for (size_t row = 0; row < documents.size(); ++row) {
    size_t at = row * static_cast<size_t>(kTinySequence);
    for (const int32_t length : documents[row])
      for (int32_t i = 0; i < length; ++i) batch.positions[at++] = i;
  }
  return batch;
}

class ContextParallelRun : public ::testing::TestWithParam<TinyKind> {
 protected:
  ProbeResult train(const GlobalBatch& batch, const Layout& layout, std::vector<std::string> settings = {}) const {
    settings.push_back("optimizer.lr=0.05");
    ProbeRequest request = tiny_request(model_, batch, layout, settings);
    request.updates = 2;
    request.want_parameters = true;
    return probe(request);
  }
  void expect_same(const GlobalBatch& batch, const Layout& layout, const ProbeResult& one,
                   const std::vector<std::string>& settings = {}) const {
    SCOPED_TRACE(layout.name());
    const ProbeResult result = train(batch, layout, settings);
    EXPECT_EQ(result.valid_tokens, one.valid_tokens);
    EXPECT_NEAR(result.loss, one.loss, 1e-6);
    EXPECT_NEAR(result.grad_norm / one.grad_norm, 1, 1e-6);
    EXPECT_LT(largest_difference(result.gradients, one.gradients), kReordered);
    EXPECT_LT(largest_difference(result.parameters, one.parameters), kReordered);
    for (const uint64_t hash : result.parameter_hashes) EXPECT_EQ(hash, result.parameter_hashes[0]);
  }

  ModelSpec model_ = model_of(GetParam());
  GlobalBatch batch_ = ragged_batch(model_, {16, 3, 0, 7});
};

// E08: the loss is divided by the tokens of the whole batch, whatever share of a row a rank has.
// E38: each token predicts the next one of its row, also where that is on another rank.
TEST_P(ContextParallelRun, E08E38GradientsOfOneRank) {
  const ProbeResult one = train(batch_, {.micro = 4});
  for (const char* kind : kKinds) {
    for (const int cp : {2, 4}) {
      expect_same(batch_, {.micro = 4, .cp = cp, .cp_kind = kind}, one);
      expect_same(batch_, {.accumulation = 4, .recompute_every = 2, .cp = cp, .cp_kind = kind}, one);
    }
    for (const int zero : {1, 2, 3})
      expect_same(batch_, {.dp = 2, .zero = zero, .accumulation = 2, .cp = 2, .cp_kind = kind}, one);
    expect_same(batch_, {.dp = 2, .zero = 3, .shard_size = 2, .micro = 2, .cp = 2, .cp_kind = kind}, one);
    if (HasFailure()) return;
  }
}

TEST_P(ContextParallelRun, WithTensorParallelismAndPipelines) {
  const ProbeResult one = train(batch_, {.micro = 4});
  for (const char* kind : kKinds) {
    for (const bool sp : {false, true})
      expect_same(batch_, {.dp = 2, .zero = 2, .micro = 2, .tp = 2, .sp = sp, .cp = 2, .cp_kind = kind}, one);
    expect_same(batch_, {.accumulation = 4, .pp = 2, .schedule = "zb1p", .cp = 2, .cp_kind = kind}, one);
    expect_same(batch_, {.accumulation = 4, .tp = 2, .sp = true, .pp = 2, .cp = 2, .cp_kind = kind}, one);
    if (HasFailure()) return;
  }
}

// Documents that no chunk holds in full, of one token, over half a row, and a row of one document.
TEST_P(ContextParallelRun, E39PackedDocuments) {
  const GlobalBatch documents = packed(model_, {{5, 7, 4}, {16}, {1, 2, 13}, {11, 3, 1, 1}});
  const std::vector<std::string> settings = {"batch.packing=documents"};
  const ProbeResult one = train(documents, {.micro = 4}, settings);
  for (const char* kind : kKinds) {
    for (const int cp : {2, 4}) expect_same(documents, {.micro = 4, .cp = cp, .cp_kind = kind}, one, settings);
    expect_same(documents, {.dp = 2, .zero = 3, .accumulation = 2, .tp = 2, .sp = true, .cp = 2, .cp_kind = kind}, one,
                settings);
    EXPECT_TRUE(same_bits(train(documents, {.micro = 4, .cp = 2, .cp_kind = kind}, settings).gradients,
                          train(documents, {.micro = 4, .cp = 2, .cp_kind = kind}, settings).gradients));
    if (HasFailure()) return;
  }
}

// A sequence that 2c does not divide is padded with tokens that count nowhere.
TEST_P(ContextParallelRun, E38SequencesArePadded) {
  GlobalBatch shorter;
  shorter.rows = 4;
  shorter.sequence = 13;
  for (int64_t row = 0; row < 4; ++row) {
    const auto cut = [&](const std::vector<int32_t>& from, std::vector<int32_t>& to) {
      to.insert(to.end(), from.begin() + row * kTinySequence, from.begin() + row * kTinySequence + 13);
    };
    cut(batch_.input_ids, shorter.input_ids);
    cut(batch_.targets, shorter.targets);
    cut(batch_.positions, shorter.positions);
    shorter.document_lengths.push_back({13});
  }
  const ProbeResult one = train(shorter, {.micro = 4});
  for (const char* kind : kKinds) {
    expect_same(shorter, {.micro = 4, .cp = 4, .cp_kind = kind}, one);
    expect_same(shorter, {.micro = 4, .tp = 4, .sp = true, .cp = 2, .cp_kind = "ring"}, one);
  }
}

TEST_P(ContextParallelRun, PredictedEqualsCounted) {
  const Inventory inventory = build_inventory(model_);
  for (const char* kind : kKinds) {
    for (Layout layout :
         {Layout{.micro = 4, .cp = 4}, Layout{.dp = 2, .zero = 3, .accumulation = 2, .cp = 2},
          Layout{.accumulation = 4, .recompute_every = 1, .compute = "bf16", .tp = 2, .sp = true, .cp = 2},
          Layout{.accumulation = 4, .pp = 2, .schedule = "zb1p", .cp = 2}}) {
      layout.cp_kind = kind;
      SCOPED_TRACE(layout.name());
      ProbeRequest request = tiny_request(model_, batch_, layout, {"optimizer.kind=adamw"});
      request.updates = 1;
      request.want_gradients = false;
      const ProbeResult result = probe(request);
      expect_predicted(model_, inventory, request, result);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ContextParallelRun, ::testing::ValuesIn(kTinyKinds),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace fivefold::testing
