#include "cli/import_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/table.h"
#include "base/text.h"
#include "cli/output.h"
#include "planner/profiles/framework_config.h"
#include "spec/run_config_io.h"

namespace fivefold {
namespace {

constexpr size_t kShownNeighbours = 8;
// A neighbour that changes less than a prediction's error says nothing.
constexpr double kLeastGain = 0.01;

std::string notes_text(const std::string& heading, const std::vector<ImportNote>& notes) {
  if (notes.empty()) return "";
  std::string text = painted(Paint::kHeading, heading) + "\n";
  for (const ImportNote& note : notes) {
    text += "  " + (note.where.empty() ? "" : note.where + " ") + note.name;
    if (!note.value.empty()) text += " = " + note.value;
    if (!note.why.empty()) text += ": " + note.why;
    text += "\n";
  }
  return text;
}

// Names alone, by reason: there are many and nobody needs them one by one.
std::string ignored_text(const std::vector<ImportNote>& notes) {
  if (notes.empty()) return "";
  std::string text = painted(Paint::kHeading, fmt::format("Left out, {} settings", notes.size())) + "\n";
  std::vector<std::string> reasons;
  for (const ImportNote& note : notes)
    if (std::find(reasons.begin(), reasons.end(), note.why) == reasons.end()) reasons.push_back(note.why);
  for (const std::string& reason : reasons) {
    std::vector<std::string> names;
    for (const ImportNote& note : notes)
      if (note.why == reason) names.push_back(note.name);
    text += "  " + reason + ": " + join(names, ", ") + "\n";
  }
  return text;
}

std::string memory_text(const ImportedPlan& plan) {
  const JudgedRun& judged = plan.judged;
  const ProfilePhase& peak = plan.memory.peak();
  std::string text = painted(Paint::kHeading, "Memory of a GPU") + "\n";
  text += fmt::format("  needs {} of {} ({}): {}\n", format_bytes(judged.needed), format_bytes(judged.capacity),
                      plan.hardware.name,
                      judged.fits() ? painted(Paint::kGood, "fits") : painted(Paint::kBad, "does not fit"));
  Table table({"line", "size", "share", "formula"});
  std::vector<ProfileLine> lines = peak.lines;
  std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  for (const ProfileLine& line : lines)
    table.add_row({line.name, format_bytes(line.bytes),
                   fmt::format("{:.0f} %", 100.0 * static_cast<double>(line.bytes) /
                                               static_cast<double>(std::max<int64_t>(1, peak.bytes()))),
                   line.formula});
  table.add_rule();
  table.add_row({"allocated at the peak (" + peak.name + ")", format_bytes(peak.bytes()), "100 %", ""});
  table.add_row({"with the allocator's and the device's own", format_bytes(judged.needed), "", "docs/profiles.md"});
  return text + table.to_string(2);
}

std::string time_text(const ImportedPlan& plan) {
  const FrameworkTime& time = plan.judged.time;
  if (time.seconds <= 0) return "";
  std::string text = painted(Paint::kHeading, "Time of a step") + "\n";
  text += fmt::format("  {}, {} tokens/s a GPU, MFU {:.1f} %\n", format_seconds(time.seconds),
                      format_count(static_cast<int64_t>(time.tokens_per_s)), 100 * time.mfu);
  Table table({"part", "time", "share"});
  for (int i = 0; i < kNumFrameworkParts; ++i) {
    const double seconds = time.parts[static_cast<size_t>(i)];
    if (seconds > 0)
      table.add_row({std::string(to_string(static_cast<FrameworkPart>(i))), format_seconds(seconds),
                     fmt::format("{:.1f} %", 100 * seconds / time.seconds)});
  }
  return text + table.to_string(2);
}

std::string neighbours_text(const ImportedPlan& plan) {
  const bool fits = plan.judged.fits();
  const double now = plan.judged.time.tokens_per_s;
  Table table({"change", "tokens/s a GPU", "gain", "needs"});
  size_t shown = 0;
  for (const Neighbour& neighbour : plan.neighbours) {
    const double gain = now > 0 ? neighbour.judged.time.tokens_per_s / now - 1 : 0;
    if (!neighbour.judged.fits() || (fits && gain < kLeastGain) || shown == kShownNeighbours) continue;
    table.add_row({neighbour.change, format_count(static_cast<int64_t>(neighbour.judged.time.tokens_per_s)),
                   fmt::format("{:+.1f} %", 100 * gain), format_bytes(neighbour.judged.needed)});
    ++shown;
  }
  std::string text =
      painted(Paint::kHeading, fits ? "Where more is: one setting changed" : "Smallest changes that fit") + "\n";
  if (shown > 0) return text + table.to_string(2);
  if (fits) return text + "  no single change that fits predicts 1 % more\n";
  text += "  none of one or two settings";
  if (!plan.neighbours.empty())
    text += fmt::format("; nearest: {} needs {}", plan.neighbours.front().change,
                        format_bytes(plan.neighbours.front().judged.needed));
  return text + ": it takes more GPUs or an adapter\n";
}

nlohmann::ordered_json notes_json(const std::vector<ImportNote>& notes) {
  auto list = nlohmann::ordered_json::array();
  for (const ImportNote& note : notes)
    list.push_back({{"name", note.name}, {"value", note.value}, {"why", note.why}, {"where", note.where}});
  return list;
}

nlohmann::ordered_json judged_json(const JudgedRun& judged) {
  return {{"fits", judged.fits()},
          {"needed", judged.needed},
          {"capacity", judged.capacity},
          {"step_time", judged.time.seconds},
          {"tokens_per_s_per_gpu", judged.time.tokens_per_s},
          {"mfu", judged.time.mfu}};
}

nlohmann::ordered_json plan_json(const ImportedPlan& plan) {
  if (plan.refused) return {{"refused", plan.refused->message()}};
  nlohmann::ordered_json json = judged_json(plan.judged);
  json["gpu"] = plan.hardware.name;
  auto lines = nlohmann::ordered_json::array(), changes = nlohmann::ordered_json::array();
  for (const ProfileLine& line : plan.memory.peak().lines)
    lines.push_back({{"name", line.name}, {"bytes", line.bytes}, {"formula", line.formula}});
  for (const Neighbour& neighbour : plan.neighbours) {
    nlohmann::ordered_json entry = judged_json(neighbour.judged);
    entry["change"] = neighbour.change;
    changes.push_back(std::move(entry));
  }
  json["memory"] = std::move(lines);
  json["assumed_switches"] = plan.memory.assumed;
  json["changes"] = std::move(changes);
  return json;
}

}  // namespace

ImportedPlan plan_imported(const Imported& imported, const HardwareSpec& hardware) {
  ImportedPlan plan;
  plan.hardware = hardware;
  RunConfig config = imported.config;
  // What the profiles do not plan does not change what is kept: the configuration says it all the same.
  if (config.parallel.schedule != ScheduleKind::kInterleaved) config.parallel.schedule = ScheduleKind::k1F1B;
  config.recompute.every = 1;
  config.optimizer.kind = OptimizerKind::kAdamW;
  Result<FrameworkRun> run = framework_run(imported.model, config, hardware);
  if (!run.ok()) {
    plan.refused = run.error();
    return plan;
  }
  plan.memory = profile_memory(*run);
  plan.judged = judge(*run, hardware);
  plan.neighbours = neighbours(*run, hardware);
  plan.run = *std::move(run);
  return plan;
}

std::string imported_text(const Imported& imported, const std::string& file) {
  std::string text =
      painted(Paint::kHeading, fmt::format("{} as a configuration of {}", file, to_string(imported.source))) + "\n";
  const ParallelConfig& p = imported.config.parallel;
  text += fmt::format("  {} on {} GPUs: dp {} x tp {} x cp {} x pp {}, {} sequences of {} a step, {} at a time\n",
                      imported.model.name, int64_t{p.dp} * p.tp * p.cp * p.pp, p.dp, p.tp, p.cp, p.pp,
                      imported.config.batch.global, imported.config.batch.sequence, imported.config.batch.micro);
  text += painted(Paint::kHeading, "Read, where it is not fivefold's default") + "\n";
  for (const std::string& change : config_changes(RunConfig{}, imported.config)) text += "  " + change + "\n";
  text += notes_text("Assumed", imported.assumed);
  text += notes_text("Not understood, may matter", imported.unknown);
  return text + ignored_text(imported.ignored);
}

std::string imported_plan_text(const ImportedPlan& plan) {
  if (plan.refused) return painted(Paint::kBad, "Cannot be planned") + "\n  " + plan.refused->message() + "\n";
  std::string text = memory_text(plan) + time_text(plan) + neighbours_text(plan);
  if (!plan.memory.assumed.empty())
    text +=
        painted(Paint::kHeading, "Switches taken at their default") + "\n  " + join(plan.memory.assumed, ", ") + "\n";
  return text;
}

nlohmann::ordered_json imported_json(const Imported& imported, const std::optional<ImportedPlan>& plan) {
  nlohmann::ordered_json json = {
      {"source", to_string(imported.source)},    {"release", target_release(imported.source)},
      {"config", to_toml(imported.config)},      {"model_config", imported.model_json},
      {"assumed", notes_json(imported.assumed)}, {"not_understood", notes_json(imported.unknown)},
      {"left_out", notes_json(imported.ignored)}};
  if (plan) json["plan"] = plan_json(*plan);
  return json;
}

}  // namespace fivefold
