// Shape, layout, batch and precision of a published row; what its framework's sources state beside these is read by the
// files of the frameworks.
#include <algorithm>

#include "base/integer.h"
#include "planner/published/published_frameworks.h"
#include "planner/published/published_names.h"

namespace fivefold {
namespace {

Error missing(const PublishedRun& row, const std::string& what) {
  return Error{row.where + " (" + row.id() + ")", what, "left out"};
}

MixerSpec mixer(const PublishedRun& row, int64_t hidden) {
  MixerSpec mixer;
  mixer.num_heads = row.integer("heads", 0);
  mixer.num_kv_heads = row.integer("kv_heads", mixer.num_heads);
  mixer.head_dim = row.integer("head_dim", mixer.num_heads > 0 ? div_floor(hidden, mixer.num_heads) : 0);
  mixer.rope.rotary_dim = mixer.head_dim;
  return mixer;
}

struct SourceOf {
  const char* source;
  Framework framework;
  Status (*read)(const PublishedRun&, FrameworkRun&);
  int64_t sequence = 0;  // what its rows are packed to where they leave the column empty: said once for all of them
};
// Of which framework a source's runs are.
constexpr SourceOf kSources[] = {
    {"simumax_b200_real", Framework::kMegatron, read_megatron_row},
    {"vocab_parallel_pp8_a100", Framework::kMegatron, read_megatron_row},
    {"megatron_lm_functional_tests", Framework::kMegatron, read_megatron_row},
    {"megatron_lm_readme_papers", Framework::kMegatron, read_megatron_row},
    {"korthikanti2022", Framework::kMegatron, read_megatron_row},
    {"nvidia_megatron_bridge_perf", Framework::kMegatron, read_megatron_row},
    {"nvidia_bridge_memory_studies", Framework::kMegatron, read_megatron_row},
    {"megatron_moe_modelzoo", Framework::kMegatron, read_megatron_row},
    {"megatron_moe_recipes_dev", Framework::kMegatron, read_megatron_row},
    {"mlperf_training_llm", Framework::kMegatron, read_megatron_row},
    {"nemo_legacy_perf", Framework::kMegatron, read_megatron_row},
    {"hf_ultrascale_playbook", Framework::kNanotron, read_nanotron_row},
    {"torchtitan", Framework::kFsdp2, read_fsdp2_row},
    {"torchao_float8_training", Framework::kFsdp2, read_fsdp2_row},
    {"torchtune_torchao", Framework::kFsdp2, read_fsdp2_row},
    {"mosaic_llm_foundry", Framework::kFsdp2, read_fsdp2_row},
    {"bloom_tr11_prequel_a100", Framework::kDeepspeed, read_deepspeed_row},
    {"fms_acceleration_finetune", Framework::kHf, read_hf_row, 4096},
    {"peft_metamathqa_llama32_3b", Framework::kHf, read_hf_row},
    {"qwen_finetune_a100", Framework::kHf, read_hf_row},
    {"litgpt_finetune_a100_40g", Framework::kHf, read_hf_row},
    {"ms_swift_legacy_finetune_a100", Framework::kHf, read_hf_row},
    {"ms_swift_examples", Framework::kHf, read_hf_row},
    {"answerai_fsdp_qlora", Framework::kHf, read_hf_row},
};

// By name, or any of the framework that the row states. Null: of neither.
const SourceOf* source_of(const PublishedRun& row) {
  for (const SourceOf& source : kSources)
    if (row.source() == source.source) return &source;
  for (const SourceOf& source : kSources)
    if (row.text("framework") == to_string(source.framework)) return &source;
  return nullptr;
}

// "1", "dist-opt", "fsdp-full", "fsdp2(3)", "1 (shard over 8)".
int zero_stage(const PublishedRun& row) {
  const std::string text = row.text("zero_stage");
  if (text.find("fsdp") != std::string::npos) return 3;
  if (text.starts_with("dist-opt")) return 1;
  return static_cast<int>(row.number("zero_stage").value_or(0));
}

// Megatron-LM's --ffn-hidden-size when it is not given.
int64_t usual_width(int64_t hidden, bool gated) { return gated ? 64 * div_floor(8 * hidden, 3 * 64) : 4 * hidden; }

}  // namespace

Result<ModelSpec> published_model(const PublishedRun& row) {
  ModelSpec model;
  model.name = row.text("model");
  model.hidden = row.integer("hidden", 0);
  model.vocab = row.integer("vocab", known_vocabulary(model.name));
  const int64_t layers = row.integer("layers", 0), ffn = row.integer("ffn", 0);
  if (model.hidden <= 0 || layers <= 0 || row.integer("heads", 0) <= 0)
    return missing(row, "the model's shape is not stated");
  if (model.name.starts_with("megatron-test:t5/")) return missing(row, "encoder-decoder models have no profile");
  if (model.vocab <= 0) return missing(row, "the vocabulary is not stated");
  model.tied_embeddings = row.integer("tied_emb", 0) == 1;
  LayerSpec layer;
  layer.mixer = mixer(row, model.hidden);
  layer.mlp.kind = row.integer("gated_ffn", 1) == 1 ? MlpKind::kGated : MlpKind::kPlain;
  layer.mlp.ffn = ffn;
  const int64_t experts = row.integer("moe_experts", 0);
  if (experts > 0) {
    layer.mlp.kind = MlpKind::kMoe;
    layer.mlp.expert_gated = row.integer("gated_ffn", 1) == 1;
    layer.mlp.num_experts = experts;
    layer.mlp.experts_per_token = row.integer("moe_topk", 1);
    layer.mlp.expert_ffn = row.integer("moe_ffn", ffn > 0 ? ffn : usual_width(model.hidden, layer.mlp.expert_gated));
    layer.mlp.shared_ffn = row.integer("moe_shared", 0);
  } else if (ffn <= 0) {
    return missing(row, "the width of the MLP is not stated");
  }
  model.layers.assign(static_cast<size_t>(layers), layer);
  read_named_model(row, model);
  return model;
}

Result<FrameworkRun> framework_run(const PublishedRun& row) {
  const SourceOf* source = source_of(row);
  if (source == nullptr) return missing(row, "of a framework without a profile: " + row.source());
  FrameworkRun run;
  run.framework = source->framework;
  FIVEFOLD_ASSIGN(run.model, published_model(row));
  run.gpu = published_gpu(row);
  const auto gib = row.number("gpu_mem_gb");
  if (gib) run.capacity_bytes = static_cast<int64_t>(*gib * 0x1p30);
  run.dp = row.integer("dp", 0);
  run.tp = row.integer("tp", 1);
  run.pp = row.integer("pp", 1);
  run.vpp = row.integer("vpp", 1);
  run.cp = row.integer("cp", 1);
  run.ep = row.integer("ep", 1);
  run.sp = row.text("sp").starts_with("1") || row.text("sp").starts_with("yes");
  run.zero = zero_stage(row);
  run.sequence =
      row.integer("seq_len", row.text("seq_len").empty() && row.source() == source->source ? source->sequence : 0);
  run.micro = row.integer("micro_batch", 0);
  const int64_t gpus = row.integer("n_gpus", 0), model_ranks = run.tp * run.pp * run.cp;
  if (run.dp <= 0 && gpus > 0 && gpus % model_ranks == 0) run.dp = gpus / model_ranks;
  if (run.dp <= 0) return missing(row, "the degree of data parallelism is not stated");
  if (run.sequence <= 0 || run.micro <= 0) return missing(row, "sequence or micro-batch is not stated");
  const int64_t global = row.integer("global_batch", 0);
  run.microbatches = row.integer("grad_accum", 0);
  if (run.microbatches <= 0) run.microbatches = global > 0 ? std::max<int64_t>(1, global / (run.micro * run.dp)) : 1;
  const std::string precision = row.text("precision");
  run.compute = precision.starts_with("fp16")   ? DType::kFloat16
                : precision.starts_with("fp32") ? DType::kFloat32
                                                : DType::kBFloat16;
  for (const char* type : {"fp8", "FP8", "FP4", "float8"})
    run.fp8 = run.fp8 || precision.find(type) != std::string::npos;
  const std::string recompute = row.text("recompute");
  if (recompute.starts_with("full")) run.checkpointing = Checkpointing::kFull;
  if (recompute.starts_with("selective")) run.checkpointing = Checkpointing::kCoreAttention;
  FIVEFOLD_TRY(source->read(row, run));
  return run;
}

}  // namespace fivefold
