// Names for a number of bytes: which buffers of a plan have exactly that size. A difference of memory or traffic is
// said to be what it equals, not what it might be. Immutable, thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "reconcile/run_plan.h"

namespace fivefold {

class ByteSizes {
 public:
  explicit ByteSizes(const RunPlan& plan);

  // "2 x the gathered weights of layers.0", for the smallest multiple up to 8 of a known size; empty when there is
  // none.
  std::string name(int64_t bytes) const;

 private:
  void add(int64_t bytes, const std::string& name);

  std::map<int64_t, std::string> names_;  // the first name of a size stays
};

}  // namespace fivefold
