#include "report/trace.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "reconcile/measured_run.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMeasured = 1, kPlanned = 2;  // process ids

int instructions_track(int rank) { return 2 * rank; }
int collectives_track(int rank) { return 2 * rank + 1; }

class TraceBuilder {
 public:
  // `origin_s`: Unix time that becomes 0.
  explicit TraceBuilder(double origin_s) : origin_s_(origin_s) {}

  void name_process(int process, const std::string& name) {
    events_.push_back({{"ph", "M"}, {"pid", process}, {"name", "process_name"}, {"args", {{"name", name}}}});
  }
  void name_track(int process, int track, const std::string& name) {
    events_.push_back(
        {{"ph", "M"}, {"pid", process}, {"tid", track}, {"name", "thread_name"}, {"args", {{"name", name}}}});
  }
  void span(int process, int track, const std::string& name, std::string_view category, double begin_s, double end_s,
            Json arguments) {
    events_.push_back({{"ph", "X"},
                       {"pid", process},
                       {"tid", track},
                       {"name", name},
                       {"cat", std::string(category)},
                       {"ts", (begin_s - origin_s_) * 1e6},
                       {"dur", (end_s - begin_s) * 1e6},
                       {"args", std::move(arguments)}});
  }
  std::string text() const { return Json{{"traceEvents", events_}, {"displayTimeUnit", "ms"}}.dump(); }

 private:
  double origin_s_;
  Json events_ = Json::array();
};

std::string instruction_name(const RecordedInstruction& instruction) {
  std::string name = instruction.op;
  if (!instruction.unit.empty()) name += " " + instruction.unit;
  if (instruction.microbatch >= 0) name += " #" + std::to_string(instruction.microbatch);
  return name;
}

std::string_view category(const RecordedInstruction& instruction) {
  const auto op = parse_opcode(instruction.op);
  return op ? to_string(part_of(*op)) : "unknown";
}

// Steps to draw: those with times, from the first steady one on.
std::vector<const StepRecord*> drawn_steps(const RecordedSession& session, const TraceOptions& options) {
  std::vector<const StepRecord*> steps;
  for (size_t i = first_steady_step(session.steps.size()); i < session.steps.size(); ++i)
    if (!session.steps[i].times.empty() && static_cast<int64_t>(steps.size()) < options.num_steps)
      steps.push_back(&session.steps[i]);
  return steps;
}

void add_measured(TraceBuilder& trace, const RankRecord& rank, const TraceOptions& options) {
  const RecordedSession& session = rank.sessions.back();
  for (const StepRecord* step : drawn_steps(session, options)) {
    const double begin = session.start.started_at + step->begin_s;
    for (size_t i = 0; i < step->times.size(); ++i)
      trace.span(kMeasured, instructions_track(rank.rank), instruction_name(session.program[i]),
                 category(session.program[i]), begin + step->times[i].begin_s, begin + step->times[i].end_s,
                 {{"step", step->step}, {"cpu_seconds", step->times[i].cpu_s}});
    for (const RecordedCall& call : step->calls)
      trace.span(kMeasured, collectives_track(rank.rank),
                 std::string(to_string(call.kind)) + " " + std::string(to_string(call.purpose)), to_string(call.group),
                 begin + call.begin_s, begin + call.end_s, {{"step", step->step}, {"bytes", call.bytes}});
  }
}

void name_tracks(TraceBuilder& trace, int process, int rank) {
  trace.name_track(process, instructions_track(rank), "rank " + std::to_string(rank));
  trace.name_track(process, collectives_track(rank), "rank " + std::to_string(rank) + " collectives");
}

// A planned step of a rank that begins at `begin_s`.
void add_planned(TraceBuilder& trace, const std::vector<TimelineEntry>& timeline, const Inventory& inventory, int rank,
                 double begin_s, const Json& arguments) {
  for (const TimelineEntry& entry : timeline)
    trace.span(kPlanned, entry.communication ? collectives_track(rank) : instructions_track(rank),
               to_string(entry.instruction, inventory), to_string(part_of(entry.instruction.op)),
               begin_s + entry.begin_s, begin_s + entry.end_s, arguments);
}

Status write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::trunc);
  stream << text << "\n";
  stream.close();
  if (!stream) return Error{file.string(), "cannot be written", ""};
  return Ok{};
}

}  // namespace

std::string trace_json(const PlannedRun& run, const TraceOptions& options) {
  const RecordedSession& first = run.record.ranks[0].sessions.back();
  double origin = 0;
  bool any = false;
  for (const RankRecord& rank : run.record.ranks) {
    const RecordedSession& session = rank.sessions.back();
    for (const StepRecord* step : drawn_steps(session, options)) {
      const double begin = session.start.started_at + step->begin_s;
      origin = any ? std::min(origin, begin) : begin;
      any = true;
    }
  }
  TraceBuilder trace(origin);
  trace.name_process(kMeasured, "measured");
  if (run.plan.time) trace.name_process(kPlanned, "planned");
  for (const RankRecord& rank : run.record.ranks) {
    for (const int process : {kMeasured, kPlanned}) {
      if (process == kPlanned && !run.plan.time) continue;
      name_tracks(trace, process, rank.rank);
    }
    add_measured(trace, rank, options);
    if (!run.plan.time) continue;
    for (const StepRecord* step : drawn_steps(first, options))
      add_planned(trace, run.plan.timeline_of(rank.rank), run.plan.inventory, rank.rank,
                  first.start.started_at + step->begin_s, {{"step", step->step}});
  }
  return trace.text();
}

std::string planned_trace_json(const StepReplay& replay, const Inventory& inventory) {
  TraceBuilder trace(0);
  trace.name_process(kPlanned, "planned");
  for (size_t i = 0; i < replay.timelines.size(); ++i) {
    const int rank = static_cast<int>(i);
    name_tracks(trace, kPlanned, rank);
    add_planned(trace, replay.timelines[i], inventory, rank, 0, Json::object());
  }
  return trace.text();
}

Status write_planned_trace(const StepReplay& replay, const Inventory& inventory, const std::filesystem::path& file) {
  return write_text(file, planned_trace_json(replay, inventory));
}

Status write_trace(const PlannedRun& run, const std::filesystem::path& run_directory, const TraceOptions& options) {
  return write_text(run_directory / "trace.json", trace_json(run, options));
}

}  // namespace fivefold
