#include "comm/local_communicator.h"

#include <numeric>

#include "comm/comm_error.h"

namespace fivefold {
namespace {

LocalGroup& local(const Group& group) { return *static_cast<LocalGroup*>(group.transport()); }

}  // namespace

LocalCommunicator::LocalCommunicator(std::shared_ptr<LocalState> state, Group world)
    : Communicator(world, std::make_shared<CommCounters>(), state->recorder(world.rank())),
      state_(std::move(state)),
      queue_(std::make_unique<CallQueue>([this](Call& call) { return accept(call); },
                                         [this](Call& call) { execute(call); }, shared_call_log())) {}

LocalCommunicator::~LocalCommunicator() {
  queue_.reset();
  state_->end(rank());
}

std::vector<std::unique_ptr<Communicator>> LocalCommunicator::create_all(const std::shared_ptr<LocalState>& state) {
  std::vector<int> members(static_cast<size_t>(state->size()));
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (const int rank : members) {
    Group world(GroupKind::kWorld, 0, members, rank, state->group(GroupKind::kWorld, 0, members, rank));
    communicators.push_back(std::make_unique<LocalCommunicator>(state, std::move(world)));
  }
  return communicators;
}

Group LocalCommunicator::create_group(GroupKind kind, int index, const std::vector<int>& members) {
  for (const int member : members) FIVEFOLD_CHECK(member >= 0 && member < size());
  return Group(kind, index, members, rank(), state_->group(kind, index, members, rank()));
}

Work LocalCommunicator::submit(Call call) {
  FIVEFOLD_CHECK(call.group.members()[static_cast<size_t>(call.group.rank())] == rank(), "another rank's group");
  const auto on_host = [](const Buffer& buffer) { return buffer.device.kind == DeviceKind::kCpu; };
  for (size_t i = 0; i < call.num_buffers(); ++i)
    FIVEFOLD_CHECK(on_host(call.buffer(i).input) && on_host(call.buffer(i).output));
  for (const PeerTransfer& transfer : call.transfers) FIVEFOLD_CHECK(on_host(transfer.buffer));
  FIVEFOLD_CHECK(call.options.stream.handle == nullptr, "a host transport knows only the null stream");
  return queue_->submit(std::move(call));
}

bool LocalCommunicator::accept(Call& call) {
  LocalGroup::Member& line = local(call.group).lines[call.group.rank()];
  CallRecord record{.kind = call.kind,
                    .group_kind = call.group.kind(),
                    .group_index = call.group.index(),
                    .bytes = call.input_bytes(),
                    .dtype = call.input.dtype,
                    .purpose = call.purpose};
  const auto next_number = [&line](const PeerTransfer& transfer) -> int64_t& {
    auto& next = transfer.kind == CollectiveKind::kSend ? line.next_send : line.next_recv;
    return next[static_cast<size_t>(transfer.peer)];
  };
  if (call.transfers.empty()) {
    record.sequence = line.next_collective++;
    call.records.push_back(record);
  }
  for (const PeerTransfer& transfer : call.transfers) {
    record.kind = transfer.kind;
    record.peer = call.group.members()[static_cast<size_t>(transfer.peer)];
    record.bytes = transfer.buffer.bytes;
    record.dtype = transfer.buffer.dtype;
    record.purpose = transfer.purpose.value_or(call.purpose);
    record.sequence = next_number(transfer)++;
    call.records.push_back(record);
  }

  bool skip = false;
  for (const CallRecord& r : call.records) skip |= run_hook({HookPoint::kCalled, rank(), r});
  if (skip) {
    if (call.transfers.empty()) --line.next_collective;
    for (const PeerTransfer& transfer : call.transfers) --next_number(transfer);
    return false;
  }
  for (CallRecord& r : call.records) {
    call.tickets.push_back(recorder().add(r));
    int64_t bytes = 0;
    if (call.transfers.empty()) bytes = collective_bytes_sent(call);
    if (r.kind == CollectiveKind::kSend) bytes = r.bytes;
    counters().add(r.kind, r.group_kind, r.purpose, bytes);
  }
  call.logged = call_log().on();
  return true;
}

void LocalCommunicator::update_records(Call& call, CallState state) {
  for (size_t i = 0; i < call.records.size(); ++i) recorder().update(call.tickets[i], call.records[i], state);
}

bool LocalCommunicator::run_hook(HookedCall call) const {
  if (!state_->options().hook) return false;
  call.world = state_.get();
  state_->options().hook(call);
  return call.skip;
}

std::span<std::byte> LocalCommunicator::sent_bytes(const Call& call, size_t i) {
  if (!call.transfers.empty()) {
    const PeerTransfer& transfer = call.transfers[i];
    return transfer.kind == CollectiveKind::kSend ? bytes_of(transfer.buffer) : std::span<std::byte>{};
  }
  const bool listens = call.kind == CollectiveKind::kBroadcast && call.group.rank() != call.root;
  return listens ? std::span<std::byte>{} : bytes_of(call.input);
}

void LocalCommunicator::execute(Call& call) {
  const double begin_s = CallLog::now_s();
  update_records(call, CallState::kExecuting);
  try {
    state_->throw_if_aborted(rank());
    for (size_t i = 0; i < call.records.size(); ++i)
      run_hook({HookPoint::kBeforeEntry, rank(), call.records[i], sent_bytes(call, i)});
    call.transfers.empty() ? execute_collective(call) : execute_exchange(call);
  } catch (...) {
    state_->abort(rank(), error_text(std::current_exception()));
    update_records(call, CallState::kFailed);
    throw;
  }
  update_records(call, CallState::kDone);
  const double end_s = CallLog::now_s();
  counters().add_time(call.kind, end_s - begin_s);
  if (!call.logged) return;
  int64_t bytes = 0;
  for (const CallRecord& record : call.records) bytes += record.bytes;
  call_log().add({call.kind, call.group.kind(), call.purpose, bytes, begin_s, end_s, 0});
}

}  // namespace fivefold
