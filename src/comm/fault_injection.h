// FaultInjector: makes chosen calls of chosen ranks of a `local` world go wrong, for tests of whatever has to notice,
// name or survive it. Its hook() goes into LocalOptions::hook. Which calls are hit follows from the plan and each
// rank's own order of calls, never from timing.
//
//   const FaultInjector injector({{.kind = FaultKind::kFlipReceived,
//                                  .rank = 2,
//                                  .call = {.kind = CollectiveKind::kAllGather, .purpose = Purpose::kParameters, .nth =
//                                  7}, .bit = 30}});
//   run_ranks(4, {.hook = injector.hook()}, train);  // rank 2 computes on with one wrong weight
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "comm/local_world.h"

namespace fivefold {

enum class FaultKind : uint8_t {
  kDelay,         // the rank sleeps for delay_s in the call, at the fault's point
  kDrop,          // the rank skips the call, which returns at once; with a batch, all of it
  kFreeze,        // the rank stops in the call, at the fault's point, until the world is aborted
  kKill,          // the call throws InjectedKill at the fault's point
  kFlipSent,      // a bit of what the rank sends is flipped before the call, in the caller's buffer
  kFlipReceived,  // a bit of what the rank has received is flipped after the call; its peers have the right data
};

// Calls of one rank. Every member that is set must hold; of the calls for which all do, number `nth` is meant, from 0.
// Transfers of a batch count one by one, calls without the fault's point (comm/local_world.h) not at all.
struct CallSelector {
  std::optional<CollectiveKind> kind{};
  std::optional<GroupKind> group{};
  std::optional<int> group_index{};
  std::optional<int64_t> sequence{};  // as reports show it; comm/flight_recorder.h
  std::optional<Purpose> purpose{};
  int64_t nth = 0;

  bool matches(const CallRecord& record) const;  // whatever nth is
};

struct Fault {
  FaultKind kind;
  int rank = 0;  // world rank
  CallSelector call{};
  HookPoint at = HookPoint::kBeforeEntry;  // of kDelay, kFreeze and kKill; not kCalled
  double delay_s = 0;                      // of kDelay
  int64_t bit = 0;                         // of the flips: of the buffer, the lowest bit of byte 0 first
};

// What the killed rank throws. The text names its call.
class InjectedKill : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class FaultInjector {
 public:
  // REQUIRES: valid faults. A flip's call must be long enough when it comes.
  explicit FaultInjector(std::vector<Fault> plan);

  // Each fault happens once, however many worlds the hook serves: a run that is started again goes on without it.
  std::function<void(HookedCall&)> hook() const;

  // Faults that have happened so far. Thread-safe.
  int num_happened() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace fivefold
