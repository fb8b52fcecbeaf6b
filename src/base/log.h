// Log lines on stderr: a line is written whole, whichever thread writes it. Results go to stdout, never through here.
#pragma once

#include <cstdint>
#include <string>

namespace fivefold {

enum class LogLevel : uint8_t { kQuiet, kWarning, kInfo };

void set_log_level(LogLevel level);
void log_info(const std::string& message);
void log_warning(const std::string& message);

}  // namespace fivefold
