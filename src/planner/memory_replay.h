// MemoryReplay: live buffers while a Program is replayed. Keys name buffers as tapes do; a buffer that is allocated
// twice or freed when it does not exist is a bug in a tape.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "spec/account_bytes.h"

namespace fivefold {

class MemoryReplay {
 public:
  // Owner unit (-1: the microbatch or the run), microbatch, buffer id.
  using Key = std::tuple<int, int, int>;

  void allocate(const Key& key, Account account, int64_t bytes);
  void release(const Key& key);
  // Allocated and freed at once: scratch.
  void touch(Account account, int64_t bytes);
  void set_moment(std::string moment) { moment_ = std::move(moment); }
  // Peaks start again from what is live.
  void reset_peak();

  const AccountBytes& live() const { return live_; }
  const AccountBytes& peak() const { return peak_; }
  const AccountBytes& at_peak() const { return at_peak_; }
  int64_t peak_total() const { return peak_total_; }
  const std::string& peak_moment() const { return peak_moment_; }
  bool exists(const Key& key) const { return buffers_.contains(key); }

 private:
  void note_peak(Account account);

  std::map<Key, std::pair<Account, int64_t>> buffers_;
  AccountBytes live_, peak_, at_peak_;
  int64_t live_total_ = 0, peak_total_ = 0;
  std::string moment_, peak_moment_;
};

}  // namespace fivefold
