// Models for the tests of validation: only the sizes that rules look at.
#pragma once

#include "spec/model.h"

namespace fivefold::test {

struct Shape {
  int64_t layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, vocab = 128256, max_positions = 8192;
};

// Llama-3-8B unless said otherwise.
inline ModelSpec dense_model(const Shape& shape = {}) {
  ModelSpec model;
  model.hidden = shape.hidden;
  model.vocab = shape.vocab;
  model.max_positions = shape.max_positions;
  LayerSpec layer;
  layer.mixer.num_heads = shape.heads;
  layer.mixer.num_kv_heads = shape.kv_heads;
  layer.mixer.head_dim = shape.hidden / shape.heads;
  layer.mlp.ffn = shape.ffn;
  model.layers.assign(static_cast<size_t>(shape.layers), layer);
  return model;
}

// The shape of Mixtral-8x7B.
inline ModelSpec expert_model() {
  ModelSpec model = dense_model({.vocab = 32000, .max_positions = 32768});
  for (LayerSpec& layer : model.layers) {
    layer.mlp = MlpSpec{};
    layer.mlp.kind = MlpKind::kMoe;
    layer.mlp.num_experts = 8;
    layer.mlp.experts_per_token = 2;
    layer.mlp.expert_ffn = 14336;
  }
  return model;
}

inline ModelSpec gpt2_model() {
  ModelSpec model = dense_model(
      {.layers = 12, .hidden = 768, .heads = 12, .kv_heads = 12, .ffn = 3072, .vocab = 50257, .max_positions = 1024});
  model.learned_positions = true;
  for (LayerSpec& layer : model.layers) {
    layer.mlp.kind = MlpKind::kPlain;
    layer.mlp.activation = Activation::kGeluTanh;
  }
  return model;
}

}  // namespace fivefold::test
