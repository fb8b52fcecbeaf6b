// CallLog: when each call of one rank ran, and for how much of it the rank's own thread stood still for the
// communicator. The rest of a call is hidden behind computation. Off until it is switched on; then one entry a call.
// Times are seconds of the steady clock. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "spec/enums.h"

namespace fivefold {

// A batch of sends and receives is one call: a recv when it has a receive, else a send.
struct LoggedCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  GroupKind group = GroupKind::kWorld;
  Purpose purpose = Purpose::kControl;
  int64_t bytes = 0;              // of the buffers handed over
  double begin_s = 0, end_s = 0;  // of its execution, waiting for peers included
  double waited_s = 0;            // of it: a caller was blocked, in this call or in the wait for any other
};

class CallLog {
 public:
  static double now_s();

  // Whether calls that are made from now on are logged, whenever they run.
  void switch_to(bool on);
  // To be asked when a call is made.
  bool on() const;
  // A call that was made while the log was on is complete. REQUIRES: calls do not overlap, in order.
  void add(const LoggedCall& call);

  // While one lives, a caller is blocked. REQUIRES: one caller at a time.
  class Wait {
   public:
    explicit Wait(CallLog& log) : log_(log), begin_s_(now_s()) {}
    ~Wait() { log_.add_wait(begin_s_, now_s()); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    CallLog& log_;
    double begin_s_;
  };

  // The calls that have been added since the last time, with what was waited. REQUIRES: nobody is blocked.
  std::vector<LoggedCall> take();

 private:
  struct Interval {
    double begin_s, end_s;
  };
  void add_wait(double begin_s, double end_s);

  mutable std::mutex mutex_;
  bool on_ = false;
  bool used_ = false;  // was on once
  std::vector<LoggedCall> calls_;
  std::vector<Interval> waits_;
};

}  // namespace fivefold
