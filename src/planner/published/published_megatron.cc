// Rows of Megatron-LM and what is built on it: switches from the arguments that the notes carry.
#include "planner/published/published_megatron.h"

#include <algorithm>

#include "base/integer.h"

namespace fivefold {
namespace {

constexpr std::string_view kRecomputable[] = {"core_attn", "layernorm", "mla_up_proj",    "mlp",
                                              "moe_act",   "moe",       "shared_experts", "gdn_norm_out"};
constexpr std::string_view kOffloadable[] = {"attn_norm", "qkv_linear", "core_attn", "attn_proj",
                                             "mlp_norm",  "expert_fc1", "moe_act"};

bool has(const PublishedRun& row, const char* argument) { return row.note(argument) == "True"; }
bool is_functional_test(const PublishedRun& row) { return row.source() == "megatron_lm_functional_tests"; }

void read_vocabulary_stages(const PublishedRun& row, FrameworkRun& run) {
  const std::string schedule = row.text("pp_schedule");
  const auto says = [&](const char* method) { return schedule.find(method) != std::string::npos; };
  if (says("method=vocab-1")) run.vocabulary_stages.set(VocabularyStages::kTwoMore);
  if (says("method=vocab-2")) run.vocabulary_stages.set(VocabularyStages::kOneMore);
  if (says("method=interlaced")) run.vocabulary_stages.set(VocabularyStages::kInterlaced);
}

Status left_out(const PublishedRun& row, const char* reason) {
  return Error{row.where + " (" + row.id() + ")", reason, "left out"};
}

void read_attention(const PublishedRun& row, FrameworkRun& run) {
  const std::string attention = row.text("attn_impl");
  const auto says = [&](const char* kernel) { return attention.find(kernel) != std::string::npos; };
  if (attention.starts_with("unfused") || says("local")) return run.attention.set(AttentionKernel::kUnfused);
  if (says("flash") || says("fused")) run.attention.set(AttentionKernel::kFlash);
  if (!is_functional_test(row)) return;
  if (says("flash")) run.megatron.flash_library.set(true);  // --attention-backend
  // Transformer Engine of one of the older images had no deterministic flash kernel.
  if (says("auto") && row.note("env").starts_with("lts_dgxa100") && has(row, "deterministic-mode"))
    run.attention.set(AttentionKernel::kUnfused);
}

// "[layernorm mla_up_proj]", "layernorm,moe_act": the names in it.
std::vector<std::string> modules(const std::string& text) {
  std::vector<std::string> names(1);
  for (const char c : text)
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')
      names.back() += c;
    else if (!names.back().empty())
      names.emplace_back();
  if (names.back().empty()) names.pop_back();
  return names;
}

// Selective recompute is of core attention alone unless modules are listed, in an argument or behind the word.
void read_modules(const PublishedRun& row, FrameworkRun& run) {
  for (const std::string& name : modules(row.note("recompute-modules") + " " + row.text("recompute")))
    if (std::ranges::find(kRecomputable, name) != std::end(kRecomputable))
      run.megatron.recomputed_modules.push_back(name);
  if (run.checkpointing == Checkpointing::kCoreAttention && !run.megatron.recomputed_modules.empty())
    run.checkpointing = Checkpointing::kNone;
  for (const std::string& name : modules(row.note("offload-modules") + " " + row.text("offload")))
    if (std::ranges::find(kOffloadable, name) != std::end(kOffloadable)) run.megatron.offloaded_modules.push_back(name);
  if (row.text("offload").find("optimizer") != std::string::npos) run.optimizer_on_host.set(true);
}

void read_scaling(const PublishedRun& row, FrameworkRun& run) {
  const std::string precision = row.text("precision");
  const auto says = [&](const char* recipe) { return precision.find(recipe) != std::string::npos; };
  if (says("nvfp4") || says("NVFP4")) run.megatron.recipe.set(ScalingRecipe::kNvfp4), run.fp8 = true;
  if (says("mxfp8") || says("MXFP8") || says("FP8-MX")) run.megatron.recipe.set(ScalingRecipe::kMxfp8), run.fp8 = true;
  if (says("blockwise") || says("subchannel") || says("FP8-SC")) run.megatron.recipe.set(ScalingRecipe::kBlockwise);
  if (says("tensorwise") || says("delayed") || says("FP8-CS")) run.megatron.recipe.set(ScalingRecipe::kTensorwise);
  if (has(row, "fp8-param-gather") || row.text("notes").find("FP8_PARAM_GATHER=True") != std::string::npos)
    run.megatron.fp8_weights.set(true);
}

void read_optimizer(const PublishedRun& row, FrameworkRun& run) {
  const int64_t instances = std::atoll(row.note("num-distributed-optimizer-instances").c_str());
  if (instances > 0) run.megatron.optimizer_instances.set(instances);
  if (has(row, "grad-reduce-in-bf16")) run.gradient_dtype.set(DType::kBFloat16);
  if (row.text("optimizer").find("muon") == std::string::npos) return;
  run.megatron.muon.set(true);
  // "dist_muon" alone hands out whole matrices and leaves Adam's parameters on each rank.
  run.megatron.whole_adam.set(row.text("model").find("param_layout") == std::string::npos);
}

// What the functional tests' model_config.yaml has beside the arguments in the notes.
void read_functional_test(const PublishedRun& row, FrameworkRun& run) {
  // Dropout is 0.1 unless the arguments say otherwise.
  const std::string dropout = row.note("hidden-dropout");
  run.dropout.set(dropout.empty() || std::atof(dropout.c_str()) > 0);
  if (has(row, "defer-embedding-wgrad-compute")) run.megatron.deferred_head_gradients.set(2);
  if (row.text("model").find("tunable_overlap") != std::string::npos) run.megatron.chunk_group.set(5);
  if (row.text("model").find(":bert/") != std::string::npos) run.megatron.masked_lm.set(true);
  if (row.text("model").find("nemotron3_5_lightning") != std::string::npos) run.megatron.mtp_weights.set(1);
}

// Yeung et al. train in fp16, and their tables are of max_memory_reserved (pretrain_gpt.sh,
// artifact/show_result_full_exp.py).
void read_vocabulary_parallel(FrameworkRun& run) {
  run.gradient_dtype.set(DType::kFloat16);
  run.megatron.figure.set(MemoryFigure::kReserved);
}

}  // namespace

Status read_megatron_row(const PublishedRun& row, FrameworkRun& run) {
  const std::string notes = row.text("notes"), zero = row.text("zero_stage"), model = row.text("model");
  const auto says = [&](const char* text) { return notes.find(text) != std::string::npos; };
  const bool patterned = says("hybrid-override-pattern") || says("hybrid-layer-pattern");
  if (!patterned && (model.find("hybrid") != std::string::npos || model.find("nemotron3") != std::string::npos))
    return left_out(row, "which layers are Mamba is not stated");
  if (zero.find("megatron-fsdp") != std::string::npos || zero.find("mcore-fsdp") != std::string::npos)
    run.megatron.fsdp.set(true);
  if (is_functional_test(row) || row.source() == "vocab_parallel_pp8_a100") FIVEFOLD_TRY(read_megatron_model(row, run));
  FIVEFOLD_TRY(read_megatron_stages(row, run));
  read_vocabulary_stages(row, run);
  read_attention(row, run);
  run.expert_tp = row.integer("etp", run.tp);  // Megatron's default
  if (!row.text("etp").empty()) run.expert_tp.set(row.integer("etp", run.tp));
  if (row.note("moe-token-dispatcher-type") == "allgather") run.gathers_for_experts.set(run.ep > 1);
  if (has(row, "moe-grouped-gemm")) run.megatron.grouped_experts.set(true);
  read_optimizer(row, run);
  read_modules(row, run);
  read_scaling(row, run);
  if (has(row, "deterministic-mode")) run.megatron.deterministic.set(true);
  if (has(row, "tp-comm-overlap")) run.megatron.tp_overlap.set(true);
  const int64_t predictions = std::atoll(row.note("mtp-num-layers").c_str());
  if (predictions > 0) run.megatron.mtp_layers.set(predictions);
  if (row.text("mem_kind").find("last rank") != std::string::npos) run.reported = ReportedRank::kLast;
  if (row.text("mem_kind").find("rank 0") != std::string::npos) run.reported = ReportedRank::kFirst;
  if (row.text("mem_kind").find("reserved") != std::string::npos) run.megatron.figure.set(MemoryFigure::kReserved);
  if (has(row, "cross-entropy-loss-fusion"))
    run.cross_entropy.set(row.note("cross-entropy-fusion-impl") == "te" ? CrossEntropyKernel::kTransformerEngine
                                                                        : CrossEntropyKernel::kNativeFused);
  // The papers' ZeRO-3 rows are DeepSpeed's.
  if (row.source() == "megatron_lm_readme_papers" && run.zero == 3) run.framework = Framework::kDeepspeed;
  // SimuMax's scripts (docs/b200/b200_real_repro_guide.md of its repository): Transformer Engine's cross-entropy,
  // gradient accumulation fused into the weight gradients.
  if (row.source() == "simumax_b200_real") {
    run.cross_entropy.set(CrossEntropyKernel::kTransformerEngine);
    run.dummy_weight_gradients.set(true);
    run.megatron.weighs_inside_experts.set(false);
    run.expert_imbalance.set(1.0);
  }
  if (row.source() == "vocab_parallel_pp8_a100") read_vocabulary_parallel(run);
  if (is_functional_test(row)) read_functional_test(row, run);
  read_recipe(row, run);
  return Ok{};
}

}  // namespace fivefold
