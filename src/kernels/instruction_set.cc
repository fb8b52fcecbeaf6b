#include "kernels/instruction_set.h"

namespace fivefold::kernels {

std::string_view instruction_set() {
#ifndef FIVEFOLD_KERNELS_ONE_VARIANT
  // The same question, in the same order, that the resolvers of the cloned functions ask (clones.h).
  if (__builtin_cpu_supports("x86-64-v4")) return "x86-64-v4";
  if (__builtin_cpu_supports("x86-64-v3")) return "x86-64-v3";
#endif
  return "baseline";
}

}  // namespace fivefold::kernels
