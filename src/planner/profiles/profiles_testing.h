// Checks that tests of profiles share: one line of the peak, and the peak itself, against bytes of a source.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "planner/profiles/framework_run.h"

namespace fivefold {

inline int64_t line(const ProfilePhase& phase, const std::string& name) {
  for (const ProfileLine& each : phase.lines)
    if (each.name == name) return each.bytes;
  return 0;
}
inline int64_t line(const ProfileMemory& memory, const std::string& name) { return line(memory.peak(), name); }

inline void expect_line(const ProfileMemory& memory, const std::string& name, double bytes) {
  EXPECT_NEAR(static_cast<double>(line(memory, name)) / bytes, 1, 1e-3) << name;
}

inline void expect_peak(const ProfileMemory& memory, double measured, double tolerance) {
  EXPECT_NEAR(static_cast<double>(memory.peak().bytes()) / measured, 1, tolerance);
}

}  // namespace fivefold
