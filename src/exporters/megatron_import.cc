// Arguments of Megatron-LM's pretrain_gpt.py, as a launch script or a command line has them.
#include "exporters/megatron_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/integer.h"
#include "base/text.h"
#include "exporters/imported_run.h"
#include "exporters/launch_command.h"

namespace fivefold {
namespace {

class MegatronReader {
 public:
  MegatronReader(ImportSheet& sheet, LaunchCommand& launch) : sheet_(sheet), args_(launch.arguments), launch_(launch) {}

  void read(const ShellScript& script) {
    config().framework.name = Framework::kMegatron;
    read_axes();
    read_batch();
    read_megatron_model(sheet_, args_, launch_.where);
    read_ranks(script);
    read_sharding();
    read_precision();
    read_recompute();
    read_optimizer();
    read_lr();
    read_kernels();
    read_rest();
    sheet_.close(args_);
  }

 private:
  RunConfig& config() { return sheet_.config(); }

  int64_t degree(std::string_view name) { return args_.integer(name, 1, 1 << 20).value_or(1); }

  void read_axes() {
    ParallelConfig& p = config().parallel;
    p.tp = static_cast<int>(degree("tensor-model-parallel-size"));
    p.pp = static_cast<int>(degree("pipeline-model-parallel-size"));
    p.cp = static_cast<int>(degree("context-parallel-size"));
    p.ep = static_cast<int>(degree("expert-model-parallel-size"));
    const std::optional<int64_t> etp = args_.integer("expert-tensor-parallel-size", 1, 1 << 20);
    p.etp = etp ? static_cast<int>(*etp) : p.ep > 1 || args_.has("num-experts") ? p.tp : 1;
    p.sp = args_.flag("sequence-parallel") && p.tp > 1;
    const std::string kind = args_.texts("cp-comm-type").empty() ? "p2p" : args_.texts("cp-comm-type").front();
    if (p.cp > 1)
      p.cp_kind = kind == "a2a" ? CpKind::kUlysses : kind == "all_gather" ? CpKind::kAllGather : CpKind::kRing;
  }

  void read_batch() {
    BatchConfig& b = config().batch;
    const std::optional<int64_t> micro = args_.integer("micro-batch-size", 1, 1 << 20);
    if (!micro) sheet_.fail("--micro-batch-size", "is not given", "Megatron-LM has no default for it");
    b.micro = micro.value_or(1);
    b.global = args_.integer("global-batch-size", 1, 1 << 30).value_or(0);
    const std::optional<int64_t> sequence = args_.integer("seq-length", 1, 1 << 30);
    const std::optional<int64_t> encoder = args_.integer("encoder-seq-length", 1, 1 << 30);
    if (sheet_.options().sequence > 0)
      b.sequence = sheet_.options().sequence;
    else if (sequence || encoder)
      b.sequence = sequence ? *sequence : *encoder;
    else
      sheet_.fail("--seq-length", "is not given", "add it, or import with --sequence N");
    b.packing = args_.flag("reset-attention-mask") ? Packing::kDocuments : Packing::kConcatenate;
    args_.find("reset-position-ids");
  }

  void read_ranks(const ShellScript& script) {
    std::string missing;
    const std::optional<int64_t> launched = launched_ranks(launch_, script, missing);
    if (sheet_.options().gpus > 0) return sheet_.set_world(sheet_.options().gpus, "--gpus");
    if (launched) return sheet_.set_world(*launched, launch_.where);
    sheet_.fail(missing.empty() ? launch_.where : missing, "the number of GPUs is not known",
                script.unset.empty() ? "import with --gpus N"
                                     : fmt::format("import with --gpus N, or --env {}=VALUE", script.unset.front()));
  }

  void read_sharding() {
    ParallelConfig& p = config().parallel;
    p.zero = args_.flag("use-distributed-optimizer") ? 1 : 0;
    const std::string strategy = args_.text("data-parallel-sharding-strategy").value_or("optim_grads_params");
    if (args_.flag("use-megatron-fsdp"))
      p.zero = strategy == "optim_grads_params" ? 3 : strategy == "optim_grads" ? 2 : strategy == "optim" ? 1 : 0;
    if (args_.flag("use-torch-fsdp2")) p.zero = 3;
    const int64_t instances = args_.integer("num-distributed-optimizer-instances", 1, 1 << 20).value_or(1);
    const int64_t replicas = int64_t{p.dp} * p.cp;
    if (instances > 1 && replicas % instances != 0)
      args_.fail("num-distributed-optimizer-instances",
                 fmt::format("{} does not divide dp x cp = {}", instances, replicas),
                 fmt::format("use {}", std::gcd(instances, replicas)));
    else if (instances > 1)
      p.shard_size = static_cast<int>(div_exact(replicas, instances));
    read_megatron_stages(sheet_, args_);
  }

  void read_precision() {
    PrecisionConfig& p = config().precision;
    const bool bf16 = args_.flag("bf16"), fp16 = args_.flag("fp16");
    p.compute = bf16 ? ComputeKind::kBf16 : fp16 ? ComputeKind::kFp16 : ComputeKind::kFp32;
    p.params = bf16 ? DType::kBFloat16 : fp16 ? DType::kFloat16 : DType::kFloat32;
    const bool half_grads = args_.flag("grad-reduce-in-bf16") && bf16;
    p.grads = p.reduce = half_grads ? DType::kBFloat16 : DType::kFloat32;
    args_.find("accumulate-allreduce-grads-in-fp32");
    if (fp16) {
      p.loss_scale = args_.number("initial-loss-scale", 1e-9, 1e18).value_or(4294967296.0);
      p.loss_scale_growth_every = args_.integer("loss-scale-window", 1, 1 << 30).value_or(1000);
    }
    args_.find("initial-loss-scale"), args_.find("loss-scale-window");
    read_fp8();
    if (args_.flag("use-precision-aware-optimizer")) {
      const std::string moment = args_.text("exp-avg-dtype").value_or("fp32");
      if (moment == "bf16" || moment == "fp16") p.optimizer_state = OptimizerStateKind::kBf16;
      if (moment == "fp8") p.optimizer_state = OptimizerStateKind::k8Bit;
      args_.find("exp-avg-sq-dtype");
    }
  }

  void read_fp8() {
    PrecisionConfig& p = config().precision;
    const std::optional<std::string> format = args_.text("fp8-format");
    const std::string recipe = args_.text("fp8-recipe").value_or("delayed");
    const int64_t history = args_.integer("fp8-amax-history-len", 1, 1 << 20).value_or(1);
    args_.find("fp8-amax-compute-algo"), args_.find("fp8-margin"), args_.find("fp8-interval");
    if (!format) return;
    p.compute = ComputeKind::kFp8;
    p.fp8 = recipe == "delayed"      ? Fp8Scaling::kDelayed
            : recipe == "tensorwise" ? Fp8Scaling::kCurrent
                                     : Fp8Scaling::kBlock;
    if (p.fp8 == Fp8Scaling::kDelayed) p.fp8_history = history;
    if (recipe == "mxfp8") sheet_.assume("precision.fp8", "block", "mxfp8 has blocks of 32 instead");
  }

  void read_recompute() {
    RecomputeConfig& r = config().recompute;
    std::string granularity = args_.text("recompute-granularity").value_or("");
    if (args_.flag("recompute-activations") || args_.flag("checkpoint-activations")) granularity = "selective";
    const std::string method = args_.text("recompute-method").value_or("uniform");
    const int64_t layers = args_.integer("recompute-num-layers", 1, 1 << 16).value_or(1);
    const std::vector<std::string> modules = args_.texts("recompute-modules");
    if (granularity == "full") {
      r.kind = RecomputeKind::kFull;
      if (method == "uniform") {
        r.every = layers;
      } else {
        const auto on_rank =
            div_ceil(static_cast<int64_t>(sheet_.run.model.layers.size()), int64_t{config().parallel.pp});
        if (layers < on_rank)
          sheet_.assume("recompute.kind", "full",
                        fmt::format("only {} of {} layers of a stage are recomputed: memory is too low by the others",
                                    layers, on_rank));
      }
    } else if (granularity == "selective") {
      r.kind = RecomputeKind::kSelective;
      for (const std::string& module : modules)
        if (module != "core_attn")
          sheet_.assume("recompute.kind", "selective", "core attention only; " + module + " is recomputed beside it");
    }
  }

  void read_optimizer() {
    OptimizerConfig& o = config().optimizer;
    const std::string kind = args_.text("optimizer").value_or("adam");
    if (kind == "sgd")
      o.kind = OptimizerKind::kSgd;
    else if (kind != "adam")
      sheet_.assume("optimizer.kind", "adamw", kind + " is not known: states and update of Adam");
    const double beta1 = args_.number("adam-beta1", 0, 1).value_or(0.9),
                 beta2 = args_.number("adam-beta2", 0, 1).value_or(0.999);
    const double eps = args_.number("adam-eps", 0, 1e6).value_or(1e-8);
    const double momentum = args_.number("sgd-momentum", 0, 1).value_or(0.9);
    if (o.kind == OptimizerKind::kAdamW)
      o.betas = {beta1, beta2}, o.eps = eps;
    else
      o.momentum = momentum;
    o.weight_decay = args_.number("weight-decay", 0, 1e6).value_or(0.01);
    o.clip = args_.number("clip-grad", 0, 1e9).value_or(1.0);
    config().run.seed = args_.integer("seed").value_or(1234);
  }

  void read_lr() {
    LrConfig& lr = config().lr;
    RunConfig& c = config();
    const int64_t global = c.batch.global > 0 ? c.batch.global : c.batch.micro * c.parallel.dp;
    const auto steps = [&](std::string_view iterations, std::string_view samples) -> std::optional<int64_t> {
      const std::optional<int64_t> direct = args_.integer(iterations), counted = args_.integer(samples);
      if (direct && (*direct > 0 || !counted)) return direct;
      return counted ? std::optional<int64_t>(div_floor(*counted, global)) : std::nullopt;
    };
    c.run.steps = steps("train-iters", "train-samples").value_or(0);
    const int64_t decay = steps("lr-decay-iters", "lr-decay-samples").value_or(c.run.steps);
    lr.warmup_steps = steps("lr-warmup-iters", "lr-warmup-samples").value_or(0);
    if (const std::optional<double> share = args_.number("lr-warmup-fraction", 0, 1))
      lr.warmup_steps = static_cast<int64_t>(*share * static_cast<double>(decay));
    c.optimizer.lr = args_.number("lr", 0, 1e6).value_or(0);
    const double least = args_.number("min-lr", 0, 1e6).value_or(0);
    const std::string style = args_.text("lr-decay-style").value_or("linear");
    lr.schedule = style == "cosine"     ? LrScheduleKind::kCosine
                  : style == "constant" ? LrScheduleKind::kConstant
                  : style == "WSD"      ? LrScheduleKind::kWsd
                                        : LrScheduleKind::kLinear;
    if (style == "inverse-square-root") sheet_.assume("lr.schedule", "linear", "inverse square root is not known");
    if (lr.schedule != LrScheduleKind::kConstant && c.optimizer.lr > 0)
      lr.min_ratio = std::min(1.0, rounded(least / c.optimizer.lr));
    const std::string shape = args_.text("lr-wsd-decay-style").value_or("exponential");
    const std::optional<int64_t> last = steps("lr-wsd-decay-iters", "lr-wsd-decay-samples");
    if (lr.schedule != LrScheduleKind::kWsd) return;
    lr.decay_steps = last.value_or(0);
    lr.decay = shape == "cosine"       ? WsdDecay::kCosine
               : shape == "minus_sqrt" ? WsdDecay::kOneMinusSqrt
                                       : WsdDecay::kLinear;
    if (shape == "exponential") sheet_.assume("lr.decay", "linear", "an exponential decay is not known");
  }

  void read_kernels() {
    const std::string kind = args_.text("cross-entropy-fusion-impl").value_or("native");
    sheet_.add_switch("cross_entropy", !args_.flag("cross-entropy-loss-fusion") ? "unfused"
                                       : kind == "te"                           ? "te"
                                                                                : "native_fused");
    const std::string attention = args_.text("attention-backend").value_or("auto");
    const bool unfused = attention == "unfused" || attention == "local";
    args_.find("use-flash-attn");
    sheet_.add_switch("attention", unfused ? "unfused" : "flash");
    const double hidden = args_.number("hidden-dropout", 0, 1).value_or(0.1);
    const double scores = args_.number("attention-dropout", 0, 1).value_or(0.1);
    sheet_.add_switch("dropout", hidden > 0 || scores > 0 ? "on" : "off");
    if (args_.flag("optimizer-cpu-offload")) sheet_.add_switch("optimizer_on_host", "on");
  }

  void read_rest() {
    RunConfig& c = config();
    if (const std::optional<std::string> folder = args_.text("save")) {
      // What export writes: DIRECTORY/NAME/checkpoints.
      const std::vector<std::string> parts = split(*folder, '/');
      if (parts.size() >= 3 && parts.back() == "checkpoints") {
        c.run.name = parts[parts.size() - 2];
        c.run.directory =
            folder->substr(0, folder->size() - c.run.name.size() - std::string_view("//checkpoints").size());
      }
    }
    const std::optional<int64_t> save = args_.integer("save-interval");
    if (save && *save != c.run.steps) c.checkpoint.every = *save;
    c.log.every = std::max<int64_t>(1, args_.integer("log-interval").value_or(100));
    c.run.validate_every = args_.integer("eval-interval").value_or(0);
    if (const std::vector<std::string> data = args_.texts("data-path");
        data.size() == 1 && data[0].find('$') == std::string::npos) {
      c.data.train = data[0];
      c.data.format = DataFormat::kMegatron;
    }
  }

  ImportSheet& sheet_;
  ForeignSettings& args_;
  LaunchCommand& launch_;
};

}  // namespace

void import_megatron(ImportSheet& sheet, std::string_view text, const std::string& where) {
  Result<ShellScript> script = read_shell_script(text, where, sheet.options().environment);
  if (!script.ok()) return sheet.run.errors.push_back(script.error());
  Result<LaunchCommand> launch = find_launch(*script, where);
  if (!launch.ok()) return sheet.run.errors.push_back(launch.error());
  MegatronReader(sheet, *launch).read(*script);
}

}  // namespace fivefold
