// Names of GPUs and models as sources write them.
#include "planner/published/published_names.h"

#include <algorithm>

#include "base/integer.h"

namespace fivefold {
namespace {

// Multi-head latent attention of DeepSeek-V2, -V3 and Kimi K2 (config.json on the Hub): all have the same sizes.
MixerSpec deepseek_attention(MixerSpec mixer) {
  mixer.kind = MixerKind::kLatentAttention;
  mixer.q_lora_rank = 1536;
  mixer.kv_lora_rank = 512;
  mixer.qk_nope_head_dim = mixer.v_head_dim = 128;
  mixer.qk_rope_head_dim = 64;
  return mixer;
}

// Nemotron 3 Nano's hybrid_override_pattern: M Mamba, E experts, * attention, each a layer with a norm of its own.
void read_nemotron_nano(ModelSpec& model) {
  constexpr std::string_view kPattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
  if (model.layers.size() != kPattern.size()) return;
  MixerSpec mamba;
  mamba.kind = MixerKind::kMamba2;
  mamba.ssm_heads = mamba.ssm_head_dim = 64;
  mamba.ssm_state = 128;
  mamba.ssm_groups = 8;
  mamba.conv_kernel = 4;
  for (size_t i = 0; i < kPattern.size(); ++i) {
    LayerSpec& layer = model.layers[i];
    layer.single_norm = true;
    if (kPattern[i] == 'M') layer.mixer = mamba;
    if (kPattern[i] == 'E') layer.mixer.kind = MixerKind::kNone;
    if (kPattern[i] != 'E') layer.mlp = {.kind = MlpKind::kNone};
  }
}

}  // namespace

std::string published_gpu(const PublishedRun& row) {
  const std::string gpu = row.text("gpu");
  const auto has = [&](const char* part) { return gpu.find(part) != std::string::npos; };
  if (has("GB300")) return "gb300";
  if (has("GB200")) return "gb200";
  if (has("B300")) return "b300-sxm-288gb";
  if (has("B200")) return has("power limited") ? "b200-sxm-power-limited" : "b200-sxm-180gb";
  if (has("H200")) return "h200-sxm-141gb";
  if (has("H800")) return "h800-sxm-80gb";
  if (has("H100-96GB") && has("500W")) return "h100-sxm-96gb-500w";
  if (has("H100")) return "h100-sxm-80gb";
  if (has("A800")) return "a800-sxm-80gb";
  if (has("A100")) return has("40GB") || row.integer("gpu_mem_gb", 80) == 40 ? "a100-sxm-40gb" : "a100-sxm-80gb";
  if (has("MI300")) return "mi300x";
  if (has("L40S")) return "l40s";
  if (has("4090")) return "rtx-4090";
  if (has("A6000")) return "rtx-a6000";
  if (has("V100")) return "v100-sxm-32gb";
  return {};
}

std::string published_cluster(const PublishedRun& row) {
  const std::string gpu = published_gpu(row);
  if (gpu == "h100-sxm-80gb") return row.text("interconnect").find("EFA") != std::string::npos ? "aws-p5" : "dgx-h100";
  if (gpu == "b200-sxm-180gb") return "dgx-b200";
  if (gpu == "a100-sxm-40gb") return "dgx-a100-40gb";
  return "";
}

// From their config.json on the Hub; of GPT the 50,257 of GPT-2 padded as Megatron-LM does; the functional tests' BERT
// reads bert-large-cased's.
int64_t known_vocabulary(const std::string& model) {
  const auto is = [&](const char* name) { return model.starts_with(name); };
  if (is("Qwen-14B") || is("qwen-14b") || is("Qwen-72B")) return 152064;
  if (is("Qwen-1.8B") || is("Qwen-7B") || is("qwen-7b")) return 151936;
  if (is("Qwen3-")) return 151936;
  if (is("DeepSeek-V3")) return 129280;
  if (is("GPT3-") || is("gpt3-") || is("megatron-22B") || is("turing-530B")) return 51200;
  if (is("Nemotron-8B") || is("Nemotron-340B")) return 256000;
  if (is("megatron-test:bert/")) return 28996;
  return 0;
}

void read_named_model(const PublishedRun& row, ModelSpec& model) {
  const auto named = [&](std::initializer_list<const char*> names) {
    return std::ranges::any_of(names,
                               [&](const char* name) { return row.text("model").find(name) != std::string::npos; });
  };
  const auto dense_first = [&](int64_t count) {
    for (int64_t i = 0; i < std::min(count, static_cast<int64_t>(model.layers.size())); ++i)
      model.layers[static_cast<size_t>(i)].mlp = {.kind = MlpKind::kGated, .ffn = row.integer("ffn", 0)};
  };
  const bool v2 = named({"deepseekv2", "DeepSeek-V2"}), v3 = named({"DeepSeek-V3", "DeepSeekV3"}),
             kimi = named({"Kimi_K2"});
  if (v2 || v3 || kimi)
    for (LayerSpec& layer : model.layers) layer.mixer = deepseek_attention(layer.mixer);
  if ((v2 || v3 || kimi) && row.integer("moe_experts", 0) > 0) dense_first(v3 ? 3 : 1);
  // Every second layer sees 128 tokens.
  if (named({"GPT OSS"}))
    for (size_t i = 0; i < model.layers.size(); i += 2) model.layers[i].mixer.window = 128;
  if (named({"Nemotron_3_Nano"})) read_nemotron_nano(model);
}

}  // namespace fivefold
