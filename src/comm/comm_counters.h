// CommCounters: how often one rank called each collective, over which kind of group and why, the bytes it sent, and the
// time its calls took: the quantities that the plan predicts; docs/communication.md has the byte formulas. Calls and
// bytes are counted when a call is made, so that what lies between two points of a rank's program does not depend on
// how far its asynchronous calls are; time when a call is over. A group of one rank counts calls but no bytes.
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "spec/enums.h"

namespace fivefold {

struct CommCount {
  int64_t calls = 0;
  int64_t bytes = 0;  // sent by this rank to other ranks

  bool operator==(const CommCount&) const = default;
};

class CommCounters {
 public:
  void add(CollectiveKind kind, GroupKind group, Purpose purpose, int64_t bytes);
  void add_time(CollectiveKind kind, double seconds);

  CommCount count(CollectiveKind kind, GroupKind group, Purpose purpose) const;
  // Over all groups and purposes.
  CommCount count(CollectiveKind kind) const;
  // From the start to the end of execution, waiting for peers included. A batch of sends and receives is booked as recv
  // when it has a receive, else as send.
  double seconds(CollectiveKind kind) const;
  // Staging memory of buffered sends that wait for their receive: allocated (positive) or freed (negative) bytes.
  void add_staging(int64_t bytes);
  int64_t staging_bytes() const;
  int64_t peak_staging_bytes() const;

  // All counts and times become zero, the peak of staging the present value.
  void reset();

 private:
  static constexpr int kCells = kNumCollectiveKinds * kNumGroupKinds * kNumPurposes;

  mutable std::mutex mutex_;
  std::array<CommCount, kCells> counts_{};
  std::array<double, kNumCollectiveKinds> seconds_{};
  int64_t staging_bytes_ = 0;
  int64_t peak_staging_bytes_ = 0;
};

}  // namespace fivefold
