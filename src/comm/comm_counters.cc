#include "comm/comm_counters.h"

#include <algorithm>

namespace fivefold {
namespace {

size_t cell(CollectiveKind kind, GroupKind group, Purpose purpose) {
  return (static_cast<size_t>(kind) * kNumGroupKinds + static_cast<size_t>(group)) * kNumPurposes +
         static_cast<size_t>(purpose);
}

}  // namespace

void CommCounters::add(CollectiveKind kind, GroupKind group, Purpose purpose, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  CommCount& count = counts_[cell(kind, group, purpose)];
  count.calls += 1;
  count.bytes += bytes;
}

void CommCounters::add_time(CollectiveKind kind, double seconds) {
  const std::lock_guard lock(mutex_);
  seconds_[static_cast<size_t>(kind)] += seconds;
}

CommCount CommCounters::count(CollectiveKind kind, GroupKind group, Purpose purpose) const {
  const std::lock_guard lock(mutex_);
  return counts_[cell(kind, group, purpose)];
}

CommCount CommCounters::count(CollectiveKind kind) const {
  constexpr size_t kCellsPerKind = kNumGroupKinds * kNumPurposes;
  const std::lock_guard lock(mutex_);
  CommCount total;
  for (size_t i = 0; i < kCellsPerKind; ++i) {
    const CommCount& count = counts_[static_cast<size_t>(kind) * kCellsPerKind + i];
    total.calls += count.calls;
    total.bytes += count.bytes;
  }
  return total;
}

double CommCounters::seconds(CollectiveKind kind) const {
  const std::lock_guard lock(mutex_);
  return seconds_[static_cast<size_t>(kind)];
}

void CommCounters::add_staging(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  staging_bytes_ += bytes;
  peak_staging_bytes_ = std::max(peak_staging_bytes_, staging_bytes_);
}

int64_t CommCounters::staging_bytes() const {
  const std::lock_guard lock(mutex_);
  return staging_bytes_;
}

int64_t CommCounters::peak_staging_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_staging_bytes_;
}

void CommCounters::reset() {
  const std::lock_guard lock(mutex_);
  counts_.fill({});
  seconds_.fill(0);
  peak_staging_bytes_ = staging_bytes_;
}

}  // namespace fivefold
