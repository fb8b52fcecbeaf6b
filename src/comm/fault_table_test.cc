// The table of faults: every collective by every fault, in sync and async mode. Each cell asserts that the report names
// rank, group, operation and sequence number, and that every rank ends. Groups are parts of the world in an order of
// their own; a rank that is left over waits for a member that waits for the faulty one. Only faults that nothing but
// time can show have a short timeout: the other cells would never end if they depended on it.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <latch>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "comm/collective_cases.h"
#include "comm/comm_fault_support.h"
#include "comm/fault_injection.h"

namespace fivefold {
namespace {

using comm_test::Collective;
using comm_test::Ended;
using comm_test::expect_text;
using comm_test::Form;
using comm_test::Make;
using comm_test::Memory;
using comm_test::Outcome;
using comm_test::run;

// What happens in the place of the faulty rank's call number 1.
enum class What { kThrows, kEnds, kIsKilled, kHangsOutside, kHangsInside, kSkips, kSwaps, kOtherSize, kOtherDtype };
constexpr std::array<const char*, 9> kWhatNames = {"Throws", "Ends",  "IsKilled",  "HangsOutside", "HangsInside",
                                                   "Skips",  "Swaps", "OtherSize", "OtherDtype"};

struct Cell {
  Collective op;
  What what;
  Mode mode;

  bool is(std::initializer_list<What> any) const { return std::find(any.begin(), any.end(), what) != any.end(); }
  bool only_time_tells() const {
    return is({What::kHangsOutside, What::kHangsInside}) || (what == What::kSkips && op.is_transfer());
  }
  std::string name() const {
    return op.name + kWhatNames[static_cast<size_t>(what)] + (mode == Mode::kSync ? "Sync" : "Async");
  }
  friend void PrintTo(const Cell& cell, std::ostream* out) { *out << cell.name(); }
  std::vector<Fault> plan() const {
    if (!is({What::kIsKilled, What::kHangsInside, What::kSkips})) return {};
    const FaultKind kind = what == What::kIsKilled      ? FaultKind::kKill
                           : what == What::kHangsInside ? FaultKind::kFreeze
                                                        : FaultKind::kDrop;
    return {{.kind = kind,
             .rank = op.faulty,
             .call = {.kind = op.kind, .group = op.group_kind, .group_index = op.group_index, .sequence = 1}}};
  }
};

std::vector<Cell> cells() {
  std::vector<Cell> all;
  for (const Collective& op : comm_test::collectives())
    for (size_t what = 0; what < kWhatNames.size(); ++what)
      for (const Mode mode : {Mode::kSync, Mode::kAsync}) {
        const Cell cell{op, static_cast<What>(what), mode};
        if (op.kind != CollectiveKind::kBarrier || !cell.is({What::kOtherSize, What::kOtherDtype})) all.push_back(cell);
      }
  return all;
}

// The calls of a member from number 1 on.
void make_calls(const Cell& cell, Communicator& comm, const Group& group, bool faulty) {
  const auto memory = std::make_shared<std::array<Memory, 2>>();
  const CallOptions options{.mode = cell.mode, .keep_alive = memory};
  const auto first = [&] {
    Form form;
    if (faulty && cell.what == What::kOtherSize) form.count *= 2;
    if (faulty && cell.what == What::kOtherDtype) form.dtype = DType::kInt32;
    return cell.op.make(comm, group, form, (*memory)[0], options);
  };
  // The next call is of another kind; or a transfer that differs by its purpose alone.
  const auto next = [&] {
    const Form form{.purpose = Purpose::kActivationGradients};
    if (cell.op.is_transfer() && cell.what == What::kSwaps)
      return cell.op.make(comm, group, form, (*memory)[1], options);
    Make* const other_kind = cell.op.kind == CollectiveKind::kBarrier ? comm_test::all_gather : comm_test::barrier;
    return other_kind(comm, group, form, (*memory)[1], options);
  };
  std::vector<Work> works;
  if (faulty && cell.what == What::kSwaps) works.push_back(next());
  works.push_back(first());
  if (!faulty || cell.what == What::kSkips) works.push_back(next());
  for (const Work& work : works) work.wait_host();
}

Outcome run_cell(const Cell& cell, const FaultInjector& injector) {
  const Collective& op = cell.op;
  const LocalOptions options{
      .timeout_s = cell.only_time_tells() ? 0.3 : 1e6, .send_mode = op.send_mode, .hook = injector.hook()};
  std::latch others_ended(op.world_size - 1);
  return run(op.world_size, options, [&](int rank, Communicator& comm) {
    const bool faulty = rank == op.faulty;
    const std::shared_ptr<void> at_end(nullptr, [&](void*) {
      if (!faulty) others_ended.count_down();
    });
    const auto meet_left_over = [&] {
      comm.barrier(comm.create_group(GroupKind::kEdp, 0, {op.left_over(), op.waiting()}), Purpose::kControl);
    };
    if (rank == op.left_over()) return meet_left_over();
    const Group group = comm.create_group(op.group_kind, op.group_index, op.members);
    Memory memory;
    op.make(comm, group, {}, memory, {});
    if (faulty && cell.what == What::kThrows) throw std::runtime_error("out of memory");
    if (faulty && cell.what == What::kEnds) return;
    if (faulty && cell.what == What::kHangsOutside) return others_ended.wait();
    make_calls(cell, comm, group, faulty);
    if (rank == op.waiting() && op.left_over() >= 0) meet_left_over();
    // A buffered send does not wait: its rank notices here that nobody goes on.
    if (faulty) comm.barrier(comm.create_group(GroupKind::kEtp, 0, {op.faulty, op.waiting()}), Purpose::kControl);
  });
}

bool reports(const Outcome& outcome, const std::string& text) {
  return std::string(outcome.error->what()).find(text) != std::string::npos;
}

// The faulty rank has gone on to its next call, the others are in number 1.
void expect_wrong_order(const Cell& cell, const Outcome& outcome) {
  const Collective& op = cell.op;
  const std::string rank = "rank " + std::to_string(op.faulty);
  if (op.is_transfer() && cell.what == What::kSkips) {
    const std::string peer = "rank " + std::to_string(op.waiting());
    expect_text(outcome, "deadlock: ");
    expect_text(outcome, rank + " is in barrier #0 of " + op.group() + ", waiting for " + peer);
    expect_text(outcome, peer + " is in " + op.peer_call + ", waiting for " + rank);
  } else if (op.is_transfer()) {
    const std::string early = " (48 bytes of fp32, activation_gradients)";
    EXPECT_TRUE(reports(outcome, rank + " entered " + op.call(1, CollectiveKind::kSend) + early) ||
                reports(outcome, rank + " entered " + op.call(1, CollectiveKind::kRecv) + early))
        << outcome.error->what();
    expect_text(outcome, " (48 bytes of fp32, activations)");
  } else {
    const std::string next = op.kind == CollectiveKind::kBarrier ? "all_gather" : "barrier";
    expect_text(outcome, rank + " entered " + next + " #1 of " + op.group() + " (");
    expect_text(outcome, " entered " + op.call(1) + op.arguments(op.usual_bytes(), "fp32"));
  }
}

void expect_report(const Cell& cell, const Outcome& outcome) {
  const Collective& op = cell.op;
  const std::string rank = "rank " + std::to_string(op.faulty);
  switch (cell.what) {
    case What::kThrows:
      return expect_text(outcome, rank + ": out of memory\n" + rank + " was outside any call, after " + op.call(0));
    case What::kEnds:
      return expect_text(outcome, rank + " never entered " + op.call(1) + "; it is at its end, after " + op.call(0));
    case What::kIsKilled:
      return expect_text(outcome, rank + ": killed in " + op.call(1) + "\n" + rank + " was in " + op.call(1));
    case What::kHangsOutside:
      return expect_text(outcome,
                         rank + " never entered " + op.call(1) + "; it is outside any call, after " + op.call(0));
    case What::kHangsInside:
      return expect_text(outcome,
                         rank + " never entered " + op.call(1) + "; it is in " + op.call(1) + ", waiting for no rank");
    case What::kSkips:
    case What::kSwaps:
      return expect_wrong_order(cell, outcome);
    case What::kOtherSize:
      if (op.is_ragged()) {
        return expect_text(outcome,
                           "rank 0 expects 2 elements from rank 3 in all_to_all #1 of ep[3], but rank 3 sends 3");
      }
      return expect_text(outcome, rank + " entered " + op.call(1) + op.arguments(96, "fp32"));
    case What::kOtherDtype:
      expect_text(outcome, " entered " + op.call(1, op.kind) + op.arguments(op.usual_bytes(), "int32"));
      return expect_text(outcome, op.arguments(op.usual_bytes(), "fp32"));
  }
}

class FaultTable : public testing::TestWithParam<Cell> {};

TEST_P(FaultTable, TheReportNamesTheRankAndItsCallAndAllRanksEnd) {
  const Cell& cell = GetParam();
  const FaultInjector injector(cell.plan());
  const Outcome outcome = run_cell(cell, injector);
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(injector.num_happened(), static_cast<int>(cell.plan().size()));
  expect_report(cell, outcome);

  // One rank has the error, all others have been woken by the abort; a rank that left in peace was not.
  const bool by_itself = cell.is({What::kThrows, What::kIsKilled});
  const bool in_peace = cell.is({What::kEnds, What::kHangsOutside});
  EXPECT_EQ(outcome.num(Ended::kOther), by_itself ? 1 : 0);
  EXPECT_EQ(outcome.num(Ended::kCommError), by_itself ? 0 : 1);
  EXPECT_EQ(outcome.num(Ended::kNormally), in_peace ? 1 : 0);
  const Ended own = outcome.ranks[static_cast<size_t>(cell.op.faulty)];
  EXPECT_EQ(own == Ended::kOther, by_itself);
  EXPECT_EQ(own == Ended::kNormally, in_peace);
}

INSTANTIATE_TEST_SUITE_P(EachCollective, FaultTable, testing::ValuesIn(cells()),
                         [](const testing::TestParamInfo<Cell>& cell) { return cell.param.name(); });

}  // namespace
}  // namespace fivefold
