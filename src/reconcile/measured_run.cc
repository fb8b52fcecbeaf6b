#include "reconcile/measured_run.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace fivefold {
namespace {

// Parts of one step of one rank, the gaps between instructions included: their sum is the step's seconds.
PartSeconds wall_parts(const StepRecord& step, const std::vector<StepPart>& parts) {
  PartSeconds seconds;
  double sum = 0;
  for (size_t i = 0; i < step.times.size(); ++i) {
    const double duration = step.times[i].end_s - step.times[i].begin_s;
    seconds[parts[i]] += duration;
    sum += duration;
  }
  seconds[StepPart::kBetween] = std::max(0.0, step.seconds - sum);
  return seconds;
}

PartSeconds cpu_parts(const StepRecord& step, const std::vector<StepPart>& parts) {
  PartSeconds seconds;
  for (size_t i = 0; i < step.times.size(); ++i) seconds[parts[i]] += step.times[i].cpu_s;
  return seconds;
}

// Ranks that were killed may have written different numbers of steps.
size_t num_common_steps(const RunRecord& record) {
  size_t num_steps = std::numeric_limits<size_t>::max();
  for (const RankRecord& rank : record.ranks) num_steps = std::min(num_steps, rank.sessions.back().steps.size());
  return num_steps;
}

PartSeconds median_parts(const std::vector<PartSeconds>& steps) {
  PartSeconds result;
  for (size_t part = 0; part < kNumStepParts; ++part) {
    std::vector<double> values;
    for (const PartSeconds& step : steps) values.push_back(step.seconds[part]);
    result.seconds[part] = median(values);
  }
  return result;
}

Result<std::vector<StepPart>> parts_of_program(const RecordedSession& session) {
  std::vector<StepPart> parts;
  for (size_t i = 0; i < session.program.size(); ++i) {
    const auto op = parse_opcode(session.program[i].op);
    if (!op)
      return Error{"run record: program: instruction " + std::to_string(i),
                   "'" + session.program[i].op + "' is unknown", "was it recorded by a newer fivefold?"};
    parts.push_back(part_of(*op));
  }
  return parts;
}

PeakMoment peak_moment(const RecordedSession& session, const std::function<int64_t(const StepRecord&)>& bytes) {
  PeakMoment peak;
  peak.num_steps = static_cast<int64_t>(session.steps.size());
  for (const StepRecord& step : session.steps) {
    const int64_t value = bytes(step);
    if (value > peak.bytes || peak.num_steps_at == 0) {
      peak.bytes = value;
      peak.step = step.step;
      peak.num_steps_at = 0;
    }
    if (value == peak.bytes) ++peak.num_steps_at;
  }
  return peak;
}

}  // namespace

size_t first_steady_step(size_t num_steps) { return num_steps >= 4 ? 2 : num_steps >= 2 ? 1 : 0; }

double median(std::vector<double> values) {
  FIVEFOLD_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::optional<size_t> median_steady_step(const RunRecord& record) {
  const size_t num_steps = num_common_steps(record);
  std::vector<std::pair<double, size_t>> steps;  // seconds and index
  for (size_t i = first_steady_step(num_steps); i < num_steps; ++i) {
    double slowest = 0;
    bool timed = true;
    for (const RankRecord& rank : record.ranks) {
      const StepRecord& step = rank.sessions.back().steps[i];
      slowest = std::max(slowest, step.seconds);
      timed = timed && !step.times.empty();
    }
    if (timed) steps.emplace_back(slowest, i);
  }
  if (steps.empty()) return std::nullopt;
  std::sort(steps.begin(), steps.end());
  return steps[(steps.size() - 1) / 2].second;
}

Result<MeasuredTime> measure_time(const RunRecord& record) {
  const size_t num_steps = num_common_steps(record);
  if (num_steps == 0)
    return Error{"run record", "no step was finished in the last session", "run at least three steps"};
  const size_t first = first_steady_step(num_steps);
  MeasuredTime time;
  time.num_steps = static_cast<int64_t>(num_steps - first);
  std::vector<double> slowest(num_steps, 0.0);
  for (const RankRecord& rank : record.ranks) {
    const RecordedSession& session = rank.sessions.back();
    FIVEFOLD_ASSIGN(const std::vector<StepPart> parts, parts_of_program(session));
    std::vector<PartSeconds> wall, cpu;
    for (size_t i = 0; i < num_steps; ++i) {
      const StepRecord& step = session.steps[i];
      slowest[i] = std::max(slowest[i], step.seconds);
      if (step.times.empty()) continue;
      if (rank.rank == 0 && i == 0) {
        time.first_parts = wall_parts(step, parts);
        time.first_has_times = true;
      }
      if (i < first) continue;
      wall.push_back(wall_parts(step, parts));
      cpu.push_back(cpu_parts(step, parts));
    }
    if (wall.empty()) continue;
    time.parts.push_back(median_parts(wall));
    time.cpu.push_back(median_parts(cpu));
  }
  if (time.parts.size() != record.ranks.size()) time.parts.clear(), time.cpu.clear();
  const std::vector<double> steady(slowest.begin() + static_cast<std::ptrdiff_t>(first), slowest.end());
  time.first_s = slowest[0];
  time.step_s = median(steady);
  time.fastest_s = *std::min_element(steady.begin(), steady.end());
  return time;
}

WallTime measure_wall_time(const RankRecord& rank) {
  WallTime wall;
  for (size_t i = 0; i < rank.sessions.size(); ++i) {
    const RecordedSession& session = rank.sessions[i];
    const bool last = i + 1 == rank.sessions.size();
    const double length = last_moment_s(session);
    // What a later session starts again from; steps after it were lost.
    int64_t kept = std::numeric_limits<int64_t>::max();
    if (!last) {
      kept = rank.sessions[i + 1].start.resumed_from.value_or(0);
      wall.down_s += std::max(0.0, rank.sessions[i + 1].start.started_at - session.start.started_at - length);
      ++wall.restarts;
    }
    double inside = 0;
    for (const StepRecord& step : session.steps) {
      inside += step.seconds;
      (step.step <= kept ? wall.steps_s : wall.repeated_s) += step.seconds;
      wall.repeated_steps += step.step > kept;
    }
    for (const EvaluationRecord& line : session.evaluations) wall.evaluations_s += line.seconds, inside += line.seconds;
    for (const CheckpointRecord& line : session.checkpoints) wall.checkpoints_s += line.seconds, inside += line.seconds;
    const double start_up = session.steps.empty() ? length - inside : session.steps.front().begin_s;
    wall.start_up_s += start_up;
    wall.other_s += std::max(0.0, length - start_up - inside);
    wall.total_s += length;
  }
  wall.total_s += wall.down_s;
  return wall;
}

PeakMoment peak_of(const RecordedSession& session, Account account) {
  return peak_moment(session, [account](const StepRecord& step) { return step.peak[account]; });
}

PeakMoment peak_total_of(const RecordedSession& session) {
  return peak_moment(session, [](const StepRecord& step) { return step.peak_total; });
}

std::string circumstance(const RecordedSession& session, int64_t step) {
  if (!session.steps.empty() && step == session.steps.front().step) return "the session's first step";
  const auto precedes = [step](const auto& line) { return line.step == step - 1; };
  if (std::any_of(session.checkpoints.begin(), session.checkpoints.end(), precedes)) return "follows a checkpoint";
  if (std::any_of(session.evaluations.begin(), session.evaluations.end(), precedes)) return "follows an evaluation";
  return "";
}

}  // namespace fivefold
