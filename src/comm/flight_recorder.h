// FlightRecorder: the last calls of one rank, so that after a hang or a crash each rank can say where it was. A ring of
// fixed size; recording a call costs no allocation. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "spec/enums.h"

namespace fivefold {

enum class CallState : uint8_t { kQueued, kExecuting, kDone, kFailed };

// One call. Collectives are numbered per group, sends and receives per group, peer and direction, both from 0.
struct CallRecord {
  CollectiveKind kind = CollectiveKind::kBarrier;
  GroupKind group_kind = GroupKind::kWorld;
  int group_index = 0;
  int peer = -1;  // world rank of a send's or receive's other side, else -1
  int64_t sequence = 0;
  int64_t bytes = 0;  // of the buffer handed over: the input's, or the receive's
  DType dtype = DType::kFloat32;
  Purpose purpose = Purpose::kControl;
  CallState state = CallState::kQueued;
  double queued_s = 0, started_s = 0, ended_s = 0;  // since the recorder was made (steady clock)

  // "all_gather #1203 of tp[1]", "recv #88 of pp[0] from rank 4".
  std::string name() const;
};

class FlightRecorder {
 public:
  // Keeps the last `capacity` calls. REQUIRES: capacity > 0.
  explicit FlightRecorder(int capacity);

  // Records a call as queued and returns its ticket. State and times of `record` are set here and in update().
  int64_t add(CallRecord& record);
  // Notes that the call of `ticket` has gone on to `state`, even if its record has left the ring by now.
  void update(int64_t ticket, CallRecord& record, CallState state);

  // Oldest first.
  std::vector<CallRecord> records() const;
  // The last call that started or ended: the one that is executing, if any. Nothing before the first call.
  std::optional<CallRecord> head() const;
  // A table with one line per call, for people.
  std::string to_string() const;

 private:
  double now_s() const;

  mutable std::mutex mutex_;
  std::vector<CallRecord> ring_;
  int64_t num_added_ = 0;
  std::optional<CallRecord> head_;
  int64_t start_ns_;
};

}  // namespace fivefold
