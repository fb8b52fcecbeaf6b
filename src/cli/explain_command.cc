// fivefold explain CONFIG: one configuration in full.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/table.h"
#include "base/text.h"
#include "cli/comparison.h"
#include "cli/explain_text.h"
#include "cli/explained_run.h"
#include "cli/framework_comparison.h"
#include "cli/framework_text.h"
#include "cli/machine.h"
#include "cli/plan_json.h"
#include "planner/reduction_choice.h"
#include "planner/scope.h"
#include "report/trace.h"
#include "schedule/run_program.h"
#include "schedule/schedule_source.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

struct ExplainOptions {
  CommonOptions common;
  bool formulas = false, ranks = false, timeline = false, instructions = false;
  std::string trace, schedule;       // files
  std::vector<std::string> compare;  // KEY=a,b,c
};

ExitCode refuse(const std::vector<Error>& errors) {
  print_errors(errors);
  return ExitCode::kBadInput;
}

nlohmann::ordered_json timeline_json(const StepReplay& replay, const Inventory& inventory) {
  auto entries = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < replay.timelines.size(); ++rank)
    for (const TimelineEntry& entry : replay.timelines[rank])
      entries.push_back({{"pipeline_rank", rank},
                         {"instruction", to_string(entry.instruction, inventory)},
                         {"begin", entry.begin_s},
                         {"end", entry.end_s},
                         {"communication", entry.communication}});
  return entries;
}

nlohmann::ordered_json pipeline_json(const StepReplay& replay) {
  auto ranks = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < replay.ranks.size(); ++rank)
    ranks.push_back({{"bubble", replay.bubble(static_cast<int>(rank))},
                     {"exposed_communication", replay.exposed_communication(static_cast<int>(rank))},
                     {"end", replay.ranks[rank].seconds}});
  return ranks;
}

void print_explanation(const ExplainOptions& options, const ExplainedRun& run, const StepReplay& replay) {
  const bool timeline = options.timeline || options.instructions;
  if (options.common.json) {
    nlohmann::ordered_json json = explanation_json(run.run.model, run.inventory, run.explanation,
                                                   options.ranks ? RankListing::kEach : RankListing::kGrouped);
    if (timeline) {
      json["timeline"] = timeline_json(replay, run.inventory);
      json["pipeline"] = pipeline_json(replay);
    }
    return print_json(json);
  }
  print(explanation_text(run.run.model, run.inventory, run.explanation, run.hardware));
  if (options.ranks) print(ranks_text(run.explanation));
  if (options.formulas) print(formulas_text(run.run.model, run.inventory, run.explanation));
  if (options.timeline) print(timeline_text(run.run.model, run.explanation, replay, output_width()));
  if (options.instructions) print(instructions_text(run.inventory, replay));
}

// A run in another framework.
ExitCode explain_framework(const ExplainOptions& options, const RunConfig& config) {
  const std::pair<const char*, bool> own[] = {{"--timeline", options.timeline},
                                              {"--ranks", options.ranks},
                                              {"--instructions", options.instructions},
                                              {"--trace", !options.trace.empty()},
                                              {"--schedule", !options.schedule.empty()}};
  for (const auto& [flag, given] : own)
    if (given)
      return refuse({{flag, "is of runs of fivefold's own engine", "leave it out, or set framework.name = fivefold"}});
  const Result<ExplainedFrameworkRun> run = explain_framework_run(config);
  if (!run.ok()) return refuse({run.error()});
  for (const std::string& line : run->assumed) print_note({"hardware.name", line, ""});
  if (options.common.json)
    print_json(framework_explanation_json(run->plan, run->hardware));
  else
    print(framework_explanation_text(run->plan, run->hardware, options.formulas));
  return ExitCode::kDone;
}

ExitCode run_explain(const ExplainOptions& options) {
  apply_common_options(options.common);
  if (!options.compare.empty()) return compare_runs(options.common, options.compare);
  std::vector<Error> errors;
  if (const RunConfig config = load_run_config(options.common, errors);
      errors.empty() && config.framework.name != Framework::kFivefold)
    return explain_framework(options, config);
  errors.clear();
  ExplainedRun run;
  if (!explain_run(options.common, run, errors)) return refuse(errors);
  for (const Error& note : layout_notes(run.run.model, run.run.config.config)) print_note(note);
  if (const auto note = reduction_note(run.run.model, run.inventory, run.run.config, run.hardware)) print_note(*note);
  StepReplay replay;
  if (options.timeline || options.instructions || !options.trace.empty())
    replay = predict_step(run.run.model, run.inventory, run.run.config, run.hardware);
  if (!options.trace.empty()) {
    const Status written = write_planned_trace(replay, run.inventory, options.trace);
    if (!written.ok()) return refuse({written.error()});
  }
  if (!options.schedule.empty()) {
    const Status written = write_schedule_file(pipeline_schedule(run.run.config), options.schedule);
    if (!written.ok()) return refuse({written.error()});
  }
  print_explanation(options, run, replay);
  return ExitCode::kDone;
}

}  // namespace

RunCommand add_explain_command(CLI::App& app) {
  auto options = std::make_shared<ExplainOptions>();
  add_common_options(app, options->common);
  app.add_flag("--formulas", options->formulas, "the formula of every line, with its numbers");
  app.add_flag("--ranks", options->ranks, "list every rank, also those that are alike");
  app.add_flag("--timeline", options->timeline, "draw the planned step, a line per pipeline rank");
  app.add_flag("--instructions", options->instructions, "begin and end of every instruction of the planned step");
  app.add_option("--trace", options->trace, "write the planned step for Perfetto")->option_text("FILE");
  app.add_option("--schedule", options->schedule,
                 "write the pipeline's schedule: as fivefold's text or, named .csv, as PyTorch's CSV")
      ->option_text("FILE");
  app.add_option("--compare", options->compare,
                 "configurations side by side, for any key: parallel.zero=0,1,2,3; repeated: every combination")
      ->allow_extra_args(false)
      ->option_text("KEY=A,B,...");
  return [options] { return run_explain(*options); };
}

}  // namespace fivefold
