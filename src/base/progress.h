// Progress: one line on a terminal that is redrawn, for anything that takes over two seconds. Silent when stderr is not
// a terminal or under --quiet. Not thread-safe: one owner.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fivefold {

class Progress {
 public:
  // `total` 0: unknown, only the count is shown.
  Progress(std::string label, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Redraws at most ten times a second.
  void update(int64_t done, const std::string& note = "");

  static void set_quiet(bool quiet);

 private:
  std::string label_;
  int64_t total_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_draw_;
  bool drawn_ = false;
};

}  // namespace fivefold
