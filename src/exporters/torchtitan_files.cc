#include "exporters/torchtitan_files.h"

#include <fmt/format.h>

#include "base/text.h"
#include "exporters/launch_command.h"
#include "exporters/python_config.h"

namespace fivefold {
namespace {

// torchtitan.models.llama3 is "llama3", as is a path .../models/llama3/config_registry.py.
std::string module_name(const std::string& text) {
  const size_t at = text.find("models");
  if (at == std::string::npos || at + 7 > text.size()) return "";
  std::string name = text.substr(at + 7);
  return name.substr(0, name.find_first_of("./"));
}

bool read_python(ImportSheet& sheet, std::string_view text, const std::string& where, const std::string& function,
                 TitanFiles& files) {
  Result<PythonConfig> read = read_python_config(text, where);
  if (!read.ok()) return sheet.run.errors.push_back(read.error()), false;
  std::vector<std::string> names;
  for (const auto& [name, settings] : read->functions)
    if (settings.has("model_spec") || settings.has("training") || settings.has("parallelism")) names.push_back(name);
  std::string chosen = function;
  if (chosen.empty() && names.size() == 1) chosen = names[0];
  const auto found = read->functions.find(chosen);
  if (found == read->functions.end()) {
    sheet.fail(
        where,
        chosen.empty() ? "has several configurations, or none" : fmt::format("has no configuration `{}`", chosen),
        names.empty() ? "a function that returns Trainer.Config(...)"
                      : "import with --config NAME: " + join(names, ", "));
    return false;
  }
  files.settings = found->second;
  files.python = true;
  for (const std::string_view name : {"model_registry", "model_spec"})
    if (const auto module = read->imports.find(std::string(name));
        module != read->imports.end() && files.module.empty())
      files.module = module_name(module->second);
  if (files.module.empty()) files.module = module_name(where);
  return true;
}

bool read_file(ImportSheet& sheet, std::string_view text, const std::string& where, const std::string& function,
               TitanFiles& files) {
  if (where.ends_with(".py")) return read_python(sheet, text, where, function, files);
  Result<ForeignSettings> settings = read_toml_settings(text, where);
  if (!settings.ok()) return sheet.run.errors.push_back(settings.error()), false;
  files.settings = *std::move(settings);
  return true;
}

// The script, with the file that it names.
bool read_script(ImportSheet& sheet, std::string_view text, const std::string& where, TitanFiles& files) {
  Result<ShellScript> script = read_shell_script(text, where, sheet.options().environment);
  if (!script.ok()) return sheet.run.errors.push_back(script.error()), false;
  Result<LaunchCommand> launch = find_launch(*script, where);
  if (!launch.ok()) return sheet.run.errors.push_back(launch.error()), false;
  std::string missing;
  files.ranks = launched_ranks(*launch, *script, missing);
  files.where = launch->where;
  ForeignSettings& flags = launch->arguments;
  const std::string toml = flags.has("job.config_file") ? flags.text("job.config_file").value_or("") : "";
  const std::string function = flags.text("config").value_or("");
  const std::string name = !toml.empty() ? toml : flags.text("module").value_or("") + ".py";
  const std::optional<std::string> file = sheet.options().read_file ? sheet.options().read_file(name) : std::nullopt;
  if (!file) {
    sheet.fail(launch->where, fmt::format("the configuration `{}` that it names cannot be read", name),
               "import it from the folder in which the script runs, or import the configuration itself");
    return false;
  }
  if (!read_file(sheet, *file, name, function, files)) return false;
  for (const std::string_view name : {"module", "config", "job.config_file"}) flags.find(name);
  files.settings.add_unread(flags);
  return true;
}

}  // namespace

TitanFiles read_titan_files(ImportSheet& sheet, std::string_view text, const std::string& where) {
  TitanFiles files;
  files.where = where;
  if (where.ends_with(".py") || where.ends_with(".toml"))
    read_file(sheet, text, where, sheet.options().function, files);
  else
    read_script(sheet, text, where, files);
  return files;
}

}  // namespace fivefold
