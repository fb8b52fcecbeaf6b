#include "comm/fault_injection.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "base/check.h"

namespace fivefold {
namespace {

template <typename T>
bool holds(const std::optional<T>& wanted, const T& value) {
  return !wanted || *wanted == value;
}

HookPoint point_of(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kDrop:
      return HookPoint::kCalled;
    case FaultKind::kFlipSent:
      return HookPoint::kBeforeEntry;
    case FaultKind::kFlipReceived:
      return HookPoint::kAfterData;
    case FaultKind::kDelay:
    case FaultKind::kFreeze:
    case FaultKind::kKill:
      return fault.at;
  }
  FIVEFOLD_CHECK(false);
}

void flip(const HookedCall& call, int64_t bit) {
  FIVEFOLD_CHECK(bit / 8 < static_cast<int64_t>(call.data.size()),
                 "no bit " + std::to_string(bit) + " in the data of " + call.record.name());
  call.data[static_cast<size_t>(bit / 8)] ^= std::byte{1} << (bit % 8);
}

void happen(const Fault& fault, HookedCall& call) {
  switch (fault.kind) {
    case FaultKind::kDelay:
      return std::this_thread::sleep_for(std::chrono::duration<double>(fault.delay_s));
    case FaultKind::kDrop:
      call.skip = true;
      return;
    case FaultKind::kFreeze:
      call.wait_for_abort();
    case FaultKind::kKill:
      throw InjectedKill("killed in " + call.record.name());
    case FaultKind::kFlipSent:
    case FaultKind::kFlipReceived:
      return flip(call, fault.bit);
  }
}

}  // namespace

bool CallSelector::matches(const CallRecord& record) const {
  return holds(kind, record.kind) && holds(group, record.group_kind) && holds(group_index, record.group_index) &&
         holds(sequence, record.sequence) && holds(purpose, record.purpose);
}

struct FaultInjector::State {
  struct Armed {
    Fault fault;
    // Matching calls that have reached the fault's point; they come one at a time, since all are one rank's.
    std::atomic<int64_t> num_matches{0};
  };

  explicit State(size_t n) : faults(n) {}

  std::vector<Armed> faults;
  std::atomic<int> num_happened{0};
};

FaultInjector::FaultInjector(std::vector<Fault> plan) : state_(std::make_shared<State>(plan.size())) {
  for (size_t i = 0; i < plan.size(); ++i) {
    const Fault& fault = plan[i];
    FIVEFOLD_CHECK(fault.rank >= 0 && fault.call.nth >= 0 && fault.delay_s >= 0 && fault.bit >= 0);
    FIVEFOLD_CHECK(fault.at != HookPoint::kCalled, "a hook neither blocks nor throws there");
    state_->faults[i].fault = fault;
  }
}

std::function<void(HookedCall&)> FaultInjector::hook() const {
  return [state = state_](HookedCall& call) {
    for (State::Armed& armed : state->faults) {
      const Fault& fault = armed.fault;
      if (fault.rank != call.rank || point_of(fault) != call.point || !fault.call.matches(call.record)) continue;
      if (armed.num_matches.fetch_add(1) != fault.call.nth) continue;
      state->num_happened.fetch_add(1);
      happen(fault, call);
    }
  };
}

int FaultInjector::num_happened() const { return state_->num_happened.load(); }

}  // namespace fivefold
