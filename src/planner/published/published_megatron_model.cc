// What the arguments of a Megatron-LM run say of its model and of its pipeline's stages.
#include <algorithm>

#include "base/integer.h"
#include "planner/published/published_megatron.h"

namespace fivefold {
namespace {

bool has(const PublishedRun& row, const char* argument) { return row.note(argument) == "True"; }

int64_t number(const PublishedRun& row, const char* argument, int64_t otherwise) {
  const std::string text = row.note(argument);
  return text.empty() ? otherwise : std::atoll(text.c_str());
}

MixerSpec latent_attention(const PublishedRun& row, MixerSpec mixer) {
  mixer.kind = MixerKind::kLatentAttention;
  mixer.q_lora_rank = number(row, "q-lora-rank", 0);
  mixer.kv_lora_rank = number(row, "kv-lora-rank", 32);
  mixer.qk_nope_head_dim = number(row, "qk-head-dim", 128);
  mixer.qk_rope_head_dim = number(row, "qk-pos-emb-head-dim", 64);
  mixer.v_head_dim = number(row, "v-head-dim", 128);
  return mixer;
}

// "([0]*1+[1]*15)": one flag a layer, whether it has experts. Empty: not of this form.
std::vector<bool> layer_flags(const std::string& text) {
  std::vector<bool> flags;
  for (size_t at = text.find('['); at != std::string::npos; at = text.find('[', at + 1)) {
    if (at + 4 >= text.size() || text.compare(at + 2, 2, "]*") != 0) return {};
    flags.insert(flags.end(), static_cast<size_t>(std::atoi(text.c_str() + at + 4)), text[at + 1] == '1');
  }
  return flags;
}

// Repeats of a pipeline layout: "(tt|)*2" is "tt|tt|", "t*3" is "ttt".
std::string unrolled(const std::string& layout) {
  std::string flat;
  for (size_t at = 0; at < layout.size();) {
    const size_t close = layout[at] == '(' ? layout.find(')', at) : at;
    if (close == std::string::npos) return {};
    const std::string part = close == at ? layout.substr(at, 1) : layout.substr(at + 1, close - at - 1);
    at = close + 1;
    int times = 1;
    if (at < layout.size() && layout[at] == '*') {
      times = std::atoi(layout.c_str() + ++at);
      while (at < layout.size() && layout[at] >= '0' && layout[at] <= '9') ++at;
    }
    for (int i = 0; i < times; ++i) flat += part;
  }
  return flat;
}

// --pipeline-model-parallel-layout: stages between bars, E token table, t layer, m prediction module, L loss.
bool read_layout(const PublishedRun& row, FrameworkRun& run) {
  const std::string layout = unrolled(row.note("pipeline-model-parallel-layout"));
  if (layout.empty()) return false;
  std::vector<int64_t> counts(1);
  for (const char c : layout) {
    if (c == '|') counts.push_back(0);
    if (c == 't') ++counts.back();
  }
  const auto stages = static_cast<int64_t>(counts.size());
  if (stages % run.pp != 0) return false;
  run.vpp = div_exact(stages, run.pp);
  run.stage_layers = std::move(counts);
  return true;
}

// "MEM*E/*E": M Mamba, E experts, * attention, - MLP, each a layer with a norm of its own; modules of multi-token
// prediction behind slashes.
Status read_pattern(const PublishedRun& row, const std::string& pattern, ModelSpec& model) {
  const LayerSpec like = model.layers.front();
  MixerSpec mamba;
  mamba.kind = MixerKind::kMamba2;
  mamba.ssm_heads = number(row, "mamba-num-heads", 0);
  mamba.ssm_state = number(row, "mamba-state-dim", 128);
  mamba.ssm_head_dim = number(row, "mamba-head-dim", 64);  // Megatron's defaults
  mamba.ssm_groups = number(row, "mamba-num-groups", 8);
  mamba.conv_kernel = 4;
  if (mamba.ssm_heads == 0) mamba.ssm_heads = div_floor(2 * model.hidden, mamba.ssm_head_dim);
  std::vector<LayerSpec> layers;
  for (const char kind : pattern.substr(0, pattern.find('/'))) {
    LayerSpec layer = like;
    layer.single_norm = true;
    if (kind == 'M') layer.mixer = mamba;
    if (kind == 'E' || kind == '-') layer.mixer.kind = MixerKind::kNone;
    if (kind == 'M' || kind == '*') layer.mlp.kind = MlpKind::kNone;
    if (kind == '-')
      layer.mlp = {.kind = row.integer("gated_ffn", 1) == 1 ? MlpKind::kGated : MlpKind::kPlain,
                   .ffn = row.integer("ffn", 4 * model.hidden)};
    layers.push_back(layer);
  }
  if (layers.size() != model.layers.size())
    return Error{row.where + " (" + row.id() + ")", "the pattern has not as many layers as the row", "left out"};
  model.layers = std::move(layers);
  return Ok{};
}

}  // namespace

Status read_megatron_model(const PublishedRun& row, FrameworkRun& run) {
  const bool rms = row.note("normalization") == "RMSNorm", bias = !has(row, "disable-bias-linear");
  const NormSpec norm{.kind = rms ? NormKind::kRms : NormKind::kLayer, .bias = !rms};
  run.model.final_norm = norm;
  const std::string positions = row.note("position-embedding-type");
  run.model.learned_positions = positions.empty() || positions == "learned_absolute";
  run.model.max_positions = number(row, "max-position-embeddings", run.sequence);
  const std::vector<bool> experts = layer_flags(row.note("moe-layer-freq"));
  const bool gated = row.integer("gated_ffn", 1) == 1;
  for (size_t i = 0; i < run.model.layers.size(); ++i) {
    LayerSpec& layer = run.model.layers[i];
    if (experts.size() == run.model.layers.size() && !experts[i])
      layer.mlp = {.kind = gated ? MlpKind::kGated : MlpKind::kPlain, .ffn = row.integer("ffn", 4 * run.model.hidden)};
    layer.norm = norm;
    layer.mixer.qkv_bias = layer.mixer.out_bias = layer.mlp.bias = bias;
    layer.mixer.qk_norm = has(row, "qk-layernorm");
    if (has(row, "multi-latent-attention")) layer.mixer = latent_attention(row, layer.mixer);
  }
  for (const char* pattern : {"hybrid-layer-pattern", "hybrid-override-pattern"})
    if (!row.note(pattern).empty()) return read_pattern(row, row.note(pattern), run.model);
  return Ok{};
}

Status read_megatron_stages(const PublishedRun& row, FrameworkRun& run) {
  const auto layers = static_cast<int64_t>(run.model.layers.size());
  if (run.pp == 1 || read_layout(row, run) || read_recipe_stages(row, run)) return Ok{};
  const int64_t first = number(row, "decoder-first-pipeline-num-layers", 0),
                last = number(row, "decoder-last-pipeline-num-layers", 0);
  if (first > 0 || last > 0) {
    const int64_t middle = run.pp - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0);
    run.stage_layers.assign(static_cast<size_t>(run.pp), middle > 0 ? div_floor(layers - first - last, middle) : 0);
    if (first > 0) run.stage_layers.front() = first;
    if (last > 0) run.stage_layers.back() = last;
    return Ok{};
  }
  // Token table and loss count as a layer each: stated, or the only way in which the layers divide (Llama 3's 126).
  const int64_t stages = run.pp * run.vpp;
  const bool both = layers % stages != 0 && (layers + 2) % stages == 0;
  const int64_t embedding = both || has(row, "account-for-embedding-in-pipeline-split") ? 1 : 0,
                loss = both || has(row, "account-for-loss-in-pipeline-split") ? 1 : 0;
  if ((layers + embedding + loss) % stages != 0 && layers % run.pp != 0)
    return Error{row.where + " (" + row.id() + ")", "the stages' layers are not stated", "left out"};
  if (embedding + loss == 0) return Ok{};
  run.stage_layers.assign(static_cast<size_t>(stages), div_floor(layers + embedding + loss, stages));
  run.stage_layers.front() -= embedding;
  run.stage_layers.back() -= loss;
  return Ok{};
}

}  // namespace fivefold
