// A GGUF file as a Hub folder: config.json, generation_config.json, model.safetensors (or shards), tokenizer.json and
// tokenizer_config.json. Memory beside the mapped file: a few MiB, or one tensor where the Hub stores it transposed.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "spec/model.h"
#include "store/gguf.h"
#include "store/gguf_tokenizer.h"
#include "store/hub_writer.h"

namespace fivefold {

struct GgufConversion {
  ModelSpec model;
  GgufTokenizer tokenizer;
};

// Everything is checked before the first byte is written. `dtype`: fp32 keeps the values of the blocks exactly, bf16
// rounds them. Errors: those of read_gguf_model, gguf_weights and read_gguf_tokenizer; more tokens than the model's
// vocabulary. Throws StoreError. Shows its progress.
Result<GgufConversion> write_gguf_as_hub_folder(const GgufFile& file, const std::filesystem::path& folder, DType dtype,
                                                const HubWriterOptions& options);

}  // namespace fivefold
