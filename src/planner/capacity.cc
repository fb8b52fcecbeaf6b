#include "planner/capacity.h"

#include "base/integer.h"
#include "base/units.h"

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

int64_t bytes_outside_tensors(const ResolvedConfig& config, const HardwareSpec& hardware) {
  if (hardware.device.cores > 0) return 0;
  const ShardingPolicy policy = sharding_policy(config);
  const int communicators = (policy.shards > 1 ? 1 : 0) + (policy.replicas > 1 ? 1 : 0);
  return kContextBytes + communicators * kCommunicatorBytes;
}

void add_outside_tensors(Ledger& ledger, const ResolvedConfig& config, const HardwareSpec& hardware) {
  const int64_t bytes = bytes_outside_tensors(config, hardware);
  for (AccountBytes* accounts : {&ledger.persistent, &ledger.peak, &ledger.at_peak})
    (*accounts)[Account::kOther] += bytes;
  ledger.peak_total += bytes;
}

}  // namespace fivefold
