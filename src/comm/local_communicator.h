// LocalCommunicator: one rank of a `local` world. Internal to comm/local_*; made by LocalWorld.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/call_queue.h"
#include "comm/communicator.h"
#include "comm/local_meeting.h"
#include "comm/local_state.h"

namespace fivefold {

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalState> state, Group world);
  ~LocalCommunicator() override;

  Group create_group(GroupKind kind, int index, const std::vector<int>& members) override;
  void abort(const std::string& reason) override { state_->abort(rank(), reason); }

  static std::vector<std::unique_ptr<Communicator>> create_all(const std::shared_ptr<LocalState>& state);

 private:
  class Exchange;  // of a batch of sends and receives; local_exchange.cc

  static std::span<std::byte> bytes_of(const Buffer& buffer) {
    return {static_cast<std::byte*>(buffer.pointer), static_cast<size_t>(buffer.bytes)};
  }
  // What this rank sends in the call's record number `i`: nothing with a receive, and with a broadcast at its root
  // only.
  static std::span<std::byte> sent_bytes(const Call& call, size_t i);

  Work submit(Call call) override;
  bool accept(Call& call);
  void execute(Call& call);
  void update_records(Call& call, CallState state);
  // Calls the hook, if there is one; returns whether it skips the call.
  bool run_hook(HookedCall call) const;

  void execute_collective(const Call& call);
  void execute_exchange(const Call& call);

  std::shared_ptr<LocalState> state_;
  std::unique_ptr<CallQueue> queue_;  // ended first: its thread uses all of the above
};

}  // namespace fivefold
