// Causes of differences: one setting changed, and predicted again.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/text.h"
#include "planner/profiles/device_need.h"
#include "planner/profiles/framework_config.h"
#include "planner/profiles/framework_switches.h"
#include "reconcile/log_rows.h"

namespace fivefold {
namespace {

struct Alternative {
  std::string what;
  bool assumed = false;
  FrameworkRun run;
};

// Settings that a run may have had instead.
class Alternatives {
 public:
  explicit Alternatives(const FrameworkRun& run) : run_(run) {}

  std::vector<Alternative> find() {
    for (const SwitchValue& value : switch_values(run_)) {
      const std::vector<std::string> others = values_of(value);
      for (const std::string& other : others) {
        if (other == value.value) continue;
        FrameworkRun run = run_;
        if (set_switch(run, value.name + "=" + other).ok()) add(value.name + " = " + other, value.assumed, run);
      }
    }
    with("gradients in fp32", run_.gradient_dtype.assumed, [](FrameworkRun& r) { r.gradient_dtype = DType::kFloat32; });
    with("gradients in bf16", run_.gradient_dtype.assumed,
         [](FrameworkRun& r) { r.gradient_dtype = DType::kBFloat16; });
    with("weights in fp32", run_.weight_dtype.assumed, [](FrameworkRun& r) { r.weight_dtype = DType::kFloat32; });
    with("weights in bf16", run_.weight_dtype.assumed, [](FrameworkRun& r) { r.weight_dtype = DType::kBFloat16; });
    if (run_.tp > 1)
      with(run_.sp ? "no sequence parallelism" : "sequence parallelism", false, [](FrameworkRun& r) { r.sp = !r.sp; });
    for (int zero = 0; zero <= 3; ++zero)
      if (run_.dp > 1 && zero != run_.zero)
        with("ZeRO level " + std::to_string(zero), false, [zero](FrameworkRun& r) { r.zero = zero; });
    with("no recompute", false, [](FrameworkRun& r) { r.checkpointing = Checkpointing::kNone; });
    with("full recompute", false, [](FrameworkRun& r) { r.checkpointing = Checkpointing::kFull; });
    with("twice the micro-batch", false, [](FrameworkRun& r) { r.micro *= 2; });
    if (run_.micro % 2 == 0) with("half the micro-batch", false, [](FrameworkRun& r) { r.micro /= 2; });
    return std::move(found_);
  }

 private:
  // What else the switch could be; of cross-entropy what the framework has.
  std::vector<std::string> values_of(const SwitchValue& value) const {
    if (value.value == "on") return {"off"};
    if (value.value == "off") return {"on"};
    if (value.name == "attention") return {"flash", "unfused"};
    if (value.name == "expert_imbalance") return {"1.2", "1.5"};
    if (value.name != "cross_entropy") return {};
    switch (run_.framework) {
      case Framework::kMegatron:
        return {"te", "unfused", "native_fused"};
      case Framework::kHf:
        return {"eager", "in_place", "in_place_upcast", "eager_half", "chunked"};
      case Framework::kFsdp2:
        return {"compiled", "eager", "chunked"};
      default:
        return {"unfused", "eager"};
    }
  }

  void with(const std::string& what, bool assumed, const std::function<void(FrameworkRun&)>& change) {
    FrameworkRun run = run_;
    change(run);
    add(what, assumed, run);
  }
  void add(const std::string& what, bool assumed, const FrameworkRun& run) {
    if (framework_refusals(run).empty()) found_.push_back({what, assumed, run});
  }

  const FrameworkRun& run_;
  std::vector<Alternative> found_;
};

}  // namespace

std::optional<MemoryExplanation> explain_memory(const FrameworkPrediction& prediction, LoggedMemoryKind kind,
                                                ReportedRank reported, int64_t measured) {
  const double target = static_cast<double>(measured);
  const auto off = [target](int64_t bytes) { return std::abs(static_cast<double>(bytes) - target); };
  // Close by itself, and much closer than without it.
  constexpr double kClose = 0.03;
  const double most = std::min(kClose * target, off(predicted_figure(prediction.run, kind, reported)) / 4);
  std::optional<MemoryExplanation> best;
  const auto consider = [&](const Alternative& alternative) {
    const int64_t bytes = predicted_figure(alternative.run, kind, reported);
    if (off(bytes) > most) return;
    // What nobody has said is likelier to be otherwise than what the configuration says.
    const bool nearer = best && off(bytes) < off(best->bytes) && alternative.assumed == best->assumed;
    if (!best || nearer || (alternative.assumed && !best->assumed))
      best = MemoryExplanation{alternative.what, bytes, alternative.assumed};
  };
  const std::vector<Alternative> alternatives = Alternatives(prediction.run).find();
  for (const Alternative& alternative : alternatives) consider(alternative);
  if (best) return best;
  // Two that nobody has said.
  for (const Alternative& first : alternatives) {
    if (!first.assumed) continue;
    for (const Alternative& second : Alternatives(first.run).find())
      if (second.assumed) consider({first.what + " and " + second.what, true, second.run});
  }
  return best;
}

std::vector<MemoryExplanation> settings_that_do_not_fit(const FrameworkPrediction& prediction) {
  std::vector<MemoryExplanation> found;
  for (const Alternative& alternative : Alternatives(prediction.run).find()) {
    if (!alternative.assumed) continue;
    const int64_t need = needed_bytes(profile_memory(alternative.run));
    if (need > prediction.run.capacity_bytes) found.push_back({alternative.what, need, true});
  }
  std::ranges::sort(found, {}, &MemoryExplanation::bytes);
  return found;
}

std::string assumed_switches(const FrameworkRun& run) {
  std::vector<std::string> texts;
  for (const SwitchValue& value : switch_values(run))
    if (value.assumed) texts.push_back(value.name + "=" + value.value);
  return join(texts, ", ");
}

std::optional<LinkExplanation> explain_by_network(const FrameworkPrediction& prediction, double tokens_per_s) {
  const HardwareSpec& hardware = prediction.hardware;
  if (!prediction.time || prediction.world() <= hardware.devices_per_node || !hardware.network.bytes_per_s.known() ||
      tokens_per_s <= 0 || tokens_per_s >= prediction.time->tokens_per_s)
    return std::nullopt;
  const auto pace = [&](double share) {
    HardwareSpec slower = hardware;
    slower.network.bytes_per_s.value *= share;
    const Result<FrameworkTime> time = framework_time(prediction.run, slower);
    return time.ok() ? time->tokens_per_s : 0.0;
  };
  // A ten-thousandth of a network is none.
  double low = 1e-4, high = 1;
  if (pace(low) > tokens_per_s) return std::nullopt;
  constexpr int kHalvings = 12;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = std::sqrt(low * high);
    (pace(middle) < tokens_per_s ? low : high) = middle;
  }
  return LinkExplanation{hardware.network.bytes_per_s.value * std::sqrt(low * high),
                         hardware.network.bytes_per_s.value};
}

}  // namespace fivefold
