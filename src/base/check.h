// FIVEFOLD_CHECK: our own invariants. A failed check is a bug in fivefold, never a user's mistake (those are `Result`),
// and never the world's fault (those are exceptions). Checks stay on in release builds.
#pragma once

#include <string>

namespace fivefold {

// Prints the place and the message, then aborts the process.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace fivefold

// FIVEFOLD_CHECK(condition) or FIVEFOLD_CHECK(condition, "message as std::string").
#define FIVEFOLD_CHECK(condition, ...)                                                    \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::fivefold::check_failed(__FILE__, __LINE__, #condition, std::string{__VA_ARGS__}); \
  } while (false)
