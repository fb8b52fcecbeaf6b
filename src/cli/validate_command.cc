// fivefold validate CSV...: published runs of other frameworks beside what the profiles predict of them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/installation.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/validate_report.h"
#include "spec/hardware.h"

namespace fivefold {
namespace {

constexpr size_t kWorstRows = 20;  // of each source, under --rows

std::optional<HardwareSpec> hardware_with(const std::string& gpu) {
  const std::filesystem::path folder = std::filesystem::path(installation().configs) / "clusters";
  std::set<std::filesystem::path> files;
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(folder, ignored)) files.insert(file.path());
  for (const std::filesystem::path& file : files) {
    Result<HardwareSpec> hardware = read_hardware(file);
    if (hardware.ok() && (hardware->gpu == gpu || hardware->name == gpu)) return *std::move(hardware);
  }
  const Result<std::filesystem::path> file = find_named_hardware(gpu);
  if (!file.ok()) return std::nullopt;
  Result<HardwareSpec> hardware = read_hardware(*file);
  if (!hardware.ok()) return std::nullopt;
  return *std::move(hardware);
}

struct ValidateOptions {
  std::vector<std::string> files, sources;
  bool json = false, rows = false, anchor = false;
};

// The first cluster of configs/clusters that has the GPU or is named so, else the GPU's own file; each read once.
HardwareOf named_hardware() {
  return [known = std::make_shared<std::map<std::string, std::optional<HardwareSpec>>>()](const std::string& gpu) {
    const auto [entry, is_new] = known->try_emplace(gpu);
    if (is_new) entry->second = hardware_with(gpu);
    return entry->second ? &*entry->second : nullptr;
  };
}

// Rows of the sources that are asked for; of all when none is. Errors: a source that no row has.
Result<std::vector<PublishedRun>> selected(std::vector<PublishedRun> runs, const std::vector<std::string>& sources) {
  std::set<std::string> known;
  for (const PublishedRun& run : runs) known.insert(run.source());
  for (const std::string& source : sources)
    if (!known.contains(source))
      return Error{"--source " + source, "no row is of this source",
                   name_hint(source, std::vector<std::string>(known.begin(), known.end()))};
  if (!sources.empty())
    std::erase_if(runs, [&](PublishedRun& run) { return std::ranges::find(sources, run.source()) == sources.end(); });
  return runs;
}

Result<std::vector<PublishedRun>> read_all(const ValidateOptions& options) {
  std::vector<PublishedRun> runs;
  for (const std::string& file : options.files) {
    FIVEFOLD_ASSIGN(std::vector<PublishedRun> read, read_published_runs(file));
    std::ranges::move(read, std::back_inserter(runs));
  }
  return selected(merged_runs(std::move(runs)), options.sources);
}

ExitCode run_validate(const ValidateOptions& options) {
  const Result<std::vector<PublishedRun>> runs = read_all(options);
  if (!runs.ok()) {
    print_errors({runs.error()});
    return ExitCode::kBadInput;
  }
  const Validation validation = validate_runs(*runs, named_hardware(), options.anchor);
  if (options.json)
    print_json(validation_json(validation));
  else
    print(validation_text(validation, options.rows ? kWorstRows : 0));
  return ExitCode::kDone;
}

}  // namespace

RunCommand add_validate_command(CLI::App& app) {
  auto options = std::make_shared<ValidateOptions>();
  app.add_option("csv", options->files, "published runs (columns: docs/formats/published-runs.md)")
      ->required()
      ->option_text("CSV...");
  app.add_option("--source", options->sources, "score this source alone; may be repeated")->option_text("NAME");
  app.add_flag("--json", options->json, "print JSON, with every row");
  app.add_flag("--anchor", options->anchor,
               "take the fastest run of each model on each GPU as known, scale the others' throughput by it");
  app.add_flag("--rows", options->rows, "list the 20 rows of each source with the largest errors");
  return [options] { return run_validate(*options); };
}

}  // namespace fivefold
