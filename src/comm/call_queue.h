// CallQueue: executes the calls of one rank one at a time, in the order they were submitted. Async calls run on the
// queue's own thread; a sync call that finds the queue idle runs on its caller's thread, which saves two context
// switches.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/call.h"
#include "comm/call_log.h"

namespace fivefold {

class HostWork;

class CallQueue {
 public:
  // `accept` numbers and records a call, or returns false for one that is not to be made: called in program order,
  // under the queue's lock. `execute` runs it and may throw; executions never overlap. `log` learns when a caller is
  // blocked.
  CallQueue(std::function<bool(Call&)> accept, std::function<void(Call&)> execute, std::shared_ptr<CallLog> log);
  // Executes what is queued, then ends the thread.
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  // Errors: a sync call's error is thrown here, an async call's from its Work.
  Work submit(Call call);

 private:
  struct Entry {
    Call call;
    std::shared_ptr<HostWork> work;
  };

  void run();

  const std::function<bool(Call&)> accept_;
  const std::function<void(Call&)> execute_;
  const std::shared_ptr<CallLog> log_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  bool executing_ = false;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace fivefold
