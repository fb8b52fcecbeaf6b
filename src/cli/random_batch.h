// A global batch of random tokens for a configuration: for checks and timings that need no text. Packed by documents
// where the configuration is, with documents of different lengths. Pure function.
#pragma once

#include "engine/engine_api.h"

namespace fivefold {

// kUneven: row r counts about 1 - (r mod 4) / 4 of its tokens in the loss, so that ranks differ.
enum class RandomTargets : uint8_t { kUneven, kAll };
GlobalBatch random_batch(const ResolvedConfig& config, int64_t vocabulary, RandomTargets targets);

}  // namespace fivefold
