// For tests of schedules: random programs of collectives, and an oracle for each result: from everybody's input by the
// definition of the collective, one rank after the other. Values are integers below 2^11, so that sums are exact.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "comm/comm_test_support.h"
#include "comm/local_world.h"

namespace fivefold::comm_test {

using Values = std::vector<float>;

enum class Op {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kRagged,
  kBroadcast,
  kBarrier,
  kHandOver,  // from the root to the next member
  kRing,      // from each member to the next
};
inline constexpr int kNumOps = 9;

struct Step {
  Op op;
  int group;      // number in the program
  int size;       // of the group
  int64_t count;  // elements
  int root;       // position in the group
  Reduction reduction;
  unsigned salt;

  int next(int member) const { return (member + 1) % size; }
  int previous(int member) const { return (member + size - 1) % size; }
  bool in_place() const { return op == Op::kAllReduce || op == Op::kBroadcast; }
  // Elements that member i sends to member j.
  int64_t ragged(int i, int j) const {
    return (salt + 5u * static_cast<unsigned>(i) + 3u * static_cast<unsigned>(j)) % 4;
  }

  bool takes_part(int member) const { return op != Op::kHandOver || member == root || member == next(root); }
  bool has_data(int member) const { return op != Op::kBarrier && (op != Op::kHandOver || member == next(root)); }
};

struct Program {
  int ranks;
  std::vector<std::vector<int>> groups;  // world ranks, in an order of their own
  std::vector<Step> steps;
};

inline int below(std::minstd_rand& random, int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }

inline Program random_program(std::minstd_rand& random) {
  Program program{.ranks = 2 + below(random, 3)};
  for (int g = 0; g < 3; ++g) {
    std::vector<int> members(static_cast<size_t>(program.ranks));
    std::iota(members.begin(), members.end(), 0);
    std::shuffle(members.begin(), members.end(), random);
    const int size = 2 + below(random, program.ranks - 1);
    members.resize(static_cast<size_t>(size));
    program.groups.push_back(members);
  }
  const int num_steps = 6 + below(random, 8);
  for (int i = 0; i < num_steps; ++i) {
    const int group = below(random, 3);
    const int size = static_cast<int>(program.groups[static_cast<size_t>(group)].size());
    program.steps.push_back({.op = static_cast<Op>(below(random, kNumOps)),
                             .group = group,
                             .size = size,
                             .count = below(random, 300),
                             .root = below(random, size),
                             .reduction = below(random, 4) == 0 ? Reduction::kMax : Reduction::kSum,
                             .salt = static_cast<unsigned>(random())});
  }
  return program;
}

// What `member` puts into a step.
inline Values input_of(const Step& step, int member) {
  int64_t count = step.count;
  if (step.op == Op::kReduceScatter || step.op == Op::kAllToAll) count *= step.size;
  if (step.op == Op::kRagged) {
    count = 0;
    for (int j = 0; j < step.size; ++j) count += step.ragged(member, j);
  }
  std::minstd_rand random(step.salt + 7919u * static_cast<unsigned>(member) + 1u);
  Values values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(below(random, 2048));
  return values;
}

// What a step puts out at `member`.
inline Values result_of(const Step& step, int member) {
  std::vector<Values> inputs;
  for (int i = 0; i < step.size; ++i) inputs.push_back(input_of(step, i));
  Values result;
  const auto append = [&](const Values& from, int64_t offset, int64_t count) {
    result.insert(result.end(), from.begin() + offset, from.begin() + offset + count);
  };
  const auto reduce = [&](int64_t offset) {
    for (int64_t e = 0; e < step.count; ++e) {
      float value = inputs[0][static_cast<size_t>(offset + e)];
      for (int i = 1; i < step.size; ++i) {
        const float other = inputs[static_cast<size_t>(i)][static_cast<size_t>(offset + e)];
        value = step.reduction == Reduction::kMax ? std::max(value, other) : value + other;
      }
      result.push_back(value);
    }
  };
  switch (step.op) {
    case Op::kAllReduce:
      reduce(0);
      break;
    case Op::kReduceScatter:
      reduce(member * step.count);
      break;
    case Op::kAllGather:
      for (const Values& input : inputs) append(input, 0, step.count);
      break;
    case Op::kAllToAll:
      for (const Values& input : inputs) append(input, member * step.count, step.count);
      break;
    case Op::kRagged:
      for (int i = 0; i < step.size; ++i) {
        int64_t offset = 0;
        for (int j = 0; j < member; ++j) offset += step.ragged(i, j);
        append(inputs[static_cast<size_t>(i)], offset, step.ragged(i, member));
      }
      break;
    case Op::kBroadcast:
      result = inputs[static_cast<size_t>(step.root)];
      break;
    case Op::kHandOver:
      if (member == step.next(step.root)) result = inputs[static_cast<size_t>(step.root)];
      break;
    case Op::kRing:
      result = inputs[static_cast<size_t>(step.previous(member))];
      break;
    case Op::kBarrier:
      break;
  }
  return result;
}

struct Memory {
  Values in, out;
};

inline Work make_call(Communicator& comm, const Group& group, const Step& step, Memory& m, const CallOptions& options) {
  const Buffer in = buffer_of(m.in), out = buffer_of(m.out);
  const int me = group.rank();
  switch (step.op) {
    case Op::kAllReduce:
      return comm.all_reduce(group, out, step.reduction, Purpose::kGradients, options);
    case Op::kReduceScatter:
      return comm.reduce_scatter(group, in, out, step.reduction, Purpose::kGradients, options);
    case Op::kAllGather:
      return comm.all_gather(group, in, out, Purpose::kParameters, options);
    case Op::kAllToAll:
      return comm.all_to_all(group, in, out, Purpose::kActivations, options);
    case Op::kRagged: {
      std::vector<int64_t> send, receive;
      for (int j = 0; j < step.size; ++j) {
        send.push_back(step.ragged(me, j));
        receive.push_back(step.ragged(j, me));
      }
      return comm.all_to_all(group, in, send, out, receive, Purpose::kActivations, options);
    }
    case Op::kBroadcast:
      return comm.broadcast(group, out, step.root, Purpose::kParameters, options);
    case Op::kHandOver:
      if (me == step.root) return comm.send(group, in, step.next(me), Purpose::kActivations, options);
      return comm.recv(group, out, step.root, Purpose::kActivations, options);
    case Op::kRing:
      return comm.batch_send_recv(
          group, {{CollectiveKind::kSend, in, step.next(me)}, {CollectiveKind::kRecv, out, step.previous(me)}},
          Purpose::kActivations, options);
    case Op::kBarrier:
      return comm.barrier(group, Purpose::kControl, options);
  }
  return {};
}

}  // namespace fivefold::comm_test
