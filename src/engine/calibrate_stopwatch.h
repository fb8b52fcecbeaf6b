// Stopwatch: times something that all ranks do at once, often enough that load from outside passes between two
// repetitions. One per rank; every rank makes the same calls.
#pragma once

#include <functional>
#include <vector>

#include "comm/communicator.h"

namespace fivefold {

class Stopwatch {
 public:
  // Repeats until `budget_s` have passed, at least three times. REQUIRES: `communicator` outlives this.
  Stopwatch(Communicator& communicator, double budget_s) : communicator_(communicator), budget_s_(budget_s) {}

  // Seconds of body(i), i = 0, 1, ..., which every rank starts together: the fastest tenth of the rounds, each as long
  // as on its slowest rank. The first calls are not timed.
  double seconds(const std::function<void(int)>& body);

 private:
  // `calls` calls of body from number `first`: seconds of one, on the slowest rank.
  double round(const std::function<void(int)>& body, int first, int calls);

  Communicator& communicator_;
  double budget_s_;
};

// The value that a tenth of the samples stays below; the smallest of fewer than ten. REQUIRES: not empty.
double fastest_tenth(std::vector<double> samples);

// On the monotonic clock.
double wall_seconds();

}  // namespace fivefold
