// Reference: a folder with a model, one batch and the results that a public library got on it: what `check --reference`
// compares with. Files: config.json, model.safetensors, batch.json, expected.json, and optionally grads.safetensors
// (docs/formats/reference.md).
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine_api.h"
#include "spec/model.h"

namespace fivefold {

struct Reference {
  std::filesystem::path folder;
  ModelSpec model;
  GlobalBatch batch;
  bool packed = false;  // documents are attended to apart
  double loss = 0, grad_norm = 0;
  std::map<std::string, double> grad_norms;      // by Hub name
  std::map<std::string, NamedTensor> gradients;  // by Hub name; empty when the file is not there
};

// Errors name the file and key: not there, not JSON, arrays of unequal length, labels out of range.
Result<Reference> read_reference(const std::filesystem::path& folder);

// Rows without valid tokens are appended until `rows` is a multiple of `multiple`.
void pad_rows(GlobalBatch& batch, int64_t multiple);

}  // namespace fivefold
