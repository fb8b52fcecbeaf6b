// What the tests of users' reports share: shapes of models, runs of other frameworks, verdicts.
#pragma once

#include <algorithm>

#include "planner/planner_testing.h"
#include "planner/profiles/device_need.h"
#include "planner/profiles/host_need.h"
#include "planner/profiles/profiles_testing.h"

namespace fivefold::test {

struct Llama {
  int64_t layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, vocab = 128256;
};
inline ModelSpec llama(const Llama& shape) {
  LayerSpec layer;
  layer.mixer.num_heads = shape.heads;
  layer.mixer.num_kv_heads = shape.kv_heads;
  layer.mixer.head_dim = shape.hidden / shape.heads;
  layer.mlp.ffn = shape.ffn;
  ModelSpec model;
  model.hidden = shape.hidden;
  model.vocab = shape.vocab;
  model.layers.assign(static_cast<size_t>(shape.layers), layer);
  return model;
}

// Learned positions are left out, h as all heads together, f = 4 h, tied.
struct Gpt {
  int64_t layers = 12, hidden = 768, heads = 12, vocab = 50304;
};
inline ModelSpec gpt(const Gpt& shape) {
  ModelSpec model = llama({shape.layers, shape.hidden, shape.heads, shape.heads, 4 * shape.hidden, shape.vocab});
  model.tied_embeddings = true;
  model.final_norm = {.kind = NormKind::kLayer, .bias = true};
  for (LayerSpec& layer : model.layers) {
    layer.norm = model.final_norm;
    layer.mixer.qkv_bias = layer.mixer.out_bias = layer.mlp.bias = true;
    layer.mlp.kind = MlpKind::kPlain;
  }
  return model;
}

inline double parameters(const ModelSpec& model) {
  return static_cast<double>(build_inventory(model).num_parameters());
}

inline FrameworkRun run_of(Framework framework, ModelSpec model, const char* gpu) {
  FrameworkRun run;
  run.framework = framework;
  run.model = std::move(model);
  run.gpu = gpu;
  run.capacity_bytes = static_cast<int64_t>(named_hardware(gpu).device.memory_bytes.value);
  return run;
}

inline bool fits(const FrameworkRun& run) { return needed_bytes(profile_memory(run)) <= run.capacity_bytes; }
inline double peak_gb(const FrameworkRun& run) { return static_cast<double>(profile_memory(run).peak().bytes()) / 1e9; }
inline double static_gb(const FrameworkRun& run) { return static_cast<double>(profile_memory(run).static_bytes) / 1e9; }

inline ResolvedConfig resolved_run(const ModelSpec& model, const RunConfig& config) {
  const auto result = resolve(config, model);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message());
  return *result;
}

}  // namespace fivefold::test
