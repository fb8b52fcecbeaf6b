// OperationClock: how long each operation of a unit takes while a step runs; calibrate reads it. A unit run starts it
// with each instruction and laps it after each operation. One thread per object.
#pragma once

#include <chrono>
#include <map>
#include <tuple>
#include <vector>

#include "spec/hardware.h"

namespace fivefold {

class OperationClock {
 public:
  enum class Part : uint8_t { kMatrix, kRest };  // matrix products, or what else an operation does
  using Key = std::tuple<int, int, Pass, Part>;  // unit, operation

  void start() {
    flush();
    last_ = std::chrono::steady_clock::now();
  }
  // What passed since the last call belongs to this operation.
  void lap(int unit, int operation, Pass pass, Part part) {
    const auto now = std::chrono::steady_clock::now();
    current_[{unit, operation, pass, part}] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  // One sample per instruction that ran. REQUIRES: no instruction is running.
  const std::map<Key, std::vector<double>>& samples() {
    flush();
    return samples_;
  }
  void clear() {
    current_.clear();
    samples_.clear();
  }

 private:
  void flush() {
    for (const auto& [key, seconds] : current_) samples_[key].push_back(seconds);
    current_.clear();
  }

  std::chrono::steady_clock::time_point last_;
  std::map<Key, double> current_;
  std::map<Key, std::vector<double>> samples_;
};

}  // namespace fivefold
