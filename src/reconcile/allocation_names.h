// Which tensor an allocation of so many bytes is: the sizes that a run's tensors have, by name, and those of them that
// are near a size. PyTorch rounds a request of 10 MiB and more up to 2 MiB before it says so. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/profiles/framework_run.h"

namespace fivefold {

struct NamedSize {
  std::string name;  // "fp32 logits"
  int64_t bytes = 0;
  std::string formula;  // "4 B x 4,096 tokens x 50,304"
  bool logits = false;
};

// Tensors that a step of the run allocates at once, largest first.
std::vector<NamedSize> tensor_sizes(const FrameworkRun& run);
// Those that a request of `bytes` may be, nearest first. `precision`: half a unit of the last digit that was printed.
std::vector<NamedSize> names_of_size(const FrameworkRun& run, int64_t bytes, int64_t precision);
// The same with nothing known but the vocabulary: logits in 4 or 2 bytes of a whole number of tokens. Empty when the
// size is no such number.
std::vector<NamedSize> logits_of_size(int64_t bytes, int64_t vocabulary, int64_t precision);

}  // namespace fivefold
