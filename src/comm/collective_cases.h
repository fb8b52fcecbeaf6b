// For the table of faults: each collective as one of its members is to call it, the group that does, and how reports
// name the call.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "comm/local_world.h"

namespace fivefold::comm_test {

// Arguments of a call. The usual ones move 48 bytes, or 24 where the call is ragged.
struct Form {
  int64_t count = 12;  // elements of 4 bytes
  DType dtype = DType::kFloat32;
  Purpose purpose = Purpose::kActivations;
};

struct Memory {
  std::vector<float> a = std::vector<float>(24), b = std::vector<float>(96);
};

inline Buffer part(std::vector<float>& x, int64_t count, DType dtype) {
  return {.pointer = x.data(), .bytes = 4 * count, .dtype = dtype};
}

using Make = Work(Communicator&, const Group&, const Form&, Memory&, const CallOptions&);

inline Work all_reduce(Communicator& comm, const Group& group, const Form& form, Memory& m,
                       const CallOptions& options) {
  return comm.all_reduce(group, part(m.a, form.count, form.dtype), Reduction::kSum, form.purpose, options);
}

inline Work reduce_scatter(Communicator& comm, const Group& group, const Form& form, Memory& m,
                           const CallOptions& options) {
  return comm.reduce_scatter(group, part(m.a, form.count, form.dtype), part(m.b, form.count / group.size(), form.dtype),
                             Reduction::kSum, form.purpose, options);
}

inline Work all_gather(Communicator& comm, const Group& group, const Form& form, Memory& m,
                       const CallOptions& options) {
  return comm.all_gather(group, part(m.a, form.count, form.dtype), part(m.b, form.count * group.size(), form.dtype),
                         form.purpose, options);
}

inline Work all_to_all(Communicator& comm, const Group& group, const Form& form, Memory& m,
                       const CallOptions& options) {
  return comm.all_to_all(group, part(m.a, form.count, form.dtype), part(m.b, form.count, form.dtype), form.purpose,
                         options);
}

// Among 3: member i sends 1 + (i + j) % 3 elements to member j, 6 in all, and gets as many from it. Another size is one
// more for member 1.
inline Work ragged_all_to_all(Communicator& comm, const Group& group, const Form& form, Memory& m,
                              const CallOptions& options) {
  std::vector<int64_t> receive;
  for (int j = 0; j < 3; ++j) receive.push_back(1 + (group.rank() + j) % 3);
  std::vector<int64_t> send = receive;
  if (form.count != Form().count) ++send[1];
  const int64_t sent = std::accumulate(send.begin(), send.end(), int64_t{0});
  return comm.all_to_all(group, part(m.a, sent, form.dtype), send, part(m.b, 6, form.dtype), receive, form.purpose,
                         options);
}

inline Work broadcast(Communicator& comm, const Group& group, const Form& form, Memory& m, const CallOptions& options) {
  return comm.broadcast(group, part(m.a, form.count, form.dtype), 1, form.purpose, options);
}

inline Work barrier(Communicator& comm, const Group& group, const Form& form, Memory&, const CallOptions& options) {
  return comm.barrier(group, form.purpose, options);
}

// From member 0 to member 1.
inline Work hand_over(Communicator& comm, const Group& group, const Form& form, Memory& m, const CallOptions& options) {
  const Buffer data = part(m.a, form.count, form.dtype);
  return group.rank() == 0 ? comm.send(group, data, 1, form.purpose, options)
                           : comm.recv(group, data, 0, form.purpose, options);
}

// Between two. Only what is sent takes another size or dtype: one of them notices.
inline Work exchange(Communicator& comm, const Group& group, const Form& form, Memory& m, const CallOptions& options) {
  const int peer = 1 - group.rank();
  return comm.batch_send_recv(group,
                              {{CollectiveKind::kRecv, part(m.b, Form().count, Form().dtype), peer},
                               {CollectiveKind::kSend, part(m.a, form.count, form.dtype), peer}},
                              form.purpose, options);
}

struct Collective {
  std::string name;
  Make* make;
  CollectiveKind kind;  // of the faulty rank's call
  int world_size;
  GroupKind group_kind;
  int group_index;
  std::vector<int> members;
  int faulty;                  // world rank
  std::string peer_call = "";  // of transfers: what the peer is left in when the faulty rank skips its call number 1
  SendMode send_mode = SendMode::kBuffered;

  bool is_transfer() const { return !peer_call.empty(); }
  bool is_ragged() const { return make == &ragged_all_to_all; }
  std::string group() const { return std::string(to_string(group_kind)) + "[" + std::to_string(group_index) + "]"; }
  // A member that waits for the faulty one.
  int waiting() const {
    const auto at = std::find(members.begin(), members.end(), faulty) + 1;
    return at == members.end() ? members.front() : *at;
  }
  // The rank outside the group, or -1.
  int left_over() const {
    for (int rank = 0; rank < world_size; ++rank)
      if (std::find(members.begin(), members.end(), rank) == members.end()) return rank;
    return -1;
  }
  // How reports name the faulty rank's calls.
  std::string call(int sequence) const { return call(sequence, kind); }
  std::string call(int sequence, CollectiveKind of_kind) const {
    std::string text = std::string(to_string(of_kind)) + " #" + std::to_string(sequence) + " of " + group();
    if (of_kind == CollectiveKind::kSend) text += " to rank " + std::to_string(waiting());
    if (of_kind == CollectiveKind::kRecv) text += " from rank " + std::to_string(waiting());
    return text;
  }
  std::string arguments(int64_t bytes, const std::string& dtype) const {
    const std::string detail = is_ragged() ? ", ragged" : kind == CollectiveKind::kBroadcast ? ", root 1" : "";
    return " (" + std::to_string(bytes) + " bytes of " + dtype + ", activations" + detail + ")";
  }
  int64_t usual_bytes() const { return kind == CollectiveKind::kBarrier ? 0 : is_ragged() ? 24 : 48; }
};

inline std::vector<Collective> collectives() {
  using enum CollectiveKind;
  return {
      {"AllReduce", all_reduce, kAllReduce, 4, GroupKind::kDp, 1, {3, 1, 0}, 1},
      {"ReduceScatter", reduce_scatter, kReduceScatter, 3, GroupKind::kShard, 0, {2, 0, 1}, 2},
      {"AllGather", all_gather, kAllGather, 4, GroupKind::kTp, 1, {2, 3, 0, 1}, 0},
      {"AllToAll", all_to_all, kAllToAll, 2, GroupKind::kEp, 0, {1, 0}, 0},
      {"RaggedAllToAll", ragged_all_to_all, kAllToAll, 4, GroupKind::kEp, 3, {3, 0, 2}, 3},
      {"Broadcast", broadcast, kBroadcast, 4, GroupKind::kWorld, 0, {0, 1, 2, 3}, 3},
      {"BroadcastOfItsRoot", broadcast, kBroadcast, 4, GroupKind::kReplicate, 2, {3, 2, 0}, 2},
      {"Barrier", barrier, kBarrier, 3, GroupKind::kCp, 1, {2, 1}, 1},
      {"Send", hand_over, kSend, 3, GroupKind::kPp, 2, {2, 0}, 2, "recv #1 of pp[2] from rank 2"},
      {"Recv", hand_over, kRecv, 3, GroupKind::kPp, 0, {1, 2}, 2, "send #1 of pp[0] to rank 2", SendMode::kRendezvous},
      {"BatchSendRecv", exchange, kSend, 3, GroupKind::kCp, 0, {2, 0}, 0, "recv #1 of cp[0] from rank 0"}};
}

}  // namespace fivefold::comm_test
