// BlockPool: mapped regions for large buffers, kept for the next request of about the same size. Regions of 2 MiB and
// more are aligned to and advised for huge pages. The pool unmaps idle regions before it would hold more than the most
// that was ever in use at once, so the process stays as small as its peak. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

namespace fivefold {

class BlockPool {
 public:
  // Requests below this size are the C library's business.
  static constexpr size_t kSmallestBlock = size_t{256} << 10;

  ~BlockPool();
  // 64-byte aligned at least. Throws std::bad_alloc when the system has no memory.
  void* allocate(size_t bytes);
  void release(void* pointer);
  int64_t mapped_bytes() const;

 private:
  void* map_region(size_t bytes);
  void unmap_idle(size_t wanted);

  mutable std::mutex mutex_;
  std::multimap<size_t, void*> idle_;
  std::unordered_map<void*, size_t> size_;  // of every region, idle or in use
  size_t mapped_ = 0, in_use_ = 0, most_in_use_ = 0;
};

}  // namespace fivefold
