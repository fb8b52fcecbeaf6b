// 300 steps of a small model with fp8 operands, each scaling: the loss ends where bf16 does.
#include <gtest/gtest.h>

#include "support/short_training.h"

namespace fivefold::testing {
namespace {

using Fp8Training = ShortTraining;

// Sizes in multiples of 128, as blocks of scales need them.
ModelSpec model_of_blocks() {
  ModelSpec model = tiny_model_of_two_state_kinds(257);
  model.hidden = 128;
  for (LayerSpec& layer : model.layers) {
    layer.mixer.head_dim = 32;
    layer.mixer.rope.rotary_dim = 32;
    layer.mlp.ffn = 128;
  }
  return model;
}

TEST_F(Fp8Training, EndsAtTheLossOfBf16) {
  const double bf16 = mean_loss_of_last_50({}, model_of_blocks());
  EXPECT_LT(bf16, 2.0);
  for (const std::string scaling : {"current", "delayed", "block"}) {
    const double loss = mean_loss_of_last_50({"precision.compute=fp8", "precision.fp8=" + scaling}, model_of_blocks());
    std::printf("fp8, %s scaling: %.4f, bf16 %.4f\n", scaling.c_str(), loss, bf16);
    EXPECT_NEAR(loss, bf16, 0.05) << scaling;
  }
}

}  // namespace
}  // namespace fivefold::testing
