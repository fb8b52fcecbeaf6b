// Rows of Megatron-LM and what is built on it: switches from the arguments that the notes carry.
#include "planner/published/published_megatron.h"

#include <algorithm>

#include "base/integer.h"

namespace fivefold {
namespace {

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
  // cuDNN's kernels are deterministic on Hopper alone: elsewhere Transformer Engine falls back on flash-attn.
  if (says("flash")) run.megatron.flash_library.set(true);
  if (says("auto") && has(row, "deterministic-mode")) run.megatron.flash_library.set(!run.gpu.starts_with("h"));
}

// What the functional tests' model_config.yaml has beside the arguments in the notes.
void read_functional_test(const PublishedRun& row, FrameworkRun& run) {
  // Dropout is 0.1 unless the arguments say otherwise.
  const std::string dropout = row.note("hidden-dropout");
  run.dropout.set(dropout.empty() || std::atof(dropout.c_str()) > 0);
  if (has(row, "defer-embedding-wgrad-compute")) run.megatron.deferred_head_gradients.set(2);
  if (row.text("model").find("tunable_overlap") != std::string::npos) run.megatron.chunk_group.set(5);
  if (row.text("model").find(":bert/") != std::string::npos) run.megatron.masked_lm.set(true);
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
  if (zero.find("megatron-fsdp") != std::string::npos) return left_out(row, "Megatron-FSDP has no profile");
  if (says("hybrid-override-pattern") || says("hybrid-layer-pattern") || model.find("hybrid") != std::string::npos ||
      model.find("nemotron3") != std::string::npos)
    return left_out(row, "which layers are Mamba is not stated");
  if (is_functional_test(row) || row.source() == "vocab_parallel_pp8_a100") read_megatron_model(row, run);
  FIVEFOLD_TRY(read_megatron_stages(row, run));
  read_vocabulary_stages(row, run);
  read_attention(row, run);
  run.expert_tp = row.integer("etp", run.tp);  // Megatron's default
  if (!row.text("etp").empty()) run.expert_tp.set(row.integer("etp", run.tp));
  if (row.note("moe-token-dispatcher-type") == "allgather") run.gathers_for_experts.set(run.ep > 1);
  if (has(row, "moe-grouped-gemm")) run.megatron.grouped_experts.set(true);
  const int64_t instances = std::atoll(row.note("num-distributed-optimizer-instances").c_str());
  if (instances > 0) run.megatron.optimizer_instances.set(instances);
  if (row.text("mem_kind").find("last rank") != std::string::npos) run.reported = ReportedRank::kLast;
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
  }
  if (row.source() == "vocab_parallel_pp8_a100") read_vocabulary_parallel(run);
  if (is_functional_test(row)) read_functional_test(row, run);
  read_recipe(row, run);
  return Ok{};
}

}  // namespace fivefold
