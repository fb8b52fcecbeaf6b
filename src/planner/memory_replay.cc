#include "planner/memory_replay.h"

#include "base/check.h"

namespace fivefold {

void MemoryReplay::note_peak(Account account) {
  if (live_[account] > peak_[account]) peak_[account] = live_[account];
  if (live_total_ > peak_total_) {
    peak_total_ = live_total_;
    at_peak_ = live_;
    peak_moment_ = moment_;
  }
}

void MemoryReplay::allocate(const Key& key, Account account, int64_t bytes) {
  const bool fresh = buffers_.emplace(key, std::pair{account, bytes}).second;
  FIVEFOLD_CHECK(fresh, "buffer allocated twice during " + moment_);
  live_[account] += bytes;
  live_total_ += bytes;
  note_peak(account);
}

void MemoryReplay::release(const Key& key) {
  const auto found = buffers_.find(key);
  FIVEFOLD_CHECK(found != buffers_.end(), "buffer freed that does not exist during " + moment_);
  live_[found->second.first] -= found->second.second;
  live_total_ -= found->second.second;
  buffers_.erase(found);
}

void MemoryReplay::touch(Account account, int64_t bytes) {
  live_[account] += bytes;
  live_total_ += bytes;
  note_peak(account);
  live_[account] -= bytes;
  live_total_ -= bytes;
}

void MemoryReplay::reset_peak() {
  peak_ = at_peak_ = live_;
  peak_total_ = live_total_;
  peak_moment_ = moment_;
}

}  // namespace fivefold
