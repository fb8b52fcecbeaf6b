#include "spec/run_config_resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/integer.h"
#include "spec/pipeline_stages.h"
#include "spec/tensor_split.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

DType compute_dtype(ComputeKind kind) {
  switch (kind) {
    case ComputeKind::kFp32:
      return DType::kFloat32;
    case ComputeKind::kFp16:
      return DType::kFloat16;
    case ComputeKind::kBf16:
    case ComputeKind::kFp8:
      return DType::kBFloat16;
  }
  FIVEFOLD_CHECK(false);
}

int64_t global_batch(const RunConfig& config) {
  return config.batch.global > 0 ? config.batch.global : config.batch.micro * config.parallel.dp;
}

void resolve_precision(ResolvedConfig& out) {
  PrecisionConfig& precision = out.config.precision;
  out.compute = compute_dtype(precision.compute);
  out.params = precision.params.value_or(out.compute);
  out.grads = precision.grads.value_or(out.num_microbatches == 1 ? out.params : DType::kFloat32);
  const ParallelConfig& parallel = out.config.parallel;
  const bool each_microbatch = parallel.zero >= 2 && parallel.reduce == ReduceWhen::kMicrobatch;
  out.reduce = precision.reduce.value_or(each_microbatch ? out.compute : out.grads);
  out.master = out.params != DType::kFloat32 && precision.master == MasterKind::kFp32;
  precision.params = out.params;
  precision.grads = out.grads;
  precision.reduce = out.reduce;
}

}  // namespace

Result<int64_t> num_microbatches(const RunConfig& config) {
  const int64_t unit = config.batch.micro * config.parallel.dp, global = global_batch(config);
  if (global % unit == 0) return div_exact(global, unit);
  const int64_t below = div_floor(global, unit) * unit;
  return Error{"batch.global",
               fmt::format("{} sequences cannot be split into microbatches of {} over {} replicas", global,
                           config.batch.micro, config.parallel.dp),
               below > 0 ? fmt::format("use {} or {}", below, below + unit) : fmt::format("use {}", unit)};
}

Result<int64_t> tokens_per_step(const RunConfig& config) {
  constexpr int64_t kMost = int64_t{1} << 50;
  const int64_t sequences = global_batch(config), most = div_floor(kMost, config.batch.sequence);
  if (sequences <= most) return sequences * config.batch.sequence;
  return Error{
      config.batch.global > 0 ? "batch.global" : "batch.micro",
      fmt::format("{} sequences of {} tokens are more than 2^50 tokens a step", sequences, config.batch.sequence),
      fmt::format("use at most {} sequences, or shorter ones", most)};
}

Result<int64_t> total_steps(const RunConfig& config) {
  const int64_t steps = config.run.steps, tokens = config.run.tokens;
  if (tokens == 0) return steps;
  FIVEFOLD_ASSIGN(const int64_t per_step, tokens_per_step(config));
  const int64_t from_tokens = div_ceil(tokens, per_step);
  if (steps != 0 && steps != from_tokens)
    return Error{"run.steps",
                 fmt::format("{} steps contradict run.tokens = {}, which are {} steps", steps, tokens, from_tokens),
                 "give only one of them"};
  return from_tokens;
}

Result<ResolvedConfig> resolve(const RunConfig& config, const ModelSpec& model) {
  if (const std::vector<Error> errors = validate_layout(model, config); !errors.empty()) return errors.front();
  ResolvedConfig out;
  out.config = config;
  out.num_microbatches = num_microbatches(config).value();
  out.config.run.steps = total_steps(config).value();
  out.config.batch.global = global_batch(config);
  out.tokens_per_step = tokens_per_step(config).value();

  ParallelConfig& parallel = out.config.parallel;
  if (parallel.shard_size == 0) parallel.shard_size = parallel.zero == 0 ? 1 : parallel.dp * parallel.cp;
  out.degrees = {.dp = parallel.dp,
                 .tp = parallel.tp,
                 .cp = parallel.cp,
                 .pp = parallel.pp,
                 .ep = parallel.ep,
                 .etp = parallel.etp,
                 .kv_holders = kv_holders(model, parallel.tp),
                 .shard_size = parallel.shard_size};
  resolve_precision(out);

  LrConfig& lr = out.config.lr;
  if (lr.schedule == LrScheduleKind::kWsd && lr.decay_steps == 0 && out.config.run.steps > 0)
    lr.decay_steps = std::max<int64_t>(1, div_floor(out.config.run.steps, 10));

  out.padded_vocab = round_up(model.vocab, parallel.tp);
  const int64_t cp_part = parallel.cp > 1 ? 2 * int64_t{parallel.cp} : 1;
  const int64_t sp_part = parallel.sp ? int64_t{parallel.tp} * parallel.cp : 1;
  out.padded_sequence = round_up(config.batch.sequence, std::lcm(cp_part, sp_part));
  out.layers_per_chunk = layers_per_stage(model, parallel, config.batch.sequence);
  return out;
}

}  // namespace fivefold
