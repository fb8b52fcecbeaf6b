#include "record/run_record.h"

#include <algorithm>
#include <iterator>

namespace fivefold {
namespace {

constexpr std::string_view kEventKindNames[] = {"skipped_step", "non_finite",         "loss_spike",    "stop_requested",
                                                "failed",       "replica_difference", "loss_scale_low"};
static_assert(std::size(kEventKindNames) == kNumEventKinds);

}  // namespace

std::string_view to_string(EventKind kind) { return kEventKindNames[static_cast<size_t>(kind)]; }

std::optional<EventKind> parse_event_kind(std::string_view name) {
  for (size_t i = 0; i < std::size(kEventKindNames); ++i)
    if (kEventKindNames[i] == name) return static_cast<EventKind>(i);
  return std::nullopt;
}

double last_moment_s(const RecordedSession& session) {
  double end = session.summary ? session.summary->seconds : 0;
  for (const StepRecord& line : session.steps) end = std::max(end, line.begin_s + line.seconds);
  for (const EvaluationRecord& line : session.evaluations) end = std::max(end, line.begin_s + line.seconds);
  for (const CheckpointRecord& line : session.checkpoints) end = std::max(end, line.begin_s + line.seconds);
  for (const EventRecord& line : session.events) end = std::max(end, line.begin_s);
  return end;
}

}  // namespace fivefold
