// The planner's bound of kernel scratch against what the kernels themselves ask for. That no run takes more is part of
// expect_predicted(), which every walk over layouts calls.
#include "planner/kernel_scratch.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/attention_scratch.h"
#include "kernels/column_scale.h"
#include "kernels/column_sum.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/qk_norm.h"
#include "support/tiny_model.h"

namespace fivefold::testing {
namespace {

constexpr int kThreads = 1;

struct Sizes {
  int64_t hidden = 64, heads = 4, kv_heads = 2, head_dim = 16, ffn = 128, vocab = 300, sequence = 64, micro = 1;
  bool bias = false, qk_norm = false, layer_norm = false;

  int64_t tokens() const { return micro * sequence; }
};

ModelSpec model_of(const Sizes& sizes) {
  ModelSpec model;
  model.name = "sizes";
  model.naming = "llama";
  model.hidden = sizes.hidden;
  model.vocab = sizes.vocab;
  model.max_positions = sizes.sequence;
  LayerSpec layer;
  layer.norm.kind = sizes.layer_norm ? NormKind::kLayer : NormKind::kRms;
  layer.mixer.num_heads = sizes.heads;
  layer.mixer.num_kv_heads = sizes.kv_heads;
  layer.mixer.head_dim = sizes.head_dim;
  layer.mixer.qkv_bias = sizes.bias;
  layer.mixer.qk_norm = sizes.qk_norm;
  layer.mixer.rope.rotary_dim = sizes.head_dim;
  layer.mlp.ffn = sizes.ffn;
  model.final_norm = layer.norm;
  model.layers = {layer, layer};
  return model;
}

KernelScratch bound(const Sizes& sizes, bool dora = false) {
  const ModelSpec model = model_of(sizes);
  RunConfig config;
  config.batch.sequence = sizes.sequence;
  config.batch.micro = config.batch.global = sizes.micro;
  if (dora) {
    config.method.kind = MethodKind::kLora;
    config.method.dora = true;
  }
  return largest_scratch(model, build_inventory(model), resolve(config, model).value(), kThreads);
}

// Of documents of every length that a sequence can hold, forward and backward.
TEST(KernelScratch, IsThatOfTheLargestAttention) {
  for (const int64_t head_dim : {16, 40, 64, 96, 128, 256, 512})
    for (const int64_t sequence : {64, 256, 300, 1024, 4096, 9000}) {
      int64_t most = 0;
      for (int64_t keys = 1; keys <= sequence; ++keys) {
        const AttentionShape shape{.max_segment_keys = keys, .head_dim = head_dim};
        most = std::max({most, attention_forward_scratch_bytes_per_thread(shape),
                         attention_backward_scratch_bytes_per_thread(shape)});
      }
      const KernelScratch scratch = bound({.head_dim = head_dim, .sequence = sequence});
      EXPECT_EQ(scratch.bytes, kThreads * std::max(most, kProductScratchPerThread)) << head_dim << " x " << sequence;
    }
}

// Each made the largest by its sizes.
TEST(KernelScratch, IsThatOfTheLargestKernel) {
  Sizes wide{.hidden = 8192, .sequence = 128, .micro = 100};
  EXPECT_EQ(bound(wide).bytes, kernels::rms_norm_backward_scratch_bytes(wide.tokens(), wide.hidden));
  wide.layer_norm = true;
  EXPECT_EQ(bound(wide).bytes, kernels::layer_norm_backward_scratch_bytes(wide.tokens(), wide.hidden));
  const Sizes heads{.head_dim = 256, .sequence = 1000, .micro = 300, .qk_norm = true};
  EXPECT_EQ(bound(heads).bytes, kernels::qk_norm_backward_scratch_bytes(heads.tokens(), heads.head_dim));
  const Sizes bias{.ffn = 50'000, .sequence = 1000, .micro = 3, .bias = true};
  EXPECT_EQ(bound(bias).bytes, kernels::column_sum_scratch_bytes(bias.tokens(), 2 * bias.ffn));
  const Sizes lengths{.ffn = 50'000, .sequence = 1000, .micro = 3};
  EXPECT_EQ(bound(lengths, true).bytes,
            kernels::column_dot_scratch_bytes(lengths.tokens(), 2 * lengths.ffn) + 4 * 2 * lengths.ffn * 4);
  const Sizes words{.hidden = 16, .vocab = 5'000'000, .sequence = 999};
  EXPECT_EQ(bound(words).bytes, kernels::embedding_backward_scratch_bytes(words.tokens(), words.vocab));
  // Output matrix and the norm before it.
  const Sizes unit{.hidden = 4096, .vocab = 1'000'000};
  EXPECT_EQ(bound(unit).bytes, kernels::sum_of_squares_scratch_bytes((unit.vocab + 1) * unit.hidden));
}

}  // namespace
}  // namespace fivefold::testing
