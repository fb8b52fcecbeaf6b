#include "support/predicted.h"

#include <gtest/gtest.h>

#include <thread>

#include "planner/kernel_scratch.h"
#include "planner/ledger.h"
#include "planner/traffic.h"

namespace fivefold::testing {
namespace {

std::string text(const TrafficLine& line) {
  return std::string(to_string(line.kind)) + " " + std::string(to_string(line.group)) + " " +
         std::string(to_string(line.purpose)) + ": " + std::to_string(line.calls) + " calls, " +
         std::to_string(line.bytes) + " bytes";
}

}  // namespace

void expect_predicted(const ModelSpec& model, const Inventory& inventory, const ProbeRequest& request,
                      const ProbeResult& result) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const KernelScratch scratch =
      largest_scratch(model, inventory, request.config, threads_per_rank(request.config, cores));
  for (size_t rank = 0; rank < result.memory.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const Ledger ledger = predict_memory(model, inventory, request.config, static_cast<int>(rank));
    const RankMemory& memory = result.memory[rank];
    for (int a = 0; a < kNumAccounts; ++a) {
      const auto account = static_cast<Account>(a);
      if (account == Account::kWorkspace || account == Account::kOther) continue;
      EXPECT_EQ(memory.peak_by_account[static_cast<size_t>(a)], ledger.peak[account]) << to_string(account);
    }
    EXPECT_LE(memory.peak_by_account[static_cast<size_t>(Account::kWorkspace)], scratch.bytes)
        << static_cast<int>(scratch.kernel);
    // The whole, workspace included: 1 % and 4 MiB per thread.
    EXPECT_NEAR(static_cast<double>(memory.peak_total), static_cast<double>(ledger.peak_total),
                0.01 * static_cast<double>(ledger.peak_total) + 4.0 * 1024 * 1024);
    std::vector<std::string> counted, predicted;
    for (const RecordedTraffic& c : result.traffic[rank])
      counted.push_back(text({c.kind, c.group, c.purpose, c.calls, c.bytes}));
    for (const TrafficLine& line : predict_traffic(model, inventory, request.config, static_cast<int>(rank)))
      predicted.push_back(text(line));
    EXPECT_EQ(counted, predicted);
  }
}

}  // namespace fivefold::testing
