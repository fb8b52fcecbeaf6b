#include "planner/profiles/device_need.h"

#include <gtest/gtest.h>

namespace fivefold {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

ProfilePhase phase(int64_t bytes, bool fragments) {
  return {.name = "p", .lines = {{.name = "all", .bytes = bytes, .formula = ""}}, .fragments = fragments};
}

TEST(DeviceNeed, PhasesOfManySizesNeedMoreThanTheirBytes) {
  // 50 GiB x 1.08 + 1.5 GiB = 55.5 GiB.
  EXPECT_EQ(needed_bytes({.phases = {phase(50 * kGiB, true)}, .static_bytes = 0, .assumed = {}}), 111 * kGiB / 2);
  EXPECT_EQ(needed_bytes({.phases = {phase(50 * kGiB, false)}, .static_bytes = 0, .assumed = {}}), 103 * kGiB / 2);
}

TEST(DeviceNeed, ThePhaseThatNeedsMostNeedNotBeThePeak) {
  // 75 GiB of the optimizer's against 72 GiB x 1.08 = 77.76 GiB of activations.
  const ProfileMemory memory = {
      .phases = {phase(75 * kGiB, false), phase(72 * kGiB, true)}, .static_bytes = 0, .assumed = {}};
  EXPECT_EQ(memory.peak().bytes(), 75 * kGiB);
  EXPECT_NEAR(static_cast<double>(needed_bytes(memory)), (77.76 + 1.5) * 0x1p30, 1e3);
}

}  // namespace
}  // namespace fivefold
