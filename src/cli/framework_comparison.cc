#include "cli/framework_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/table.h"
#include "base/text.h"
#include "cli/framework_plan.h"
#include "cli/framework_text.h"
#include "cli/machine.h"
#include "planner/profiles/framework_config.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

struct Column {
  std::vector<std::string> values;           // of each axis
  std::optional<ExplainedFrameworkRun> run;  // nothing: `errors` says why
  std::vector<Error> errors;
};

CommonOptions with_values(const CommonOptions& options, const std::vector<ComparedAxis>& axes,
                          const std::vector<std::string>& values) {
  CommonOptions common = options;
  for (size_t i = 0; i < axes.size(); ++i) common.flags.push_back(axes[i].key + "=" + values[i]);
  return common;
}

Column make_column(const CommonOptions& options, const std::vector<ComparedAxis>& axes, size_t index) {
  Column column{.values = combination(axes, index), .run = {}, .errors = {}};
  const RunConfig config = load_run_config(with_values(options, axes, column.values), column.errors);
  if (!column.errors.empty()) return column;
  if (config.framework.name == Framework::kFivefold) {
    column.errors.push_back({"framework.name", "fivefold's own engine is not compared with other frameworks",
                             "compare its configurations by themselves"});
    return column;
  }
  Result<ExplainedFrameworkRun> run = explain_framework_run(config);
  if (run.ok())
    column.run = *std::move(run);
  else
    column.errors.push_back(run.error());
  return column;
}

class FrameworkTable {
 public:
  FrameworkTable(const std::vector<ComparedAxis>& axes, const std::vector<Column>& columns)
      : columns_(columns), table_(header(axes, 0)) {
    for (size_t i = 1; i < axes.size(); ++i) table_.add_row(header(axes, i));
    if (axes.size() > 1) table_.add_rule();
    add_lines();
    table_.add_rule();
    row("needs", [](const FrameworkPlan& p) { return format_bytes(p.needed); });
    row("fits", [](const FrameworkPlan& p) { return std::string(p.fits() ? "yes" : "no"); });
    table_.add_rule();
    add_parts();
    row("step", [](const FrameworkPlan& p) { return format_seconds(p.time.seconds); });
    row("tokens/s", [](const FrameworkPlan& p) { return fmt::format("{:.0f}", p.tokens_per_s); });
    row("of a GPU", [](const FrameworkPlan& p) { return fmt::format("{:.0f}", p.time.tokens_per_s); });
    row("MFU", [](const FrameworkPlan& p) { return fmt::format("{:.1f} %", 100 * p.time.mfu); });
    row("HFU", [](const FrameworkPlan& p) { return fmt::format("{:.1f} %", 100 * p.time.hfu); });
  }
  std::string to_string() const { return table_.to_string(2); }

 private:
  std::vector<std::string> header(const std::vector<ComparedAxis>& axes, size_t axis) const {
    std::vector<std::string> cells{axes[axis].key};
    for (const Column& column : columns_) cells.push_back(column.values[axis]);
    return cells;
  }
  void row(const std::string& name, const std::function<std::string(const FrameworkPlan&)>& cell) {
    std::vector<std::string> cells{name};
    for (const Column& column : columns_) cells.push_back(column.run ? cell(column.run->plan) : "-");
    table_.add_row(std::move(cells));
  }
  static int64_t line_bytes(const FrameworkPlan& plan, const std::string& name) {
    int64_t bytes = 0;
    for (const ProfileLine& line : plan.memory.peak().lines) bytes += line.name == name ? line.bytes : 0;
    return bytes;
  }
  void add_lines() {
    std::vector<std::string> names;
    for (const Column& column : columns_)
      for (const ProfileLine& line : column.run ? column.run->plan.memory.peak().lines : std::vector<ProfileLine>{})
        if (std::ranges::find(names, line.name) == names.end()) names.push_back(line.name);
    for (const std::string& name : names)
      row(name, [&](const FrameworkPlan& plan) { return format_bytes(line_bytes(plan, name)); });
  }
  void add_parts() {
    for (int i = 0; i < kNumFrameworkParts; ++i) {
      const auto part = static_cast<FrameworkPart>(i);
      const bool any =
          std::ranges::any_of(columns_, [&](const Column& c) { return c.run && c.run->plan.time[part] > 0; });
      if (any)
        row(std::string(fivefold::to_string(part)),
            [part](const FrameworkPlan& plan) { return format_seconds(plan.time[part]); });
    }
  }

  const std::vector<Column>& columns_;
  Table table_;
};

std::string name_of(const std::vector<ComparedAxis>& axes, const Column& column) {
  std::vector<std::string> settings;
  for (size_t i = 0; i < axes.size(); ++i) settings.push_back(axes[i].key + " = " + column.values[i]);
  return join(settings, ", ");
}

Json column_json(const std::vector<ComparedAxis>& axes, const Column& column) {
  Json json = Json::object();
  if (column.run) json = framework_explanation_json(column.run->plan, column.run->hardware);
  for (const Error& error : column.errors)
    json["errors"].push_back({{"where", error.where}, {"problem", error.problem}, {"hint", error.hint}});
  for (size_t i = 0; i < axes.size(); ++i) json["settings"][axes[i].key] = column.values[i];
  return json;
}

}  // namespace

Result<ExplainedFrameworkRun> explain_framework_run(const RunConfig& config) {
  FIVEFOLD_ASSIGN(const ModelSpec model, load_model(config.model));
  RunConfig alone = config;
  alone.parallel = {};
  FIVEFOLD_ASSIGN(const HardwareSpec named, load_run_hardware(alone));
  const ParallelConfig& parallel = config.parallel;
  ExplainedFrameworkRun explained;
  FIVEFOLD_ASSIGN(explained.hardware,
                  with_network(named, parallel.dp * parallel.tp * parallel.cp * parallel.pp, explained.assumed));
  FIVEFOLD_ASSIGN(const FrameworkRun run, framework_run(model, config, explained.hardware));
  explained.plan = framework_plan(run, explained.hardware);
  return explained;
}

bool is_of_frameworks(const CommonOptions& options, const std::vector<ComparedAxis>& axes) {
  std::vector<Error> errors;
  const RunConfig config = load_run_config(with_values(options, axes, combination(axes, 0)), errors);
  return errors.empty() && config.framework.name != Framework::kFivefold;
}

ExitCode compare_framework_runs(const CommonOptions& options, const std::vector<ComparedAxis>& axes) {
  std::vector<Column> columns;
  for (size_t i = 0; i < num_combinations(axes); ++i) columns.push_back(make_column(options, axes, i));
  std::vector<Error> errors;
  for (const Column& column : columns)
    for (const Error& error : column.errors)
      errors.push_back({error.where, fmt::format("{} (with {})", error.problem, name_of(axes, column)), error.hint});
  if (std::ranges::none_of(columns, [](const Column& c) { return c.run.has_value(); })) {
    print_errors(errors);
    return ExitCode::kBadInput;
  }
  if (options.json) {
    Json json{{"keys", Json::array()}, {"configurations", Json::array()}};
    for (const ComparedAxis& axis : axes) json["keys"].push_back(axis.key);
    for (const Column& column : columns) json["configurations"].push_back(column_json(axes, column));
    print_json(json);
    return ExitCode::kDone;
  }
  print(painted(Paint::kHeading, "At the peak, and a step") + "\n" + FrameworkTable(axes, columns).to_string());
  for (const Error& error : errors)
    print(fmt::format("{}: {}\n{}", error.where, error.problem, error.hint.empty() ? "" : "  -> " + error.hint + "\n"));
  return ExitCode::kDone;
}

}  // namespace fivefold
