#include "planner/scope.h"

#include <fmt/format.h>

#include <algorithm>

#include "spec/validate.h"

namespace fivefold {

namespace {

// Layers whose tensor-parallel collectives are known: those that the engine runs.
bool splits(const LayerSpec& layer) {
  return layer.mixer.kind == MixerKind::kAttention && !layer.mixer.sinks && !layer.mixer.output_gate &&
         (layer.mlp.kind == MlpKind::kGated || layer.mlp.kind == MlpKind::kPlain) && layer.pre_norm &&
         !layer.post_norm && !layer.single_norm;
}

}  // namespace

std::vector<Error> planner_scope(const ModelSpec& model, const RunConfig& config) {
  std::vector<Error> errors;
  const auto refuse = [&](std::string_view key, std::string_view value, std::string_view hint) {
    errors.push_back({std::string(key), fmt::format("{} is not planned: fivefold's engine does not have it", value),
                      fmt::format("use {}", hint)});
  };
  const ParallelConfig& parallel = config.parallel;
  const std::pair<std::string_view, int> degrees[] = {{"ep", parallel.ep}, {"etp", parallel.etp}};
  for (const auto& [name, degree] : degrees)
    if (degree > 1)
      refuse(fmt::format("parallel.{}", name), fmt::format("{} = {}", name, degree),
             fmt::format("{} = 1: dp with zero = 0 to 3, tp with or without sp, cp and pp are planned", name));
  if (parallel.tp > 1 && !std::all_of(model.layers.begin(), model.layers.end(), splits))
    refuse("parallel.tp", fmt::format("tp = {} of layers other than attention and a dense MLP", parallel.tp), "tp = 1");
  if (parallel.cp > 1 && !std::all_of(model.layers.begin(), model.layers.end(), splits))
    refuse("parallel.cp", fmt::format("cp = {} of layers other than attention and a dense MLP", parallel.cp), "cp = 1");
  const PrecisionConfig& precision = config.precision;
  if (precision.compute != ComputeKind::kFp32 && precision.params == DType::kFloat32)
    refuse("precision.params", fmt::format("fp32 under {} compute", to_string(precision.compute)), "params = auto");
  return errors;
}

bool adds_refusal(const ModelSpec& base, const RunConfig& config, const RunConfig& changed) {
  const ModelSpec model = with_method(base, changed.method);
  if (!validate_layout(model, changed).empty() || !planner_scope(model, changed).empty()) return true;
  const std::vector<Error> before = validate_engine(with_method(base, config.method), config);
  for (const Error& error : validate_engine(model, changed))
    if (std::none_of(before.begin(), before.end(), [&](const Error& known) { return known.where == error.where; }))
      return true;
  return false;
}

}  // namespace fivefold
