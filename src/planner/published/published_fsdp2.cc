// Rows of torchtitan, torchao's tables of it, torchtune, and Composer's FSDP.
#include <algorithm>

#include "planner/published/published_frameworks.h"

namespace fivefold {
namespace {

bool says(const PublishedRun& row, const char* column, const char* part) {
  return row.text(column).find(part) != std::string::npos;
}

// torchtitan: fp32 shards, layers compiled one by one. Its loss was eager in 2024; since 2025 it is compiled, first
// with an fp32 copy of the logits. Where a table has no date, its
// hardware or its page tells of the time.
void read_torchtitan_row(const PublishedRun& row, FrameworkRun& run) {
  run.weight_dtype.set(DType::kFloat32);
  run.gradient_dtype.set(DType::kFloat32);
  run.sharding.compiled.set(!says(row, "notes", "torch.compile=False"));
  run.sharding.rowwise_scaling.set(says(row, "precision", "rowwise"));
  run.keeps_gathered_inputs.set(!says(row, "notes", "AsyncTP") && !says(row, "notes", "async TP"));
  if (says(row, "recompute", "op")) run.checkpointing = Checkpointing::kPerOperation;
  if (says(row, "recompute", "layer")) run.checkpointing = Checkpointing::kEveryOther;
  const auto loss = [&](CrossEntropyKernel kernel, bool stated) {
    if (stated)
      run.cross_entropy.set(kernel);
    else
      run.cross_entropy.value = kernel;
  };
  if (says(row, "notes", "2024-"))
    loss(CrossEntropyKernel::kEager, true);
  else if (says(row, "notes", "2025-06"))
    loss(CrossEntropyKernel::kUnfused, true);
  else if (says(row, "notes", "2025-"))
    loss(CrossEntropyKernel::kCompiled, true);
  else if (run.gpu.starts_with("b200") || row.source() == "torchtune_torchao")
    loss(CrossEntropyKernel::kCompiled, false);
  else if (run.gpu.starts_with("mi300"))
    loss(CrossEntropyKernel::kUnfused, false);
  else
    loss(CrossEntropyKernel::kEager, false);
}

// torchtune's recipes: bf16 throughout, the loss in pieces, packed sequences.
Status read_torchtune_row(const PublishedRun& row, FrameworkRun& run) {
  run.weight_dtype.set(DType::kBFloat16);
  run.gradient_dtype.set(DType::kBFloat16);
  run.optimizer_state_bits.set(16);
  run.cross_entropy.value = CrossEntropyKernel::kChunked;
  const std::string method = row.text("method");
  run.trains_adapter = method != "full";
  if (run.trains_adapter) {
    run.rank = 8;
    run.targets = {"q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  }
  if (method == "qlora") run.frozen.set(FrozenWeights::kNf4Double);
  // The steps of the README's ablation add to one another.
  const auto step = [&](const char* name) { return says(row, "notes", name); };
  if (step("ablation step")) {
    if (step("step: Baseline"))
      return Error{row.where + " (" + row.id() + ")", "the lengths of unpacked sequences are not stated", "left out"};
    const bool packed = step("step: +Packed"), only_compiled = step("step: +Compile");
    run.sharding.compiled.set(!packed);
    run.cross_entropy.set(packed || only_compiled ? CrossEntropyKernel::kEager : CrossEntropyKernel::kChunked);
    run.activations_on_host.set(says(row, "offload", "activations"));
    const bool later = says(row, "offload", "activations") || step("step: +OptimInBwd");
    run.sharding.optimizer_in_backward.set(later && !run.trains_adapter);
    if (says(row, "optimizer", "8bit")) run.optimizer_state_bits.set(8);
    return Ok{};
  }
  // The table of hardware: recipes with activation checkpointing, but LoRA on one GPU; one GPU in full has an 8-bit
  // optimizer in pages of the host, with its step in the backward pass.
  run.checkpointing = method == "lora" && run.dp == 1 ? Checkpointing::kNone : Checkpointing::kFull;
  if (method == "full" && run.dp == 1) {
    run.optimizer_on_host.value = true;
    run.sharding.optimizer_in_backward.value = true;
  }
  if (says(row, "offload", "cpu")) run.sharding.weights_on_host.set(true);
  return Ok{};
}

}  // namespace

Status read_fsdp2_row(const PublishedRun& row, FrameworkRun& run) {
  run.sharding.compiled.value = true;
  run.zero = std::max(run.zero, 3);  // fully_shard; on one GPU it cuts nothing
  if (row.source() == "torchtune_torchao" && row.text("method") != "pretrain") return read_torchtune_row(row, run);
  if (row.source() == "mosaic_llm_foundry") {
    // Composer: fp32 shards under autocast; mp_mode PURE reduces in bf16. llm-foundry's benchmark: layer norms in bf16,
    // flash-attention's cross-entropy.
    run.weight_dtype.set(DType::kFloat32);
    run.gradient_dtype.value = says(row, "precision", "PURE") ? DType::kBFloat16 : DType::kFloat32;
    run.cross_entropy.value = CrossEntropyKernel::kNativeFused;
    run.hf.fused_norms.value = true;
    run.sharding.compiled.set(false);
    return Ok{};
  }
  read_torchtitan_row(row, run);
  return Ok{};
}

}  // namespace fivefold
