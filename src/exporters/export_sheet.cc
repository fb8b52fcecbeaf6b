#include "exporters/export_sheet.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/integer.h"
#include "base/text.h"
#include "exporters/foreign_model.h"
#include "planner/profiles/framework_config.h"
#include "spec/pipeline_stages.h"
#include "spec/run_config_keys.h"
#include "spec/run_config_resolve.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

constexpr Result<Exported> (*kExporters[])(const ExportedPlan&) = {
    export_megatron, export_torchtitan, export_deepspeed, export_accelerate, export_trl, export_axolotl};

// Sections about how fivefold's own program runs, and about the machine and the data it runs on.
bool is_own(std::string_view section) {
  return section == "hardware" || section == "comm" || section == "log" || section == "limits";
}

}  // namespace

std::string_view target_release(ForeignTarget target) {
  switch (target) {
    case ForeignTarget::kMegatron:
      return "Megatron-LM core 0.20";
    case ForeignTarget::kTorchtitan:
      return "torchtitan 0.3.0";
    case ForeignTarget::kDeepspeed:
      return "DeepSpeed 0.19.8, TRL 1.16.0, transformers 5.24.0";
    case ForeignTarget::kAccelerate:
      return "accelerate 1.15.0, TRL 1.16.0, transformers 5.24.0";
    case ForeignTarget::kTrl:
      return "TRL 1.16.0, transformers 5.24.0, PEFT 0.21.2";
    case ForeignTarget::kAxolotl:
      return "axolotl 0.19.0";
  }
  FIVEFOLD_CHECK(false);
}

int64_t ExportedPlan::world() const {
  const ParallelConfig& parallel = config.parallel;
  return int64_t{parallel.dp} * parallel.tp * parallel.cp * parallel.pp;
}

int64_t ExportedPlan::ranks_on_machine() const { return std::min(world(), ranks_per_machine); }
int64_t ExportedPlan::microbatches() const {
  return div_exact(config.batch.global, config.batch.micro * config.parallel.dp);
}
int64_t ExportedPlan::machines() const { return div_ceil(world(), ranks_on_machine()); }

void ExportSheet::says(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    FIVEFOLD_CHECK(find_config_key(key) != nullptr, std::string(key));
    said_.insert(std::string(key));
  }
}

void ExportSheet::cannot(std::string_view key, std::string why, std::string nearest) {
  const ConfigKey* known = find_config_key(key);
  FIVEFOLD_CHECK(known != nullptr, std::string(key));
  RunConfig config = config_;
  notes_.push_back({std::string(key), setting_text(known->field(config)), std::move(why), std::move(nearest)});
}

std::vector<ExportNote> ExportSheet::notes() const {
  std::vector<ExportNote> notes = notes_;
  RunConfig config = config_;
  RunConfig initial;
  for (const ConfigKey& key : config_keys()) {
    const std::string path = key.path();
    const bool explained =
        std::any_of(notes_.begin(), notes_.end(), [&](const ExportNote& note) { return note.key == path; });
    if (explained || said_.contains(path)) continue;
    const std::string value = setting_text(key.field(config));
    if (value == setting_text(key.field(initial))) continue;
    notes.push_back({path, value, is_own(key.section) ? "belongs to fivefold's own run" : "has no counterpart", ""});
  }
  return notes;
}

Result<Exported> export_run(ForeignTarget target, const ModelSpec& model, const RunConfig& config,
                            int64_t ranks_per_machine) {
  ExportedPlan plan{model, config, {}, hub_repository(config.model), std::max<int64_t>(1, ranks_per_machine)};
  if (config.framework.name == Framework::kFivefold) {
    const std::vector<Error> errors = validate_layout(model, config);
    if (!errors.empty()) return errors.front();
    FIVEFOLD_ASSIGN(ResolvedConfig run, resolve(config, model));
    plan.config = run.config;
    plan.chunk_layers = run.layers_per_chunk;
  } else {
    FIVEFOLD_ASSIGN(const FrameworkRun run, framework_run(model, config, HardwareSpec{}));
    FIVEFOLD_ASSIGN(plan.config.run.steps, total_steps(config));
    plan.config.batch.global = run.micro * run.dp * run.microbatches;
    plan.chunk_layers = config.parallel.stages.cut == StageCut::kListed
                            ? config.parallel.stages.layers
                            : layers_per_stage(model, config.parallel, config.batch.sequence);
  }
  // A shard group of one rank shards nothing.
  if (plan.config.parallel.shard_size == 1) plan.config.parallel.zero = 0;
  return kExporters[static_cast<size_t>(target)](plan);
}

std::string SwitchSheet::take(std::string_view name) {
  for (const std::string& setting : left_) {
    if (!setting.starts_with(name) || setting.size() <= name.size() || setting[name.size()] != '=') continue;
    std::string value = setting.substr(name.size() + 1);
    std::erase(left_, setting);
    return value;
  }
  return "";
}

void SwitchSheet::close(ExportSheet& sheet) const {
  sheet.says({"framework.switches"});
  if (!left_.empty()) sheet.cannot("framework.switches", "not said: " + join(left_, ", "));
}

std::string shell_quoted(std::string_view word) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("-_./:=,@+%").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

double rounded(double value) {
  const std::string text = fmt::format("{:.12g}", value);
  double result = value;
  std::from_chars(text.data(), text.data() + text.size(), result);
  return result;
}

std::string exact_number(double value) { return fmt::format("{}", value); }

void FlagGroup::add(std::string_view name, std::string_view value) {
  lines_.push_back(fmt::format("--{} {}", name, shell_quoted(value)));
}

void FlagGroup::add(std::string_view name, double value) { add(name, std::string_view(exact_number(value))); }

std::string FlagGroup::array() const {
  std::string text = name_ + "=(\n";
  for (const std::string& line : lines_) text += "    " + line + "\n";
  return text + ")\n";
}

}  // namespace fivefold
