#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/integer.h"
#include "base/text.h"
#include "spec/dropped_tensors.h"
#include "spec/rank_grid.h"
#include "spec/run_config_resolve.h"
#include "spec/validate.h"
#include "spec/validate_parallel.h"

namespace fivefold {
namespace {

void check_method(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors) {
  const MethodConfig& method = config.method;
  if (method.kind == MethodKind::kFull) return;
  if (method.rank > model.hidden)
    errors.push_back({"method.rank", fmt::format("{} is not low: the model is {} wide", method.rank, model.hidden),
                      fmt::format("use rank = {}, or kind = full", std::min<int64_t>(model.hidden, 64))});
  if (method.targets.empty())
    errors.push_back({"method.targets", "an adapter needs linears to adapt", "use [\"all-linear\"]"});
  std::vector<std::string> names = adapter_targets(model);
  names.insert(names.begin(), "all-linear");
  for (const std::string& target : method.targets)
    if (std::find(names.begin(), names.end(), target) == names.end())
      errors.push_back({"method.targets", "the model has no linear " + target, name_hint(target, names)});
}

void check_grid(const RunConfig& config, std::vector<Error>& errors) {
  const ParallelConfig& parallel = config.parallel;
  const auto grid = RankGrid::create({.dp = parallel.dp,
                                      .tp = parallel.tp,
                                      .cp = parallel.cp,
                                      .pp = parallel.pp,
                                      .ep = parallel.ep,
                                      .etp = parallel.etp,
                                      .shard_size = parallel.shard_size});
  if (!grid.ok()) errors.push_back(grid.error());
  if (parallel.shard_size > 1 && parallel.zero == 0)
    errors.push_back({"parallel.shard_size",
                      fmt::format("{} ranks cannot share a shard at ZeRO level 0", parallel.shard_size),
                      "use zero = 1, or shard_size = 0"});
}

void check_reduction(const RunConfig& config, std::vector<Error>& errors) {
  const ParallelConfig& parallel = config.parallel;
  if (parallel.reduce == ReduceWhen::kMicrobatch || parallel.zero == 3) return;
  errors.push_back({"parallel.reduce",
                    parallel.zero == 2 ? std::string("step keeps gradients whole: ZeRO level 2 is then level 1")
                                       : fmt::format("ZeRO level {} always reduces once a step", parallel.zero),
                    parallel.zero == 2 ? "use zero = 1 with reduce = microbatch, or zero = 3"
                                       : "use reduce = microbatch, or zero = 3"});
}

void check_buckets(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors) {
  const auto layers = static_cast<int64_t>(model.layers.size());
  if (config.parallel.bucket_layers > layers)
    errors.push_back(
        {"parallel.bucket_layers",
         fmt::format("a bucket of {} layers is more than the model's {}", config.parallel.bucket_layers, layers),
         fmt::format("use bucket_layers = {}", layers)});
}

void check_batch(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors) {
  if (const auto microbatches = num_microbatches(config); !microbatches.ok()) errors.push_back(microbatches.error());
  if (const auto tokens = tokens_per_step(config); !tokens.ok())
    errors.push_back(tokens.error());
  else if (const auto steps = total_steps(config); !steps.ok())
    errors.push_back(steps.error());
  if (model.max_positions > 0 && config.batch.sequence > model.max_positions)
    errors.push_back({"batch.sequence",
                      fmt::format("{} tokens are more than the {} positions of the model", config.batch.sequence,
                                  model.max_positions),
                      fmt::format("use sequence = {}", model.max_positions)});
}

DType low_dtype(ComputeKind kind) {
  return kind == ComputeKind::kFp32 ? DType::kFloat32 : kind == ComputeKind::kFp16 ? DType::kFloat16 : DType::kBFloat16;
}

// Sizes of matrix products that fp8 hardware takes: whole blocks of 16 bytes, or of 128 values when scaled by block.
void check_fp8_sizes(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors) {
  const int64_t block = config.precision.fp8 == Fp8Scaling::kBlock ? 128 : 16, tp = config.parallel.tp;
  const auto refuse = [&](std::string_view what, int64_t size) {
    errors.push_back({"precision.compute",
                      fmt::format("fp8 products need sizes that {} divides, {} is {}", block, what, size),
                      "use compute = bf16"});
  };
  if (model.hidden % block != 0) return refuse("the hidden size", model.hidden);
  for (const LayerSpec& layer : model.layers) {
    const int64_t ffn = div_floor(layer.mlp.ffn, tp), expert_ffn = div_floor(layer.mlp.expert_ffn, config.parallel.etp);
    if (ffn % block != 0) return refuse("the MLP's width per tp rank", ffn);
    if (expert_ffn % block != 0) return refuse("an expert's width per etp rank", expert_ffn);
  }
}

void check_precision(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors) {
  const PrecisionConfig& precision = config.precision;
  const DType low = low_dtype(precision.compute);
  const std::pair<const char*, std::optional<DType>> types[] = {
      {"params", precision.params}, {"grads", precision.grads}, {"reduce", precision.reduce}};
  for (const auto& [name, dtype] : types) {
    if (!dtype || *dtype == DType::kFloat32 || *dtype == low) continue;
    const std::string right = low == DType::kFloat32 ? "fp32" : fmt::format("fp32 or {}", to_string(low));
    errors.push_back({fmt::format("precision.{}", name),
                      fmt::format("{} does not go with compute = {}", to_string(*dtype), to_string(precision.compute)),
                      fmt::format("use {} = {}", name, right)});
  }
  const auto microbatches = num_microbatches(config);
  if (precision.grads && *precision.grads != DType::kFloat32 && microbatches.ok() && *microbatches > 1)
    errors.push_back({"precision.grads",
                      fmt::format("{} loses small contributions when {} microbatches accumulate",
                                  to_string(*precision.grads), *microbatches),
                      fmt::format("use grads = fp32, or micro = {}", config.batch.micro * *microbatches)});
  if (precision.compute == ComputeKind::kFp8) check_fp8_sizes(model, config, errors);
}

void check_tensors_to_drop(const ModelSpec& model, const RecomputeConfig& recompute, std::vector<Error>& errors) {
  if (recompute.kind != RecomputeKind::kSelective) return;
  std::vector<std::string> names;
  for (const Droppable name : droppable_tensors(model)) names.emplace_back(to_string(name));
  for (const std::string& tensor : recompute.tensors) {
    if (std::find(names.begin(), names.end(), tensor) != names.end()) continue;
    const std::optional<std::string> near = nearest_name(tensor, names);
    const std::string all = names.empty() ? "none: use kind = full" : join(names, ", ");
    errors.push_back({"recompute.tensors", fmt::format("no layer of this model has a saved tensor {}", tensor),
                      near ? fmt::format("did you mean {}? it has {}", *near, all) : fmt::format("it has {}", all)});
  }
}

void check_recompute(const ModelSpec& model, const RunConfig& config, std::vector<Error>& errors) {
  const RecomputeConfig& recompute = config.recompute;
  const int64_t layers = static_cast<int64_t>(model.layers.size());
  if (recompute.kind == RecomputeKind::kFull && recompute.every > layers)
    errors.push_back({"recompute.every",
                      fmt::format("a segment of {} layers is more than the model's {}", recompute.every, layers),
                      fmt::format("use every = {}", layers)});
  if (recompute.kind == RecomputeKind::kSelective && recompute.tensors.empty())
    errors.push_back({"recompute.tensors", "selective recompute needs the tensors to drop",
                      "name some, for example [\"mlp.gate_up\"], or use kind = full"});
  check_tensors_to_drop(model, recompute, errors);
  if (recompute.kind != RecomputeKind::kSelective && !recompute.tensors.empty())
    errors.push_back({"recompute.tensors",
                      fmt::format("tensors are dropped by kind = selective, not by {}", to_string(recompute.kind)),
                      "use kind = selective, or tensors = []"});
}

void check_optimizer(const RunConfig& config, std::vector<Error>& errors) {
  const OptimizerConfig& optimizer = config.optimizer;
  if (optimizer.kind == OptimizerKind::kAdamW && optimizer.momentum != 0)
    errors.push_back({"optimizer.momentum", "is SGD's; AdamW has betas", "use momentum = 0, or kind = sgd"});
  if (optimizer.kind == OptimizerKind::kSgd && config.precision.optimizer_state != OptimizerStateKind::kFp32)
    errors.push_back(
        {"precision.optimizer_state",
         fmt::format("SGD keeps its momentum in fp32, not {}", to_string(config.precision.optimizer_state)),
         "use optimizer_state = fp32, or kind = adamw"});
  if (config.precision.master == MasterKind::kNone && config.precision.compute == ComputeKind::kFp32)
    errors.push_back({"precision.master", "weights in fp32 have no master copy to leave out",
                      "use master = fp32, or compute = bf16"});
  if (config.lr.schedule != LrScheduleKind::kWsd && config.lr.decay_steps > 0)
    errors.push_back({"lr.decay_steps",
                      fmt::format("belongs to wsd, the schedule is {}", to_string(config.lr.schedule)),
                      "use decay_steps = 0, or schedule = wsd"});
}

void check_comm(const RunConfig& config, std::vector<Error>& errors) {
  const CommConfig& comm = config.comm;
  if (comm.backend == CommBackend::kLocal) return;
  if (comm.rendezvous)
    errors.push_back({"comm.rendezvous", fmt::format("is a mode of local, the backend is {}", to_string(comm.backend)),
                      "use rendezvous = false, or backend = local"});
  if (!comm.simulate.empty())
    errors.push_back({"comm.simulate", fmt::format("is a mode of local, the backend is {}", to_string(comm.backend)),
                      "use simulate = \"\", or backend = local"});
}

}  // namespace

std::vector<Error> validate_layout(const ModelSpec& model, const RunConfig& config) {
  std::vector<Error> errors;
  check_method(model, config, errors);
  check_grid(config, errors);
  check_reduction(config, errors);
  check_buckets(model, config, errors);
  check_tensor_parallel(model, config, errors);
  check_context_parallel(model, config, errors);
  check_pipeline(model, config, errors);
  check_experts(model, config, errors);
  check_batch(model, config, errors);
  check_precision(model, config, errors);
  check_recompute(model, config, errors);
  check_optimizer(config, errors);
  check_comm(config, errors);
  return errors;
}

std::vector<Error> layout_notes(const ModelSpec& model, const RunConfig& config) {
  const ResolvedConfig resolved = resolve(config, model).value();
  const ParallelConfig& parallel = config.parallel;
  std::vector<Error> notes;
  if (resolved.padded_vocab != model.vocab)
    notes.push_back({"parallel.tp",
                     fmt::format("the vocabulary of {} is padded to {} rows", model.vocab, resolved.padded_vocab), ""});
  for (const LayerSpec& layer : model.layers) {
    if (layer.mlp.ffn % parallel.tp == 0) continue;
    notes.push_back({"parallel.tp",
                     fmt::format("the MLP's {} columns are padded to {}", layer.mlp.ffn,
                                 round_up(layer.mlp.ffn, int64_t{parallel.tp})),
                     ""});
    break;
  }
  for (const LayerSpec& layer : model.layers) {
    if (layer.mixer.kind != MixerKind::kAttention || layer.mixer.num_kv_heads >= parallel.tp) continue;
    notes.push_back({"parallel.tp",
                     fmt::format("{} KV heads: each is on {} ranks", layer.mixer.num_kv_heads,
                                 div_exact(parallel.tp, layer.mixer.num_kv_heads)),
                     ""});
    break;
  }
  if (resolved.padded_sequence != config.batch.sequence)
    notes.push_back(
        {"batch.sequence",
         fmt::format("{} tokens are padded to {} with ignored ones", config.batch.sequence, resolved.padded_sequence),
         ""});
  const std::vector<int64_t>& chunks = resolved.layers_per_chunk;
  if (std::adjacent_find(chunks.begin(), chunks.end(), std::not_equal_to<>()) != chunks.end()) {
    std::vector<std::string> counts;
    for (const int64_t layers : chunks) counts.push_back(std::to_string(layers));
    notes.push_back(
        {"parallel.pp", fmt::format("{} layers in chunks of {}", model.layers.size(), join(counts, ", ")), ""});
  }
  if (parallel.pp > 1 && parallel.zero >= 2)
    notes.push_back(
        {"parallel.zero",
         fmt::format("level {} repeats its {} for each of {} microbatches, level 1 has them once a step", parallel.zero,
                     parallel.reduce == ReduceWhen::kStep ? "gathers" : "collectives", resolved.num_microbatches),
         ""});
  return notes;
}

std::string to_string(const std::vector<Error>& errors) {
  if (errors.empty()) return "";
  std::string text = errors.size() == 1 ? "1 problem:\n" : fmt::format("{} problems:\n", errors.size());
  for (const Error& error : errors) {
    text += fmt::format("  {}{}{}\n", error.where, error.where.empty() ? "" : ": ", error.problem);
    if (!error.hint.empty()) text += fmt::format("    -> {}\n", error.hint);
  }
  return text;
}

}  // namespace fivefold
