#include "spec/validate_testing.h"

namespace fivefold::test {
namespace {

TEST(Validate, EngineRunsDenseDataParallelTraining) {
  ModelSpec windowed = dense_model();
  for (LayerSpec& layer : windowed.layers) layer.mixer.window = 4096;
  for (const char* zero : {"0", "1", "2", "3"})
    for (const char* compute : {"fp32", "bf16"})
      EXPECT_EQ(engine(dense_model(), {"parallel.dp=8", std::string("parallel.zero=") + zero, "parallel.shard_size=0",
                                       std::string("precision.compute=") + compute, "recompute.kind=full"}),
                Messages{});
  EXPECT_EQ(engine(windowed, {"batch.sequence=4096"}), Messages{}) << "the window covers the sequence";
  EXPECT_EQ(engine(gpt2_model(), {"optimizer.kind=sgd"}), Messages{});
  EXPECT_EQ(engine(dense_model(), {"data.format=chat", "data.chat_template=llama-3", "data.loss=all"}), Messages{});
  EXPECT_EQ(engine(dense_model(), {"precision.compute=fp16", "parallel.tp=2", "parallel.pp=2"}), Messages{});
}

constexpr const char* kDense = " (use a dense model such as Llama, Mistral, Qwen2, Qwen3 or GPT-2)";

TEST(Validate, EngineRefusesModelsItOnlyPlans) {
  const auto refusal = [](auto&& change) {
    ModelSpec model = dense_model();
    change(model.layers[3]);
    return engine(model, {});
  };
  const auto message = [](const std::string& what) {
    return Messages{"model: the engine does not run " + what + " (layer 3)" + kDense};
  };
  EXPECT_EQ(refusal([](LayerSpec& l) { l.mlp.kind = MlpKind::kMoe; }), message("experts"));
  EXPECT_EQ(refusal([](LayerSpec& l) { l.mixer.kind = MixerKind::kLatentAttention; }),
            message("multi-head latent attention"));
  EXPECT_EQ(refusal([](LayerSpec& l) { l.mixer.sinks = true; }), message("attention sinks"));
  EXPECT_EQ(refusal([](LayerSpec& l) { l.post_norm = true; }), message("norms after the sublayers"));
  EXPECT_EQ(refusal([](LayerSpec& l) { l.norm.weight_plus_one = true; }), message("norms that scale by 1 + weight"));
  EXPECT_EQ(refusal([](LayerSpec& l) { l.mixer.kind = MixerKind::kMamba2; }), message("state space layers"));
  EXPECT_EQ(refusal([](LayerSpec& l) { l.mixer.window = 512; }),
            (Messages{"batch.sequence: the engine does not run 1024 tokens under an attention window of 512 (use "
                      "sequence = 512)"}));
  ModelSpec capped = dense_model();
  capped.logit_softcap = 30.0;
  EXPECT_EQ(engine(capped, {}),
            (Messages{"model: the engine does not run capped logits (head)" + std::string(kDense)}));
  EXPECT_EQ(engine(expert_model(), {}),
            (Messages{"model: the engine does not run experts (layer 0)" + std::string(kDense)}))
      << "said once, not per layer";
}

TEST(Validate, EngineRefusesLossScalesThatFp32OrFp16CannotHold) {
  for (const std::string scale : {"1e-08", "1e+300"})
    EXPECT_EQ(engine(dense_model(), {"precision.compute=fp16", "precision.loss_scale=" + scale}),
              (Messages{"precision.loss_scale: the engine does not run a loss scale of " + scale +
                        " (use loss_scale = "
                        "65536)"}));
  EXPECT_EQ(engine(dense_model(), {"precision.compute=bf16", "precision.loss_scale=1e300"}), Messages{});
}

TEST(Validate, EngineRefusesLayoutsItOnlyPlans) {
  const WrongSetting cases[] = {
      {"parallel.ep=2",
       "parallel.ep: the engine does not run ep = 2 (use ep = 1: dp with zero = 0 to 3, tp with or without sp, cp and "
       "pp run)"},
      {"parallel.etp=2",
       "parallel.etp: the engine does not run etp = 2 (use etp = 1: dp with zero = 0 to 3, tp with or without sp, cp "
       "and pp run)"},
      {"parallel.dp=257", "parallel.dp: 257 ranks are too many threads for one process (use dp = 256)"},
      {"precision.params=fp32",
       "precision.params: the engine does not run fp32 under bf16 compute (use params = auto)"},
      {"precision.reduce=fp32",
       "precision.reduce: the engine does not run fp32 on the wire for gradients in bf16 (use reduce = auto)"},
      {"comm.backend=mpi", "comm.backend: the engine does not run mpi (use backend = local)"},
      {"checkpoint.asynchronous=true",
       "checkpoint.asynchronous: the engine does not run an asynchronous save (use asynchronous = false)"},
  };
  for (const WrongSetting& wrong : cases) EXPECT_EQ(engine(dense_model(), {wrong.setting}), Messages{wrong.message});
  EXPECT_EQ(engine(dense_model(), {"precision.compute=fp16", "precision.master=none"}).back(),
            "precision.master: the engine does not run fp16 weights without a master copy (use master = fp32, or "
            "compute = bf16)");
}

}  // namespace
}  // namespace fivefold::test
