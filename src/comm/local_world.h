// Transport `local`: ranks are threads of one process and read each other's buffers in place. No launcher, no services,
// no staging except for buffered sends. The reference for every other transport's results.
//
// Waiting spins briefly, then sleeps. Each world has a watchdog thread: a rank that waits longer than `timeout_s` for a
// peer aborts the world with an error that names the peer and where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "spec/network.h"

namespace fivefold {

enum class SendMode : uint8_t {
  kBuffered,    // a send is complete once its bytes are copied to a staging buffer, without bound on their number
  kRendezvous,  // a send waits for its receive, as on NCCL
};

// Where a hook is called in the life of a call: first on the thread that makes the call, then on the one that executes
// it. Barriers and sends have no data points.
enum class HookPoint : uint8_t {
  kCalled,       // in program order, not numbered yet. The hook may skip the call; it neither blocks nor throws
  kBeforeEntry,  // before peers can see the call
  kBeforeData,   // all peers have entered (the send has been taken); this rank has read and written no data yet
  kAfterData,    // this rank's data is complete, and no peer reads it; the caller has not seen it yet
};

class LocalState;

// A call as a hook sees it.
struct HookedCall {
  HookPoint point;
  int rank;                  // world rank
  const CallRecord& record;  // one transfer of a batch, whose hooks are called one after the other
  // kBeforeEntry: what this rank sends. kAfterData: what it has received. Else empty. The hook may change it.
  std::span<std::byte> data{};
  // kCalled: set it, and the call (with a batch, all of it) returns at once as if it had not been made: it gets no
  // number, and peers never see it.
  bool skip = false;
  LocalState* world = nullptr;

  // Blocks until another rank or the watchdog aborts the world. Errors: CommError or Aborted, always.
  [[noreturn]] void wait_for_abort() const;
};

struct LocalOptions {
  // Longest wait for a peer inside one call. Compute time between a fast and a slow rank counts; with `simulate`, time
  // before the last simulated transfer of the world ended does not.
  double timeout_s = 600;
  SendMode send_mode = SendMode::kBuffered;
  int recorded_calls = 256;  // size of each rank's flight recorder
  // How long run_ranks waits after an abort for threads that are outside any call. A thread cannot be ended from
  // outside: after this the error is printed and the process exits with code 4 (the run failed).
  double exit_grace_s = 5;
  // A cluster whose links are imitated: ranks are placed on its nodes in order, and a call ends no earlier than its
  // transfer would there (spec/network.h, comm/link_flows.h). Results are the same bits. Nothing: calls take what they
  // take. REQUIRES: check_num_ranks() finds nothing.
  std::optional<NetworkSpec> simulate{};
  // Seam for fault injection (comm/fault_injection.h): may delay, throw (the call then fails at this rank), skip the
  // call or change its data. Called concurrently from all ranks.
  std::function<void(HookedCall&)> hook{};
};

class LocalWorld {
 public:
  // One communicator per rank. Each keeps the shared state alive, so the returned objects may go to different threads
  // and end in any order. A rank's communicator that is destroyed while a peer waits for it is a lost peer.
  // REQUIRES: n >= 1, timeout_s > 0.
  static std::vector<std::unique_ptr<Communicator>> create(int n, const LocalOptions& options = {});
};

// What run_ranks throws: the first failure. what() is "rank 3: ..."; with several ranks, when the failure was not
// noticed by a collective, a second line says where the rank was among its calls.
class RankError : public std::runtime_error {
 public:
  RankError(int rank, const std::string& message, std::exception_ptr cause)
      : std::runtime_error("rank " + std::to_string(rank) + ": " + message), rank_(rank), cause_(std::move(cause)) {}

  int rank() const { return rank_; }
  std::exception_ptr cause() const { return cause_; }  // what the rank threw; null if it called abort() and returned

 private:
  int rank_;
  std::exception_ptr cause_;
};

// Runs fn(rank, communicator) on n new threads and joins them. An exception that leaves fn aborts the world; the other
// ranks then end as Aborted.
// Errors: RankError for the first failure; later ones, its consequences, are dropped.
void run_ranks(int n, const LocalOptions& options, const std::function<void(int rank, Communicator& communicator)>& fn);

}  // namespace fivefold
