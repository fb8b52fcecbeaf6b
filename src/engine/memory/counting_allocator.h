// CountingAllocator: replaces Torch's CPU allocator. Counts requested bytes, live and peak, per account and rank; large
// blocks come from a pool of mapped regions with huge pages that never holds more than the process needed at its peak,
// so resident memory follows the counted bytes. What reaches the allocator without a named account is workspace.
// Thread-safe. Contract: docs/memory.md.
#pragma once

#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "spec/account_bytes.h"

namespace fivefold {

// Thrown by an allocation over a rank's limit: what was asked for and what was live. Its text says the same.
class OutOfMemory : public std::runtime_error {
 public:
  OutOfMemory(Account account, int64_t bytes, int64_t limit, const AccountBytes& live);

  Account account() const { return account_; }
  int64_t bytes() const { return bytes_; }
  int64_t limit() const { return limit_; }
  const AccountBytes& live() const { return live_; }

 private:
  Account account_;
  int64_t bytes_, limit_;
  AccountBytes live_;
};

// One allocation or free, as logged when logging is on.
struct AllocationEvent {
  bool allocate = true;
  Account account = Account::kWorkspace;
  int64_t bytes = 0;
};

// The bytes of one rank. Thread-safe: a buffer may be freed by another thread than the one that allocated it.
class MemoryLedger {
 public:
  // `limit_bytes` 0: none. An allocation over it throws OutOfMemory.
  explicit MemoryLedger(int64_t limit_bytes = 0) : limit_bytes_(limit_bytes) {}

  void add(Account account, int64_t bytes);
  void remove(Account account, int64_t bytes);

  AccountBytes live() const;
  AccountBytes peak() const;           // per account, each at its own moment
  int64_t peak_total() const;          // of the sum over accounts
  AccountBytes at_peak_total() const;  // per account at the moment of peak_total
  void reset_peak();                   // peaks start again from what is live

  void start_log();
  std::vector<AllocationEvent> stop_log();

 private:
  mutable std::mutex mutex_;
  int64_t limit_bytes_;
  int64_t live_total_ = 0, peak_total_ = 0;
  AccountBytes live_, peak_, at_peak_total_;
  bool logging_ = false;
  std::vector<AllocationEvent> log_;
};

// Installs the allocator for the process, once; later calls do nothing.
void install_counting_allocator();

// Bytes that the pool of large blocks holds mapped, in use or not.
int64_t pool_mapped_bytes();

// While alive, allocations of this thread count for `ledger`.
class LedgerScope {
 public:
  explicit LedgerScope(MemoryLedger& ledger);
  ~LedgerScope();
  LedgerScope(const LedgerScope&) = delete;
  LedgerScope& operator=(const LedgerScope&) = delete;

 private:
  MemoryLedger* before_;
};

// While alive, allocations of this thread count for `account`.
class AccountScope {
 public:
  explicit AccountScope(Account account);
  ~AccountScope();
  AccountScope(const AccountScope&) = delete;
  AccountScope& operator=(const AccountScope&) = delete;

 private:
  Account before_;
};

}  // namespace fivefold
