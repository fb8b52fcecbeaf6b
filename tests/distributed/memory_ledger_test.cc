// Predicted = counted: for every configuration the planner's peak per account equals what the engine's allocator
// counted on every rank, workspace and other excepted, and the traffic of a step equals the counters, call by call.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/predicted.h"
#include "support/reference_run.h"

namespace fivefold::testing {
namespace {

struct Shape {
  const char* name;
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, sequence;
  bool tied = false, gpt2 = false, qk_norm = false, qkv_bias = false;
};

constexpr Shape kShapes[] = {
    {.name = "llama",
     .layers = 4,
     .hidden = 64,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .ffn = 176,
     .vocab = 300,
     .sequence = 48},
    {.name = "tied_odd_vocabulary",
     .layers = 3,
     .hidden = 40,
     .heads = 4,
     .kv_heads = 1,
     .head_dim = 10,
     .ffn = 72,
     .vocab = 131,
     .sequence = 33,
     .tied = true,
     .qk_norm = true},
    {.name = "gpt2",
     .layers = 3,
     .hidden = 48,
     .heads = 4,
     .kv_heads = 4,
     .head_dim = 12,
     .ffn = 192,
     .vocab = 257,
     .sequence = 40,
     .tied = true,
     .gpt2 = true,
     .qkv_bias = true},
};

ModelSpec model_of(const Shape& shape) {
  ModelSpec model;
  model.name = shape.name;
  model.hidden = shape.hidden;
  model.vocab = shape.vocab;
  model.max_positions = 64;
  model.learned_positions = shape.gpt2;
  model.tied_embeddings = shape.tied;
  model.naming = shape.gpt2 ? "gpt2" : "llama";
  LayerSpec layer;
  layer.mixer.num_heads = shape.heads;
  layer.mixer.num_kv_heads = shape.kv_heads;
  layer.mixer.head_dim = shape.head_dim;
  layer.mixer.qkv_bias = shape.qkv_bias;
  layer.mixer.out_bias = shape.gpt2;
  layer.mixer.qk_norm = shape.qk_norm;
  layer.mixer.has_rope = !shape.gpt2;
  layer.mixer.rope.rotary_dim = shape.head_dim;
  layer.mlp.ffn = shape.ffn;
  if (shape.gpt2) {
    layer.norm = {.kind = NormKind::kLayer, .eps = 1e-5, .bias = true};
    layer.mlp.kind = MlpKind::kPlain;
    layer.mlp.activation = Activation::kGeluTanh;
    layer.mlp.bias = true;
  }
  model.final_norm = layer.norm;
  model.layers.assign(static_cast<size_t>(shape.layers), layer);
  return model;
}

// Random tokens; row r has a different number of valid targets, some rows none.
GlobalBatch random_batch(const Shape& shape, int64_t rows) {
  GlobalBatch batch{.rows = rows,
                    .sequence = shape.sequence,
                    .input_ids = {},
                    .targets = {},
                    .positions = {},
                    .document_lengths = {}};
  uint32_t state = 12345;
  const auto next = [&state] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t valid = row % 4 == 3 ? 0 : shape.sequence / (row % 4 + 1);
    for (int64_t i = 0; i < shape.sequence; ++i) {
      batch.input_ids.push_back(static_cast<int32_t>(next() % static_cast<uint32_t>(shape.vocab)));
      batch.targets.push_back(i < valid ? static_cast<int32_t>(next() % static_cast<uint32_t>(shape.vocab)) : -100);
      batch.positions.push_back(static_cast<int32_t>(i));
    }
    batch.document_lengths.push_back({static_cast<int32_t>(shape.sequence)});
  }
  return batch;
}

struct Case {
  int dp = 1, zero = 0, shard_size = 0, micro = 1, accumulation = 1, recompute = 0;
  bool bf16 = false;
  int tp = 1;
  bool sp = false;
  int bucket_layers = 1;
  bool reduces_once = false;
  int drops = 0;  // of selective recompute: the MLP's product, with 2 also QKV, with 3 also the heads' output
  const char* states = "fp32";
  bool master = true;
  int pp = 1;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool bf16 : {false, true}) {
    for (const int recompute : {0, 1, 2}) {
      for (const int accumulation : {1, 3}) {
        for (const int dp : {1, 2, 4})
          for (const int zero : {0, 1, 2, 3}) all.push_back({dp, zero, 0, 2, accumulation, recompute, bf16});
        for (const int zero : {1, 2, 3}) all.push_back({4, zero, 2, 1, accumulation, recompute, bf16});
        all.push_back({8, 3, 4, 1, accumulation, recompute, bf16});
        for (const int zero : {0, 1, 2, 3})
          all.push_back({4, zero, zero == 0 ? 0 : 2, 1, accumulation, recompute, bf16, 1, false, 2 + zero % 2});
        all.push_back({4, 3, 2, 1, accumulation, recompute, bf16, 1, false, 2, true});
        if (accumulation == 1 && recompute == 1) continue;
        for (const bool sp : {false, true}) {
          for (const int zero : {0, 1, 2, 3}) all.push_back({2, zero, 0, 2, accumulation, recompute, bf16, 2, sp});
          all.push_back({1, 0, 0, 1, accumulation, recompute, bf16, 4, sp});
          all.push_back({4, 3, 2, 1, accumulation, recompute, bf16, 2, sp});
        }
      }
    }
  }
  for (const bool bf16 : {false, true})
    for (const int drops : {1, 2, 3}) {
      for (const int zero : {0, 3})
        all.push_back({.dp = 2, .zero = zero, .micro = 2, .accumulation = 2, .bf16 = bf16, .drops = drops});
      for (const bool sp : {false, true})
        all.push_back(
            {.dp = 2, .zero = 2, .micro = 2, .accumulation = 1, .bf16 = bf16, .tp = 2, .sp = sp, .drops = drops});
    }
  return all;
}

// Optimizer states in 8 bits and bf16, weights without master, over every level, tensor parallelism and pipelines.
std::vector<Case> cases_of_state_types() {
  std::vector<Case> all;
  for (const bool bf16 : {false, true}) {
    for (const char* states : {"fp32", "bf16", "8bit"}) {
      for (const bool master : {true, false}) {
        if (master ? std::string_view(states) == "fp32" : !bf16) continue;
        for (const int zero : {0, 1, 2, 3}) {
          Case c{4, zero, zero == 0 ? 0 : 2, 1, 2, zero % 2, bf16};
          c.states = states;
          c.master = master;
          all.push_back(c);
          c.dp = 2;
          c.shard_size = 0;
          c.tp = 2;
          c.sp = zero > 1;
          all.push_back(c);
          c.tp = 1;
          c.sp = false;
          c.pp = 2;
          c.recompute = 0;
          all.push_back(c);
        }
      }
    }
  }
  return all;
}

ResolvedConfig config_of(const Shape& shape, const Case& c, const ModelSpec& model) {
  ConfigSources sources;
  const auto set = [&](const std::string& key, auto value) {
    sources.set.push_back(key + "=" + std::to_string(value));
  };
  set("parallel.dp", c.dp);
  set("parallel.zero", c.zero);
  set("parallel.shard_size", c.shard_size);
  set("parallel.tp", c.tp);
  set("parallel.pp", c.pp);
  sources.set.push_back(std::string("precision.optimizer_state=") + c.states);
  if (!c.master) sources.set.emplace_back("precision.master=none");
  sources.set.push_back(std::string("parallel.sp=") + (c.sp ? "true" : "false"));
  set("parallel.bucket_layers", c.bucket_layers);
  if (c.reduces_once) sources.set.emplace_back("parallel.reduce=step");
  set("parallel.threads", 1);
  set("batch.micro", c.micro);
  set("batch.global", c.micro * c.dp * c.accumulation);
  set("batch.sequence", shape.sequence);
  set("batch.loss_chunk", 20);
  set("comm.timeout_s", 60);
  sources.set.push_back(std::string("precision.compute=") + (c.bf16 ? "bf16" : "fp32"));
  if (c.recompute > 0) {
    sources.set.push_back("recompute.kind=full");
    set("recompute.every", c.recompute);
  }
  if (c.drops > 0) {
    sources.set.push_back("recompute.kind=selective");
    sources.set.push_back(std::string("recompute.tensors=") + (shape.gpt2 ? "mlp.up" : "mlp.gate_up") +
                          (c.drops > 1 ? ",attention.qkv" : "") + (c.drops > 2 ? ",attention.out" : ""));
  }
  const LoadedConfig loaded = load_config(sources);
  FIVEFOLD_CHECK(loaded.errors.empty());
  return resolve(loaded.config, model).value();
}

std::string describe(const Shape& shape, const Case& c) {
  return std::string(shape.name) + " dp" + std::to_string(c.dp) + " zero" + std::to_string(c.zero) + " shard" +
         std::to_string(c.shard_size) + " micro" + std::to_string(c.micro) + " acc" + std::to_string(c.accumulation) +
         " recompute" + std::to_string(c.recompute) + (c.bf16 ? " bf16" : " fp32") + " tp" + std::to_string(c.tp) +
         (c.sp ? " sp" : "") + " bucket" + std::to_string(c.bucket_layers) + (c.reduces_once ? " once" : "") +
         (c.drops > 0 ? " drops" + std::to_string(c.drops) : "") + " states " + c.states +
         (c.master ? "" : " without master") + " pp" + std::to_string(c.pp);
}

class MemoryLedger : public ::testing::TestWithParam<Shape> {
 protected:
  void expect_all(const std::vector<Case>& cases) {
    EngineApi* const engine = load_engine().value();
    const Shape& shape = GetParam();
    const ModelSpec model = model_of(shape);
    const Inventory inventory = build_inventory(model);
    int configurations = 0;
    for (const Case& c : cases) {
      SCOPED_TRACE(describe(shape, c));
      ProbeRequest request;
      request.model = model;
      request.config = config_of(shape, c, model);
      request.batch = random_batch(shape, int64_t{c.micro} * c.dp * c.accumulation);
      request.updates = 1;
      request.want_gradients = false;
      const ProbeResult result = engine->probe(request).value();
      expect_predicted(model, inventory, request, result);
      if (::testing::Test::HasFailure()) return;
      ++configurations;
    }
    std::printf("%d configurations of %s\n", configurations, shape.name);
  }
};

TEST_P(MemoryLedger, PredictedEqualsCountedOnEveryRank) { expect_all(cases()); }
TEST_P(MemoryLedger, PredictedEqualsCountedForEveryStateType) { expect_all(cases_of_state_types()); }

INSTANTIATE_TEST_SUITE_P(Shapes, MemoryLedger, ::testing::ValuesIn(kShapes),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fivefold::testing
