// transformers' Trainer and what goes with it: arguments of TRL's and similar scripts, accelerate's and DeepSpeed's
// files, alone or named by the script. axolotl's own file has other names for the same things (axolotl_import.cc).
#include "exporters/hub_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/integer.h"
#include "base/text.h"

namespace fivefold {
namespace {

class HubReader {
 public:
  HubReader(ImportSheet& sheet, HubFiles& files)
      : sheet_(sheet),
        args_(files.arguments),
        accelerate_(files.accelerate),
        deepspeed_(files.deepspeed),
        files_(files) {}

  void read() {
    const bool trainer = !args_.empty();
    read_model();
    read_method();
    read_sharding(trainer);
    read_precision();
    read_batch(trainer);
    read_hub_training(sheet_, files_);
    sheet_.close(args_);
    sheet_.close(accelerate_);
    sheet_.close(deepspeed_);
  }

 private:
  RunConfig& config() { return sheet_.config(); }

  void read_model() {
    const ForeignSetting* name =
        args_.find_first({"model_name_or_path", "model_name", "model_id", "model", "model_path"});
    if (name != nullptr || !sheet_.options().model.empty())
      sheet_.find_named_model(name == nullptr ? "" : foreign_value_text(name->value),
                              name == nullptr ? "--model" : name->where);
    const std::string attention =
        args_.text("attn_implementation")
            .value_or(args_.flag("use_flash_attn") || args_.flag("use_flash_attention_2") ? "flash" : "");
    if (attention == "eager")
      sheet_.add_switch("attention", "unfused");
    else if (!attention.empty())
      sheet_.add_switch("attention", "flash");
    if (args_.flag("use_liger_kernel") || args_.flag("use_liger")) {
      sheet_.add_switch("cross_entropy", "chunked");
      sheet_.add_switch("fused_norms", "on");
    }
  }

  void read_method() {
    MethodConfig& m = config().method;
    const bool four =
        args_.flag("load_in_4bit") || args_.flag("use_4bit_quantization") || args_.flag("use_4bit_qunatization");
    const std::optional<int64_t> dimension = args_.integer("lora_dim", 0, 1 << 20);
    const bool peft = args_.flag("use_peft") || dimension.value_or(0) > 0 || args_.flag("use_peft_lora") ||
                      args_.flag("use_lora") || args_.flag("lora") || four ||
                      args_.text("finetuning_type").value_or("full") == "lora";
    args_.text("bnb_4bit_quant_type");
    const bool nested = args_.flag("use_bnb_nested_quant") || args_.flag("use_nested_quant");
    const ForeignSetting* rank = args_.find_first({"lora_r", "lora_rank"});
    const std::string rank_name = rank == nullptr ? "lora_r" : rank->lookup_name();
    const int64_t r = args_.integer(rank_name, 1, 1 << 20).value_or(16);
    const double alpha = args_.number("lora_alpha", 1e-9, 1e9).value_or(32);
    const double dropout = args_.number("lora_dropout", 0, 0.999).value_or(0.05);
    std::vector<std::string> targets = args_.texts("lora_target_modules");
    if (targets.empty()) targets = args_.texts("lora_target");
    if (targets.size() == 1 && targets[0].find(',') != std::string::npos) targets = split(targets[0], ',');
    const bool rslora = args_.flag("use_rslora"), dora = args_.flag("use_dora");
    if (args_.flag("load_in_8bit"))
      sheet_.assume("method.kind", "lora", "an 8-bit base counts as bf16: memory is too high");
    if (!peft) return;
    m.kind = four ? MethodKind::kQlora : MethodKind::kLora;
    if (four) m.double_quantization = nested;
    m.rank = dimension.value_or(0) > 0 ? *dimension : r, m.alpha = alpha, m.dropout = dropout,
    m.rank_stabilized = rslora, m.dora = dora;
    const std::optional<std::string> part = args_.text("lora_module_name");
    if (part) {
      m.targets = {"all-linear"};
      sheet_.assume("method.targets", "all-linear", "linears whose name has `" + *part + "`");
    } else if (!targets.empty()) {
      m.targets = targets == std::vector<std::string>{"all"} ? std::vector<std::string>{"all-linear"} : targets;
    } else {
      m.targets = {"q_proj", "v_proj"};
      sheet_.assume("method.targets", "q_proj, v_proj", "PEFT's usual ones");
    }
  }

  // The axes come before the ranks are divided.
  void read_sharding(bool trainer) {
    ParallelConfig& p = config().parallel;
    p.zero = 0;
    const std::string type = accelerate_.text("distributed_type")
                                 .value_or(accelerate_.flag("use_fsdp")        ? "FSDP"
                                           : accelerate_.flag("use_deepspeed") ? "DEEPSPEED"
                                                                               : "");
    // A level among the program's arguments: its own DeepSpeed configuration, as DeepSpeed's examples make it.
    own_deepspeed_ = args_.has("zero_stage") && args_.has("deepspeed");
    const bool deepspeed = !deepspeed_.empty() || type == "DEEPSPEED" || own_deepspeed_;
    config().framework.name = deepspeed && !trainer ? Framework::kDeepspeed : Framework::kHf;
    if (deepspeed)
      read_deepspeed(trainer);
    else if (type == "FSDP" || args_.has("fsdp"))
      read_fsdp();
    // Named and without a meaning of its own here.
    for (const std::string_view name : {"fsdp", "deepspeed", "deepspeed_config", "deepspeed_config_file"}) {
      args_.find(name);
      accelerate_.find(name);
    }
  }

  void read_deepspeed(bool trainer) {
    ParallelConfig& p = config().parallel;
    std::optional<int64_t> stage = deepspeed_.integer("zero_optimization.stage", 0, 3);
    if (!stage) stage = accelerate_.integer("deepspeed_config.zero_stage", 0, 3);
    if (!stage) stage = accelerate_.integer("zero_stage", 0, 3);
    if (!stage) stage = args_.integer("zero_stage", 0, 3);
    p.zero = static_cast<int>(stage.value_or(deepspeed_.empty() ? 2 : 0));
    p.shard_size = static_cast<int>(deepspeed_.integer("zero_optimization.mics_shard_size", 0, 1 << 20).value_or(0));
    if (trainer) sheet_.add_switch("deepspeed", "on");
    const auto host = [&](const std::string& what) {
      return deepspeed_.text("zero_optimization.offload_" + what + ".device")
                 .value_or(accelerate_.text("deepspeed_config.offload_" + what + "_device").value_or("none")) != "none";
    };
    for (const std::string_view part :
         {"pin_memory", "buffer_count", "buffer_size", "fast_init", "nvme_path", "max_in_cpu", "ratio"})
      for (const std::string_view what : {"optimizer", "param"})
        deepspeed_.find(fmt::format("zero_optimization.offload_{}.{}", what, part));
    if (host("optimizer") || deepspeed_.flag("zero_optimization.cpu_offload"))
      sheet_.add_switch("optimizer_on_host", "on");
    if (host("param")) {
      if (!trainer)
        sheet_.add_switch("weights_on_host", "on");
      else
        sheet_.assume("framework.switches", "",
                      "weights on the host are not known under the Trainer: memory is too high");
    }
    if (deepspeed_.has("tensor_parallel.autotp_size"))
      sheet_.fail(deepspeed_.where("tensor_parallel.autotp_size"),
                  "DeepSpeed's automatic tensor parallelism is not known", "");
  }

  void read_fsdp() {
    ParallelConfig& p = config().parallel;
    ForeignSettings fsdp;
    if (const ForeignSetting* file = args_.find("fsdp_config"); file != nullptr && file->value.is_string())
      files_.read_fsdp_config(sheet_, file->value.get<std::string>(), file->where, fsdp);
    for (const ForeignSettings* from : {&args_, &accelerate_})
      for (const ForeignSetting& s : from->all()) {
        std::string name = s.name.starts_with("fsdp_config.") ? s.name.substr(12) : s.name;
        if (from == &accelerate_ || s.name.starts_with("fsdp_config.")) fsdp.add(name, s.value, s.where);
      }
    const auto any = [&](std::string_view name) -> std::optional<std::string> {
      args_.find("fsdp_config." + std::string(name)), args_.find("fsdp_config.fsdp_" + std::string(name));
      accelerate_.find("fsdp_config." + std::string(name)), accelerate_.find("fsdp_config.fsdp_" + std::string(name));
      accelerate_.find("fsdp_" + std::string(name));
      return fsdp.has(name) ? fsdp.text(name) : fsdp.text("fsdp_" + std::string(name));
    };
    std::string words = args_.has("fsdp") ? join(args_.texts("fsdp"), " ") : "";
    for (char& c : words) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    std::string strategy = any("sharding_strategy").value_or("");
    for (char& c : strategy) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (strategy == "1") strategy = "full_shard";
    if (strategy == "2") strategy = "shard_grad_op";
    const std::string reshard = any("reshard_after_forward").value_or("true");
    const bool keeps = reshard == "false" || strategy.find("shard_grad_op") != std::string::npos ||
                       words.find("shard_grad_op") != std::string::npos || words.find("zero2") != std::string::npos;
    p.zero = strategy == "no_shard" || words.find("no_shard") != std::string::npos ? 0 : keeps ? 2 : 3;
    any("version");
    if (any("offload_params").value_or("false") == "true" || any("cpu_offload").value_or("false") == "true" ||
        words.find("offload") != std::string::npos)
      offload_fsdp();
    if (any("activation_checkpointing").value_or("false") == "true") config().recompute.kind = RecomputeKind::kFull;
    read_mesh();
    if (strategy.find("hybrid") != std::string::npos || words.find("hybrid_shard") != std::string::npos)
      sheet_.assume("parallel.shard_size", "8", "hybrid sharding is over the GPUs of a machine"), p.shard_size = 8;
  }

  void offload_fsdp() {
    sheet_.add_switch("optimizer_on_host", "on");
    sheet_.assume("framework.switches", "optimizer_on_host=on",
                  "weights on the host are not known under FSDP: memory is too high");
  }

  void read_mesh() {
    ParallelConfig& p = config().parallel;
    const auto degree = [&](std::string_view axis) {
      const std::string flat = fmt::format("parallelism_config_{}_size", axis), nested = "parallelism_config." + flat;
      return accelerate_.integer(accelerate_.has(nested) ? nested : flat, 1, 1 << 20).value_or(1);
    };
    accelerate_.find("use_parallelism_config");
    p.tp = static_cast<int>(degree("tp"));
    p.cp = static_cast<int>(degree("cp"));
    const int64_t replicas = degree("dp_replicate"), shard = degree("dp_shard");
    const std::string key = "parallelism_config_cp_comm_strategy";
    const std::string strategy =
        accelerate_.text("parallelism_config." + key).value_or(accelerate_.text(key).value_or("allgather"));
    if (p.cp > 1) p.cp_kind = strategy == "alltoall" ? CpKind::kRing : CpKind::kAllGather;
    if (replicas > 1) p.shard_size = static_cast<int>(std::min<int64_t>(shard * p.cp, 1 << 20));
  }

  void read_precision() {
    PrecisionConfig& p = config().precision;
    std::string mixed = accelerate_.text("mixed_precision").value_or("");
    if (args_.flag("bf16") || deepspeed_.flag("bf16.enabled")) mixed = "bf16";
    if (args_.flag("fp16") || deepspeed_.flag("fp16.enabled")) mixed = "fp16";
    if (const std::string name = args_.text("dtype").value_or(""); own_deepspeed_ && mixed.empty()) {
      mixed = name == "bf16" ? "bf16" : "fp16";
      if (name.empty()) sheet_.assume("precision.compute", "fp16", "the usual one of DeepSpeed's examples");
    }
    // TRL's scripts take bf16 where nothing is said.
    if (mixed.empty() && files_.is_trl() && !args_.has("bf16")) mixed = "bf16";
    const bool adapter = config().method.kind != MethodKind::kFull;
    const ForeignSetting* named = args_.find_first({"dtype", "torch_dtype"});
    std::string dtype = named == nullptr ? "" : foreign_value_text(named->value);
    if (dtype == "auto") dtype = "bfloat16";
    p.compute = mixed == "bf16" || mixed == "fp8" ? ComputeKind::kBf16
                : mixed == "fp16"                 ? ComputeKind::kFp16
                                                  : ComputeKind::kFp32;
    if (mixed == "fp8") p.compute = ComputeKind::kFp8;
    const bool pure = mixed.empty() && (dtype == "bfloat16" || dtype == "float16");
    if (pure) p.compute = dtype == "bfloat16" ? ComputeKind::kBf16 : ComputeKind::kFp16;
    const DType half = p.compute == ComputeKind::kFp16 ? DType::kFloat16 : DType::kBFloat16;
    const DType stored = dtype == "bfloat16"  ? DType::kBFloat16
                         : dtype == "float16" ? DType::kFloat16
                                              : DType::kFloat32;
    const bool deepspeed = !deepspeed_.empty() || own_deepspeed_ || config().framework.name == Framework::kDeepspeed;
    const bool fsdp = !deepspeed && config().parallel.zero > 0;
    if (adapter) {
      p.params = stored;
    } else if (deepspeed && p.compute != ComputeKind::kFp32) {
      p.params = half;
    } else if (fsdp && !mixed.empty() && mixed != "no") {
      p.params = DType::kFloat32;  // accelerate upcasts what is trained
    } else {
      p.params = stored;
      if (stored != DType::kFloat32) p.master = MasterKind::kNone;
    }
    p.grads = adapter || p.params == DType::kFloat32 || (deepspeed && p.master == MasterKind::kFp32) ? DType::kFloat32
                                                                                                     : *p.params;
    p.reduce = fsdp && p.compute != ComputeKind::kFp32 ? half : *p.grads;
    read_deepspeed_types();
    if (p.compute == ComputeKind::kFp16 && deepspeed_.flag("fp16.enabled")) {
      if (const auto power = deepspeed_.integer("fp16.initial_scale_power", 0, 62))
        p.loss_scale = std::exp2(static_cast<double>(*power));
      p.loss_scale_growth_every = deepspeed_.integer("fp16.loss_scale_window", 1, 1 << 30).value_or(1000);
    }
    deepspeed_.find("fp16.enabled"), deepspeed_.find("bf16.enabled");
    deepspeed_.find("fp16.initial_scale_power"), deepspeed_.find("fp16.loss_scale_window");
  }

  void read_deepspeed_types() {
    PrecisionConfig& p = config().precision;
    const auto type = [](const std::string& name) {
      return name == "fp32" ? DType::kFloat32 : name == "fp16" ? DType::kFloat16 : DType::kBFloat16;
    };
    if (const auto name = deepspeed_.text("data_types.grad_accum_dtype"); name && *name != "auto")
      p.grads = type(*name);
    if (const auto name = deepspeed_.text("communication_data_type"); name && *name != "auto") p.reduce = type(*name);
  }

  void read_batch(bool trainer) {
    BatchConfig& b = config().batch;
    std::optional<int64_t> micro;
    if (const ForeignSetting* given =
            args_.find_first({"per_device_train_batch_size", "per_gpu_train_batch_size", "micro_batch_size"}))
      micro = args_.integer(given->lookup_name(), 1, 1 << 20);
    if (!micro) micro = deepspeed_.integer("train_micro_batch_size_per_gpu", 1, 1 << 20);
    std::optional<int64_t> rounds = args_.integer("gradient_accumulation_steps", 1, 1 << 20);
    if (!rounds) rounds = deepspeed_.integer("gradient_accumulation_steps", 1, 1 << 20);
    if (!rounds) rounds = accelerate_.integer("deepspeed_config.gradient_accumulation_steps", 1, 1 << 20);
    const std::optional<int64_t> global = deepspeed_.integer("train_batch_size", 1, 1 << 30);
    deepspeed_.find("train_micro_batch_size_per_gpu"), deepspeed_.find("gradient_accumulation_steps");
    accelerate_.find("deepspeed_config.gradient_accumulation_steps");
    if (!micro) {
      micro = trainer ? 8 : 1;
      sheet_.assume("batch.micro", std::to_string(*micro), trainer ? "the Trainer's default" : "the file does not say");
    }
    b.micro = *micro;
    read_sequence(trainer);
    const std::optional<int64_t> said = files_.ranks ? files_.ranks : accelerate_.integer("num_processes", 1, 1 << 24);
    accelerate_.find("num_machines");
    const int64_t ranks = sheet_.options().gpus > 0 ? sheet_.options().gpus : said.value_or(0);
    if (ranks == 0) {
      if (sheet_.run.errors.empty())
        sheet_.fail(files_.where, "the number of GPUs is not known", "import with --gpus N");
      return;
    }
    b.global = !rounds && global ? *global : 0;
    sheet_.set_world(ranks, files_.where);
    ParallelConfig& p = config().parallel;
    if (p.shard_size > p.dp * p.cp) p.shard_size = 0;
    if (rounds || !global) b.global = b.micro * p.dp * rounds.value_or(1);
    if (rounds && global && *global != b.global)
      sheet_.fail(deepspeed_.where("train_batch_size"),
                  fmt::format("train_batch_size = {} is not micro-batch x accumulation x replicas = {} x {} x {}",
                              *global, b.micro, *rounds, p.dp),
                  fmt::format("use {}", b.global));
  }

  void read_sequence(bool trainer) {
    BatchConfig& b = config().batch;
    const ForeignSetting* length = args_.find_first({"max_length", "max_seq_length", "max_seq_len", "model_max_length",
                                                     "block_size", "cutoff_len", "sequence_len"});
    const std::optional<int64_t> given =
        length == nullptr ? std::nullopt : args_.integer(length->lookup_name(), 1, 1 << 30);
    if (sheet_.options().sequence > 0)
      b.sequence = sheet_.options().sequence;
    else if (given)
      b.sequence = *given;
    else
      sheet_.assume("batch.sequence", "1024",
                    trainer ? "TRL's default max_length" : "the file does not say: --sequence N");
    const bool packs = args_.flag("packing"), gathers = args_.text("packing_strategy").value_or("bfd") != "wrapped";
    b.packing = packs && !gathers ? Packing::kConcatenate : Packing::kDocuments;
    if (!packs && trainer)
      sheet_.assume("batch.packing", "documents",
                    "without packing each row counts as full: memory is the most it can be");
    const std::optional<bool> checkpointing = args_.boolean("gradient_checkpointing");
    if (checkpointing.value_or(files_.is_trl() || config().recompute.kind == RecomputeKind::kFull))
      config().recompute.kind = RecomputeKind::kFull;
    if (!checkpointing && files_.is_trl()) sheet_.assume("recompute.kind", "full", "TRL's default");
  }

  ImportSheet& sheet_;
  ForeignSettings& args_;
  ForeignSettings& accelerate_;
  ForeignSettings& deepspeed_;
  HubFiles& files_;
  bool own_deepspeed_ = false;
};

}  // namespace

void read_hub_run(ImportSheet& sheet, HubFiles files) { HubReader(sheet, files).read(); }

}  // namespace fivefold
