// What follows from a RunConfig and its model: settings left to fivefold filled in, and the sizes that planner and
// engine both start from. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "spec/model.h"
#include "spec/rank_grid.h"
#include "spec/run_config.h"

namespace fivefold {

struct ResolvedConfig {
  // As given, with batch.global, parallel.shard_size, precision.params, grads and reduce, run.steps (when tokens are
  // given) and lr.decay_steps (WSD, when the steps are known) filled in. Resolving it again changes nothing.
  RunConfig config;
  Degrees degrees;                  // of the layout; RankGrid::create takes it
  int64_t num_microbatches = 0;     // per step and replica
  int64_t tokens_per_step = 0;      // batch.global x batch.sequence, ignored tokens included
  DType compute = DType::kFloat32;  // of the operands of matrix products; fp8 keeps bf16 between them
  DType params = DType::kFloat32, grads = DType::kFloat32, reduce = DType::kFloat32;
  bool master = false;          // an fp32 copy of the trained weights is kept beside `params`
  int64_t padded_vocab = 0;     // rows of embedding and head: the vocabulary in equal parts over tp
  int64_t padded_sequence = 0;  // tokens per sequence in equal parts over cp (two chunks a rank) and, with sp, tp
  std::vector<int64_t> layers_per_chunk;  // pp x vpp chunks in model order, as parallel.stages says
};

// Sequences of one replica's step / batch.micro. Errors: batch.global that micro x dp does not divide (hint: the
// multiples around it).
Result<int64_t> num_microbatches(const RunConfig& config);

// batch.global (or micro x dp) x batch.sequence. Errors: more than 2^50, so that what is summed over them fits int64_t.
Result<int64_t> tokens_per_step(const RunConfig& config);

// run.steps, or the fewest steps that see run.tokens; 0 when neither is given. Errors: both given and different; those
// of tokens_per_step.
Result<int64_t> total_steps(const RunConfig& config);

// Errors: the first that validate_layout() finds; call that to show all.
//   compute  params   grads                                   reduce
//   fp32     fp32     fp32                                    the buffer that is reduced: grads at ZeRO levels 0 and 1
//   bf16/8   bf16     one microbatch a step: bf16, else fp32  (accumulated first), a microbatch's gradient, in the
//   fp16     fp16     one microbatch a step: fp16, else fp32  compute type, at levels 2 and 3 (with reduce = step:
//   grads)
// params = fp32 under a lower compute type keeps gradients in fp32 and needs no master copy.
Result<ResolvedConfig> resolve(const RunConfig& config, const ModelSpec& model);

}  // namespace fivefold
