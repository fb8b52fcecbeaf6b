#include "engine/calibrate_stopwatch.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace fivefold {
namespace {

// A round is as long as this at least, so that starting it together does not count.
constexpr double kRoundSeconds = 3e-4;
constexpr int kMostCalls = 200;
constexpr size_t kFewestRounds = 3;

}  // namespace

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double fastest_tenth(std::vector<double> samples) {
  FIVEFOLD_CHECK(!samples.empty());
  const auto nth = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 10);
  std::nth_element(samples.begin(), nth, samples.end());
  return *nth;
}

double Stopwatch::round(const std::function<void(int)>& body, int first, int calls) {
  communicator_.barrier(communicator_.world(), Purpose::kControl);
  const double begin = wall_seconds();
  for (int i = 0; i < calls; ++i) body(first + i);
  double seconds = (wall_seconds() - begin) / calls;
  communicator_.all_reduce(communicator_.world(), {&seconds, sizeof seconds, DType::kFloat64, {}}, Reduction::kMax,
                           Purpose::kControl);
  return seconds;
}

double Stopwatch::seconds(const std::function<void(int)>& body) {
  int next = 0;
  const auto timed = [&](int calls) {
    const double seconds = round(body, next, calls);
    next += calls;
    return seconds;
  };
  timed(1);
  const double guess = timed(1);
  const int calls = static_cast<int>(std::clamp(std::ceil(kRoundSeconds / guess), 1.0, double{kMostCalls}));
  std::vector<double> rounds;
  // All ranks have the same times, so they stop together.
  for (double spent = 0; rounds.size() < kFewestRounds || spent < budget_s_; spent += rounds.back() * calls)
    rounds.push_back(timed(calls));
  return fastest_tenth(std::move(rounds));
}

}  // namespace fivefold
