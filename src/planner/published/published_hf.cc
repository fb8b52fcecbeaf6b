// Rows of transformers' Trainer, PEFT and LitGPT: what each source's files say of its runs beside the columns.
#include <algorithm>
#include <charconv>

#include "planner/published/published_frameworks.h"

namespace fivefold {
namespace {

bool holds(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

Error left_out(const PublishedRun& row, const std::string& reason) {
  return Error{row.where + " (" + row.id() + ")", reason, "left out"};
}

// Words of `text`, without the marks of a Python list.
std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> all(1);
  for (const char c : text)
    if (c == ' ' || c == ',' || c == '[' || c == ']' || c == '\'')
      all.emplace_back();
    else
      all.back() += c;
  std::erase(all, "");
  return all;
}

// What follows "key " in the notes, up to the next ';'.
std::string after(const PublishedRun& row, std::string_view key) {
  const std::string notes = row.text("notes");
  const size_t begin = notes.find(key);
  if (begin == std::string::npos) return {};
  return notes.substr(begin + key.size(), notes.find(';', begin) - begin - key.size());
}

// "1,572,864" and "1572864".
int64_t count(std::string text) {
  std::erase(text, ',');
  const size_t begin = text.find_first_not_of(' ');
  int64_t value = 0;
  if (begin != std::string::npos) std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return value;
}

void read_quantisation(const PublishedRun& row, FrameworkRun& run) {
  const std::string quant = row.text("quant");
  if (quant.empty())
    run.frozen.set(FrozenWeights::kBf16);
  else if (holds(quant, "int8"))
    run.frozen.set(FrozenWeights::kInt8);
  else if (holds(quant, "gptq") || holds(quant, "AWQ"))
    run.frozen.set(FrozenWeights::kInt4);
  else
    run.frozen.set(quant == "bnb.nf4" ? FrozenWeights::kNf4 : FrozenWeights::kNf4Double);
}

// fms-acceleration's benchmarks: "framework" names the kernels that replace transformers' own. refs/a100_80gb ran with
// transformers 4.48, refs/a100_80gb_liger with 4.45 (their requirements files).
Status read_fms(const PublishedRun& row, FrameworkRun& run) {
  const std::string framework = row.note("framework"), file = row.note("file");
  if (holds(file, "orca")) return left_out(row, "lengths vary");
  const bool old = holds(file, "liger"), foak = holds(framework, "foak"), fsdp = run.zero >= 3;
  HfSwitches& hf = run.hf;
  hf.autocast.set(!row.text("precision").starts_with("pure"));
  hf.fused_norms.set(foak);
  hf.fused_adapters.set(foak && holds(framework, "accelerated-peft"));
  hf.adapter_dropout.set(true);  // lora_dropout 0.1 in all scenarios
  hf.repeats_kv.set(old && holds(row.text("model"), "istral"));
  run.cross_entropy.set(holds(framework, "liger") ? CrossEntropyKernel::kChunked
                        : !foak                   ? CrossEntropyKernel::kEager
                        : old                     ? CrossEntropyKernel::kInPlace
                                                  : CrossEntropyKernel::kInPlaceUpcast);
  run.targets = words(row.note("target_modules"));
  hf.fp32_residual.set(holds(framework, "baseline-peft-bnb") && !fsdp);  // TRL's own preparation for k-bit training
  // accelerate casts what FSDP trains to fp32 when it mixes precisions.
  run.weight_dtype.set(fsdp && hf.autocast ? DType::kFloat32 : DType::kBFloat16);
  return Ok{};
}

struct PeftMethod {
  const char* method;
  AdapterKind kind;
};
// How each of PEFT's methods works, in the terms of AdapterKind; one that is not here is taken for a LoRA.
constexpr PeftMethod kPeftMethods[] = {
    {"lora", AdapterKind::kLora},
    {"adalora", AdapterKind::kLora},
    {"delora", AdapterKind::kLora},
    {"glora", AdapterKind::kLora},
    {"pvera", AdapterKind::kLora},
    {"vera", AdapterKind::kLora},
    {"vblora", AdapterKind::kLora},
    {"unilora", AdapterKind::kLora},
    {"randlora", AdapterKind::kLora},
    {"c3a", AdapterKind::kLora},
    {"road", AdapterKind::kLora},
    {"deft", AdapterKind::kLora},
    {"lily", AdapterKind::kLora},
    {"gralora", AdapterKind::kLora},
    {"tinylora", AdapterKind::kLora},
    {"shira", AdapterKind::kLora},
    {"beft", AdapterKind::kOutput},
    {"adamss", AdapterKind::kOutput},
    {"psoft", AdapterKind::kOutput},
    {"miss", AdapterKind::kOutput},
    {"trainable_tokens", AdapterKind::kOutput},
    {"ia3", AdapterKind::kScale},
    {"loha", AdapterKind::kWeightUpdate},
    {"lokr", AdapterKind::kWeightUpdate},
    {"hira", AdapterKind::kWeightUpdate},
    {"boft", AdapterKind::kTransform},
    {"oft", AdapterKind::kWeightUpdate},
    {"waveft", AdapterKind::kTransform},
    {"fourierft", AdapterKind::kTransform},
    {"frod", AdapterKind::kWeightUpdate},
    {"peanut", AdapterKind::kTransform},
    {"prompt_tuning", AdapterKind::kPrompt},
    {"p_tuning", AdapterKind::kPrompt},
    {"prefix_tuning", AdapterKind::kPrompt},
};

// PEFT's comparison of methods: bf16 model, fp32 adapters, no autocast, no checkpointing.
Status read_peft(const PublishedRun& row, FrameworkRun& run) {
  HfSwitches& hf = run.hf;
  const std::string method = row.text("method"), file = after(row, "file ");
  hf.autocast.set(false);
  hf.figure.set(MemoryFigure::kReserved);
  run.cross_entropy.set(CrossEntropyKernel::kEager);
  if (method.starts_with("full")) return Ok{};
  run.trains_adapter = true;
  run.frozen.set(FrozenWeights::kBf16);
  const auto found = std::ranges::find_if(kPeftMethods, [&](const PeftMethod& m) { return method == m.method; });
  if (found != std::end(kPeftMethods)) hf.adapter.set(found->kind);
  // Variants of a method: MiSS in blocks and DEFT without its fast path form the weights anew.
  if (holds(file, "-bat")) hf.adapter.set(AdapterKind::kTransform);
  if (method == "deft" && !holds(file, "para")) hf.adapter.set(AdapterKind::kWeightUpdate);
  if (method == "psoft" && !holds(file, "fast")) hf.adapter.set(AdapterKind::kLora);
  hf.dora.set(holds(file, "dora"));
  run.targets = words(after(row, "target_modules "));
  std::erase(run.targets, "None");
  hf.trained = count(after(row, "trainable params "));
  if (hf.adapter == AdapterKind::kPrompt)
    hf.virtual_tokens = method == "prompt_tuning" ? hf.trained / run.model.hidden : 20;  // 20: the default
  return Ok{};
}

// The names of Qwen's first generation.
std::vector<std::string> qwen_targets() { return {"qkv_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}; }

// Qwen's README: finetune.py with LoRA of rank 64 on all linears, its own code for the model.
Status read_qwen(const PublishedRun& row, FrameworkRun& run) {
  HfSwitches& hf = run.hf;
  const std::string notes = row.text("notes");
  run.checkpointing = Checkpointing::kFull;
  run.cross_entropy.set(CrossEntropyKernel::kEager);
  hf.figure.set(MemoryFigure::kProcess);
  hf.deepspeed.set(run.dp > 1);
  if (run.trains_adapter && run.dp > 1) run.zero = 2;  // the README: ZeRO-2 for LoRA, ZeRO-3 for full
  if (!run.trains_adapter) return Ok{};
  run.rank = 64;
  run.targets = qwen_targets();
  hf.adapter_dropout.set(true);
  hf.trains_embeddings.set(notes.starts_with("LoRA (emb)"));
  // Q-LoRA runs under DeepSpeed in fp16 throughout.
  if (row.text("method") == "qlora") run.cross_entropy.set(CrossEntropyKernel::kEagerHalf);
  return Ok{};
}

// ms-swift in 2024, the same models: LoRA on c_attn unless the row says otherwise.
Status read_swift(const PublishedRun& row, FrameworkRun& run) {
  HfSwitches& hf = run.hf;
  const std::string notes = row.text("notes");
  if (holds(notes, "Use Flash Attn"))
    run.checkpointing = holds(notes, "'Gradient Checkpointing': '✔'") ? Checkpointing::kFull : Checkpointing::kNone;
  run.attention.set(holds(notes, "'Use Flash Attn': '✘'") ? AttentionKernel::kUnfused : AttentionKernel::kFlash);
  run.cross_entropy.set(CrossEntropyKernel::kEager);
  hf.figure.set(MemoryFigure::kReserved);
  hf.variable_lengths.set(true);
  hf.typical_length = count(after(row, "data length mean "));
  hf.upcasts_frozen.set(row.text("quant") == "int4 (bnb)");
  run.targets = holds(notes, "ALL (all linear)") ? qwen_targets() : std::vector<std::string>{"qkv_proj"};
  hf.adapter_dropout.set(true);
  return Ok{};
}

// ms-swift's scripts, with the memory that their first line notes.
Status read_swift_example(const PublishedRun& row, FrameworkRun& run) {
  HfSwitches& hf = run.hf;
  const std::string notes = row.text("notes");
  if (holds(notes, "examples/megatron") || holds(notes, "mcore")) return left_out(row, "Megatron-SWIFT");
  if (holds(notes, "needs an 80GB card") || holds(notes, "near card limit")) return left_out(row, "an upper bound");
  if (holds(notes, "sequence_parallel")) return left_out(row, "sequence parallelism of ms-swift has no profile");
  if (holds(notes, "rlhf_type")) return left_out(row, "two models, of which one is not trained");
  const bool liger = holds(notes, "liger kernel");
  hf.fused_norms.set(liger);
  run.cross_entropy.set(liger ? CrossEntropyKernel::kChunked : CrossEntropyKernel::kEager);
  hf.deepspeed.set(run.zero > 0);
  hf.figure.set(MemoryFigure::kReserved);
  hf.adapter_dropout.set(true);
  run.targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  return Ok{};
}

// Answer.AI's fsdp_qlora, train.py's defaults: LoRA of rank 64 on all linears, bf16 throughout.
Status read_answerai(const PublishedRun& row, FrameworkRun& run) {
  HfSwitches& hf = run.hf;
  hf.autocast.set(false);
  hf.adapter_dtype.set(DType::kBFloat16);
  hf.figure.set(MemoryFigure::kReserved);
  hf.adapter_dropout.set(true);
  run.cross_entropy.set(CrossEntropyKernel::kEager);
  if (run.trains_adapter) {
    run.rank = 64;
    run.targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  }
  if (holds(row.text("offload"), "params")) run.sharding.weights_on_host.set(true);
  return Ok{};
}

// LitGPT's resource tables: bf16-true, LoRA on q and v.
Status read_litgpt(const PublishedRun& row, FrameworkRun& run) {
  HfSwitches& hf = run.hf;
  const std::string method = row.text("method"), quant = row.text("quant");
  hf.code.set(LayerCode::kLitGpt);
  hf.autocast.set(false);
  hf.adapter_dtype.set(DType::kBFloat16);
  run.trains_adapter = method != "full";
  if (run.trains_adapter && run.frozen.assumed) read_quantisation(row, run);
  hf.trained = count(after(row, "trainable params "));
  hf.adapter.set(method.starts_with("adapter_v2") ? AdapterKind::kFullScale
                 : method.starts_with("adapter")  ? AdapterKind::kOutput
                                                  : AdapterKind::kLora);
  hf.frozen_keeps_inputs.set(!quant.empty());
  hf.wraps_on_device.set(run.zero >= 3);
  if (run.zero >= 3) run.checkpointing = Checkpointing::kFull;
  run.cross_entropy.set(CrossEntropyKernel::kEager);
  for (LayerSpec& layer : run.model.layers)
    if (layer.mlp.kind == MlpKind::kPlain) layer.norm.kind = NormKind::kLayer;
  return Ok{};
}

}  // namespace

Status read_hf_row(const PublishedRun& row, FrameworkRun& run) {
  const std::string method = row.text("method"), source = row.source();
  if (row.text("pp").starts_with("naive"))
    return left_out(row, "layers spread over GPUs by device_map have no profile");
  run.trains_adapter = method == "lora" || method == "qlora";
  run.rank = row.integer("lora_rank", 0);
  if (run.trains_adapter) read_quantisation(row, run);
  if (source == "fms_acceleration_finetune") return read_fms(row, run);
  if (source == "peft_metamathqa_llama32_3b") return read_peft(row, run);
  if (source == "qwen_finetune_a100") return read_qwen(row, run);
  if (source == "litgpt_finetune_a100_40g") return read_litgpt(row, run);
  if (source == "ms_swift_legacy_finetune_a100") return read_swift(row, run);
  if (source == "ms_swift_examples") return read_swift_example(row, run);
  if (source == "answerai_fsdp_qlora") return read_answerai(row, run);
  // A row of somebody's own: what the columns say.
  if (row.text("attn_impl").starts_with("eager")) run.attention.set(AttentionKernel::kUnfused);
  if (run.trains_adapter) run.targets = words(row.note("target_modules"));
  return Ok{};
}

}  // namespace fivefold
