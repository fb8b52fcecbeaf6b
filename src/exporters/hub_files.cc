// The scripts and files that a run over transformers' Trainer is spread over.
#include <fmt/format.h>

#include "exporters/hub_import.h"
#include "exporters/launch_command.h"

namespace fivefold {
namespace {

// A file that the script names: as it writes it itself, or from beside it.
std::optional<std::string> companion(const ImportSheet& sheet, const ShellScript& script, const std::string& name) {
  if (const auto found = script.documents.find(name); found != script.documents.end()) return found->second;
  return sheet.options().read_file ? sheet.options().read_file(name) : std::nullopt;
}

Result<ForeignSettings> read_companion(std::string_view text, const std::string& name) {
  return name.ends_with(".json") ? read_json_settings(text, name) : read_yaml_settings(text, name);
}

// The files that TRL's command knows by name.
std::string accelerate_preset(const std::string& name) {
  const auto common = [](std::string_view type) {
    return fmt::format("distributed_type: {}\nmixed_precision: bf16\n", type);
  };
  if (name == "fsdp1" || name == "fsdp2")
    return common("FSDP") +
           fmt::format("fsdp_config:\n  fsdp_version: {}\n  fsdp_reshard_after_forward: true\n", name.back());
  if (name.size() == 5 && name.starts_with("zero"))
    return common("DEEPSPEED") + fmt::format("deepspeed_config:\n  zero_stage: {}\n", name.back());
  return name == "multi_gpu" ? common("MULTI_GPU") : name == "single_gpu" ? common("'NO'") : "";
}

}  // namespace

void HubFiles::add_companion(ImportSheet& sheet, const ShellScript& script, ForeignSettings& into,
                             const std::string& name, const std::string& where) {
  const std::optional<std::string> text = companion(sheet, script, name);
  if (!text)
    return sheet.fail(where, fmt::format("the file `{}` that it names cannot be read", name),
                      "import it from the folder in which the script runs");
  Result<ForeignSettings> settings = read_companion(*text, name);
  if (!settings.ok()) return sheet.run.errors.push_back(settings.error());
  into.add_all(*settings);
}

HubFiles read_hub_script(ImportSheet& sheet, std::string_view text, const std::string& where) {
  HubFiles files;
  Result<ShellScript> script = read_shell_script(text, where, sheet.options().environment);
  if (!script.ok()) return sheet.run.errors.push_back(script.error()), files;
  Result<LaunchCommand> launch = find_launch(*script, where);
  if (!launch.ok()) return sheet.run.errors.push_back(launch.error()), files;
  files.where = launch->where;
  files.program = launch->program;
  files.positional = launch->positional;
  ForeignSettings& flags = launch->arguments;
  if (const std::optional<std::string> name = flags.text("config"))
    files.add_companion(sheet, *script, files.arguments, *name, flags.where("config"));
  for (const std::string& word : launch->positional)
    if (word.ends_with(".yaml") || word.ends_with(".yml") || (word.ends_with(".json") && !flags.has("deepspeed")))
      files.add_companion(sheet, *script, files.arguments, word, launch->where);
  files.arguments.add_unread(flags);
  ForeignSettings& launcher = launch->launcher_settings;
  const ForeignSetting* accelerate = launcher.find_first({"config_file"});
  if (accelerate != nullptr)
    files.add_companion(sheet, *script, files.accelerate, foreign_value_text(accelerate->value), accelerate->where);
  if (const std::optional<std::string> preset = files.arguments.text("accelerate_config")) {
    const std::string known = accelerate_preset(*preset);
    if (!known.empty())
      files.accelerate.add_all(read_yaml_settings(known, *preset).value());
    else
      files.add_companion(sheet, *script, files.accelerate, *preset, files.arguments.where("accelerate_config"));
  }
  for (const std::string_view name : {"m", "module"}) launcher.find(name);
  if (launch->launcher == "accelerate") files.accelerate.add_unread(launcher);
  for (const std::string_view name : {"deepspeed", "deepspeed_config", "deepspeed_config_file"}) {
    const std::optional<std::string> file = files.arguments.has(name)    ? files.arguments.text(name)
                                            : files.accelerate.has(name) ? files.accelerate.text(name)
                                                                         : std::nullopt;
    if (file && *file != "true")
      files.add_companion(sheet, *script, files.deepspeed, *file, files.arguments.where(name));
  }
  std::string missing;
  files.ranks = launched_ranks(*launch, *script, missing);
  if (const std::optional<int64_t> each =
          files.arguments.has("nproc_per_node") ? files.arguments.integer("nproc_per_node", 1, 1 << 20) : std::nullopt)
    files.ranks = *each * files.arguments.integer("nnodes", 1, 1 << 20).value_or(1);
  if (!files.ranks && launch->launcher == "accelerate")
    files.ranks = files.accelerate.integer("num_processes", 1, 1 << 24);
  if (!files.ranks && sheet.options().gpus == 0 && !missing.empty() && files.accelerate.empty())
    sheet.fail(missing, "the number of GPUs is not known",
               script->unset.empty() ? "import with --gpus N"
                                     : fmt::format("import with --gpus N, or --env {}=VALUE", script->unset.front()));
  return files;
}

void HubFiles::read_fsdp_config(ImportSheet& sheet, const std::string& name, const std::string& where,
                                ForeignSettings& into) const {
  // Either the settings themselves or the name of their file.
  if (name.starts_with("{")) {
    Result<ForeignSettings> settings = read_json_settings(name, where);
    if (!settings.ok()) return sheet.run.errors.push_back(settings.error());
    return into.add_all(*settings);
  }
  const std::optional<std::string> text = sheet.options().read_file ? sheet.options().read_file(name) : std::nullopt;
  if (!text) return sheet.fail(where, fmt::format("the file `{}` that it names cannot be read", name), "");
  Result<ForeignSettings> settings = read_json_settings(*text, name);
  if (!settings.ok()) return sheet.run.errors.push_back(settings.error());
  into.add_all(*settings);
}

bool HubFiles::is_trl() const { return program.find("trl") != std::string::npos || program == "sft.py"; }

void import_trl(ImportSheet& sheet, std::string_view text, const std::string& where) {
  HubFiles files;
  if (where.ends_with(".yaml") || where.ends_with(".yml") || where.ends_with(".json")) {
    files.where = where;
    files.program = "trl";
    Result<ForeignSettings> settings = read_companion(text, where);
    if (!settings.ok()) return sheet.run.errors.push_back(settings.error());
    files.arguments = *std::move(settings);
  } else {
    files = read_hub_script(sheet, text, where);
  }
  if (sheet.run.errors.empty()) read_hub_run(sheet, std::move(files));
}

void import_accelerate(ImportSheet& sheet, std::string_view text, const std::string& where) {
  if (!where.ends_with(".yaml") && !where.ends_with(".yml")) return import_trl(sheet, text, where);
  HubFiles files;
  files.where = where;
  Result<ForeignSettings> settings = read_yaml_settings(text, where);
  if (!settings.ok()) return sheet.run.errors.push_back(settings.error());
  files.accelerate = *std::move(settings);
  const std::string own = "deepspeed_config.deepspeed_config_file";
  if (const std::optional<std::string> name = files.accelerate.has(own) ? files.accelerate.text(own) : std::nullopt)
    files.add_companion(sheet, ShellScript{}, files.deepspeed, *name, files.accelerate.where(own));
  if (sheet.run.errors.empty()) read_hub_run(sheet, std::move(files));
}

void import_deepspeed(ImportSheet& sheet, std::string_view text, const std::string& where) {
  if (!where.ends_with(".json")) return import_trl(sheet, text, where);
  HubFiles files;
  files.where = where;
  Result<ForeignSettings> settings = read_json_settings(text, where);
  if (!settings.ok()) return sheet.run.errors.push_back(settings.error());
  files.deepspeed = *std::move(settings);
  read_hub_run(sheet, std::move(files));
}

}  // namespace fivefold
