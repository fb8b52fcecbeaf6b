// Random programs of collectives under random delays and kills: nothing hangs, what completes is right, and a kill is
// reported with its rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <random>

#include "comm/comm_fault_support.h"
#include "comm/fault_injection.h"
#include "comm/random_program.h"

namespace fivefold {
namespace {

using comm_test::below;
using comm_test::Ended;
using comm_test::expect_text;
using comm_test::input_of;
using comm_test::make_call;
using comm_test::Memory;
using comm_test::Op;
using comm_test::Outcome;
using comm_test::Program;
using comm_test::random_program;
using comm_test::result_of;
using comm_test::run;
using comm_test::Step;
using comm_test::Values;

// One rank's part in a program, in a random mix of sync and async calls.
class Rank {
 public:
  Rank(const Program& program, int rank, Communicator& comm, unsigned seed, std::atomic<int>& num_wrong)
      : program_(program),
        rank_(rank),
        comm_(comm),
        random_(seed * 31u + static_cast<unsigned>(rank) + 1u),
        num_wrong_(num_wrong) {}

  // Errors: the first error of a call, once all calls are complete and the results of the good ones compared.
  void run() {
    try {
      for (const Step& step : program_.steps) make(step);
    } catch (...) {
      error_ = std::current_exception();
    }
    complete();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Pending {
    const Step* step;
    int member;
    std::shared_ptr<Memory> memory;
    Work work;
  };

  void make(const Step& step) {
    const std::vector<int>& members = program_.groups[static_cast<size_t>(step.group)];
    const auto at = std::find(members.begin(), members.end(), rank_);
    if (at == members.end()) return;
    const int member = static_cast<int>(at - members.begin());
    if (!step.takes_part(member)) return;
    const auto memory = std::make_shared<Memory>();
    memory->in = input_of(step, member);
    memory->out =
        step.in_place() ? memory->in : Values(result_of(step, member).size(), std::numeric_limits<float>::quiet_NaN());
    const CallOptions options{.mode = below(random_, 2) == 0 ? Mode::kSync : Mode::kAsync, .keep_alive = memory};
    const Group group = comm_.create_group(GroupKind::kDp, step.group, members);
    pending_.push_back({&step, member, memory, make_call(comm_, group, step, *memory, options)});
    if (below(random_, 3) == 0) complete();
  }

  void complete() {
    for (const Pending& pending : pending_) {
      try {
        pending.work.wait_host();
      } catch (...) {
        if (!error_) error_ = std::current_exception();
        continue;
      }
      if (pending.memory->out != result_of(*pending.step, pending.member)) ++num_wrong_;
      if (pending.memory->in != input_of(*pending.step, pending.member)) ++num_wrong_;
    }
    pending_.clear();
  }

  const Program& program_;
  const int rank_;
  Communicator& comm_;
  std::minstd_rand random_;
  std::atomic<int>& num_wrong_;
  std::vector<Pending> pending_;
  std::exception_ptr error_;
};

struct Ran {
  Outcome outcome;
  int num_wrong;
};

// Nodes of one or two ranks, whose links take up to a millisecond; of every third program, none.
std::optional<NetworkSpec> network_of_seed(unsigned seed) {
  if (seed % 3 == 0) return std::nullopt;
  const int64_t devices = 1 + seed / 3 % 2;
  NetworkSpec network{.name = "test", .devices_per_node = devices, .ports = 1};
  network.node_link.bytes_per_s.value = 1e8;
  network.node_link.latency_s.value = 1e-5;
  network.network.bytes_per_s.value = 1e7;
  network.network.latency_s.value = 1e-4;
  return network;
}

Ran run_program(const Program& program, unsigned seed, const FaultInjector& injector) {
  std::atomic<int> num_wrong{0};
  const LocalOptions options{.timeout_s = 20,
                             .send_mode = seed % 2 == 0 ? SendMode::kBuffered : SendMode::kRendezvous,
                             .simulate = network_of_seed(seed),
                             .hook = injector.hook()};
  Outcome outcome = run(program.ranks, options,
                        [&](int rank, Communicator& comm) { Rank(program, rank, comm, seed, num_wrong).run(); });
  return {std::move(outcome), num_wrong};
}

// Matching calls of a rank that reach `point`, transfers one by one.
int num_calls(const Program& program, int rank, HookPoint point) {
  int num = 0;
  for (const Step& step : program.steps) {
    const std::vector<int>& members = program.groups[static_cast<size_t>(step.group)];
    const auto at = std::find(members.begin(), members.end(), rank);
    const int member = static_cast<int>(at - members.begin());
    if (at == members.end() || !step.takes_part(member)) continue;
    if (point != HookPoint::kBeforeEntry) {
      num += step.has_data(member) ? 1 : 0;
    } else {
      num += step.op == Op::kRing ? 2 : 1;
    }
  }
  return num;
}

// A fault in one of the calls of a random rank; nothing if that has none.
std::optional<Fault> random_fault(const Program& program, FaultKind kind, std::minstd_rand& random) {
  constexpr HookPoint kPoints[] = {HookPoint::kBeforeEntry, HookPoint::kBeforeData, HookPoint::kAfterData};
  Fault fault{.kind = kind, .rank = below(random, program.ranks), .at = kPoints[below(random, 3)]};
  const int num = num_calls(program, fault.rank, fault.at);
  if (num == 0) return std::nullopt;
  fault.call.nth = below(random, num);
  if (kind == FaultKind::kDelay) fault.delay_s = below(random, 100) * 1e-6;
  return fault;
}

TEST(FaultSchedule, DelaysAndKillsLeaveNoHangAndNoWrongResult) {
  int num_killed = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::minstd_rand random(seed + 1);
    random.discard(5);
    const Program program = random_program(random);
    std::vector<Fault> plan;
    for (int i = below(random, 8); i > 0; --i)
      if (const auto delay = random_fault(program, FaultKind::kDelay, random)) plan.push_back(*delay);
    const auto kill = below(random, 2) == 0 ? random_fault(program, FaultKind::kKill, random) : std::nullopt;
    if (kill) plan.push_back(*kill);

    const FaultInjector injector(plan);
    const auto [outcome, num_wrong] = run_program(program, seed, injector);
    EXPECT_EQ(num_wrong, 0);
    ASSERT_EQ(outcome.error.has_value(), kill.has_value()) << (kill ? "not killed" : outcome.error->what());
    if (!kill) {
      EXPECT_EQ(injector.num_happened(), static_cast<int>(plan.size()));
      continue;
    }
    ++num_killed;
    EXPECT_EQ(outcome.error->rank(), kill->rank);
    expect_text(outcome, "rank " + std::to_string(kill->rank) + ": killed in ");
    EXPECT_EQ(outcome.num(Ended::kCommError), 0);
  }
  EXPECT_GT(num_killed, 60);  // of 200 at 1/2: more than five standard deviations (7) below the mean
}

// The comparison above is worth something: it finds a single bit.
TEST(FaultSchedule, AFlippedBitIsOneWrongResult) {
  int num_flips = 0;
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::minstd_rand random(seed + 1000);
    random.discard(5);
    Program program = random_program(random);
    for (Step& step : program.steps) step.count += 1;
    const int rank = below(random, program.ranks);
    const auto has_result = [&](const Step& step) {
      const std::vector<int>& members = program.groups[static_cast<size_t>(step.group)];
      const auto at = std::find(members.begin(), members.end(), rank);
      return step.op == Op::kAllGather && at != members.end();
    };
    if (std::none_of(program.steps.begin(), program.steps.end(), has_result)) continue;
    ++num_flips;
    const FaultInjector injector({{.kind = FaultKind::kFlipReceived,
                                   .rank = rank,
                                   .call = {.kind = CollectiveKind::kAllGather},
                                   .bit = below(random, 32)}});
    const auto [outcome, num_wrong] = run_program(program, seed, injector);
    EXPECT_FALSE(outcome.error.has_value());
    EXPECT_EQ(num_wrong, 1) << "seed " << seed;
  }
  EXPECT_GT(num_flips, 5);
}

}  // namespace
}  // namespace fivefold
