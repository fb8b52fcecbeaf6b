// Worlds on a simulated network. A simulated delay is a lower bound of what a call takes, whatever the machine does;
// upper bounds only where one simulated delay is a multiple of another.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <ctime>
#include <latch>

#include "comm/comm_fault_support.h"
#include "comm/comm_test_support.h"
#include "comm/fault_injection.h"

namespace fivefold {
namespace {

using comm_test::buffer_of;
using comm_test::Ended;
using comm_test::expect_text;
using comm_test::Outcome;
using comm_test::run;

const CallOptions kAsync{.mode = Mode::kAsync};

// Nodes of `devices`, of which each reaches `node_bytes_per_s` in the node and `bytes_per_s` of the network, behind
// `ports` ports, with what is lost of the published rate added. Latencies in seconds.
struct Speeds {
  int64_t devices = 2, ports = 2;
  double node_bytes_per_s = 1e12, node_latency_s = 1e-9;
  double bytes_per_s = 1e12, latency_s = 1e-9;
};
NetworkSpec network(const Speeds& speeds) {
  NetworkSpec network{.name = "test", .devices_per_node = speeds.devices, .ports = speeds.ports};
  network.node_link.bytes_per_s.value = speeds.node_bytes_per_s / kLinkOfBandwidth;
  network.node_link.latency_s.value = speeds.node_latency_s;
  network.network.bytes_per_s.value = speeds.bytes_per_s / kLinkOfBandwidth;
  network.network.latency_s.value = speeds.latency_s;
  return network;
}

LocalOptions on(const Speeds& speeds, double timeout_s = 60) {
  return {.timeout_s = timeout_s, .simulate = network(speeds)};
}

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Seconds that rank 0 spends in `fn`, after a barrier.
double seconds_of(int n, const LocalOptions& options, const std::function<void(int, Communicator&)>& fn) {
  double seconds = 0;
  run_ranks(n, options, [&](int rank, Communicator& comm) {
    comm.barrier(comm.world(), Purpose::kControl);
    const Stopwatch watch;
    fn(rank, comm);
    if (rank == 0) seconds = watch.seconds();
  });
  return seconds;
}

// 4,000 bytes at 40 kB/s per device: each collective moves a half of them (an all-reduce, a broadcast and a send all).
TEST(LinkSimulation, ACallTakesNoLessThanTheFormula) {
  const LocalOptions options = on({.node_bytes_per_s = 40e3, .node_latency_s = 0.01});
  const auto took = [&](const std::function<void(int, Communicator&, std::vector<float>&, std::vector<float>&)>& fn,
                        size_t in, size_t out) {
    return seconds_of(2, options, [&](int rank, Communicator& comm) {
      std::vector<float> x(in, 1.0f), y(out);
      fn(rank, comm, x, y);
    });
  };
  EXPECT_GE(took([](int, Communicator& comm, auto& x,
                    auto&) { comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kLoss); },
                 1000, 0),
            0.02 + 0.1);
  EXPECT_GE(took([](int, Communicator& comm, auto& x,
                    auto& y) { comm.all_gather(comm.world(), buffer_of(x), buffer_of(y), Purpose::kLoss); },
                 500, 1000),
            0.01 + 0.05);
  EXPECT_GE(took(
                [](int, Communicator& comm, auto& x, auto& y) {
                  comm.reduce_scatter(comm.world(), buffer_of(x), buffer_of(y), Reduction::kSum, Purpose::kLoss);
                },
                1000, 500),
            0.01 + 0.05);
  EXPECT_GE(took([](int, Communicator& comm, auto& x,
                    auto& y) { comm.all_to_all(comm.world(), buffer_of(x), buffer_of(y), Purpose::kLoss); },
                 1000, 1000),
            0.01 + 0.05);
  // Ragged: rank 0 sends 900 of 1,000 elements, rank 1 keeps 100: an even call of the largest buffer, 1,000.
  EXPECT_GE(took(
                [](int rank, Communicator& comm, auto& x, auto& y) {
                  const std::vector<int64_t> send =
                      rank == 0 ? std::vector<int64_t>{100, 900} : std::vector<int64_t>{0, 100};
                  const std::vector<int64_t> receive =
                      rank == 0 ? std::vector<int64_t>{100, 0} : std::vector<int64_t>{900, 100};
                  x.resize(rank == 0 ? 1000 : 100);
                  y.resize(rank == 0 ? 100 : 1000);
                  comm.all_to_all(comm.world(), buffer_of(x), send, buffer_of(y), receive, Purpose::kLoss);
                },
                1000, 1000),
            0.01 + 0.05);
  EXPECT_GE(took([](int, Communicator& comm, auto& x,
                    auto&) { comm.broadcast(comm.world(), buffer_of(x), 0, Purpose::kLoss); },
                 1000, 0),
            0.01 + 0.1);
  EXPECT_GE(took([](int, Communicator& comm, auto&, auto&) { comm.barrier(comm.world(), Purpose::kLoss); }, 0, 0),
            0.02);
}

TEST(LinkSimulation, BothSidesOfASendTakeItsTime) {
  for (const SendMode mode : {SendMode::kBuffered, SendMode::kRendezvous}) {
    LocalOptions options = on({.node_bytes_per_s = 40e3, .node_latency_s = 0.01});
    options.send_mode = mode;
    double seconds[2] = {0, 0};
    run_ranks(2, options, [&](int rank, Communicator& comm) {
      std::vector<float> x(1000, static_cast<float>(rank + 1));
      comm.barrier(comm.world(), Purpose::kControl);
      const Stopwatch watch;
      if (rank == 0) comm.send(comm.world(), buffer_of(x), 1, Purpose::kActivations);
      if (rank == 1) comm.recv(comm.world(), buffer_of(x), 0, Purpose::kActivations);
      seconds[rank] = watch.seconds();
      EXPECT_EQ(x[999], 1.0f);
    });
    // The receiver may have left the barrier a moment after the sender.
    EXPECT_GE(seconds[0], 0.11);
    EXPECT_GE(seconds[1], 0.08);
  }
}

// Ranks 0 and 1 share a node, 0 and 2 do not.
TEST(LinkSimulation, WhatLeavesTheNodeCostsMore) {
  const LocalOptions options = on({.node_latency_s = 1e-3, .latency_s = 0.2});
  const auto took = [&](int peer) {
    return seconds_of(4, options, [peer](int rank, Communicator& comm) {
      if (rank != 0 && rank != peer) return;
      const Group pair = comm.create_group(GroupKind::kTp, peer, {0, peer});
      comm.barrier(pair, Purpose::kControl);
    });
  };
  const double inside = took(1), across = took(2);
  EXPECT_GE(inside, 2e-3);
  EXPECT_GE(across, 0.4);
  EXPECT_GT(across, 2 * inside);
}

// Ranks 0 and 1 each have a partner on the other node, to whom they send at the same time: over one port of the node,
// which carries 40 kB/s, 8,000 bytes take 0.2 s alone and 16,000 in all 0.4 s. With a port each at 20 kB/s it is 0.4 s
// whether the other sends or not.
TEST(LinkSimulation, TwoGroupsThatLeaveANodeTogetherShareItsLink) {
  const auto took = [](int64_t ports, int num_groups) {
    return seconds_of(4, on({.ports = ports, .bytes_per_s = 20e3}), [&](int rank, Communicator& comm) {
      const Group pair = comm.create_group(GroupKind::kDp, rank % 2, {rank % 2, rank % 2 + 2});
      std::vector<float> x(2000);
      if (rank % 2 < num_groups) comm.all_reduce(pair, buffer_of(x), Reduction::kSum, Purpose::kGradients);
    });
  };
  const double alone = took(1, 1), shared = took(1, 2);
  EXPECT_GE(alone, 0.2);
  EXPECT_GE(shared, 0.35);  // less what the other group was ahead or behind
  EXPECT_LT(alone, 0.75 * shared);
  EXPECT_GE(took(2, 1), 0.4);
}

// 4,000 bytes to and from the other rank, 0.3 s each: in one batch they go at the same time, in two calls they do not.
TEST(LinkSimulation, TransfersOfABatchAreUnderWayTogether) {
  const LocalOptions options = on({.node_bytes_per_s = 4000 / 0.3});
  std::vector<float> out(1000);
  const double batch = seconds_of(2, options, [&](int rank, Communicator& comm) {
    std::vector<float> in(1000);
    comm.batch_send_recv(
        comm.world(),
        {{CollectiveKind::kSend, buffer_of(out), 1 - rank}, {CollectiveKind::kRecv, buffer_of(in), 1 - rank}},
        Purpose::kActivations);
  });
  const double calls = seconds_of(2, options, [&](int rank, Communicator& comm) {
    std::vector<float> in(1000);
    if (rank == 1) comm.recv(comm.world(), buffer_of(in), 0, Purpose::kActivations);
    comm.send(comm.world(), buffer_of(out), 1 - rank, Purpose::kActivations);
    if (rank == 0) comm.recv(comm.world(), buffer_of(in), 1, Purpose::kActivations);
  });
  EXPECT_GE(batch, 0.3);
  EXPECT_GE(calls, 0.55);
  EXPECT_LT(batch, 0.75 * calls);
}

// Calls of one rank come one after the other.
TEST(LinkSimulation, CallsOfARankAddUp) {
  const double seconds = seconds_of(2, on({.node_latency_s = 0.02}), [](int, Communicator& comm) {
    std::vector<Work> works;
    for (int i = 0; i < 5; ++i) works.push_back(comm.barrier(comm.world(), Purpose::kControl, kAsync));
    for (const Work& work : works) work.wait_host();
  });
  EXPECT_GE(seconds, 5 * 0.04);
}

// 0.4 s of network beside 0.4 s of the caller's own time: together less than three quarters of one after the other.
TEST(LinkSimulation, AsyncCallsOverlapWithTheirCaller) {
  const LocalOptions options = on({.node_latency_s = 0.2});
  const double after = seconds_of(2, options, [](int, Communicator& comm) {
    comm.barrier(comm.world(), Purpose::kControl);
    sleep_s(0.4);
  });
  std::atomic<double> call_s{0};
  const double beside = seconds_of(2, options, [&](int rank, Communicator& comm) {
    const Stopwatch watch;
    const Work work = comm.barrier(comm.world(), Purpose::kControl, kAsync);
    if (rank == 0) call_s = watch.seconds();
    sleep_s(0.4);
    work.wait_host();
  });
  EXPECT_GE(after, 0.8);
  EXPECT_GE(beside, 0.4);
  EXPECT_LT(beside, 0.75 * after);
  EXPECT_LT(call_s, 0.25 * after);  // the caller does not wait
}

// Sleeping costs no processor time.
TEST(LinkSimulation, WaitingDoesNotSpin) {
  const auto cpu_s = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = cpu_s();
  const double seconds = seconds_of(4, on({.devices = 4, .ports = 4, .node_latency_s = 0.25}),
                                    [](int, Communicator& comm) { comm.barrier(comm.world(), Purpose::kControl); });
  EXPECT_GE(seconds, 1.0);
  EXPECT_LT(cpu_s() - before, 0.1);  // of at least 2 s in which a rank that spins takes what cores it gets
}

// A delay of an hour ends with the abort.
TEST(LinkSimulation, AbortWakesWhoeverWaitsForTheNetwork) {
  for (const bool collective : {true, false}) {
    const Stopwatch watch;
    const Outcome outcome =
        run(3, on({.devices = 3, .ports = 3, .node_latency_s = 3600}), [&](int rank, Communicator& comm) {
          const Group pair = rank < 2 ? comm.create_group(GroupKind::kTp, 0, {0, 1}) : comm.world();
          std::vector<float> x(10);
          if (rank == 2) {
            sleep_s(0.1);
            comm.abort("stop");
          } else if (collective) {
            comm.all_reduce(pair, buffer_of(x), Reduction::kSum, Purpose::kLoss);
          } else if (rank == 0) {
            comm.send(pair, buffer_of(x), 1, Purpose::kActivations);
          } else {
            comm.recv(pair, buffer_of(x), 0, Purpose::kActivations, kAsync).wait_host();
          }
        });
    EXPECT_EQ(outcome.error->rank(), 2);
    expect_text(outcome, "stop");
    EXPECT_EQ(outcome.num(Ended::kAborted), 2);
    EXPECT_LT(watch.seconds(), 60);
  }
}

// Rank 2 waits five times its timeout for rank 1, which is on the network with rank 0 for that long.
TEST(LinkSimulation, ASlowCallIsNotADeadRank) {
  run_ranks(
      3, on({.devices = 3, .ports = 3, .node_latency_s = 0.5}, /*timeout_s=*/0.2), [](int rank, Communicator& comm) {
        if (rank < 2) comm.barrier(comm.create_group(GroupKind::kTp, 0, {0, 1}), Purpose::kControl);
        std::vector<float> x(1);
        if (rank > 0)
          comm.all_reduce(comm.create_group(GroupKind::kDp, 0, {1, 2}), buffer_of(x), Reduction::kSum, Purpose::kLoss);
      });
}

TEST(LinkSimulation, ADeadRankIsFoundAfterTheNetworkIsQuiet) {
  const Stopwatch watch;
  std::latch ended(2);
  const Outcome outcome = run(3, on({.devices = 3, .ports = 3, .node_latency_s = 0.1}, /*timeout_s=*/0.2),
                              [&](int rank, Communicator& comm) {
                                comm.barrier(comm.world(), Purpose::kControl);
                                if (rank == 0) return ended.wait();
                                try {
                                  comm.barrier(comm.world(), Purpose::kControl);
                                } catch (...) {
                                  ended.count_down();
                                  throw;
                                }
                              });
  expect_text(outcome, "rank 0 never entered barrier #1 of world[0]; it is outside any call, after barrier #0");
  EXPECT_GE(watch.seconds(), 0.2 + 0.2);
}

TEST(LinkSimulation, ReportsSayWhoIsOnTheNetwork) {
  const Outcome outcome = run(2, on({.node_latency_s = 3600}), [&](int rank, Communicator& comm) {
    const Work work = comm.barrier(comm.world(), Purpose::kControl, kAsync);
    if (rank == 1) return void(work.wait_host());
    EXPECT_FALSE(work.wait_host(0.3));
    throw std::runtime_error("out of memory");
  });
  EXPECT_STREQ(outcome.error->what(),
               "rank 0: out of memory\nrank 0 was in barrier #0 of world[0], on the simulated network");
}

// The recorder's and the counters' times include the delay.
TEST(LinkSimulation, RecordedTimesIncludeTheNetwork) {
  run_ranks(2, on({.node_latency_s = 0.05}), [](int, Communicator& comm) {
    comm.barrier(comm.world(), Purpose::kControl);
    const CallRecord record = comm.flight_recorder().records().front();
    EXPECT_EQ(record.state, CallState::kDone);
    EXPECT_GE(record.ended_s - record.started_s, 0.1);
    EXPECT_GE(comm.counters().seconds(CollectiveKind::kBarrier), 0.1);
  });
}

// Values whose sum depends on the order of summation.
TEST(LinkSimulation, ResultsAreTheSameBits) {
  const auto results = [](const LocalOptions& options) {
    std::vector<std::vector<float>> all(4);
    run_ranks(4, options, [&](int rank, Communicator& comm) {
      std::vector<float> x, part(300), gathered(1200);
      std::minstd_rand random(static_cast<unsigned>(rank) + 1);
      for (int i = 0; i < 1200; ++i)
        x.push_back(std::ldexp(static_cast<float>(random() % 10007) - 5000.0f, static_cast<int>(random() % 24) - 12));
      const Work reduced = comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kLoss, kAsync);
      comm.reduce_scatter(comm.world(), buffer_of(x), buffer_of(part), Reduction::kSum, Purpose::kLoss);
      comm.all_gather(comm.world(), buffer_of(part), buffer_of(gathered), Purpose::kLoss);
      reduced.wait_host();
      all[static_cast<size_t>(rank)] = gathered;
    });
    return all;
  };
  const auto plain = results({.timeout_s = 60});
  EXPECT_EQ(results(on({.latency_s = 1e-3})), plain);
  EXPECT_EQ(results(on({.devices = 1, .ports = 1, .bytes_per_s = 1e5})), plain);
}

// Faults go on top: the third all-reduce of rank 1 is killed while the network is slow, and named.
TEST(LinkSimulation, FaultsStillHappen) {
  const FaultInjector injector(
      {{.kind = FaultKind::kKill, .rank = 1, .call = {.kind = CollectiveKind::kAllReduce, .nth = 2}},
       {.kind = FaultKind::kFlipReceived,
        .rank = 0,
        .call = {.kind = CollectiveKind::kAllReduce, .nth = 1},
        .bit = 30}});
  LocalOptions options = on({.node_latency_s = 0.01});
  options.hook = injector.hook();
  std::vector<float> seen;
  const Outcome outcome = run(2, options, [&](int rank, Communicator& comm) {
    for (int i = 0; i < 4; ++i) {
      std::vector<float> x(4, 1.0f);
      comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kGradients);
      if (rank == 0) seen.push_back(x[0]);
    }
  });
  EXPECT_EQ(outcome.error->rank(), 1);
  expect_text(outcome, "killed in all_reduce #2 of world[0]");
  EXPECT_EQ(seen, (std::vector<float>{2.0f, 0.0f}));  // 2.0 is 0x40000000: bit 30 alone
  EXPECT_EQ(injector.num_happened(), 2);
}

}  // namespace
}  // namespace fivefold
