// The interpreter over real collectives and an executor of integers (interpreter_testing.h). Threads are delayed by a
// random number of yields before each call enters and before it touches data. Names E53... are those of the case list
// of reported faults.
#include "runtime/interpreter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "comm/local_world.h"
#include "runtime/interpreter_testing.h"

namespace fivefold {
namespace {

Inventory tiny_inventory(bool tied) {
  ModelSpec model;
  model.hidden = 16;
  model.vocab = 40;
  model.tied_embeddings = tied;
  LayerSpec layer;
  layer.mixer.num_heads = layer.mixer.num_kv_heads = 2;
  layer.mixer.head_dim = layer.mixer.rope.rotary_dim = 8;
  layer.mlp.ffn = 24;
  model.layers.assign(3, layer);
  return build_inventory(model);
}

struct Layout {
  bool tied = false;
  int ranks = 4, zero = 0, shards = 1, microbatches = 1;
  bool wider_grads = false;  // the accumulated gradient has another type than the computed one
  int recompute_every = 0, prefetch = 1, bucket_layers = 1;
  bool reduces_once = false;

  std::string name() const {
    return "ranks " + std::to_string(ranks) + " zero " + std::to_string(zero) + " shards " + std::to_string(shards) +
           " microbatches " + std::to_string(microbatches) + (tied ? " tied" : "") + (wider_grads ? " wider" : "") +
           " recompute " + std::to_string(recompute_every) + " prefetch " + std::to_string(prefetch) + " bucket " +
           std::to_string(bucket_layers) + (reduces_once ? " once" : "");
  }
  ShardingPolicy policy() const {
    ShardingPolicy policy{.zero = zero, .shards = shards, .replicas = ranks / shards, .reduces_once = reduces_once};
    if (wider_grads) policy.compute = DType::kBFloat16;
    return policy;
  }
};

LocalOptions delayed(uint32_t seed) {
  LocalOptions options;
  options.timeout_s = 30;
  options.hook = [seed](const HookedCall& call) {
    if (call.point == HookPoint::kCalled) return;
    thread_local uint32_t state = seed * 977 + static_cast<uint32_t>(call.rank);
    state = state * 1664525u + 1013904223u;
    for (uint32_t i = 0; i < (state >> 8) % 24; ++i) std::this_thread::yield();
  };
  return options;
}

using Body = std::function<void(Interpreter&, IntegerExecutor&, const Program&, Communicator&)>;

void run_on_ranks(const Layout& run, const Body& body, const Faults& faults = {}, uint32_t seed = 1) {
  const Inventory inventory = tiny_inventory(run.tied);
  const ShardingPolicy policy = run.policy();
  const Program program = lower(sequential_schedule(run.microbatches), inventory,
                                {.sharding = policy,
                                 .recompute_every = run.recompute_every,
                                 .bucket_layers = run.bucket_layers,
                                 .prefetch = run.prefetch});
  run_ranks(run.ranks, delayed(seed), [&](int rank, Communicator& communicator) {
    std::vector<int> data, shard, replicate;
    for (int r = 0; r < run.ranks; ++r) {
      data.push_back(r);
      if (r / run.shards == rank / run.shards) shard.push_back(r);
      if (r % run.shards == rank % run.shards) replicate.push_back(r);
    }
    const Interpreter::Groups groups{
        .world = communicator.world(),
        .data = communicator.create_group(GroupKind::kDpCp, data[0], data),
        .shard = communicator.create_group(GroupKind::kShard, shard[0], shard),
        .replicate = communicator.create_group(GroupKind::kReplicate, replicate[0], replicate)};
    IntegerExecutor executor(inventory, policy, rank, groups.shard.rank(), faults);
    Interpreter interpreter(communicator, groups, policy, executor);
    body(interpreter, executor, program, communicator);
  });
}

std::vector<Layout> every_policy() {
  std::vector<Layout> runs;
  for (const bool tied : {false, true}) {
    for (const int microbatches : {1, 3}) {
      for (const int ranks : {1, 3, 4}) {
        runs.push_back({.tied = tied, .ranks = ranks, .zero = 0, .shards = 1, .microbatches = microbatches});
        runs.push_back({.tied = tied,
                        .ranks = ranks,
                        .zero = 1,
                        .shards = ranks,
                        .microbatches = microbatches,
                        .wider_grads = true});
        for (const int zero : {1, 2, 3})
          runs.push_back({.tied = tied, .ranks = ranks, .zero = zero, .shards = ranks, .microbatches = microbatches});
      }
      for (const int zero : {1, 2, 3})
        runs.push_back({.tied = tied, .ranks = 4, .zero = zero, .shards = 2, .microbatches = microbatches});
      for (const int zero : {0, 1, 2, 3})
        for (const int bucket : {2, 3})
          runs.push_back({.tied = tied,
                          .ranks = 4,
                          .zero = zero,
                          .shards = zero == 0 ? 1 : 2,
                          .microbatches = microbatches,
                          .wider_grads = bucket == 3,
                          .bucket_layers = bucket});
      for (const bool wider : {false, true})
        runs.push_back({.tied = tied,
                        .ranks = 4,
                        .zero = 3,
                        .shards = 2,
                        .microbatches = microbatches,
                        .wider_grads = wider,
                        .bucket_layers = wider ? 1 : 2,
                        .reduces_once = true});
      for (const int prefetch : {0, 2, 5})
        runs.push_back({.tied = tied,
                        .ranks = 4,
                        .zero = 3,
                        .shards = 4,
                        .microbatches = microbatches,
                        .recompute_every = 2,
                        .prefetch = prefetch});
    }
  }
  return runs;
}

// E53, E54, E19: under every level, with calls delayed at random, each rank's shard of the gradient is the sum over all
// ranks and microbatches, each weight that is read is that of the last step, and the norm counts each element once.
TEST(Interpreter, ReducesAndGathersExactlyUnderEveryPolicy) {
  uint32_t seed = 1;
  for (const Layout& run : every_policy()) {
    SCOPED_TRACE(run.name());
    const Inventory inventory = tiny_inventory(run.tied);
    run_on_ranks(
        run,
        [&](Interpreter& interpreter, IntegerExecutor& executor, const Program& program, Communicator&) {
          double squares = 0;
          for (int unit = 0; unit < inventory.num_units(); ++unit) {
            const int64_t full = inventory.units[static_cast<size_t>(unit)].padded_numel(run.shards);
            for (int64_t i = 0; i < full; ++i)
              squares += std::pow(executor.total(unit, static_cast<size_t>(i), run.ranks, run.microbatches), 2);
          }
          for (int step = 0; step < 4; ++step) {
            executor.expect_weights(step, run.ranks, run.microbatches);
            const StepOutcome outcome = interpreter.run_step(program);
            EXPECT_TRUE(outcome.updated);
            EXPECT_EQ(outcome.valid_tokens, kTokens * run.ranks * run.microbatches);
            EXPECT_EQ(outcome.loss, 2.5);
            EXPECT_EQ(outcome.grad_norm, std::sqrt(squares));
            EXPECT_EQ(executor.global_tokens, outcome.valid_tokens);
            EXPECT_EQ(executor.norm, outcome.grad_norm);
          }
          interpreter.finish_parameter_gathers();
          EXPECT_EQ(executor.wrong_reads(), 0);
        },
        {}, seed++);
    if (HasFailure()) return;
  }
}

// E88: an update follows exactly its microbatches, in every step; a refused step and one without valid tokens is none.
TEST(Interpreter, E88UpdatesFollowTheirMicrobatches) {
  const Layout run{.ranks = 2, .zero = 2, .shards = 2, .microbatches = 5};
  run_on_ranks(run, [&](Interpreter& interpreter, IntegerExecutor& executor, const Program& program, Communicator&) {
    int asked = 0;
    for (const bool accept : {true, false, true}) {
      executor.expect_weights(asked == 2 ? 1 : asked, run.ranks, run.microbatches);
      const StepOutcome outcome = interpreter.run_step(program, [&](double loss, double norm) {
        ++asked;
        EXPECT_EQ(loss, 2.5);
        EXPECT_EQ(norm, executor.norm);
        return accept;
      });
      EXPECT_EQ(outcome.updated, accept);
    }
    EXPECT_EQ(asked, 3);
    EXPECT_EQ(executor.wrong_reads(), 0);
    // Five, then the refused step's five and the next one's.
    EXPECT_EQ(executor.backwards_per_update, (std::vector<int>{5, 10, 0}));
    for (int unit = 0; unit < 5; ++unit) EXPECT_EQ(executor.calls["step " + std::to_string(unit)], 2);
    for (int unit = 0; unit < 4; ++unit) EXPECT_EQ(executor.calls["forward " + std::to_string(unit)], 15);
  });
  Faults empty;
  empty.valid_tokens = 0;
  run_on_ranks(
      run,
      [&](Interpreter& interpreter, IntegerExecutor& executor, const Program& program, Communicator&) {
        executor.expect_weights(0, run.ranks, run.microbatches);
        const StepOutcome outcome = interpreter.run_step(program, [](double, double) {
          ADD_FAILURE() << "asked about a step without tokens";
          return true;
        });
        EXPECT_FALSE(outcome.updated);
        EXPECT_EQ(outcome.loss, 0);
        EXPECT_EQ(executor.calls.count("step 0"), 0u);
      },
      empty);
}

// E80: what one rank's executor throws ends the run under that rank's name, whatever the others wait for.
TEST(Interpreter, E80ThrowingExecutorEndsTheRun) {
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    const Layout run{.ranks = 4, .zero = zero, .shards = zero == 0 ? 1 : 4, .microbatches = 2};
    std::atomic<int> finished = 0;
    try {
      run_on_ranks(run,
                   [&](Interpreter& interpreter, IntegerExecutor& executor, const Program& program, Communicator&) {
                     executor.expect_weights(0, run.ranks, run.microbatches);
                     interpreter.run_step(program);
                     ++finished;
                   },
                   {.throwing_rank = 2});
      ADD_FAILURE() << "ended as if nothing had happened";
    } catch (const RankError& error) {
      EXPECT_EQ(error.rank(), 2);
      EXPECT_EQ(std::string(error.what()).find("rank 2: no memory for unit 2\n"), 0u) << error.what();
    }
    EXPECT_EQ(finished, 0);
  }
}

// One rank wants to stop: all of them learn of it in the same step.
TEST(Interpreter, WishToStopReachesEveryRank) {
  std::mutex mutex;
  std::vector<std::vector<bool>> stops;
  run_on_ranks({.ranks = 3, .zero = 1, .shards = 3}, [&](Interpreter& interpreter, IntegerExecutor& executor,
                                                         const Program& program, Communicator& communicator) {
    std::vector<bool> mine;
    for (int step = 0; step < 3; ++step) {
      executor.expect_weights(step, 3, 1);
      mine.push_back(interpreter.run_step(program, nullptr, step == 1 && communicator.rank() == 2).stop_requested);
    }
    const std::lock_guard lock(mutex);
    stops.push_back(mine);
  });
  EXPECT_EQ(stops, std::vector<std::vector<bool>>(3, {false, true, false}));
}

TEST(Interpreter, RecordsWhenEachInstructionRan) {
  run_on_ranks({.ranks = 2, .zero = 3, .shards = 2},
               [&](Interpreter& interpreter, IntegerExecutor& executor, const Program& program, Communicator&) {
                 executor.expect_weights(0, 2, 1);
                 interpreter.run_step(program);
                 ASSERT_EQ(interpreter.times().size(), program.instructions.size());
                 double last = 0;
                 for (const InstructionTime& time : interpreter.times()) {
                   EXPECT_LE(last, time.begin_s);
                   EXPECT_LE(time.begin_s, time.end_s);
                   EXPECT_GE(time.cpu_s, 0);
                   last = time.end_s;
                 }
               });
}

}  // namespace
}  // namespace fivefold
