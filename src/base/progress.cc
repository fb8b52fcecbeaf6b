#include "base/progress.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>

namespace fivefold {
namespace {
std::atomic<bool> quiet_flag{false};
constexpr auto kDelay = std::chrono::seconds(2);
constexpr auto kInterval = std::chrono::milliseconds(100);
}  // namespace

Progress::Progress(std::string label, int64_t total)
    : label_(std::move(label)), total_(total), start_(std::chrono::steady_clock::now()), last_draw_(start_) {}

Progress::~Progress() {
  if (drawn_) std::fprintf(stderr, "\r\033[K");
}

void Progress::update(int64_t done, const std::string& note) {
  const auto now = std::chrono::steady_clock::now();
  if (now - start_ < kDelay || now - last_draw_ < kInterval) return;
  if (quiet_flag.load(std::memory_order_relaxed) || isatty(STDERR_FILENO) == 0) return;
  last_draw_ = now;
  drawn_ = true;
  if (total_ > 0) {
    std::fprintf(stderr, "\r\033[K%s %3.0f %% (%lld/%lld) %s", label_.c_str(),
                 100.0 * static_cast<double>(done) / static_cast<double>(total_), static_cast<long long>(done),
                 static_cast<long long>(total_), note.c_str());
  } else {
    std::fprintf(stderr, "\r\033[K%s %lld %s", label_.c_str(), static_cast<long long>(done), note.c_str());
  }
  std::fflush(stderr);
}

void Progress::set_quiet(bool quiet) { quiet_flag.store(quiet); }

}  // namespace fivefold
