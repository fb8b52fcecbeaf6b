#include <fmt/format.h>

#include "exporters/megatron_export.h"

namespace fivefold {
namespace {

void add_attention(const ModelShape& shape, FlagGroup& flags) {
  flags.add("num-attention-heads", shape.heads);
  if (shape.kv_lora_rank > 0) {
    flags.flag("multi-latent-attention");
    if (shape.q_lora_rank > 0) flags.add("q-lora-rank", shape.q_lora_rank);
    flags.add("kv-lora-rank", shape.kv_lora_rank);
    flags.add("qk-head-dim", shape.qk_nope_head_dim);
    flags.add("qk-pos-emb-head-dim", shape.qk_rope_head_dim);
    flags.add("v-head-dim", shape.v_head_dim);
  } else {
    if (shape.kv_heads != shape.heads) {
      flags.flag("group-query-attention");
      flags.add("num-query-groups", shape.kv_heads);
    }
    flags.add("kv-channels", shape.head_dim);
  }
  if (shape.qkv_bias && !shape.linear_bias) flags.flag("add-qkv-bias");
  if (!shape.linear_bias) flags.flag("disable-bias-linear");
  if (shape.qk_norm) flags.flag("qk-layernorm");
  if (shape.window > 0) flags.add("window-size", fmt::format("({},0)", shape.window));
}

void add_experts(const ModelShape& shape, const ModelSpec& model, FlagGroup& flags) {
  if (shape.experts == 0) return;
  const MlpSpec& mlp = model.layers.back().mlp;
  flags.add("num-experts", shape.experts);
  flags.add("moe-router-topk", shape.experts_per_token);
  flags.add("moe-ffn-hidden-size", shape.expert_ffn);
  if (shape.shared_ffn > 0) flags.add("moe-shared-expert-intermediate-size", shape.shared_ffn);
  if (shape.shared_gate) flags.flag("moe-shared-expert-gate");
  if (shape.dense_first > 0)
    flags.add("moe-layer-freq", fmt::format("([0]*{}+[1]*{})", shape.dense_first, shape.layers - shape.dense_first));
  if (mlp.router == RouterKind::kSigmoid) flags.add("moe-router-score-function", "sigmoid");
  if (mlp.router == RouterKind::kSoftmaxTopK && !mlp.normalize_weights) flags.flag("moe-router-pre-softmax");
  if (mlp.router_correction_bias) flags.flag("moe-router-enable-expert-bias");
  if (mlp.expert_groups > 1) {
    flags.add("moe-router-num-groups", mlp.expert_groups);
    flags.add("moe-router-group-topk", mlp.groups_per_token);
  }
  if (mlp.routed_scaling != 1.0) flags.add("moe-router-topk-scaling-factor", mlp.routed_scaling);
  flags.add("moe-router-load-balancing-type", "aux_loss");
  flags.flag("moe-grouped-gemm");
}

}  // namespace

FlagGroup megatron_model_flags(const ModelShape& shape, const ExportedPlan& plan, ExportSheet& sheet) {
  FlagGroup flags("MODEL_ARGS");
  const ModelSpec& model = plan.model;
  flags.add("num-layers", shape.layers);
  flags.add("hidden-size", shape.hidden);
  // Megatron-LM asks for the width of a dense MLP also where every layer has experts.
  flags.add("ffn-hidden-size", shape.ffn > 0 ? shape.ffn : shape.expert_ffn);
  add_attention(shape, flags);
  flags.add("seq-length", plan.config.batch.sequence);
  flags.add("max-position-embeddings", std::max(shape.max_positions, plan.config.batch.sequence));
  if (shape.rope) {
    flags.add("position-embedding-type", "rope");
    flags.add("rotary-base", static_cast<int64_t>(shape.rope_theta));
    if (shape.rope_scaled) {
      flags.flag("use-rope-scaling");
      flags.add("rope-scaling-factor", model.layers.back().mixer.rope.factor);
    }
  } else {
    flags.add("position-embedding-type", model.learned_positions ? "learned_absolute" : "none");
  }
  flags.add("normalization", shape.rms_norm ? "RMSNorm" : "LayerNorm");
  flags.add("norm-epsilon", shape.norm_eps);
  if (shape.gated) flags.flag("swiglu");
  if (shape.squared_relu) flags.flag("squared-relu");
  if (!shape.tied) flags.flag("untie-embeddings-and-output-weights");
  add_experts(shape, model, flags);
  flags.add("init-method-std", model.init_std);
  flags.add("hidden-dropout", 0.0);
  flags.add("attention-dropout", 0.0);
  // fivefold pads the vocabulary to equal parts over tp and no further.
  flags.add("vocab-size", shape.vocab);
  flags.add("make-vocab-size-divisible-by", int64_t{1});
  sheet.says({"model.name", "model.config", "batch.sequence"});
  return flags;
}

}  // namespace fivefold
