// What is wrong with the numbers of a run is named: the first place of a value that is not finite, and the rank whose
// copy of weights or states differs from the others'.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "engine/non_finite.h"
#include "engine/replica_check.h"
#include "support/rank_sessions.h"

namespace fivefold::testing {
namespace {

// What every rank says; all say the same.
template <class Find>
std::string found(const ProbeRequest& request, const Find& find) {
  std::mutex mutex;
  std::vector<std::string> texts;
  run_sessions(request, {},
               [&](RankSession& session, const std::vector<MicrobatchTokens>& microbatches, MemoryLedger&) {
                 const std::string text = find(session, microbatches);
                 const std::lock_guard lock(mutex);
                 texts.push_back(text);
               });
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  return texts[0];
}

StepOutcome step(RankSession& session, const std::vector<MicrobatchTokens>& microbatches, int64_t update = 1) {
  return session.step(microbatches, 1e-3, update,
                      [](double loss, double norm) { return std::isfinite(loss) && std::isfinite(norm); });
}

// Sets an element of a parameter on every rank that holds it.
void set_weight(RankSession& session, int unit, const std::string& parameter, int64_t index, float value) {
  const int at = session.executor().inventory().units[static_cast<size_t>(unit)].find(parameter);
  ASSERT_GE(at, 0) << parameter;
  session.executor().set_parameter(unit, at, std::vector<float>{value}, index);
}

const std::vector<Layout> kLayouts = {{.dp = 2, .zero = 0},
                                      {.dp = 2, .zero = 1},
                                      {.dp = 2, .zero = 3},
                                      {.dp = 2, .zero = 2, .compute = "bf16"},
                                      {.dp = 2, .zero = 0, .recompute_every = 1}};

TEST(NonFinite, NamesTheWeightOfTheFirstLayerThatHasOne) {
  const ModelSpec model = tiny_model(TinyKind::kLlama, 3);
  const GlobalBatch batch = ragged_batch(model, {16, 9});
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name());
    const std::string text = found(tiny_request(model, batch, layout), [](RankSession& session, const auto& tokens) {
      set_weight(session, 2, "down.weight", 5, std::numeric_limits<float>::infinity());
      set_weight(session, 3, "down.weight", 5, std::numeric_limits<float>::quiet_NaN());
      EXPECT_FALSE(step(session, tokens).updated);
      return explain_non_finite(session, tokens);
    });
    EXPECT_EQ(text,
              "first in the forward of layers.1, microbatch 0 (its weight layers.1.down.weight is not finite) on "
              "ranks 0, 1");
  }
}

// Only the rank that reads the bad row of the embedding sees it, and only in its second microbatch.
TEST(NonFinite, NamesTheRankAndTheMicrobatch) {
  const ModelSpec model = tiny_model(TinyKind::kLlama);
  GlobalBatch batch = ragged_batch(model, {16, 16, 16, 16});
  for (int32_t& id : batch.input_ids)
    if (id == 7) id = 8;
  batch.input_ids[3 * 16 + 4] = 7;  // of the last row: rank 1's second
  const std::string text =
      found(tiny_request(model, batch, {.dp = 2, .zero = 1, .accumulation = 2}),
            [&](RankSession& session, const auto& tokens) {
              set_weight(session, 0, "tokens.weight", 7 * model.hidden, std::numeric_limits<float>::quiet_NaN());
              EXPECT_FALSE(step(session, tokens).updated);
              return explain_non_finite(session, tokens);
            });
  EXPECT_EQ(
      text,
      "first in the forward of embedding, microbatch 1 (its weight embedding.tokens.weight is not finite) on rank "
      "1");
}

// A residual stream of zeros stays zero, and its loss is log V; but each norm multiplies the gradient by 1 / sqrt(eps),
// here 1e15: finite after the head and the layer below, not after the next.
TEST(NonFinite, FindsAGradientThatOverflowsThoughTheLossIsFinite) {
  ModelSpec model = tiny_model(TinyKind::kLlama, 3);
  for (LayerSpec& layer : model.layers) layer.norm.eps = 1e-30;
  model.final_norm.eps = 1e-30;
  GlobalBatch batch = ragged_batch(model, {16, 16});
  for (int32_t& id : batch.input_ids)
    if (id == 7) id = 8;
  std::fill(batch.input_ids.begin() + 16, batch.input_ids.end(), 7);  // rank 1's row
  const std::string text =
      found(tiny_request(model, batch, {.dp = 2, .zero = 2}), [&](RankSession& session, const auto& tokens) {
        for (int64_t i = 0; i < model.hidden; ++i) set_weight(session, 0, "tokens.weight", 7 * model.hidden + i, 0);
        const StepOutcome outcome = step(session, tokens);
        EXPECT_TRUE(std::isfinite(outcome.loss));
        EXPECT_FALSE(std::isfinite(outcome.grad_norm));
        return explain_non_finite(session, tokens);
      });
  EXPECT_TRUE(text.starts_with("first in the backward of layers.1, microbatch 0 (the gradient of ")) << text;
  EXPECT_TRUE(text.ends_with(" on rank 1")) << text;
}

// E62: a weight that is not finite and that one rank alone holds, a column of its tensor rank, a shard or a layer of
// its stage: every rank refuses the step, with weights and moments as they were to the bit, and goes on when it is
// repaired.
TEST(NonFinite, E62OneRanksOverflowStopsEveryRank) {
  const ModelSpec model = tiny_model(TinyKind::kLlama, 4);
  const GlobalBatch batch = ragged_batch(model, {16, 9, 0, 7});
  for (const Layout& layout :
       {Layout{.micro = 4, .tp = 2}, Layout{.dp = 2, .zero = 3, .micro = 2, .tp = 2, .sp = true},
        Layout{.accumulation = 4, .pp = 2}, Layout{.accumulation = 4, .tp = 2, .pp = 2, .schedule = "zb1p"},
        Layout{.dp = 2, .zero = 2, .micro = 2, .cp = 2}, Layout{.dp = 4, .zero = 3, .micro = 1}})
    // The first and the last of the 72 columns of the down projection, in the first and the last layer.
    for (const int unit : {1, 4})
      for (const int64_t index : {int64_t{0}, int64_t{71}})
        for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
          SCOPED_TRACE(layout.name() + " unit " + std::to_string(unit) + " element " + std::to_string(index));
          run_sessions(tiny_request(model, batch, layout, {"optimizer.kind=adamw"}), {},
                       [&](RankSession& session, const auto& tokens, MemoryLedger&) {
                         const auto set = [&](float to) {
                           if (session.executor().holds(unit)) set_weight(session, unit, "down.weight", index, to);
                         };
                         const auto moments = [&] {
                           return std::vector{gather_all(session, RankSession::State::kMoment1),
                                              gather_all(session, RankSession::State::kMoment2)};
                         };
                         step(session, tokens, 1);
                         const auto weights = gather_all(session, RankSession::State::kMaster);
                         const auto before = moments();
                         const Unit& whole = session.whole_inventory().units[static_cast<size_t>(unit)];
                         const ParameterEntry& down = whole.parameters[static_cast<size_t>(whole.find("down.weight"))];
                         set(value);
                         const StepOutcome refused = step(session, tokens, 2);
                         EXPECT_FALSE(refused.updated);
                         EXPECT_FALSE(std::isfinite(refused.loss) && std::isfinite(refused.grad_norm));
                         set(weights[static_cast<size_t>(unit)][static_cast<size_t>(down.offset + index)]);
                         EXPECT_EQ(gather_all(session, RankSession::State::kMaster), weights);
                         EXPECT_EQ(moments(), before);
                         EXPECT_TRUE(step(session, tokens, 2).updated);
                       });
          if (HasFailure()) return;
        }
}

TEST(NonFinite, SaysWhenARepetitionIsClean) {
  const ModelSpec model = tiny_model(TinyKind::kLlama);
  const std::string text = found(tiny_request(model, ragged_batch(model, {16, 9}), {.dp = 2, .zero = 1}),
                                 [](RankSession& session, const auto& tokens) {
                                   step(session, tokens);
                                   return explain_non_finite(session, tokens);
                                 });
  EXPECT_TRUE(text.starts_with("not seen again when the step was repeated")) << text;
}

// Flips a bit of an element on one rank.
void flip(const at::Tensor& tensor, int64_t element) {
  auto* byte = static_cast<uint8_t*>(tensor.data_ptr()) + element * tensor.element_size();
  *byte = static_cast<uint8_t>(*byte ^ 1u);
}

struct Flip {
  Layout layout;
  int rank;
  std::function<at::Tensor(const UnitBuffers&)> tensor;
  double share;  // of the tensor, before the element
  std::string text;
};

at::Tensor params_of(const UnitBuffers& buffers) { return buffers.params(); }
at::Tensor master_of(const UnitBuffers& buffers) { return buffers.master_shard(); }
at::Tensor moment2_of(const UnitBuffers& buffers) { return buffers.moment2().tensors().front(); }

TEST(Replicas, NameTheRankOfAFlippedBit) {
  const ModelSpec model = tiny_model(TinyKind::kLlama);
  const GlobalBatch batch = ragged_batch(model, {16, 3, 9, 7});
  const std::vector<Flip> flips = {
      {{.dp = 4, .zero = 0}, 2, params_of, 0.4, "weights of layers.1 on rank 2 differ from those of ranks 0, 1, 3"},
      {{.dp = 4, .zero = 1}, 3, params_of, 0.1, "weights of layers.1 on rank 3 differ from those of ranks 0, 1, 2"},
      {{.dp = 4, .zero = 0},
       1,
       moment2_of,
       0.5,
       "second moments of layers.1 on rank 1 differ from those of ranks 0, 2, 3"},
      {{.dp = 2, .zero = 0, .compute = "bf16"},
       1,
       params_of,
       0.9,
       "weights of layers.1 on rank 1 differ from those of rank 0"},
      // Of two copies the owner's master weights decide: the flipped bit is in the other rank's part, or in its own.
      {{.dp = 2, .zero = 2, .compute = "bf16"},
       1,
       params_of,
       0.1,
       "weights of layers.1 on rank 1 differ from those of rank 0"},
      {{.dp = 2, .zero = 2, .compute = "bf16"},
       1,
       params_of,
       0.9,
       "weights of layers.1 on rank 1 differ from those of rank 0"},
      {{.dp = 2, .zero = 1},
       1,
       params_of,
       0.1,
       "weights of layers.1 differ between ranks 0, 1; which is right is not known"},
      // HSDP: shards on ranks 0 and 1, replicas on 2 and 3.
      {{.dp = 4, .zero = 3, .shard_size = 2},
       3,
       params_of,
       0.5,
       "weights of layers.1 differ between ranks 1, 3; which is right is not known"},
      {{.dp = 4, .zero = 3, .shard_size = 2, .compute = "bf16"},
       0,
       master_of,
       0.5,
       "master weights of layers.1 differ between ranks 0, 2; which is right is not known"},
  };
  for (const Flip& flipped : flips) {
    SCOPED_TRACE(flipped.layout.name());
    ProbeRequest request = tiny_request(model, batch, flipped.layout, {"optimizer.kind=adamw"});
    const std::string text = found(request, [&](RankSession& session, const auto& tokens) {
      for (int update = 1; update <= 3; ++update) {
        EXPECT_TRUE(step(session, tokens, update).updated);
        EXPECT_EQ(find_replica_difference(session), std::nullopt);
      }
      const at::Tensor tensor = flipped.tensor(session.executor().buffers(2));
      if (session.communicator().rank() == flipped.rank)
        flip(tensor, static_cast<int64_t>(flipped.share * static_cast<double>(tensor.numel())));
      return find_replica_difference(session).value_or("");
    });
    EXPECT_EQ(text, flipped.text);
  }
}

}  // namespace
}  // namespace fivefold::testing
