// Settings under which a run is quicker, or loses less with more ranks.
#include <algorithm>
#include <functional>
#include <string>

#include "reconcile/doctor_parts.h"

namespace fivefold {
namespace {

constexpr double kWorthwhile = 0.02;

class Quicker {
 public:
  explicit Quicker(const FrameworkPrediction& before) : before_(before), run_(before.run) {}

  std::vector<FrameworkRemedy> find() {
    add_recompute();
    add_batch();
    add_layout();
    add_sharding();
    add_precision();
    std::erase_if(found_, [](const FrameworkRemedy& remedy) {
      return !remedy.fits || !remedy.speed || *remedy.speed < kWorthwhile;
    });
    std::ranges::stable_sort(found_, std::greater(), [](const FrameworkRemedy& remedy) { return *remedy.speed; });
    return std::move(found_);
  }

  std::vector<FrameworkRemedy> sharding() {
    add_sharding();
    std::erase_if(found_, [](const FrameworkRemedy& remedy) {
      return !remedy.fits || !remedy.speed || *remedy.speed < kWorthwhile;
    });
    return std::move(found_);
  }

 private:
  void with(const std::string& name, const std::function<void(RunConfig&)>& change,
            const std::string& changes = "nothing") {
    RunConfig config = before_.config;
    change(config);
    if (config == before_.config) return;
    if (auto remedy = remedy_of(before_, config, name, changes)) found_.push_back(*std::move(remedy));
  }

  void add_recompute() {
    if (run_.checkpointing == Checkpointing::kNone) return;
    with("no recompute", [](RunConfig& c) { c.recompute.kind = RecomputeKind::kNone; });
    if (run_.checkpointing == Checkpointing::kFull && run_.framework != Framework::kHf)
      with("selective recompute", [](RunConfig& c) { c.recompute.kind = RecomputeKind::kSelective; });
    if (run_.tp > 1 && !run_.sp)
      with("sequence parallelism, and no recompute", [](RunConfig& c) {
        c.parallel.sp = true;
        c.recompute.kind = RecomputeKind::kNone;
      });
  }

  void add_batch() {
    for (const int64_t factor : {2, 4, 8})
      if (before_.config.batch.global % (before_.config.batch.micro * factor * before_.config.parallel.dp) == 0)
        with("micro-batch of " + std::to_string(before_.config.batch.micro * factor),
             [factor](RunConfig& c) { c.batch.micro *= factor; });
    if (run_.pp > 1) {
      with("twice the global batch", [](RunConfig& c) { c.batch.global *= 2; }, "batch");
      for (const int chunks : {2, 4})
        if (chunks != before_.config.parallel.vpp)
          with(std::to_string(chunks) + " chunks a rank (interleaved)", [chunks](RunConfig& c) {
            c.parallel.vpp = chunks;
            c.parallel.schedule = ScheduleKind::kInterleaved;
          });
    }
  }

  void add_layout() {
    const auto halve = [&](const char* name, int ParallelConfig::* degree) {
      if (before_.config.parallel.*degree % 2 != 0) return;
      with(std::string(name) + " = " + std::to_string(before_.config.parallel.*degree / 2) + ", same GPUs",
           [degree](RunConfig& c) {
             c.parallel.*degree /= 2;
             c.parallel.dp *= 2;
             if (c.parallel.tp == 1) c.parallel.sp = false;
             if (c.parallel.pp == 1) c.parallel.vpp = 1, c.parallel.schedule = ScheduleKind::k1F1B;
           });
    };
    halve("tp", &ParallelConfig::tp);
    halve("pp", &ParallelConfig::pp);
    halve("cp", &ParallelConfig::cp);
    if (run_.tp > 1 && !run_.sp) with("sequence parallelism", [](RunConfig& c) { c.parallel.sp = true; });
  }

  void add_sharding() {
    const auto node = static_cast<int>(before_.hardware.devices_per_node);
    const int ranks = before_.config.parallel.dp * before_.config.parallel.cp;
    const int in_node = std::max(1, node / (before_.config.parallel.tp * before_.config.parallel.pp));
    if (run_.zero >= 3 && ranks > in_node && ranks % in_node == 0)
      with("shards inside a node, replicas between (HSDP)",
           [in_node](RunConfig& c) { c.parallel.shard_size = in_node; });
    for (int zero = run_.zero - 1; zero >= 1; --zero)
      with("ZeRO-" + std::to_string(zero), [zero](RunConfig& c) {
        c.parallel.zero = zero;
        c.parallel.shard_size = 0;
      });
  }

  void add_precision() {
    if (before_.hardware.device.peak_flops_per_s.fp8.known() && !run_.fp8 &&
        (run_.framework == Framework::kMegatron || run_.framework == Framework::kFsdp2))
      with("fp8 products", [](RunConfig& c) { c.precision.compute = ComputeKind::kFp8; }, "rounding");
  }

  const FrameworkPrediction& before_;
  const FrameworkRun& run_;
  std::vector<FrameworkRemedy> found_;
};

}  // namespace

std::vector<FrameworkRemedy> pace_remedies(const FrameworkPrediction& prediction) { return Quicker(prediction).find(); }

std::vector<FrameworkRemedy> scaling_remedies(const FrameworkPrediction& prediction) {
  return Quicker(prediction).sharding();
}

}  // namespace fivefold
