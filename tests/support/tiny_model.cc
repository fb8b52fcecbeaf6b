#include "support/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fivefold::testing {
namespace {

double squared_norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

}  // namespace

std::string to_string(TinyKind kind) {
  switch (kind) {
    case TinyKind::kLlama:
      return "llama";
    case TinyKind::kTiedQwen3:
      return "tied_qwen3";
    case TinyKind::kGpt2:
      return "gpt2";
  }
  FIVEFOLD_CHECK(false);
}

ModelSpec tiny_model(TinyKind kind, int64_t num_layers) {
  const bool gpt2 = kind == TinyKind::kGpt2;
  ModelSpec model;
  model.name = to_string(kind);
  model.hidden = kind == TinyKind::kTiedQwen3 ? 40 : 32;
  model.vocab = kind == TinyKind::kLlama ? 64 : 61;
  model.max_positions = kTinySequence;
  model.learned_positions = gpt2;
  model.tied_embeddings = kind != TinyKind::kLlama;
  model.naming = gpt2 ? "gpt2" : "llama";
  model.init_std = 0.2;
  LayerSpec layer;
  layer.mixer.num_heads = 4;
  layer.mixer.num_kv_heads = gpt2 ? 4 : kind == TinyKind::kTiedQwen3 ? 1 : 2;
  layer.mixer.head_dim = kind == TinyKind::kTiedQwen3 ? 10 : 8;
  layer.mixer.qk_norm = kind == TinyKind::kTiedQwen3;
  layer.mixer.qkv_bias = layer.mixer.out_bias = gpt2;
  layer.mixer.has_rope = !gpt2;
  layer.mixer.rope.rotary_dim = layer.mixer.head_dim;
  layer.mlp.ffn = gpt2 ? 128 : 72;
  if (gpt2) {
    layer.norm = {.kind = NormKind::kLayer, .eps = 1e-5, .bias = true};
    layer.mlp.kind = MlpKind::kPlain;
    layer.mlp.activation = Activation::kGeluTanh;
    layer.mlp.bias = true;
  }
  model.final_norm = layer.norm;
  model.layers.assign(static_cast<size_t>(num_layers), layer);
  return model;
}

ModelSpec tiny_model_of_two_state_kinds(int64_t vocab) {
  ModelSpec model = tiny_model(TinyKind::kLlama);
  model.vocab = vocab;
  model.hidden = 64;
  model.init_std = 0.1;
  for (LayerSpec& layer : model.layers) {
    layer.mixer.head_dim = 16;
    layer.mixer.num_kv_heads = 1;
    layer.mixer.rope.rotary_dim = 16;
    layer.mlp.ffn = 96;
  }
  return model;
}

GlobalBatch ragged_batch(const ModelSpec& model, const std::vector<int64_t>& valid_tokens, uint32_t seed) {
  GlobalBatch batch;
  batch.rows = static_cast<int64_t>(valid_tokens.size());
  batch.sequence = kTinySequence;
  uint32_t state = seed;
  const auto next = [&] {
    state = state * 1664525u + 1013904223u;
    return static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(model.vocab));
  };
  for (const int64_t valid : valid_tokens) {
    FIVEFOLD_CHECK(valid <= kTinySequence);
    for (int64_t i = 0; i < kTinySequence; ++i) {
      batch.input_ids.push_back(next());
      batch.targets.push_back(i < valid ? next() : -100);
      batch.positions.push_back(static_cast<int32_t>(i));
    }
    batch.document_lengths.push_back({static_cast<int32_t>(kTinySequence)});
  }
  return batch;
}

GlobalBatch select_rows(const GlobalBatch& batch, const std::vector<int64_t>& rows) {
  GlobalBatch result;
  result.rows = static_cast<int64_t>(rows.size());
  result.sequence = batch.sequence;
  for (const int64_t row : rows) {
    const int64_t from = std::max<int64_t>(row, 0), begin = from * batch.sequence, end = begin + batch.sequence;
    const auto append = [&](const std::vector<int32_t>& values, std::vector<int32_t>& to) {
      to.insert(to.end(), values.begin() + begin, values.begin() + end);
    };
    append(batch.input_ids, result.input_ids);
    append(batch.positions, result.positions);
    if (row < 0) {
      result.targets.insert(result.targets.end(), static_cast<size_t>(batch.sequence), -100);
    } else {
      append(batch.targets, result.targets);
    }
    result.document_lengths.push_back(batch.document_lengths[static_cast<size_t>(from)]);
  }
  return result;
}

ProbeRequest tiny_request(const ModelSpec& model, const GlobalBatch& batch, const Layout& layout,
                          const std::vector<std::string>& settings) {
  Reference reference;
  reference.model = model;
  reference.batch = batch;
  std::vector<std::string> all = {"optimizer.kind=sgd", "optimizer.clip=0", "optimizer.weight_decay=0", "run.seed=7"};
  all.insert(all.end(), settings.begin(), settings.end());
  return probe_request(reference, layout, all);
}

ProbeResult probe(const ProbeRequest& request) {
  static EngineApi* const engine = load_engine().value();
  return engine->probe(request).value();
}

double norm(const std::vector<NamedTensor>& tensors) {
  double sum = 0;
  for (const NamedTensor& tensor : tensors) sum += squared_norm(tensor.values);
  return std::sqrt(sum);
}

double largest_difference(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  FIVEFOLD_CHECK(a.size() == b.size());
  const double floor = 1e-3 * norm(b);
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    FIVEFOLD_CHECK(a[i].name == b[i].name && a[i].values.size() == b[i].values.size());
    std::vector<float> difference(a[i].values.size());
    std::transform(a[i].values.begin(), a[i].values.end(), b[i].values.begin(), difference.begin(), std::minus<>());
    const double share = std::sqrt(squared_norm(difference)) / std::max(std::sqrt(squared_norm(b[i].values)), floor);
    if (std::isnan(share)) return share;
    largest = std::max(largest, share);
  }
  return largest;
}

bool same_bits(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const NamedTensor& x, const NamedTensor& y) {
    return x.name == y.name && x.shape == y.shape && x.values.size() == y.values.size() &&
           std::memcmp(x.values.data(), y.values.data(), x.values.size() * sizeof(float)) == 0;
  });
}

}  // namespace fivefold::testing
