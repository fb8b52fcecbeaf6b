// One matrix of a base with its low-rank adapter, and the same in 4 bits. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fivefold {

// W' in place of W [out, in], out of A [r, in], B [out, r]: W' = W + scale B A; with DoRA's magnitudes [out] (else
// none) each row of that scaled to have its magnitude as its norm. fp32, in the order of PEFT: B A, times scale, plus
// W.
void merge_into(std::span<float> weight, std::span<const float> a, std::span<const float> b,
                std::span<const float> magnitude, int64_t rank, double scale);

// To NF4 and back: a matrix [out, in] as QLoRA's base has it, in the engine as in bitsandbytes (kernels/nf4.h).
std::vector<float> through_nf4(std::span<const float> values, bool double_quantization);

}  // namespace fivefold
