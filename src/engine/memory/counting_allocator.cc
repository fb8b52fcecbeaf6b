#include "engine/memory/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "base/text.h"
#include "engine/memory/block_pool.h"

namespace fivefold {
namespace {

thread_local MemoryLedger* current_ledger = nullptr;
thread_local Account current_account = Account::kWorkspace;

// The pool outlives every tensor, static ones included.
BlockPool& pool() {
  static auto* const instance = new BlockPool;
  return *instance;
}

// Written in front of each block; as large as the alignment Torch expects.
struct alignas(64) BlockHeader {
  MemoryLedger* ledger;
  int64_t bytes;  // requested
  Account account;
  bool pooled;
};
static_assert(sizeof(BlockHeader) == 64);

void release_block(void* data) {
  if (data == nullptr) return;
  auto* header = static_cast<BlockHeader*>(data) - 1;
  if (header->ledger != nullptr) header->ledger->remove(header->account, header->bytes);
  if (header->pooled) {
    pool().release(header);
  } else {
    std::free(header);
  }
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release_block, cpu};
    const auto counted = static_cast<int64_t>(bytes);
    if (current_ledger != nullptr) current_ledger->add(current_account, counted);
    const size_t whole = (bytes + sizeof(BlockHeader) + 63) / 64 * 64;
    const bool pooled = whole >= BlockPool::kSmallestBlock;
    void* raw = pooled ? pool().allocate(whole) : std::aligned_alloc(64, whole);
    if (raw == nullptr) {
      if (current_ledger != nullptr) current_ledger->remove(current_account, counted);
      throw std::bad_alloc();
    }
    auto* header = new (raw) BlockHeader{current_ledger, counted, current_account, pooled};
    void* data = header + 1;
    return {data, data, &release_block, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

std::string refusal_text(Account account, int64_t bytes, int64_t limit, const AccountBytes& live) {
  std::string text = "out of memory: " + format_bytes(bytes) + " of " + std::string(to_string(account)) +
                     " on top of " + format_bytes(live.total()) + " exceed the limit of " + format_bytes(limit) +
                     "; live:";
  for (int i = 0; i < kNumAccounts; ++i) {
    const auto a = static_cast<Account>(i);
    if (live[a] > 0) text += " " + std::string(to_string(a)) + " " + format_bytes(live[a]);
  }
  return text;
}

}  // namespace

OutOfMemory::OutOfMemory(Account account, int64_t bytes, int64_t limit, const AccountBytes& live)
    : std::runtime_error(refusal_text(account, bytes, limit, live)),
      account_(account),
      bytes_(bytes),
      limit_(limit),
      live_(live) {}

void MemoryLedger::add(Account account, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (limit_bytes_ > 0 && live_total_ + bytes > limit_bytes_) throw OutOfMemory(account, bytes, limit_bytes_, live_);
  live_[account] += bytes;
  live_total_ += bytes;
  if (live_[account] > peak_[account]) peak_[account] = live_[account];
  if (live_total_ > peak_total_) {
    peak_total_ = live_total_;
    at_peak_total_ = live_;
  }
  if (logging_) log_.push_back({true, account, bytes});
}

void MemoryLedger::remove(Account account, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  live_[account] -= bytes;
  live_total_ -= bytes;
  FIVEFOLD_CHECK(live_[account] >= 0);
  if (logging_) log_.push_back({false, account, bytes});
}

AccountBytes MemoryLedger::live() const {
  const std::lock_guard lock(mutex_);
  return live_;
}
AccountBytes MemoryLedger::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}
int64_t MemoryLedger::peak_total() const {
  const std::lock_guard lock(mutex_);
  return peak_total_;
}
AccountBytes MemoryLedger::at_peak_total() const {
  const std::lock_guard lock(mutex_);
  return at_peak_total_;
}
void MemoryLedger::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = at_peak_total_ = live_;
  peak_total_ = live_total_;
}
void MemoryLedger::start_log() {
  const std::lock_guard lock(mutex_);
  logging_ = true;
  log_.clear();
}
std::vector<AllocationEvent> MemoryLedger::stop_log() {
  const std::lock_guard lock(mutex_);
  logging_ = false;
  return std::move(log_);
}

void install_counting_allocator() {
  static auto* const allocator = [] {
    // By default the C library raises these thresholds with each large block that is freed, and then keeps up to 64 MiB
    // per thread of what one-off vectors (weights being drawn, gathered or read) held.
    mallopt(M_MMAP_THRESHOLD, int{BlockPool::kSmallestBlock});
    mallopt(M_TRIM_THRESHOLD, int{BlockPool::kSmallestBlock});
    auto* instance = new CountingAllocator;
    c10::SetCPUAllocator(instance, /*priority=*/100);
    return instance;
  }();
  (void)allocator;
}

int64_t pool_mapped_bytes() { return pool().mapped_bytes(); }

LedgerScope::LedgerScope(MemoryLedger& ledger) : before_(current_ledger) { current_ledger = &ledger; }
LedgerScope::~LedgerScope() { current_ledger = before_; }
AccountScope::AccountScope(Account account) : before_(current_account) { current_account = account; }
AccountScope::~AccountScope() { current_account = before_; }

}  // namespace fivefold
