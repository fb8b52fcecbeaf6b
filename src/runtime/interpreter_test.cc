// The interpreter over real collectives and an executor of integers: a gradient is a known whole number for each rank,
// microbatch and element, so every sum is exact; what is not gathered or has been freed reads as NaN. Threads are
// delayed by a random number of yields before each call enters and before it touches data. Names E53... are those of
// the case list of reported faults.
#include "runtime/interpreter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "comm/local_world.h"

namespace fivefold {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr int kTiedOutput = 100;  // stands for the unit in the gradient that the loss adds to a tied embedding
constexpr int64_t kTokens = 3;    // valid tokens of each microbatch

double first_weight(int unit, size_t i) { return static_cast<double>((static_cast<size_t>(unit) * 3 + i) % 13); }
double gradient(int rank, int microbatch, int unit, size_t i) {
  return static_cast<double>((static_cast<size_t>(rank * 7 + microbatch * 5 + unit * 3) + i) % 11) - 5;
}

struct Faults {
  int throwing_rank = -1;  // throws in the backward of unit 2
  int64_t valid_tokens = kTokens;
};

class IntegerExecutor final : public StageExecutor {
 public:
  IntegerExecutor(const Inventory& inventory, const ShardingPolicy& policy, int rank, int shard, const Faults& faults)
      : inventory_(inventory),
        policy_(policy),
        rank_(rank),
        shard_(shard),
        faults_(faults),
        units_(static_cast<size_t>(inventory.num_units())) {
    for (int unit = 0; unit < inventory.num_units(); ++unit) {
      UnitState& state = at(unit);
      state.params.resize(policy.shards_params() ? part(unit) : full(unit));
      for (size_t i = 0; i < state.params.size(); ++i)
        state.params[i] = static_cast<float>(first_weight(unit, i + (policy.shards_params() ? first(unit) : 0)));
      state.grads.assign(policy.shards_grads() ? part(unit) : full(unit), kPoison);
    }
  }

  // Global ranks' gradient of one step; tied matrices have two contributions.
  double total(int unit, size_t i, int ranks, int microbatches) const {
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank)
      for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
        sum += gradient(rank, microbatch, unit, i);
        if (unit == 0 && inventory_.tied_embeddings) sum += gradient(rank, microbatch, kTiedOutput, i);
      }
    return sum;
  }
  // Weights that every read expects: those after `steps` steps of w += gradient.
  void expect_weights(int steps, int ranks, int microbatches) {
    steps_ = steps;
    ranks_ = ranks;
    microbatches_ = microbatches;
  }
  int64_t wrong_reads() const { return wrong_reads_; }
  std::map<std::string, int> calls;  // "forward 2", ...
  std::vector<int> backwards_per_update{0};

  // ---- StageExecutor ----
  void forward(int unit, int, Keep) override {
    ++calls["forward " + std::to_string(unit)];
    read(unit);
  }
  void recompute(int unit, int, bool) override {
    ++calls["recompute " + std::to_string(unit)];
    read(unit);
  }
  void loss(int unit, int microbatch, bool accumulate) override {
    read(unit);
    if (inventory_.tied_embeddings) {
      read(0);
      write(0, kTiedOutput, microbatch, accumulate && !policy_.transient_grads());
    }
    write(unit, unit, microbatch, accumulate && !policy_.transient_grads());
    ++backwards_per_update.back();
  }
  void backward(int unit, int microbatch, bool accumulate) override {
    if (unit == 2 && rank_ == faults_.throwing_rank) throw std::runtime_error("no memory for unit 2");
    if (unit != 0) read(unit);
    const bool add = (accumulate && !policy_.transient_grads()) || (unit == 0 && inventory_.tied_embeddings);
    write(unit, unit, microbatch, add);
  }
  void accumulate_grads(int unit, bool accumulate) override {
    UnitState& state = at(unit);
    for (size_t i = 0; i < state.grads.size(); ++i)
      state.grads[i] = (accumulate ? state.grads[i] : 0) + state.transient[i];
    free_transient_grads(unit);
  }
  void optimizer_step(int unit) override {
    ++calls["step " + std::to_string(unit)];
    UnitState& state = at(unit);
    const size_t params = policy_.shards_params() ? 0 : first(unit), grads = policy_.shards_grads() ? 0 : first(unit);
    for (size_t i = 0; i < part(unit); ++i) state.params[params + i] += state.grads[grads + i];
    if (unit == inventory_.num_units() - 1) backwards_per_update.push_back(0);
  }
  void allocate_unsharded(int unit) override { at(unit).unsharded.assign(full(unit), kPoison); }
  void free_unsharded(int unit) override { poison(at(unit).unsharded); }
  void allocate_transient_grads(int unit) override {
    EXPECT_TRUE(at(unit).transient.empty());
    at(unit).transient.assign(full(unit), kPoison);
  }
  void free_transient_grads(int unit) override {
    poison(at(unit).transient);
    at(unit).transient.clear();
  }
  Buffer unsharded_params(int unit) override { return buffer(at(unit).unsharded); }
  Buffer params(int unit) override { return buffer(at(unit).params); }
  Buffer transient_grads(int unit) override { return buffer(at(unit).transient); }
  Buffer grads(int unit) override { return buffer(at(unit).grads); }
  int64_t local_valid_tokens() const override { return faults_.valid_tokens * microbatches_; }
  void set_global_valid_tokens(int64_t tokens) override { global_tokens = tokens; }
  double local_loss_sum() const override { return 2.5 * static_cast<double>(faults_.valid_tokens * microbatches_); }
  double local_squared_grad_norm() override {
    double sum = 0;
    for (int unit = 0; unit < inventory_.num_units(); ++unit)
      for (size_t i = 0; i < part(unit); ++i) {
        const double g = at(unit).grads[i + (policy_.shards_grads() ? 0 : first(unit))];
        const double right = total(unit, first(unit) + i, ranks_, microbatches_);
        wrong_reads_ += !(g == right);
        sum += g * g;
      }
    return sum;
  }
  void set_grad_norm(double value) override { norm = value; }

  int64_t global_tokens = 0;
  double norm = 0;

 private:
  struct UnitState {
    std::vector<float> params, grads, unsharded, transient;
  };
  UnitState& at(int unit) { return units_[static_cast<size_t>(unit)]; }
  size_t full(int unit) const {
    return static_cast<size_t>(inventory_.units[static_cast<size_t>(unit)].padded_numel(policy_.shards));
  }
  size_t part(int unit) const { return full(unit) / static_cast<size_t>(policy_.shards); }
  size_t first(int unit) const { return part(unit) * static_cast<size_t>(shard_); }
  static Buffer buffer(std::vector<float>& values) {
    return {values.data(), static_cast<int64_t>(values.size() * sizeof(float)), DType::kFloat32, {}};
  }
  static void poison(std::vector<float>& values) { std::fill(values.begin(), values.end(), kPoison); }
  // The memory of the weights stays allocated, so that a read after the free is seen and not undefined.
  void read(int unit) {
    const std::vector<float>& weights = policy_.shards_params() ? at(unit).unsharded : at(unit).params;
    for (size_t i = 0; i < full(unit); ++i) {
      const double right = first_weight(unit, i) + (steps_ > 0 ? steps_ * total(unit, i, ranks_, microbatches_) : 0);
      wrong_reads_ += !(i < weights.size() && weights[i] == right);
    }
  }
  void write(int unit, int source, int microbatch, bool add) {
    std::vector<float>& grads = policy_.transient_grads() ? at(unit).transient : at(unit).grads;
    ASSERT_EQ(grads.size(), full(unit));
    for (size_t i = 0; i < grads.size(); ++i)
      grads[i] = static_cast<float>((add ? grads[i] : 0.0) + gradient(rank_, microbatch, source, i));
  }

  const Inventory& inventory_;
  ShardingPolicy policy_;
  int rank_, shard_;
  Faults faults_;
  std::vector<UnitState> units_;
  int steps_ = 0, ranks_ = 1, microbatches_ = 1;
  int64_t wrong_reads_ = 0;
};

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
  int recompute_every = 0, prefetch = 1;

  std::string name() const {
    return "ranks " + std::to_string(ranks) + " zero " + std::to_string(zero) + " shards " + std::to_string(shards) +
           " microbatches " + std::to_string(microbatches) + (tied ? " tied" : "") + (wider_grads ? " wider" : "") +
           " recompute " + std::to_string(recompute_every) + " prefetch " + std::to_string(prefetch);
  }
  ShardingPolicy policy() const {
    ShardingPolicy policy{.zero = zero, .shards = shards, .replicas = ranks / shards};
    if (wider_grads) policy.compute = DType::kBFloat16;
    return policy;
  }
};

LocalOptions delayed(uint32_t seed) {
  LocalOptions options;
  options.timeout_s = 30;
  options.hook = [seed](HookPoint, int rank, const CallRecord&) {
    thread_local uint32_t state = seed * 977 + static_cast<uint32_t>(rank);
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
                                {.sharding = policy, .recompute_every = run.recompute_every, .prefetch = run.prefetch});
  run_ranks(run.ranks, delayed(seed), [&](int rank, Communicator& communicator) {
    std::vector<int> data, shard, replicate;
    for (int r = 0; r < run.ranks; ++r) {
      data.push_back(r);
      if (r / run.shards == rank / run.shards) shard.push_back(r);
      if (r % run.shards == rank % run.shards) replicate.push_back(r);
    }
    const Interpreter::Groups groups{communicator.create_group(GroupKind::kDpCp, data[0], data),
                                     communicator.create_group(GroupKind::kShard, shard[0], shard),
                                     communicator.create_group(GroupKind::kReplicate, replicate[0], replicate)};
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
      EXPECT_STREQ(error.what(), "rank 2: no memory for unit 2");
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
