#include "planner/capacity.h"

#include "base/integer.h"
#include "base/units.h"
#include "planner/cost.h"
#include "planner/kernel_scratch.h"
#include "planner/peak_bytes.h"
#include "spec/rank_grid.h"

namespace fivefold {
namespace {

constexpr int64_t kContextBytes = kGiB / 2;           // assumed: 0.3-0.5 GiB are usual
constexpr int64_t kCommunicatorBytes = 2 * kGiB / 5;  // assumed: 0.4 GiB per NCCL communicator

}  // namespace

int64_t planned_capacity(const ResolvedConfig& config, const HardwareSpec& hardware) {
  if (config.config.limits.memory > 0) return config.config.limits.memory;
  const double planned = kPlannedShare * hardware.device.memory_bytes.value;
  return static_cast<int64_t>(hardware.device.cores > 0 ? planned / config.degrees.world() : planned);
}

OutsideTensors outside_tensors(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                               const HardwareSpec& hardware) {
  if (hardware.device.cores > 0) {
    if (config.config.limits.memory == 0) return {};
    const int threads = threads_per_rank(config, static_cast<int>(hardware.device.cores));
    return {.other = 0, .scratch = largest_scratch(model, inventory, config, threads).bytes};
  }
  const ShardingPolicy policy = sharding_policy(config);
  const Degrees& degrees = config.degrees;
  const int communicators = (policy.shards > 1 ? 1 : 0) + (policy.replicas > 1 ? 1 : 0) + (degrees.tp > 1 ? 1 : 0) +
                            (degrees.cp > 1 ? 1 : 0) + (degrees.pp > 1 ? 1 : 0);
  return {.other = kContextBytes + communicators * kCommunicatorBytes, .scratch = 0};
}

void add_outside_tensors(Ledger& ledger, const OutsideTensors& outside) {
  for (AccountBytes* accounts : {&ledger.persistent, &ledger.peak, &ledger.at_peak})
    (*accounts)[Account::kOther] += outside.other;
  for (AccountBytes* accounts : {&ledger.peak, &ledger.at_peak}) (*accounts)[Account::kWorkspace] += outside.scratch;
  ledger.peak_total += outside.bytes();
}

RankLedger fullest_rank(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                        const HardwareSpec& hardware) {
  RankLedger fullest;
  if (config.degrees.pp == 1) {
    fullest.ledger = predict_memory_shortened(model, inventory, config);
  } else {
    PredictionMemo memo(model, inventory, hardware);
    PeakBytes peaks(memo);
    const std::vector<Program> programs = pipeline_programs(memo, config, config.num_microbatches);
    const std::vector<int> ranks = RankGrid::create(config.degrees).value().group(GroupKind::kPp, 0);
    int64_t most = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const int64_t peak = peaks(config, ranks[i], programs[i]);
      if (peak <= most) continue;
      most = peak;
      fullest.rank = ranks[i];
    }
    fullest.ledger = predict_memory(model, inventory, config, fullest.rank);
  }
  add_outside_tensors(fullest.ledger, outside_tensors(model, inventory, config, hardware));
  return fullest;
}

}  // namespace fivefold
