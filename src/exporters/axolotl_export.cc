// axolotl's YAML.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/integer.h"
#include "base/text.h"
#include "exporters/hub_export.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

class AxolotlFile {
 public:
  explicit AxolotlFile(const ExportedPlan& plan)
      : plan_(plan), config_(plan.config), sheet_(plan.config), switches_(plan.config) {}

  Result<Exported> write() {
    FIVEFOLD_TRY(check_axes(plan_, {"tp", "cp"}));
    add_model();
    add_batch();
    add_sharding();
    add_precision();
    add_method();
    add_optimizer();
    add_run();
    say_framework(plan_, {Framework::kHf}, sheet_, switches_);
    return Exported{ForeignTarget::kAxolotl, {{"run_axolotl.sh", script()}, {"axolotl.yaml", text_}}, sheet_.notes()};
  }

 private:
  // JSON is YAML.
  void line(std::string_view key, const Json& value) { text_ += fmt::format("{}: {}\n", key, value.dump()); }

  void add_model() {
    text_ = fmt::format("# {} on {} GPUs, for {}\n", plan_.model.name, plan_.world(),
                        target_release(ForeignTarget::kAxolotl));
    line("base_model", plan_.repository.empty() ? plan_.model.name : plan_.repository);
    sheet_.says({"model.name", "model.config", "model.weights"});
    if (plan_.repository.empty()) sheet_.cannot("model.name", "is in no repository of the Hub", plan_.model.name);
    if (config_.model.weights == "random") {
      line("reinit_weights", true);
    } else {
      sheet_.cannot("model.weights", "axolotl starts from the repository's weights", "the published weights");
    }
    const bool known = !config_.data.train.empty();
    if (known) sheet_.says({"data.train"});
    text_ += fmt::format("datasets:\n  - path: {}\n    type: completion\n",
                         Json(known ? config_.data.train : "DATASET").dump());
  }

  void add_batch() {
    const BatchConfig& b = config_.batch;
    line("sequence_len", b.sequence);
    line("sample_packing", true);
    if (b.packing == Packing::kConcatenate)
      sheet_.cannot("batch.packing", "packed samples do not see one another", "documents");
    line("micro_batch_size", b.micro);
    line("gradient_accumulation_steps", plan_.microbatches());
    const RecomputeConfig& r = config_.recompute;
    line("gradient_checkpointing", r.kind != RecomputeKind::kNone);
    if (r.kind == RecomputeKind::kSelective)
      sheet_.cannot("recompute.kind", "axolotl recomputes whole layers or nothing", "full");
    if (r.kind == RecomputeKind::kFull && r.every > 1)
      sheet_.cannot("recompute.every", "each layer is a segment of its own", "1");
    sheet_.says({"batch.sequence", "batch.micro", "batch.global", "batch.packing", "recompute.kind"});
    line("attn_implementation", switches_.take("attention") == "unfused" ? "eager" : "flash_attention_2");
    const bool chunked = switches_.take("cross_entropy") == "chunked";
    if (chunked) line("chunked_cross_entropy", true);
  }

  void add_sharding() {
    const ParallelConfig& p = config_.parallel;
    sheet_.says({"parallel.dp", "parallel.tp", "parallel.cp", "parallel.cp_kind", "parallel.zero",
                 "parallel.shard_size", "parallel.sp"});
    if (p.sp) sheet_.cannot("parallel.sp", "transformers' plans keep norms whole", "false");
    if (p.cp > 1 && p.cp_kind != CpKind::kRing)
      sheet_.cannot("parallel.cp_kind", "axolotl's context parallelism is a ring", "ring");
    if (p.tp > 1) line("tensor_parallel_size", p.tp);
    if (p.cp > 1) line("context_parallel_size", p.cp);
    level_ = int64_t{p.dp} * p.cp == 1 ? 0 : p.zero;
    if (level_ < 2 && (p.tp > 1 || p.cp > 1)) {
      if (int64_t{p.dp} * p.cp > 1) sheet_.cannot("parallel.zero", "tp and cp go with FSDP 2", "2");
      level_ = 2;
    }
    if (level_ == 1) return add_deepspeed();
    if (level_ == 0) return;
    int64_t shard = p.shard_size > 0 ? p.shard_size : int64_t{p.dp} * p.cp;
    if (shard % p.cp != 0) {
      sheet_.cannot("parallel.shard_size", "a shard group holds whole groups of cp", "0");
      shard = int64_t{p.dp} * p.cp;
    }
    const int64_t dp_shard = div_exact(shard, int64_t{p.cp});
    line("dp_shard_size", dp_shard);
    if (dp_shard < p.dp) line("dp_replicate_size", div_exact(int64_t{p.dp}, dp_shard));
    line("fsdp_version", 2);
    text_ += fmt::format(
        "fsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  state_dict_type: SHARDED_STATE_DICT\n"
        "  reshard_after_forward: {}\n",
        level_ == 3);
  }

  void add_deepspeed() {
    const bool half = config_.precision.compute == ComputeKind::kBf16;
    Json file = {{"zero_optimization", {{"stage", 1}, {"overlap_comm", true}}},
                 {"gradient_accumulation_steps", "auto"},
                 {"train_batch_size", "auto"},
                 {"train_micro_batch_size_per_gpu", "auto"}};
    if (half) file["bf16"] = {{"enabled", true}};
    line("deepspeed", file);
  }

  void add_precision() {
    const PrecisionConfig& p = config_.precision;
    sheet_.says({"precision.compute", "precision.params", "precision.grads", "precision.reduce", "precision.master"});
    const bool half = p.compute != ComputeKind::kFp32;
    if (p.compute == ComputeKind::kFp16)
      line("fp16", true);
    else
      line("bf16", half);
    if (p.compute == ComputeKind::kFp8) {
      line("fp8", true);
      if (p.fp8 == Fp8Scaling::kCurrent)
        sheet_.says({"precision.fp8"});
      else
        sheet_.cannot("precision.fp8", "torchao scales each tensor as it is", "current");
    }
    if (config_.method.kind != MethodKind::kFull || level_ == 1 || !half) return;
    const DType compute = p.compute == ComputeKind::kFp16 ? DType::kFloat16 : DType::kBFloat16;
    const DType kept = level_ == 0 ? compute : DType::kFloat32;
    if (level_ == 0 && p.master == MasterKind::kFp32)
      sheet_.cannot("precision.master", "the weights themselves take the updates", "none");
    if (level_ > 0 && p.master == MasterKind::kNone)
      sheet_.cannot("precision.master", "FSDP 2 shards fp32 weights", "fp32");
    if (p.params && *p.params != kept)
      sheet_.cannot("precision.params",
                    level_ == 0 ? "weights are loaded in the compute type" : "FSDP 2 shards fp32 weights",
                    std::string(to_string(kept)));
    if (p.grads && *p.grads != kept)
      sheet_.cannot("precision.grads", "gradients have the trained weights' type", std::string(to_string(kept)));
    if (p.reduce && *p.reduce != compute)
      sheet_.cannot("precision.reduce", "reduced as computed", std::string(to_string(compute)));
  }

  void add_method() {
    const MethodConfig& m = config_.method;
    say_method(plan_, sheet_);
    if (m.kind == MethodKind::kFull) return;
    line("adapter", to_string(m.kind));
    if (m.kind == MethodKind::kQlora) {
      line("load_in_4bit", true);
      text_ += fmt::format("bnb_config_kwargs:\n  bnb_4bit_use_double_quant: {}\n", m.double_quantization);
    }
    line("lora_r", m.rank);
    line("lora_alpha", static_cast<int64_t>(m.alpha));
    if (m.alpha != static_cast<double>(static_cast<int64_t>(m.alpha)))
      sheet_.cannot("method.alpha", "axolotl takes a whole number", std::to_string(static_cast<int64_t>(m.alpha)));
    line("lora_dropout", m.dropout);
    if (m.targets == std::vector<std::string>{"all-linear"})
      line("lora_target_linear", true);
    else
      line("lora_target_modules", m.targets);
    if (m.rank_stabilized) line("peft_use_rslora", true);
    if (m.dora) line("peft_use_dora", true);
  }

  void add_optimizer() {
    const OptimizerConfig& o = config_.optimizer;
    line("optimizer", hub_optimizer(config_, sheet_));
    line("learning_rate", o.lr);
    line("weight_decay", o.weight_decay);
    if (o.kind == OptimizerKind::kAdamW) {
      line("adam_beta1", o.betas[0]);
      line("adam_beta2", o.betas[1]);
      line("adam_epsilon", o.eps);
      sheet_.says({"optimizer.betas", "optimizer.eps"});
    } else if (o.momentum != 0) {
      line("optim_args", "momentum=" + exact_number(o.momentum));
      sheet_.says({"optimizer.momentum"});
    }
    line("max_grad_norm", o.clip);
    if (o.decay == DecayScope::kAll)
      sheet_.cannot("optimizer.decay", "the Trainer spares biases and norms", "matrices");
    const HubSchedule schedule = hub_schedule(config_);
    line("lr_scheduler", schedule.name);
    if (!schedule.arguments.empty()) text_ += "lr_scheduler_kwargs: " + schedule.arguments + "\n";
    line("warmup_steps", config_.lr.warmup_steps);
    sheet_.says({"optimizer.kind", "optimizer.lr", "optimizer.weight_decay", "optimizer.clip", "optimizer.decay",
                 "lr.schedule", "lr.warmup_steps"});
    if (config_.lr.schedule != LrScheduleKind::kConstant) sheet_.says({"lr.min_ratio"});
    if (config_.lr.schedule == LrScheduleKind::kWsd) sheet_.says({"lr.decay_steps", "lr.decay"});
  }

  void add_run() {
    if (config_.run.steps > 0)
      line("max_steps", config_.run.steps);
    else
      line("num_epochs", 1);
    line("seed", config_.run.seed);
    line("output_dir", config_.run.directory + "/" + config_.run.name);
    line("logging_steps", config_.log.every);
    if (config_.checkpoint.every > 0) {
      line("save_steps", config_.checkpoint.every);
      line("save_total_limit", config_.checkpoint.keep);
      sheet_.says({"checkpoint.every", "checkpoint.keep"});
    }
    sheet_.says({"run.steps", "run.tokens", "run.seed", "run.directory", "run.name", "log.every"});
  }

  std::string script() const {
    std::string launch = fmt::format("--nproc_per_node {} --nnodes {}", plan_.ranks_on_machine(), plan_.machines());
    if (plan_.machines() > 1)
      launch +=
          " --node_rank \"${NODE_RANK:?number of this machine}\" --master_addr \"${MASTER_ADDR:?address of machine "
          "0}\"";
    return "#!/usr/bin/env bash\nset -euo pipefail\naxolotl train axolotl.yaml --launcher torchrun -- " + launch + "\n";
  }

  const ExportedPlan& plan_;
  const RunConfig& config_;
  ExportSheet sheet_;
  SwitchSheet switches_;
  std::string text_;
  int level_ = 0;
};

}  // namespace

Result<Exported> export_axolotl(const ExportedPlan& plan) { return AxolotlFile(plan).write(); }

}  // namespace fivefold
