// For tests of faults: runs ranks and notes how each of them ended.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/local_world.h"

namespace fivefold::comm_test {

// How a rank's function ended.
enum class Ended { kNormally, kCommError, kAborted, kOther };

struct Outcome {
  std::vector<Ended> ranks;
  std::optional<RankError> error;

  int num(Ended ended) const { return static_cast<int>(std::count(ranks.begin(), ranks.end(), ended)); }
};

inline Outcome run(int n, const LocalOptions& options, const std::function<void(int, Communicator&)>& fn) {
  Outcome outcome{.ranks = std::vector<Ended>(static_cast<size_t>(n), Ended::kNormally), .error = std::nullopt};
  try {
    run_ranks(n, options, [&](int rank, Communicator& comm) {
      Ended& ended = outcome.ranks[static_cast<size_t>(rank)];
      try {
        fn(rank, comm);
      } catch (const CommError&) {
        ended = Ended::kCommError;
        throw;
      } catch (const Aborted&) {
        ended = Ended::kAborted;
        throw;
      } catch (...) {
        ended = Ended::kOther;
        throw;
      }
    });
  } catch (const RankError& e) {
    outcome.error = e;
  }
  return outcome;
}

inline void expect_text(const Outcome& outcome, const std::string& part) {
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_NE(std::string(outcome.error->what()).find(part), std::string::npos)
      << "expected: " << part << "\nin: " << outcome.error->what();
}

}  // namespace fivefold::comm_test
