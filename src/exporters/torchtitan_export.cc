// torchtitan: a Python module with a function that returns a Trainer.Config.
#include <fmt/format.h>

#include <algorithm>

#include "base/integer.h"
#include "base/text.h"
#include "exporters/hub_export.h"
#include "exporters/torchtitan_models.h"

namespace fivefold {
namespace {

// A clip that never binds stands for none.
constexpr double kNoClip = 1e9;

std::string python_bool(bool value) { return value ? "True" : "False"; }

std::string python_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return quoted + "\"";
}

class TorchtitanModule {
 public:
  TorchtitanModule(const ExportedPlan& plan, const TorchtitanModel& model)
      : plan_(plan), config_(plan.config), model_(model), sheet_(plan.config), switches_(plan.config) {}

  Exported write() {
    sheet_.says({"model.name"});
    if (!model_.exact)
      sheet_.cannot("model.name", "its RoPE is that of the 3.1 models",
                    std::string(model_.module) + " " + std::string(model_.flavor));
    std::string body = model_spec();
    body += "    return Trainer.Config(\n        model_spec=model_spec,\n";
    body += loss() + assets() + optimizer() + lr_scheduler() + training() + parallelism() + checkpointing();
    body += run_parts() + "    )\n";
    say_framework(plan_, {Framework::kFsdp2}, sheet_, switches_);
    return Exported{ForeignTarget::kTorchtitan,
                    {{"run_torchtitan.sh", script()}, {"fivefold_run.py", header() + body}},
                    sheet_.notes()};
  }

 private:
  std::string header() const {
    const bool adapter = config_.method.kind != MethodKind::kFull, fp8 = config_.precision.compute == ComputeKind::kFp8;
    std::string text = fmt::format("\"\"\"{} on {} GPUs, for {}.\"\"\"\n\n", plan_.model.name, plan_.world(),
                                   target_release(ForeignTarget::kTorchtitan));
    text += "from torchtitan.components.checkpoint import CheckpointManager\n";
    if (adapter) text += "from torchtitan.components.lora import LoRAConverter\n";
    text += chunked_ ? "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss\n"
                     : "from torchtitan.components.loss import CrossEntropyLoss\n";
    text += "from torchtitan.components.metrics import MetricsProcessor\n";
    text +=
        "from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig\n";
    if (fp8) text += "from torchtitan.components.quantization import Float8LinearConverter\n";
    text +=
        "from torchtitan.config import CompileConfig, DebugConfig, ParallelismConfig, TrainingConfig\n"
        "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC\n"
        "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader\n"
        "from torchtitan.models.common.config_utils import decoder_vocab_size\n";
    text += fmt::format("from torchtitan.models.{} import model_registry\n", model_.module);
    return text + "from torchtitan.trainer import Trainer\n\n\ndef fivefold_run() -> Trainer.Config:\n";
  }

  std::string model_spec() {
    sheet_.says({"batch.packing"});
    std::vector<std::string> arguments = {python_text(model_.flavor)};
    if (config_.batch.packing == Packing::kConcatenate)
      sheet_.cannot("batch.packing", "attention stays inside documents", "documents");
    std::vector<std::string> converters;
    if (config_.precision.compute == ComputeKind::kFp8) converters.push_back(fp8_converter());
    if (config_.method.kind != MethodKind::kFull)
      converters.push_back(adapter_converter());
    else
      sheet_.says({"method.kind"});
    if (!converters.empty()) arguments.push_back("converters=[" + join(converters, ", ") + "]");
    return "    model_spec = model_registry(" + join(arguments, ", ") + ")\n";
  }

  std::string fp8_converter() {
    sheet_.says({"precision.fp8"});
    sheet_.cannot("precision.fp8", "each row has its scale", "Float8LinearConverter of rows");
    return fmt::format("Float8LinearConverter.Config(filter_fqns=[\"lm_head\"], model_compile_enabled={})",
                       python_bool(compiled()));
  }

  std::string adapter_converter() {
    const MethodConfig& m = config_.method;
    sheet_.says({"method.kind", "method.rank", "method.alpha", "method.targets"});
    if (m.kind == MethodKind::kQlora) sheet_.cannot("method.kind", "torchtitan has no 4-bit base", "lora");
    std::vector<std::string> targets;
    bool attention = false;
    const auto add = [&](std::string_view name) {
      if (const std::string quoted = python_text(name);
          std::find(targets.begin(), targets.end(), quoted) == targets.end())
        targets.push_back(quoted);
    };
    for (const std::string& target :
         m.targets == std::vector<std::string>{"all-linear"}
             ? std::vector<std::string>{"q_proj", "o_proj", "gate_proj", "down_proj", "up_proj"}
             : m.targets) {
      const bool qkv = target == "q_proj" || target == "k_proj" || target == "v_proj";
      attention = attention || qkv;
      add(qkv                     ? "wqkv"
          : target == "o_proj"    ? "wo"
          : target == "gate_proj" ? "w1"
          : target == "down_proj" ? "w2"
          : target == "up_proj"   ? "w3"
                                  : std::string_view(target));
    }
    if (attention) sheet_.cannot("method.targets", "q, k and v are one linear there, with one adapter", "wqkv");
    return fmt::format("LoRAConverter.Config(rank={}, alpha={}, target_modules=[{}])", m.rank, m.alpha,
                       join(targets, ", "));
  }

  bool compiled() const {
    const auto& all = config_.framework.switches;
    return std::find(all.begin(), all.end(), "compiled=off") == all.end();
  }

  std::string loss() {
    const std::string kind = switches_.take("cross_entropy");
    chunked_ = kind == "chunked";
    eager_loss_ = kind == "eager";
    const std::string inner = "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))";
    return "        loss=" + (chunked_ ? "ChunkedLossWrapper.Config(loss_fn=" + inner + ")" : inner) + ",\n";
  }

  std::string assets() {
    const size_t slash = plan_.repository.rfind('/');
    return fmt::format(
        "        hf_assets_path={},\n        dump_folder={},\n",
        python_text("./assets/hf/" + plan_.repository.substr(slash == std::string::npos ? 0 : slash + 1)),
        python_text(config_.run.directory + "/" + config_.run.name));
  }

  std::string optimizer() {
    const OptimizerConfig& o = config_.optimizer;
    sheet_.says({"optimizer.kind", "optimizer.lr", "optimizer.weight_decay", "optimizer.decay", "optimizer.betas",
                 "optimizer.eps"});
    if (o.kind == OptimizerKind::kSgd)
      sheet_.cannot("optimizer.kind", "torchtitan builds Adam, AdamW and Muon", "adamw");
    const auto group = [&](std::string_view pattern, double decay) {
      return fmt::format(
          "                ParamGroupConfig(\n                    pattern=r{},\n                    "
          "optimizer_name=\"AdamW\",\n"
          "                    optimizer_kwargs={{\"lr\": {}, \"betas\": ({}, {}), \"eps\": {}, \"weight_decay\": "
          "{}}},\n"
          "                ),\n",
          python_text(pattern), o.lr, o.betas[0], o.betas[1], o.eps, decay);
    };
    const bool bf16 = config_.precision.optimizer_state != OptimizerStateKind::kFp32;
    return fmt::format(
               "        optimizer=OptimizersContainer.Config(\n            implementation=\"{}\",\n            "
               "param_groups=[\n",
               bf16 ? "fused_opt_states_bf16" : "fused") +
           (o.decay == DecayScope::kMatrices ? group(".*norm.*", 0.0) : "") + group(".*", o.weight_decay) +
           "            ],\n        ),\n";
  }

  std::string lr_scheduler() {
    const LrConfig& lr = config_.lr;
    sheet_.says({"lr.schedule", "lr.warmup_steps"});
    std::vector<std::string> fields = {fmt::format("warmup_steps={}", lr.warmup_steps)};
    if (lr.schedule == LrScheduleKind::kConstant) {
      fields.push_back("decay_ratio=0.0");
    } else {
      sheet_.says({"lr.min_ratio"});
      std::string_view type = lr.schedule == LrScheduleKind::kCosine ? "cosine" : "linear";
      if (lr.schedule == LrScheduleKind::kWsd) {
        sheet_.says({"lr.decay_steps", "lr.decay"});
        const double steps = static_cast<double>(std::max<int64_t>(1, config_.run.steps));
        fields.push_back(fmt::format("decay_ratio={}", static_cast<double>(lr.decay_steps) / steps));
        type = lr.decay == WsdDecay::kLinear ? "linear" : lr.decay == WsdDecay::kCosine ? "cosine" : "sqrt";
      }
      fields.push_back(fmt::format("decay_type=\"{}\"", type));
      fields.push_back(fmt::format("min_lr_factor={}", lr.min_ratio));
    }
    return "        lr_scheduler=LRSchedulersContainer.Config(" + join(fields, ", ") + "),\n";
  }

  std::string training() {
    const BatchConfig& b = config_.batch;
    const bool pipeline = config_.parallel.pp > 1;
    sheet_.says({"batch.micro", "batch.global", "batch.sequence", "run.steps", "run.tokens", "optimizer.clip"});
    std::string text = "        training=TrainingConfig(\n";
    const auto field = [&](std::string_view name, const std::string& value) {
      text += fmt::format("            {}={},\n", name, value);
    };
    field("local_batch_size", std::to_string(pipeline ? b.micro * plan_.microbatches() : b.micro));
    field("global_batch_size", std::to_string(b.global));
    field("seq_len", std::to_string(b.sequence));
    if (config_.run.steps > 0) field("steps", std::to_string(config_.run.steps));
    field("max_norm", exact_number(config_.optimizer.clip > 0 ? config_.optimizer.clip : kNoClip));
    // CUDA graphs, which are its default, take neither a pipeline nor the usual dispatch of tokens.
    if (pipeline || config_.parallel.ep > 1) field("disable_cuda_graphs", "True");
    if (switches_.take("weights_on_host") == "on") field("enable_cpu_offload", "True");
    return text + precision() + "        ),\n";
  }

  std::string precision() {
    const PrecisionConfig& p = config_.precision;
    sheet_.says({"precision.compute", "precision.params", "precision.grads", "precision.reduce", "precision.master",
                 "precision.optimizer_state"});
    if (p.compute == ComputeKind::kFp16) sheet_.cannot("precision.compute", "torchtitan has no loss scaling", "bf16");
    const bool half = p.compute != ComputeKind::kFp32,
               pure = half && p.params == DType::kBFloat16 && p.master == MasterKind::kNone;
    const DType stored = pure ? DType::kBFloat16 : DType::kFloat32;
    if (p.params && *p.params != stored)
      sheet_.cannot("precision.params", "FSDP shards fp32 weights and gathers them in bf16, without another copy",
                    "fp32");
    if (!pure && p.master == MasterKind::kNone) sheet_.cannot("precision.master", "the shards are fp32", "fp32");
    if (p.grads && *p.grads != stored)
      sheet_.cannot("precision.grads", "gradients have the shards' type", std::string(to_string(stored)));
    if (p.reduce && *p.reduce != DType::kFloat32)
      sheet_.cannot("precision.reduce", "gradients are reduced in fp32", "fp32");
    if (p.optimizer_state == OptimizerStateKind::k8Bit)
      sheet_.cannot("precision.optimizer_state", "no blocks of 8-bit states", "bf16");
    return fmt::format(
        "            dtype=\"{}\",\n            mixed_precision_param=\"{}\",\n            "
        "mixed_precision_reduce=\"float32\",\n",
        pure ? "bfloat16" : "float32", half ? "bfloat16" : "float32");
  }

  std::string parallelism() {
    const ParallelConfig& p = config_.parallel;
    sheet_.says({"parallel.dp", "parallel.tp", "parallel.sp", "parallel.cp", "parallel.cp_kind", "parallel.ep",
                 "parallel.etp", "parallel.zero", "parallel.shard_size"});
    std::string text = "        parallelism=ParallelismConfig(\n";
    const auto field = [&](std::string_view name, const std::string& value) {
      text += fmt::format("            {}={},\n", name, value);
    };
    const int64_t replicas = int64_t{p.dp} * p.cp;
    int64_t shard = p.shard_size > 0 ? p.shard_size : replicas;
    if (shard % p.cp != 0) {
      sheet_.cannot("parallel.shard_size", "a shard group holds whole groups of cp", "0");
      shard = replicas;
    }
    if (p.zero == 0) shard = p.cp;
    if (p.zero == 1 && replicas > 1) sheet_.cannot("parallel.zero", "fully_shard shards gradients too", "2");
    if (p.zero == 0 && p.cp > 1) sheet_.cannot("parallel.zero", "the ranks of cp share the weights", "2");
    field("data_parallel_replicate_degree", std::to_string(div_exact(replicas, shard)));
    field("data_parallel_shard_degree", std::to_string(div_exact(shard, int64_t{p.cp})));
    field("fsdp_reshard_after_forward", p.zero == 3 ? "\"always\"" : "\"never\"");
    field("tensor_parallel_degree", std::to_string(p.tp));
    if (p.tp > 1) field("enable_sequence_parallel", python_bool(p.sp));
    if (p.sp && p.tp == 1) sheet_.cannot("parallel.sp", "there are no ranks of tp to spread over", "false");
    field("context_parallel_degree", std::to_string(p.cp));
    if (p.cp > 1 && p.cp_kind != CpKind::kAllGather)
      sheet_.cannot("parallel.cp_kind", "keys and values are gathered", "all_gather");
    field("expert_parallel_degree", std::to_string(p.ep));
    if (p.etp > 1) sheet_.cannot("parallel.etp", "experts are not cut by tensor parallelism", "1");
    field("pipeline_parallel_degree", std::to_string(p.pp));
    return text + pipeline() + "        ),\n";
  }

  std::string pipeline() {
    const ParallelConfig& p = config_.parallel;
    sheet_.says({"parallel.vpp", "parallel.schedule", "parallel.stages"});
    if (p.pp == 1) return "";
    const std::pair<ScheduleKind, std::string_view> known[] = {{ScheduleKind::k1F1B, "1F1B"},
                                                               {ScheduleKind::kGPipe, "GPipe"},
                                                               {ScheduleKind::kInterleaved, "Interleaved1F1B"},
                                                               {ScheduleKind::kZbv, "ZBVZeroBubble"},
                                                               {ScheduleKind::kDualPipeV, "DualPipeV"}};
    std::string_view name = p.vpp > 1 ? "Interleaved1F1B" : "1F1B";
    bool found = false;
    for (const auto& [kind, word] : known)
      if (kind == p.schedule) name = word, found = true;
    if (p.schedule == ScheduleKind::kZb1p && p.vpp > 1) name = "InterleavedZeroBubble";
    if (!found) sheet_.cannot("parallel.schedule", "PyTorch's pipelines have no such schedule", std::string(name));
    if (p.stages.cut == StageCut::kBalanced)
      sheet_.cannot("parallel.stages", "each stage names its layers", "the same stages, listed");
    std::string text = fmt::format(
        "            pipeline_parallel_schedule=\"{}\",\n            pipeline_parallel_microbatch_size={},\n", name,
        config_.batch.micro);
    text += "            module_fqns_per_model_part=[\n";
    int64_t layer = 0;
    for (size_t i = 0; i < plan_.chunk_layers.size(); ++i) {
      std::vector<std::string> names;
      if (i == 0) names.push_back("\"tok_embeddings\"");
      for (int64_t n = 0; n < plan_.chunk_layers[i]; ++n) names.push_back(fmt::format("\"layers.{}\"", layer++));
      if (i + 1 == plan_.chunk_layers.size()) names.insert(names.end(), {"\"norm\"", "\"lm_head\""});
      text += "                [" + join(names, ", ") + "],\n";
    }
    return text + "            ],\n";
  }

  std::string checkpointing() {
    const RecomputeConfig& r = config_.recompute;
    sheet_.says({"recompute.kind", "recompute.tensors"});
    if (r.kind == RecomputeKind::kFull && r.every > 1)
      sheet_.cannot("recompute.every", "each layer is a segment of its own", "1");
    if (!r.tensors.empty())
      sheet_.cannot("recompute.tensors", "SelectiveAC keeps products, every second one", "SelectiveAC");
    return fmt::format("        activation_checkpoint={},\n", r.kind == RecomputeKind::kFull ? "FullAC.Config()"
                                                              : r.kind == RecomputeKind::kSelective
                                                                  ? "SelectiveAC.Config()"
                                                                  : "None");
  }

  std::string run_parts() {
    switches_.take("compiled");
    std::string text = fmt::format("        compile=CompileConfig(enable={}, components=[{}]),\n",
                                   python_bool(compiled()), eager_loss_ ? "\"model\"" : "\"model\", \"loss\"");
    text += fmt::format("        metrics=MetricsProcessor.Config(log_freq={}),\n", config_.log.every);
    text += fmt::format("        debug=DebugConfig(seed={}),\n", config_.run.seed);
    text += "        dataloader=HuggingFaceTextDataLoader.Config(dataset=\"c4\"),\n";
    if (!config_.data.train.empty()) sheet_.cannot("data.train", "data sets are registered by name", "c4");
    std::vector<std::string> fields = {"enable=" +
                                       python_bool(config_.checkpoint.every > 0 || config_.model.weights != "random")};
    if (config_.checkpoint.every > 0) fields.push_back(fmt::format("interval={}", config_.checkpoint.every));
    if (config_.checkpoint.every > 0) fields.push_back(fmt::format("keep_latest_k={}", config_.checkpoint.keep));
    if (config_.model.weights != "random") {
      fields.push_back("initial_load_path=" + python_text(config_.model.weights));
      fields.push_back("initial_load_in_hf=True");
    }
    sheet_.says({"log.every", "run.seed", "run.directory", "run.name", "checkpoint.every", "model.weights"});
    if (config_.checkpoint.every > 0) sheet_.says({"checkpoint.keep"});
    return text + "        checkpoint=CheckpointManager.Config(" + join(fields, ", ") + "),\n";
  }

  std::string script() const {
    std::string launch =
        fmt::format("torchrun --nproc_per_node {} --nnodes {}", plan_.ranks_on_machine(), plan_.machines());
    if (plan_.machines() > 1)
      launch +=
          " --node_rank \"${NODE_RANK:?number of this machine}\" --master_addr \"${MASTER_ADDR:?address of machine "
          "0}\"";
    return "#!/usr/bin/env bash\nset -euo pipefail\nexport PYTHONPATH=\".${PYTHONPATH:+:$PYTHONPATH}\"\n" + launch +
           " -m torchtitan.train --module fivefold_run --config fivefold_run \"$@\"\n";
  }

  const ExportedPlan& plan_;
  const RunConfig& config_;
  const TorchtitanModel& model_;
  ExportSheet sheet_;
  SwitchSheet switches_;
  bool chunked_ = false, eager_loss_ = false;
};

}  // namespace

Result<Exported> export_torchtitan(const ExportedPlan& plan) {
  const TorchtitanModel* model = find_torchtitan_model(plan.config.model.name);
  if (model == nullptr)
    return Error{"model",
                 fmt::format("{} has no model `{}`", target_release(ForeignTarget::kTorchtitan), plan.model.name),
                 "known: " + known_torchtitan_models()};
  return TorchtitanModule(plan, *model).write();
}

}  // namespace fivefold
