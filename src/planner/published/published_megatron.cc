// Rows of Megatron-LM and what is built on it: switches from the arguments that the notes carry.
#include <algorithm>

#include "base/integer.h"
#include "planner/published/published_frameworks.h"

namespace fivefold {
namespace {

bool has(const PublishedRun& row, const char* argument) { return row.note(argument) == "True"; }

// Architecture that the columns do not have.
void read_architecture(const PublishedRun& row, FrameworkRun& run) {
  if (row.source() != "megatron_lm_functional_tests" && row.source() != "vocab_parallel_pp8_a100") return;
  const bool rms = row.note("normalization") == "RMSNorm", bias = !has(row, "disable-bias-linear");
  const NormSpec norm{.kind = rms ? NormKind::kRms : NormKind::kLayer, .bias = !rms};
  run.model.final_norm = norm;
  const std::string positions = row.note("position-embedding-type");
  run.model.learned_positions = positions.empty() || positions == "learned_absolute";
  run.model.max_positions = std::atoll(row.note("max-position-embeddings").c_str());
  if (run.model.max_positions == 0) run.model.max_positions = run.sequence;
  for (LayerSpec& layer : run.model.layers) {
    layer.norm = norm;
    layer.mixer.qkv_bias = layer.mixer.out_bias = bias;
    layer.mixer.qk_norm = has(row, "qk-layernorm");
    layer.mlp.bias = bias;
    if (has(row, "multi-latent-attention")) {
      MixerSpec& mixer = layer.mixer;
      const auto number = [&](const char* key, int64_t otherwise) {
        const std::string text = row.note(key);
        return text.empty() ? otherwise : std::atoll(text.c_str());
      };
      mixer.kind = MixerKind::kLatentAttention;
      mixer.q_lora_rank = number("q-lora-rank", 0);
      mixer.kv_lora_rank = number("kv-lora-rank", 32);
      mixer.qk_nope_head_dim = number("qk-head-dim", 128);
      mixer.qk_rope_head_dim = number("qk-pos-emb-head-dim", 64);
      mixer.v_head_dim = number("v-head-dim", 128);
    }
  }
}

void read_vocabulary_stages(const PublishedRun& row, FrameworkRun& run) {
  const std::string schedule = row.text("pp_schedule");
  const auto says = [&](const char* method) { return schedule.find(method) != std::string::npos; };
  if (says("method=vocab-1")) run.vocabulary_stages.set(VocabularyStages::kTwoMore);
  if (says("method=vocab-2")) run.vocabulary_stages.set(VocabularyStages::kOneMore);
  if (says("method=interlaced")) run.vocabulary_stages.set(VocabularyStages::kInterlaced);
}

// --decoder-first-pipeline-num-layers and its like; embedding and loss as a layer each.
void read_stages(const PublishedRun& row, FrameworkRun& run) {
  const auto layers = static_cast<int64_t>(run.model.layers.size());
  const std::string first = row.note("decoder-first-pipeline-num-layers"),
                    last = row.note("decoder-last-pipeline-num-layers");
  if (run.pp == 1) return;
  if (!first.empty() || !last.empty()) {
    const int64_t at_first = std::atoll(first.c_str()), at_last = std::atoll(last.c_str());
    const int64_t middle = run.pp - (at_first > 0 ? 1 : 0) - (at_last > 0 ? 1 : 0);
    run.stage_layers.assign(static_cast<size_t>(run.pp),
                            middle > 0 ? div_floor(layers - at_first - at_last, middle) : 0);
    if (at_first > 0) run.stage_layers.front() = at_first;
    if (at_last > 0) run.stage_layers.back() = at_last;
    return;
  }
  const int64_t embedding = has(row, "account-for-embedding-in-pipeline-split") ? 1 : 0,
                loss = has(row, "account-for-loss-in-pipeline-split") ? 1 : 0;
  if (embedding + loss == 0 || (layers + embedding + loss) % run.pp != 0) return;
  run.stage_layers.assign(static_cast<size_t>(run.pp), div_exact(layers + embedding + loss, run.pp));
  run.stage_layers.front() -= embedding;
  run.stage_layers.back() -= loss;
}

Status left_out(const PublishedRun& row, const char* reason) {
  return Error{row.where + " (" + row.id() + ")", reason, "left out"};
}

}  // namespace

Status read_megatron_row(const PublishedRun& row, FrameworkRun& run) {
  const std::string notes = row.text("notes"), zero = row.text("zero_stage");
  const auto says = [&](const char* text) { return notes.find(text) != std::string::npos; };
  if (zero.find("megatron-fsdp") != std::string::npos) return left_out(row, "Megatron-FSDP has no profile");
  const std::string model = row.text("model");
  if (says("hybrid-override-pattern") || says("hybrid-layer-pattern") || model.find("hybrid") != std::string::npos ||
      model.find("nemotron3") != std::string::npos)
    return left_out(row, "which layers are Mamba is not stated");
  if (static_cast<int64_t>(run.model.layers.size()) % run.pp != 0 && !says("num-layers-in") && !says("account-for") &&
      !says("decoder-"))
    return left_out(row, "the stages' layers are not stated");
  read_architecture(row, run);
  read_stages(row, run);
  read_vocabulary_stages(row, run);
  run.expert_tp = row.integer("etp", run.tp);  // Megatron's default
  if (!row.text("etp").empty()) run.expert_tp.set(row.integer("etp", run.tp));
  if (row.note("moe-token-dispatcher-type") == "allgather") run.gathers_for_experts.set(run.ep > 1);
  if (row.text("mem_kind").find("last rank") != std::string::npos) run.reported = ReportedRank::kLast;
  const std::string attention = row.text("attn_impl");
  if (attention.starts_with("unfused") || attention.find("local") != std::string::npos)
    run.attention.set(AttentionKernel::kUnfused);
  else if (attention.find("flash") != std::string::npos || attention.find("fused") != std::string::npos)
    run.attention.set(AttentionKernel::kFlash);
  if (has(row, "cross-entropy-loss-fusion"))
    run.cross_entropy.set(row.note("cross-entropy-fusion-impl") == "te" ? CrossEntropyKernel::kTransformerEngine
                                                                        : CrossEntropyKernel::kNativeFused);
  // NVIDIA's own recipes.
  for (const char* tuned : {"mlperf_training_llm", "nemo_legacy_perf", "nvidia_megatron_bridge_perf"})
    if (row.source() == tuned) run.tuned_kernels.set(true);
  // The papers' ZeRO-3 rows are DeepSpeed's.
  if (row.source() == "megatron_lm_readme_papers" && run.zero == 3) run.framework = Framework::kDeepspeed;
  // SimuMax's scripts (docs/b200/b200_real_repro_guide.md of its repository): Transformer Engine's cross-entropy,
  // gradient accumulation fused into the weight gradients.
  if (row.source() == "simumax_b200_real") {
    run.cross_entropy.set(CrossEntropyKernel::kTransformerEngine);
    run.dummy_weight_gradients.set(true);
  }
  // Dropout is 0.1 unless the arguments say otherwise.
  const std::string dropout = row.note("hidden-dropout");
  if (row.source() == "megatron_lm_functional_tests")
    run.dropout.set(dropout.empty() || std::atof(dropout.c_str()) > 0);
  return Ok{};
}

}  // namespace fivefold
