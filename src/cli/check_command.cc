// fivefold check: the same numbers under a layout, under one rank and in a reference: a stored one (--reference DIR),
// or one rank in fp32 on random tokens.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/integer.h"
#include "base/table.h"
#include "cli/common_options.h"
#include "cli/machine.h"
#include "cli/random_batch.h"
#include "cli/reference.h"
#include "schedule/schedule_source.h"
#include "spec/pipeline_stages.h"
#include "spec/run_config_io.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

// The references' own tolerances (two attention implementations against each other and against fp64).
constexpr double kLossTolerance = 1e-5;      // absolute
constexpr double kGradientTolerance = 2e-5;  // norm of the difference / norm, per tensor
constexpr double kNormTolerance = 5e-6;      // relative, of the whole gradient
// A lower compute type may be off by twice what one rank is, with a floor (docs/engine.md).
constexpr double kLowPrecisionFactor = 2;
constexpr double kLowPrecisionFloor = 1e-3;  // of the gradient's norm
constexpr double kLowPrecisionLossFloor = 1e-2;

struct CheckOptions {
  CommonOptions common;
  std::string reference;
};

struct ParameterRow {
  std::string name;
  double grad_norm = 0, one_rank_grad_norm = 0, reference_grad_norm = 0;
  double difference = 0;  // norm of (layout - reference)
  double tolerance_used = 0;
};

struct CheckReport {
  double loss = 0, one_rank_loss = 0, reference_loss = 0;
  double grad_norm = 0, one_rank_grad_norm = 0, reference_grad_norm = 0;
  double tolerance_used = 0;
  std::vector<ParameterRow> rows;
  bool pass() const { return tolerance_used <= 1; }
};

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return std::sqrt(sum);
}

// The configuration of the check: the reference's batch, fp32 unless set otherwise, as many microbatches as it needs.
RunConfig check_config(const CheckOptions& options, const Reference& reference, std::vector<Error>& errors) {
  RunConfig base;
  base.precision.compute = ComputeKind::kFp32;
  LoadedConfig loaded = load_config({.file = options.common.config, .set = options.common.set, .flags = {}}, base);
  errors = loaded.errors;
  RunConfig& config = loaded.config;
  if (const Status read = read_schedule_source(config); !read.ok()) errors.push_back(read.error());
  config.batch.sequence = reference.batch.sequence;
  config.batch.packing = reference.packed ? Packing::kDocuments : Packing::kConcatenate;
  const int64_t per_microbatch = config.batch.micro * config.parallel.dp;
  if (config.batch.global == 0 && per_microbatch > 0)
    config.batch.global =
        per_microbatch * least_microbatches(config.parallel, div_ceil(reference.batch.rows, per_microbatch));
  if (config.batch.global < reference.batch.rows)
    errors.push_back({"batch.global",
                      fmt::format("is {}, the reference has {} rows", config.batch.global, reference.batch.rows),
                      "leave it out"});
  return config;
}

Result<ProbeResult> probe(const Reference& reference, const RunConfig& config) {
  FIVEFOLD_ASSIGN(EngineApi * engine, load_engine());
  ProbeRequest request;
  request.model = with_method(reference.model, config.method);
  FIVEFOLD_ASSIGN(request.config, resolve(config, request.model));
  request.weights = reference.folder;
  request.batch = reference.batch;
  pad_rows(request.batch, config.batch.global);
  FIVEFOLD_ASSIGN(request.simulate, load_simulated_network(config));
  return engine->probe(request);
}

RunConfig one_rank(RunConfig config) {
  config.parallel = ParallelConfig{.zero = 0, .threads = config.parallel.threads};
  config.recompute = {};
  return config;
}

CheckReport compare(const Reference& reference, const ProbeResult& layout, const ProbeResult& single, bool fp32) {
  CheckReport report;
  report.loss = layout.loss;
  report.one_rank_loss = single.loss;
  report.reference_loss = reference.loss;
  report.grad_norm = layout.grad_norm;
  report.one_rank_grad_norm = single.grad_norm;
  report.reference_grad_norm = reference.grad_norm;
  const double floor = kLowPrecisionFloor * reference.grad_norm;
  const auto low_precision = [](double one_rank_error, double least) {
    return std::max(kLowPrecisionFactor * one_rank_error, least);
  };
  const double loss_tolerance =
      fp32 ? kLossTolerance : low_precision(std::abs(single.loss - reference.loss), kLowPrecisionLossFloor);
  const double norm_tolerance = fp32 ? kNormTolerance * reference.grad_norm
                                     : low_precision(std::abs(single.grad_norm - reference.grad_norm), floor);
  report.tolerance_used = std::max(std::abs(report.loss - report.reference_loss) / loss_tolerance,
                                   std::abs(report.grad_norm - report.reference_grad_norm) / norm_tolerance);
  for (size_t i = 0; i < layout.gradients.size(); ++i) {
    const NamedTensor& gradient = layout.gradients[i];
    const auto found = reference.gradients.find(gradient.name);
    if (found == reference.gradients.end() || found->second.values.size() != gradient.values.size()) continue;
    const std::vector<float>& right = found->second.values;
    ParameterRow row{gradient.name,
                     norm(gradient.values),
                     norm(single.gradients[i].values),
                     norm(right),
                     distance(gradient.values, right),
                     0};
    // A gradient that is zero in exact arithmetic is rounding noise: it is held to the whole gradient's scale.
    const double tolerance = fp32 ? std::max(kGradientTolerance * row.reference_grad_norm, 1e-7 * reference.grad_norm)
                                  : low_precision(distance(single.gradients[i].values, right), floor);
    row.tolerance_used = row.difference / tolerance;
    report.tolerance_used = std::max(report.tolerance_used, row.tolerance_used);
    report.rows.push_back(std::move(row));
  }
  if (!std::isfinite(report.tolerance_used)) report.tolerance_used = std::numeric_limits<double>::max();
  return report;
}

void print_report(const CheckReport& report) {
  Table table({"", "layout", "one rank", "reference", "share of tolerance"});
  table.add_row({"loss", fmt::format("{:.7f}", report.loss), fmt::format("{:.7f}", report.one_rank_loss),
                 fmt::format("{:.7f}", report.reference_loss), ""});
  table.add_row({"gradient norm", fmt::format("{:.7f}", report.grad_norm),
                 fmt::format("{:.7f}", report.one_rank_grad_norm), fmt::format("{:.7f}", report.reference_grad_norm),
                 ""});
  table.add_rule();
  for (const ParameterRow& row : report.rows)
    table.add_row({row.name, fmt::format("{:.6g}", row.grad_norm), fmt::format("{:.6g}", row.one_rank_grad_norm),
                   fmt::format("{:.6g}", row.reference_grad_norm), fmt::format("{:.3f}", row.tolerance_used)});
  print(table.to_string());
  print(
      fmt::format("\n{}: {:.3f} of the tolerance used\n",
                  report.pass() ? painted(Paint::kGood, "same numbers") : painted(Paint::kBad, "NOT the same numbers"),
                  report.tolerance_used));
}

void print_report_json(const CheckReport& report) {
  nlohmann::ordered_json json = {{"pass", report.pass()},
                                 {"loss", report.loss},
                                 {"one_rank_loss", report.one_rank_loss},
                                 {"reference_loss", report.reference_loss},
                                 {"grad_norm", report.grad_norm},
                                 {"one_rank_grad_norm", report.one_rank_grad_norm},
                                 {"reference_grad_norm", report.reference_grad_norm},
                                 {"tolerance_used", report.tolerance_used}};
  json["parameters"] = nlohmann::ordered_json::array();
  for (const ParameterRow& row : report.rows)
    json["parameters"].push_back({{"name", row.name},
                                  {"grad_norm", row.grad_norm},
                                  {"one_rank_grad_norm", row.one_rank_grad_norm},
                                  {"reference_grad_norm", row.reference_grad_norm},
                                  {"tolerance_used", row.tolerance_used}});
  print_json(json);
}

ExitCode bad_input(const std::vector<Error>& errors) {
  print_errors(errors);
  return ExitCode::kBadInput;
}

// Without a stored reference: random weights (or the configuration's Hub folder), random tokens, one rank in fp32.
Result<Reference> make_reference(const RunConfig& config, const ModelSpec& model) {
  Reference reference;
  reference.model = model;
  if (config.model.weights != "random") reference.folder = config.model.weights;
  RunConfig single = one_rank(config);
  single.precision = PrecisionConfig{.compute = ComputeKind::kFp32};
  FIVEFOLD_ASSIGN(const ResolvedConfig resolved, resolve(single, model));
  reference.batch = random_batch(resolved, model.vocab, RandomTargets::kUneven);
  FIVEFOLD_ASSIGN(const ProbeResult result, probe(reference, single));
  reference.loss = result.loss;
  reference.grad_norm = result.grad_norm;
  for (const NamedTensor& gradient : result.gradients) reference.gradients.emplace(gradient.name, gradient);
  return reference;
}

ExitCode run_check(const CheckOptions& options) {
  apply_common_options(options.common);
  std::vector<Error> errors;
  Result<Reference> reference = Error{};
  RunConfig config;
  if (options.reference.empty()) {
    LoadedRun run;
    if (!load_run(options.common, run, errors)) return bad_input(errors);
    config = run.config.config;
    errors = validate_engine(run.model, config);
    if (errors.empty()) reference = make_reference(config, run.model);
  } else {
    reference = read_reference(options.reference);
    if (reference.ok()) config = check_config(options, *reference, errors);
  }
  if (!errors.empty()) return bad_input(errors);
  if (!reference.ok()) return bad_input({reference.error()});
  errors = validate_layout(reference->model, config);
  if (errors.empty()) errors = validate_engine(reference->model, config);
  if (!errors.empty()) return bad_input(errors);
  const Result<ProbeResult> layout = probe(*reference, config);
  if (!layout.ok()) return bad_input({layout.error()});
  const Result<ProbeResult> single = probe(*reference, one_rank(config));
  if (!single.ok()) return bad_input({single.error()});
  const CheckReport report = compare(*reference, *layout, *single, config.precision.compute == ComputeKind::kFp32);
  options.common.json ? print_report_json(report) : print_report(report);
  return report.pass() ? ExitCode::kDone : ExitCode::kOutsideBound;
}

}  // namespace

RunCommand add_check_command(CLI::App& app) {
  auto options = std::make_shared<CheckOptions>();
  add_common_options(app, options->common);
  app.add_option("--reference", options->reference,
                 "folder with a model, a batch and the results to compare with; without it "
                 "the configuration on random tokens is compared with one rank in fp32")
      ->option_text("DIR");
  return [options] { return run_check(*options); };
}

}  // namespace fivefold
