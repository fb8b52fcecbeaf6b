#include <fmt/format.h>

#include <algorithm>

#include "spec/run_config_resolve.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

void check_name(const std::string& name, std::vector<Error>& errors) {
  const bool usable = !name.empty() && name.size() <= 128 && name.front() != '.' && name.front() != '-' &&
                      std::all_of(name.begin(), name.end(), is_name_character);
  if (usable) return;
  std::string near;
  for (const char c : name.substr(0, 128)) near += is_name_character(c) ? c : '-';
  near.erase(0, near.find_first_not_of(".-"));
  errors.push_back(
      {"run.name", fmt::format("\"{}\" cannot be the name of a folder of runs", name),
       fmt::format("use letters, digits, '-', '_' and '.', for example {}", near.empty() ? "demo" : near)});
}

void check_length(const RunConfig& config, std::vector<Error>& errors) {
  const LrConfig& lr = config.lr;
  const Result<int64_t> total = total_steps(config);
  if (!total.ok()) return errors.push_back(total.error());
  const int64_t steps = *total;
  if (steps == 0)
    return errors.push_back(
        {"run.steps", "the run has no length", "give steps, or tokens, for example tokens = \"2B\""});
  if (lr.warmup_steps > steps)
    errors.push_back({"lr.warmup_steps",
                      fmt::format("{} steps of warm-up are more than the {} steps of the run", lr.warmup_steps, steps),
                      fmt::format("use warmup_steps = {} or fewer", steps)});
  else if (lr.schedule == LrScheduleKind::kWsd && lr.warmup_steps + lr.decay_steps > steps)
    errors.push_back({"lr.decay_steps",
                      fmt::format("{} steps of warm-up and {} of decay are more than the {} steps of the run",
                                  lr.warmup_steps, lr.decay_steps, steps),
                      fmt::format("use decay_steps = {} or fewer", steps - lr.warmup_steps)});
}

}  // namespace

std::vector<Error> validate_run(const RunConfig& config) {
  std::vector<Error> errors;
  check_name(config.run.name, errors);
  if (config.framework.name != Framework::kFivefold)
    errors.push_back({"framework.name",
                      fmt::format("fivefold's engine does not run {}'s code", to_string(config.framework.name)),
                      "`fivefold export` writes what that framework reads; or use framework.name = fivefold"});
  if (config.model.name.empty() && config.model.config.empty())
    errors.push_back({"model", "no model is given", "set model.name, or model.config to the path of a config.json"});
  if (!config.model.name.empty() && !config.model.config.empty())
    errors.push_back({"model", "name and config both name a model", "give only one of them"});
  if (config.data.train.empty())
    errors.push_back({"data.train", "no training data is given", "set it to a file or a folder"});
  if (config.run.validate_every > 0 && config.data.validation.empty())
    errors.push_back({"run.validate_every", "validation needs data", "set data.validation, or validate_every = 0"});
  check_length(config, errors);
  return errors;
}

}  // namespace fivefold
