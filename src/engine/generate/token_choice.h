// The next token from logits: the largest, or a draw. Pure function, thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "engine/generate_request.h"

namespace fivefold {

// `index`: how many tokens were chosen before this one. Of equal logits the lowest id comes first.
// Throws std::runtime_error for logits of which the largest is not finite.
int32_t choose_token(std::span<const float> logits, const TokenSampling& sampling, uint64_t index);

}  // namespace fivefold
