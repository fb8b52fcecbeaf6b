// Ordered reduction of n arrays: the arithmetic of all_reduce and reduce_scatter. For each element the sources are
// combined in the order given, in fp32 for fp32, bf16 and fp16, in the source's type else, and rounded once to the
// output. The bits do not depend on the instruction set. The sources are read in blocks that stay in the first-level
// cache, so that memory is read and written once.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"
#include "spec/enums.h"

namespace fivefold {

// out[i] = sources[0][i] op sources[1][i] op ... for i < count; with kAccumulate, out[i] = out[i] op that.
// Sums of integers wrap around; a maximum with a NaN is NaN.
// REQUIRES: `out` is one of the sources or overlaps none; out_dtype is dtype, or fp32 for bf16 and fp16.
void reduce_in_order(std::span<const void* const> sources, int64_t count, DType dtype, Reduction reduction, void* out,
                     DType out_dtype, Output mode);

}  // namespace fivefold
