// What the ranks of a `local` world share: the abort flag, one doorbell per rank, the groups, and the watchdog.
// Internal to comm/local_*.
//
// Note [Waiting]. A rank waits at one place only: its doorbell, a counter. Who changes something that rank r may be
// waiting for makes the change first and then rings r; r reads the counter, looks whether anything is missing, and
// sleeps until the counter differs from what it read. No wake-up is lost, and an abort wakes everybody by ringing every
// doorbell.
//
// Note [Leaving after an abort]. Ranks read each other's buffers, so a rank that an abort throws out of a collective
// must not free its buffers while a peer still copies from them. Peers copy only once all members have entered and,
// after that, the abort flag was still down. A rank that leaves early therefore first sees the flag up, and then looks
// whether all have entered: if not, nobody will ever copy. If so, it stays until each peer has finished or has left as
// well, which is soon, because nobody waits any longer. Entering and the flag are sequentially consistent for this.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/link_simulation.h"
#include "comm/local_group.h"
#include "comm/local_world.h"

namespace fivefold {

// Why a rank cannot go on yet.
struct Missing {
  int rank = -1;                     // the world rank it waits for; -1: nothing is missing
  const CallRecord* call = nullptr;  // its own call that waits
  bool entered = false;              // the rank has entered the matching call, but has not finished with it
};

class LocalState {
 public:
  LocalState(int n, const LocalOptions& options);
  ~LocalState();

  int size() const { return static_cast<int>(ranks_.size()); }
  const LocalOptions& options() const { return options_; }

  // Errors: CommError when the group exists with other members.
  std::shared_ptr<LocalGroup> group(GroupKind kind, int index, const std::vector<int>& members, int rank);
  std::shared_ptr<FlightRecorder> recorder(int rank) { return ranks_[rank].recorder; }

  void ring(int rank);
  // Blocks `rank` until missing().rank is -1. Errors: CommError or Aborted once the world is aborted or a missing rank
  // has ended.
  template <typename MissingFunction>
  void wait(int rank, const MissingFunction& missing);
  // The same, but goes on through an abort: only for what peers finish soon whatever happens.
  template <typename MissingFunction>
  void wait_through_abort(int rank, const MissingFunction& missing);

  bool aborted() const { return aborted_.load(); }
  // Errors: CommError or Aborted once the world is aborted.
  void throw_if_aborted(int rank) const;
  // The first fault decides: aborts the world and throws CommError, or Aborted if it is aborted already.
  [[noreturn]] void fail(int rank, const std::string& message);
  // The same for a fault that `rank` reports by other means; the rank itself gets Aborted too.
  void abort(int rank, const std::string& reason);
  // This rank makes no more calls.
  void end(int rank);
  // Blocks until the world is aborted, then throws CommError or Aborted.
  [[noreturn]] void wait_for_abort(int rank);

  // The simulated network; null: none.
  LinkSimulation* links() { return links_.get(); }
  // Sleeps until the transfer is complete. Errors: CommError or Aborted once the world is aborted.
  void wait_for_links(int rank, int64_t transfer);

  struct Failure {
    int rank;
    std::string message;
    bool is_comm_error;  // noticed by a collective, to be thrown there as CommError
    std::string where;   // of the rank among its calls, when it failed by itself; else empty: the message says it
  };
  std::optional<Failure> failure() const;

 private:
  struct Wait {
    int64_t since_ns;
    int missing;
    CallRecord call;
    bool entered;  // as in Missing
  };

  struct alignas(64) Rank {
    std::atomic<uint32_t> doorbell{0};
    std::atomic<bool> ended{false};
    std::atomic<bool> on_links{false};  // in wait_for_links()
    std::mutex mutex;
    std::optional<Wait> wait;  // guarded by mutex
    std::shared_ptr<FlightRecorder> recorder;
  };

  bool declare(Failure failure);
  void note_wait(int rank, int64_t since_ns, const Missing& missing);
  void clear_wait(int rank);
  [[noreturn]] void fail_lost_peer(int rank, const Missing& missing);
  std::optional<Wait> wait_of(int rank);
  std::string whereabouts(int rank);
  Failure diagnose(int rank, Wait wait);
  void watch();
  static int64_t now_ns();

  const LocalOptions options_;
  const int spins_;
  std::vector<Rank> ranks_;
  const std::unique_ptr<LinkSimulation> links_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;  // of the following
  std::optional<Failure> failure_;
  std::map<std::pair<GroupKind, int>, std::shared_ptr<LocalGroup>> groups_;
  std::condition_variable stop_watching_;
  bool stopped_ = false;
  std::thread watchdog_;
};

template <typename MissingFunction>
void LocalState::wait(int rank, const MissingFunction& missing) {
  for (int i = 0; i < spins_; ++i) {
    if (missing().rank < 0) return;
    __builtin_ia32_pause();
  }
  const int64_t since_ns = now_ns();
  Rank& self = ranks_[rank];
  while (true) {
    const uint32_t heard = self.doorbell.load();
    const Missing what = missing();
    if (what.rank < 0) break;
    note_wait(rank, since_ns, what);
    if (aborted()) break;
    if (ranks_[what.rank].ended.load() && missing().rank == what.rank) fail_lost_peer(rank, what);
    self.doorbell.wait(heard);
  }
  clear_wait(rank);
  if (missing().rank >= 0) throw_if_aborted(rank);
}

template <typename MissingFunction>
void LocalState::wait_through_abort(int rank, const MissingFunction& missing) {
  Rank& self = ranks_[rank];
  while (true) {
    const uint32_t heard = self.doorbell.load();
    if (missing().rank < 0) return;
    self.doorbell.wait(heard);
  }
}

}  // namespace fivefold
