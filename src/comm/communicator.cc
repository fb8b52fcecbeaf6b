#include "comm/communicator.h"

#include <algorithm>
#include <numeric>

#include "base/integer.h"
#include "comm/call.h"

namespace fivefold {
namespace {

// Every byte of `a` is outside `b`.
bool apart(const Buffer& a, const Buffer& b) {
  if (a.bytes == 0 || b.bytes == 0) return true;
  const auto begin_a = reinterpret_cast<uintptr_t>(a.pointer), begin_b = reinterpret_cast<uintptr_t>(b.pointer);
  return begin_a + static_cast<uintptr_t>(a.bytes) <= begin_b || begin_b + static_cast<uintptr_t>(b.bytes) <= begin_a;
}

// `part` is exactly chunk number `index` of `whole`.
bool is_chunk(const Buffer& part, const Buffer& whole, int index) {
  return part.pointer == static_cast<char*>(whole.pointer) + part.bytes * index;
}

bool can_be_reduced(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kBFloat16:
    case DType::kFloat16:
    case DType::kFloat64:
    case DType::kInt32:
    case DType::kInt64:
      return true;
    default:
      return false;
  }
}

void check_buffer(const Buffer& buffer) {
  FIVEFOLD_CHECK(buffer.bytes >= 0 && buffer.bytes % dtype_bytes(buffer.dtype) == 0);
  FIVEFOLD_CHECK(buffer.pointer != nullptr || buffer.bytes == 0);
}

void check_counts(const std::vector<int64_t>& counts, const Buffer& buffer, const Group& group) {
  FIVEFOLD_CHECK(counts.size() == static_cast<size_t>(group.size()));
  for (const int64_t count : counts) FIVEFOLD_CHECK(count >= 0);
  FIVEFOLD_CHECK(std::accumulate(counts.begin(), counts.end(), int64_t{0}) == buffer.count());
}

}  // namespace

int64_t Buffer::count() const { return div_exact(bytes, dtype_bytes(dtype)); }

Group::Group(GroupKind kind, int index, std::vector<int> members, int world_rank, std::shared_ptr<void> transport)
    : kind_(kind), index_(index), transport_(std::move(transport)) {
  const auto mine = std::find(members.begin(), members.end(), world_rank);
  FIVEFOLD_CHECK(mine != members.end(), "rank " + std::to_string(world_rank) + " is not in " + name());
  rank_ = static_cast<int>(mine - members.begin());
  std::vector<int> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  FIVEFOLD_CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), name() + " has a member twice");
  members_ = std::make_shared<const std::vector<int>>(std::move(members));
}

std::string Group::name() const { return std::string(to_string(kind_)) + "[" + std::to_string(index_) + "]"; }

Communicator::Communicator(Group world, std::shared_ptr<CommCounters> counters,
                           std::shared_ptr<FlightRecorder> recorder)
    : world_(std::move(world)), counters_(std::move(counters)), recorder_(std::move(recorder)) {}

Work Communicator::all_reduce(const Group& group, const Buffer& data, Reduction reduction, Purpose purpose,
                              const CallOptions& options) {
  return all_reduce(group, std::vector<Buffer>{data}, reduction, purpose, options);
}

Work Communicator::all_reduce(const Group& group, const std::vector<Buffer>& data, Reduction reduction, Purpose purpose,
                              const CallOptions& options) {
  if (data.empty()) return Work();
  std::vector<InOut> buffers;
  for (const Buffer& buffer : data) {
    check_buffer(buffer);
    FIVEFOLD_CHECK(can_be_reduced(buffer.dtype) && buffer.dtype == data.front().dtype);
    buffers.push_back({buffer, buffer});
  }
  return submit({.kind = CollectiveKind::kAllReduce,
                 .group = group,
                 .purpose = purpose,
                 .input = buffers.front().input,
                 .output = buffers.front().output,
                 .more = {buffers.begin() + 1, buffers.end()},
                 .reduction = reduction,
                 .options = options});
}

Work Communicator::reduce_scatter(const Group& group, const Buffer& input, const Buffer& output, Reduction reduction,
                                  Purpose purpose, const CallOptions& options, Output mode) {
  return reduce_scatter(group, std::vector<InOut>{{input, output}}, reduction, purpose, options, mode);
}

Work Communicator::reduce_scatter(const Group& group, const std::vector<InOut>& buffers, Reduction reduction,
                                  Purpose purpose, const CallOptions& options, Output mode) {
  if (buffers.empty()) return Work();
  for (const auto& [input, output] : buffers) {
    check_buffer(input);
    check_buffer(output);
    FIVEFOLD_CHECK(input.dtype == buffers.front().input.dtype && output.dtype == buffers.front().output.dtype);
    FIVEFOLD_CHECK(can_be_reduced(input.dtype));
    FIVEFOLD_CHECK(input.count() == output.count() * group.size());
    const bool half_precision = input.dtype == DType::kBFloat16 || input.dtype == DType::kFloat16;
    FIVEFOLD_CHECK(output.dtype == input.dtype || (half_precision && output.dtype == DType::kFloat32));
    const bool in_place = output.dtype == input.dtype && is_chunk(output, input, group.rank());
    FIVEFOLD_CHECK(apart(input, output) || (in_place && mode == Output::kOverwrite));
  }
  return submit({.kind = CollectiveKind::kReduceScatter,
                 .group = group,
                 .purpose = purpose,
                 .input = buffers.front().input,
                 .output = buffers.front().output,
                 .more = {buffers.begin() + 1, buffers.end()},
                 .reduction = reduction,
                 .output_mode = mode,
                 .options = options});
}

Work Communicator::all_gather(const Group& group, const Buffer& input, const Buffer& output, Purpose purpose,
                              const CallOptions& options) {
  return all_gather(group, std::vector<InOut>{{input, output}}, purpose, options);
}

Work Communicator::all_gather(const Group& group, const std::vector<InOut>& buffers, Purpose purpose,
                              const CallOptions& options) {
  if (buffers.empty()) return Work();
  for (const auto& [input, output] : buffers) {
    check_buffer(input);
    check_buffer(output);
    FIVEFOLD_CHECK(input.dtype == buffers.front().input.dtype);
    FIVEFOLD_CHECK(input.dtype == output.dtype && output.bytes == input.bytes * group.size());
    FIVEFOLD_CHECK(apart(input, output) || is_chunk(input, output, group.rank()));
  }
  return submit({.kind = CollectiveKind::kAllGather,
                 .group = group,
                 .purpose = purpose,
                 .input = buffers.front().input,
                 .output = buffers.front().output,
                 .more = {buffers.begin() + 1, buffers.end()},
                 .options = options});
}

Work Communicator::all_to_all(const Group& group, const Buffer& input, const Buffer& output, Purpose purpose,
                              const CallOptions& options) {
  check_buffer(input);
  check_buffer(output);
  FIVEFOLD_CHECK(input.dtype == output.dtype && input.bytes == output.bytes && input.count() % group.size() == 0);
  FIVEFOLD_CHECK(apart(input, output));
  return submit({.kind = CollectiveKind::kAllToAll,
                 .group = group,
                 .purpose = purpose,
                 .input = input,
                 .output = output,
                 .options = options});
}

Work Communicator::all_to_all(const Group& group, const Buffer& input, const std::vector<int64_t>& send_counts,
                              const Buffer& output, const std::vector<int64_t>& recv_counts, Purpose purpose,
                              const CallOptions& options) {
  check_buffer(input);
  check_buffer(output);
  check_counts(send_counts, input, group);
  check_counts(recv_counts, output, group);
  FIVEFOLD_CHECK(input.dtype == output.dtype && apart(input, output));
  return submit({.kind = CollectiveKind::kAllToAll,
                 .group = group,
                 .purpose = purpose,
                 .input = input,
                 .output = output,
                 .send_counts = send_counts,
                 .recv_counts = recv_counts,
                 .options = options});
}

Work Communicator::broadcast(const Group& group, const Buffer& data, int root, Purpose purpose,
                             const CallOptions& options) {
  check_buffer(data);
  FIVEFOLD_CHECK(root >= 0 && root < group.size());
  return submit({.kind = CollectiveKind::kBroadcast,
                 .group = group,
                 .purpose = purpose,
                 .input = data,
                 .output = data,
                 .root = root,
                 .options = options});
}

Work Communicator::send(const Group& group, const Buffer& data, int peer, Purpose purpose, const CallOptions& options) {
  return batch_send_recv(group, {{.kind = CollectiveKind::kSend, .buffer = data, .peer = peer}}, purpose, options);
}

Work Communicator::recv(const Group& group, const Buffer& data, int peer, Purpose purpose, const CallOptions& options) {
  return batch_send_recv(group, {{.kind = CollectiveKind::kRecv, .buffer = data, .peer = peer}}, purpose, options);
}

Work Communicator::batch_send_recv(const Group& group, const std::vector<PeerTransfer>& transfers, Purpose purpose,
                                   const CallOptions& options) {
  if (transfers.empty()) return Work();
  CollectiveKind kind = CollectiveKind::kSend;
  for (const PeerTransfer& transfer : transfers) {
    check_buffer(transfer.buffer);
    FIVEFOLD_CHECK(transfer.kind == CollectiveKind::kSend || transfer.kind == CollectiveKind::kRecv);
    FIVEFOLD_CHECK(transfer.peer >= 0 && transfer.peer < group.size() && transfer.peer != group.rank());
    if (transfer.kind == CollectiveKind::kRecv) kind = CollectiveKind::kRecv;
  }
  return submit({.kind = kind, .group = group, .purpose = purpose, .transfers = transfers, .options = options});
}

Work Communicator::barrier(const Group& group, Purpose purpose, const CallOptions& options) {
  return submit({.kind = CollectiveKind::kBarrier, .group = group, .purpose = purpose, .options = options});
}

}  // namespace fivefold
