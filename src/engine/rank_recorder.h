// RankRecorder: turns what a rank's session counts into lines of the run record. One thread per object.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "engine/session.h"
#include "record/record_writer.h"

namespace fivefold {

// A communicator's counters as rows, control traffic left out; rows without calls are not there.
std::vector<RecordedTraffic> traffic_rows(const CommCounters& counters);
// Rows of `after` less those of `before`.
std::vector<RecordedTraffic> traffic_since(std::vector<RecordedTraffic> after,
                                           const std::vector<RecordedTraffic>& before);
// The session's calls that have ended since the last time they were taken, from the begin of its last step; the log of
// calls is off afterwards.
std::vector<RecordedCall> take_calls(RankSession& session);

class RankRecorder {
 public:
  // Calls are many lines for one of a step: the first steps of a session tell how communication is hidden.
  static constexpr int kStepsWithCalls = 32;

  // Writes the session's first lines.
  RankRecorder(RankSession& session, MemoryLedger& ledger, const std::filesystem::path& run_directory,
               const std::string& model_config, std::optional<int64_t> resumed_from);

  // Before and after a step.
  void begin_step();
  void end_step(int64_t step, const StepOutcome& outcome, double learning_rate, int64_t samples_consumed);

  double seconds() const;  // since the session's start
  RecordWriter& writer() { return writer_; }

 private:
  RankSession& session_;
  MemoryLedger& ledger_;
  RecordWriter writer_;
  std::chrono::steady_clock::time_point start_;
  double step_begin_s_ = 0;
  int num_steps_ = 0;  // begun in this session
  std::vector<RecordedTraffic> traffic_before_;
  std::array<double, kNumCollectiveKinds> seconds_before_{};
};

}  // namespace fivefold
