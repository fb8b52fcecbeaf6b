// fivefold doctor [CONFIG] [--log FILE]: what is wrong with a run, as an ordered checklist with its numbers.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/common_options.h"
#include "cli/doctor_own_run.h"
#include "cli/foreign_config.h"
#include "cli/foreign_run.h"
#include "reconcile/doctor.h"

namespace fivefold {
namespace {

struct DoctorOptions {
  CommonOptions common;
  LogOptions logs;
  std::string symptom, request, unallocated, hardware;
  int64_t vocabulary = 0;
  double tokens_per_s = 0;
};

// Half a unit of the last digit that "786.00MiB" has.
int64_t printed_precision(const std::string& size, int64_t bytes) {
  const size_t point = size.find('.');
  if (point == std::string::npos) return 512;
  size_t digits = 0;
  while (point + 1 + digits < size.size() && std::isdigit(static_cast<unsigned char>(size[point + 1 + digits])))
    ++digits;
  const double number = std::stod(size);
  double unit = number > 0 ? static_cast<double>(bytes) / number : 1;
  for (size_t i = 0; i < digits; ++i) unit /= 10;
  return static_cast<int64_t>(unit / 2) + 1;
}

// --request and --unallocated. False: `errors` says why.
bool read_sizes(const DoctorOptions& options, DoctorCase& the_case, std::vector<Error>& errors) {
  const auto read = [&](const char* flag, const std::string& text, int64_t& bytes) {
    if (text.empty()) return;
    const Result<int64_t> size = parse_bytes(text);
    if (size.ok())
      bytes = *size;
    else
      errors.push_back({flag, size.error().problem, "for example 786MiB, as PyTorch's message says it"});
  };
  read("--request", options.request, the_case.request);
  read("--unallocated", options.unallocated, the_case.unallocated);
  if (the_case.request > 0) the_case.request_precision = printed_precision(options.request, the_case.request);
  return errors.empty();
}

// Nothing: `errors` says why.
std::optional<DoctorCase> load_case(const DoctorOptions& options, std::vector<Error>& errors) {
  DoctorCase the_case;
  if (!read_sizes(options, the_case, errors)) return std::nullopt;
  the_case.vocabulary = options.vocabulary;
  if (options.tokens_per_s > 0) the_case.tokens_per_s = options.tokens_per_s;
  if (!options.logs.files.empty()) {
    the_case.log = read_logs(options.logs, errors);
    if (!the_case.log) return std::nullopt;
  }
  // A log's own arguments are a configuration only where the hardware is said, too.
  const bool of_log = the_case.log && has_arguments(*the_case.log) && !options.hardware.empty();
  if (!options.common.config.empty() || !options.common.set.empty() || of_log) {
    const ForeignLog* log = the_case.log ? &*the_case.log : nullptr;
    the_case.prediction = load_framework_prediction(options.common, options.logs, options.hardware, log, errors);
    if (!the_case.prediction) return std::nullopt;
  }
  if (!the_case.prediction && !the_case.log && the_case.request == 0 && the_case.unallocated == 0)
    errors.push_back({"doctor", "there is nothing to look at",
                      "give a configuration, --log FILE, or --request SIZE of the allocation that failed"});
  return errors.empty() ? std::optional(std::move(the_case)) : std::nullopt;
}

ExitCode bad_input(const std::vector<Error>& errors) {
  print_errors(errors);
  return ExitCode::kBadInput;
}

ExitCode print_diagnosis(const DoctorOptions& options, const Diagnosis& diagnosis) {
  if (options.common.json)
    print_json(to_json(diagnosis));
  else
    print(to_text(diagnosis));
  return ExitCode::kDone;
}

// Whether the run is of fivefold's own engine: a folder with a record, or a configuration without another framework.
bool is_own_run(const DoctorOptions& options) {
  if (options.common.config.empty() && options.common.set.empty()) return false;
  if (std::filesystem::is_directory(options.common.config)) return true;
  if (is_foreign_config(options.common.config)) return false;
  std::vector<Error> errors;
  return load_run_config(options.common, errors).framework.name == Framework::kFivefold && errors.empty();
}

ExitCode run_doctor(const DoctorOptions& options) {
  apply_common_options(options.common);
  std::optional<Symptom> symptom;
  if (!options.symptom.empty())
    symptom = static_cast<Symptom>(std::ranges::find(kSymptomNames, options.symptom) - std::begin(kSymptomNames));
  std::vector<Error> errors;
  if (is_own_run(options) && options.logs.files.empty()) {
    const auto diagnosis = diagnose_own_run(options.common, options.hardware, symptom, errors);
    return diagnosis ? print_diagnosis(options, *diagnosis) : bad_input(errors);
  }
  const std::optional<DoctorCase> the_case = load_case(options, errors);
  if (!the_case) return bad_input(errors);
  if (!symptom) symptom = likely_symptom(*the_case);
  if (*symptom != Symptom::kOutOfMemory && !the_case->prediction) {
    const std::string name(to_string(*symptom));
    return bad_input({{"--symptom", name + " is told from a prediction, which needs the run's configuration",
                       "fivefold doctor CONFIG --symptom " + name}});
  }
  return print_diagnosis(options, diagnose(*the_case, *symptom));
}

}  // namespace

RunCommand add_doctor_command(CLI::App& app) {
  auto options = std::make_shared<DoctorOptions>();
  add_common_options(app, options->common);
  app.get_option("config")->description(
      "configuration of the run, its launch script, or the folder of a run of fivefold's own engine");
  add_log_options(app, options->logs);
  app.add_option("--symptom", options->symptom, "oom, slow or scaling; otherwise what the log looks like")
      ->check(CLI::IsMember({"oom", "slow", "scaling"}))
      ->option_text("SYMPTOM");
  app.add_option("--request", options->request, "allocation that failed")->option_text("SIZE");
  app.add_option("--unallocated", options->unallocated, "reserved by PyTorch but unallocated, as its message says")
      ->option_text("SIZE");
  app.add_option("--vocabulary", options->vocabulary, "of the model, where there is no configuration")
      ->check(CLI::PositiveNumber)
      ->option_text("N");
  app.add_option("--tokens-per-s", options->tokens_per_s, "measured pace of one GPU")
      ->check(CLI::PositiveNumber)
      ->option_text("X");
  app.add_option("--hardware", options->hardware, "hardware to predict with, instead of the configuration's")
      ->option_text("NAME|FILE");
  return [options] { return run_doctor(*options); };
}

}  // namespace fivefold
