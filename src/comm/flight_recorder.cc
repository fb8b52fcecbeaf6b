#include "comm/flight_recorder.h"

#include <chrono>
#include <string_view>

#include "base/check.h"
#include "base/table.h"
#include "base/text.h"

namespace fivefold {
namespace {

constexpr std::string_view kStateNames[] = {"queued", "executing", "done", "failed"};

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::string CallRecord::name() const {
  std::string text = std::string(to_string(kind)) + " #" + std::to_string(sequence) + " of " +
                     std::string(to_string(group_kind)) + "[" + std::to_string(group_index) + "]";
  if (kind == CollectiveKind::kSend) text += " to rank " + std::to_string(peer);
  if (kind == CollectiveKind::kRecv) text += " from rank " + std::to_string(peer);
  return text;
}

FlightRecorder::FlightRecorder(int capacity) : start_ns_(steady_ns()) {
  FIVEFOLD_CHECK(capacity > 0);
  ring_.resize(static_cast<size_t>(capacity));
}

double FlightRecorder::now_s() const { return static_cast<double>(steady_ns() - start_ns_) * 1e-9; }

int64_t FlightRecorder::add(CallRecord& record) {
  const std::lock_guard lock(mutex_);
  record.state = CallState::kQueued;
  record.queued_s = now_s();
  ring_[static_cast<size_t>(num_added_) % ring_.size()] = record;
  return num_added_++;
}

void FlightRecorder::update(int64_t ticket, CallRecord& record, CallState state) {
  const std::lock_guard lock(mutex_);
  FIVEFOLD_CHECK(ticket >= 0 && ticket < num_added_);
  record.state = state;
  (state == CallState::kExecuting ? record.started_s : record.ended_s) = now_s();
  const bool in_ring = num_added_ - ticket <= static_cast<int64_t>(ring_.size());
  if (in_ring) ring_[static_cast<size_t>(ticket) % ring_.size()] = record;
  head_ = record;
}

std::vector<CallRecord> FlightRecorder::records() const {
  const std::lock_guard lock(mutex_);
  const int64_t capacity = static_cast<int64_t>(ring_.size());
  std::vector<CallRecord> records;
  for (int64_t i = num_added_ > capacity ? num_added_ - capacity : 0; i < num_added_; ++i)
    records.push_back(ring_[static_cast<size_t>(i % capacity)]);
  return records;
}

std::optional<CallRecord> FlightRecorder::head() const {
  const std::lock_guard lock(mutex_);
  return head_;
}

std::string FlightRecorder::to_string() const {
  Table table({"call", "purpose", "dtype", "bytes", "state", "queued", "started", "ended"});
  const auto at = [](double seconds) { return seconds == 0 ? std::string("-") : std::to_string(seconds); };
  for (const CallRecord& record : records()) {
    table.add_row({record.name(), std::string(fivefold::to_string(record.purpose)),
                   std::string(fivefold::to_string(record.dtype)), format_count(record.bytes),
                   std::string(kStateNames[static_cast<size_t>(record.state)]), at(record.queued_s),
                   at(record.started_s), at(record.ended_s)});
  }
  return table.to_string();
}

}  // namespace fivefold
