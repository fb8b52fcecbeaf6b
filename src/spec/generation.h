// Generation: what a prompt and a number of new tokens need of memory, and whether the model and the engine take them.
// Derivation: docs/memory.md. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "spec/inventory.h"
#include "spec/model.h"

namespace fivefold {

// A sequence of prompt and new tokens in one process.
struct GenerationShape {
  int64_t prompt = 0, new_tokens = 0;
  DType compute = DType::kBFloat16;  // of weights, keys and values

  int64_t positions() const { return prompt + new_tokens; }
};

// Bytes that are held from the first token to the last.
struct GenerationBytes {
  int64_t params = 0;    // every unit, its parameters aligned to 256 elements
  int64_t kv_cache = 0;  // keys and values of every layer and position
};
GenerationBytes generation_bytes(const ModelSpec& model, const Inventory& inventory, const GenerationShape& shape);

// Errors: an empty prompt, no new tokens, more positions than the model has (or than an attention window that the
// engine does not cut at), a model that the engine does not run.
std::vector<Error> validate_generation(const ModelSpec& model, const GenerationShape& shape);

}  // namespace fivefold
