// Megatron-LM: a bash script that runs pretrain_gpt.py.
#include "exporters/megatron_export.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/integer.h"
#include "base/text.h"
#include "spec/pipeline_stages.h"

namespace fivefold {
namespace {

// Megatron-LM's default.
constexpr int64_t kSeed = 1234;

class MegatronScript {
 public:
  explicit MegatronScript(const ExportedPlan& plan)
      : plan_(plan), config_(plan.config), sheet_(plan.config), switches_(plan.config) {}

  Result<Exported> write() {
    const std::optional<ModelShape> shape = shape_of(plan_.model);
    if (!shape)
      return Error{"model", "Megatron-LM's pretrain_gpt.py has no arguments for layers of this kind",
                   "a decoder of attention and MLP layers, dense or with experts"};
    FlagGroup model = megatron_model_flags(*shape, plan_, sheet_);
    add_parallel();
    add_precision();
    add_recompute();
    add_training();
    add_lr();
    add_data();
    add_method();
    switches_.close(sheet_);
    if (config_.framework.name == Framework::kFivefold || config_.framework.name == Framework::kMegatron)
      sheet_.says({"framework.name"});
    else
      sheet_.cannot("framework.name", "these are Megatron-LM's files", "megatron");
    return Exported{ForeignTarget::kMegatron, {{"run_megatron.sh", script(model)}}, sheet_.notes()};
  }

 private:
  void add_parallel() {
    const ParallelConfig& p = config_.parallel;
    parallel_.add("tensor-model-parallel-size", int64_t{p.tp});
    if (p.sp && p.tp > 1) parallel_.flag("sequence-parallel");
    if (p.sp && p.tp == 1) sheet_.cannot("parallel.sp", "there are no ranks of tp to spread over", "false");
    parallel_.add("pipeline-model-parallel-size", int64_t{p.pp});
    parallel_.add("context-parallel-size", int64_t{p.cp});
    if (p.cp > 1)
      parallel_.add("cp-comm-type", p.cp_kind == CpKind::kRing      ? "p2p"
                                    : p.cp_kind == CpKind::kUlysses ? "a2a"
                                                                    : "all_gather");
    if (plan_.model.layers.back().mlp.kind == MlpKind::kMoe) {
      parallel_.add("expert-model-parallel-size", int64_t{p.ep});
      parallel_.add("expert-tensor-parallel-size", int64_t{p.etp});
      parallel_.add("moe-token-dispatcher-type",
                    switches_.take("gathers_for_experts") == "on" ? "allgather" : "alltoall");
    }
    sheet_.says({"parallel.dp", "parallel.tp", "parallel.sp", "parallel.pp", "parallel.cp", "parallel.cp_kind",
                 "parallel.ep", "parallel.etp"});
    add_pipeline();
    add_sharding();
  }

  void add_pipeline() {
    const ParallelConfig& p = config_.parallel;
    const bool plain = p.pp == 1 || p.schedule == ScheduleKind::k1F1B || p.schedule == ScheduleKind::kInterleaved;
    sheet_.says({"parallel.vpp", "parallel.schedule", "parallel.stages"});
    if (!plain)
      sheet_.cannot("parallel.schedule", "Megatron-LM has 1F1B and interleaved 1F1B",
                    p.vpp > 1 ? "interleaved" : "1f1b");
    if (p.pp == 1) return;
    if (p.vpp > 1 && p.schedule != ScheduleKind::kInterleaved && plain)
      sheet_.cannot("parallel.schedule", "several chunks a rank run interleaved", "interleaved");
    const int64_t stages = int64_t{p.pp} * p.vpp;
    const auto layers = static_cast<int64_t>(plan_.model.layers.size());
    const bool even = layers % stages == 0 && std::all_of(plan_.chunk_layers.begin(), plan_.chunk_layers.end(),
                                                          [&](int64_t n) { return n == layers / stages; });
    if (even) {
      if (p.vpp > 1) parallel_.add("num-virtual-stages-per-pipeline-rank", int64_t{p.vpp});
      return;
    }
    std::vector<std::string> parts;
    for (size_t i = 0; i < plan_.chunk_layers.size(); ++i)
      parts.push_back(
          (i == 0 ? "E" : "") +
          fmt::format("{}", fmt::join(std::vector<std::string>(static_cast<size_t>(plan_.chunk_layers[i]), "t"), "")) +
          (i + 1 == plan_.chunk_layers.size() ? "L" : ""));
    parallel_.add("pipeline-model-parallel-layout", join(parts, "|"));
    if (p.stages.cut == StageCut::kBalanced)
      sheet_.cannot("parallel.stages", "a layout names the layers of each stage", "the same stages, listed");
  }

  void add_sharding() {
    const ParallelConfig& p = config_.parallel;
    sheet_.says({"parallel.zero", "parallel.shard_size"});
    if (p.zero >= 1) parallel_.flag("use-distributed-optimizer");
    if (p.zero >= 2) {
      parallel_.flag("use-megatron-fsdp");
      parallel_.add("data-parallel-sharding-strategy", p.zero == 2 ? "optim_grads" : "optim_grads_params");
      parallel_.flag("no-gradient-accumulation-fusion");
      parallel_.add("ckpt-format", "fsdp_dtensor");
    } else {
      parallel_.flag("overlap-grad-reduce");
      if (p.zero == 1) parallel_.flag("overlap-param-gather");
    }
    const int64_t replicas = int64_t{p.dp} * p.cp;
    if (p.zero >= 1 && p.shard_size > 0 && p.shard_size < replicas)
      parallel_.add("num-distributed-optimizer-instances", div_exact(replicas, p.shard_size));
  }

  void add_precision() {
    const PrecisionConfig& p = config_.precision;
    sheet_.says({"precision.compute", "precision.params", "precision.grads", "precision.reduce", "precision.master",
                 "precision.optimizer_state"});
    const bool half = p.compute != ComputeKind::kFp32;
    if (p.compute == ComputeKind::kFp16) {
      precision_.flag("fp16");
      precision_.add("initial-loss-scale", p.loss_scale);
      precision_.add("loss-scale-window", p.loss_scale_growth_every);
      sheet_.says({"precision.loss_scale", "precision.loss_scale_growth_every"});
    } else if (half) {
      precision_.flag("bf16");
    }
    if (p.compute == ComputeKind::kFp8) add_fp8();
    if (half && p.params == DType::kFloat32)
      sheet_.cannot("precision.params", "Megatron-LM keeps 2-byte weights beside an fp32 copy", "2-byte weights");
    const bool bf16_grads = p.compute != ComputeKind::kFp16 && half && p.grads == DType::kBFloat16;
    if (bf16_grads) precision_.flag("grad-reduce-in-bf16");
    const DType buffer = bf16_grads ? DType::kBFloat16 : DType::kFloat32;
    if (p.grads && *p.grads != buffer)
      sheet_.cannot("precision.grads", "gradients are added in fp32 here", std::string(to_string(buffer)));
    if (p.reduce && *p.reduce != buffer)
      sheet_.cannot("precision.reduce", "gradients are reduced in the type they are added in",
                    std::string(to_string(buffer)));
    if (p.master == MasterKind::kNone)
      sheet_.cannot("precision.master", "an fp32 copy of the weights takes the updates", "fp32");
    if (p.optimizer_state == OptimizerStateKind::kFp32) return;
    if (p.optimizer_state == OptimizerStateKind::k8Bit)
      sheet_.cannot("precision.optimizer_state", "no blocks of 8-bit states", "bf16");
    precision_.flag("use-precision-aware-optimizer");
    precision_.add("exp-avg-dtype", "bf16");
    precision_.add("exp-avg-sq-dtype", "bf16");
  }

  void add_fp8() {
    const PrecisionConfig& p = config_.precision;
    precision_.add("fp8-format", p.fp8 == Fp8Scaling::kBlock ? "e4m3" : "hybrid");
    precision_.add("fp8-recipe", p.fp8 == Fp8Scaling::kDelayed   ? "delayed"
                                 : p.fp8 == Fp8Scaling::kCurrent ? "tensorwise"
                                                                 : "blockwise");
    sheet_.says({"precision.fp8"});
    if (p.fp8 != Fp8Scaling::kDelayed) return;
    sheet_.says({"precision.fp8_history"});
    precision_.add("fp8-amax-history-len", p.fp8_history);
    precision_.add("fp8-amax-compute-algo", "max");
  }

  void add_recompute() {
    const RecomputeConfig& r = config_.recompute;
    sheet_.says({"recompute.kind", "recompute.tensors"});
    if (r.kind == RecomputeKind::kFull) {
      sheet_.says({"recompute.every"});
      training_.add("recompute-granularity", "full");
      training_.add("recompute-method", "uniform");
      training_.add("recompute-num-layers", r.every);
    } else if (r.kind == RecomputeKind::kSelective) {
      training_.add("recompute-granularity", "selective");
      training_.add("recompute-modules", "core_attn");
      if (!r.tensors.empty())
        sheet_.cannot("recompute.tensors", "Megatron-LM recomputes modules, not these tensors", "core_attn");
    }
  }

  void add_training() {
    const OptimizerConfig& o = config_.optimizer;
    training_.add("micro-batch-size", config_.batch.micro);
    training_.add("global-batch-size", config_.batch.global);
    if (config_.run.steps > 0) training_.add("train-iters", config_.run.steps);
    training_.add("optimizer", o.kind == OptimizerKind::kAdamW ? "adam" : "sgd");
    if (o.kind == OptimizerKind::kAdamW) {
      training_.add("adam-beta1", o.betas[0]);
      training_.add("adam-beta2", o.betas[1]);
      training_.add("adam-eps", o.eps);
    } else {
      training_.add("sgd-momentum", o.momentum);
    }
    training_.add("weight-decay", o.weight_decay);
    training_.add("clip-grad", o.clip);
    if (o.decay == DecayScope::kAll) sheet_.cannot("optimizer.decay", "biases and norms never decay", "matrices");
    // Its random state takes no seed of 0.
    training_.add("seed", config_.run.seed > 0 ? config_.run.seed : kSeed);
    if (config_.run.seed == 0) sheet_.cannot("run.seed", "a seed is positive", std::to_string(kSeed));
    add_kernels();
    sheet_.says({"batch.micro", "batch.global", "run.steps", "run.tokens", "run.seed", "optimizer.kind", "optimizer.lr",
                 "optimizer.betas", "optimizer.eps", "optimizer.weight_decay", "optimizer.momentum", "optimizer.clip",
                 "optimizer.decay"});
  }

  void add_kernels() {
    const std::string cross_entropy = switches_.take("cross_entropy");
    if (cross_entropy != "unfused") training_.flag("cross-entropy-loss-fusion");
    if (cross_entropy == "te")
      sheet_.cannot("framework.switches", "cross_entropy=te: refused by Megatron-LM since 0.20",
                    "cross_entropy=native_fused");
    const std::string attention = switches_.take("attention");
    training_.add("attention-backend", attention == "unfused" ? "unfused" : "flash");
    if (switches_.take("optimizer_on_host") == "on") training_.flag("optimizer-cpu-offload");
    if (switches_.take("dropout") == "on") {
      training_.add("hidden-dropout", 0.1);
      training_.add("attention-dropout", 0.1);
    }
  }

  void add_lr() {
    const LrConfig& lr = config_.lr;
    sheet_.says({"lr.schedule", "lr.warmup_steps"});
    if (lr.schedule != LrScheduleKind::kConstant) sheet_.says({"lr.min_ratio"});
    if (lr.schedule == LrScheduleKind::kWsd) sheet_.says({"lr.decay_steps", "lr.decay"});
    training_.add("lr", config_.optimizer.lr);
    training_.add("min-lr", lr.schedule == LrScheduleKind::kConstant ? config_.optimizer.lr
                                                                     : rounded(config_.optimizer.lr * lr.min_ratio));
    constexpr std::string_view kStyles[] = {"constant", "cosine", "linear", "WSD"};
    training_.add("lr-decay-style", kStyles[static_cast<size_t>(lr.schedule)]);
    training_.add("lr-warmup-iters", lr.warmup_steps);
    if (config_.run.steps > 0) training_.add("lr-decay-iters", config_.run.steps);
    if (lr.schedule != LrScheduleKind::kWsd) return;
    constexpr std::string_view kDecays[] = {"linear", "cosine", "minus_sqrt"};
    training_.add("lr-wsd-decay-style", kDecays[static_cast<size_t>(lr.decay)]);
    training_.add("lr-wsd-decay-iters", lr.decay_steps);
  }

  void add_data() {
    const DataConfig& data = config_.data;
    if (data.format == DataFormat::kMegatron && !data.train.empty()) {
      data_.add("data-path", data.train);
      data_.add("split", "99,1,0");
      sheet_.says({"data.train", "data.format"});
    } else {
      data_.flag("mock-data");
      if (!data.train.empty())
        sheet_.cannot("data.train", "Megatron-LM reads its own token files", "--mock-data until --data-path is given");
    }
    data_.add("tokenizer-type", "NullTokenizer");
    if (data.tokenizer != "bytes")
      sheet_.cannot("data.tokenizer", "the token files have been made with it already", "NullTokenizer");
    if (config_.batch.packing == Packing::kDocuments) {
      data_.flag("reset-position-ids");
      data_.flag("reset-attention-mask");
    }
    sheet_.says({"batch.packing"});
    const std::string folder = config_.run.directory + "/" + config_.run.name + "/checkpoints";
    data_.add("save", folder);
    data_.add("load", folder);
    data_.add("save-interval",
              config_.checkpoint.every > 0 ? config_.checkpoint.every : std::max<int64_t>(1, config_.run.steps));
    data_.add("log-interval", config_.log.every);
    if (config_.run.validate_every > 0) data_.add("eval-interval", config_.run.validate_every);
    sheet_.says({"run.name", "run.directory", "checkpoint.every", "log.every", "run.validate_every"});
  }

  void add_method() {
    if (config_.method.kind != MethodKind::kFull)
      sheet_.cannot("method.kind", "pretrain_gpt.py trains every weight", "full; adapters: export to trl or axolotl");
    if (config_.model.weights != "random")
      sheet_.cannot("model.weights", "Megatron-LM loads its own checkpoints",
                    "random weights, or --load of a converted one");
    sheet_.says({"model.weights"});
  }

  std::string script(const FlagGroup& model) const {
    FlagGroup launch("DISTRIBUTED_ARGS");
    launch.add("nproc_per_node", plan_.ranks_on_machine());
    launch.add("nnodes", plan_.machines());
    std::string text = fmt::format(
        "#!/usr/bin/env bash\n# {} on {} GPUs, for {}. Run it from the root of Megatron-LM, on every machine.\n"
        "set -euo pipefail\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n\n",
        plan_.model.name, plan_.world(), target_release(ForeignTarget::kMegatron));
    text += launch.array();
    if (plan_.machines() > 1)
      text +=
          "DISTRIBUTED_ARGS+=(--node_rank \"${NODE_RANK:?number of this machine}\"\n"
          "    --master_addr \"${MASTER_ADDR:?address of machine 0}\" --master_port \"${MASTER_PORT:-29500}\")\n";
    for (const FlagGroup* group : {&model, &parallel_, &precision_, &training_, &data_}) text += "\n" + group->array();
    text += "\ntorchrun \"${DISTRIBUTED_ARGS[@]}\" pretrain_gpt.py \\\n";
    for (const FlagGroup* group : {&model, &parallel_, &precision_, &training_, &data_})
      text += fmt::format("    \"${{{}[@]}}\" \\\n", group->name());
    return text + "    --use-mcore-models \"$@\"\n";
  }

  const ExportedPlan& plan_;
  const RunConfig& config_;
  ExportSheet sheet_;
  SwitchSheet switches_;
  FlagGroup parallel_{"PARALLEL_ARGS"}, precision_{"PRECISION_ARGS"}, training_{"TRAINING_ARGS"}, data_{"DATA_ARGS"};
};

}  // namespace

Result<Exported> export_megatron(const ExportedPlan& plan) { return MegatronScript(plan).write(); }

}  // namespace fivefold
