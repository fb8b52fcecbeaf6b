#include "spec/model_count.h"

namespace fivefold {
namespace {

int64_t norm_parameters(const NormSpec& norm, int64_t width) { return norm.bias ? 2 * width : width; }

int64_t linear_parameters(int64_t in, int64_t out, bool bias) { return in * out + (bias ? out : 0); }

int64_t attention_parameters(const MixerSpec& m, int64_t h) {
  const int64_t q = m.num_heads * m.head_dim, kv = m.num_kv_heads * m.head_dim;
  int64_t n =
      linear_parameters(h, (m.output_gate ? 2 : 1) * q + 2 * kv, m.qkv_bias) + linear_parameters(q, h, m.out_bias);
  if (m.qk_norm) n += 2 * m.head_dim;
  if (m.sinks) n += m.num_heads;
  return n;
}

// Down to a latent, a norm of it, up to heads; keys share one rotating part that bypasses the latent.
int64_t latent_attention_parameters(const MixerSpec& m, int64_t h) {
  const int64_t q = m.num_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim);
  int64_t n =
      m.q_lora_rank > 0 ? linear_parameters(h, m.q_lora_rank, m.qkv_bias) + m.q_lora_rank + m.q_lora_rank * q : h * q;
  n += linear_parameters(h, m.kv_lora_rank + m.qk_rope_head_dim, m.qkv_bias) + m.kv_lora_rank;
  n += m.kv_lora_rank * m.num_heads * (m.qk_nope_head_dim + m.v_head_dim);
  return n + linear_parameters(m.num_heads * m.v_head_dim, h, m.out_bias);
}

// Gated delta rule: q, k, v, z and the two gates per value head; a causal convolution over q, k, v; A and dt per head.
int64_t linear_attention_parameters(const MixerSpec& m, int64_t h) {
  const int64_t key = m.linear_key_heads * m.linear_key_dim, value = m.linear_value_heads * m.linear_value_dim;
  const int64_t in = h * (2 * key + 2 * value + 2 * m.linear_value_heads);
  return in + (2 * key + value) * m.conv_kernel + 2 * m.linear_value_heads + m.linear_value_dim +
         linear_parameters(value, h, m.out_bias);
}

// Mamba-2: z, x, B, C and dt; a causal convolution over x, B, C; A, D and dt_bias per head; a gated norm.
int64_t mamba2_parameters(const MixerSpec& m, int64_t h) {
  const int64_t inner = m.ssm_heads * m.ssm_head_dim, conv = inner + 2 * m.ssm_groups * m.ssm_state;
  return linear_parameters(h, inner + conv + m.ssm_heads, m.ssm_proj_bias) + conv * m.conv_kernel +
         (m.ssm_conv_bias ? conv : 0) + 3 * m.ssm_heads + inner + linear_parameters(inner, h, m.ssm_proj_bias);
}

int64_t mixer_parameters(const MixerSpec& m, int64_t h) {
  switch (m.kind) {
    case MixerKind::kNone:
      return 0;
    case MixerKind::kAttention:
      return attention_parameters(m, h);
    case MixerKind::kLatentAttention:
      return latent_attention_parameters(m, h);
    case MixerKind::kLinearAttention:
      return linear_attention_parameters(m, h);
    case MixerKind::kMamba2:
      return mamba2_parameters(m, h);
  }
  FIVEFOLD_CHECK(false);
}

int64_t ffn_parameters(int64_t h, int64_t f, bool gated, bool bias) {
  return linear_parameters(h, gated ? 2 * f : f, bias) + linear_parameters(f, h, bias);
}

// With `experts` routed experts of the m.num_experts.
int64_t mlp_parameters(const MlpSpec& m, int64_t h, int64_t experts) {
  switch (m.kind) {
    case MlpKind::kNone:
      return 0;
    case MlpKind::kGated:
      return ffn_parameters(h, m.ffn, true, m.bias);
    case MlpKind::kPlain:
      return ffn_parameters(h, m.ffn, false, m.bias);
    case MlpKind::kMoe:
      break;
  }
  int64_t n = linear_parameters(h, m.num_experts, m.router_bias);
  if (m.router_correction_bias) n += m.num_experts;
  if (m.shared_ffn > 0) n += ffn_parameters(h, m.shared_ffn, m.expert_gated, false);
  if (m.shared_gate) n += h;
  return n + experts * ffn_parameters(h, m.expert_ffn, m.expert_gated, m.expert_bias);
}

int64_t layer_parameters(const LayerSpec& layer, int64_t h, int64_t experts) {
  const int64_t norm = norm_parameters(layer.norm, h);
  const int64_t around = (layer.pre_norm ? norm : 0) + (layer.post_norm ? norm : 0);
  int64_t n = mixer_parameters(layer.mixer, h) + mlp_parameters(layer.mlp, h, experts);
  if (layer.single_norm) return n + norm;
  if (layer.mixer.kind != MixerKind::kNone) n += around;
  if (layer.mlp.kind != MlpKind::kNone) n += around;
  return n;
}

int64_t outside_layers(const ModelSpec& model) {
  int64_t n = count_embedding_parameters(model) + norm_parameters(model.final_norm, model.hidden);
  if (!model.tied_embeddings) n += linear_parameters(model.hidden, model.vocab, model.embedding_bias_head);
  return n;
}

}  // namespace

int64_t count_layer_parameters(const LayerSpec& layer, int64_t hidden) {
  return layer_parameters(layer, hidden, layer.mlp.num_experts);
}

int64_t count_parameters(const ModelSpec& model) {
  int64_t n = outside_layers(model);
  for (const LayerSpec& layer : model.layers) n += count_layer_parameters(layer, model.hidden);
  return n;
}

int64_t count_active_parameters(const ModelSpec& model) {
  int64_t n = outside_layers(model);
  for (const LayerSpec& layer : model.layers) n += layer_parameters(layer, model.hidden, layer.mlp.experts_per_token);
  return n;
}

int64_t count_embedding_parameters(const ModelSpec& model) {
  return model.hidden * (model.vocab + (model.learned_positions ? model.max_positions : 0));
}

}  // namespace fivefold
