#include "kernels/instruction_set.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace fivefold::kernels {
namespace {

// Against what the kernel of the operating system says of the processor.
TEST(InstructionSet, NamesTheWidestThatTheProcessorHas) {
#ifdef FIVEFOLD_KERNELS_ONE_VARIANT
  EXPECT_EQ(instruction_set(), "baseline");
#else
  std::ifstream file("/proc/cpuinfo");
  std::stringstream content;
  content << file.rdbuf();
  const std::string flags = content.str();
  const auto has = [&](const char* flag) { return flags.find(std::string(" ") + flag + " ") != std::string::npos; };
  if (!has("sse2")) GTEST_SKIP() << "no flags in /proc/cpuinfo";
  const bool v3 = has("avx2") && has("fma") && has("bmi2") && has("f16c") && has("movbe") && has("abm");
  const bool v4 = v3 && has("avx512f") && has("avx512bw") && has("avx512cd") && has("avx512dq") && has("avx512vl");
  EXPECT_EQ(instruction_set(), v4 ? "x86-64-v4" : v3 ? "x86-64-v3" : "baseline");
#endif
}

}  // namespace
}  // namespace fivefold::kernels
