// Ranks that train: the same bits from run to run whatever the timing, failures that name their rank, and evaluation.
// Names E51... are those of the case list of reported faults.
#include "engine/session.h"

#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <thread>

#include "kernels/elementwise.h"
#include "support/rank_sessions.h"

namespace fivefold::testing {
namespace {

// Yields a random number of times before each call enters and before it touches data.
LocalOptions delayed(uint32_t seed) {
  LocalOptions options;
  options.hook = [seed](const HookedCall& call) {
    if (call.point == HookPoint::kCalled) return;
    thread_local uint32_t state = seed * 977 + static_cast<uint32_t>(call.rank);
    state = state * 1664525u + 1013904223u;
    for (uint32_t i = 0; i < (state >> 8) % 16; ++i) std::this_thread::yield();
  };
  return options;
}

// Two nodes of two ranks, with latencies of some calls' own length.
LocalOptions simulated() {
  NetworkSpec network{.name = "test", .devices_per_node = 2, .ports = 1};
  network.node_link.bytes_per_s.value = 1e9;
  network.node_link.latency_s.value = 2e-5;
  network.network.bytes_per_s.value = 1e8;
  network.network.latency_s.value = 1e-4;
  return {.simulate = network};
}

struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<std::vector<float>>> weights;  // by rank, unit
  bool operator==(const Trained&) const = default;
};

Trained train(const ProbeRequest& request, int steps, const LocalOptions& options) {
  Trained trained;
  trained.weights.resize(static_cast<size_t>(request.config.degrees.world()));
  run_sessions(request, options, [&](RankSession& session, const auto& microbatches, MemoryLedger&) {
    const auto rank = static_cast<size_t>(session.communicator().rank());
    for (int step = 1; step <= steps; ++step) {
      const StepOutcome outcome = session.step(microbatches, request.config.config.optimizer.lr, step);
      if (rank == 0) trained.losses.push_back(outcome.loss);
    }
    trained.weights[rank] = gather_all(session, RankSession::State::kMaster);
  });
  for (const auto& weights : trained.weights) EXPECT_EQ(weights, trained.weights[0]);
  return trained;
}

const Layout kLayouts[] = {{.dp = 4, .zero = 0},
                           {.dp = 4, .zero = 1, .accumulation = 2},
                           {.dp = 4, .zero = 2, .accumulation = 2},
                           {.dp = 4, .zero = 3},
                           {.dp = 4, .zero = 3, .shard_size = 2, .accumulation = 2, .recompute_every = 2},
                           {.dp = 4, .zero = 2, .shard_size = 2, .accumulation = 2, .compute = "bf16"}};

// Twenty steps on four ranks: three runs with calls delayed at random, one of them under rendezvous and one with every
// new buffer full of NaN, and one on a simulated network end with the same losses and weights to the bit.
TEST(Session, E51RunsAreTheSameBitsWhateverTheTiming) {
  const ModelSpec model = tiny_model(TinyKind::kTiedQwen3, 3);
  const GlobalBatch batch = ragged_batch(model, {16, 3, 0, 7, 12, 5, 1, 9});
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name());
    const auto request = [&](const std::string& rendezvous) {
      const GlobalBatch rows = layout.accumulation == 2 ? batch : select_rows(batch, {0, 1, 2, 3});
      return tiny_request(
          model, rows, layout,
          {"optimizer.kind=adamw", "optimizer.lr=1e-2", "optimizer.clip=1", "comm.rendezvous=" + rendezvous});
    };
    const Trained first = train(request("false"), 20, delayed(1));
    EXPECT_LT(first.losses.back(), first.losses.front());
    EXPECT_EQ(train(request("true"), 20, delayed(2)), first);
    EXPECT_EQ(train(request("false"), 20, simulated()), first);
    const PoisonedAllocations poisoned;
    EXPECT_EQ(train(request("false"), 20, delayed(3)), first);
  }
}

// Twenty repeats of a few steps with gradients in flight behind the backward, over poisoned buffers.
TEST(Session, E53OverlappedReductionsReadFinishedGradients) {
  const ModelSpec model = tiny_model(TinyKind::kLlama, 2);
  const GlobalBatch batch = ragged_batch(model, {16, 3, 0, 7});
  const PoisonedAllocations poisoned;
  for (const int zero : {0, 1, 2, 3}) {
    const ProbeRequest request =
        tiny_request(model, batch, {.dp = 2, .zero = zero, .accumulation = 2}, {"optimizer.lr=0.05"});
    const Trained first = train(request, 5, {});
    for (uint32_t repeat = 1; repeat <= 20; ++repeat) ASSERT_EQ(train(request, 5, delayed(repeat)), first) << zero;
  }
}

// The step works with the rounded masters, on every rank, whoever owns them.
TEST(Session, WorkingWeightsAreTheRoundedMasters) {
  const ModelSpec model = tiny_model(TinyKind::kGpt2);
  const GlobalBatch batch = ragged_batch(model, {16, 3, 0, 7});
  for (const int zero : {0, 1, 2, 3}) {
    for (const int shard_size : {0, 2}) {
      if (zero == 0 && shard_size > 0) continue;
      const Layout layout{.dp = 4, .zero = zero, .shard_size = shard_size, .compute = "bf16"};
      SCOPED_TRACE(layout.name());
      const ProbeRequest request = tiny_request(model, batch, layout, {"optimizer.kind=adamw", "optimizer.lr=1e-2"});
      run_sessions(request, {}, [&](RankSession& session, const auto& microbatches, MemoryLedger&) {
        for (int step = 1; step <= 3; ++step) session.step(microbatches, 1e-2, step);
        for (int unit = 0; unit < session.executor().inventory().num_units(); ++unit) {
          const std::vector<float> masters = session.gather(unit, RankSession::State::kMaster);
          const UnitBuffers& buffers = session.executor().buffers(unit);
          const at::Tensor working = zero == 3 ? buffers.params_shard() : buffers.params();
          const size_t begin = zero == 3 ? static_cast<size_t>(working.numel() * session.groups().shard.rank()) : 0;
          std::vector<kernels::BFloat16> rounded(static_cast<size_t>(working.numel()));
          kernels::convert(masters.data() + begin, rounded.data(), working.numel(), 1);
          EXPECT_EQ(std::memcmp(rounded.data(), working.data_ptr(), working.nbytes()), 0) << buffers.unit().name;
        }
      });
    }
  }
}

// One rank of four meets its memory limit in the middle of a step: the run ends with that rank and what was live.
TEST(Session, E80OutOfMemoryOnOneRankEndsTheRun) {
  const ModelSpec model = tiny_model(TinyKind::kLlama);
  const ProbeRequest request =
      tiny_request(model, ragged_batch(model, {16, 3, 0, 7}), {.dp = 4, .zero = 3}, {"comm.timeout_s=30"});
  install_counting_allocator();
  const Inventory inventory = build_inventory(model);
  int64_t set_up = 0;
  run_sessions(request, {}, [&](RankSession& session, const auto&, MemoryLedger& ledger) {
    if (session.communicator().rank() == 2) set_up = ledger.live().total();
  });
  try {
    run_ranks(4, {.timeout_s = 30}, [&](int rank, Communicator& communicator) {
      // Room for the embedding, not for the layers.
      MemoryLedger ledger(rank == 2 ? set_up + 20000 : 0);
      const RankThread thread(ledger, 1);
      RankSession session(model, inventory, request.config, communicator);
      session.executor().initialize_weights(7);
      session.step(rank_microbatches(request.batch, request.config, session.data_rank()), 0, 1);
      ADD_FAILURE() << "rank " << rank << " finished a step that rank 2 cannot take part in";
    });
    ADD_FAILURE() << "ended as if nothing had happened";
  } catch (const RankError& error) {
    EXPECT_EQ(error.rank(), 2);
    EXPECT_NE(std::string(error.what()).find("rank 2: out of memory"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("params"), std::string::npos) << error.what();
  }
}

// What a refused step leaves behind: the weights and moments of before, to the bit; the next step is as if it had not
// been.
TEST(Session, RefusedStepLeavesNoTrace) {
  const ModelSpec model = tiny_model(TinyKind::kLlama);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name());
    const GlobalBatch batch = ragged_batch(model, std::vector<int64_t>{16, 3, 0, 7, 2, 9, 11, 4});
    const ProbeRequest request =
        tiny_request(model, layout.accumulation == 2 ? batch : select_rows(batch, {0, 1, 2, 3}), layout,
                     {"optimizer.kind=adamw", "optimizer.lr=1e-2"});
    run_sessions(request, {}, [&](RankSession& session, const auto& microbatches, MemoryLedger&) {
      const auto states = [&] {
        return std::vector{gather_all(session, RankSession::State::kMaster),
                           gather_all(session, RankSession::State::kMoment1),
                           gather_all(session, RankSession::State::kMoment2)};
      };
      session.step(microbatches, 1e-2, 1);
      const auto before = states();
      const StepOutcome refused = session.step(microbatches, 1e-2, 2, [](double, double) { return false; });
      EXPECT_FALSE(refused.updated);
      EXPECT_EQ(states(), before);
      const StepOutcome taken = session.step(microbatches, 1e-2, 2);
      EXPECT_EQ(taken.loss, refused.loss);
      EXPECT_EQ(taken.grad_norm, refused.grad_norm);
      EXPECT_NE(states(), before);
    });
  }
}

TEST(Session, EvaluationIsTheTrainingLossWithoutGradients) {
  for (const TinyKind kind : kTinyKinds) {
    const ModelSpec model = tiny_model(kind);
    for (const Layout& layout : {Layout{.dp = 1, .zero = 0}, Layout{.dp = 2, .zero = 1}, Layout{.dp = 2, .zero = 3}}) {
      SCOPED_TRACE(to_string(kind) + " " + layout.name());
      const std::vector<int64_t> valid = layout.dp == 1 ? std::vector<int64_t>{13} : std::vector<int64_t>{13, 4};
      std::mutex mutex;
      double sum = 0, trained = 0;
      int64_t tokens = 0;
      run_sessions(tiny_request(model, ragged_batch(model, valid), layout), {},
                   [&](RankSession& session, const auto& microbatches, MemoryLedger& ledger) {
                     session.step(microbatches, 0.05, 1);
                     const auto evaluation = session.evaluate(microbatches[0]);
                     const int64_t live = ledger.live()[Account::kActivations];
                     const double loss = session.step(microbatches, 0, 2).loss;
                     const std::lock_guard lock(mutex);
                     sum += evaluation.loss_sum;
                     tokens += evaluation.valid_tokens;
                     trained = loss;
                     EXPECT_EQ(live, 0);
                   });
      EXPECT_EQ(tokens, layout.dp == 1 ? 13 : 17);
      EXPECT_DOUBLE_EQ(sum / static_cast<double>(tokens), trained);
    }
  }
}

}  // namespace
}  // namespace fivefold::testing
