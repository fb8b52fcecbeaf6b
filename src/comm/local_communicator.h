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

  Work submit(Call call) override;
  void accept(Call& call);
  void execute(Call& call);
  void update_records(Call& call, CallState state);
  void run_hook(HookPoint point, const CallRecord& record) const;

  void execute_collective(const Call& call);
  void execute_exchange(const Call& call);

  std::shared_ptr<LocalState> state_;
  std::unique_ptr<CallQueue> queue_;  // ended first: its thread uses all of the above
};

}  // namespace fivefold
