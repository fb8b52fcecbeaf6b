// fivefold import FILE, or import -- COMMAND...: another framework's configuration as fivefold's, explained.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/text.h"
#include "cli/common_options.h"
#include "cli/import_text.h"
#include "cli/machine.h"
#include "exporters/export_sheet.h"
#include "exporters/imported_run.h"
#include "spec/run_config_io.h"

namespace fivefold {
namespace {

struct ImportCommandOptions {
  std::vector<std::string> input, environment;
  std::string from = "auto", out, gpu;
  ImportOptions import;
  bool json = false, quiet = false;
  ColorMode color = ColorMode::kAuto;
};

// Where no GPU is named: stated, and printed as such.
constexpr std::string_view kUsualHardware = "dgx-h100";

ExitCode refuse(const std::vector<Error>& errors) {
  print_errors(errors);
  return ExitCode::kBadInput;
}

std::optional<std::string> file_text(const std::filesystem::path& path) {
  constexpr uintmax_t kMaxBytes = uintmax_t{8} << 20;
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed) || std::filesystem::file_size(path, failed) > kMaxBytes || failed)
    return {};
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return {};
  return text.str();
}

struct Input {
  std::string text, name;
  std::filesystem::path folder;
};

// One word that is a file, or the words of a command.
Result<Input> read_input(const std::vector<std::string>& words) {
  if (words.size() == 1) {
    std::optional<std::string> text = file_text(words[0]);
    if (text) return Input{*std::move(text), words[0], std::filesystem::path(words[0]).parent_path()};
    if (words[0].find(' ') == std::string::npos)
      return Error{words[0], "cannot be read", "a file, or -- and a command"};
  }
  Input input{"", "command", {}};
  if (words.front().starts_with("--")) input.text = "python pretrain_gpt.py ";
  for (const std::string& word : words) input.text += (words.size() == 1 ? word : shell_quoted(word)) + " ";
  input.text += "\n";
  return input;
}

Result<ForeignTarget> source_of(const std::string& from, const Input& input) {
  std::vector<std::string> known = {"auto"};
  for (int i = 0; i < kNumForeignTargets; ++i) {
    known.emplace_back(kForeignTargetNames[i]);
    if (from == kForeignTargetNames[i]) return static_cast<ForeignTarget>(i);
  }
  if (from != "auto") return Error{"--from " + from, "no such source", name_hint(from, known)};
  if (const std::optional<ForeignTarget> found = detect_target(input.text, input.name)) return *found;
  return Error{input.name, "is of no form that is recognised", "say which with --from: " + join(known, ", ")};
}

Status add_environment(const std::vector<std::string>& settings, ImportOptions& options) {
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) return Error{"--env " + setting, "is not NAME=VALUE", ""};
    options.environment[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  return Ok{};
}

// The configuration, and beside it the config.json of a model that has no name.
Status write_imported(Imported& imported, const std::string& out) {
  const auto write = [](const std::filesystem::path& path, const std::string& text) -> Status {
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    if (!file) return Error{path.string(), "cannot be written", ""};
    return Ok{};
  };
  if (!imported.model_json.empty()) {
    const std::filesystem::path model = std::filesystem::path(out).replace_extension(".config.json");
    FIVEFOLD_TRY(write(model, imported.model_json));
    imported.config.model.config = model.string();
  }
  return write(out, to_toml(imported.config));
}

ExitCode run_import(ImportCommandOptions& options) {
  set_color(options.color);
  const Result<Input> input = read_input(options.input);
  if (!input.ok()) return refuse({input.error()});
  const Result<ForeignTarget> source = source_of(options.from, *input);
  if (!source.ok()) return refuse({source.error()});
  if (const Status read = add_environment(options.environment, options.import); !read.ok())
    return refuse({read.error()});
  options.import.read_file = [folder = input->folder](const std::string& name) { return file_text(folder / name); };
  Imported imported = import_run(*source, input->text, input->name, options.import);
  if (!imported.errors.empty()) return refuse(imported.errors);
  const std::string gpu = options.gpu.empty() ? std::string(kUsualHardware) : options.gpu;
  if (options.gpu.empty()) imported.assumed.push_back({"hardware.name", gpu, "no --gpu is given", ""});
  imported.config.hardware.name = gpu;
  const Result<HardwareSpec> hardware = load_hardware(gpu);
  if (!hardware.ok()) return refuse({hardware.error()});
  if (!options.out.empty())
    if (const Status written = write_imported(imported, options.out); !written.ok()) return refuse({written.error()});
  const ImportedPlan plan = plan_imported(imported, *hardware);
  if (options.json) {
    print_json(imported_json(imported, plan));
  } else {
    print(imported_text(imported, input->name) + "\n" + imported_plan_text(plan));
    if (!options.out.empty()) print("wrote " + options.out + "\n");
  }
  if (plan.refused) return ExitCode::kBadInput;
  return plan.judged.fits() ? ExitCode::kDone : ExitCode::kDoesNotFit;
}

}  // namespace

RunCommand add_import_command(CLI::App& app) {
  auto options = std::make_shared<ImportCommandOptions>();
  app.add_option("input", options->input, "a launch script or configuration file; or -- and a command")
      ->required()
      ->option_text("FILE | -- COMMAND...");
  app.add_option("--from", options->from, "auto, megatron, torchtitan, deepspeed, accelerate, trl or axolotl")
      ->option_text("SOURCE");
  app.add_option("--out", options->out, "write the configuration here")->option_text("FILE");
  app.add_option("--gpu", options->gpu, "a GPU or cluster that fivefold knows")->option_text("NAME");
  app.add_option("--gpus", options->import.gpus, "GPUs in all, where the text does not say")
      ->check(CLI::Range(1, 1 << 20))
      ->option_text("N");
  app.add_option("--model", options->import.model, "the model: a name, a Hub repository, or a folder with config.json")
      ->option_text("NAME");
  app.add_option("--sequence", options->import.sequence, "tokens of a sequence")
      ->check(CLI::Range(1, 1 << 30))
      ->option_text("N");
  app.add_option("--vocab", options->import.vocab, "size of the vocabulary")
      ->check(CLI::Range(1, 1 << 24))
      ->option_text("N");
  app.add_option("--config", options->import.function, "which configuration function of a Python file")
      ->option_text("NAME");
  app.add_option("--env", options->environment, "a variable of the script, or 1, 2 for its arguments; may be repeated")
      ->allow_extra_args(false)
      ->option_text("NAME=VALUE");
  static const std::map<std::string, ColorMode> modes = {
      {"auto", ColorMode::kAuto}, {"always", ColorMode::kAlways}, {"never", ColorMode::kNever}};
  app.add_flag("--json", options->json, "print JSON");
  app.add_option("--color", options->color, "colours: auto, always or never")
      ->transform(CLI::CheckedTransformer(modes))
      ->option_text("WHEN");
  return [options] { return run_import(*options); };
}

}  // namespace fivefold
