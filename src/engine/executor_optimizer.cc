// The optimizer step of a TrainingExecutor.
#include <string>

#include "base/philox.h"
#include "engine/executor.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"

namespace fivefold {
namespace {

// The part of the weights' random stream that a shard takes: an element draws by its place in the whole parameter, so
// every layout rounds alike.
std::vector<kernels::StreamRun> stream_runs(const ParameterEntry& entry, const ShardRange& range) {
  std::vector<kernels::StreamRun> runs;
  for (const ElementRun& run : element_runs(entry, range.begin, range.end))
    runs.push_back({run.local - range.begin, run.whole});
  return runs;
}

}  // namespace

void TrainingExecutor::optimizer_step(int unit) {
  UnitBuffers& unit_buffers = buffers(unit);
  const at::Tensor grads = unit_buffers.grads_shard();
  visit_dtype(grads, [&]<class G>(std::type_identity<G>) {
    for (int p = 0; p < static_cast<int>(unit_buffers.unit().parameters.size()); ++p)
      if (unit_buffers.unit().parameters[static_cast<size_t>(p)].trained())
        update_parameter(unit_buffers, p, elements<G>(grads));
  });
  if (context_.compute != DType::kFloat16) return;
  const at::Tensor working = unit_buffers.params_shard();
  kernels::convert(elements<float>(unit_buffers.master_shard()), elements<kernels::Float16>(working), working.numel(),
                   context_.threads);
}

// What the shard holds of one parameter. `grads`: of the whole shard.
template <class G>
void TrainingExecutor::update_parameter(UnitBuffers& unit_buffers, int parameter, const G* grads) {
  const OptimizerConfig& config = options_.optimizer;
  const ShardingPolicy& policy = options_.sharding;
  const ParameterEntry& entry = unit_buffers.unit().parameters[static_cast<size_t>(parameter)];
  const ShardRange range = unit_buffers.range(parameter);
  const int64_t n = range.end - range.begin, at = range.shard_offset;
  if (n == 0) return;
  float* const weights = policy.has_fp32_weights() ? elements<float>(unit_buffers.master_shard()) + at : nullptr;
  kernels::BFloat16* const working =
      policy.compute == DType::kBFloat16 ? elements<kernels::BFloat16>(unit_buffers.params_shard()) + at : nullptr;
  std::vector<kernels::StreamRun> runs;
  kernels::RoundingBits rounding;
  if (weights == nullptr) {
    runs = stream_runs(entry, range);
    rounding = {.seed = options_.seed,
                .stream = random_stream(entry.name + " rounded at update " + std::to_string(update_)),
                .runs = runs};
  }
  const bool decays = config.decay == DecayScope::kAll || entry.decay == DecayClass::kMatrix;
  const double decay = decays ? config.weight_decay : 0.0;
  if (config.kind == OptimizerKind::kSgd) {
    MomentBuffer& momentum = unit_buffers.moment1();
    kernels::sgd_step(kernels::Sgd<G>{.param = weights,
                                      .momentum_buffer = momentum.exists() ? momentum.fp32(parameter) : nullptr,
                                      .grad = grads + at,
                                      .param_bf16 = working,
                                      .n = n,
                                      .grad_scale = clip_factor_ / loss_scale_,
                                      .lr = learning_rate_,
                                      .momentum = config.momentum,
                                      .weight_decay = decay,
                                      .num_threads = context_.threads,
                                      .rounding = rounding});
    return;
  }
  const auto step = [&]<class S>(S* m, S* v, float* m_scales, float* v_scales) {
    kernels::adamw_step(kernels::AdamW<G, S>{.param = weights,
                                             .m = m,
                                             .v = v,
                                             .grad = grads + at,
                                             .param_bf16 = working,
                                             .n = n,
                                             .grad_scale = clip_factor_ / loss_scale_,
                                             .lr = learning_rate_,
                                             .beta1 = config.betas[0],
                                             .beta2 = config.betas[1],
                                             .eps = config.eps,
                                             .weight_decay = decay,
                                             .step = update_,
                                             .num_threads = context_.threads,
                                             .m_absmax = m_scales,
                                             .v_absmax = v_scales,
                                             .rounding = rounding});
  };
  MomentBuffer &m = unit_buffers.moment1(), &v = unit_buffers.moment2();
  switch (m.kind(parameter)) {
    case OptimizerStateKind::kFp32:
      return step(m.fp32(parameter), v.fp32(parameter), nullptr, nullptr);
    case OptimizerStateKind::kBf16:
      return step(m.bf16(parameter), v.bf16(parameter), nullptr, nullptr);
    case OptimizerStateKind::k8Bit:
      return step(m.codes(parameter), v.codes(parameter), m.scales(parameter), v.scales(parameter));
  }
}

}  // namespace fivefold
