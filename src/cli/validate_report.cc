#include "cli/validate_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/table.h"
#include "cli/output.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

std::string gib(int64_t bytes) { return fmt::format("{:.3f}", static_cast<double>(bytes) / 0x1p30); }

std::string percent(double value) { return fmt::format("{:.1f}", value); }

// Median / 90th percentile.
std::string both(const ErrorScore& score) {
  return score.n > 0 ? fmt::format("{:.1f} / {:.1f}", score.median_abs_pct, score.p90_abs_pct) : "";
}

std::vector<std::string> score_cells(const std::string& name, const ErrorScore& score) {
  if (score.n == 0) return {name, "0", "", "", ""};
  return {name, fmt::format("{}", score.n), percent(score.median_abs_pct), percent(score.p90_abs_pct),
          fmt::format("{:+.1f}", score.bias_pct)};
}

std::string memory_text(const Validation& validation) {
  Table table({"source", "rows", "median %", "p90 %", "bias %", "fitted half", "other half", "left out"});
  bool any = false;
  const auto add = [&](const std::string& name, const ErrorScore& score, std::vector<std::string> more) {
    std::vector<std::string> cells = score_cells(name, score);
    std::ranges::move(more, std::back_inserter(cells));
    table.add_row(std::move(cells));
    any = true;
  };
  for (const SourceScore& source : validation.sources) {
    if (source.memory.n == 0 && source.skipped == 0) continue;
    const std::string skipped =
        source.skipped > 0 ? fmt::format("{} ({:.1f} %)", source.skipped, 100 * source.skipped_share()) : "";
    add(source.source, source.memory, {both(source.fitted), both(source.held_out), skipped});
    for (const PartScore& part : source.parts) add("  " + part.part, part.memory, {"", "", ""});
  }
  return any ? painted(Paint::kHeading, "Peak memory: error of the prediction (halves: median / p90 %)") + "\n" +
                   table.to_string(2)
             : "No row states a memory figure that counts.\n";
}

std::string throughput_text(const Validation& validation) {
  Table table({"source", "rows", "median %", "p90 %", "bias %", "fitted half", "other half", "order", "regret p90 %",
               "left out"});
  bool any = false;
  for (const SourceScore& source : validation.sources) {
    if (source.throughput.n == 0) continue;
    any = true;
    const OrderScore& order = source.order;
    std::vector<std::string> cells = score_cells(source.source, source.throughput);
    cells.push_back(both(source.throughput_fitted));
    cells.push_back(both(source.throughput_held_out));
    cells.push_back(order.num_groups > 0 ? fmt::format("{:.2f}", order.rank_correlation) : "");
    cells.push_back(order.num_groups > 0 ? percent(order.regret_p90_pct) : "");
    cells.push_back(source.time_skipped > 0 ? fmt::format("{}", source.time_skipped) : "");
    table.add_row(std::move(cells));
    for (const BusyScore& busy : source.busy) {
      cells = score_cells(fmt::format("  MFU of {:.0f} % or more", 100 * busy.least_mfu), busy.throughput);
      cells.resize(7);
      cells.push_back(busy.order.num_groups > 0 ? fmt::format("{:.2f}", busy.order.rank_correlation) : "");
      cells.push_back(busy.order.num_groups > 0 ? percent(busy.order.regret_p90_pct) : "");
      cells.emplace_back();
      table.add_row(std::move(cells));
    }
  }
  const bool anchored = std::ranges::any_of(validation.rows, &ValidatedRow::anchor);
  const std::string heading = std::string("Tokens/s of a GPU: error of the prediction") +
                              (anchored ? ", scaled by one run of each model and GPU" : "");
  return any ? "\n" + painted(Paint::kHeading, heading) + "\n" + table.to_string(2) : "";
}

std::string fit_text(const Validation& validation) {
  Table table({"source", "rows", "failed", "right %", "false fit %", "false OOM %"});
  bool any = false;
  for (const SourceScore& source : validation.sources) {
    const FitScore& fit = source.fit;
    if (fit.n == 0) continue;
    any = true;
    table.add_row({source.source, fmt::format("{}", fit.n), fmt::format("{}", fit.num_failed),
                   percent(100 * fit.accuracy), percent(100 * fit.false_fit), percent(100 * fit.false_oom)});
  }
  return any ? "\n" + painted(Paint::kHeading, "Does it fit: rows that state an outcome") + "\n" + table.to_string(2)
             : "";
}

std::string looked_at_text(const Validation& validation) {
  Table table({"source", "rows", "median %", "p90 %", "bias %"});
  bool any = false;
  for (const SourceScore& source : validation.sources) {
    const ErrorScore& score = source.looked_at;
    if (score.n == 0) continue;
    any = true;
    table.add_row(score_cells(source.source, score));
  }
  return any ? "\n" + painted(Paint::kHeading, "Looked at, in no score: figures of trust C") + "\n" + table.to_string(2)
             : "";
}

std::string reasons_text(const Validation& validation) {
  Table table({"source", "of", "rows", "reason"});
  bool any = false;
  const auto add = [&](const SourceScore& source, const char* figure, const std::map<std::string, int>& reasons) {
    for (const auto& [reason, count] : reasons) {
      any = true;
      table.add_row({source.source, figure, fmt::format("{}", count), reason});
    }
  };
  for (const SourceScore& source : validation.sources) {
    add(source, "memory", source.reasons);
    add(source, "throughput", source.time_reasons);
  }
  return any ? "\n" + painted(Paint::kHeading, "Left out, with the reason") + "\n" + table.to_string(3) : "";
}

std::string worst_text(const Validation& validation, const SourceScore& source, size_t worst) {
  std::vector<const ValidatedRow*> rows;
  for (const ValidatedRow& row : validation.rows)
    if (row.source == source.source && row.memory_scored()) rows.push_back(&row);
  if (rows.empty()) return "";
  std::ranges::stable_sort(rows, std::greater<>(),
                           [](const ValidatedRow* row) { return std::abs(row->memory_error_pct()); });
  if (rows.size() > worst) rows.resize(worst);
  Table table({"row", "place", "predicted GiB", "measured GiB", "error %", "assumed"});
  for (const ValidatedRow* row : rows)
    table.add_row({row->id, row->where, gib(row->predicted_peak), gib(row->measured_peak),
                   fmt::format("{:+.1f}", row->memory_error_pct()), fmt::format("{}", fmt::join(row->assumed, ", "))});
  return "\n" + painted(Paint::kHeading, source.source + ": largest errors") + "\n" + table.to_string(2);
}

Json error_json(const ErrorScore& score) {
  if (score.n == 0) return {{"n", 0}};
  return {{"n", score.n},
          {"median_abs_pct", score.median_abs_pct},
          {"p90_abs_pct", score.p90_abs_pct},
          {"bias_pct", score.bias_pct}};
}

Json throughput_json(const ErrorScore& throughput, const OrderScore& order) {
  Json json = error_json(throughput);
  if (order.num_groups == 0) return json;
  json.update(Json{{"rank_correlation", order.rank_correlation},
                   {"regret_pct", order.regret_p90_pct},
                   {"regret_median_pct", order.regret_median_pct}});
  return json;
}

Json source_json(const SourceScore& source) {
  Json parts = Json::array();
  for (const PartScore& part : source.parts) {
    Json entry = {{"part", part.part}};
    entry.update(error_json(part.memory));
    parts.push_back(std::move(entry));
  }
  Json busy = Json::array();
  for (const BusyScore& part : source.busy) {
    Json entry = {{"least_mfu", part.least_mfu}};
    entry.update(throughput_json(part.throughput, part.order));
    busy.push_back(std::move(entry));
  }
  Json fit = {{"n", source.fit.n}};
  if (source.fit.n > 0)
    fit.update(Json{{"accuracy", source.fit.accuracy},
                    {"false_fit", source.fit.false_fit},
                    {"false_oom", source.fit.false_oom},
                    {"failed", source.fit.num_failed}});
  return {{"source", source.source},
          {"memory", error_json(source.memory)},
          {"throughput", throughput_json(source.throughput, source.order)},
          {"throughput_busy", std::move(busy)},
          {"throughput_fitted_half", error_json(source.throughput_fitted)},
          {"throughput_held_out_half", error_json(source.throughput_held_out)},
          {"throughput_measured", source.time_measured},
          {"throughput_skipped", source.time_skipped},
          {"throughput_reasons", source.time_reasons},
          {"fit", std::move(fit)},
          {"memory_parts", std::move(parts)},
          {"memory_fitted_half", error_json(source.fitted)},
          {"memory_held_out_half", error_json(source.held_out)},
          {"memory_looked_at", error_json(source.looked_at)},
          {"rows", source.rows},
          {"measured", source.measured},
          {"skipped", source.skipped},
          {"skipped_share", source.skipped_share()},
          {"reasons", source.reasons}};
}

// A quantity that is not there is null.
Json row_json(const ValidatedRow& row) {
  const auto bytes = [](int64_t value) { return value > 0 ? Json(value) : Json(nullptr); };
  const bool predicted = row.skipped.empty();
  Json json = {{"id", row.id},
               {"source", row.source},
               {"predicted_peak", predicted ? Json(row.predicted_peak) : Json(nullptr)},
               {"measured_peak", bytes(row.measured_peak)},
               {"predicted_fits", row.predicted_fits ? Json(*row.predicted_fits) : Json(nullptr)},
               {"skipped", predicted ? Json(nullptr) : Json(row.skipped)},
               {"ran", row.ran ? Json(*row.ran) : Json(nullptr)},
               {"memory_scored", row.memory_scored()},
               {"held_out", row.held_out},
               {"assumed", row.assumed}};
  if (predicted && row.measured_peak > 0) json["memory_error_pct"] = row.memory_error_pct();
  if (row.measured_tokens_per_s > 0) json["measured_tokens_per_s_per_gpu"] = row.measured_tokens_per_s;
  if (row.anchor) json["anchor"] = true;
  if (row.predicted_tokens_per_s > 0) json["predicted_tokens_per_s_per_gpu"] = row.predicted_tokens_per_s;
  return json;
}

}  // namespace

std::string validation_text(const Validation& validation, size_t worst) {
  std::string text = memory_text(validation) + throughput_text(validation) + fit_text(validation) +
                     looked_at_text(validation) + reasons_text(validation);
  if (worst > 0)
    for (const SourceScore& source : validation.sources) text += worst_text(validation, source, worst);
  return text;
}

Json validation_json(const Validation& validation) {
  Json sources = Json::array(), rows = Json::array();
  for (const SourceScore& source : validation.sources) sources.push_back(source_json(source));
  for (const ValidatedRow& row : validation.rows) rows.push_back(row_json(row));
  return {{"sources", std::move(sources)}, {"rows", std::move(rows)}};
}

}  // namespace fivefold
