// Megatron-LM's runs as vendors' recipes and papers have them, where rows do not say so themselves.
#include <algorithm>
#include <array>

#include "base/integer.h"
#include "planner/published/published_megatron.h"

namespace fivefold {
namespace {

// NeMo's, Megatron-Bridge's and MLPerf's recipes of NVIDIA.
bool is_vendor_recipe(const PublishedRun& row) {
  static constexpr std::array<std::string_view, 6> kSources = {
      "mlperf_training_llm",          "nemo_legacy_perf",      "nvidia_megatron_bridge_perf",
      "nvidia_bridge_memory_studies", "megatron_moe_modelzoo", "megatron_moe_recipes_dev"};
  return std::ranges::find(kSources, row.source()) != kSources.end();
}

// Layer redistribution of Yeung et al.: the assignment of whole layers with the fastest slowest stage, where the output
// matrix of 2 h V operations a token and pass weighs as many layers of 24 h^2 + 4 h s.
void read_redistribution(FrameworkRun& run) {
  const auto h = static_cast<double>(run.model.hidden), s = static_cast<double>(run.sequence);
  const double head = 2 * static_cast<double>(run.model.vocab) / (24 * h + 4 * s);
  const auto layers = static_cast<int64_t>(run.model.layers.size());
  const int64_t others = run.pp - 1;
  int64_t last = 0;
  double least = 0;
  for (int64_t count = 0; count <= div_floor(layers, run.pp); ++count) {
    const double slowest =
        std::max(head + static_cast<double>(count), static_cast<double>(div_ceil(layers - count, others)));
    if (count == 0 || slowest <= least) last = count, least = slowest;
  }
  // The first stages, which have the most microbatches in flight, get the fewer.
  run.stage_layers.clear();
  for (int64_t stage = 0, left = layers - last; stage < others; ++stage) {
    run.stage_layers.push_back(div_floor(left, others - stage));
    left -= run.stage_layers.back();
  }
  run.stage_layers.push_back(last);
}

// The papers of 2020 to 2022: attention and dropout as Megatron-LM had them then.
void read_paper(const PublishedRun& row, FrameworkRun& run) {
  if (row.source() != "korthikanti2022" &&
      (row.source() != "megatron_lm_readme_papers" || row.text("model").starts_with("llama")))
    return;
  run.attention.set(AttentionKernel::kUnfused);
  run.dropout.set(true);
  if (row.source() == "korthikanti2022")
    run.gradient_dtype.set(DType::kFloat32);  // 18 bytes a parameter
  else
    run.sp = false;  // which came with Korthikanti et al.
}

// What memory depends on: scripts/performance of NeMo and Megatron-Bridge reduce gradients in bf16, all recipes take
// Transformer Engine's cross-entropy, have experts on whole ranks, balance their routing by force and cut the sequence
// wherever there is tensor parallelism.
void read_recipe_memory(const PublishedRun& row, FrameworkRun& run) {
  if (!row.source().starts_with("megatron_moe_")) run.cross_entropy.set(CrossEntropyKernel::kTransformerEngine);
  for (const char* source : {"mlperf_training_llm", "nemo_legacy_perf", "nvidia_megatron_bridge_perf"})
    if (row.source() == source) run.gradient_dtype.set(DType::kBFloat16);
  if (row.text("sp").empty()) run.sp = run.tp > 1;
  if (row.text("etp").empty()) run.expert_tp.set(1);
  run.expert_imbalance.set(1.0);
  if (!row.source().starts_with("nvidia_") || !run.fp8) return;
  // Megatron-Bridge: but for blocks of 128 and for NVFP4, weights of linears are in 8 bits alone.
  const ScalingRecipe recipe = run.megatron.recipe;
  run.megatron.fp8_weights.set(recipe != ScalingRecipe::kBlockwise && recipe != ScalingRecipe::kNvfp4);
}

// examples/llama/train_llama3_8b_h100_fp8.sh of Megatron-LM.
void read_llama_example(FrameworkRun& run) {
  run.zero = 1;
  run.gradient_dtype.set(DType::kBFloat16);
  run.cross_entropy.set(CrossEntropyKernel::kNativeFused);
  run.megatron.fp8_weights.set(run.fp8);
}

}  // namespace

bool read_recipe_stages(const PublishedRun& row, FrameworkRun& run) {
  // NVIDIA's submissions of GPT-3 have six chunks a rank; configurations from before 2024 leave it to a common file.
  if (row.source() == "mlperf_training_llm" && row.text("vpp").empty() && row.text("model") == "GPT3-175B" &&
      run.pp == 8)
    run.vpp = 6;
  if (row.text("pp_schedule").find("method=redis") != std::string::npos) {
    read_redistribution(run);
    return true;
  }
  const auto layers = static_cast<int64_t>(run.model.layers.size());
  const int64_t stages = run.pp * run.vpp;
  const bool known = is_vendor_recipe(row) || row.text("model").starts_with("llama3-405B");
  if (!known || layers % stages == 0) return false;
  // Token table and loss count as a layer each (Llama 3.1's 126, Qwen3's 94 layers), or all chunks are equal but the
  // last, which has the loss and DeepSeek's prediction module besides; the first has one less where it must.
  const bool both = (layers + 2) % stages == 0;
  const int64_t each = div_ceil(layers + (both ? 1 : 0), stages);
  const int64_t first = both || each * (stages - 1) > layers ? each - 1 : each,
                last = layers - first - each * (stages - 2);
  if (last < 0) return false;
  run.stage_layers.assign(static_cast<size_t>(stages), each);
  run.stage_layers.front() = first;
  run.stage_layers.back() = last;
  return true;
}

void read_recipe(const PublishedRun& row, FrameworkRun& run) {
  read_paper(row, run);
  const std::string precision = row.text("precision"), notes = row.text("notes");
  const bool example = notes.find("examples/llama") != std::string::npos;
  if (example) read_llama_example(run);
  if (example || is_vendor_recipe(row)) run.tuned_kernels.set(true);
  if (!is_vendor_recipe(row)) return;
  run.zero = std::max(run.zero, 1);
  if (run.zero == 3) run.megatron.fsdp.set(true);
  // MLPerf names 4 bits in its configuration's file; the release 25.09 of the Bridge leaves the column empty, and its
  // figures are those of the fp8 recipes of the releases after it.
  if (precision.empty() && row.source() != "nvidia_bridge_memory_studies")
    run.fp8 = row.text("model").find("DeepSeek") == std::string::npos;
  if (notes.find("_fp4") != std::string::npos) run.megatron.recipe.set(ScalingRecipe::kNvfp4);
  read_recipe_memory(row, run);
  if (row.text("method") == "lora") {
    run.trains_adapter = true;
    run.rank = 32;  // NeMo's LoRA, of the queries, keys and values in its recipes
    run.targets = {"q_proj", "k_proj", "v_proj"};
  }
}

}  // namespace fivefold
