#include "comm/call_log.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace fivefold {

double CallLog::now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void CallLog::switch_to(bool on) {
  const std::lock_guard lock(mutex_);
  on_ = on;
  used_ |= on;
}

bool CallLog::on() const {
  const std::lock_guard lock(mutex_);
  return on_;
}

void CallLog::add(const LoggedCall& call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(call);
}

void CallLog::add_wait(double begin_s, double end_s) {
  const std::lock_guard lock(mutex_);
  if (used_) waits_.push_back({begin_s, end_s});
}

// Calls and waits are each in order of time and do not overlap among themselves. Waits stay until a later call has
// begun: one that is still running may have been waited for in part.
std::vector<LoggedCall> CallLog::take() {
  const std::lock_guard lock(mutex_);
  std::vector<LoggedCall> calls = std::exchange(calls_, {});
  size_t first = 0;
  for (LoggedCall& call : calls) {
    while (first < waits_.size() && waits_[first].end_s <= call.begin_s) ++first;
    for (size_t i = first; i < waits_.size() && waits_[i].begin_s < call.end_s; ++i)
      call.waited_s += std::min(call.end_s, waits_[i].end_s) - std::max(call.begin_s, waits_[i].begin_s);
  }
  const double last_s = calls.empty() ? 0 : calls.back().end_s;
  std::erase_if(waits_, [last_s](const Interval& wait) { return wait.end_s <= last_s; });
  return calls;
}

}  // namespace fivefold
