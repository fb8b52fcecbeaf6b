#include "cli/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/table.h"
#include "base/text.h"
#include "cli/comparison_axes.h"
#include "cli/explained_run.h"
#include "cli/framework_comparison.h"
#include "cli/plan_json.h"
#include "spec/rank_grid.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

struct Column {
  std::vector<std::string> values;  // of each axis
  std::optional<ExplainedRun> run;  // nothing: `errors` says why
  std::vector<Error> errors;
};

Column make_column(const CommonOptions& options, const std::vector<ComparedAxis>& axes, size_t index) {
  Column column{.values = combination(axes, index), .run = ExplainedRun{}, .errors = {}};
  CommonOptions common = options;
  for (size_t i = axes.size(); i-- > 0;) common.flags.push_back(axes[i].key + "=" + column.values[i]);
  if (!explain_run(common, *column.run, column.errors)) column.run.reset();
  return column;
}

// Counted bytes of all ranks at their peaks. Ranks of one pipeline stage are alike.
int64_t counted_bytes(const ExplainedRun& e) {
  const Explanation& explanation = e.explanation;
  const Degrees& degrees = explanation.config.degrees;
  if (degrees.pp == 1) return degrees.world() * explanation.ledger.peak_total;
  int64_t bytes = 0;
  for (const int rank : RankGrid::create(degrees).value().group(GroupKind::kPp, 0))
    bytes += predict_memory(e.run.model, e.inventory, explanation.config, rank).peak_total +
             outside_tensors(e.run.model, e.inventory, explanation.config, e.hardware).bytes();
  return bytes * (degrees.world() / degrees.pp);
}

// Of a process on a CPU, above what it has when idle; nothing: a GPU, or what libraries take was not measured.
std::optional<int64_t> resident_bytes(const ExplainedRun& e) {
  const int64_t libraries = library_bytes(e.hardware.device, e.explanation.config.compute);
  if (e.hardware.device.cores == 0 || libraries == 0) return std::nullopt;
  return counted_bytes(e) + libraries;
}

int64_t sent_bytes(const Explanation& e) {
  int64_t bytes = 0;
  for (const TrafficLine& line : e.traffic) bytes += line.bytes;
  return bytes;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

class ComparisonTable {
 public:
  ComparisonTable(const std::vector<ComparedAxis>& axes, const std::vector<Column>& columns)
      : axes_(axes), columns_(columns), table_(header(0)) {
    for (size_t i = 1; i < axes.size(); ++i) table_.add_row(header(i));
    if (axes.size() > 1) table_.add_rule();
    add_accounts();
    table_.add_rule();
    add_rows();
  }
  std::string to_string() const { return table_.to_string(2); }

 private:
  std::vector<std::string> header(size_t axis) const {
    std::vector<std::string> cells{axes_[axis].key};
    for (const Column& column : columns_) cells.push_back(column.values[axis]);
    return cells;
  }

  using Cell = std::function<std::string(const ExplainedRun&)>;
  void row(std::string name, const Cell& cell) {
    std::vector<std::string> cells{std::move(name)};
    for (const Column& column : columns_) cells.push_back(column.run ? cell(*column.run) : "-");
    table_.add_row(std::move(cells));
  }
  void row_of(std::string name, const std::function<std::string(const Explanation&)>& cell) {
    row(std::move(name), [&](const ExplainedRun& e) { return cell(e.explanation); });
  }

  void add_accounts() {
    for (int i = 0; i < kNumAccounts; ++i) {
      const auto account = static_cast<Account>(i);
      const bool used = std::any_of(columns_.begin(), columns_.end(), [&](const Column& column) {
        return column.run && column.run->explanation.ledger.at_peak[account] != 0;
      });
      if (used)
        row_of(std::string(fivefold::to_string(account)),
               [&](const Explanation& e) { return format_bytes(e.ledger.at_peak[account]); });
    }
  }

  void add_rows() {
    row_of("peak of a rank", [](const Explanation& e) { return format_bytes(e.ledger.peak_total); });
    row_of("fits", [](const Explanation& e) { return std::string(e.ledger.peak_total <= e.capacity ? "yes" : "no"); });
    row("all ranks", [](const ExplainedRun& e) { return format_bytes(counted_bytes(e)); });
    if (std::any_of(columns_.begin(), columns_.end(), [](const Column& c) { return c.run && resident_bytes(*c.run); }))
      row("resident memory", [](const ExplainedRun& e) {
        const std::optional<int64_t> bytes = resident_bytes(e);
        return bytes ? format_bytes(*bytes) : std::string("?");
      });
    row_of("sent a step", [](const Explanation& e) { return format_bytes(sent_bytes(e)); });
    row_of("step", [](const Explanation& e) { return format_seconds(e.cost.seconds); });
    row_of("waits for communication",
           [](const Explanation& e) { return percent(e.cost[TimePart::kExposedCommunication] / e.cost.seconds); });
    row_of("tokens/s", [](const Explanation& e) { return fmt::format("{:.0f}", e.tokens_per_s); });
    row_of("MFU", [](const Explanation& e) { return percent(e.mfu()); });
    row_of("HFU", [](const Explanation& e) { return percent(e.hfu()); });
  }

  const std::vector<ComparedAxis>& axes_;
  const std::vector<Column>& columns_;
  Table table_;
};

std::string name(const std::vector<ComparedAxis>& axes, const Column& column) {
  std::vector<std::string> settings;
  for (size_t i = 0; i < axes.size(); ++i) settings.push_back(axes[i].key + " = " + column.values[i]);
  return join(settings, ", ");
}

std::string comparison_text(const std::vector<ComparedAxis>& axes, const std::vector<Column>& columns) {
  std::string text =
      painted(Paint::kHeading, "At the peak, and a step") + "\n" + ComparisonTable(axes, columns).to_string();
  std::set<std::string> said;  // a reason that several columns share is given for the first
  for (const Column& column : columns)
    for (const Error& error : column.errors) {
      if (!said.insert(error.message()).second) continue;
      text += fmt::format("{}: {}: {}\n", name(axes, column), error.where, error.problem);
      if (!error.hint.empty()) text += fmt::format("  -> {}\n", error.hint);
    }
  return text;
}

Json column_json(const std::vector<ComparedAxis>& axes, const Column& column) {
  Json json = Json::object();
  if (column.run) {
    const ExplainedRun& e = *column.run;
    json = explanation_json(e.run.model, e.inventory, e.explanation, RankListing::kGrouped);
    json["counted_bytes"] = counted_bytes(e);
    const std::optional<int64_t> resident = resident_bytes(e);
    json["resident_bytes"] = resident ? Json(*resident) : Json();
  } else {
    for (const Error& error : column.errors)
      json["errors"].push_back({{"where", error.where}, {"problem", error.problem}, {"hint", error.hint}});
  }
  if (axes.size() == 1) json["value"] = column.values[0];
  for (size_t i = 0; i < axes.size(); ++i) json["settings"][axes[i].key] = column.values[i];
  return json;
}

}  // namespace

ExitCode compare_runs(const CommonOptions& options, const std::vector<std::string>& texts) {
  const Result<std::vector<ComparedAxis>> axes = parse_axes(texts);
  if (!axes.ok()) {
    print_errors({axes.error()});
    return ExitCode::kBadInput;
  }
  if (is_of_frameworks(options, *axes)) return compare_framework_runs(options, *axes);
  std::vector<Column> columns;
  for (size_t i = 0; i < num_combinations(*axes); ++i) columns.push_back(make_column(options, *axes, i));
  const bool any = std::any_of(columns.begin(), columns.end(), [](const Column& c) { return c.run.has_value(); });
  if (!any) {
    std::vector<Error> errors;
    for (Column& column : columns)
      for (Error& error : column.errors) {
        error.problem += fmt::format(" (with {})", name(*axes, column));
        errors.push_back(std::move(error));
      }
    print_errors(errors);
    return ExitCode::kBadInput;
  }
  if (!options.json) {
    print(comparison_text(*axes, columns));
    return ExitCode::kDone;
  }
  Json json{{"keys", Json::array()}, {"configurations", Json::array()}};
  if (axes->size() == 1) json["key"] = (*axes)[0].key;
  for (const ComparedAxis& axis : *axes) json["keys"].push_back(axis.key);
  for (const Column& column : columns) json["configurations"].push_back(column_json(*axes, column));
  print_json(json);
  return ExitCode::kDone;
}

}  // namespace fivefold
