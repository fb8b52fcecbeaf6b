// What a GGUF file says of a model: its config.json, and its tensors under the Hub's names, in the Hub's order of rows.
// Architectures: llama (Llama, Mistral and what else has their layers), qwen2, qwen3, gpt2. Thread-safe.
//
// Rows of q and k: llama.cpp turns neighbours (2j, 2j + 1) of a head in "llama" files, the Hub's layers dims j and
// j + d/2. So row j < d/2 of a head on the Hub is row 2j of the file, and row d/2 + j is row 2j + 1. Files of the other
// architectures have the Hub's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "spec/model.h"
#include "store/gguf.h"
#include "store/safetensors_writer.h"

namespace fivefold {

// `general.architecture` values that are read.
std::vector<std::string> gguf_architectures();

// Errors: another architecture, a part of a split file, missing or contradictory metadata, features that the
// architecture's config.json has no key for (experts, attention windows, rotation of a part of the head, unknown
// scaling of positions), those of parse_model_config.
Result<ModelSpec> read_gguf_model(const GgufFile& file);

// A tensor of the model on the Hub and where its values are.
struct GgufWeight {
  TensorDeclaration hub;
  const GgufTensor* tensor = nullptr;  // of the file
  bool transposed = false;             // [in, out] on the Hub, [out, in] in the file
  int64_t paired_head = 0;             // head size d when rows are in llama.cpp's order of pairs; 0: as on the Hub
};

// Every tensor of the model, in the order of its inventory. Errors: one that the file has not, or in another shape; one
// of the file that has no place in the model. REQUIRES: `model` is read_gguf_model(file).
Result<std::vector<GgufWeight>> gguf_weights(const GgufFile& file, const ModelSpec& model, DType dtype);

// Calls `write` with the weight's values in the Hub's order, in portions of whole rows; at most 4 MiB in one, or the
// whole of a transposed tensor.
void for_each_portion(const GgufFile& file, const GgufWeight& weight,
                      const std::function<void(std::span<const float>)>& write);

}  // namespace fivefold
