// LocalGroup: what the members of one group of a `local` world share. Internal to comm/local_*.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/call.h"

namespace fivefold {

// What a member shows the others of its present collective. Pointers are valid until the member leaves it.
struct PublishedCall {
  CallRecord record;
  Reduction reduction = Reduction::kSum;
  int root = 0;
  bool ragged = false;
  std::vector<int64_t> more_bytes{};  // of a joined call: bytes of its further inputs
  const Call* call = nullptr;         // while data moves
  const std::byte* input(size_t buffer = 0) const {
    return static_cast<const std::byte*>(call->buffer(buffer).input.pointer);
  }
  // all_reduce: where its reduced chunk is
  const std::byte* output(size_t buffer = 0) const {
    return static_cast<const std::byte*>(call->buffer(buffer).output.pointer);
  }
};

// One send on its way. Either it owns its bytes (staging), or they are the sender's, who waits until `done`.
struct PostedSend {
  CallRecord record;
  const std::byte* data = nullptr;
  std::shared_ptr<const std::byte[]> staging;
  int64_t transfer = -1;           // on the simulated network, if there is one; set before `taken`
  std::atomic<bool> taken{false};  // by its receive
  std::atomic<bool> done{false};
};

// Sends from one member to another, in order.
struct Channel {
  std::mutex mutex;
  std::deque<std::shared_ptr<PostedSend>> posted;  // guarded by mutex
  std::atomic<int64_t> num_posted{0};              // length of `posted`
};

struct LocalGroup {
  // A member's own line: only that member writes it.
  struct alignas(64) Member {
    std::atomic<uint64_t> arrivals{0};  // at the meeting points of all its collectives so far
    std::atomic<bool> left{false};      // thrown out of a collective by an abort
    PublishedCall published[2];         // of collectives with even and odd sequence numbers

    // Numbering, under the lock of the member's queue.
    int64_t next_collective = 0;
    std::vector<int64_t> next_send, next_recv;  // per peer
  };

  LocalGroup(std::vector<int> world_ranks)
      : members(std::move(world_ranks)), lines(members.size()), channels(members.size() * members.size()) {
    for (Member& line : lines) {
      line.next_send.resize(members.size());
      line.next_recv.resize(members.size());
    }
  }

  int size() const { return static_cast<int>(members.size()); }
  Channel& channel(int from, int to) { return channels[static_cast<size_t>(from) * members.size() + to]; }

  const std::vector<int> members;  // world ranks
  std::vector<Member> lines;
  std::vector<Channel> channels;
};

}  // namespace fivefold
