#include "record/run_record.h"

#include <iterator>

namespace fivefold {
namespace {

constexpr std::string_view kEventKindNames[] = {"skipped_step", "non_finite", "loss_spike", "stop_requested", "failed"};
static_assert(std::size(kEventKindNames) == kNumEventKinds);

}  // namespace

std::string_view to_string(EventKind kind) { return kEventKindNames[static_cast<size_t>(kind)]; }

std::optional<EventKind> parse_event_kind(std::string_view name) {
  for (size_t i = 0; i < std::size(kEventKindNames); ++i)
    if (kEventKindNames[i] == name) return static_cast<EventKind>(i);
  return std::nullopt;
}

}  // namespace fivefold
