// ParameterSource: where the weights of a model that generates come from: a Hub folder or a fivefold checkpoint. Whole
// parameters as fp32, one after the other, so that what changes weights on their way (an adapter that is merged in) is
// one more source around another. Not thread-safe.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "base/result.h"
#include "spec/inventory.h"

namespace fivefold {

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  // REQUIRES: packed.size() is the entry's whole_numel(). Errors: missing, of another shape, damaged.
  virtual Status read(const ParameterEntry& entry, std::span<float> packed) = 0;
};

// `path`: a folder of safetensors; or a checkpoint, a folder of checkpoints or a run's folder, of which the newest
// whole checkpoint is taken. Errors: neither; a tensor of the inventory that is missing or has another shape.
Result<std::unique_ptr<ParameterSource>> open_parameters(const std::filesystem::path& path, const Inventory& inventory);

}  // namespace fivefold
