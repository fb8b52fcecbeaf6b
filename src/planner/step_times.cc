#include "planner/step_times.h"

#include "planner/prediction_memo.h"

namespace fivefold {

LinkSeconds BufferCalls::gather(double bytes) const {
  if (!links) return {};
  return (*links)(CollectiveKind::kAllGather, GroupKind::kShard, bytes);
}

LinkSeconds BufferCalls::reduce_scatter(double elements) const {
  if (!links) return {};
  const DType dtype = sharding.shards_grads() ? sharding.compute : sharding.grads;
  return (*links)(CollectiveKind::kReduceScatter, GroupKind::kShard,
                  elements * static_cast<double>(dtype_bytes(dtype)));
}

LinkSeconds BufferCalls::all_reduce(double elements) const {
  if (!links) return {};
  return (*links)(CollectiveKind::kAllReduce, GroupKind::kReplicate,
                  elements / sharding.shards * static_cast<double>(dtype_bytes(sharding.grads)));
}

StepTimes no_step_times(int num_units, int num_pipeline_ranks) {
  StepTimes times;
  times.units.resize(static_cast<size_t>(num_units));
  times.transfers.neighbours.resize(static_cast<size_t>(num_pipeline_ranks));
  return times;
}

StepTimes predict_step_times(PredictionMemo& memo, const ResolvedConfig& config) {
  const std::vector<PassSeconds>& passes = memo.passes(config);
  const std::vector<StateSeconds>& states = memo.states(config);
  StepTimes times;
  for (size_t unit = 0; unit < passes.size(); ++unit) times.units.push_back({passes[unit], states[unit]});
  const LinkTimes& links = memo.links(config);
  const RankView part(memo.model(), memo.inventory(), config, 0, memo.part(config));
  const ShardingPolicy policy = sharding_policy(config);
  times.scalar_all_reduce = links(CollectiveKind::kAllReduce, GroupKind::kWorld, 16);
  for (const PartialOver over : kAllPartialOver) {
    const int64_t bytes = part.partial_elements(over) * dtype_bytes(policy.grads);
    if (bytes == 0) continue;
    const double seconds = links(CollectiveKind::kAllReduce, group_of(over), static_cast<double>(bytes)).seconds;
    times.partial_sums.push_back({group_of(over), Purpose::kGradients, seconds, seconds});
  }
  times.buffer_calls = {links, policy};
  times.transfers = memo.transfers(config);
  times.overlap_share = memo.rates(config).overlap_share();
  times.step_overhead_s = memo.rates(config).step_overhead_seconds();
  return times;
}

StepTimes predict_step_times(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                             const HardwareSpec& hardware) {
  PredictionMemo memo(model, inventory, hardware);
  return predict_step_times(memo, config);
}

}  // namespace fivefold
