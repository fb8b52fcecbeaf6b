// Which of the compiled variants of the kernels runs on this processor. Results are bit-identical from run to run for
// one variant, not between variants (vector width and fused multiply-add differ), so the run record names it.
#pragma once

#include <string_view>

namespace fivefold::kernels {

// "x86-64-v4" (AVX-512), "x86-64-v3" (AVX2, FMA), or "baseline": neither, or a build without variants (sanitizers).
std::string_view instruction_set();

}  // namespace fivefold::kernels
