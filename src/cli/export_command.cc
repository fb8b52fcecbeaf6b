// fivefold export CONFIG --to TARGET: a configuration as the files of another framework.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/table.h"
#include "base/text.h"
#include "cli/common_options.h"
#include "cli/machine.h"
#include "exporters/export_sheet.h"

namespace fivefold {
namespace {

struct ExportOptions {
  CommonOptions common;
  std::string target, out;
  int64_t ranks_per_machine = 0;
};

ExitCode refuse(const std::vector<Error>& errors) {
  print_errors(errors);
  return ExitCode::kBadInput;
}

Result<ForeignTarget> target_of(const std::string& name) {
  std::vector<std::string> known;
  for (int i = 0; i < kNumForeignTargets; ++i) {
    known.emplace_back(kForeignTargetNames[i]);
    if (name == kForeignTargetNames[i]) return static_cast<ForeignTarget>(i);
  }
  return Error{"--to " + name, "no such target", name_hint(name, known)};
}

// GPUs of a machine: as the hardware says, eight where it is this machine or none.
int64_t ranks_per_machine(const ExportOptions& options, const RunConfig& config) {
  constexpr int64_t kUsual = 8;
  if (options.ranks_per_machine > 0) return options.ranks_per_machine;
  if (config.hardware.name == HardwareConfig{}.name) return kUsual;
  const Result<HardwareSpec> hardware = load_hardware(config.hardware.name);
  return hardware.ok() && hardware->devices_per_node > 1 ? hardware->devices_per_node : kUsual;
}

Status write_files(const Exported& exported, const std::string& out) {
  std::error_code failed;
  const std::filesystem::path folder = out;
  std::filesystem::create_directories(folder, failed);
  if (failed) return Error{out, "cannot be made: " + failed.message(), ""};
  for (const ExportedFile& file : exported.files) {
    const std::filesystem::path path = folder / file.name;
    std::ofstream stream(path, std::ios::binary);
    stream << file.text;
    stream.close();
    if (!stream) return Error{path.string(), "cannot be written", ""};
    if (path.extension() == ".sh")
      std::filesystem::permissions(path, std::filesystem::perms::owner_exec, std::filesystem::perm_options::add,
                                   failed);
  }
  return Ok{};
}

nlohmann::ordered_json exported_json(const Exported& exported) {
  auto files = nlohmann::ordered_json::array(), notes = nlohmann::ordered_json::array();
  for (const ExportedFile& file : exported.files) files.push_back({{"name", file.name}, {"text", file.text}});
  for (const ExportNote& note : exported.notes)
    notes.push_back({{"key", note.key}, {"value", note.value}, {"why", note.why}, {"nearest", note.nearest}});
  return {{"target", to_string(exported.target)},
          {"release", target_release(exported.target)},
          {"files", files},
          {"not_expressed", notes}};
}

std::string notes_text(const Exported& exported) {
  if (exported.notes.empty()) return painted(Paint::kGood, "Everything is said.") + "\n";
  Table table({"not said as it is", "value", "why", "instead"});
  for (const ExportNote& note : exported.notes) table.add_row({note.key, note.value, note.why, note.nearest});
  return table.to_string();
}

ExitCode run_export(const ExportOptions& options) {
  apply_common_options(options.common);
  std::vector<Error> errors;
  const RunConfig config = load_run_config(options.common, errors);
  const Result<ForeignTarget> target = target_of(options.target);
  if (!target.ok()) errors.push_back(target.error());
  if (!errors.empty()) return refuse(errors);
  const Result<ModelSpec> model = load_model(config.model);
  if (!model.ok()) return refuse({model.error()});
  const Result<Exported> exported = export_run(*target, *model, config, ranks_per_machine(options, config));
  if (!exported.ok()) return refuse({exported.error()});
  if (!options.out.empty())
    if (const Status written = write_files(*exported, options.out); !written.ok()) return refuse({written.error()});
  if (options.common.json) {
    print_json(exported_json(*exported));
    return ExitCode::kDone;
  }
  for (const ExportedFile& file : exported->files) {
    if (options.out.empty())
      print(painted(Paint::kHeading, "# " + file.name) + "\n" + file.text + "\n");
    else
      print(fmt::format("wrote {}\n", (std::filesystem::path(options.out) / file.name).string()));
  }
  print(fmt::format("For {}.\n", target_release(*target)) + notes_text(*exported));
  return ExitCode::kDone;
}

}  // namespace

RunCommand add_export_command(CLI::App& app) {
  auto options = std::make_shared<ExportOptions>();
  add_common_options(app, options->common);
  app.add_option("--to", options->target, "megatron, torchtitan, deepspeed, accelerate, trl or axolotl")
      ->required()
      ->option_text("TARGET");
  app.add_option("--out", options->out, "folder for the files; without it they are printed")->option_text("FOLDER");
  app.add_option("--gpus-per-machine", options->ranks_per_machine, "GPUs of a machine, where the hardware does not say")
      ->check(CLI::Range(1, 1024))
      ->option_text("N");
  return [options] { return run_export(*options); };
}

}  // namespace fivefold
