#include "base/log.h"

#include <atomic>
#include <cstdio>

namespace fivefold {
namespace {
std::atomic<LogLevel> level_limit{LogLevel::kInfo};

void write_line(const std::string& line) { std::fwrite(line.data(), 1, line.size(), stderr); }
}  // namespace

void set_log_level(LogLevel level) { level_limit.store(level); }

void log_info(const std::string& message) {
  if (level_limit.load() >= LogLevel::kInfo) write_line(message + "\n");
}

void log_warning(const std::string& message) {
  if (level_limit.load() >= LogLevel::kWarning) write_line("warning: " + message + "\n");
}

}  // namespace fivefold
