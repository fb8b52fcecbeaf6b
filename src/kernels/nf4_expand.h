// Internal to src/kernels: whole NF4 blocks into values, the loop that every use of a 4-bit weight runs.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/element.h"
#include "kernels/instruction_set.h"

namespace fivefold::kernels {

// out[64 b + i] = kNf4Values[code i of block b] absmax[b], codes of 32 bytes a block. `variant`: as
// instruction_set() names them; the processor must run it. Every variant gives the same bits.
void nf4_expand(const uint8_t* codes, const float* absmax, int64_t num_blocks, float* out,
                std::string_view variant = instruction_set());
void nf4_expand(const uint8_t* codes, const float* absmax, int64_t num_blocks, BFloat16* out,
                std::string_view variant = instruction_set());

// Through fp32, a block at a time.
void nf4_expand(const uint8_t* codes, const float* absmax, int64_t num_blocks, Float16* out,
                std::string_view variant = instruction_set());

}  // namespace fivefold::kernels
