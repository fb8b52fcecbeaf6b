#include "engine/memory/block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "base/check.h"

namespace fivefold {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = size_t{4} << 10;

size_t rounded(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

BlockPool::~BlockPool() {
  for (const auto& [pointer, bytes] : size_) munmap(pointer, bytes);
}

void* BlockPool::map_region(size_t bytes) {
  // Over-map, then cut to a huge-page boundary, so that whole huge pages can back the region.
  const size_t extra = bytes >= kHugePage ? kHugePage : 0;
  void* raw = mmap(nullptr, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(raw);
  if (extra > 0) {
    const auto address = reinterpret_cast<uintptr_t>(raw);
    const size_t head = (kHugePage - address % kHugePage) % kHugePage;
    if (head > 0) munmap(begin, head);
    if (extra - head > 0) munmap(begin + head + bytes, extra - head);
    begin += head;
    madvise(begin, bytes, MADV_HUGEPAGE);
  }
  mapped_ += bytes;
  size_[begin] = bytes;
  return begin;
}

void BlockPool::unmap_idle(size_t wanted) {
  const size_t allowed = std::max(most_in_use_, in_use_ + wanted);
  while (!idle_.empty() && mapped_ + wanted > allowed) {
    // Smallest first: large regions are the expensive ones to map again.
    const auto victim = idle_.begin();
    munmap(victim->second, victim->first);
    mapped_ -= victim->first;
    size_.erase(victim->second);
    idle_.erase(victim);
  }
}

void* BlockPool::allocate(size_t bytes) {
  const size_t wanted = rounded(bytes);
  const std::lock_guard lock(mutex_);
  void* pointer = nullptr;
  const auto found = idle_.lower_bound(wanted);
  if (found != idle_.end() && found->first <= wanted + wanted / 8) {
    pointer = found->second;
    idle_.erase(found);
  } else {
    unmap_idle(wanted);
    pointer = map_region(wanted);
  }
  in_use_ += size_.at(pointer);
  most_in_use_ = std::max(most_in_use_, in_use_);
  return pointer;
}

void BlockPool::release(void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto found = size_.find(pointer);
  FIVEFOLD_CHECK(found != size_.end());
  in_use_ -= found->second;
  idle_.emplace(found->second, pointer);
}

int64_t BlockPool::mapped_bytes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(mapped_);
}

}  // namespace fivefold
