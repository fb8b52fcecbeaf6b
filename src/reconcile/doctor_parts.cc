#include "reconcile/doctor_parts.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>

#include "base/check.h"
#include "spec/run_config_io.h"

namespace fivefold {

LineKind kind_of_line(std::string_view name) {
  // The names that the profiles give their lines (docs/profiles.md).
  static const std::map<std::string_view, LineKind> kinds = {{"weights", LineKind::kStates},
                                                             {"gradients", LineKind::kStates},
                                                             {"optimizer", LineKind::kStates},
                                                             {"adam", LineKind::kStates},
                                                             {"adapter", LineKind::kStates},
                                                             {"update", LineKind::kStates},
                                                             {"upcast", LineKind::kStates},
                                                             {"quantisation", LineKind::kStates},
                                                             {"fp32 gradients", LineKind::kStates},
                                                             {"bf16 gradients", LineKind::kStates},
                                                             {"accumulated gradients", LineKind::kStates},
                                                             {"uncut weights", LineKind::kStates},
                                                             {"copies of embeddings", LineKind::kStates},
                                                             {"gradients of embeddings", LineKind::kStates},
                                                             {"whole gradients", LineKind::kStates},
                                                             {"cast adapters", LineKind::kStates},
                                                             {"dummy weight gradients", LineKind::kStates},
                                                             {"activations", LineKind::kActivations},
                                                             {"layer inputs", LineKind::kActivations},
                                                             {"layer input", LineKind::kActivations},
                                                             {"layer", LineKind::kActivations},
                                                             {"layer that runs again", LineKind::kActivations},
                                                             {"gradients of a layer", LineKind::kActivations},
                                                             {"gradients of layer inputs", LineKind::kActivations},
                                                             {"gathered inputs", LineKind::kActivations},
                                                             {"beside layer inputs", LineKind::kActivations},
                                                             {"transfers", LineKind::kActivations},
                                                             {"stage outputs", LineKind::kActivations},
                                                             {"logits", LineKind::kLogits},
                                                             {"loss", LineKind::kLogits},
                                                             {"buffers at the loss", LineKind::kLogits},
                                                             {"blocks of other lengths", LineKind::kLogits},
                                                             {"dummy gradient of the output matrix", LineKind::kStates},
                                                             {"gradient of the output matrix", LineKind::kStates},
                                                             {"gathered layer", LineKind::kOneLayer},
                                                             {"unsharded", LineKind::kOneLayer},
                                                             {"root", LineKind::kOneLayer},
                                                             {"cast weights", LineKind::kOneLayer},
                                                             {"gather buffers", LineKind::kOneLayer}};
  const auto at = kinds.find(name);
  return at == kinds.end() ? LineKind::kOther : at->second;
}

std::string_view to_string(LineKind kind) {
  switch (kind) {
    case LineKind::kStates:
      return "model states";
    case LineKind::kActivations:
      return "activations";
    case LineKind::kLogits:
      return "logits and loss";
    case LineKind::kOneLayer:
      return "gathered weights";
    case LineKind::kOther:
      return "buffers and workspace";
  }
  FIVEFOLD_CHECK(false);
}

LineKind largest_kind(const ProfileMemory& memory, std::vector<int64_t>& bytes) {
  bytes.assign(kNumLineKinds, 0);
  for (const ProfileLine& line : memory.peak().lines) bytes[static_cast<size_t>(kind_of_line(line.name))] += line.bytes;
  return static_cast<LineKind>(std::ranges::max_element(bytes) - bytes.begin());
}

std::optional<FrameworkPrediction> changed(const FrameworkPrediction& prediction, const RunConfig& config) {
  Result<FrameworkPrediction> other = predict_framework(prediction.model, config, prediction.hardware);
  if (!other.ok()) return std::nullopt;
  return *std::move(other);
}

RunConfig with_switch(RunConfig config, const std::string& name, const std::string& value) {
  std::vector<std::string>& switches = config.framework.switches;
  std::erase_if(switches, [&](const std::string& setting) { return setting.starts_with(name + "="); });
  switches.push_back(name + "=" + value);
  return config;
}

std::optional<FrameworkRemedy> remedy_of(const FrameworkPrediction& before, const RunConfig& config,
                                         const std::string& name, const std::string& changes) {
  const auto after = changed(before, config);
  if (!after) return std::nullopt;
  FrameworkRemedy remedy{.name = name,
                         .config = config,
                         .settings = config_changes(before.config, config),
                         .changes = changes,
                         .need = after->need,
                         .fits = after->fits()};
  // No profile has the time of what goes over the host's links.
  const auto on_host = [](const FrameworkRun& run) {
    return std::tuple(run.optimizer_on_host.value, run.activations_on_host.value, run.sharding.weights_on_host.value);
  };
  if (before.time && after->time && on_host(before.run) == on_host(after->run))
    remedy.speed = after->time->tokens_per_s / before.time->tokens_per_s - 1;
  return remedy;
}

std::string signed_percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.0f %%", 100 * share);
  return text;
}

}  // namespace fivefold
