// The collectives of `local`: each rank pulls what it needs straight from the others' buffers.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/integer.h"
#include "comm/comm_error.h"
#include "comm/local_communicator.h"
#include "comm/reduce.h"

namespace fivefold {
namespace {

void copy(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

std::byte* data(const Buffer& buffer) { return static_cast<std::byte*>(buffer.pointer); }

// Reduces `count` elements, `offset_bytes` into everybody's input of a buffer, to `out`.
void reduce_from_all(const LocalMeeting& meeting, const Call& call, size_t buffer, int64_t offset_bytes, int64_t count,
                     std::byte* out) {
  std::vector<const void*> sources;
  for (int j = 0; j < meeting.size(); ++j) sources.push_back(meeting.of(j).input(buffer) + offset_bytes);
  reduce_in_order(sources, count, call.input.dtype, call.reduction, out, call.output.dtype, call.output_mode);
}

// Each rank reduces its chunk in place, where nobody else reads it; then all collect the chunks.
void all_reduce(LocalMeeting& meeting, const Call& call) {
  const int64_t element_bytes = dtype_bytes(call.input.dtype);
  const auto begin = [&](size_t buffer, int j) {
    const int64_t count = call.buffer(buffer).input.count();
    return std::min(div_ceil(count, meeting.size()) * j, count);
  };
  const int me = meeting.rank();
  for (size_t i = 0; i < call.num_buffers(); ++i)
    reduce_from_all(meeting, call, i, begin(i, me) * element_bytes, begin(i, me + 1) - begin(i, me),
                    data(call.buffer(i).output) + begin(i, me) * element_bytes);
  meeting.meet();
  for (size_t i = 0; i < call.num_buffers(); ++i) {
    for (int j = 0; j < meeting.size(); ++j) {
      const int64_t offset = begin(i, j) * element_bytes;
      copy(data(call.buffer(i).output) + offset, meeting.of(j).output(i) + offset,
           (begin(i, j + 1) - begin(i, j)) * element_bytes);
    }
  }
}

void reduce_scatter(LocalMeeting& meeting, const Call& call) {
  for (size_t i = 0; i < call.num_buffers(); ++i) {
    const Buffer output = call.buffer(i).output;
    const int64_t count = output.count();
    reduce_from_all(meeting, call, i, meeting.rank() * count * dtype_bytes(call.input.dtype), count, data(output));
  }
}

void all_gather(LocalMeeting& meeting, const Call& call) {
  for (size_t i = 0; i < call.num_buffers(); ++i) {
    const auto [input, output] = call.buffer(i);
    for (int j = 0; j < meeting.size(); ++j) copy(data(output) + j * input.bytes, meeting.of(j).input(i), input.bytes);
  }
}

void all_to_all(LocalMeeting& meeting, const Call& call) {
  const int64_t chunk = div_exact(call.input.bytes, meeting.size());
  for (int j = 0; j < meeting.size(); ++j)
    copy(data(call.output) + j * chunk, meeting.of(j).input() + meeting.rank() * chunk, chunk);
}

void ragged_all_to_all(LocalMeeting& meeting, const Call& call) {
  const int64_t element_bytes = dtype_bytes(call.input.dtype);
  const int me = meeting.rank();
  std::byte* to = data(call.output);
  for (int j = 0; j < meeting.size(); ++j) {
    const std::vector<int64_t>& counts = meeting.of(j).call->send_counts;
    const int64_t skipped = std::accumulate(counts.begin(), counts.begin() + me, int64_t{0});
    copy(to, meeting.of(j).input() + skipped * element_bytes, counts[me] * element_bytes);
    to += counts[me] * element_bytes;
  }
}

// Everybody checks what it is to receive before anybody relies on it.
void check_ragged(const LocalMeeting& meeting, const Call& call, LocalState& state) {
  const std::vector<int>& members = call.group.members();
  for (int j = 0; j < meeting.size(); ++j) {
    const int64_t sent = meeting.of(j).call->send_counts[meeting.rank()];
    if (sent == call.recv_counts[j]) continue;
    const std::string me = std::to_string(members[meeting.rank()]), peer = std::to_string(members[j]);
    state.fail(members[meeting.rank()], "rank " + me + " expects " + std::to_string(call.recv_counts[j]) +
                                            " elements from rank " + peer + " in " + call.records.front().name() +
                                            ", but rank " + peer + " sends " + std::to_string(sent));
  }
}

void move_data(LocalMeeting& meeting, const Call& call, LocalState& state) {
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return all_reduce(meeting, call);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter(meeting, call);
    case CollectiveKind::kAllGather:
      return all_gather(meeting, call);
    case CollectiveKind::kAllToAll:
      if (call.send_counts.empty()) return all_to_all(meeting, call);
      check_ragged(meeting, call, state);
      return ragged_all_to_all(meeting, call);
    case CollectiveKind::kBroadcast:
      return copy(data(call.output), meeting.of(call.root).input(), call.input.bytes);
    case CollectiveKind::kBarrier:
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      break;
  }
  FIVEFOLD_CHECK(false, "no data to move");
}

// Bytes of the full tensor, as spec/network.h counts them; a ragged all_to_all counts as an even one of the largest
// buffer on either side. REQUIRES: this rank has entered and not yet met.
double full_bytes(const LocalMeeting& meeting, const Call& call) {
  if (call.kind == CollectiveKind::kAllGather) return static_cast<double>(call.output_bytes());
  if (call.send_counts.empty()) return static_cast<double>(call.input_bytes());
  int64_t largest = 0;
  for (int i = 0; i < meeting.size(); ++i) {
    int64_t sent = 0, received = 0;
    for (int j = 0; j < meeting.size(); ++j) {
      sent += meeting.of(i).call->send_counts[static_cast<size_t>(j)];
      received += meeting.of(j).call->send_counts[static_cast<size_t>(i)];
    }
    largest = std::max({largest, sent, received});
  }
  return static_cast<double>(largest * dtype_bytes(call.input.dtype));
}

}  // namespace

void LocalCommunicator::execute_collective(const Call& call) {
  LocalMeeting meeting(*state_, *static_cast<LocalGroup*>(call.group.transport()), call);
  try {
    meeting.enter();
    // The data moves while the simulated transfer is under way: the call takes the longer of the two.
    const bool simulated = state_->links() != nullptr && call.group.size() > 1;
    int64_t transfer = 0;
    if (simulated)
      transfer = state_->links()->start_collective(call.group.transport(), call.records.front().sequence, call.kind,
                                                   call.group.members(), full_bytes(meeting, call));
    if (call.kind != CollectiveKind::kBarrier) {
      run_hook({HookPoint::kBeforeData, rank(), call.records.front()});
      move_data(meeting, call, *state_);
      meeting.meet();
      run_hook({HookPoint::kAfterData, rank(), call.records.front(), bytes_of(call.output)});
    }
    if (simulated) state_->wait_for_links(rank(), transfer);
  } catch (...) {
    state_->abort(rank(), error_text(std::current_exception()));
    meeting.leave_early();
    throw;
  }
}

}  // namespace fivefold
