// The interpreter on pipelines: order of sends and receives, what arrives before it is read, transfers that are issued
// together, stages that fail or never send. Real communicators of `local`, and an executor (BorderExecutor) whose
// activations and gradients are numbers known for each unit and microbatch.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "comm/local_world.h"
#include "runtime/interpreter.h"
#include "schedule/generate.h"
#include "schedule/run_program.h"

namespace fivefold {
namespace {

constexpr int kLayers = 6;
constexpr int kHead = kLayers + 1;

double activation(int unit, int microbatch) { return 1000.0 * (microbatch + 1) + unit; }
double gradient(int unit, int microbatch) { return -7000.0 * (microbatch + 1) - unit; }

struct StageFault {
  int throwing_rank = -1;         // throws in its first backward
  bool wrong_numbers_ok = false;  // a call is left out, and with it what it would have received
};

// Keeps the outputs of units and their gradients, reads what a computation needs and says when it is not there.
class BorderExecutor final : public StageExecutor {
 public:
  BorderExecutor(int rank, const StageFault& fault) : rank_(rank), fault_(fault) {}

  std::map<std::pair<int, int>, int> forwards, backwards;  // how often, by unit and microbatch

  void forward(int unit, int microbatch, Keep) override {
    ++forwards[{unit, microbatch}];
    if (unit > 0) read(activations_, unit - 1, microbatch, activation(unit - 1, microbatch));
    write(activations_, unit, microbatch, activation(unit, microbatch));
  }
  void loss(const Instruction& i) override {
    read(activations_, i.unit - 1, i.microbatch, activation(i.unit - 1, i.microbatch));
    write(gradients_, i.unit - 1, i.microbatch, gradient(i.unit - 1, i.microbatch));
  }
  void backward(const Instruction& i) override {
    backward_input(i.unit, i.microbatch);
    backward_weight(i.unit, i.microbatch, false);
  }
  void backward_input(int unit, int microbatch) override {
    if (rank_ == fault_.throwing_rank) throw std::runtime_error("no memory for the backward");
    read(gradients_, unit, microbatch, gradient(unit, microbatch));
    if (unit > 0) write(gradients_, unit - 1, microbatch, gradient(unit - 1, microbatch));
    weights_.insert({unit, microbatch});
  }
  void backward_weight(int unit, int microbatch, bool) override {
    EXPECT_EQ(weights_.erase({unit, microbatch}), 1u) << "unit " << unit << " microbatch " << microbatch;
    ++backwards[{unit, microbatch}];
  }
  Buffer outgoing(const Instruction& i) override {
    const auto found = store(i.op == Opcode::kSendGradients).find({i.unit, i.microbatch});
    EXPECT_NE(found, store(i.op == Opcode::kSendGradients).end()) << "nothing to send";
    return buffer(found->second);
  }
  Buffer incoming(const Instruction& i) override {
    double& value = store(i.op == Opcode::kRecvGradients)[{i.unit, i.microbatch}];
    value = std::numeric_limits<double>::quiet_NaN();
    return buffer(value);
  }
  void free_sent(const Instruction& i) override {
    EXPECT_EQ(store(i.gradient).erase({i.unit, i.microbatch}), 1u);
    ++freed;
  }
  int freed = 0;

  void recompute(int, int, bool) override { FAIL() << "nothing is recomputed"; }
  void accumulate_grads(int, bool) override {}
  void optimizer_step(int) override {}
  void allocate_unsharded(int) override { FAIL() << "nothing is sharded"; }
  void free_unsharded(int) override { FAIL() << "nothing is sharded"; }
  void allocate_transient_grads(int) override {}
  void free_transient_grads(int) override {}
  std::vector<InOut> unsharded_params(int) override { return {}; }
  Buffer params(int) override { return {}; }
  Buffer transient_grads(int) override { return {}; }
  Buffer grads(int) override { return {}; }
  Buffer pack_partial_grads(PartialOver) override { return {}; }
  void unpack_partial_grads(PartialOver) override { FAIL() << "nothing was packed"; }
  int64_t local_valid_tokens() const override { return 5; }
  void set_global_valid_tokens(int64_t) override {}
  double local_loss_sum() const override { return 1; }
  double local_squared_grad_norm() override { return 1; }
  void set_grad_norm(double) override {}

 private:
  using Store = std::map<std::pair<int, int>, double>;
  Store& store(bool gradients) { return gradients ? gradients_ : activations_; }
  static Buffer buffer(double& value) { return {&value, sizeof value, DType::kFloat64, {}}; }
  static void write(Store& store, int unit, int microbatch, double value) { store[{unit, microbatch}] = value; }
  void read(const Store& store, int unit, int microbatch, double right) const {
    if (fault_.wrong_numbers_ok) return;
    const auto found = store.find({unit, microbatch});
    ASSERT_NE(found, store.end()) << "unit " << unit << " microbatch " << microbatch << " is not there";
    EXPECT_EQ(found->second, right) << "unit " << unit << " microbatch " << microbatch;
  }

  int rank_;
  StageFault fault_;
  Store activations_, gradients_;
  std::set<std::pair<int, int>> weights_;
};

struct Pipeline {
  ScheduleKind kind;
  int stages, chunks, microbatches;
};
std::string name(const Pipeline& p) {
  return std::string(to_string(p.kind)) + " p " + std::to_string(p.stages) + " m " + std::to_string(p.microbatches);
}

// Programs of the ranks and what they are lowered from.
struct Lowered {
  Schedule schedule;
  std::vector<Program> programs;
};

Lowered lowered(const Pipeline& p, SendMode mode, const Schedule* instead = nullptr) {
  ModelSpec model;
  model.hidden = 16;
  model.vocab = 40;
  LayerSpec layer;
  layer.mixer.num_heads = layer.mixer.num_kv_heads = 2;
  layer.mixer.head_dim = layer.mixer.rope.rotary_dim = 8;
  layer.mlp.ffn = 24;
  model.layers.assign(kLayers, layer);
  RunConfig config;
  config.parallel.pp = p.stages;
  config.parallel.vpp = p.chunks;
  config.parallel.schedule = p.kind;
  config.parallel.zero = 0;
  config.comm.rendezvous = mode == SendMode::kRendezvous;
  config.batch.global = p.microbatches;
  config.batch.sequence = 8;
  config.precision.compute = ComputeKind::kFp32;
  const ResolvedConfig legal = resolve(config, model).value();
  const Inventory inventory = build_inventory(model);
  Lowered result{instead ? *instead : pipeline_schedule(legal), {}};
  EXPECT_TRUE(check_schedule(result.schedule).ok());
  for (int rank = 0; rank < p.stages; ++rank)
    result.programs.push_back(
        lower(result.schedule, inventory, lowering_options(legal, rank_stages(model, legal, rank), rank)));
  return result;
}

// What each rank's transfers were, in the order in which it made them.
struct Made {
  CollectiveKind kind;
  int peer;
  Purpose purpose;
  bool operator==(const Made&) const = default;
};
void PrintTo(const Made& made, std::ostream* out) {
  *out << to_string(made.kind) << " " << to_string(made.purpose) << " peer " << made.peer;
}
using MadeByRank = std::vector<std::vector<Made>>;

// Calls come late by a random number of yields. `skip`: asked about each call that is made.
LocalOptions watched(MadeByRank& made, SendMode mode, std::function<bool(const HookedCall&)> skip = nullptr) {
  LocalOptions options;
  options.timeout_s = 30;
  options.send_mode = mode;
  options.hook = [&made, skip](HookedCall& call) {
    if (call.point == HookPoint::kCalled) {
      if (call.record.peer >= 0)
        made[static_cast<size_t>(call.rank)].push_back({call.record.kind, call.record.peer, call.record.purpose});
      if (skip) call.skip = skip(call);
      return;
    }
    thread_local uint32_t state = 977 + static_cast<uint32_t>(call.rank);
    state = state * 1664525u + 1013904223u;
    for (uint32_t i = 0; i < (state >> 8) % 16; ++i) std::this_thread::yield();
  };
  return options;
}

void run_stage(const Program& program, Communicator& communicator, BorderExecutor& executor, int steps) {
  std::vector<int> ranks(static_cast<size_t>(communicator.size()));
  for (int r = 0; r < communicator.size(); ++r) ranks[static_cast<size_t>(r)] = r;
  const int rank = communicator.rank();
  const Interpreter::Groups groups{.world = communicator.world(),
                                   .data = communicator.create_group(GroupKind::kDpCp, rank, {rank}),
                                   .shard = communicator.create_group(GroupKind::kShard, rank, {rank}),
                                   .replicate = communicator.create_group(GroupKind::kReplicate, rank, {rank}),
                                   .pipeline = communicator.create_group(GroupKind::kPp, 0, ranks)};
  Interpreter interpreter(communicator, groups, {.zero = 0, .shards = 1, .replicas = 1}, executor);
  for (int step = 0; step < steps; ++step) interpreter.run_step(program);
}

// The transfers of a schedule, rank by rank.
MadeByRank transfers_of(const Schedule& schedule) {
  MadeByRank result(schedule.ranks.size());
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    for (const ScheduleAction& action : schedule.ranks[rank]) {
      if (!is_transfer(action.op)) continue;
      const bool forward = action.op == ScheduleOp::kSendForward || action.op == ScheduleOp::kRecvForward;
      result[rank].push_back({is_send(action.op) ? CollectiveKind::kSend : CollectiveKind::kRecv, action.peer,
                              forward ? Purpose::kActivations : Purpose::kActivationGradients});
    }
  return result;
}

constexpr Pipeline kPipelines[] = {
    {ScheduleKind::kNaive, 3, 1, 2},       {ScheduleKind::kGPipe, 3, 1, 4},    {ScheduleKind::k1F1B, 2, 1, 1},
    {ScheduleKind::k1F1B, 4, 1, 6},        {ScheduleKind::kZb1p, 4, 1, 6},     {ScheduleKind::kZb2p, 3, 1, 5},
    {ScheduleKind::kInterleaved, 2, 2, 4}, {ScheduleKind::kZbv, 3, 2, 5},      {ScheduleKind::kVHalf, 2, 2, 4},
    {ScheduleKind::kVMin, 3, 2, 4},        {ScheduleKind::kDualPipeV, 2, 2, 6}};

// Of one kind and peer, and all sends: what other places of receives must not change.
std::vector<Made> among(const std::vector<Made>& all, CollectiveKind kind, int peer = -1) {
  std::vector<Made> result;
  for (const Made& made : all)
    if (made.kind == kind && (peer < 0 || made.peer == peer)) result.push_back(made);
  return result;
}

// Every rank makes its schedule's transfers in their order where sends wait for their receives. Where they do not,
// sends are in order, and so are the receives from one rank; every unit runs once a microbatch on what belongs to it;
// what was sent is freed once.
TEST(InterpreterPipeline, TransfersComeInTheOrderOfTheSchedule) {
  for (const SendMode mode : {SendMode::kBuffered, SendMode::kRendezvous})
    for (const Pipeline& p : kPipelines) {
      SCOPED_TRACE(name(p));
      const Lowered plan = lowered(p, mode);
      MadeByRank made(static_cast<size_t>(p.stages));
      std::mutex mutex;
      std::map<std::pair<int, int>, int> forwards, backwards;
      run_ranks(p.stages, watched(made, mode), [&](int rank, Communicator& communicator) {
        BorderExecutor executor(rank, {});
        run_stage(plan.programs[static_cast<size_t>(rank)], communicator, executor, 1);
        int sent = 0;
        for (const ScheduleAction& action : plan.schedule.ranks[static_cast<size_t>(rank)]) sent += is_send(action.op);
        EXPECT_EQ(executor.freed, sent);
        const std::lock_guard lock(mutex);
        for (const auto& [key, count] : executor.forwards) forwards[key] += count;
        for (const auto& [key, count] : executor.backwards) backwards[key] += count;
      });
      const MadeByRank right = transfers_of(plan.schedule);
      if (mode == SendMode::kRendezvous) EXPECT_EQ(made, right);
      for (size_t rank = 0; rank < right.size(); ++rank) {
        EXPECT_EQ(among(made[rank], CollectiveKind::kSend), among(right[rank], CollectiveKind::kSend));
        for (int peer = 0; peer < p.stages; ++peer)
          EXPECT_EQ(among(made[rank], CollectiveKind::kRecv, peer), among(right[rank], CollectiveKind::kRecv, peer));
      }
      for (int unit = 0; unit < kHead; ++unit)
        for (int microbatch = 0; microbatch < p.microbatches; ++microbatch) {
          EXPECT_EQ((forwards[{unit, microbatch}]), 1) << unit << " " << microbatch;
          EXPECT_EQ((backwards[{unit, microbatch}]), 1) << unit << " " << microbatch;
        }
      if (HasFailure()) return;
    }
}

// 1F1B of two microbatches on two stages whose exchange in the middle is joined:
//   rank 0: F0 S0 F1 [S1 and R0'] B0 R1' B1      rank 1: R0 F0 B0 [S0' and R1] F1 B1 S1'
// Sends wait for their receives. One after the other S1 would wait for R1 behind S0', and S0' for R0' behind S1.
TEST(InterpreterPipeline, JoinedTransfersAreIssuedTogether) {
  const auto compute = [](ScheduleOp op, int microbatch) { return ScheduleAction{.op = op, .microbatch = microbatch}; };
  const auto transfer = [](ScheduleOp op, int microbatch, int peer, bool joined = false) {
    return ScheduleAction{.op = op, .microbatch = microbatch, .peer = peer, .joined = joined};
  };
  Schedule schedule{.num_stages = 2, .num_microbatches = 2, .ranks = {}};
  schedule.ranks = {
      {compute(ScheduleOp::kForward, 0), transfer(ScheduleOp::kSendForward, 0, 1), compute(ScheduleOp::kForward, 1),
       transfer(ScheduleOp::kSendForward, 1, 1), transfer(ScheduleOp::kRecvBackward, 0, 1, true),
       compute(ScheduleOp::kBackward, 0), transfer(ScheduleOp::kRecvBackward, 1, 1), compute(ScheduleOp::kBackward, 1)},
      {transfer(ScheduleOp::kRecvForward, 0, 0), compute(ScheduleOp::kForward, 0), compute(ScheduleOp::kBackward, 0),
       transfer(ScheduleOp::kSendBackward, 0, 0), transfer(ScheduleOp::kRecvForward, 1, 0, true),
       compute(ScheduleOp::kForward, 1), compute(ScheduleOp::kBackward, 1), transfer(ScheduleOp::kSendBackward, 1, 0)}};
  const Lowered plan = lowered({ScheduleKind::k1F1B, 2, 1, 2}, SendMode::kRendezvous, &schedule);
  MadeByRank made(2);
  run_ranks(2, watched(made, SendMode::kRendezvous), [&](int rank, Communicator& communicator) {
    BorderExecutor executor(rank, {});
    run_stage(plan.programs[static_cast<size_t>(rank)], communicator, executor, 1);
  });
  const Made out{CollectiveKind::kSend, 1, Purpose::kActivations},
      back{CollectiveKind::kRecv, 1, Purpose::kActivationGradients};
  EXPECT_EQ(made[0], (std::vector<Made>{out, out, back, back}));
}

// A stage whose executor throws ends the step on every stage, and the error is that stage's.
TEST(InterpreterPipeline, E80FailingStageEndsTheRun) {
  for (const Pipeline& p : {Pipeline{ScheduleKind::k1F1B, 3, 1, 4}, Pipeline{ScheduleKind::kInterleaved, 2, 2, 4},
                            Pipeline{ScheduleKind::kZbv, 3, 2, 4}, Pipeline{ScheduleKind::kDualPipeV, 2, 2, 4}})
    for (int failing = 0; failing < p.stages; ++failing)
      for (const SendMode mode : {SendMode::kBuffered, SendMode::kRendezvous}) {
        SCOPED_TRACE(name(p) + " rank " + std::to_string(failing));
        const Lowered plan = lowered(p, mode);
        MadeByRank made(static_cast<size_t>(p.stages));
        std::atomic<int> finished = 0;
        try {
          run_ranks(p.stages, watched(made, mode), [&](int rank, Communicator& communicator) {
            BorderExecutor executor(rank, {.throwing_rank = failing});
            run_stage(plan.programs[static_cast<size_t>(rank)], communicator, executor, 1);
            ++finished;
          });
          ADD_FAILURE() << "ended as if nothing had happened";
        } catch (const RankError& error) {
          EXPECT_EQ(error.rank(), failing);
          EXPECT_NE(std::string(error.what()).find("no memory for the backward"), std::string::npos) << error.what();
        }
        EXPECT_EQ(finished, 0);
      }
}

// A stage that leaves its second send of activations out: whoever waits for it says so when the time is over.
TEST(InterpreterPipeline, E80StageThatNeverSendsIsNamed) {
  for (const Pipeline& p : {Pipeline{ScheduleKind::kGPipe, 3, 1, 4}, Pipeline{ScheduleKind::k1F1B, 3, 1, 4},
                            Pipeline{ScheduleKind::kZbv, 3, 2, 4}}) {
    SCOPED_TRACE(name(p));
    const Lowered plan = lowered(p, SendMode::kBuffered);
    MadeByRank made(static_cast<size_t>(p.stages));
    std::atomic<int> sends = 0;
    LocalOptions options = watched(made, SendMode::kBuffered, [&sends](const HookedCall& call) {
      const bool sends_activations =
          call.record.kind == CollectiveKind::kSend && call.record.purpose == Purpose::kActivations && call.rank == 1;
      return sends_activations && ++sends >= 2;
    });
    options.timeout_s = 0.5;
    try {
      run_ranks(p.stages, options, [&](int rank, Communicator& communicator) {
        BorderExecutor executor(rank, {.wrong_numbers_ok = true});
        run_stage(plan.programs[static_cast<size_t>(rank)], communicator, executor, 1);
      });
      ADD_FAILURE() << "ended as if nothing had happened";
    } catch (const RankError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      EXPECT_NE(text.find("pp[0]"), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace fivefold
