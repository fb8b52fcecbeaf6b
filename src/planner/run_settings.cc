#include "planner/run_settings.h"

#include <optional>

#include "spec/adapter.h"
#include "spec/run_config_io.h"
#include "spec/run_config_resolve.h"

namespace fivefold {
namespace {

// With what is left to fivefold filled in. Nothing: no run.
std::optional<RunConfig> filled_in(const ModelSpec& model, const RunConfig& config) {
  const Result<ResolvedConfig> resolved = resolve(config, with_method(model, config.method));
  if (!resolved.ok()) return std::nullopt;
  RunConfig run = resolved->config;
  if (run.parallel.dp * run.parallel.cp == 1) run.parallel.zero = 0;
  return run;
}

}  // namespace

RunSettings run_settings(const ModelSpec& model, const RunConfig& from, const RunConfig& to) {
  RunSettings run{.settings = config_changes(from, to), .config = to};
  const std::optional<RunConfig> wanted = filled_in(model, to);
  for (size_t i = 0; i < run.settings.size();) {
    std::vector<std::string> fewer = run.settings;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    const LoadedConfig pasted = load_config({.set = fewer}, from);
    if (!pasted.errors.empty() || filled_in(model, pasted.config) != wanted) {
      ++i;
      continue;
    }
    run = {.settings = std::move(fewer), .config = pasted.config};
  }
  return run;
}

}  // namespace fivefold
